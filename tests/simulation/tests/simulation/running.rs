//! A rank that has joined: it works off its program on the real engine.
//!
//! Invariant: every result is compared with the expected one as soon as its call returns.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;
use std::time::{Duration, Instant};

use consort_kernels::{DataType, ReduceOp};
use consort_memory::{Lease, Span, SpanMut};

use super::faults::Deviation;
use super::process::{Failed, Next, Origin, Outcome, SimulatedRoutes};
use super::program::{ELEMENT_BYTES, Item, call, expected, filled, message};
use super::random::Random;
use super::shrinking::Shrinking;
use consort::testing::Ticket;
use consort::testing::part;
use consort::testing::{Buffers, Engine, Memory, Progress, Source, Task};
use consort::testing::{Machine, Planning};
use consort_control::membership::group::Group;
use consort_control::membership::wire::Message;
use consort_types::Rank;
use consort_types::call::{Call, Kind};
use consort_types::error::Error;

/// The item that remaining ranks reduce after a death: a number that no item of a program has.
const LAST_ITEM: usize = 4_000;

/// Keeps a communicator's prices for later jobs. They are the same in all jobs with equal machines and settings, and
/// computing them again takes a tenth of their time.
fn keep(planning: Arc<Planning>) {
    static KEPT: Mutex<BTreeMap<usize, Arc<Planning>>> = Mutex::new(BTreeMap::new());
    let place = Arc::as_ptr(&planning).addr();
    KEPT.lock().unwrap_or_else(PoisonError::into_inner).entry(place).or_insert(planning);
}

struct Communicator {
    group: Arc<Group>,
    engine: Engine,
    /// Its ranks as ranks of the job.
    members: Vec<Rank>,
}

/// Calls that are made together and waited for.
struct Operation {
    on: usize,
    shares: Vec<Share>,
    /// The number of the last call.
    sequence: u64,
    task: Option<Box<Task>>,
    began: Instant,
    /// A split: its colour.
    splits: Option<u32>,
}

/// One call with its memory and its expected output.
struct Share {
    call: Call,
    input: Vec<u8>,
    output: Vec<u8>,
    expected: Vec<u8>,
}

impl Communicator {
    /// Ends what is under way.
    fn stop(&mut self) {
        let left = Error::Aborted { rank: self.group.rank, reason: "closed".into() };
        if self.engine.queued() > 0 && !self.group.has_failed() {
            self.group.fail(left.clone());
        }
        self.engine.fail_queue(&left);
        self.engine.links.close();
    }
}

impl Operation {
    fn new(on: usize, shares: Vec<Share>, began: Instant) -> Self {
        Operation { on, shares, sequence: 0, task: None, began, splits: None }
    }

    fn outputs(&self) -> Vec<u8> {
        self.shares.iter().flat_map(|share| share.output.iter().copied()).collect()
    }
}

/// An operation that was started.
struct Started {
    on: usize,
    ticket: Arc<Ticket>,
    lease: Lease<Vec<u8>>,
    expected: Vec<u8>,
    /// The place of the output in the lease.
    output: std::ops::Range<usize>,
    began: Instant,
}

/// The deviations of one rank.
#[derive(Clone, Debug, Default)]
pub(super) struct Ways {
    pub(super) skip: Option<usize>,
    pub(super) deviate: Option<(usize, Deviation)>,
    pub(super) sleep: Option<(usize, Duration)>,
    pub(super) leave: Option<usize>,
    /// It plans for a machine as soon as that is proposed.
    pub(super) is_hasty: bool,
    /// Two items in the other order.
    pub(super) swap: Option<usize>,
}

pub(super) struct Running {
    rank: Rank,
    origin: Origin,
    communicators: Vec<Communicator>,
    pub(super) ways: Ways,
    at: usize,
    /// Calls of the present item that are still to be made.
    steps: VecDeque<Operation>,
    operation: Option<Operation>,
    started: Vec<Started>,
    /// The time until which it is in its own code.
    computes: Option<Instant>,
    closing: Option<Instant>,
    failed: Option<Operation>,
    /// After the death of a rank.
    shrinking: Option<Shrinking>,
}

impl Running {
    pub(super) fn new(rank: Rank, origin: Origin, group: Arc<Group>, _: &mut Random) -> Self {
        let mut running = Running {
            rank,
            origin,
            communicators: Vec::new(),
            ways: Ways::default(),
            at: 0,
            steps: VecDeque::new(),
            operation: None,
            started: Vec::new(),
            computes: None,
            closing: None,
            failed: None,
            shrinking: None,
        };
        let members = group.members.clone();
        running.open(group, members);
        running
    }

