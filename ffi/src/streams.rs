//! Host streams for C; `include/consort.h` is their contract.

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use consort_nccl::{Failure, Result, Stream};

use crate::boundary::{call, give, plain};
use crate::handles::STREAMS;

fn stream(handle: *mut c_void) -> Result<Arc<Stream>> {
    STREAMS.find(handle).ok_or_else(|| {
        Failure::argument(
            "the stream is null, destroyed or not one of this library's",
            "pass one that consortStreamCreate made",
        )
    })
}

/// Makes a host stream.
///
/// # Safety
/// `place` must be null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn consortStreamCreate(place: *mut *mut c_void) -> c_int {
    // SAFETY: this function's own contract.
    unsafe { give("consortStreamCreate", place, "stream", || STREAMS.insert(Arc::new(Stream::create()?))) }
}

/// Waits until everything in a stream is over.
#[unsafe(no_mangle)]
pub extern "C" fn consortStreamSynchronize(handle: *mut c_void) -> c_int {
    plain("consortStreamSynchronize", std::ptr::null_mut(), || stream(handle)?.synchronize())
}

/// Whether everything in a stream is over.
#[unsafe(no_mangle)]
pub extern "C" fn consortStreamQuery(handle: *mut c_void) -> c_int {
    call("consortStreamQuery", std::ptr::null_mut(), || stream(handle)?.query())
}

/// Waits until everything in a stream is over and frees it; null is allowed.
#[unsafe(no_mangle)]
pub extern "C" fn consortStreamDestroy(handle: *mut c_void) -> c_int {
    plain("consortStreamDestroy", std::ptr::null_mut(), || {
        if handle.is_null() {
            return Ok(());
        }
        stream(handle)?;
        // Another thread may have freed it meanwhile.
        STREAMS.remove(handle).map_or(Ok(()), |stream| stream.synchronize())
    })
}
