//! CUDA's runtime interface as far as a program has loaded it: which device is a thread's current one.
//!
//! Invariant: the runtime (`libcudart`) is asked only where it is in the process already; it is never loaded for that.
//! Absent: everything else of the runtime, which shares its primary contexts with the driver.

use std::ffi::{CStr, c_int, c_void};

/// The runtime's names to the loader; several may be loaded, and the first that is counts.
const NAMES: [&CStr; 3] = [c"libcudart.so.13", c"libcudart.so.12", c"libcudart.so.11.0"];

/// `cudaGetDevice`.
type GetDevice = unsafe extern "C" fn(*mut c_int) -> c_int;

/// The runtime's current device of this thread, by its ordinal: 0 for a thread that has named none. `None` where no
/// shared runtime is loaded (a program may also have a static one, which cannot be found) or it has no answer. To ask
/// makes no context.
pub fn runtime_device() -> Option<u32> {
    let get = find()?;
    let mut device: c_int = -1;
    // SAFETY: the place is writable, and the type is that of NVIDIA's header for this name in every version.
    let answer = unsafe { get(&mut device) };
    u32::try_from(device).ok().filter(|_| answer == 0)
}

fn find() -> Option<GetDevice> {
    const NAME: &CStr = c"cudaGetDevice";
    // SAFETY: a name that ends with a zero; looks among what is loaded globally.
    let mut address: *mut c_void = unsafe { libc::dlsym(libc::RTLD_DEFAULT, NAME.as_ptr()) };
    for library in NAMES {
        if !address.is_null() {
            break;
        }
        // SAFETY: a name that ends with a zero; nothing is loaded that is not, so nothing of it runs.
        let handle = unsafe { libc::dlopen(library.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
        if !handle.is_null() {
            // SAFETY: an open library and a name that ends with a zero. The handle stays open: the library must stay as
            // long as it is called, and programs do not unload their runtime.
            address = unsafe { libc::dlsym(handle, NAME.as_ptr()) };
        }
    }
    if address.is_null() {
        return None;
    }
    // SAFETY: a function of the runtime under its own name, which has had this type since the first version.
    Some(unsafe { std::mem::transmute::<*mut c_void, GetDevice>(address) })
}
