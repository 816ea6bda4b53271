//! The tables against the steps: what an iteration raises, awaits, fills and empties.
//!
//! Invariant: after these checks, both ends of every counter and mailbox list it with the same numbers, and the steps
//! use exactly these numbers. Absent: order.

use super::program::{Mailbox, NO_MAILBOX, Program};
use super::refusal::{Memory, Refusal};
use crate::Rank;
use crate::plan::Action;

/// Every counter is raised by one lane, by the amount that its owner and its writer list.
pub(super) fn check_counters(program: &mut Program) -> Result<(), Refusal> {
    const NO_LANE: u32 = u32::MAX;
    let mut raised = vec![(0i64, NO_LANE, false); program.counters.len()];
    let mut waits = vec![NO_LANE; program.counters.len()];
    for (lane, compiled) in program.lanes.iter().enumerate() {
        let lane = lane as u32;
        for op in &compiled.ops {
            let index = op.counter as usize;
            if op.action == Action::Signal || op.counted {
                let bad = |why| Refusal::BadCounter {
                    rank: Rank(compiled.rank),
                    id: program.counters[index].id,
                    why,
                };
                let (sum, by, counted) = &mut raised[index];
                if *by != NO_LANE && *by != lane {
                    return Err(bad("two lanes raise it"));
                }
                if *by != NO_LANE && *counted != op.counted {
                    return Err(bad("signals and arrivals raise it"));
                }
                (*sum, *by, *counted) = (*sum + op.value, lane, op.counted);
            } else if op.action == Action::Wait && waits[index] != lane {
                waits[index] = lane;
                program.counters[index].waiting_lanes += 1;
            }
        }
    }
    for (counter, (sum, _, _)) in program.counters.iter().zip(raised) {
        if sum != i64::from(counter.per_iteration) {
            let (rank, id) = (counter.id.writer, counter.id);
            let why = "its increments are not what its table entry says";
            return Err(Refusal::BadCounter { rank, id, why });
        }
        for (rank, listed) in [counter.id.owner, counter.id.writer].into_iter().zip(counter.listed) {
            if !listed {
                let why = "the plan of the other end does not list it";
                return Err(Refusal::BadCounter { rank, id: counter.id, why });
            }
        }
    }
    Ok(())
}

/// Every slot of an iteration is filled once and emptied.
pub(super) fn check_mailboxes(program: &Program) -> Result<(), Refusal> {
    let bad = |rank: u32, mailbox: &Mailbox, slot: u32, why| {
        let rank = Rank(rank);
        let mailbox: Memory = program.slot_of(mailbox, slot);
        Err(Refusal::BadMailbox { rank, mailbox, why })
    };
    let events: u64 = program.steps as u64 + 1;
    // The slots of all mailboxes, one after the other.
    let mut filled: Vec<(bool, bool)> = Vec::new();
    let mut first_slot = Vec::with_capacity(program.mailboxes.len());
    for mailbox in &program.mailboxes {
        if u64::from(mailbox.per_iteration) > events {
            return bad(mailbox.writer, mailbox, 0, "more slots per iteration than steps");
        }
        first_slot.push(filled.len());
        filled.resize(filled.len() + mailbox.per_iteration as usize, (false, false));
        for (rank, listed) in [mailbox.owner, mailbox.writer].into_iter().zip(mailbox.listed) {
            if !listed {
                return bad(rank, mailbox, 0, "the plan of the other end does not list it");
            }
        }
    }
    for op in program.lanes.iter().flat_map(|lane| &lane.ops) {
        for cell in &program.cells[op.targets.start as usize..op.targets.end as usize] {
            if cell.mailbox == NO_MAILBOX {
                continue;
            }
            let mailbox = &program.mailboxes[cell.mailbox as usize];
            let slot = &mut filled[first_slot[cell.mailbox as usize] + cell.slot as usize];
            if std::mem::replace(&mut slot.0, true) {
                return bad(mailbox.writer, mailbox, cell.slot, "a slot is filled twice in an iteration");
            }
        }
        for source in &program.sources[op.sources.start as usize..op.sources.end as usize] {
            for cell in &program.cells[source.cells.start as usize..source.cells.end as usize] {
                if cell.mailbox != NO_MAILBOX {
                    filled[first_slot[cell.mailbox as usize] + cell.slot as usize].1 = true;
                }
            }
        }
    }
    for (mailbox, &first) in program.mailboxes.iter().zip(&first_slot) {
        let slots = &filled[first..first + mailbox.per_iteration as usize];
        for (slot, (filled, emptied)) in slots.iter().enumerate() {
            if !filled {
                return bad(mailbox.writer, mailbox, slot as u32, "the slot is never filled");
            }
            if !emptied {
                return bad(mailbox.owner, mailbox, slot as u32, "the slot is never emptied");
            }
        }
    }
    Ok(())
}
