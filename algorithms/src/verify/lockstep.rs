//! One rank of many that all do the same step at the same time.
//!
//! Invariant: a run that is not refused is right for every interleaving; [`symmetry`](super::symmetry) has the
//! argument. A mailbox stands for all mailboxes between ranks of the same distance: this rank fills one of them and
//! empties another, and the value that it takes out is the value that it put in, moved back by the distance. Absent:
//! the claim of symmetry, which is checked on the schedule, and rounds after the first.

use std::collections::VecDeque;

use super::compile::CHANGE_MAX;
use super::outputs::expected;
use super::program::may;
use super::refusal::{Actor, At, Awaited, Memory, Refusal, Waiting};
use super::shape::{Moved, Shapes};
use super::symmetry::Moves;
use crate::aliasing::output_of_input;
use crate::numbers::Numbers;
use crate::plan::{Action, CounterRole, Engine, Extent, Operand, Plan, Position, Region, Step};
use crate::{Channel, Chunk, Collective, Place, Rank, lengths};

/// No lane.
const NO_LANE: u32 = u32::MAX;
/// More than one lane.
const SEVERAL: u32 = u32::MAX - 1;

#[derive(Clone, Copy, PartialEq, Eq)]
struct Value {
    holds: Moved,
    chunk: u32,
    length: u32,
}

const SPOILT: Value = Value { holds: Moved::UNDEFINED, chunk: 0, length: u32::MAX };

/// Own memory: its value, and the lanes that touch it.
#[derive(Clone, Copy)]
struct Cell {
    value: Value,
    writer: u32,
    reader: u32,
    /// For outputs: the lane that reads the input that is the same memory in place.
    input_reader: u32,
}

const FRESH: Cell = Cell { value: SPOILT, writer: NO_LANE, reader: NO_LANE, input_reader: NO_LANE };

/// Records `lane`, and returns whether it is the only lane.
fn alone(who: &mut u32, lane: u32) -> bool {
    if *who == NO_LANE {
        *who = lane;
    }
    *who == lane
}

/// All mailboxes between ranks of the same distance.
struct Mailbox {
    /// The distance from the writer to the owner.
    way: u32,
    channel: Channel,
    per_iteration: u32,
    /// Whether the tables list it as owner's and as writer's, with its counters: ready and credit, raised and
    /// awaited.
    regions: [bool; 2],
    counters: [[bool; 2]; 2],
    writer: u32,
    reader: u32,
    /// For each use whether it was put and whether it was read.
    put: Vec<bool>,
    read: Vec<bool>,
    /// How many uses from the first on were put and read.
    put_all: u32,
    read_all: u32,
    /// The last uses' values.
    slots: VecDeque<(u32, Value)>,
    /// Ready and credit: the sum of the signals, and the highest sum that was waited for.
    raised: [u32; 2],
    awaited: [i64; 2],
}

/// The memory of a region of the plan.
#[derive(Clone, Copy)]
enum Seat {
    Input,
    Output,
    Scratch,
    Fills(u32),
    Empties(u32),
    Foreign,
}

pub(super) struct Lockstep<'a> {
    plan: &'a Plan,
    moves: &'a Moves<'a>,
    shapes: &'a mut Shapes,
    lower_first: bool,
    seats: Vec<Seat>,
    /// For each counter: its mailbox, ready (0) or credit (1), whether this rank raises it.
    counters: Vec<(u32, usize, bool)>,
    mailboxes: Vec<Mailbox>,
    inputs: Vec<Value>,
    outputs: Vec<Cell>,
    scratch: Vec<Cell>,
    /// The first fault of the in-place form.
    in_place: Option<Refusal>,
}

type Why = &'static str;

