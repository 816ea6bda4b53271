//! The operations of a communicator that were started and are not over, and which of them go on.
//!
//! ```text
//!  started ─► uses links of an earlier one ─► waits ─► the last of those is over ─► goes on ─► over
//!         └─────────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! Invariant: two operations that use the same [links](super::task::lane) run one after the other, in the order in which they
//! were started: collectives, what runs in streams, and the messages to one rank or from one rank. All others go on side by
//! side. So no operation waits for one on which neither its own bytes nor its number depend, and ranks may start what does not
//! depend on each other in any order. Absent: how one operation goes on ([`Task`]), and who drives them
//! ([`crate::communicator`]).

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::links::{Wanted, WokenBy};
use super::task::{COLLECTIVES, Task, lane};
use super::trouble::Trouble;
use super::{Asked, Buffers, Engine, Memory, Progress, give_back};
use crate::ticket::Ticket;
use consort_control::recorder::this_thread;
use consort_types::blocks::Blocks;
use consort_types::call::Call;
use consort_types::error::{Error, Result};

/// How long the end of all queued operations waits for devices to give back what they were reading, once they were made to end.
const WITHDRAWN_MAX: Duration = Duration::from_millis(50);

/// Steps of an operation that no thread waits for in one turn: at most some milliseconds of copying.
const UNATTENDED_STEPS: u32 = 64;

/// A call that has been checked, with its memory.
pub(crate) struct Start<'a> {
    pub(crate) call: Call,
    /// Those of a call whose blocks differ.
    pub(crate) blocks: Option<Blocks<'a>>,
    pub(crate) memory: Memory,
}

/// The started operations of a communicator.
#[derive(Default)]
pub(super) struct Queue {
    /// Those that go on. A place is empty while its operation has its turn, and when it is over.
    running: Vec<Option<Queued>>,
    /// Those behind others, by number.
    waiting: BTreeMap<u64, Queued>,
    /// The number of the last one that uses links of a kind, while it is not over.
    last: HashMap<usize, u64>,
    /// How many are not over.
    count: usize,
    /// How many were started so far.
    started: u64,
    /// The longest that one of them may take.
    timeout_max: Duration,
    /// Whether devices alone move them.
    is_on_devices: bool,
    /// What those that were blocked in a turn wait for.
    wanted: Vec<Wanted>,
    /// How many of those that go on are out of their places, as they have their turn.
    out: usize,
    /// Whether the queue is empty, and the system has not taken all that its operations signalled.
    pub(super) rests: bool,
}

/// An operation that was started and is not over.
struct Queued {
    number: u64,
    /// How many others it is behind.
    behind: usize,
    /// The numbers of those that are behind it.
    followers: Vec<u64>,
    task: Box<Task>,
    memory: Vec<Memory>,
    ticket: Owed,
}

/// A share of a ticket that is finished in any case: the thread that waits for it must not wait for ever because a driver
/// panicked.
struct Owed(Option<Arc<Ticket>>);

impl Owed {
    fn finish(mut self, result: Result<()>) {
        if let Some(ticket) = self.0.take() {
            ticket.finish(result);
        }
    }
}

impl Drop for Owed {
    fn drop(&mut self) {
        if let Some(ticket) = self.0.take() {
            ticket.finish(Err(Error::internal("an operation was dropped by its driver, which panicked")));
        }
    }
}

impl Queue {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Whether some collective, or what runs in a stream, is not over.
    pub(super) fn has_collectives(&self) -> bool {
        self.last.contains_key(&COLLECTIVES)
    }

    /// Whether an operation goes on beside the one that has its turn.
    pub(super) fn has_others(&self) -> bool {
        self.count > self.waiting.len() + self.out
    }

    /// Bytes of the tables.
    pub(super) fn memory_bytes(&self) -> usize {
        (self.running.capacity() + self.waiting.len()) * size_of::<Queued>()
    }

    fn all_mut(&mut self) -> impl Iterator<Item = &mut Queued> {
        self.running.iter_mut().flatten().chain(self.waiting.values_mut())
    }

    fn find(&mut self, number: u64) -> Option<&mut Queued> {
        let is_it = |queued: &&mut Queued| queued.number == number;
        self.waiting.get_mut(&number).or_else(|| self.running.iter_mut().flatten().find(is_it))
    }

