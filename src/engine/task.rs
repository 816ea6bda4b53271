//! One operation under way.
//!
//! Invariant: a task goes through its phases in order (find the plan, or make links and bind it; wait until
//! mailboxes of another slot length are empty; run) and never waits in any of them.

use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use consort_memory::{Span, SpanMut};

use super::Engine;
use super::bound::{Bearings, Bound, Broken, RealIo, Shape, links_of};
use super::executor::{Executor, Progress, Sizes, Stop};
use super::links::Links;
use super::trouble::{self, Ending, Trouble, Watch};
use crate::Rank;
use crate::call::{Call, Kind};
use crate::error::{Error, Operation, Result};
use crate::planner::{CacheKey, choose};
use crate::recorder::Descriptor;
use crate::report::evidence::{Stuck, Traffic, Want};

/// Loads of the awaited counter between two full turns: far below a microsecond.
const GLANCES: u32 = 32;

/// What a task is to do: a call, with its number.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub(crate) call: Call,
    pub(crate) sequence: u64,
    /// A word for all collectives before it; 0 for messages.
    pub(crate) history: u64,
    /// Its place in the flight record.
    pub(crate) record: u64,
}

impl Request {
    pub(crate) fn operation(&self) -> Operation {
        Operation { name: self.call.kind.name().into(), sequence: self.sequence }
    }
}

/// What a blocked task waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Blocked {
    pub(crate) peer: Rank,
    /// Whether everything that the peer sent has been looked at.
    pub(crate) drained: bool,
}

/// A request with the state of its execution. Send and receive of one exchange are two of its parts.
#[derive(Default)]
pub(crate) struct Task {
    parts: [Part; 2],
    count: usize,
    pub(crate) watch: Watch,
    ending: Ending,
    /// Whether the communicator had failed before the present turn.
    saw_failure: bool,
}

#[derive(Default)]
struct Part {
    request: Option<Request>,
    phase: Phase,
    executor: Executor,
    sizes: Option<Sizes>,
    /// The bound plan of the present operation, and afterwards of the last one.
    bound: Option<Arc<Bound>>,
    /// The shape of `bound`.
    shape: Option<CacheKey>,
    numbers: Vec<usize>,
    /// The link whose mailbox at the peer is not empty yet, in phase `Drain`.
    draining: Option<usize>,
}

#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
enum Phase {
    #[default]
    Find,
    Link,
    Drain,
    Run,
    Done,
}

impl Task {
    /// Makes ready for one request or two that run side by side and must end within `timeout`.
    pub(crate) fn prepare(&mut self, requests: &[Request], timeout: Duration) {
        self.count = requests.len();
        self.watch.reset(timeout);
        self.ending = Ending::None;
        self.saw_failure = false;
        for (part, request) in self.parts.iter_mut().zip(requests) {
            part.request = Some(*request);
            part.phase = Phase::Find;
        }
    }

    /// Lets a turn end after so many steps; 0 for no limit.
    pub(crate) fn limit_turns(&mut self, steps_max: u32) {
        self.parts.iter_mut().for_each(|part| part.executor.limit_turns(steps_max));
    }

    pub(crate) fn requests(&self) -> impl Iterator<Item = &Request> {
        self.parts[..self.count].iter().filter_map(|part| part.request.as_ref())
    }

    /// The operation, for errors.
    pub(crate) fn operation(&self) -> Operation {
        self.requests().next().map_or(Operation { name: "operation".into(), sequence: 0 }, Request::operation)
    }

    /// Whether it is on its way to an error.
    #[inline]
    pub(crate) fn is_ending(&self) -> bool {
        !matches!(self.ending, Ending::None)
    }

    /// Something went wrong.
    pub(crate) fn begin_end(&mut self, engine: &Engine, trouble: Trouble) {
        self.ending = trouble::begin(engine, trouble, &self.watch, engine.group.clock().now());
    }

    /// The error, once it is what all ranks say.
    pub(crate) fn end(&mut self, engine: &Engine) -> Option<Error> {
        trouble::step(engine, &mut self.ending, engine.group.clock().now())
    }

