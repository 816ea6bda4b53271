//! `collbench` as a user starts it: runs, subcommands, and how it ends where a machine hurts it.

mod binary;
mod environment;
mod machines;
mod planner;
mod traffic;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Held while ranks run: they would slow each other down past their deadlines on few cores.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}
