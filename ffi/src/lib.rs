//! The C boundary, in its first, small form: enough of NCCL's ABI on host memory to be timed by a harness that
//! opens a library at run time. It is built as `libconsort_ffi.so` and does not claim to be `libnccl.so.2`.
//!
//! Invariant: no panic crosses the boundary, a wrong handle is an error, and nothing but translation happens
//! here. Deliberately absent: groups, streams, devices. What this library has and NCCL has not is in
//! [`extensions`]; `include/consort.h` declares all.

pub mod extensions;
mod handles;
pub mod status;
#[cfg(test)]
mod tests;
pub mod timeout;

use std::collections::VecDeque;
use std::ffi::{c_int, c_void};
use std::ops::Deref;
use std::sync::{Arc, Mutex, PoisonError};

use consort::{Call, Communicator, DataType, Error, Options, ReduceOp, Span, SpanMut, UniqueId, WithTimeout};

use handles::Handle;
use status::{fence, fence_of, invalid};

/// `ncclUniqueId`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct NcclUniqueId {
    internal: [u8; UniqueId::BYTES],
}

/// The last ids that this process made: their rendezvous lives as long as they do, whichever thread asked.
static CREATED: Mutex<VecDeque<UniqueId>> = Mutex::new(VecDeque::new());
/// How many of them. One that was not joined before as many others were made is taken for abandoned.
const CREATED_MAX: usize = 256;

fn handle(comm: *mut c_void) -> Result<Arc<Handle>, Error> {
    handles::find(comm).ok_or_else(|| {
        invalid("the communicator handle is null, freed or foreign", "pass one that ncclCommInitRank made")
    })
}

/// A communicator for the next call: with the deadline of this thread or of the handle, if one was set.
enum InTime<'a> {
    AsMade(&'a Communicator),
    Within(WithTimeout<'a>),
}

impl Deref for InTime<'_> {
    type Target = Communicator;

    fn deref(&self) -> &Communicator {
        match self {
            InTime::AsMade(communicator) => communicator,
            InTime::Within(view) => view,
        }
    }
}

fn in_time(handle: &Handle) -> InTime<'_> {
    match handle.timeout.now() {
        None => InTime::AsMade(&handle.communicator),
        Some(timeout) => InTime::Within(handle.communicator.with_timeout(timeout)),
    }
}

fn data_type(code: c_int) -> Result<DataType, Error> {
    let known = u32::try_from(code).ok().and_then(DataType::from_code);
    known.ok_or_else(|| invalid(&format!("there is no data type {code}"), "pass one of ncclDataType_t"))
}

fn operator(code: c_int) -> Result<ReduceOp, Error> {
    let known = u32::try_from(code).ok().and_then(ReduceOp::from_code);
    known.ok_or_else(|| invalid(&format!("there is no reduction operator {code}"), "pass one of ncclRedOp_t"))
}

fn rank(number: c_int) -> Result<u32, Error> {
    u32::try_from(number).map_err(|_| invalid(&format!("rank {number} is negative"), "ranks count from 0"))
}

/// The length of a buffer that C passed, in bytes, if it can be one; `bytes` is `None` where the number
/// overflowed. Of an empty buffer the address does not matter.
fn length(what: &str, is_null: bool, bytes: Option<usize>) -> Result<usize, Error> {
    let Some(bytes) = bytes.filter(|bytes| *bytes <= isize::MAX as usize) else {
        return Err(invalid(
            &format!("the {what} buffer would exceed the address space"),
            "pass the number of elements, not of bytes",
        ));
    };
    if is_null && bytes != 0 {
        return Err(invalid(
            &format!("the {what} buffer is null and must have {bytes} bytes"),
            "pass buffers as long as the call needs them",
        ));
    }
    Ok(bytes)
}

/// The buffer that a call reads.
///
/// # Safety
/// As [`Span::from_raw`], but any `start` and any `bytes` are told from a buffer first.
unsafe fn readable<'a>(start: *const c_void, bytes: Option<usize>) -> Result<Span<'a>, Error> {
    let bytes = length("send", start.is_null(), bytes)?;
    // SAFETY: this function's own contract; null only when empty.
    Ok(unsafe { Span::from_raw(start.cast(), bytes) })
}

