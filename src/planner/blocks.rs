//! Thread blocks of a call whose plans kernels run: how its bytes are cut among them, and how long they take.
//!
//! Invariant: both follow from the call's shape and from what the plans of all ranks have in common, so they are equal on all
//! ranks. What kernels run is cut by [`Cut::of`], and priced by it. Absent: choosing.
//!
//! Source of the figures: `docs/measurements/gpu.md`, plans of all-reduces by kernels on an H200. Its 312 times are within 4 %
//! in the median and within a factor of 1.4 of what [`Load::seconds`] and [`BLOCK_S`] say.

#[cfg(test)]
mod tests;

use std::collections::HashMap;

use consort_algorithms::plan::{Action, CounterId, Lane};
use consort_algorithms::{Collective, Plan};
use consort_kernels::cuda::layout::{self, MAX_PROGRAMS};

use super::devices::BOXES;
use consort_settings::options::SLOTS;

/// Blocks that share a lane's work, at most: each has its part of every mailbox, and its own counters.
pub(crate) const INSTANCES_MAX: usize = 16;
/// Mailboxes for each ordered pair of ranks: those of collectives, and one of messages.
pub(crate) const CLASSES: usize = BOXES + 1;
/// Bytes of a rank's mailboxes, about.
const ARENA_BYTES: usize = 48 << 20;
/// The longest slot of all blocks of a lane, and the shortest.
const STRIDE_MAX: usize = 4 << 20;
const STRIDE_MIN: usize = 64 << 10;
/// The shortest slot of a block, where the arena has room for it.
const SLOT_BYTES_MIN: usize = 4096;
/// Bytes of a chunk that are worth a block of their own. By the prices 32 KiB are better than 64 KiB by 11 to 90 % for
/// all-reduces of 64 KiB to 256 KiB among 2, 4 and 8 ranks with a device each, and worse by 3 % at most; 16 KiB change little more.
const BLOCK_BYTES: usize = 32 << 10;

/// Seconds that each block of a launch adds to it: the block reads its record from the host's memory.
pub(super) const BLOCK_S: f64 = 0.40e-6;
/// Seconds of a signal and of the wait for it, fences included.
const SIGNAL_S: f64 = 2.25e-6;
/// Bytes a second that a block reads and writes together.
const BLOCK_BYTES_S: f64 = 59.1e9;

/// The cut of a call's chunks among blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Cut {
    /// Blocks that share the work of a lane.
    pub(crate) instances: u32,
    /// Bytes of a block's part of the longest chunk.
    pub(crate) part: usize,
    /// Bytes of a slot of one block.
    pub(crate) slot_bytes: usize,
    /// Slices of a part.
    pub(crate) iterations: u32,
}

impl Cut {
    /// The cut of chunks of at most `longest` bytes, where a launch has at most `blocks_max` blocks, which `beside` lanes share,
    /// the blocks of a lane share slots of `stride` bytes, and the plans have up to `channels` channels from a rank to
    /// another.
    pub(crate) fn of(
        longest: usize,
        is_sliced: bool,
        beside: usize,
        blocks_max: u32,
        stride: usize,
        channels: usize,
    ) -> Self {
        let instances = instances(longest, beside, blocks_max).min(instances_max(channels));
        let most = stride / INSTANCES_MAX;
        let part = layout::part(longest as u64, 0, u64::from(instances)).end as usize;
        let slot_bytes = part.next_power_of_two().clamp(SLOT_BYTES_MIN.min(most), most);
        let iterations =
            if is_sliced { u32::try_from(part.div_ceil(slot_bytes).max(1)).unwrap_or(u32::MAX) } else { 1 };
        Cut { instances, part, slot_bytes, iterations }
    }
}

/// Channels from a rank to another that share a mailbox, where plans have up to `channels` of them.
fn sharing(channels: usize) -> usize {
    channels.div_ceil(BOXES).max(1)
}

/// The mailbox of the `nth` channel from a rank to another, and the first of the blocks whose slots and counters are
/// the channel's part of it, where plans have up to `channels` channels. A part has [`instances_max`] blocks.
pub(crate) fn part_of(nth: usize, channels: usize) -> (usize, usize) {
    let sharing = sharing(channels);
    (nth / sharing, nth % sharing * (INSTANCES_MAX / sharing))
}

/// Blocks that share a lane's work, at most, where plans have up to `channels` channels from a rank to another.
pub(super) fn instances_max(channels: usize) -> u32 {
    (INSTANCES_MAX / sharing(channels)).max(1) as u32
}

/// The number of blocks that share the work of a lane whose longest chunk has `longest` bytes, where `beside` lanes share a
/// launch of `blocks_max` blocks.
pub(crate) fn instances(longest: usize, beside: usize, blocks_max: u32) -> u32 {
    let most = (blocks_max / (beside as u32).max(1)).clamp(1, INSTANCES_MAX as u32);
    // Of any length, also of one that no memory has.
    longest.div_ceil(BLOCK_BYTES).clamp(1, most as usize) as u32
}

/// The lanes that share a launch: `lanes` is the most that the plan of a rank has.
///
/// A rank's messages to all others and from them are to fit into one launch. Its peers do not know how many messages a group
/// has, so a message has its share of the blocks whether others come along or not.
pub(crate) fn beside(collective: Collective, ranks: u32, lanes: usize) -> usize {
    if collective == Collective::SendReceive {
        return (2 * ranks.saturating_sub(1) as usize).min(MAX_PROGRAMS);
    }
    lanes
}

/// Bytes of a slot of all blocks of a lane, among `ranks` ranks.
pub(crate) fn stride(ranks: u32) -> usize {
    let share = ARENA_BYTES / (ranks as usize * CLASSES * SLOTS as usize);
    let power = 1 << share.max(1).ilog2();
    power.clamp(STRIDE_MIN, STRIDE_MAX)
}

