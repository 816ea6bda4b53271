//! What the cores of a host do for a plan that they run themselves.
//!
//! Invariant: counted from the fused plans, the ones that run: every step has a price, and every byte that a step
//! reads and writes, for the rank that does most, times the ranks that take turns on its core. The simulator
//! knows when bytes arrive, but not that whoever waits on one lane works on another, nor what fusion saves.
//! Absent: caches, and plans of many ranks, which take too long to make.

use consort_algorithms::plan::Action;
use consort_algorithms::{LowerOptions, Plan, Schedule, lower_all, passes};

use crate::options::SLOTS;

/// Above so many ranks nothing is counted.
const RANKS_MAX: u32 = 16;
/// A step: a look at a counter, a store to one, or the beginning of a copy.
const STEP_S: f64 = 60e-9;
/// A byte that passes through a core once.
const BYTE_S: f64 = 0.08e-9;

/// Seconds of a core, for blocks of `block_bytes` in slots of `slot_bytes` where `turns` ranks share it.
///
/// Source of the figures: `docs/measurements/schedules.md`.
pub(super) fn of_cores(schedule: &Schedule, block_bytes: u64, slot_bytes: usize, turns: u32) -> f64 {
    if schedule.ranks > RANKS_MAX {
        return 0.0;
    }
    let Ok(plans) = lower_all(schedule, &LowerOptions { slots: SLOTS }) else { return 0.0 };
    let bytes = usize::try_from(block_bytes).unwrap_or(usize::MAX / 2);
    let extents = schedule.partition.extents(bytes, 1);
    let iterations = extents.longest().div_ceil(slot_bytes.max(1)).max(1) as f64;
    let of_rank = |plan: &Plan| {
        let fused = passes::fuse(plan, &|_| true);
        let moved = fused.steps.iter().filter(|step| !matches!(step.action, Action::Wait | Action::Signal));
        let moved = moved.filter_map(|step| step.extent.as_chunk());
        let passed: f64 = moved.map(|chunk| extents.length(chunk) as f64).sum();
        fused.steps.len() as f64 * iterations * STEP_S + passed * BYTE_S
    };
    let busiest = plans.iter().map(of_rank).fold(0.0, f64::max);
    busiest * f64::from(turns)
}

/// Between sending and finding what others send at the same time.
const PACKET_S: f64 = 120e-9;
/// A message to and from one more rank.
const PACKET_PEER_S: f64 = 40e-9;

/// What a line from another domain takes longer.
const FAR_LINE_S: f64 = 180e-9;
/// A byte that leaves a domain or enters it, on the way that its ranks share.
const FAR_BYTE_S: f64 = 0.04e-9;

/// Seconds of an exchange of blocks of `block_bytes` between all of `ranks` ranks, of which `turns` share a core, in
/// messages that carry their flag. Where there are domains, of `per_domain` ranks (1: there are none).
///
/// Source of the figures: `docs/measurements/host.md`; of those between domains as for
/// [`host_of_domains`](consort_algorithms::topology::host_of_domains).
pub(super) fn of_packets(ranks: u32, per_domain: u32, block_bytes: u64, turns: u32) -> f64 {
    let others = f64::from(ranks - 1);
    // Each goes into a slot, and out of another one.
    let bytes = 2.0 * block_bytes as f64 * BYTE_S;
    let inside = f64::from(turns) * (PACKET_S + others * (PACKET_PEER_S + bytes));
    if per_domain <= 1 || per_domain >= ranks {
        return inside;
    }
    // Every rank of a domain sends to every one outside it, side by side; lines come at the same time.
    let crossing = f64::from(per_domain) * f64::from(ranks - per_domain) * block_bytes as f64;
    FAR_LINE_S + inside.max(crossing * FAR_BYTE_S)
}
