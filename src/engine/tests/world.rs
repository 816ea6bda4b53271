//! Ranks, mailboxes and counters in plain vectors, driven by one thread: a second implementation of the
//! executor's [`Io`], with the real [`Executor`] and the real planner's plans.
//!
//! Invariant: everything a link promises is checked where it is used: a mailbox byte is written only when its
//! reader has given it back and read only when its writer has signalled it, counters go up one by one, and a
//! tag is read only while it is still there. What is random follows from the seed.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::task::Poll;

use consort_algorithms::plan::{CounterRole, Region};
use consort_algorithms::{Channel, Plan};
use consort_memory::Counter;

use super::super::bound::Bearings;
use super::super::executor::{Blockage, Executor, Io, Piece, Progress, Sizes, Stop};
use super::values::{Fold, Random, words};
use crate::Rank;
use consort_settings::options::SLOTS;

/// The longest slot that operations here may have.
pub(super) const SLOT_BYTES_MAX: usize = 512;

/// A counter as its owner sees it.
#[derive(Default)]
struct Seen {
    value: u64,
    /// The tag of every value from 1 on.
    tags: Vec<u64>,
}

impl Seen {
    fn raise(&mut self, value: u64, tag: u64) {
        assert_eq!(value, self.value + 1, "a counter goes up by one slot at a time");
        self.value = value;
        self.tags.push(tag);
    }
}

/// What is under way between two ranks that share no memory.
enum Message {
    Bytes { at: usize, bytes: Vec<u8> },
    Signal { value: u64, tag: u64 },
}

/// One direction of a link: a mailbox that `from` fills and `to` empties.
struct Way {
    from: Rank,
    to: Rank,
    channel: u16,
    mapped: bool,
    mailbox: Vec<u8>,
    /// Per byte of the mailbox: which fill it holds, counted from 1; 0 when it may be overwritten.
    holds: Vec<u64>,
    ready: Seen,
    credit: Seen,
    ready_raised: u64,
    credit_raised: u64,
    /// Bytes and ready signals in the order in which they were sent, and credits on their way back.
    data: VecDeque<Message>,
    credits: VecDeque<Message>,
    /// As in `links::Up`.
    filled: u64,
    emptied: u64,
    filled_slot_bytes: usize,
}

impl Way {
    /// The writer fills these bytes.
    fn reserve(&mut self, range: Range<usize>, slot_bytes: usize) {
        let fill = self.ready_raised + 1;
        check_slot(fill, &range, slot_bytes);
        assert!(
            self.credit.value + SLOTS as u64 >= fill,
            "rank {} fills slot {fill} of rank {} without a credit",
            self.from,
            self.to
        );
        for holds in &mut self.holds[range] {
            assert_eq!(*holds, 0, "rank {} overwrites what rank {} has not emptied", self.from, self.to);
            *holds = fill;
        }
    }

    fn read(&self, range: Range<usize>, slot_bytes: usize) -> &[u8] {
        let fill = self.credit_raised + 1;
        check_slot(fill, &range, slot_bytes);
        assert!(self.ready.value >= fill, "rank {} reads a slot that is not ready", self.to);
        assert!(
            self.holds[range.clone()].iter().all(|holds| *holds == fill),
            "rank {} reads other bytes than rank {} filled",
            self.to,
            self.from
        );
        &self.mailbox[range]
    }

    /// The reader gives a slot back.
    fn release(&mut self, value: u64) {
        assert_eq!(value, self.credit_raised + 1, "slots are given back one by one");
        assert!(self.ready.value >= value, "rank {} gives back a slot that it did not get", self.to);
        self.credit_raised = value;
        self.holds.iter_mut().filter(|holds| **holds == value).for_each(|holds| *holds = 0);
    }
}

/// A rank uses the slots of a mailbox in turn, from the first operation on.
fn check_slot(fill: u64, range: &Range<usize>, slot_bytes: usize) {
    let start = ((fill - 1) % SLOTS as u64) as usize * slot_bytes;
    assert!(start <= range.start && range.end <= start + slot_bytes, "fill {fill} is not at {range:?}");
}

/// Which memory a region is.
#[derive(Clone, Copy)]
enum Memory {
    Input,
    Output,
    Scratch,
    Mailbox(usize),
    Remote(usize),
}

