//! Launches, run by a scheduler.
//!
//! Several launches at once are several ranks: threads of all their resident blocks take turns. Two schedules:
//! * [`Schedule::Seeded`]: any ready thread goes next, for a random number of instructions; the same seed gives
//!   the same run. Sometimes one launch or warp is favoured for a while, so that others fall far behind.
//! * [`Schedule::Fast`]: block after block, thread after thread, until a barrier or until a thread loads the same
//!   value from the same address again; a block becomes resident when those that are cannot go on.
//!
//! Every thread has its own position (independent thread scheduling); no two threads execute at once.
//! Invariant: an instruction's memory access is one call of the [`Memory`], vectors excepted when they are torn.
//! Absent: timing, caches, values that a weak memory could give but an interleaving cannot.

mod barrier;
mod block;
mod fast;
mod schedule;
mod spaces;
mod thread;
mod warp;

pub(crate) use schedule::HOST;

use crate::fault::{Fault, Place, Problem};
use crate::memory::{Actor, Memory};
use crate::program::Kernel;
use block::Block;

/// One launch of a kernel.
#[derive(Clone, Copy, Debug)]
pub struct Launch<'a> {
    /// The kernel.
    pub kernel: &'a Kernel,
    /// Blocks.
    pub grid: [u32; 3],
    /// Threads of a block.
    pub block: [u32; 3],
    /// Bytes of dynamic shared memory of a block.
    pub dynamic_shared_bytes: u32,
    /// The parameters, [`Kernel::parameter_bytes`] of them, each at its offset.
    pub params: &'a [u8],
    /// Where the module's global variables were placed ([`crate::Module::global_image`]).
    pub globals: u64,
    /// The device, for scopes: launches on different ones reach each other at system scope only.
    pub device: u32,
}

/// The order of threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Schedule {
    /// Random by [`Options::seed`].
    Seeded,
    /// In order, as fast as it goes.
    Fast,
}

/// A store by the host while kernels run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostStore {
    /// Number of executed instructions after which the store happens.
    pub after: u64,
    /// Address.
    pub address: u64,
    /// 1, 2, 4 or 8.
    pub bytes: u8,
    /// The value.
    pub value: u64,
}

/// How to run.
#[derive(Clone, Debug)]
pub struct Options {
    /// The order of threads.
    pub schedule: Schedule,
    /// Seed of everything random.
    pub seed: u64,
    /// Most instructions of a thread's turn.
    pub quantum: u32,
    /// More executed instructions than this are a fault.
    pub max_instructions: u64,
    /// Most blocks resident at once, in all launches together.
    pub resident_blocks: u32,
    /// Instructions for each ready thread without a store that changes a value, a barrier or an end, after which the
    /// run counts as a deadlock. Seeded schedule only.
    pub stall: u64,
    /// Vector accesses are made element by element, in any order, with others between.
    pub tear: bool,
    /// A barrier for all of a block's threads is a fault when one has ended, or when threads of a warp come to an
    /// aligned one by different instructions.
    pub strict_barriers: bool,
    /// Stores of the host.
    pub host: Vec<HostStore>,
}

impl Options {
    /// For tests that look for mistakes.
    #[must_use]
    pub fn seeded(seed: u64) -> Self {
        Self {
            schedule: Schedule::Seeded,
            seed,
            quantum: 24,
            max_instructions: 50_000_000,
            resident_blocks: u32::MAX,
            stall: 3_000,
            tear: true,
            strict_barriers: true,
            host: Vec::new(),
        }
    }

    /// For running programs.
    #[must_use]
    pub fn fast() -> Self {
        Self {
            schedule: Schedule::Fast,
            seed: 0,
            // Short, so that the threads of a block go through memory side by side.
            quantum: 1_000,
            max_instructions: u64::MAX,
            resident_blocks: 64,
            stall: u64::MAX,
            tear: false,
            strict_barriers: false,
            host: Vec::new(),
        }
    }
}

/// Counters of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Instructions that threads executed, guarded ones that did nothing included.
    pub instructions: u64,
    /// Turns of threads.
    pub turns: u64,
    /// Blocks that ended.
    pub blocks: u64,
}

