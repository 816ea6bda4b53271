//! A plan bound to the links of this communicator, and the memory that one operation brings.
//!
//! Invariant: nothing here is looked up by name while an operation runs; regions and counters of the plan are
//! indices into small tables made once per shape.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::task::Poll;

use consort_algorithms::plan::{Action, CounterId, CounterRole, CounterUse, Plan, Position, Region, Step};
use consort_algorithms::{Channel, Rank as Relative};
use consort_kernels::{Reducer, Source, Store, Target, copy};
use consort_memory::pool::Foreign;
use consort_memory::{Counter, Pool, Span, SpanMut};
use consort_transports::{Capabilities, CounterKind, PeerState, Property, TransportError};

use super::executor::{Blockage, Io, Piece, each};
use super::links::{Key, Links, kind, link_error};
use crate::Rank;
use crate::planner::{Choice, Proved, has_one_length};
use consort_control::report::evidence::{Traffic, Want};
use consort_settings::options::{SLOTS, digest};
use consort_types::error::{Error, Result};

/// A transport may defer a credit: a writer must have slots left to go on with. Slots are counted by masks.
const _: () = assert!(SLOTS > 2 && SLOTS.is_power_of_two() && SLOTS as u64 <= Pool::WINDOW_MAX);

/// Slots of a pool that are emptied before their writer hears of it: one look at a line that another core writes tells of all.
const CREDITS: u64 = 2;

/// The memory of a region of the plan.
#[derive(Clone, Copy, Debug)]
enum RegionMemory {
    Input,
    Output,
    Scratch,
    /// The own mailbox of a link.
    Mailbox(usize),
    /// The peer's mailbox of a link.
    Remote(usize),
}

/// Which counter a counter of the plan is.
struct BoundCounter {
    link: usize,
    kind: CounterKind,
    /// Here, when this rank waits for it.
    own: Option<Counter>,
    /// At the peer, when this rank raises it and can store to it.
    peer: Option<Counter>,
    /// Whether it counts what this rank fills, or what it empties.
    outgoing: bool,
}

/// A plan with everything resolved.
pub(crate) struct Bound {
    pub(crate) plan: Arc<Plan>,
    pub(crate) path: u64,
    pub(crate) slot_bytes: usize,
    pub(crate) bearings: Bearings,
    streaming: bool,
    memory: Vec<RegionMemory>,
    /// Of own mailboxes: whether each of their slots is read by one step, which may send it on in place.
    read_once: Vec<bool>,
    counters: Vec<BoundCounter>,
    /// Links whose deferred credits are flushed when an operation ends: those on which messages come and none go, where no credit
    /// is piggybacked, and those whose slots may have another length next time, which waits for all credits.
    flushed: Vec<usize>,
}

/// Turns a relative rank of the plan into a rank of the communicator.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Bearings {
    /// Rooted at a rank.
    Rotated { root: Rank, size: u32 },
    /// Point to point: the ranks of the two roles.
    Pair { sender: Rank, receiver: Rank },
}

impl Bearings {
    pub(crate) fn rank(self, relative: Relative) -> Rank {
        match self {
            Bearings::Rotated { root, size } => (relative.0 + root) % size,
            Bearings::Pair { sender, receiver } => {
                if relative.0 == 0 {
                    sender
                } else {
                    receiver
                }
            }
        }
    }
}

/// Which links a plan uses.
///
/// The slots of a link migrate between its two sides, so what goes to a rank whose memory is reached shares a link with what
/// comes from there: the first channel to it with the first channel from it, and so on. Both ranks count alike, as the one's
/// channels from the other are the other's channels to the one. Other links carry the channel of their number.
pub(crate) struct Pairing<'a> {
    plan: &'a Plan,
    bearings: Bearings,
    channel_base: u16,
    is_mapped: &'a dyn Fn(Rank) -> bool,
    /// What goes to each relative rank and what comes from there, by rank, direction and channel.
    ways: BTreeSet<(u32, bool, u16)>,
}

