//! What operations in streams leave behind, until a thread frees it that may wait.
//!
//! Invariant: the thread that drives an engine frees nothing of a device: the driver may wait for the device then, and the device
//! for this engine. Threads of the program free it, when they make a call or end one. Absent: what it is.

use std::sync::{Mutex, PoisonError};

static DISCARDED: Mutex<Vec<Box<dyn Send>>> = Mutex::new(Vec::new());

/// Keeps something for [`free`].
pub(super) fn keep(value: impl Send + 'static) {
    DISCARDED.lock().unwrap_or_else(PoisonError::into_inner).push(Box::new(value));
}

/// Frees what there is. Not to be called by a thread that has an engine.
pub(crate) fn free() {
    let discarded = std::mem::take(&mut *DISCARDED.lock().unwrap_or_else(PoisonError::into_inner));
    drop(discarded);
}