    /// Goes on as far as possible. Sends read `input`, receives write `output`.
    pub(crate) fn advance(
        &mut self,
        engine: &mut Engine,
        input: Span<'_>,
        output: SpanMut<'_>,
    ) -> std::result::Result<Progress, Trouble> {
        let (mut done, mut moved) = (true, false);
        for part in &mut self.parts[..self.count] {
            match part.advance(engine, input, output)? {
                Progress::Done => {}
                Progress::Moved => (done, moved) = (false, true),
                Progress::Blocked => done = false,
            }
        }
        Ok(match (done, moved) {
            (true, _) => Progress::Done,
            (false, true) => Progress::Moved,
            (false, false) => Progress::Blocked,
        })
    }

    /// Whom a blocked task waits for.
    pub(crate) fn blocked(&self, links: &Links) -> Option<Blocked> {
        self.parts[..self.count].iter().find_map(|part| part.blocked(links))
    }

    /// Looks a few times, as cheaply as can be, at the one counter that a blocked task waits for. Nothing else
    /// may have to move meanwhile.
    #[inline]
    pub(crate) fn glance(&self) {
        if self.count == 1
            && self.parts[0].phase == Phase::Run
            && let Some(bound) = &self.parts[0].bound
            && let Some((counter, value)) = self.parts[0].executor.awaited()
            && let Some(counter) = bound.own_counter(counter)
        {
            for _ in 0..GLANCES {
                if counter.value() >= value {
                    return;
                }
            }
        }
    }

    /// Where it does not go on, for others to read: which record, what it waits for, what has travelled.
    pub(crate) fn standing(&self, engine: &Engine) -> Option<(u64, Stuck, Vec<Traffic>)> {
        self.parts[..self.count].iter().find_map(|part| part.standing(engine))
    }

    /// A peer that a connection has been on its way to for longer than `limit`.
    pub(crate) fn connecting_for(&self, links: &mut Links, now: Instant, limit: Duration) -> Option<Rank> {
        let parts = self.parts[..self.count].iter().filter(|part| part.phase == Phase::Link);
        parts.into_iter().find_map(|part| links.overdue(&part.numbers, now, limit))
    }

    /// Whether it may have moved something: an operation that has begun may still be complete.
    pub(crate) fn has_begun(&self) -> bool {
        self.parts[..self.count].iter().any(|part| part.phase != Phase::Find)
    }

    /// The communicator has failed: no further turn.
    pub(crate) fn give_up(&mut self) {
        if !self.is_ending() {
            self.ending = Ending::Settling;
        }
    }

    /// After a turn that did not finish it: has the communicator failed, and (when `look` is set, which costs a
    /// clock) has it taken too long, and who is to blame. What is complete when a failure comes is complete: there
    /// is a turn between the failure and giving up. Afterwards it may be [ending](Task::is_ending).
    pub(crate) fn tend(&mut self, engine: &mut Engine, look: bool) {
        if self.is_ending() {
            return;
        }
        if self.saw_failure {
            return self.give_up();
        }
        self.saw_failure = engine.group.has_failed();
        if !look || self.saw_failure {
            return;
        }
        let now = engine.group.clock().now();
        if self.watch.is_due(now)
            && let Err(trouble) = trouble::look(self, engine, now)
        {
            self.ending = trouble::begin(engine, trouble, &self.watch, now);
        }
    }
}

impl Part {
    fn advance(
        &mut self,
        engine: &mut Engine,
        input: Span<'_>,
        output: SpanMut<'_>,
    ) -> std::result::Result<Progress, Trouble> {
        loop {
            match self.phase {
                Phase::Find => self.find(engine)?,
                Phase::Link => {
                    match engine.links.poll_up(&self.numbers, &engine.group) {
                        Ok(Poll::Ready(())) => {}
                        Ok(Poll::Pending) => return Ok(Progress::Blocked),
                        Err(broken) => return Err(self.fault(broken)),
                    }
                    self.bind(engine)?;
                }
                Phase::Drain => {
                    let Some(bound) = &self.bound else {
                        return Err(Error::internal("a task without a plan").into());
                    };
                    self.draining = bound.undrained(&mut engine.links);
                    if self.draining.is_some() {
                        return Ok(Progress::Blocked);
                    }
                    self.phase = Phase::Run;
                }
                Phase::Run => return self.run(engine, input, output),
                Phase::Done => return Ok(Progress::Done),
            }
        }
    }

