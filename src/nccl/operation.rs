//! Data calls: checked when they are made, run now, at the end of the group, or in the background.
//!
//! Invariant: what an operation needs of its communicator's operators and of the calling thread is taken when the call
//! is made; its buffers are the caller's promise. Absent: groups (`group`), and pointers.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use consort_algorithms::Collective;
use consort_algorithms::catalogue::Algorithm;
use consort_kernels::{DataType, Scalar};
use consort_memory::{Held, HeldRead};

use super::comm::{Comm, Work};
use super::group;
use super::lane::in_order;
use super::operators::{Reduction, Scale};
use super::result::{Failure, Progress, Result};
use super::stream::Stream;
use super::varying::Varying;
use crate::Rank;
use crate::call::{Call, Kind};
use crate::communicator::Communicator;
use crate::error::Error;
use crate::varying::CallV;

/// What an operation does.
#[derive(Clone, Debug)]
pub enum What {
    /// A collective.
    Collective(Call, Option<Scale>),
    /// A collective whose blocks differ in length.
    Varying(Varying, Option<Scale>),
    /// A message to a rank.
    Send(DataType, Rank),
    /// A message from a rank.
    Receive(DataType, Rank),
}

/// How this call differs from what its communicator does.
#[derive(Clone, Copy, Default, Debug)]
pub struct How {
    /// Another deadline.
    pub timeout: Option<Duration>,
    /// The algorithm.
    pub algorithm: Option<Algorithm>,
}

/// A data call.
#[derive(Clone, Debug)]
pub struct Operation {
    /// What it does.
    pub what: What,
    /// How.
    pub how: How,
    /// What it reads; empty where it reads nothing.
    pub input: HeldRead,
    /// What it writes; empty where it writes nothing.
    pub output: Held,
}

/// An operation about to run.
enum Ready<'a> {
    Whole(Call),
    Varying(CallV<'a>),
    Send(DataType, Rank),
    Receive(DataType, Rank),
}

/// An operation and whose it is.
pub(super) struct Entry {
    pub(super) comm: Arc<Comm>,
    pub(super) operation: Operation,
}

impl Comm {
    /// The reduction that a number of `ncclRedOp_t` names here.
    ///
    /// # Errors
    /// For numbers that name none, and operators of another data type.
    pub fn reduction(&self, number: i32, data_type: DataType) -> Result<Reduction> {
        self.operators.find(number, data_type)
    }

    /// Makes an operator that multiplies contributions of a type before it sums them; its number.
    ///
    /// # Errors
    /// When there are too many.
    pub fn create_operator(&self, data_type: DataType, scale: Scale) -> Result<i32> {
        self.communicator()?;
        self.operators.create(self.serial, data_type, scale)
    }

    /// Forgets an operator; operations that were issued with it are not touched.
    ///
    /// # Errors
    /// For numbers that are no such operator's.
    pub fn destroy_operator(&self, number: i32) -> Result<()> {
        self.operators.destroy(number)
    }

    /// Makes a data call: written down if a group is open on this thread; otherwise put into the stream, or run by the
    /// caller, or, on a non-blocking communicator, in the background.
    ///
    /// # Errors
    /// What can be seen at once, which also fails an open group; without one, what the operation ended with.
    pub fn issue(self: &Arc<Self>, operation: Operation, stream: Option<&Arc<Stream>>) -> Result<Progress> {
        group::noting(|| {
            let communicator = self.for_data()?;
            operation.check(communicator)?;
            // Of a communicator that is over, the caller is told here and not by its stream or group.
            communicator.status()?;
            let entry = Entry { comm: self.clone(), operation };
            if group::is_open() {
                return group::add(entry, stream.cloned()).map(|()| Progress::Done);
            }
            start(vec![entry], stream.cloned().into_iter().collect(), false)
        })
    }
}

/// Runs operations together: in the first stream, or in the background, or now. In a stream nobody waits for them unless
/// it `is_awaited`.
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

