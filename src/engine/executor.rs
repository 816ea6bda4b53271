//! Runs a plan, one step after the other, against whatever memory and links [`Io`] stands for.
//!
//! Invariant: it never waits, allocates (after its first use of a plan's shape) or reads a clock; what it
//! cannot do now it leaves, and says so. The real engine ([`RealIo`](super::real_io::RealIo)) and the simulation
//! of whole jobs in one thread (`tests/world.rs`) run this same code.

use std::task::Poll;

use consort_algorithms::plan::{Action, CounterId, CounterRole, Operand, Plan, Position, Region, Step};
use consort_algorithms::{Extents, Rank, lengths};

/// Memory and links, as the executor sees them. Regions and counters are the plan's own numbers.
pub(crate) trait Io {
    /// The reason for which a link could not go on.
    type Fault;

    /// Whether an own counter has reached a value, or whatever comes next will not begin before it has.
    fn reached(&mut self, counter: u32, value: u64) -> Result<bool, Self::Fault>;

    /// The tag that travelled with the signal that made it `value`, which it has reached.
    fn tag(&mut self, counter: u32, value: u64) -> u64;

    /// Raises a peer's counter.
    fn signal(&mut self, counter: u32, value: u64, tag: u64) -> Result<Poll<()>, Self::Fault>;

    /// Folds the sources, in order, into every target; not while a transport may read what was there.
    fn fold(
        &mut self,
        targets: &[Piece],
        sources: &[Piece],
        bytes: usize,
        finish: bool,
    ) -> Result<Poll<()>, Self::Fault>;

    /// Lets the transport write. `done` is the transport's, 0 at first.
    fn put(
        &mut self,
        target: Piece,
        source: Piece,
        bytes: usize,
        finish: bool,
        done: &mut usize,
    ) -> Result<Poll<()>, Self::Fault>;

    /// The same, and then the [signal](Io::signal) that publishes it, which a link may send with it.
    fn fill(
        &mut self,
        target: Piece,
        source: Piece,
        (bytes, finish): (usize, bool),
        (counter, value, tag): (u32, u64, u64),
        done: &mut usize,
    ) -> Result<Poll<()>, Self::Fault> {
        if self.put(target, source, bytes, finish, done)?.is_pending() {
            return Ok(Poll::Pending);
        }
        self.signal(counter, value, tag)
    }
}

/// A part of a region.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Piece {
    pub(crate) region: u16,
    /// A rank's own contribution, not yet scaled for `avg`.
    pub(crate) raw: bool,
    pub(crate) offset: usize,
}

/// Sizes of one operation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes<'a> {
    pub(crate) extents: Extents<'a>,
    /// Bytes of a slot, and so of a slice; a power of two.
    pub(crate) slot_bytes: usize,
    /// Travels with every signal that says that bytes are ready. Its low [`pool::POOL_BITS`](consort_memory::pool::POOL_BITS) bits are 0.
    pub(crate) tag: u64,
}

/// The result of a turn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Progress {
    /// The operation is over.
    Done,
    /// A step was done.
    Moved,
    /// The operation waits for a peer.
    Blocked,
}

/// The reason for which an operation cannot go on at all.
#[derive(Debug)]
pub(crate) enum Stop<F> {
    /// A peer is in another operation than this rank.
    Mismatch { peer: Rank },
    /// A link failed.
    Fault(F),
}

/// Slices of a lane in one turn, at most, where a plan has several lanes. A lane that reads would go on for as long as its peer sends, and this
/// rank would send nothing meanwhile: so slots would gather here and go back by themselves, in place of with its own messages.
const SLICES_A_TURN: u32 = 2;

#[derive(Clone, Copy, Default, Debug)]
struct LaneState {
    at: u32,
    iteration: u32,
    done: bool,
    /// Whether the lane could not go on in the last turn.
    blocked: bool,
    put_done: usize,
}

/// The state of one operation.
#[derive(Debug, Default)]
pub(crate) struct Executor {
    lanes: Vec<LaneState>,
    /// Per counter: its value when the operation started.
    counter_base: Vec<u64>,
    /// Per counter: what this rank has raised it to.
    raised: Vec<u64>,
    /// Per region: mailbox slots used before the operation started.
    slot_base: Vec<u64>,
    iterations: u32,
    /// Steps of a lane in one turn, at most; 0 for no limit.
    steps_max: u32,
}