    /// Behind those that use the same links.
    fn push(&mut self, task: Box<Task>, memory: Vec<Memory>, ticket: Arc<Ticket>) {
        self.is_on_devices = (self.is_empty() || self.is_on_devices) && task.is_on_devices();
        self.timeout_max =
            if self.is_empty() { task.timeout() } else { self.timeout_max.max(task.timeout()) };
        self.started += 1;
        self.count += 1;
        let number = self.started;
        let mut behind = 0;
        for lane in task.lanes() {
            let before = self.last.insert(lane, number).filter(|before| *before != number);
            if let Some(before) = before.and_then(|before| self.find(before)) {
                before.followers.push(number);
                behind += 1;
            }
        }
        let ticket = Owed(Some(ticket));
        let queued = Queued { number, behind, followers: Vec::new(), task, memory, ticket };
        if behind == 0 {
            self.running.push(Some(queued));
        } else {
            self.waiting.insert(number, queued);
        }
    }

    /// It is over: those behind it that are behind no other go on.
    fn end(&mut self, queued: Queued, result: Result<()>) {
        let Queued { number, followers, task, memory, ticket, .. } = queued;
        self.count -= 1;
        for lane in task.lanes() {
            if self.last.get(&lane) == Some(&number) {
                self.last.remove(&lane);
            }
        }
        for follower in followers {
            let Some(next) = self.waiting.get_mut(&follower) else { continue };
            next.behind -= 1;
            if next.behind == 0 {
                let next = self.waiting.remove(&follower);
                self.running.push(next);
            }
        }
        // The buffers go back before the ticket says that the operation is over.
        give_back(*task, memory);
        ticket.finish(result);
    }

    /// The communicator has failed. What waits on a device goes on to its end, and what has not begun is behind nothing.
    fn let_go(&mut self) {
        self.all_mut().for_each(|queued| queued.task.release());
        let begins = |(number, queued): (&u64, &Queued)| (!queued.task.has_begun()).then_some(*number);
        let others: Vec<u64> = self.waiting.iter().filter_map(begins).collect();
        for number in others {
            let other = self.waiting.remove(&number);
            self.running.push(other);
        }
        if !self.has_others()
            && let Some((_, first)) = self.waiting.pop_first()
        {
            self.running.push(Some(first));
        }
    }

    /// What is started now with `timeout` on these links, and what it is behind, must end within it.
    fn precede(&mut self, mut lanes: BTreeSet<usize>, timeout: Duration, now: Instant) {
        if timeout >= self.timeout_max || self.is_empty() {
            return;
        }
        // What is behind others ends after them: where the last one on links ends early enough, all do.
        lanes.retain(|lane| {
            let last = self.last.get(lane).copied().and_then(|last| self.find(last));
            let deadline = last.and_then(|last| last.task.watch.deadline());
            self.last.contains_key(lane) && deadline.is_none_or(|deadline| deadline > now + timeout)
        });
        if !lanes.is_empty() {
            self.hurry(lanes, timeout, now);
        }
    }

    /// Those that use these links, and those that they are behind, must end within `timeout` from now on.
    fn hurry(&mut self, mut lanes: BTreeSet<usize>, timeout: Duration, now: Instant) {
        let waiting = self.waiting.values_mut().rev();
        for queued in waiting.chain(self.running.iter_mut().flatten()) {
            if queued.task.lanes().any(|lane| lanes.contains(&lane)) {
                lanes.extend(queued.task.lanes());
                queued.task.watch.hurry(timeout, now);
            }
        }
    }

    /// All of them, which are in the queue no more.
    fn take(&mut self) -> Vec<Queued> {
        let Queue { running, waiting, .. } = std::mem::take(self);
        running.into_iter().flatten().chain(waiting.into_values()).collect()
    }
}

impl Engine {
    /// Whether some queued operation is in a stream.
    pub(crate) fn has_streams(&self) -> bool {
        let Queue { running, waiting, .. } = &self.queue;
        running.iter().flatten().chain(waiting.values()).any(|queued| queued.task.is_watched())
    }

    /// Whether devices alone move what is queued.
    pub(crate) fn is_on_devices(&self) -> bool {
        self.queue.is_on_devices
    }

    /// How many operations are queued.
    pub fn queued(&self) -> usize {
        self.queue.count
    }

    /// Whether a queued operation uses links of a task, which must wait for it.
    pub(crate) fn is_behind(&self, task: &Task) -> bool {
        task.lanes().any(|lane| self.queue.last.contains_key(&lane))
    }