/// Runs operations together, and waits for them.
fn run(entries: &[Entry]) -> Result<()> {
    let mut calls = Vec::with_capacity(entries.len());
    for Entry { comm, operation } in entries {
        calls.push((operation.how.view(comm.communicator()?, comm.timeout()), operation.call()?));
    }
    if let ([(view, call)], [Entry { operation, .. }]) = (&calls[..], entries) {
        let (input, output) = (operation.input.read(), operation.output.span());
        let result = match call {
            Ready::Whole(call) => view.execute(call, input, output),
            Ready::Varying(call) => view.execute_v(call, input, output),
            Ready::Send(data_type, to) => view.send_bytes(*data_type, input, *to),
            Ready::Receive(data_type, from) => view.receive_bytes(*data_type, output, *from),
        };
        return result.map_err(Failure::from);
    }
    let together = crate::communicator::group(|group| {
        for ((view, call), Entry { operation, .. }) in calls.iter().zip(entries) {
            let (input, output) = (operation.input.read(), operation.output.span());
            match call {
                Ready::Whole(call) => group.execute(view, call, input, output)?,
                Ready::Varying(call) => group.execute_v(view, call, input, output)?,
                Ready::Send(data_type, to) => group.send_bytes(view, *data_type, input, *to)?,
                Ready::Receive(data_type, from) => {
                    group.receive_bytes(view, *data_type, output, *from)?;
                }
            }
        }
        Ok(())
    });
    together.map_err(Failure::from)
}

impl How {
    /// The communicator, as this call wants it.
    fn view(self, communicator: &Communicator, timeout: Option<Duration>) -> Communicator {
        communicator.seen(self.timeout.or(timeout), self.algorithm)
    }
}

impl Entry {
    /// What it takes by the planner's prices, in seconds; of a message, whichever the two ranks; nothing for what is made of
    /// messages.
    pub(super) fn price(&self) -> Result<f64> {
        let operation = &self.operation;
        let of_call = |call: Call| (call.kind.collective(), call.count * call.data_type.size());
        let (collective, bytes) = match &operation.what {
            What::Collective(call, _) => of_call(*call),
            What::Varying(call, _) => match call.call().planned() {
                Some((call, _)) => of_call(call),
                None => return Ok(0.0),
            },
            // A message to itself is a copy, which has no price.
            _ if self.comm.size()? == 1 => return Ok(0.0),
            What::Send(..) => (Collective::SendReceive, operation.input.len()),
            What::Receive(..) => (Collective::SendReceive, operation.output.len()),
        };
        let view = operation.how.view(self.comm.communicator()?, None);
        let explanation = view.explain(collective, bytes as u64)?;
        Ok(explanation.chosen().map_or(0.0, |chosen| chosen.measured_s.unwrap_or(chosen.predicted_s)))
    }
}

impl Operation {
    /// What can be checked before anything runs.
    fn check(&self, communicator: &Communicator) -> Result<()> {
        let (rank, size) = (communicator.rank(), communicator.size());
        match &self.what {
            What::Collective(call, _) => call.check(rank, size, self.input.read(), self.output.span())?,
            What::Varying(call, _) => {
                call.call().check(rank, size, self.input.read(), self.output.span())?;
            }
            What::Send(data_type, to) => {
                communicator.message(Kind::Send, *data_type, self.input.len(), *to)?;
            }
            What::Receive(data_type, from) => {
                communicator.message(Kind::Receive, *data_type, self.output.len(), *from)?;
            }
        }
        Ok(())
    }

    /// What it does, with the factor that its operator has now.
    fn call(&self) -> Result<Ready<'_>> {
        Ok(match &self.what {
            What::Collective(call, None) => Ready::Whole(*call),
            What::Collective(call, Some(scale)) => {
                Ready::Whole(call.scaled_by(factor(scale, call.data_type)?))
            }
            What::Varying(call, None) => Ready::Varying(call.call()),
            What::Varying(call, Some(scale)) => {
                let call = call.call();
                Ready::Varying(call.scaled_by(factor(scale, call.data_type())?))
            }
            What::Send(data_type, to) => Ready::Send(*data_type, *to),
            What::Receive(data_type, from) => Ready::Receive(*data_type, *from),
        })
    }
}

/// The factor that an operator has now.
fn factor(scale: &Scale, data_type: DataType) -> Result<Scalar> {
    let bytes = scale.bytes();
    Scalar::from_bytes(data_type, &bytes[..data_type.size()])
        .map_err(|error| Error::internal(format!("the factor of an operator: {error}")).into())
}
