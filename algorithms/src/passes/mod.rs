//! Rewrites of schedules and plans that leave every fold's bracketing alone.
//!
//! Invariant: the result of a pass computes the same values as its argument; the verifier still runs again after it.
//! Deliberately absent: sizes, prices and machines; the caller decides which pass to run.

mod fuse;
mod pipeline;
mod replicate;
pub(crate) mod scratch;

pub use fuse::fuse;
pub use pipeline::pipeline;
pub(crate) use replicate::with_chunks;
pub use replicate::{interleave, replicate, reverse, stagger};