/// The buffer that a call writes.
///
/// # Safety
/// As [`SpanMut::from_raw`], but any `start` and any `bytes` are told from a buffer first.
unsafe fn writable<'a>(start: *mut c_void, bytes: Option<usize>) -> Result<SpanMut<'a>, Error> {
    let bytes = length("receive", start.is_null(), bytes)?;
    // SAFETY: this function's own contract; null only when empty.
    Ok(unsafe { SpanMut::from_raw(start.cast(), bytes) })
}

/// Runs a collective on the addresses that C passed.
///
/// # Safety
/// As the exported function that calls it.
unsafe fn execute(
    comm: *mut c_void,
    call: Call,
    input: *const c_void,
    output: *mut c_void,
) -> Result<(), Error> {
    let handle = handle(comm)?;
    let comm = in_time(&handle);
    let (rank, size) = (comm.rank(), comm.size());
    // SAFETY: the caller promises that the buffers are as long as NCCL's contract for the call says, which is
    // what `input_bytes` and `output_bytes` compute, and that nobody else touches them meanwhile.
    let (input, output) = unsafe {
        (
            readable(input, Some(call.input_bytes(rank, size)))?,
            writable(output, Some(call.output_bytes(rank, size)))?,
        )
    };
    comm.execute(&call, input, output)
}

/// Writes to where a caller wants something.
///
/// # Safety
/// `place` must be null or writable.
unsafe fn store<T>(place: *mut T, name: &str, make: impl FnOnce() -> Result<T, Error>) -> Result<(), Error> {
    if place.is_null() {
        return Err(invalid(&format!("{name} is null"), "pass a pointer to where it is to be written"));
    }
    let value = make()?;
    // SAFETY: checked for null; otherwise this function's own contract.
    unsafe { place.write(value) };
    Ok(())
}

/// Writes the version that the implemented calls follow.
///
/// # Safety
/// `version` must be writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclGetVersion(version: *mut c_int) -> c_int {
    // SAFETY: this function's own contract.
    fence(|| unsafe { store(version, "version", || Ok(22_000)) })
}

/// Makes an id; its rendezvous lives in this process.
///
/// # Safety
/// `id` must be writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclGetUniqueId(id: *mut NcclUniqueId) -> c_int {
    let create = || {
        let created = UniqueId::create()?;
        let internal = created.to_bytes();
        let mut ids = CREATED.lock().unwrap_or_else(PoisonError::into_inner);
        if ids.len() == CREATED_MAX {
            ids.pop_front();
        }
        ids.push_back(created);
        Ok(NcclUniqueId { internal })
    };
    // SAFETY: this function's own contract.
    fence(|| unsafe { store(id, "id", create) })
}

/// Joins a communicator.
///
/// # Safety
/// `comm` must be writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommInitRank(
    comm: *mut *mut c_void,
    size: c_int,
    id: NcclUniqueId,
    number: c_int,
) -> c_int {
    let join = || {
        let size = u32::try_from(size)
            .map_err(|_| invalid(&format!("a size of {size} is negative"), "pass the number of ranks"))?;
        // As with NCCL, an operation has no deadline unless one is set; CONSORT_TIMEOUT goes before this.
        let options = Options::default().timeout(timeout::NEVER);
        let id = UniqueId::from_bytes(&id.internal)?;
        let joined = Communicator::join_with(rank(number)?, size, &id, &options)?;
        handles::insert(joined)
            .ok_or_else(|| invalid("too many communicators", "destroy some before making more"))
    };
    // SAFETY: this function's own contract.
    fence(|| unsafe { store(comm, "comm", join) })
}

/// Closes a communicator; a null handle is fine.
#[unsafe(no_mangle)]
pub extern "C" fn ncclCommDestroy(comm: *mut c_void) -> c_int {
    fence_of(comm, || {
        if comm.is_null() {
            return Ok(());
        }
        handle(comm)?;
        drop(handles::remove(comm));
        Ok(())
    })
}

