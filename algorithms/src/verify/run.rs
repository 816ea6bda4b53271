//! The symbolic run: every step once per round, in some order that the waits allow.
//!
//! One run decides, because no step chooses and counters only grow: a lane that may go on now may go on in
//! every later state, so two lanes that can both go on can do so in either order with the same result, and
//! any two maximal runs contain the same steps. If one run gets stuck, all do; if one completes, all do.
//! (A packet's flag is not a counter: the next packet replaces it. But a packet that is replaced before it was
//! read is a race, and races are refused.) Which run was taken does not matter for races either: happens-before
//! is made of lane order and of what waits prove, not of the order of this run.
//!
//! What is modelled around the plans: each caller writes both its buffers before its operation starts and
//! again when it has returned; an operation starts on a rank when the one before has returned there; an
//! earlier operation may not have emptied the slots of any mailbox that has a credit counter. A mailbox
//! without one belongs to this plan alone and has only seen earlier operations of it, which are run.

use std::collections::VecDeque;

use super::expression::{Expressions, Id, UNDEFINED};
use super::memory::{Cell, Value};
use super::order::{Cause, Clocks, Epoch, Snapshot};
use super::program::{CellRef, NO_MAILBOX, Op, Program};
use super::refusal::{Actor, Awaited, Refusal, Waiting};
use crate::plan::Action;
use crate::{Collective, Rank};

struct Lane {
    op: u32,
    round: u32,
    /// Between two operations, or at the end.
    parked: bool,
    awaits: Option<Awaited>,
}

/// A counter with the signals that somebody may still have to learn of.
struct Counter {
    total: i64,
    signals: VecDeque<(i64, Snapshot)>,
    /// The value up to which the only waiting lane knows everything.
    forgotten: i64,
    /// For counted writes: increment, component, what the writer knew.
    arrivals: Vec<(i64, u32, Snapshot)>,
    /// Waits that rely on no further write being under way.
    relied: Vec<Epoch>,
    waiting: Vec<u32>,
}

struct Mailbox {
    /// Credits that a lane has seen of an earlier operation: (lane, threshold at most 0).
    credits: Vec<(u32, i64)>,
    waiting: Vec<u32>,
}

pub(super) struct Run<'a> {
    program: &'a Program,
    expressions: &'a mut Expressions,
    in_place: bool,
    /// Where an input chunk is in the in-place form, by its cell in iteration 0.
    moved: Vec<u32>,
    cells: Vec<Cell>,
    clocks: Clocks,
    next_arrival: u32,
    lanes: Vec<Lane>,
    counters: Vec<Counter>,
    mailboxes: Vec<Mailbox>,
    /// First lane of each rank, and one past the last.
    rank_lanes: Vec<u32>,
    /// Lanes of each rank that have not finished the present operation.
    busy: Vec<u32>,
    runnable: Vec<u32>,
    /// For each rank and output chunk: what it held the first time.
    outputs: Vec<Option<Id>>,
    /// For each output chunk: an expression already found right for an input chunk.
    proved: Vec<(Id, u32)>,
}

