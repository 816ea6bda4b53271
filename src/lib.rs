//! `consort`: collective communication for training.
//!
//! A [`Communicator`] is a group of ranks, each a process or a thread, that move and fold buffers together:
//!
//! ```
//! use consort::{Communicator, ReduceOp};
//!
//! let ranks = Communicator::local(3)?; // three ranks in this process
//! std::thread::scope(|threads| {
//!     for comm in &ranks {
//!         threads.spawn(move || {
//!             let mut gradients = vec![comm.rank() as f32; 4096];
//!             comm.all_reduce(&mut gradients, ReduceOp::Avg).expect("every rank calls it");
//!             assert!(gradients.iter().all(|value| (value - 1.0).abs() < 1e-6));
//!         });
//!     }
//! });
//! # consort::Result::Ok(())
//! ```
//!
//! Calls that need each other, on one communicator or several, are made together in a [`group`]. Blocks of the ranks may
//! differ in length: see [`Blocks`].
//!
//! Tokens go to the [`experts`] that were chosen for them, and come back as weighted sums.
//!
//! Ranks in several processes join with a [`UniqueId`] ([`Communicator::join`]) or under a launcher
//! ([`Communicator::from_launcher`]).
//!
//! Invariant of this crate: no `unsafe`, and nothing that depends on a particular transport or algorithm. It
//! installs no subscriber, no signal handler and no environment variable, and leaves no thread behind when
//! the last communicator is dropped.

#![forbid(unsafe_code)]
#![cfg_attr(
    not(feature = "testing"),
    allow(unreachable_pub, reason = "what simulated jobs see is reachable with the feature `testing`")
)]

mod buckets;
mod communicator;
pub mod device;
mod eager;
mod engine;
pub mod experts;
mod planner;
pub mod planning;
pub mod probe;
mod ticket;
mod wait;

#[cfg(test)]
#[global_allocator]
static ALLOCATOR: consort_transports::fuzzing::Counting = consort_transports::fuzzing::Counting;

pub use consort_types::Rank;

/// A buffer of `elements` elements, all zero, in memory that the ranks of this host can map: collectives on it are not
/// staged, and every byte moves the fewest times. A program's own memory that lies in a memory file can be
/// [registered](Registered) instead. Collectives take any other memory too, with one copy more.
///
/// ```
/// use consort::{Communicator, ReduceOp};
///
/// let ranks = Communicator::local(2)?;
/// std::thread::scope(|threads| {
///     for comm in &ranks {
///         threads.spawn(move || {
///             let mut gradients = consort::alloc::<f32>(100_000).expect("there is memory");
///             gradients.fill(comm.rank() as f32 + 1.0);
///             comm.all_reduce(&mut gradients, ReduceOp::Sum).expect("both ranks call it");
///             assert!(gradients.iter().all(|value| *value == 3.0));
///         });
///     }
/// });
/// # consort::Result::Ok(())
/// ```
///
/// # Errors
/// [`MemoryError::OutOfMemory`] when the pages cannot all be had now; [`MemoryError::System`].
pub fn alloc<T: Plain>(elements: usize) -> std::result::Result<SharedBuffer<T>, MemoryError> {
    SharedBuffer::new(elements)
}

pub use buckets::Buckets;
pub use communicator::Work;
#[doc(hidden)]
pub use communicator::host_name;
pub use communicator::{Communicator, Group, Mesh, Scaled, Scope, ScopedWork, Shrink, WithTimeout, group};
pub use consort_control::bootstrap::{Launch, UniqueId};
pub use consort_control::report::{
    CallReport, CycleStep, GraphReport, Guilty, RankReport, Report, WaitReport, WayReport, WireReport,
};
pub use consort_control::trace::{FlightEntry, FlightRecord, Straggler, Stragglers};
pub use consort_kernels::rows::Real;
pub use consort_kernels::{DataType, Element, F8E4m3, F8E5m2, ReduceOp, Scalar, ScalarSizeError, bf16, f16};
pub use consort_memory::areas::Registered;
pub use consort_memory::{Buffer, Buffers, Held, HeldRead, MemoryError, Plain, SharedBuffer, Span, SpanMut};
pub use consort_settings::options::Determinism;
pub use consort_settings::options::{Options, Pinning, TransportChoice};
pub use consort_types::blocks::Blocks;
pub use consort_types::call::Call;
pub use consort_types::error::{Error, ErrorKind, Operation, Result};
pub use consort_types::varying::CallV;
pub use engine::wires::{Quantiles, WireRecord};

/// The modules' items that simulated jobs use.
#[cfg(feature = "testing")]
#[doc(hidden)]
pub mod testing {
    pub use crate::communicator::shrink::rest;
    pub use crate::communicator::split::part;
    pub use crate::engine::routes::Routes;
    pub use crate::engine::{Buffers, Engine, Memory, Progress, Source, Task};
    pub use crate::planner::{Machine, Planner, Planning};
    pub use crate::ticket::Ticket;
}
