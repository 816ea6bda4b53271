//! An executor that shares no code with the verifier: it runs plans on real numbers in real slots under random
//! interleavings and checks the results.

use std::collections::BTreeMap;

use consort_algorithms::plan::{Action, CounterRole, Operand, Position, Region, Step};
use consort_algorithms::{Chunk, Collective, Plan, Rank};

use consort_testing::{Random, mix};

const SCALE: u64 = 0x1000_0000_01b3;
const FINISH: (u64, u64) = (0x9e37_79b9_7f4a_7c15, 77);

/// One run of a set of plans; an error says what went wrong.
pub(crate) fn execute(plans: &[Plan], in_place: bool, rounds: u32, seed: u64) -> Result<(), String> {
    Machine::new(plans, in_place, rounds, seed).run()
}

/// Runs under `seeds` interleavings of both forms; the first failure with its seed.
pub(crate) fn execute_often(plans: &[Plan], rounds: u32, seeds: u64) -> Result<(), String> {
    use Collective::{AllToAll, AllToAllReplicated, SendReceive};
    let forms = matches!(plans[0].collective, SendReceive | AllToAll | AllToAllReplicated { .. });
    for seed in 0..seeds {
        for in_place in [false, true] {
            if in_place && forms {
                continue;
            }
            execute(plans, in_place, rounds, seed)
                .map_err(|fault| format!("seed {seed}, in place {in_place}: {fault}"))?;
        }
    }
    Ok(())
}

/// The state of a lane between the two halves of a step.
struct Half {
    values: Vec<u64>,
    step: Step,
}

struct Lane<'a> {
    rank: usize,
    steps: &'a [Step],
    at: usize,
    round: u32,
    half: Option<Half>,
    parked: bool,
    priority: u64,
}

struct Arrival {
    rank: usize,
    round: u32,
    step: Step,
}

type Key = (u32, u32, u16);

struct Slots {
    key: Key,
    /// The counters that signal emptied slots to the writer.
    credits: Vec<usize>,
    memory: Vec<Vec<u64>>,
    packets: Vec<Option<u64>>,
    per_round: u64,
    /// Slots of an earlier operation that its owner has not emptied, counting up from `-slots`.
    left: i64,
}

/// The places of a rank's regions and counters among all mailboxes and counters.
struct Places {
    boxes: Vec<usize>,
    counters: Vec<usize>,
}

struct Machine<'a> {
    plans: &'a [Plan],
    in_place: bool,
    rounds: u32,
    random: Random,
    parts: u32,
    ranks: u32,
    tables: bool,
    /// For each rank and iteration: the caller's memory.
    arenas: Vec<Vec<Vec<u64>>>,
    scratch: Vec<Vec<Vec<u64>>>,
    /// In the order of their keys.
    boxes: Vec<Slots>,
    /// How many of them still hold a value of an earlier operation.
    unemptied: usize,
    counters: Vec<i64>,
    /// The places of each rank.
    places: Vec<Places>,
    lanes: Vec<Lane<'a>>,
    arrivals: Vec<Arrival>,
    busy: Vec<usize>,
    longest: usize,
    salt: u64,
}

impl<'a> Machine<'a> {
    fn new(plans: &'a [Plan], in_place: bool, rounds: u32, seed: u64) -> Self {
        let first = &plans[0];
        let tables = plans
            .iter()
            .any(|plan| plan.operands.iter().any(|operand| matches!(operand.position, Position::Table(_))));
        let mut machine = Machine {
            plans,
            in_place,
            rounds,
            random: Random(seed),
            parts: first.partition.parts,
            ranks: first.ranks,
            tables,
            arenas: Vec::new(),
            scratch: Vec::new(),
            boxes: Vec::new(),
            unemptied: 0,
            counters: Vec::new(),
            places: Vec::new(),
            lanes: Vec::new(),
            arrivals: Vec::new(),
            busy: Vec::new(),
            longest: 5,
            salt: mix(seed ^ 0x5eed),
        };
        machine.lay_out();
        let iterations = if first.sliced { rounds } else { 1 };
        for (rank, plan) in plans.iter().enumerate() {
            let room = machine.room();
            machine.arenas.push(vec![vec![0; room]; iterations as usize]);
            let longest = machine.longest;
            machine.scratch.push(vec![vec![0xdead; longest]; plan.scratch as usize]);
            for lane in &plan.lanes {
                machine.lanes.push(Lane {
                    rank,
                    steps: plan.lane(lane),
                    at: 0,
                    round: 0,
                    half: None,
                    parked: false,
                    priority: machine.random.draw(),
                });
            }
            machine.busy.push(plan.lanes.len());
        }
        for rank in 0..plans.len() {
            machine.fill(rank, 0);
        }
        machine
    }

