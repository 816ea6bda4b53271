//! The submission of a group's calls to their devices: which calls go there together, and in which order.
//!
//! Two kernels of a device are not promised to run side by side, nor are two streams: what stands at the head of a
//! hardware queue holds up all that is behind it. So what waits for a peer is put on a device in the order of the calls,
//! which NCCL demands to be the same on all ranks that have them in common, and what may wait for each other, the
//! messages of a communicator in a group, in one launch.
//!
//! A launch has as many messages as a rank has links, one after the other on each; a group over more links than a launch
//! has room for ([`Grouping::place_messages`]) takes several, in the order of their distance round the ranks, which both
//! ends of a message know: of all messages under way those of the least distance have both ends on their devices.
//!
//! Invariant: sets are submitted in their order, each when all of its calls are made; a call that could not be made
//! refuses its own set and no other. Absent: what is launched, which the paths know.

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, OnceLock};

use consort_cuda::{CudaError, Event, RawStream};
use consort_kernels::cuda::layout::MAX_PROGRAMS;

use super::gpu::{Gpu, Pooled};
use super::placement::{Entry, Placement};
use super::shared::{OneShotLaunch, RunLaunch, RunProgram, StreamsProgram, walk};
use super::table::Path;
use super::trouble::failed;
use crate::Rank;
use consort_types::call::Kind;
use consort_types::error::{Error, Result};

/// The outcome of a set's submission.
pub(super) enum Outcome {
    /// The calls are in their stream, and this event after them.
    Submitted(Arc<Pooled<Event>>),
    /// The calls are not in their stream. If they `began`, a part of them is, or no event tells when they have ended.
    Refused { error: Error, began: bool },
}

/// The outcome of a set's submission, as each of its calls sees it; empty until it is known.
pub(super) type Submission = OnceLock<Outcome>;

/// The work that a call puts into its stream.
pub(super) enum Work {
    /// A program of a launch of the interpreter.
    Run(Box<RunProgram>),
    /// A launch of its own.
    OneShot(Box<OneShotLaunch>),
    /// A plan that the host puts into streams step by step.
    Streams(Box<StreamsProgram>),
}

/// Where a call stands in the order of a group: as it was called, but the messages of a communicator at the place of the
/// first of them, and after its collectives. Calls that ranks of this process make of one communicator stand together.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Key {
    position: usize,
    is_message: bool,
    /// The distance of a message round the ranks, where messages share a launch.
    distance: u32,
}

/// A call of a group, in the order in which the group's calls are made; the set that it belongs to, if it has one.
pub(super) struct Ordered<'e, 'a> {
    pub(super) entry: &'e Entry<'a>,
    pub(super) set: Option<usize>,
}

/// The calls of a group on their way to devices.
pub(super) struct Submissions<'e, 'a> {
    sets: RefCell<VecDeque<Set<'e, 'a>>>,
    all: Vec<Arc<Submission>>,
    /// The error of a call of the group that could not be made.
    failure: RefCell<Option<Error>>,
}

/// Calls that are put on a device together.
struct Set<'e, 'a> {
    submission: Arc<Submission>,
    /// Calls that are not made yet.
    awaited: usize,
    made: Vec<(&'e Entry<'a>, Work)>,
}

/// The calls in the order in which they are made, and the submissions that put them on their devices.
pub(super) fn ordered<'e, 'a>(entries: &'e [Entry<'a>]) -> (Vec<Ordered<'e, 'a>>, Submissions<'e, 'a>) {
    let others: Vec<&Entry<'_>> = entries.iter().filter(|entry| !entry.is_own()).collect();
    let facts: Vec<Facts> = others.iter().map(|entry| Facts::of(entry)).collect();
    let mut keyed: Vec<(Key, &'e Entry<'a>)> = keys(&facts).into_iter().zip(others).collect();
    keyed.sort_by_key(|(key, _)| *key);
    let mut grouping = Grouping::default();
    let mut ordered = Vec::with_capacity(keyed.len());
    for same in keyed.chunk_by(|(one, _), (other, _)| one == other) {
        let first = ordered.len();
        ordered.extend(same.iter().map(|(_, entry)| Ordered { entry, set: None }));
        grouping.place(same[0].0.position, &mut ordered[first..]);
    }
    let all: Vec<Arc<Submission>> = grouping.counts.iter().map(|_| Arc::default()).collect();
    let sets = all.iter().zip(&grouping.counts).map(|(submission, count)| Set {
        submission: submission.clone(),
        awaited: *count,
        made: Vec::with_capacity(*count),
    });
    let sets = RefCell::new(sets.collect());
    (ordered, Submissions { sets, all, failure: RefCell::default() })
}