impl<'a> Run<'a> {
    pub(super) fn new(
        program: &'a Program,
        expressions: &'a mut Expressions,
        in_place: bool,
    ) -> Result<Self, Refusal> {
        let counted = program.lanes.iter().flat_map(|lane| &lane.ops).filter(|op| op.counted).count();
        let lanes = program.lanes.len();
        let clocks = Clocks::new(lanes, counted as u64 * u64::from(program.rounds))?;
        let mut rank_lanes = vec![0; program.ranks as usize + 1];
        for lane in &program.lanes {
            rank_lanes[lane.rank as usize + 1] += 1;
        }
        let busy = rank_lanes[1..].to_vec();
        for rank in 0..program.ranks as usize {
            rank_lanes[rank + 1] += rank_lanes[rank];
        }
        let fresh_lane = || Lane { op: 0, round: 0, parked: false, awaits: None };
        let fresh_counter = || Counter {
            total: 0,
            signals: VecDeque::new(),
            forgotten: 0,
            arrivals: Vec::new(),
            relied: Vec::new(),
            waiting: Vec::new(),
        };
        let mut moved: Vec<u32> = (0..program.user_stride()).collect();
        if in_place {
            for rank in 0..program.ranks {
                for chunk in 0..program.input_chunks {
                    if let Some(output) = program.alias(rank, chunk) {
                        moved[program.input_cell(rank, chunk) as usize] = program.output_cell(rank, output);
                    }
                }
            }
        }
        let mut run = Run {
            program,
            expressions,
            in_place,
            moved,
            cells: (0..program.cell_count).map(|_| Cell::new()).collect(),
            clocks,
            next_arrival: lanes as u32,
            lanes: (0..lanes).map(|_| fresh_lane()).collect(),
            counters: program.counters.iter().map(|_| fresh_counter()).collect(),
            mailboxes: program
                .mailboxes
                .iter()
                .map(|_| Mailbox { credits: Vec::new(), waiting: Vec::new() })
                .collect(),
            rank_lanes,
            busy,
            runnable: (0..lanes as u32).rev().collect(),
            outputs: vec![None; (program.ranks * program.output_chunks) as usize],
            proved: vec![(UNDEFINED, 0); program.output_chunks as usize],
        };
        for rank in 0..program.ranks {
            run.start_operation(rank, 0)?;
        }
        Ok(run)
    }

    /// Runs to the end and returns, for each rank and output chunk, the fold it holds.
    pub(super) fn finish(mut self) -> Result<Vec<Id>, Refusal> {
        while let Some(lane) = self.runnable.pop() {
            self.advance(lane)?;
        }
        let waiting: Vec<Waiting> = self.waiting();
        if !waiting.is_empty() {
            return Err(Refusal::Stuck { waiting });
        }
        for mailbox in &self.program.mailboxes {
            for slot in 0..self.program.slots {
                if self.cells[(mailbox.base + slot) as usize].unread {
                    return Err(Refusal::Unread { memory: self.program.slot_of(mailbox, slot) });
                }
            }
        }
        Ok(self.outputs.into_iter().map(|output| output.unwrap_or(UNDEFINED)).collect())
    }

    fn waiting(&self) -> Vec<Waiting> {
        let program = self.program;
        let stuck = |(lane, state): (usize, &Lane)| {
            let awaits = match state.awaits? {
                Awaited::Counter { id, needed, .. } => {
                    let counter =
                        program.counter_ids.get(&id).map(|&counter| &self.counters[counter as usize]);
                    Awaited::Counter { id, needed, reached: counter.map_or(0, |counter| counter.total) }
                }
                packet => packet,
            };
            let op = &program.lanes[lane].ops[state.op as usize];
            Some(Waiting { at: program.at(lane as u32, op), awaits })
        };
        self.lanes.iter().enumerate().filter_map(stuck).collect()
    }

    /// Runs a lane until it waits or its operation ends.
    fn advance(&mut self, lane: u32) -> Result<(), Refusal> {
        let program = self.program;
        let compiled = &program.lanes[lane as usize];
        loop {
            let state = &mut self.lanes[lane as usize];
            if state.parked {
                return Ok(());
            }
            let Some(op) = compiled.ops.get(state.op as usize) else {
                state.op = 0;
                state.round += 1;
                if !program.sliced || state.round == program.rounds {
                    state.parked = true;
                    return self.lane_returned(compiled.rank);
                }
                continue;
            };
            if !self.step(lane, op)? {
                return Ok(());
            }
            let state = &mut self.lanes[lane as usize];
            state.awaits = None;
            state.op += 1;
        }
    }

    /// Does one step; false when it has to wait.
    fn step(&mut self, lane: u32, op: &Op) -> Result<bool, Refusal> {
        match op.action {
            Action::Wait => self.wait(lane, op),
            Action::Signal => self.signal(lane, op).map(|()| true),
            _ if op.packet && !self.packets_are_there(lane, op) => Ok(false),
            _ => self.work(lane, op).map(|()| true),
        }
    }