    /// Makes the mailboxes and the counters of all plans. A mailbox that an earlier operation may have used is full,
    /// and the credit of that operation has not arrived.
    fn lay_out(&mut self) {
        let (mut boxes, mut ids) = (BTreeMap::new(), BTreeMap::new());
        for plan in self.plans {
            for used in &plan.regions {
                if let Region::Mailbox { owner, writer, channel } = used.region {
                    let key = (owner.0, writer.0, channel.0);
                    let slots = Slots {
                        key,
                        credits: Vec::new(),
                        memory: vec![vec![0xbad; self.longest]; plan.slots as usize],
                        packets: vec![None; plan.slots as usize],
                        per_round: used.slots_per_iteration.into(),
                        left: 0,
                    };
                    boxes.insert(key, slots);
                }
            }
            ids.extend(plan.counters.iter().map(|used| (used.id, 0)));
        }
        self.boxes = boxes.into_values().collect();
        self.counters = vec![0; ids.len()];
        for (at, (id, place)) in ids.iter_mut().enumerate() {
            *place = at;
            let of_credit =
                (id.role == CounterRole::Credit).then_some((id.writer.0, id.owner.0, id.channel.0));
            if let Some(at_box) = of_credit.and_then(|key| self.box_at(key)) {
                let slots = &mut self.boxes[at_box];
                self.unemptied += usize::from(slots.credits.is_empty() && self.plans[0].slots > 0);
                slots.credits.push(at);
                slots.left = -i64::from(self.plans[0].slots);
                self.counters[at] = slots.left;
                for (slot, memory) in slots.memory.iter_mut().enumerate() {
                    memory.fill(0xb000 + slot as u64);
                }
            }
        }
        let places = |plan: &Plan| Places {
            boxes: plan.regions.iter().map(|used| self.box_of(used.region)).collect(),
            counters: plan.counters.iter().map(|used| ids[&used.id]).collect(),
        };
        self.places = self.plans.iter().map(places).collect();
    }

    fn box_at(&self, key: Key) -> Option<usize> {
        self.boxes.binary_search_by_key(&key, |slots| slots.key).ok()
    }

    /// The mailbox of a region; without meaning for other regions.
    fn box_of(&self, region: Region) -> usize {
        let Region::Mailbox { owner, writer, channel } = region else { return usize::MAX };
        self.box_at((owner.0, writer.0, channel.0)).expect("all were made")
    }

    fn length(&self, step: &Step) -> usize {
        match (step.extent.as_chunk(), step.extent.as_table()) {
            (Some(chunk), _) => self.piece_length(chunk.0 % self.parts),
            (_, Some(entry)) => 1 + (entry % 3) as usize,
            _ => 0,
        }
    }

    fn piece_length(&self, piece: u32) -> usize {
        1 + (piece * 2 % 5) as usize
    }

    fn block_length(&self) -> usize {
        (0..self.parts).map(|piece| self.piece_length(piece)).sum()
    }

    fn chunk_offset(&self, chunk: Chunk) -> usize {
        let before: usize = (0..chunk.0 % self.parts).map(|piece| self.piece_length(piece)).sum();
        (chunk.0 / self.parts) as usize * self.block_length() + before
    }

    /// Elements of one caller's memory: input first, output behind it when out of place.
    fn room(&self) -> usize {
        if self.tables {
            return 6 * self.ranks as usize;
        }
        2 * self.ranks as usize * self.block_length()
    }

    fn base(&self, rank: u32, output: bool) -> usize {
        let collective = self.plans[0].collective;
        let far = self.room() / 2;
        let both = collective.has_input(Rank(rank)) && collective.has_output(Rank(rank));
        let own = rank as usize * self.block_length();
        match (output, self.in_place && both, collective) {
            (false, false, _) => 0,
            (true, false, _) => far,
            (false, true, Collective::AllGather) => own,
            (true, true, Collective::ReduceScatter) => own,
            _ => 0,
        }
    }

