//! The symbolic run: every step once per round, in some order that the waits allow.
//!
//! One run decides, because no step chooses and counters only grow: a lane that may go on now may go on in every
//! later state. So two lanes that can both go on can do so in either order with the same result, and any two maximal
//! runs contain the same steps. If one run gets stuck, all do; if one completes, all do. (A packet's flag is not a
//! counter: the next packet replaces it. But a packet that is replaced before it was read is a race, and races are
//! refused.) The choice of the run does not matter for races either: happens-before follows from lane order and from
//! what waits prove, not from the order of this run.
//!
//! The model of the plans' surroundings: each caller writes both its buffers before its operation starts and again
//! when it has returned; an operation starts on a rank when the one before has returned there; an earlier operation
//! may not have emptied the slots of any mailbox that has a credit counter. A mailbox without one belongs to this
//! plan alone and has only seen earlier operations of it, which are run.

//!
//! Which step comes next does not depend on whether a caller works in place, so one run decides for both forms:
//! memory that is shared in place has a cell of its own, which both of its names touch ([`InPlace`]).

use std::collections::VecDeque;

use super::expression::{Expressions, Id};
use super::memory::Cell;
use super::order::{Cause, Clocks, Epoch};
use super::outputs::Ledger;
use super::program::{Op, Program};
use super::refusal::{Awaited, Refusal, Waiting};
use super::touch::InPlace;
use crate::plan::Action;

pub(super) struct Lane {
    pub(super) op: u32,
    pub(super) round: u32,
    /// Between two operations, or at the end.
    parked: bool,
    pub(super) awaits: Option<Awaited>,
    /// The next lane that waits for the same, or [`NO_LANE`].
    next_waiting: u32,
}

/// No lane.
const NO_LANE: u32 = u32::MAX;

/// Adds `lane` to the lanes that wait.
pub(super) fn enqueue(waiting: &mut u32, lanes: &mut [Lane], lane: u32) {
    lanes[lane as usize].next_waiting = std::mem::replace(waiting, lane);
}

/// Makes the lanes that wait runnable.
pub(super) fn wake(waiting: &mut u32, lanes: &mut [Lane], runnable: &mut Vec<u32>) {
    while *waiting != NO_LANE {
        runnable.push(*waiting);
        *waiting = std::mem::replace(&mut lanes[*waiting as usize].next_waiting, NO_LANE);
    }
}

/// A counter with the signals that a lane may still have to learn of.
pub(super) struct Counter<S> {
    pub(super) total: i64,
    signals: VecDeque<(i64, S)>,
    /// The value up to which the only waiting lane knows all signals.
    forgotten: i64,
    /// For counted writes: increment, component, the writer's clock.
    pub(super) arrivals: Vec<(i64, u32, S)>,
    /// Waits that rely on no further write being under way.
    pub(super) relied: Vec<Epoch>,
    /// The first lane that waits, or [`NO_LANE`]; each names the next.
    pub(super) waiting: u32,
}

#[derive(Clone)]
pub(super) struct Mailbox {
    /// Credits that a lane has seen of an earlier operation: (lane, threshold at most 0).
    pub(super) credits: Vec<(u32, i64)>,
    /// The first lane that waits, or [`NO_LANE`]; each names the next.
    pub(super) waiting: u32,
}

pub(super) struct Run<'a, C: Clocks> {
    pub(super) program: &'a Program,
    pub(super) expressions: &'a mut Expressions,
    pub(super) cells: Vec<Cell<C::Snapshot>>,
    pub(super) in_place: InPlace,
    pub(super) clocks: C,
    pub(super) next_arrival: u32,
    pub(super) lanes: Vec<Lane>,
    pub(super) counters: Vec<Counter<C::Snapshot>>,
    pub(super) mailboxes: Vec<Mailbox>,
    /// First lane of each rank, and one past the last.
    pub(super) rank_lanes: Vec<u32>,
    /// Lanes of each rank that have not finished the present operation.
    busy: Vec<u32>,
    pub(super) runnable: Vec<u32>,
    /// The content of the outputs, out of place and in place.
    pub(super) ledgers: [Ledger; 2],
}

