//! How long the launch record of a call is whose plan kernels run, before there is a call.
//!
//! Invariant: counted as its tables are written (`device/shared`), for the rank that needs most, so that all ranks
//! agree whether a plan fits. Absent: what the record says.

use std::collections::HashSet;

use consort_algorithms::Chunk;
use consort_algorithms::plan::{Action, Plan, Position, Region, Step};
use consort_kernels::cuda::{layout, run_shared_bytes};

/// Entries of the tables of a plan's record.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Entries {
    regions: usize,
    counters: usize,
    chunks: usize,
    /// What of a plan no record can say.
    pub(super) foreign: Option<&'static str>,
}

impl Entries {
    /// The most that the plan of a rank needs, of each.
    pub(super) fn of(plans: &[Plan]) -> Self {
        plans.iter().fold(Entries::default(), |most, plan| {
            let folds = plan.steps.iter().filter(|step| is_fold(step));
            let chunks: HashSet<Places> = folds.filter_map(|step| places(plan, step).ok()).collect();
            Entries {
                regions: most.regions.max(plan.regions.len()),
                counters: most.counters.max(plan.counters.len()),
                chunks: most.chunks.max(chunks.len()),
                foreign: most.foreign.or_else(|| plan.steps.iter().find_map(|step| unsayable(plan, step))),
            }
        })
    }

    /// Bytes of shared memory of a block, where `instances` blocks share the work of a lane.
    pub(super) fn shared_bytes(&self, instances: u32) -> usize {
        let bases = 8 * instances as usize;
        let record = size_of::<layout::Program>()
            + self.regions * (size_of::<layout::Region>() + bases)
            + self.counters * (size_of::<layout::Counter>() + bases)
            + self.chunks * size_of::<layout::Chunk>();
        let record_bytes = u32::try_from(record).unwrap_or(u32::MAX / 2);
        run_shared_bytes(record_bytes, u32::try_from(self.counters).unwrap_or(u32::MAX / 16)) as usize
    }
}

/// The chunks that a step touches: of the input, of the output, and the one whose length it has.
pub(crate) type Places = [Option<Chunk>; 3];

/// Whether a step moves or folds values of its own rank.
fn is_fold(step: &Step) -> bool {
    matches!(step.action, Action::Copy | Action::Reduce | Action::Put)
}

/// What of a step no record can say, if anything.
pub(crate) fn unsayable(plan: &Plan, step: &Step) -> Option<&'static str> {
    if step.action == Action::Get {
        return Some("a get");
    }
    if usize::from(step.targets) + usize::from(step.sources) > layout::MAX_PLACES {
        return Some("a step of too many places");
    }
    if step.flags & !Step::FINISH != 0 {
        return Some("packets or counted writes");
    }
    if is_fold(step) { places(plan, step).err() } else { None }
}

/// The chunks that a step of a plan touches.
///
/// # Errors
/// What of the step has no place in a table of chunks.
pub(crate) fn places(plan: &Plan, step: &Step) -> Result<Places, &'static str> {
    let mut places = [None, None, step.extent.as_chunk()];
    if places[2].is_none() {
        return Err("an extent from a table");
    }
    for operand in plan.targets(step).iter().chain(plan.sources(step)) {
        let Position::Chunk(chunk) = operand.position else { continue };
        let side = match plan.regions[operand.region as usize].region {
            Region::Output(_) => 1,
            _ => 0,
        };
        if places[side].replace(chunk).is_some_and(|other| other != chunk) {
            return Err("a step with two chunks of one buffer");
        }
    }
    Ok(places)
}
