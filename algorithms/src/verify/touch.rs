//! The effect of single steps and callers on memory in the symbolic run.
//!
//! Invariant: every access is checked against the accesses before it, out of place and, where input and output
//! are the same memory in place, in the in-place form as well. A fault of the in-place form alone does not end
//! a run that knows all orders, because a fault of the other form is reported first. Absent: waits and signals, which do not depend
//! on memory.

use super::expression::UNDEFINED;
use super::memory::{Both, Value};
use super::order::{Cause, Clocks, Epoch};
use super::program::{CellRef, NO_MAILBOX, Op, Program};
use super::refusal::{Actor, Awaited, Refusal};
use super::run::{Run, enqueue, wake};
use crate::Rank;

/// No cell.
const NOWHERE: u32 = u32::MAX;

/// The memory that is both input and output in the in-place form.
pub(super) struct InPlace {
    /// For each cell of a caller in iteration 0: its shared cell, or [`NOWHERE`].
    shared: Vec<u32>,
    /// For each shared cell: the output's cell in iteration 0.
    outputs: Vec<u32>,
    /// Cell of the first shared one in iteration 0.
    base: u32,
    /// The first fault of the in-place form.
    pub(super) refusal: Option<Refusal>,
}

impl InPlace {
    pub(super) fn new(program: &Program) -> Self {
        let base = program.cell_count;
        let mut made = InPlace { shared: Vec::new(), outputs: Vec::new(), base, refusal: None };
        if !program.has_in_place_form() {
            return made;
        }
        made.shared = vec![NOWHERE; program.user_stride() as usize];
        for rank in 0..program.ranks {
            for chunk in 0..program.input_chunks {
                if let Some(output) = program.alias(rank, chunk) {
                    let (input, output) =
                        (program.input_cell(rank, chunk), program.output_cell(rank, output));
                    made.shared[input as usize] = made.outputs.len() as u32;
                    made.shared[output as usize] = made.outputs.len() as u32;
                    made.outputs.push(output);
                }
            }
        }
        made
    }

    /// Cells of all iterations.
    pub(super) fn cell_count(&self, program: &Program) -> u32 {
        self.outputs.len() as u32 * program.iterations()
    }

    /// The shared cell of a caller's cell of iteration 0, in another iteration.
    fn cell(&self, of: u32, iteration: u32) -> Option<u32> {
        let &shared = self.shared.get(of as usize).filter(|&&shared| shared != NOWHERE)?;
        Some(self.base + shared + iteration * self.outputs.len() as u32)
    }

    /// The cell that refusals name instead of a shared one.
    fn named(&self, program: &Program, cell: u32) -> u32 {
        let shared = self.outputs.len() as u32;
        let (iteration, index) = ((cell - self.base) / shared, (cell - self.base) % shared);
        self.outputs[index as usize] + iteration * program.user_stride()
    }
}

/// The cell of an operand, and its other cell in place where that differs.
#[derive(Clone, Copy)]
struct Where {
    apart: u32,
    in_place: Option<u32>,
}