impl<'a> Lockstep<'a> {
    pub(super) fn new(
        plan: &'a Plan,
        moves: &'a Moves<'a>,
        shapes: &'a mut Shapes,
        lower_first: bool,
    ) -> Result<Self, Refusal> {
        let (collective, partition, ranks, rank) = (plan.collective, plan.partition, plan.ranks, plan.rank);
        if !plan.sliced || plan.slots == 0 || plan.slots > i32::MAX as u32 {
            return Err(Refusal::Mismatch { rank, what: "the slots, or whether it is a loop over slices" });
        }
        if plan.scratch as usize > plan.operands.len() {
            let why = "more scratch places than operands";
            return Err(Refusal::Malformed { rank, index: 0, why });
        }
        let input = |chunk: u32| {
            let piece = lengths::of(collective, partition, rank, Place::Input(Chunk(chunk)));
            let length = piece.map_or(0, |piece| lengths::class(collective, partition, piece));
            Value { holds: shapes.input(rank.0), chunk, length }
        };
        let inputs = (0..partition.input_chunks(collective, ranks)).map(input).collect();
        let mut made = Lockstep {
            plan,
            moves,
            inputs,
            shapes,
            lower_first,
            seats: Vec::with_capacity(plan.regions.len()),
            counters: Vec::with_capacity(plan.counters.len()),
            mailboxes: Vec::new(),
            outputs: vec![FRESH; partition.output_chunks(collective, ranks) as usize],
            scratch: vec![FRESH; plan.scratch as usize],
            in_place: None,
        };
        made.tables()?;
        Ok(made)
    }

    /// Finds the mailboxes, and the regions and counters that name them.
    fn tables(&mut self) -> Result<(), Refusal> {
        let (plan, me) = (self.plan, self.plan.rank);
        let mut numbers: Numbers<(u32, Channel)> = Numbers::default();
        for (index, used) in plan.regions.iter().enumerate() {
            let bad = |why| Refusal::Malformed { rank: me, index: index as u32, why };
            let seat = match used.region {
                Region::Input(rank) if rank == me => Seat::Input,
                Region::Output(rank) if rank == me => Seat::Output,
                Region::Scratch => Seat::Scratch,
                Region::Mailbox { owner, writer, channel }
                    if (owner == me) != (writer == me) && owner.0.max(writer.0) < plan.ranks =>
                {
                    if used.slots_per_iteration as usize > plan.steps.len() {
                        return Err(bad("more slots per iteration than steps"));
                    }
                    let way = self.moves.group.minus(owner.0, writer.0);
                    let number = *numbers.entry((way, channel)).or_insert(self.mailboxes.len() as u32);
                    if number as usize == self.mailboxes.len() {
                        self.mailboxes.push(Mailbox::new(way, channel, used.slots_per_iteration));
                    }
                    let mailbox = &mut self.mailboxes[number as usize];
                    if mailbox.per_iteration != used.slots_per_iteration {
                        return Err(bad("owner and writer disagree about a mailbox's slots per iteration"));
                    }
                    if std::mem::replace(&mut mailbox.regions[usize::from(writer == me)], true) {
                        return Err(bad("a region is listed twice"));
                    }
                    if writer == me { Seat::Fills(number) } else { Seat::Empties(number) }
                }
                _ => Seat::Foreign,
            };
            self.seats.push(seat);
        }
        for used in &plan.counters {
            let id = used.id;
            let bad = |why| Refusal::BadCounter { rank: me, id, why };
            let (from, to, role) = match id.role {
                CounterRole::Ready => (id.writer, id.owner, 0),
                CounterRole::Credit => (id.owner, id.writer, 1),
                CounterRole::Flag(_) => return Err(bad("it is no mailbox's")),
            };
            if (from == me) == (to == me) || from.0.max(to.0) >= plan.ranks {
                return Err(bad("it is its owner's and its writer's"));
            }
            let way = self.moves.group.minus(to.0, from.0);
            let &number = numbers.get(&(way, id.channel)).ok_or(bad("there is no such mailbox"))?;
            let mailbox = &mut self.mailboxes[number as usize];
            if used.per_iteration != mailbox.per_iteration {
                return Err(bad("it does not count the slots of its mailbox"));
            }
            let raises = id.writer == me;
            if std::mem::replace(&mut mailbox.counters[role][usize::from(raises)], true) {
                return Err(bad("it is listed twice"));
            }
            self.counters.push((number, role, raises));
        }
        for mailbox in &self.mailboxes {
            if mailbox.regions != [true; 2] || mailbox.counters != [[true; 2]; 2] {
                let mailbox = self.slot(mailbox, 0);
                return Err(Refusal::BadMailbox { rank: me, mailbox, why: "not all who use it list it" });
            }
        }
        Ok(())
    }

