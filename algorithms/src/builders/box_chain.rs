//! Broadcast and reduce over boxes: a chain from box to box, and a chain inside each.
//!
//! The first rank of each box that the vector reaches, its leader, sends it to the next box's leader and down the chain of its own
//! box; a reduce is the same the other way. So the vector crosses each box's wires once, and slices follow each other.
//!
//! Source: V. Bala et al., "CCL: A portable and tunable collective communication library for scalable parallel computers", IEEE TPDS 6
//! (1995), for pipelined chains; the two levels as in N. T. Karonis et al., "Exploiting hierarchy in parallel computer networks to
//! optimize collective operation performance", IPDPS 2000. Cost over `b` boxes of `g` ranks, with `M` the bytes of the vector: `b-1` hops
//! between boxes, then `g-1` inside; `M` out of and into each box's wires, `2 M` out of (or into) a leader.
//!
//! Fold order: that of [`spanning_trees`].

use super::spanning::{SpanningTree, spanning_trees};
use crate::{Collective, Rank, Schedule};

/// Whether `collective` has a chain of boxes: the rooted ones that move whole vectors.
pub const fn box_chain_is_defined(collective: Collective) -> bool {
    matches!(collective, Collective::Broadcast | Collective::Reduce)
}

/// The schedule of `collective` over `boxes` boxes of `per_box` ranks. Ranks are counted from the root, through the last box to the rank
/// before it; the root is number `first` of its box.
///
/// # Panics
///
/// When the collective has no chain ([`box_chain_is_defined`]), a number but `first` is 0, or `first` is no rank of a box.
pub fn box_chain(collective: Collective, boxes: u32, per_box: u32, first: u32) -> Schedule {
    assert!(box_chain_is_defined(collective), "there is no chain of boxes for {collective}");
    assert!(boxes > 0 && per_box > 0 && first < per_box, "a chain of boxes needs boxes and ranks in them");
    let ranks = boxes * per_box;
    let parent = |rank: u32| {
        let at = (rank + first) % ranks;
        let (of_box, local) = (at / per_box, at % per_box);
        // The leader of each box has the root's number there, so that neighbours are `per_box` ranks apart.
        let from_leader = (local + per_box - first) % per_box;
        Some(Rank(match (of_box, from_leader) {
            (0, 0) => return None,
            (_, 0) => rank - per_box,
            _ => (of_box * per_box + (local + per_box - 1) % per_box + ranks - first) % ranks,
        }))
    };
    let tree = SpanningTree { parents: (0..ranks).map(parent).collect(), share: 1 };
    Schedule { name: format!("box-chain({boxes}x{per_box})"), ..spanning_trees(collective, &[tree]) }
}

#[cfg(test)]
mod tests {
    use super::super::proving::{proved, tally};
    use super::*;

    #[test]
    fn every_chain_is_proved_for_every_place_of_the_root() {
        for collective in [Collective::Broadcast, Collective::Reduce] {
            for (boxes, per_box) in
                (1..=24).flat_map(|boxes| (1..=24 / boxes).map(move |per_box| (boxes, per_box)))
            {
                for first in 0..per_box {
                    proved(&box_chain(collective, boxes, per_box, first), 4);
                }
            }
            proved(&box_chain(collective, 64, 8, 5), 2);
        }
    }

    #[test]
    fn the_vector_crosses_each_boundary_once() {
        for collective in [Collective::Broadcast, Collective::Reduce] {
            for first in 0..4 {
                let schedule = box_chain(collective, 5, 4, first);
                let (mut out, mut into) = (vec![0; 5], vec![0; 5]);
                for transfer in schedule.rounds.iter().flat_map(|round| &round.transfers) {
                    let [from, to] =
                        [transfer.from, transfer.to].map(|rank| ((rank.0 + first) % 20 / 4) as usize);
                    if from != to {
                        out[from] += 1;
                        into[to] += 1;
                    }
                }
                let ends = if collective == Collective::Broadcast { (out, into) } else { (into, out) };
                assert_eq!(ends, (vec![1, 1, 1, 1, 0], vec![0, 1, 1, 1, 1]), "{collective} from {first}");
                assert_eq!(tally(&schedule).largest, 1);
            }
        }
    }
}
