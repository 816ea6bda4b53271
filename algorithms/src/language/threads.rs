//! Programs of threads that wait for each other, run once.
//!
//! Invariant: where a run ends, every order in which the threads may run gives the same values: two accesses to a
//! cell, one of them a write, are ordered by steps of one thread, by what a step waits for, or by a message.
//! Otherwise the run is refused, as is one in which threads wait for ever or a message is never taken. Queues have no
//! limit: messages wait in rounds, not in slots of a certain number. Absent: what a file looks like.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::trace::{Cell, Fault, Shape, Trace};

/// Words of all clocks, at most: 256 MiB.
const CLOCK_WORDS_MAX: usize = 1 << 26;

/// What a step waits for before it acts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Wait {
    /// The end of a step of another thread.
    Step { thread: usize, step: usize },
    /// A message or a post, which it takes.
    Queue(usize),
    /// A value that carries its flag.
    Written(Cell),
    /// As many threads of this number.
    Barrier { number: usize, members: usize },
}

/// What a step does.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Act {
    /// A copy, or a fold of `source` with `fold` into `target`, between any two ranks.
    Move { source: Cell, target: Cell, fold: Option<Cell>, channel: u16 },
    /// Puts cells into a queue, as one message.
    Send { queue: usize, cells: Vec<Cell>, channel: u16 },
    /// Takes the cells of the message that the step has waited for, each with the cell that it is folded with.
    Receive { targets: Vec<(Cell, Option<Cell>)> },
    /// A post without values, which must be taken.
    Post(usize),
    /// A post without values, which may be left.
    Release(usize),
}

/// A step of a thread.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Step {
    /// See [`Move::origin`](super::trace::Move::origin).
    pub(super) origin: u32,
    pub(super) waits: Vec<Wait>,
    pub(super) acts: Vec<Act>,
}

type Clock = Vec<u32>;

struct Message {
    origin: u32,
    moves: Vec<usize>,
    clock: Clock,
    /// Whether it must be taken.
    due: bool,
}

/// A touch of a cell: which thread, at which of its steps.
type Touch = (usize, u32, u32);

#[derive(Default)]
struct Touches {
    write: Option<Touch>,
    reads: Vec<Touch>,
    /// What its writer knew, where the cell's value carries a flag.
    flag: Option<Clock>,
}

struct Machine<'a> {
    threads: &'a [Vec<Step>],
    trace: Trace,
    next: Vec<usize>,
    clocks: Vec<Clock>,
    queues: BTreeMap<usize, VecDeque<Message>>,
    touches: BTreeMap<Cell, Touches>,
    /// The cells whose values carry flags.
    flagged: BTreeSet<Cell>,
    /// Clocks after the steps that others wait for.
    ends: BTreeMap<(usize, usize), Option<Clock>>,
    /// Threads at a barrier, by its number, in each of its rounds.
    barriers: BTreeMap<usize, Vec<usize>>,
    /// Whether a thread may pass the barrier that it has come to.
    passed: Vec<bool>,
    words: usize,
}

/// Runs the threads.
///
/// # Errors
/// The first step that shows a fault.
pub(super) fn run(shape: Shape, threads: &[Vec<Step>]) -> Result<Trace, Fault> {
    let words = threads.len().saturating_mul(threads.len());
    if words > CLOCK_WORDS_MAX {
        return Err(Fault::of_whole(format!("{} threadblocks are more than are checked", threads.len())));
    }
    let (mut ends, mut flagged) = (BTreeMap::new(), BTreeSet::new());
    for wait in threads.iter().flatten().flat_map(|step| &step.waits) {
        match wait {
            Wait::Step { thread, step } => {
                ends.insert((*thread, *step), None);
            }
            Wait::Written(cell) => {
                flagged.insert(shape.canonical(*cell));
            }
            Wait::Queue(_) | Wait::Barrier { .. } => {}
        }
    }
    let mut machine = Machine {
        threads,
        trace: Trace::new(shape),
        next: vec![0; threads.len()],
        clocks: vec![vec![0; threads.len()]; threads.len()],
        queues: BTreeMap::new(),
        touches: BTreeMap::new(),
        flagged,
        ends,
        barriers: BTreeMap::new(),
        passed: vec![false; threads.len()],
        words,
    };
    // Waiters are asked again each turn, so that messages arrive soon after they were sent.
    loop {
        let mut moved = false;
        for thread in 0..threads.len() {
            moved |= machine.step(thread)?;
        }
        if !moved {
            break;
        }
    }
    machine.finish()
}