/// All-reduce on host memory; complete when it returns. The stream is not looked at.
///
/// # Safety
/// The buffers must hold `count` elements and be used by nobody else during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclAllReduce(
    input: *const c_void,
    output: *mut c_void,
    count: usize,
    element: c_int,
    op: c_int,
    comm: *mut c_void,
    _stream: *mut c_void,
) -> c_int {
    // SAFETY: this function's own contract.
    fence_of(comm, || unsafe {
        execute(comm, Call::all_reduce(data_type(element)?, operator(op)?, count), input, output)
    })
}

/// Reduce on host memory; complete when it returns.
///
/// # Safety
/// As [`ncclAllReduce`]; only the root's `output` is used.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclReduce(
    input: *const c_void,
    output: *mut c_void,
    count: usize,
    element: c_int,
    op: c_int,
    root: c_int,
    comm: *mut c_void,
    _stream: *mut c_void,
) -> c_int {
    fence_of(comm, || {
        let call = Call::reduce(data_type(element)?, operator(op)?, count, rank(root)?);
        // SAFETY: this function's own contract.
        unsafe { execute(comm, call, input, output) }
    })
}

/// Broadcast on host memory; complete when it returns.
///
/// # Safety
/// As [`ncclAllReduce`]; only the root's `input` is used.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclBroadcast(
    input: *const c_void,
    output: *mut c_void,
    count: usize,
    element: c_int,
    root: c_int,
    comm: *mut c_void,
    _stream: *mut c_void,
) -> c_int {
    // SAFETY: this function's own contract.
    fence_of(comm, || unsafe {
        execute(comm, Call::broadcast(data_type(element)?, count, rank(root)?), input, output)
    })
}

/// All-gather on host memory; complete when it returns.
///
/// # Safety
/// `input` must hold `count` elements, `output` as many from every rank; otherwise as [`ncclAllReduce`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclAllGather(
    input: *const c_void,
    output: *mut c_void,
    count: usize,
    element: c_int,
    comm: *mut c_void,
    _stream: *mut c_void,
) -> c_int {
    // SAFETY: this function's own contract.
    fence_of(comm, || unsafe { execute(comm, Call::all_gather(data_type(element)?, count), input, output) })
}

/// Reduce-scatter on host memory; complete when it returns.
///
/// # Safety
/// `input` must hold `count` elements for every rank, `output` `count`; otherwise as [`ncclAllReduce`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclReduceScatter(
    input: *const c_void,
    output: *mut c_void,
    count: usize,
    element: c_int,
    op: c_int,
    comm: *mut c_void,
    _stream: *mut c_void,
) -> c_int {
    // SAFETY: this function's own contract.
    fence_of(comm, || unsafe {
        execute(comm, Call::reduce_scatter(data_type(element)?, operator(op)?, count), input, output)
    })
}

/// Sends host memory; complete when it returns.
///
/// # Safety
/// As [`ncclAllReduce`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclSend(
    input: *const c_void,
    count: usize,
    element: c_int,
    peer: c_int,
    comm: *mut c_void,
    _stream: *mut c_void,
) -> c_int {
    fence_of(comm, || {
        let (handle, element) = (handle(comm)?, data_type(element)?);
        // SAFETY: this function's own contract.
        let input = unsafe { readable(input, count.checked_mul(element.size()))? };
        in_time(&handle).send_bytes(element, input, rank(peer)?)
    })
}

/// Receives into host memory; complete when it returns.
///
/// # Safety
/// As [`ncclAllReduce`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclRecv(
    output: *mut c_void,
    count: usize,
    element: c_int,
    peer: c_int,
    comm: *mut c_void,
    _stream: *mut c_void,
) -> c_int {
    fence_of(comm, || {
        let (handle, element) = (handle(comm)?, data_type(element)?);
        // SAFETY: this function's own contract.
        let output = unsafe { writable(output, count.checked_mul(element.size()))? };
        in_time(&handle).receive_bytes(element, output, rank(peer)?)
    })
}