    fn signal(&mut self, lane: u32, op: &Op) -> Result<(), Refusal> {
        let compiled = &self.program.counters[op.counter as usize];
        let counter = &mut self.counters[op.counter as usize];
        if let Some(mailbox) = self.program.mailboxes.get(compiled.mailbox as usize) {
            // Later operations, of other plans too, trust a credit.
            let slots = i64::from(self.program.slots);
            let emptied = (counter.total..counter.total + op.value).take(slots as usize + 1).all(|number| {
                let cell = &self.cells[mailbox.base as usize + (number % slots) as usize];
                cell.is_emptied(&self.clocks, lane, number as u64)
            });
            if !emptied {
                let why = "it gives a slot back that is not emptied";
                return Err(Refusal::BadStep { at: self.program.at(lane, op), why });
            }
        }
        counter.total += op.value;
        if compiled.waiting_lanes > 0 {
            counter.signals.push_back((counter.total, self.clocks.release(lane)?));
            self.runnable.append(&mut counter.waiting);
        }
        self.clocks.tick(lane);
        Ok(())
    }

    fn wait(&mut self, lane: u32, op: &Op) -> Result<bool, Refusal> {
        let compiled = &self.program.counters[op.counter as usize];
        let state = &mut self.lanes[lane as usize];
        let needed = i64::from(state.round) * i64::from(compiled.per_iteration) + op.value;
        let counter = &mut self.counters[op.counter as usize];
        if counter.total < needed {
            state.awaits = Some(Awaited::Counter { id: compiled.id, needed, reached: 0 });
            counter.waiting.push(lane);
            return Ok(false);
        }
        if needed <= 0 {
            if let Some(mailbox) = self.mailboxes.get_mut(compiled.mailbox as usize) {
                mailbox.credits.push((lane, needed));
            }
            return Ok(true);
        }
        if compiled.counted {
            self.learn_arrivals(lane, op.counter, needed);
            return Ok(true);
        }
        let only_waiter = compiled.waiting_lanes == 1;
        if needed > counter.forgotten
            && let Some(at) = counter.signals.iter().position(|&(total, _)| total >= needed)
        {
            self.clocks.join(lane, counter.signals[at].1);
            if only_waiter {
                counter.forgotten = counter.signals[at].0;
                counter.signals.drain(..=at).for_each(|(_, snapshot)| self.clocks.forget(snapshot));
            }
        }
        Ok(true)
    }

    /// A write has arrived for certain when all others together would not be enough.
    fn learn_arrivals(&mut self, lane: u32, index: u32, needed: i64) {
        let counter = &mut self.counters[index as usize];
        let only_waiter = self.program.counters[index as usize].waiting_lanes == 1;
        let total = counter.total;
        let clocks = &mut self.clocks;
        let mut proved = false;
        counter.arrivals.retain(|&(increment, component, snapshot)| {
            let certain = total - increment < needed;
            if certain {
                clocks.join(lane, snapshot);
                clocks.learn(lane, component);
                proved = true;
                if only_waiter {
                    clocks.forget(snapshot);
                }
            }
            !(certain && only_waiter)
        });
        if proved {
            let clock = self.clocks.now(lane);
            counter.relied.retain(|wait| wait.lane != lane);
            counter.relied.push(Epoch { lane, clock, cause: Cause::Step { lane, op: 0 } });
        }
    }

    fn resolve(&self, cell: CellRef, round: u32) -> u32 {
        if cell.mailbox != NO_MAILBOX {
            return cell.base + (self.use_of(cell, round) % u64::from(self.program.slots)) as u32;
        }
        match cell.stride {
            0 => cell.base,
            _ if !self.program.sliced => self.moved[cell.base as usize],
            stride => self.moved[cell.base as usize] + stride * round,
        }
    }

