//! The functions of libibverbs, found in the library when it is first asked for: the process runs where there is none.
//!
//! Invariant: the library is never closed, so what was found in it stays callable. Absent: the data path, whose functions are in the
//! table of each context (`sys`).

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;

use super::sys::{
    AsyncEvent, CompChannel, Context, Cq, Device, FORK_DISABLED, FORK_UNNEEDED, GidEntry, Mr, Pd, PortAttr,
    Qp, QpAttr, QpInitAttr,
};
use crate::AdapterTrouble;
use crate::library::Library;

/// The name of the library.
const LIBRARY: &CStr = c"libibverbs.so.1";
/// The version of the interface under which the functions are that have others under an older one.
const VERSION: &CStr = c"IBVERBS_1.1";

/// Variables of the library's that have it take registered memory away from children.
const HIDING: [&str; 3] = ["RDMAV_FORK_SAFE", "IBV_FORK_SAFE", "RDMAV_USE_MADVISE"];

/// Which functions are called, by the names of the library.
macro_rules! functions {
    ($($(#[$about:meta])* $name:ident = $symbol:literal ($($argument:ty),*) $(-> $result:ty)?;)*) => {
        /// The functions, of the library or of a stand-in.
        #[derive(Clone, Copy)]
        pub(super) struct Functions {
            $($(#[$about])* pub(super) $name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
            /// An entry of a port's table of addresses with its kind; since IBVERBS_1.11.
            pub(super) query_gid_ex: Option<unsafe extern "C" fn(*mut Context, u32, u32, *mut GidEntry, u32, usize) -> c_int>,
            /// Registers a DMA buffer (`offset`, `length`, the address that stands for it, descriptor, access); since IBVERBS_1.12.
            pub(super) reg_dmabuf_mr: Option<unsafe extern "C" fn(*mut Pd, u64, usize, u64, c_int, c_int) -> *mut Mr>,
            /// Registers memory with accesses that are left out where they cannot be had (start, `length`, the address that stands for it, access);
            /// since IBVERBS_1.8.
            pub(super) reg_mr_iova2: Option<unsafe extern "C" fn(*mut Pd, *mut c_void, usize, u64, c_uint) -> *mut Mr>,
            /// What a fork does to registered memory; since IBVERBS_1.13.
            pub(super) is_fork_initialized: Option<unsafe extern "C" fn() -> c_int>,
        }

        impl Functions {
            /// Those of an open library.
            fn of(library: Library) -> Result<Self, &'static str> {
                Ok(Functions {
                    $($name: {
                        let address = find(library, $symbol).ok_or(concat!(stringify!($name), " is not in it"))?;
                        // SAFETY: `verbs.h` declares a function of this type under that name, and the library stays.
                        unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($argument),*) $(-> $result)?>(address) }
                    },)*
                    query_gid_ex: find(library, c"_ibv_query_gid_ex").map(|address| {
                        // SAFETY: as above.
                        unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut Context, u32, u32, *mut GidEntry, u32, usize) -> c_int>(address) }
                    }),
                    reg_dmabuf_mr: find(library, c"ibv_reg_dmabuf_mr").map(|address| {
                        // SAFETY: as above.
                        unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut Pd, u64, usize, u64, c_int, c_int) -> *mut Mr>(address) }
                    }),
                    reg_mr_iova2: find(library, c"ibv_reg_mr_iova2").map(|address| {
                        // SAFETY: as above.
                        unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut Pd, *mut c_void, usize, u64, c_uint) -> *mut Mr>(address) }
                    }),
                    is_fork_initialized: find(library, c"ibv_is_fork_initialized").map(|address| {
                        // SAFETY: as above.
                        unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn() -> c_int>(address) }
                    }),
                })
            }
        }
    };
}

