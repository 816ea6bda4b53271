//! Ranks that differ, die, stop, stay away, leave, go and come. Most of these tests wait for a deadline.

mod cases;
mod differences;
mod large;
mod losses;
mod machines;
mod members;
mod membership;
mod meshes;
mod threads;
mod torture;

/// The program that is a rank of its own process.
const RANK: &str = env!("CARGO_BIN_EXE_failing-rank");