    /// Starts calls, each an operation of its own: the ticket of all their ends, and the number of the last. They must end
    /// within `timeout` from now on, and so must what they are behind.
    pub(crate) fn start(&mut self, calls: Vec<Start<'_>>, timeout: Duration) -> (Arc<Ticket>, u64) {
        let ticket = Arc::new(Ticket::of(calls.iter().filter(|start| start.call.count != 0).count()));
        let now = self.group.clock().now();
        // A call of no elements waits for none.
        let moving = calls.iter().filter(|start| start.call.count != 0);
        self.queue.precede(moving.map(|start| lane(&start.call)).collect(), timeout, now);
        let mut last = 0;
        for Start { call, blocks, memory } in calls {
            let request = self.enter(call, this_thread());
            last = request.sequence;
            if call.count == 0 {
                // It moves nothing, whatever is before it.
                self.leave(&request);
                continue;
            }
            let mut task = Box::<Task>::default();
            task.prepare(timeout);
            task.watch.begin(now);
            task.push(request, blocks);
            task.limit_turns(UNATTENDED_STEPS);
            self.queue.push(task, vec![memory], ticket.clone());
        }
        (ticket, last)
    }

    /// Queues a task that is under way, with memory for each of its requests. Its time has begun by now, and what it is behind must
    /// end within it too.
    pub fn enqueue(&mut self, mut task: Task, memory: Vec<Memory>, ticket: Arc<Ticket>) {
        let now = self.group.clock().now();
        task.watch.begin_by(now);
        let left =
            task.watch.deadline().map_or(task.timeout(), |deadline| deadline.saturating_duration_since(now));
        self.queue.precede(task.lanes().collect(), left, now);
        task.limit_turns(UNATTENDED_STEPS);
        self.queue.push(Box::new(task), memory, ticket);
    }

    /// Moves on every queued operation that is behind no other, and the ones behind it as each is done.
    pub fn advance_queue(&mut self) -> Progress {
        if self.queue.is_empty() {
            self.move_rest();
            return Progress::Done;
        }
        if self.group.has_failed() {
            self.queue.let_go();
        }
        self.asked = Some(Asked::None);
        let (mut moved, mut at) = (false, 0);
        let mut wanted = std::mem::take(&mut self.queue.wanted);
        wanted.clear();
        let mut woken_by = WokenBy::Sockets;
        while let Some(place) = self.queue.running.get_mut(at) {
            if let Some(mut queued) = place.take() {
                self.queue.out = 1;
                let turn = self.turn_of(&mut queued);
                self.queue.out = 0;
                match turn {
                    Ok(progress @ (Progress::Moved | Progress::Blocked)) => {
                        moved |= progress == Progress::Moved;
                        wanted.extend(&self.wanted);
                        // One on its way to its end goes by the clock.
                        let by = if queued.task.is_ending() { WokenBy::Limit } else { self.woken_by };
                        woken_by = woken_by.max(by);
                        self.queue.running[at] = Some(queued);
                    }
                    result => {
                        moved = true;
                        self.queue.end(queued, result.map(drop));
                    }
                }
            }
            at += 1;
        }
        self.queue.running.retain(Option::is_some);
        moved |= self.move_links(&wanted);
        // A rank sleeps until any of them can go on.
        self.woken_by = woken_by;
        self.queue.wanted = std::mem::replace(&mut self.wanted, wanted);
        if moved {
            self.ring();
        }
        self.queue.rests = self.queue.is_empty() && !self.links.is_flushed();
        match (self.queue.is_empty(), moved) {
            (true, _) => Progress::Done,
            (false, true) => Progress::Moved,
            (false, false) => Progress::Blocked,
        }
    }

    /// Moves on the links that operations have asked for in their turns. Whether some operation may go on.
    fn move_links(&mut self, wanted: &[Wanted]) -> bool {
        let asked = self.asked.take().unwrap_or_default();
        if asked == Asked::None {
            return false;
        }
        match self.links.progress_for(wanted, asked == Asked::All) {
            Ok(has_come) => {
                let mut running = self.queue.running.iter().flatten();
                has_come || running.any(|queued| queued.task.has_back(&self.links))
            }
            Err(broken) => {
                // One that waits for the peer has met it, or else the first.
                let waits = |queued: &Queued| {
                    queued.task.blocked(&self.links).iter().any(|blocked| blocked.peer == broken.peer)
                };
                let goes_on =
                    |place: &Option<Queued>| place.as_ref().is_some_and(|queued| !queued.task.is_ending());
                let running = &self.queue.running;
                let at = running.iter().position(|place| goes_on(place) && place.as_ref().is_some_and(waits));
                if let Some(at) = at.or_else(|| running.iter().position(goes_on))
                    && let Some(mut queued) = self.queue.running[at].take()
                {
                    let request = queued.task.request().map(Box::new);
                    queued.task.begin_end(self, Trouble::Broken { request, broken });
                    self.queue.running[at] = Some(queued);
                }
                true
            }
        }
    }

