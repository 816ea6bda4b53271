//! The tables against the steps: what an iteration raises, awaits, fills and empties.
//!
//! Invariant: after these checks, both ends of every counter and mailbox list it with the same numbers, and
//! the numbers are those of the steps. Absent: order.

use super::program::{Mailbox, NO_MAILBOX, Program};
use super::refusal::{Memory, Refusal};
use crate::Rank;
use crate::plan::{Action, Plan, Region};

/// Every counter is raised by one lane, by what its owner and its writer expect.
pub(super) fn check_counters(program: &mut Program, plans: &[Plan]) -> Result<(), Refusal> {
    const NOBODY: u32 = u32::MAX;
    let mut raised = vec![(0i64, NOBODY, false); program.counters.len()];
    let mut waits = vec![NOBODY; program.counters.len()];
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
                if *by != NOBODY && *by != lane {
                    return Err(bad("two lanes raise it"));
                }
                if *by != NOBODY && *counted != op.counted {
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
        for rank in [counter.id.owner, counter.id.writer] {
            if !plans[rank.index()].counters.iter().any(|used| used.id == counter.id) {
                let why = "the plan of the other end does not list it";
                return Err(Refusal::BadCounter { rank, id: counter.id, why });
            }
        }
    }
    Ok(())
}

/// Every slot of an iteration is filled once and emptied.
pub(super) fn check_mailboxes(program: &Program, plans: &[Plan]) -> Result<(), Refusal> {
    let bad = |rank: u32, mailbox: &Mailbox, slot: u32, why| {
        let rank = Rank(rank);
        let mailbox: Memory = program.slot_of(mailbox, slot);
        Err(Refusal::BadMailbox { rank, mailbox, why })
    };
    let events: u64 = program.steps as u64 + 1;
    let mut filled: Vec<Vec<(bool, bool)>> = Vec::new();
    for mailbox in &program.mailboxes {
        if u64::from(mailbox.per_iteration) > events {
            return bad(mailbox.writer, mailbox, 0, "more slots per iteration than steps");
        }
        filled.push(vec![(false, false); mailbox.per_iteration as usize]);
        let (owner, writer) = (Rank(mailbox.owner), Rank(mailbox.writer));
        let region = Region::Mailbox { owner, writer, channel: mailbox.channel };
        for rank in [owner, writer] {
            if !plans[rank.index()].regions.iter().any(|used| used.region == region) {
                return bad(rank.0, mailbox, 0, "the plan of the other end does not list it");
            }
        }
    }
    for op in program.lanes.iter().flat_map(|lane| &lane.ops) {
        for cell in &program.cells[op.targets.start as usize..op.targets.end as usize] {
            if cell.mailbox == NO_MAILBOX {
                continue;
            }
            let mailbox = &program.mailboxes[cell.mailbox as usize];
            let slot = &mut filled[cell.mailbox as usize][cell.slot as usize];
            if std::mem::replace(&mut slot.0, true) {
                return bad(mailbox.writer, mailbox, cell.slot, "a slot is filled twice in an iteration");
            }
        }
        for source in &program.sources[op.sources.start as usize..op.sources.end as usize] {
            for cell in &program.cells[source.cells.start as usize..source.cells.end as usize] {
                if cell.mailbox != NO_MAILBOX {
                    filled[cell.mailbox as usize][cell.slot as usize].1 = true;
                }
            }
        }
    }
    for (mailbox, slots) in program.mailboxes.iter().zip(&filled) {
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
