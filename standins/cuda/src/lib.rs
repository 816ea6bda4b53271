//! A stand-in for the CUDA driver, for tests: `libcuda.so.1` whose devices are host memory and whose launches run in an
//! interpreter of PTX. It is not NVIDIA's, shows nothing about NVIDIA's, and says so when it starts.
//!
//! Invariant: it behaves as the driver documents where a program could be caught out: device memory crashes the host that
//! touches it, streams share hardware queues, what spins without being co-resident hangs, kernels of two processes on one
//! device take turns, failures stick to a context, nothing works in a forked child. Absent: graphs, arrays, textures,
//! machine code (that of consort is recognised, and its text runs), speed. What is stronger than a GPU: every access of a
//! kernel is as ordered as the host's processor orders it; races are looked for by the interpreter's own checks, in its
//! tests.
//!
//! Variables: `CONSORT_STANDIN_{DEVICES,PEERS,CONNECTIONS,SEED,BLOCKS_MAX,MEMORY,BINARIES,LOG,QUIET}`, see `settings.rs`.

pub mod api;
mod boundary;
mod capture;
mod code;
mod context;
mod driver;
mod engine;
mod gate;
mod memory;
mod module;
mod queue;
mod reach;
mod settings;
mod shipped;
mod span;

pub use boundary::{In, Out, Text};
pub use code::Code;
