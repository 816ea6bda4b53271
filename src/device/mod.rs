//! Ranks on GPUs: memory of devices, streams, and communicators on them.
//!
//! ```no_run
//! use consort::device::{Device, group};
//! use consort::{Communicator, ReduceOp};
//!
//! // Two ranks of this process on one device, driven by one thread.
//! let device = Device::open(0)?;
//! let ranks = Communicator::local(2)?;
//! let ranks: Vec<_> = std::thread::scope(|threads| {
//!     let placed = ranks.iter().map(|rank| threads.spawn(|| rank.on_device(&device)));
//!     placed.collect::<Vec<_>>().into_iter().map(|rank| rank.join().expect("no panic")).collect()
//! });
//! let ranks = ranks.into_iter().collect::<consort::Result<Vec<_>>>()?;
//! let (stream, buffers) = (device.stream()?, [device.copy_of(&[1.0f32; 8])?, device.copy_of(&[2.0f32; 8])?]);
//! group(|group| {
//!     for (rank, buffer) in ranks.iter().zip(&buffers) {
//!         group.all_reduce(rank, buffer, buffer, ReduceOp::Sum, &stream)?;
//!     }
//!     Ok(())
//! })?;
//! stream.synchronize()?;
//! assert_eq!(buffers[0].to_vec()?, [3.0; 8]);
//! # consort::Result::Ok(())
//! ```
//!
//! Calls put an operation into a stream and return; the stream is asked for its end. See
//! `docs/adr/0009-devices.md` for how operations run.
//!
//! Invariant: an operation keeps the memory that it was given until it is over. Absent: kernels (`consort-kernels`) and
//! the driver (`consort-memory`).

mod alone;
mod communicator;
mod flight;
mod fused;
mod gpu;
mod host;
mod images;
mod memory;
mod p2p;
mod placement;
mod shared;
mod slots;
mod submission;
mod table;
mod trouble;

pub use communicator::{DeviceCommunicator, DeviceGroup, group};
pub use consort_cuda::{DeviceSpan, RawStream};
pub use memory::{Device, DeviceBuffer, Stream};
pub use placement::Placement;
#[doc(hidden)]
pub use placement::{Entry, issue_all};
pub use table::Path;