/// The facts from which a call's key follows.
#[derive(Clone, Copy, Debug)]
struct Facts {
    /// Its communicator, the same on all ranks.
    uid: u64,
    /// Its communicator on this rank.
    core: usize,
    is_message: bool,
    distance: u32,
}

impl Facts {
    fn of(entry: &Entry<'_>) -> Self {
        let is_message = entry.call.kind.is_message();
        let distance = if is_message { distance(entry) } else { 0 };
        Facts { uid: entry.communicator.core().group.uid, core: core_of(entry), is_message, distance }
    }
}

/// The key of each call of a group.
fn keys(calls: &[Facts]) -> Vec<Key> {
    // Most calls are no group's.
    if let [Facts { is_message, distance, .. }] = *calls {
        return vec![Key { position: 0, is_message, distance }];
    }
    // Of each rank's communicator, its collectives so far; of the nth of all its ranks, the first place; of each
    // communicator, where its messages stand.
    let mut collectives: HashMap<usize, usize> = HashMap::new();
    let mut places: HashMap<(u64, usize), usize> = HashMap::new();
    let mut messages: HashMap<u64, usize> = HashMap::new();
    let mut positions = Vec::with_capacity(calls.len());
    for (place, call) in calls.iter().enumerate() {
        let position = if call.is_message {
            *messages.entry(call.uid).or_insert(place)
        } else {
            let nth = collectives.entry(call.core).or_default();
            let position = *places.entry((call.uid, *nth)).or_insert(place);
            *nth += 1;
            position
        };
        positions.push(position);
    }
    for (call, position) in calls.iter().zip(&positions).filter(|(call, _)| !call.is_message) {
        messages.entry(call.uid).and_modify(|place| *place = *position.max(place));
    }
    let key = |(call, position): (&Facts, usize)| match *call {
        Facts { uid, is_message: true, distance, .. } => {
            Key { position: messages[&uid], is_message: true, distance }
        }
        _ => Key { position, is_message: false, distance: 0 },
    };
    calls.iter().zip(positions).map(key).collect()
}

fn core_of(entry: &Entry<'_>) -> usize {
    Arc::as_ptr(entry.communicator.core()).addr()
}

/// The distance of a message round the ranks, where it decides which messages share a set.
fn distance(entry: &Entry<'_>) -> u32 {
    let Placement { rank, ranks, .. } = **entry.placement;
    let root = entry.call.root;
    let sends = entry.call.kind == Kind::Send;
    let distance = if sends { (root + ranks - rank) % ranks } else { (rank + ranks - root) % ranks };
    match entry.placement.path() {
        Path::Kernels => distance,
        // Slices take turns whatever the order of the messages.
        Path::Streams => 0,
        Path::Fused | Path::Host => distance + if sends { 0 } else { ranks },
    }
}

/// The sets of calls, made as their keys come.
#[derive(Default)]
struct Grouping {
    /// Calls of each set.
    counts: Vec<usize>,
    /// The launches of messages that those of the next distance may join, one a device.
    open: Vec<Open>,
}

/// A launch of messages.
struct Open {
    gpu: usize,
    position: usize,
    set: usize,
    /// Its links, each with the most blocks of its messages.
    links: Vec<(Link, u32)>,
}

/// Between which ranks messages go in which direction: of whose communicator, whether it sends, the other rank.
type Link = (usize, bool, Rank);

impl Grouping {
    fn new_set(&mut self, calls: usize) -> usize {
        self.counts.push(calls);
        self.counts.len() - 1
    }

    /// Gives calls of one key their sets: of each device that has some.
    fn place(&mut self, position: usize, calls: &mut [Ordered<'_, '_>]) {
        let is_moved = |call: &&mut Ordered<'_, '_>| {
            let path = call.entry.placement.path();
            matches!(path, Path::Kernels | Path::Streams) && call.entry.call.count > 0
        };
        let gpu_of = |call: &Ordered<'_, '_>| Arc::as_ptr(&call.entry.placement.gpu).addr();
        let mut calls: Vec<&mut Ordered<'_, '_>> = calls.iter_mut().filter(is_moved).collect();
        calls.sort_by_key(|call| gpu_of(call));
        for unit in calls.chunk_by_mut(|one, other| gpu_of(one) == gpu_of(other)) {
            let first = unit[0].entry;
            let (path, is_message) = (first.placement.path(), first.call.kind.is_message());
            if path == Path::Kernels && is_message {
                self.place_messages(gpu_of(unit[0]), position, unit);
            } else if first.placement.is_one_shot(&first.call) {
                unit.iter_mut().for_each(|call| call.set = Some(self.new_set(1)));
            } else {
                let set = self.new_set(unit.len());
                unit.iter_mut().for_each(|call| call.set = Some(set));
            }
        }
    }

