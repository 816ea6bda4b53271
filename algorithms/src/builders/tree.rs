//! Binary trees: sums go up, results go down; two trees at once use both directions of every port.
//!
//! Source: P. Sanders, J. Speck and J. L. Träff, "Two-tree algorithms for full bandwidth broadcast, reduction
//! and scan", Parallel Computing 35 (2009). A tree is laid over positions `1..=m`: the largest power of two is
//! the root, what is before it its left subtree, what is after it its right one, and so on within each. It is
//! `floor(log2 m)` high, odd positions are leaves, even ones have a left child.
//!
//! [`tree`] turns the positions so that rank 0 is the root. [`double_tree`] lays two trees, each with half of
//! the buffer. For all-reduce both span all ranks: rank `r` is at position `r+1` of the first, and at `n-r`
//! (even `n`) or `r+2` (odd `n`; rank `n-1` at 1) of the second. With even `n` every rank is a leaf in exactly
//! one tree; with odd `n` rank `n-1` is a leaf in both and every other rank in exactly one. For broadcast and
//! reduce the two trees lie in the same way over the other ranks, and rank 0 is the parent of both roots.
//!
//! Cost over `n >= 2` ranks, with `M` the bytes of the largest buffer of a rank and `h(m) = floor(log2 m)`. The
//! measure of time is the depth, since the loop over slices pipelines; there are up to twice as many rounds, since a
//! rank takes its children one after the other.
//!
//! | schedule | depth | bytes out of the busiest port | bytes into the busiest port |
//! |---|---|---|---|
//! | tree, all-reduce | `2 h(n)` | `3M` (`n >= 4`; 2: `M`, 3: `2M`) | the same |
//! | tree, broadcast | `h(n)` | `2M` (2: `M`) | `M` |
//! | tree, reduce | `h(n)` | `M` | `2M` (2: `M`) |
//! | double tree, all-reduce | `2 h(n)` | `2M` (`n >= 4`; 2: `M`, 3: `1.5M`) | the same |
//! | double tree, broadcast | `1 + h(n-1)` | `M` | `M` |
//! | double tree, reduce | `1 + h(n-1)` | `M` | `M` |
//!
//! The `2M` of the double tree are `1.5M` as an inner rank and `0.5M` as a leaf, in each direction.
//!
//! Scratch: for each tree 1 place on its inner ranks, but none where the sum ends; none for broadcast. Channels: 1
//! for each tree and phase, so that sums and results of different slices do not wait for each other.
//!
//! Fold order: left subtree, own value, right subtree: the order of positions. The contribution of a rank 0 above two
//! trees comes last.

use super::common::own_blocks;
use crate::passes::interleave;
use crate::{Channel, Chunk, Collective, Partition, Place, Rank, Round, Schedule, Transfer};

/// Whether `collective` has trees. It then has them for any number of ranks.
pub const fn tree_is_defined(collective: Collective) -> bool {
    matches!(collective, Collective::AllReduce | Collective::Broadcast | Collective::Reduce)
}

/// One binary tree over `ranks` ranks (at least 1), with rank 0 as its root.
///
/// # Panics
///
/// When the collective has no tree ([`tree_is_defined`]), or `ranks` is 0.
pub fn tree(collective: Collective, ranks: u32) -> Schedule {
    let root = 1 << ranks.checked_ilog2().expect("a tree needs a rank");
    let mut nodes = Nodes::new(ranks);
    let top = nodes.lay(1, ranks, &|position| (position + ranks - root) % ranks);
    nodes.schedule(collective, top)
}

/// Two binary trees over `ranks` ranks (at least 1), each with half of the buffer. Rank 0 is the root of rooted
/// collectives.
///
/// # Panics
///
/// As [`tree`].
pub fn double_tree(collective: Collective, ranks: u32) -> Schedule {
    assert!(ranks > 0, "a tree needs a rank");
    // The number of ranks above the trees, which span the others.
    let above = if collective == Collective::AllReduce || ranks == 1 { 0 } else { 1 };
    let spanned = ranks - above;
    let both = [false, true].map(|second| {
        let rank = |position: u32| {
            let index = match (second, spanned % 2) {
                (false, _) => position - 1,
                (true, 0) => spanned - position,
                (true, _) => (position + spanned - 2) % spanned,
            };
            above + index
        };
        let mut nodes = Nodes::new(ranks);
        let mut top = nodes.lay(1, spanned, &rank);
        if above == 1 {
            nodes.children[0][0] = top;
            top = Some(0);
        }
        nodes.schedule(collective, top)
    });
    Schedule { name: "double-tree".into(), ..interleave(&both) }
}

/// A tree by ranks, and the rounds that are made of it.
struct Nodes {
    /// The left and the right child of each rank.
    children: Vec<[Option<u32>; 2]>,
    rounds: Vec<Round>,
}

const WHOLE: Chunk = Chunk(0);

impl Nodes {
    fn new(ranks: u32) -> Self {
        Nodes { children: vec![[None; 2]; ranks as usize], rounds: Vec::new() }
    }

    /// The tree over positions `low..=high`; returns the rank of its root.
    fn lay(&mut self, low: u32, high: u32, rank: &impl Fn(u32) -> u32) -> Option<u32> {
        let root = low - 1 + (1 << (high + 1).checked_sub(low)?.checked_ilog2()?);
        let children = [self.lay(low, root - 1, rank), self.lay(root + 1, high, rank)];
        self.children[rank(root) as usize] = children;
        Some(rank(root))
    }

