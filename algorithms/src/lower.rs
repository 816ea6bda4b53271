//! From a schedule to one rank's plan: send and receive through slots.
//!
//! Invariant: every channel is run by one lane, and channels of a rank between which a value passes by the same lane;
//! every transfer between two ranks is one slot of the mailbox that the receiver owns and the sender fills. The
//! sender waits for a credit, puts, and signals *ready*; the receiver waits for *ready*, copies or folds, and gives
//! the credit back. Steps keep the order of the rounds; within a round a lane sends, then copies locally, then
//! receives. Where values are folded, the rounds determine the order in which a rank takes arrivals, and its sends of
//! its own input do not wait for them. Deliberately absent: fusion (a pass), packets, mapped buffers, groups: those
//! are other lowerings ([`mapped()`] buffers, [`lower_switch`] for groups) or plans written by hand.

mod lanes;
mod mapped;
mod steps;
mod switch;

use std::error::Error;
use std::fmt;

use crate::numbers::Numbers;
use crate::{Chunk, Own, Place, Plan, Rank, Regular, Schedule, Transfer};
pub use mapped::{folds, mapped, mapped_reduce};
use steps::Lowering;
pub(crate) use steps::length_of;
pub use switch::lower_switch;

/// The options of a lowering.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LowerOptions {
    /// Slots of every mailbox; at least 1. A cyclic schedule needs 2 once it is fused.
    pub slots: u32,
}

/// Why a schedule cannot be lowered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LowerError {
    /// The number of slots is 0, or so large that thresholds do not fit 31 bits.
    Slots {
        /// The number that was asked for.
        slots: u32,
    },
    /// The schedule has fewer ranks.
    NoSuchRank {
        /// The rank that was asked for or that a transfer names.
        rank: Rank,
    },
    /// Mailboxes lie between ranks; a schedule over one aggregating switch has a lowering of its own
    /// ([`lower_switch`]), one over several has none.
    Switches {
        /// The number of its switches.
        switches: u32,
    },
    /// A transfer over a switch that is not part of the only form that is lowered: all inputs folded in the order of
    /// ranks and multicast to all outputs.
    NotOfGroup {
        /// The round of the transfer.
        round: u32,
    },
    /// The result does not reach every rank's output once.
    NotMulticast {
        /// The piece.
        chunk: Chunk,
    },
    /// The place does not exist on the rank.
    NoSuchPlace {
        /// The rank.
        rank: Rank,
        /// The place.
        place: Place,
    },
    /// A transfer writes an input.
    InputWritten {
        /// The rank.
        rank: Rank,
        /// The place.
        place: Place,
    },
    /// A scratch place is read before the lane wrote it.
    ScratchUnwritten {
        /// The rank.
        rank: Rank,
        /// The lane.
        lane: u32,
        /// The number of the place in the schedule.
        place: u32,
    },
    /// Two channels use the same scratch place without a fixed order.
    ScratchShared {
        /// The rank.
        rank: Rank,
        /// The number of the place in the schedule.
        place: u32,
    },
    /// More regions than an operand can name.
    TooManyRegions {
        /// The rank.
        rank: Rank,
    },
}

impl fmt::Display for LowerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LowerError::Slots { slots } => write!(f, "a mailbox cannot have {slots} slots"),
            LowerError::Switches { switches } => {
                write!(f, "the schedule has {switches} aggregating switches, for which there is no form here")
            }
            LowerError::NotOfGroup { round } => {
                write!(f, "in round {round} the switch does not fold all inputs in the order of ranks")
            }
            LowerError::NotMulticast { chunk } => {
                write!(f, "the result {chunk} does not reach every rank's output once")
            }
            LowerError::NoSuchRank { rank } => write!(f, "the schedule has no rank {rank}"),
            LowerError::NoSuchPlace { rank, place } => write!(f, "rank {rank} has no {place:?}"),
            LowerError::InputWritten { rank, place } => {
                write!(f, "the schedule writes {place:?} of rank {rank}; inputs are never written")
            }
            LowerError::ScratchUnwritten { rank, lane, place } => {
                write!(f, "rank {rank} reads scratch {place} on lane {lane} before it is written there")
            }
            LowerError::ScratchShared { rank, place } => {
                write!(f, "rank {rank} uses scratch {place} on two channels, whose order nothing fixes")
            }
            LowerError::TooManyRegions { rank } => write!(f, "rank {rank} needs more than 65535 regions"),
        }
    }
}

impl Error for LowerError {}

/// The plan of one rank.
///
/// # Errors
///
/// [`LowerError`] when the schedule names ranks or places that do not exist, writes an input, or reads a scratch
/// place in another order than it was written. The plan is not proved yet: [`verify`](crate::verify()) does that.
pub fn lower(schedule: &Schedule, rank: Rank, options: &LowerOptions) -> Result<Plan, LowerError> {
    check(schedule, options)?;
    no_switches(schedule)?;
    check_rank(schedule, rank)?;
    let completing = completing(schedule);
    let mut own = Vec::new();
    each(schedule, &completing, |of| {
        if of.transfer.from == rank || of.transfer.to == rank {
            own.push(of);
        }
    });
    Lowering::new(schedule, rank, options).run(&own)
}

