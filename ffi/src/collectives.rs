//! The collectives and the messages, plain and with a config of their own.
//!
//! Invariant: a call that can be seen to be wrong is refused before memory is touched. A call that may run at once
//! runs on the caller's thread.

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use consort::{Call, Communicator, DataType, ReduceOp, Span, SpanMut};
use consort_nccl::operation::{How, Operation, What};
use consort_nccl::{Comm, Failure, Progress, Result, device, group, log, thread};

use crate::boundary::{call_in_group, exported};
use crate::buffers::{Given, NOTHING_READ, NOTHING_WRITTEN, is_buffer, lent, lent_again};
use crate::handles::Borrowed;
use crate::{buffers, configs, handles, timeout};

#[inline]
pub(crate) fn data_type(code: c_int) -> Result<DataType> {
    let known = u32::try_from(code).ok().and_then(DataType::from_code);
    known.ok_or_else(|| {
        Failure::argument(format!("there is no data type {code}"), "pass one of ncclDataType_t")
    })
}

pub(crate) fn rank(number: c_int) -> Result<u32> {
    u32::try_from(number)
        .map_err(|_| Failure::argument(format!("rank {number} is negative"), "ranks count from 0"))
}

/// The arguments that every collective has.
#[derive(Clone, Copy)]
pub(crate) struct Passed {
    pub(crate) input: *const c_void,
    pub(crate) output: *mut c_void,
    pub(crate) comm: *mut c_void,
    pub(crate) stream: *mut c_void,
    /// Null where the function has no config.
    pub(crate) config: *const c_void,
}

/// The arguments of a call without its buffers and its stream.
#[inline(always)]
fn as_passed<const N: usize>(function: *const (), comm: *mut c_void, numbers: [usize; N]) -> thread::Passed {
    let mut all = [0; 4];
    all[..N].copy_from_slice(&numbers);
    thread::Passed { comm: comm as usize, function: function as usize, numbers: all }
}

/// Runs a collective with the same arguments as the last one of this thread, if it may run at once as that did: its
/// lengths are known. `None` where something has changed; the long way then finds the change. `execute` finds errors
/// of the call itself on both ways.
///
/// # Safety
/// As [`collective`].
#[inline(always)]
unsafe fn again(
    passed: Passed,
    like: thread::Passed,
    call: impl FnOnce() -> Result<Call>,
) -> Option<Result<Progress>> {
    let lengths = thread::repeated(like)?;
    let is_plain = passed.config.is_null()
        && passed.stream.is_null()
        && !device::asks()
        && !log::enabled(log::Level::Trace, log::Subsystem::Call);
    if !is_plain {
        return None;
    }
    let comm = handles::COMMS.borrow(passed.comm)?;
    let communicator = comm.inline().filter(|_| comm.timeout().is_none())?;
    // SAFETY: as in `collective`: these are the lengths that follow from the call.
    let (input, output) = unsafe { lent_again((passed.input, lengths.0), (passed.output, lengths.1))? };
    let call = call().ok()?;
    Some(match communicator.execute(&call, input, output) {
        Ok(()) => Ok(Progress::Done),
        Err(error) => Err(error.into()),
    })
}