    /// How often the mailbox was used before.
    fn use_of(&self, cell: CellRef, round: u32) -> u64 {
        let per_iteration = self.program.mailboxes[cell.mailbox as usize].per_iteration;
        u64::from(round) * u64::from(per_iteration) + u64::from(cell.slot)
    }

    fn source_cells(&self, op: &Op) -> std::ops::Range<usize> {
        let sources = &self.program.sources[op.sources.start as usize..op.sources.end as usize];
        match (sources.first(), sources.last()) {
            (Some(first), Some(last)) => first.cells.start as usize..last.cells.end as usize,
            _ => 0..0,
        }
    }

    fn packets_are_there(&mut self, lane: u32, op: &Op) -> bool {
        let round = self.lanes[lane as usize].round;
        for index in self.source_cells(op) {
            let cell = self.program.cells[index];
            if cell.mailbox == NO_MAILBOX {
                continue;
            }
            let at = self.resolve(cell, round) as usize;
            let there = self.cells[at].packet.is_some_and(|(number, _)| number >= self.use_of(cell, round));
            if !there {
                let memory = self.program.memory(at as u32);
                self.lanes[lane as usize].awaits = Some(Awaited::Packet(memory));
                self.mailboxes[cell.mailbox as usize].waiting.push(lane);
                return false;
            }
        }
        true
    }

    /// Copy, reduce, put, get.
    fn work(&mut self, lane: u32, op: &Op) -> Result<(), Refusal> {
        let program = self.program;
        let round = self.lanes[lane as usize].round;
        let cause = Cause::Step { lane, op: self.lanes[lane as usize].op };
        let epoch = if op.counted {
            self.next_arrival += 1;
            Epoch { lane: self.next_arrival - 1, clock: 1, cause }
        } else {
            Epoch { lane, clock: self.clocks.now(lane), cause }
        };
        if op.counted {
            let behind = &self.counters[op.counter as usize].relied;
            if !behind.iter().all(|&wait| self.clocks.knows(lane, wait)) {
                let id = program.counters[op.counter as usize].id;
                return Err(Refusal::AmbiguousCount { at: program.at(lane, op), id });
            }
        }
        let mut result: Option<Id> = None;
        for source in &program.sources[op.sources.start as usize..op.sources.end as usize] {
            let mut folded: Option<Id> = None;
            for index in source.cells.clone() {
                let member = self.load(lane, op, program.cells[index as usize], round, epoch)?;
                folded = Some(match folded {
                    None => member,
                    Some(before) => self.expressions.fold(before, member),
                });
            }
            let mut value = folded.unwrap_or(UNDEFINED);
            if source.raw {
                value = self.expressions.scaled(value);
            }
            result = Some(match result {
                None => value,
                Some(before) => self.expressions.fold(before, value),
            });
        }
        let mut expression = result.unwrap_or(UNDEFINED);
        if op.finish {
            expression = self.expressions.finished(expression);
        }
        let value = Value { expression, round, length: op.length };
        for index in op.targets.clone() {
            self.store(lane, op, program.cells[index as usize], value, epoch)?;
        }
        if op.counted {
            let snapshot = self.clocks.release(lane)?;
            let counter = &mut self.counters[op.counter as usize];
            counter.total += op.value;
            counter.arrivals.push((op.value, epoch.lane, snapshot));
            self.runnable.append(&mut counter.waiting);
        }
        if op.packet {
            self.clocks.tick(lane);
        }
        Ok(())
    }

    fn load(&mut self, lane: u32, op: &Op, from: CellRef, round: u32, epoch: Epoch) -> Result<Id, Refusal> {
        let at = self.resolve(from, round);
        if op.packet
            && from.mailbox != NO_MAILBOX
            && let Some((number, snapshot)) = self.cells[at as usize].packet
        {
            if number != self.use_of(from, round) {
                // The one that was awaited is gone.
                let memory = self.program.memory(at);
                return Err(Refusal::Overwritten { at: self.program.at(lane, op), memory });
            }
            self.clocks.join(lane, snapshot);
        }
        let cell = &mut self.cells[at as usize];
        // A packet's bytes and flags are interleaved: read as plain bytes they are no value.
        let plain = op.packet || cell.packet.is_none();
        let value =
            cell.load(&self.clocks, lane, epoch).map_err(|first| self.race(first, epoch.cause, at))?;
        let fits = plain && value.round == round && value.length == op.length;
        Ok(if fits { value.expression } else { UNDEFINED })
    }