    fn open(&mut self, group: Arc<Group>, members: Vec<Rank>) {
        let routes = SimulatedRoutes { origin: self.origin.clone(), rank: self.rank };
        let (settings, planner) = (self.origin.settings.clone(), self.origin.planner.clone());
        keep(planner.planning(Machine::of(group.infos()), &settings));
        let engine = Engine::new(group.clone(), Box::new(routes), settings, planner);
        self.communicators.push(Communicator { group, engine, members });
    }

    pub(super) fn groups(&self) -> Vec<Arc<Group>> {
        self.communicators.iter().map(|communicator| communicator.group.clone()).collect()
    }

    pub(super) fn buffer(&self) -> Option<Vec<u8>> {
        self.failed.as_ref().map(Operation::outputs)
    }

    fn now(&self) -> Instant {
        self.origin.clock.now()
    }

    /// One turn: returns when the next is wanted, whether data moved, and how the rank ended if it has.
    pub(super) fn turn(&mut self, random: &mut Random) -> (Next, bool, Option<Outcome>) {
        let soon = |random: &mut Random| Next::After(Duration::from_nanos(200 + random.next() % 8_000));
        self.attend();
        // Work that no call waits for goes on by itself.
        let mut moved = false;
        for communicator in &mut self.communicators {
            moved |=
                communicator.engine.queued() > 0 && communicator.engine.advance_queue() != Progress::Blocked;
        }
        if let Some(until) = self.computes {
            let left = until.saturating_duration_since(self.now());
            if !left.is_zero() {
                return (Next::After(left), moved, None);
            }
            self.computes = None;
        }
        if self.closing.is_some() {
            return self.close(moved);
        }
        if let Some(mut operation) = self.operation.take() {
            return match self.advance(&mut operation) {
                Ok(Progress::Done) => (soon(random), true, None),
                Ok(progress) => {
                    self.operation = Some(operation);
                    let moved = moved || progress == Progress::Moved;
                    let next = if moved { soon(random) } else { Next::After(self.patience(random)) };
                    (next, moved, None)
                }
                Err(error) => {
                    let began = operation.began;
                    let outcome = self.fail(error, Some(operation.on), began, Some(operation));
                    self.end(outcome)
                }
            };
        }
        if let Some(operation) = self.steps.pop_front() {
            self.operation = Some(operation);
            return (soon(random), moved, None);
        }
        if self.shrinking.is_some() {
            return self.go_on_shrinking(random);
        }
        match self.begin(random) {
            Begun::Item => (soon(random), moved, None),
            Begun::Waits => (Next::After(self.patience(random)), moved, None),
            Begun::Ends(outcome) => self.end(outcome),
        }
    }

    /// The control thread answers for a rank that is in no call.
    fn attend(&mut self) {
        let is_in_call = self.operation.as_ref().is_some_and(|operation| operation.task.is_some());
        for Communicator { group, engine, .. } in &mut self.communicators {
            if self.ways.is_hasty
                && group.has_changes()
                && let Some(change) = group.take_proposed()
            {
                let entered = group.recorder.entered();
                group.promise(change, entered + 16);
                let lost = vec![(0, 1, 2), (1, 1, 2)];
                group.receive(0, Message::Change { change, from: entered + 1, lost });
            }
            if group.has_changes() && !is_in_call {
                engine.attend();
            }
        }
    }

    /// A blocked rank looks again after a while: its deadlines are its own.
    fn patience(&self, random: &mut Random) -> Duration {
        let ends = self.communicators.iter().any(|communicator| communicator.group.has_failed());
        let most = if ends { 500 } else { 5_000 };
        Duration::from_micros(most + random.next() % most)
    }

