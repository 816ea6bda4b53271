//! Schedules along rails: where they are candidates, and their prices over any number of boxes.
//!
//! Over more boxes than [`WHOLE_BOXES_MAX`] a price is continued from runs over fewer, on the same machine: a ring has the same rounds
//! for each box more, at pieces of the same length, and a tree the same hops for each doubling, which its first slices show. What
//! a box carries a slice is the same from [`TREE_BOXES`] boxes on. No price is below what the links carry of the schedule over the
//! boxes that are run.
//!
//! Invariant: as of all prices, it is the same on all ranks. Absent: boxes that differ; fabrics whose first boxes are nearer
//! to each other than others are, but for what the links carry.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use consort_algorithms::Collective;
use consort_algorithms::catalogue::{Algorithm, Growth};
use consort_algorithms::simulate::{self, simulate};
use consort_algorithms::synthesize::rate;
use consort_algorithms::topology::Topology;

use super::super::machine::even_boxes;
use super::Planning;
use super::price::PRICED_MESSAGES;
use super::searched::moves_by_links;
use consort_settings::options::SLOTS;

/// Above this number of boxes prices of rings are continued.
const WHOLE_BOXES_MAX: u32 = 8;
/// From this number of boxes on prices of trees are.
const TREES_BOXES_MIN: u32 = 2 * TREE_BOXES;
/// The most ranks of a box that exchange with all others of it on several channels.
const BOX_RANKS_MAX: u32 = 16;
/// The boxes of trees that are run: fewer have no inner box whose two children are inner boxes too.
const TREE_BOXES: u32 = 8;
/// The boxes of a ring that is run: half of them show what a box adds.
const RING_BOXES: u32 = 4;
/// Slices of a call that shows the hops of a level.
const LEVEL_SLICES: u64 = 8;
/// Messages that a price simulates, as a multiple of those for others: trees on many channels fill slowly. With half of it, trees of
/// 8 GiB over eight `dgx-h100` seem a fifth faster than they are when run whole, with this 4 %.
const PATIENCE: u64 = 8;
/// The same of a reduce, on 128 trees: with less, one of 256 MiB over eight `dgx-h100` seems a fifth faster than it is.
const REDUCE_PATIENCE: u64 = 32;

/// What was run over some boxes, and what links carry there.
#[derive(Debug, Default)]
pub(super) struct Memory {
    seconds: Mutex<HashMap<Run, f64>>,
    carried: Mutex<HashMap<(Algorithm, Collective), f64>>,
}

/// A run over the first boxes of the machine.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Run {
    algorithm: Algorithm,
    collective: Collective,
    boxes: u32,
    block_bytes: u64,
    slot_bytes: usize,
}

/// A call by a schedule along rails, over all boxes.
struct Call<'a> {
    planning: &'a Planning,
    algorithm: Algorithm,
    collective: Collective,
    growth: Growth,
    block_bytes: u64,
    slot_bytes: usize,
}

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
        let ranks = self.ranks_of(collective);
        let growth = algorithm.growth(ranks)?;
        let slot_bytes = self.slots_of_price(algorithm, collective, block_bytes);
        let call = Call { planning: self, algorithm, collective, growth, block_bytes, slot_bytes };
        let blocks = collective.input_blocks(ranks).max(collective.output_blocks(ranks));
        let bytes = block_bytes as f64 * f64::from(blocks);
        Some(call.seconds().max(bytes / call.carried()))
    }
}

impl Call<'_> {
    fn seconds(&self) -> f64 {
        let Growth { boxes, is_ring, .. } = self.growth;
        match is_ring {
            true if boxes > WHOLE_BOXES_MAX => self.of_ring(),
            false if boxes >= TREES_BOXES_MIN => self.of_trees(),
            _ => self.over(boxes, self.block_bytes),
        }
    }

    /// A ring: rounds are linear in the boxes.
    fn of_ring(&self) -> f64 {
        let boxes = self.growth.boxes;
        // The vector of an all-reduce is shorter by as much, so that its pieces are as long.
        let at = |over: u32| {
            let shorter = u128::from(self.block_bytes) * u128::from(over) / u128::from(boxes);
            let is_vector = self.collective == Collective::AllReduce;
            self.over(over, if is_vector { shorter as u64 } else { self.block_bytes })
        };
        let (half, whole) = (at(RING_BOXES / 2), at(RING_BOXES));
        whole + (whole - half).max(0.0) * f64::from(boxes - RING_BOXES) / f64::from(RING_BOXES / 2)
    }

    /// Trees: hops are linear in the levels.
    fn of_trees(&self) -> f64 {
        let ranks = self.planning.ranks_of(self.collective);
        let parts = u64::from(self.algorithm.parts(self.collective, ranks));
        let short = (LEVEL_SLICES * parts * self.slot_bytes as u64).min(self.block_bytes);
        let level = (self.over(2 * TREE_BOXES, short) - self.over(TREE_BOXES, short)).max(0.0);
        let levels = levels_of(self.growth.boxes) - levels_of(TREE_BOXES);
        self.over(TREE_BOXES, self.block_bytes) + level * levels
    }

    /// Seconds of blocks of `block_bytes` over the first boxes of the machine.
    fn over(&self, boxes: u32, block_bytes: u64) -> f64 {
        let Call { planning, algorithm, collective, slot_bytes, .. } = *self;
        let run = Run { algorithm, collective, boxes, block_bytes, slot_bytes };
        let memory = || planning.along_rails.seconds.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = memory().get(&run) {
            return *known;
        }
        let patience = if collective == Collective::Reduce { REDUCE_PATIENCE } else { PATIENCE };
        let options = simulate::Options {
            slot_bytes,
            slots: SLOTS,
            messages_max: PRICED_MESSAGES * patience,
            ..simulate::Options::new(usize::try_from(block_bytes).unwrap_or(usize::MAX / 2))
        };
        let schedule = algorithm.schedule(collective, boxes * self.growth.per_box);
        let outcome = simulate(&schedule, &planning.topology, &options);
        let seconds = outcome.map_or(f64::INFINITY, |outcome| outcome.seconds());
        memory().insert(run, seconds);
        seconds
    }

    /// Bytes of the vector a second that links carry of the schedule over the first boxes; 0 where there is no way. What a switch folds is
    /// not counted link by link.
    fn carried(&self) -> f64 {
        let Call { planning, algorithm, collective, growth, .. } = *self;
        if algorithm.is_switched() {
            return f64::INFINITY;
        }
        let memory = || planning.along_rails.carried.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = memory().get(&(algorithm, collective)) {
            return *known;
        }
        let boxes = growth.boxes.min(if growth.is_ring { WHOLE_BOXES_MAX } else { TREES_BOXES_MIN });
        let schedule = algorithm.schedule(collective, boxes * growth.per_box);
        let carried = rate(&schedule, &planning.topology).ok().flatten().map_or(0.0, |rate| rate.value());
        memory().insert((algorithm, collective), carried);
        carried
    }
}
