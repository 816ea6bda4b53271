//! The control plane: one thread a process, links between the ranks of a job, liveness, and agreement on the first failure.
//!
//! ```text
//! process  the thread and what it watches        registry  what other communicators of the process do
//! dial, accept, race, link    links to the other ranks        relays  how the table of a large job travels before
//! overlay  which links there are from the beginning        callers  the threads that make the others
//! member   this process's end of a job            wire      what is said on links
//! group    a communicator's ranks, their failure, their rounds
//! inquiry  what all ranks do, for the hang report
//! ```
//!
//! Invariant: nothing here is on the data path. Deliberately absent: plans, buffers, transports' bytes.

mod accept;
mod callers;
pub mod dial;
#[cfg(test)]
mod fuzz;
pub mod group;
pub mod inquiry;
pub mod link;
pub mod member;
pub mod overlay;
pub mod patience;
pub mod process;
mod race;
pub mod registry;
pub mod relays;
mod thread;
pub mod wire;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// What a mutex holds, also after a panic of another thread that held it.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