/// A collective that C called: `op` is the number of its reduction, if it has one, and `what` makes the call.
///
/// # Safety
/// As the exported function `name`.
#[inline]
unsafe fn collective(
    name: &str,
    passed: Passed,
    like: thread::Passed,
    op: Option<c_int>,
    what: impl Fn(ReduceOp) -> Result<Call>,
) -> c_int {
    call_in_group(name, passed.comm, || {
        let same = || what(op.and_then(built_in).unwrap_or(ReduceOp::Sum));
        // SAFETY: this function's own contract.
        if let Some(done) = unsafe { again(passed, like, same) } {
            return done;
        }
        let comm = handles::comm(passed.comm)?;
        // An operator that a communicator made sums.
        let built_in = op.map_or(Some(ReduceOp::Sum), built_in);
        let call = what(built_in.unwrap_or(ReduceOp::Sum))?;
        if log::enabled(log::Level::Trace, log::Subsystem::Call) {
            let Passed { input, output, comm, stream, .. } = passed;
            log::call(format_args!(
                "{name}({input:p}, {output:p}, {call}, comm {comm:p}, stream {stream:p})"
            ));
        }
        if comm.placement().is_some() {
            // SAFETY: this function's own contract.
            return unsafe { issue(&comm, passed, call, op) };
        }
        let stream = handles::stream(passed.stream)?;
        let plain = thread::is_plain();
        if built_in.is_some()
            && passed.config.is_null()
            && stream.is_none()
            && (plain || !group::is_open())
            && let Some(communicator) = comm.inline()
        {
            let (rank, size) = (communicator.rank(), communicator.size());
            let lengths = (call.input_bytes(rank, size), call.output_bytes(rank, size));
            let (from, to) = ((passed.input, Some(lengths.0)), (passed.output, Some(lengths.1)));
            // SAFETY: the caller promises that the buffers are as long as NCCL's contract for the call requires,
            // which is the result of `input_bytes` and `output_bytes`, and that no other thread touches them
            // meanwhile.
            let (input, output) = unsafe { lent(&comm, from, to)? };
            thread::remember(like, lengths);
            match if plain { comm.timeout() } else { timeout::now(&comm) } {
                None => communicator.execute(&call, input, output)?,
                Some(timeout) => communicator.with_timeout(timeout).execute(&call, input, output)?,
            }
            return Ok(Progress::Done);
        }
        // SAFETY: this function's own contract.
        unsafe { issue(&comm, passed, call, op) }
    })
}

/// The operator of a number that every communicator has.
#[inline]
fn built_in(op: c_int) -> Option<ReduceOp> {
    u32::try_from(op).ok().and_then(ReduceOp::from_code)
}

/// The end of [`collective`] where it cannot run at once.
///
/// # Safety
/// As [`collective`]; the buffers, until the operation is over.
#[cold]
unsafe fn issue(comm: &Arc<Comm>, passed: Passed, call: Call, op: Option<c_int>) -> Result<Progress> {
    let reduction = op.map(|op| comm.reduction(op, call.data_type())).transpose()?;
    let scalar = reduction.and_then(|reduction| reduction.scalar);
    let (rank, size) = (comm.rank()?, comm.size()?);
    // SAFETY: this function's own contract: null or a config.
    let mut how = unsafe { configs::of_call(passed.config, &call, size)? };
    how.timeout = how.timeout.or(thread::timeout());
    // SAFETY: as in `collective`, for as long as the operation takes: the contract of calls on streams, in groups and
    // on communicators that do not block.
    let (buffers, stream) = unsafe {
        buffers::passed(
            comm,
            Given {
                input: (passed.input, Some(call.input_bytes(rank, size))),
                output: (passed.output, Some(call.output_bytes(rank, size))),
                stream: passed.stream,
            },
        )?
    };
    let what = What::Collective(scalar.map_or(call, |scalar| call.scaled_by(scalar)));
    comm.issue(Operation { what, how, buffers }, stream.as_ref())
}

/// The communicator, the data type, the peer and the bytes of a message to or from host memory that may run at once;
/// `None` where an argument is wrong, which the long way reports.
#[inline(always)]
fn quick_message(
    start: *const c_void,
    count: usize,
    element: c_int,
    peer: c_int,
    comm: *mut c_void,
    stream: *mut c_void,
) -> Option<(Borrowed<Comm>, DataType, u32, usize)> {
    if !stream.is_null() || device::asks() || !thread::is_plain() {
        return None;
    }
    let element = u32::try_from(element).ok().and_then(DataType::from_code)?;
    let peer = u32::try_from(peer).ok()?;
    let bytes = count.checked_mul(element.size())?;
    let is_buffer = bytes <= isize::MAX as usize && is_buffer(start as usize, bytes);
    let comm = handles::COMMS.borrow(comm).filter(|comm| is_buffer && comm.timeout().is_none())?;
    Some((comm, element, peer, bytes))
}

