//! Shared objects that are opened at run time: the process runs where there are none.
//!
//! Invariant: what was opened is never closed, so what was found in it stays callable. Absent: which functions are called.

use std::ffi::{CStr, c_void};

/// An open library. It has no `Drop`: what it has opened, and its threads, would not survive being unloaded.
#[derive(Clone, Copy)]
pub(crate) struct Library(*mut c_void);

impl Library {
    /// Opens it as the loader finds it; without a name, what the program has loaded already.
    ///
    /// # Errors
    /// The loader's words.
    pub(crate) fn open(name: Option<&CStr>) -> Result<Self, String> {
        let name = name.map_or(std::ptr::null(), CStr::as_ptr);
        // SAFETY: null, or a name that ends with a zero; what the library runs when it is loaded is its own.
        let handle = unsafe { libc::dlopen(name, libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if !handle.is_null() {
            return Ok(Library(handle));
        }
        // SAFETY: may be called at any time; the text is this thread's until its next call of the loader.
        let text = unsafe { libc::dlerror() };
        if text.is_null() {
            return Err("the loader says no more".into());
        }
        // SAFETY: not null, and ends with a zero.
        Err(unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
    }

    /// A symbol.
    pub(crate) fn find(self, symbol: &CStr) -> Option<*mut c_void> {
        // SAFETY: an open library, and a name that ends with a zero.
        let any = unsafe { libc::dlsym(self.0, symbol.as_ptr()) };
        (!any.is_null()).then_some(any)
    }

    /// A symbol of a version.
    pub(crate) fn find_version(self, symbol: &CStr, version: &CStr) -> Option<*mut c_void> {
        // SAFETY: an open library, and names that end with a zero.
        let versioned = unsafe { libc::dlvsym(self.0, symbol.as_ptr(), version.as_ptr()) };
        (!versioned.is_null()).then_some(versioned)
    }
}
