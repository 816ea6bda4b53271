//! The functions that the library exports, by subject.
//!
//! Invariant: each function does what NVIDIA's driver documents, or refuses the call. Absent: graphs, textures,
//! arrays, external memory, multicast, profiling.

pub mod capture;
pub mod context;
pub mod copy;
pub mod device;
pub mod direct;
pub mod event;
pub mod ipc;
pub mod lookup;
pub mod memory;
pub mod module;
pub mod pointer;
pub mod stream;
pub mod virtual_memory;