/// One rank's share of one operation, and its own buffers.
pub(super) struct Part {
    pub(super) plan: Arc<Plan>,
    pub(super) bearings: Bearings,
    pub(super) sizes: Sizes<'static>,
    pub(super) fold: Fold,
    pub(super) channel_base: u16,
    pub(super) buffer: Vec<u8>,
    /// Where in `buffer` the two are; in place they overlap.
    pub(super) input: Range<usize>,
    pub(super) output: Range<usize>,
    scratch: Vec<u8>,
    memory: Vec<Memory>,
    /// Per counter: its way.
    counters: Vec<usize>,
    drained: bool,
    done: bool,
}

/// What a part is made from.
pub(super) struct Shape {
    pub(super) plan: Arc<Plan>,
    pub(super) bearings: Bearings,
    pub(super) sizes: Sizes<'static>,
    pub(super) fold: Fold,
    pub(super) channel_base: u16,
}

impl Part {
    pub(super) fn new(shape: Shape, buffer: Vec<u8>, input: Range<usize>, output: Range<usize>) -> Self {
        let Shape { plan, bearings, sizes, fold, channel_base } = shape;
        let scratch = vec![0xa5; plan.scratch as usize * sizes.slot_bytes];
        Part {
            plan,
            bearings,
            sizes,
            fold,
            channel_base,
            buffer,
            input,
            output,
            scratch,
            memory: Vec::new(),
            counters: Vec::new(),
            drained: false,
            done: false,
        }
    }
}

/// A rank: what it does, one turn after the other; the parts of a turn run side by side.
#[derive(Default)]
struct Member {
    turns: Vec<Vec<Part>>,
    at: usize,
    started: bool,
    /// Used again for every turn, as in the engine.
    executors: [Executor; 2],
    stopped: bool,
}

/// A rank found a peer in another operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Mismatch {
    pub(super) rank: Rank,
    pub(super) peer: Rank,
    pub(super) turn: usize,
}

/// Everything that a job touches.
pub(super) struct World {
    members: Vec<Member>,
    ways: Vec<Way>,
    random: Random,
    mapped: fn(Rank, Rank) -> bool,
}

impl World {
    pub(super) fn new(ranks: u32, mapped: fn(Rank, Rank) -> bool, random: Random) -> Self {
        let members = (0..ranks).map(|_| Member::default()).collect();
        World { members, ways: Vec::new(), random, mapped }
    }

    /// Gives a rank something to do after all it has to do already.
    pub(super) fn push(&mut self, rank: Rank, mut parts: Vec<Part>) {
        for part in &mut parts {
            self.bind(part);
        }
        self.members[rank as usize].turns.push(parts);
    }

    fn bind(&mut self, part: &mut Part) {
        let (plan, bearings, base) = (part.plan.clone(), part.bearings, part.channel_base);
        let mut way = |from: consort_algorithms::Rank, to: consort_algorithms::Rank, channel: Channel| {
            self.way(bearings.rank(from), bearings.rank(to), base + channel.0)
        };
        for used in &plan.regions {
            part.memory.push(match used.region {
                Region::Input(rank) if rank == plan.rank => Memory::Input,
                Region::Output(rank) if rank == plan.rank => Memory::Output,
                Region::Scratch => Memory::Scratch,
                Region::Mailbox { owner, writer, channel } if owner == plan.rank => {
                    Memory::Mailbox(way(writer, owner, channel))
                }
                Region::Mailbox { owner, writer, channel } => Memory::Remote(way(writer, owner, channel)),
                other => panic!("nobody binds {other:?}"),
            });
        }
        for used in &plan.counters {
            let id = used.id;
            part.counters.push(match id.role {
                CounterRole::Ready => way(id.writer, id.owner, id.channel),
                CounterRole::Credit => way(id.owner, id.writer, id.channel),
                CounterRole::Flag(_) => panic!("nobody binds a flag"),
            });
        }
    }

