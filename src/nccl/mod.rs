//! NCCL's contract on top of this library: what its C interface promises and the Rust interface has no use for.
//!
//! Invariant: everything here is safe Rust on values that `ffi/` has taken from C; nothing here sees a raw pointer.
//! Absent: C types, exported names, handles (`ffi/`).

mod config;
pub mod environment;
pub mod log;
pub mod parameters;

pub use config::{
    CALL_BYTES, CONFIG_BYTES, CallConfig, Config, EXTENSION_ALGORITHM, EXTENSION_TIMEOUT_MS,
    EXTENSION_VENDOR, Extension,
};
pub use environment::{root_if_agreed, unique_id};

/// To be called when the library is first used through the C interface, with the version that it goes by: tells the log
/// the version and which variables are set, and lets warnings of the whole library reach the log. Once a process; later
/// calls do nothing.
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
