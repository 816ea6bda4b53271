//! NCCL's ring, tree, NVLS and NVLSTree as schedules, with the channels that it has on a machine.
//!
//! Source: NCCL at commit 5067397c, `src/graph/connect.cc`: `connectRings` (a ring of each search channel through all
//! boxes; with `crossNic` 2 every second box runs the ring of its neighbour, so that no rail is crossed),
//! `connectTrees` (`ncclGetDtree`: the second of two trees on the second half of the channels), `ncclTopoPostset`
//! (twice the channels that the search finds); `src/transport/nvls.cc` (`NVLS_NCHANNELS_SM90`).
//!
//! Invariant: a schedule is made by the builders that the library has, and proved as theirs are. Where the search's
//! result depends on the machine's buses, the better one for NCCL is taken: both children of a tree come to the rank
//! that has the channel's adapter, so that no tree crosses rails. Deliberately absent: CollNet, PAT (one rank a box),
//! the copies of buffers that are not registered, the second slice of a chunk that is under way at the same time, and
//! graphs of files.

use crate::builders::{OrderedRing, SpanningTree, double_tree_parent, rings, spanning_trees, switched};
use crate::simulate::nccl_model::{Algorithm, Generation, Machine};
use crate::{Collective, Rank, Schedule};

/// Compute channels of NVLS from this generation on.
///
/// Source: NCCL at commit 5067397c, `src/transport/nvls.cc` (`ncclNvlsTuning`); the shorter chunks of Blackwell over
/// several boxes (`ncclNvlsTreeSm100Tuning`) are not taken over.
const fn switch_channels(generation: Generation, boxes: u32) -> u32 {
    match generation {
        Generation::Blackwell if boxes > 1 => 32,
        Generation::Blackwell => 24,
        _ => 16,
    }
}

/// Channels of an algorithm on a machine; none where it has no such algorithm.
pub fn channels(machine: &Machine, algorithm: Algorithm, boxes: u32) -> Option<u32> {
    match algorithm {
        // The search's channels, twice.
        Algorithm::Ring | Algorithm::Tree => Some(2 * machine.ring.channels),
        Algorithm::Nvls if boxes > 1 => None,
        Algorithm::NvlsTree if boxes == 1 => None,
        Algorithm::Nvls | Algorithm::NvlsTree => {
            machine.nvls.map(|_| switch_channels(machine.generation, boxes))
        }
        Algorithm::Pat => None,
    }
}

/// Whether NCCL has this combination.
pub const fn exists(algorithm: Algorithm, collective: Collective, boxes: u32) -> bool {
    use Collective::{AllGather, AllReduce, Broadcast, Reduce, ReduceScatter};
    match algorithm {
        Algorithm::Ring => matches!(collective, AllGather | AllReduce | Broadcast | Reduce | ReduceScatter),
        Algorithm::Tree => matches!(collective, AllReduce),
        Algorithm::Nvls => boxes == 1 && matches!(collective, AllGather | AllReduce | ReduceScatter),
        Algorithm::NvlsTree => boxes > 1 && matches!(collective, AllReduce),
        Algorithm::Pat => false,
    }
}

/// The schedule of `collective` over `boxes` boxes of `per_box` ranks by the first `channels` of `all` channels; none
/// where NCCL has no such combination.
///
/// # Panics
///
/// When a number is 0.
pub fn schedule(
    algorithm: Algorithm,
    collective: Collective,
    (boxes, per_box): (u32, u32),
    (channels, all): (u32, u32),
) -> Option<Schedule> {
    assert!(boxes > 0 && per_box > 0 && channels > 0 && channels <= all, "a box, a rank and a channel");
    if !exists(algorithm, collective, boxes) {
        return None;
    }
    let searched = all.div_ceil(2);
    let made = match algorithm {
        Algorithm::Ring => {
            let order =
                |channel: u32| OrderedRing { order: ring(channel % searched, boxes, per_box), share: 1 };
            rings(collective, &(0..channels).map(order).collect::<Vec<_>>())
        }
        Algorithm::Tree => {
            let tree = |channel: u32| SpanningTree {
                parents: tree(channel % searched, channel / searched, boxes, per_box),
                share: 1,
            };
            spanning_trees(collective, &(0..channels).map(tree).collect::<Vec<_>>())
        }
        _ => switched(collective, boxes, per_box, channels as u16),
    };
    let name = format!("{algorithm:?}({channels})").to_lowercase();
    Some(Schedule { name, ..made })
}

