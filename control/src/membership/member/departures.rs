//! Who has left what, in a job whose ranks are not all linked to each other.
//!
//! A rank that dies is noticed by those that are linked to it, who say so to all others. With it they say which communicators it
//! had left before: otherwise one of whose departure a rank has not heard would fail there.
//!
//! Invariant: what is remembered of a rank is bounded; nothing here waits.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Weak};

use super::{Member, NO_COMMUNICATOR};
use crate::membership::group::Group;
use crate::membership::wire::Message;
use consort_types::Rank;

/// Communicators that one rank has left and that are remembered, at most: the last ones.
const LEFT_MAX: usize = 64;
/// What is said of a lost rank to others, in characters at most.
const CAUSE_MAX: usize = 512;

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

    /// Whether the end of a rank was passed on.
    pub(super) fn has_ended(&self, rank: Rank) -> bool {
        self.ended.contains(&rank)
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

impl Member {
    /// Those linked to this rank that are not of the communicator hear that it has left it: should it die, they are who say it.
    pub fn leaves(&self, communicator: u64, members: &[Rank]) {
        for rank in self.all_open().into_iter().filter(|rank| !members.contains(rank)) {
            self.send(rank, communicator, Message::Parted);
        }
    }

    /// The link to `rank` ended without a good-bye: every communicator that it has not left fails. It `ended`, or else the link
    /// to it broke.
    pub fn lost(&self, rank: Rank, cause: &str, ended: bool) {
        if !self.departures().has_parted(rank) {
            self.take_loss(rank, cause, ended, &[], None);
        }
    }

    /// A rank is gone, as this one noticed or heard `by` another: it had `left` these communicators. In a sparse job it passes
    /// that on.
    pub(super) fn take_loss(&self, rank: Rank, cause: &str, ended: bool, left: &[u64], by: Option<Rank>) {
        let all_left = {
            let mut departures = self.departures();
            // One that has said good-bye is who ends its links.
            if rank == self.rank || departures.has_parted(rank) || departures.has_parted(self.rank) {
                return;
            }
            left.iter().take(LEFT_MAX).for_each(|communicator| departures.leaves(rank, *communicator));
            departures.left(rank)
        };
        if self.is_sparse && ended && self.departures().ends(rank) {
            let cause: String = cause.chars().take(CAUSE_MAX).collect();
            for other in self.hearers(rank).into_iter().filter(|other| Some(*other) != by) {
                let gone = Message::Gone { rank, cause: cause.clone(), left: all_left.clone() };
                self.send(other, NO_COMMUNICATOR, gone);
            }
        }
        // What it said last is still on the way where it is linked, and the end of the link behind it.
        if by.is_some() && (self.is_linked(rank) || self.links().is_answered(rank)) {
            return;
        }
        let mut groups = self.groups();
        if groups.lost.iter().any(|(known, ..)| *known == rank) {
            return;
        }
        groups.lost.push((rank, cause.to_owned(), ended));
        let open: Vec<Arc<Group>> = groups.open.values().filter_map(Weak::upgrade).collect();
        drop(groups);
        self.links().forget(rank);
        for group in open {
            if all_left.contains(&group.uid) {
                group.left_unheard(rank);
            } else {
                group.lost(rank, cause, ended);
            }
        }
    }

    /// Those who are to hear that `gone` is: all that are linked, and those that would be neighbours without the ranks that are
    /// gone, so that whichever are, the others stay connected.
    fn hearers(&self, gone: Rank) -> Vec<Rank> {
        let mut all = self.all_open();
        let lost: BTreeSet<Rank> = self.groups().lost.iter().map(|(lost, ..)| *lost).chain([gone]).collect();
        let alive: Vec<Rank> = {
            let departures = self.departures();
            let is_gone = |rank: &Rank| lost.contains(rank) || departures.has_parted(*rank);
            (0..self.table.len() as Rank).filter(|rank| !is_gone(rank)).collect()
        };
        all.extend(self.neighbours_among(self.rank, &alive));
        all.sort_unstable();
        all.dedup();
        all.retain(|rank| *rank != gone);
        all
    }

    /// Says to a rank that was just linked what this one has left before: it has not heard of it.
    pub(super) fn say_departures(&self, to: Rank) {
        let left: Vec<u64> = {
            let groups = self.groups();
            groups.closed_first.iter().rev().take(LEFT_MAX).rev().copied().collect()
        };
        for communicator in left {
            self.send(to, communicator, Message::Parted);
        }
    }

    /// Says to all that hear it that this rank has closed all its communicators.
    pub fn say_good_bye(&self) {
        if self.is_sparse {
            for rank in self.all_open() {
                self.send(rank, NO_COMMUNICATOR, Message::Bye);
            }
            self.departures().parts(self.rank);
        }
    }

    /// A rank has closed all its communicators, and its process may end.
    pub(super) fn parts(&self, rank: Rank) {
        self.departures().parts(rank);
        self.links().forget(rank);
        let open: Vec<Arc<Group>> = self.groups().open.values().filter_map(Weak::upgrade).collect();
        for group in open {
            group.left_unheard(rank);
        }
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
