//! One request of a task on its way.
//!
//! Invariant: a part goes through its phases in order (find the plan, or make links and bind it; wait until
//! mailboxes of another slot length are empty; run; or what [`near`] does between ranks that share memory) and never
//! waits in any of them.

mod near;
mod standing;

use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use consort_algorithms::Block;
use consort_kernels::{Reducer, Store};
use consort_memory::{SpanMut, ticks};

use super::bound::{Bearings, Bound, Broken, RealIo, Shape, links_of};
use super::executor::{Executor, Progress, Sizes, Stop};
use super::links::{Links, Overdue};
use super::packets::{Exchange, Packets, Wanted, letters};
use super::task::Request;
use super::trouble::Trouble;
use super::watched::{Fault, State, Watched};
use super::zero_copy::Run;
use super::{Buffers, Engine};
use crate::Rank;
use crate::blocks::Blocks;
use crate::call::Descriptor;
use crate::call::{Call, Kind};
use crate::eager::point_to_point;
use crate::error::{Error, Result};
use crate::options::digest;
use crate::planner::{CacheKey, Choice};
use crate::report::evidence::Want;

/// Loads of the awaited counter between two full turns: far below a microsecond.
const GLANCES: u32 = 32;

/// A request with the state of its execution. Kept when it is over, so that its tables are reused.
#[derive(Default)]
pub(super) struct Part {
    request: Option<Request>,
    /// The part before it that uses the same links and must be over.
    pub(super) after: Option<usize>,
    /// Whether its end has been recorded.
    left: bool,
    phase: Phase,
    executor: Executor,
    sizes: Option<Sizes<'static>>,
    /// Where blocks that differ are; empty for others.
    blocks: Vec<Block>,
    /// The bound plan of the present operation, and afterwards of the last one.
    bound: Option<Arc<Bound>>,
    /// The shape of `bound`.
    shape: Option<CacheKey>,
    numbers: Vec<usize>,
    /// The link whose mailbox at the peer is not empty yet, in phase `Drain`.
    draining: Option<usize>,
    /// What it does in phase `Exchange`, and of whom it wants something there.
    exchange: Option<(Exchange, Reducer)>,
    wanted: Option<Wanted>,
    /// Bytes of a message that have gone, in phase `Letter`.
    letter_bytes: usize,
    /// How rank 0 says that bytes are staged, and when that was heard.
    staged: Option<(Store, u64)>,
    /// What it does in phase `Mapped`.
    mapped: Option<(Run, Reducer)>,
    /// Whom it waits for in phase `Meet`, and for what.
    met: Option<(Rank, Want)>,
    /// What runs it, where a stream does, and how far that was.
    watched: Option<(Box<dyn Watched>, State)>,
    /// Whether the device was told to let it go.
    let_go: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
enum Phase {
    #[default]
    Find,
    /// Ranks tell each other whether they exchange messages that carry their flag.
    Meet,
    /// They do.
    Exchange,
    /// A message to or from a rank whose memory is reached: the connection is made, then it goes.
    LetterLink,
    Letter,
    /// On buffers that all have mapped, or how else it goes is found out.
    Mapped,
    Link,
    Drain,
    Run,
    /// In a stream.
    Away,
    Done,
}

impl Part {
    /// Makes ready for a request, which runs once part `after` is over.
    pub(super) fn prepare(&mut self, request: Request, blocks: Option<Blocks<'_>>, after: Option<usize>) {
        self.request = Some(request);
        self.after = after;
        self.left = false;
        self.phase = Phase::Find;
        self.staged = None;
        self.blocks.clear();
        if let Some(blocks) = blocks {
            self.blocks.extend(blocks.bytes(request.call.data_type.size()));
        }
    }

    /// It runs in a stream, or here again.
    pub(super) fn watch(&mut self, watched: Option<Box<dyn Watched>>) {
        if watched.is_some() {
            self.phase = Phase::Away;
        }
        self.watched = watched.map(|watched| {
            let state = watched.begins();
            self.let_go = false;
            (watched, state)
        });
    }

    /// Whether it is in its stream.
    pub(super) fn is_enqueued(&self) -> bool {
        self.watched.as_ref().is_none_or(|(_, state)| *state > State::Ready)
    }

    /// The communicator has failed: what waits on a device goes on to its end.
    pub(super) fn release(&mut self) {
        if let Some((watched, _)) = &mut self.watched {
            // What ends after this may have been let go, with nothing done.
            self.let_go |= !watched.is_over();
            watched.give_up();
        }
    }

    /// Whether it runs in a stream.
    pub(super) fn is_watched(&self) -> bool {
        self.watched.is_some()
    }

