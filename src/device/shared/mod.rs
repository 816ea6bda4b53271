//! Ranks that reach each other's devices, in whatever processes: mailboxes in arenas on the devices, and two ways to
//! run the verified plans over them.
//!
//! Invariant: every way between two ranks was tried before it is used. Where processes share a device nothing spins
//! ([`streams`]); where each rank has a device of its own its kernel runs the plan ([`kernels`]). Counters that streams
//! wait for lie in the host's memory ([`Words`]), those that kernels wait for on the device; a failing rank can let
//! either go on. Absent: ranks that all are in one process on one device (`fused`).

mod draft;
mod in_stream;
mod kernels;
mod one_shot;
mod own;
mod program;
mod streams;
mod upload;

use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;
use std::time::Instant;

use consort_cuda::{DeviceMemory, DeviceSpan, DeviceWord, PinnedMemory, Stream};
use consort_memory::sync::{AtomicU32, Ordering};
use consort_transports::cuda_ipc::{
    Arena, How, PeerArena, PeerWords, Probe, Words, check_pattern, write_pattern,
};
use consort_transports::{MemoryLender, TransportError};

pub(super) use in_stream::{Order, extents};
pub(super) use kernels::{KernelsCall, RunLaunch, RunProgram, message_blocks};
pub(super) use one_shot::{OneShotCall, OneShotLaunch};
use own::Own;
pub(super) use streams::{StreamsCall, StreamsProgram, walk};
use upload::Programs;

use super::fused::reducer;
use super::gpu::{Gpu, Pooled};
use super::trouble::failed;
use crate::Rank;
use crate::communicator::{Communicator, Core};
use crate::planner::{
    BOXES, CLASSES, Carrier, Ground, INSTANCES_MAX, PACKET_BYTES, Path, Planner, Planning, Proved, stride,
};
use crate::wait::Look;
use consort_settings::options::SLOTS;
use consort_types::call::Descriptor;
use consort_types::call::{Call, Kind};
use consort_types::error::{Error, Result};

/// Bytes in which a peer shows that it reaches this rank.
const PROBE_BYTES: usize = 4096;
/// Sets of packets.
const PACKET_SETS: usize = 2;
/// The mailbox of messages, after those of collectives.
const MESSAGES: usize = BOXES;
/// Bytes from one counter to the next.
const COUNTER_STRIDE: usize = 64;
/// Bytes of the counters that one peer raises.
const COUNTER_BYTES: usize = CLASSES * 2 * INSTANCES_MAX * COUNTER_STRIDE;
/// Bytes of the packets of one peer: half of each packet is its flag.
const PEER_PACKET_BYTES: usize = PACKET_SETS * 2 * PACKET_BYTES;
/// Words that one peer writes: two counters of each class, a goodbye, and what its last collectives and messages were.
const WORDS_PER_PEER: u32 = GOODBYE + 1 + 2 * MARKS;
const GOODBYE: u32 = CLASSES as u32 * 2;
/// Calls whose marks are kept: more than a peer is ahead of one that it needs.
const MARKS: u32 = 16;
/// Bytes of what ranks tell each other of their arenas.
const OFFER_BYTES: usize = 512;

/// A rank's arena and its ways to its peers.
pub(super) struct Shared {
    pub(super) rank: Rank,
    own: Own,
    peers: Vec<Option<Peer>>,
    stride: usize,
    links: Mutex<Links>,
    /// The abort word that kernels poll: they leave when it is not zero.
    abort: PinnedMemory,
    programs: Programs,
    /// The planning of the communicator, which selects by it and by `ground`.
    planning: Arc<Planning>,
    ground: Ground,
    /// The number of the last call in packets.
    flag: AtomicU32,
    /// The stream in which the ways to the peers are tried.
    trial: Stream,
    /// Streams in which the messages of a group go beside each other, on the path `streams`.
    asides: Mutex<Vec<Arc<Stream>>>,
    /// Memory for what a plan keeps between its steps.
    scratch: Mutex<Option<Arc<Pooled<DeviceMemory>>>>,
}