/// Runs `launches` until all blocks have ended.
///
/// # Errors
/// The first fault, with its place. Memory is then as it was.
pub fn run<M: Memory>(
    launches: &[Launch<'_>],
    memory: &mut M,
    options: &Options,
) -> Result<Statistics, Fault> {
    let mut actors = Vec::new();
    let mut blocks = Vec::new();
    for (number, launch) in launches.iter().enumerate() {
        check(number as u32, launch)?;
        let threads = launch.block.iter().product::<u32>();
        for linear in 0..launch.grid.iter().map(|&n| u64::from(n)).product::<u64>() {
            let actor = Actor { launch: number as u32, block: blocks.len() as u32, device: launch.device };
            blocks.push(Planned { launch: number as u32, linear, first_actor: actors.len() as u32 });
            // Only checkers look at actors; a large fast launch needs no list of them.
            if options.schedule == Schedule::Seeded {
                actors.extend(std::iter::repeat_n(actor, threads as usize));
            }
        }
    }
    memory.begin(&actors);
    let run = Run { launches, options, planned: &blocks };
    let done = match options.schedule {
        Schedule::Seeded => schedule::seeded(&run, memory),
        Schedule::Fast => fast::fast(&run, memory),
    };
    done.map_err(|mut fault| {
        if let Problem::Race { mine, other, .. } = &mut fault.problem {
            mine.place = run.place(mine.actor, mine.line).map(Box::new);
            other.place = run.place(other.actor, other.line).map(Box::new);
        }
        fault
    })
}

fn check(number: u32, launch: &Launch<'_>) -> Result<(), Fault> {
    let at = |problem| Fault {
        place: Box::new(Place {
            kernel: launch.kernel.name().to_owned(),
            launch: number,
            block: [0; 3],
            thread: [0; 3],
            line: launch.kernel.code.first().map_or(0, |instruction| instruction.line),
        }),
        problem,
    };
    let wanted = launch.kernel.parameter_bytes();
    if launch.params.len() != wanted {
        return Err(at(Problem::Parameters { given: launch.params.len(), wanted }));
    }
    let threads: u64 = launch.block.iter().map(|&n| u64::from(n)).product();
    let most = u64::from(launch.kernel.max_threads.unwrap_or(1024).min(1024));
    let blocks = launch.grid.iter().try_fold(1u64, |all, &n| all.checked_mul(n.into()));
    if threads == 0 || threads > most || blocks.is_none_or(|n| n == 0 || n > 1 << 31) {
        return Err(at(Problem::Shape { grid: launch.grid, block: launch.block }));
    }
    Ok(())
}

/// A block that is not resident yet.
struct Planned {
    launch: u32,
    linear: u64,
    first_actor: u32,
}

/// The constants of a run.
struct Run<'r> {
    launches: &'r [Launch<'r>],
    options: &'r Options,
    planned: &'r [Planned],
}

impl<'r> Run<'r> {
    /// The place of thread `actor` at `line`. `None` for the host.
    fn place(&self, actor: u32, line: u32) -> Option<Place> {
        let block = self.planned.iter().rev().find(|planned| planned.first_actor <= actor)?;
        let launch = &self.launches[block.launch as usize];
        let thread = actor - block.first_actor;
        (thread < launch.block.iter().product()).then(|| Place {
            kernel: launch.kernel.name().to_owned(),
            launch: block.launch,
            block: block::index(launch.grid, block.linear),
            thread: block::position(launch.block, thread),
            line,
        })
    }

    fn block(&self, number: usize, reuse: Option<Block<'r>>) -> Block<'r> {
        let planned = &self.planned[number];
        Block::new(&self.launches[planned.launch as usize], planned, number as u32, reuse)
    }
}

/// A small generator of random numbers (`xorshift64*`).
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        // Neighbouring seeds must not give neighbouring runs.
        let mut mixed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        Self((mixed ^ (mixed >> 31)) | 1)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number less than `n`.
    pub(crate) fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(n)) >> 64) as u64
    }
}