    fn offset(&self, rank: u32, output: bool, position: Position) -> usize {
        self.base(rank, output)
            + match position {
                Position::Chunk(chunk) => self.chunk_offset(chunk),
                Position::Table(entry) => {
                    3 * (if output { entry / self.ranks } else { entry % self.ranks }) as usize
                }
                _ => panic!("a caller's buffer has chunks"),
            }
    }

    fn contribution(&self, rank: u32, round: u32, element: usize) -> u64 {
        mix(self.salt ^ (u64::from(rank) << 40) ^ (u64::from(round) << 20) ^ element as u64)
    }

    /// The caller's work before an operation: new inputs, and garbage everywhere else.
    fn fill(&mut self, rank: usize, round: u32) {
        let sliced = self.plans[0].sliced;
        let spoil = self.random.draw();
        let collective = self.plans[0].collective;
        let length = match (self.tables, collective.input_blocks(self.ranks)) {
            (true, _) => 3 * self.ranks as usize,
            (false, blocks) => blocks as usize * self.block_length(),
        };
        let base = self.base(rank as u32, false);
        for iteration in 0..self.arenas[rank].len() {
            self.arenas[rank][iteration].fill(spoil);
            if collective.has_input(Rank(rank as u32)) {
                let round = if sliced { iteration as u32 } else { round };
                let origin = collective.origin(Rank(rank as u32)).0;
                for element in 0..length {
                    let value = self.contribution(origin, round, element);
                    self.arenas[rank][iteration][base + element] = value;
                }
            }
        }
    }

    /// Compares the rank's output, if it has one, with the expected values.
    fn check(&self, rank: usize, round: u32) -> Result<(), String> {
        let collective = self.plans[0].collective;
        let me = rank as u32;
        if !collective.has_output(Rank(me)) {
            return Ok(());
        }
        let sliced = self.plans[0].sliced;
        let block = self.block_length();
        let base = self.base(me, true);
        for (iteration, arena) in self.arenas[rank].iter().enumerate() {
            let round = if sliced { iteration as u32 } else { round };
            let value = |from: u32, element: usize| self.contribution(from, round, element);
            let folded = |element: usize| {
                let sum = (0..self.ranks).fold(0u64, |sum, from| sum.wrapping_add(value(from, element)));
                let sum = if collective.reduces() { wrapping(sum, SCALE) } else { sum };
                wrapping(sum, FINISH.0).wrapping_add(FINISH.1)
            };
            let elements = if self.tables {
                (0..3 * self.ranks as usize)
                    .filter(|element| {
                        let entry = (element / 3) as u32 * self.ranks + me;
                        element % 3 < 1 + (entry % 3) as usize
                    })
                    .collect::<Vec<_>>()
            } else {
                (0..collective.output_blocks(self.ranks) as usize * block).collect()
            };
            for element in elements {
                let expected = match collective {
                    Collective::AllReduce | Collective::Reduce => folded(element),
                    Collective::ReduceScatter => folded(rank * block + element),
                    Collective::Broadcast | Collective::SendReceive => value(0, element),
                    Collective::AllGather | Collective::Gather => {
                        value((element / block) as u32, element % block)
                    }
                    Collective::Scatter => value(0, rank * block + element),
                    Collective::AllToAll if self.tables => {
                        value((element / 3) as u32, 3 * rank + element % 3)
                    }
                    Collective::AllToAll => value((element / block) as u32, rank * block + element % block),
                    Collective::AllToAllReplicated { group } => {
                        let (group, from) = (group as usize, element / block);
                        let place = rank / group * group + from % group;
                        value((from / group * group) as u32, place * block + element % block)
                    }
                };
                if arena[base + element] != expected {
                    return Err(format!("rank {rank}, round {round}: element {element} is wrong"));
                }
            }
        }
        Ok(())
    }

    fn run(mut self) -> Result<(), String> {
        let mut choices: Vec<usize> = Vec::new();
        loop {
            if self.random.one_in(24) {
                for lane in &mut self.lanes {
                    lane.priority = self.random.draw();
                }
            }
            let fair = self.random.one_in(2);
            choices.clear();
            choices.extend((0..self.lanes.len()).filter(|&lane| self.may_go_on(&self.lanes[lane])));
            if self.unemptied > 0 && (choices.is_empty() || self.random.one_in(4)) {
                let which = self.random.below(self.unemptied);
                self.empty_leftover(which)?;
                continue;
            }
            if !self.arrivals.is_empty() && (choices.is_empty() || self.random.one_in(3)) {
                let at = self.random.below(self.arrivals.len());
                let Arrival { rank, round, step } = self.arrivals.swap_remove(at);
                let values = self.read(rank, round, &step);
                self.write(rank, round, &step, &values);
                self.raise(rank, &step);
                continue;
            }
            if choices.is_empty() {
                return match self.lanes.iter().all(|lane| lane.parked) {
                    true => Ok(()),
                    false => Err("deadlock".into()),
                };
            }
            let first = choices.iter().min_by_key(|&&lane| self.lanes[lane].priority).filter(|_| !fair);
            let lane = first.copied().unwrap_or_else(|| choices[self.random.below(choices.len())]);
            self.go_on(lane)?;
        }
    }

