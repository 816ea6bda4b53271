//! A communicator's place on devices: which device each rank has, and how operations on them run.
//!
//! Invariant: made by all ranks together, and the same path on all of them; operations of a communicator follow each
//! other on the device in the order of the calls, whatever streams they are in, but for those of one rank that nothing watches
//! ([`super::alone`]). Absent: typed calls.

use std::any::Any;
use std::sync::{Arc, Mutex, PoisonError};

use consort_algorithms::{Block, Collective};
use consort_cuda::NvLinks;
use consort_cuda::{CaptureStatus, Context, DeviceSpan, Event, RawStream};
use consort_kernels::cuda::{Kernel, Types};

use super::alone;
use super::fused::{Fused, FusedCall, reducer};
use super::gpu::{Gpu, Pooled};
use super::host::Host;
use super::p2p;
use super::shared::{KernelsCall, OneShotCall, Order, Shared, StreamsCall, message_blocks};
use super::submission::{self, Ordered, Submissions};
use super::table::{self, RECORD_BYTES, Record};
use super::trouble::failed;
use crate::Rank;
use crate::communicator::Communicator;
use crate::communicator::streams::{Batch, Streamed, enqueue};
use crate::engine::watched::Watched;
use crate::engine::{Memory, Request, Source};
use crate::planner::{Explanation, Ground, Path, Paths, Planning};
use crate::ticket::Ticket;
use consort_types::blocks::Blocks;
use consort_types::call::{Call, Kind};
use consort_types::error::{Error, Result};

/// The place of a communicator's rank on a device.
pub struct Placement {
    pub(super) gpu: Arc<Gpu>,
    pub(super) rank: Rank,
    pub(super) ranks: u32,
    path: Path,
    /// All paths, with the objections to them.
    paths: Paths,
    ground: Ground,
    way: Way,
    /// Thread blocks of a launch that are this rank's share.
    pub(super) blocks_max: u32,
    pub(super) last: Arc<Last>,
}

/// The path's own state.
enum Way {
    Fused(Arc<Fused>),
    /// Mailboxes: by kernels, or by streams.
    Shared(Arc<Shared>),
    Host(Host),
}

/// The event after the last operation.
#[derive(Default)]
pub(super) struct Last(Mutex<Option<Arc<Pooled<Event>>>>);

impl Last {
    /// The next operation comes after `event`.
    pub(super) fn set(&self, event: Arc<Pooled<Event>>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(event);
    }

    /// The event, which every stream waits for, also that of the last operation: the same handle may mean another stream
    /// later, or on another thread.
    pub(super) fn event(&self) -> Option<Arc<Pooled<Event>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// A data call on memory of a device.
#[allow(missing_docs)]
#[doc(hidden)]
pub struct Entry<'a> {
    pub communicator: &'a Communicator,
    pub placement: &'a Arc<Placement>,
    pub call: Call,
    pub blocks: Option<Blocks<'a>>,
    pub input: DeviceSpan,
    pub output: DeviceSpan,
    pub stream: RawStream,
    /// Values that must live until the operation is over.
    pub kept: Vec<Arc<dyn Any + Send + Sync>>,
}

impl Placement {
    /// Makes the placement, together with all other ranks; a collective.
    #[doc(hidden)]
    pub fn make(communicator: &Communicator, context: &Context) -> Result<Arc<Self>> {
        let (rank, ranks) = (communicator.rank(), communicator.size());
        let gpu = Gpu::of(context);
        communicator.core().is_put_on(gpu.number());
        let group = &communicator.core().group;
        let near = |rank: &u32| group.member.is_near(*rank);
        let shares = group.members.iter().filter(|of| **of != group.member.rank).all(near)
            && p2p::is_allowed(context.device())?;
        let process = group.member.table[group.member.rank as usize].process;
        let within = communicator.core().settings.thread_blocks;
        let loads = loads(&gpu, rank);
        let device = context.device();
        let mine = Record {
            process,
            uuid: device.uuid,
            ordinal: device.ordinal,
            multiprocessors: device.multiprocessors,
            within,
            stream_memory_operations: device.stream_memory_operations,
            loads,
            shares,
            wish: table::wish()?,
        };
        let records = exchange(communicator, &mine)?;
        let determinism = communicator.core().settings.preferences.determinism;
        let planning = &communicator.core().planning;
        let (wanted, mut paths) = table::choose(&records, determinism, planning.forbids_fused())?;
        match wanted {
            Path::Streams => load(&gpu, rank, &[Kernel::Fold], Types::Assembled),
            // Where ranks of this process share the device, none may load while a kernel of another waits for it.
            Path::Kernels => {
                let types = if table::has_neighbour(&records, &mine) { Types::All } else { Types::Assembled };
                load(&gpu, rank, &[Kernel::Run, Kernel::OneShot], types);
            }
            // Ranks of this process that are fused later load while others here wait for other processes.
            Path::Host if loads && table::is_mixed(&records, &mine) => {
                load(&gpu, rank, &[Kernel::Fold], Types::All);
            }
            Path::Fused | Path::Host => {}
        }
        let blocks_max = table::blocks_max(&records, wanted);
        let ground = Ground::new(wanted, blocks_max, !table::has_neighbours(&records));
        let shared = match wanted {
            Path::Streams | Path::Kernels => Shared::make(communicator, &gpu, ground)?.map(Arc::new),
            Path::Fused | Path::Host => None,
        };
        let (path, way) = match (wanted, shared) {
            (Path::Fused, _) => (Path::Fused, Way::Fused(Fused::of(group.uid, ranks))),
            (_, Some(shared)) => (wanted, Way::Shared(shared)),
            (_, None) => (Path::Host, Way::Host(Host::new(&records, rank))),
        };
        let tried = || "ranks tried to reach each other's devices, and could not".to_owned();
        if let Some((_, against)) = paths.iter_mut().find(|(of, _)| *of == wanted && path != wanted) {
            *against = Some(tried());
        }
        planning.expect_table_of(path);
        let blocks_max = table::blocks_max(&records, path);
        let ground = if path == wanted { ground } else { Ground::new(path, blocks_max, true) };
        Ok(Arc::new(Placement {
            gpu,
            rank,
            ranks,
            path,
            paths,
            ground,
            way,
            blocks_max,
            last: Arc::default(),
        }))
    }

