//! Everything about a job that is not data: joining ([`bootstrap`]), links between all ranks, liveness and agreement on the
//! first failure ([`membership`]), what each rank does and did ([`recorder`], [`trace`]), and whose fault it is that an
//! operation does not end ([`report`]).
//!
//! Invariant: nothing here is on the data path. Deliberately absent: plans, buffers, transports' bytes.

#![forbid(unsafe_code)]
#![allow(
    missing_docs,
    reason = "parts of the library; what programs see of it has documentation where it is defined"
)]

pub mod bootstrap;
pub mod clock;
pub mod codec;
mod frames;
mod handshake;
pub mod membership;
mod proof;
pub mod recorder;
pub mod report;
pub mod trace;

#[cfg(test)]
#[global_allocator]
static ALLOCATOR: consort_transports::fuzzing::Counting = consort_transports::fuzzing::Counting;
