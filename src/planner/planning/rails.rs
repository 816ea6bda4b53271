//! Schedules along rails: where they are candidates, and their prices over any number of boxes.
//!
//! Over more boxes than [`WHOLE_BOXES_MAX`] a price is continued from runs over fewer, on the same machine: a ring has the same rounds
//! for each box more, at pieces of the same length, and a tree the same hops for each doubling, which its first slices show. What
//! a box carries a slice is the same from [`TREE_BOXES`] boxes on. No price is below what the links carry of the schedule over the
//! boxes that are run.
//!
//! Invariant: as of all prices, it is the same on all ranks. Absent: boxes that differ; fabrics whose first boxes are nearer
//! to each other than others are, but for what the links carry.

use consort_algorithms::catalogue::Algorithm;
use consort_algorithms::simulate::{self, simulate};
use consort_algorithms::synthesize::rate;
use consort_algorithms::topology::Topology;
use consort_algorithms::{Collective, catalogue};

use super::super::machine::even_boxes;
use super::{Planning, PoisonError, moves_by_links};

/// Above this number of boxes prices of rings are continued, and from the second on those of trees.
const WHOLE_BOXES_MAX: u32 = 8;
const TREES_BOXES_MIN: u32 = 2 * TREE_BOXES;
/// The most ranks of a box that exchange with all others of it on several channels.
const BOX_RANKS_MAX: u32 = 16;
/// The boxes of trees that are run: fewer have no inner box whose two children are inner boxes too.
const TREE_BOXES: u32 = 8;
/// The boxes of a ring that is run: half of them show what a box adds.
const RING_BOXES: u32 = 4;
/// Slices of a call that shows the hops of a level.
const LEVEL_SLICES: u64 = 8;
/// Messages that a price simulates, as a multiple of those for others: trees on many channels fill slowly.
const PATIENCE: u64 = 4;

/// A run over some boxes: what of, how many boxes, and the bytes of a block and of a slot.
pub(super) type Over = (Algorithm, Collective, u32, u64, usize);

/// Ranks of a box whose rails are worth schedules of their own; 0 where cores move every byte, where boxes differ or are large, and
/// where each rank is a box.
pub(super) fn rails_of(topology: &Topology) -> u32 {
    let per_box = even_boxes(topology);
    let is_one = topology.boxes().len() == 1;
    match per_box {
        _ if !moves_by_links(topology) || topology.ranks() < 2 => 0,
        _ if is_one && topology.ranks() <= BOX_RANKS_MAX => topology.ranks(),
        2..=BOX_RANKS_MAX if !is_one => per_box,
        _ => 0,
    }
}

/// The levels of a tree over that many boxes; between powers of two in a straight line, as a logarithm differs from machine to machine.
fn levels_of(boxes: u32) -> f64 {
    let whole = boxes.ilog2();
    f64::from(whole) + f64::from(boxes) / f64::from(1u32 << whole) - 1.0
}

impl Planning {
    /// Seconds of a schedule along rails; none of other algorithms.
    pub(super) fn price_along_rails(
        &self,
        algorithm: Algorithm,
        collective: Collective,
        block_bytes: u64,
    ) -> Option<f64> {
        let of = algorithm.over_boxes(self.ranks_of(collective))?;
        let is_whole = of.boxes <= if of.is_ring { WHOLE_BOXES_MAX } else { TREES_BOXES_MIN - 1 };
        let seconds = if is_whole {
            self.over(algorithm, collective, (of.boxes, of.per_box), block_bytes, block_bytes)
        } else if of.is_ring {
            self.ring_over(algorithm, collective, of, block_bytes)
        } else {
            self.trees_over(algorithm, collective, of, block_bytes)
        };
        let ranks = self.ranks_of(collective);
        let blocks = collective.input_blocks(ranks).max(collective.output_blocks(ranks));
        let bytes = block_bytes as f64 * f64::from(blocks);
        Some(seconds.max(bytes / self.carried(algorithm, collective, of)))
    }

    /// A ring: rounds are linear in the boxes.
    fn ring_over(
        &self,
        algorithm: Algorithm,
        collective: Collective,
        of: catalogue::OverBoxes,
        block_bytes: u64,
    ) -> f64 {
        // The vector of an all-reduce is shorter by as much, so that its pieces are as long.
        let at = |boxes: u32| {
            let bytes = if collective == Collective::AllReduce {
                (u128::from(block_bytes) * u128::from(boxes) / u128::from(of.boxes)) as u64
            } else {
                block_bytes
            };
            self.over(algorithm, collective, (boxes, of.per_box), bytes, block_bytes)
        };
        let (half, whole) = (at(RING_BOXES / 2), at(RING_BOXES));
        whole + (whole - half).max(0.0) * f64::from(of.boxes - RING_BOXES) / f64::from(RING_BOXES / 2)
    }

    /// Trees: hops are linear in the levels.
    fn trees_over(
        &self,
        algorithm: Algorithm,
        collective: Collective,
        of: catalogue::OverBoxes,
        block_bytes: u64,
    ) -> f64 {
        let at = |boxes: u32, bytes: u64| {
            self.over(algorithm, collective, (boxes, of.per_box), bytes, block_bytes)
        };
        let slot = self.slots_by_rule(algorithm, collective, block_bytes).0 as u64;
        let parts = u64::from(algorithm.parts(collective, self.ranks_of(collective)));
        let short = (LEVEL_SLICES * parts * slot).min(block_bytes);
        let level = (at(2 * TREE_BOXES, short) - at(TREE_BOXES, short)).max(0.0);
        let levels = levels_of(of.boxes) - levels_of(TREE_BOXES);
        at(TREE_BOXES, block_bytes) + level * levels
    }

    /// Seconds over the first boxes of the machine, with the slots of a call of `slots_of` bytes over all.
    fn over(
        &self,
        algorithm: Algorithm,
        collective: Collective,
        (boxes, per_box): (u32, u32),
        block_bytes: u64,
        slots_of: u64,
    ) -> f64 {
        let slot_bytes = self.slots_by_rule(algorithm, collective, slots_of).0;
        let key = (algorithm, collective, boxes, block_bytes, slot_bytes);
        let memory = || self.searched.over_boxes.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = memory().get(&key) {
            return *known;
        }
        let schedule = algorithm.schedule(collective, boxes * per_box);
        let by_rule = self.simulated_with(algorithm, collective, block_bytes, PATIENCE);
        let options = simulate::Options { slot_bytes, ..by_rule };
        let seconds =
            simulate(&schedule, &self.topology, &options).map_or(f64::INFINITY, |outcome| outcome.seconds());
        memory().insert(key, seconds);
        seconds
    }

    /// Bytes of the vector a second that links carry of a schedule over the first boxes; 0 where there is no way.
    fn carried(&self, algorithm: Algorithm, collective: Collective, of: catalogue::OverBoxes) -> f64 {
        let memory = || self.searched.carried.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = memory().get(&(algorithm, collective)) {
            return *known;
        }
        let boxes = of.boxes.min(if of.is_ring { WHOLE_BOXES_MAX } else { TREES_BOXES_MIN });
        let schedule = algorithm.schedule(collective, boxes * of.per_box);
        let carried = if algorithm.is_switched() {
            f64::INFINITY
        } else {
            rate(&schedule, &self.topology).ok().flatten().map_or(0.0, |rate| rate.value())
        };
        memory().insert((algorithm, collective), carried);
        carried
    }
}
