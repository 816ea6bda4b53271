//! Runs operations: finds or makes the bound plan, drives the executor, keeps the queue of work that no thread
//! waits for.
//!
//! Invariant: one owner at a time ([`consort_memory::sync::Exclusive`]); operations of a communicator run in
//! the order of their sequence numbers. A repeated operation allocates nothing, takes no lock and makes no
//! system call. Nothing here waits: waiting is [`crate::communicator`]'s and the control thread's.

mod bound;
pub(crate) mod changes;
mod compiled;
pub(crate) mod discarded;
mod executor;
#[cfg(test)]
mod fuzz;
mod lent;
pub(crate) mod links;
pub(crate) mod packets;
mod pairing;
mod part;
mod queue;
pub(crate) mod readiness;
mod real_io;
pub(crate) mod routes;
mod sleeping;
pub(crate) mod store_tuner;
mod task;
#[cfg(test)]
mod tests;
mod trouble;
pub(crate) mod watched;
pub(crate) mod wires;
mod zero_copy;

use std::any::Any;
use std::sync::Arc;
use std::time::Instant;

use consort_memory::{Bell, Held, HeldRead, Span, SpanMut, access_epoch};

pub(crate) use bound::Bearings;
pub use executor::Progress;
pub(crate) use executor::{Executor, Io, Piece, Sizes, Stop};
use queue::Queue;
pub(crate) use queue::Start;
pub(crate) use task::Request;
pub use task::Task;
use task::bytes_of;
use trouble::Trouble;

use crate::planner::{Machine, Planner, Plannings};
use crate::wait::{Look, Policy};
use changes::Changing;
use compiled::Operations;
use consort_control::membership::group::Group;
use consort_settings::options::Settings;
use consort_types::call::{Call, Kind};
use consort_types::error::Result;
use links::{Links, Wanted, WokenBy};
use packets::Packets;
use real_io::Broken;
use routes::Routes;
use store_tuner::StoreTuner;
use wires::{LONG_BYTES, WireRecord, Wires};
use zero_copy::PeerMemory;

/// The memory of one request: sends read `input`, receives write `output`.
#[derive(Clone, Copy)]
pub struct Buffers<'a> {
    /// The bytes that the request reads.
    pub input: Span<'a>,
    /// The bytes that the request writes.
    pub output: SpanMut<'a>,
}

/// The state that the thread which drives a communicator owns.
pub struct Engine {
    pub(crate) group: Arc<Group>,
    pub(crate) settings: Settings,
    /// The connections to other ranks.
    pub links: Links,
    packets: Packets,
    peer_memory: PeerMemory,
    tuner: StoreTuner,
    wires: Wires,
    planner: Arc<Planner>,
    pub(crate) plannings: Arc<Plannings>,
    operations: Operations,
    changing: Changing,
    scratch: Vec<u8>,
    /// Collectives entered so far.
    sequence: u64,
    /// A hash of the collectives' descriptors, as one word.
    history: u64,
    /// The number of messages so far, by peer: sent to it, received from it.
    pairs: Vec<(u64, u64)>,
    /// The task of the call that its thread waits for, kept so that its tables are reused.
    foreground: Option<Box<Task>>,
    /// How a call looks for what peers do at the same time before it becomes a task.
    policy: Policy,
    queue: Queue,
    /// The links that the task of the last turn is blocked on, or all that were queued, and what wakes it, where this rank [has
    /// sockets](Links::has_sockets).
    wanted: Vec<Wanted>,
    woken_by: WokenBy,
    /// Not 0 where doorbells are armed: it counts how often in a row some of them were found rung when it was to sleep.
    armed: u32,
    /// While the queue has its turn: which links its operations have asked for so far. All are moved on once, behind the last.
    asked: Option<Asked>,
    /// When the last early report was made.
    reported: Option<Instant>,
}

/// Which links operations ask for in a turn of the queue; the later ones include the earlier.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
enum Asked {
    #[default]
    None,
    /// Those that they wait for.
    Wanted,
    All,
}

/// The buffers of one request of a queued task, held until it is over.
pub struct Memory {
    /// The buffer that the request reads.
    pub input: Source,
    /// The buffer that the request writes.
    pub output: Option<Held>,
    /// Values that only have to live until the request is over.
    pub _kept: Vec<Arc<dyn Any + Send + Sync>>,
}

impl Memory {
    pub(crate) fn buffers(&self) -> Buffers<'_> {
        Buffers {
            input: self.input.span(),
            output: self.output.as_ref().map_or(SpanMut::empty(), Held::span),
        }
    }
}

/// Drops an operation with its buffers. A thread of the program frees those of a device's operation; if the device did not
/// end, they are never freed.
pub(crate) fn give_back(mut task: Task, memory: Vec<Memory>) {
    if !task.is_quiet() {
        task.release();
        std::mem::forget((task, memory));
    } else if let Some(device) = task.device() {
        discarded::keep(device, task.watched(), (task, memory));
    }
}