    /// The next item of the program.
    fn begin(&mut self, random: &mut Random) -> Begun {
        let program = self.origin.program.clone();
        // Started operations are waited for before the item after them, and at the end.
        let due = self.started.len() > 2 || self.at >= program.items.len();
        if due && !self.started.is_empty() {
            if !self.started[0].ticket.is_done() {
                return Begun::Waits;
            }
            let Started { on, ticket, lease, expected, output, began } = self.started.remove(0);
            let buffer = lease.try_take().ok();
            return match ticket.result() {
                Ok(()) => {
                    let buffer = buffer.expect("a finished operation gives its buffer back");
                    assert!(buffer[output] == *expected, "rank {}: wrong bits of a started call", self.rank);
                    Begun::Item
                }
                Err(error) => Begun::Ends(self.fail(error, Some(on), began, None)),
            };
        }
        if self.ways.leave == Some(self.at) {
            self.started.clear();
            self.shut();
            return Begun::Ends(Outcome::Left);
        }
        if self.at >= program.items.len() {
            self.closing = Some(self.now() + self.origin.settings.timeout);
            return Begun::Item;
        }
        if let Some((item, time)) = self.ways.sleep
            && item == self.at
        {
            self.ways.sleep = None;
            self.computes = Some(self.now() + time);
            return Begun::Item;
        }
        let item = match self.ways.swap {
            Some(first) if self.at == first => first + 1,
            Some(first) if self.at == first + 1 => first,
            _ => self.at,
        };
        self.at += 1;
        if self.ways.skip != Some(item) {
            self.set_out(item, &program.items[item], random);
        }
        Begun::Item
    }

    fn set_out(&mut self, number: usize, item: &Item, random: &mut Random) {
        let rank = self.rank;
        if let Item::Collective { on, .. } = item
            && *on >= self.communicators.len()
        {
            return; // It left out the split.
        }
        match *item {
            Item::Paths { by, ref sights } => {
                if rank == by {
                    self.communicators[0].group.say_paths(sights.clone());
                }
            }
            Item::Compute { most } => {
                let time = Duration::from_nanos(random.next() % most.as_nanos().max(1) as u64);
                self.computes = Some(self.now() + time);
            }
            Item::Collective { on, kind, op, root, count, started } => {
                let mut call = call(kind, op, root, count);
                if let Some((item, how)) = self.ways.deviate
                    && item == number
                {
                    how.apply_to(&mut call);
                }
                self.one_call(on, number, call, started);
            }
            Item::Shift { on, by, count, started } => {
                let size = self.communicators[on].members.len() as u32;
                let (to, from) = ((rank + by) % size, (rank + size - by) % size);
                let calls = [message(Kind::Send, to, count), message(Kind::Receive, from, count)];
                if started {
                    calls.into_iter().for_each(|call| self.one_call(on, number, call, true));
                } else {
                    self.together(on, number, calls.map(|call| (call, 0)).to_vec());
                }
            }
            Item::Group { on, count, messages } => {
                let size = self.communicators[on].members.len() as u32;
                let me = self.communicators[on].group.rank;
                let mut calls = Vec::new();
                for nth in 0..messages {
                    // Lengths that differ, so that no message is taken for another.
                    let long = |kind, peer| (message(kind, peer, (count + nth) * (nth % 2 + 1)), nth);
                    let others = || (0..size).filter(|other| *other != me);
                    calls.extend(others().map(|to| long(Kind::Send, to)));
                    calls.push((call(Kind::AllReduce, ReduceOp::Sum, 0, count + nth), nth));
                    calls.extend(others().map(|from| long(Kind::Receive, from)));
                }
                self.together(on, number, calls);
            }
            Item::Message { on, from, to, count } => {
                if rank == from {
                    self.together(on, number, vec![(message(Kind::Send, to, count), 0)]);
                } else if rank == to {
                    self.together(on, number, vec![(message(Kind::Receive, from, count), 0)]);
                }
            }
            Item::BothSend { one, other, count } => {
                if rank == one || rank == other {
                    let peer = if rank == one { other } else { one };
                    self.together(0, number, vec![(message(Kind::Send, peer, count), 0)]);
                    self.together(0, number, vec![(message(Kind::Receive, peer, count), 0)]);
                }
            }
            Item::Split { ref colors } => {
                let color = colors[rank as usize];
                let words = [1, i64::from(color), 0];
                let call = Call::new(Kind::Split, DataType::Int64, None, 0, words.len());
                let all = colors.iter().flat_map(|color| [1, i64::from(*color), 0]);
                let share = Share {
                    call,
                    input: words.iter().flat_map(|word| word.to_le_bytes()).collect(),
                    output: vec![0; 24 * colors.len()],
                    expected: all.flat_map(i64::to_le_bytes).collect(),
                };
                let mut operation = Operation::new(0, vec![share], self.now());
                operation.splits = Some(color);
                self.steps.push_back(operation);
            }
        }
    }

