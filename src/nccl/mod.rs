//! NCCL's contract on top of this library: what its C interface promises and the Rust interface has no use for.
//!
//! Invariant: everything here is safe Rust on values that `ffi/` has taken from C; nothing here sees a raw pointer.
//! Absent: C types, exported names, handles (`ffi/`).

pub mod allocations;
mod comm;
mod config;
pub mod device;
pub mod environment;
pub mod group;
mod lane;
mod lifecycle;
pub mod log;
pub mod operation;
pub mod operators;
mod properties;
mod result;
mod stream;
mod varying;
pub mod version;

pub use comm::{Comm, NEVER};
pub use config::{
    CALL_BYTES, CONFIG_BYTES, CallConfig, Config, EXTENSION_ALGORITHM, EXTENSION_TIMEOUT_MS,
    EXTENSION_VENDOR, Extension,
};
pub use lifecycle::{Deliver, create_id};
pub use operators::Reduction;
pub use properties::Properties;
pub use result::{Code, Failure, Progress, Result};
pub use stream::Stream;
pub use varying::{Counts, Varying};

pub use crate::communicator::Shrink;
