//! The nouns of the library: what is asked of a communicator ([`call`], [`varying`], [`blocks`]) and how a call can
//! fail ([`error`]).
//!
//! Invariant: pure; what is checked here needs no other rank. Absent: how a call is carried out, and settings.

#![forbid(unsafe_code)]

pub mod blocks;
pub mod call;
pub mod error;
pub mod stretch;
pub mod varying;

pub use blocks::Blocks;
pub use call::Call;
pub use error::{Error, ErrorKind, Operation, Result};
pub use varying::CallV;

/// A rank's number within a communicator, from 0.
pub type Rank = u32;
