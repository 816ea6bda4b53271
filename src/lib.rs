//! placeholder
pub mod error;
pub use error::{Error, Operation, Result};
/// A rank's number.
pub type Rank = u32;
