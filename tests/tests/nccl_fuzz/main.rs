//! Hostile callers of the C functions: programs of calls with wild numbers, nulls, freed and foreign handles, in any
//! order, in groups that are left open, on communicators that block and that do not.
//!
//! A piece of an input is a call: its function and its arguments. The promises of a caller are kept (see `world`).
//! After each input everything is ended, and no handle, no thread's panic and no unbounded allocation may be left.
//!
//! Invariant under test: every call returns a result of `ncclResult_t` within its deadline. Absent: several
//! threads (`nccl_races`), ranks in several processes, CUDA.

mod calls;
mod small;
mod world;

use consort_tests::c_calls::{IN_PROGRESS, INTERNAL, SUCCESS, last_error};
use consort_tests::system::{SOON, eventually};
use consort_transports::fuzzing::{Counting, Input, Seen, Target, fuzz, parse};

use calls::Function;
use world::World;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Communicators of up to eight ranks in this thread, and their plans.
const TARGET: Target = Target {
    name: "c-calls",
    command: "-p consort-tests --test nccl_fuzz",
    bytes_max: 64 << 20,
    inputs: 300,
};

fn handle(input: &Input, seen: &mut Seen) {
    let mut world = World::new();
    for piece in input.iter().take(world::CALLS_MAX) {
        let Some((number, arguments)) = piece.split_first() else { continue };
        let function = Function::of(*number);
        let result = calls::call(&mut world, function, arguments);
        // An internal error is by definition a defect, and there is no CUDA here.
        assert!(
            (0..=8).contains(&result) && ![1, INTERNAL].contains(&result),
            "{function:?}: {result}, {}",
            last_error()
        );
        seen.note((function as u8, result));
        if ![SUCCESS, IN_PROGRESS].contains(&result) {
            seen.note_text(&last_error());
        }
    }
    world.end();
    assert!(
        eventually(SOON, || nccl::handles_in_use() == (0, 0)),
        "communicators and streams left: {:?}",
        nccl::handles_in_use()
    );
    assert_eq!(nccl::registrations_in_use(), 0, "memory is still registered");
}

/// The programs from which others are made, in the form that a failure prints; `#` begins a comment.
fn originals() -> Vec<Input> {
    let text = include_str!("corpus.txt");
    let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default().trim());
    lines.filter(|line| !line.is_empty()).map(|line| parse(line).expect("hexadecimal digits")).collect()
}

#[test]
fn any_program_of_calls_has_results_and_leaves_nothing() {
    for (variable, seconds) in [("CONSORT_TIMEOUT", "0.2"), ("CONSORT_JOIN_TIMEOUT", "0.2")] {
        // SAFETY: the only test of this process; no other thread of it looks at the environment yet.
        unsafe { std::env::set_var(variable, seconds) };
    }
    fuzz(&TARGET, originals(), handle);
}