    /// The path that operations take.
    pub fn path(&self) -> Path {
        self.path
    }

    /// Bytes of device memory that the communicator holds beside the callers' buffers, its kernels apart.
    pub fn device_bytes(&self) -> usize {
        match &self.way {
            Way::Shared(shared) => shared.device_bytes(),
            Way::Fused(_) | Way::Host(_) => 0,
        }
    }

    /// Lets everything of this rank on its device go on.
    pub(super) fn release(&self) {
        if let Way::Shared(shared) = &self.way {
            shared.release();
        }
    }

    /// Whether a call is one launch of its own, in packets.
    pub(super) fn is_one_shot(&self, call: &Call) -> bool {
        matches!(&self.way, Way::Shared(shared) if self.path == Path::Kernels && shared.takes_packets(call))
    }

    /// Thread blocks that a message has.
    pub(super) fn message_blocks(&self, call: &Call) -> u32 {
        message_blocks(call, self.ranks, call.count * call.data_type.size(), self.blocks_max)
    }

    /// The candidates for a collective on devices.
    pub(super) fn explain(
        &self,
        planning: &Planning,
        collective: Collective,
        block_bytes: u64,
    ) -> Result<Explanation> {
        planning.explain_on(collective, block_bytes, self.rank, self.ground, &self.paths)
    }

    /// For people: how it gets to its peers.
    #[doc(hidden)]
    pub fn describe(&self) -> String {
        let device = self.gpu.context().device();
        let links = match NvLinks::of(device) {
            Ok(links) if !links.up.is_empty() => format!(", {} NVLinks up", links.up.len()),
            _ => String::new(),
        };
        format!("device {} ({}), {} path{links}", device.ordinal, device.name, self.path)
    }

    /// The operation of a call. The caller has entered the context.
    fn make_call<'e, 'a>(
        &self,
        request: &Request,
        ordered: &Ordered<'e, 'a>,
        submissions: &Submissions<'e, 'a>,
    ) -> Result<(Box<dyn Watched>, Memory)> {
        let entry = ordered.entry;
        let cuda = |error| failed(self.rank, request.call.kind.name(), error);
        let stream = self.gpu.context().stream_ref(entry.stream);
        let element = entry.call.data_type.size();
        let blocks: Vec<Block> = entry.blocks.map_or(Vec::new(), |blocks| blocks.bytes(element).collect());
        if let (Some(set), Way::Shared(shared)) = (ordered.set, &self.way) {
            let submission = &submissions.of(set);
            let order = Order { shared, entry, blocks: &blocks, number: request.sequence, submission };
            let (made, memory, work) = match self.path {
                Path::Kernels if self.is_one_shot(&entry.call) => OneShotCall::make(order)?,
                Path::Kernels => KernelsCall::make(order)?,
                _ => StreamsCall::make(order)?,
            };
            submissions.join(set, entry, work);
            return Ok((made, memory));
        }
        if let Some(before) = self.last.event() {
            stream.wait_event(&before).map_err(cuda)?;
        }
        match &self.way {
            Way::Fused(fused) => {
                let ready = Arc::new(self.gpu.event().map_err(cuda)?);
                stream.record(&ready).map_err(cuda)?;
                let call = FusedCall::new(fused, entry, request.sequence, blocks, ready);
                let kept = entry.kept.clone();
                Ok((Box::new(call), Memory { input: Source::Elsewhere, output: None, _kept: kept }))
            }
            Way::Shared(_) => Err(Error::internal("a call of a device without a set")),
            Way::Host(host) => host.call(entry).map(|(call, memory)| (Box::new(call) as _, memory)),
        }
    }
}

