//! Ranks of one process on one device: the last to call launches for all.
//!
//! Invariant: what is launched is the folds of the ranks' verified plans, which have no wait between them
//! ([`folds`]); the boundaries of the launch, and the events that join the ranks' streams, stand for the
//! barriers around them. Nothing spins, so nothing has to be resident. Absent: ranks elsewhere.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError, Weak};

use consort_algorithms::plan::{Operand, Plan, Position, Region, Step};
use consort_algorithms::{Block, Extents, Rank as Relative, folds, lengths};
use consort_cuda::{DeviceMemory, DeviceSpan, Event, RawStream, StreamRef};
use consort_kernels::Reducer;
use consort_kernels::cuda::{FoldJob, Kernels, Table};

use super::gpu::{Gpu, Pooled};
use super::placement::{Entry, Last, Placement};
use super::shared::extents;
use super::slots::{Health, Slot};
use super::trouble;
use crate::Rank;
use crate::engine::watched::{Fault, Standing, State, Watched};
use crate::planner::Planner;
use consort_types::call::{Call, Kind};
use consort_types::error::{Error, Result};

/// All ranks of a communicator, which are in this process and on one device.
pub(super) struct Fused {
    ranks: u32,
    gatherings: Mutex<HashMap<Key, Gathering>>,
    /// The event after the last launch.
    last: Mutex<Option<Arc<Pooled<Event>>>>,
    planner: Arc<Planner>,
}

/// The name of a gathering: calls with equal keys belong together.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Key {
    Collective(u64),
    Message { from: Rank, to: Rank, number: u64 },
}

/// Calls of one launch, as they come.
struct Gathering {
    posts: Vec<Option<Post>>,
    outcome: Option<Outcome>,
    /// The number of calls that have not looked at the outcome yet.
    unaware: usize,
}

/// One rank's call, and where its data is.
pub(super) struct Operands {
    pub(super) call: Call,
    pub(super) blocks: Vec<Block>,
    pub(super) input: DeviceSpan,
    pub(super) output: DeviceSpan,
}

/// One rank's part of a gathering.
struct Post {
    operands: Operands,
    /// Recorded in the stream before the call.
    ready: Arc<Pooled<Event>>,
    /// Thread blocks that the launch may have.
    blocks_max: u32,
}

/// The end of a gathering.
#[derive(Clone)]
enum Outcome {
    Launched {
        after: Arc<Pooled<Event>>,
        stream: RawStream,
        slot: Arc<Slot>,
        kept: Arc<Kept>,
    },
    /// This rank's call differs from that of another.
    Differs,
    Failed(Error),
}

impl Fused {
    /// The value of the communicator `uid`, one for all its ranks.
    pub(super) fn of(uid: u64, ranks: u32) -> Arc<Self> {
        static ALL: Mutex<Vec<(u64, Weak<Fused>)>> = Mutex::new(Vec::new());
        let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|(_, fused)| fused.strong_count() > 0);
        if let Some(known) =
            all.iter().find(|(known, _)| *known == uid).and_then(|(_, fused)| fused.upgrade())
        {
            return known;
        }
        let planner = Planner::of_process();
        let fused = Arc::new(Fused { ranks, gatherings: Mutex::default(), last: Mutex::default(), planner });
        all.push((uid, Arc::downgrade(&fused)));
        fused
    }

    fn gatherings(&self) -> MutexGuard<'_, HashMap<Key, Gathering>> {
        self.gatherings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The gatherings, unless another rank has them: the last rank to come launches under this lock, which takes longer
    /// than another look, and less than to sleep and be woken.
    fn free_gatherings(&self) -> Option<MutexGuard<'_, HashMap<Key, Gathering>>> {
        match self.gatherings.try_lock() {
            Ok(gatherings) => Some(gatherings),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}

/// One rank's call, as its engine sees it.
pub(super) struct FusedCall {
    fused: Arc<Fused>,
    gpu: Arc<Gpu>,
    last: Arc<Last>,
    key: Key,
    rank: Rank,
    stream: RawStream,
    post: Option<Post>,
    /// Set when it was launched, with what the launch reads.
    slot: Option<(Arc<Slot>, Arc<Kept>, Health)>,
    given_up: bool,
}

