//! Proves a set of lowered plans, one for each rank, before any of them runs.
//!
//! What is proved, out of place and in the in-place form that NCCL defines:
//! - the plans are well formed and fit together, and agree about every counter and mailbox;
//! - every output chunk is the fold of exactly the right contributions, once each, scaled once each and
//!   finished once when the collective reduces, and all ranks of an all-reduce fold in the same order;
//! - no two accesses to the same memory, one of which writes, are unordered: by other lanes, other ranks,
//!   the next iteration, the operation before, or the caller once its call has returned;
//! - no deadlock with the given slots; nothing stays unread in a mailbox.
//!
//! How: by one symbolic run ([`run`] says why one suffices) over so many rounds that every mailbox goes twice
//! round its slots. What holds then holds for any number of rounds, because a plan's later rounds repeat the
//! same steps with the same distances.
//!
//! Invariant: never panics and always ends, whatever the plans are. Deliberately absent: sizes and speed; that
//! the executors do what the steps say; that an entry of a table is disjoint from the others and has the same
//! length on both ranks that name it (it is filled when the plan runs).

mod balance;
mod compile;
mod expression;
mod memory;
mod order;
mod program;
mod refusal;
mod run;

use expression::{Expressions, Id, mix};
use program::Program;
pub use refusal::{Actor, At, Awaited, Memory, Refusal, Waiting};
use run::Run;

use crate::Plan;

/// That a set of plans is right.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Proof {
    /// Hash of the partition and of every output chunk's bracketing. Plans of equal hash give the same bits;
    /// it is the same on all machines.
    pub fold_hash: u64,
    /// Steps of all plans together.
    pub steps: usize,
}

/// Proves the plans of all ranks, in the order of ranks.
///
/// # Errors
///
/// [`Refusal`] with the first thing that is wrong, and where.
pub fn verify(plans: &[Plan]) -> Result<Proof, Refusal> {
    let program = compile::compile(plans)?;
    let mut expressions = Expressions::new();
    let outputs = Run::new(&program, &mut expressions, false)?.finish()?;
    if program.has_in_place_form() {
        Run::new(&program, &mut expressions, true)?.finish()?;
    }
    Ok(Proof { fold_hash: fold_hash(&program, &expressions, &outputs), steps: program.steps })
}

fn fold_hash(program: &Program, expressions: &Expressions, outputs: &[Id]) -> u64 {
    let mut name = 0;
    for byte in program.collective.name().bytes() {
        name = mix(name, byte.into(), 1);
    }
    let parts = if program.tables { u64::MAX } else { program.partition.parts.into() };
    let shape = mix(name, program.ranks.into(), parts);
    outputs.iter().fold(shape, |hash, &output| mix(hash, expressions.hash(output), 2))
}