/// Where a queued operation reads.
pub enum Source {
    /// A buffer of its own.
    Apart(HeldRead),
    /// A buffer that is written too; the operation is in place, at this byte offset and length.
    Within(Held, usize, usize),
    /// The host reads no buffer: it is on a device, or there is none.
    Elsewhere,
}

impl Source {
    fn span(&self) -> Span<'_> {
        match self {
            Source::Apart(held) => held.read(),
            Source::Within(held, offset, bytes) => held.read().slice(*offset, *bytes),
            Source::Elsewhere => Span::empty(),
        }
    }
}

impl Engine {
    /// The engine of one rank of a communicator.
    pub fn new(
        group: Arc<Group>,
        routes: Box<dyn Routes>,
        settings: Settings,
        planner: Arc<Planner>,
    ) -> Self {
        let size = group.size() as usize;
        let machine = Machine::of(group.infos()).at_ports(&group.member.table, &group.members);
        let plannings = Arc::new(Plannings::new(planner.planning(machine, &settings)));
        let policy = Policy::of(&group);
        Engine {
            settings,
            links: Links::new(routes),
            packets: Packets::default(),
            peer_memory: PeerMemory::default(),
            tuner: StoreTuner::new(group.rank == 0),
            wires: Wires::default(),
            operations: Operations::new(plannings.clone(), group.rank, group.size()),
            plannings,
            changing: Changing::default(),
            group,
            planner,
            scratch: Vec::new(),
            sequence: 0,
            history: 0,
            pairs: vec![(0, 0); size],
            foreground: None,
            policy,
            queue: Queue::default(),
            wanted: Vec::new(),
            woken_by: WokenBy::default(),
            armed: 0,
            asked: None,
            reported: None,
        }
    }

    /// Enters an operation: its number, and what came before it. Ranks that differed in a collective which each
    /// could finish alone (two broadcasts from different roots) find out at the next.
    #[inline]
    pub fn enter(&mut self, call: Call, caller: u64) -> Request {
        let descriptor = call.descriptor();
        let (sequence, history) = if call.kind.is_message() {
            let (to, from) = &mut self.pairs[call.root as usize];
            let counter = if call.kind == Kind::Send { to } else { from };
            *counter += 1;
            (*counter, 0)
        } else {
            if self.sequence >= self.changing.gate {
                self.pass_gate();
            }
            self.sequence += 1;
            let history = self.history;
            self.history = descriptor.digest(self.sequence, history);
            (self.sequence, history)
        };
        if self.links.needs_progress() && self.queue.is_empty() && bytes_of(&call) >= LONG_BYTES {
            self.wires.begun(self.operations.mark(descriptor.digest(0, 0)), &self.links, &self.group);
        }
        let record = self.group.recorder.enter(sequence, &descriptor, caller);
        Request { call, sequence, history, record }
    }

    /// Leaves an operation that finished.
    #[inline]
    pub(crate) fn leave(&self, request: &Request) {
        // What was started before it and still runs is the last one finished when it is.
        let Call { kind, count, .. } = request.call;
        let overtakes = kind.is_message() || (count == 0 && self.queue.has_collectives());
        self.group.recorder.finish(request.record, request.sequence, overtakes);
    }

    /// Leaves a call that nothing watches; what was started before it may still run.
    pub(crate) fn leave_unwatched(&self, request: &Request) {
        self.group.recorder.finish(request.record, request.sequence, self.queue.has_collectives());
    }

    /// Leaves a call that could not be made.
    pub(crate) fn leave_unmade(&self, request: &Request) {
        self.group.recorder.fail(request.record);
    }

    /// Leaves what ended with an error; what finished before has finished.
    pub fn leave_failed(&self, task: &Task) {
        task.requests().for_each(|request| self.group.recorder.fail(request.record));
    }

    /// What is known of the wires to other hosts.
    pub(crate) fn wires(&mut self) -> Vec<WireRecord> {
        self.wires.records(&self.links, &self.group)
    }

    /// A task for a call that its thread waits for; give it back with [`Engine::put_back`].
    pub fn take_task(&mut self) -> Box<Task> {
        self.foreground.take().unwrap_or_default()
    }

    /// A task that is over is kept for its tables.
    pub fn put_back(&mut self, task: Box<Task>) {
        self.foreground = Some(task);
    }