/// Signals, and places that are read or written: sources and targets, each as long as a slice.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
struct Work {
    signals: u32,
    places: u32,
}

impl Work {
    fn holds(self, other: Work) -> bool {
        self.signals >= other.signals && self.places >= other.places
    }

    /// Seconds of so much work in each of `iterations`, whose slices have `bytes` bytes together.
    fn seconds(self, iterations: u32, bytes: usize) -> f64 {
        let signals = f64::from(self.signals) * f64::from(iterations) * SIGNAL_S;
        signals + f64::from(self.places) * bytes as f64 / BLOCK_BYTES_S
    }
}

/// Amounts of work, and none holds another: the slices decide which takes longest.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
struct Most(Vec<Work>);

impl Most {
    fn put(&mut self, more: Work) {
        if !self.0.iter().any(|of| of.holds(more)) {
            self.0.retain(|of| !more.holds(*of));
            self.0.push(more);
        }
    }

    fn join(&mut self, other: &Most) {
        other.0.iter().for_each(|more| self.put(*more));
    }

    fn seconds(&self, iterations: u32, bytes: usize) -> f64 {
        self.0.iter().map(|work| work.seconds(iterations, bytes)).fold(0.0, f64::max)
    }
}

/// The work in one iteration of the plans of all ranks.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(super) struct Load {
    /// The busiest lane's.
    lane: Most,
    /// That of the longest chain of steps, where each waits for the one before, on whatever rank.
    chain: Most,
}

impl Load {
    /// Of the plans of all ranks, which are proved: none waits for ever.
    pub(super) fn of(plans: &[Plan]) -> Self {
        let mut load = Load::default();
        let mut walks: Vec<Walk<'_>> = Vec::new();
        for plan in plans {
            walks.extend(plan.lanes.iter().map(|lane| Walk::new(plan, lane)));
        }
        let mut raised = Raised::default();
        let mut goes_on = true;
        while goes_on {
            goes_on = false;
            for walk in &mut walks {
                goes_on |= walk.advance(&mut raised);
            }
        }
        for walk in &walks {
            load.lane.put(walk.own);
            load.chain.join(&walk.chain);
        }
        load
    }

    /// Seconds of the blocks of the busiest lane: the first slice passes through all ranks, and the others follow each other.
    pub(super) fn seconds(&self, cut: &Cut) -> f64 {
        let first = if cut.iterations > 1 { cut.part.min(cut.slot_bytes) } else { cut.part };
        self.chain.seconds(1, first) + self.lane.seconds(cut.iterations - 1, cut.part - first)
    }
}

/// The values that counters have reached, each with the work before it.
type Raised = HashMap<CounterId, Vec<(i64, Most)>>;

/// A lane on its way through its first iteration.
///
/// ```text
///           step done                   signal was raised
///   goes on ─────────▶ goes on   waits ──────────────────▶ goes on
///      └─ wait for a signal not yet raised ─▶ waits    └─ no step left ─▶ over
/// ```
struct Walk<'a> {
    plan: &'a Plan,
    lane: &'a Lane,
    /// Steps that are done.
    at: usize,
    own: Work,
    chain: Most,
}

impl<'a> Walk<'a> {
    fn new(plan: &'a Plan, lane: &'a Lane) -> Self {
        Walk { plan, lane, at: 0, own: Work::default(), chain: Most(vec![Work::default()]) }
    }

    /// Goes on up to a wait for what was not raised yet; whether a step was done.
    fn advance(&mut self, raised: &mut Raised) -> bool {
        let before = self.at;
        while let Some(step) = self.plan.lane(self.lane).get(self.at) {
            let counter = self.plan.counters.get(step.counter as usize).map(|used| used.id);
            let mut more = Work::default();
            match (step.action, counter) {
                // What is not positive was raised in an iteration before.
                (Action::Wait, Some(id)) if step.value > 0 => {
                    let known = raised.get(&id).map_or(&[][..], Vec::as_slice);
                    let reached = known.iter().find(|(value, _)| *value >= i64::from(step.value));
                    let Some((_, chain)) = reached else { break };
                    self.chain.join(chain);
                }
                (Action::Wait, _) => {}
                (Action::Signal, _) => more.signals = 1,
                _ => more.places = u32::from(step.targets) + u32::from(step.sources),
            }
            let add = |to: &mut Work| {
                to.signals += more.signals;
                to.places += more.places;
            };
            add(&mut self.own);
            self.chain.0.iter_mut().for_each(add);
            if let (Action::Signal, Some(id)) = (step.action, counter) {
                let known = raised.entry(id).or_default();
                let value = known.last().map_or(0, |(value, _)| *value) + i64::from(step.value);
                known.push((value, self.chain.clone()));
            }
            self.at += 1;
        }
        self.at > before
    }
}

/// Seconds of plans that are not known, by a formula's steps and the bytes over the busiest port, with at most `blocks_max`
/// blocks: a step is a signal each way, and a byte that travels is read and written where it is sent, and read where it
/// arrives.
pub(super) fn seconds_by_formula(steps: f64, bytes: f64, ranks: u32, blocks_max: u32) -> f64 {
    let instances = f64::from(blocks_max.clamp(1, INSTANCES_MAX as u32));
    let slot_bytes = (stride(ranks) / INSTANCES_MAX) as f64;
    let part = bytes / instances;
    (steps + part / slot_bytes) * 2.0 * SIGNAL_S + 3.0 * part / BLOCK_BYTES_S + instances * BLOCK_S
}

/// Seconds of a step that waits for another.
pub(super) const STEP_S: f64 = 2.0 * SIGNAL_S;
