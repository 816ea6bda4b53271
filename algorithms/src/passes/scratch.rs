//! Assigns scratch places by liveness.
//!
//! Invariant: within a lane, a place is held from the step that writes it to the last step that reads it, and
//! the lowest free place is taken, so a lane uses as few places as are ever alive at once; no two lanes share
//! one. A step may write the place that it is the last to read: folds go element by element. Absent:
//! values that live from one iteration to the next, which no plan here has.

use std::collections::BTreeSet;
use std::ops::Range;

use crate::numbers::Numbers;
use crate::plan::{Plan, Position, Region};

/// Why places cannot be assigned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ScratchFault {
    /// A lane reads a place before it writes it.
    Unwritten { lane: usize, place: u32 },
    /// Two lanes name the same place.
    Shared { place: u32 },
}

/// Renames all scratch places of `plan` and sets [`Plan::scratch`].
pub(crate) fn assign(plan: &mut Plan) -> Result<(), ScratchFault> {
    let mut owner: Numbers<u32, usize> = Numbers::default();
    let mut renamed: Vec<(u32, u32)> = Vec::new();
    let mut base = 0;
    for (lane, range) in plan.lanes.iter().enumerate() {
        let mut uses = uses(plan, range.start..range.end);
        mark_last(&mut uses);
        let mut free: BTreeSet<u32> = BTreeSet::new();
        let mut places = 0;
        let mut held: Numbers<u32> = Numbers::default();
        for of_step in uses.chunk_by(|a, b| a.step == b.step) {
            if let Some(used) = of_step.iter().find(|used| *owner.entry(used.place).or_insert(lane) != lane) {
                return Err(ScratchFault::Shared { place: used.place });
            }
            // Reads come first.
            for of_kind in of_step.chunk_by(|a, b| a.writes == b.writes) {
                for &Use { operand, place, writes, .. } in of_kind {
                    let given = match held.get(&place) {
                        Some(&given) => given,
                        None if !writes => return Err(ScratchFault::Unwritten { lane, place }),
                        None => free.pop_first().unwrap_or_else(|| {
                            places += 1;
                            places - 1
                        }),
                    };
                    held.insert(place, given);
                    renamed.push((operand, base + given));
                }
                let last = of_kind.iter().filter(|used| !used.read_later);
                free.extend(last.filter_map(|used| held.remove(&used.place)));
            }
        }
        base += places;
    }
    for (operand, place) in renamed {
        plan.operands[operand as usize].position = Position::Scratch(place);
    }
    plan.scratch = base;
    Ok(())
}

/// A scratch place in a step.
struct Use {
    step: u32,
    operand: u32,
    place: u32,
    writes: bool,
    /// Whether the value that the place holds after the step is read by a later one.
    read_later: bool,
}

/// The scratch places that the steps read and write, each step's reads before its writes.
fn uses(plan: &Plan, steps: Range<u32>) -> Vec<Use> {
    let mut uses = Vec::new();
    for number in steps {
        let step = &plan.steps[number as usize];
        let first = step.operands;
        let middle = first + u32::from(step.targets);
        let end = middle + u32::from(step.sources);
        for (operands, writes) in [(middle..end, false), (first..middle, true)] {
            for operand in operands {
                if let Some(place) = scratch_place(plan, operand) {
                    uses.push(Use { step: number, operand, place, writes, read_later: false });
                }
            }
        }
    }
    uses
}

fn mark_last(uses: &mut [Use]) {
    // Whether a later step reads the place's value.
    let mut alive: Numbers<u32, bool> = Numbers::default();
    for of_step in uses.chunk_by_mut(|a, b| a.step == b.step).rev() {
        for used in of_step.iter_mut() {
            used.read_later = alive.get(&used.place).copied().unwrap_or(false);
        }
        for used in of_step.iter().rev() {
            alive.insert(used.place, !used.writes);
        }
    }
}

fn scratch_place(plan: &Plan, operand: u32) -> Option<u32> {
    let operand = &plan.operands[operand as usize];
    match (plan.regions[operand.region as usize].region, operand.position) {
        (Region::Scratch, Position::Scratch(place)) => Some(place),
        _ => None,
    }
}
