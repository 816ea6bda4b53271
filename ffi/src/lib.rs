//! The C boundary, in its first, small form: enough of NCCL's ABI on host memory to be timed by a harness that
//! opens a library at run time. It is built as `libconsort_ffi.so` and does not claim to be `libnccl.so.2`.
//!
//! Invariant: no panic crosses the boundary, a wrong handle is an error, and nothing but translation happens
//! here. Deliberately absent: groups, streams, devices.

mod handles;

use std::cell::RefCell;
use std::ffi::{CString, c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};

use consort::{Call, Communicator, DataType, Error, ReduceOp, Span, SpanMut, UniqueId};

/// `ncclResult_t`.
#[repr(i32)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Status {
    Success = 0,
    System = 2,
    Internal = 3,
    InvalidArgument = 4,
    InvalidUsage = 5,
    Remote = 6,
    Timeout = 8,
}

/// `ncclUniqueId`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct NcclUniqueId {
    internal: [u8; UniqueId::BYTES],
}

thread_local! {
    static LAST_ERROR: RefCell<CString> = RefCell::new(CString::default());
    /// Ids that this thread made: their rendezvous lives as long as they do.
    static CREATED: RefCell<Vec<UniqueId>> = const { RefCell::new(Vec::new()) };
}

fn status(error: &Error) -> Status {
    match error {
        Error::InvalidArgument { .. } => Status::InvalidArgument,
        Error::Mismatch { .. } | Error::Settings { .. } | Error::ConcurrentUse | Error::Forked => {
            Status::InvalidUsage
        }
        Error::PeerLost { .. } | Error::PeerLeft { .. } | Error::Link { .. } | Error::Aborted { .. } => {
            Status::Remote
        }
        Error::Timeout { .. } | Error::MissingRanks { .. } => Status::Timeout,
        Error::OutOfMemory { .. } | Error::System { .. } | Error::Join { .. } => Status::System,
        _ => Status::Internal,
    }
}

fn set_last_error(text: &str) {
    let text = CString::new(text.replace('\0', " ")).unwrap_or_default();
    LAST_ERROR.with(|last| *last.borrow_mut() = text);
}

/// Runs `body`; errors become a status and the last error's text, panics an internal error.
fn fence(body: impl FnOnce() -> Result<(), Error>) -> c_int {
    let outcome = catch_unwind(AssertUnwindSafe(body));
    let status = match outcome {
        Ok(Ok(())) => Status::Success,
        Ok(Err(error)) => {
            set_last_error(&error.to_string());
            status(&error)
        }
        Err(_) => {
            set_last_error("internal error: a panic was stopped at the C boundary; please report it");
            Status::Internal
        }
    };
    status as c_int
}

fn invalid(what: &str, hint: &str) -> Error {
    Error::InvalidArgument { what: what.to_owned(), hint: hint.to_owned() }
}

fn communicator(handle: *mut c_void) -> Result<std::sync::Arc<Communicator>, Error> {
    handles::find(handle).ok_or_else(|| {
        invalid("the communicator handle is null, freed or foreign", "pass one that ncclCommInitRank made")
    })
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

/// Runs a collective on the addresses that C passed.
///
/// # Safety
/// As the exported function that calls it.
unsafe fn execute(
    handle: *mut c_void,
    call: Call,
    input: *const c_void,
    output: *mut c_void,
) -> Result<(), Error> {
    let comm = communicator(handle)?;
    let (in_bytes, out_bytes) =
        (call.input_bytes(comm.rank(), comm.size()), call.output_bytes(comm.rank(), comm.size()));
    if (in_bytes != 0 && input.is_null()) || (out_bytes != 0 && output.is_null()) {
        return Err(invalid("a buffer is null", "pass buffers as long as the call needs them"));
    }
    // SAFETY: the caller promises that the buffers are as long as NCCL's contract for the call says, which is
    // what `input_bytes` and `output_bytes` compute, and that nobody else touches them meanwhile.
    let (input, output) =
        unsafe { (Span::from_raw(input.cast(), in_bytes), SpanMut::from_raw(output.cast(), out_bytes)) };
    comm.execute(&call, input, output)
}

/// Writes the version that the implemented calls follow.
///
/// # Safety
/// `version` must be writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclGetVersion(version: *mut c_int) -> c_int {
    fence(|| {
        if version.is_null() {
            return Err(invalid("version is null", "pass a pointer to an int"));
        }
        // SAFETY: checked for null; the caller promises that it is writable.
        unsafe { version.write(22_000) };
        Ok(())
    })
}

/// The text of this thread's last error; valid until this thread's next failing call.
#[unsafe(no_mangle)]
pub extern "C" fn ncclGetLastError(_comm: *mut c_void) -> *const c_char {
    LAST_ERROR.with(|last| last.borrow().as_ptr())
}

/// Makes an id; its rendezvous lives in this process as long as the calling thread.
///
/// # Safety
/// `id` must be writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclGetUniqueId(id: *mut NcclUniqueId) -> c_int {
    fence(|| {
        if id.is_null() {
            return Err(invalid("id is null", "pass a pointer to an ncclUniqueId"));
        }
        let created = UniqueId::create()?;
        // SAFETY: checked for null; the caller promises that it is writable.
        unsafe { id.write(NcclUniqueId { internal: created.to_bytes() }) };
        CREATED.with(|ids| ids.borrow_mut().push(created));
        Ok(())
    })
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
    fence(|| {
        if comm.is_null() {
            return Err(invalid("comm is null", "pass a pointer to an ncclComm_t"));
        }
        let joined = Communicator::join(rank(number)?, rank(size)?, &UniqueId::from_bytes(&id.internal)?)?;
        let handle = handles::insert(joined)
            .ok_or_else(|| invalid("too many communicators", "destroy some before making more"))?;
        // SAFETY: checked for null; the caller promises that it is writable.
        unsafe { comm.write(handle) };
        Ok(())
    })
}

/// Closes a communicator; a null handle is fine.
#[unsafe(no_mangle)]
pub extern "C" fn ncclCommDestroy(comm: *mut c_void) -> c_int {
    fence(|| {
        if comm.is_null() {
            return Ok(());
        }
        communicator(comm)?;
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
    fence(|| unsafe {
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
    fence(|| {
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
    fence(|| unsafe {
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
    fence(|| unsafe { execute(comm, Call::all_gather(data_type(element)?, count), input, output) })
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
    fence(|| unsafe {
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
    fence(|| {
        let element = data_type(element)?;
        // SAFETY: this function's own contract.
        let input = unsafe { Span::from_raw(input.cast(), count * element.size()) };
        communicator(comm)?.send_bytes(element, input, rank(peer)?)
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
    fence(|| {
        let element = data_type(element)?;
        // SAFETY: this function's own contract.
        let output = unsafe { SpanMut::from_raw(output.cast(), count * element.size()) };
        communicator(comm)?.receive_bytes(element, output, rank(peer)?)
    })
}