/// Why a lane does not go on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Blockage {
    /// A counter of the plan has not reached a value.
    Wait { counter: u32, value: u64 },
    /// A link does not take the signal for this counter of the plan.
    Signal { counter: u32 },
    /// A link does not take bytes for this region of the plan.
    Put { region: u16 },
    /// A transport may still read where a step writes.
    Source,
}

impl Executor {
    /// Makes ready for an operation; the two closures give the bases.
    pub(crate) fn start(
        &mut self,
        plan: &Plan,
        sizes: &Sizes<'_>,
        counter_base: impl Fn(usize) -> u64,
        slot_base: impl Fn(usize) -> u64,
    ) {
        self.lanes.clear();
        self.lanes.resize(plan.lanes.len(), LaneState::default());
        for (state, lane) in self.lanes.iter_mut().zip(&plan.lanes) {
            state.at = lane.start;
            state.done = lane.start == lane.end;
        }
        self.counter_base.clear();
        self.counter_base.extend((0..plan.counters.len()).map(counter_base));
        self.raised.clear();
        self.raised.extend_from_slice(&self.counter_base);
        self.slot_base.clear();
        self.slot_base.extend((0..plan.regions.len()).map(slot_base));
        debug_assert!(sizes.slot_bytes.is_power_of_two() && plan.slots.is_power_of_two());
        let longest = sizes.extents.longest();
        let slices = (longest + sizes.slot_bytes - 1) >> sizes.slot_bytes.trailing_zeros();
        self.iterations = if plan.sliced { slices.max(1) as u32 } else { 1 };
    }

    /// How often the body runs.
    pub(crate) fn iterations(&self) -> u32 {
        self.iterations
    }

    /// How many times all lanes have run the body.
    pub(crate) fn slices_done(&self) -> u32 {
        let done = |lane: &LaneState| if lane.done { self.iterations } else { lane.iteration };
        self.lanes.iter().map(done).min().unwrap_or(self.iterations)
    }

    /// What each lane could not do that could not go on in the last turn.
    pub(crate) fn blockages(&self, plan: &Plan) -> impl DoubleEndedIterator<Item = Blockage> {
        self.lanes.iter().filter(|lane| lane.blocked).filter_map(move |lane| {
            let step = plan.steps.get(lane.at as usize)?;
            let Step { action, counter, .. } = *step;
            match action {
                Action::Wait => {
                    Some(Blockage::Wait { counter, value: self.threshold(plan, step, lane.iteration) })
                }
                Action::Signal => Some(Blockage::Signal { counter }),
                Action::Put => Some(Blockage::Put { region: plan.targets(step)[0].region }),
                Action::Copy | Action::Reduce => Some(Blockage::Source),
                Action::Get => None,
            }
        })
    }

    /// The value of an own counter at which a wait goes on.
    #[inline]
    fn threshold(&self, plan: &Plan, step: &Step, iteration: u32) -> u64 {
        let turns = iteration as u64 * plan.counters[step.counter as usize].per_iteration as u64;
        (self.counter_base[step.counter as usize] + turns).wrapping_add_signed(step.value as i64)
    }

    /// Where the last blocked lane stands: its step and how many it has, its iteration and how many there are.
    pub(crate) fn standing(&self, plan: &Plan) -> (u32, u32, u32, u32) {
        let mut lanes = plan.lanes.iter().zip(&self.lanes).filter(|(_, state)| state.blocked);
        lanes.next_back().map_or((0, 0, 0, 0), |(lane, state)| {
            (state.at - lane.start, lane.end - lane.start, state.iteration, self.iterations)
        })
    }

    /// What this rank has raised a counter of the plan to.
    pub(crate) fn raised(&self, counter: usize) -> u64 {
        self.raised.get(counter).copied().unwrap_or(0)
    }

    /// When there is but one lane: the plan's number of the counter that it waits for, and the value.
    pub(crate) fn awaited(&self, plan: &Plan) -> Option<(u32, u64)> {
        match self.blockages(plan).next() {
            Some(Blockage::Wait { counter, value }) if self.lanes.len() == 1 => Some((counter, value)),
            _ => None,
        }
    }

    /// Lets a turn end after this many steps of each lane, for a thread that has other things to do; 0 for no limit.
    pub(crate) fn limit_turns(&mut self, steps_max: u32) {
        self.steps_max = steps_max;
    }