impl<'a> Pairing<'a> {
    pub(crate) fn new(
        plan: &'a Plan,
        bearings: Bearings,
        channel_base: u16,
        is_mapped: &'a dyn Fn(Rank) -> bool,
    ) -> Self {
        let way = |counter: &CounterUse| {
            let CounterId { owner, writer, channel, role } = counter.id;
            // A counter of what is ready is its reader's; one of credit is its writer's.
            let (filler, reader) =
                if role == CounterRole::Credit { (owner, writer) } else { (writer, owner) };
            let goes = filler == plan.rank;
            (if goes { reader.0 } else { filler.0 }, goes, channel.0)
        };
        Pairing { plan, bearings, channel_base, is_mapped, ways: plan.counters.iter().map(way).collect() }
    }

    /// The link of what one rank, `filler`, sends another, `reader`, on a channel; one of the two is the plan's.
    fn key(&self, filler: Relative, reader: Relative, channel: Channel) -> Key {
        let goes = filler == self.plan.rank;
        let relative = if goes { reader } else { filler };
        let peer = self.bearings.rank(relative);
        let number = if (self.is_mapped)(peer) {
            let before = self.ways.range((relative.0, goes, 0)..(relative.0, goes, channel.0));
            before.count() as u16
        } else {
            channel.0
        };
        (peer, self.channel_base + number)
    }

    fn key_of(&self, CounterId { owner, writer, channel, role }: CounterId) -> Key {
        match role {
            CounterRole::Credit => self.key(owner, writer, channel),
            _ => self.key(writer, owner, channel),
        }
    }

    /// The links that the plan needs, as peers and channels.
    pub(crate) fn keys(&self) -> Vec<Key> {
        let mut keys: Vec<Key> = Vec::new();
        for key in self.plan.counters.iter().map(|counter| self.key_of(counter.id)) {
            if !keys.contains(&key) {
                keys.push(key);
            }
        }
        keys
    }
}

impl Bound {
    /// Binds a plan to links that are up; `numbers` are theirs, in the order of [`Pairing::keys`].
    pub(crate) fn new(
        proved: &Proved,
        choice: &Choice,
        pairing: &Pairing<'_>,
        links: &Links,
        numbers: &[usize],
    ) -> Result<Self> {
        let (plan, Choice { slot_bytes, streaming, channel_base, .. }) = (proved.plan.clone(), *choice);
        let (bearings, keys) = (pairing.bearings, pairing.keys());
        // Ranks that took different paths must notice, also where nothing is folded.
        let path = proved.fold_hash ^ digest(&plan.name);
        let foreign =
            |what: &str| Error::internal(format!("a plan with {what} cannot be bound by this version"));
        let link = |key: Key| -> Result<usize> {
            let at = keys.iter().position(|other| *other == key).ok_or_else(|| foreign("an unknown peer"))?;
            Ok(numbers[at])
        };
        let mut memory = Vec::with_capacity(plan.regions.len());
        for region in &plan.regions {
            memory.push(match region.region {
                Region::Input(rank) if rank == plan.rank => RegionMemory::Input,
                Region::Output(rank) if rank == plan.rank => RegionMemory::Output,
                Region::Scratch => RegionMemory::Scratch,
                Region::Mailbox { owner, writer, channel } if owner == plan.rank => {
                    RegionMemory::Mailbox(link(pairing.key(writer, owner, channel))?)
                }
                Region::Mailbox { owner, writer, channel } if writer == plan.rank => {
                    RegionMemory::Remote(link(pairing.key(writer, owner, channel))?)
                }
                _ => return Err(foreign("a peer's buffer or a group")),
            });
        }
        let mut counters = Vec::with_capacity(plan.counters.len());
        for counter in &plan.counters {
            let waits = counter.id.owner == plan.rank;
            let number = link(pairing.key_of(counter.id))?;
            let kind = kind(counter.id.role).ok_or_else(|| foreign("a free counter"))?;
            let connection = &links.up(number).connection;
            counters.push(BoundCounter {
                link: number,
                kind,
                own: waits.then(|| connection.counter(kind).clone()),
                peer: if waits { None } else { connection.peer_counter(kind).cloned() },
                outgoing: waits == (counter.id.role == CounterRole::Credit),
            });
        }
        let filled =
            |link: usize| memory.iter().any(|other| matches!(other, RegionMemory::Remote(to) if *to == link));
        let changes = !has_one_length(channel_base);
        let flushed = memory.iter().filter_map(|memory| match memory {
            RegionMemory::Mailbox(link) if links.is_asked(*link) && (changes || !filled(*link)) => {
                Some(*link)
            }
            _ => None,
        });
        let flushed = flushed.collect();
        let read_once = (0..plan.regions.len()).map(|region| is_read_once(&plan, region as u16)).collect();
        let bound =
            Bound { plan, path, slot_bytes, bearings, streaming, memory, read_once, counters, flushed };
        bound.check().map_err(foreign)?;
        if let Some((link, property)) = bound.lacking(links) {
            let (from, to) = (bearings.rank(bound.plan.rank), links.peer(link));
            let transport = links.up(link).connection.transport();
            return Err(link_error(from, to, TransportError::Lacks { transport, property }));
        }
        Ok(bound)
    }

