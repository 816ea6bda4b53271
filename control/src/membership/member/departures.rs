//! Who has left what, in a job whose ranks are not all linked to each other.
//!
//! A rank that dies is noticed by those that are linked to it, who say so to all others. With it they say which communicators it
//! had left before: otherwise one of whose departure a rank has not heard would fail there.
//!
//! Invariant: pure state, bounded for each rank.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use consort_types::Rank;

/// Communicators that one rank has left and that are remembered, at most: the last ones.
pub(super) const LEFT_MAX: usize = 64;

#[derive(Default)]
pub(super) struct Departures {
    /// The ranks that have closed all their communicators, and said so.
    parted: BTreeSet<Rank>,
    left: BTreeMap<Rank, VecDeque<u64>>,
    /// Whose end was passed on.
    ended: BTreeSet<Rank>,
}

impl Departures {
    /// A rank has left a communicator.
    pub(super) fn leaves(&mut self, rank: Rank, communicator: u64) {
        let left = self.left.entry(rank).or_default();
        if left.contains(&communicator) {
            return;
        }
        left.push_back(communicator);
        if left.len() > LEFT_MAX {
            left.pop_front();
        }
    }

    /// A rank has ended; whether that is to be passed on.
    pub(super) fn ends(&mut self, rank: Rank) -> bool {
        self.ended.insert(rank)
    }

    /// A rank has closed all its communicators.
    pub(super) fn parts(&mut self, rank: Rank) {
        self.parted.insert(rank);
        self.left.remove(&rank);
    }

    pub(super) fn has_parted(&self, rank: Rank) -> bool {
        self.parted.contains(&rank)
    }

    /// The communicators that a rank is known to have left.
    pub(super) fn left(&self, rank: Rank) -> Vec<u64> {
        self.left.get(&rank).map(|left| left.iter().copied().collect()).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_departures_of_a_rank_are_remembered() {
        let mut departures = Departures::default();
        for communicator in 0..LEFT_MAX as u64 + 2 {
            departures.leaves(3, communicator);
            departures.leaves(3, communicator);
        }
        let left = departures.left(3);
        assert_eq!((left.len(), left[0]), (LEFT_MAX, 2));
        assert!(departures.left(2).is_empty() && !departures.has_parted(3));
        assert!(departures.ends(3) && !departures.ends(3), "it is passed on once");
        departures.parts(3);
        assert!(departures.has_parted(3) && departures.left(3).is_empty());
    }
}
