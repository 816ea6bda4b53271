//! Helpers of the builders' tests: the counts of a schedule, and its proof in every form in which it runs.
//!
//! Invariant: counts are taken from the transfers alone, never from a builder's arguments.

use std::collections::HashMap;

use crate::passes::fuse;
use crate::{LowerOptions, Place, Plan, Rank, Schedule, lower_all, verify};

/// The counts of a schedule.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Tally {
    /// Rounds with a transfer between ranks.
    pub(super) rounds: u32,
    /// The longest chain of messages in which each carries data of the one before.
    pub(super) depth: u32,
    pub(super) messages: u32,
    /// Pieces out of the rank that sends most.
    pub(super) out: u32,
    /// Pieces into the rank that receives most.
    pub(super) into: u32,
    /// Pieces of the largest buffer of a rank.
    pub(super) largest: u32,
}

pub(super) fn tally(schedule: &Schedule) -> Tally {
    let n = schedule.ranks;
    let (mut out, mut into) = (vec![0u32; n as usize], vec![0u32; n as usize]);
    let mut depths: HashMap<(Rank, Place), u32> = HashMap::new();
    let (mut rounds, mut messages, mut depth) = (0, 0, 0);
    for round in &schedule.rounds {
        let at = |rank: Rank, place: Place| depths.get(&(rank, place)).copied().unwrap_or(0);
        let mut stored = Vec::new();
        let before = messages;
        for t in &round.transfers {
            let travels = t.from != t.to;
            let arriving = at(t.from, t.source) + u32::from(travels);
            let reached = t.fold.map_or(0, |fold| at(t.to, fold)).max(arriving);
            depth = reached.max(depth);
            stored.push(((t.to, t.target), reached));
            if travels {
                messages += 1;
                out[t.from.index()] += 1;
                into[t.to.index()] += 1;
            }
        }
        rounds += u32::from(messages > before);
        depths.extend(stored);
    }
    let (collective, partition) = (schedule.collective, schedule.partition);
    Tally {
        rounds,
        depth,
        messages,
        out: out.into_iter().max().unwrap_or(0),
        into: into.into_iter().max().unwrap_or(0),
        largest: partition.input_chunks(collective, n).max(partition.output_chunks(collective, n)),
    }
}

/// The numbers of ranks over which a family is proved. With `CONSORT_PROOFS=all`: all up to 64 and those in `beyond`.
/// By default: all up to 24, two powers of two, the neighbours of one, and an odd number that is not a prime.
pub(super) fn sizes(beyond: &[u32]) -> Vec<u32> {
    match std::env::var_os("CONSORT_PROOFS").is_some_and(|value| value == "all") {
        true => (1..=64).chain(beyond.iter().copied()).collect(),
        false => (1..=24).chain([31, 32, 33, 45, 64]).collect(),
    }
}

/// The plans with `slots` slots, proved as lowered and fused, with the hash of their folds.
pub(super) fn proved(schedule: &Schedule, slots: u32) -> (Vec<Plan>, u64) {
    let what = format!("{} of {} ranks, {}", schedule.collective, schedule.ranks, schedule.name);
    let plans = match lower_all(schedule, &LowerOptions { slots }) {
        Ok(plans) => plans,
        Err(error) => panic!("{what}: {error}"),
    };
    let hash = |plans: &[Plan], form: &str| match verify(plans) {
        Ok(proof) => proof.fold_hash,
        Err(refusal) => panic!("{what}, {form}, {slots} slots: {refusal}"),
    };
    let fused: Vec<Plan> = plans.iter().map(|plan| fuse(plan, &|_| true)).collect();
    let plain = hash(&plans, "lowered");
    assert_eq!(plain, hash(&fused, "fused"), "{what}: fusing changed a fold");
    (plans, plain)
}

/// The most scratch places of any rank.
pub(super) fn scratch(plans: &[Plan]) -> u32 {
    plans.iter().map(|plan| plan.scratch).max().unwrap_or(0)
}

/// The folds in all outputs after the last round, as text over the ranks, by running the rounds.
pub(super) fn brackets(schedule: &Schedule) -> Vec<String> {
    let mut held: HashMap<(Rank, Place), String> = HashMap::new();
    for round in &schedule.rounds {
        let at = |rank: Rank, place: Place| match place {
            Place::Input(_) => rank.0.to_string(),
            _ => held[&(rank, place)].clone(),
        };
        let mut stored = Vec::new();
        for t in &round.transfers {
            let arriving = at(t.from, t.source);
            let value = match t.fold.map(|fold| at(t.to, fold)) {
                None => arriving,
                Some(own) if t.own_first => format!("({own}+{arriving})"),
                Some(own) => format!("({arriving}+{own})"),
            };
            stored.push(((t.to, t.target), value));
        }
        held.extend(stored);
    }
    let mut outputs: Vec<_> =
        held.into_iter().filter(|((_, place), _)| matches!(place, Place::Output(_))).collect();
    outputs.sort_by_key(|((rank, place), _)| match place {
        Place::Input(chunk) | Place::Output(chunk) | Place::Scratch(chunk) => (*rank, *chunk),
    });
    outputs.into_iter().map(|(_, value)| value).collect()
}