    /// A link that has not what the plan needs of it. Signals publish puts: a link without that order would be wrong
    /// without a word.
    fn lacking(&self, links: &Links) -> Option<(usize, Property)> {
        let unordered = self.counters.iter().find(|counter| !links.capabilities(counter.link).ordered);
        let moves = |step: &&Step| !matches!(step.action, Action::Signal | Action::Wait);
        let written = self.plan.steps.iter().filter(moves).flat_map(|step| {
            let operands = self.plan.targets(step).iter().chain(self.plan.sources(step));
            operands.map(|operand| (step.action, self.memory[operand.region as usize]))
        });
        let refused = |(action, memory)| {
            let RegionMemory::Remote(link) = memory else { return None };
            let Capabilities { put, load_store, .. } = links.capabilities(link);
            let is_stored = load_store
                && links.up(link).pool.as_ref().is_some_and(|pool| self.slot_bytes <= pool.slot_bytes());
            let (has, property) =
                if action == Action::Put { (put, Property::Put) } else { (is_stored, Property::LoadStore) };
            (!has).then_some((link, property))
        };
        unordered
            .map(|counter| (counter.link, Property::Ordered))
            .or_else(|| written.filter_map(refused).next())
    }

    /// Whether this version's executor can do every step.
    fn check(&self) -> std::result::Result<(), &'static str> {
        for step in &self.plan.steps {
            let operands = || self.plan.targets(step).iter().chain(self.plan.sources(step));
            if step.action == Action::Get {
                return Err("a get");
            }
            if step.flags & !Step::FINISH != 0 {
                return Err("packets or counted writes");
            }
            if matches!(step.action, Action::Signal | Action::Wait) {
                continue;
            }
            if step.extent.as_chunk().is_none() {
                return Err("an extent from a table");
            }
            let places = [self.plan.targets(step).len(), self.plan.sources(step).len()];
            if places.iter().any(|places| !(1..=Step::PLACES_MAX).contains(places)) {
                return Err("a step of no places or of too many");
            }
            if operands().any(|operand| matches!(operand.position, Position::Table(_))) {
                return Err("an offset from a table");
            }
        }
        Ok(())
    }

    /// Bytes of the tables, without the plan's.
    pub(crate) fn memory_bytes(&self) -> usize {
        size_of::<Self>() + size_of_val(&*self.memory) + size_of_val(&*self.counters)
    }

    /// Bytes of scratch that an operation needs.
    pub(crate) fn scratch_bytes(&self) -> usize {
        self.plan.scratch as usize * self.slot_bytes
    }

    /// The link that does not let a lane go on.
    pub(crate) fn link_of(&self, blockage: Blockage) -> Option<usize> {
        match blockage {
            Blockage::Wait { counter, .. } | Blockage::Signal { counter } => {
                Some(self.counters[counter as usize].link)
            }
            Blockage::Put { region } => match self.memory[region as usize] {
                RegionMemory::Mailbox(link) | RegionMemory::Remote(link) => Some(link),
                RegionMemory::Input | RegionMemory::Output | RegionMemory::Scratch => None,
            },
        }
    }

    /// What a lane that does not go on waits for.
    pub(crate) fn want(&self, blockage: Blockage) -> Want {
        match blockage {
            Blockage::Wait { counter, .. } if self.counters[counter as usize].kind == CounterKind::Ready => {
                Want::Data
            }
            _ => Want::Room,
        }
    }

    /// How much has travelled on every link, given what this rank has raised its counters to.
    pub(crate) fn traffic(&self, links: &Links, raised: impl Fn(usize) -> u64) -> Vec<Traffic> {
        let mut all: Vec<(usize, Traffic)> = Vec::new();
        for (index, counter) in self.counters.iter().enumerate() {
            let at = all.iter().position(|(link, _)| *link == counter.link).unwrap_or_else(|| {
                let (peer, channel) = links.key(counter.link);
                let up = links.up(counter.link);
                let arrived = up.connection.counter(CounterKind::Ready).value();
                let credit = || up.connection.counter(CounterKind::Credit).value();
                let credited = up.pool.as_ref().map_or_else(credit, Pool::credited);
                let (filled, returned) = (up.filled, up.emptied);
                all.push((counter.link, Traffic { peer, channel, filled, arrived, returned, credited }));
                all.len() - 1
            });
            match counter.kind {
                _ if counter.own.is_some() => {}
                CounterKind::Ready => all[at].1.filled = raised(index),
                CounterKind::Credit => all[at].1.returned = raised(index),
            }
        }
        // What the peer cannot know yet is not missing on its side.
        for (link, traffic) in &mut all {
            let up = links.up(*link);
            let unsaid = up.pool.as_ref().map_or(0, Pool::unsaid) + up.connection.deferred_credits();
            traffic.returned -= unsaid.min(traffic.returned);
        }
        all.into_iter().map(|(_, traffic)| traffic).collect()
    }

    /// The own counter that a counter of the plan is.
    pub(crate) fn own_counter(&self, counter: u32) -> Option<&Counter> {
        self.counters[counter as usize].own.as_ref()
    }

    pub(crate) fn counter_base(&self, counter: usize, links: &Links) -> u64 {
        let counter = &self.counters[counter];
        let up = links.up(counter.link);
        if counter.outgoing { up.filled } else { up.emptied }
    }

    pub(crate) fn slot_base(&self, region: usize, links: &Links) -> u64 {
        match self.memory[region] {
            RegionMemory::Mailbox(link) => links.up(link).emptied,
            RegionMemory::Remote(link) => links.up(link).filled,
            _ => 0,
        }
    }

    /// The link whose mailbox at the peer must be empty before this operation may fill it with slots of
    /// another length, if one is not yet.
    pub(crate) fn undrained(&self, links: &mut Links) -> Option<usize> {
        for counter in &self.counters {
            let Some(own) = counter.own.as_ref().filter(|_| counter.kind == CounterKind::Credit) else {
                continue;
            };
            let up = links.up_mut(counter.link);
            // In a pool each slot is apart, whatever its length.
            if up.pool.is_none() && up.filled_slot_bytes != self.slot_bytes {
                // The peer waits for the same.
                up.connection.flush_credits();
                if own.value() < up.filled {
                    return Some(counter.link);
                }
                up.filled_slot_bytes = self.slot_bytes;
            }
        }
        None
    }

    /// The operation is over: what it filled and emptied counts from now on.
    pub(crate) fn settle(&self, iterations: u32, links: &mut Links) {
        for (region, memory) in self.plan.regions.iter().zip(&self.memory) {
            let slots = region.slots_per_iteration as u64 * iterations as u64;
            match memory {
                RegionMemory::Mailbox(link) => links.up_mut(*link).emptied += slots,
                RegionMemory::Remote(link) => links.up_mut(*link).filled += slots,
                _ => {}
            }
        }
        for link in &self.flushed {
            links.up_mut(*link).connection.flush_credits();
        }
    }
}

