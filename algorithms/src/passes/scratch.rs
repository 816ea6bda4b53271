//! Scratch places by liveness.
//!
//! Invariant: within a lane, a place is held from the step that writes it to the last step that reads it, and
//! the lowest free place is taken, so a lane uses as few places as are ever alive at once; no two lanes share
//! one. A step may write the place that it is the last to read: folds go element by element. Absent:
//! values that live from one iteration to the next, which no plan here has.

use std::collections::HashMap;

use crate::plan::{Plan, Position, Region};

/// Why places cannot be given out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ScratchFault {
    /// A lane reads a place before it wrote it.
    Unwritten { lane: usize, place: u32 },
    /// Two lanes name the same place.
    Shared { place: u32 },
}

/// Renames all scratch places of `plan` and sets [`Plan::scratch`].
pub(crate) fn assign(plan: &mut Plan) -> Result<(), ScratchFault> {
    let mut owner: HashMap<u32, usize> = HashMap::new();
    let mut renamed: Vec<(usize, u32)> = Vec::new();
    let mut base = 0;
    for (lane, range) in plan.lanes.iter().enumerate() {
        let uses = uses(plan, range.start as usize..range.end as usize);
        let mut free: Vec<bool> = Vec::new();
        let mut held: HashMap<u32, u32> = HashMap::new();
        for (at, (reads, writes)) in uses.iter().enumerate() {
            for &(_, place) in reads.iter().chain(writes) {
                if *owner.entry(place).or_insert(lane) != lane {
                    return Err(ScratchFault::Shared { place });
                }
            }
            for &(operand, place) in reads {
                let &held = held.get(&place).ok_or(ScratchFault::Unwritten { lane, place })?;
                renamed.push((operand, base + held));
            }
            let mut release = |place: u32| {
                if !read_later(&uses[at + 1..], place)
                    && let Some(held) = held.remove(&place)
                {
                    free[held as usize] = true;
                }
            };
            reads.iter().for_each(|&(_, place)| release(place));
            for &(operand, place) in writes {
                let given = *held.entry(place).or_insert_with(|| match free.iter().position(|&free| free) {
                    Some(index) => {
                        free[index] = false;
                        index as u32
                    }
                    None => {
                        free.push(false);
                        free.len() as u32 - 1
                    }
                });
                renamed.push((operand, base + given));
            }
            for &(_, place) in writes {
                if !read_later(&uses[at + 1..], place)
                    && let Some(held) = held.remove(&place)
                {
                    free[held as usize] = true;
                }
            }
        }
        base += free.len() as u32;
    }
    for (operand, place) in renamed {
        plan.operands[operand].position = Position::Scratch(place);
    }
    plan.scratch = base;
    Ok(())
}

type Uses = (Vec<(usize, u32)>, Vec<(usize, u32)>);

/// For every step: the (operand, place) it reads and writes.
fn uses(plan: &Plan, steps: std::ops::Range<usize>) -> Vec<Uses> {
    let places = |range: std::ops::Range<usize>| {
        range.filter_map(|index| scratch_place(plan, index).map(|place| (index, place))).collect()
    };
    plan.steps[steps]
        .iter()
        .map(|step| {
            let first = step.operands as usize;
            let middle = first + step.targets as usize;
            (places(middle..middle + step.sources as usize), places(first..middle))
        })
        .collect()
}

fn scratch_place(plan: &Plan, operand: usize) -> Option<u32> {
    let operand = &plan.operands[operand];
    match (plan.regions[operand.region as usize].region, operand.position) {
        (Region::Scratch, Position::Scratch(place)) => Some(place),
        _ => None,
    }
}

/// Whether the value that is in `place` now is read by a later step.
fn read_later(later: &[Uses], place: u32) -> bool {
    for (reads, writes) in later {
        if reads.iter().any(|&(_, other)| other == place) {
            return true;
        }
        if writes.iter().any(|&(_, other)| other == place) {
            return false;
        }
    }
    false
}
