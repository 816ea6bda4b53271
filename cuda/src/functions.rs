//! The driver's functions, one entry a function.
//!
//! Invariant: an entry is called only where the library has it, with the type of NVIDIA's `cuda.h` for exactly that
//! (versioned) name, and never in a forked child. Results are plain numbers here: a newer driver returns some that no
//! enumeration of ours knows. Absent: functions that nothing calls.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

use cudarc::driver::sys::{
    CUcontext, CUdevice, CUdevice_attribute, CUdeviceptr, CUevent, CUflushGPUDirectRDMAWritesScope,
    CUflushGPUDirectRDMAWritesTarget, CUfunction, CUipcMemHandle, CUjit_option, CUmemAccessDesc,
    CUmemAllocationGranularity_flags, CUmemAllocationHandleType, CUmemAllocationProp,
    CUmemGenericAllocationHandle, CUmemRangeHandleType, CUmodule, CUpointer_attribute, CUstream, CUuuid,
};

use super::library::Library;

/// `CUresult`, as the functions return it.
pub(super) type RawResult = c_int;

/// A function of the driver, or that it has none of this name.
#[derive(Debug)]
pub(super) struct Entry<F> {
    pub(super) name: &'static str,
    pub(super) function: Option<F>,
}

/// Pretends that a name is text, which it is.
const fn text(name: &'static CStr) -> &'static str {
    match name.to_str() {
        Ok(name) => name,
        Err(_) => panic!("names are ASCII"),
    }
}

macro_rules! functions {
    ($($field:ident = $name:literal ($($argument:ty),*);)*) => {
        /// What this library calls of the driver, with the types of NVIDIA's `cuda.h`.
        #[derive(Debug)]
        pub(super) struct Functions {
            $(pub(super) $field: Entry<unsafe extern "C" fn($($argument),*) -> RawResult>,)*
        }

        impl Functions {
            /// Looks for them all.
            pub(super) fn load(library: &Library) -> Self {
                // SAFETY: the types are those that NVIDIA's driver interface gives these names; none of them has
                // changed since it came, as what changes there gets another name.
                unsafe {
                    Functions {
                        $($field: Entry { name: text($name), function: library.function($name) },)*
                    }
                }
            }
        }
    };
}

functions! {
    init = c"cuInit"(c_uint);
    driver_version = c"cuDriverGetVersion"(*mut c_int);
    error_name = c"cuGetErrorName"(RawResult, *mut *const c_char);

    device_count = c"cuDeviceGetCount"(*mut c_int);
    device_get = c"cuDeviceGet"(*mut CUdevice, c_int);
    device_name = c"cuDeviceGetName"(*mut c_char, c_int, CUdevice);
    device_uuid = c"cuDeviceGetUuid_v2"(*mut CUuuid, CUdevice);
    device_memory = c"cuDeviceTotalMem_v2"(*mut usize, CUdevice);
    device_attribute = c"cuDeviceGetAttribute"(*mut c_int, CUdevice_attribute, CUdevice);
    device_pci = c"cuDeviceGetPCIBusId"(*mut c_char, c_int, CUdevice);
    device_can_access = c"cuDeviceCanAccessPeer"(*mut c_int, CUdevice, CUdevice);

    primary_retain = c"cuDevicePrimaryCtxRetain"(*mut CUcontext, CUdevice);
    primary_release = c"cuDevicePrimaryCtxRelease_v2"(CUdevice);
    primary_state = c"cuDevicePrimaryCtxGetState"(CUdevice, *mut c_uint, *mut c_int);
    context_push = c"cuCtxPushCurrent_v2"(CUcontext);
    context_pop = c"cuCtxPopCurrent_v2"(*mut CUcontext);
    context_current = c"cuCtxGetCurrent"(*mut CUcontext);
    context_device = c"cuCtxGetDevice"(*mut CUdevice);
    context_synchronize = c"cuCtxSynchronize"();
    context_enable_peer = c"cuCtxEnablePeerAccess"(CUcontext, c_uint);

    memory_allocate = c"cuMemAlloc_v2"(*mut CUdeviceptr, usize);
    memory_free = c"cuMemFree_v2"(CUdeviceptr);
    memory_range = c"cuMemGetAddressRange_v2"(*mut CUdeviceptr, *mut usize, CUdeviceptr);
    pointer_attribute = c"cuPointerGetAttribute"(*mut c_void, CUpointer_attribute, CUdeviceptr);
    pointer_set = c"cuPointerSetAttribute"(*const c_void, CUpointer_attribute, CUdeviceptr);
    copy_to_device = c"cuMemcpyHtoDAsync_v2"(CUdeviceptr, *const c_void, usize, CUstream);
    copy_to_host = c"cuMemcpyDtoHAsync_v2"(*mut c_void, CUdeviceptr, usize, CUstream);
    copy = c"cuMemcpyAsync"(CUdeviceptr, CUdeviceptr, usize, CUstream);
    fill = c"cuMemsetD8Async"(CUdeviceptr, u8, usize, CUstream);

    ipc_export = c"cuIpcGetMemHandle"(*mut CUipcMemHandle, CUdeviceptr);
    ipc_open = c"cuIpcOpenMemHandle_v2"(*mut CUdeviceptr, CUipcMemHandle, c_uint);
    ipc_close = c"cuIpcCloseMemHandle"(CUdeviceptr);

    shared_granularity =
        c"cuMemGetAllocationGranularity"(*mut usize, *const CUmemAllocationProp, CUmemAllocationGranularity_flags);
    shared_create =
        c"cuMemCreate"(*mut CUmemGenericAllocationHandle, usize, *const CUmemAllocationProp, u64);
    shared_release = c"cuMemRelease"(CUmemGenericAllocationHandle);
    shared_reserve = c"cuMemAddressReserve"(*mut CUdeviceptr, usize, usize, CUdeviceptr, u64);
    shared_free = c"cuMemAddressFree"(CUdeviceptr, usize);
    shared_map = c"cuMemMap"(CUdeviceptr, usize, usize, CUmemGenericAllocationHandle, u64);
    shared_unmap = c"cuMemUnmap"(CUdeviceptr, usize);
    shared_access = c"cuMemSetAccess"(CUdeviceptr, usize, *const CUmemAccessDesc, usize);
    shared_export = c"cuMemExportToShareableHandle"(
        *mut c_void, CUmemGenericAllocationHandle, CUmemAllocationHandleType, u64);
    shared_import = c"cuMemImportFromShareableHandle"(
        *mut CUmemGenericAllocationHandle, *mut c_void, CUmemAllocationHandleType);

    direct_handle =
        c"cuMemGetHandleForAddressRange"(*mut c_void, CUdeviceptr, usize, CUmemRangeHandleType, u64);
    direct_flush = c"cuFlushGPUDirectRDMAWrites"(
        CUflushGPUDirectRDMAWritesTarget, CUflushGPUDirectRDMAWritesScope);

    host_allocate = c"cuMemHostAlloc"(*mut *mut c_void, usize, c_uint);
    host_free = c"cuMemFreeHost"(*mut c_void);
    host_address = c"cuMemHostGetDevicePointer_v2"(*mut CUdeviceptr, *mut c_void, c_uint);
    host_register = c"cuMemHostRegister_v2"(*mut c_void, usize, c_uint);
    host_unregister = c"cuMemHostUnregister"(*mut c_void);

    module_load =
        c"cuModuleLoadDataEx"(*mut CUmodule, *const c_void, c_uint, *mut CUjit_option, *mut *mut c_void);
    module_unload = c"cuModuleUnload"(CUmodule);
    module_function = c"cuModuleGetFunction"(*mut CUfunction, CUmodule, *const c_char);
    function_blocks =
        c"cuOccupancyMaxActiveBlocksPerMultiprocessor"(*mut c_int, CUfunction, c_int, usize);

    thread_capture_mode = c"cuThreadExchangeStreamCaptureMode"(*mut c_uint);
    stream_create = c"cuStreamCreate"(*mut CUstream, c_uint);
    stream_destroy = c"cuStreamDestroy_v2"(CUstream);
    stream_synchronize = c"cuStreamSynchronize"(CUstream);
    stream_query = c"cuStreamQuery"(CUstream);
    stream_capturing = c"cuStreamIsCapturing"(CUstream, *mut c_int);
    stream_wait_event = c"cuStreamWaitEvent"(CUstream, CUevent, c_uint);
    stream_wait_value = c"cuStreamWaitValue64_v2"(CUstream, CUdeviceptr, u64, c_uint);
    stream_write_value = c"cuStreamWriteValue64_v2"(CUstream, CUdeviceptr, u64, c_uint);
    launch = c"cuLaunchKernel"(
        CUfunction, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, CUstream,
        *mut *mut c_void, *mut *mut c_void);

    event_create = c"cuEventCreate"(*mut CUevent, c_uint);
    event_destroy = c"cuEventDestroy_v2"(CUevent);
    event_record = c"cuEventRecord"(CUevent, CUstream);
    event_query = c"cuEventQuery"(CUevent);
    event_synchronize = c"cuEventSynchronize"(CUevent);
}
