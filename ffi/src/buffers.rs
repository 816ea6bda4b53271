//! The buffers that C passes.
//!
//! Invariant: any address and any length are told from a buffer, and memory of a device from the host's, before
//! anything is made of them. Absent: whether the memory is there, which C promises.

use std::ffi::c_void;

use consort::nccl::{Comm, Failure, Result, device};
use consort::{Held, HeldRead, Span, SpanMut};

/// The length of a buffer that C passed, in bytes, if it can be one. Of an empty buffer the address does not matter.
fn length(what: &str, start: *const c_void, bytes: Option<usize>) -> Result<usize> {
    let Some(bytes) = bytes.filter(|bytes| *bytes <= isize::MAX as usize) else {
        return Err(Failure::argument(
            format!("the {what} buffer would exceed the address space"),
            "pass the number of elements, not of bytes",
        ));
    };
    if bytes == 0 {
        return Ok(0);
    }
    if start.is_null() {
        return Err(Failure::argument(
            format!("the {what} buffer is null and must have {bytes} bytes"),
            "pass buffers as long as the call needs them",
        ));
    }
    if (start as usize).checked_add(bytes).is_none() {
        return Err(Failure::argument(
            format!("the {what} buffer would reach beyond the address space"),
            "pass the address of a buffer",
        ));
    }
    Ok(bytes)
}

/// Where a buffer begins and how many bytes it has; no number where that is more than there can be.
pub(crate) type Passed<P> = (P, Option<usize>);

/// Of a call that reads nothing.
pub(crate) const NOTHING_READ: Passed<*const c_void> = (std::ptr::null(), Some(0));
/// Of a call that writes nothing.
pub(crate) const NOTHING_WRITTEN: Passed<*mut c_void> = (std::ptr::null_mut(), Some(0));

/// The lengths of what a call on `comm` reads and writes.
#[inline]
fn lengths(comm: &Comm, input: Passed<*const c_void>, output: Passed<*mut c_void>) -> Result<(usize, usize)> {
    let (read, written) = (length("send", input.0, input.1)?, length("receive", output.0, output.1)?);
    let start = |address: *const c_void, bytes: usize| (bytes != 0).then_some(address as usize);
    device::check_buffers(comm, start(input.0, read), start(output.0, written))?;
    Ok((read, written))
}

/// The buffers that a call on `comm` reads and writes before it returns.
///
/// # Safety
/// As [`Span::from_raw`] and [`SpanMut::from_raw`], but any address and any number of bytes are told from a buffer
/// first.
#[inline]
pub(crate) unsafe fn lent<'a>(
    comm: &Comm,
    input: Passed<*const c_void>,
    output: Passed<*mut c_void>,
) -> Result<(Span<'a>, SpanMut<'a>)> {
    let (read, written) = lengths(comm, input, output)?;
    // SAFETY: this function's own contract; null only when empty.
    Ok(unsafe { (Span::from_raw(input.0.cast(), read), SpanMut::from_raw(output.0.cast(), written)) })
}

/// The buffers that an operation on `comm` reads and writes, perhaps after the call returned.
///
/// # Safety
/// As [`HeldRead::from_raw`] and [`Held::from_raw`], but any address and any number of bytes are told from a buffer
/// first.
pub(crate) unsafe fn kept(
    comm: &Comm,
    input: Passed<*const c_void>,
    output: Passed<*mut c_void>,
) -> Result<(HeldRead, Held)> {
    let (read, written) = lengths(comm, input, output)?;
    // SAFETY: this function's own contract; null only when empty.
    Ok(unsafe { (HeldRead::from_raw(input.0.cast(), read), Held::from_raw(output.0.cast(), written)) })
}
