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
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use consort_memory::{Bell, Held, HeldRead, Span, SpanMut, access_epoch};

pub(crate) use bound::Bearings;
pub use executor::Progress;
pub(crate) use executor::{Executor, Io, Piece, Sizes, Stop};
pub(crate) use task::Request;
pub use task::Task;
use task::bytes_of;
use trouble::Trouble;

use crate::planner::{Machine, Planner, Plannings};
use crate::ticket::Ticket;
use crate::wait::{Look, Policy};
use changes::Changing;
use compiled::Operations;
use consort_control::membership::group::Group;
use consort_settings::options::Settings;
use consort_types::call::{Call, Kind};
use consort_types::error::{Error, Result};
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
    queue: VecDeque<Queued>,
    /// Whether devices alone move all of the queue.
    is_on_devices: bool,
    /// The links that the task of the last turn is blocked on, and what wakes it, where this rank [has
    /// sockets](Links::has_sockets).
    wanted: Vec<Wanted>,
    woken_by: WokenBy,
    /// Not 0 where doorbells are armed: it counts how often in a row some of them were found rung when it was to sleep.
    armed: u32,
}

/// An operation that was started and is not finished.
struct Queued {
    task: Task,
    memory: Vec<Memory>,
    ticket: Owed,
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

/// A ticket that is finished in any case: the thread that waits for it must not wait for ever because a driver
/// panicked.
struct Owed(Arc<Ticket>);

impl Owed {
    fn finish(self, result: Result<()>) {
        self.0.finish(result);
    }
}

impl Drop for Owed {
    fn drop(&mut self) {
        if !self.0.is_done() {
            self.0.finish(Err(Error::internal("an operation was dropped by its driver, which panicked")));
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

/// How long the end of all queued operations waits for devices to give back what they were reading, once they were made to end.
const WITHDRAWN_MAX: Duration = Duration::from_millis(50);

/// Steps of an operation that no thread waits for in one turn: at most some milliseconds of copying.
const UNATTENDED_STEPS: u32 = 64;

/// Where a queued operation reads.
pub enum Source {
    /// A buffer of its own.
    Apart(HeldRead),
    /// A buffer that is written too; the operation is in place, at this byte offset and length.
    Within(Held, usize, usize),
    /// The host reads no buffer: it is on a device.
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
            queue: VecDeque::new(),
            is_on_devices: false,
            wanted: Vec::new(),
            woken_by: WokenBy::default(),
            armed: 0,
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
        let overtakes = request.call.kind.is_message() || (request.call.count == 0 && !self.queue.is_empty());
        self.group.recorder.finish(request.record, request.sequence, overtakes);
    }

    /// Leaves a call that nothing watches; what was started before it may still run.
    pub(crate) fn leave_unwatched(&self, request: &Request) {
        self.group.recorder.finish(request.record, request.sequence, !self.queue.is_empty());
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
            Progress::Done if self.links.is_flushed() => {
                task.leave(self);
                if self.links.needs_progress() {
                    let mark = task.long_mark().map(|mark| self.operations.mark(mark));
                    self.wires.ended(mark, &self.links, &self.group);
                    self.look_at_ways(false);
                }
                return Ok(progress);
            }
            // What the system has not taken yet must not wait for the next call.
            Progress::Done => {
                self.wanted.clear();
                self.links.progress().map(|()| false)
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
        let has_come = self.links.progress_for(&self.wanted)?;
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

    /// Whether some queued operation is in a stream.
    pub(crate) fn has_streams(&self) -> bool {
        self.queue.iter().any(|queued| queued.task.is_watched())
    }

    /// Whether devices alone move what is queued.
    pub(crate) fn is_on_devices(&self) -> bool {
        self.is_on_devices
    }

    /// How many operations are queued.
    pub fn queued(&self) -> usize {
        self.queue.len()
    }

    /// Queues a task, with memory for each of its requests.
    pub fn enqueue(&mut self, mut task: Task, memory: Vec<Memory>, ticket: Arc<Ticket>) {
        self.is_on_devices = (self.queue.is_empty() || self.is_on_devices) && task.is_on_devices();
        task.limit_turns(UNATTENDED_STEPS);
        self.queue.push_back(Queued { task, memory, ticket: Owed(ticket) });
    }

    /// Moves the first queued operation on, and the ones behind it as each is done.
    pub fn advance_queue(&mut self) -> Progress {
        let mut moved = false;
        if self.group.has_failed() {
            self.queue.iter_mut().for_each(|queued| queued.task.release());
        }
        while let Some(mut first) = self.queue.pop_front() {
            if self.group.has_failed() && !first.task.has_begun() {
                first.task.give_up();
            }
            let result = match &first.memory[..] {
                [memory] => self.turn(&mut first.task, &[memory.buffers()]),
                several => {
                    let buffers: Vec<Buffers<'_>> = several.iter().map(Memory::buffers).collect();
                    self.turn(&mut first.task, &buffers)
                }
            };
            let result = match result {
                Ok(Progress::Done) => Ok(()),
                Ok(progress) => {
                    first.task.tend(self, true);
                    if moved || progress == Progress::Moved {
                        self.ring();
                    }
                    self.queue.push_front(first);
                    return if moved { Progress::Moved } else { progress };
                }
                Err(error) => {
                    self.leave_failed(&first.task);
                    Err(error)
                }
            };
            moved = true;
            let Queued { task, memory, ticket } = first;
            // The buffers go back before the ticket says that the operation is over.
            give_back(task, memory);
            ticket.finish(result);
        }
        if moved {
            self.ring();
        }
        Progress::Done
    }

    /// A thread waits for the queue, for at most `timeout`: queued operations must end within it.
    pub(crate) fn hurry_queue(&mut self, timeout: Duration) {
        let now = self.group.clock().now();
        self.queue.iter_mut().for_each(|queued| queued.task.watch.hurry(timeout, now));
    }

    /// Ends every queued operation with this error.
    pub fn fail_queue(&mut self, error: &Error) {
        let mut queue = std::mem::take(&mut self.queue);
        let by = Instant::now() + WITHDRAWN_MAX;
        // Every task ends what others do for it before any is waited for.
        while !queue.iter_mut().fold(true, |all, queued| queued.task.withdraw(self, true) & all)
            && Instant::now() < by
        {
            std::thread::yield_now();
        }
        for Queued { mut task, memory, ticket } in queue {
            self.leave_failed(&task);
            task.release();
            give_back(task, memory);
            ticket.finish(Err(error.clone()));
        }
    }

    /// In a forked child: the queued operations are the parent's, and their buffers here are free.
    pub(crate) fn disown_queue(&mut self) {
        for Queued { mut task, memory, ticket } in std::mem::take(&mut self.queue) {
            task.disown();
            // What a device uses is the parent's.
            if task.is_watched() {
                std::mem::forget(memory);
            }
            // Its end would be seen by the parent's peers and devices.
            std::mem::forget(task);
            ticket.finish(Err(Error::Forked));
        }
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
    }

    /// Bytes of memory of this communicator in this process, apart from the caller's buffers.
    pub(crate) fn memory_bytes(&self) -> usize {
        let records = self.group.recorder.memory_bytes();
        let tables = size_of::<Self>() + size_of_val(&*self.group) + size_of_val(&*self.pairs) + records;
        let plans = self.operations.memory_bytes() + self.planner.memory_bytes();
        let queue = self.queue.capacity() * size_of::<Queued>();
        let queue = queue + self.foreground.as_ref().map_or(0, |task| task.memory_bytes());
        let packets = self.packets.memory_bytes() + self.peer_memory.memory_bytes();
        self.links.memory_bytes() + packets + self.scratch.capacity() + tables + plans + queue
    }
}
