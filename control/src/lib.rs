//! Everything about a job that is not data: joining ([`bootstrap`]), links between all ranks ([`link`], [`member`]), liveness
//! and agreement on the first failure ([`group`]), what each rank does and did ([`recorder`], [`trace`]), and whose fault it
//! is that an operation does not end ([`inquiry`], [`report`]).
//!
//! One control thread a process ([`process`]), asleep in epoll.
//!
//! Invariant: nothing here is on the data path. Deliberately absent: plans, buffers, transports' bytes.

#![forbid(unsafe_code)]
#![allow(
    missing_docs,
    reason = "parts of the library; what programs see of it has documentation where it is defined"
)]

mod accept;
pub mod bootstrap;
pub mod clock;
pub mod dial;
#[cfg(test)]
mod fuzz;
pub mod group;
pub mod inquiry;
pub mod link;
pub mod member;
pub mod patience;
pub mod process;
mod race;
pub mod recorder;
pub mod registry;
pub mod report;
mod thread;
pub mod trace;
pub mod wire;
