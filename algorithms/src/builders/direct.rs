//! Direct exchanges: every contribution travels once, from the rank that has it to the rank that needs it.
//!
//! Source: the linear algorithms of the MPI literature, among others R. Thakur, R. Rabenseifner and W. Gropp,
//! "Optimization of collective communication operations in MPICH", IJHPCA 19 (2005), and, under the name
//! all-pairs, M. Cowan et al., "MSCCLang: Microsoft Collective Communication Language", ASPLOS 2023.
//!
//! Cost over `n` ranks, with `M` the bytes of the largest buffer of a rank. No message waits for another, so
//! the depth (the longest chain of messages) is 1:
//!
//! | collective | depth | bytes out of and into the busiest port | scratch places |
//! |---|---|---|---|
//! | all-gather | 1 | `(n-1)/n M` | 0 |
//! | reduce-scatter | 1 | `(n-1)/n M` | 1 |
//! | broadcast | 1 | `(n-1) M` out, `M` into | 0 |
//! | reduce | 1 | `M` out, `(n-1) M` into | 1 |
//! | gather | 1 | `M/n` out, `(n-1)/n M` into | 0 |
//! | scatter | 1 | `(n-1)/n M` out, `M/n` into | 0 |
//!
//! Two ranks need no scratch. Defined for every number of ranks. One mailbox holds one message of an iteration,
//! so one slot is enough, fused or not.
//!
//! Fold order: the left fold over ranks `0, 1, …, n-1`, the same for every block; a reduce may start at another rank
//! and wrap around. An own contribution that is first or second in the order is folded with an arrival; otherwise the
//! first arrival is kept until the second comes, and the own contribution is folded in its turn.
//!
//! Channels: a message travels on the channel that is named by the lowest bit in which the two ranks differ and by
//! the sender's value of it, one of `2 ⌈log2 n⌉`. No rank sends and receives on one channel, so a rank's sends of its
//! own data wait for no arrival.

use super::moves::{alone, bits, copy, own_part, schedule};
use crate::{Chunk, Collective, Place, Round, Schedule, Transfer};

/// Whether there is a direct exchange for the collective. There is one for every collective but all-reduce, whose
/// direct forms are [`one_shot`](super::one_shot()) and [`two_shot`](super::two_shot()), all-to-all, whose direct
/// form is [`spread_out`](super::spread_out()), the same of replicated inputs, and point-to-point.
pub const fn direct_is_defined(collective: Collective) -> bool {
    use Collective::{AllReduce, AllToAll, AllToAllReplicated, SendReceive};
    !matches!(collective, AllReduce | AllToAll | AllToAllReplicated { .. } | SendReceive)
}

/// The direct exchange of `collective` over `ranks` ranks. Rank 0 is the root of rooted ones; a reduce starts
/// at the root.
///
/// # Panics
///
/// When the collective has none ([`direct_is_defined`]), or `ranks` is 0.
pub fn direct(collective: Collective, ranks: u32) -> Schedule {
    assert!(direct_is_defined(collective), "there is no direct {collective}");
    assert!(ranks > 0, "a direct exchange needs a rank");
    let (input, output) = (|block| Place::Input(Chunk(block)), |block| Place::Output(Chunk(block)));
    let rounds = match collective {
        _ if ranks == 1 => return alone("direct", collective),
        Collective::Reduce => return direct_reduce(ranks, 0),
        Collective::ReduceScatter => {
            let own = |owner| OrderedFold {
                ranks,
                first: 0,
                owner,
                source: input(owner),
                partial: Place::Scratch(Chunk(owner)),
                target: output(0),
            };
            (0..ranks).map(|step| fold_step(ranks, step, own, stream)).collect()
        }
        Collective::AllGather => {
            // From the output, so that all sends of a rank read one place and fuse with the copy that fills it.
            let own = (0..ranks).map(|rank| own_part(collective, rank, stream(rank, (rank + 1) % ranks)));
            let own = Round { transfers: own.collect() };
            vec![own, to_all(ranks, |from, to| copy(from, to, stream(from, to), output(from), output(from)))]
        }
        _ => {
            let message = |rank: u32| match collective {
                Collective::Gather => copy(rank, 0, 0, input(0), output(rank)),
                Collective::Scatter => copy(0, rank, 0, input(rank), output(0)),
                _ => copy(0, rank, 0, input(0), output(0)),
            };
            let messages = (1..ranks).map(message);
            vec![Round { transfers: messages.chain([own_part(collective, 0, 0)]).collect() }]
        }
    };
    schedule("direct", collective, ranks, 1, rounds)
}

