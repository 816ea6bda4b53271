//! Ranks of different processes that share a device: nothing spins, streams wait.
//!
//! Invariant: the host walks the verified plans of a group's calls with the executor that also runs host operations: a
//! wait becomes a stream-ordered wait, a signal a stream-ordered write, a fold a launch. Absent: which plan.

use std::sync::{Arc, OnceLock};
use std::task::Poll;

use consort_algorithms::Block;
use consort_algorithms::plan::{CounterId, Plan, Region};
use consort_cuda::{CudaError, DeviceMemory, DeviceSpan, DeviceWord, StreamRef};
use consort_kernels::Reducer;
use consort_kernels::cuda::FoldJob;

use super::super::fused::reducer;
use super::super::gpu::{Gpu, Pooled};
use super::super::placement::Entry;
use super::super::submission::Work;
use super::super::trouble::failed;
use super::in_stream::{InMailboxes, Order, extents};
use super::program::{Boxes, bearings};
use super::{Links, Mailbox, Shared};
use crate::Rank;
use crate::engine::watched::{Standing, Watched};
use crate::engine::{Executor, Io, Memory, Piece, Sizes, Stop};
use crate::planner::Proved;
use consort_settings::options::{SLOT_BYTES_MIN, SLOTS};
use consort_types::call::{Call, Kind};
use consort_types::error::{Error, Result};

/// A word here that tells how far a peer is: who raises it, and to what in the end.
type Awaited = (Rank, DeviceWord, u64);

/// A call in its stream, or on its way there.
pub(in super::super) struct StreamsCall {
    awaited: Arc<OnceLock<Vec<Awaited>>>,
    name: String,
    _scratch: Option<Arc<Pooled<DeviceMemory>>>,
}

/// The memory of a region of the plan, with its mailbox if it is one.
type Place = (DeviceSpan, Option<Mailbox>);

/// A counter of the plan.
struct Word {
    at: Mailbox,
    word: DeviceWord,
    waits: bool,
}

/// Memory and counters, as the executor sees them.
struct StreamIo<'a> {
    gpu: &'a Gpu,
    stream: &'a StreamRef,
    reducer: Option<Reducer>,
    places: &'a [Place],
    words: &'a [Word],
    /// For each word, the value that the stream is to wait for before anything else.
    reached: Vec<u64>,
    blocks_max: u32,
}

impl Io for StreamIo<'_> {
    type Fault = CudaError;

    fn reached(&mut self, counter: u32, value: u64) -> consort_cuda::Result<bool> {
        let reached = &mut self.reached[counter as usize];
        *reached = value.max(*reached);
        Ok(true)
    }

    fn tag(&mut self, _counter: u32, _value: u64) -> u64 {
        0
    }

    fn signal(&mut self, counter: u32, value: u64, _tag: u64) -> consort_cuda::Result<Poll<()>> {
        self.flush()?;
        self.stream.write_value(self.words[counter as usize].word.device_span(), value)?;
        Ok(Poll::Ready(()))
    }

    fn fold(
        &mut self,
        targets: &[Piece],
        sources: &[Piece],
        bytes: usize,
        finish: bool,
    ) -> consort_cuda::Result<Poll<()>> {
        self.launch(targets, sources, bytes, finish).map(Poll::Ready)
    }

    fn put(
        &mut self,
        target: Piece,
        source: Piece,
        bytes: usize,
        finish: bool,
        _done: &mut usize,
    ) -> consort_cuda::Result<Poll<()>> {
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
    ) -> consort_cuda::Result<()> {
        self.flush()?;
        let span = |piece: &Piece| self.places[piece.region as usize].0.slice(piece.offset, bytes);
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
        let kernels = &self.gpu.kernels;
        kernels.fold(self.stream, self.reducer.as_ref(), &[job], self.blocks_max, None, None)
    }

    /// Puts the waits that came up since into the stream: what follows comes after them.
    fn flush(&mut self) -> consort_cuda::Result<()> {
        let waited = self.words.iter().zip(&mut self.reached);
        for (word, reached) in waited.filter(|(word, reached)| word.waits && **reached > 0) {
            self.stream.wait_value(word.word.device_span(), *reached)?;
            *reached = 0;
        }
        Ok(())
    }
}

