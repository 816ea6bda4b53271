//! NCCL's C interface: every name that `libnccl.so.2` exports, and the additions of this library (`consort*`).
//!
//! Invariant: no panic crosses the boundary, a wrong handle is an error, and this crate only translates:
//! `consort_nccl` decides what the calls do. `include/nccl.h` and `include/consort.h` declare all of them.

mod boundary;
mod buffers;
mod collectives;
mod configs;
mod device;
pub mod extensions;
mod handles;
mod lifecycle;
mod memory;
mod parameters;
mod registrations;
mod streams;
#[cfg(test)]
mod tests;
pub mod timeout;
mod types;
mod vectors;

pub use boundary::*;
pub use collectives::*;
pub use device::*;
pub use handles::{handles_in_use, registrations_in_use};
pub use lifecycle::*;
pub use memory::*;
pub use parameters::*;
pub use registrations::*;
pub use streams::*;
pub use types::*;
pub use vectors::*;
