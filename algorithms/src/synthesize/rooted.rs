//! All-reduce by trees to a root and other trees from it, where links carry more one way than the other.
//!
//! The trees up are those of a reduce, the trees down those of a broadcast from the same root, both as `packing` has
//! them. Both run at once, so that they share links; what they reach together is counted, and of the first roots
//! the one that reaches most is taken. A link that carries bytes one way alone is used up or down, which trees of edges both ways cannot.
//!
//! Sources: those of `packing`. Invariant: as there. Absent: several roots with weights, which a linear program would
//! find: machines whose links carry as much both ways are at their bound by `trees`.

use super::packing::{self, Forest};
use crate::bounds::{self, Ratio, bound};
use crate::builders::{TwoWayTree, two_way_trees};
use crate::topology::Topology;
use crate::{Collective, Rank, Schedule};

/// The most pieces of a vector.
const PIECES_MAX: u32 = 64;
/// Roots that are tried.
const ROOTS_MAX: usize = 16;

/// An all-reduce by one root.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rooted {
    /// The schedule.
    pub schedule: Schedule,
    /// The root of its trees.
    pub root: Rank,
    /// The algorithm bandwidth of long calls, in bytes of the vector a second, as [`rate`](super::rate()) counts it.
    pub rate: Ratio,
    /// What no schedule exceeds.
    pub bound: Ratio,
}

/// The fastest all-reduce by trees of one root; none for fewer than 2 or more than [`packing::RANKS_MAX`] ranks, and
/// where a rank does not reach another.
pub fn all_reduce(topology: &Topology) -> Option<Rooted> {
    let topology = &topology.bundled();
    let bound = bound(topology, Collective::AllReduce, &bounds::Options::default()).ok()?.rate;
    let options = packing::Options { trees_per_root_max: PIECES_MAX / 8, ..Default::default() };
    let mut best: Option<Rooted> = None;
    for root in (0..topology.ranks()).map(Rank).take(ROOTS_MAX) {
        let packed = |collective| packing::forest(topology, collective, root, &options);
        let (Some(up), Some(down)) = (packed(Collective::Reduce), packed(Collective::Broadcast)) else {
            continue;
        };
        let schedule = two_way_trees(&paired(&up, &down));
        let Some(rate) = super::rate(&schedule, topology).ok().flatten() else { continue };
        if best.as_ref().is_none_or(|best| rate > best.rate) {
            best = Some(Rooted { schedule, root, rate, bound });
        }
        if rate >= bound {
            break;
        }
    }
    best
}

/// Trees up and down for the pieces that have the same of both.
fn paired(up: &Forest, down: &Forest) -> Vec<TwoWayTree> {
    // As many pieces as both numbers of trees divide.
    let pieces =
        (1..).map(|times| times * up.trees_per_root).find(|all| all.is_multiple_of(down.trees_per_root));
    let pieces = pieces.unwrap_or(up.trees_per_root);
    let spread = |forest: &Forest| -> Vec<usize> {
        let each = pieces / forest.trees_per_root;
        let of = |(number, tree): (usize, &packing::Tree)| {
            std::iter::repeat_n(number, (tree.share * each) as usize)
        };
        forest.trees.iter().enumerate().flat_map(of).collect()
    };
    let (ups, downs) = (spread(up), spread(down));
    let pairs: Vec<(usize, usize)> = ups.into_iter().zip(downs).collect();
    let tree = |group: &[(usize, usize)]| TwoWayTree {
        up: up.trees[group[0].0].parents.clone(),
        down: down.trees[group[0].1].parents.clone(),
        share: group.len() as u32,
    };
    pairs.chunk_by(|one, other| one == other).map(tree).collect()
}