/// The real memory and the real links of one operation.
pub(crate) struct RealIo<'a> {
    pub(crate) bound: &'a Bound,
    /// With the scalar of this operation.
    pub(crate) reducer: &'a Reducer,
    pub(crate) links: &'a mut Links,
    pub(crate) input: Span<'a>,
    pub(crate) output: SpanMut<'a>,
    pub(crate) scratch: SpanMut<'a>,
    /// How bytes go into mailboxes that others read.
    pub(crate) staged: Store,
}

/// A link to this rank failed.
#[derive(Debug)]
pub struct Broken {
    pub(crate) peer: Rank,
    pub(crate) error: TransportError,
}

impl Io for RealIo<'_> {
    type Fault = Broken;

    #[inline]
    fn reached(&mut self, counter: u32, value: u64) -> std::result::Result<bool, Broken> {
        let BoundCounter { link, kind, own, .. } = &self.bound.counters[counter as usize];
        let Some(own) = own else { return Ok(true) };
        let reached = match (&mut self.links.up_mut(*link).pool, kind) {
            (None, _) => Ok(own.value() >= value),
            (Some(pool), CounterKind::Ready) => pool.is_here(value),
            (Some(pool), CounterKind::Credit) => pool.is_emptied(value),
        };
        reached.map_err(|Foreign| self.foreign(*link))
    }

    #[inline]
    fn tag(&mut self, counter: u32, value: u64) -> u64 {
        let BoundCounter { link, own, .. } = &self.bound.counters[counter as usize];
        match &self.links.up(*link).pool {
            Some(pool) => pool.word(value),
            None => own.as_ref().map_or(0, |own| own.tag(value)),
        }
    }

    #[inline]
    fn signal(&mut self, counter: u32, value: u64, tag: u64) -> std::result::Result<Poll<()>, Broken> {
        let &BoundCounter { link, kind, .. } = &self.bound.counters[counter as usize];
        let slot_bytes = self.bound.slot_bytes;
        let up = self.links.up_mut(link);
        if let Some(pool) = &mut up.pool {
            let said = match kind {
                CounterKind::Ready => pool.post(value, tag),
                CounterKind::Credit => pool.empty(value, slot_bytes, CREDITS),
            };
            return said.map(Poll::Ready).map_err(|Foreign| self.foreign(link));
        }
        match up.connection.signal(kind, value, tag) {
            // A peer that has closed its side fills no more slots, so it misses no credit. What it sent before is
            // still to be read.
            Err(TransportError::PeerClosed { .. }) if kind == CounterKind::Credit => Ok(Poll::Ready(())),
            Err(error) => Err(Broken { peer: self.links.peer(link), error }),
            Ok(sent) => Ok(sent),
        }
    }

    #[inline]
    fn fold(
        &mut self,
        targets: &[Piece],
        sources: &[Piece],
        bytes: usize,
        finish: bool,
    ) -> std::result::Result<(), Broken> {
        self.check_slots(sources)?;
        for target in targets {
            self.take_slot(*target, sources, bytes)?;
        }
        let source = |_, piece: &Piece| Source { span: self.source(*piece, bytes), raw: piece.raw };
        each(
            targets,
            |_, piece| self.target(*piece, bytes),
            |to| {
                each(sources, source, |from| self.reducer.fold(to, from, finish));
            },
        );
        Ok(())
    }

    fn put(
        &mut self,
        target: Piece,
        source: Piece,
        bytes: usize,
        finish: bool,
        done: &mut usize,
    ) -> std::result::Result<Poll<()>, Broken> {
        self.send(target, source, (bytes, finish), None, done)
    }

    fn fill(
        &mut self,
        target: Piece,
        source: Piece,
        what: (usize, bool),
        (counter, value, tag): (u32, u64, u64),
        done: &mut usize,
    ) -> std::result::Result<Poll<()>, Broken> {
        let is_stored = self.bound.counters[counter as usize].peer.is_some();
        let sent = self.send(target, source, what, (!is_stored).then_some((value, tag)), done)?;
        if is_stored && sent.is_ready() { self.signal(counter, value, tag) } else { Ok(sent) }
    }
}