    /// The mailbox that this rank fills.
    fn slot(&self, mailbox: &Mailbox, slot: u32) -> Memory {
        let me = self.plan.rank;
        let owner = Rank(self.moves.group.plus(me.0, mailbox.way));
        Memory::Slot { owner, writer: me, channel: mailbox.channel, slot: slot % self.plan.slots }
    }

    /// Runs to the end and returns what each output chunk holds.
    pub(super) fn finish(mut self) -> Result<Vec<Moved>, Refusal> {
        let (plan, rank) = (self.plan, self.plan.rank);
        let mut next: Vec<u32> = plan.lanes.iter().map(|lane| lane.start).collect();
        let mut expected = 0;
        for (index, lane) in plan.lanes.iter().enumerate() {
            if lane.start != expected || lane.end < lane.start || lane.end as usize > plan.steps.len() {
                let why = "lanes follow each other without gap or overlap";
                return Err(Refusal::Malformed { rank, index: index as u32, why });
            }
            expected = lane.end;
        }
        if plan.lanes.is_empty() || expected as usize != plan.steps.len() {
            return Err(Refusal::Malformed { rank, index: 0, why: "steps belong to lanes" });
        }
        loop {
            let before = next.clone();
            let mut waiting = Vec::new();
            for (lane, range) in plan.lanes.iter().enumerate() {
                while next[lane] < range.end {
                    let at = At { rank, lane: lane as u32, step: next[lane] };
                    if let Some(awaits) = self.step(at, range.engine)? {
                        waiting.push(Waiting { at, awaits });
                        break;
                    }
                    next[lane] += 1;
                }
            }
            if waiting.is_empty() {
                break;
            }
            if next == before {
                return Err(Refusal::Stuck { waiting });
            }
        }
        for mailbox in &self.mailboxes {
            let all = mailbox.per_iteration;
            if (mailbox.put_all, mailbox.read_all, mailbox.raised) != (all, all, [all; 2]) {
                let slot = mailbox.put_all.min(mailbox.read_all);
                let why = "not every slot of an iteration is filled, emptied and given back";
                return Err(Refusal::BadMailbox { rank, mailbox: self.slot(mailbox, slot), why });
            }
        }
        self.check_outputs()?;
        match self.in_place {
            Some(refusal) => Err(refusal),
            None => Ok(self.outputs.iter().map(|cell| cell.value.holds).collect()),
        }
    }

    /// Does one step, or returns what it waits for.
    fn step(&mut self, at: At, engine: Engine) -> Result<Option<Awaited>, Refusal> {
        let plan = self.plan;
        let step = &plan.steps[at.step as usize];
        let bad = |why| Refusal::BadStep { at, why };
        if !may(engine, step.action) {
            return Err(bad("the lane's engine cannot do it"));
        }
        if matches!(step.action, Action::Signal | Action::Wait) {
            let signals = step.action == Action::Signal;
            let bare = (step.flags, step.targets, step.sources, step.raw) == (0, 0, 0, 0);
            if !bare || step.extent != Extent::NONE {
                return Err(bad("signals and waits have neither operands nor flags nor extent"));
            }
            if i64::from(step.value).abs() > CHANGE_MAX {
                return Err(bad("the value is out of range"));
            }
            let used = plan.counters.get(step.counter as usize).ok_or(bad("there is no such counter"))?;
            let (number, role, raises) = self.counters[step.counter as usize];
            if raises != signals {
                return Err(bad("a counter is raised by its writer and awaited by its owner"));
            }
            let mailbox = &mut self.mailboxes[number as usize];
            if signals {
                return mailbox.signal(role, step.value, at.lane).map(|()| None).map_err(bad);
            }
            let (needed, reached) = (i64::from(step.value), i64::from(mailbox.raised[role]));
            if reached < needed {
                return Ok(Some(Awaited::Counter { id: used.id, needed, reached }));
            }
            let who = if role == 0 { &mut mailbox.reader } else { &mut mailbox.writer };
            if !alone(who, at.lane) {
                return Err(bad("two lanes wait for it"));
            }
            mailbox.awaited[role] = mailbox.awaited[role].max(needed);
            return Ok(None);
        }
        self.work(at, engine, step)?;
        Ok(None)
    }