/// Memory that a launch reads beside the callers' buffers.
#[derive(Default)]
struct Kept {
    table: Option<Pooled<Table>>,
    scratch: Option<Pooled<DeviceMemory>>,
}

impl FusedCall {
    /// A call whose stream has recorded `ready` before it; its number is the same on all ranks.
    pub(super) fn new(
        fused: &Arc<Fused>,
        entry: &Entry<'_>,
        number: u64,
        blocks: Vec<Block>,
        ready: Arc<Pooled<Event>>,
    ) -> Self {
        let Entry { call, input, output, stream, .. } = *entry;
        let Placement { gpu, rank, blocks_max, last, .. } = &**entry.placement;
        let (rank, blocks_max) = (*rank, *blocks_max);
        let key = match call.kind {
            Kind::Send => Key::Message { from: rank, to: call.root, number },
            Kind::Receive => Key::Message { from: call.root, to: rank, number },
            _ => Key::Collective(number),
        };
        let operands = Operands { call, blocks, input, output };
        let post = Some(Post { operands, ready, blocks_max });
        let (fused, gpu, last) = (fused.clone(), gpu.clone(), last.clone());
        FusedCall { fused, gpu, last, key, rank, stream, post, slot: None, given_up: false }
    }

    /// The place of this rank's call in its gathering.
    fn place(&self) -> usize {
        match self.key {
            Key::Collective(_) => self.rank as usize,
            Key::Message { from, .. } => usize::from(from != self.rank),
        }
    }

    fn expected(&self) -> usize {
        match self.key {
            Key::Collective(_) => self.fused.ranks as usize,
            Key::Message { .. } => 2,
        }
    }

    /// Adds the call, unless another rank has the gatherings; the last one launches.
    fn arrive(&mut self) {
        let (place, expected) = (self.place(), self.expected());
        // Launched under the lock, so that no rank gives up in between.
        let Some(mut gatherings) = self.fused.free_gatherings() else { return };
        let Some(post) = self.post.take() else { return };
        let gathering = gatherings.entry(self.key).or_insert_with(|| Gathering {
            posts: (0..expected).map(|_| None).collect(),
            outcome: None,
            unaware: expected,
        });
        gathering.posts[place] = Some(post);
        // Where one rank has given up, nothing is launched when the others come.
        if gathering.outcome.is_none() && gathering.posts.iter().all(Option::is_some) {
            let posts: Vec<Post> = std::mem::take(&mut gathering.posts).into_iter().flatten().collect();
            let launched = if differ(&posts) { Ok(Outcome::Differs) } else { self.launch(&posts) };
            gathering.outcome = Some(launched.unwrap_or_else(Outcome::Failed));
        }
    }

    fn launch(&self, posts: &[Post]) -> Result<Outcome> {
        let call = posts[0].operands.call;
        let cuda = |error| trouble::failed(self.rank, call.kind.name(), error);
        let entered = self.gpu.context().enter().map_err(cuda)?;
        let stream = self.gpu.context().stream_ref(self.stream);
        for post in posts {
            stream.wait_event(&post.ready).map_err(cuda)?;
        }
        // Launches of a communicator follow each other, whichever rank makes them.
        let mut last = self.fused.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(before) = &*last {
            stream.wait_event(before).map_err(cuda)?;
        }
        let slot = Arc::new(self.gpu.slots.take().map_err(cuda)?);
        let after = Arc::new(self.gpu.event().map_err(cuda)?);
        let mut kept = Kept::default();
        let folded = self.fold(&stream, posts, &slot, &mut kept);
        if let Err(error) = folded.and_then(|()| stream.record(&after).map_err(cuda)) {
            // No event tells when the launch has ended: the memory that it reads and writes is never used again.
            std::mem::forget((slot, kept));
            return Err(error);
        }
        *last = Some(after.clone());
        drop((entered, last));
        Ok(Outcome::Launched { after, stream: self.stream, slot, kept: Arc::new(kept) })
    }

