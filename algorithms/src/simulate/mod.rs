//! The time of a schedule on a machine, in virtual time.
//!
//! The schedule runs as its lowered plans would: a rank has one lane for each channel, or for several channels that
//! touch the same written place. A lane takes its transfers in the order of the rounds, sends, then local copies,
//! then receives, and starts again for the next slice. Transfers of one round between the same ranks on the same
//! channel are one message, which takes one slot. The sends of a round leave together, and the lane goes on when the
//! last byte of them has left. Messages share the links of their routes max-min fairly, each of a switch's copies for
//! itself. The receiver's copies and folds queue for its one processor, or are done by [as many lanes at
//! once](crate::topology::Costs::lanes) as a device runs. A message waits only for earlier messages in
//! the order of slices and rounds, so every schedule ends, even with one slot. Whether its plans end, which have a
//! slot for each transfer, is for the verifier to prove.
//!
//! Invariant: pure and exact. Time is whole picoseconds, ties are resolved by numbers, rates are computed in one
//! fixed order: the same arguments give the same outcome on every machine. Deliberately absent: packets, loss,
//! congestion control, fusion of an arrival with its next hop, and randomness.
//!
//! A long message on a large machine is not run to its end: at most [`Options::messages_max`] messages (but two
//! slices) are run, and the time of the second half of these slices is continued in a straight line.

mod classes;
mod draw;
pub mod nccl_model;
mod network;
mod orbit;
mod outcome;
mod paths;
mod program;
mod run;

use std::error::Error;
use std::fmt;

pub use draw::timeline_svg;
pub use outcome::{Outcome, Span};

use crate::topology::Topology;
use crate::{Rank, Regular, Schedule, whole};

/// The size of the call, of the slots and of the simulation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options {
    /// Bytes of one block: the caller's count times the size of an element.
    pub block_bytes: usize,
    /// Bytes of a slot; longer chunks travel in slices of it. At least 1.
    pub slot_bytes: usize,
    /// Slots of every mailbox, which are the credits of its sender; at least 1.
    pub slots: u32,
    /// Whether copies and folds take the receiver's time.
    pub work: bool,
    /// The number of messages that are run before the rest is extrapolated.
    pub messages_max: u64,
    /// Whether the outcome lists every message.
    pub timeline: bool,
}

impl Options {
    /// A call of `block_bytes` with four slots of 256 KiB, with work and without a timeline.
    pub const fn new(block_bytes: usize) -> Options {
        Options {
            block_bytes,
            slot_bytes: 256 << 10,
            slots: 4,
            work: true,
            messages_max: 1 << 20,
            timeline: false,
        }
    }
}

/// Why a schedule cannot be timed on a machine.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SimulateError {
    /// A rank or switch of the schedule is not in the topology.
    NoSuchNode {
        /// Its number in the schedule.
        rank: Rank,
    },
    /// No route leads from one node to the other.
    NoRoute {
        /// The node that has the bytes.
        from: Rank,
        /// The node that they should reach.
        to: Rank,
    },
    /// No slots, or slots of no bytes.
    NoSlots,
    /// A regular schedule is not symmetric on this machine, and too long to be run rank by rank.
    TooLarge,
}

impl fmt::Display for SimulateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SimulateError::NoSuchNode { rank } => write!(f, "the topology has no place for {rank}"),
            SimulateError::NoRoute { from, to } => write!(f, "no route leads from {from} to {to}"),
            SimulateError::TooLarge => f.write_str("the schedule is too long to be run rank by rank"),
            SimulateError::NoSlots => f.write_str("at least one slot of at least one byte is needed"),
        }
    }
}

impl Error for SimulateError {}

/// Runs `schedule` on `topology`. Rank `i` is the topology's rank `i`; nodes that the schedule numbers above its
/// ranks are the topology's aggregating switches, in their order. What is alike in several places is run once, which
/// changes the outcome by nothing.
///
/// # Errors
///
/// [`SimulateError`] when the machine is too small or has no route, or there is no slot.
pub fn simulate(
    schedule: &Schedule,
    topology: &Topology,
    options: &Options,
) -> Result<Outcome, SimulateError> {
    let (program, mut paths) = prepared(schedule, topology, options)?;
    if !options.timeline {
        let queues = |lanes: usize| queues(lanes, topology, options);
        if let Some(of) = classes::quotient(&program, &mut paths, schedule.ranks, &queues) {
            return Ok(run_once(of, topology, options, schedule.ranks));
        }
    }
    Ok(run_all(&program, paths, topology, options, schedule.ranks))
}