    /// One call, which is started where it can be if `started` is set.
    fn one_call(&mut self, on: usize, number: usize, call: Call, started: bool) {
        let communicator = &self.communicators[on];
        let (me, size) = (communicator.group.rank, communicator.group.size());
        let input = filled(number, self.rank, call.input_bytes(me, size) / ELEMENT_BYTES);
        let output = vec![0x77; call.output_bytes(me, size)];
        let expected = expected(number, &call, &communicator.members, me as usize);
        let began = self.now();
        if !started
            || call.count == 0
            || communicator.group.has_failed()
            || !self.communicators[on].engine.has_room(1)
        {
            let share = Share { call, input, output, expected };
            self.steps.push_back(Operation::new(on, vec![share], began));
            return;
        }
        // Input and output side by side in one buffer, as far as the in-place forms allow.
        let (input_bytes, output_bytes) = (input.len(), output.len());
        let lease = Lease::new([input, output].concat());
        let apart = Lease::new(vec![0u8; output_bytes]);
        let ticket = Arc::new(Ticket::default());
        let (held, out) = (lease.hold(), apart.hold());
        let engine = &mut self.communicators[on].engine;
        let request = engine.enter(call, u64::from(self.rank) + 1);
        let mut task = Task::default();
        task.prepare(self.origin.settings.timeout);
        task.push(request, None);
        let memory =
            Memory { input: Source::Within(held, 0, input_bytes), output: Some(out), _kept: Vec::new() };
        engine.enqueue(task, vec![memory], ticket.clone());
        // The input's lease lives as long as the engine holds it.
        drop(lease);
        self.started.push(Started { on, ticket, lease: apart, expected, output: 0..output_bytes, began });
    }

    /// Calls that are made together, each with the number of its contribution to the item.
    fn together(&mut self, on: usize, number: usize, calls: Vec<(Call, usize)>) {
        let communicator = &self.communicators[on];
        let (me, size) = (communicator.group.rank, communicator.group.size());
        let share = |(call, nth): (Call, usize)| {
            let key = number + 256 * nth;
            Share {
                call,
                input: filled(key, self.rank, call.input_bytes(me, size) / ELEMENT_BYTES),
                output: vec![0x77; call.output_bytes(me, size)],
                expected: expected(key, &call, &communicator.members, me as usize),
            }
        };
        let shares = calls.into_iter().map(share).collect();
        self.steps.push_back(Operation::new(on, shares, self.now()));
    }

    /// The work of `Core::collective` and `Core::exchange`, up to where they would wait.
    fn advance(&mut self, operation: &mut Operation) -> consort_types::Result<Progress> {
        let now = self.now();
        let timeout = self.origin.settings.timeout;
        let rank = self.rank;
        let communicator = &mut self.communicators[operation.on];
        let engine = &mut communicator.engine;
        if operation.task.is_none() {
            if communicator.group.has_failed() {
                return communicator.group.settled(now).map_or(Ok(Progress::Blocked), Err);
            }
            let collectives = operation.shares.iter().filter(|share| !share.call.kind.is_message()).count();
            if engine.queued() > 0 || !engine.has_room(collectives as u64) {
                return Ok(Progress::Blocked);
            }
            operation.began = now;
            let mut task = engine.take_task();
            task.prepare(timeout);
            for Share { call, .. } in &operation.shares {
                let request = engine.enter(*call, u64::from(rank) + 1);
                operation.sequence = request.sequence;
                task.push(request, None);
            }
            operation.task = Some(task);
        }
        let Some(task) = &mut operation.task else { return Ok(Progress::Blocked) };
        let buffers = operation.shares.iter_mut().map(|Share { input, output, .. }| Buffers {
            input: Span::of(input),
            output: SpanMut::of(output),
        });
        let buffers: Vec<_> = buffers.collect();
        match engine.turn(task, &buffers) {
            Ok(Progress::Done) => {}
            Ok(progress) => {
                task.tend(engine, true);
                return Ok(progress);
            }
            Err(error) => {
                engine.leave_failed(task);
                return Err(error);
            }
        }
        operation.task.take().into_iter().for_each(|task| engine.put_back(task));
        for Share { call, output, expected, .. } in &operation.shares {
            assert!(expected.is_empty() || output == expected, "rank {rank}: wrong bits of {call:?}");
        }
        if let Some(color) = operation.splits {
            let words = operation.shares[0].output.chunks_exact(8).filter_map(|word| word.first_chunk());
            let all: Vec<i64> = words.map(|word| i64::from_le_bytes(*word)).collect();
            let number = operation.sequence;
            let group = communicator.group.clone();
            let (uid, members) = part(&group, "split", number, color, &all);
            let child = Group::new(group.member.clone(), uid, members.clone(), 0);
            self.open(child, members);
        }
        Ok(Progress::Done)
    }