    /// Launches the folds of all ranks. `kept` gets what the launches use beside the ranks' buffers.
    fn fold(&self, stream: &StreamRef, posts: &[Post], slot: &Slot, kept: &mut Kept) -> Result<()> {
        let all: Vec<&Operands> = posts.iter().map(|post| &post.operands).collect();
        let (call, ranks) = (all[0].call, self.fused.ranks);
        let cuda = |error| trouble::failed(self.rank, call.kind.name(), error);
        let kernels = &self.gpu.kernels;
        let blocks_max = posts.iter().map(|post| post.blocks_max).fold(0, u32::saturating_add).max(1);
        let same = all.iter().all(|operands| operands.call.scalar == call.scalar);
        let mut jobs = Jobs::default();
        let reducer = if same {
            jobs.add(&self.fused.planner, &call, &all, ranks)?;
            reducer(&call, ranks)
        } else {
            // Each contribution is multiplied by its own rank's scalar beforehand, and rounded as it would be.
            let scaled = self.scale(stream, posts, kept)?;
            let scaled: Vec<Operands> = all
                .iter()
                .zip(scaled)
                .map(|(operands, input)| Operands { input, blocks: operands.blocks.clone(), ..**operands })
                .collect();
            let plain = Call { scalar: None, ..call };
            jobs.add(&self.fused.planner, &plain, &scaled.iter().collect::<Vec<_>>(), ranks)?;
            reducer(&plain, ranks)
        };
        let jobs: Vec<FoldJob<'_>> = jobs.all().collect();
        if jobs.is_empty() {
            let (word, number) = slot.word();
            return stream.write_value(word, number).map_err(cuda);
        }
        let table = Kernels::table_bytes(jobs.len()).map(|bytes| self.gpu.table(bytes)).transpose();
        kept.table = table.map_err(cuda)?;
        let (table, end) = (kept.table.as_deref(), Some(slot.end()));
        kernels.fold(stream, reducer.as_ref(), &jobs, blocks_max, table, end).map_err(cuda)
    }

    /// Every rank's contribution, multiplied by its scalar.
    fn scale(&self, stream: &StreamRef, posts: &[Post], kept: &mut Kept) -> Result<Vec<DeviceSpan>> {
        let cuda = |error| trouble::failed(self.rank, "scaling contributions", error);
        let bytes: usize = posts.iter().map(|post| post.operands.input.len().next_multiple_of(256)).sum();
        let memory = kept.scratch.insert(self.gpu.scratch(bytes).map_err(cuda)?);
        let mut at = 0;
        let mut scaled = Vec::with_capacity(posts.len());
        for Post { operands, blocks_max, .. } in posts {
            let target = memory.span().slice(at, operands.input.len());
            at += operands.input.len().next_multiple_of(256);
            let job = FoldJob { targets: &[target], sources: &[operands.input], raw: 1, finish: false };
            let reducer = reducer(&operands.call, self.fused.ranks);
            let kernels = &self.gpu.kernels;
            kernels.fold(stream, reducer.as_ref(), &[job], *blocks_max, None, None).map_err(cuda)?;
            scaled.push(target);
        }
        Ok(scaled)
    }

    /// The outcome of the call's gathering, once it is known and no other rank has the gatherings.
    fn outcome(&self) -> Option<Outcome> {
        let mut gatherings = self.fused.free_gatherings()?;
        let gathering = gatherings.get_mut(&self.key)?;
        let outcome = gathering.outcome.clone()?;
        gathering.unaware -= 1;
        if gathering.unaware == 0 {
            gatherings.remove(&self.key);
        }
        Some(outcome)
    }
}

