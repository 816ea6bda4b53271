//! Recursive halving and doubling: partners exchange ever smaller halves and fold them, then ever larger ones.
//!
//! Source: R. Thakur, R. Rabenseifner and W. Gropp, "Optimization of collective communication operations in
//! MPICH", IJHPCA 19 (2005); the all-reduce, reduce-scatter by halving and then all-gather by doubling, is
//! R. Rabenseifner's, "Optimization of collective reduction operations", ICCS 2004.
//!
//! For reduce-scatter and all-gather there must be `n = 2^k` ranks. All-reduce takes any number: of `n` ranks,
//! `p = 2^k` (the largest power of two) exchange; the other `n - p` are the odd ones among the first `2(n-p)`: each
//! hands its input to the rank before it and gets the result from there in the end.
//!
//! Cost, with `M` the bytes of the largest buffer of a rank:
//!
//! | collective | ranks | rounds | bytes out of (and into) the busiest port |
//! |---|---|---|---|
//! | reduce-scatter, all-gather | `n = 2^k` | `k` | `(n-1)/n M` |
//! | all-reduce | `n = 2^k` | `2k` | `2(n-1)/n M` |
//! | all-reduce | all others | `2k + 2` | `2(p-1)/p M + M` |
//!
//! Scratch: `n/2 - 1` places for reduce-scatter, none for the others: all-reduce keeps its partial sums in the
//! output.
//!
//! Fold order: of two ranks that meet, the value of the lower one comes first, so every piece has the same
//! bracketing. Near partners first, it is that of recursive doubling: the balanced binary tree over ranks in
//! their order. Far partners first, it is the balanced binary tree over members in the order of their
//! reversed bits.

use super::common::{Core, own_blocks};
use crate::{Channel, Chunk, Collective, Partition, Place, Round, Schedule, Transfer};

/// Which partners a rank meets first. An all-reduce meets them in the opposite order while it doubles.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PartnerOrder {
    /// Half of the ranks away first: the pieces of a message lie side by side. When halving, the far partner gets the
    /// largest message; when all-gathering, the smallest.
    FarFirst,
    /// The neighbour first.
    NearFirst,
}

/// Whether there is a schedule: all-reduce over any number of ranks, reduce-scatter and all-gather over powers
/// of two.
pub const fn halving_doubling_is_defined(collective: Collective, ranks: u32) -> bool {
    match collective {
        Collective::AllReduce => ranks > 0,
        Collective::ReduceScatter | Collective::AllGather => ranks.is_power_of_two(),
        _ => false,
    }
}

/// The schedule of `collective` over `ranks` ranks.
///
/// # Panics
///
/// When it is not defined ([`halving_doubling_is_defined`]).
pub fn halving_doubling(collective: Collective, ranks: u32, order: PartnerOrder) -> Schedule {
    assert!(
        halving_doubling_is_defined(collective, ranks),
        "there is no halving and doubling for {collective} over {ranks} ranks"
    );
    let core = Core::new(ranks).expect("there is a rank");
    let mut bits: Vec<u32> = (0..core.bits).map(|bit| 1 << bit).collect();
    if order == PartnerOrder::FarFirst {
        bits.reverse();
    }
    let exchange = Exchange { collective, core, bits };
    let (name, parts, rounds) = match collective {
        _ if ranks == 1 => {
            ("halving-doubling", 1, vec![Round { transfers: own_blocks(collective, 1, 0..1) }])
        }
        Collective::AllReduce => ("halving-doubling", exchange.core.members(), exchange.all_reduce()),
        Collective::ReduceScatter => ("halving", 1, exchange.halve()),
        _ => ("doubling", 1, exchange.gather()),
    };
    let order = match order {
        PartnerOrder::FarFirst => "far-first",
        PartnerOrder::NearFirst => "near-first",
    };
    Schedule {
        name: format!("{name}({order})"),
        collective,
        ranks,
        switches: 0,
        partition: Partition { parts },
        rounds,
    }
}

struct Exchange {
    collective: Collective,
    core: Core,
    /// The distances between partners, in the order in which they meet while halving.
    bits: Vec<u32>,
}

impl Exchange {
    fn all_reduce(mut self) -> Vec<Round> {
        let pieces = self.core.members();
        let mut rounds: Vec<Round> = self.core.hand_in(pieces, Place::Output).into_iter().collect();
        rounds.extend(self.halve());
        self.bits.reverse();
        rounds.extend(self.double());
        rounds.extend(self.core.hand_out(pieces));
        rounds
    }

    fn gather(&self) -> Vec<Round> {
        let mut rounds = self.double();
        rounds[0].transfers.extend(own_blocks(self.collective, self.core.members(), 0..self.core.members()));
        rounds
    }

