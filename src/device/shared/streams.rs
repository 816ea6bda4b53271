//! Ranks of different processes that share a device: nothing spins, streams wait.
//!
//! Invariant: the host walks the verified plan when the call is made, with the executor that also runs host operations: a
//! wait becomes a stream-ordered wait, a signal a stream-ordered write, a fold a launch. When the call has been made,
//! all of it is in the stream. Absent: which plan.

use std::sync::Arc;
use std::task::Poll;

use consort_algorithms::Rank as Relative;
use consort_algorithms::plan::{CounterRole, Plan, Region};
use consort_kernels::Reducer;
use consort_kernels::cuda::FoldJob;
use consort_memory::driver::{CudaError, DeviceMemory, DeviceSpan, DeviceWord, StreamRef};

use super::super::fused::reducer;
use super::super::gpu::{Gpu, Pooled};
use super::super::placement::Entry;
use super::in_stream::{InMailboxes, InStream, Order};
use super::program::{bearings, program};
use super::{CLASSES, Counter, Link, Shared};
use crate::Rank;
use crate::engine::watched::Standing;
use crate::engine::{Bearings, Executor, Io, Memory, Piece, Progress, Sizes, Stop};
use crate::error::{Error, Result};
use crate::options::{SLOT_BYTES_MIN, SLOTS};

/// A call that is in its stream.
pub(in super::super) struct StreamsCall {
    /// Words here that tell how far the others are: who raises each, and to what in the end.
    awaited: Vec<(Rank, DeviceWord, u64)>,
    name: String,
    _scratch: Option<Arc<Pooled<DeviceMemory>>>,
}

/// Where a region of the plan is.
#[derive(Clone, Copy, Debug)]
enum Place {
    Span(DeviceSpan),
    /// A mailbox here, or at a peer.
    Own(Rank, DeviceSpan),
    Remote(Rank, DeviceSpan),
}

/// A counter of the plan.
struct Word {
    peer: Rank,
    word: DeviceWord,
    waits: bool,
    /// Whether it counts what this rank fills, or what it empties.
    outgoing: bool,
    /// The value that the stream has waited for.
    reached: u64,
}

/// Memory and counters, as the executor sees them.
struct StreamIo<'a> {
    gpu: &'a Gpu,
    stream: &'a StreamRef,
    reducer: Option<Reducer>,
    places: Vec<Place>,
    words: Vec<Word>,
    blocks_max: u32,
    /// What the driver refused first.
    refused: Option<CudaError>,
}

impl Io for StreamIo<'_> {
    type Fault = CudaError;

    fn reached(&mut self, counter: u32, value: u64) -> bool {
        let word = &mut self.words[counter as usize];
        word.reached = word.reached.max(value);
        true
    }

    fn tag(&self, _counter: u32, _value: u64) -> u64 {
        0
    }

    fn signal(&mut self, counter: u32, value: u64, _tag: u64) -> std::result::Result<Poll<()>, CudaError> {
        self.flush()?;
        self.stream.write_value(self.words[counter as usize].word.device_span(), value)?;
        Ok(Poll::Ready(()))
    }

    fn fold(&mut self, targets: &[Piece], sources: &[Piece], bytes: usize, finish: bool) {
        let refused = self.launch(targets, sources, bytes, finish).err();
        self.refused = self.refused.take().or(refused);
    }

    fn put(
        &mut self,
        target: Piece,
        source: Piece,
        bytes: usize,
        finish: bool,
        _done: &mut usize,
    ) -> std::result::Result<Poll<()>, CudaError> {
        self.launch(&[target], &[source], bytes, finish).map(Poll::Ready)
    }
}

