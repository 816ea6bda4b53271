//! The buffers that are registered with a communicator.
//!
//! Invariant: a number stands for one buffer at most, and is used once. Absent: the effect of a registration.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

/// Addresses and bytes, by number.
#[derive(Default)]
pub(super) struct Registrations(Mutex<Buffers>);

#[derive(Default)]
struct Buffers {
    /// The last number that was used.
    last: usize,
    noted: BTreeMap<usize, (usize, usize)>,
}

impl Registrations {
    /// Records a buffer and returns its number, never 0.
    pub(super) fn note(&self, start: usize, bytes: usize) -> usize {
        let mut buffers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        buffers.last += 1;
        let number = buffers.last;
        buffers.noted.insert(number, (start, bytes));
        number
    }

    /// Removes the buffer of a number; whether there was one.
    pub(super) fn forget(&self, number: usize) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).noted.remove(&number).is_some()
    }
}
