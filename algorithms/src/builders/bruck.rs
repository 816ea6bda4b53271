//! Bruck's exchanges: blocks travel together around the ring of ranks in strides, so there are few messages.
//!
//! Source: J. Bruck, C.-T. Ho, S. Kipnis, E. Upfal and D. Weathersby, "Efficient algorithms for all-to-all
//! communications in multiport message-passing systems", IEEE TPDS 8 (1997), for one port.
//!
//! All-gather: in round `t` rank `r` sends the first `2^t` blocks from its own one on (or as many as are
//! missing) to rank `r - 2^t`. All-to-all with radix `x`: a block has a way of `d` ranks to go; for each digit
//! of `d` to base `x`, lowest first, and each value `z` of the digit in turn, all blocks with that value make a hop
//! of `z x^t`. The paper rotates buffers; here every block is a piece with a place of its own.
//!
//! Cost over any `n >= 2` ranks, with `M` the bytes of the largest buffer of a rank, the same out of and into
//! every port:
//!
//! | collective | rounds | bytes | depth |
//! |---|---|---|---|
//! | all-gather | `ceil(log2 n)` | `(n-1)/n M` | `floor(log2 n)` |
//! | all-to-all, radix 2, `n = 2^k` | `k` | `k/2 M` | `k` |
//! | all-to-all, radix `x`, `n = x^k` | `(x-1) k` | `(x-1)/x k M` | `k` |
//! | all-to-all, radix `x`, any `n` | the sum over `t` of `min(x-1, floor((n-1)/x^t))` | `1/n M` for each digit that is not 0 of each of `0..n` | the most such digits of one number |
//!
//! Scratch: none for all-gather. All-to-all keeps the blocks that have made a hop and have another one to make. It
//! needs as many places as there are such blocks after the round that leaves most of them: fewer than `n`, and none
//! with a radix of `n`.

use super::common::own_blocks;
use crate::{Channel, Chunk, Collective, Partition, Place, Rank, Round, Schedule, Transfer};

/// The all-gather over `ranks` ranks, at least 1.
///
/// # Panics
///
/// When `ranks` is 0.
pub fn bruck_all_gather(ranks: u32) -> Schedule {
    assert!(ranks > 0, "an all-gather needs a rank");
    let strides = (0..).map(|bit| 1 << bit).take_while(|&stride| stride < ranks);
    let hop = |from: u32, stride: u32, index: u32| {
        let block = Chunk((from + index) % ranks);
        Transfer {
            from: Rank(from),
            to: Rank((from + ranks - stride) % ranks),
            channel: Channel(0),
            source: if index == 0 { Place::Input(Chunk(0)) } else { Place::Output(block) },
            target: Place::Output(block),
            fold: None,
            own_first: false,
        }
    };
    let rounds = strides.map(|stride| {
        let blocks = stride.min(ranks - stride);
        (0..ranks).flat_map(|from| (0..blocks).map(move |index| hop(from, stride, index))).collect()
    });
    schedule("bruck".into(), Collective::AllGather, ranks, rounds)
}

/// The all-to-all over `ranks` ranks, at least 1. Radices below 2 are read as 2, and those above `ranks` as
/// `ranks`: then every block goes straight.
///
/// # Panics
///
/// When `ranks` is 0.
pub fn bruck_all_to_all(ranks: u32, radix: u32) -> Schedule {
    assert!(ranks > 0, "an all-to-all needs a rank");
    let radix = radix.min(ranks).max(2);
    let strides = std::iter::successors(Some(1u32), |stride| stride.checked_mul(radix));
    let hops = strides
        .take_while(|&stride| stride < ranks)
        .flat_map(|stride| (1..radix).map(move |digit| (stride, digit)))
        .filter(|(stride, digit)| u64::from(*stride) * u64::from(*digit) < ranks.into());
    let rounds = hops.map(|(stride, digit)| {
        let way = (1..ranks).filter(|way| way / stride % radix == digit);
        way.flat_map(|way| {
            (0..ranks).map(move |from| {
                let origin = (from + ranks - way % stride) % ranks;
                let (first, last) = (way % stride == 0, way / stride < radix);
                // Among all ranks' blocks a rank holds one with `way` still to go.
                let between = Place::Scratch(Chunk(way));
                Transfer {
                    from: Rank(from),
                    to: Rank((from + stride * digit) % ranks),
                    channel: Channel(0),
                    source: if first { Place::Input(Chunk((from + way) % ranks)) } else { between },
                    target: if last { Place::Output(Chunk(origin)) } else { between },
                    fold: None,
                    own_first: false,
                }
            })
        })
        .collect()
    });
    schedule(format!("bruck(radix={radix})"), Collective::AllToAll, ranks, rounds)
}