    /// Moves a task on; there are buffers for each of its requests, whose ends are recorded as they come. When it
    /// fails, the error comes once all ranks that can be reached have the same.
    ///
    /// # Errors
    /// What ended the communicator.
    #[inline]
    pub fn turn(&mut self, task: &mut Task, buffers: &[Buffers<'_>]) -> Result<Progress> {
        if task.is_ending() {
            self.wanted.clear();
            return task.end(self).map_or(Ok(Progress::Blocked), Err);
        }
        match self.advance(task, buffers) {
            Ok(progress) => Ok(progress),
            Err(trouble) => {
                task.begin_end(self, trouble);
                Ok(Progress::Blocked)
            }
        }
    }

    /// Moves an operation on, and whatever is under way on links that need help.
    #[inline]
    fn advance(
        &mut self,
        task: &mut Task,
        buffers: &[Buffers<'_>],
    ) -> std::result::Result<Progress, Trouble> {
        let progress = task.advance(self, buffers)?;
        let moved = match progress {
            // Where others go on, who drives them moves what the system has not taken of this one too.
            Progress::Done
                if self.queue.has_others() || task.is_flushed(&self.links, self.asked.is_some()) =>
            {
                task.leave(self);
                if self.links.needs_progress() {
                    let is_alone = !self.queue.has_others();
                    let mark = task.long_mark().filter(|_| is_alone).map(|mark| self.operations.mark(mark));
                    self.wires.ended(mark, &self.links, &self.group);
                    self.look_at_ways(false);
                }
                return Ok(progress);
            }
            // What the system has not taken yet must not wait for the next call.
            Progress::Done => {
                self.wanted.clear();
                match &mut self.asked {
                    Some(asked) => {
                        *asked = Asked::All;
                        Ok(false)
                    }
                    None => self.links.progress().map(|()| false),
                }
            }
            _ if self.links.has_sockets() => self.progress(task),
            _ => return Ok(progress),
        };
        match (moved, progress) {
            (Err(broken), _) => Err(Trouble::Broken { request: task.request().map(Box::new), broken }),
            (Ok(_), Progress::Done) => Ok(Progress::Blocked),
            (Ok(true), _) => Ok(Progress::Moved),
            (Ok(false), _) => Ok(progress),
        }
    }

    /// Moves what is under way on links that need help. Whether what the task is blocked on may have come.
    fn progress(&mut self, task: &Task) -> std::result::Result<bool, Broken> {
        self.wanted.clear();
        self.woken_by = task.wants(&self.links, &mut self.wanted);
        let has_come = match &mut self.asked {
            Some(asked) => {
                *asked = Asked::Wanted.max(*asked);
                false
            }
            None => self.links.progress_for(&self.wanted, false)?,
        };
        Ok(has_come || task.has_back(&self.links))
    }

    /// What a look of the blocked task costs, since its last turn.
    pub(crate) fn look(&self) -> Look {
        // Links on their way are looked at by calls too.
        match self.wanted.is_empty() && !self.links.is_connecting() {
            true => Look::Load,
            false if self.links.has_unwatched() => Look::CallBeforeNap,
            false if self.links.is_looked_at_by_loads() => Look::Queue,
            false => Look::Call,
        }
    }

    /// Wakes the ranks that sleep while they wait for what this one has sent. It is awake itself.
    pub(crate) fn ring(&mut self) {
        self.stay_awake();
        // Between what was sent and what is looked at.
        access_epoch::fence();
        self.links.bells().for_each(Bell::ring);
    }

    /// In a forked child: nothing may be closed in a way that the parent would notice.
    pub(crate) fn abandon(&mut self) {
        self.links.abandon();
        std::mem::forget(std::mem::take(&mut self.packets));
        std::mem::forget(std::mem::take(&mut self.peer_memory));
        std::mem::forget(std::mem::take(&mut self.queue));
    }

    /// Whether the peers have taken all bytes that were sent, on links that would lose them with this side's end.
    pub(crate) fn is_settled(&mut self) -> bool {
        let links = &mut self.links;
        !links.needs_progress() || links.progress().is_err() || links.is_emptied()
    }

    /// Closes the connections of an idle engine and forgets what was bound to them; both come again when needed.
    pub(crate) fn release(&mut self) {
        self.links.close();
        self.wires.clear(&self.group);
        self.wanted.clear();
        self.packets = Packets::default();
        self.peer_memory = PeerMemory::default();
        self.operations.clear();
        self.scratch = Vec::new();
        self.foreground = None;
        self.queue.rests = false;
    }

    /// Bytes of memory of this communicator in this process, apart from the caller's buffers.
    pub(crate) fn memory_bytes(&self) -> usize {
        let records = self.group.recorder.memory_bytes();
        let tables = size_of::<Self>() + size_of_val(&*self.group) + size_of_val(&*self.pairs) + records;
        let plans = self.operations.memory_bytes() + self.planner.memory_bytes();
        let queue =
            self.queue.memory_bytes() + self.foreground.as_ref().map_or(0, |task| task.memory_bytes());
        let packets = self.packets.memory_bytes() + self.peer_memory.memory_bytes();
        self.links.memory_bytes() + packets + self.scratch.capacity() + tables + plans + queue
    }
}