impl StreamsCall {
    /// Makes a call ready for its stream.
    pub(in super::super) fn make(order: Order<'_>) -> Result<(Box<dyn Watched>, Memory, Work)> {
        let Order { shared, entry, .. } = order;
        let (gpu, blocks_max) = (&entry.placement.gpu, entry.placement.blocks_max);
        let (call, communicator) = (entry.call, entry.communicator);
        let Proved { plan, mailboxes_max: channels, .. } = shared.program(&call)?;
        let bearings = bearings(communicator, &call);
        let extents = order.extents(&plan);
        let slot_bytes = extents.longest().next_power_of_two().clamp(SLOT_BYTES_MIN, shared.stride);
        let scratch = shared.scratch(gpu, plan.scratch as usize * slot_bytes)?;
        let boxes = Boxes::of(&plan, call.kind, bearings, channels);
        let span = scratch.as_deref().map(|scratch| scratch.span());
        let places = places(shared, &plan, &boxes, entry, span)?;
        let words = words(shared, &plan, &boxes)?;
        let over = order.slot()?;
        let awaited = Arc::new(OnceLock::new());
        let program = StreamsProgram {
            shared: shared.clone(),
            call,
            blocks: order.blocks.to_vec(),
            size: communicator.size(),
            plan: plan.clone(),
            slot_bytes,
            places,
            words,
            blocks_max,
            over: over.word(),
            awaited: awaited.clone(),
        };
        tracing::debug!(rank = shared.rank, algorithm = plan.name, slot_bytes, "a plan for its stream");
        let announced = order.announce();
        let made = StreamsCall { awaited, name: plan.name.clone(), _scratch: scratch };
        Ok(order.made(announced, over, made, Work::Streams(Box::new(program))))
    }
}

/// A call that is on its way into its stream.
pub(in super::super) struct StreamsProgram {
    shared: Arc<Shared>,
    call: Call,
    blocks: Vec<Block>,
    size: u32,
    plan: Arc<Plan>,
    slot_bytes: usize,
    places: Vec<Place>,
    words: Vec<Word>,
    blocks_max: u32,
    /// The word that the stream writes in the end, and its value.
    over: (DeviceSpan, u64),
    awaited: Arc<OnceLock<Vec<Awaited>>>,
}

/// A program as the host walks it.
struct Walk<'a> {
    plan: &'a Plan,
    sizes: Sizes<'a>,
    executor: Executor,
    io: StreamIo<'a>,
    /// Words that must tell that the mailboxes are empty before the first slice, and from when on they do.
    empty: Vec<(DeviceSpan, u64)>,
    /// Slices of the same links before its own, of the programs that are walked together.
    before: u32,
    over: (DeviceSpan, u64),
}