    fn fault(&self, broken: Broken) -> Trouble {
        match self.request() {
            Ok(request) => Trouble::Broken { operation: request.operation(), broken },
            Err(error) => error.into(),
        }
    }

    fn request(&self) -> Result<Request> {
        self.request.ok_or_else(|| Error::internal("a task without a request"))
    }

    fn find(&mut self, engine: &mut Engine) -> Result<()> {
        let request = self.request()?;
        let call = request.call;
        let size = engine.group.size();
        let choice = choose(&call, size, &engine.settings);
        let key = CacheKey::new(&call, &choice);
        if self.shape != Some(key) {
            self.bound = engine.cache.find(key).cloned();
            self.shape = self.bound.as_ref().map(|_| key);
        }
        if self.bound.is_some() {
            return self.start(engine, &request);
        }
        let (plan, bearings, base) = self.plan(engine, &call)?;
        let keys = links_of(&plan.plan, bearings, base);
        self.numbers = engine.links.request(&keys, &engine.group)?;
        self.phase = Phase::Link;
        Ok(())
    }

    /// The proved plan of this rank for a call, and where its ranks are.
    fn plan(&self, engine: &mut Engine, call: &Call) -> Result<(crate::planner::Proved, Bearings, u16)> {
        let (me, size) = (engine.group.rank, engine.group.size());
        let program = choose(call, size, &engine.settings).program;
        let base = program.channel_base();
        let (bearings, relative) = match call.kind {
            Kind::Send => (Bearings::Pair { sender: me, receiver: call.root }, 0),
            Kind::Receive => (Bearings::Pair { sender: call.root, receiver: me }, 1),
            _ => (Bearings::Rotated { root: call.root, size }, (me + size - call.root) % size),
        };
        let mapped = (0..program.ranks)
            .map(|rank| bearings.rank(consort_algorithms::Rank(rank)))
            .map(|rank| engine.links.is_mapped(&engine.group, rank))
            .collect();
        Ok((engine.planner.plan(program, relative, mapped)?, bearings, base))
    }

    fn bind(&mut self, engine: &mut Engine) -> Result<()> {
        let request = self.request()?;
        let span = tracing::debug_span!("bind", rank = engine.group.rank, call = %request.call.descriptor());
        let _entered = span.enter();
        let call = request.call;
        let (proved, bearings, channel_base) = self.plan(engine, &call)?;
        let choice = choose(&call, engine.group.size(), &engine.settings);
        let shape = Shape {
            data_type: call.data_type,
            op: call.op,
            ranks: engine.group.size(),
            slot_bytes: choice.slot_bytes,
            streaming: choice.streaming,
            bearings,
            channel_base,
        };
        let keys = links_of(&proved.plan, bearings, channel_base);
        let bound = Bound::new(proved.plan, proved.fold_hash, shape, &engine.links, &keys, &self.numbers)?;
        let scratch_bytes = bound.scratch_bytes();
        if engine.scratch.len() < scratch_bytes {
            engine.scratch.resize(scratch_bytes, 0);
        }
        let (bound, key) = (Arc::new(bound), CacheKey::new(&call, &choice));
        engine.cache.insert(key, bound.clone());
        (self.bound, self.shape) = (Some(bound), Some(key));
        self.start(engine, &request)
    }

