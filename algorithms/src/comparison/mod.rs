//! NCCL's algorithms as schedules on the same wires and under the same costs as ours, and what they take there.
//!
//! Invariant: a price is the simulator's, of a proved schedule; what is too large to be run is continued in a straight
//! line from what was run ([`Prices`]). NCCL's own model of itself ([`nccl_model`]) is not asked for any time, only for
//! what its search finds on a machine. Absent: choosing what to run; these schedules are yardsticks.

pub mod nccl;
mod prices;
mod protocol;
mod rated;

pub use prices::{Candidate, Fleet, Price, Prices};
pub use protocol::{Call, Slots, channels, slots, under};
pub use rated::rated;

#[cfg(doc)]
use crate::simulate::nccl_model;