/// Streams in which the messages of a group go beside each other, at most: as many as the links of a rank of eight.
const ASIDES_MAX: usize = 14;

impl Drop for Shared {
    fn drop(&mut self) {
        if own::is_inherited() {
            return;
        }
        // Its operations are over, or the communicator has failed and they were let go.
        for peer in self.peers.iter().flatten() {
            peer.words.word(self.rank * WORDS_PER_PEER + GOODBYE).store_release(1);
        }
    }
}

/// A peer's memory as it is here.
struct Peer {
    arena: PeerArena,
    words: PeerWords,
}

/// The mark of a call, as its peers were notified, and the ranks that must have written the same mark.
struct Announced {
    mark: u64,
    index: u32,
    from: Vec<Rank>,
}

/// The bits of a mark that are the number of its call.
const MARK_NUMBER: u64 = 0xffff;

/// A mailbox between this rank and another.
#[derive(Clone, Copy, Debug)]
struct Mailbox {
    /// The other rank.
    peer: Rank,
    /// The mailbox's number among those of the pair.
    class: usize,
    /// The first of the instances whose part of the mailbox is meant.
    part: usize,
    /// Whether the mailbox lies here: the peer fills it and this rank empties it; or the other way round.
    is_here: bool,
}

impl Mailbox {
    /// Whether this rank waits for a counter of the mailbox, which then lies here, or raises it at the peer.
    fn waits(self, counter: Counter) -> bool {
        self.is_here == (counter == Counter::Ready)
    }
}

/// The slots that have travelled, for each peer and class of mailbox.
struct Links(Vec<[Link; CLASSES]>);

/// The slots of a mailbox that each instance of a program has moved; the path `streams` has one instance.
#[derive(Clone, Copy, Default, Debug)]
struct Link {
    /// Slots filled at the peer since the beginning.
    filled: [u64; INSTANCES_MAX],
    /// Slots emptied here since the beginning.
    emptied: [u64; INSTANCES_MAX],
    /// The slot length of the last operation that filled.
    slot_bytes: usize,
}

impl Links {
    fn link(&mut self, at: Mailbox) -> &mut Link {
        &mut self.0[at.peer as usize][at.class]
    }

    /// Slots of a mailbox that this rank has filled or emptied since the beginning.
    fn counts(&self, at: Mailbox) -> &[u64; INSTANCES_MAX] {
        let link = &self.0[at.peer as usize][at.class];
        if at.is_here { &link.emptied } else { &link.filled }
    }

    /// `slots` more, by each of the first `instances` instances of the part.
    fn settle(&mut self, at: Mailbox, instances: usize, slots: u64) {
        let link = self.link(at);
        let counts = if at.is_here { &mut link.emptied } else { &mut link.filled };
        counts[at.part..][..instances].iter_mut().for_each(|count| *count += slots);
    }
}

/// One of the two counters of a mailbox.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Counter {
    Ready = 0,
    Credit = 1,
}

