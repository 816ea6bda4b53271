//! Spanning trees of every rank: each block goes down, or is folded up, along the trees of the rank that it belongs to.
//!
//! Source: L. Zhao et al., "ForestColl" (arXiv 2402.06787); one tree is as in [`spanning_trees`](super::spanning_trees). Cost: the
//! height of the highest tree in messages; a rank sends a piece of a block to each of its children in the piece's tree.
//!
//! Fold order: a rank folds what arrives from its children, in ascending order of ranks, with what it has; arriving value first.

use super::spanning::{Along, Shape};
use crate::{Chunk, Collective, Partition, Place, Rank, Round, Schedule};

/// A tree of [`forest`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RootedTree {
    /// The parent of each rank; none for the root, whose block the tree carries.
    pub parents: Vec<Option<Rank>>,
    /// How many pieces of the block it carries; at least 1.
    pub share: u32,
    /// The channel of its messages.
    pub channel: u16,
}

/// Whether `collective` has a forest.
pub const fn forest_is_defined(collective: Collective) -> bool {
    matches!(collective, Collective::AllGather | Collective::ReduceScatter)
}

/// The schedule of `collective` by trees of every rank. The trees of a block carry its pieces in the order of the list; the
/// shares of each root's trees have one sum.
///
/// # Panics
///
/// When the collective has no forest, a tree has no share or its parents are no tree of all ranks, or the sums differ.
pub fn forest(collective: Collective, trees: &[RootedTree]) -> Schedule {
    assert!(forest_is_defined(collective), "there is no forest for {collective}");
    let ranks = trees.first().map_or(0, |tree| tree.parents.len());
    assert!(ranks > 0, "no tree");
    let root = |tree: &RootedTree| tree.parents.iter().position(Option::is_none).unwrap_or_default();
    let mut pieces = vec![0u32; ranks];
    trees.iter().for_each(|tree| pieces[root(tree)] += tree.share);
    let parts = pieces[0];
    let is_even = pieces.iter().all(|all| *all == parts) && trees.iter().all(|tree| tree.share > 0);
    assert!(is_even, "the trees of the roots carry {pieces:?} pieces");
    let mut rounds: Vec<Round> = Vec::new();
    let mut first = vec![0u32; ranks];
    for tree in trees {
        assert_eq!(tree.parents.len(), ranks, "a tree is over other ranks");
        let root = root(tree);
        let shape = Shape::new(&tree.parents, false);
        for piece in first[root]..first[root] + tree.share {
            let of_all = Chunk(root as u32 * parts + piece);
            let (input, output) = match collective {
                Collective::AllGather => (Place::Input(Chunk(piece)), Place::Output(of_all)),
                _ => (Place::Input(of_all), Place::Output(Chunk(piece))),
            };
            let channels = [tree.channel; 2];
            Along { collective, input, output, scratch: of_all, channels }.add_to(&mut rounds, [&shape; 2]);
        }
        first[root] += tree.share;
    }
    let channels = trees.iter().map(|tree| tree.channel).max().unwrap_or(0) + 1;
    Schedule {
        name: format!("forest({} trees, channels={channels})", trees.len()),
        collective,
        ranks: ranks as u32,
        switches: 0,
        partition: Partition { parts },
        rounds,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::builders::proving::{proved, tally};

    /// Two trees of each rank: a star with one piece, and a chain with `share`.
    fn trees(ranks: u32, share: u32) -> Vec<RootedTree> {
        let of = |root: u32| {
            let star = (0..ranks).map(|rank| (rank != root).then_some(Rank(root))).collect();
            let before = |rank: u32| Rank((rank + ranks - 1) % ranks);
            let chain = (0..ranks).map(|rank| (rank != root).then(|| before(rank))).collect();
            [
                RootedTree { parents: star, share: 1, channel: 0 },
                RootedTree { parents: chain, share, channel: 1 + (root % 2) as u16 },
            ]
        };
        (0..ranks).flat_map(of).collect()
    }

    #[test]
    fn every_forest_is_proved() {
        for collective in [Collective::AllGather, Collective::ReduceScatter] {
            for (ranks, share) in [(1, 1), (2, 1), (3, 2), (8, 1), (9, 3)] {
                let schedule = forest(collective, &trees(ranks, share));
                proved(&schedule, 4);
                let counted = tally(&schedule);
                assert_eq!(counted.messages, ranks * (ranks - 1) * (1 + share), "{collective} over {ranks}");
                assert!(counted.depth < ranks.max(2), "{collective} over {ranks}");
            }
        }
    }

    #[test]
    #[should_panic(expected = "carry [2, 1] pieces")]
    fn roots_with_different_sums_are_refused() {
        let mut all = trees(2, 1);
        all.pop();
        forest(Collective::AllGather, &all);
    }
}
