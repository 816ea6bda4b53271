//! Ranks as threads and as processes, in jobs without faults.

mod algorithms;
mod broken;
mod collectives;
mod folds;
mod fork;
mod groups;
mod hygiene;
mod imported;
mod language;
mod launchers;
mod listeners;
mod mapped;
mod meshes;
mod messages;
mod misuse;
mod planner;
mod processes;
mod registered;
mod replicated;
mod scaled;
mod traces;
mod vectors;
mod ways;
mod work;

/// The program that is a rank of its own process.
const RANK: &str = env!("CARGO_BIN_EXE_rank");
