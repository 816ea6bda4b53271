//! NCCL's contract on top of this library: the part of its C interface that the Rust interface does not have.
//!
//! Invariant: everything here is safe Rust on values that `ffi/` has taken from C; nothing here sees a raw pointer.
//! Absent: C types, exported names, handles (`ffi/`).

pub mod allocations;
pub mod buffers;
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
pub mod parameters;
mod properties;
mod registrations;
mod result;
mod stream;
pub mod thread;
mod varying;
pub mod version;

pub use comm::{Comm, NEVER};
pub use config::{
    CALL_BYTES, CONFIG_BYTES, CallConfig, Config, EXTENSION_ALGORITHM, EXTENSION_TIMEOUT_MS,
    EXTENSION_VENDOR, Extension,
};
pub use lifecycle::{Deliver, create_id, launched};
pub use operators::Reduction;
pub use properties::Properties;
pub use result::{Code, Failure, Progress, Result, last_failure, remember};
pub use stream::Stream;
pub use varying::{Counts, Varying};

pub use consort::Shrink;

/// Begins the use through the C interface. It logs the version and the variables that are set, and lets warnings of
/// the whole library reach the log. `version` is the version that the library reports. Only the first call in a
/// process has an effect.
pub fn began(version: &str) {
    static BEGAN: std::sync::Once = std::sync::Once::new();
    BEGAN.call_once(|| {
        let environment = environment::Environment::of_process();
        log::listen();
        log::version(version);
        log::announce(&environment);
        if environment.integer("NCCL_PARAM_DUMP_ALL").is_some_and(|on| on != 0) {
            parameters::dump_all();
        }
    });
}