/// A message that C called: this rank sends it or receives it.
///
/// # Safety
/// `buffer` must hold `count` elements, which are read or written until the call is over.
#[inline(always)]
unsafe fn message(
    (name, sends): (&str, bool),
    (buffer, count, element): (*mut c_void, usize, c_int),
    peer: c_int,
    comm: *mut c_void,
    stream: *mut c_void,
) -> c_int {
    let both = |bytes| match sends {
        true => ((buffer.cast_const(), bytes), NOTHING_WRITTEN),
        false => (NOTHING_READ, (buffer, bytes)),
    };
    let run =
        |communicator: &Communicator, element, (input, output): (Span<'_>, SpanMut<'_>), peer| match sends {
            true => communicator.send_bytes(element, input, peer),
            false => communicator.receive_bytes(element, output, peer),
        };
    call_in_group(name, comm, || {
        if let Some((comm, element, peer, bytes)) = quick_message(buffer, count, element, peer, comm, stream)
            && let Some(communicator) = comm.inline()
        {
            let (read, written) = if sends { (bytes, 0) } else { (0, bytes) };
            // SAFETY: this function's own contract; not null unless empty, and inside the address space.
            let buffers =
                unsafe { (Span::from_raw(buffer.cast(), read), SpanMut::from_raw(buffer.cast(), written)) };
            run(communicator, element, buffers, peer)?;
            return Ok(Progress::Done);
        }
        let (comm, element, peer) = (handles::comm(comm)?, data_type(element)?, rank(peer)?);
        let (input, output) = both(count.checked_mul(element.size()));
        let at_once = comm.placement().is_none() && handles::stream(stream)?.is_none();
        let plain = thread::is_plain();
        if at_once
            && (plain || !group::is_open())
            && let Some(communicator) = comm.inline()
        {
            // SAFETY: this function's own contract; the other buffer is empty.
            let buffers = unsafe { lent(&comm, input, output)? };
            match if plain { comm.timeout() } else { timeout::now(&comm) } {
                None => run(communicator, element, buffers, peer)?,
                Some(timeout) => run(&communicator.with_timeout(timeout), element, buffers, peer)?,
            }
            return Ok(Progress::Done);
        }
        // SAFETY: as above.
        let (buffers, stream) = unsafe { buffers::passed(&comm, Given { input, output, stream })? };
        let what = if sends { What::Send(element, peer) } else { What::Receive(element, peer) };
        let how = How { timeout: thread::timeout(), algorithm: None };
        comm.issue(Operation { what, how, buffers }, stream.as_ref())
    })
}