    /// Moves on what the system has not taken of operations that are over.
    fn move_rest(&mut self) {
        if self.queue.rests {
            // The next call meets a link that is broken.
            let is_broken = self.links.progress().is_err() || self.group.has_failed();
            self.queue.rests = !is_broken && !self.links.is_flushed();
        }
    }

    /// Whether the queue is empty, and the system has not taken all that its operations signalled.
    pub(crate) fn has_rest(&self) -> bool {
        self.queue.rests
    }

    fn turn_of(&mut self, Queued { task, memory, .. }: &mut Queued) -> Result<Progress> {
        if self.group.has_failed() && !task.has_begun() {
            task.give_up();
        }
        let turn = match &memory[..] {
            [memory] => self.turn(task, &[memory.buffers()]),
            several => {
                let buffers: Vec<Buffers<'_>> = several.iter().map(Memory::buffers).collect();
                self.turn(task, &buffers)
            }
        };
        match turn {
            Ok(Progress::Done) => {}
            Ok(_) => task.tend(self, true),
            Err(_) => self.leave_failed(task),
        }
        turn
    }

    /// A thread waits for the queue, for at most `timeout`: queued operations must end within it.
    pub(crate) fn hurry_queue(&mut self, timeout: Duration) {
        let now = self.group.clock().now();
        self.queue.all_mut().for_each(|queued| queued.task.watch.hurry(timeout, now));
    }

    /// By operation that goes on: whether it is in a report.
    #[cfg(test)]
    pub(super) fn reports_of_queued(&self) -> Vec<bool> {
        self.queue.running.iter().flatten().map(|queued| queued.task.watch.reported).collect()
    }

    /// Sleeps as [`Engine::sleep`] while all that is queued is blocked.
    pub(crate) fn sleep_queued(&mut self, limit: Duration) {
        let Some(at) = self.queue.running.iter().position(Option::is_some) else {
            std::thread::sleep(limit);
            return;
        };
        let Some(first) = self.queue.running[at].take() else { return };
        self.queue.out = 1;
        // A doorbell is of one peer; another may have what another operation waits for.
        self.sleep_beside(&first.task, limit, self.queue.has_others());
        self.queue.out = 0;
        self.queue.running[at] = Some(first);
    }

    /// Ends every queued operation with this error.
    pub fn fail_queue(&mut self, error: &Error) {
        self.asked = None;
        let mut queue = self.queue.take();
        let by = Instant::now() + WITHDRAWN_MAX;
        // Every task ends what others do for it before any is waited for.
        while !queue.iter_mut().fold(true, |all, queued| queued.task.withdraw(self, true) & all)
            && Instant::now() < by
        {
            std::thread::yield_now();
        }
        for Queued { mut task, memory, ticket, .. } in queue {
            self.leave_failed(&task);
            task.release();
            give_back(*task, memory);
            ticket.finish(Err(error.clone()));
        }
    }

    /// In a forked child: the queued operations are the parent's, and their buffers here are free.
    pub(crate) fn disown_queue(&mut self) {
        for Queued { mut task, memory, ticket, .. } in self.queue.take() {
            task.disown();
            // What a device uses is the parent's.
            if task.is_watched() {
                std::mem::forget(memory);
            }
            // Its end would be seen by the parent's peers and devices.
            std::mem::forget(task);
            ticket.finish(Err(Error::Forked));
        }
    }
}

#[cfg(test)]
mod tests {
    use consort_kernels::{DataType, ReduceOp};
    use consort_testing::Random;
    use consort_types::call::Kind;

    use super::*;
    use crate::engine::Request;
    use crate::engine::trouble::Watch;

    fn task(calls: &[Call]) -> Box<Task> {
        let mut task = Box::<Task>::default();
        task.prepare(Duration::from_secs(1));
        for call in calls {
            task.push(Request { call: *call, sequence: 1, history: 0, record: 1 }, None);
        }
        task
    }