/// Puts programs into streams: one into `stream`, and a group's messages slice by slice, those of each link into a stream
/// of its own that begins and ends with `stream`.
///
/// Where streams share a hardware queue, what one waits for at its head holds up the others too. So slices are put there
/// in an order in which those of groups that are alike can always go on: all that is sent before all that is received, as
/// a slice that is sent waits for an earlier one to be received, and one that is received for the same one to be sent.
///
/// # Errors
/// The driver's. Part of it may be in the streams then.
pub(in super::super) fn walk(gpu: &Gpu, stream: &StreamRef, programs: &[&StreamsProgram]) -> Result<()> {
    let Some(first) = programs.first() else { return Ok(()) };
    let mut links: Vec<((Rank, Kind), u32)> = Vec::new();
    let mut places = Vec::with_capacity(programs.len());
    for program in programs {
        let link = (program.call.root, program.call.kind);
        let nth = links.iter().position(|(known, _)| *known == link).unwrap_or_else(|| {
            links.push((link, 0));
            links.len() - 1
        });
        places.push(nth);
    }
    let cuda = |error| failed(first.shared.rank, first.call.kind.name(), error);
    let asides = first.shared.asides(gpu, links.len() - 1).map_err(cuda)?;
    let asides: Vec<StreamRef> = asides.iter().map(|aside| gpu.context().stream_ref(aside.raw())).collect();
    if !asides.is_empty() {
        let begin = gpu.event().map_err(cuda)?;
        stream.record(&begin).map_err(cuda)?;
        asides.iter().try_for_each(|aside| aside.wait_event(&begin)).map_err(cuda)?;
    }
    let stream_of = |nth: usize| match nth.checked_sub(1) {
        Some(nth) if !asides.is_empty() => &asides[nth % asides.len()],
        _ => stream,
    };
    let mut walks = Vec::with_capacity(programs.len());
    for (program, nth) in programs.iter().zip(places) {
        let before = &mut links[nth].1;
        let walk = program.begin(gpu, stream_of(nth), *before);
        *before += walk.executor.iterations();
        walks.push(walk);
    }
    put_slices(programs, &mut walks)?;
    for aside in &asides {
        let end = gpu.event().map_err(cuda)?;
        aside.record(&end).and_then(|()| stream.wait_event(&end)).map_err(cuda)?;
    }
    Ok(())
}

fn put_slices(programs: &[&StreamsProgram], walks: &mut [Walk<'_>]) -> Result<()> {
    if let [walk] = walks {
        return walk.up_to(u32::MAX).and_then(|()| walk.end()).map_err(|stop| programs[0].failed(stop));
    }
    let slices = walks.iter().map(|walk| walk.before + walk.executor.iterations()).max().unwrap_or(0);
    for slice in 0..slices {
        for kind in [Kind::Send, Kind::Receive] {
            let of_kind = programs.iter().zip(&mut *walks).filter(|(program, _)| program.call.kind == kind);
            for (program, walk) in of_kind {
                let Some(own) = slice.checked_sub(walk.before) else { continue };
                if own < walk.executor.iterations() {
                    let is_last = own + 1 == walk.executor.iterations();
                    let walked = walk.up_to(own + 1);
                    let ended = walked.and_then(|()| if is_last { walk.end() } else { Ok(()) });
                    ended.map_err(|stop| program.failed(stop))?;
                }
            }
        }
    }
    Ok(())
}

impl StreamsProgram {
    /// Counts what it will fill and empty, from where on the links stand now.
    fn begin<'a>(&'a self, gpu: &'a Gpu, stream: &'a StreamRef, before: u32) -> Walk<'a> {
        let (plan, slot_bytes) = (&*self.plan, self.slot_bytes);
        let extents = extents(plan, &self.call, &self.blocks, self.shared.rank, self.size);
        let sizes = Sizes { extents, slot_bytes, tag: 0 };
        let mut links = self.shared.links();
        // Slots of another length must find the mailbox empty.
        let mut empty = Vec::new();
        for word in self.words.iter().filter(|word| word.waits && !word.at.is_here) {
            let link = links.link(word.at);
            if link.slot_bytes != slot_bytes {
                if link.filled[0] > 0 {
                    empty.push((word.word.device_span(), link.filled[0]));
                }
                link.slot_bytes = slot_bytes;
            }
        }
        let count = |links: &Links, at: Mailbox| links.counts(at)[0];
        let mut executor = Executor::default();
        executor.start(
            plan,
            &sizes,
            |counter| count(&links, self.words[counter].at),
            |region| self.places[region].1.map_or(0, |at| count(&links, at)),
        );
        for (region, place) in plan.regions.iter().zip(&self.places) {
            let slots = u64::from(region.slots_per_iteration) * u64::from(executor.iterations());
            if let Some(at) = place.1 {
                links.settle(at, 1, slots);
            }
        }
        let incoming = self.words.iter().filter(|word| word.waits && word.at.is_here);
        let awaited = incoming.map(|word| (word.at.peer, word.word.clone(), count(&links, word.at)));
        // Set once: a program is walked once.
        let _ = self.awaited.set(awaited.collect());
        let io = StreamIo {
            gpu,
            stream,
            reducer: reducer(&self.call, self.size),
            places: &self.places,
            words: &self.words,
            reached: vec![0; self.words.len()],
            blocks_max: self.blocks_max,
        };
        Walk { plan, sizes, executor, io, empty, before, over: self.over }
    }

    fn failed(&self, stop: Stop<CudaError>) -> Error {
        match stop {
            Stop::Fault(error) => failed(self.shared.rank, self.call.kind.name(), error),
            Stop::Mismatch { .. } => Error::internal("a stream without tags differs"),
        }
    }
}

