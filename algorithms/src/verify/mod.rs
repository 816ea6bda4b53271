//! Proves a set of lowered plans, one for each rank, before any of them runs.
//!
//! What is proved, out of place and in the in-place form that NCCL defines:
//! - the plans are well formed and fit together, and agree about every counter and mailbox;
//! - every output chunk is the fold of exactly the right contributions, once each, scaled once each and finished once
//!   when the collective reduces, and all ranks of an all-reduce fold in the same order;
//! - no two accesses to the same memory, one of them a write, are unordered: by other lanes, other ranks, the next
//!   iteration, the operation before, or the caller once its call has returned;
//! - no deadlock with the given slots; every slot that is filled is read.
//!
//! Method: one symbolic run ([`mod@run`] has the reason why one suffices; it is made again with more knowledge of orders where
//! less refuses; plans that are programs side by side have one for each) over as many rounds as it takes for every
//! mailbox to use each of its slots twice. The result holds for any number of rounds, because a plan's later rounds
//! repeat the same steps with the same distances.
//!
//! Invariant: never panics and always ends, for any plans. Deliberately absent: sizes and speed; that the executors
//! do what the steps say; that an entry of a table is disjoint from the others and has the same length on both ranks
//! that name it (it is filled when the plan runs).

mod balance;
mod compile;
mod expression;
mod lockstep;
mod memory;
mod order;
mod outputs;
mod parts;
mod program;
mod refusal;
mod relayed;
mod run;
mod shape;
mod symmetry;
mod touch;

use expression::{Bracket, Expressions, UNDEFINED, mix};
use order::{Clocks, Neighbours, Vectors};
pub(crate) use outputs::expected;
use program::Program;
pub use refusal::{Actor, At, Awaited, Memory, Refusal, Waiting};
use relayed::Relayed;
use run::Run;
pub(crate) use symmetry::check_symmetry;
pub use symmetry::verify_regular;

use crate::{Collective, Plan};

/// The proof that a set of plans is right.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Proof {
    /// Hash of the bracketing: of the one that all output chunks have, or of the partition and every chunk's. Plans
    /// of one collective with equal hashes give the same bits; all plans that fold nothing have one hash. It is the
    /// same on all machines. [`UNORDERED`] where a group is folded.
    pub fold_hash: u64,
    /// Steps of all plans together.
    pub steps: usize,
}

/// The fold hash of plans that fold a group: a switch keeps no order, and the bits of one plan differ between calls.
///
/// Source: NVIDIA/nccl issue 1497.
pub const UNORDERED: u64 = u64::MAX;

/// Proves the plans of all ranks, in the order of ranks.
///
/// # Errors
///
/// [`Refusal`] with the first fault and its place.
pub fn verify(plans: &[Plan]) -> Result<Proof, Refusal> {
    if let Some(proof) = parts::verify_parts(plans, |plans| decide(plans, 0).ok()) {
        return Ok(proof);
    }
    decide(plans, WHOLE_LANES_MAX).map(|decided| proof(plans, &decided))
}

/// What is known of plans that are right.
struct Decided {
    /// Those of all output chunks, rank after rank; of an all-reduce those of one rank.
    brackets: Vec<Bracket>,
    /// Whether a group is folded.
    is_unordered: bool,
    /// Whether callers' buffers are addressed by table entries.
    tables: bool,
    steps: usize,
}

/// Tries what neighbours hear directly, then what lanes relay, then whole clocks; the second only of more lanes than `whole_lanes_max`.
fn decide(plans: &[Plan], whole_lanes_max: usize) -> Result<Decided, Refusal> {
    let program = compile::compile(plans)?;
    let is_open = |decided: &Result<Decided, Refusal>| {
        matches!(decided, Err(Refusal::TooLarge { .. }))
            || matches!(decided, Err(refusal) if refusal.is_of_order())
    };
    let mut decided = run::<Neighbours>(&program);
    if is_open(&decided) && program.lanes.len() > whole_lanes_max {
        decided = run::<Relayed>(&program);
    }
    if is_open(&decided) {
        decided = run::<Vectors>(&program);
    }
    decided
}

/// Up to this many lanes whole clocks are quick, and quicker than what is relayed where every rank exchanges with all others.
const WHOLE_LANES_MAX: usize = 4096;

fn run<C: Clocks>(program: &Program) -> Result<Decided, Refusal> {
    let mut expressions = Expressions::new(program.ranks);
    let outputs = Run::<C>::new(program, &mut expressions)?.finish()?;
    // All ranks of an all-reduce have the same outputs.
    let ranks = if program.collective == Collective::AllReduce { 1 } else { program.ranks };
    let outputs = &outputs[..(ranks * program.output_chunks) as usize];
    // An output that does not exist on a rank is undefined there.
    let there = outputs.iter().filter(|&&output| output != UNDEFINED);
    Ok(Decided {
        brackets: there.map(|&output| expressions.bracket(output)).collect(),
        is_unordered: program.sources.iter().any(|source| source.cells.len() > 1),
        tables: program.tables,
        steps: program.steps,
    })
}

fn proof(plans: &[Plan], decided: &Decided) -> Proof {
    let steps = decided.steps;
    let Some(first) = plans.first().filter(|_| !decided.is_unordered) else {
        return Proof { fold_hash: UNORDERED, steps };
    };
    let parts = if decided.tables { u64::MAX } else { first.partition.parts.into() };
    let fold_hash = hash_of_brackets(first.collective, first.ranks, parts, decided.brackets.iter().copied());
    Proof { fold_hash, steps }
}

/// The hash of the brackets of all outputs, rank after rank and chunk after chunk.
fn hash_of_brackets(
    collective: Collective,
    ranks: u32,
    parts: u64,
    mut brackets: impl Iterator<Item = Bracket> + Clone,
) -> u64 {
    let mut name = 0;
    for byte in collective.name().bytes() {
        name = mix(name, byte.into(), 1);
    }
    if !collective.reduces() {
        return mix(name, ranks.into(), 0);
    }
    let all = brackets.clone();
    let first = brackets.next().map_or(0, Bracket::hash);
    if brackets.all(|bracket| bracket.hash() == first) {
        return mix(name, ranks.into(), first);
    }
    let shape = mix(name, ranks.into(), parts);
    all.fold(shape, |hash, bracket| mix(hash, bracket.hash(), 2))
}