    fn place_messages(&mut self, gpu: usize, position: usize, unit: &mut [&mut Ordered<'_, '_>]) {
        let most = unit.iter().map(|call| call.entry.placement.blocks_max).min().unwrap_or(1);
        let mut links: Vec<(Link, u32)> = Vec::new();
        for Ordered { entry, .. } in unit.iter().map(|call| &**call) {
            let link = (core_of(entry), entry.call.kind == Kind::Send, entry.call.root);
            let blocks = entry.placement.message_blocks(&entry.call);
            match links.iter_mut().find(|(known, _)| *known == link) {
                Some((_, known)) => *known = blocks.max(*known),
                None => links.push((link, blocks)),
            }
        }
        let sum = |links: &[(Link, u32)]| links.iter().map(|(_, blocks)| blocks).sum::<u32>();
        let fits = |open: &Open| {
            open.position == position
                && open.links.len() + links.len() <= MAX_PROGRAMS
                && sum(&open.links) + sum(&links) <= most
        };
        let at = self.open.iter().position(|open| open.gpu == gpu).filter(|at| fits(&self.open[*at]));
        let at = at.unwrap_or_else(|| {
            self.open.retain(|open| open.gpu != gpu);
            let set = self.new_set(0);
            self.open.push(Open { gpu, position, set, links: Vec::new() });
            self.open.len() - 1
        });
        let open = &mut self.open[at];
        open.links.extend(links);
        self.counts[open.set] += unit.len();
        unit.iter_mut().for_each(|call| call.set = Some(open.set));
    }
}

impl<'e, 'a> Submissions<'e, 'a> {
    /// The submission of a set, for its calls.
    pub(super) fn of(&self, set: usize) -> Arc<Submission> {
        self.all[set].clone()
    }

    /// A call is made: it goes to its device with the others of its set, after the sets before.
    pub(super) fn join(&self, set: usize, entry: &'e Entry<'a>, work: Work) {
        let mut sets = self.sets.borrow_mut();
        let gone = self.all.len() - sets.len();
        // A set that was refused takes nothing more.
        if let Some(set) = set.checked_sub(gone).and_then(|at| sets.get_mut(at)) {
            set.made.push((entry, work));
            set.awaited -= 1;
        }
        while sets.front().is_some_and(|set| set.awaited == 0) {
            if let Some(set) = sets.pop_front() {
                set.submit();
            }
        }
    }

    /// A call of the group could not be made.
    pub(super) fn note(&self, error: &Error) {
        self.failure.borrow_mut().get_or_insert_with(|| error.clone());
    }

    /// No more calls are made: sets that still wait for some are refused, and those behind them go to their devices.
    pub(super) fn close(&self) {
        let failure = self.failure.borrow();
        for set in self.sets.borrow_mut().drain(..) {
            if set.awaited == 0 {
                set.submit();
                continue;
            }
            let why = failure.clone();
            let error = why.unwrap_or_else(|| Error::internal("a call of the same group was not made"));
            set.made.iter().for_each(|(entry, _)| entry.placement.release());
            // Set once: it leaves the queue here.
            let _ = set.submission.set(Outcome::Refused { error, began: false });
        }
    }
}

impl Set<'_, '_> {
    fn submit(&self) {
        let mut began = false;
        let outcome = match self.put(&mut began) {
            Ok(after) => Outcome::Submitted(after),
            Err(error) => {
                // The part of the set that is in the stream already must not wait for ever.
                self.made.iter().for_each(|(entry, _)| entry.placement.release());
                Outcome::Refused { error, began }
            }
        };
        // Set once: it has just left the queue.
        let _ = self.submission.set(outcome);
    }

    /// Puts the set into the stream of its first call, after all work in the streams of its other calls. These streams go on
    /// after the set.
    fn put(&self, began: &mut bool) -> Result<Arc<Pooled<Event>>> {
        let Some((first, _)) = self.made.first() else { return Err(Error::internal("a set without calls")) };
        let (rank, what) = (first.placement.rank, first.call.kind.name());
        let refused = |error: CudaError| failed(rank, what, error);
        let gpu = &first.placement.gpu;
        let context = gpu.context();
        let _entered = context.enter().map_err(refused)?;
        let stream = context.stream_ref(first.stream);
        let others = self.other_streams();
        for other in &others {
            let ready = gpu.event().map_err(refused)?;
            context.stream_ref(*other).record(&ready).map_err(refused)?;
            stream.wait_event(&ready).map_err(refused)?;
        }
        let mut lasts = Vec::with_capacity(1);
        for (entry, _) in &self.made {
            let last = &entry.placement.last;
            if !lasts.iter().any(|known| Arc::ptr_eq(known, last)) {
                lasts.push(last.clone());
            }
        }
        for before in lasts.iter().filter_map(|last| last.event()) {
            stream.wait_event(&before).map_err(refused)?;
        }
        let launch = self.prepare(gpu, rank)?;
        let flight = gpu.flight.admit(&stream, &lasts, launch.blocks()).map_err(refused)?;
        *began = true;
        match &launch {
            Launch::Run(launch) => launch.launch(gpu, &stream).map_err(refused),
            Launch::OneShot(launch) => launch.launch(gpu, &stream).map_err(refused),
            Launch::Walk(programs) => walk(gpu, &stream, programs),
        }
        .inspect_err(|_| *began = matches!(launch, Launch::Walk(_)))?;
        let after = Arc::new(gpu.event().map_err(refused)?);
        stream.record(&after).map_err(refused)?;
        flight.goes_until(&after);
        for other in &others {
            context.stream_ref(*other).wait_event(&after).map_err(refused)?;
        }
        lasts.iter().for_each(|last| last.set(after.clone()));
        Ok(after)
    }