    fn may_go_on(&self, lane: &Lane<'_>) -> bool {
        let rank = lane.rank as u32;
        let first = lane.at == 0 && lane.round == 0 && lane.half.is_none() && self.unemptied > 0;
        if lane.parked || (first && self.boxes.iter().any(|slots| slots.key.0 == rank && slots.left < 0)) {
            return false;
        }
        let Some(step) = lane.steps.get(lane.at).filter(|_| lane.half.is_none()) else { return true };
        let plan = &self.plans[lane.rank];
        match step.action {
            Action::Wait => {
                let used = plan.counters[step.counter as usize];
                let needed = i64::from(lane.round) * i64::from(used.per_iteration) + i64::from(step.value);
                self.counters[self.places[lane.rank].counters[step.counter as usize]] >= needed
            }
            _ if step.has(Step::PACKET) => plan.sources(step).iter().all(|operand| {
                let Some(slots) = self.mailbox(lane.rank, operand) else { return true };
                let number = slot_use(slots, lane.round, operand);
                slots.packets[(number % u64::from(plan.slots)) as usize] == Some(number)
            }),
            _ => true,
        }
    }

    /// The mailbox in which an operand of this rank's plan is.
    fn mailbox(&self, rank: usize, operand: &Operand) -> Option<&Slots> {
        self.boxes.get(self.places[rank].boxes[usize::from(operand.region)])
    }

    /// Empties a slot of a mailbox that still holds a value of an earlier operation.
    fn empty_leftover(&mut self, which: usize) -> Result<(), String> {
        let slots =
            self.boxes.iter_mut().filter(|slots| slots.left < 0).nth(which).expect("there are as many");
        let count = slots.memory.len() as i64;
        let slot = slots.left.rem_euclid(count) as usize;
        if slots.memory[slot].iter().any(|&value| value != 0xb000 + slot as u64) {
            let key = slots.key;
            return Err(format!("mailbox {key:?}: a slot of the operation before was overwritten"));
        }
        slots.left += 1;
        self.unemptied -= usize::from(slots.left == 0);
        for &credit in &slots.credits {
            self.counters[credit] += 1;
        }
        Ok(())
    }

    fn go_on(&mut self, index: usize) -> Result<(), String> {
        let (rank, round) = (self.lanes[index].rank, self.lanes[index].round);
        if let Some(half) = self.lanes[index].half.take() {
            self.write(rank, round, &half.step, &half.values);
            self.lanes[index].at += 1;
            return Ok(());
        }
        let Some(step) = self.lanes[index].steps.get(self.lanes[index].at).copied() else {
            let lane = &mut self.lanes[index];
            lane.at = 0;
            lane.round += 1;
            if !self.plans[0].sliced || lane.round == self.rounds {
                lane.parked = true;
                return self.returned(rank);
            }
            return Ok(());
        };
        match step.action {
            Action::Wait => {}
            Action::Signal => self.raise(rank, &step),
            _ if step.has(Step::COUNTED) => self.arrivals.push(Arrival { rank, round, step }),
            _ => {
                let values = self.read(rank, round, &step);
                self.lanes[index].half = Some(Half { values, step });
                return Ok(());
            }
        }
        self.lanes[index].at += 1;
        Ok(())
    }

    fn returned(&mut self, rank: usize) -> Result<(), String> {
        self.busy[rank] -= 1;
        if self.busy[rank] > 0 {
            return Ok(());
        }
        let round = self.lanes.iter().find(|lane| lane.rank == rank).map_or(0, |lane| lane.round);
        self.check(rank, round - 1)?;
        self.fill(rank, round);
        if round < self.rounds {
            for lane in self.lanes.iter_mut().filter(|lane| lane.rank == rank) {
                lane.parked = false;
                self.busy[rank] += 1;
            }
        }
        Ok(())
    }

