//! Who hears what all ranks of a communicator are to know.
//!
//! Invariant: whichever ranks are gone, those that are left pass on to each other.

use super::Group;
use consort_types::Rank;

impl Group {
    /// Whether what all are to know reaches some ranks through others only.
    pub(super) fn is_passed_on(&self) -> bool {
        self.neighbours.len() + 1 < self.members.len()
    }

    /// The ranks to which this one passes on what all are to know: its neighbours, and where ranks are gone those that it would
    /// have without them.
    pub(super) fn neighbours(&self) -> Vec<Rank> {
        let mut all = self.neighbours.clone();
        if !self.is_passed_on() {
            return all;
        }
        let alive: Vec<Rank> = {
            let state = self.state();
            let is_gone = |rank: &Rank| state.left.contains_key(rank) || state.lost.contains_key(rank);
            if state.left.is_empty() && state.lost.is_empty() {
                return all;
            }
            (0..self.size()).filter(|rank| !is_gone(rank)).collect()
        };
        all.extend(self.member.neighbours_among(self.rank, &alive));
        all.sort_unstable();
        all.dedup();
        all
    }

    /// The neighbours, and other ranks that are linked to this one.
    pub(super) fn audience(&self) -> Vec<Rank> {
        let mut all = self.neighbours();
        if self.is_passed_on() {
            let open = self.member.all_open();
            let hears =
                |rank: &Rank| *rank != self.rank && open.binary_search(&self.members[*rank as usize]).is_ok();
            all.extend((0..self.size()).filter(hears));
            all.sort_unstable();
            all.dedup();
        }
        all
    }
}