impl std::fmt::Debug for Placement {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Placement")
            .field("rank", &self.rank)
            .field("ranks", &self.ranks)
            .field("path", &self.path)
            .field("gpu", &self.gpu)
            .finish_non_exhaustive()
    }
}

/// Whether kernels load on the device: on one for which there is no image all goes through the host.
fn loads(gpu: &Gpu, rank: Rank) -> bool {
    let loaded = gpu.kernels.prepare(Kernel::Fold, None);
    if let Err(error) = &loaded {
        let device = gpu.context().device();
        let (major, minor) = device.compute_capability;
        consort_settings::notice::warn(&format!(
            "rank {rank} goes through the host: no kernel loads on its device {} ({}, compute capability \
             {major}.{minor}): {error}",
            device.ordinal, device.name
        ));
    }
    loaded.is_ok()
}

/// Loads kernels before any rank has an operation of a communicator under way. To load, the driver may wait for the device,
/// and so for operations of other ranks of this process that wait for other processes, where another thread may be about to
/// load too.
fn load(gpu: &Gpu, rank: Rank, kernels: &[Kernel], types: Types) {
    /// Operations under way, about, and those that are over and have not been freed, for which no slots have to be made.
    const SLOTS_AT_ONCE: usize = 320;
    let prepared = |kernel: &Kernel| gpu.kernels.prepare_all(*kernel, types);
    let loaded = kernels.iter().try_for_each(prepared);
    if let Err(error) = loaded.and_then(|()| gpu.slots.reserve(SLOTS_AT_ONCE)) {
        // A type that no call uses may stay away; a call that uses it says so.
        consort_settings::notice::warn(&format!("rank {rank}: not all kernels are on its device: {error}"));
    }
}