    /// Goes on as far as it can.
    pub(crate) fn advance<I: Io>(
        &mut self,
        plan: &Plan,
        sizes: &Sizes<'_>,
        io: &mut I,
    ) -> Result<Progress, Stop<I::Fault>> {
        let mut moved = false;
        let mut done = true;
        for index in 0..self.lanes.len() {
            let mut lane = self.lanes[index];
            if lane.done {
                continue;
            }
            let bounds = &plan.lanes[index];
            let mut steps = 0;
            lane.blocked = false;
            let before = (lane.at, lane.iteration, lane.put_done);
            let last = if self.lanes.len() > 1 { lane.iteration + SLICES_A_TURN } else { u32::MAX };
            let result = loop {
                let ahead = &plan.steps[lane.at as usize..bounds.end as usize];
                let body = Body { plan, sizes, iteration: lane.iteration };
                let taken = match self.step(body, ahead, &mut lane.put_done, io) {
                    Ok(Poll::Ready(taken)) => taken,
                    Ok(Poll::Pending) => {
                        lane.blocked = true;
                        break Ok(());
                    }
                    Err(stop) => break Err(stop),
                };
                lane.put_done = 0;
                lane.at += taken;
                if lane.at == bounds.end {
                    lane.at = bounds.start;
                    lane.iteration += 1;
                    if lane.iteration == self.iterations {
                        lane.done = true;
                        break Ok(());
                    }
                    if lane.iteration == last {
                        break Ok(());
                    }
                }
                steps += 1;
                if steps == self.steps_max {
                    break Ok(());
                }
            };
            moved |= before != (lane.at, lane.iteration, lane.put_done) || lane.done;
            done &= lane.done;
            self.lanes[index] = lane;
            result?;
        }
        Ok(if done {
            Progress::Done
        } else if moved {
            Progress::Moved
        } else {
            Progress::Blocked
        })
    }

    /// Does the first of the steps `ahead`. How many it has done: a put and the signal behind it are one.
    #[inline]
    fn step<I: Io>(&mut self, body: Body<'_>, ahead: &[Step], done: &mut usize, io: &mut I) -> Taken<I> {
        let (step, Body { plan, sizes, iteration }) = (&ahead[0], body);
        match step.action {
            Action::Wait => {
                let counter = &plan.counters[step.counter as usize];
                let target = self.threshold(plan, step, iteration);
                // A threshold before the counter's beginning is no threshold.
                if target as i64 > 0 {
                    if !io.reached(step.counter, target).map_err(Stop::Fault)? {
                        return Ok(Poll::Pending);
                    }
                    if counter.id.role == CounterRole::Ready && io.tag(step.counter, target) != sizes.tag {
                        return Err(Stop::Mismatch { peer: counter.id.writer });
                    }
                }
                Ok(Poll::Ready(1))
            }
            Action::Signal => {
                let value = self.raises_to(step);
                let sent = io.signal(step.counter, value, sizes.tag).map_err(Stop::Fault)?;
                self.sent(sent, step, value, 1)
            }
            Action::Copy | Action::Reduce => {
                let bytes = body.length(step);
                let folded = if bytes == 0 {
                    Poll::Ready(())
                } else {
                    let piece = |at, operand: &Operand| self.piece(body, operand, step.raw >> at & 1 != 0);
                    each(
                        plan.targets(step),
                        |_, operand| self.piece(body, operand, false),
                        |to| {
                            each(plan.sources(step), piece, |from| {
                                io.fold(to, from, bytes, step.has(Step::FINISH))
                            })
                        },
                    )
                    .map_err(Stop::Fault)?
                };
                Ok(folded.map(|()| 1))
            }
            Action::Put => self.put(body, ahead, done, io),
            // No link of this version reads a peer's memory, and the planner makes no such plan.
            Action::Get => unreachable!("the planner binds no plan with a get"),
        }
    }

    fn put<I: Io>(&mut self, body: Body<'_>, ahead: &[Step], done: &mut usize, io: &mut I) -> Taken<I> {
        let (step, Body { plan, sizes, .. }) = (&ahead[0], body);
        let (bytes, finish) = (body.length(step), step.has(Step::FINISH));
        if bytes == 0 {
            return Ok(Poll::Ready(1));
        }
        let (to, from) = (&plan.targets(step)[0], &plan.sources(step)[0]);
        let (target, source) = (self.piece(body, to, false), self.piece(body, from, step.raw & 1 != 0));
        match ahead.get(1).filter(|next| publishes(plan, next, to.region)) {
            Some(signal) => {
                let value = self.raises_to(signal);
                let ready = (signal.counter, value, sizes.tag);
                let taken = io.fill(target, source, (bytes, finish), ready, done).map_err(Stop::Fault)?;
                self.sent(taken, signal, value, 2)
            }
            None => Ok(io.put(target, source, bytes, finish, done).map_err(Stop::Fault)?.map(|()| 1)),
        }
    }

