//! From a schedule to one rank's plan: send and receive through slots.
//!
//! Invariant: every channel becomes one lane, every transfer between two ranks one slot of the mailbox that
//! the receiver owns and the sender fills. The sender waits for a credit, puts, and signals *ready*; the
//! receiver waits for *ready*, copies or folds, and gives the credit back. Steps keep the order of the rounds;
//! within a round a lane sends, then copies locally, then receives. Deliberately absent: fusion (a pass),
//! packets, mapped buffers, groups: those are other lowerings or plans written by hand.

use std::collections::HashMap;
use std::error::Error;
use std::fmt;

use crate::passes::scratch::{self, ScratchFault};
use crate::plan::{
    Action, CounterId, CounterRole, CounterUse, Engine, Extent, Lane, Operand, Plan, Position, Region,
    RegionUse, Step,
};
use crate::{Channel, Chunk, Place, Rank, Schedule, Transfer};

/// What a lowering may choose.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LowerOptions {
    /// Slots of every mailbox; at least 1. A cyclic schedule needs 2 once it is fused.
    pub slots: u32,
}

/// Why a schedule cannot be lowered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LowerError {
    /// There is no mailbox without a slot, and thresholds must fit 31 bits.
    Slots {
        /// What was asked for.
        slots: u32,
    },
    /// The schedule has fewer ranks.
    NoSuchRank {
        /// The rank that was asked for or that a transfer names.
        rank: Rank,
    },
    /// The place does not exist on the rank.
    NoSuchPlace {
        /// Where.
        rank: Rank,
        /// What.
        place: Place,
    },
    /// Inputs are never written.
    InputWritten {
        /// Where.
        rank: Rank,
        /// What.
        place: Place,
    },
    /// A scratch place is read before the lane wrote it.
    ScratchUnwritten {
        /// Where.
        rank: Rank,
        /// On which channel.
        channel: Channel,
        /// The number of the place in the schedule.
        place: u32,
    },
    /// Two channels use the same scratch place, whose order nothing fixes.
    ScratchShared {
        /// Where.
        rank: Rank,
        /// The number of the place in the schedule.
        place: u32,
    },
    /// More regions than an operand can name.
    TooManyRegions {
        /// Where.
        rank: Rank,
    },
}