impl Watched for FusedCall {
    fn poll(&mut self) -> std::result::Result<State, Fault> {
        if let Some((slot, _, health)) = &mut self.slot {
            if slot.is_done() {
                return Ok(State::Done);
            }
            health.check()?;
            return Ok(State::Enqueued);
        }
        self.arrive();
        match self.outcome() {
            None => Ok(State::Entered),
            Some(Outcome::Differs) => {
                let peer = match self.key {
                    Key::Message { from, to, .. } if from == self.rank => to,
                    Key::Message { from, .. } => from,
                    Key::Collective(_) => u32::from(self.rank == 0),
                };
                Err(Fault::Mismatch { peer })
            }
            Some(Outcome::Failed(error)) => Err(Fault::Failed(error)),
            Some(Outcome::Launched { after, stream, slot, kept }) => {
                // A handle may mean another stream on each thread.
                if stream != self.stream || stream == RawStream::PER_THREAD {
                    let cuda = |error| trouble::failed(self.rank, "a stream's wait", error);
                    let context = self.gpu.context();
                    let _entered = context.enter().map_err(cuda)?;
                    context.stream_ref(self.stream).wait_event(&after).map_err(cuda)?;
                }
                let health = Health::new(&self.gpu, self.rank, &after);
                self.last.set(after);
                self.slot = Some((slot, kept, health));
                Ok(State::Enqueued)
            }
        }
    }

    fn device(&self) -> usize {
        self.gpu.number()
    }

    fn moved(&mut self) -> Result<()> {
        Err(Error::internal("the host moved what a device moves"))
    }

    fn peers(&self) -> Vec<Rank> {
        let gatherings = self.fused.gatherings();
        let posted = |place: usize| {
            let gathering = gatherings.get(&self.key);
            gathering.is_none_or(|gathering| gathering.posts.get(place).is_none_or(Option::is_some))
        };
        match self.key {
            Key::Collective(_) => (0..self.fused.ranks).filter(|rank| !posted(*rank as usize)).collect(),
            Key::Message { from, to, .. } => {
                vec![if from == self.rank { to } else { from }]
            }
        }
    }

    fn standing(&self) -> Option<Standing> {
        let peer = *self.peers().first()?;
        Some(Standing { peer, step: 0, steps: 0, slice: 0, slices: 0 })
    }

    fn give_up(&mut self) {
        // A launch ends by itself; without one, no later call of the gathering may launch.
        if self.slot.is_none() && !std::mem::replace(&mut self.given_up, true) && self.post.is_none() {
            let failed = Error::internal("a call that was given up");
            if let Some(gathering) = self.fused.gatherings().get_mut(&self.key) {
                gathering.outcome.get_or_insert(Outcome::Failed(failed));
            }
        }
    }

    fn is_over(&self) -> bool {
        match &self.slot {
            Some((slot, ..)) => slot.is_done(),
            // Another rank may launch at this moment, or may have, on this rank's buffers.
            None if self.post.is_none() => {
                let gatherings = self.fused.gatherings();
                let outcome = gatherings.get(&self.key).and_then(|gathering| gathering.outcome.as_ref());
                match outcome {
                    Some(Outcome::Launched { slot, .. }) => slot.is_done(),
                    Some(Outcome::Differs | Outcome::Failed(_)) => true,
                    // Until it is given up, the last rank to come launches.
                    None => self.given_up || !gatherings.contains_key(&self.key),
                }
            }
            None => true,
        }
    }

    fn algorithm(&self) -> &str {
        "fused"
    }
}

impl Drop for FusedCall {
    fn drop(&mut self) {
        self.give_up();
    }
}

/// Whether calls that belong together are not the same.
fn differ(posts: &[Post]) -> bool {
    let [Post { operands: Operands { call: first, .. }, .. }, rest @ ..] = posts else { return false };
    let same = |Post { operands: Operands { call, .. }, .. }: &Post| match call.kind {
        Kind::Send | Kind::Receive => (call.count, call.data_type) == (first.count, first.data_type),
        _ => call.descriptor() == first.descriptor(),
    };
    !rest.iter().all(same)
}

/// Folds of a launch, with the places of all one after the other.
#[derive(Default)]
pub(super) struct Jobs {
    places: Vec<DeviceSpan>,
    /// Of each fold: the numbers of targets and of sources, the bits of raw sources, and whether it completes the result.
    shapes: Vec<(usize, usize, u32, bool)>,
}

