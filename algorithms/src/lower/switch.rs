//! From an all-reduce over one aggregating switch to plans over a group.
//!
//! Invariant: a fold and multicast of the switch is one step: a copy from the group's inputs to the group's outputs.
//! The rank that asked for it runs the step (the rank to which the switch sent the result and which sent it back), or
//! else rank 0. No input is read before its owner has entered, and no rank returns before the last step that touches
//! its buffers. The switch's folds must be the group's: over all ranks, in their order. Deliberately absent: slots,
//! scratch and slices, since the group's memory is the callers'; and how long a step takes, which the schedule does
//! not determine: a rank asks, and the switch pulls.

use std::collections::{BTreeSet, HashMap};

use super::{LowerError, LowerOptions, Lowering, check, lower};
use crate::plan::{Action, CounterId, CounterRole, Engine, Extent, Lane, Operand, Plan, Position, Region};
use crate::{Channel, Chunk, Collective, Place, Rank, Schedule, Transfer};

/// The plan of one rank of an all-reduce over one switch. A schedule without a switch (that of one rank) is lowered
/// by [`lower`], with one slot.
///
/// # Errors
///
/// [`LowerError`] when there are several switches, or the schedule does anything else than fold every piece of
/// all inputs in the order of ranks on the switch and send it to all outputs.
pub fn lower_switch(schedule: &Schedule, rank: Rank) -> Result<Plan, LowerError> {
    let options = LowerOptions { slots: 1 };
    match schedule.switches {
        0 => return lower(schedule, rank, &options),
        1 => check(schedule, &options)?,
        switches => return Err(LowerError::Switches { switches }),
    }
    if rank.0 >= schedule.ranks {
        return Err(LowerError::NoSuchRank { rank });
    }
    let askers = askers(schedule)?;
    let asking: BTreeSet<Rank> = askers.iter().copied().collect();
    let others = || (0..schedule.ranks).map(Rank).filter(|&peer| peer != rank);
    let flag = |owner: Rank, writer: Rank, number: u16| CounterId {
        owner,
        writer,
        channel: Channel(0),
        role: CounterRole::Flag(number),
    };

    let mut lowering = Lowering::new(schedule, rank, &options);
    lowering.plan.sliced = false;
    lowering.plan.groups = vec![(0..schedule.ranks).map(Rank).collect()];
    for &asker in asking.iter().filter(|&&asker| asker != rank) {
        lowering.meet(Action::Signal, flag(asker, rank, 0), 1);
    }
    if asking.contains(&rank) {
        others().for_each(|peer| lowering.meet(Action::Wait, flag(rank, peer, 0), 1));
        for (chunk, _) in (0..).map(Chunk).zip(&askers).filter(|(_, asker)| **asker == rank) {
            let mut part = |output: bool| {
                let region = lowering.region(Region::Group { group: 0, output });
                Operand { region, position: Position::Chunk(chunk) }
            };
            let (target, source) = (part(true), part(false));
            lowering.act(Action::Copy, Extent::chunk(chunk), true, &[target], &[(source, true)]);
        }
        others().for_each(|peer| lowering.meet(Action::Signal, flag(peer, rank, 1), 1));
    }
    for &asker in asking.iter().filter(|&&asker| asker != rank) {
        lowering.meet(Action::Wait, flag(rank, asker, 1), 1);
    }
    let end = lowering.plan.steps.len() as u32;
    lowering.plan.lanes.push(Lane { start: 0, end, engine: Engine::Processor });
    Ok(lowering.plan)
}

/// The left fold of a piece of the inputs of consecutive ranks.
#[derive(Clone, Copy)]
struct Sum {
    chunk: Chunk,
    first: u32,
    ranks: u32,
    /// The rank that received it from the switch and sent it back.
    asker: Option<Rank>,
}

impl Sum {
    /// `self (+) right`, where `right` is the input of the next rank.
    fn then(self, right: Sum) -> Option<Sum> {
        let follows = self.chunk == right.chunk && self.first + self.ranks == right.first && right.ranks == 1;
        follows.then_some(Sum { ranks: self.ranks + 1, ..self })
    }
}

/// For each piece the rank that asks for it.
fn askers(schedule: &Schedule) -> Result<Vec<Rank>, LowerError> {
    let switch = Rank(schedule.ranks);
    let pieces = schedule.partition.parts;
    let mut held: HashMap<(Rank, Place), Sum> = HashMap::new();
    let mut reached: Vec<BTreeSet<Rank>> = vec![BTreeSet::new(); pieces as usize];
    let mut askers = vec![Rank(0); pieces as usize];
    for (index, round) in (0..).zip(&schedule.rounds) {
        let refused = LowerError::NotOfGroup { round: index };
        let mut written = Vec::with_capacity(round.transfers.len());
        for transfer in &round.transfers {
            let sum = after(transfer, switch, &held).ok_or(refused)?;
            if let Place::Output(chunk) = transfer.target {
                let whole = sum.chunk == chunk && sum.ranks == schedule.ranks;
                if !whole || schedule.collective != Collective::AllReduce || transfer.from != switch {
                    return Err(refused);
                }
                let asker = sum.asker.unwrap_or(Rank(0));
                let one = reached[chunk.index()].is_empty() || askers[chunk.index()] == asker;
                if !reached[chunk.index()].insert(transfer.to) || !one {
                    return Err(LowerError::NotMulticast { chunk });
                }
                askers[chunk.index()] = asker;
            }
            written.push(((transfer.to, transfer.target), sum));
        }
        held.extend(written);
    }
    let missing = reached.iter().position(|ranks| ranks.len() as u32 != schedule.ranks);
    missing.map_or(Ok(askers), |piece| Err(LowerError::NotMulticast { chunk: Chunk(piece as u32) }))
}

/// The value that a transfer leaves in its target; `None` when it is no transfer over the switch.
fn after(transfer: &Transfer, switch: Rank, held: &HashMap<(Rank, Place), Sum>) -> Option<Sum> {
    let value = |rank: Rank, place: Place| match place {
        Place::Input(chunk) => Some(Sum { chunk, first: rank.0, ranks: 1, asker: None }),
        _ => held.get(&(rank, place)).copied(),
    };
    if transfer.from != switch && transfer.to != switch {
        return None;
    }
    let arriving = value(transfer.from, transfer.source)?;
    let Some(fold) = transfer.fold else {
        // A rank sends back only a sum that it asked for.
        let back = transfer.from != switch && !matches!(transfer.source, Place::Input(_));
        return Some(if back { Sum { asker: Some(transfer.from), ..arriving } } else { arriving });
    };
    let own = value(transfer.to, fold)?;
    let sum = if transfer.own_first { own.then(arriving) } else { arriving.then(own) };
    sum.filter(|_| transfer.to == switch)
}