impl Shared {
    /// Makes the arenas of all ranks known to each other and tries the ways between them; `None`, on all ranks, if one
    /// does not carry what it should. A collective.
    pub(super) fn make(communicator: &Communicator, gpu: &Arc<Gpu>, ground: Ground) -> Result<Option<Self>> {
        let (rank, ranks) = (communicator.rank(), communicator.size());
        let stride = stride(ranks);
        let shm = communicator.core().shared.memory.clone();
        let prepared = shm.as_deref().and_then(|shm| {
            let prepared = prepare(gpu, shm, rank, ranks, stride).inspect_err(|error| {
                consort_settings::notice::warn(&format!(
                    "rank {rank} goes through the host: memory for its peers: {error}"
                ));
            });
            prepared.ok()
        });
        let mine = prepared.as_ref().map(|made| (made.arena.offer().to_vec(), made.words.offer().to_vec()));
        let (arena, words) = mine.unwrap_or_default();
        let offers = exchange(communicator, &arena, &words)?;
        let (Some(shm), Some(Prepared { arena, words, abort, trial })) = (shm, prepared) else {
            return Ok(None);
        };
        if offers.iter().any(|(arena, _)| arena.is_empty()) {
            return Ok(None);
        }
        let peers = open(communicator, gpu, &*shm, &offers).inspect_err(|error| {
            tracing::warn!(rank, "peers' devices are not reached, going through the host: {error}");
        });
        // No rank writes to a peer that another has given up.
        let Some(peers) = agree(communicator, peers.ok())? else { return Ok(None) };
        let made = Shared {
            rank,
            own: Own::new(arena, words, &peers),
            peers,
            stride,
            links: Mutex::new(Links(vec![[Link::default(); CLASSES]; ranks as usize])),
            abort,
            programs: Programs::default(),
            planning: communicator.core().planning.clone(),
            ground,
            flag: AtomicU32::new(0),
            trial,
            asides: Mutex::default(),
            scratch: Mutex::default(),
        };
        let made = match made.try_ways(communicator) {
            Ok(()) => Some(made),
            Err(Failed { error, hangs }) => {
                consort_settings::notice::warn(&format!(
                    "rank {rank}: a way between devices fails its test: {error}"
                ));
                if hangs {
                    // The device may still touch what it was given, and to free anything of it would wait for the copy.
                    std::mem::forget((made, gpu.clone()));
                }
                None
            }
        };
        agree(communicator, made)
    }

    /// Writes to all peers, and looks whether they wrote here.
    fn try_ways(&self, communicator: &Communicator) -> std::result::Result<(), Failed> {
        let seed = |from: Rank, to: Rank| {
            communicator.core().group.uid ^ u64::from(from) << 32 ^ u64::from(to).wrapping_mul(0x9e37_79b9)
        };
        let stream = &*self.trial;
        let core = communicator.core();
        // Peers that wait for this rank below have deadlines too.
        let limit = core.settings.connect_timeout.min(communicator.timeout() / 2);
        let failed = |peer: Rank, error: TransportError| Failed {
            hangs: matches!(error, TransportError::SelfTestHangs { .. }),
            error: Error::Link {
                from: self.rank,
                to: peer,
                transport: error.transport().into(),
                cause: error.to_string(),
            },
        };
        let mut written = Ok(());
        // Not for ever: a bus may lose a copy.
        let ended = |until, mut probe: Probe| {
            let late = TransportError::SelfTestHangs { transport: "cuda-ipc", after: limit };
            patiently(core, until, late, || probe.poll())
        };
        let until = Instant::now().checked_add(limit);
        for (peer, of) in (0u32..).zip(&self.peers) {
            let Some(of) = of else { continue };
            let place = of.arena.span().slice(self.rank as usize * PROBE_BYTES, PROBE_BYTES);
            let seed = seed(self.rank, peer);
            let write = || ended(until, write_pattern(stream, place, seed)?);
            written = written.and_then(|()| write().map_err(|error| failed(peer, error)));
        }
        // In any case: the others wait here.
        let said = communicator.all_say(Kind::Devices, &[1u8]);
        written?;
        said.map_err(|error| Failed { error, hangs: false })?;
        let until = Instant::now().checked_add(limit);
        for (peer, _) in (0u32..).zip(&self.peers).filter(|(_, of)| of.is_some()) {
            let place = self.own.arena().span().slice(peer as usize * PROBE_BYTES, PROBE_BYTES);
            check_pattern(stream, place, seed(peer, self.rank))
                .and_then(|probe| ended(until, probe))
                .map_err(|error| failed(peer, error))?;
        }
        Ok(())
    }

    /// `count` streams beside the caller's, or [`ASIDES_MAX`].
    fn asides(&self, gpu: &Gpu, count: usize) -> consort_cuda::Result<Vec<Arc<Stream>>> {
        let mut asides = self.asides.lock().unwrap_or_else(PoisonError::into_inner);
        let count = count.min(ASIDES_MAX);
        while asides.len() < count {
            asides.push(Arc::new(gpu.context().create_stream()?));
        }
        Ok(asides[..count].to_vec())
    }