/// Takes from the driver what the calls may need, before this thread has an engine: the driver may wait for the device, and
/// the device for operations under way that a thread must drive.
fn prepare(entries: &[Entry<'_>]) -> Result<()> {
    /// Slots of one call, at most.
    const SLOTS_EACH: usize = 4;
    let mut staged = Vec::new();
    for entry in entries.iter().filter(|entry| !entry.is_own() && entry.call.count > 0) {
        let placement = &**entry.placement;
        let Placement { gpu, rank, ranks, path, way, .. } = placement;
        let cuda = |error| failed(*rank, entry.call.kind.name(), error);
        let _entered = gpu.context().enter().map_err(cuda)?;
        gpu.slots.reserve(SLOTS_EACH * entries.len()).map_err(cuda)?;
        let kernel = match path {
            Path::Fused | Path::Streams => Kernel::Fold,
            Path::Kernels if placement.is_one_shot(&entry.call) => Kernel::OneShot,
            Path::Kernels => Kernel::Run,
            Path::Host => {
                for span in [entry.input, entry.output].into_iter().filter(|span| !span.is_empty()) {
                    staged.push(gpu.staging(span.len()).map_err(cuda)?);
                }
                continue;
            }
        };
        gpu.kernels.prepare(kernel, reducer(&entry.call, *ranks).as_ref()).map_err(cuda)?;
        if let Way::Shared(shared) = way {
            shared.prepare(gpu, entry.communicator, &entry.call)?;
        }
    }
    // Back in the pools, where the calls find it.
    drop(staged);
    Ok(())
}

/// Copies the messages of ranks to themselves, in the order of the calls. No other rank has to know of them.
fn copy_own(entries: &[Entry<'_>]) -> Result<()> {
    let of = |entry: &Entry<'_>, kind: Kind| entry.is_own() && entry.call.kind == kind;
    for (at, sent) in entries.iter().enumerate().filter(|(_, entry)| of(entry, Kind::Send)) {
        let core = sent.communicator.core();
        let same = |entry: &&Entry<'_>| Arc::ptr_eq(entry.communicator.core(), core);
        let before = entries[..at].iter().filter(same).filter(|entry| of(entry, Kind::Send)).count();
        let mut received = entries.iter().filter(same).filter(|entry| of(entry, Kind::Receive));
        let received = received.nth(before).filter(|received| received.output.len() == sent.input.len());
        let Some(received) = received else { return Err(unmatched(sent)) };
        let (placement, rank) = (sent.placement, sent.placement.rank);
        let cuda = |error| failed(rank, "a copy of what it sends to itself", error);
        let context = placement.gpu.context();
        let _entered = context.enter().map_err(cuda)?;
        let (from, to) = (context.stream_ref(sent.stream), context.stream_ref(received.stream));
        if sent.stream == received.stream {
            to.copy(received.output, sent.input).map_err(cuda)?;
            continue;
        }
        let (ready, done) = (placement.gpu.event().map_err(cuda)?, placement.gpu.event().map_err(cuda)?);
        from.record(&ready).and_then(|()| to.wait_event(&ready)).map_err(cuda)?;
        to.copy(received.output, sent.input).map_err(cuda)?;
        to.record(&done).and_then(|()| from.wait_event(&done)).map_err(cuda)?;
    }
    let ends = |kind| entries.iter().filter(|entry| of(entry, kind)).count();
    match entries.iter().find(|entry| of(entry, Kind::Receive)) {
        Some(received) if ends(Kind::Send) != ends(Kind::Receive) => Err(unmatched(received)),
        _ => Ok(()),
    }
}

fn unmatched(entry: &Entry<'_>) -> Error {
    let (kind, rank) = (entry.call.kind.name(), entry.placement.rank);
    Error::invalid(
        format!(
            "{kind}: rank {rank} is this rank, and the other end of the message is not there or has another length"
        ),
        "pass both ends of such a message in the same group",
    )
}

impl Entry<'_> {
    /// Whether it is an end of a message of a rank to itself.
    pub(super) fn is_own(&self) -> bool {
        self.call.kind.is_message() && self.call.root == self.placement.rank
    }

    /// Whether operations can be put into the stream.
    fn check_stream(&self) -> Result<()> {
        let cuda = |error| failed(self.placement.rank, "asking for its stream", error);
        let context = self.placement.gpu.context();
        let _entered = context.enter().map_err(cuda)?;
        match context.stream_ref(self.stream).capture_status().map_err(cuda)? {
            CaptureStatus::None => Ok(()),
            CaptureStatus::Active | CaptureStatus::Invalidated => Err(Error::invalid(
                format!("{}: the stream is being captured into a graph", self.call.kind.name()),
                "call outside of the capture; graphs of collectives are not supported yet",
            )),
        }
    }
}

/// All ranks' records.
fn exchange(communicator: &Communicator, mine: &Record) -> Result<Vec<Record>> {
    let (_, all) = communicator.all_say(Kind::Devices, &mine.to_bytes())?;
    let records = all.as_chunks::<RECORD_BYTES>().0.iter().map(Record::from_bytes);
    let records: Option<Vec<Record>> = records.collect();
    records.ok_or_else(|| Error::internal("a rank's record of its device makes no sense"))
}

/// Puts calls that have been checked into their streams, and returns when they are there; a ticket for each
/// communicator whose operations are watched.
///
/// # Errors
/// As [`enqueue`].
pub(crate) fn issue(entries: &[Entry<'_>]) -> Result<Vec<Arc<Ticket>>> {
    for entry in entries {
        entry.communicator.core().check()?;
    }
    if entries.iter().all(Entry::is_alone) {
        alone::issue(entries)?;
        return Ok(Vec::new());
    }
    entries.iter().try_for_each(Entry::check_stream)?;
    prepare(entries)?;
    copy_own(entries)?;
    let (calls, submissions) = submission::ordered(entries);
    let mut batches: Vec<Batch<'_>> = Vec::new();
    for ordered in &calls {
        let entry = ordered.entry;
        let core = entry.communicator.core();
        core.planning.admit(&entry.call)?;
        let submissions = &submissions;
        let make = move |request: &Request| {
            let cuda = |error| failed(entry.placement.rank, "entering its context", error);
            let made = entry
                .placement
                .gpu
                .context()
                .enter()
                .map_err(cuda)
                .and_then(|_entered| entry.placement.make_call(request, ordered, submissions));
            // The part of the call that is in the stream already must not wait for ever.
            made.inspect_err(|error| {
                entry.placement.release();
                submissions.note(error);
            })
        };
        let streamed = Streamed { call: entry.call, blocks: entry.blocks, make: Box::new(make) };
        let timeout = entry.communicator.timeout();
        match batches.iter_mut().find(|batch| Arc::ptr_eq(batch.core, core)) {
            Some(batch) => {
                batch.timeout = batch.timeout.min(timeout);
                batch.calls.push(streamed);
            }
            None => {
                let process = entry.communicator.process();
                let in_turn = entry.placement.path == Path::Host;
                batches.push(Batch { core, process, timeout, in_turn, calls: vec![streamed] });
            }
        }
    }
    enqueue(batches, || submissions.close())
}

/// As `issue`, for bindings.
///
/// # Errors
/// As [`DeviceCommunicator::all_reduce`](super::DeviceCommunicator::all_reduce).
#[doc(hidden)]
pub fn issue_all(entries: &[Entry<'_>]) -> Result<()> {
    issue(entries).map(drop)
}