impl<C: Clocks> Run<'_, C> {
    fn resolve(&self, cell: CellRef, round: u32) -> Where {
        if cell.mailbox != NO_MAILBOX {
            let slot = self.use_of(cell, round) % self.program.slots;
            return Where { apart: cell.base + slot, in_place: None };
        }
        if cell.stride == 0 {
            return Where { apart: cell.base, in_place: None };
        }
        let iteration = if self.program.sliced { round } else { 0 };
        let in_place = self.in_place.cell(cell.base, iteration);
        Where { apart: cell.base + cell.stride * iteration, in_place }
    }

    /// The number of earlier uses of the mailbox.
    fn use_of(&self, cell: CellRef, round: u32) -> u32 {
        round * self.program.mailboxes[cell.mailbox as usize].per_iteration + cell.slot
    }

    fn source_cells(&self, op: &Op) -> std::ops::Range<usize> {
        let sources = &self.program.sources[op.sources.start as usize..op.sources.end as usize];
        match (sources.first(), sources.last()) {
            (Some(first), Some(last)) => first.cells.start as usize..last.cells.end as usize,
            _ => 0..0,
        }
    }

    pub(super) fn packets_are_there(&mut self, lane: u32, op: &Op) -> bool {
        let round = self.lanes[lane as usize].round;
        for index in self.source_cells(op) {
            let cell = self.program.cells[index];
            if cell.mailbox == NO_MAILBOX {
                continue;
            }
            let at = self.resolve(cell, round).apart as usize;
            let there = self.cells[at].packet.is_some_and(|(number, _)| number >= self.use_of(cell, round));
            if !there {
                let memory = self.program.memory(at as u32);
                self.lanes[lane as usize].awaits = Some(Awaited::Packet(memory));
                enqueue(&mut self.mailboxes[cell.mailbox as usize].waiting, &mut self.lanes, lane);
                return false;
            }
        }
        true
    }

    /// Copy, reduce, put, get.
    pub(super) fn work(&mut self, lane: u32, op: &Op) -> Result<(), Refusal> {
        let program = self.program;
        let round = self.lanes[lane as usize].round;
        let cause = Cause { by: lane, op: self.lanes[lane as usize].op };
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
        let mut result: Option<Both> = None;
        for source in &program.sources[op.sources.start as usize..op.sources.end as usize] {
            let mut folded: Option<Both> = None;
            for index in source.cells.clone() {
                let member = self.load(lane, op, program.cells[index as usize], round, epoch)?;
                folded = Some(self.fold(folded, member));
            }
            let mut value = folded.unwrap_or(Both::UNDEFINED);
            if source.cells.len() > 1 {
                let step = u64::from(lane) << 32 | u64::from(op.step);
                value = value.map(|of| self.expressions.unordered(of, step));
            }
            if source.raw {
                value = value.map(|of| self.expressions.scaled(of));
            }
            result = Some(self.fold(result, value));
        }
        let mut holds = result.unwrap_or(Both::UNDEFINED);
        if op.finish {
            holds = holds.map(|of| self.expressions.finished(of));
        }
        let value = Value { holds, round, length: op.length };
        for index in op.targets.clone() {
            self.store(lane, op, program.cells[index as usize], value, epoch)?;
        }
        if op.counted {
            let snapshot = self.clocks.release(lane)?;
            let counter = &mut self.counters[op.counter as usize];
            counter.total += op.value;
            counter.arrivals.push((op.value, epoch.lane, snapshot));
            wake(&mut counter.waiting, &mut self.lanes, &mut self.runnable);
        }
        // The lane's next events are not part of the snapshot that it has just released.
        if op.packet || op.counted {
            self.clocks.tick(lane);
        }
        Ok(())
    }

    fn fold(&mut self, before: Option<Both>, next: Both) -> Both {
        match before {
            None => next,
            Some(before) => before.join(next, |left, right| self.expressions.fold(left, right)),
        }
    }

    fn load(&mut self, lane: u32, op: &Op, from: CellRef, round: u32, epoch: Epoch) -> Result<Both, Refusal> {
        let Where { apart: at, in_place } = self.resolve(from, round);
        if op.packet
            && from.mailbox != NO_MAILBOX
            && let Some((number, snapshot)) = self.cells[at as usize].packet
        {
            if number != self.use_of(from, round) {
                // The awaited packet is gone.
                let memory = self.program.memory(at);
                return Err(Refusal::Overwritten { at: self.program.at(lane, op), memory });
            }
            self.clocks.join(lane, snapshot);
        }
        let cell = &mut self.cells[at as usize];
        // A packet's bytes and flags are interleaved: read as plain bytes they are no value.
        let plain = op.packet || cell.packet.is_none();
        let fits = |value: Value| plain && value.round == round && value.length == op.length;
        let value =
            cell.load(&self.clocks, lane, epoch).map_err(|first| self.race(first, epoch.cause, at))?;
        let mut holds = if fits(value) { value.holds } else { Both::UNDEFINED };
        if let Some(shared) = in_place {
            match self.cells[shared as usize].load(&self.clocks, lane, epoch) {
                Ok(value) => holds.in_place = if fits(value) { value.holds.in_place } else { UNDEFINED },
                Err(first) => self.race_in_place(first, epoch.cause, shared),
            }
        }
        Ok(holds)
    }

    fn store(&mut self, lane: u32, op: &Op, to: CellRef, value: Value, epoch: Epoch) -> Result<(), Refusal> {
        let program = self.program;
        let Where { apart: at, in_place } = self.resolve(to, value.round);
        if to.mailbox == NO_MAILBOX {
            return self.store_at(lane, Where { apart: at, in_place }, value, epoch);
        }
        let number = self.use_of(to, value.round);
        let slots = program.slots;
        let mailbox = &program.mailboxes[to.mailbox as usize];
        if number < slots && mailbox.credited && !self.earlier_use_is_over(lane, to.mailbox, number) {
            return Err(Refusal::Race {
                first: Actor::EarlierOperation,
                second: self.actor(epoch.cause),
                memory: program.memory(at),
                in_place: false,
            });
        }
        let unread = self.cells[at as usize].unread;
        self.store_at(lane, Where { apart: at, in_place }, value, epoch)?;
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
            let waiting = &mut self.mailboxes[to.mailbox as usize].waiting;
            wake(waiting, &mut self.lanes, &mut self.runnable);
        }
        Ok(())
    }

    fn store_at(&mut self, lane: u32, at: Where, value: Value, epoch: Epoch) -> Result<(), Refusal> {
        let stored = self.cells[at.apart as usize].store(&self.clocks, lane, epoch, value);
        stored.map_err(|first| self.race(first, epoch.cause, at.apart))?;
        if let Some(shared) = at.in_place
            && let Err(first) = self.cells[shared as usize].store(&self.clocks, lane, epoch, value)
        {
            self.race_in_place(first, epoch.cause, shared);
        }
        Ok(())
    }

    /// Whether `lane` knows that an earlier operation has emptied the slot that is filled by this use: it saw the
    /// credit, or it knows that the owner is in this operation.
    fn earlier_use_is_over(&self, lane: u32, mailbox: u32, number: u32) -> bool {
        let needed = i64::from(number) + 1 - i64::from(self.program.slots);
        let owner = self.program.mailboxes[mailbox as usize].owner as usize;
        let credits = &self.mailboxes[mailbox as usize].credits;
        credits.iter().any(|&(other, credit)| other == lane && credit >= needed)
            || (self.rank_lanes[owner]..self.rank_lanes[owner + 1])
                .any(|other| self.clocks.knows(lane, Epoch { lane: other, clock: 1, ..Epoch::NEVER }))
    }

    /// The caller fills its input and overwrites its output, as it may whenever no operation is under way.
    pub(super) fn caller_writes(&mut self, rank: u32, round: u32) -> Result<(), Refusal> {
        let program = self.program;
        let lane = self.rank_lanes[rank as usize];
        let epoch =
            Epoch { lane, clock: self.clocks.now(lane), cause: Cause { by: rank, op: Cause::CALLER } };
        let (stride, base) = (program.user_stride(), program.user_base(rank));
        let has_input = program.collective.has_input(Rank(rank));
        let first_round = if program.sliced { 0 } else { round };
        for iteration in 0..program.iterations() {
            let round = first_round + iteration;
            for cell in base..base + program.input_chunks + program.output_chunks {
                let at =
                    Where { apart: cell + stride * iteration, in_place: self.in_place.cell(cell, iteration) };
                let spoilt = Value { holds: Both::UNDEFINED, round, length: 0 };
                self.store_at(lane, at, spoilt, epoch)?;
            }
            for chunk in 0..program.input_chunks {
                let length = if program.tables {
                    rank * program.ranks + chunk
                } else {
                    program.length_of_input(rank, chunk)
                };
                // Inputs that are alike are one value: what a schedule may take for granted.
                let origin = program.collective.origin(Rank(rank)).0;
                let expression = if has_input { self.expressions.input(origin, chunk) } else { UNDEFINED };
                let value = Value { holds: Both::same(expression), round, length };
                let cell = program.input_cell(rank, chunk);
                self.cells[(cell + stride * iteration) as usize].value = value;
                if let Some(shared) = self.in_place.cell(cell, iteration) {
                    self.cells[shared as usize].value = value;
                }
            }
        }
        Ok(())
    }

    /// The value that a caller finds in a cell of iteration 0, in another iteration.
    pub(super) fn found(&self, cell: u32, iteration: u32, round: u32) -> Both {
        let held = |at: u32| {
            let value = self.cells[at as usize].value;
            if value.round == round { value.holds } else { Both::UNDEFINED }
        };
        let apart = held(cell + self.program.user_stride() * iteration);
        let shared = self.in_place.cell(cell, iteration).map(held);
        Both { in_place: shared.unwrap_or(apart).in_place, ..apart }
    }

    fn actor(&self, Cause { by, op }: Cause) -> Actor {
        if op == Cause::CALLER {
            return Actor::Caller(Rank(by));
        }
        Actor::Step(self.program.at(by, &self.program.lanes[by as usize].ops[op as usize]))
    }

    fn race(&self, first: Cause, second: Cause, cell: u32) -> Refusal {
        Refusal::Race {
            first: self.actor(first),
            second: self.actor(second),
            memory: self.program.memory(cell),
            in_place: false,
        }
    }

    fn race_in_place(&mut self, first: Cause, second: Cause, shared: u32) {
        if self.in_place.refusal.is_none() {
            let memory = self.program.memory(self.in_place.named(self.program, shared));
            let (first, second) = (self.actor(first), self.actor(second));
            self.in_place.refusal = Some(Refusal::Race { first, second, memory, in_place: true });
        }
    }
}
