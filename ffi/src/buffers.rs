//! The buffers that C passes.
//!
//! Invariant: any address and any length are told from a buffer before anything is made of them. Absent: whether the
//! memory is there, which C promises.

use std::ffi::c_void;

use consort::nccl::{Failure, Result, device};
use consort::{Held, HeldRead, Span, SpanMut};

/// The length of a buffer that C passed, in bytes, if it can be one. Of an empty buffer the address does not matter.
#[inline]
fn length(what: &str, start: *const c_void, bytes: Option<usize>) -> Result<usize> {
    match bytes {
        Some(0) => Ok(0),
        Some(bytes)
            if bytes <= isize::MAX as usize
                && !start.is_null()
                && (start as usize).checked_add(bytes).is_some() =>
        {
            device::check_host(what, start as usize)?;
            Ok(bytes)
        }
        _ => Err(no_buffer(what, start, bytes)),
    }
}

/// Why it cannot be one.
#[cold]
fn no_buffer(what: &str, start: *const c_void, bytes: Option<usize>) -> Failure {
    let Some(bytes) = bytes.filter(|bytes| *bytes <= isize::MAX as usize) else {
        return Failure::argument(
            format!("the {what} buffer would exceed the address space"),
            "pass the number of elements, not of bytes",
        );
    };
    if start.is_null() {
        return Failure::argument(
            format!("the {what} buffer is null and must have {bytes} bytes"),
            "pass buffers as long as the call needs them",
        );
    }
    Failure::argument(
        format!("the {what} buffer would reach beyond the address space"),
        "pass the address of a buffer",
    )
}

/// The buffer that a call reads before it returns.
///
/// # Safety
/// As [`Span::from_raw`], but any `start` and any `bytes` are told from a buffer first.
#[inline]
pub(crate) unsafe fn readable<'a>(start: *const c_void, bytes: Option<usize>) -> Result<Span<'a>> {
    let bytes = length("send", start, bytes)?;
    // SAFETY: this function's own contract; null only when empty.
    Ok(unsafe { Span::from_raw(start.cast(), bytes) })
}

/// The buffer that a call writes before it returns.
///
/// # Safety
/// As [`SpanMut::from_raw`], but any `start` and any `bytes` are told from a buffer first.
#[inline]
pub(crate) unsafe fn writable<'a>(start: *mut c_void, bytes: Option<usize>) -> Result<SpanMut<'a>> {
    let bytes = length("receive", start, bytes)?;
    // SAFETY: this function's own contract; null only when empty.
    Ok(unsafe { SpanMut::from_raw(start.cast(), bytes) })
}

/// The buffer that an operation reads, perhaps after the call returned.
///
/// # Safety
/// As [`HeldRead::from_raw`], but any `start` and any `bytes` are told from a buffer first.
pub(crate) unsafe fn kept_readable(start: *const c_void, bytes: Option<usize>) -> Result<HeldRead> {
    let bytes = length("send", start, bytes)?;
    // SAFETY: this function's own contract; null only when empty.
    Ok(unsafe { HeldRead::from_raw(start.cast(), bytes) })
}

/// The buffer that an operation writes, perhaps after the call returned.
///
/// # Safety
/// As [`Held::from_raw`], but any `start` and any `bytes` are told from a buffer first.
pub(crate) unsafe fn kept_writable(start: *mut c_void, bytes: Option<usize>) -> Result<Held> {
    let bytes = length("receive", start, bytes)?;
    // SAFETY: this function's own contract; null only when empty.
    Ok(unsafe { Held::from_raw(start.cast(), bytes) })
}
