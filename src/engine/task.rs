//! The requests of one call, or of one group of calls, on a communicator: they run side by side.
//!
//! Invariant: two requests that use the same links run one after the other, in the order in which they were
//! made: the collectives of a communicator, and the messages between two ranks in one direction. All others
//! go on whenever they can. Nothing here waits.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use super::executor::Progress;
use super::links::{Links, Overdue, Wanted, WokenBy};
use super::packets::Packets;
use super::part::Part;
use super::trouble::{self, Ending, Trouble, Watch};
use super::watched::Watched;
use super::wires::LONG_BYTES;
use super::{Buffers, Engine};
use crate::Rank;
use consort_control::report::evidence::{Stuck, Traffic};
use consort_types::blocks::Blocks;
use consort_types::call::{Call, Kind};
use consort_types::error::{Error, Operation};

/// The longest wait after a failure: for a device, or for a peer that still touches this rank's memory.
const QUIET_MAX: Duration = Duration::from_secs(1);

/// One call of a task, with its number.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    pub(crate) call: Call,
    pub sequence: u64,
    /// A word for all collectives before it; 0 for messages.
    pub(crate) history: u64,
    /// The operation's number in the flight record.
    pub(crate) record: u64,
}

impl Request {
    pub(crate) fn operation(&self) -> Operation {
        Operation { name: self.call.kind.name().into(), sequence: self.sequence }
    }

    /// The mark of the request's messages: the same on all ranks `me` of a collective, and on both sides of a message. Ranks
    /// that differ in `salt` have different marks.
    pub(super) fn mark(&self, me: Rank, salt: u64) -> u64 {
        as_send(&self.call, me).descriptor().digest(self.sequence, salt ^ self.history)
    }
}

/// The call with a receive as the send that matches it, by the rank that sends: both sides of a message have the same.
#[inline]
pub(super) fn as_send(call: &Call, me: Rank) -> Call {
    match call.kind {
        Kind::Send => Call { root: me, ..*call },
        Kind::Receive => Call { kind: Kind::Send, ..*call },
        _ => *call,
    }
}

/// The name of a request in an error.
pub(super) fn operation_of(request: Option<&Request>) -> Operation {
    request.map_or(Operation { name: "operation".into(), sequence: 0 }, Request::operation)
}

/// A peer that a blocked task waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Blocked {
    pub(crate) peer: Rank,
    /// Whether everything that the peer sent has been looked at.
    pub(crate) drained: bool,
}

/// Requests under way. Kept when they are over, so that their tables are reused.
#[derive(Default)]
pub struct Task {
    /// The first `count` are of the present task.
    parts: Vec<Part>,
    count: usize,
    /// The parts of the present task that are not over; read only where the task has several.
    live: Vec<u32>,
    /// For each kind of links (see [`lane`]) one more than the last part that uses them; 0 for none.
    tails: Vec<u32>,
    pub(super) watch: Watch,
    ending: Ending,
    /// The end of the wait for devices after a failure.
    quiet_by: Option<Instant>,
    /// Whether the communicator had failed before the present turn.
    saw_failure: bool,
}

/// Bytes of a call's elements.
pub(super) fn bytes_of(call: &Call) -> u64 {
    (call.count as u64).saturating_mul(call.data_type.size() as u64)
}

/// The number of the links that all collectives use.
pub(super) const COLLECTIVES: usize = 0;

/// A number for the links that a call uses. All collectives share one number; a message has the number of its peer and
/// direction.
pub(super) fn lane(call: &Call) -> usize {
    match call.kind {
        Kind::Send => 1 + 2 * call.root as usize,
        Kind::Receive => 2 + 2 * call.root as usize,
        _ => COLLECTIVES,
    }
}

impl Task {
    /// Makes ready for requests that must all end within `timeout`; see [`Task::push`].
    pub fn prepare(&mut self, timeout: Duration) {
        for request in self.parts[..self.count].iter().map(Part::asked) {
            self.tails[lane(&request.call)] = 0;
        }
        self.count = 0;
        self.live.clear();
        self.watch.reset(timeout);
        self.ending = Ending::None;
        self.quiet_by = None;
        self.saw_failure = false;
    }