    /// Whether no device touches memory for it any more.
    pub(super) fn is_quiet(&self) -> bool {
        self.watched.as_ref().is_none_or(|(watched, _)| watched.is_over())
    }

    /// What it is to do.
    pub(super) fn asked(&self) -> Option<&Request> {
        self.request.as_ref()
    }

    /// What it is to do, unless its end has been recorded.
    pub(super) fn open(&self) -> Option<&Request> {
        self.request.as_ref().filter(|_| !self.left)
    }

    /// Records that it finished, once.
    pub(super) fn leave(&mut self, engine: &Engine) {
        if let Some(request) = self.open() {
            engine.leave(request);
            self.left = true;
        }
    }

    pub(super) fn is_done(&self) -> bool {
        self.phase == Phase::Done
    }

    /// Whether it may have moved something.
    pub(super) fn has_begun(&self) -> bool {
        self.phase != Phase::Find
    }

    /// As [`Executor::limit_turns`].
    pub(super) fn limit_turns(&mut self, steps_max: u32) {
        self.executor.limit_turns(steps_max);
    }

    /// Looks a few times, as cheaply as can be, at the one counter that it waits for.
    #[inline]
    pub(super) fn glance(&self) {
        if self.phase == Phase::Run
            && let Some(bound) = &self.bound
            && let Some((counter, value)) = self.executor.awaited()
            && let Some(counter) = bound.own_counter(counter)
        {
            for _ in 0..GLANCES {
                if counter.value() >= value {
                    return;
                }
            }
        }
    }

    /// A peer that a connection has been on its way to for longer than `limit`.
    pub(super) fn connecting_for(
        &self,
        links: &mut Links,
        packets: &mut Packets,
        now: Instant,
        limit: Duration,
    ) -> Option<Overdue> {
        match self.phase {
            Phase::Link | Phase::LetterLink => links.overdue(&self.numbers, now, limit),
            Phase::Meet => packets.overdue(now, limit).map(|peer| Overdue { peer, waits_for: None }),
            _ => None,
        }
    }

    /// Bytes of its tables.
    pub(super) fn memory_bytes(&self) -> usize {
        let numbers = self.numbers.capacity() * size_of::<usize>();
        size_of::<Self>()
            + numbers
            + self.blocks.capacity() * size_of::<Block>()
            + self.executor.memory_bytes()
    }

    /// Goes on as far as possible.
    pub(super) fn advance(
        &mut self,
        engine: &mut Engine,
        buffers: Buffers<'_>,
    ) -> std::result::Result<Progress, Trouble> {
        loop {
            match self.phase {
                // Nothing moves, whatever the others say.
                Phase::Find if self.request()?.call.count == 0 => self.phase = Phase::Done,
                Phase::Find => self.find(engine)?,
                Phase::Meet => match self.meet(engine, buffers)? {
                    Poll::Ready(()) => {}
                    Poll::Pending => return Ok(Progress::Blocked),
                },
                Phase::Exchange => match self.exchange(engine, buffers)? {
                    Progress::Done if self.watched.is_some() => self.come_back()?,
                    progress => return Ok(progress),
                },
                Phase::LetterLink => match engine.links.poll_up(&self.numbers, &engine.group) {
                    Ok(Poll::Ready(())) => self.phase = Phase::Letter,
                    Ok(Poll::Pending) => return Ok(Progress::Blocked),
                    Err(broken) => return Err(self.fault(broken)),
                },
                Phase::Letter => match self.letter(engine, buffers)? {
                    Progress::Done if self.watched.is_some() => self.come_back()?,
                    progress => return Ok(progress),
                },
                Phase::Mapped => match self.run_mapped(engine, buffers)? {
                    Some(Progress::Done) if self.watched.is_some() => self.come_back()?,
                    Some(progress) => return Ok(progress),
                    // The planned way, then.
                    None => {}
                },
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
                Phase::Run => match self.run(engine, buffers)? {
                    Progress::Done if self.watched.is_some() => self.come_back()?,
                    progress => return Ok(progress),
                },
                Phase::Away => {
                    let before = self.watched.as_ref().map(|(_, state)| *state);
                    match self.look_away()? {
                        State::Done => self.phase = Phase::Done,
                        State::Ready if before != Some(State::Ready) => self.phase = Phase::Find,
                        state if before != Some(state) => return Ok(Progress::Moved),
                        _ => return Ok(Progress::Blocked),
                    }
                }
                Phase::Done => return Ok(Progress::Done),
            }
        }
    }

