//! Broadcast in two phases: scatter the pieces down a binomial tree, then gather them all round a ring.
//!
//! Source: M. Barnett, L. Shuler, R. van de Geijn et al., "Interprocessor collective communication library
//! (InterCom)", SHPCC 1994; R. Thakur, R. Rabenseifner and W. Gropp, "Optimization of collective communication
//! operations in MPICH", IJHPCA 19 (2005), section 4.2 (broadcast of long messages).
//!
//! Cost over `n` ranks, with `M` the bytes of the buffer: `⌈log2 n⌉ + n-1` rounds, `2(n-1)/n M` bytes out of the
//! busiest port (the root's) and `M` into every port but the root's: a piece that the scatter has left on a
//! rank is not sent there again. No scratch. Defined for every number of ranks.
//!
//! In the scatter a rank keeps the pieces of its whole subtree in its output, their final place.

use super::binomial::{Edge, edges};
use super::moves::{alone, bits, copy, schedule};
use crate::{Chunk, Collective, Place, Round, Schedule, Transfer};

/// The broadcast over `ranks` ranks; rank 0 is the root.
///
/// # Panics
///
/// When `ranks` is 0.
pub fn scatter_all_gather(ranks: u32) -> Schedule {
    assert!(ranks > 0, "a broadcast needs a rank");
    let name = "scatter-all-gather";
    if ranks == 1 {
        return alone(name, Collective::Broadcast);
    }
    let hop = |from: u32, to: u32, piece: u32| {
        let output = Place::Output(Chunk(piece));
        copy(from, to, 0, if from == 0 { Place::Input(Chunk(piece)) } else { output }, output)
    };
    let scattered = |bit: u32| {
        let pieces = |edge: Edge| edge.subtree(ranks).map(move |piece| hop(edge.parent, edge.child, piece));
        Round { transfers: edges(ranks, bit).flat_map(pieces).collect() }
    };
    let gathered = |step: u32| {
        let passed = |from: u32| {
            let (to, piece) = ((from + 1) % ranks, (from + ranks - step) % ranks);
            (!has_after_scatter(to, piece)).then(|| hop(from, to, piece))
        };
        let mut transfers: Vec<Transfer> = (0..ranks).filter_map(passed).collect();
        // The root copies a piece when it sends it; it has sent piece 1 in the scatter.
        let kept = |piece: &u32| (ranks - piece) % ranks == step || (*piece == 1 && step == ranks - 2);
        transfers.extend((0..ranks).filter(kept).map(|piece| hop(0, 0, piece)));
        Round { transfers }
    };
    let rounds = (0..bits(ranks)).rev().map(scattered).chain((0..ranks - 1).map(gathered)).collect();
    schedule(name, Collective::Broadcast, ranks, ranks, rounds)
}

/// Whether the scatter leaves a piece on a rank: a piece of its subtree, or on the root any piece.
fn has_after_scatter(rank: u32, piece: u32) -> bool {
    rank == 0 || (piece >= rank && piece - rank < 1 << rank.trailing_zeros())
}

#[cfg(test)]
mod tests {
    use super::super::proving::{proved, scratch, sizes, tally};
    use super::*;

    #[test]
    fn every_broadcast_up_to_64_ranks_and_some_larger_ones_are_proved() {
        for ranks in sizes(&[100, 128, 256]) {
            assert_eq!(scratch(&proved(&scatter_all_gather(ranks), 4).0), 0);
        }
        for ranks in [2, 3, 8, 13] {
            proved(&scatter_all_gather(ranks), 2);
        }
    }

    #[test]
    fn the_cost_is_the_formula() {
        for n in 2..=64 {
            let tally = tally(&scatter_all_gather(n));
            assert_eq!(tally.rounds, bits(n) + n - 1);
            assert_eq!((tally.out, tally.into, tally.largest), (2 * (n - 1), n, n));
            assert_eq!(tally.messages, n * (n - 1), "every rank but the root gets every piece once");
        }
    }
}
