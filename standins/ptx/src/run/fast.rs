//! The fast schedule.
//!
//! Invariant: another block becomes resident only when the resident ones cannot go on, so that a launch whose blocks
//! do not wait needs the memory of one block. [`Memory::idle`] is called when all blocks that may be resident only
//! poll.

use super::block::{Block, State};
use super::thread::{End, Turns, turn};
use super::{Random, Run, Statistics, barrier, warp};
use crate::fault::{Fault, Problem};
use crate::memory::Memory;

/// Rounds over a block's threads before other blocks have their turn.
const ROUNDS: u32 = 64;

pub(super) fn fast<M: Memory>(run: &Run<'_>, memory: &mut M) -> Result<Statistics, Fault> {
    let mut turns = Turns {
        random: Random::new(run.options.seed),
        tear: run.options.tear,
        polls: true,
        watch: memory.watches_shared(),
        executed: 0,
        progress: 0,
        began: Some(std::time::Instant::now()),
    };
    let mut statistics = Statistics::default();
    let mut resident: Vec<Block<'_>> = Vec::new();
    let mut spare = None;
    let mut next = 0;
    let mut idle = 0;
    while next < run.planned.len() || !resident.is_empty() {
        let mut all = Rest::Polls;
        let mut at = 0;
        while at < resident.len() {
            match block(run, &mut resident[at], memory, &mut turns, &mut statistics)? {
                Rest::Moved => all = Rest::Moved,
                Rest::Busy if all == Rest::Polls => all = Rest::Busy,
                Rest::Busy | Rest::Polls => {}
            }
            if resident[at].live == 0 {
                spare = Some(resident.remove(at));
                statistics.blocks += 1;
                memory.block_ended();
            } else {
                at += 1;
            }
        }
        statistics.instructions = turns.executed;
        if turns.executed > run.options.max_instructions {
            let place = run.block(next.saturating_sub(1), None);
            return Err(place.fault(0, Problem::TooLong(run.options.max_instructions)));
        }
        if all == Rest::Moved {
            idle = 0;
        }
        let room = (resident.len() as u64) < u64::from(run.options.resident_blocks);
        if (all != Rest::Moved || resident.is_empty()) && next < run.planned.len() && room && memory.admit() {
            resident.push(run.block(next, spare.take()));
            next += 1;
        } else if all == Rest::Polls {
            memory.idle(idle).map_err(|problem| match resident.first() {
                Some(block) => block.fault(0, problem),
                None => run.block(next, None).fault(0, problem),
            })?;
            idle += 1;
        }
    }
    Ok(statistics)
}

/// The state of a block after its turn.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Rest {
    /// A change happened for which other threads may wait.
    Moved,
    /// A thread ran for long without a change.
    Busy,
    /// All its live threads poll.
    Polls,
}

/// Lets a block's threads go on until all live threads poll, or run for long.
fn block<M: Memory>(
    run: &Run<'_>,
    block: &mut Block<'_>,
    memory: &mut M,
    turns: &mut Turns,
    statistics: &mut Statistics,
) -> Result<Rest, Fault> {
    let strict = run.options.strict_barriers;
    let mut woken = Vec::new();
    let mut rest = Rest::Polls;
    for _ in 0..ROUNDS {
        // Threads that arrived at a barrier, or went further, may have let others go on.
        let mut again = false;
        for t in 0..block.threads.len() {
            while block.threads[t].state == State::Ready {
                let before = turns.progress;
                let end =
                    turn(block, t, memory, turns, run.options.quantum).map_err(|p| block.fault(t, p))?;
                statistics.turns += 1;
                woken.clear();
                match end {
                    End::Polled | End::Budget => {}
                    End::Ended => {
                        barrier::ended(block, t, memory, turns, strict, &mut woken)?;
                        warp::ended(block, t, memory, turns, &mut woken);
                    }
                    End::Barrier => barrier::arrive(block, t, memory, turns, strict, &mut woken)?,
                    End::Warp => warp::arrive(block, t, memory, turns, &mut woken),
                }
                if turns.progress != before {
                    rest = Rest::Moved;
                }
                match end {
                    End::Polled => break,
                    End::Budget => {
                        again = true;
                        if rest == Rest::Polls {
                            rest = Rest::Busy;
                        }
                        break;
                    }
                    _ => again = true,
                }
            }
        }
        if !again || block.live == 0 || turns.executed > run.options.max_instructions {
            break;
        }
    }
    barrier::stuck(block).map_or(Ok(rest), Err)
}
