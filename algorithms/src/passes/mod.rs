//! Rewrites of schedules and plans that leave every fold's bracketing alone.
//!
//! Invariant: what a pass makes computes what its argument computed; the verifier is run again after it all
//! the same. Deliberately absent: any knowledge of sizes, prices or machines; who calls a pass decides.

mod fuse;
mod pipeline;
mod replicate;
pub(crate) mod scratch;

pub use fuse::fuse;
pub use pipeline::pipeline;
pub(crate) use replicate::with_chunks;
pub use replicate::{interleave, replicate, reverse};