    /// Against a list that is looked through from its beginning.
    #[test]
    fn what_is_behind_no_other_goes_on_and_nothing_else_does() {
        let mut random = Random::announced("what_is_behind_no_other_goes_on_and_nothing_else_does");
        for _ in 0..300 {
            let mut queue = Queue::default();
            let mut listed: Vec<(u64, BTreeSet<usize>, Arc<Ticket>)> = Vec::new();
            for number in 1..=60 {
                let calls: Vec<Call> = (0..1 + random.below(3))
                    .map(|_| match random.below(3) {
                        0 => Call::all_reduce(DataType::Uint8, ReduceOp::Sum, 1),
                        kind => {
                            let kind = if kind == 1 { Kind::Send } else { Kind::Receive };
                            Call::new(kind, DataType::Uint8, None, random.below(3) as u32, 1)
                        }
                    })
                    .collect();
                let ticket = Arc::new(Ticket::default());
                queue.push(task(&calls), Vec::new(), ticket.clone());
                listed.push((number, calls.iter().map(lane).collect(), ticket));
                while random.one_in(2) && !listed.is_empty() {
                    let going: Vec<usize> =
                        (0..queue.running.len()).filter(|at| queue.running[*at].is_some()).collect();
                    let ended = queue.running[random.pick(&going)].take().expect("it goes on");
                    let ended_number = ended.number;
                    queue.end(ended, Ok(()));
                    let at =
                        listed.iter().position(|(number, ..)| *number == ended_number).expect("it is listed");
                    assert!(listed.remove(at).2.is_done());
                }
                let mut used = BTreeSet::new();
                let mut expected = BTreeSet::new();
                for (number, lanes, ticket) in &listed {
                    assert!(!ticket.is_done());
                    if lanes.is_disjoint(&used) {
                        expected.insert(*number);
                    }
                    used.extend(lanes);
                }
                let going: BTreeSet<u64> =
                    queue.running.iter().flatten().map(|queued| queued.number).collect();
                assert_eq!(going, expected, "of {listed:?}");
                assert_eq!(queue.count, listed.len());
                assert_eq!(queue.last.keys().copied().collect::<BTreeSet<_>>(), used);
            }
        }
    }

    #[test]
    fn what_is_before_a_hurried_one_ends_in_time_and_is_looked_at_once() {
        let mut queue = Queue::default();
        let (began, second) = (Instant::now(), Duration::from_secs(1));
        let start = |queue: &mut Queue, kind, seconds, at| {
            let call = Call::new(kind, DataType::Uint8, None, 1, 1);
            let mut task = Box::<Task>::default();
            task.prepare(second * seconds);
            task.watch.begin(began + second * at);
            task.push(Request { call, sequence: 1, history: 0, record: 1 }, None);
            queue.precede([lane(&call)].into(), second * seconds, began + second * at);
            queue.push(task, Vec::new(), Arc::default());
        };
        let ends = |queue: &mut Queue| -> Vec<u32> {
            let mut all: Vec<_> = queue.all_mut().map(|queued| (queued.number, &queued.task.watch)).collect();
            all.sort_by_key(|(number, _)| *number);
            let end = |watch: &Watch| watch.deadline().expect("it was started").duration_since(began);
            all.into_iter().map(|(_, watch)| end(watch).as_secs() as u32).collect()
        };
        start(&mut queue, Kind::Send, 90, 0);
        start(&mut queue, Kind::Receive, 80, 0);
        start(&mut queue, Kind::Send, 10, 1);
        assert_eq!(ends(&mut queue), [11, 80, 11], "a receive is not before a send");
        start(&mut queue, Kind::Send, 10, 2);
        start(&mut queue, Kind::Send, 60, 2);
        assert_eq!(ends(&mut queue), [11, 80, 11, 12, 62]);
        start(&mut queue, Kind::Send, 3, 3);
        assert_eq!(ends(&mut queue), [6, 80, 6, 6, 6, 6]);
    }

    #[test]
    fn what_is_dropped_has_an_end() {
        let (mut queue, ticket) = (Queue::default(), Arc::new(Ticket::of(2)));
        let calls = [Kind::Send, Kind::Receive].map(|kind| Call::new(kind, DataType::Uint8, None, 1, 1));
        calls.iter().for_each(|call| queue.push(task(&[*call]), Vec::new(), ticket.clone()));
        let first = queue.running[0].take().expect("it goes on");
        queue.end(first, Ok(()));
        assert!(!ticket.is_done());
        drop(queue);
        assert!(ticket.is_done() && ticket.result().is_err());
    }
}