    fn fail(
        &mut self,
        error: Error,
        on: Option<usize>,
        began: Instant,
        operation: Option<Operation>,
    ) -> Outcome {
        if let Some(shrinking) = self.shrinking.take() {
            self.shut();
            return shrinking.outcome(Err(error.to_string()));
        }
        let report = on.and_then(|on| self.communicators[on].group.report());
        let buffer = operation.as_ref().map(Operation::outputs).unwrap_or_default();
        self.failed = operation;
        let has_part = self.communicators.len() > 1;
        let failed = Failed { error, on, has_part, report, began, ended: self.now(), buffer, went_on: None };
        if let Some(dead) = self.origin.doomed
            && on == Some(0)
        {
            self.started.clear();
            self.shut_parts();
            self.communicators[0].stop();
            let until = self.now() + self.origin.settings.timeout;
            self.shrinking = Some(Shrinking::begin(&self.communicators[0].group, dead, until, failed));
            return Outcome::Left;
        }
        self.shut();
        Outcome::Failed(failed)
    }

    /// How the rank ends, unless it goes on without the one that died.
    fn end(&mut self, outcome: Outcome) -> (Next, bool, Option<Outcome>) {
        match self.shrinking {
            Some(_) => (Next::After(Duration::from_micros(1)), true, None),
            None => (Next::Woken, true, Some(outcome)),
        }
    }

    /// The ranks that stay agree; then they reduce something together, and close.
    fn go_on_shrinking(&mut self, random: &mut Random) -> (Next, bool, Option<Outcome>) {
        let (now, pause) = (self.now(), Duration::from_micros(100 + random.next() % 400));
        let Some(shrinking) = &mut self.shrinking else { return (Next::Woken, true, None) };
        match shrinking.poll(&self.communicators[0].group, now) {
            Poll::Pending => (Next::After(pause), false, None),
            Poll::Ready(Ok(Some((uid, members)))) => {
                let group = Group::new(self.communicators[0].group.member.clone(), uid, members.clone(), 0);
                self.open(group, members);
                self.one_call(1, LAST_ITEM, call(Kind::AllReduce, ReduceOp::Sum, 0, 500), false);
                (Next::After(pause), true, None)
            }
            Poll::Ready(Ok(None)) => {
                self.closing = Some(now + self.origin.settings.timeout);
                (Next::After(pause), true, None)
            }
            Poll::Ready(Err(why)) => {
                let outcome = self.shrinking.take().map(|shrinking| shrinking.outcome(Err(why)));
                self.shut();
                (Next::Woken, true, outcome)
            }
        }
    }

    /// Closes all communicators at once, as dropping them after a failure does.
    fn shut(&mut self) {
        self.shut_parts();
        for communicator in &mut self.communicators {
            communicator.stop();
            communicator.group.leave();
        }
    }

    /// Closes all but the first communicator.
    fn shut_parts(&mut self) {
        for mut part in self.communicators.drain(1..) {
            part.stop();
            part.group.leave();
        }
    }

    /// Stays until the peers have taken what was sent, as `Core::close` does.
    fn close(&mut self, moved: bool) -> (Next, bool, Option<Outcome>) {
        let now = self.now();
        let late = self.closing.is_some_and(|until| now >= until);
        for communicator in &mut self.communicators {
            let Communicator { engine, group, .. } = communicator;
            let links = &mut engine.links;
            if links.needs_progress()
                && !group.has_failed()
                && !late
                && links.progress().is_ok()
                && !links.is_emptied()
            {
                return (Next::After(Duration::from_micros(200)), moved, None);
            }
        }
        if let Some(communicator) = self.communicators.first() {
            let mut machines = self.origin.machines.lock().unwrap_or_else(PoisonError::into_inner);
            machines.insert(self.rank, communicator.engine.machines());
        }
        self.shut();
        let went_on = self.shrinking.take().map(|shrinking| shrinking.outcome(Ok(())));
        (Next::Woken, true, Some(went_on.unwrap_or(Outcome::Completed)))
    }
}

enum Begun {
    Item,
    Waits,
    Ends(Outcome),
}
