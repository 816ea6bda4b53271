//! Data calls: checked when they are made, run now, in a stream, or in the background.
//!
//! Invariant: an operation takes what it needs of its communicator's operators and of the calling thread when the
//! call is made; its buffers are the caller's promise. Absent: groups (`group`), and pointers.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use consort_algorithms::Collective;
use consort_algorithms::catalogue::Algorithm;
use consort_cuda::{DeviceSpan, RawStream};
use consort_kernels::DataType;
use consort_memory::{Held, HeldRead};

use super::comm::{Comm, Work};
use super::lane::in_order;
use super::operators::{Reduction, Scale};
use super::result::{Failure, Progress, Result};
use super::stream::Stream;
use super::varying::Varying;
use consort::Communicator;
use consort::device;
use consort_types::Rank;
use consort_types::call::{Call, Kind};
use consort_types::error::Error;
use consort_types::stretch::Stretch;

/// The kind of an operation.
#[derive(Clone, Debug)]
pub enum What {
    /// A collective.
    Collective(Call),
    /// A collective whose blocks differ in length.
    Varying(Varying),
    /// A message to a rank.
    Send(DataType, Rank),
    /// A message from a rank.
    Receive(DataType, Rank),
}

/// The options of a call that override its communicator's.
#[derive(Clone, Copy, Default, Debug)]
pub struct How {
    /// The deadline.
    pub timeout: Option<Duration>,
    /// The algorithm.
    pub algorithm: Option<Algorithm>,
}

/// A data call.
#[derive(Clone, Debug)]
pub struct Operation {
    /// Its kind.
    pub what: What,
    /// Its options.
    pub how: How,
    /// Its buffers.
    pub buffers: Buffers,
}

/// The buffers of a data call; empty where it reads or writes nothing.
#[derive(Clone, Debug)]
pub enum Buffers {
    /// Memory that the host moves.
    Host {
        /// The memory that is read.
        input: HeldRead,
        /// The memory that is written.
        output: Held,
    },
    /// Memory that is moved in a stream of a device.
    Device {
        /// The memory that is read.
        input: DeviceSpan,
        /// The memory that is written.
        output: DeviceSpan,
        /// The caller's stream.
        stream: RawStream,
    },
}

/// An operation and its communicator.
pub(super) struct Entry {
    pub(super) comm: Arc<Comm>,
    pub(super) operation: Operation,
}

impl Comm {
    /// The reduction of a number of `ncclRedOp_t` on this communicator.
    ///
    /// # Errors
    /// For unknown numbers, and operators of another data type.
    pub fn reduction(&self, number: i32, data_type: DataType) -> Result<Reduction> {
        self.operators.find(number, data_type)
    }

    /// Makes an operator that multiplies contributions of a type before it sums them, and returns its number.
    ///
    /// # Errors
    /// Where there are too many operators.
    pub fn create_operator(&self, data_type: DataType, scale: Scale) -> Result<i32> {
        self.communicator()?;
        self.operators.create(self.serial, data_type, scale)
    }

    /// Destroys an operator; operations that were issued with it go on.
    ///
    /// # Errors
    /// For numbers of no such operator.
    pub fn destroy_operator(&self, number: i32) -> Result<()> {
        self.operators.destroy(number)
    }
}

/// Runs operations together: in the first stream, or in the background, or now. In a stream the caller waits for them
/// only if `is_awaited` is set.
pub(super) fn start(entries: Vec<Entry>, streams: Vec<Arc<Stream>>, is_awaited: bool) -> Result<Progress> {
    let Some(first) = entries.first() else { return Ok(Progress::Done) };
    let first = first.comm.clone();
    let mut comms: Vec<Arc<Comm>> = entries.iter().map(|entry| entry.comm.clone()).collect();
    comms.sort_unstable_by_key(|comm| comm.serial);
    comms.dedup_by_key(|comm| comm.serial);
    if let Some(stream) = streams.first() {
        let failures = stream.failures();
        let work = if is_awaited { Work::Operations } else { Work::Queued };
        let body = Comm::attended(comms.clone(), work, move || {
            run(&entries).inspect_err(|failure| {
                let mut first = failures.lock().unwrap_or_else(PoisonError::into_inner);
                first.get_or_insert_with(|| failure.clone());
            })
        });
        let order = in_order();
        let keepers = comms.iter().map(|comm| &comm.last).chain(streams.iter().map(|stream| &stream.last));
        let end = stream.lane.submit(&order, keepers, body)?;
        drop(order);
        return match (is_awaited, first.is_blocking()) {
            (false, _) => Ok(Progress::Done),
            (true, true) => end.wait().map(|()| Progress::Done),
            (true, false) => Ok(Progress::Pending),
        };
    }
    if first.is_blocking() {
        comms.iter().filter_map(|comm| comm.unfinished()).for_each(|end| drop(end.wait()));
        return run(&entries).map(|()| Progress::Done);
    }
    first.in_background(&comms, Work::Operations, move || run(&entries)).map(|()| Progress::Pending)
}