impl<'a, C: Clocks> Run<'a, C> {
    pub(super) fn new(program: &'a Program, expressions: &'a mut Expressions) -> Result<Self, Refusal> {
        let lanes = program.lanes.len();
        let clocks = C::new(program)?;
        let mut rank_lanes = vec![0; program.ranks as usize + 1];
        for lane in &program.lanes {
            rank_lanes[lane.rank as usize + 1] += 1;
        }
        let busy = rank_lanes[1..].to_vec();
        for rank in 0..program.ranks as usize {
            rank_lanes[rank + 1] += rank_lanes[rank];
        }
        let fresh_lane = || Lane { op: 0, round: 0, parked: false, awaits: None, next_waiting: NO_LANE };
        let fresh_counter = || Counter {
            total: 0,
            signals: VecDeque::new(),
            forgotten: 0,
            arrivals: Vec::new(),
            relied: Vec::new(),
            waiting: NO_LANE,
        };
        let in_place = InPlace::new(program);
        let cell_count = program.cell_count + in_place.cell_count(program);
        let mut run = Run {
            program,
            expressions,
            cells: (0..cell_count).map(|_| Cell::new()).collect(),
            in_place,
            clocks,
            next_arrival: lanes as u32,
            lanes: (0..lanes).map(|_| fresh_lane()).collect(),
            counters: program.counters.iter().map(|_| fresh_counter()).collect(),
            mailboxes: vec![Mailbox { credits: Vec::new(), waiting: NO_LANE }; program.mailboxes.len()],
            rank_lanes,
            busy,
            runnable: (0..lanes as u32).rev().collect(),
            ledgers: [Ledger::new(program), Ledger::new(program)],
        };
        for rank in 0..program.ranks {
            run.start_operation(rank, 0)?;
        }
        Ok(run)
    }

    /// Runs to the end and returns the fold in each output chunk of each rank.
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
        if let Some(refusal) = self.in_place.refusal {
            return Err(refusal);
        }
        let [apart, _] = self.ledgers;
        Ok(apart.into_outputs())
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

    /// Does one step; returns false when it has to wait.
    fn step(&mut self, lane: u32, op: &Op) -> Result<bool, Refusal> {
        match op.action {
            Action::Wait => self.wait(lane, op),
            Action::Signal => self.signal(lane, op).map(|()| true),
            _ if op.packet && !self.packets_are_there(lane, op) => Ok(false),
            _ => {
                self.work(lane, op)?;
                // A fault in place is reported last, but who knows more decides again.
                match &self.in_place.refusal {
                    Some(refusal) if !C::IS_COMPLETE => Err(refusal.clone()),
                    _ => Ok(true),
                }
            }
        }
    }

    fn signal(&mut self, lane: u32, op: &Op) -> Result<(), Refusal> {
        let compiled = &self.program.counters[op.counter as usize];
        let counter = &mut self.counters[op.counter as usize];
        if let Some(mailbox) = self.program.mailboxes.get(compiled.mailbox as usize) {
            // Later operations, also of other plans, rely on a credit.
            let slots = i64::from(self.program.slots);
            let emptied = (counter.total..counter.total + op.value).take(slots as usize + 1).all(|number| {
                let cell = &self.cells[mailbox.base as usize + (number % slots) as usize];
                cell.is_emptied(&self.clocks, lane, u32::try_from(number).unwrap_or(u32::MAX))
            });
            if !emptied {
                let why = "it gives a slot back that is not emptied";
                return Err(Refusal::BadStep { at: self.program.at(lane, op), why });
            }
        }
        counter.total += op.value;
        if compiled.waiting_lanes > 0 {
            counter.signals.push_back((counter.total, self.clocks.release(lane)?));
            wake(&mut counter.waiting, &mut self.lanes, &mut self.runnable);
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
            enqueue(&mut counter.waiting, &mut self.lanes, lane);
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

    /// A write has certainly arrived when all others together would not reach the threshold.
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
            counter.relied.push(Epoch { lane, clock, cause: Cause { by: lane, op: 0 } });
        }
    }

    /// Ends the operation on one of a rank's lanes; the last lane ends it on the rank.
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

    /// The time between two operations on a rank: all its lanes have returned, the caller does what it likes with its
    /// buffers, and all lanes start again.
    fn start_operation(&mut self, rank: u32, round: u32) -> Result<(), Refusal> {
        let lanes = self.rank_lanes[rank as usize]..self.rank_lanes[rank as usize + 1];
        self.clocks.meet(lanes.clone());
        self.caller_writes(rank, round)?;
        lanes.for_each(|lane| self.clocks.tick(lane));
        Ok(())
    }
}