    /// After the last round piece `m` is complete on member `m`.
    fn halve(&self) -> Vec<Round> {
        let mut settled = 0;
        let mut rounds = Vec::with_capacity(self.bits.len());
        for &bit in &self.bits {
            let before = settled;
            settled |= bit;
            // The partner keeps the pieces that agree with it in all bits so far.
            rounds.push(self.round(bit, |member, piece| {
                let other = member ^ bit;
                ((piece ^ other) & settled == 0).then(|| {
                    let held = |member| match self.sum(member, piece) {
                        _ if before == 0 && !self.core.is_pair(member) => Place::Input(Chunk(piece)),
                        sum => sum,
                    };
                    (held(member), self.sum(other, piece), Some(held(other)))
                })
            }));
        }
        rounds
    }

    /// The place of a member's partial sum of a piece.
    fn sum(&self, member: u32, piece: u32) -> Place {
        match self.collective {
            Collective::AllReduce => Place::Output(Chunk(piece)),
            _ if member == piece => Place::Output(Chunk(0)),
            _ => Place::Scratch(Chunk(piece)),
        }
    }

    /// Piece `m` starts on member `m` and reaches all ranks.
    fn double(&self) -> Vec<Round> {
        let mut missing = self.core.members() - 1;
        let mut rounds = Vec::with_capacity(self.bits.len());
        for (index, &bit) in self.bits.iter().enumerate() {
            // A member has the pieces that agree with it in all bits in which it has not met a partner yet.
            rounds.push(self.round(bit, |member, piece| {
                ((piece ^ member) & missing == 0).then(|| {
                    let own = index == 0 && self.collective == Collective::AllGather;
                    let source = if own { Place::Input(Chunk(0)) } else { Place::Output(Chunk(piece)) };
                    (source, Place::Output(Chunk(piece)), None)
                })
            }));
            missing &= !bit;
        }
        rounds
    }

    /// Every member sends to its partner at distance `bit` the pieces for which `what(member, piece)` returns a
    /// source, a target and the place to fold with.
    fn round(&self, bit: u32, what: impl Fn(u32, u32) -> Option<(Place, Place, Option<Place>)>) -> Round {
        let members = self.core.members();
        let transfer = |member: u32, piece: u32| {
            let (source, target, fold) = what(member, piece)?;
            Some(Transfer {
                from: self.core.rank(member),
                to: self.core.rank(member ^ bit),
                channel: Channel(0),
                source,
                target,
                fold,
                own_first: fold.is_some() && member & bit != 0,
            })
        };
        let pairs = (0..members).flat_map(|member| (0..members).map(move |piece| (member, piece)));
        Round { transfers: pairs.filter_map(|(member, piece)| transfer(member, piece)).collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Rank;
    use Collective::{AllGather, AllReduce, ReduceScatter};

    #[test]
    fn the_cost_is_the_formula() {
        for order in [PartnerOrder::FarFirst, PartnerOrder::NearFirst] {
            let measured = |collective, ranks| {
                let cost = halving_doubling(collective, ranks, order).cost();
                assert_eq!((cost.out_pieces, cost.depth), (cost.into_pieces, cost.rounds));
                (cost.rounds, cost.out_pieces, cost.largest_pieces)
            };
            for n in 2..=128u32 {
                let (bits, p) = (n.ilog2(), 1 << n.ilog2());
                if n == p {
                    assert_eq!(measured(ReduceScatter, n), (bits, n - 1, n));
                    assert_eq!(measured(AllGather, n), (bits, n - 1, n));
                    assert_eq!(measured(AllReduce, n), (2 * bits, 2 * (n - 1), n));
                } else {
                    assert_eq!(measured(AllReduce, n), (2 * bits + 2, 2 * (p - 1) + p, p));
                }
            }
        }
    }

    #[test]
    fn far_partners_get_the_first_message() {
        for (order, distance) in [(PartnerOrder::FarFirst, 8), (PartnerOrder::NearFirst, 1)] {
            for collective in [AllReduce, AllGather, ReduceScatter] {
                let first = &halving_doubling(collective, 16, order).rounds[0].transfers[0];
                assert_eq!((first.from, first.to), (Rank(0), Rank(distance)), "{collective}");
            }
        }
    }

    #[test]
    fn one_rank_copies_to_itself() {
        for collective in [AllReduce, AllGather, ReduceScatter] {
            let schedule = halving_doubling(collective, 1, PartnerOrder::FarFirst);
            assert_eq!((schedule.messages(), schedule.rounds.len()), (0, 1));
        }
    }
}
