//! Events: points in a stream that others wait for.
//!
//! Invariant: destroyed once; the driver keeps what waits for it going. Absent: times (events are made without), and
//! events that other processes wait for.

use cudarc::driver::sys::{CUevent_flags, CUevent_st};

use super::capture::Relaxed;
use super::raw::Raw;
use super::{Context, CudaError, Result};

/// A point in a stream: what was in it when [`StreamRef::record`](super::StreamRef::record) was called.
#[derive(Debug)]
pub struct Event {
    context: Context,
    raw: Raw<CUevent_st>,
}

impl Context {
    /// An event that was not recorded yet, which counts as over.
    ///
    /// # Errors
    /// What the driver says.
    pub fn create_event(&self) -> Result<Event> {
        let _entered = self.enter()?;
        let mut raw = std::ptr::null_mut();
        let flags = CUevent_flags::CU_EVENT_DISABLE_TIMING as u32;
        // SAFETY: the place is writable and the flags are valid; destroyed by the drop below.
        unsafe { call!(self.driver(), event_create(&mut raw, flags)) }?;
        Ok(Event { context: self.clone(), raw: Raw(raw) })
    }
}

impl Event {
    pub(super) fn raw(&self) -> Raw<CUevent_st> {
        self.raw
    }

    /// Whether all work before it is over.
    ///
    /// # Errors
    /// What the driver says, also of work that failed.
    pub fn query(&self) -> Result<bool> {
        let _relaxed = Relaxed::begin(self.context.driver());
        // SAFETY: this value's own event.
        match unsafe { call!(self.context.driver(), event_query(self.raw.0)) } {
            Ok(()) => Ok(true),
            Err(error) if error.code == CudaError::NOT_READY => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Waits until all work before it is over.
    ///
    /// # Errors
    /// What the driver says, also of work that failed.
    pub fn synchronize(&self) -> Result<()> {
        let _relaxed = Relaxed::begin(self.context.driver());
        // SAFETY: this value's own event.
        unsafe { call!(self.context.driver(), event_synchronize(self.raw.0)) }
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        let Ok(_entered) = self.context.enter() else { return };
        // SAFETY: made for this value. What the driver says has no reader.
        let _ = unsafe { call!(self.context.driver(), event_destroy(self.raw.0)) };
    }
}
