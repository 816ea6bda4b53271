//! The binomial tree: in every round the number of ranks that have data (or still need it) doubles.
//!
//! Source: R. Thakur, R. Rabenseifner and W. Gropp, "Optimization of collective communication operations in
//! MPICH", IJHPCA 19 (2005), sections 4.2 and 4.5.
//!
//! The parent of rank `r` is `r` without its lowest set bit `2^b`; below `r` are the ranks `r+1, …, r+2^b-1`.
//! From the root away the far children come first, towards the root the near ones.
//!
//! Cost over `n` ranks, with `k = ⌈log2 n⌉` and `M` the bytes of the largest buffer of a rank:
//!
//! | collective | rounds | bytes out of the busiest port | bytes into the busiest port | scratch places |
//! |---|---|---|---|---|
//! | broadcast | `k` | `k M` (root) | `M` | 0 |
//! | reduce | `k` | `M` | `k M` (root) | 1 |
//! | gather | `k` | `s/n M` | `(n-1)/n M` (root) | `s-1` |
//! | scatter | `k` | `(n-1)/n M` (root) | `s/n M` | `s-1` |
//!
//! where `s` is the size of the largest subtree below the root: `max(n - 2^(k-1), 2^(k-2))`, which is `n/2` for
//! powers of two, and 1 for two ranks. Two ranks need no scratch. Defined for every number of ranks.
//!
//! Fold order: where two ranks meet, the lower rank's value comes first, so a reduce is the balanced tree over ranks
//! `0, 1, …, n-1`, the same as recursive doubling's for powers of two.

use super::moves::{alone, bits, copy, own_part, schedule};
use crate::{Chunk, Collective, Place, Round, Schedule, Transfer};

/// Whether there is a binomial tree for the collective: the rooted ones.
pub const fn binomial_is_defined(collective: Collective) -> bool {
    matches!(
        collective,
        Collective::Broadcast | Collective::Reduce | Collective::Gather | Collective::Scatter
    )
}

/// The binomial tree of `collective` over `ranks` ranks; rank 0 is the root.
///
/// # Panics
///
/// When the collective has no binomial tree ([`binomial_is_defined`]), or `ranks` is 0.
pub fn binomial(collective: Collective, ranks: u32) -> Schedule {
    assert!(binomial_is_defined(collective), "there is no binomial tree for {collective}");
    assert!(ranks > 0, "a tree needs a rank");
    if ranks == 1 {
        return alone("binomial", collective);
    }
    let away = matches!(collective, Collective::Broadcast | Collective::Scatter);
    let round = |step: u32| {
        let bit = if away { bits(ranks) - 1 - step } else { step };
        let moved = |edge| match collective {
            Collective::Reduce => vec![reduced(edge, ranks)],
            Collective::Broadcast => vec![broadcast(edge)],
            _ => edge.subtree(ranks).map(|block| passed_on(collective, edge, block)).collect(),
        };
        Round { transfers: edges(ranks, bit).flat_map(moved).collect() }
    };
    let mut rounds: Vec<Round> = (0..bits(ranks)).map(round).collect();
    if collective != Collective::Reduce {
        rounds[0].transfers.push(own_part(collective, 0, 0));
    }
    schedule("binomial", collective, ranks, 1, rounds)
}

/// One edge of the tree.
#[derive(Clone, Copy)]
pub(super) struct Edge {
    pub(super) parent: u32,
    pub(super) child: u32,
}

impl Edge {
    /// The ranks from the child down.
    pub(super) fn subtree(self, ranks: u32) -> std::ops::Range<u32> {
        self.child..(2 * self.child - self.parent).min(ranks)
    }
}

/// The edges over which ranks differ in `bit`: those that one round uses.
pub(super) fn edges(ranks: u32, bit: u32) -> impl Iterator<Item = Edge> {
    let parents = (0..ranks).step_by(2 << bit);
    let edge = move |parent| Edge { parent, child: parent + (1 << bit) };
    parents.map(edge).filter(move |edge| edge.child < ranks)
}

fn broadcast(Edge { parent, child }: Edge) -> Transfer {
    let (input, output) = (Place::Input(Chunk(0)), Place::Output(Chunk(0)));
    copy(parent, child, 0, if parent == 0 { input } else { output }, output)
}