functions! {
    get_device_list = c"ibv_get_device_list" (*mut c_int) -> *mut *mut Device;
    free_device_list = c"ibv_free_device_list" (*mut *mut Device);
    open_device = c"ibv_open_device" (*mut Device) -> *mut Context;
    close_device = c"ibv_close_device" (*mut Context) -> c_int;
    query_port = c"ibv_query_port" (*mut Context, u8, *mut PortAttr) -> c_int;
    query_gid = c"ibv_query_gid" (*mut Context, u8, c_int, *mut super::sys::Gid) -> c_int;
    alloc_pd = c"ibv_alloc_pd" (*mut Context) -> *mut Pd;
    dealloc_pd = c"ibv_dealloc_pd" (*mut Pd) -> c_int;
    reg_mr = c"ibv_reg_mr" (*mut Pd, *mut c_void, usize, c_int) -> *mut Mr;
    dereg_mr = c"ibv_dereg_mr" (*mut Mr) -> c_int;
    create_comp_channel = c"ibv_create_comp_channel" (*mut Context) -> *mut CompChannel;
    destroy_comp_channel = c"ibv_destroy_comp_channel" (*mut CompChannel) -> c_int;
    create_cq = c"ibv_create_cq" (*mut Context, c_int, *mut c_void, *mut CompChannel, c_int) -> *mut Cq;
    destroy_cq = c"ibv_destroy_cq" (*mut Cq) -> c_int;
    get_cq_event = c"ibv_get_cq_event" (*mut CompChannel, *mut *mut Cq, *mut *mut c_void) -> c_int;
    ack_cq_events = c"ibv_ack_cq_events" (*mut Cq, u32);
    create_qp = c"ibv_create_qp" (*mut Pd, *mut QpInitAttr) -> *mut Qp;
    modify_qp = c"ibv_modify_qp" (*mut Qp, *mut QpAttr, c_int) -> c_int;
    destroy_qp = c"ibv_destroy_qp" (*mut Qp) -> c_int;
    get_async_event = c"ibv_get_async_event" (*mut Context, *mut AsyncEvent) -> c_int;
    ack_async_event = c"ibv_ack_async_event" (*mut AsyncEvent);
    wc_status_str = c"ibv_wc_status_str" (c_int) -> *const c_char;
}

/// What a fork of this process does to memory that a device uses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Forks {
    /// The child gets copies of it at once, and the parent keeps the pages that the device knows.
    Copied,
    /// The library takes it away from children, which fail where they use it.
    Hidden,
    /// A page that the parent writes to afterwards may be another than the device knows.
    Parted,
}

impl Functions {
    /// What a fork does. An older library does not say that the kernel copies; it takes memory away. So does a newer one where a variable
    /// of its own asks for that, whatever it says.
    pub(super) fn forks(&self) -> Forks {
        if HIDING.iter().any(|name| std::env::var_os(name).is_some()) {
            return Forks::Hidden;
        }
        // SAFETY: `verbs.h` declares it so, and it may be called at any time.
        match self.is_fork_initialized.map(|asks| unsafe { asks() }) {
            Some(FORK_UNNEEDED) => Forks::Copied,
            Some(FORK_DISABLED) => Forks::Parted,
            _ => Forks::Hidden,
        }
    }
}

/// Keeps memory of devices in place where the program forks, on kernels that do not by themselves; before anything is made. Elsewhere
/// the library is not asked for it: up to rdma-core 44 at least it would take registered memory away from children all the same.
fn prepare_for_forks(library: Library, functions: &Functions) {
    if functions.forks() == Forks::Copied {
        return;
    }
    let Some(address) = find(library, c"ibv_fork_init") else { return };
    // SAFETY: `verbs.h` declares it so, and the library stays.
    let prepare = unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn() -> c_int>(address) };
    // SAFETY: nothing was registered by this library before.
    let code = unsafe { prepare() };
    if code != 0 {
        tracing::warn!(
            code,
            "a fork of this process may harm RDMA: something was registered before, or the kernel is old"
        );
    }
}

/// A function, in the present version where there are several.
fn find(library: Library, symbol: &CStr) -> Option<*mut c_void> {
    library.find_version(symbol, VERSION).or_else(|| library.find(symbol))
}

/// The functions of the library of this name.
fn of_library(name: &CStr) -> Result<Functions, String> {
    let library = Library::open(Some(name))?;
    let functions = Functions::of(library)?;
    prepare_for_forks(library, &functions);
    Ok(functions)
}

/// The functions of the library that this system has.
///
/// # Errors
/// [`AdapterTrouble::NoLibrary`].
pub(super) fn functions() -> Result<Functions, AdapterTrouble> {
    static FOUND: OnceLock<Result<Functions, String>> = OnceLock::new();
    let found = FOUND.get_or_init(|| of_library(LIBRARY));
    found.as_ref().copied().map_err(|why| AdapterTrouble::NoLibrary { why: why.clone() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_that_is_not_there_or_is_another_says_so() {
        let missing = of_library(c"libibverbs-of-no-system.so.1").err().expect("it is not there");
        assert!(missing.contains("libibverbs-of-no-system.so.1"), "{missing}");
        let other = of_library(c"libc.so.6").err().expect("it is another");
        assert_eq!(other, "get_device_list is not in it");
        let text = AdapterTrouble::NoLibrary { why: missing }.to_string();
        for part in ["there is no libibverbs.so.1", "of-no-system", "libibverbs1", "ibverbs-providers"] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }
}
