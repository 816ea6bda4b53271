//! Barriers of a block.
//!
//! Invariant: a thread waits at one barrier at most. A barrier without a count waits for all threads of the block
//! that have not ended. In strict runs it also waits for those that have ended, which is then a fault.

use super::block::{Block, State};
use super::thread::Turns;
use crate::fault::{Divergence, Fault, Problem};
use crate::memory::Memory;
use crate::program::{BarrierOp, Op};

/// Thread `t` is at a barrier: it waits, or all waiting threads go on. The threads that go on are put on `woken`.
pub(super) fn arrive<M: Memory>(
    block: &mut Block<'_>,
    t: usize,
    memory: &mut M,
    turns: &mut Turns,
    strict: bool,
    woken: &mut Vec<u32>,
) -> Result<(), Fault> {
    let kernel = block.launch.kernel;
    let slots = &block.slots[t * kernel.slots as usize..][..kernel.slots as usize];
    let Op::Barrier { op, aligned, id, count, p, negate, .. } = kernel.code[block.threads[t].pc as usize].op
    else {
        return Ok(());
    };
    let id = slots[id as usize] as usize & 15;
    let wanted = slots[count as usize] as u32;
    let holds = (slots[p as usize] & 1 == 1) != negate;
    if strict && aligned {
        let pc = block.threads[t].pc;
        let other = block.barriers[id]
            .waiting
            .iter()
            .copied()
            .find(|&o| o as usize / 32 == t / 32 && block.threads[o as usize].pc != pc);
        if let Some(other) = other {
            return Err(diverged(block, t, id, Divergence::Instruction, other as usize));
        }
    }
    if strict && wanted == 0 {
        no_one_ended(block, t, id)?;
    }
    let barrier = &mut block.barriers[id];
    barrier.count += 1;
    barrier.wanted = wanted;
    barrier.held += u32::from(holds);
    barrier.came.push(t as u32);
    if op == BarrierOp::Arrive {
        block.threads[t].pc += 1;
        woken.push(t as u32);
    } else {
        barrier.waiting.push(t as u32);
        block.threads[t].state = State::Barrier(id as u8);
    }
    complete(block, id, memory, turns, woken);
    Ok(())
}

/// Thread `t` has ended: barriers may now be complete, or can never be.
pub(super) fn ended<M: Memory>(
    block: &mut Block<'_>,
    t: usize,
    memory: &mut M,
    turns: &mut Turns,
    strict: bool,
    woken: &mut Vec<u32>,
) -> Result<(), Fault> {
    for id in 0..block.barriers.len() {
        if block.barriers[id].waiting.is_empty() {
            continue;
        }
        if strict && block.barriers[id].wanted == 0 {
            let waiting = block.barriers[id].waiting[0] as usize;
            return Err(diverged(block, waiting, id, Divergence::Ended, t));
        }
        complete(block, id, memory, turns, woken);
    }
    Ok(())
}

fn no_one_ended(block: &Block<'_>, t: usize, id: usize) -> Result<(), Fault> {
    match block.threads.iter().position(|thread| thread.state == State::Ended) {
        Some(other) => Err(diverged(block, t, id, Divergence::Ended, other)),
        None => Ok(()),
    }
}

fn diverged(block: &Block<'_>, t: usize, id: usize, why: Divergence, other: usize) -> Fault {
    let other = Box::new(block.place(other));
    block.fault(t, Problem::Divergence { barrier: id as u32, why, other })
}

/// The fault of a block whose threads all wait, and not for one another.
pub(super) fn stuck(block: &Block<'_>) -> Option<Fault> {
    let mut waiting = (0..block.threads.len()).filter_map(|t| match block.threads[t].state {
        State::Barrier(id) => Some((t, Some(id))),
        State::Warp => Some((t, None)),
        _ => None,
    });
    let all: Vec<_> = waiting.by_ref().collect();
    if all.is_empty() || all.len() < block.live as usize {
        return None;
    }
    let (at_barrier, id) = all.iter().find_map(|&(t, id)| Some((t, id?))).unwrap_or((all[0].0, 0));
    let other = all.iter().find(|&&(_, other)| other != Some(id)).map_or_else(
        || block.threads.iter().position(|thread| thread.state == State::Ended),
        |&(t, _)| Some(t),
    );
    let other = other.unwrap_or(at_barrier);
    let why =
        if block.threads[other].state == State::Ended { Divergence::Ended } else { Divergence::Elsewhere };
    Some(diverged(block, at_barrier, id.into(), why, other))
}

/// Lets all waiting threads go on if all have arrived.
fn complete<M: Memory>(
    block: &mut Block<'_>,
    id: usize,
    memory: &mut M,
    turns: &mut Turns,
    woken: &mut Vec<u32>,
) {
    let barrier = &block.barriers[id];
    let wanted = if barrier.wanted == 0 { block.live } else { barrier.wanted };
    if barrier.count < wanted {
        return;
    }
    let arrived = std::mem::take(&mut block.barriers[id]);
    turns.progress = turns.executed;
    if turns.watch {
        let actors = |list: &[u32]| list.iter().map(|&t| block.first_actor + t).collect::<Vec<u32>>();
        memory.barrier(&actors(&arrived.came), &actors(&arrived.waiting));
    }
    let kernel = block.launch.kernel;
    for &t in &arrived.waiting {
        let thread = &mut block.threads[t as usize];
        if let Op::Barrier { op, d, .. } = kernel.code[thread.pc as usize].op {
            let value = match op {
                BarrierOp::Sync | BarrierOp::Arrive => 0,
                BarrierOp::And => u64::from(arrived.held == arrived.count),
                BarrierOp::Or => u64::from(arrived.held > 0),
                BarrierOp::Count => arrived.held.into(),
            };
            block.slots[t as usize * kernel.slots as usize + d as usize] = value;
        }
        thread.pc += 1;
        thread.state = State::Ready;
        woken.push(t);
    }
}