/// The plans of all ranks, in their order; cheaper than `lower` once for each.
///
/// # Errors
///
/// As [`lower`].
pub fn lower_all(schedule: &Schedule, options: &LowerOptions) -> Result<Vec<Plan>, LowerError> {
    check(schedule, options)?;
    no_switches(schedule)?;
    let completing = completing(schedule);
    let mut by_rank: Vec<Vec<Own>> = (0..schedule.ranks).map(|_| Vec::new()).collect();
    each(schedule, &completing, |of| {
        by_rank[of.transfer.from.index()].push(of);
        if of.transfer.from != of.transfer.to {
            by_rank[of.transfer.to.index()].push(of);
        }
    });
    let plan = |(rank, own): (u32, &Vec<Own>)| Lowering::new(schedule, Rank(rank), options).run(own);
    (0..).zip(&by_rank).map(plan).collect()
}

/// The plan of one rank of a regular schedule, in time and memory of this plan alone. It equals the plan that
/// [`lower`] makes of the whole schedule.
///
/// # Errors
///
/// As [`lower`], as far as this rank takes part.
pub fn lower_one(regular: &dyn Regular, rank: Rank, options: &LowerOptions) -> Result<Plan, LowerError> {
    let head = regular.head();
    check_options(options)?;
    no_switches(&head)?;
    check_rank(&head, rank)?;
    let mut own = Vec::new();
    regular.own(rank, &mut |of| own.push(of));
    own.iter().try_for_each(|of| check_transfer(&head, &of.transfer))?;
    Lowering::new(&head, rank, options).run(&own)
}

fn each(schedule: &Schedule, completing: &[Vec<bool>], mut take: impl FnMut(Own)) {
    for ((index, round), completing) in (0..).zip(&schedule.rounds).zip(completing) {
        for (&transfer, &complete) in round.transfers.iter().zip(completing) {
            take(Own { round: index, transfer, complete });
        }
    }
}

fn check(schedule: &Schedule, options: &LowerOptions) -> Result<(), LowerError> {
    check_options(options)?;
    let mut transfers = schedule.rounds.iter().flat_map(|round| &round.transfers);
    transfers.try_for_each(|transfer| check_transfer(schedule, transfer))
}

fn check_options(options: &LowerOptions) -> Result<(), LowerError> {
    if options.slots == 0 || options.slots > i32::MAX as u32 {
        return Err(LowerError::Slots { slots: options.slots });
    }
    Ok(())
}

fn no_switches(schedule: &Schedule) -> Result<(), LowerError> {
    match schedule.switches {
        0 => Ok(()),
        switches => Err(LowerError::Switches { switches }),
    }
}

fn check_rank(schedule: &Schedule, rank: Rank) -> Result<(), LowerError> {
    if rank.0 < schedule.ranks { Ok(()) } else { Err(LowerError::NoSuchRank { rank }) }
}

fn check_transfer(schedule: &Schedule, transfer: &Transfer) -> Result<(), LowerError> {
    let (collective, ranks, parts) = (schedule.collective, schedule.ranks, schedule.partition);
    let exists = |rank: Rank, place: Place| {
        let has_buffers = rank.0 < ranks;
        let exists = match place {
            Place::Input(chunk) => {
                has_buffers && collective.has_input(rank) && chunk.0 < parts.input_chunks(collective, ranks)
            }
            Place::Output(chunk) => {
                has_buffers && collective.has_output(rank) && chunk.0 < parts.output_chunks(collective, ranks)
            }
            Place::Scratch(_) => true,
        };
        if exists { Ok(()) } else { Err(LowerError::NoSuchPlace { rank, place }) }
    };
    for rank in [transfer.from, transfer.to] {
        if rank.0 >= ranks.saturating_add(schedule.switches) {
            return Err(LowerError::NoSuchRank { rank });
        }
    }
    exists(transfer.from, transfer.source)?;
    exists(transfer.to, transfer.target)?;
    if let Some(fold) = transfer.fold {
        exists(transfer.to, fold)?;
    }
    match transfer.target {
        Place::Input(_) => Err(LowerError::InputWritten { rank: transfer.to, place: transfer.target }),
        _ => Ok(()),
    }
}

/// For every round and transfer: whether its result is the complete fold for the first time on its path. This counts
/// contributions only; the verifier proves that each is folded once.
fn completing(schedule: &Schedule) -> Vec<Vec<bool>> {
    if !schedule.collective.reduces() {
        return schedule.rounds.iter().map(|round| vec![false; round.transfers.len()]).collect();
    }
    let mut held: Numbers<(Rank, Place)> = Numbers::default();
    let mut result = Vec::with_capacity(schedule.rounds.len());
    for round in &schedule.rounds {
        let count = |rank: Rank, place: Place| match place {
            Place::Input(_) => 1,
            _ => held.get(&(rank, place)).copied().unwrap_or(0),
        };
        let counts: Vec<(u32, bool)> = round
            .transfers
            .iter()
            .map(|transfer| {
                let arriving = count(transfer.from, transfer.source);
                let own = transfer.fold.map_or(0, |fold| count(transfer.to, fold));
                let fresh = transfer.fold.is_some() || matches!(transfer.source, Place::Input(_));
                (arriving + own, fresh && arriving + own == schedule.ranks)
            })
            .collect();
        for (transfer, (count, _)) in round.transfers.iter().zip(&counts) {
            held.insert((transfer.to, transfer.target), *count);
        }
        result.push(counts.into_iter().map(|(_, complete)| complete).collect());
    }
    result
}