impl StreamIo<'_> {
    fn launch(
        &mut self,
        targets: &[Piece],
        sources: &[Piece],
        bytes: usize,
        finish: bool,
    ) -> std::result::Result<(), CudaError> {
        self.flush()?;
        let span = |piece: &Piece| {
            let (Place::Span(span) | Place::Own(_, span) | Place::Remote(_, span)) =
                self.places[piece.region as usize];
            span.slice(piece.offset, bytes)
        };
        let sources_at: Vec<DeviceSpan> = sources.iter().map(span).collect();
        let raw = (0..).zip(sources).fold(0, |mask, (at, piece)| mask | u32::from(piece.raw) << at);
        let is_copy = sources.len() == 1 && raw == 0;
        let targets: Vec<DeviceSpan> = targets
            .iter()
            .map(span)
            .filter(|target| !is_copy || target.address() != sources_at[0].address())
            .collect();
        if targets.is_empty() {
            return Ok(());
        }
        let job = FoldJob { targets: &targets, sources: &sources_at, raw, finish };
        let kernels = self.gpu.kernels();
        kernels.fold(self.stream, self.reducer.as_ref(), &[job], self.blocks_max, None, None)
    }

    /// Puts the waits that came up since into the stream: what follows comes after them.
    fn flush(&mut self) -> std::result::Result<(), CudaError> {
        for word in self.words.iter_mut().filter(|word| word.waits && word.reached > 0) {
            self.stream.wait_value(word.word.device_span(), word.reached)?;
            word.reached = 0;
        }
        Ok(())
    }
}

impl StreamsCall {
    /// Puts a call into its stream.
    pub(in super::super) fn make(order: Order<'_>) -> Result<(InStream<Self>, Memory)> {
        let Order { shared, gpu, entry, blocks_max, .. } = order;
        let (call, communicator) = (&entry.call, entry.communicator);
        let cuda = |error| order.refused(error);
        let announced = order.announce();
        let proved = program(communicator, call, 1)?;
        let plan = &*proved.plan;
        let bearings = bearings(communicator, call);
        let extents = order.extents(plan);
        let whole = extents.longest().next_power_of_two();
        let slot_bytes = whole.clamp(SLOT_BYTES_MIN, shared.stride);
        let class = usize::from(call.kind.is_message());
        let stream = order.stream();
        let scratch = shared.scratch(gpu, plan.scratch as usize * slot_bytes)?;
        let places =
            places(shared, plan, bearings, class, entry, scratch.as_deref().map(|scratch| scratch.span()))?;
        let words = words(shared, plan, bearings, class)?;
        let mut links = shared.links();
        // Slots of another length must find the mailbox empty.
        for word in words.iter().filter(|word| word.waits && word.outgoing) {
            let link = &mut links[word.peer as usize][class];
            if link.slot_bytes != slot_bytes {
                if link.filled[0] > 0 {
                    stream.wait_value(word.word.device_span(), link.filled[0]).map_err(cuda)?;
                }
                link.slot_bytes = slot_bytes;
            }
        }
        let base = |link: &Link, outgoing: bool| if outgoing { link.filled[0] } else { link.emptied[0] };
        let mut executor = Executor::default();
        let sizes = Sizes { extents, slot_bytes, tag: 0 };
        executor.start(
            plan,
            &sizes,
            |counter| base(&links[words[counter].peer as usize][class], words[counter].outgoing),
            |region| match places[region] {
                Place::Span(_) => 0,
                Place::Own(peer, _) => links[peer as usize][class].emptied[0],
                Place::Remote(peer, _) => links[peer as usize][class].filled[0],
            },
        );
        let reducer = reducer(call, communicator.size());
        let refused = None;
        let mut io = StreamIo { gpu, stream: &stream, reducer, places, words, blocks_max, refused };
        match executor.advance(plan, &sizes, &mut io) {
            Ok(Progress::Done) => {}
            Ok(_) => return Err(Error::internal(format!("the plan {} stops in a stream", plan.name))),
            Err(Stop::Fault(error)) => return Err(cuda(error)),
            Err(Stop::Mismatch { .. }) => return Err(Error::internal("a stream without tags differs")),
        }
        io.flush().and_then(|()| io.refused.take().map_or(Ok(()), Err)).map_err(cuda)?;
        for (region, place) in plan.regions.iter().zip(&io.places) {
            let slots = u64::from(region.slots_per_iteration) * u64::from(executor.iterations());
            match place {
                Place::Own(peer, _) => links[*peer as usize][class].emptied[0] += slots,
                Place::Remote(peer, _) => links[*peer as usize][class].filled[0] += slots,
                Place::Span(_) => {}
            }
        }
        let awaited = io
            .words
            .iter()
            .filter(|word| word.waits && !word.outgoing)
            .map(|word| (word.peer, word.word.clone(), links[word.peer as usize][class].emptied[0]));
        let awaited = awaited.collect();
        drop(links);
        let over = order.slot()?;
        let (word, number) = over.word();
        stream.write_value(word, number).map_err(cuda)?;
        let name = plan.name.clone();
        order.made(announced, over, StreamsCall { awaited, name, _scratch: scratch })
    }
}

