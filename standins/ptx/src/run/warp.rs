//! Instructions that threads of a warp do together: shuffles, votes, reductions, `bar.warp.sync`.
//!
//! Invariant: such an instruction is done when all of its members that have not ended stand at it.

use super::block::{Block, State};
use super::thread::Turns;
use crate::memory::{Atomic, Memory};
use crate::program::{Instruction, Op, Shuffle, WarpOp};

/// Thread `t` is at an instruction of its warp.
pub(super) fn arrive<M: Memory>(
    block: &mut Block<'_>,
    t: usize,
    memory: &mut M,
    turns: &mut Turns,
    woken: &mut Vec<u32>,
) {
    block.threads[t].state = State::Warp;
    complete(block, t, memory, turns, woken);
}

/// Thread `t` has ended: other threads of its warp may not have to wait any more.
pub(super) fn ended<M: Memory>(
    block: &mut Block<'_>,
    t: usize,
    memory: &mut M,
    turns: &mut Turns,
    woken: &mut Vec<u32>,
) {
    let first = t / 32 * 32;
    for other in first..(first + 32).min(block.threads.len()) {
        if block.threads[other].state == State::Warp {
            complete(block, other, memory, turns, woken);
        }
    }
}

/// Does the instruction that `t` stands at, if all members are there.
fn complete<M: Memory>(
    block: &mut Block<'_>,
    t: usize,
    memory: &mut M,
    turns: &mut Turns,
    woken: &mut Vec<u32>,
) {
    let kernel = block.launch.kernel;
    let stride = kernel.slots as usize;
    let first = t / 32 * 32;
    let pc = block.threads[t].pc;
    let Instruction { op: Op::Warp { op, d, a, negate, members }, .. } = kernel.code[pc as usize] else {
        return;
    };
    let mask = block.slots[t * stride + members as usize] as u32;
    let mut present = Vec::with_capacity(32);
    for lane in 0..32 {
        let other = first + lane;
        if mask >> lane & 1 == 0 || other >= block.threads.len() {
            continue;
        }
        let thread = &block.threads[other];
        let same = match kernel.code[thread.pc as usize].op {
            // Barriers of a warp meet even where the text has several.
            Op::Warp { op: WarpOp::Barrier, .. } => op == WarpOp::Barrier,
            _ => thread.pc == pc,
        };
        match thread.state {
            State::Ended => {}
            State::Warp if same => present.push(other),
            _ => return,
        }
    }
    turns.progress = turns.executed;
    let slot = |block: &Block<'_>, t: usize, slot: u32| block.slots[t * stride + slot as usize];
    let values: Vec<u64> = present.iter().map(|&t| slot(block, t, a)).collect();
    let held: Vec<bool> = values.iter().map(|value| (value & 1 == 1) != negate).collect();
    let ballot =
        || present.iter().zip(&held).fold(0u64, |all, (&t, &held)| all | u64::from(held) << (t - first));
    let results: Vec<(u64, Option<(u32, bool)>)> = match op {
        WarpOp::Barrier => {
            if turns.watch {
                let actors: Vec<u32> = present.iter().map(|&t| block.first_actor + t as u32).collect();
                memory.barrier(&actors, &actors);
            }
            Vec::new()
        }
        WarpOp::Ballot => vec![(ballot(), None); present.len()],
        WarpOp::Any => vec![(held.contains(&true).into(), None); present.len()],
        WarpOp::All => vec![((!held.contains(&false)).into(), None); present.len()],
        WarpOp::Uniform => {
            let uniform = !(held.contains(&true) && held.contains(&false));
            vec![(uniform.into(), None); present.len()]
        }
        WarpOp::Match => values
            .iter()
            .map(|value| {
                let same = present.iter().zip(&values).filter(|(_, other)| *other == value);
                (same.fold(0, |all, (&t, _)| all | 1 << (t - first)), None)
            })
            .collect(),
        WarpOp::Reduce(op) => {
            let all = values[1..].iter().fold(values[0], |all, &value| {
                Atomic { op, operand: value, compare: 0, returns: true }.apply(4, all)
            });
            vec![(all, None); present.len()]
        }
        WarpOp::Shuffle { mode, valid, lane, clamp } => present
            .iter()
            .map(|&t| {
                let (lane, clamp) = (slot(block, t, lane) as u32, slot(block, t, clamp) as u32);
                let (from, inside) = shuffled(mode, (t - first) as u32, lane & 31, clamp);
                let from = if inside { from } else { (t - first) as u32 };
                // A lane that is not there gives an undefined value; its last one is as good as any.
                let value = slot(block, (first + from as usize).min(block.threads.len() - 1), a);
                (value, Some((valid, inside)))
            })
            .collect(),
    };
    for (&t, &(value, valid)) in present.iter().zip(&results) {
        block.slots[t * stride + d as usize] = value;
        if let Some((valid, inside)) = valid {
            block.slots[t * stride + valid as usize] = inside.into();
        }
    }
    for &t in &present {
        block.threads[t].pc += 1;
        block.threads[t].state = State::Ready;
        woken.push(t as u32);
    }
}

/// The lane that a shuffle reads, and whether it is within the segment.
fn shuffled(mode: Shuffle, own: u32, b: u32, c: u32) -> (u32, bool) {
    let clamp = c & 31;
    let segment = c >> 8 & 31;
    let most = (own & segment) | (clamp & !segment);
    let least = own & segment;
    match mode {
        Shuffle::Up => {
            let from = own.wrapping_sub(b);
            // Signed: the clamp is the lowest lane here.
            (from & 31, (from as i32) >= most as i32)
        }
        Shuffle::Down => (own + b, own + b <= most),
        Shuffle::Butterfly => (own ^ b, (own ^ b) <= most),
        Shuffle::Index => {
            let from = least | (b & !segment);
            (from, from <= most)
        }
    }
}