    fn way(&mut self, from: Rank, to: Rank, channel: u16) -> usize {
        let same = |way: &Way| (way.from, way.to, way.channel) == (from, to, channel);
        self.ways.iter().position(same).unwrap_or_else(|| {
            let bytes = SLOTS as usize * SLOT_BYTES_MAX;
            self.ways.push(Way {
                from,
                to,
                channel,
                mapped: (self.mapped)(from, to),
                mailbox: vec![0xee; bytes],
                holds: vec![0; bytes],
                ready: Seen::default(),
                credit: Seen::default(),
                ready_raised: 0,
                credit_raised: 0,
                data: VecDeque::new(),
                credits: VecDeque::new(),
                filled: 0,
                emptied: 0,
                filled_slot_bytes: 0,
            });
            self.ways.len() - 1
        })
    }

    /// Lets ranks go on and messages arrive in a random order, until all ranks have done everything. If some ranks stop
    /// because of a mismatch, it ends when no other rank can go on.
    pub(super) fn run(&mut self) -> Vec<Mismatch> {
        let ranks = self.members.len();
        // One rank is much slower than the others.
        let slow = self.random.below(2 * ranks);
        let patience = 600 * ranks + 100 * self.ways.len();
        let mut mismatches = Vec::new();
        let mut idle = 0;
        while self.members.iter().any(|member| !member.stopped && member.at < member.turns.len()) {
            let rank = self.random.below(ranks);
            let moved = if !self.ways.is_empty() && self.random.once_in(2) {
                self.deliver()
            } else if self.members[rank].stopped || rank == slow && !self.random.once_in(8) {
                false
            } else {
                match self.advance(rank) {
                    Ok(moved) => moved,
                    Err(mismatch) => {
                        self.members[rank].stopped = true;
                        mismatches.push(mismatch);
                        true
                    }
                }
            };
            idle = if moved { 0 } else { idle + 1 };
            if idle > patience {
                assert!(!mismatches.is_empty(), "no rank can go on: {:?}", self.blocked());
                break;
            }
        }
        mismatches
    }

    fn blocked(&self) -> Vec<(usize, Option<Blockage>)> {
        let last = |member: &Member| {
            let part = member.turns.get(member.at)?.first()?;
            member.executors[0].blockages(&part.plan).next_back()
        };
        self.members.iter().map(|member| (member.at, last(member))).collect()
    }

    /// The parts of a rank's turn, for a look at the results.
    pub(super) fn parts(&self, rank: Rank, turn: usize) -> &[Part] {
        &self.members[rank as usize].turns[turn]
    }

    /// Whether every slot that was filled was emptied, and all of it counted as the links would.
    pub(super) fn check_links(&mut self) {
        while self.ways.iter().any(|way| !way.data.is_empty() || !way.credits.is_empty()) {
            self.deliver();
        }
        for way in &self.ways {
            let counts = [way.filled, way.emptied, way.ready.value, way.credit.value];
            assert_eq!(
                counts, [way.filled; 4],
                "filled, emptied, ready, credit of {} to {}",
                way.from, way.to
            );
            assert!(way.holds.iter().all(|holds| *holds == 0));
        }
    }

    fn deliver(&mut self) -> bool {
        let way = self.random.below(self.ways.len());
        let way = &mut self.ways[way];
        if self.random.once_in(2) {
            match way.data.pop_front() {
                Some(Message::Bytes { at, bytes }) => {
                    way.mailbox[at..at + bytes.len()].copy_from_slice(&bytes)
                }
                Some(Message::Signal { value, tag }) => way.ready.raise(value, tag),
                None => return false,
            }
        } else {
            match way.credits.pop_front() {
                Some(Message::Signal { value, tag }) => way.credit.raise(value, tag),
                Some(Message::Bytes { .. }) => unreachable!("credits have no bytes"),
                None => return false,
            }
        }
        true
    }

