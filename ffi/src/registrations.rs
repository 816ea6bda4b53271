//! Memory of the caller's own that the ranks of this host may map, for C; `include/consort.h` is the contract.

use std::ffi::{c_int, c_void};
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use consort::{Error, MemoryError, Registered};
use consort_nccl::{Failure, Result};

use crate::boundary::{exported, give, plain};
use crate::handles::REGISTRATIONS;

/// The failure for memory that is refused.
fn refused(error: MemoryError) -> Failure {
    match error {
        MemoryError::NotRegistrable { start, bytes, what, hint } => {
            Failure::argument(format!("{bytes} bytes at {start:#x} cannot be registered: {what}"), hint)
        }
        MemoryError::System { call, source } => {
            Error::System { call: format!("{call}, to register memory"), source: Arc::new(source) }.into()
        }
        other => {
            let source = Arc::new(std::io::Error::other(other));
            Error::System { call: "registering memory".to_owned(), source }.into()
        }
    }
}

/// # Safety
/// As [`Registered::new`], but descriptors and numbers that are not such mapped memory are refused first.
unsafe fn register(base: *mut c_void, bytes: usize, fd: c_int, offset: u64) -> Result<Registered> {
    // SAFETY: reads the flags of a descriptor; any number is allowed.
    if fd < 0 || unsafe { libc::fcntl(fd, libc::F_GETFD) } < 0 {
        return Err(Failure::argument(
            format!("descriptor {fd} is not open"),
            "pass the memory file that the memory is mapped from; it may be closed once this has returned",
        ));
    }
    // SAFETY: it is open, and C promised to keep it open until the call returns.
    let file = unsafe { BorrowedFd::borrow_raw(fd) };
    let offset = usize::try_from(offset).map_err(|_| {
        Failure::argument(format!("no file has an offset of {offset}"), "pass what mmap was given")
    })?;
    // SAFETY: this function's own contract.
    unsafe { Registered::new(base.cast(), bytes, file, offset) }.map_err(refused)
}

exported! {
    /// Registers memory that the caller has mapped from a memory file, so that the ranks of this host may map it.
    ///
    /// # Safety
    /// As in the header: mapped from the file until it is deregistered. `handle` must be null or writable.
    fn consortMemRegisterFd(
        base: *mut c_void, bytes: usize, fd: c_int, offset: u64, handle: *mut *mut c_void
    ) -> c_int {
        // SAFETY: this function's own contract.
        let make = || REGISTRATIONS.insert(Arc::new(unsafe { register(base, bytes, fd, offset)? }));
        // SAFETY: as above.
        unsafe { give("consortMemRegisterFd", handle, "handle", make) }
    }
}

/// Undoes [`consortMemRegisterFd`]; a null handle is allowed.
#[unsafe(no_mangle)]
pub extern "C" fn consortMemDeregister(handle: *mut c_void) -> c_int {
    plain("consortMemDeregister", std::ptr::null_mut(), || {
        if handle.is_null() || REGISTRATIONS.remove(handle).is_some() {
            return Ok(());
        }
        Err(Failure::argument(
            "the handle is of no memory that is registered: it is foreign, or was deregistered",
            "pass what consortMemRegisterFd wrote, once",
        ))
    })
}