    /// What a signal raises its counter to. Exactly one lane raises a counter, so that is known here.
    #[inline]
    fn raises_to(&self, signal: &Step) -> u64 {
        self.raised[signal.counter as usize] + signal.value as u64
    }

    /// Whether a signal was taken, and with it this many steps.
    #[inline]
    fn sent<F>(&mut self, taken: Poll<()>, signal: &Step, value: u64, steps: u32) -> Result<Poll<u32>, F> {
        if taken.is_ready() {
            self.raised[signal.counter as usize] = value;
        }
        Ok(taken.map(|()| steps))
    }

    #[inline]
    fn piece(&self, body: Body<'_>, operand: &Operand, raw: bool) -> Piece {
        let Body { plan, sizes, iteration } = body;
        let offset = match operand.position {
            Position::Chunk(chunk) => {
                let first = sizes.extents.offset_of(chunk, || holds_all(plan, operand.region));
                first + iteration as usize * sizes.slot_bytes
            }
            Position::Slot(nth) => {
                let region = &plan.regions[operand.region as usize];
                let turns = iteration as u64 * region.slots_per_iteration as u64;
                let used = self.slot_base[operand.region as usize] + turns + nth as u64;
                (used & (plan.slots as u64 - 1)) as usize * sizes.slot_bytes
            }
            Position::Scratch(place) => place as usize * sizes.slot_bytes,
            Position::Table(_) => unreachable!("the planner binds no plan with a table"),
        };
        Piece { region: operand.region, raw, offset }
    }
}

/// How many steps were done, if one was.
type Taken<I> = Result<Poll<u32>, Stop<<I as Io>::Fault>>;

/// An iteration of a plan's body, with the sizes of the operation.
#[derive(Clone, Copy)]
struct Body<'a> {
    plan: &'a Plan,
    sizes: &'a Sizes<'a>,
    iteration: u32,
}

impl Body<'_> {
    /// Bytes of a step.
    #[inline]
    fn length(self, step: &Step) -> usize {
        let Body { plan, sizes: Sizes { extents, slot_bytes, .. }, iteration } = self;
        let Some(chunk) = step.extent.as_chunk() else {
            unreachable!("the planner binds no plan with a table")
        };
        let bytes = extents.length(chunk);
        if !plan.sliced {
            return bytes;
        }
        bytes.saturating_sub(iteration as usize * slot_bytes).min(*slot_bytes)
    }
}

/// Gives `then` what each of a step's places is. One and two take no table.
#[inline]
pub(super) fn each<T, U: Copy, R>(
    places: &[T],
    of: impl Fn(usize, &T) -> U,
    then: impl FnOnce(&[U]) -> R,
) -> R {
    match places {
        [] => then(&[]),
        [only] => then(&[of(0, only)]),
        [first, second] => then(&[of(0, first), of(1, second)]),
        [first, ..] => {
            let mut all = [of(0, first); Step::PLACES_MAX];
            all.iter_mut().zip(places).enumerate().for_each(|(at, (each, place))| *each = of(at, place));
            then(&all[..places.len()])
        }
    }
}

/// Whether a step signals that a peer's mailbox, a region of the plan, has been filled.
#[inline]
fn publishes(plan: &Plan, step: &Step, region: u16) -> bool {
    let Region::Mailbox { owner, writer, channel } = plan.regions[region as usize].region else {
        return false;
    };
    let is_its = |id: &CounterId| {
        id.role == CounterRole::Ready && (id.owner, id.writer, id.channel) == (owner, writer, channel)
    };
    step.action == Action::Signal && is_its(&plan.counters[step.counter as usize].id)
}

/// Whether a region of a plan holds the blocks of all ranks.
fn holds_all(plan: &Plan, region: u16) -> bool {
    match plan.regions[region as usize].region {
        Region::Input(_) => lengths::holds_all(plan.collective, false),
        Region::Output(_) => lengths::holds_all(plan.collective, true),
        _ => false,
    }
}
