//! The buffers that C passes.
//!
//! Invariant: an address and a length are checked to be a possible buffer, and device memory is distinguished from
//! host memory, before a span is made of them. Absent: whether the memory exists, which C promises.

use std::ffi::c_void;

use std::sync::Arc;

use consort::device::{DeviceSpan, RawStream};
use consort::{Held, HeldRead, Span, SpanMut};
use consort_nccl::buffers::{self, Whose};
use consort_nccl::operation::Buffers;
use consort_nccl::{Comm, Failure, Result, Stream};

use crate::handles;

/// The length of a buffer that C passed, in bytes, if such a buffer is possible. The address of an empty buffer does
/// not matter.
#[inline]
fn length(what: &str, start: *const c_void, bytes: Option<usize>) -> Result<usize> {
    match bytes {
        Some(0) => Ok(0),
        Some(bytes)
            if bytes <= isize::MAX as usize
                && !start.is_null()
                && (start as usize).checked_add(bytes).is_some() =>
        {
            Ok(bytes)
        }
        _ => Err(no_buffer(what, start, bytes)),
    }
}

/// Why it is not possible.
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

/// The start of a buffer and the number of its bytes; `None` where the number overflows.
pub(crate) type Buffer<P> = (P, Option<usize>);

/// The input of a call that reads nothing.
pub(crate) const NOTHING_READ: Buffer<*const c_void> = (std::ptr::null(), Some(0));
/// The output of a call that writes nothing.
pub(crate) const NOTHING_WRITTEN: Buffer<*mut c_void> = (std::ptr::null_mut(), Some(0));

/// The lengths of the memory that a call on `comm` reads and writes.
#[inline]
fn lengths(comm: &Comm, input: Buffer<*const c_void>, output: Buffer<*mut c_void>) -> Result<(usize, usize)> {
    let (read, written) = (length("send", input.0, input.1)?, length("receive", output.0, output.1)?);
    // On a communicator on devices this was checked before.
    if comm.placement().is_none() {
        whose(comm, (input.0, read), (output.0, written))?;
    }
    Ok((read, written))
}

#[inline]
fn whose(comm: &Comm, input: (*const c_void, usize), output: (*mut c_void, usize)) -> Result<Whose> {
    let start = |address: *const c_void, bytes: usize| (bytes != 0).then_some(address as usize);
    buffers::whose(comm, start(input.0, input.1), start(output.0, output.1))
}

/// The memory and the stream that C passes to a data call.
#[derive(Clone, Copy)]
pub(crate) struct Given {
    pub(crate) input: Buffer<*const c_void>,
    pub(crate) output: Buffer<*mut c_void>,
    pub(crate) stream: *mut c_void,
}

/// The buffers of a call on a communicator on devices; `None` where the host may touch them.
///
/// # Safety
/// As [`DeviceSpan::from_raw`], but impossible addresses and lengths are refused first.
pub(crate) unsafe fn away(comm: &Comm, given: Given) -> Result<Option<Buffers>> {
    let Given { input, output, stream } = given;
    if comm.placement().is_none() {
        return Ok(None);
    }
    let (read, written) = (length("send", input.0, input.1)?, length("receive", output.0, output.1)?);
    if whose(comm, (input.0, read), (output.0, written))? == Whose::Host {
        return Ok(None);
    }
    if handles::stream(stream)?.is_some() {
        return Err(Failure::usage(
            "a host stream was passed with device memory",
            "pass a stream of CUDA's, or NULL for its default stream",
        ));
    }
    let span = |start: *const c_void, bytes: usize| match bytes {
        0 => DeviceSpan::empty(),
        // SAFETY: this function's own contract.
        bytes => unsafe { DeviceSpan::from_raw(start as u64, bytes) },
    };
    let stream = RawStream(stream as u64);
    let (input, output) = (span(input.0, read), span(output.0.cast_const(), written));
    Ok(Some(Buffers::Device { input, output, stream }))
}

/// The buffers of a call and the host stream into which it goes, if any.
///
/// # Safety
/// As [`away`] and [`kept`].
pub(crate) unsafe fn passed(comm: &Comm, given: Given) -> Result<(Buffers, Option<Arc<Stream>>)> {
    // SAFETY: this function's own contract.
    if let Some(buffers) = unsafe { away(comm, given)? } {
        return Ok((buffers, None));
    }
    let stream = handles::stream(given.stream)?;
    // SAFETY: as above.
    let (input, output) = unsafe { kept(comm, given.input, given.output)? };
    Ok((Buffers::Host { input, output }, stream))
}

/// The buffers that a call on `comm` reads and writes before it returns.
///
/// # Safety
/// As [`Span::from_raw`] and [`SpanMut::from_raw`], but impossible addresses and lengths are refused first.
#[inline]
pub(crate) unsafe fn lent<'a>(
    comm: &Comm,
    input: Buffer<*const c_void>,
    output: Buffer<*mut c_void>,
) -> Result<(Span<'a>, SpanMut<'a>)> {
    let (read, written) = lengths(comm, input, output)?;
    // SAFETY: this function's own contract; null only when empty.
    Ok(unsafe { (Span::from_raw(input.0.cast(), read), SpanMut::from_raw(output.0.cast(), written)) })
}

/// Whether a buffer of this length is possible.
#[inline]
pub(crate) fn is_buffer(start: usize, bytes: usize) -> bool {
    bytes == 0 || start != 0 && start.checked_add(bytes).is_some()
}

/// As [`lent`], for host memory and lengths that an earlier call's buffers had; `None` for impossible buffers.
///
/// # Safety
/// As [`lent`].
#[inline]
pub(crate) unsafe fn lent_again<'a>(
    input: (*const c_void, usize),
    output: (*mut c_void, usize),
) -> Option<(Span<'a>, SpanMut<'a>)> {
    if !is_buffer(input.0 as usize, input.1) || !is_buffer(output.0 as usize, output.1) {
        return None;
    }
    // SAFETY: this function's own contract; null only when empty.
    Some(unsafe { (Span::from_raw(input.0.cast(), input.1), SpanMut::from_raw(output.0.cast(), output.1)) })
}

/// The buffers that an operation on `comm` reads and writes, perhaps after the call returned.
///
/// # Safety
/// As [`HeldRead::from_raw`] and [`Held::from_raw`], but impossible addresses and lengths are refused first.
unsafe fn kept(
    comm: &Comm,
    input: Buffer<*const c_void>,
    output: Buffer<*mut c_void>,
) -> Result<(HeldRead, Held)> {
    let (read, written) = lengths(comm, input, output)?;
    // SAFETY: this function's own contract; null only when empty.
    Ok(unsafe { (HeldRead::from_raw(input.0.cast(), read), Held::from_raw(output.0.cast(), written)) })
}
