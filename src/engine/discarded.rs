//! What operations in streams leave behind, until a thread frees it that may wait.
//!
//! Invariant: the thread that drives an engine frees nothing of a device: the driver may wait for the device then, and the device
//! for this engine. Threads of the program free it, when they make a call or end one, and only what is of their own device:
//! operations on the device of another rank of this process may wait for this rank's next call. Absent: what it is.

use std::sync::{Mutex, PoisonError};

/// What is kept, each with the number of its device.
static DISCARDED: Mutex<Vec<(usize, Box<dyn Send>)>> = Mutex::new(Vec::new());

/// Keeps something of the device with this number for [`free`].
pub(super) fn keep(device: usize, value: impl Send + 'static) {
    DISCARDED.lock().unwrap_or_else(PoisonError::into_inner).push((device, Box::new(value)));
}

/// Frees what there is of these devices. Not to be called by a thread that has an engine.
pub(crate) fn free(devices: &[usize]) {
    if devices.is_empty() {
        return;
    }
    let mut all = DISCARDED.lock().unwrap_or_else(PoisonError::into_inner);
    let discarded: Vec<_> = all.extract_if(.., |(device, _)| devices.contains(device)).collect();
    drop(all);
    drop(discarded);
}