    /// How far it is in its stream.
    fn look_away(&mut self) -> std::result::Result<State, Trouble> {
        let request = self.request()?;
        if self.let_go {
            return Err(Error::internal("an operation that was let go").into());
        }
        let Some((watched, state)) = &mut self.watched else {
            return Err(Error::internal("a stream without an operation").into());
        };
        match watched.poll() {
            Ok(now) => {
                *state = now;
                Ok(now)
            }
            Err(Fault::Mismatch { peer }) => Err(Trouble::Mismatch { request, peer }),
            Err(Fault::Failed(error)) => Err(error.into()),
        }
    }

    /// The host has moved the data; the stream has the rest.
    fn come_back(&mut self) -> Result<()> {
        self.phase = Phase::Away;
        match &mut self.watched {
            Some((watched, _)) => watched.moved(),
            None => Ok(()),
        }
    }

    fn fault(&self, broken: Broken) -> Trouble {
        match self.request() {
            Ok(request) => Trouble::Broken { request: Some(Box::new(request)), broken },
            Err(error) => error.into(),
        }
    }

    fn request(&self) -> Result<Request> {
        self.request.ok_or_else(|| Error::internal("a task without a request"))
    }

    fn find(&mut self, engine: &mut Engine) -> Result<()> {
        let request = self.request()?;
        let call = request.call;
        if letters::are_for(&call) && engine.links.is_mapped(&engine.group, call.root) {
            self.letter_bytes = 0;
            self.phase = Phase::Letter;
            if engine.links.letters(call.root).is_none() {
                self.numbers =
                    engine.links.request(&[(call.root, point_to_point::CHANNEL)], &engine.group)?;
                self.phase = Phase::LetterLink;
            }
            return Ok(());
        }
        let choice = engine.choices.choose(&call)?;
        if choice.packets || choice.meets {
            self.phase = Phase::Meet;
            return Ok(());
        }
        self.find_bound(engine, &request, &choice)
    }

    fn find_bound(&mut self, engine: &mut Engine, request: &Request, choice: &Choice) -> Result<()> {
        let call = request.call;
        let key = CacheKey::new(&call, choice);
        if self.shape != Some(key) {
            self.bound = engine.cache.find(key).cloned();
            self.shape = self.bound.as_ref().map(|_| key);
        }
        if self.bound.is_some() {
            return self.start(engine, request);
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
        let Choice { program, channel_base: base, .. } = engine.choices.choose(call)?;
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
        let choice = engine.choices.choose(&call)?;
        let shape = Shape {
            data_type: call.data_type,
            op: call.op,
            scalar: call.scalar,
            ranks: engine.group.size(),
            slot_bytes: choice.slot_bytes,
            streaming: choice.streaming,
            bearings,
            channel_base,
        };
        let keys = links_of(&proved.plan, bearings, channel_base);
        // Ranks that took different paths must notice, also where nothing is folded.
        let path = proved.fold_hash ^ digest(&proved.plan.name);
        let bound = Bound::new(proved.plan, path, shape, &engine.links, &keys, &self.numbers)?;
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
        let salt = bound.path ^ bound.slot_bytes as u64;
        let equal = bound.plan.partition.extents(call.count, call.data_type.size());
        let extents = match call.kind {
            Kind::Gather | Kind::Scatter => equal.from_root(call.root, engine.group.size()),
            _ => equal,
        };
        let sizes = Sizes {
            extents,
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

    fn run(&mut self, engine: &mut Engine, buffers: Buffers<'_>) -> std::result::Result<Progress, Trouble> {
        let (Some(bound), Some(equal)) = (&self.bound, &self.sizes) else {
            return Err(Error::internal("a task without a plan").into());
        };
        let varying;
        let sizes = if self.blocks.is_empty() {
            equal
        } else {
            varying = Sizes { extents: equal.extents.of_blocks(&self.blocks, engine.group.rank), ..*equal };
            &varying
        };
        let Engine { links, scratch, .. } = engine;
        let Buffers { input, output } = buffers;
        let scalar = self.request.as_ref().and_then(|request| request.call.scalar);
        let scaled = scalar.map(|scalar| bound.reducer.with_scalar(scalar));
        let reducer = scaled.as_ref().unwrap_or(&bound.reducer);
        let scratch = SpanMut::of(scratch.as_mut_slice());
        let staged = self.staged.map_or(Store::Cached, |(store, _)| store);
        let mut io = RealIo { bound, reducer, links, input, output, scratch, staged };
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
            if let (Some((store, since)), Some(request)) = (self.staged, &self.request) {
                engine.tuner.ended(&request.call, store, ticks().saturating_sub(since));
            }
            self.phase = Phase::Done;
        }
        Ok(progress)
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