    /// One more request; `blocks` are those of a call whose blocks differ.
    pub fn push(&mut self, request: Request, blocks: Option<Blocks<'_>>) {
        self.add(request, blocks);
    }

    /// As [`Task::push`]; returns the part, for the caller to set more of it.
    pub(super) fn add(&mut self, request: Request, blocks: Option<Blocks<'_>>) -> &mut Part {
        let lane = lane(&request.call);
        if self.tails.len() <= lane {
            self.tails.resize(lane + 1, 0);
        }
        let after = (self.tails[lane] as usize).checked_sub(1);
        match self.parts.get_mut(self.count) {
            Some(part) => part.prepare(request, blocks, after),
            None => self.parts.push(Part::new(request, blocks, after)),
        }
        self.live.push(self.count as u32);
        self.count += 1;
        self.tails[lane] = self.count as u32;
        &mut self.parts[self.count - 1]
    }

    /// One more request, which runs in a stream.
    pub(crate) fn push_watched(
        &mut self,
        request: Request,
        blocks: Option<Blocks<'_>>,
        watched: Box<dyn Watched>,
    ) {
        let part = self.add(request, blocks);
        if !watched.uses_links() {
            // The stream keeps the order of its operations.
            part.after = None;
        }
        part.watch(watched);
    }

    /// Whether some request runs in a stream.
    pub(crate) fn is_watched(&self) -> bool {
        self.parts[..self.count].iter().any(Part::is_watched)
    }

    /// The numbers of the [links](lane) that its requests use, some more than once. What runs in streams keeps the order of
    /// collectives.
    pub(super) fn lanes(&self) -> impl Iterator<Item = usize> {
        self.parts[..self.count].iter().flat_map(|part| {
            let own = lane(&part.asked().call);
            [own, if part.is_watched() { COLLECTIVES } else { own }]
        })
    }

    /// Whether all of its requests are messages.
    pub(super) fn is_of_messages(&self) -> bool {
        self.parts[..self.count].iter().all(|part| part.asked().call.kind.is_message())
    }

    /// How long it may take.
    pub(super) fn timeout(&self) -> Duration {
        self.watch.timeout
    }

    /// The number of the device in whose streams its requests run, if some do.
    pub(crate) fn device(&self) -> Option<usize> {
        self.parts[..self.count].iter().find_map(Part::device)
    }

    /// How many of its requests run in streams.
    pub(crate) fn watched(&self) -> usize {
        self.parts[..self.count].iter().filter(|part| part.is_watched()).count()
    }

    /// Whether devices alone move its data.
    pub(crate) fn is_on_devices(&self) -> bool {
        self.parts[..self.count].iter().all(Part::is_on_device)
    }

    /// Whether no device touches memory for the task any more.
    pub(crate) fn is_quiet(&self) -> bool {
        self.parts[..self.count].iter().all(Part::is_quiet)
    }

    /// Whether all requests are in their streams, so that the call may return.
    pub(crate) fn is_enqueued(&self) -> bool {
        self.parts[..self.count].iter().all(Part::is_enqueued)
    }

    /// The communicator has failed: what waits on a device goes on to its end.
    pub(crate) fn release(&mut self) {
        self.parts[..self.count].iter_mut().for_each(Part::release);
    }

    /// Lets a turn end after `steps_max` steps; 0 for no limit.
    pub(crate) fn limit_turns(&mut self, steps_max: u32) {
        self.parts.iter_mut().for_each(|part| part.limit_turns(steps_max));
    }

    /// The requests whose end has not been recorded.
    pub(crate) fn requests(&self) -> impl Iterator<Item = &Request> {
        self.parts[..self.count].iter().filter_map(Part::open)
    }

    /// A word that is the same for tasks of the same calls, where they are long.
    pub(super) fn long_mark(&self) -> Option<u64> {
        let calls = || self.parts[..self.count].iter().map(|part| &part.asked().call);
        let is_long = calls().map(bytes_of).fold(0, u64::saturating_add) >= LONG_BYTES;
        is_long.then(|| calls().fold(0, |mark, call| call.descriptor().digest(0, mark)))
    }