    fn store(&mut self, lane: u32, op: &Op, to: CellRef, value: Value, epoch: Epoch) -> Result<(), Refusal> {
        let program = self.program;
        let at = self.resolve(to, value.round);
        if to.mailbox == NO_MAILBOX {
            let stored = self.cells[at as usize].store(&self.clocks, lane, epoch, value);
            return stored.map_err(|first| self.race(first, epoch.cause, at));
        }
        let number = self.use_of(to, value.round);
        let slots = u64::from(program.slots);
        let mailbox = &program.mailboxes[to.mailbox as usize];
        if number < slots && mailbox.credited && !self.earlier_use_is_over(lane, to.mailbox, number) {
            return Err(Refusal::Race {
                first: Actor::EarlierOperation,
                second: self.actor(epoch.cause),
                memory: program.memory(at),
                in_place: self.in_place,
            });
        }
        let cell = &mut self.cells[at as usize];
        let unread = cell.unread;
        cell.store(&self.clocks, lane, epoch, value).map_err(|first| self.race(first, epoch.cause, at))?;
        if unread {
            return Err(Refusal::Overwritten { at: program.at(lane, op), memory: program.memory(at) });
        }
        let cell = &mut self.cells[at as usize];
        cell.unread = true;
        cell.number = number;
        if let Some((_, old)) = cell.packet.take() {
            self.clocks.forget(old);
        }
        if op.packet {
            cell.packet = Some((number, self.clocks.release(lane)?));
            self.runnable.append(&mut self.mailboxes[to.mailbox as usize].waiting);
        }
        Ok(())
    }

    /// Whether `lane` knows that an earlier operation has emptied the slot that is filled by this use: it saw
    /// the credit, or it knows that the owner is in this operation.
    fn earlier_use_is_over(&self, lane: u32, mailbox: u32, number: u64) -> bool {
        let needed = number as i64 + 1 - i64::from(self.program.slots);
        let owner = self.program.mailboxes[mailbox as usize].owner as usize;
        let credits = &self.mailboxes[mailbox as usize].credits;
        credits.iter().any(|&(other, credit)| other == lane && credit >= needed)
            || (self.rank_lanes[owner]..self.rank_lanes[owner + 1]).any(|other| {
                self.clocks.knows(lane, Epoch { lane: other, clock: 1, cause: Cause::Caller(0) })
            })
    }

    /// One of a rank's lanes is through with the operation; the last one ends it.
    fn lane_returned(&mut self, rank: u32) -> Result<(), Refusal> {
        self.busy[rank as usize] -= 1;
        if self.busy[rank as usize] > 0 {
            return Ok(());
        }
        let lanes = self.rank_lanes[rank as usize]..self.rank_lanes[rank as usize + 1];
        self.check_outputs(rank)?;
        let done = self.lanes[lanes.start as usize].round;
        self.start_operation(rank, done)?;
        if done < self.program.rounds {
            self.busy[rank as usize] = lanes.len() as u32;
            for lane in lanes {
                self.lanes[lane as usize].parked = false;
                self.runnable.push(lane);
            }
        }
        Ok(())
    }

    /// What lies between two operations on a rank: all its lanes have returned, the caller does what it
    /// likes with its buffers, and all lanes start again.
    fn start_operation(&mut self, rank: u32, round: u32) -> Result<(), Refusal> {
        let lanes = self.rank_lanes[rank as usize]..self.rank_lanes[rank as usize + 1];
        self.clocks.meet(lanes.clone());
        self.caller_writes(rank, round)?;
        lanes.for_each(|lane| self.clocks.tick(lane));
        Ok(())
    }

