//! Parallel aggregated trees (PAT): far partners first and with little data, near ones last.
//!
//! Source: S. Jeaugey, "PAT: a new algorithm for all-gather and reduce-scatter operations at scale", 2025; in
//! NCCL since 2.23.
//!
//! Every block has a binomial tree of its own over all ranks: the rank `o` after the block's owner gets it from
//! the one at `o` less its lowest bit. All trees are the same but for the owner, so an edge is a step in which
//! every rank sends one block and receives one. With `k = ceil(log2 n)` and at most `a = 2^j` blocks in a step:
//! the `j` farthest hops go first, each as one step with all blocks held so far, up to `a/2`. That makes `a`
//! subtrees of each tree, which are then walked in step, far and deep first, with a block for each. The
//! reduce-scatter is the same in reverse order, with partial sums.
//!
//! Cost over any `n >= 2` ranks, with `M` the bytes of the largest buffer of a rank:
//!
//! | collective | aggregation | rounds | depth | bytes out of (and into) every port |
//! |---|---|---|---|---|
//! | all-gather, reduce-scatter | `a >= n/2` | `ceil(log2 n)` | `floor(log2 n)` | `(n-1)/n M` |
//! | all-gather, reduce-scatter | `2 <= a = 2^j < n/2` | `j + 2^(k-j) - 1` | `floor(log2 n)` | `(n-1)/n M` |
//! | all-gather, reduce-scatter | 1 | `n-1` | `floor(log2 n)` | `(n-1)/n M` |
//!
//! Scratch: none for all-gather, which forwards from the output. Reduce-scatter: `a (k-j) - 1` places over
//! `2^k` ranks and at most that over others: logarithmic with a constant aggregation.
//!
//! Fold order: the own value first, then subtrees from the nearest on: block `b` is a binomial bracketing of
//! ranks `b, b+1, …, b+n-1` (modulo `n`) in this order, whatever the aggregation.

use super::common::own_blocks;
use crate::{Channel, Chunk, Collective, Partition, Place, Rank, Round, Schedule, Transfer};

/// Whether `collective` has such trees. It then has them for any number of ranks.
pub const fn pat_is_defined(collective: Collective) -> bool {
    matches!(collective, Collective::AllGather | Collective::ReduceScatter)
}

/// The schedule of `collective` over `ranks` ranks, at least 1.
///
/// `aggregation` is the most blocks that a rank sends in one round. It is rounded down to a power of two; 0 is
/// read as 1, and more than half of the ranks (rounded up to a power of two) as that half.
///
/// # Panics
///
/// When the collective has no such trees ([`pat_is_defined`]), or `ranks` is 0.
pub fn pat(collective: Collective, ranks: u32, aggregation: u32) -> Schedule {
    assert!(pat_is_defined(collective), "there are no aggregated trees for {collective}");
    assert!(ranks > 0, "a tree needs a rank");
    let aggregation = 1 << aggregation.max(1).min(ranks.next_power_of_two() / 2).checked_ilog2().unwrap_or(0);
    let mut steps = steps(ranks, aggregation);
    let trees = Trees { ranks };
    let rounds = if ranks == 1 {
        vec![Round { transfers: own_blocks(collective, 1, 0..1) }]
    } else if collective == Collective::AllGather {
        let mut rounds = trees.rounds(&steps, Trees::forward);
        rounds[0].transfers.extend(own_blocks(collective, ranks, 0..ranks));
        rounds
    } else {
        steps.reverse();
        trees.rounds(&steps, Trees::fold)
    };
    let (name, partition) = (format!("pat(aggregation={aggregation})"), Partition { parts: 1 });
    Schedule { name, collective, ranks, switches: 0, partition, rounds }
}

/// The edges of a tree in the order of the all-gather, by the offsets at their far ends; a list for each round.
fn steps(ranks: u32, aggregation: u32) -> Vec<Vec<u32>> {
    let all = ranks.next_power_of_two();
    let subtree = all / aggregation;
    let with_step = |first: u32, step: u32| (first..ranks).step_by(step as usize).collect::<Vec<u32>>();
    let mut steps = Vec::new();
    let mut hop = all / 2;
    while hop >= subtree {
        steps.push(with_step(hop, 2 * hop));
        hop /= 2;
    }
    let mut walk = Vec::new();
    far_and_deep_first(0, subtree, &mut walk);
    steps.extend(walk.into_iter().map(|offset| with_step(offset, subtree)));
    steps.retain(|step| !step.is_empty());
    steps
}

/// The offsets below the one at `root`, whose subtree spans `span`.
fn far_and_deep_first(root: u32, span: u32, walk: &mut Vec<u32>) {
    let mut hop = span / 2;
    while hop > 0 {
        walk.push(root + hop);
        far_and_deep_first(root + hop, hop, walk);
        hop /= 2;
    }
}

struct Trees {
    ranks: u32,
}

