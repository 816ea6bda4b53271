//! NCCL's contract on top of this library: what its C interface promises and the Rust interface has no use for.
//!
//! Invariant: everything here is safe Rust on values that `ffi/` has taken from C; nothing here sees a raw pointer.
//! Absent: C types, exported names, handles (`ffi/`).

mod config;
pub mod environment;
pub mod log;

pub use config::{
    CALL_BYTES, CONFIG_BYTES, CallConfig, Config, EXTENSION_ALGORITHM, EXTENSION_TIMEOUT_MS,
    EXTENSION_VENDOR, Extension,
};
pub use environment::{root_if_agreed, unique_id};