    /// Copy, reduce, put.
    fn work(&mut self, at: At, engine: Engine, step: &Step) -> Result<(), Refusal> {
        let plan = self.plan;
        let bad = |why| Refusal::BadStep { at, why };
        let counts = match step.action {
            Action::Copy => step.targets >= 1 && step.sources == 1,
            Action::Reduce => step.targets >= 1 && (1..=32).contains(&step.sources),
            Action::Put => step.targets == 1 && step.sources == 1,
            _ => false,
        };
        if !counts || !super::program::operands_exist(plan, step) {
            return Err(bad("it has too few or too many operands"));
        }
        let arithmetic = step.raw != 0 || step.flags != 0;
        if step.flags & !Step::FINISH != 0 || (arithmetic && !plan.collective.reduces()) {
            return Err(bad("it has a flag that is not for this"));
        }
        if step.counter != 0 || step.value != 0 || u64::from(step.raw) >> step.sources != 0 {
            return Err(bad("it has a counter, or a raw bit for no source"));
        }
        if arithmetic && engine != Engine::Processor {
            return Err(bad("the lane's engine cannot compute"));
        }
        let count = lengths::count(plan.collective, plan.partition, plan.ranks);
        let piece = step.extent.as_chunk().filter(|piece| piece.0 < count);
        let piece = piece.ok_or(bad("there is no piece as long as its extent"))?;
        let length = lengths::class(plan.collective, plan.partition, piece);
        let mut result: Option<(Value, u32)> = None;
        for (index, operand) in plan.sources(step).iter().enumerate() {
            let (mut value, from) = self.load(at, operand, length)?;
            if step.raw >> index & 1 == 1 {
                value.holds = self.shapes.scaled(value.holds);
            }
            result = Some(match result {
                None => (value, from),
                Some((before, other)) => (self.fold(before, value, from.max(other)), from.max(other)),
            });
        }
        let (mut value, _) = result.ok_or(bad("it has no source"))?;
        if step.has(Step::FINISH) {
            value.holds = self.shapes.finished(value.holds);
        }
        let value = Value { length, ..value };
        plan.targets(step).iter().try_for_each(|operand| self.store(at, step, operand, value))
    }

    /// The fold of two values in the order of the sources; `between` is the distance between the ranks that meet, or
    /// 0.
    fn fold(&mut self, left: Value, right: Value, between: u32) -> Value {
        if left.chunk != right.chunk {
            return SPOILT;
        }
        let holds = match self.lower_first {
            true => self.shapes.fold_lower_first(left.holds, right.holds, between),
            false => self.shapes.fold(left.holds, right.holds),
        };
        Value { holds, ..left }
    }

    /// The value of a source, and the distance that it travelled (0 for own memory).
    fn load(&mut self, at: At, operand: &Operand, length: u32) -> Result<(Value, u32), Refusal> {
        let bad = |why| Refusal::BadStep { at, why };
        let seat = self.seats.get(usize::from(operand.region)).ok_or(bad("there is no such region"))?;
        let (value, way) = match (*seat, operand.position) {
            (Seat::Input, Position::Chunk(chunk)) => {
                let value = *self.inputs.get(chunk.index()).ok_or(bad("the buffer has no such chunk"))?;
                self.read_in_place(at, chunk, value);
                (value, 0)
            }
            (Seat::Output, Position::Chunk(Chunk(index))) | (Seat::Scratch, Position::Scratch(index)) => {
                let is_output = matches!(seat, Seat::Output);
                let cells = if is_output { &mut self.outputs } else { &mut self.scratch };
                let cell = cells.get_mut(index as usize).ok_or(bad("the buffer has no such place"))?;
                let same = cell.writer == NO_LANE || cell.writer == at.lane;
                cell.reader = if alone(&mut cell.reader, at.lane) { at.lane } else { SEVERAL };
                let value = cell.value;
                if !same {
                    return Err(self.race(at, is_output, index));
                }
                (value, 0)
            }
            (Seat::Empties(number), Position::Slot(slot)) => {
                let mailbox = &mut self.mailboxes[number as usize];
                let value = mailbox.take(slot, at.lane).map_err(bad)?;
                let way = mailbox.way;
                (self.moved(value, self.moves.group.minus(0, way)), way)
            }
            _ => return Err(bad("the plans of symmetric schedules use own memory and mailboxes only")),
        };
        Ok((if value.length == length { value } else { SPOILT }, way))
    }