    /// The launch of the set: all of its calls have work of one kind.
    fn prepare(&self, gpu: &Gpu, rank: Rank) -> Result<Launch<'_>> {
        let (mut programs, mut walked) = (Vec::new(), Vec::new());
        for (_, work) in &self.made {
            match work {
                Work::Run(program) => programs.push(&**program),
                Work::OneShot(launch) if self.made.len() == 1 => return Ok(Launch::OneShot(launch)),
                Work::OneShot(_) => return Err(Error::internal("packets beside other calls")),
                Work::Streams(program) => walked.push(&**program),
            }
        }
        match (programs.is_empty(), walked.is_empty()) {
            (false, true) => RunLaunch::new(gpu, rank, &programs).map(Launch::Run),
            (true, false) => Ok(Launch::Walk(walked)),
            _ => Err(Error::internal("programs of kernels beside those of streams")),
        }
    }

    /// The streams of its calls but for the first one's.
    fn other_streams(&self) -> Vec<RawStream> {
        let mut streams: Vec<RawStream> = Vec::new();
        for (entry, _) in &self.made {
            if !streams.contains(&entry.stream) {
                streams.push(entry.stream);
            }
        }
        streams.drain(..streams.len().min(1));
        streams
    }
}

/// The launch that a set puts into its stream.
enum Launch<'s> {
    Run(RunLaunch),
    OneShot(&'s OneShotLaunch),
    Walk(Vec<&'s StreamsProgram>),
}

impl Launch<'_> {
    /// Thread blocks that may wait for peers.
    fn blocks(&self) -> u32 {
        match self {
            Launch::Run(launch) => launch.shape.blocks,
            Launch::OneShot(launch) => launch.blocks,
            // Streams wait, and no block.
            Launch::Walk(_) => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn collective(uid: u64, core: usize) -> Facts {
        Facts { uid, core, is_message: false, distance: 0 }
    }

    const fn message(uid: u64, core: usize, distance: u32) -> Facts {
        Facts { uid, core, is_message: true, distance }
    }

    /// The places of the calls in the order in which they go to their devices; those of one key together.
    fn order(calls: &[Facts]) -> Vec<Vec<usize>> {
        let mut keyed: Vec<(Key, usize)> = keys(calls).into_iter().zip(0..).collect();
        keyed.sort_by_key(|(key, _)| *key);
        let same = |one: &(Key, usize), other: &(Key, usize)| one.0 == other.0;
        keyed.chunk_by(same).map(|keyed| keyed.iter().map(|(_, place)| *place).collect()).collect()
    }

    #[test]
    fn collectives_keep_their_order_whatever_their_communicators_are_called() {
        for [one, other] in [[1, 2], [2, 1]] {
            let calls = [collective(one, 0), collective(other, 1), collective(one, 0)];
            assert_eq!(order(&calls), [[0], [1], [2]]);
        }
    }

    #[test]
    fn messages_stand_after_the_collectives_of_their_communicator_and_where_they_were_called_otherwise() {
        let calls = [message(1, 0, 1), collective(2, 1), message(1, 0, 1), message(1, 0, 2)];
        assert_eq!(order(&calls), [vec![0, 2], vec![3], vec![1]]);
        let calls = [message(1, 0, 1), collective(1, 0), collective(2, 1)];
        assert_eq!(order(&calls), [[1], [0], [2]]);
    }

    #[test]
    fn what_several_ranks_call_of_one_communicator_stands_together() {
        // Rank by rank: two sums and a message around the ring.
        let of = |core: usize| [collective(7, core), collective(7, core), message(7, core, 1)];
        let calls = [of(0), of(1), of(2)].concat();
        assert_eq!(order(&calls), [vec![0, 3, 6], vec![1, 4, 7], vec![2, 5, 8]]);
    }
}