    fn raise(&mut self, rank: usize, step: &Step) {
        self.counters[self.places[rank].counters[step.counter as usize]] += i64::from(step.value);
    }

    fn read(&self, rank: usize, round: u32, step: &Step) -> Vec<u64> {
        let plan = &self.plans[rank];
        let length = self.length(step);
        let mut sum = vec![0u64; length];
        for (index, operand) in plan.sources(step).iter().enumerate() {
            let scale = if step.raw >> index & 1 == 1 { SCALE } else { 1 };
            for values in self.load(plan, round, operand, (length, step.has(Step::PACKET))) {
                for (sum, value) in sum.iter_mut().zip(values) {
                    *sum = sum.wrapping_add(wrapping(value, scale));
                }
            }
        }
        if step.has(Step::FINISH) {
            sum.iter_mut().for_each(|value| *value = wrapping(*value, FINISH.0).wrapping_add(FINISH.1));
        }
        sum
    }

    fn iteration(&self, round: u32) -> usize {
        if self.plans[0].sliced { round as usize } else { 0 }
    }

    fn load(
        &self,
        plan: &Plan,
        round: u32,
        operand: &Operand,
        (length, packet): (usize, bool),
    ) -> Vec<Vec<u64>> {
        let user = |rank: Rank, output: bool| {
            let at = self.offset(rank.0, output, operand.position);
            self.arenas[rank.index()][self.iteration(round)][at..at + length].to_vec()
        };
        match (region(plan, operand), operand.position) {
            (Region::Input(rank), _) => vec![user(rank, false)],
            (Region::Output(rank), _) => vec![user(rank, true)],
            (Region::Group { group, output }, _) => {
                // A switch folds in the order that suits it.
                let mut members = plan.groups[usize::from(group)].clone();
                let drawn = mix(self.salt ^ mix(u64::from(plan.rank.0) << 32 | u64::from(round)));
                members.sort_by_key(|rank| mix(drawn ^ u64::from(rank.0)));
                members.into_iter().map(|rank| user(rank, output)).collect()
            }
            (Region::Mailbox { .. }, _) => {
                let slots = self.mailbox(plan.rank.index(), operand).expect("it is one");
                let slot = (slot_use(slots, round, operand) % u64::from(plan.slots)) as usize;
                let mut values = slots.memory[slot][..length].to_vec();
                if slots.packets[slot].is_some() && !packet {
                    // Bytes and flags are interleaved.
                    values.fill(0xf1a6);
                }
                vec![values]
            }
            (Region::Scratch, Position::Scratch(place)) => {
                vec![self.scratch[plan.rank.index()][place as usize][..length].to_vec()]
            }
            _ => panic!("not a place"),
        }
    }

    fn write(&mut self, rank: usize, round: u32, step: &Step, values: &[u64]) {
        let plan = &self.plans[rank];
        for operand in plan.targets(step) {
            let user: Vec<Rank> = match region(plan, operand) {
                Region::Output(rank) => vec![rank],
                Region::Group { group, .. } => plan.groups[usize::from(group)].clone(),
                _ => Vec::new(),
            };
            for rank in user {
                let at = self.offset(rank.0, true, operand.position);
                let iteration = self.iteration(round);
                self.arenas[rank.index()][iteration][at..at + values.len()].copy_from_slice(values);
            }
            match (region(plan, operand), operand.position) {
                (Region::Mailbox { .. }, _) => {
                    let slots = &mut self.boxes[self.places[rank].boxes[usize::from(operand.region)]];
                    let number = slot_use(slots, round, operand);
                    let slot = (number % u64::from(plan.slots)) as usize;
                    slots.memory[slot][..values.len()].copy_from_slice(values);
                    slots.packets[slot] = step.has(Step::PACKET).then_some(number);
                }
                (Region::Scratch, Position::Scratch(place)) => {
                    self.scratch[rank][place as usize][..values.len()].copy_from_slice(values);
                }
                _ => {}
            }
        }
    }
}

fn wrapping(value: u64, by: u64) -> u64 {
    value.wrapping_mul(by)
}

fn region(plan: &Plan, operand: &Operand) -> Region {
    plan.regions[usize::from(operand.region)].region
}

fn slot_use(slots: &Slots, round: u32, operand: &Operand) -> u64 {
    let Position::Slot(slot) = operand.position else { panic!("a mailbox has slots") };
    u64::from(round) * slots.per_round + u64::from(slot)
}