/// The direct reduce over `ranks` ranks whose fold starts at (relative) rank `first`: the left fold over `first,
/// first+1, …`, wrapping around. Where `first` is the relative rank of absolute rank 0, the order over absolute ranks
/// is `0, 1, …`, whichever rank is the root.
///
/// # Panics
///
/// When `first` is not below `ranks`.
pub fn direct_reduce(ranks: u32, first: u32) -> Schedule {
    assert!(first < ranks, "a fold over {ranks} ranks cannot start at rank {first}");
    let name = if first == 0 { "direct".to_string() } else { format!("direct(first={first})") };
    if ranks == 1 {
        return alone(name, Collective::Reduce);
    }
    let chunk = Chunk(0);
    let root = OrderedFold {
        ranks,
        first,
        owner: 0,
        source: Place::Input(chunk),
        partial: Place::Scratch(chunk),
        target: Place::Output(chunk),
    };
    let round = |step| Round { transfers: root.step(step, |_, _| 0).into_iter().collect() };
    schedule(name, Collective::Reduce, ranks, 1, (0..ranks).map(round).collect())
}

/// The channel of a message.
pub(super) const fn stream(from: u32, to: u32) -> u16 {
    let bit = (from ^ to).trailing_zeros();
    (2 * bit + (from >> bit & 1)) as u16
}

/// The number of channels.
pub(super) const fn streams(ranks: u32) -> u16 {
    2 * bits(ranks) as u16
}

/// One message from every rank to every other, nearest successors first, so that no rank is the first target of all.
pub(super) fn to_all(ranks: u32, message: impl Fn(u32, u32) -> Transfer) -> Round {
    let hops = (1..ranks).flat_map(|hop| (0..ranks).map(move |from| (from, (from + hop) % ranks)));
    Round { transfers: hops.map(|(from, to)| message(from, to)).collect() }
}

/// The fold of one contribution of every rank on the rank that owns the result, one contribution a step.
pub(super) struct OrderedFold {
    pub(super) ranks: u32,
    /// The rank whose contribution comes first.
    pub(super) first: u32,
    pub(super) owner: u32,
    /// The place of a rank's contribution.
    pub(super) source: Place,
    /// The place of the owner's partial sum.
    pub(super) partial: Place,
    /// The place of the result.
    pub(super) target: Place,
}

impl OrderedFold {
    /// The transfer of the `step`-th contribution. An owner that is one of the first two folds both in step 1.
    pub(super) fn step(&self, step: u32, stream: impl Fn(u32, u32) -> u16) -> Option<Transfer> {
        let OrderedFold { ranks, first, owner, source, partial, target } = *self;
        let contributor = |step: u32| (first + step) % ranks;
        let own_step = (owner + ranks - first) % ranks;
        let (from, fold) = match step {
            0 if own_step <= 1 => return None,
            0 => (contributor(0), None),
            1 if own_step <= 1 => (contributor(1 - own_step), Some(source)),
            _ => (contributor(step), Some(partial)),
        };
        // The own contribution goes with the arrival before it, so that folds stay in one channel's order.
        let channel = stream(if from == owner { contributor(step - 1) } else { from }, owner);
        let own_first = step > 0 && !(step == 1 && own_step == 1);
        let target = if step == ranks - 1 { target } else { partial };
        Some(Transfer { fold, own_first, ..copy(from, owner, channel, source, target) })
    }
}