    /// Whether a call is one that a kernel of its own runs, in packets.
    pub(super) fn takes_packets(&self, call: &Call) -> bool {
        let way = self.planning.way_of(call, self.rank, self.ground);
        way.is_ok_and(|(carrier, _)| carrier == Carrier::Packets)
    }

    /// The program for a call that does not go in packets, the same on all ranks.
    ///
    /// # Errors
    /// Where nothing is left that runs here, with the reason against each candidate.
    fn program(&self, call: &Call) -> Result<Proved> {
        let (_, algorithm) = self.planning.way_of(call, self.rank, self.ground)?;
        Planner::of_process().for_devices(call, algorithm, self.rank, self.planning.ranks())
    }

    fn links(&self) -> std::sync::MutexGuard<'_, Links> {
        self.links.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An arena as it is mapped here: this rank's, or that of a peer; and who of the two writes there.
    fn arena(&self, peer: Rank, is_here: bool) -> Option<(DeviceSpan, usize)> {
        if is_here {
            return Some((self.own.arena().span(), peer as usize));
        }
        Some((self.peers.get(peer as usize)?.as_ref()?.arena.span(), self.rank as usize))
    }

    /// The slots of a mailbox.
    fn slots(&self, at: Mailbox) -> Option<DeviceSpan> {
        let (arena, writer) = self.arena(at.peer, at.is_here)?;
        let bytes = SLOTS as usize * self.stride;
        let first = self.peers.len() * (PROBE_BYTES + COUNTER_BYTES + PEER_PACKET_BYTES);
        Some(arena.slice(first + (writer * CLASSES + at.class) * bytes, bytes))
    }

    /// The word of a mailbox that a stream waits for or raises.
    fn word(&self, at: Mailbox, counter: Counter) -> Option<DeviceWord> {
        let number = |writer: Rank| writer * WORDS_PER_PEER + at.class as u32 * 2 + counter as u32;
        if at.waits(counter) {
            return Some(self.own.words().word(number(at.peer)));
        }
        Some(self.peers.get(at.peer as usize)?.as_ref()?.words.word(number(self.rank)))
    }

    /// The counters of a mailbox, of all instances, that kernels wait for or raise.
    fn counters(&self, at: Mailbox, counter: Counter) -> Option<DeviceSpan> {
        let (arena, writer) = self.arena(at.peer, at.waits(counter))?;
        let bytes = INSTANCES_MAX * COUNTER_STRIDE;
        let first = self.peers.len() * PROBE_BYTES + writer * COUNTER_BYTES;
        Some(arena.slice(first + (at.class * 2 + counter as usize) * bytes, bytes))
    }

    /// A number for the next all-reduce in packets: never 0, which is what packets hold at first.
    fn next_flag(&self) -> u32 {
        // Relaxed: calls of a communicator follow each other.
        let flag = self.flag.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        // Sets take turns, also where the number begins again.
        if flag == 0 || flag == u32::MAX { self.next_flag() } else { flag }
    }

    /// The packets of `rank`, an area for each peer, that the call of this flag uses, as they are mapped here.
    fn packets_of(&self, rank: Rank, flag: u32) -> Option<DeviceSpan> {
        let (arena, _) = self.arena(rank, rank == self.rank)?;
        let ranks = self.peers.len();
        let bytes = ranks * 2 * PACKET_BYTES;
        let first = ranks * (PROBE_BYTES + COUNTER_BYTES);
        Some(arena.slice(first + (flag as usize % PACKET_SETS) * bytes, bytes))
    }

