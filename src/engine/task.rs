//! One operation under way.
//!
//! Invariant: a task goes through its phases in order (find the plan, or make links and bind it; wait until
//! mailboxes of another slot length are empty; run) and never waits in any of them.

use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use consort_memory::{Span, SpanMut};
use consort_transports::TransportError;

use super::Engine;
use super::bound::{Bearings, Bound, Broken, RealIo, Shape, links_of};
use super::executor::{Executor, Progress, Sizes, Stop};
use super::links::{Links, link_error};
use super::verdict::{self, Watch};
use crate::Rank;
use crate::call::{Call, Kind};
use crate::error::{Error, Operation, Result};
use crate::planner::{CacheKey, choose};
use crate::recorder::Descriptor;

/// Loads of the awaited counter between two full turns: far below a microsecond.
const GLANCES: u32 = 32;

/// What a task is to do: a call, with its number.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub(crate) call: Call,
    pub(crate) sequence: u64,
    /// A word for all collectives before it; 0 for messages.
    pub(crate) history: u64,
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
    /// Makes ready for one request or two that run side by side.
    pub(crate) fn prepare(&mut self, requests: &[Request]) {
        self.count = requests.len();
        self.watch.reset();
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

    /// Goes on as far as possible. Sends read `input`, receives write `output`.
    pub(crate) fn advance(
        &mut self,
        engine: &mut Engine,
        input: Span<'_>,
        output: SpanMut<'_>,
    ) -> Result<Progress> {
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

    /// Looks at the clock and at the others once in a while; the error when it has taken too long, or when
    /// somebody else is in another operation.
    pub(crate) fn overdue(&mut self, engine: &mut Engine) -> Result<()> {
        let now = Instant::now();
        if !self.watch.is_due(now) {
            return Ok(());
        }
        verdict::look(self, engine, now)
    }
}

impl Part {
    fn advance(&mut self, engine: &mut Engine, input: Span<'_>, output: SpanMut<'_>) -> Result<Progress> {
        loop {
            match self.phase {
                Phase::Find => self.find(engine)?,
                Phase::Link => {
                    match engine.links.poll_up(&self.numbers, &engine.group) {
                        Ok(Poll::Ready(())) => {}
                        Ok(Poll::Pending) => return Ok(Progress::Blocked),
                        Err(broken) => return Err(self.fault(engine, broken)),
                    }
                    self.bind(engine)?;
                }
                Phase::Drain => {
                    let Some(bound) = &self.bound else {
                        return Err(Error::internal("a task without a plan"));
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

    fn fault(&self, engine: &Engine, broken: Broken) -> Error {
        self.request().map_or_else(|error| error, |request| fault(engine, request.operation(), broken))
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
        self.numbers = engine.links.request(&keys, &engine.group, &engine.settings, &engine.shared)?;
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
            .map(|rank| Links::is_mapped(&engine.group, &engine.settings, rank))
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

    fn run(&mut self, engine: &mut Engine, input: Span<'_>, output: SpanMut<'_>) -> Result<Progress> {
        let (Some(bound), Some(sizes)) = (&self.bound, &self.sizes) else {
            return Err(Error::internal("a task without a plan"));
        };
        let Engine { links, scratch, .. } = engine;
        let mut io = RealIo { bound, links, input, output, scratch: SpanMut::of(scratch.as_mut_slice()) };
        let progress = match self.executor.advance(&bound.plan, sizes, &mut io) {
            Ok(progress) => progress,
            Err(Stop::Mismatch { peer }) => {
                let request = self.request()?;
                let peer = bound.bearings.rank(peer);
                return Err(verdict::mismatch(engine, &request, peer));
            }
            Err(Stop::Fault(broken)) => return Err(self.fault(engine, broken)),
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
                return links.missing(&self.numbers).map(|peer| Blocked { peer, drained: true });
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
}

/// A send and the receive that matches it have the same digest.
fn pair_neutral(descriptor: Descriptor, kind: Kind, me: Rank) -> Descriptor {
    match kind {
        Kind::Send => Descriptor { kind: Kind::Send, root: me, ..descriptor },
        Kind::Receive => Descriptor { kind: Kind::Send, ..descriptor },
        _ => descriptor,
    }
}

/// A link broke: when its peer is known to be dead or to have left, that is the news.
pub(crate) fn fault(engine: &Engine, operation: Operation, Broken { peer, error }: Broken) -> Error {
    if matches!(error, TransportError::OutOfMemory { .. }) {
        return link_error(&engine.group, peer, error);
    }
    match verdict::wait_for_failure(engine, peer, Duration::from_millis(300)) {
        Err(known) => known,
        Ok(()) if engine.group.has_left(peer) => Error::PeerLeft { rank: peer, operation },
        Ok(()) => link_error(&engine.group, peer, error),
    }
}