    fn advance(&mut self, rank: usize) -> Result<bool, Mismatch> {
        let World { members, ways, random, .. } = self;
        let member = &mut members[rank];
        let Some(parts) = member.turns.get_mut(member.at) else { return Ok(false) };
        if !member.started {
            for (part, executor) in parts.iter().zip(&mut member.executors) {
                let outgoing = |counter: usize| {
                    let id = part.plan.counters[counter].id;
                    (id.owner == part.plan.rank) == (id.role == CounterRole::Credit)
                };
                executor.start(
                    &part.plan,
                    &part.sizes,
                    |counter| {
                        let way = &ways[part.counters[counter]];
                        if outgoing(counter) { way.filled } else { way.emptied }
                    },
                    |region| match part.memory[region] {
                        Memory::Mailbox(way) => ways[way].emptied,
                        Memory::Remote(way) => ways[way].filled,
                        _ => 0,
                    },
                );
            }
            member.started = true;
        }
        let mut moved = false;
        for (part, executor) in parts.iter_mut().zip(&mut member.executors) {
            if part.done || !drain(part, ways) {
                continue;
            }
            let (plan, sizes, bearings) = (part.plan.clone(), part.sizes, part.bearings);
            executor.limit_turns(random.pick(&[0, 0, 1, 3, 7]));
            let mut io = VectorIo { part, ways: &mut *ways, random: &*random };
            let progress = match executor.advance(&plan, &sizes, &mut io) {
                Ok(progress) => progress,
                Err(Stop::Mismatch { peer }) => {
                    return Err(Mismatch { rank: rank as Rank, peer: bearings.rank(peer), turn: member.at });
                }
                Err(Stop::Fault(never)) => match never {},
            };
            assert!(
                progress != Progress::Blocked || executor.blockages(&plan).next().is_some(),
                "blocked by nothing"
            );
            moved |= progress != Progress::Blocked;
            if progress == Progress::Done {
                settle(part, executor.iterations(), ways);
                part.done = true;
            }
        }
        if parts.iter().all(|part| part.done) {
            member.at += 1;
            member.started = false;
        }
        Ok(moved)
    }
}

/// `Bound::undrained`: slots of another length wait until the mailbox is empty.
fn drain(part: &mut Part, ways: &mut [Way]) -> bool {
    if part.drained {
        return true;
    }
    for (used, way) in part.plan.counters.iter().zip(&part.counters) {
        let way = &mut ways[*way];
        let fills = used.id.role == CounterRole::Credit && used.id.owner == part.plan.rank;
        if fills && way.filled_slot_bytes != part.sizes.slot_bytes {
            if way.credit.value < way.filled {
                return false;
            }
            way.filled_slot_bytes = part.sizes.slot_bytes;
        }
    }
    part.drained = true;
    true
}

/// `Bound::settle`: what was filled and emptied counts from now on.
fn settle(part: &Part, iterations: u32, ways: &mut [Way]) {
    for (used, memory) in part.plan.regions.iter().zip(&part.memory) {
        let slots = used.slots_per_iteration as u64 * iterations as u64;
        match memory {
            Memory::Mailbox(way) => ways[*way].emptied += slots,
            Memory::Remote(way) => ways[*way].filled += slots,
            _ => {}
        }
    }
}

/// Nothing here fails.
enum Never {}

struct VectorIo<'a> {
    part: &'a mut Part,
    ways: &'a mut [Way],
    random: &'a Random,
}

impl VectorIo<'_> {
    fn load(&self, piece: Piece, bytes: usize) -> Vec<u8> {
        let part = &self.part;
        let range = piece.offset..piece.offset + bytes;
        match part.memory[piece.region as usize] {
            Memory::Input => part.buffer[part.input.clone()][range].to_vec(),
            Memory::Output => part.buffer[part.output.clone()][range].to_vec(),
            Memory::Scratch => part.scratch[range].to_vec(),
            Memory::Mailbox(way) => self.ways[way].read(range, part.sizes.slot_bytes).to_vec(),
            Memory::Remote(_) => panic!("nobody reads a peer's mailbox"),
        }
    }

    fn folded(&self, sources: &[Piece], bytes: usize, finish: bool) -> Vec<u8> {
        let fold = self.part.fold;
        let source = |piece: &Piece| -> Vec<u64> {
            let scaled = |value| if piece.raw { fold.scale(value) } else { value };
            words(&self.load(*piece, bytes)).map(scaled).collect()
        };
        let mut result = source(&sources[0]);
        for next in &sources[1..] {
            result.iter_mut().zip(source(next)).for_each(|(value, next)| *value = fold.join(*value, next));
        }
        let last = |value: u64| if finish { fold.finish(value) } else { value };
        result.into_iter().flat_map(|value| last(value).to_le_bytes()).collect()
    }
}