/// Where the plan's regions are.
fn places(
    shared: &Shared,
    plan: &Plan,
    bearings: Bearings,
    class: usize,
    entry: &Entry<'_>,
    scratch: Option<DeviceSpan>,
) -> Result<Vec<Place>> {
    let foreign = || Error::internal(format!("the plan {} has regions that streams do not", plan.name));
    let place = |region: Region| match region {
        Region::Input(rank) if rank == plan.rank => Ok(Place::Span(entry.input)),
        Region::Output(rank) if rank == plan.rank => Ok(Place::Span(entry.output)),
        // What was fused away may still be named.
        Region::Scratch if plan.scratch == 0 => Ok(Place::Span(DeviceSpan::empty())),
        Region::Scratch => Ok(Place::Span(scratch.ok_or_else(foreign)?)),
        Region::Mailbox { owner, writer, channel } if owner == plan.rank && channel.0 == 0 => {
            let peer = bearings.rank(writer);
            Ok(Place::Own(peer, shared.mailbox(peer, class)))
        }
        Region::Mailbox { owner, writer, channel } if writer == plan.rank && channel.0 == 0 => {
            let peer = bearings.rank(owner);
            Ok(Place::Remote(peer, shared.remote(peer, class).ok_or_else(foreign)?))
        }
        _ => Err(foreign()),
    };
    debug_assert!(plan.slots <= SLOTS && class < CLASSES);
    plan.regions.iter().map(|used| place(used.region)).collect()
}

/// Where the plan's counters are.
fn words(shared: &Shared, plan: &Plan, bearings: Bearings, class: usize) -> Result<Vec<Word>> {
    let foreign = || Error::internal(format!("the plan {} has counters that streams do not", plan.name));
    let word = |id: consort_algorithms::plan::CounterId| {
        let waits = id.owner == plan.rank;
        let other: Relative = if waits { id.writer } else { id.owner };
        let peer = bearings.rank(other);
        let counter = match id.role {
            CounterRole::Ready => Counter::Ready,
            CounterRole::Credit => Counter::Credit,
            CounterRole::Flag(_) => return Err(foreign()),
        };
        let word = match waits {
            true => shared.own_word(peer, class, counter),
            false => shared.peer_word(peer, class, counter).ok_or_else(foreign)?,
        };
        let outgoing = waits == (counter == Counter::Credit);
        Ok(Word { peer, word, waits, outgoing, reached: 0 })
    };
    plan.counters.iter().map(|counter| word(counter.id)).collect()
}

impl InMailboxes for StreamsCall {
    fn peers(&self, _shared: &Shared) -> Vec<Rank> {
        let behind = |(_, word, end): &&(Rank, DeviceWord, u64)| word.load_acquire() < *end;
        self.awaited.iter().filter(behind).map(|(peer, ..)| *peer).collect()
    }

    fn standing(&self, shared: &Shared) -> Option<Standing> {
        let peer = *self.peers(shared).first()?;
        Some(Standing { peer, step: 0, steps: 0, slice: 0, slices: 0 })
    }

    fn algorithm(&self) -> &str {
        &self.name
    }
}