/// All ranks in the order of a search channel's ring: it enters an even box at the channel's adapter and leaves it at
/// that of its partner, with which it changes places in odd boxes.
fn ring(channel: u32, boxes: u32, per_box: u32) -> Vec<Rank> {
    let first = channel % per_box;
    let partner = if first ^ 1 < per_box { first ^ 1 } else { first };
    let mut inside = vec![first];
    let others = (1..per_box).map(|step| (first + per_box - step) % per_box);
    inside.extend(others.filter(|local| *local != partner));
    inside.extend((partner != first).then_some(partner));
    let in_box = |of: u32| {
        let mut order = inside.clone();
        if of % 2 == 1 {
            order.reverse();
        }
        order.into_iter().map(move |local| Rank(of * per_box + local))
    };
    (0..boxes).flat_map(in_box).collect()
}

/// The parents of all ranks in a channel's tree: a chain in each box, which begins at the channel's adapter, and one of
/// the two trees between the boxes.
fn tree(channel: u32, which: u32, boxes: u32, per_box: u32) -> Vec<Option<Rank>> {
    let head = channel % per_box;
    let parent = |rank: u32| {
        let (of, local) = (rank / per_box, rank % per_box);
        if local != head {
            return Some(Rank(of * per_box + (local + per_box - 1) % per_box));
        }
        double_tree_parent(which, of, boxes).map(|above| Rank(above * per_box + head))
    };
    (0..boxes * per_box).map(parent).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::{Routes, dgx_h100};
    use crate::{LowerOptions, lower_all, verify};

    const COLLECTIVES: [Collective; 5] = [
        Collective::AllReduce,
        Collective::AllGather,
        Collective::ReduceScatter,
        Collective::Broadcast,
        Collective::Reduce,
    ];

    #[test]
    fn rings_and_trees_are_proved() {
        for (boxes, per_box, channels) in [(1, 8, 3), (2, 8, 2), (2, 4, 8), (3, 5, 4), (4, 1, 2)] {
            for collective in COLLECTIVES {
                for algorithm in [Algorithm::Ring, Algorithm::Tree] {
                    let Some(made) =
                        schedule(algorithm, collective, (boxes, per_box), (channels, 2 * per_box))
                    else {
                        continue;
                    };
                    let plans = lower_all(&made, &LowerOptions { slots: 4 }).expect("it lowers");
                    let what = format!("{collective} by {} over {boxes} boxes of {per_box}", made.name);
                    verify(&plans).unwrap_or_else(|refusal| panic!("{what}: {refusal}"));
                }
            }
        }
    }

    #[test]
    fn rings_leave_boxes_by_every_adapter_and_cross_no_rail() {
        assert_eq!(
            ring(0, 2, 8).iter().map(|rank| rank.0).collect::<Vec<_>>(),
            [0, 7, 6, 5, 4, 3, 2, 1, 9, 10, 11, 12, 13, 14, 15, 8]
        );
        let topology = dgx_h100(4);
        let mut routes = Routes::new(&topology);
        let mut out = vec![0; 32];
        for channel in 0..8 {
            let order = ring(channel, 4, 8);
            for (at, &from) in order.iter().enumerate() {
                let to = order[(at + 1) % order.len()];
                if from.0 / 8 != to.0 / 8 {
                    out[from.index()] += 1;
                    let route = routes.from(from.into(), &[to.into()])[0].clone().expect("a route");
                    assert_eq!(route.len(), 4, "{from} to {to} by one rail");
                }
            }
        }
        assert_eq!(out, [1; 32]);
    }

    #[test]
    fn half_of_the_channels_have_the_second_tree() {
        let root = |channel, which| tree(channel, which, 4, 8).iter().position(Option::is_none);
        assert_eq!([root(0, 0), root(3, 0), root(3, 1)], [Some(0), Some(3), Some(27)]);
        let of = |channels| schedule(Algorithm::Tree, Collective::AllReduce, (4, 8), (channels, 16));
        assert_eq!(of(16).map(|made| made.partition.parts), Some(16));
    }

    #[test]
    fn what_nccl_has_not_is_absent() {
        let of =
            |algorithm, collective, boxes| schedule(algorithm, collective, (boxes, 8), (2, 16)).is_some();
        assert!(
            of(Algorithm::Nvls, Collective::AllGather, 1) && !of(Algorithm::Nvls, Collective::AllGather, 2)
        );
        assert!(of(Algorithm::NvlsTree, Collective::AllReduce, 2));
        assert!(
            !of(Algorithm::NvlsTree, Collective::AllReduce, 1)
                && !of(Algorithm::Tree, Collective::Broadcast, 2)
        );
        assert!(
            !of(Algorithm::Ring, Collective::AllToAll, 2) && !of(Algorithm::Pat, Collective::AllGather, 2)
        );
    }
}