impl fmt::Display for LowerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LowerError::Slots { slots } => write!(f, "a mailbox cannot have {slots} slots"),
            LowerError::NoSuchRank { rank } => write!(f, "the schedule has no rank {rank}"),
            LowerError::NoSuchPlace { rank, place } => write!(f, "rank {rank} has no {place:?}"),
            LowerError::InputWritten { rank, place } => {
                write!(f, "the schedule writes {place:?} of rank {rank}; inputs are never written")
            }
            LowerError::ScratchUnwritten { rank, channel, place } => {
                write!(f, "rank {rank} reads scratch {place} on {channel} before it is written there")
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
/// [`LowerError`] when the schedule names ranks or places that do not exist, writes an input, or reads a
/// scratch place in another order than it was written. What is lowered is not yet proved: that is
/// [`verify`](crate::verify())'s.
pub fn lower(schedule: &Schedule, rank: Rank, options: &LowerOptions) -> Result<Plan, LowerError> {
    check(schedule, options)?;
    if rank.0 >= schedule.ranks {
        return Err(LowerError::NoSuchRank { rank });
    }
    Lowering::new(schedule, rank, options).run(&completing(schedule))
}

/// The plans of all ranks, in their order; cheaper than `lower` once for each.
///
/// # Errors
///
/// As [`lower`].
pub fn lower_all(schedule: &Schedule, options: &LowerOptions) -> Result<Vec<Plan>, LowerError> {
    check(schedule, options)?;
    let completing = completing(schedule);
    let plan = |rank| Lowering::new(schedule, Rank(rank), options).run(&completing);
    (0..schedule.ranks).map(plan).collect()
}

fn check(schedule: &Schedule, options: &LowerOptions) -> Result<(), LowerError> {
    if options.slots == 0 || options.slots > i32::MAX as u32 {
        return Err(LowerError::Slots { slots: options.slots });
    }
    let (ranks, parts) = (schedule.ranks, schedule.partition);
    let exists = |rank: Rank, place: Place| {
        let collective = schedule.collective;
        let exists = match place {
            Place::Input(chunk) => {
                collective.has_input(rank) && chunk.0 < parts.input_chunks(collective, ranks)
            }
            Place::Output(chunk) => {
                collective.has_output(rank) && chunk.0 < parts.output_chunks(collective, ranks)
            }
            Place::Scratch(_) => true,
        };
        if exists { Ok(()) } else { Err(LowerError::NoSuchPlace { rank, place }) }
    };
    for transfer in schedule.rounds.iter().flat_map(|round| &round.transfers) {
        for rank in [transfer.from, transfer.to] {
            if rank.0 >= ranks {
                return Err(LowerError::NoSuchRank { rank });
            }
        }
        exists(transfer.from, transfer.source)?;
        exists(transfer.to, transfer.target)?;
        if let Some(fold) = transfer.fold {
            exists(transfer.to, fold)?;
        }
        if let Place::Input(_) = transfer.target {
            return Err(LowerError::InputWritten { rank: transfer.to, place: transfer.target });
        }
    }
    Ok(())
}

/// For every round and transfer: whether its result is the complete fold for the first time on its path. It
/// counts contributions only; that each is there once is the verifier's to prove.
fn completing(schedule: &Schedule) -> Vec<Vec<bool>> {
    if !schedule.collective.reduces() {
        return schedule.rounds.iter().map(|round| vec![false; round.transfers.len()]).collect();
    }
    let mut held: HashMap<(Rank, Place), u32> = HashMap::new();
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

struct Lowering<'a> {
    schedule: &'a Schedule,
    plan: Plan,
    regions: HashMap<Region, u16>,
    counters: HashMap<CounterId, u32>,
}

impl<'a> Lowering<'a> {
    fn new(schedule: &'a Schedule, rank: Rank, options: &LowerOptions) -> Self {
        let plan = Plan {
            name: schedule.name.clone(),
            collective: schedule.collective,
            ranks: schedule.ranks,
            rank,
            partition: schedule.partition,
            slots: options.slots,
            sliced: true,
            scratch: 0,
            regions: Vec::new(),
            counters: Vec::new(),
            groups: Vec::new(),
            lanes: Vec::new(),
            steps: Vec::new(),
            operands: Vec::new(),
        };
        Lowering { schedule, plan, regions: HashMap::new(), counters: HashMap::new() }
    }

    fn run(mut self, completing: &[Vec<bool>]) -> Result<Plan, LowerError> {
        let schedule = self.schedule;
        let rank = self.plan.rank;
        for channel in (0..schedule.channels()).map(Channel) {
            let start = self.plan.steps.len() as u32;
            for (round, complete) in schedule.rounds.iter().zip(completing) {
                let mine = || {
                    let transfers = round.transfers.iter().zip(complete);
                    transfers.filter(move |(transfer, _)| transfer.channel == channel)
                };
                for (transfer, _) in mine().filter(|(t, _)| t.from == rank && t.to != rank) {
                    self.send(transfer);
                }
                for (transfer, &complete) in mine().filter(|(t, _)| t.from == rank && t.to == rank) {
                    self.local(transfer, complete);
                }
                for (transfer, &complete) in mine().filter(|(t, _)| t.from != rank && t.to == rank) {
                    self.receive(transfer, complete);
                }
            }
            let end = self.plan.steps.len() as u32;
            self.plan.lanes.push(Lane { start, end, engine: Engine::Processor });
        }
        if self.plan.regions.len() > usize::from(u16::MAX) {
            return Err(LowerError::TooManyRegions { rank });
        }
        scratch::assign(&mut self.plan).map_err(|fault| match fault {
            ScratchFault::Shared { place } => LowerError::ScratchShared { rank, place },
            ScratchFault::Unwritten { lane, place } => {
                LowerError::ScratchUnwritten { rank, channel: Channel(lane as u16), place }
            }
        })?;
        Ok(self.plan)
    }

    fn send(&mut self, transfer: &Transfer) {
        let (me, peer, channel) = (transfer.from, transfer.to, transfer.channel);
        let mailbox = Region::Mailbox { owner: peer, writer: me, channel };
        let credit = CounterId { owner: me, writer: peer, channel, role: CounterRole::Credit };
        let ready = CounterId { owner: peer, writer: me, channel, role: CounterRole::Ready };
        let (slot, use_index) = self.next_slot(mailbox);
        let source = self.place(transfer.source);
        self.meet(Action::Wait, credit, use_index as i32 + 1 - self.plan.slots as i32);
        self.act(Action::Put, transfer, false, slot, &[(source, self.is_raw(transfer.source))]);
        self.meet(Action::Signal, ready, 1);
    }

    fn receive(&mut self, transfer: &Transfer, complete: bool) {
        let (me, peer, channel) = (transfer.to, transfer.from, transfer.channel);
        let mailbox = Region::Mailbox { owner: me, writer: peer, channel };
        let ready = CounterId { owner: me, writer: peer, channel, role: CounterRole::Ready };
        let credit = CounterId { owner: peer, writer: me, channel, role: CounterRole::Credit };
        let (slot, use_index) = self.next_slot(mailbox);
        self.meet(Action::Wait, ready, use_index as i32 + 1);
        self.combine(transfer, complete, (slot, false));
        self.meet(Action::Signal, credit, 1);
    }

    fn local(&mut self, transfer: &Transfer, complete: bool) {
        let source = (self.place(transfer.source), self.is_raw(transfer.source));
        self.combine(transfer, complete, source);
    }

    /// The arriving value, folded with an own one when the transfer says so, to its target.
    fn combine(&mut self, transfer: &Transfer, complete: bool, arriving: (Operand, bool)) {
        let target = self.place(transfer.target);
        match transfer.fold {
            None => {
                // What arrives complete was finished where it became complete; only an own input is fresh.
                let finish = complete && arriving.1;
                self.act(Action::Copy, transfer, finish, target, &[arriving]);
            }
            Some(fold) => {
                let own = (self.place(fold), self.is_raw(fold));
                let sources = if transfer.own_first { [own, arriving] } else { [arriving, own] };
                self.act(Action::Reduce, transfer, complete, target, &sources);
            }
        }
    }

    fn is_raw(&self, place: Place) -> bool {
        self.schedule.collective.reduces() && matches!(place, Place::Input(_))
    }

    fn place(&mut self, place: Place) -> Operand {
        let rank = self.plan.rank;
        let (region, position) = match place {
            Place::Input(chunk) => (Region::Input(rank), Position::Chunk(chunk)),
            Place::Output(chunk) => (Region::Output(rank), Position::Chunk(chunk)),
            Place::Scratch(chunk) => (Region::Scratch, Position::Scratch(chunk.0)),
        };
        Operand { region: self.region(region), position }
    }

    fn region(&mut self, region: Region) -> u16 {
        let regions = &mut self.plan.regions;
        *self.regions.entry(region).or_insert_with(|| {
            regions.push(RegionUse { region, slots_per_iteration: 0 });
            (regions.len() - 1) as u16
        })
    }

    /// The mailbox's next slot and the number of its use in this iteration.
    fn next_slot(&mut self, mailbox: Region) -> (Operand, u32) {
        let region = self.region(mailbox);
        let uses = &mut self.plan.regions[usize::from(region)].slots_per_iteration;
        let use_index = *uses;
        *uses += 1;
        (Operand { region, position: Position::Slot(use_index) }, use_index)
    }

    /// A signal or a wait. Both ends of a slot meet each of its two counters once.
    fn meet(&mut self, action: Action, id: CounterId, value: i32) {
        let counters = &mut self.plan.counters;
        let counter = *self.counters.entry(id).or_insert_with(|| {
            counters.push(CounterUse { id, per_iteration: 0 });
            counters.len() as u32 - 1
        });
        self.plan.counters[counter as usize].per_iteration += 1;
        let (extent, operands) = (Extent::NONE, self.plan.operands.len() as u32);
        let step =
            Step { action, flags: 0, targets: 0, sources: 0, raw: 0, operands, extent, counter, value };
        self.plan.steps.push(step);
    }

    fn act(
        &mut self,
        action: Action,
        transfer: &Transfer,
        finish: bool,
        target: Operand,
        sources: &[(Operand, bool)],
    ) {
        let raw = sources.iter().enumerate().map(|(index, (_, raw))| u32::from(*raw) << index).sum();
        self.plan.steps.push(Step {
            action,
            flags: if finish { Step::FINISH } else { 0 },
            targets: 1,
            sources: sources.len() as u8,
            raw,
            operands: self.plan.operands.len() as u32,
            extent: Extent::chunk(length_of(transfer)),
            counter: 0,
            value: 0,
        });
        self.plan.operands.push(target);
        self.plan.operands.extend(sources.iter().map(|(operand, _)| *operand));
    }
}

/// The chunk whose length a transfer has: one of a caller's buffer when it names one, else the scratch place's.
fn length_of(transfer: &Transfer) -> Chunk {
    let places = [Some(transfer.target), transfer.fold, Some(transfer.source)];
    let caller = places.into_iter().flatten().find_map(|place| match place {
        Place::Input(chunk) | Place::Output(chunk) => Some(chunk),
        Place::Scratch(_) => None,
    });
    let (Place::Input(chunk) | Place::Output(chunk) | Place::Scratch(chunk)) = transfer.target;
    caller.unwrap_or(chunk)
}