fn reduced(Edge { parent, child }: Edge, ranks: u32) -> Transfer {
    let (input, partial) = (Place::Input(Chunk(0)), Place::Scratch(Chunk(0)));
    // A rank has folded a contribution before its edge of bit `b` when it has a child of a lower bit.
    let bit = (child - parent).ilog2();
    let source = if bit > 0 && child + 1 < ranks { partial } else { input };
    let own = if bit > 0 { partial } else { input };
    let last = parent == 0 && bit + 1 == bits(ranks);
    let target = if last { Place::Output(Chunk(0)) } else { partial };
    Transfer { fold: Some(own), own_first: true, ..copy(child, parent, 0, source, target) }
}

/// A block of the subtree over the edge, down in a scatter and up in a gather.
fn passed_on(collective: Collective, Edge { parent, child }: Edge, block: u32) -> Transfer {
    let kept = Place::Scratch(Chunk(block));
    let own = |rank: u32, place: Place| if rank == block { place } else { kept };
    if collective == Collective::Scatter {
        let source = if parent == 0 { Place::Input(Chunk(block)) } else { kept };
        return copy(parent, child, 0, source, own(child, Place::Output(Chunk(0))));
    }
    let target = if parent == 0 { Place::Output(Chunk(block)) } else { kept };
    copy(child, parent, 0, own(child, Place::Input(Chunk(0))), target)
}

#[cfg(test)]
mod tests {
    use super::super::doubling;
    use super::super::proving::{brackets, proved, scratch, tally};
    use super::*;

    const ALL: [Collective; 4] =
        [Collective::Broadcast, Collective::Reduce, Collective::Gather, Collective::Scatter];

    /// The largest number of ranks at and below one child of the root, counted.
    fn largest_subtree(ranks: u32) -> u32 {
        let below_root = (0..bits(ranks)).flat_map(|bit| edges(ranks, bit)).filter(|edge| edge.parent == 0);
        below_root.map(|edge| edge.subtree(ranks).len() as u32).max().unwrap_or(0)
    }

    #[test]
    fn every_binomial_tree_up_to_64_ranks_is_proved() {
        for ranks in (1..=64).chain([128, 256]) {
            for collective in ALL {
                assert!(binomial_is_defined(collective));
                let (plans, _) = proved(&binomial(collective, ranks), 4);
                let places = match collective {
                    Collective::Broadcast => 0,
                    Collective::Reduce => u32::from(ranks > 2),
                    _ => largest_subtree(ranks).saturating_sub(1),
                };
                assert_eq!(scratch(&plans), places, "{collective} of {ranks}");
            }
        }
        proved(&binomial(Collective::Broadcast, 1024), 4);
        proved(&binomial(Collective::Reduce, 1024), 4);
    }

    #[test]
    fn two_slots_are_enough() {
        for ranks in [2, 3, 8, 13, 32] {
            for collective in ALL {
                proved(&binomial(collective, ranks), 2);
            }
        }
    }

    #[test]
    fn the_cost_is_the_formula() {
        for n in 2..=64u32 {
            let k = bits(n);
            let s = (n - (1 << (k - 1))).max((1 << k) / 4);
            assert_eq!(s, largest_subtree(n), "{n} ranks");
            let cost = |collective| {
                let tally = tally(&binomial(collective, n));
                (tally.rounds, tally.depth, tally.out, tally.into, tally.largest)
            };
            let depth = (0..n).map(u32::count_ones).max().unwrap_or(0);
            assert_eq!(cost(Collective::Broadcast), (k, depth, k, 1, 1));
            assert_eq!(cost(Collective::Reduce), (k, depth, 1, k, 1));
            assert_eq!(cost(Collective::Gather), (k, depth, s, n - 1, n));
            assert_eq!(cost(Collective::Scatter), (k, depth, n - 1, s, n));
        }
    }

    #[test]
    fn a_reduce_folds_as_doubling_does() {
        for rounds in 1..=6 {
            let tree = brackets(&binomial(Collective::Reduce, 1 << rounds));
            assert_eq!(tree[0], brackets(&doubling(1 << rounds))[0]);
        }
        assert_eq!(brackets(&binomial(Collective::Reduce, 5)), ["(((0+1)+(2+3))+4)"]);
    }
}