    fn moved(&self, value: Value, by: u32) -> Value {
        if value.length == SPOILT.length {
            return value;
        }
        // The name of an input's chunk at the rank from which it came.
        let chunk = self.moves.chunk(value.chunk, false, by);
        Value {
            holds: self.shapes.moved(value.holds, by),
            chunk,
            length: self.moves.length(value.length, by),
        }
    }

    fn store(&mut self, at: At, step: &Step, operand: &Operand, value: Value) -> Result<(), Refusal> {
        let bad = |why| Refusal::BadStep { at, why };
        let seat = self.seats.get(usize::from(operand.region)).ok_or(bad("there is no such region"))?;
        if (step.action == Action::Put) != matches!(seat, Seat::Fills(_)) && step.action == Action::Put {
            return Err(bad("a put goes to a peer"));
        }
        match (*seat, operand.position) {
            (Seat::Output, Position::Chunk(Chunk(index))) | (Seat::Scratch, Position::Scratch(index)) => {
                let is_output = matches!(seat, Seat::Output);
                if is_output && self.length_of_output(index) != Some(value.length) {
                    return Err(bad("the extent is not as long as the chunk"));
                }
                let cells = if is_output { &mut self.outputs } else { &mut self.scratch };
                let cell = cells.get_mut(index as usize).ok_or(bad("the buffer has no such place"))?;
                let same = alone(&mut cell.writer, at.lane) && [NO_LANE, at.lane].contains(&cell.reader);
                let same_in_place = [NO_LANE, at.lane].contains(&cell.input_reader);
                cell.value = value;
                if !same {
                    return Err(self.race(at, is_output, index));
                }
                if !same_in_place {
                    self.fault_in_place(at, index);
                }
                Ok(())
            }
            (Seat::Fills(number), Position::Slot(slot)) => {
                let slots = self.plan.slots;
                self.mailboxes[number as usize].fill(slot, slots, at.lane, value).map_err(bad)
            }
            _ => Err(bad("the plans of symmetric schedules use own memory and mailboxes only")),
        }
    }

    fn length_of_output(&self, chunk: u32) -> Option<u32> {
        let Plan { collective, partition, rank, .. } = *self.plan;
        let piece = lengths::of(collective, partition, rank, Place::Output(Chunk(chunk)))?;
        Some(lengths::class(collective, partition, piece))
    }

    /// In place, an input is read while the output that is the same memory holds nothing else, by the lane that
    /// writes it.
    fn read_in_place(&mut self, at: At, chunk: Chunk, value: Value) {
        let Plan { collective, partition, rank, .. } = *self.plan;
        let Some(output) = output_of_input(collective, partition, rank, chunk) else { return };
        let Some(cell) = self.outputs.get_mut(output.index()) else { return };
        cell.input_reader = if alone(&mut cell.input_reader, at.lane) { at.lane } else { SEVERAL };
        let untouched = cell.writer == NO_LANE || (cell.writer == at.lane && cell.value == value);
        if !untouched {
            self.fault_in_place(at, output.0);
        }
    }

    fn fault_in_place(&mut self, at: At, output: u32) {
        let (first, second) = (Actor::Caller(at.rank), Actor::Step(at));
        let memory = Memory::Output(at.rank, output);
        self.in_place.get_or_insert(Refusal::Race { first, second, memory, in_place: true });
    }

    fn race(&self, at: At, is_output: bool, index: u32) -> Refusal {
        let memory = if is_output { Memory::Output(at.rank, index) } else { Memory::Scratch(at.rank, index) };
        // The other access may be any step of another lane; the refusal names the caller instead.
        Refusal::Race { first: Actor::Caller(at.rank), second: Actor::Step(at), memory, in_place: false }
    }

