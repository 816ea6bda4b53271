//! The seeded schedule.
//!
//! Invariant: the same launches, options and memory give the same run. `ready` lists each thread that can go on
//! once. Absent: fairness in the short run, on purpose.

use super::block::{Block, State};
use super::thread::{End, Turns, turn};
use super::{HostStore, Random, Run, Statistics, barrier, warp};
use crate::fault::{Fault, Problem};
use crate::memory::{Access, Memory, Scope, Semantics, Site};

/// Which threads are preferred for a while.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Favour {
    None,
    Launch(u32),
    Warp(u32, u32),
    Thread(u32, u32),
}

impl Favour {
    fn wants(self, block: &Block<'_>, position: u32, thread: u32) -> bool {
        match self {
            Self::None => true,
            Self::Launch(launch) => block.launch_number == launch,
            Self::Warp(at, warp) => position == at && thread / 32 == warp,
            Self::Thread(at, t) => position == at && thread == t,
        }
    }
}

/// The actor of [`super::Options::host`]'s stores.
pub(crate) const HOST: u32 = u32::MAX;

struct Seeded<'s, 'r, M> {
    run: &'s Run<'r>,
    memory: &'s mut M,
    turns: Turns,
    /// Blocks that have been resident; `None` once ended.
    blocks: Vec<Option<Block<'r>>>,
    next: usize,
    resident: u32,
    /// Block and thread.
    ready: Vec<(u32, u32)>,
    host: Vec<HostStore>,
    statistics: Statistics,
}

pub(super) fn seeded<M: Memory>(run: &Run<'_>, memory: &mut M) -> Result<Statistics, Fault> {
    let options = run.options;
    let mut host = options.host.clone();
    host.sort_by_key(|store| std::cmp::Reverse(store.after));
    let watch = memory.watches_shared();
    let mut all = Seeded {
        run,
        memory,
        turns: Turns {
            random: Random::new(options.seed),
            tear: options.tear,
            polls: false,
            watch,
            executed: 0,
            progress: 0,
            began: None,
        },
        blocks: Vec::new(),
        next: 0,
        resident: 0,
        ready: Vec::new(),
        host,
        statistics: Statistics::default(),
    };
    all.admit();
    let mut favour = Favour::None;
    let mut until = 0;
    while !all.ready.is_empty() {
        if all.statistics.turns >= until {
            (favour, until) = all.favour();
        }
        let at = all.pick(favour);
        all.one(at)?;
        all.statistics.turns += 1;
        all.outside()?;
    }
    all.statistics.instructions = all.turns.executed;
    match all.blocks.iter().flatten().find_map(barrier::stuck) {
        Some(fault) => Err(fault),
        None => Ok(all.statistics),
    }
}

impl<M: Memory> Seeded<'_, '_, M> {
    /// Makes blocks resident while there is room. They come in order, as on a device.
    fn admit(&mut self) {
        while self.next < self.run.planned.len() && self.resident < self.run.options.resident_blocks {
            if !self.memory.admit() {
                return;
            }
            let block = self.run.block(self.next, None);
            let position = self.blocks.len() as u32;
            self.ready.extend((0..block.threads.len() as u32).map(|t| (position, t)));
            self.blocks.push(Some(block));
            self.next += 1;
            self.resident += 1;
        }
    }

    /// The threads to prefer now, and the turn until which they are preferred.
    fn favour(&mut self) -> (Favour, u64) {
        let random = &mut self.turns.random;
        let (block, thread) = self.ready[random.below(self.ready.len() as u64) as usize];
        let favour = match random.below(8) {
            0..=3 => Favour::None,
            4 | 5 => {
                self.blocks[block as usize].as_ref().map_or(Favour::None, |b| Favour::Launch(b.launch_number))
            }
            6 => Favour::Warp(block, thread / 32),
            _ => Favour::Thread(block, thread),
        };
        (favour, self.statistics.turns + 1 + random.below(200))
    }

    /// Instructions since the last progress.
    fn stalled(&self) -> u64 {
        self.turns.executed - self.turns.progress
    }

    /// Instructions without progress after which the schedule checks whether there is any.
    fn stall(&self) -> u64 {
        self.run.options.stall.saturating_mul(self.ready.len().max(1) as u64)
    }