impl Io for VectorIo<'_> {
    type Fault = Never;

    fn reached(&mut self, counter: u32, value: u64) -> Result<bool, Never> {
        let id = self.part.plan.counters[counter as usize].id;
        assert_eq!(id.owner, self.part.plan.rank, "a rank waits for its own counters only");
        let way = &self.ways[self.part.counters[counter as usize]];
        let seen = if id.role == CounterRole::Ready { &way.ready } else { &way.credit };
        // Another core's stores may come to light late.
        let seen = seen.value;
        Ok(!self.random.once_in(6) && seen >= value)
    }

    fn tag(&mut self, counter: u32, value: u64) -> u64 {
        let way = &self.ways[self.part.counters[counter as usize]];
        let last_kept = value + Counter::TAGS_MAX as u64;
        assert!((value..last_kept).contains(&way.ready.value), "the tag is not there yet, or not any more");
        way.ready.tags[value as usize - 1]
    }

    fn signal(&mut self, counter: u32, value: u64, tag: u64) -> Result<Poll<()>, Never> {
        let id = self.part.plan.counters[counter as usize].id;
        assert_eq!(id.writer, self.part.plan.rank, "a rank raises its peers' counters only");
        let way = &mut self.ways[self.part.counters[counter as usize]];
        if !way.mapped && self.random.once_in(4) {
            return Ok(Poll::Pending);
        }
        if id.role == CounterRole::Ready {
            assert_eq!(value, way.ready_raised + 1, "slots are signalled one by one");
            way.ready_raised = value;
        } else {
            way.release(value);
        }
        match (id.role, way.mapped) {
            (CounterRole::Ready, true) => way.ready.raise(value, tag),
            (CounterRole::Ready, false) => way.data.push_back(Message::Signal { value, tag }),
            (_, true) => way.credit.raise(value, tag),
            (_, false) => way.credits.push_back(Message::Signal { value, tag }),
        }
        Ok(Poll::Ready(()))
    }

    fn fold(
        &mut self,
        targets: &[Piece],
        sources: &[Piece],
        bytes: usize,
        finish: bool,
    ) -> Result<Poll<()>, Never> {
        // A transport may still read what is there.
        if self.random.once_in(8) {
            return Ok(Poll::Pending);
        }
        let result = self.folded(sources, bytes, finish);
        for piece in targets {
            let part = &mut *self.part;
            let range = piece.offset..piece.offset + bytes;
            let target = match part.memory[piece.region as usize] {
                Memory::Output => &mut part.buffer[part.output.clone()][range],
                Memory::Scratch => &mut part.scratch[range],
                Memory::Remote(way) => {
                    let way = &mut self.ways[way];
                    assert!(way.mapped, "the processor stores to mapped mailboxes only");
                    way.reserve(range.clone(), self.part.sizes.slot_bytes);
                    &mut way.mailbox[range]
                }
                Memory::Input | Memory::Mailbox(_) => panic!("nobody writes an input or the own mailbox"),
            };
            target.copy_from_slice(&result);
        }
        Ok(Poll::Ready(()))
    }

    fn put(
        &mut self,
        target: Piece,
        source: Piece,
        bytes: usize,
        finish: bool,
        done: &mut usize,
    ) -> Result<Poll<()>, Never> {
        let Memory::Remote(way) = self.part.memory[target.region as usize] else {
            panic!("a put goes to a peer's mailbox")
        };
        let result = self.folded(&[source], bytes, finish);
        let way = &mut self.ways[way];
        let now = if self.random.once_in(3) { self.random.below(bytes) } else { bytes };
        let next = (*done + now).min(bytes);
        let range = target.offset + *done..target.offset + next;
        way.reserve(range.clone(), self.part.sizes.slot_bytes);
        if way.mapped {
            way.mailbox[range].copy_from_slice(&result[*done..next]);
        } else if next > *done {
            way.data.push_back(Message::Bytes { at: range.start, bytes: result[*done..next].to_vec() });
        }
        *done = next;
        Ok(if next == bytes { Poll::Ready(()) } else { Poll::Pending })
    }
}