/// Defines a collective plain and with a config.
macro_rules! collectives {
    ($(
        $(#[$documentation:meta])*
        fn $name:ident = $twin:ident, $with:ident = $with_twin:ident(
            $($argument:ident: $type:ty),*
        ) |$op:ident| $what:expr, $number:expr;
    )*) => {$(
        exported! {
            $(#[$documentation])*
            ///
            /// # Safety
            /// The buffers must hold the data that the call reads and writes, and no other thread may use
            /// them until it is over.
            fn $name = $twin(
                input: *const c_void, output: *mut c_void, $($argument: $type,)* comm: *mut c_void, stream: *mut c_void
            ) -> c_int {
                let passed = Passed { input, output, comm, stream, config: std::ptr::null() };
                let like = as_passed($name as *const (), comm, [$($argument as usize),*]);
                // SAFETY: this function's own contract.
                unsafe { collective(stringify!($name), passed, like, $number, |$op| $what) }
            }

            $(#[$documentation])*
            /// `config` is null or has the options of this call.
            ///
            /// # Safety
            /// As the plain form; `config` must be null or an `ncclCollConfig_t` of the size in it.
            fn $with = $with_twin(
                input: *const c_void, output: *mut c_void, $($argument: $type,)* comm: *mut c_void,
                stream: *mut c_void, config: *const c_void
            ) -> c_int {
                let passed = Passed { input, output, comm, stream, config };
                let like = as_passed($with as *const (), comm, [$($argument as usize),*]);
                // SAFETY: this function's own contract.
                unsafe { collective(stringify!($with), passed, like, $number, |$op| $what) }
            }
        }
    )*};
}

collectives! {
    /// All-reduce: `count` elements of all ranks are folded, all get the result.
    fn ncclAllReduce = pncclAllReduce, ncclAllReduceConfig = pncclAllReduceConfig(
        count: usize, element: c_int, op: c_int
    ) |op| Ok(Call::all_reduce(data_type(element)?, op, count)), Some(op);

    /// Reduce: `count` elements of all ranks are folded, `root` gets the result.
    fn ncclReduce = pncclReduce, ncclReduceConfig = pncclReduceConfig(
        count: usize, element: c_int, op: c_int, root: c_int
    ) |op| Ok(Call::reduce(data_type(element)?, op, count, rank(root)?)), Some(op);

    /// Broadcast: all get `count` elements of `root`.
    fn ncclBroadcast = pncclBroadcast, ncclBroadcastConfig = pncclBroadcastConfig(
        count: usize, element: c_int, root: c_int
    ) |_op| Ok(Call::broadcast(data_type(element)?, count, rank(root)?)), None;

    /// All-gather: all get `count` elements of every rank, in rank order.
    fn ncclAllGather = pncclAllGather, ncclAllGatherConfig = pncclAllGatherConfig(
        count: usize, element: c_int
    ) |_op| Ok(Call::all_gather(data_type(element)?, count)), None;

    /// Reduce-scatter: every rank gets its `count` elements of the fold.
    fn ncclReduceScatter = pncclReduceScatter, ncclReduceScatterConfig = pncclReduceScatterConfig(
        count: usize, element: c_int, op: c_int
    ) |op| Ok(Call::reduce_scatter(data_type(element)?, op, count)), Some(op);

    /// All-to-all: every rank gets `count` elements of every rank.
    fn ncclAlltoAll = pncclAlltoAll, ncclAlltoAllConfig = pncclAlltoAllConfig(
        count: usize, element: c_int
    ) |_op| Ok(Call::all_to_all(data_type(element)?, count)), None;

    /// Gather: `root` gets `count` elements of every rank, in rank order.
    fn ncclGather = pncclGather, ncclGatherConfig = pncclGatherConfig(
        count: usize, element: c_int, root: c_int
    ) |_op| Ok(Call::gather(data_type(element)?, count, rank(root)?)), None;

    /// Scatter: every rank gets its `count` elements of `root`.
    fn ncclScatter = pncclScatter, ncclScatterConfig = pncclScatterConfig(
        count: usize, element: c_int, root: c_int
    ) |_op| Ok(Call::scatter(data_type(element)?, count, rank(root)?)), None;
}

exported! {
    /// Broadcast in place.
    ///
    /// # Safety
    /// As [`ncclBroadcast`], of a buffer that the root reads and the others write.
    fn ncclBcast = pncclBcast(
        buffer: *mut c_void, count: usize, element: c_int, root: c_int, comm: *mut c_void, stream: *mut c_void
    ) -> c_int {
        let passed = Passed { input: buffer, output: buffer, comm, stream, config: std::ptr::null() };
        let like = as_passed(ncclBcast as *const (), comm, [count, element as usize, root as usize]);
        // SAFETY: this function's own contract.
        unsafe {
            collective("ncclBcast", passed, like, None, |_| {
                Ok(Call::broadcast(data_type(element)?, count, rank(root)?))
            })
        }
    }

    /// Sends to a rank, which must receive it.
    ///
    /// # Safety
    /// `input` must hold `count` elements that no thread writes until the call is over.
    fn ncclSend = pncclSend(
        input: *const c_void, count: usize, element: c_int, peer: c_int, comm: *mut c_void, stream: *mut c_void
    ) -> c_int {
        // SAFETY: this function's own contract. The buffer of a send is only read.
        unsafe { message(("ncclSend", true), (input.cast_mut(), count, element), peer, comm, stream) }
    }

    /// Receives what a rank sends.
    ///
    /// # Safety
    /// `output` must hold `count` elements that no other thread uses until the call is over.
    fn ncclRecv = pncclRecv(
        output: *mut c_void, count: usize, element: c_int, peer: c_int, comm: *mut c_void, stream: *mut c_void
    ) -> c_int {
        // SAFETY: this function's own contract.
        unsafe { message(("ncclRecv", false), (output, count, element), peer, comm, stream) }
    }
}
