//! NCCL's contract on top of this library: what its C interface promises and the Rust interface has no use for.
//!
//! Invariant: everything here is safe Rust on values that `ffi/` has taken from C; nothing here sees a raw pointer.
//! Absent: C types, exported names, handles (`ffi/`).

pub mod allocations;
mod comm;
pub mod config;
pub mod device;
mod environment;
pub mod group;
mod lane;
mod lifecycle;
pub mod log;
pub mod operation;
pub mod operators;
mod properties;
mod result;
mod stream;
pub mod version;

pub use comm::{Comm, NEVER};
pub use config::{CallConfig, Config};
pub use lifecycle::Deliver;
pub use operators::Reduction;
pub use properties::Properties;
pub use result::{Code, Failure, Progress, Result};
pub use stream::Stream;

pub use crate::communicator::Shrink;

use crate::UniqueId;
use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
/// seam
pub fn unique_id() -> Result<UniqueId> {
    static CREATED: Mutex<VecDeque<UniqueId>> = Mutex::new(VecDeque::new());
    const CREATED_MAX: usize = 256;
    let created = UniqueId::create()?;
    let mut ids = CREATED.lock().unwrap_or_else(PoisonError::into_inner);
    if ids.len() == CREATED_MAX {
        ids.pop_front();
    }
    ids.push_back(created.clone());
    Ok(created)
}
