//! What the calls of a group put on their devices: which of them go there together, and in which order.
//!
//! Two kernels of a device are not promised to run side by side, nor are two streams: what stands at the head of a
//! hardware queue holds up all that is behind it. So whatever waits for a peer is put on a device in an order that is the
//! same on all ranks ([`Key`]), and calls of one key, whose ends may wait for each other, in one launch.
//!
//! Every message has a key that both of its ends know. Launches take keys in ascending order and no key is split between
//! two. So of all messages under way the ones of the least key have both ends on their devices: one can always go on.
//!
//! Invariant: sets are submitted in their order, each when all of its calls are made; what a group could not make is
//! refused on all communicators whose calls wait for it. Absent: what is launched, which the paths know.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::{Arc, OnceLock};

use consort_kernels::cuda::layout::MAX_PROGRAMS;
use consort_memory::driver::{CudaError, Event, RawStream, StreamRef};

use super::gpu::{Gpu, Pooled};
use super::placement::{Entry, Placement};
use super::shared::{OneShotLaunch, RunProgram, StreamsProgram, launch, walk};
use super::table::Path;
use super::trouble::failed;
use crate::call::Kind;
use crate::error::{Error, Result};

/// What became of the calls of a set.
pub(super) enum Outcome {
    /// They are in their stream, and this event after them.
    Submitted(Arc<Pooled<Event>>),
    /// Why they are not; where they `began`, part of them is, or nothing tells when they have ended.
    Refused { error: Error, began: bool },
}

/// The calls of a set, as each of them sees it.
#[derive(Default)]
pub(super) struct Submission(OnceLock<Outcome>);

impl Submission {
    /// What became of it, once it is known.
    pub(super) fn outcome(&self) -> Option<&Outcome> {
        self.0.get()
    }
}

/// What a call puts into its stream.
pub(super) enum Work {
    /// A program of a launch of the interpreter.
    Run(Box<RunProgram>),
    /// A launch of its own.
    OneShot(Box<OneShotLaunch>),
    /// What the host puts there step by step.
    Streams(Box<StreamsProgram>),
}

/// Where a call stands in the order of a group: collectives first, in the order of the calls of their communicator; then
/// messages, the first between two ranks before the second, by the distance that they go round the ranks. Communicators
/// of equal place take turns by their numbers, which all of their ranks know.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Key {
    is_message: bool,
    nth: usize,
    distance: u32,
    communicator: u64,
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
    /// Why a call of the group could not be made.
    failure: RefCell<Option<Error>>,
}

/// Calls that are put on a device together.
struct Set<'e, 'a> {
    submission: Arc<Submission>,
    /// Calls that are not made yet.
    awaited: usize,
    made: Vec<(&'e Entry<'a>, Work)>,
}