impl<'a> RealIo<'a> {
    /// Whether the output is the input, whose lines this core has read just before it writes them.
    #[inline]
    fn is_in_place(&self) -> bool {
        self.input.as_ptr() == self.output.as_mut_ptr() && self.input.len() == self.output.len()
    }

    /// What is read of the own buffers.
    #[inline]
    fn own(&self, piece: Piece, bytes: usize) -> Span<'a> {
        let buffer = match self.bound.memory[piece.region as usize] {
            RegionMemory::Input => self.input,
            RegionMemory::Output => self.output.read(),
            RegionMemory::Scratch => self.scratch.read(),
            RegionMemory::Mailbox(_) | RegionMemory::Remote(_) => {
                unreachable!("bound plans read no peer's memory, and put from the own buffers")
            }
        };
        buffer.slice(piece.offset, bytes)
    }

    #[inline]
    fn source(&self, piece: Piece, bytes: usize) -> Span<'_> {
        match self.bound.memory[piece.region as usize] {
            RegionMemory::Mailbox(link) => {
                let up = self.links.up(link);
                match up.pool.as_ref().and_then(|pool| self.slot_read(pool, piece)) {
                    Some(slot) => slot.read().slice(0, bytes),
                    None => up.connection.mailbox().read().slice(piece.offset, bytes),
                }
            }
            _ => self.own(piece, bytes),
        }
    }

    /// A slot of the peer's mailbox gets its place in memory: that of a slot which came from the same peer and is read by this
    /// step alone, or a free one.
    #[inline]
    fn take_slot(
        &mut self,
        target: Piece,
        sources: &[Piece],
        bytes: usize,
    ) -> std::result::Result<(), Broken> {
        let RegionMemory::Remote(link) = self.bound.memory[target.region as usize] else { return Ok(()) };
        let bound = self.bound;
        let Some(pool) = &mut self.links.up_mut(link).pool else { return Ok(()) };
        let to = number_of(pool.counts().0, target.offset / bound.slot_bytes);
        for source in sources {
            if let RegionMemory::Mailbox(from) = bound.memory[source.region as usize]
                && from == link
                && bound.read_once[source.region as usize]
                && pool.forward(number_of(pool.counts().1, source.offset / bound.slot_bytes), to)
            {
                return Ok(());
            }
        }
        let cached = if self.staged == Store::Cached { bytes } else { 0 };
        pool.fill(to, cached).map(|_| ()).map_err(|Foreign| self.foreign(link))
    }

    /// A peer that has said that bytes are in a slot has named the slot.
    #[inline]
    fn check_slots(&self, sources: &[Piece]) -> std::result::Result<(), Broken> {
        for source in sources {
            if let RegionMemory::Mailbox(link) = self.bound.memory[source.region as usize]
                && let Some(pool) = &self.links.up(link).pool
                && self.slot_read(pool, *source).is_none()
            {
                return Err(self.foreign(link));
            }
        }
        Ok(())
    }

    /// The memory of a slot of the own mailbox.
    #[inline]
    fn slot_read<'b>(&self, pool: &'b Pool, piece: Piece) -> Option<SpanMut<'b>> {
        pool.read(number_of(pool.counts().1, piece.offset / self.bound.slot_bytes))
    }

    /// The memory of a slot of the peer's mailbox, which [`RealIo::take_slot`] has given it.
    #[inline]
    fn slot_filled(&self, link: usize, piece: Piece, bytes: usize) -> Option<SpanMut<'_>> {
        let pool = self.links.up(link).pool.as_ref()?;
        Some(pool.filled(number_of(pool.counts().0, piece.offset / self.bound.slot_bytes))?.slice(0, bytes))
    }

    /// The peer names a slot that it cannot name.
    #[cold]
    fn foreign(&self, link: usize) -> Broken {
        let transport = self.links.up(link).connection.transport();
        let error = TransportError::Protocol { transport, what: "it names a slot that is not its own" };
        Broken { peer: self.links.peer(link), error }
    }

    #[inline]
    fn target(&self, piece: Piece, bytes: usize) -> Target<'_> {
        let (buffer, store) = match self.bound.memory[piece.region as usize] {
            RegionMemory::Output if self.bound.streaming && !self.is_in_place() => {
                (self.output, Store::Streaming)
            }
            RegionMemory::Output => (self.output, Store::Cached),
            RegionMemory::Scratch => (self.scratch, Store::Cached),
            RegionMemory::Remote(link) => match self.slot_filled(link, piece, bytes) {
                Some(span) => return Target { span, store: self.staged },
                None => unreachable!("stores to unmapped links are refused when a plan is bound"),
            },
            RegionMemory::Input | RegionMemory::Mailbox(_) => {
                unreachable!("bound plans write neither input nor own mailbox")
            }
        };
        Target { span: buffer.slice(piece.offset, bytes), store }
    }

    /// Puts, and signals with it where that is not a store.
    fn send(
        &mut self,
        target: Piece,
        source: Piece,
        (bytes, finish): (usize, bool),
        ready: Option<(u64, u64)>,
        done: &mut usize,
    ) -> std::result::Result<Poll<()>, Broken> {
        let RegionMemory::Remote(link) = self.bound.memory[target.region as usize] else {
            unreachable!("a put goes to a peer's mailbox")
        };
        if self.links.up(link).pool.is_some() {
            return self.store(target, source, bytes, finish);
        }
        let peer = self.links.peer(link);
        let mut bounce = std::mem::take(&mut self.links.up_mut(link).bounce);
        let from = if source.raw || finish {
            bounce.resize(bounce.len().max(bytes), 0);
            if *done == 0 {
                let from = Source { span: self.source(source, bytes), raw: source.raw };
                let to = Target { span: SpanMut::of(&mut bounce[..bytes]), store: Store::Cached };
                self.reducer.fold(&[to], &[from], finish);
            }
            Span::of(&bounce[..bytes])
        } else {
            self.own(source, bytes)
        };
        let up = self.links.up_mut(link);
        let sent = match ready {
            Some(ready) => up.connection.fill(target.offset, from, ready, done),
            None => up.connection.put(target.offset, from, done),
        };
        up.bounce = bounce;
        sent.map_err(|error| Broken { peer, error })
    }

    /// A put into memory that is mapped here.
    fn store(
        &mut self,
        target: Piece,
        source: Piece,
        bytes: usize,
        finish: bool,
    ) -> std::result::Result<Poll<()>, Broken> {
        let RegionMemory::Remote(link) = self.bound.memory[target.region as usize] else {
            unreachable!("a put goes to a peer's mailbox")
        };
        let (peer, connection) = (self.links.peer(link), &mut self.links.up_mut(link).connection);
        let broken = |error| Broken { peer, error };
        // A load.
        if connection.progress().map_err(broken)? == PeerState::Closed {
            return Err(broken(TransportError::PeerClosed { transport: connection.transport() }));
        }
        self.take_slot(target, &[], bytes)?;
        let (to, span) = (self.target(target, bytes), self.own(source, bytes));
        if source.raw || finish {
            self.reducer.fold(&[to], &[Source { span, raw: source.raw }], finish);
        } else {
            copy(&[to], span);
        }
        Ok(Poll::Ready(()))
    }
}

/// The message of a slot, which is one of the next ones after `count`.
#[inline]
fn number_of(count: u64, slot: usize) -> u64 {
    const MASK: u64 = SLOTS as u64 - 1;
    count + 1 + ((slot as u64).wrapping_sub(count) & MASK)
}

/// Whether each slot that a plan reads of a region is read by one step.
fn is_read_once(plan: &Plan, region: u16) -> bool {
    let mut read: Vec<Position> = Vec::new();
    for step in plan.steps.iter().filter(|step| !matches!(step.action, Action::Signal | Action::Wait)) {
        for source in plan.sources(step).iter().filter(|source| source.region == region) {
            if read.contains(&source.position) {
                return false;
            }
            read.push(source.position);
        }
    }
    true
}