impl Jobs {
    pub(super) fn all(&self) -> impl Iterator<Item = FoldJob<'_>> {
        let mut at = 0;
        self.shapes.iter().map(move |(targets, sources, raw, finish)| {
            let (first, middle) = (at, at + targets);
            at = middle + sources;
            FoldJob {
                targets: &self.places[first..middle],
                sources: &self.places[middle..at],
                raw: *raw,
                finish: *finish,
            }
        })
    }

    /// The folds of all ranks for a call; `of_ranks` has each rank's operands, in their order.
    pub(super) fn add(
        &mut self,
        planner: &Planner,
        call: &Call,
        of_ranks: &[&Operands],
        ranks: u32,
    ) -> Result<()> {
        let collective = call.collective();
        let size = if call.kind.is_message() { 2 } else { ranks };
        let plans = planner.mapped_of_all(collective, size, call.first_folded(ranks))?;
        let of = |relative: Relative| match call.kind.is_message() {
            true => relative.0,
            false => (relative.0 + call.root) % ranks,
        };
        let extents: Vec<Extents<'_>> = (0u32..)
            .zip(of_ranks)
            .map(|(rank, operands)| extents(&plans[0], call, &operands.blocks, rank, ranks))
            .collect();
        for plan in plans.iter() {
            let Some(folds) = folds(plan) else {
                return Err(Error::internal(format!("the mapped plan {} has waits inside", plan.name)));
            };
            for step in folds {
                let Some(chunk) = step.extent.as_chunk() else {
                    return Err(Error::internal("a mapped plan with a table"));
                };
                let bytes = extents[0].length(chunk);
                if bytes == 0 {
                    continue;
                }
                let span = |operand: &Operand| piece(plan, operand, bytes, of_ranks, &extents, of);
                self.push(plan, step, span)?;
            }
        }
        Ok(())
    }

    fn push(
        &mut self,
        plan: &Plan,
        step: &Step,
        span: impl Fn(&Operand) -> Result<DeviceSpan>,
    ) -> Result<()> {
        let first = self.places.len();
        let sources = plan.sources(step).iter().map(&span).collect::<Result<Vec<_>>>()?;
        for operand in plan.targets(step) {
            let target = span(operand)?;
            // Bytes that are where they are to be are left there.
            let is_there = sources.len() == 1 && step.raw == 0 && target.address() == sources[0].address();
            if !is_there {
                self.places.push(target);
            }
        }
        let targets = self.places.len() - first;
        if targets == 0 {
            return Ok(());
        }
        self.places.extend_from_slice(&sources);
        self.shapes.push((targets, sources.len(), step.raw, step.has(Step::FINISH)));
        Ok(())
    }
}

/// The memory of an operand.
fn piece(
    plan: &Plan,
    operand: &Operand,
    bytes: usize,
    of_ranks: &[&Operands],
    extents: &[Extents<'_>],
    of: impl Fn(Relative) -> Rank,
) -> Result<DeviceSpan> {
    let Position::Chunk(chunk) = operand.position else {
        return Err(Error::internal("a mapped plan with slots"));
    };
    let (relative, is_output) = match plan.regions[operand.region as usize].region {
        Region::Input(rank) => (rank, false),
        Region::Output(rank) => (rank, true),
        _ => return Err(Error::internal("a mapped plan with a mailbox")),
    };
    let rank = of(relative) as usize;
    let whole = || lengths::holds_all(plan.collective, is_output);
    let offset = extents[rank].offset_of(chunk, whole);
    let buffer = if is_output { of_ranks[rank].output } else { of_ranks[rank].input };
    Ok(buffer.slice(offset, bytes))
}

/// The reducer of a call; `None` where the call only moves bytes.
pub(super) fn reducer(call: &Call, ranks: u32) -> Option<Reducer> {
    (call.scalar.is_some() || call.op.is_some()).then(|| call.reducer(ranks))
}
