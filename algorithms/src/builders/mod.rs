//! Algorithms as schedules, one file each, with the source of the algorithm and its cost.
//!
//! Invariant: a builder is a pure function of (collective, ranks, options); the same arguments give the same
//! schedule on every rank. Deliberately absent: sizes, topology and choice, which belong to the planner.

mod doubling;
mod pair;
mod ring;

pub use doubling::doubling;
pub use pair::pair;
pub use ring::{RingOptions, ring};