    fn start(&mut self, engine: &mut Engine, request: &Request) -> Result<()> {
        let Some(bound) = &self.bound else { return Err(Error::internal("a task without a plan")) };
        let call = &request.call;
        let descriptor = pair_neutral(call.descriptor(), call.kind, engine.group.rank);
        let salt = bound.fold_hash ^ bound.slot_bytes as u64;
        let sizes = Sizes {
            extents: bound.plan.partition.extents(call.count, call.data_type.size()),
            slot_bytes: bound.slot_bytes,
            tag: descriptor.digest(request.sequence, salt ^ request.history),
        };
        let links = &engine.links;
        self.executor.start(
            &bound.plan,
            &sizes,
            |counter| bound.counter_base(counter, links),
            |region| bound.slot_base(region, links),
        );
        self.sizes = Some(sizes);
        self.phase = Phase::Drain;
        Ok(())
    }

    fn run(
        &mut self,
        engine: &mut Engine,
        input: Span<'_>,
        output: SpanMut<'_>,
    ) -> std::result::Result<Progress, Trouble> {
        let (Some(bound), Some(sizes)) = (&self.bound, &self.sizes) else {
            return Err(Error::internal("a task without a plan").into());
        };
        let Engine { links, scratch, .. } = engine;
        let mut io = RealIo { bound, links, input, output, scratch: SpanMut::of(scratch.as_mut_slice()) };
        let progress = match self.executor.advance(&bound.plan, sizes, &mut io) {
            Ok(progress) => progress,
            Err(Stop::Mismatch { peer }) => {
                let request = self.request()?;
                let peer = bound.bearings.rank(peer);
                return Err(Trouble::Mismatch { request, peer });
            }
            Err(Stop::Fault(broken)) => return Err(self.fault(broken)),
        };
        if progress == Progress::Done {
            bound.settle(self.executor.iterations(), &mut engine.links);
            self.phase = Phase::Done;
        }
        Ok(progress)
    }

    fn blocked(&self, links: &Links) -> Option<Blocked> {
        let link = match (self.phase, &self.bound) {
            (Phase::Link, _) => {
                return links.missing(&self.numbers).map(|(peer, _)| Blocked { peer, drained: true });
            }
            (Phase::Drain, _) => self.draining?,
            (Phase::Run, Some(bound)) => bound.link_of(self.executor.blockage()?)?,
            _ => return None,
        };
        let up = links.up(link);
        Some(Blocked {
            peer: links.peer(link),
            drained: !up.connection.capabilities().messages_only || up.closed,
        })
    }

    fn standing(&self, engine: &Engine) -> Option<(u64, Stuck, Vec<Traffic>)> {
        let request = self.request.filter(|_| self.phase != Phase::Done)?;
        let links = &engine.links;
        let (peer, want) = match (self.phase, &self.bound) {
            (Phase::Link, _) => links.missing(&self.numbers)?,
            (Phase::Drain, _) => (links.peer(self.draining?), Want::Room),
            (Phase::Run, Some(bound)) => {
                let blockage = self.executor.blockage()?;
                (links.peer(bound.link_of(blockage)?), bound.want(blockage))
            }
            _ => return None,
        };
        let bound = self.bound.as_ref().filter(|_| self.phase != Phase::Link);
        let (step, steps, slice, slices) =
            bound.map_or((0, 0, 0, 0), |bound| self.executor.standing(&bound.plan));
        let traffic = bound.map(|bound| bound.traffic(links, |counter| self.executor.raised(counter)));
        let member = &engine.group.member;
        let algorithm = choose(&request.call, engine.group.size(), &engine.settings).program.name();
        let stuck = Stuck {
            want,
            peer,
            peer_process: member.table[engine.group.members[peer as usize] as usize].process,
            step,
            steps,
            slice,
            slices,
            algorithm: algorithm.into(),
            age: Duration::ZERO,
        };
        Some((request.record, stuck, traffic.unwrap_or_default()))
    }
}

/// A send and the receive that matches it have the same digest.
fn pair_neutral(descriptor: Descriptor, kind: Kind, me: Rank) -> Descriptor {
    match kind {
        Kind::Send => Descriptor { kind: Kind::Send, root: me, ..descriptor },
        Kind::Receive => Descriptor { kind: Kind::Send, ..descriptor },
        _ => descriptor,
    }
}