/// With the copies of own blocks beside the first round.
fn schedule(
    name: String,
    collective: Collective,
    ranks: u32,
    rounds: impl Iterator<Item = Vec<Transfer>>,
) -> Schedule {
    let mut rounds: Vec<Round> = rounds.map(|transfers| Round { transfers }).collect();
    rounds.resize(rounds.len().max(1), Round::default());
    rounds[0].transfers.extend(own_blocks(collective, ranks, 0..ranks));
    Schedule { name, collective, ranks, switches: 0, partition: Partition { parts: 1 }, rounds }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Cost;

    fn expected(n: u32, rounds: u32, depth: u32, pieces: u32) -> Cost {
        let messages = (n * pieces) as usize;
        Cost { rounds, depth, messages, out_pieces: pieces, into_pieces: pieces, largest_pieces: n }
    }

    #[test]
    fn the_all_gather_costs_what_the_table_says() {
        for n in 2..=200u32 {
            let rounds = n.next_power_of_two().ilog2();
            assert_eq!(bruck_all_gather(n).cost(), expected(n, rounds, n.ilog2(), n - 1), "{n}");
        }
    }

    #[test]
    fn the_all_to_all_over_powers_of_the_radix_costs_what_the_table_says() {
        for (radix, powers) in [(2, 1..=7u32), (3, 1..=4), (4, 1..=3), (8, 1..=2), (11, 1..=1)] {
            for k in powers {
                let n = u32::pow(radix, k);
                // (x-1)/x k M, where M is n pieces.
                let pieces = (radix - 1) * k * n / radix;
                let cost = expected(n, (radix - 1) * k, k, pieces);
                assert_eq!(bruck_all_to_all(n, radix).cost(), cost, "{n}, radix {radix}");
            }
        }
    }

    #[test]
    fn the_all_to_all_over_any_ranks_costs_what_the_table_says() {
        for n in 2..=70u32 {
            for radix in [2, 3, 4, 7, n].into_iter().filter(|&radix| radix <= n) {
                let digits = |mut number: u32| {
                    let mut count = 0;
                    while number > 0 {
                        count += u32::from(!number.is_multiple_of(radix));
                        number /= radix;
                    }
                    count
                };
                let rounds = (0..n.ilog(radix) + 1).map(|t| (radix - 1).min((n - 1) / radix.pow(t))).sum();
                let depth = (0..n).map(digits).max().unwrap_or(0);
                let cost = expected(n, rounds, depth, (0..n).map(digits).sum());
                assert_eq!(bruck_all_to_all(n, radix).cost(), cost, "{n}, radix {radix}");
                if radix == 2 {
                    assert_eq!(rounds, n.next_power_of_two().ilog2());
                }
            }
        }
    }

    #[test]
    fn one_rank_copies_to_itself() {
        for schedule in [bruck_all_gather(1), bruck_all_to_all(1, 2)] {
            assert_eq!((schedule.messages(), schedule.rounds[0].transfers.len()), (0, 1));
        }
    }

    #[test]
    fn odd_radices_are_read_as_the_nearest() {
        assert_eq!(bruck_all_to_all(5, 0), bruck_all_to_all(5, 2));
        assert_eq!(bruck_all_to_all(5, u32::MAX), bruck_all_to_all(5, 5));
    }
}
