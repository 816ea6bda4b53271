//! Recursive doubling: in round `t` every rank exchanges all it has with the rank that differs in bit `t`.
//!
//! Source: R. Thakur, R. Rabenseifner and W. Gropp, "Optimization of collective communication operations in
//! MPICH", IJHPCA 19 (2005), section 4.4 (all-reduce for short messages).
//!
//! Of `n` ranks, `p = 2^k` (the largest power of two) exchange. The other `n - p` are the odd ones among the
//! first `2(n-p)`: each hands its value to the rank before it and gets the result from there in the end.
//!
//! Cost, with `M` the bytes of the buffer, out of and into the busiest port:
//!
//! | ranks | rounds | bytes |
//! |---|---|---|
//! | `n = 2^k` | `k` | `k M` |
//! | all others | `k + 2` | `(k+1) M`: one more out in the last round and one more in in the first |
//!
//! With a power of two it has the fewest rounds that an all-reduce can have when a rank exchanges with one other at a
//! time.
//!
//! Scratch: 1 place on ranks that fold more than once, none on the others.
//!
//! Fold order: of two ranks that meet, the value of the lower one comes first, so every rank has the same
//! bracketing: the balanced binary tree over ranks `0, 1, …, n-1`, whose first `n-p` leaves are pairs.

use super::common::Core;
use crate::{
    Channel, Chunk, Collective, Own, Partition, Place, Rank, Regular, Schedule, Symmetry, Transfer, whole,
};

/// The all-reduce over `ranks` ranks, at least 1.
///
/// # Panics
///
/// When `ranks` is 0.
pub fn doubling(ranks: u32) -> Schedule {
    whole(&Doubling::new(ranks))
}

/// Recursive doubling, rank by rank.
pub struct Doubling {
    ranks: u32,
    core: Core,
}

impl Doubling {
    /// As [`doubling`], without making the schedule of all ranks.
    ///
    /// # Panics
    ///
    /// When `ranks` is 0.
    pub fn new(ranks: u32) -> Self {
        Doubling { ranks, core: Core::new(ranks).expect("recursive doubling needs a rank") }
    }

    /// The first and the last round: the odd rank of a pair hands in its value and gets the result.
    fn of_pair(&self, even: u32) -> [Own; 2] {
        let whole = Chunk(0);
        let (even, odd) = (Rank(even), Rank(even + 1));
        let transfer = |from, to, source, fold| Transfer {
            from,
            to,
            channel: Channel(0),
            source,
            target: if fold { Place::Scratch(whole) } else { Place::Output(whole) },
            fold: fold.then_some(Place::Input(whole)),
            own_first: fold,
        };
        let hand_in = transfer(odd, even, Place::Input(whole), true);
        let hand_out = transfer(even, odd, Place::Output(whole), false);
        [
            Own { round: 0, transfer: hand_in, complete: false },
            Own { round: self.core.bits + 1, transfer: hand_out, complete: false },
        ]
    }
}

impl Regular for Doubling {
    fn head(&self) -> Schedule {
        Schedule {
            name: "doubling".into(),
            collective: Collective::AllReduce,
            ranks: self.ranks,
            switches: 0,
            partition: Partition { parts: 1 },
            rounds: Vec::new(),
        }
    }

    fn own(&self, rank: Rank, take: &mut dyn FnMut(Own)) {
        let core = &self.core;
        let whole = Chunk(0);
        if self.ranks == 1 {
            let (source, target) = (Place::Input(whole), Place::Output(whole));
            let (from, to, channel) = (rank, rank, Channel(0));
            let transfer = Transfer { from, to, channel, source, target, fold: None, own_first: false };
            return take(Own { round: 0, transfer, complete: true });
        }
        let in_pair = rank.0 < 2 * core.pairs;
        let pair = in_pair.then(|| self.of_pair(rank.0 & !1));
        if let Some([hand_in, _]) = pair {
            take(hand_in);
        }
        let member = if in_pair { rank.0 / 2 } else { rank.0 - core.pairs };
        if !in_pair || rank.0.is_multiple_of(2) {
            for bit in 0..core.bits {
                let last = bit + 1 == core.bits;
                let held = |member| {
                    if bit > 0 || core.is_pair(member) { Place::Scratch(whole) } else { Place::Input(whole) }
                };
                let other = member ^ 1 << bit;
                for (from, to) in [(member, other), (other, member)] {
                    let transfer = Transfer {
                        from: core.rank(from),
                        to: core.rank(to),
                        channel: Channel(0),
                        source: held(from),
                        target: if last { Place::Output(whole) } else { Place::Scratch(whole) },
                        fold: Some(held(to)),
                        own_first: to < from,
                    };
                    take(Own { round: bit + u32::from(core.pairs > 0), transfer, complete: last });
                }
            }
        }
        if let Some([_, hand_out]) = pair {
            take(hand_out);
        }
    }

    fn symmetry(&self) -> Option<Symmetry> {
        let dimensions = vec![2; self.core.bits as usize];
        (self.core.pairs == 0).then_some(Symmetry { dimensions, lower_first: true })
    }

    fn piece(&self, _: Rank, piece: u32) -> u32 {
        piece
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Cost;

    #[test]
    fn the_cost_is_the_formula() {
        for ranks in 2..=300u32 {
            let bits = ranks.ilog2();
            let (rounds, pieces, pairs) = if ranks.is_power_of_two() {
                (bits, bits, 0)
            } else {
                (bits + 2, bits + 1, 2 * (ranks - (1 << bits)))
            };
            let expected = Cost {
                rounds,
                // A message in every round leads from a member to its complement; when no pair has a pair as
                // its complement, no chain has both the first and the last round.
                depth: if pairs == 0 || pairs > 1 << bits { rounds } else { rounds - 1 },
                messages: (bits * (1 << bits) + pairs) as usize,
                out_pieces: pieces,
                into_pieces: pieces,
                largest_pieces: 1,
            };
            assert_eq!(doubling(ranks).cost(), expected, "{ranks}");
        }
    }

    #[test]
    fn one_rank_copies_to_itself() {
        assert_eq!((doubling(1).messages(), doubling(1).rounds.len()), (0, 1));
    }
}