    fn schedule(mut self, collective: Collective, top: Option<u32>) -> Schedule {
        let ranks = self.children.len() as u32;
        let top = top.unwrap_or_default();
        match collective {
            Collective::AllReduce | Collective::Broadcast | Collective::Reduce if ranks == 1 => {
                self.rounds.push(Round { transfers: own_blocks(collective, ranks, 0..1) });
            }
            Collective::AllReduce => {
                let complete = self.sum(top, top);
                self.pass_on(top, complete, Channel(1), Place::Output(WHOLE));
            }
            Collective::Broadcast => {
                self.rounds.push(Round { transfers: own_blocks(collective, ranks, 0..1) });
                self.pass_on(top, 0, Channel(0), Place::Input(WHOLE));
            }
            Collective::Reduce => {
                self.sum(top, top);
            }
            _ => panic!("there is no tree for {collective}"),
        }
        let (name, partition) = ("tree".into(), Partition { parts: 1 });
        Schedule { name, collective, ranks, switches: 0, partition, rounds: self.rounds }
    }

    /// Sums the subtree of `rank`; returns the first round after the sum is complete there.
    fn sum(&mut self, rank: u32, top: u32) -> u32 {
        let sum = if rank == top { Place::Output(WHOLE) } else { Place::Scratch(WHOLE) };
        let mut ready = 0;
        for (child, is_right) in self.children[rank as usize].into_iter().zip([false, true]) {
            let Some(child) = child else { continue };
            let is_leaf = self.children[child as usize] == [None; 2];
            let source = if is_leaf { Place::Input(WHOLE) } else { Place::Scratch(WHOLE) };
            let round = self.sum(child, top).max(ready);
            // Every inner rank has a left child, which comes first.
            let fold = Some(if is_right { sum } else { Place::Input(WHOLE) });
            let transfer = self.transfer(round, Channel(0), [child, rank], [source, sum]);
            (transfer.fold, transfer.own_first) = (fold, is_right);
            ready = round + 1;
        }
        ready
    }

    /// Sends the data that `rank` has in `source` down its subtree, from `round` on.
    fn pass_on(&mut self, rank: u32, round: u32, channel: Channel, source: Place) {
        for child in self.children[rank as usize].into_iter().flatten() {
            self.transfer(round, channel, [rank, child], [source, Place::Output(WHOLE)]);
            self.pass_on(child, round + 1, channel, Place::Output(WHOLE));
        }
    }

    fn transfer(
        &mut self,
        round: u32,
        channel: Channel,
        [from, to]: [u32; 2],
        [source, target]: [Place; 2],
    ) -> &mut Transfer {
        let round = round as usize;
        if self.rounds.len() <= round {
            self.rounds.resize(round + 1, Round::default());
        }
        let (from, to) = (Rank(from), Rank(to));
        let transfers = &mut self.rounds[round].transfers;
        transfers.push(Transfer { from, to, channel, source, target, fold: None, own_first: false });
        let last = transfers.len() - 1;
        &mut transfers[last]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Collective::{AllReduce, Broadcast, Reduce};

    /// (depth, pieces of the largest buffer, pieces out of the busiest port, into it)
    fn measured(schedule: &Schedule) -> (u32, u32, u32, u32) {
        let cost = schedule.cost();
        assert!(cost.rounds <= 2 * cost.depth, "{cost:?}");
        (cost.depth, cost.largest_pieces, cost.out_pieces, cost.into_pieces)
    }

    #[test]
    fn one_tree_costs_what_the_table_says() {
        for n in 2..=300u32 {
            let height = n.ilog2();
            let all = [1, 2, 3][(n as usize - 2).min(2)];
            let children = if n == 2 { 1 } else { 2 };
            assert_eq!(measured(&tree(AllReduce, n)), (2 * height, 1, all, all), "{n}");
            // A root of a power of two has one child, its left child two.
            assert_eq!(measured(&tree(Broadcast, n)), (height, 1, children, 1), "{n}");
            assert_eq!(measured(&tree(Reduce, n)), (height, 1, 1, children), "{n}");
        }
    }

    #[test]
    fn two_trees_cost_what_the_table_says() {
        for n in 2..=300u32 {
            // In halves.
            let all = [2, 3, 4][(n as usize - 2).min(2)];
            assert_eq!(measured(&double_tree(AllReduce, n)), (2 * n.ilog2(), 2, all, all), "{n}");
            let height = 1 + (n - 1).ilog2();
            assert_eq!(measured(&double_tree(Broadcast, n)), (height, 2, 2, 2), "{n}");
            assert_eq!(measured(&double_tree(Reduce, n)), (height, 2, 2, 2), "{n}");
        }
    }

    #[test]
    fn who_is_a_leaf_where() {
        for n in 2..=100 {
            let schedule = double_tree(AllReduce, n);
            let transfers = || schedule.rounds.iter().flat_map(|round| &round.transfers);
            for rank in 0..n {
                let leaf_in = [0, 2].into_iter().filter(|&channel| {
                    !transfers().any(|t| t.to == Rank(rank) && t.channel == Channel(channel))
                });
                let expected = if n % 2 == 1 && rank == n - 1 { 2 } else { 1 };
                assert_eq!(leaf_in.count(), expected, "rank {rank} of {n}");
            }
        }
    }

    #[test]
    fn one_rank_copies_to_itself() {
        for collective in Collective::ALL.into_iter().filter(|&collective| tree_is_defined(collective)) {
            assert_eq!((tree(collective, 1).messages(), tree(collective, 1).rounds.len()), (0, 1));
            assert_eq!(
                (double_tree(collective, 1).messages(), double_tree(collective, 1).rounds.len()),
                (0, 1)
            );
        }
    }
}
