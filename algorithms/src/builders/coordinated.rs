//! The parallelism-coordinated all-to-all: between groups of ranks whose inputs are alike, each rank carries its own
//! part of every block, and the ranks of a group gather the parts.
//!
//! Source: S. Rajbhandari et al., "DeepSpeed-MoE: advancing mixture-of-experts inference and training to power
//! next-generation AI scale", arXiv 2201.05596, 2022, section 5.3 (parallelism-coordinated communication). There the
//! exchange ends before the all-gather begins; here a part is gathered as soon as it has arrived.
//!
//! Cost over `n` ranks in groups of `g`, with `h = n/g` groups and `M` the bytes of one rank's send buffer:
//!
//! | | messages of a rank | bytes out of and into every port | depth |
//! |---|---|---|---|
//! | between groups | `h-1` | `(h-1)/n M` | 1 |
//! | inside of a group | `(h-1)(g-1)` | `(h-1)(g-1)/n M` | 1 |
//!
//! An exchange between all ranks has `(h-1) g` messages between groups for each rank. What a rank has for its own group
//! is in its own input. There is no scratch. Fused plans need two slots.
//!
//! Invariant: after round `k` a rank holds its part of what `k` other groups sent to its group. Absent: the transpose of
//! the paper; a part has one place on all ranks.

use super::moves::{copy, schedule};
use crate::{Chunk, Collective, Place, Round, Schedule, Transfer};

/// Channels: between groups, and inside of them.
const BETWEEN: u16 = 0;
const INSIDE: u16 = 1;

/// The all-to-all over `ranks` ranks between groups of `group` consecutive ranks that have the same input, in `n / group`
/// rounds. In round `k` (from 1) group `h` exchanges with group `h ^ k` where the number of groups is a power of two,
/// and else sends to `h + k` and receives from `h - k`; the part that came in the round before is gathered beside it.
///
/// # Panics
///
/// When `ranks` is 0, or `group` does not divide it.
pub fn coordinated(ranks: u32, group: u32) -> Schedule {
    let collective = Collective::AllToAllReplicated { group };
    assert!(ranks > 0 && collective.fits(ranks), "{ranks} ranks are not in groups of {group}");
    let groups = ranks / group;
    let to = |from: u32, round: u32| {
        if groups.is_power_of_two() { from ^ round } else { (from + round) % groups }
    };
    let all = || (0..groups).flat_map(|of| (0..group).map(move |part| (of, part)));
    // A place of an input is a group that gets it and a part; of an output, a group that it comes from and a part.
    let number = |of: u32, part: u32| Chunk(of * group + part);
    let exchange = |round: u32| {
        all().map(move |(from, part)| {
            let to = to(from, round);
            let (source, target) = (Place::Input(number(to, part)), Place::Output(number(from, part)));
            copy(from * group + part, to * group + part, BETWEEN, source, target)
        })
    };
    let gather = |round: u32| {
        exchange(round).flat_map(move |came: Transfer| {
            let (holder, first) = (came.to.0, came.to.0 / group * group);
            let others = (1..group).map(move |step| first + (holder - first + step) % group);
            others.map(move |other| copy(holder, other, INSIDE, came.target, came.target))
        })
    };
    let own = all().flat_map(|(of, rank)| {
        let part = move |part| {
            let (source, target) = (Place::Input(number(of, part)), Place::Output(number(of, part)));
            copy(of * group + rank, of * group + rank, BETWEEN, source, target)
        };
        (0..group).map(part)
    });
    let mut rounds: Vec<Round> = Vec::new();
    for round in 1..=groups {
        let exchanged = exchange(round).filter(|_| round < groups);
        let gathered = (round > 1).then(|| gather(round - 1)).into_iter().flatten();
        rounds.push(Round { transfers: exchanged.chain(gathered).collect() });
    }
    rounds[0].transfers.extend(own);
    schedule(format!("coordinated(group={group})"), collective, ranks, 1, rounds)
}

#[cfg(test)]
mod tests {
    use super::super::proving::{proved, scratch, sizes, tally};
    use super::*;
    use crate::{LowerOptions, lower_all, verify};

    fn groups(ranks: u32) -> impl Iterator<Item = u32> {
        (1..=ranks).filter(move |group| ranks.is_multiple_of(*group))
    }

    #[test]
    fn every_group_that_divides_the_ranks_is_proved() {
        for ranks in sizes(&[96, 128]) {
            for group in groups(ranks) {
                assert_eq!(scratch(&proved(&coordinated(ranks, group), 4).0), 0);
            }
        }
        for (ranks, group) in [(8, 2), (12, 3), (15, 3), (6, 6), (5, 1), (16, 2), (64, 8)] {
            proved(&coordinated(ranks, group), 2);
        }
    }

    #[test]
    fn the_cost_is_the_formula() {
        for ranks in 2..=64 {
            for group in groups(ranks) {
                let (groups, tally) = (ranks / group, tally(&coordinated(ranks, group)));
                let sent = (groups - 1) * group;
                assert_eq!((tally.out, tally.into, tally.largest), (sent, sent, ranks));
                assert_eq!(tally.messages, ranks * sent);
                let depth = u32::from(groups > 1) + u32::from(groups > 1 && group > 1);
                assert_eq!(tally.depth, depth, "{ranks} ranks in groups of {group}");
            }
        }
    }

    #[test]
    fn between_groups_a_rank_meets_those_of_its_own_place() {
        for (ranks, group) in [(8, 2), (12, 3), (64, 8), (10, 5)] {
            let schedule = coordinated(ranks, group);
            let all = || schedule.rounds.iter().flat_map(|round| &round.transfers);
            let between: Vec<&Transfer> = all().filter(|t| t.from.0 / group != t.to.0 / group).collect();
            assert!(between.iter().all(|t| t.from.0 % group == t.to.0 % group));
            assert_eq!(between.len() as u32, ranks * (ranks / group - 1));
        }
    }

    #[test]
    fn wrong_parts_and_inputs_that_are_not_alike_are_refused() {
        let mut schedule = coordinated(6, 2);
        let wrong = schedule.rounds[0].transfers.iter_mut().find(|t| t.from.0 / 2 != t.to.0 / 2);
        // The other part of the block.
        let wrong = wrong.expect("groups exchange");
        wrong.source = match wrong.source {
            Place::Input(chunk) => Place::Input(Chunk(chunk.0 ^ 1)),
            other => other,
        };
        let plans = lower_all(&schedule, &LowerOptions { slots: 4 }).expect("it is a schedule");
        verify(&plans).expect_err("the wrong part");
        // The same schedule as an ordinary all-to-all takes what is not alike.
        let plain = Schedule { collective: Collective::AllToAll, ..coordinated(6, 2) };
        let plans = lower_all(&plain, &LowerOptions { slots: 4 }).expect("it is a schedule");
        verify(&plans).expect_err("inputs differ");
    }
}