    fn pick(&mut self, favour: Favour) -> usize {
        // Chance may have left out the one thread that would go on. Now all threads have their turns.
        if self.stalled() > self.stall() {
            return self.statistics.turns as usize % self.ready.len();
        }
        let mut at = 0;
        for _ in 0..4 {
            at = self.turns.random.below(self.ready.len() as u64) as usize;
            let (block, thread) = self.ready[at];
            if self.blocks[block as usize].as_ref().is_some_and(|b| favour.wants(b, block, thread)) {
                break;
            }
        }
        at
    }

    /// A turn of the ready thread `at`.
    fn one(&mut self, at: usize) -> Result<(), Fault> {
        let (position, thread) = self.ready[at];
        let (t, strict) = (thread as usize, self.run.options.strict_barriers);
        let Some(block) = &mut self.blocks[position as usize] else { return Ok(()) };
        let budget = 1 + self.turns.random.below(self.run.options.quantum.into()) as u32;
        let mut woken = Vec::new();
        let end = turn(block, t, self.memory, &mut self.turns, budget).map_err(|p| block.fault(t, p))?;
        match end {
            End::Budget | End::Polled => {}
            End::Ended => {
                barrier::ended(block, t, self.memory, &mut self.turns, strict, &mut woken)?;
                warp::ended(block, t, self.memory, &mut self.turns, &mut woken);
            }
            End::Barrier => barrier::arrive(block, t, self.memory, &mut self.turns, strict, &mut woken)?,
            End::Warp => warp::arrive(block, t, self.memory, &mut self.turns, &mut woken),
        }
        // A thread that arrived last at its barrier is woken too. It must not be listed twice.
        if end != End::Budget && end != End::Polled {
            self.ready.swap_remove(at);
            self.ready.extend(woken.iter().map(|&t| (position, t)));
        }
        if block.live == 0 {
            self.blocks[position as usize] = None;
            self.resident -= 1;
            self.statistics.blocks += 1;
            self.memory.block_ended();
            self.admit();
        }
        Ok(())
    }

    /// Stores of the host, and limits.
    fn outside(&mut self) -> Result<(), Fault> {
        let executed = self.turns.executed;
        while let Some(store) = self.host.pop_if(|store| store.after <= executed) {
            let site = Site { actor: HOST, launch: u32::MAX, block: u32::MAX, line: 0 };
            let access = Access {
                address: store.address,
                bytes: store.bytes,
                element: store.bytes,
                semantics: Semantics::Release,
                scope: Scope::Sys,
            };
            self.memory.store(&site, &access, store.value.into()).map_err(|p| self.anywhere(p))?;
            self.turns.progress = executed;
        }
        let options = self.run.options;
        if executed > options.max_instructions {
            return Err(self.anywhere(Problem::TooLong(options.max_instructions)));
        }
        // All threads may wait for a store that the host is still to do.
        if self.host.is_empty() && self.stalled() > self.stall().saturating_mul(2) {
            return Err(self.deadlock());
        }
        Ok(())
    }

    /// A fault that is no single thread's, with the place of one live thread.
    fn anywhere(&self, problem: Problem) -> Fault {
        let (position, thread) = self.ready.first().copied().unwrap_or_default();
        match &self.blocks[position as usize] {
            Some(block) => block.fault(thread as usize, problem),
            None => self.run.block(0, None).fault(0, problem),
        }
    }

    fn deadlock(&self) -> Fault {
        let mut waiting = Vec::new();
        for block in self.blocks.iter().flatten() {
            for first in (0..block.threads.len()).step_by(32) {
                let lanes = first..(first + 32).min(block.threads.len());
                // The place of a thread that runs says more than that of a thread that waits for it at a barrier.
                let ready = lanes.clone().find(|&t| block.threads[t].state == State::Ready);
                let live = lanes.clone().find(|&t| block.threads[t].state != State::Ended);
                if let Some(t) = ready.or(live)
                    && let Some(what) = block.waiting(t)
                    && waiting.len() < 16
                {
                    waiting.push((block.place(t), what));
                }
            }
        }
        self.anywhere(Problem::Deadlock { waiting })
    }
}
