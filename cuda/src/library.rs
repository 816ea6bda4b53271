//! The driver's library, opened at run time.
//!
//! Invariant: the library is never closed, so what was found in it stays callable. Absent: what the functions are
//! called for, and which there are (`functions`).

use std::ffi::{CStr, c_void};
use std::ptr::NonNull;

use super::error::{LIBRARY, NoDriver};

/// An open library. It has no `Drop`: a driver's threads and handlers do not survive being unloaded.
pub(super) struct Library(NonNull<c_void>);

/// What the loader last complained about on this thread.
fn complaint() -> String {
    // SAFETY: may be called at any time; the text is this thread's until its next call of the loader.
    let text = unsafe { libc::dlerror() };
    if text.is_null() {
        return "the loader says no more".to_owned();
    }
    // SAFETY: not null, and ends with a zero.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

impl Library {
    pub(super) fn open() -> Result<Self, NoDriver> {
        // SAFETY: a name that ends with a zero; what the library runs when it is loaded is the driver's own.
        let handle = unsafe { libc::dlopen(LIBRARY.as_ptr(), libc::RTLD_LAZY | libc::RTLD_LOCAL) };
        NonNull::new(handle).map(Library).ok_or_else(|| NoDriver::NotFound { reason: complaint() })
    }

    /// The function of this name, if the library has it.
    ///
    /// # Safety
    /// `F` must be a pointer to a function of the type that the library has under that name.
    pub(super) unsafe fn function<F: Copy>(&self, name: &'static CStr) -> Option<F> {
        const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
        // SAFETY: an open library and a name that ends with a zero.
        let address = unsafe { libc::dlsym(self.0.as_ptr(), name.as_ptr()) };
        if address.is_null() {
            return None;
        }
        // SAFETY: as large, checked above; not null; the type is this function's own contract, and the library stays.
        Some(unsafe { std::mem::transmute_copy(&address) })
    }
}
