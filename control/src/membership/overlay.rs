//! Which ranks of a large job are linked from the beginning.
//!
//! Up to [`FULL_MAX`] ranks, all to all. In a larger job a rank is linked to those whose number differs from its own by a power
//! of two, modulo the number of ranks: a circulant graph, in which every rank is reached within half of log2(size) links, and as
//! many ranks as one has neighbours must be gone before it is cut off from the rest.
//!
//! Source: J.-C. Bermond, F. Comellas and D. F. Hsu, "Distributed Loop Computer Networks: A Survey", JPDC 24 (1995).
//!
//! Invariant: pure; what one rank says of another's links, that one says of its own. Absent: links that a pair makes when it has
//! something to say.

use std::collections::BTreeSet;

use consort_types::Rank;

/// Up to this many ranks all are linked to all.
pub const FULL_MAX: u32 = 32;

/// The ranks to which `rank` of `size` is linked from the beginning where more than `full` ranks are not all linked to all, in
/// ascending order. Without itself.
pub fn neighbours(rank: Rank, size: u32, full: u32) -> Vec<Rank> {
    if size <= full {
        return (0..size).filter(|other| *other != rank).collect();
    }
    let (rank, size) = (u64::from(rank), u64::from(size));
    let steps = (0..u64::BITS).map(|bit| 1 << bit).take_while(|step| *step < size);
    let both = steps.flat_map(|step| [rank + step, rank + size - step]);
    let all: BTreeSet<Rank> = both.map(|other| (other % size) as Rank).collect();
    all.into_iter().filter(|other| u64::from(*other) != rank).collect()
}

/// The neighbours of `rank` among the ranks that are still there, in ascending order, as if those were all there are.
pub fn neighbours_among(rank: Rank, alive: &[Rank], full: u32) -> Vec<Rank> {
    let Ok(place) = alive.binary_search(&rank) else { return Vec::new() };
    let near = neighbours(place as Rank, alive.len() as u32, full);
    near.into_iter().map(|place| alive[place as usize]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many of the ranks that are not `gone` are reached from the first of them.
    fn reached(size: u32, gone: &BTreeSet<Rank>) -> usize {
        let Some(first) = (0..size).find(|rank| !gone.contains(rank)) else { return 0 };
        let (mut seen, mut next) = (BTreeSet::from([first]), vec![first]);
        while let Some(rank) = next.pop() {
            for other in neighbours(rank, size, 4).into_iter().filter(|other| !gone.contains(other)) {
                if seen.insert(other) {
                    next.push(other);
                }
            }
        }
        seen.len()
    }

    #[test]
    fn both_ends_know_of_each_link_and_there_are_few() {
        for size in [5, 6, 7, 31, 32, 33, 64, 100, 256, 1000] {
            for rank in 0..size {
                let linked = neighbours(rank, size, 4);
                assert!(linked.len() <= 2 * (size.ilog2() as usize + 1), "{size}: {linked:?}");
                assert!(!linked.contains(&rank));
                for other in linked {
                    assert!(neighbours(other, size, 4).contains(&rank), "{rank} and {other} of {size}");
                }
            }
        }
        assert_eq!(neighbours(1, 4, 4), [0, 2, 3]);
        assert!(neighbours(0, 1, 4).is_empty());
        assert_eq!(neighbours(5, 40, 32), [1, 3, 4, 6, 7, 9, 13, 21, 29, 37]);
    }

    #[test]
    fn who_is_left_is_connected_whichever_ranks_are_gone() {
        // Of ranks that were dealt to three hosts in turn, those of one.
        let alive: Vec<Rank> = (0..48).step_by(3).collect();
        let gone = (0..48).filter(|rank| rank % 3 != 0).collect();
        assert_eq!(reached(48, &gone), 1, "none of them is a neighbour of another");
        assert_eq!(neighbours_among(9, &alive, 4), [3, 6, 12, 15, 21, 33, 45]);
        assert_eq!(neighbours_among(9, &alive, 16).len(), 15);
        assert!(neighbours_among(10, &alive, 4).is_empty(), "it is gone itself");
    }

    #[test]
    fn hosts_that_are_gone_leave_the_others_connected() {
        for (size, per_host) in [(40, 8), (64, 16), (100, 7), (256, 64), (256, 8)] {
            for first in 0..size {
                for hosts in [1, 2] {
                    let gone: BTreeSet<Rank> = (0..hosts * per_host).map(|at| (first + at) % size).collect();
                    assert_eq!(reached(size, &gone), size as usize - gone.len(), "{size} without {gone:?}");
                }
            }
        }
    }
}
