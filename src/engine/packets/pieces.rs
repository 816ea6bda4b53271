//! Long messages between two ranks, in pieces whose slots migrate to their reader.
//!
//! A piece carries its length and the mark of its message, so the two sides need not cut alike. Invariant: a piece is taken
//! only if it belongs to the message that is wanted and lies inside it. Absent: waiting, and which pieces a rank sends.

use consort_kernels::{Reducer, Source, Store, Target, copy};
use consort_memory::pool::{Ends, Foreign, NAME_BITS};
use consort_memory::{Pool, Row, Span};
use consort_transports::{Connection, TransportError};

use crate::Rank;
use crate::engine::bound::Broken;
use crate::engine::trouble::Fault;
use crate::planner::Slots;

/// Pieces that are read before their sender hears of it, fewer than half of those that may be under way.
const CREDITS: u64 = 3;

/// The bits of a piece's word that have its length; those above have as many of the message's mark as there is room for.
const LENGTH_BITS: u32 = 24;

/// Bytes of each side's memory for a pool of so many slots, with its lines.
pub(crate) fn bytes(Slots { count, bytes }: Slots) -> usize {
    lines_bytes() + Row::bytes(count, bytes)
}

fn lines_bytes() -> usize {
    Row::bytes(2, Row::LINE_PAYLOAD_BYTES)
}

/// What another rank sent that it should not have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Amiss {
    /// A message of another operation.
    Other(Rank),
    /// What no side of a pool says.
    Foreign(Rank),
}

impl From<Amiss> for Fault {
    fn from(amiss: Amiss) -> Self {
        match amiss {
            Amiss::Other(peer) => Fault::Mismatch { peer },
            Amiss::Foreign(peer) => {
                let what = "it names a slot that is not its own";
                Fault::Broken(Broken { peer, error: TransportError::Protocol { transport: "memory", what } })
            }
        }
    }
}

/// The pieces to and from one other rank.
pub(crate) struct Pieces {
    peer: Rank,
    pool: Pool,
}

impl Pieces {
    /// At `offset` of a connection's mailboxes; none where those are too short.
    pub(crate) fn over(peer: Rank, connection: &dyn Connection, offset: usize, slots: Slots) -> Option<Self> {
        let [own, theirs] = connection.rows(offset, 2, Row::LINE_PAYLOAD_BYTES)?.map(|lines| lines.counters());
        let ends = |line: usize| Some(Ends { there: theirs.get(line)?.clone(), here: own.get(line)?.clone() });
        let halves = connection.rows(offset + lines_bytes(), slots.count, slots.bytes)?;
        Some(Pieces { peer, pool: Pool::new(ends(0)?, ends(1)?, halves, Pool::WINDOW_MAX) })
    }

    fn foreign(&self, _: Foreign) -> Amiss {
        Amiss::Foreign(self.peer)
    }

    /// Sends a piece, scaled if the caller's rank has a scalar of its own. Whether it had a slot.
    ///
    /// # Errors
    /// [`Amiss::Foreign`].
    #[inline]
    pub(crate) fn send(
        &mut self,
        mark: u64,
        piece: Span<'_>,
        scaled_by: Option<&Reducer>,
    ) -> Result<bool, Amiss> {
        if !self.pool.has_room().map_err(|foreign| self.foreign(foreign))? {
            return Ok(false);
        }
        let (number, bytes) = (self.pool.counts().0 + 1, piece.len());
        let slot = match self.pool.fill(number) {
            Ok(slot) => slot.slice(0, bytes),
            Err(foreign) => return Err(self.foreign(foreign)),
        };
        let target = [Target { span: slot, store: Store::Cached }];
        match scaled_by {
            Some(reducer) => reducer.fold(&target, &[Source { span: piece, raw: true }], false),
            None => copy(&target, piece),
        }
        let word = mark << LENGTH_BITS | bytes as u64;
        self.pool.post(number, word << NAME_BITS).map_err(|foreign| self.foreign(foreign))?;
        Ok(true)
    }

    /// The next piece of the message that is marked so, if it is here. It has at most `most` bytes.
    ///
    /// # Errors
    /// A piece of another message, or [`Amiss::Foreign`].
    #[inline]
    pub(crate) fn look(&mut self, mark: u64, most: usize) -> Result<Option<Span<'_>>, Amiss> {
        let next = self.pool.counts().1 + 1;
        if !self.pool.is_here(next).map_err(|foreign| self.foreign(foreign))? {
            return Ok(None);
        }
        let word = self.pool.word(next) >> NAME_BITS;
        let bytes = (word & ((1 << LENGTH_BITS) - 1)) as usize;
        // The upper bits of the mark fall off when a word is made.
        let is_its = word >> LENGTH_BITS == mark << (LENGTH_BITS + NAME_BITS) >> (LENGTH_BITS + NAME_BITS);
        if !is_its || bytes > most {
            return Err(Amiss::Other(self.peer));
        }
        match self.pool.read(next) {
            Some(slot) if bytes <= slot.len() && bytes != 0 => Ok(Some(slot.read().slice(0, bytes))),
            _ => Err(Amiss::Foreign(self.peer)),
        }
    }

    /// The piece that [`Pieces::look`] has found, once more.
    #[inline]
    pub(crate) fn found(&self) -> Option<Span<'_>> {
        let next = self.pool.counts().1 + 1;
        let bytes = (self.pool.word(next) >> NAME_BITS & ((1 << LENGTH_BITS) - 1)) as usize;
        self.pool.read(next).filter(|slot| bytes <= slot.len()).map(|slot| slot.read().slice(0, bytes))
    }

    /// The piece that was looked at is read.
    ///
    /// # Errors
    /// [`Amiss::Foreign`].
    #[inline]
    pub(crate) fn take(&mut self, bytes: usize) -> Result<(), Amiss> {
        let next = self.pool.counts().1 + 1;
        self.pool.empty(next, bytes, CREDITS).map_err(|foreign| self.foreign(foreign))
    }
}
