//! Long messages between two ranks, in pieces whose slots migrate to their reader.
//!
//! A piece carries its length and the mark of its message, so the two sides need not cut alike. Invariant: a piece is taken
//! only if it belongs to the message that is wanted and lies inside it. Absent: waiting, and which pieces a rank sends.

use consort_kernels::{Reducer, Source, Store, Target, copy};
use consort_memory::pool::{Ends, Foreign, POOL_BITS};
use consort_memory::{Pool, Row, Span, SpanMut};
use consort_transports::{Connection, TransportError};

use crate::Rank;
use crate::eager::pool_slots;
use crate::engine::real_io::Broken;
use crate::engine::trouble::Fault;

/// Pieces that are read before their sender hears of it, fewer than half of those that may be under way.
pub(super) const CREDITS: u64 = 3;

/// The bits of a word that have a piece's length, one of them whether it is a sum; those above have as many of the message's
/// mark as there is room for.
const LENGTH_BITS: u32 = 20;
const SUM_BIT: u64 = 1 << (LENGTH_BITS - 1);
/// The bits of a mark that find no room.
const MARK_SHIFT: u32 = LENGTH_BITS + POOL_BITS;

/// What goes with a piece.
#[derive(Clone, Copy)]
struct Word {
    mark: u64,
    is_sum: bool,
    bytes: usize,
}

impl Word {
    #[inline]
    fn packed(self) -> u64 {
        let sum = if self.is_sum { SUM_BIT } else { 0 };
        self.mark << MARK_SHIFT | (sum | self.bytes as u64) << POOL_BITS
    }

    #[inline]
    fn of(word: u64) -> Self {
        let low = word >> POOL_BITS;
        Word { mark: word >> MARK_SHIFT, is_sum: low & SUM_BIT != 0, bytes: (low & (SUM_BIT - 1)) as usize }
    }
}

/// A piece that is here.
#[derive(Clone, Copy)]
pub(crate) struct Piece<'a> {
    pub(crate) span: Span<'a>,
    /// Whether it is a sum of what this rank has sent.
    pub(crate) is_sum: bool,
}

/// Bytes of each side's memory for the pool of two of `ranks` ranks, with its lines.
pub(crate) fn bytes(ranks: u32) -> usize {
    let (count, bytes) = pool_slots(ranks);
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
    /// At `offset` of a connection's mailboxes, between two of `ranks` ranks; none where those are too short.
    pub(crate) fn over(peer: Rank, connection: &dyn Connection, offset: usize, ranks: u32) -> Option<Self> {
        let (count, bytes) = pool_slots(ranks);
        let [own, theirs] =
            connection.rows(offset, 2, Row::LINE_PAYLOAD_BYTES)?.map(|lines| lines.counters());
        let ends =
            |line: usize| Some(Ends { there: theirs.get(line)?.clone(), here: own.get(line)?.clone() });
        let halves = connection.rows(offset + lines_bytes(), count, bytes)?;
        Some(Pieces { peer, pool: Pool::new(ends(0)?, ends(1)?, halves, Pool::WINDOW_MAX) })
    }

    /// Sends a piece, scaled if the caller's rank has a scalar of its own; one that is not scaled is copied `beside` too. Whether it
    /// had a slot.
    ///
    /// # Errors
    /// [`Amiss::Foreign`].
    #[inline]
    pub(crate) fn send(
        &mut self,
        mark: u64,
        piece: Span<'_>,
        scaled_by: Option<&Reducer>,
        beside: Option<SpanMut<'_>>,
    ) -> Result<bool, Amiss> {
        let foreign = Amiss::Foreign(self.peer);
        if !self.pool.has_room().map_err(|Foreign| foreign)? {
            return Ok(false);
        }
        let (number, bytes) = (self.pool.counts().0 + 1, piece.len());
        let slot = self.pool.fill(number, bytes).map_err(|Foreign| foreign)?.slice(0, bytes);
        let target = |span| Target { span, store: Store::Cached };
        match (scaled_by, beside) {
            (Some(reducer), _) => reducer.fold(&[target(slot)], &[Source { span: piece, raw: true }], false),
            (None, Some(beside)) => copy(&[target(slot), target(beside)], piece),
            (None, None) => copy(&[target(slot)], piece),
        }
        self.pool.post(number, Word { mark, is_sum: false, bytes }.packed()).map_err(|Foreign| foreign)?;
        Ok(true)
    }

    /// The next piece of the message that is marked so, if it is here, and whether it is a sum that comes back. It has at most
    /// `most` bytes.
    ///
    /// # Errors
    /// A piece of another message, or [`Amiss::Foreign`].
    #[inline]
    pub(crate) fn look(&mut self, mark: u64, most: usize) -> Result<Option<Piece<'_>>, Amiss> {
        let next = self.pool.counts().1 + 1;
        if !self.pool.is_here(next).map_err(|Foreign| Amiss::Foreign(self.peer))? {
            return Ok(None);
        }
        let word = Word::of(self.pool.word(next));
        if word.mark != mark << MARK_SHIFT >> MARK_SHIFT || word.bytes > most {
            return Err(Amiss::Other(self.peer));
        }
        match self.found() {
            Some(piece) if !piece.span.is_empty() => Ok(Some(piece)),
            _ => Err(Amiss::Foreign(self.peer)),
        }
    }

    /// The piece that [`Pieces::look`] has found, once more.
    #[inline]
    pub(crate) fn found(&self) -> Option<Piece<'_>> {
        let next = self.pool.counts().1 + 1;
        let Word { is_sum, bytes, .. } = Word::of(self.pool.word(next));
        let slot = self.pool.read(next).filter(|slot| bytes <= slot.len())?;
        Some(Piece { span: slot.read().slice(0, bytes), is_sum })
    }

    /// Answers the piece that was found, of `bytes` bytes, with the sum that `fold` makes of it in its own slot. Whether there was
    /// room for it.
    ///
    /// # Errors
    /// [`Amiss::Foreign`].
    #[inline]
    pub(crate) fn reply(
        &mut self,
        mark: u64,
        bytes: usize,
        fold: impl FnOnce(Span<'_>, SpanMut<'_>),
    ) -> Result<bool, Amiss> {
        let foreign = Amiss::Foreign(self.peer);
        if !self.pool.has_room().map_err(|Foreign| foreign)? {
            return Ok(false);
        }
        let (sent, emptied) = self.pool.counts();
        if !self.pool.forward(emptied + 1, sent + 1) {
            self.pool.fill(sent + 1, bytes).map_err(|Foreign| foreign)?;
        }
        let (from, to) = (self.pool.read(emptied + 1), self.pool.filled(sent + 1));
        let (Some(from), Some(to)) = (from, to) else { return Err(foreign) };
        fold(from.read().slice(0, bytes), to.slice(0, bytes));
        self.pool.post(sent + 1, Word { mark, is_sum: true, bytes }.packed()).map_err(|Foreign| foreign)?;
        self.take(bytes)?;
        Ok(true)
    }

    /// As [`Pool::touches`].
    #[inline]
    pub(crate) fn touches(&self) -> bool {
        self.pool.touches()
    }

    /// The piece that was looked at is read.
    ///
    /// # Errors
    /// [`Amiss::Foreign`].
    #[inline]
    pub(crate) fn take(&mut self, bytes: usize) -> Result<(), Amiss> {
        let next = self.pool.counts().1 + 1;
        self.pool.empty(next, bytes, CREDITS).map_err(|Foreign| Amiss::Foreign(self.peer))
    }
}
