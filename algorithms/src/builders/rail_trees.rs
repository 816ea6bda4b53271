//! All-reduce, broadcast and reduce over boxes: trees between the boxes along every rail, and chains or stars inside.
//!
//! A rail is the ranks of one number in all boxes, and has its part of the vector. Its trees are between the boxes; inside of a box the
//! other ranks hang on the rank of the rail: in a chain where values are folded, so that no rank folds more than one arriving value
//! a slice and tree, and all on that one for a broadcast, which then is one hop away.
//!
//! Source: P. Sanders, J. Speck and J. L. Träff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan", Parallel
//! Computing 35 (2009), for trees in pairs whose inner boxes differ; parts along rails as NVIDIA NCCL's trees have them, one for each
//! adapter (`src/graph/connect.cc`). Cost over `b` boxes of `g` ranks, with `M` the bytes of the vector: `log2 b` hops between boxes and one,
//! or `g-1`, inside each way; `M/g` bytes through each door each way, twice that with one tree a rail, and about `M` into each rank inside.
//!
//! Fold order: that of [`spanning_trees`].

use super::box_tree::parent;
use super::spanning::{SpanningTree, spanning_trees};
use crate::{Collective, Rank, Schedule};

/// The boxes, and what runs over them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RailTrees {
    /// Boxes.
    pub boxes: u32,
    /// Ranks of each; rank = box * `per_box` + local.
    pub per_box: u32,
    /// Trees along each rail; every second one is the other tree of a pair.
    pub trees: u32,
    /// The number of rank 0 in its box. Ranks of rooted collectives are counted from the root, through the last box to the rank before it.
    pub first: u32,
}

/// The schedule of `collective` by the trees of all rails.
///
/// # Panics
///
/// When the collective has no trees ([`spanning_trees_are_defined`](super::spanning_trees_are_defined)), a number but `first` is 0, or
/// `first` is no rank of a box.
pub fn rail_trees(collective: Collective, of: RailTrees) -> Schedule {
    let RailTrees { boxes, per_box, trees, first } = of;
    assert!(
        boxes > 0 && per_box > 0 && trees > 0 && first < per_box,
        "rail trees need boxes, ranks and trees"
    );
    let one = |tree: u32| SpanningTree {
        parents: parents(collective, of, tree % per_box, tree / per_box),
        share: 1,
    };
    let all: Vec<SpanningTree> = (0..per_box * trees).map(one).collect();
    Schedule { name: format!("rail-trees({boxes}x{per_box}, {trees})"), ..spanning_trees(collective, &all) }
}

/// The parent of each rank in one of the trees of a rail.
fn parents(collective: Collective, of: RailTrees, rail: u32, which: u32) -> Vec<Option<Rank>> {
    let RailTrees { boxes, per_box, first, .. } = of;
    let ranks = boxes * per_box;
    // Ranks as the machine numbers them from the first of rank 0's box.
    let counted = |at: u32, local: u32| Rank((at * per_box + local + ranks - first) % ranks);
    let is_rooted = collective != Collective::AllReduce;
    let above = |at: u32| {
        if !is_rooted {
            return parent(which % 2, at, boxes);
        }
        // The root's box is above both trees over the others.
        let others = at.checked_sub(1)?;
        Some(parent(which % 2, others, boxes - 1).map_or(0, |above| above + 1))
    };
    let of_rank = |rank: u32| {
        let (at, local) = ((rank + first) % ranks / per_box, (rank + first) % per_box);
        if local == rail {
            return above(at).map(|above| counted(above, rail));
        }
        let is_star = collective == Collective::Broadcast;
        Some(counted(at, if is_star { rail } else { (local + per_box - 1) % per_box }))
    };
    (0..ranks).map(of_rank).collect()
}

#[cfg(test)]
mod tests {
    use super::super::proving::tally;
    use super::*;
    use crate::{LowerOptions, lower_all, verify};

    #[test]
    fn every_shape_is_proved_for_every_first_rank() {
        for collective in [Collective::AllReduce, Collective::Broadcast, Collective::Reduce] {
            for (boxes, per_box, trees) in [(1, 1, 1), (1, 4, 2), (2, 2, 1), (3, 3, 2), (4, 2, 4), (7, 1, 2)]
            {
                for first in 0..if collective == Collective::AllReduce { 1 } else { per_box } {
                    let schedule = rail_trees(collective, RailTrees { boxes, per_box, trees, first });
                    let what = format!("{collective} over {boxes}x{per_box} from {first}");
                    let plans = lower_all(&schedule, &LowerOptions { slots: 4 }).expect("trees lower");
                    verify(&plans).unwrap_or_else(|refusal| panic!("{what}: {refusal}"));
                }
            }
        }
    }

    #[test]
    fn a_door_carries_its_part_once_each_way() {
        for first in [0, 3] {
            let of = RailTrees { boxes: 8, per_box: 4, trees: 2, first };
            let schedule = rail_trees(Collective::Broadcast, of);
            let (mut out, mut into) = (vec![0; 32], vec![0; 32]);
            let machine = |rank: Rank| (rank.0 + first) % 32;
            for transfer in schedule.rounds.iter().flat_map(|round| &round.transfers) {
                let [from, to] = [transfer.from, transfer.to].map(machine);
                if from / 4 != to / 4 {
                    assert_eq!(from % 4, to % 4, "a rail is not crossed");
                    out[from as usize] += 1;
                    into[to as usize] += 1;
                }
            }
            // Two of eight pieces, which are the rail's part; the last box of a tree over seven has a single child.
            assert!(out.iter().all(|pieces| *pieces <= 2), "{out:?}");
            // The rail's part comes into each box but the root's.
            assert!(into[..4].iter().all(|pieces| *pieces == 0), "{into:?}");
            assert!(into[4..].iter().all(|pieces| *pieces == 2), "{into:?}");
            assert_eq!(tally(&schedule).largest, 8);
        }
    }
}