/// Runs operations together: waits for those on host memory, and puts the others into their streams.
fn run(entries: &[Entry]) -> Result<()> {
    let mut views = Vec::with_capacity(entries.len());
    for Entry { comm, operation } in entries {
        views.push(operation.how.view(comm.communicator()?, comm.timeout()));
    }
    let is_away = |entry: &Entry| matches!(entry.operation.buffers, Buffers::Device { .. });
    if entries.iter().any(is_away) {
        run_away(entries, &views)?;
    }
    if entries.iter().all(is_away) {
        return Ok(());
    }
    if let ([view], [Entry { operation, .. }]) = (&views[..], entries)
        && let Buffers::Host { input, output } = &operation.buffers
    {
        let (input, output) = (input.read(), output.span());
        let result = match &operation.what {
            What::Collective(call) => view.execute(call, input, output),
            What::Varying(call) => view.execute_v(&call.call(), input, output),
            What::Send(data_type, to) => view.send_bytes(*data_type, input, *to),
            What::Receive(data_type, from) => view.receive_bytes(*data_type, output, *from),
        };
        return result.map_err(Failure::from);
    }
    let together = consort::group(|group| {
        for (view, Entry { operation, .. }) in views.iter().zip(entries) {
            let Buffers::Host { input, output } = &operation.buffers else { continue };
            let (input, output) = (input.read(), output.span());
            match &operation.what {
                What::Collective(call) => group.execute(view, call, input, output)?,
                What::Varying(call) => group.execute_v(view, &call.call(), input, output)?,
                What::Send(data_type, to) => group.send_bytes(view, *data_type, input, *to)?,
                What::Receive(data_type, from) => {
                    group.receive_bytes(view, *data_type, output, *from)?;
                }
            }
        }
        Ok(())
    });
    together.map_err(Failure::from)
}

/// Puts operations on device memory into their streams.
fn run_away(entries: &[Entry], views: &[Communicator]) -> Result<()> {
    let mut calls: Vec<device::Entry<'_>> = Vec::with_capacity(entries.len());
    for (view, Entry { comm, operation }) in views.iter().zip(entries) {
        let Buffers::Device { input, output, stream } = operation.buffers else { continue };
        let Some(placement) = comm.placement() else {
            return Err(Error::internal("memory of a device on a communicator without one").into());
        };
        let entry = |call: Call, blocks, input, output| {
            let (communicator, kept) = (view, Vec::new());
            let call = view.with_own_algorithm(call);
            device::Entry { communicator, placement, call, blocks, input, output, stream, kept }
        };
        let nothing = DeviceSpan::empty();
        match &operation.what {
            What::Collective(call) => calls.push(entry(*call, None, input, output)),
            What::Varying(varying) => {
                for (call, blocks, input, output) in view.parts(&varying.call(), input, output)? {
                    calls.push(entry(call, blocks, input, output));
                }
            }
            What::Send(data_type, to) => {
                let message = view.message(Kind::Send, *data_type, input.len(), *to)?;
                calls.push(entry(message, None, input, nothing));
            }
            What::Receive(data_type, from) => {
                let message = view.message(Kind::Receive, *data_type, output.len(), *from)?;
                calls.push(entry(message, None, nothing, output));
            }
        }
    }
    device::issue_all(&calls).map_err(Failure::from)
}

impl How {
    /// The communicator with this call's options.
    fn view(self, communicator: &Communicator, timeout: Option<Duration>) -> Communicator {
        communicator.view_with(self.timeout.or(timeout), self.algorithm)
    }
}

impl Entry {
    /// Its time by the planner's prices, in seconds. The price of a message does not depend on the two ranks; a
    /// collective that is made of messages has none.
    pub(super) fn price(&self) -> Result<f64> {
        let operation = &self.operation;
        let of_call = |call: Call| (call.collective(), call.count * call.data_type.size());
        let (collective, bytes) = match &operation.what {
            What::Collective(call) => of_call(*call),
            What::Varying(call) => match call.call().planned() {
                Some((call, _)) => of_call(call),
                None => return Ok(0.0),
            },
            // A message to itself is a copy, which has no price.
            _ if self.comm.size()? == 1 => return Ok(0.0),
            What::Send(..) => (Collective::SendReceive, operation.buffers.lengths().0),
            What::Receive(..) => (Collective::SendReceive, operation.buffers.lengths().1),
        };
        let view = operation.how.view(self.comm.communicator()?, None);
        let explanation = view.explain(collective, bytes as u64)?;
        Ok(explanation.chosen().map_or(0.0, |chosen| chosen.measured_s.unwrap_or(chosen.predicted_s)))
    }
}

impl Buffers {
    /// Bytes read and bytes written.
    fn lengths(&self) -> (usize, usize) {
        match self {
            Buffers::Host { input, output } => (input.len(), output.len()),
            Buffers::Device { input, output, .. } => (input.len(), output.len()),
        }
    }
}

impl Operation {
    /// Checks everything that can be checked before the operation runs.
    pub(super) fn check(&self, communicator: &Communicator) -> Result<()> {
        match &self.buffers {
            Buffers::Host { input, output } => self.check_with(communicator, input.read(), output.span()),
            Buffers::Device { input, output, .. } => self.check_with(communicator, *input, *output),
        }
    }

    fn check_with(
        &self,
        communicator: &Communicator,
        input: impl Stretch,
        output: impl Stretch,
    ) -> Result<()> {
        let (rank, size) = (communicator.rank(), communicator.size());
        match &self.what {
            What::Collective(call) => call.check(rank, size, input, output)?,
            What::Varying(call) => call.call().check(rank, size, input, output)?,
            What::Send(data_type, to) => {
                communicator.message(Kind::Send, *data_type, input.bytes(), *to)?;
            }
            What::Receive(data_type, from) => {
                communicator.message(Kind::Receive, *data_type, output.bytes(), *from)?;
            }
        }
        Ok(())
    }
}
