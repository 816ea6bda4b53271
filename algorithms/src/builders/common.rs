//! What several builders share: own blocks, and the power of two within any number of ranks.
//!
//! Invariant: this module holds no algorithm; each builder states its own rounds and cost. Absent: channels other
//! than the first.

use std::ops::Range;

use crate::{Channel, Chunk, Collective, Place, Rank, Round, Transfer};

/// A copy of its input to its own block of the output on each of `owners`. Blocks have one piece.
pub(super) fn own_blocks(collective: Collective, ranks: u32, owners: Range<u32>) -> Vec<Transfer> {
    let own = |rank: u32, blocks: u32| Chunk(if blocks > 1 { rank } else { 0 });
    let copy = |rank: u32| Transfer {
        from: Rank(rank),
        to: Rank(rank),
        channel: Channel(0),
        source: Place::Input(own(rank, collective.input_blocks(ranks))),
        target: Place::Output(own(rank, collective.output_blocks(ranks))),
        fold: None,
        own_first: false,
    };
    owners.map(copy).collect()
}

/// The `p = 2^k` ranks that exchange, and the pairs that make them of any number of ranks.
pub(super) struct Core {
    /// `k`.
    pub(super) bits: u32,
    /// Number of pairs at the front; the odd rank of each pair does not exchange.
    pub(super) pairs: u32,
}

impl Core {
    /// The core of `ranks` ranks; `None` for 0 ranks.
    pub(super) fn new(ranks: u32) -> Option<Self> {
        let bits = ranks.checked_ilog2()?;
        Some(Core { bits, pairs: ranks - (1 << bits) })
    }

    /// Number of ranks that exchange.
    pub(super) fn members(&self) -> u32 {
        1 << self.bits
    }

    /// The rank of a member.
    pub(super) fn rank(&self, member: u32) -> Rank {
        Rank(if member < self.pairs { 2 * member } else { member + self.pairs })
    }

    /// Whether a member begins with the fold of a pair.
    pub(super) fn is_pair(&self, member: u32) -> bool {
        member < self.pairs
    }

    /// The round in which the odd ranks hand in chunks `0..chunks`; `None` with a power of two.
    pub(super) fn hand_in(&self, chunks: u32, target: impl Fn(Chunk) -> Place) -> Option<Round> {
        let transfers = self.hand(chunks, |even, chunk| Transfer {
            from: Rank(even.0 + 1),
            to: even,
            channel: Channel(0),
            source: Place::Input(chunk),
            target: target(chunk),
            fold: Some(Place::Input(chunk)),
            own_first: true,
        });
        (self.pairs > 0).then_some(Round { transfers })
    }

    /// The round in which the odd ranks get the result.
    pub(super) fn hand_out(&self, chunks: u32) -> Option<Round> {
        let transfers = self.hand(chunks, |even, chunk| Transfer {
            from: even,
            to: Rank(even.0 + 1),
            channel: Channel(0),
            source: Place::Output(chunk),
            target: Place::Output(chunk),
            fold: None,
            own_first: false,
        });
        (self.pairs > 0).then_some(Round { transfers })
    }

    fn hand(&self, chunks: u32, transfer: impl Fn(Rank, Chunk) -> Transfer) -> Vec<Transfer> {
        let pieces = (0..self.pairs).flat_map(|pair| (0..chunks).map(move |chunk| (pair, chunk)));
        pieces.map(|(pair, chunk)| transfer(Rank(2 * pair), Chunk(chunk))).collect()
    }
}