/// As [`simulate`], with every rank run by itself, whatever is alike: what [`simulate`] is compared with.
///
/// # Errors
///
/// As [`simulate`].
pub fn simulate_each(
    schedule: &Schedule,
    topology: &Topology,
    options: &Options,
) -> Result<Outcome, SimulateError> {
    let (program, paths) = prepared(schedule, topology, options)?;
    Ok(run_all(&program, paths, topology, options, schedule.ranks))
}

/// As [`simulate`] for a regular schedule whose ranks are alike on the machine, without the transfers of all ranks: the
/// ranks that stand for all others are run, whose number does not grow with the machine. `None` where they are not
/// alike, a timeline is asked for, or an all-reduce over at most [`EXACT_RANKS_MAX`] ranks has pieces that differ in
/// length; over more ranks all pieces count as long as the longest, which adds at most a line of a cache for each.
///
/// # Errors
///
/// As [`simulate`].
pub fn simulate_orbits(
    regular: &dyn Regular,
    topology: &Topology,
    options: &Options,
) -> Result<Option<Outcome>, SimulateError> {
    let ranks = regular.head().ranks;
    if options.slots == 0 || options.slot_bytes == 0 {
        return Err(SimulateError::NoSlots);
    }
    if options.timeline {
        return Ok(None);
    }
    let of = orbit::quotient(regular, topology, options)?;
    let of = of.filter(|(_, rounded)| !rounded || ranks > EXACT_RANKS_MAX);
    Ok(of.map(|(of, _)| run_once(of, topology, options, ranks)))
}

/// As [`simulate_orbits`], and as [`simulate`] where that gives nothing and the schedule of all ranks is not too long.
///
/// # Errors
///
/// As [`simulate`], and [`SimulateError::TooLarge`].
pub fn simulate_regular(
    regular: &dyn Regular,
    topology: &Topology,
    options: &Options,
) -> Result<Outcome, SimulateError> {
    if let Some(outcome) = simulate_orbits(regular, topology, options)? {
        return Ok(outcome);
    }
    let mut transfers = 0;
    regular.own(Rank(0), &mut |_| transfers += 1);
    if transfers * u64::from(regular.head().ranks) > TRANSFERS_MAX {
        return Err(SimulateError::TooLarge);
    }
    simulate(&whole(regular), topology, options)
}

/// The most ranks for which [`simulate_orbits`] gives pieces of an all-reduce that differ in length their own.
pub const EXACT_RANKS_MAX: u32 = 64;
/// The most transfers of all ranks that are made where a schedule has no symmetry on the machine.
const TRANSFERS_MAX: u64 = 1 << 23;

fn run_once(of: classes::Quotient, topology: &Topology, options: &Options, ranks: u32) -> Outcome {
    let network = network::Network::new(of.paths);
    run::Run::new(&of.program, network, topology, options, ranks, Some(&of.alike)).run()
}

fn prepared(
    schedule: &Schedule,
    topology: &Topology,
    options: &Options,
) -> Result<(program::Program, paths::Paths), SimulateError> {
    if options.slots == 0 || options.slot_bytes == 0 {
        return Err(SimulateError::NoSlots);
    }
    let program = program::Program::new(schedule, options);
    let paths = paths::Paths::new(&program.connections, topology, schedule.ranks)?;
    Ok((program, paths))
}

fn run_all(
    program: &program::Program,
    mut paths: paths::Paths,
    topology: &Topology,
    options: &Options,
    ranks: u32,
) -> Outcome {
    let each: Vec<u32> = (0..paths.capacity.len() as u32).collect();
    paths.leave_out_slack(&each);
    run::Run::new(program, network::Network::new(paths), topology, options, ranks, None).run()
}

/// Whether that many lanes of a rank wait for each other's copies and folds.
fn queues(lanes: usize, topology: &Topology, options: &Options) -> bool {
    let costs = &topology.costs;
    lanes > costs.lanes.max(1) as usize
        && options.work
        && costs.copy_ns_per_byte + costs.reduce_ns_per_byte > 0.0
}
