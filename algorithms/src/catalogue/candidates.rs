//! The candidates: the algorithms that a planner prices.
//!
//! Invariant: every candidate is defined for the collective and the number of ranks, and appears once. Their order
//! settles ties: fewer assumptions first. Absent: prices.

use super::{Algorithm, Shape};
use crate::Collective;

/// Channels of rings along rails: one for short calls, more where one cannot keep the links busy.
const RAIL_CHANNELS: [u16; 3] = [1, 4, 16];
/// Channels through switches: as many as NVIDIA NCCL has on Hopper (`src/transport/nvls.cc`, `NVLS_NCHANNELS_SM90`).
const SWITCH_CHANNELS: u16 = 16;
/// Trees along each rail, for the same reasons; one alone loads half of the doors. With 16 a reduce of 8 GiB over eight `dgx-h100`
/// takes 35 ms, with 4 it takes 63.
const RAIL_TREES: [u16; 4] = [1, 2, 4, 16];

/// Above this number of ranks no rank sends to all others at once: memory for connections grows with the ranks.
const ALL_PAIRS_RANKS_MAX: u32 = 64;

/// The algorithms that a planner should price for `collective` over `ranks` ranks.
pub fn candidates(collective: Collective, ranks: u32, shape: &Shape) -> Vec<Algorithm> {
    let Shape { per_box, channels, bidirectional, all_pairs, rails, is_switched } = *shape;
    let mut all = vec![
        Algorithm::Pair,
        Algorithm::Ring { channels, bidirectional },
        Algorithm::Tree,
        Algorithm::Doubling,
        Algorithm::HalvingDoubling,
        Algorithm::Bruck { radix: 2 },
        Algorithm::Pat,
        Algorithm::Binomial,
        Algorithm::ScatterAllGather,
        Algorithm::Swing,
        Algorithm::Pairwise,
        Algorithm::Coordinated,
    ];
    if ranks <= ALL_PAIRS_RANKS_MAX || all_pairs {
        all.extend([Algorithm::Direct { first: 0 }, Algorithm::TwoShot, Algorithm::Spread]);
    }
    if ranks > 4 {
        all.push(Algorithm::Bruck { radix: 4 });
    }
    // Plans of rooted collectives count ranks from the root, which need not be the first rank of its box; few know where it is.
    let rooted = matches!(collective, Collective::Broadcast | Collective::Reduce);
    if per_box > 1 && ranks > per_box && !rooted {
        all.extend([
            Algorithm::Hierarchical { per_box },
            Algorithm::BoxTree { per_box },
            Algorithm::TwoLevel { per_box },
        ]);
    }
    if per_box > 1 && ranks > per_box && rooted {
        all.push(Algorithm::BoxChain { per_box, first: 0 });
    }
    if rails > 0 {
        all.extend(RAIL_CHANNELS.map(|channels| Algorithm::Rails { per_box: rails, channels }));
        all.extend(RAIL_TREES.map(|trees| Algorithm::RailTrees { per_box: rails, trees, first: 0 }));
        all.extend(is_switched.then_some(Algorithm::Switched { per_box: rails, channels: SWITCH_CHANNELS }));
    }
    if let Some((columns, rows)) = square(ranks) {
        all.push(Algorithm::BlueConnect { dimensions: [columns, rows, 1, 1] });
    }
    all.retain(|algorithm| algorithm.is_defined(collective, ranks));
    all
}

/// The factorisation into two numbers above 1 that are nearest to each other.
fn square(ranks: u32) -> Option<(u16, u16)> {
    let columns = (2..=ranks.isqrt()).rev().find(|&columns| ranks.is_multiple_of(columns))?;
    Some((u16::try_from(columns).ok()?, u16::try_from(ranks / columns).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn candidates_are_defined_and_different() {
        for ranks in (1..=64).chain([128, 1024, 16384]) {
            let replicated = [1, 2, 8].map(|group| Collective::AllToAllReplicated { group });
            let replicated = replicated.into_iter().filter(|collective| collective.fits(ranks));
            for collective in Collective::ALL.into_iter().chain(replicated) {
                for per_box in [1, 2, 8] {
                    let all_pairs = ranks == 128;
                    let shape = Shape {
                        per_box,
                        channels: 2,
                        bidirectional: true,
                        all_pairs,
                        rails: per_box,
                        is_switched: true,
                    };
                    let found = candidates(collective, ranks, &shape);
                    let possible = collective != Collective::SendReceive || ranks == 2;
                    assert_eq!(!found.is_empty(), possible, "{collective} over {ranks}");
                    for (at, algorithm) in found.iter().enumerate() {
                        assert!(algorithm.is_defined(collective, ranks));
                        assert!(!found[..at].contains(algorithm), "{algorithm} twice");
                    }
                }
            }
        }
    }

    #[test]
    fn the_squarest_factors() {
        assert_eq!([square(12), square(16), square(7), square(1)], [Some((3, 4)), Some((4, 4)), None, None]);
    }
}
