//! The control plane: one thread a process, links between all ranks of a job, liveness, and the news that
//! something failed.
//!
//! Invariant: nothing here is on the data path. Deliberately absent: plans, buffers, transports' bytes.

mod accept;
pub(crate) mod dial;
#[cfg(test)]
mod fuzz;
pub(crate) mod group;
pub(crate) mod inquiry;
pub(crate) mod link;
pub(crate) mod member;
pub(crate) mod patience;
pub(crate) mod process;
mod race;
pub(crate) mod registry;
mod thread;
pub(crate) mod wire;
