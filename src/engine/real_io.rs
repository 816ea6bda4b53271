//! The memory and the links of an operation that runs by a bound plan, as the executor reaches them.
//!
//! Invariant: slots of a pool are reached by the pool's word alone; those of other mailboxes lie where the plan says.

use std::task::Poll;

use consort_kernels::{Reducer, Source, Store, Target, copy};
use consort_memory::pool::Foreign;
use consort_memory::{Pool, Span, SpanMut};
use consort_transports::{CounterKind, PeerState, TransportError};

use super::bound::{Bound, BoundCounter, RegionMemory};
use super::executor::{Io, Piece, each};
use super::lent::{LENT_BYTES_MIN, Lent};
use super::links::Links;
use crate::Rank;
use consort_settings::options::SLOTS;

/// Slots of a pool that are emptied before their writer hears of it: plans are proved for writers that hear of each.
const CREDITS: u64 = 1;

/// The real memory and the real links of one operation.
pub(crate) struct RealIo<'a> {
    pub(crate) bound: &'a Bound,
    /// With the scalar of this operation.
    pub(crate) reducer: &'a Reducer,
    pub(crate) links: &'a mut Links,
    /// What the transports of this operation may still read.
    pub(super) lent: &'a mut Lent,
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
    ) -> std::result::Result<Poll<()>, Broken> {
        if !self.may_write(targets, bytes) {
            return Ok(Poll::Pending);
        }
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
        Ok(Poll::Ready(()))
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

    /// Whether no transport may still read where a step writes.
    #[inline]
    fn may_write(&mut self, targets: &[Piece], bytes: usize) -> bool {
        self.lent.is_empty()
            || targets.iter().all(|target| {
                let start = match self.bound.memory[target.region as usize] {
                    RegionMemory::Output => self.output.as_mut_ptr() as usize,
                    // Others than this rank's buffers are lent to none.
                    _ => return true,
                };
                self.lent.may_write(self.links, start + target.offset, bytes)
            })
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
        let broken = |error| Broken { peer, error };
        let is_scratch = matches!(self.bound.memory[source.region as usize], RegionMemory::Scratch);
        // What is neither scaled nor divided goes as it is.
        let is_changed = (source.raw || finish) && self.reducer.scales_or_divides();
        let is_lent = bytes >= LENT_BYTES_MIN && !is_changed && !is_scratch;
        if let Some(ready) = ready.filter(|_| is_lent) {
            let from = self.own(source, bytes);
            let connection = &mut self.links.up_mut(link).connection;
            let sent = connection.fill_from(target.offset, from, ready, done).map_err(broken)?;
            if let Poll::Ready(number @ 1..) = sent {
                self.lent.lend(self.links, (link, number), from.as_ptr() as usize, bytes);
            }
            return Ok(sent.map(|_| ()));
        }
        let mut bounce = std::mem::take(&mut self.links.up_mut(link).bounce);
        let from = if is_changed {
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
        sent.map_err(broken)
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