impl Walk<'_> {
    /// Goes on until the first `slices` slices are in the stream, or all.
    fn up_to(&mut self, slices: u32) -> std::result::Result<(), Stop<CudaError>> {
        for (word, value) in self.empty.drain(..) {
            self.io.stream.wait_value(word, value).map_err(Stop::Fault)?;
        }
        self.executor.limit_turns(if slices == u32::MAX { 0 } else { 1 });
        while self.executor.slices_done() < slices.min(self.executor.iterations()) {
            // Nothing blocks it: what it waits for the stream waits for.
            self.executor.advance(self.plan, &self.sizes, &mut self.io)?;
        }
        Ok(())
    }

    /// The whole program is in the stream: the write that says that it is over comes next.
    fn end(&mut self) -> std::result::Result<(), Stop<CudaError>> {
        self.io.flush().map_err(Stop::Fault)?;
        let (word, number) = self.over;
        self.io.stream.write_value(word, number).map_err(Stop::Fault)
    }
}

/// The memory of the plan's regions.
fn places(
    shared: &Shared,
    plan: &Plan,
    boxes: &Boxes,
    entry: &Entry<'_>,
    scratch: Option<DeviceSpan>,
) -> Result<Vec<Place>> {
    let place = |region: Region| match region {
        Region::Input(rank) if rank == plan.rank => Some((entry.input, None)),
        Region::Output(rank) if rank == plan.rank => Some((entry.output, None)),
        // A plan may still name a scratch region that was fused away.
        Region::Scratch if plan.scratch == 0 => Some((DeviceSpan::empty(), None)),
        Region::Scratch => Some((scratch?, None)),
        region => boxes.of_region(region).and_then(|at| Some((shared.slots(at)?, Some(at)))),
    };
    debug_assert!(plan.slots <= SLOTS);
    let places: Option<Vec<Place>> = plan.regions.iter().map(|used| place(used.region)).collect();
    places.ok_or_else(|| Error::internal(format!("the plan {} has regions that streams do not", plan.name)))
}

/// The words of the plan's counters.
fn words(shared: &Shared, plan: &Plan, boxes: &Boxes) -> Result<Vec<Word>> {
    let word = |id: &CounterId| {
        let (at, counter) = boxes.of_counter(id)?;
        Some(Word { at, word: shared.word(at, counter)?, waits: at.waits(counter) })
    };
    let words: Option<Vec<Word>> = plan.counters.iter().map(|counter| word(&counter.id)).collect();
    words.ok_or_else(|| Error::internal(format!("the plan {} has counters that streams do not", plan.name)))
}

impl InMailboxes for StreamsCall {
    fn peers(&self, _shared: &Shared) -> Vec<Rank> {
        let behind = |(_, word, end): &&Awaited| word.load_acquire() < *end;
        self.awaited.get().into_iter().flatten().filter(behind).map(|(peer, ..)| *peer).collect()
    }

    fn standing(&self, shared: &Shared) -> Option<Standing> {
        let peer = *self.peers(shared).first()?;
        Some(Standing { peer, step: 0, steps: 0, slice: 0, slices: 0 })
    }

    fn algorithm(&self) -> &str {
        &self.name
    }
}