    /// Tells the peers what this call is. Marks are the host's to write: no stream has to wait for them.
    fn announce(&self, call: &Call, number: u64) -> Announced {
        let (of_messages, root) = (u32::from(call.kind.is_message()), call.root);
        let named = call.descriptor();
        let neutral = match call.kind {
            Kind::Send | Kind::Receive => Descriptor { kind: Kind::Send, root: 0, ..named },
            _ => named,
        };
        let mark = neutral.digest(number, 0) & !MARK_NUMBER | number & MARK_NUMBER;
        let index = GOODBYE + 1 + of_messages * MARKS + (number % u64::from(MARKS)) as u32;
        let all_peers = || (0..self.peers.len() as u32).filter(|peer| *peer != self.rank).collect();
        let (to, from): (Vec<Rank>, Vec<Rank>) = match call.kind {
            Kind::Send => (vec![root], Vec::new()),
            Kind::Receive => (Vec::new(), vec![root]),
            _ => (all_peers(), all_peers()),
        };
        for peer in to.iter().filter_map(|peer| self.peers.get(*peer as usize)?.as_ref()) {
            peer.words.word(self.rank * WORDS_PER_PEER + index).store_release(mark);
        }
        Announced { mark, index, from }
    }

    /// A peer whose call of the same number was another one, as far as its mark is still there.
    fn differs(&self, announced: &Announced) -> Option<Rank> {
        let Announced { mark, index, ref from } = *announced;
        let other = |peer: &&Rank| {
            let said = self.own.words().word(**peer * WORDS_PER_PEER + index).load_acquire();
            said != 0 && said & MARK_NUMBER == mark & MARK_NUMBER && said != mark
        };
        from.iter().find(other).copied()
    }

    /// Puts on the device what a call may need there, before it is made.
    ///
    /// # Errors
    /// The driver's; where there is no plan for it.
    pub(super) fn prepare(&self, gpu: &Gpu, communicator: &Communicator, call: &Call) -> Result<()> {
        if self.takes_packets(call) {
            return Ok(());
        }
        let proved = self.program(call)?;
        if self.ground.path == Path::Kernels {
            let reducer = reducer(call, communicator.size());
            self.programs.of(gpu, self.rank, &proved.plan, proved.fold_hash, reducer.as_ref()).map(drop)
        } else {
            self.scratch(gpu, proved.plan.scratch as usize * self.stride).map(drop)
        }
    }

    /// Memory for scratch places, kept for the next operation: they follow each other on the device.
    fn scratch(&self, gpu: &Gpu, bytes: usize) -> Result<Option<Arc<Pooled<DeviceMemory>>>> {
        if bytes == 0 {
            return Ok(None);
        }
        let mut scratch = self.scratch.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = scratch.as_ref().filter(|known| known.bytes() >= bytes) {
            return Ok(Some(known.clone()));
        }
        let memory = gpu.scratch(bytes);
        let memory = Arc::new(memory.map_err(|error| failed(self.rank, "scratch memory", error))?);
        *scratch = Some(memory.clone());
        Ok(Some(memory))
    }

    /// Lets everything of this rank go on, whichever peer it waits for.
    pub(super) fn release(&self) {
        self.abort.store_u32(0, 1);
        let words = self.own.words();
        for word in (0..words.len()).filter(|word| word % WORDS_PER_PEER < GOODBYE) {
            words.word(word).store_release(1 << 62);
        }
    }

    /// Bytes on the device.
    pub(super) fn device_bytes(&self) -> usize {
        let scratch = self.scratch.lock().unwrap_or_else(PoisonError::into_inner);
        self.own.arena().bytes() + scratch.as_ref().map_or(0, |scratch| scratch.bytes())
    }
}

fn transport(rank: Rank, error: TransportError) -> Error {
    Error::Device { rank, what: "sharing memory with its peers".into(), cause: error.to_string() }
}

/// The arena and the words that a rank has made before it knows of the others.
struct Prepared {
    arena: Arena,
    words: Words,
    abort: PinnedMemory,
    trial: Stream,
}