impl Machine<'_> {
    /// Whether the thread did anything.
    fn step(&mut self, thread: usize) -> Result<bool, Fault> {
        let Some(step) = self.threads[thread].get(self.next[thread]) else { return Ok(false) };
        let mut arrived = false;
        for wait in &step.waits {
            if !self.is_over(thread, wait, &mut arrived) {
                return Ok(arrived);
            }
        }
        let mut received = Vec::new();
        for wait in &step.waits {
            self.pass(thread, wait, &mut received);
        }
        let number = self.next[thread] as u32;
        self.clocks[thread][thread] = number + 1;
        let by = (thread, number, step.origin);
        let mut received = received.into_iter();
        for act in &step.acts {
            self.act(by, act, &mut received)?;
        }
        if self.ends.contains_key(&(thread, number as usize)) {
            self.grow(step.origin)?;
            self.ends.insert((thread, number as usize), Some(self.clocks[thread].clone()));
        }
        self.next[thread] += 1;
        self.passed[thread] = false;
        Ok(true)
    }

    /// Room for one more clock.
    fn grow(&mut self, origin: u32) -> Result<(), Fault> {
        self.words += self.threads.len();
        if self.words > CLOCK_WORDS_MAX {
            return Err(Fault::at(origin, "is one of more steps than are checked for their order"));
        }
        Ok(())
    }

    fn is_over(&mut self, thread: usize, wait: &Wait, arrived: &mut bool) -> bool {
        match wait {
            Wait::Step { thread, step } => self.next[*thread] > *step,
            Wait::Queue(queue) => self.queues.get(queue).is_some_and(|queue| !queue.is_empty()),
            Wait::Written(cell) => {
                let cell = self.trace.shape.canonical(*cell);
                self.touches.get(&cell).is_some_and(|touches| touches.write.is_some())
            }
            Wait::Barrier { number, members } => {
                if self.passed[thread] {
                    return true;
                }
                let here = self.barriers.entry(*number).or_default();
                if !here.contains(&thread) {
                    here.push(thread);
                    *arrived = true;
                }
                if here.len() < *members {
                    return false;
                }
                let here = std::mem::take(here);
                let mut all: Clock = vec![0; self.threads.len()];
                here.iter().for_each(|member| join(&mut all, &self.clocks[*member]));
                for member in here {
                    join(&mut self.clocks[member], &all);
                    self.passed[member] = true;
                }
                true
            }
        }
    }

    fn pass(&mut self, thread: usize, wait: &Wait, received: &mut Vec<usize>) {
        match wait {
            Wait::Step { thread: other, step } => {
                if let Some(Some(clock)) = self.ends.get(&(*other, *step)) {
                    join(&mut self.clocks[thread], clock);
                }
            }
            Wait::Queue(queue) => {
                if let Some(message) = self.queues.get_mut(queue).and_then(VecDeque::pop_front) {
                    self.words -= self.threads.len();
                    join(&mut self.clocks[thread], &message.clock);
                    received.extend(message.moves);
                }
            }
            Wait::Written(cell) => {
                let cell = self.trace.shape.canonical(*cell);
                if let Some(clock) = self.touches.get(&cell).and_then(|touches| touches.flag.as_ref()) {
                    join(&mut self.clocks[thread], clock);
                }
            }
            Wait::Barrier { .. } => {}
        }
    }

    fn act(&mut self, by: Touch, act: &Act, received: &mut impl Iterator<Item = usize>) -> Result<(), Fault> {
        let origin = by.2;
        match act {
            Act::Move { source, target, fold, channel } => {
                self.reads(by, *source)?;
                fold.iter().try_for_each(|fold| self.reads(by, *fold))?;
                self.writes(by, *target)?;
                self.trace.at_once(origin, *channel, *source, *target, *fold);
            }
            Act::Send { queue, cells, channel } => {
                let mut moves = Vec::with_capacity(cells.len());
                for cell in cells {
                    self.reads(by, *cell)?;
                    moves.push(self.trace.depart(origin, *channel, *cell));
                }
                self.post(by, *queue, moves, true)?;
            }
            Act::Receive { targets } => {
                for (target, fold) in targets {
                    let Some(index) = received.next() else {
                        return Err(Fault::at(
                            origin,
                            "takes more chunks than the message has that it waits for",
                        ));
                    };
                    fold.iter().try_for_each(|fold| self.reads(by, *fold))?;
                    self.writes(by, *target)?;
                    self.trace.arrive(index, origin, *target, *fold);
                }
                if received.next().is_some() {
                    return Err(Fault::at(
                        origin,
                        "takes fewer chunks than the message has that it waits for",
                    ));
                }
            }
            Act::Post(queue) => self.post(by, *queue, Vec::new(), true)?,
            Act::Release(queue) => self.post(by, *queue, Vec::new(), false)?,
        }
        Ok(())
    }

    fn post(&mut self, by: Touch, queue: usize, moves: Vec<usize>, due: bool) -> Result<(), Fault> {
        let (thread, _, origin) = by;
        self.grow(origin)?;
        let clock = self.clocks[thread].clone();
        self.queues.entry(queue).or_default().push_back(Message { origin, moves, clock, due });
        Ok(())
    }

    fn reads(&mut self, by: Touch, cell: Cell) -> Result<(), Fault> {
        let cell = self.trace.shape.canonical(cell);
        let clock = &self.clocks[by.0];
        let touches = self.touches.entry(cell).or_default();
        if let Some(other) = touches.write.filter(|other| !is_before(*other, clock)) {
            return Err(unordered(by, other, cell, "reads", "write"));
        }
        touches.reads.retain(|other| !is_before(*other, clock) || other.0 != by.0);
        touches.reads.push(by);
        Ok(())
    }

    fn writes(&mut self, by: Touch, cell: Cell) -> Result<(), Fault> {
        let cell = self.trace.shape.canonical(cell);
        let clock = &self.clocks[by.0];
        let touches = self.touches.entry(cell).or_default();
        if let Some(other) = touches.write.filter(|other| !is_before(*other, clock)) {
            return Err(unordered(by, other, cell, "writes", "write"));
        }
        if let Some(other) = touches.reads.iter().find(|other| !is_before(**other, clock)) {
            return Err(unordered(by, *other, cell, "writes", "read"));
        }
        let flag = self.flagged.contains(&cell).then(|| clock.clone());
        if flag.is_some() && touches.flag.is_none() {
            self.words += self.threads.len();
        }
        *touches = Touches { write: Some(by), reads: Vec::new(), flag };
        Ok(())
    }

    fn finish(self) -> Result<Trace, Fault> {
        let blocked = (0..self.threads.len()).find(|thread| self.next[*thread] < self.threads[*thread].len());
        if let Some(thread) = blocked {
            return Err(self.stuck(thread));
        }
        if let Some(message) = self.queues.values().flatten().find(|message| message.due) {
            return Err(Fault::at(message.origin, "sends what is never taken"));
        }
        Ok(self.trace)
    }

    /// The fault of threads that wait for ever, from one of them on: the one that waits for what nothing does, or else
    /// the first of those that wait for each other.
    fn stuck(&self, mut thread: usize) -> Fault {
        let mut passed = Vec::new();
        while !passed.contains(&thread) {
            passed.push(thread);
            match self.awaited(thread).and_then(|wait| self.who_ends(wait)) {
                Some(other) => thread = other,
                None => return self.waits(thread),
            }
        }
        let circle = passed.iter().skip_while(|member| **member != thread);
        self.waits(circle.copied().min().unwrap_or(thread))
    }

    /// What keeps a thread from its next step.
    fn awaited(&self, thread: usize) -> Option<&Wait> {
        let step = self.threads[thread].get(self.next[thread])?;
        step.waits.iter().find(|wait| match wait {
            Wait::Step { thread, step } => self.next[*thread] <= *step,
            Wait::Queue(queue) => self.queues.get(queue).is_none_or(VecDeque::is_empty),
            Wait::Written(cell) => {
                let cell = self.trace.shape.canonical(*cell);
                self.touches.get(&cell).is_none_or(|touches| touches.write.is_none())
            }
            Wait::Barrier { .. } => !self.passed[thread],
        })
    }

    /// The thread that would end a wait if it went on.
    fn who_ends(&self, wait: &Wait) -> Option<usize> {
        let shape = &self.trace.shape;
        let ends = |act: &Act| match (act, wait) {
            (Act::Send { queue, .. } | Act::Post(queue) | Act::Release(queue), Wait::Queue(awaited)) => {
                queue == awaited
            }
            (Act::Move { target, .. }, Wait::Written(cell)) => {
                shape.canonical(*target) == shape.canonical(*cell)
            }
            _ => false,
        };
        if let Wait::Step { thread, .. } = wait {
            return Some(*thread);
        }
        let left = |thread: &usize| self.threads[*thread].iter().skip(self.next[*thread]);
        (0..self.threads.len()).find(|thread| left(thread).flat_map(|step| &step.acts).any(ends))
    }

    fn waits(&self, thread: usize) -> Fault {
        let what = match self.awaited(thread) {
            Some(Wait::Step { .. }) => "a step that never ends".into(),
            Some(Wait::Written(cell)) => format!("{cell}, which is never written"),
            Some(Wait::Barrier { .. }) => "a barrier that not all its threads reach".into(),
            Some(Wait::Queue(_)) | None => "what is never sent".into(),
        };
        let origin = self.threads[thread].get(self.next[thread]).map_or(0, |step| step.origin);
        Fault::at(origin, format!("waits for ever, for {what}"))
    }
}

fn join(clock: &mut Clock, other: &Clock) {
    clock.iter_mut().zip(other).for_each(|(own, other)| *own = (*own).max(*other));
}

fn is_before((thread, step, _): Touch, clock: &Clock) -> bool {
    clock[thread] > step
}

fn unordered(by: Touch, other: Touch, cell: Cell, does: &str, did: &str) -> Fault {
    let reason = format!("{does} {cell}, and nothing orders it after the {did} by");
    Fault { other: Some(other.2), ..Fault::at(by.2, reason) }
}