    /// Records that all requests finished.
    #[inline]
    pub(crate) fn leave(&mut self, engine: &Engine) {
        self.parts[..self.count].iter_mut().for_each(|part| part.leave(engine));
    }

    /// Bytes of the parts' table.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.parts.capacity() * size_of::<Part>()
    }

    /// The first request that is not over; the first of all where they are.
    pub(super) fn request(&self) -> Option<Request> {
        let asked = || self.parts[..self.count].iter().map(Part::asked);
        self.requests().chain(asked()).next().copied()
    }

    /// The first operation that is not over, for errors.
    pub(crate) fn operation(&self) -> Operation {
        operation_of(self.request().as_ref())
    }

    /// Whether the task is on its way to an error.
    #[inline]
    pub(crate) fn is_ending(&self) -> bool {
        !matches!(self.ending, Ending::None)
    }

    /// A trouble puts the task on its way to an error.
    pub(crate) fn begin_end(&mut self, engine: &Engine, trouble: Trouble) {
        self.ending = trouble::begin(engine, trouble, &self.watch, engine.group.clock().now());
    }

    /// The error, once all ranks say the same and no device touches the callers' memory any more. A device that is asked to
    /// end is waited for as long as [`QUIET_MAX`].
    pub(crate) fn end(&mut self, engine: &mut Engine) -> Option<Error> {
        let now = engine.group.clock().now();
        let error = trouble::step(engine, &mut self.ending, now)?;
        let by = *self.quiet_by.get_or_insert(now + QUIET_MAX);
        // Devices and peers end side by side: neither waits for the other.
        let is_withdrawn = self.withdraw(engine, now >= by);
        if self.is_quiet() && is_withdrawn {
            return Some(error);
        }
        self.release();
        (now >= by).then_some(error)
    }

    /// The task has failed. Whether no other rank writes to the callers' memory any more; `at_last` makes sure of it.
    pub(crate) fn withdraw(&mut self, engine: &mut Engine, at_last: bool) -> bool {
        // Every part withdraws, whether the parts before it have or not.
        let parts = self.parts[..self.count].iter_mut();
        parts.fold(true, |all, part| part.withdraw(engine, at_last) & all)
    }

    /// In a forked child: the task is the parent's. No other rank writes to this process's view of the callers' memory any
    /// more; nothing is said to other ranks and devices.
    pub(crate) fn disown(&mut self) {
        self.parts[..self.count].iter_mut().for_each(Part::disown);
    }

    /// Goes on as far as possible. Every request has its own buffers.
    #[inline]
    pub(crate) fn advance(
        &mut self,
        engine: &mut Engine,
        buffers: &[Buffers<'_>],
    ) -> std::result::Result<Progress, Trouble> {
        if self.count == 1 {
            return self.parts[0].advance(engine, buffers[0]).map_err(|fault| self.parts[0].trouble(fault));
        }
        let (mut moved, mut at) = (false, 0);
        while let Some(index) = self.live.get(at).map(|index| *index as usize) {
            let waits = self.is_behind(&self.parts[index]);
            let part = &mut self.parts[index];
            let progress = if waits { Ok(Progress::Blocked) } else { part.advance(engine, buffers[index]) };
            match progress.map_err(|fault| part.trouble(fault))? {
                Progress::Done => {
                    part.leave(engine);
                    self.live.remove(at);
                    moved = true;
                    continue;
                }
                Progress::Moved => moved = true,
                Progress::Blocked => {}
            }
            at += 1;
        }
        Ok(match (self.live.is_empty(), moved) {
            (true, _) => Progress::Done,
            (false, true) => Progress::Moved,
            (false, false) => Progress::Blocked,
        })
    }

    /// Whom it waits for, the first request first; each peer once.
    pub(crate) fn blocked(&self, links: &Links) -> Vec<Blocked> {
        let (mut all, mut seen) = (Vec::new(), BTreeSet::new());
        self.parts[..self.count].iter().for_each(|part| part.blocked(links, &mut all));
        all.retain(|blocked: &Blocked| seen.insert((blocked.peer, blocked.drained)));
        all
    }

    /// Whether all that its requests signalled is on its way, once they are over. Nothing of a receive in the queue is waited for: what
    /// is left of it is a credit, behind bytes of other operations perhaps.
    pub(super) fn is_flushed(&self, links: &Links, in_queue: bool) -> bool {
        let is_left = |part: &&Part| in_queue && part.asked().call.kind == Kind::Receive;
        self.parts[..self.count].iter().all(|part| is_left(&part) || part.is_flushed(links))
    }

    /// Whether a source that a part waits for has been given back.
    pub(super) fn has_back(&self, links: &Links) -> bool {
        self.parts[..self.count].iter().any(|part| part.has_back(links))
    }

    /// Whether a part waits for an earlier one of its own task.
    fn is_behind(&self, part: &Part) -> bool {
        part.after.is_some_and(|before| !self.parts[before].is_done())
    }

    /// Adds the links that it waits for and that move nothing unless asked to. What wakes it.
    pub(crate) fn wants(&self, links: &Links, all: &mut Vec<Wanted>) -> WokenBy {
        let parts = self.parts[..self.count].iter().filter(|part| !self.is_behind(part));
        let wants = parts.map(|part| part.wants(links, all));
        wants.fold(WokenBy::Sockets, WokenBy::max)
    }

    /// The calls in which it waits for a peer, everything that this one sent having been looked at.
    pub(crate) fn waits_for<'a>(&'a self, links: &'a Links, peer: Rank) -> impl Iterator<Item = &'a Request> {
        let waits = move |part: &&Part| {
            let mut all = Vec::new();
            part.blocked(links, &mut all);
            all.iter().any(|blocked| blocked.drained && blocked.peer == peer)
        };
        self.parts[..self.count].iter().filter(waits).map(Part::asked)
    }

    /// Looks a few times at the counter that a single request waits for. No link may need progress meanwhile.
    #[inline]
    pub(crate) fn glance(&self) {
        if self.count == 1 {
            self.parts[0].glance();
        }
    }

    /// Where the task does not go on, for other ranks to read: which record, what it waits for, what has travelled. A
    /// collective comes first: most peers wait for one.
    pub(crate) fn standing(&self, engine: &Engine) -> Option<(u64, Stuck, Vec<Traffic>)> {
        let parts = || self.parts[..self.count].iter();
        let is_message = |part: &&Part| part.asked().call.kind.is_message();
        let collectives = parts().filter(|part| !is_message(part));
        collectives.chain(parts().filter(is_message)).find_map(|part| part.standing(engine))
    }

    /// A peer that a connection has been on its way to for longer than `limit`.
    pub(crate) fn connecting_for(
        &self,
        links: &mut Links,
        packets: &Packets,
        now: Instant,
        limit: Duration,
    ) -> Option<Overdue> {
        self.parts[..self.count].iter().find_map(|part| part.connecting_for(links, packets, now, limit))
    }

    /// Whether the task may have moved bytes: an operation that has begun may still be complete.
    pub(crate) fn has_begun(&self) -> bool {
        self.parts[..self.count].iter().any(Part::has_begun)
    }

    /// The communicator has failed: no further turn.
    pub(crate) fn give_up(&mut self) {
        if !self.is_ending() {
            self.ending = Ending::Settling;
        }
    }

    /// Looks at the task after a turn that did not finish it: whether the communicator has failed and, if `look` is set,
    /// which costs a clock reading, whether the task has taken too long, and which rank is guilty. An operation that is
    /// complete when a failure comes stays complete: there is a turn between the failure and giving up. Afterwards the task
    /// may be [ending](Task::is_ending).
    pub fn tend(&mut self, engine: &mut Engine, look: bool) {
        if self.is_ending() {
            return;
        }
        if self.saw_failure {
            return self.give_up();
        }
        self.saw_failure = engine.group.has_failed();
        if !self.saw_failure && engine.group.has_changes() {
            // Ranks that have come to their promises may wait for this one's, in the call that it waits for.
            engine.attend();
        }
        if !look || self.saw_failure {
            return;
        }
        engine.look_at_ways(true);
        let now = engine.group.clock().now();
        if self.watch.is_due(now)
            && let Err(trouble) = trouble::look(self, engine, now)
        {
            self.ending = trouble::begin(engine, trouble, &self.watch, now);
        }
    }
}