fn prepare(gpu: &Gpu, shm: &dyn MemoryLender, rank: Rank, ranks: u32, stride: usize) -> Result<Prepared> {
    let rank_bytes = PROBE_BYTES + COUNTER_BYTES + PEER_PACKET_BYTES + CLASSES * SLOTS as usize * stride;
    let (bytes, context) = (ranks as usize * rank_bytes, gpu.context());
    let refused = |error: TransportError| transport(rank, error);
    let arena = Arena::new(context, bytes, How::Legacy).or_else(|error| match error.is_unsupported() {
        true => Arena::new(context, bytes, How::Shareable(shm)),
        false => Err(error),
    });
    let arena = arena.map_err(refused)?;
    let words = Words::new(context, ranks * WORDS_PER_PEER, shm).map_err(refused)?;
    let abort = context.allocate_host(64).map_err(|error| failed(rank, "pinned memory", error))?;
    let trial = context.create_stream().map_err(|error| failed(rank, "a stream", error))?;
    Ok(Prepared { arena, words, abort, trial })
}

/// Whether all ranks have something: theirs, or nothing on all of them.
fn agree<T>(communicator: &Communicator, mine: Option<T>) -> Result<Option<T>> {
    let (_, all) = communicator.all_say(Kind::Devices, &[u8::from(mine.is_some())])?;
    Ok(mine.filter(|_| all.iter().all(|said| *said == 1)))
}

/// What all ranks offer: of an arena, and of words.
fn exchange(communicator: &Communicator, arena: &[u8], words: &[u8]) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let mut mine = vec![arena.len() as u8, words.len() as u8];
    mine.extend(arena);
    mine.extend(words);
    if arena.len() > 255 || words.len() > 255 || mine.len() > OFFER_BYTES {
        return Err(Error::internal("an offer of device memory is too long"));
    }
    mine.resize(OFFER_BYTES, 0);
    let (_, all) = communicator.all_say(Kind::Devices, &mine)?;
    let offers = all.as_chunks::<OFFER_BYTES>().0.iter().map(|offer| {
        let (first, second) = (usize::from(offer[0]), usize::from(offer[1]));
        let arena = offer.get(2..2 + first)?;
        Some((arena.to_vec(), offer.get(2 + first..2 + first + second)?.to_vec()))
    });
    let offers: Option<Vec<_>> = offers.collect();
    offers.ok_or_else(|| Error::internal("a rank's offer of device memory makes no sense"))
}

/// Opens what all other ranks offer.
fn open(
    communicator: &Communicator,
    gpu: &Gpu,
    shm: &dyn MemoryLender,
    offers: &[(Vec<u8>, Vec<u8>)],
) -> Result<Vec<Option<Peer>>> {
    let rank = communicator.rank();
    let refused = |error: TransportError| transport(rank, error);
    let core = communicator.core();
    let until = Instant::now().checked_add(core.settings.connect_timeout);
    let closed = || TransportError::PeerClosed { transport: "cuda-ipc" };
    let mut peers = Vec::with_capacity(offers.len());
    for (peer, (arena, words)) in (0u32..).zip(offers) {
        if peer == rank {
            peers.push(None);
            continue;
        }
        let mut arena = PeerArena::open(gpu.context(), arena, shm).map_err(refused)?;
        let arena = patiently(core, until, closed(), || arena.poll()).map_err(refused)?;
        let mut words = PeerWords::open(gpu.context(), words, shm).map_err(refused)?;
        let words = patiently(core, until, closed(), || words.poll()).map_err(refused)?;
        peers.push(Some(Peer { arena, words }));
    }
    Ok(peers)
}

/// Why the ways between the devices are not used.
struct Failed {
    error: Error,
    /// Whether the device has a copy under way that does not end.
    hangs: bool,
}

/// Polls until there is a value, but not beyond `until` nor when the communicator has failed: then `late` is the error.
fn patiently<T>(
    core: &Core,
    until: Option<Instant>,
    late: TransportError,
    mut poll: impl FnMut() -> std::result::Result<Poll<T>, TransportError>,
) -> std::result::Result<T, TransportError> {
    let mut waiter = core.waiter();
    loop {
        if let Poll::Ready(value) = poll()? {
            return Ok(value);
        }
        if until.is_some_and(|until| Instant::now() >= until) || core.group.has_failed() {
            return Err(late);
        }
        waiter.pause(Look::Load);
    }
}
