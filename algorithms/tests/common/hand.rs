//! Plans written by hand, step by step.

use consort_algorithms::plan::{
    Action, CounterId, CounterRole, CounterUse, Engine, Extent, Lane, Operand, Position, Region, RegionUse,
    Step,
};
use consort_algorithms::{Channel, Chunk, Collective, Partition, Plan, Rank};

pub(crate) struct Hand {
    pub(crate) plan: Plan,
}

pub(crate) type Spot = (Region, Position);

pub(crate) fn flag(owner: u32, writer: u32, number: u16) -> CounterId {
    counter(owner, writer, 0, CounterRole::Flag(number))
}

pub(crate) fn counter(owner: u32, writer: u32, channel: u16, role: CounterRole) -> CounterId {
    CounterId { owner: Rank(owner), writer: Rank(writer), channel: Channel(channel), role }
}

pub(crate) fn input(rank: u32, chunk: u32) -> Spot {
    (Region::Input(Rank(rank)), Position::Chunk(Chunk(chunk)))
}

pub(crate) fn output(rank: u32, chunk: u32) -> Spot {
    (Region::Output(Rank(rank)), Position::Chunk(Chunk(chunk)))
}

pub(crate) fn scratch(place: u32) -> Spot {
    (Region::Scratch, Position::Scratch(place))
}

pub(crate) fn slot(owner: u32, writer: u32, channel: u16, slot: u32) -> Spot {
    let region = Region::Mailbox { owner: Rank(owner), writer: Rank(writer), channel: Channel(channel) };
    (region, Position::Slot(slot))
}

impl Hand {
    pub(crate) fn new(
        name: &str,
        collective: Collective,
        rank: u32,
        ranks: u32,
        parts: u32,
        slots: u32,
    ) -> Self {
        Hand {
            plan: Plan {
                name: name.into(),
                collective,
                ranks,
                rank: Rank(rank),
                partition: Partition { parts },
                slots,
                sliced: false,
                scratch: 0,
                regions: Vec::new(),
                counters: Vec::new(),
                groups: Vec::new(),
                lanes: Vec::new(),
                steps: Vec::new(),
                operands: Vec::new(),
            },
        }
    }

    pub(crate) fn lane(&mut self, engine: Engine) {
        let end = self.plan.steps.len() as u32;
        self.plan.lanes.push(Lane { start: end, end, engine });
    }

    fn push(&mut self, step: Step) {
        self.plan.steps.push(step);
        self.plan.lanes.last_mut().expect("a lane was begun").end += 1;
    }

    fn counter_index(&mut self, id: CounterId) -> u32 {
        let counters = &mut self.plan.counters;
        let index = counters.iter().position(|used| used.id == id).unwrap_or_else(|| {
            counters.push(CounterUse { id, per_iteration: 0 });
            counters.len() - 1
        });
        index as u32
    }

    fn operand(&mut self, (region, position): Spot) {
        let regions = &mut self.plan.regions;
        let index = regions.iter().position(|used| used.region == region).unwrap_or_else(|| {
            regions.push(RegionUse { region, slots_per_iteration: 0 });
            regions.len() - 1
        });
        if let Position::Scratch(place) = position {
            self.plan.scratch = self.plan.scratch.max(place + 1);
        }
        self.plan.operands.push(Operand { region: index as u16, position });
    }

    fn meet(&mut self, action: Action, id: CounterId, value: i32) {
        let counter = self.counter_index(id);
        let operands = self.plan.operands.len() as u32;
        let (flags, targets, sources, raw, extent) = (0, 0, 0, 0, Extent::NONE);
        self.push(Step { action, flags, targets, sources, raw, operands, extent, counter, value });
    }

    pub(crate) fn wait(&mut self, id: CounterId, value: i32) {
        self.meet(Action::Wait, id, value);
    }

    pub(crate) fn signal(&mut self, id: CounterId) {
        self.meet(Action::Signal, id, 1);
    }

    /// A step with operands; `raw` marks the sources that are contributions.
    pub(crate) fn act(
        &mut self,
        action: Action,
        extent: Extent,
        targets: &[Spot],
        sources: &[Spot],
        raw: u32,
        flags: u8,
    ) {
        let operands = self.plan.operands.len() as u32;
        targets.iter().chain(sources).for_each(|&spot| self.operand(spot));
        let (counts, counter, value) = ((targets.len() as u8, sources.len() as u8), 0, 0);
        let (targets, sources) = counts;
        self.push(Step { action, flags, targets, sources, raw, operands, extent, counter, value });
    }

    pub(crate) fn copy(&mut self, extent: Extent, target: Spot, source: Spot) {
        self.act(Action::Copy, extent, &[target], &[source], 0, 0);
    }

    pub(crate) fn counted_put(&mut self, extent: Extent, target: Spot, source: Spot, id: CounterId) {
        self.act(Action::Put, extent, &[target], &[source], 0, Step::COUNTED);
        let counter = self.counter_index(id);
        let step = self.plan.steps.last_mut().expect("it was just pushed");
        (step.counter, step.value) = (counter, 1);
    }

    /// Signals a flag to every other rank and waits for theirs.
    pub(crate) fn barrier(&mut self, number: u16) {
        let (me, ranks) = (self.plan.rank.0, self.plan.ranks);
        let peers = || (0..ranks).filter(move |&peer| peer != me);
        peers().for_each(|peer| self.signal(flag(peer, me, number)));
        peers().for_each(|peer| self.wait(flag(me, peer, number), 1));
    }
}

/// Fills in the tables' numbers for one iteration, the same at both ends.
pub(crate) fn settle(hands: Vec<Hand>) -> Vec<Plan> {
    let mut plans: Vec<Plan> = hands.into_iter().map(|hand| hand.plan).collect();
    let raised = |plans: &[Plan], id: CounterId| -> u32 {
        let writer = &plans[id.writer.index()];
        let raises = |step: &&Step| {
            (step.action == Action::Signal || step.has(Step::COUNTED))
                && writer.counters[step.counter as usize].id == id
        };
        writer.steps.iter().filter(raises).map(|step| step.value as u32).sum()
    };
    let filled = |plans: &[Plan], region: Region| -> u32 {
        let Region::Mailbox { writer, .. } = region else { return 0 };
        let writer = &plans[writer.index()];
        let slots = writer.operands.iter().filter_map(|operand| match operand.position {
            Position::Slot(slot) if writer.regions[usize::from(operand.region)].region == region => {
                Some(slot + 1)
            }
            _ => None,
        });
        slots.max().unwrap_or(0)
    };
    let settled = plans.clone();
    for plan in &mut plans {
        plan.counters.iter_mut().for_each(|used| used.per_iteration = raised(&settled, used.id));
        plan.regions.iter_mut().for_each(|used| used.slots_per_iteration = filled(&settled, used.region));
    }
    plans
}
