//! Collectives as plain data.
//!
//! A [`Schedule`] says symbolically which rank moves or folds which chunk to which other; a [`Plan`] is one rank's
//! lowered program of one-sided steps. Builders make schedules, passes rewrite them, [`lower`](lower()) turns them
//! into plans, and [`verify`](verify()) proves a set of plans before any of them runs.
//!
//! Invariant: this crate is pure. It has no clocks, threads, bytes or `unsafe`. Its values can be printed, compared
//! and hashed, and the same arguments give the same result on every rank.

#![forbid(unsafe_code)]

mod aliasing;
pub mod bounds;
pub mod builders;
pub mod catalogue;
pub mod comparison;
mod cost;
pub mod export;
pub mod hardware;
pub mod language;
pub mod lengths;
mod lower;
mod nouns;
mod numbers;
mod partition;
pub mod passes;
pub mod plan;
mod regular;
mod schedule;
pub mod search;
mod sets;
pub mod simulate;
pub mod synthesize;
pub mod topology;
mod verify;
pub mod workload;

pub use cost::Cost;
pub use lower::{
    LowerError, LowerOptions, folds, lower, lower_all, lower_one, lower_switch, mapped, mapped_reduce,
};
pub use nouns::{Channel, Chunk, Collective, Rank};
pub use partition::{Block, CHUNK_ALIGN_BYTES, Extents, Partition};
pub use plan::Plan;
pub use regular::{Own, Regular, Symmetry, whole};
pub use schedule::{Place, Round, Schedule, Transfer};
pub use topology::Topology;
pub use verify::{Actor, At, Awaited, Memory, Proof, Refusal, UNORDERED, Waiting, verify, verify_regular};
