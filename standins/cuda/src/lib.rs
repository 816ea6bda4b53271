//! A stand-in for the CUDA driver, for tests: `libcuda.so.1` whose devices are host memory and whose launches run in an
//! interpreter of PTX. It is not NVIDIA's, shows nothing about NVIDIA's, and says so when it starts.
//!
//! Invariant: the stand-in behaves as the driver documents in all that a program could get wrong: device memory
//! crashes the host that touches it, streams share hardware queues, blocks that spin without being co-resident hang,
//! kernels of two processes on one device take turns, failures stick to a context, no call works in a forked child.
//! Absent: graphs, arrays, textures, machine code (that of consort is recognised, and its text runs), speed. Stronger
//! than on a GPU: every access of a kernel is as ordered as the host's processor orders it. The interpreter's own
//! tests look for races.
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
