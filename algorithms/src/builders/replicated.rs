//! All-to-all between groups whose members hold replicas of the same data.
//!
//! Source: S. Rajbhandari et al., "DeepSpeed-MoE: advancing mixture-of-experts inference and training to power
//! next-generation AI scale", ICML 2022 (parallelism-coordinated communication: a tensor-parallel group holds
//! the same tokens on all its ranks).
//!
//! `n` ranks form `n/L` groups of `L` members, rank = group * `L` + member. The inputs of a group are equal: `n/L`
//! blocks, block `B` for group `B`. Every output of group `B` shall hold in block `A` the data of group `A` for group
//! `B`. A member exchanges only its own `L`-th of every block, with the members of the same number; then each group
//! gathers.
//!
//! Cost, with `M` the bytes of an input, pairwise exchange and a ring: `(n/L - 1) + (L - 1)` rounds in place of
//! `n - 1`; `(n/L - 1)/(n/L) M/L` bytes out of (and into) a port between groups, `(L-1)/L M` inside a group.
//!
//! Scratch: that of the two schedules, times the pieces that one of their pieces stands for; none with pairwise
//! exchange and a ring. Nothing is folded.
//!
//! Invariant: no [`Collective`] requires equal inputs, so the whole is no [`Schedule`] and the verifier does not see
//! it. The verifier proves each of the two schedules. A symbolic run in this module's test proves that their embedded
//! rounds leave the right data in every output. A caller who runs the two one after the other, each over its own
//! ranks, needs no more. Deliberately absent: a check that replicas are equal.

use super::compose::{Embedding, beside, embed};
use super::hierarchical::{Builder, lcm, one_rank, scratch_levels};
use crate::{Chunk, Collective, Partition, Place, Rank, Round, Schedule, lengths};

/// The two schedules, and their place in the whole.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ReplicatedExchange {
    /// Groups of equal inputs.
    pub groups: u32,
    /// Ranks of a group.
    pub members: u32,
    /// The all-to-all over the ranks of one number, one of each group, whose blocks are `L`-ths of blocks.
    pub exchange: Schedule,
    /// The all-gather over the ranks of a group; a member contributes its `L`-th of every block.
    pub gather: Schedule,
    /// The cut of a block of the whole: first into the members' parts.
    pub partition: Partition,
    /// Both over all ranks: chunk `block * parts + piece` of inputs and outputs of one block for each group.
    pub rounds: Vec<Round>,
}

/// The exchange between `groups` groups of `members` ranks. `exchange` makes the all-to-all over the groups, `gather`
/// the all-gather over the members. Neither is called for a single rank.
///
/// # Panics
///
/// When a number is 0, or a builder panics or makes another collective or number of ranks than it is called for.
pub fn replicated_exchange(
    groups: u32,
    members: u32,
    exchange: Builder<'_>,
    gather: Builder<'_>,
) -> ReplicatedExchange {
    assert!(groups > 0 && members > 0, "an exchange needs a group and ranks in it");
    let inner = |collective: Collective, ranks: u32, build: Builder<'_>| {
        let schedule = if ranks == 1 { one_rank(collective) } else { build(collective, ranks) };
        assert_eq!((schedule.collective, schedule.ranks), (collective, ranks), "what was asked for");
        schedule
    };
    let exchange = inner(Collective::AllToAll, groups, exchange);
    let gather = inner(Collective::AllGather, members, gather);
    let part = lcm(exchange.partition.parts, gather.partition.parts);
    let whole = Whole { groups, part, parts: members * part };
    let exchanges = (0..members).map(|member| {
        let ranks: Vec<Rank> = (0..groups).map(|group| Rank(group * members + member)).collect();
        let pieces = |chunk: Chunk| whole.exchanged(&exchange, member, chunk);
        let embedding = Embedding {
            ranks: &ranks,
            input: &|_, chunk| pieces(chunk).map(Place::Input).collect(),
            output: &|_, chunk| pieces(chunk).map(Place::Output).collect(),
            scratch: &|number| whole.numbers(&exchange, number, 0, &pieces),
            channel: 0,
        };
        embed(&exchange, &embedding)
    });
    let mut rounds = beside(exchanges);
    let gathers = (0..groups).map(|group| {
        let ranks: Vec<Rank> = (0..members).map(|member| Rank(group * members + member)).collect();
        let pieces = |chunk: Chunk| whole.gathered(&gather, chunk);
        let own = |rank: Rank, chunk: Chunk| Chunk(rank.0 * gather.partition.parts + chunk.0);
        let embedding = Embedding {
            ranks: &ranks,
            input: &|rank, chunk| pieces(own(rank, chunk)).map(Place::Output).collect(),
            output: &|_, chunk| pieces(chunk).map(Place::Output).collect(),
            scratch: &|number| whole.numbers(&gather, number, scratch_levels(&exchange), &pieces),
            channel: 0,
        };
        embed(&gather, &embedding)
    });
    rounds.extend(beside(gathers));
    rounds.retain(|round| !round.transfers.is_empty());
    let partition = Partition { parts: whole.parts };
    ReplicatedExchange { groups, members, exchange, gather, partition, rounds }
}

