//! All-to-all with one message between every two ranks: pairwise, or all at once.
//!
//! Source: R. Thakur, R. Rabenseifner and W. Gropp, "Optimization of collective communication operations in
//! MPICH", IJHPCA 19 (2005), section 4.3 (pairwise exchange for long messages, posted all at once for medium
//! ones).
//!
//! Cost over `n` ranks, with `M` the bytes of one rank's send buffer. No message waits for an earlier one's data, so
//! in both forms the depth is 1:
//!
//! | form | rounds | bytes out of and into every port |
//! |---|---|---|
//! | pairwise | `n-1` | `(n-1)/n M` |
//! | spread-out | 1 | `(n-1)/n M` |
//!
//! Both are defined for every number of ranks and need no scratch. One mailbox holds one message of an
//! iteration, so one slot is enough.
//!
//! In a pairwise exchange a rank goes on when its partner's block has come, so every port carries one block at a
//! time, each way. Spread out, no message waits and the network arbitrates; the channels are those of the direct
//! exchanges.

use super::direct::{stream, to_all};
use super::moves::{alone, copy, own_part, schedule};
use crate::{Chunk, Collective, Place, Round, Schedule, Transfer};

/// The all-to-all in `ranks - 1` rounds. In round `k` (from 1) rank `r` exchanges blocks with rank `r ^ k` when
/// `ranks` is a power of two, and else sends to `r + k` and receives from `r - k`.
///
/// # Panics
///
/// When `ranks` is 0.
pub fn pairwise(ranks: u32) -> Schedule {
    assert!(ranks > 0, "an all-to-all needs a rank");
    if ranks == 1 {
        return alone("pairwise", Collective::AllToAll);
    }
    let peer =
        |rank: u32, round: u32| if ranks.is_power_of_two() { rank ^ round } else { (rank + round) % ranks };
    let exchange =
        |round: u32| Round { transfers: (0..ranks).map(|rank| block(rank, peer(rank, round), 0)).collect() };
    let mut rounds: Vec<Round> = (1..ranks).map(exchange).collect();
    rounds[0].transfers.extend((0..ranks).map(|rank| own_part(Collective::AllToAll, rank, 0)));
    schedule("pairwise", Collective::AllToAll, ranks, 1, rounds)
}

/// The all-to-all in one round: rank `r` sends to `r + 1, r + 2, …` and receives in any order.
///
/// # Panics
///
/// When `ranks` is 0.
pub fn spread_out(ranks: u32) -> Schedule {
    assert!(ranks > 0, "an all-to-all needs a rank");
    if ranks == 1 {
        return alone("spread-out", Collective::AllToAll);
    }
    let mut round = to_all(ranks, |from, to| block(from, to, stream(from, to)));
    let own = |rank| own_part(Collective::AllToAll, rank, stream(rank, (rank + 1) % ranks));
    round.transfers.extend((0..ranks).map(own));
    schedule("spread-out", Collective::AllToAll, ranks, 1, vec![round])
}

/// Block `to` of one rank becomes block `from` of the other.
fn block(from: u32, to: u32, channel: u16) -> Transfer {
    copy(from, to, channel, Place::Input(Chunk(to)), Place::Output(Chunk(from)))
}

#[cfg(test)]
mod tests {
    use super::super::proving::{proved, scratch, sizes, tally};
    use super::*;

    #[test]
    fn both_forms_are_proved_up_to_64_ranks_and_over_some_more() {
        for ranks in sizes(&[100, 128, 256]) {
            for schedule in [pairwise(ranks), spread_out(ranks)] {
                assert_eq!(scratch(&proved(&schedule, 4).0), 0);
            }
        }
        for schedule in [pairwise(8), spread_out(8), pairwise(13), spread_out(13)] {
            proved(&schedule, 1);
        }
    }

    #[test]
    fn the_cost_is_the_formula() {
        for n in 2..=64 {
            for (schedule, rounds) in [(pairwise(n), n - 1), (spread_out(n), 1)] {
                let tally = tally(&schedule);
                assert_eq!((tally.rounds, tally.depth, tally.messages), (rounds, 1, n * (n - 1)));
                assert_eq!((tally.out, tally.into, tally.largest), (n - 1, n - 1, n));
            }
        }
    }

    #[test]
    fn in_a_pairwise_round_every_port_carries_one_block_each_way() {
        for ranks in 2..=64 {
            for (index, round) in (1..).zip(&pairwise(ranks).rounds) {
                let travelling = || round.transfers.iter().filter(|t| t.from != t.to);
                let mut from: Vec<u32> = travelling().map(|t| t.from.0).collect();
                let mut to: Vec<u32> = travelling().map(|t| t.to.0).collect();
                from.sort_unstable();
                to.sort_unstable();
                assert!(from.iter().copied().eq(0..ranks) && to == from, "{ranks} ranks, round {index}");
                let mutual = travelling().all(|t| t.from.0 ^ t.to.0 == index);
                assert_eq!(mutual, ranks.is_power_of_two(), "{ranks} ranks, round {index}");
            }
        }
    }
}