/// The calls in the order in which they are made, and what puts them on their devices.
pub(super) fn ordered<'e, 'a>(entries: &'e [Entry<'a>]) -> (Vec<Ordered<'e, 'a>>, Submissions<'e, 'a>) {
    let mut keyed: Vec<(Key, &'e Entry<'a>)> = Vec::with_capacity(entries.len());
    for entry in entries.iter().filter(|entry| !entry.is_own()) {
        let nth = keyed.iter().filter(|(_, known)| is_before(known, entry)).count();
        keyed.push((key(entry, nth), entry));
    }
    keyed.sort_by_key(|(key, _)| *key);
    let mut grouping = Grouping::default();
    let mut ordered = Vec::with_capacity(keyed.len());
    for same in keyed.chunk_by(|(one, _), (other, _)| one == other) {
        let first = ordered.len();
        ordered.extend(same.iter().map(|(_, entry)| Ordered { entry, set: None }));
        grouping.place(&mut ordered[first..]);
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

/// Whether a call comes before another of its communicator that uses the same links.
fn is_before(known: &Entry<'_>, entry: &Entry<'_>) -> bool {
    let links =
        |of: &Entry<'_>| of.call.kind.is_message().then_some((of.call.kind == Kind::Send, of.call.root));
    Arc::ptr_eq(known.communicator.core(), entry.communicator.core()) && links(known) == links(entry)
}

/// The key of a call, before which so many of its communicator use the same links.
fn key(entry: &Entry<'_>, nth: usize) -> Key {
    let Placement { rank, ranks, .. } = **entry.placement;
    let (root, communicator) = (entry.call.root, entry.communicator.core().group.uid);
    let distance = match entry.call.kind {
        Kind::Send => (root + ranks - rank) % ranks,
        Kind::Receive => (rank + ranks - root) % ranks,
        _ => return Key { is_message: false, nth, distance: 0, communicator },
    };
    let (nth, distance) = match entry.placement.path() {
        Path::Kernels => (nth, distance),
        // Slices take turns whatever the order of the messages.
        Path::Streams => (0, 0),
        Path::Fused | Path::Host => (usize::from(entry.call.kind == Kind::Receive), distance),
    };
    Key { is_message: true, nth, distance, communicator }
}

/// Which calls make a set, as their keys come.
#[derive(Default)]
struct Grouping {
    /// Calls of each set.
    counts: Vec<usize>,
    /// Launches of messages that others may join, one a device.
    open: Vec<Open>,
    /// The sets of messages that the host puts into streams, one a communicator.
    walked: Vec<(usize, usize)>,
}

/// A launch of messages that others may join.
struct Open {
    gpu: usize,
    set: usize,
    blocks: u32,
    /// The links of its messages: of two messages over the same ones the second comes after the first.
    links: Vec<(usize, bool, u32)>,
}

impl Grouping {
    fn new_set(&mut self, calls: usize) -> usize {
        self.counts.push(calls);
        self.counts.len() - 1
    }

    /// Gives calls of one key their sets: of each device that has some.
    fn place(&mut self, calls: &mut [Ordered<'_, '_>]) {
        let is_moved = |call: &&mut Ordered<'_, '_>| {
            let path = call.entry.placement.path();
            matches!(path, Path::Kernels | Path::Streams) && call.entry.call.count > 0
        };
        let gpu_of = |call: &Ordered<'_, '_>| Arc::as_ptr(&call.entry.placement.gpu).addr();
        let mut calls: Vec<&mut Ordered<'_, '_>> = calls.iter_mut().filter(is_moved).collect();
        calls.sort_by_key(|call| gpu_of(call));
        for unit in calls.chunk_by_mut(|one, other| gpu_of(one) == gpu_of(other)) {
            let gpu = gpu_of(unit[0]);
            let first = unit[0].entry;
            let is_message = first.call.kind.is_message();
            if !is_message {
                self.open.retain(|open| open.gpu != gpu);
            }
            match first.placement.path() {
                Path::Streams if is_message => self.place_walked(unit),
                Path::Kernels if is_message => self.place_launched(gpu, unit),
                Path::Kernels if !first.placement.is_one_shot(&first.call) => {
                    let set = self.new_set(unit.len());
                    unit.iter_mut().for_each(|call| call.set = Some(set));
                }
                _ => unit.iter_mut().for_each(|call| call.set = Some(self.new_set(1))),
            }
        }
    }

    fn place_walked(&mut self, unit: &mut [&mut Ordered<'_, '_>]) {
        for call in unit {
            let core = Arc::as_ptr(call.entry.communicator.core()).addr();
            let known = self.walked.iter().find(|(of, _)| *of == core).map(|(_, set)| *set);
            let set = known.unwrap_or_else(|| {
                let set = self.new_set(0);
                self.walked.push((core, set));
                set
            });
            self.counts[set] += 1;
            call.set = Some(set);
        }
    }

    fn place_launched(&mut self, gpu: usize, unit: &mut [&mut Ordered<'_, '_>]) {
        let links = |call: &Ordered<'_, '_>| {
            let core = Arc::as_ptr(call.entry.communicator.core()).addr();
            (core, call.entry.call.kind == Kind::Send, call.entry.call.root)
        };
        let blocks: u32 = unit.iter().map(|call| call.entry.placement.message_blocks(&call.entry.call)).sum();
        let most = unit.iter().map(|call| call.entry.placement.blocks_max).min().unwrap_or(1);
        let at = self.open.iter().position(|open| open.gpu == gpu);
        let joined = at.filter(|at| {
            let open = &self.open[*at];
            open.links.len() + unit.len() <= MAX_PROGRAMS
                && open.blocks + blocks <= most
                && unit.iter().all(|call| !open.links.contains(&links(call)))
        });
        let at = joined.unwrap_or_else(|| {
            self.open.retain(|open| open.gpu != gpu);
            let set = self.new_set(0);
            self.open.push(Open { gpu, set, blocks: 0, links: Vec::new() });
            self.open.len() - 1
        });
        let open = &mut self.open[at];
        open.blocks += blocks;
        open.links.extend(unit.iter().map(|call| links(call)));
        self.counts[open.set] += unit.len();
        unit.iter_mut().for_each(|call| call.set = Some(open.set));
    }
}

impl<'e, 'a> Submissions<'e, 'a> {
    /// How a call sees what becomes of its set.
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

    /// No more calls are made: what still waits for some is refused.
    pub(super) fn close(&self) {
        let failure = self.failure.borrow();
        for set in self.sets.borrow_mut().drain(..) {
            let why = failure.clone();
            let error = why.unwrap_or_else(|| Error::internal("a call of the same group was not made"));
            set.made.iter().for_each(|(entry, _)| entry.placement.release());
            // Set once: it leaves the queue here.
            let _ = set.submission.0.set(Outcome::Refused { error, began: false });
        }
    }
}

impl Set<'_, '_> {
    fn submit(&self) {
        let mut began = false;
        let outcome = match self.put(&mut began) {
            Ok(after) => Outcome::Submitted(after),
            Err(error) => {
                // What of it is in the stream already must not wait for ever.
                self.made.iter().for_each(|(entry, _)| entry.placement.release());
                Outcome::Refused { error, began }
            }
        };
        // Set once: it has just left the queue.
        let _ = self.submission.0.set(outcome);
    }

    /// Puts it into the stream of its first call, after what the streams of its other calls hold, which go on after it.
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
        let blocks = self.made.iter().map(|(_, work)| work.blocks()).sum();
        let flight = gpu.flight().admit(&stream, &lasts, blocks).map_err(refused)?;
        *began = true;
        self.launch(gpu, &stream, began)?;
        let after = Arc::new(gpu.event().map_err(refused)?);
        stream.record(&after).map_err(refused)?;
        flight.goes_until(&after);
        for other in &others {
            context.stream_ref(*other).wait_event(&after).map_err(refused)?;
        }
        lasts.iter().for_each(|last| last.set(after.clone()));
        Ok(after)
    }

    fn launch(&self, gpu: &Gpu, stream: &StreamRef, began: &mut bool) -> Result<()> {
        let Some((first, _)) = self.made.first() else { return Ok(()) };
        let refused = |error: CudaError| failed(first.placement.rank, first.call.kind.name(), error);
        let (mut programs, mut walked) = (Vec::new(), Vec::new());
        for (_, work) in &self.made {
            match work {
                Work::Run(program) => programs.push(&**program),
                Work::OneShot(shot) => {
                    let launched = shot.launch(gpu, stream);
                    *began = launched.is_ok();
                    return launched.map_err(refused);
                }
                Work::Streams(program) => walked.push(&**program),
            }
        }
        if !walked.is_empty() {
            return walk(gpu, stream, &walked);
        }
        let launched = launch(gpu, stream, &programs);
        *began = launched.is_ok();
        launched.map_err(refused)
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

impl Work {
    /// Thread blocks that may wait for peers.
    fn blocks(&self) -> u32 {
        match self {
            Work::Run(program) => program.blocks(),
            Work::OneShot(shot) => shot.blocks(),
            // Streams wait, and no block.
            Work::Streams(_) => 0,
        }
    }
}