impl Trees {
    /// Every rank takes part in every edge, each time in the tree of another block.
    fn rounds(&self, steps: &[Vec<u32>], edge: impl Fn(&Trees, u32, u32) -> Transfer) -> Vec<Round> {
        let of_edge = |offset: u32| (0..self.ranks).map(move |owner| (owner, offset));
        let round = |step: &Vec<u32>| {
            let edges = step.iter().copied().flat_map(of_edge);
            Round { transfers: edges.map(|(owner, offset)| edge(self, owner, offset)).collect() }
        };
        steps.iter().map(round).collect()
    }

    /// The block of `owner` travels to `offset` ranks after it.
    fn forward(&self, owner: u32, offset: u32) -> Transfer {
        let parent = parent(offset);
        let block = Chunk(owner);
        Transfer {
            from: self.rank(owner, parent),
            to: self.rank(owner, offset),
            channel: Channel(0),
            source: if parent == 0 { Place::Input(Chunk(0)) } else { Place::Output(block) },
            target: Place::Output(block),
            fold: None,
            own_first: false,
        }
    }

    /// The partial sum of the block of `owner` travels from `offset` ranks after it, one edge nearer.
    fn fold(&self, owner: u32, offset: u32) -> Transfer {
        let parent = parent(offset);
        let block = Chunk(owner);
        let sum = |offset: u32| if offset == 0 { Place::Output(Chunk(0)) } else { Place::Scratch(block) };
        // The nearest child is one rank away and comes first.
        let is_leaf = offset % 2 == 1 || offset + 1 == self.ranks;
        let is_first = offset == parent + 1;
        Transfer {
            from: self.rank(owner, offset),
            to: self.rank(owner, parent),
            channel: Channel(0),
            source: if is_leaf { Place::Input(block) } else { sum(offset) },
            target: sum(parent),
            fold: Some(if is_first { Place::Input(block) } else { sum(parent) }),
            own_first: true,
        }
    }

    fn rank(&self, owner: u32, offset: u32) -> Rank {
        Rank((owner + offset) % self.ranks)
    }
}

/// The offset without its lowest bit.
fn parent(offset: u32) -> u32 {
    offset & (offset - 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Cost;
    use Collective::{AllGather, ReduceScatter};

    #[test]
    fn the_cost_is_the_formula() {
        for n in 2..=130u32 {
            let bits = n.next_power_of_two().ilog2();
            for j in 0..=bits {
                let aggregation = 1 << j;
                let rounds = match aggregation {
                    1 => n - 1,
                    _ if 2 * aggregation >= n => bits,
                    _ => j + (1 << (bits - j)) - 1,
                };
                let expected = Cost {
                    rounds,
                    depth: n.ilog2(),
                    messages: (n * (n - 1)) as usize,
                    out_pieces: n - 1,
                    into_pieces: n - 1,
                    largest_pieces: n,
                };
                for collective in [AllGather, ReduceScatter] {
                    let schedule = pat(collective, n, aggregation);
                    assert_eq!(schedule.cost(), expected, "{collective} {n}, {aggregation}");
                    for round in &schedule.rounds {
                        let out = round.transfers.iter().filter(|t| t.from == Rank(0) && t.to != Rank(0));
                        assert!(out.count() as u32 <= aggregation, "{collective} {n}, {aggregation}");
                    }
                }
            }
        }
    }

    #[test]
    fn the_farthest_get_least() {
        let blocks_and_hops = |schedule: &Schedule| -> Vec<(usize, u32)> {
            let of_rank = |round: &Round| {
                let mine: Vec<&Transfer> =
                    round.transfers.iter().filter(|t| t.from == Rank(0) && t.to != Rank(0)).collect();
                (mine.len(), mine[0].to.0)
            };
            schedule.rounds.iter().map(of_rank).collect()
        };
        assert_eq!(blocks_and_hops(&pat(AllGather, 16, u32::MAX)), [(1, 8), (2, 4), (4, 2), (8, 1)]);
        assert_eq!(blocks_and_hops(&pat(ReduceScatter, 16, 8)), [(8, 15), (4, 14), (2, 12), (1, 8)]);
        let walk = [(1, 8), (2, 4), (2, 2), (2, 1), (2, 1), (2, 2), (2, 1), (2, 1)];
        assert_eq!(blocks_and_hops(&pat(AllGather, 16, 2)), walk);
        assert_eq!(steps(8, 1).concat(), [4, 6, 7, 5, 2, 3, 1]);
        assert_eq!(steps(7, 2), [vec![4], vec![2, 6], vec![3], vec![1, 5]]);
    }

    #[test]
    fn one_rank_copies_to_itself() {
        for collective in [AllGather, ReduceScatter] {
            let schedule = pat(collective, 1, 4);
            assert_eq!((schedule.messages(), schedule.rounds[0].transfers.len()), (0, 1));
        }
    }

    #[test]
    fn aggregations_are_rounded() {
        assert_eq!(pat(AllGather, 12, 0), pat(AllGather, 12, 1));
        assert_eq!(pat(AllGather, 12, 7), pat(AllGather, 12, 4));
        assert_eq!(pat(AllGather, 12, 9), pat(AllGather, 12, u32::MAX));
    }
}
