//! The steps of one rank: each transfer as sends and receives through slots.
//!
//! Invariant: takes time and memory in proportion to the transfers of the rank. Absent: the other ranks.

use super::lanes::{Mine, goes_ahead, lanes, overwrites_early, waves};
use super::{LowerError, LowerOptions};
use crate::Own;
use crate::lengths;
use crate::numbers::Numbers;
use crate::passes::scratch::{self, ScratchFault};
use crate::plan::{
    Action, CounterId, CounterRole, CounterUse, Engine, Extent, Lane, Operand, Plan, Position, Region,
    RegionUse, Step,
};
use crate::{Chunk, Place, Rank, Schedule, Transfer};

/// One plan in the making.
pub(super) struct Lowering<'a> {
    schedule: &'a Schedule,
    pub(super) plan: Plan,
    regions: Numbers<Region, u16>,
    counters: Numbers<CounterId>,
}

impl<'a> Lowering<'a> {
    pub(super) fn new(schedule: &'a Schedule, rank: Rank, options: &LowerOptions) -> Self {
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
        Lowering { schedule, plan, regions: Numbers::default(), counters: Numbers::default() }
    }

    pub(super) fn run(mut self, own: &[Own]) -> Result<Plan, LowerError> {
        let rank = self.plan.rank;
        self.reserve(own);
        let lanes = lanes(own, rank);
        for lane in 0..lanes.values().copied().max().map_or(1, |last| last + 1) {
            let start = self.plan.steps.len() as u32;
            let in_lane = |of: &&Own| lanes.get(&of.transfer.channel) == Some(&lane);
            let window = if self.plan.collective.reduces() { self.plan.slots / 2 } else { 0 };
            let mut ahead = goes_ahead(rank, window);
            let of_lane: Vec<Mine<'_>> =
                own.iter().filter(in_lane).map(|own| Mine { own, ahead: ahead(own) }).collect();
            of_lane.iter().filter(|mine| mine.ahead).for_each(|mine| self.send(&mine.own.transfer));
            // Sends that went ahead still count in the waves of their round.
            for round in of_lane.chunk_by(|a, b| a.own.round == b.own.round) {
                self.round(round);
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
                LowerError::ScratchUnwritten { rank, lane: lane as u32, place }
            }
        })?;
        Ok(self.plan)
    }

    /// Room for all steps and operands at once.
    fn reserve(&mut self, own: &[Own]) {
        let (mut steps, mut operands) = (0, 0);
        for Own { transfer, .. } in own {
            let (sends, receives) = (transfer.from == self.plan.rank, transfer.to == self.plan.rank);
            steps += if sends && receives { 1 } else { 3 };
            operands += 2 + usize::from(receives && transfer.fold.is_some());
        }
        self.plan.steps.reserve_exact(steps);
        self.plan.operands.reserve_exact(operands);
    }

    /// The steps of a lane in one round: sends, local copies, receives. Where more messages go to one peer than its
    /// mailbox has slots, they come in waves: some sends, as many receives, the next sends.
    fn round(&mut self, round: &[Mine<'_>]) {
        let rank = self.plan.rank;
        let mut waves = waves(round, rank, (self.plan.slots / 2).max(1));
        let last = waves.iter().copied().max().unwrap_or(0);
        if last > 0 && overwrites_early(self.schedule, round, &waves, rank) {
            waves.fill(0);
        }
        for wave in 0..=last {
            let of_wave =
                || round.iter().zip(&waves).filter(move |(_, of)| **of == wave).map(|(mine, _)| mine);
            let ends = |mine: &Mine<'_>| (mine.own.transfer.from == rank, mine.own.transfer.to == rank);
            for mine in of_wave().filter(|mine| ends(mine) == (true, false) && !mine.ahead) {
                self.send(&mine.own.transfer);
            }
            for mine in of_wave().filter(|mine| ends(mine) == (true, true)) {
                self.local(&mine.own.transfer, mine.own.complete);
            }
            for mine in of_wave().filter(|mine| ends(mine) == (false, true)) {
                self.receive(&mine.own.transfer, mine.own.complete);
            }
        }
    }

    fn send(&mut self, transfer: &Transfer) {
        let (me, peer, channel) = (transfer.from, transfer.to, transfer.channel);
        let mailbox = Region::Mailbox { owner: peer, writer: me, channel };
        let credit = CounterId { owner: me, writer: peer, channel, role: CounterRole::Credit };
        let ready = CounterId { owner: peer, writer: me, channel, role: CounterRole::Ready };
        let (slot, use_index) = self.next_slot(mailbox);
        let source = self.place(transfer.source);
        self.meet(Action::Wait, credit, use_index as i32 + 1 - self.plan.slots as i32);
        let extent = self.extent(transfer);
        self.act(Action::Put, extent, false, &[slot], &[(source, self.is_raw(transfer.source))]);
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

    /// The arriving value to its target, folded with an own one when the transfer names one.
    fn combine(&mut self, transfer: &Transfer, complete: bool, arriving: (Operand, bool)) {
        let (target, extent) = (self.place(transfer.target), self.extent(transfer));
        match transfer.fold {
            None => {
                // A value that arrives complete was finished where it became complete; only an own input is not
                // finished yet.
                let finish = complete && arriving.1;
                self.act(Action::Copy, extent, finish, &[target], &[arriving]);
            }
            Some(fold) => {
                let own = (self.place(fold), self.is_raw(fold));
                let sources = if transfer.own_first { [own, arriving] } else { [arriving, own] };
                self.act(Action::Reduce, extent, complete, &[target], &sources);
            }
        }
    }

    fn extent(&self, transfer: &Transfer) -> Extent {
        Extent::chunk(length_of(self.schedule, transfer))
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

    pub(super) fn region(&mut self, region: Region) -> u16 {
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

    /// A signal or a wait. Each end of a slot uses each of the slot's two counters once.
    pub(super) fn meet(&mut self, action: Action, id: CounterId, value: i32) {
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

    pub(super) fn act(
        &mut self,
        action: Action,
        extent: Extent,
        finish: bool,
        targets: &[Operand],
        sources: &[(Operand, bool)],
    ) {
        let raw = sources.iter().enumerate().map(|(index, (_, raw))| u32::from(*raw) << index).sum();
        self.plan.steps.push(Step {
            action,
            flags: if finish { Step::FINISH } else { 0 },
            targets: targets.len() as u8,
            sources: sources.len() as u8,
            raw,
            operands: self.plan.operands.len() as u32,
            extent,
            counter: 0,
            value: 0,
        });
        self.plan.operands.extend(targets);
        self.plan.operands.extend(sources.iter().map(|(operand, _)| *operand));
    }
}

/// The chunk whose length a transfer has: that of a caller's buffer when the transfer names one, else the scratch
/// place's number taken as a chunk.
pub(crate) fn length_of(schedule: &Schedule, transfer: &Transfer) -> Chunk {
    let Schedule { collective, ranks, partition, .. } = *schedule;
    let places = [
        (Some(transfer.target), transfer.to),
        (transfer.fold, transfer.to),
        (Some(transfer.source), transfer.from),
    ];
    let caller =
        places.into_iter().find_map(|(place, rank)| lengths::of(collective, partition, rank, place?));
    let (Place::Input(chunk) | Place::Output(chunk) | Place::Scratch(chunk)) = transfer.target;
    caller.unwrap_or(Chunk(chunk.0 % lengths::count(collective, partition, ranks).max(1)))
}