    fn check_outputs(&mut self) -> Result<(), Refusal> {
        let Plan { collective, partition, rank, .. } = *self.plan;
        let generators: Vec<u32> = self.moves.group.generators().collect();
        for index in 0..self.outputs.len() as u32 {
            let value = self.outputs[index as usize].value;
            let wrong = |why: Why| Refusal::WrongOutput {
                output: Memory::Output(rank, index),
                holds: "the fold of its ranks in lock step".into(),
                why,
                in_place: false,
            };
            let (source, chunk) = expected(collective, partition.parts, rank.0, index);
            if value.length == SPOILT.length {
                return Err(wrong("it was never written"));
            }
            if value.chunk != chunk {
                return Err(wrong("it holds a contribution of another chunk"));
            }
            match source {
                Some(source) if self.shapes.as_input(value.holds) != Some(source) => {
                    return Err(wrong("it is not the chunk that belongs there"));
                }
                Some(_) => {}
                None => self.shapes.check_fold(value.holds).map_err(wrong)?,
            }
            if collective == Collective::AllReduce {
                let same = |&by: &u32| {
                    let there = self.moves.chunk(index, true, by);
                    let other = self.outputs.get(there as usize).map(|cell| cell.value.holds);
                    other == Some(self.shapes.moved(value.holds, by))
                };
                if !generators.iter().all(same) {
                    let why =
                        "another rank or iteration folds it in another order, so their bits would differ";
                    return Err(wrong(why));
                }
            }
        }
        Ok(())
    }
}

impl Mailbox {
    fn new(way: u32, channel: Channel, per_iteration: u32) -> Self {
        Mailbox {
            way,
            channel,
            per_iteration,
            regions: [false; 2],
            counters: [[false; 2]; 2],
            writer: NO_LANE,
            reader: NO_LANE,
            put: vec![false; per_iteration as usize],
            read: vec![false; per_iteration as usize],
            put_all: 0,
            read_all: 0,
            slots: VecDeque::new(),
            raised: [0; 2],
            awaited: [i64::MIN; 2],
        }
    }

    fn fill(&mut self, slot: u32, slots: u32, lane: u32, value: Value) -> Result<(), Why> {
        if slot >= self.per_iteration || std::mem::replace(&mut self.put[slot as usize], true) {
            return Err("the slot is not one of this iteration, or filled twice");
        }
        if !alone(&mut self.writer, lane) {
            return Err("two lanes fill a mailbox");
        }
        if self.awaited[1] < i64::from(slot) + 1 - i64::from(slots) {
            return Err("nothing says that the slot is empty");
        }
        while self.put.get(self.put_all as usize) == Some(&true) {
            self.put_all += 1;
        }
        self.slots.push_back((slot, value));
        if self.slots.len() > slots as usize {
            self.slots.pop_front();
        }
        Ok(())
    }

    fn take(&mut self, slot: u32, lane: u32) -> Result<Value, Why> {
        if !alone(&mut self.reader, lane) {
            return Err("two lanes empty a mailbox");
        }
        if self.awaited[0] < i64::from(slot) + 1 {
            return Err("nothing says that the slot is filled");
        }
        let found = self.slots.iter().rev().find(|(number, _)| *number == slot);
        let (_, value) = found.ok_or("the slot is not filled, or again already")?;
        let value = *value;
        self.read[slot as usize] = true;
        while self.read.get(self.read_all as usize) == Some(&true) {
            self.read_all += 1;
        }
        Ok(value)
    }

    fn signal(&mut self, role: usize, value: i32, lane: u32) -> Result<(), Why> {
        let value =
            u32::try_from(value).ok().filter(|&value| value > 0).ok_or("the value is out of range")?;
        let done = [self.put_all, self.read_all][role];
        let sum = self.raised[role].checked_add(value).filter(|&sum| sum <= done);
        self.raised[role] = sum.ok_or(
            ["it promises slots that are not filled", "it gives a slot back that is not emptied"][role],
        )?;
        let who = if role == 0 { &mut self.writer } else { &mut self.reader };
        if alone(who, lane) { Ok(()) } else { Err("two lanes raise it") }
    }
}
