//! The driver's library, opened at run time, and the functions taken from it.
//!
//! Invariant: a table of functions exists only where the library has them all, and the library is never closed, so
//! they stay callable. Absent: what the functions are called for.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr::NonNull;

use super::NoDriver;

/// `CUresult`, as the functions return it.
pub(super) type RawResult = c_int;

/// The library's name to the loader, which every driver installs.
pub(super) const NAME: &CStr = c"libcuda.so.1";

/// An open library. It has no `Drop`: a driver's threads and handlers do not survive being unloaded.
struct Library(NonNull<c_void>);

/// What this library calls of the driver, with the types of NVIDIA's `cuda.h`.
#[derive(Debug)]
pub(super) struct Functions {
    pub(super) init: unsafe extern "C" fn(flags: c_uint) -> RawResult,
    pub(super) driver_version: unsafe extern "C" fn(version: *mut c_int) -> RawResult,
    pub(super) device_count: unsafe extern "C" fn(count: *mut c_int) -> RawResult,
    pub(super) pointer_attribute:
        unsafe extern "C" fn(data: *mut c_void, attribute: c_int, address: u64) -> RawResult,
    pub(super) error_name: unsafe extern "C" fn(result: RawResult, name: *mut *const c_char) -> RawResult,
}

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
    fn open() -> Result<Self, NoDriver> {
        // SAFETY: a name that ends with a zero; what the library runs when it is loaded is the driver's own.
        let handle = unsafe { libc::dlopen(NAME.as_ptr(), libc::RTLD_LAZY | libc::RTLD_LOCAL) };
        NonNull::new(handle).map(Library).ok_or_else(|| NoDriver::NotFound { reason: complaint() })
    }

    /// The function of this name.
    ///
    /// # Safety
    /// `F` must be a pointer to a function of the type that the library has under that name.
    unsafe fn function<F: Copy>(&self, name: &'static CStr) -> Result<F, NoDriver> {
        const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
        // SAFETY: an open library and a name that ends with a zero.
        let address = unsafe { libc::dlsym(self.0.as_ptr(), name.as_ptr()) };
        if address.is_null() {
            return Err(NoDriver::Incomplete { function: name.to_str().unwrap_or("a function") });
        }
        // SAFETY: as large, checked above; not null; the type is this function's own contract, and the library stays.
        Ok(unsafe { std::mem::transmute_copy(&address) })
    }
}

impl Functions {
    /// Opens the library and finds them all.
    pub(super) fn load() -> Result<Self, NoDriver> {
        let library = Library::open()?;
        // SAFETY: the types are those that NVIDIA's driver interface gives these names; none of them has changed
        // since it came, as what changes there gets another name.
        unsafe {
            Ok(Functions {
                init: library.function(c"cuInit")?,
                driver_version: library.function(c"cuDriverGetVersion")?,
                device_count: library.function(c"cuDeviceGetCount")?,
                pointer_attribute: library.function(c"cuPointerGetAttribute")?,
                error_name: library.function(c"cuGetErrorName")?,
            })
        }
    }
}