    /// The caller fills its input and spoils its output, as it may whenever no operation is under way.
    fn caller_writes(&mut self, rank: u32, round: u32) -> Result<(), Refusal> {
        let program = self.program;
        let lane = self.rank_lanes[rank as usize];
        let cause = Cause::Caller(rank);
        let epoch = Epoch { lane, clock: self.clocks.now(lane), cause };
        let (stride, base) = (program.user_stride(), program.user_base(rank));
        let has_input = program.collective.has_input(Rank(rank));
        let first_round = if program.sliced { 0 } else { round };
        for iteration in 0..program.iterations() {
            let round = first_round + iteration;
            for cell in base..base + program.input_chunks + program.output_chunks {
                let at = cell + stride * iteration;
                let spoilt = Value { expression: UNDEFINED, round, length: 0 };
                let stored = self.cells[at as usize].store(&self.clocks, lane, epoch, spoilt);
                stored.map_err(|first| self.race(first, cause, at))?;
            }
            for chunk in 0..program.input_chunks {
                let at = self.moved[program.input_cell(rank, chunk) as usize] + stride * iteration;
                let length = if program.tables {
                    rank * program.ranks + chunk
                } else {
                    chunk % program.partition.parts
                };
                let expression = if has_input { self.expressions.input(rank, chunk) } else { UNDEFINED };
                self.cells[at as usize].value = Value { expression, round, length };
            }
        }
        Ok(())
    }

    /// Every chunk of the rank's output holds what the collective says.
    fn check_outputs(&mut self, rank: u32) -> Result<(), Refusal> {
        let program = self.program;
        if !program.collective.has_output(Rank(rank)) {
            return Ok(());
        }
        let done = self.lanes[self.rank_lanes[rank as usize] as usize].round;
        let rounds = if program.sliced { 0..program.rounds } else { done - 1..done };
        for round in rounds {
            let offset = if program.sliced { program.user_stride() * round } else { 0 };
            for chunk in 0..program.output_chunks {
                let at = program.output_cell(rank, chunk) + offset;
                let value = self.cells[at as usize].value;
                let holds = if value.round == round { value.expression } else { UNDEFINED };
                self.check_output(rank, chunk, holds).map_err(|why| Refusal::WrongOutput {
                    output: program.memory(at),
                    holds: self.expressions.text(holds),
                    why,
                    in_place: self.in_place,
                })?;
            }
        }
        Ok(())
    }

    fn check_output(&mut self, rank: u32, chunk: u32, holds: Id) -> Result<(), &'static str> {
        let program = self.program;
        let (source, input) = program.expected(rank, chunk);
        match source {
            Some(source) if holds == self.expressions.input(source, input) => {}
            Some(_) if holds == UNDEFINED => return Err("it was never written"),
            Some(_) => return Err("it is not the chunk that belongs there"),
            None if holds != UNDEFINED && self.proved[chunk as usize] == (holds, input) => {}
            None => {
                self.expressions.check_fold(holds, program.ranks, input)?;
                self.proved[chunk as usize] = (holds, input);
            }
        }
        let first = if program.collective == Collective::AllReduce { 0 } else { rank };
        let expected = &mut self.outputs[(first * program.output_chunks + chunk) as usize];
        if *expected.get_or_insert(holds) != holds {
            return Err("another rank or iteration folds it in another order, so their bits would differ");
        }
        self.outputs[(rank * program.output_chunks + chunk) as usize] = Some(holds);
        Ok(())
    }

    fn actor(&self, cause: Cause) -> Actor {
        match cause {
            Cause::Caller(rank) => Actor::Caller(Rank(rank)),
            Cause::Step { lane, op } => {
                Actor::Step(self.program.at(lane, &self.program.lanes[lane as usize].ops[op as usize]))
            }
        }
    }

    fn race(&self, first: Cause, second: Cause, cell: u32) -> Refusal {
        Refusal::Race {
            first: self.actor(first),
            second: self.actor(second),
            memory: self.program.memory(cell),
            in_place: self.in_place,
        }
    }
}
