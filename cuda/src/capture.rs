//! In which mode this library's calls of the driver are made while a program captures streams into graphs.
//!
//! Invariant: the mode that a thread of the program has is the same before and after every call of this library.
//! Absent: captures of this library's own, and whether a stream is captured ([`StreamRef::capture_status`]).
//!
//! [`StreamRef::capture_status`]: super::StreamRef::capture_status

use std::cell::Cell;
use std::ffi::c_uint;
use std::marker::PhantomData;

use cudarc::driver::sys::CUstreamCaptureMode;

use super::Driver;

thread_local! {
    /// How many guards this thread has. Only the outermost asks the driver.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

/// That this thread's capture mode is relaxed; the mode before is so again when this is dropped.
///
/// While any thread captures a stream in the global mode, which is the default, the driver refuses allocations, loads,
/// queries and waits of all threads whose own mode is not relaxed, and such a call makes the capture invalid. The mode
/// is there for calls that have nothing to do with what is recorded, and this library's are such: the memory, modules
/// and events are its own, and what it asks and waits for is in streams that are not captured. Of a stream that is
/// captured the mode changes nothing: what is put into it is recorded, and to wait for it or to query it stays
/// forbidden. A collective in such a stream is refused before anything is put there.
#[derive(Debug)]
#[must_use = "the mode is left when this is dropped"]
pub(super) struct Relaxed {
    /// What the outermost guard restores.
    restored: Option<(&'static Driver, c_uint)>,
    /// A mode is a thread's own.
    thread: PhantomData<*const ()>,
}

impl Relaxed {
    /// Relaxes this thread's mode. A driver before CUDA 10.1 has no modes, and is left as it is.
    pub(super) fn begin(driver: &'static Driver) -> Self {
        let depth = DEPTH.get();
        DEPTH.set(depth + 1);
        let restored =
            if depth == 0 { exchange(driver, RELAXED).map(|before| (driver, before)) } else { None };
        Relaxed { restored, thread: PhantomData }
    }
}

impl Drop for Relaxed {
    fn drop(&mut self) {
        DEPTH.set(DEPTH.get() - 1);
        if let Some((driver, before)) = self.restored {
            exchange(driver, before);
        }
    }
}

const RELAXED: c_uint = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED as c_uint;

/// Gives this thread a mode; the one that it had.
fn exchange(driver: &'static Driver, mut mode: c_uint) -> Option<c_uint> {
    // SAFETY: the place is readable and writable, and holds a mode of the driver's.
    unsafe { call!(driver, thread_capture_mode(&mut mode)) }.ok()?;
    Some(mode)
}