/// The same step of the folds of all ranks, nearest successors of the contributor first.
pub(super) fn fold_step(
    ranks: u32,
    step: u32,
    fold_of: impl Fn(u32) -> OrderedFold,
    stream: impl Fn(u32, u32) -> u16 + Copy,
) -> Round {
    let owners = (1..=ranks).map(|hop| (step + hop) % ranks);
    Round { transfers: owners.filter_map(|owner| fold_of(owner).step(step, stream)).collect() }
}

#[cfg(test)]
mod tests {
    use crate::passes::fuse;
    use crate::plan::{Region, Step};

    use super::super::proving::{brackets, proved, scratch, sizes, tally};
    use super::*;

    fn all() -> impl Iterator<Item = Collective> {
        Collective::ALL.into_iter().filter(|&collective| direct_is_defined(collective))
    }

    #[test]
    fn every_direct_exchange_up_to_64_ranks_is_proved() {
        for ranks in sizes(&[]) {
            for collective in all() {
                let (plans, _) = proved(&direct(collective, ranks), 4);
                let places = u32::from(collective.reduces() && ranks > 2);
                assert_eq!(scratch(&plans), places, "{collective} of {ranks}");
            }
        }
        for collective in [Collective::Broadcast, Collective::Gather, Collective::Scatter, Collective::Reduce]
        {
            proved(&direct(collective, 256), 4);
        }
    }

    #[test]
    fn one_slot_is_enough() {
        for ranks in [2, 3, 8, 13] {
            for collective in all() {
                proved(&direct(collective, ranks), 1);
            }
        }
    }

    #[test]
    fn the_cost_is_the_formula() {
        for n in 2..=64 {
            let cost = |collective| {
                let tally = tally(&direct(collective, n));
                (tally.depth, tally.out, tally.into, tally.largest)
            };
            let hops = n - 1;
            assert_eq!(cost(Collective::AllGather), (1, hops, hops, n));
            assert_eq!(cost(Collective::ReduceScatter), (1, hops, hops, n));
            assert_eq!(cost(Collective::Broadcast), (1, hops, 1, 1));
            assert_eq!(cost(Collective::Reduce), (1, 1, hops, 1));
            assert_eq!(cost(Collective::Gather), (1, 1, hops, n));
            assert_eq!(cost(Collective::Scatter), (1, hops, 1, n));
        }
    }

    #[test]
    fn a_reduce_starts_at_the_named_rank() {
        for ranks in 1..=9u32 {
            for first in 0..ranks {
                let schedule = direct_reduce(ranks, first);
                proved(&schedule, 4);
                let order: Vec<u32> = (0..ranks).map(|step| (first + step) % ranks).collect();
                let folded =
                    order[1..].iter().fold(order[0].to_string(), |left, rank| format!("({left}+{rank})"));
                assert_eq!(brackets(&schedule), [folded]);
            }
        }
    }

    #[test]
    fn a_fused_all_gather_reads_the_input_once() {
        for plan in proved(&direct(Collective::AllGather, 8), 4).0 {
            let fused = fuse(&plan, &|_| true);
            let moves = || fused.steps.iter().filter(|step| step.targets > 0);
            assert_eq!(moves().count(), 8, "one for the own block and one for every arrival");
            let reads_input = |step: &&Step| {
                let source = fused.regions[usize::from(fused.sources(step)[0].region)].region;
                source == Region::Input(fused.rank)
            };
            assert_eq!(moves().filter(reads_input).map(|step| step.targets).collect::<Vec<_>>(), [8]);
        }
    }

    #[test]
    fn no_rank_sends_and_receives_on_one_stream() {
        let ranks = 13;
        for rank in 0..ranks {
            let others = || (0..ranks).filter(|&other| other != rank);
            for (to, from) in others().flat_map(|to| others().map(move |from| (to, from))) {
                assert_ne!(stream(rank, to), stream(from, rank));
                assert!(stream(rank, to) < streams(ranks));
            }
        }
    }
}
