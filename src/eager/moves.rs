//! What one rank sends to which other, and what becomes of what comes: the direct exchange of every collective.
//!
//! Invariant: pure; the blocks are those of [`builders`](consort_algorithms::builders)' direct schedules, and a fold is
//! the left fold over ranks 0, 1, …, whoever is the root, as theirs is (the tests compare them).

use crate::Rank;
use crate::call::Kind;

/// What a rank does with the blocks that it gets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Use {
    /// Nothing: it only waits for them.
    Meet,
    /// Folds them, with its own, in the order of ranks.
    Fold,
    /// Keeps each at its place.
    Keep,
}

/// The exchange of one rank.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Moves {
    kind: Kind,
    me: Rank,
    root: Rank,
}

impl Moves {
    /// Of a kind of call that has such an exchange.
    pub(crate) fn new(kind: Kind, me: Rank, root: Rank) -> Self {
        debug_assert!(Self::are_defined(kind));
        Moves { kind, me, root }
    }

    /// Whether calls of a kind have such an exchange.
    pub(crate) fn are_defined(kind: Kind) -> bool {
        matches!(
            kind,
            Kind::AllReduce
                | Kind::Barrier
                | Kind::Reduce
                | Kind::Broadcast
                | Kind::AllGather
                | Kind::ReduceScatter
                | Kind::AllToAll
                | Kind::Gather
                | Kind::Scatter
        )
    }

    /// What the rank does with what comes.
    #[inline]
    pub(crate) fn purpose(self) -> Use {
        match self.kind {
            Kind::Barrier => Use::Meet,
            Kind::AllReduce | Kind::Reduce | Kind::ReduceScatter => Use::Fold,
            _ => Use::Keep,
        }
    }

    #[inline]
    fn is_root(self) -> bool {
        self.me == self.root
    }

    /// The block of this rank's input that `peer` gets; none where it gets nothing.
    #[inline]
    pub(crate) fn sends(self, peer: Rank) -> Option<u32> {
        match self.kind {
            Kind::ReduceScatter | Kind::AllToAll => Some(peer),
            Kind::Broadcast => self.is_root().then_some(0),
            Kind::Scatter => self.is_root().then_some(peer),
            Kind::Reduce | Kind::Gather => (peer == self.root).then_some(0),
            _ => Some(0),
        }
    }

    /// Whether `peer` sends to this rank.
    #[inline]
    pub(crate) fn receives(self, peer: Rank) -> bool {
        match self.kind {
            Kind::Broadcast | Kind::Scatter => peer == self.root,
            Kind::Reduce | Kind::Gather => self.is_root(),
            _ => true,
        }
    }

    /// The block of the output that what `peer` sends becomes, where it is kept.
    #[inline]
    pub(crate) fn keeps(self, peer: Rank) -> u32 {
        match self.kind {
            Kind::AllGather | Kind::AllToAll | Kind::Gather => peer,
            _ => 0,
        }
    }

    /// The block of this rank's own input that belongs into its own result; none where it has no part in one.
    #[inline]
    pub(crate) fn own(self) -> Option<u32> {
        match self.kind {
            Kind::Barrier => None,
            Kind::ReduceScatter | Kind::AllToAll => Some(self.me),
            Kind::Scatter => self.is_root().then_some(self.me),
            Kind::Broadcast | Kind::Reduce | Kind::Gather => self.is_root().then_some(0),
            _ => Some(0),
        }
    }
}