/// The pieces of the whole: blocks of `parts` pieces; every member has `part` of them.
struct Whole {
    groups: u32,
    part: u32,
    parts: u32,
}

impl Whole {
    /// The pieces of the whole that a chunk of the exchange stands for: pieces of a member's part of one block.
    fn exchanged(&self, exchange: &Schedule, member: u32, chunk: Chunk) -> impl Iterator<Item = Chunk> {
        let width = self.part / exchange.partition.parts;
        let (block, at) = (chunk.0 / exchange.partition.parts, chunk.0 % exchange.partition.parts);
        let first = block * self.parts + member * self.part + at * width;
        (first..first + width).map(Chunk)
    }

    /// The pieces of the whole that a chunk of the gathered output stands for: pieces of a member's part of all
    /// blocks.
    fn gathered(&self, gather: &Schedule, chunk: Chunk) -> impl Iterator<Item = Chunk> {
        let width = self.part / gather.partition.parts;
        let (parts, first) = (self.parts, chunk.0 * width);
        (0..self.groups)
            .flat_map(move |block| (first..first + width).map(move |at| Chunk(block * parts + at)))
    }

    /// The numbers of an inner scratch place, above those of the `level` schedules before.
    fn numbers<I: Iterator<Item = Chunk>>(
        &self,
        inner: &Schedule,
        number: Chunk,
        level: u32,
        pieces: &dyn Fn(Chunk) -> I,
    ) -> Vec<Chunk> {
        let count = lengths::count(inner.collective, inner.partition, inner.ranks);
        let base = (level + number.0 / count) * self.groups * self.parts;
        pieces(Chunk(number.0 % count)).map(|piece| Chunk(base + piece.0)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::builders::{RingOptions, ring};
    use crate::passes::replicate;
    use crate::{Channel, LowerOptions, Transfer, lower_all, verify};
    use std::collections::HashMap;

    fn gather(collective: Collective, ranks: u32) -> Schedule {
        ring(collective, ranks, RingOptions::default())
    }

    /// A message from every rank to every other, in round `t` to the rank `t` away.
    fn pairwise(collective: Collective, ranks: u32) -> Schedule {
        let transfer = |from: u32, step: u32| {
            let to = (from + step) % ranks;
            let (source, target) = (Place::Input(Chunk(to)), Place::Output(Chunk(from)));
            let (from, to, channel) = (Rank(from), Rank(to), Channel(0));
            Transfer { from, to, channel, source, target, fold: None, own_first: false }
        };
        let round = |step| Round { transfers: (0..ranks).map(|from| transfer(from, step)).collect() };
        let mut rounds: Vec<Round> = (1..ranks).map(round).collect();
        rounds[0].transfers.extend((0..ranks).map(|rank| transfer(rank, 0)));
        let (name, partition) = ("pairwise".into(), Partition { parts: 1 });
        Schedule { name, collective, ranks, switches: 0, partition, rounds }
    }

    /// (source group, target group, piece of the block)
    type Value = (u32, u32, u32);

    /// Runs the rounds on symbols; an error names the first wrong output.
    fn symbolic(whole: &ReplicatedExchange) -> Result<(), String> {
        let ReplicatedExchange { groups, members, partition: Partition { parts }, .. } = *whole;
        let ranks = groups * members;
        let mut held: HashMap<(Rank, Place), Value> = HashMap::new();
        let chunks = || (0..ranks).flat_map(move |rank| (0..groups * parts).map(move |chunk| (rank, chunk)));
        for (rank, chunk) in chunks() {
            let value = (rank / members, chunk / parts, chunk % parts);
            held.insert((Rank(rank), Place::Input(Chunk(chunk))), value);
        }
        for round in &whole.rounds {
            let mut written = HashMap::new();
            for transfer in &round.transfers {
                let source = (transfer.from, transfer.source);
                let value = held.get(&source).ok_or(format!("{source:?} is read before it is written"))?;
                let target = (transfer.to, transfer.target);
                if written.insert(target, *value).is_some() || transfer.fold.is_some() {
                    return Err(format!("{target:?} is written twice in a round"));
                }
            }
            held.extend(written);
        }
        for (rank, chunk) in chunks() {
            let expected = (chunk / parts, rank / members, chunk % parts);
            let found = held.get(&(Rank(rank), Place::Output(Chunk(chunk))));
            if found != Some(&expected) {
                return Err(format!("chunk {chunk} of rank {rank} is {found:?}, not {expected:?}"));
            }
        }
        Ok(())
    }

    #[test]
    fn both_schedules_and_the_whole_are_proved() {
        let three = |collective, ranks| replicate(&pairwise(collective, ranks), 3);
        let two = |collective, ranks| replicate(&gather(collective, ranks), 2);
        for (groups, members) in (1..=64).flat_map(|groups| (1..=64 / groups).map(move |of| (groups, of))) {
            let mut forms = vec![replicated_exchange(groups, members, &pairwise, &gather)];
            if groups * members <= 20 {
                forms.push(replicated_exchange(groups, members, &three, &two));
            }
            for whole in forms {
                symbolic(&whole).unwrap_or_else(|fault| panic!("{groups}x{members}: {fault}"));
                for schedule in [&whole.exchange, &whole.gather] {
                    let plans = lower_all(schedule, &LowerOptions { slots: 4 }).expect("they lower");
                    verify(&plans).unwrap_or_else(|refusal| panic!("{}: {refusal}", schedule.name));
                }
            }
        }
    }

    #[test]
    fn the_symbolic_run_refuses_what_is_wrong() {
        let whole = replicated_exchange(3, 2, &pairwise, &gather);
        for round in 0..whole.rounds.len() {
            for transfer in 0..whole.rounds[round].transfers.len() {
                let mut broken = whole.clone();
                broken.rounds[round].transfers.remove(transfer);
                assert!(symbolic(&broken).is_err(), "round {round}, transfer {transfer}");
            }
        }
    }

    #[test]
    fn the_cost_is_the_formula() {
        for (groups, members) in [(2, 2), (4, 8), (8, 4), (5, 3), (1, 4), (6, 1)] {
            let whole = replicated_exchange(groups, members, &pairwise, &gather);
            let travels = |round: &&Round| round.transfers.iter().any(|t| t.from != t.to);
            let rounds = whole.rounds.iter().filter(travels).count() as u32;
            assert_eq!(rounds, (groups - 1) + (members - 1));
            let moved = |from: u32, inside: bool| {
                let transfers = whole.rounds.iter().flat_map(|round| &round.transfers);
                let other = transfers.filter(|t| t.from.0 == from && t.from != t.to);
                other.filter(|t| (t.to.0 / members == from / members) == inside).count() as u32
            };
            // An input is `groups * members` pieces.
            for rank in 0..groups * members {
                assert_eq!((moved(rank, false), moved(rank, true)), (groups - 1, (members - 1) * groups));
            }
        }
    }
}
