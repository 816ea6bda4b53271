//! Recursive doubling: in round `t` every rank exchanges all it has with the rank that differs in bit `t`.
//!
//! Source: R. Thakur, R. Rabenseifner and W. Gropp, "Optimization of collective communication operations in
//! MPICH", IJHPCA 19 (2005), section 4.4 (all-reduce for short messages).
//!
//! Cost over `n = 2^k` ranks, with `M` the bytes of the buffer: `k` rounds, `k M` bytes out of and into every
//! port. It has the fewest rounds that an all-reduce can have when a rank talks to one other at a time.
//!
//! Fold order: of two ranks that meet, the value of the lower one comes first, so every rank has the same
//! bracketing: the balanced binary tree over ranks `0, 1, …, n-1`.

use crate::{Channel, Chunk, Collective, Partition, Place, Rank, Round, Schedule, Transfer};

/// The all-reduce over `ranks` ranks.
///
/// # Panics
///
/// When `ranks` is no power of two, or is 1: there is nothing to exchange.
pub fn doubling(ranks: u32) -> Schedule {
    assert!(
        ranks.is_power_of_two() && ranks > 1,
        "recursive doubling needs a power of two above 1, not {ranks}"
    );
    let chunk = Chunk(0);
    let last = ranks.ilog2() - 1;
    let round = |bit: u32| {
        let transfer = |from: u32| {
            let to = from ^ 1 << bit;
            let held = if bit == 0 { Place::Input(chunk) } else { Place::Scratch(chunk) };
            Transfer {
                from: Rank(from),
                to: Rank(to),
                channel: Channel(0),
                source: held,
                target: if bit == last { Place::Output(chunk) } else { Place::Scratch(chunk) },
                fold: Some(held),
                own_first: to < from,
            }
        };
        Round { transfers: (0..ranks).map(transfer).collect() }
    };
    Schedule {
        name: "doubling".into(),
        collective: Collective::AllReduce,
        ranks,
        partition: Partition { parts: 1 },
        rounds: (0..=last).map(round).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cost_is_the_formula() {
        for rounds in 1..=6u32 {
            let schedule = doubling(1 << rounds);
            assert_eq!(schedule.rounds.len() as u32, rounds);
            for rank in 0..schedule.ranks {
                let out =
                    schedule.rounds.iter().flat_map(|round| &round.transfers).filter(|t| t.from.0 == rank);
                let into =
                    schedule.rounds.iter().flat_map(|round| &round.transfers).filter(|t| t.to.0 == rank);
                assert_eq!((out.count() as u32, into.count() as u32), (rounds, rounds));
            }
        }
    }
}
