//! The buffers that a communicator was told of.
//!
//! Invariant: a number stands for one buffer at most, and is given once. Absent: what a registration is good for.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

/// Addresses and bytes, by number.
#[derive(Default)]
pub(super) struct Registrations(Mutex<Buffers>);

#[derive(Default)]
struct Buffers {
    /// The last number that was given.
    last: usize,
    noted: BTreeMap<usize, (usize, usize)>,
}

impl Registrations {
    /// The number of a buffer from now on, never 0.
    pub(super) fn note(&self, start: usize, bytes: usize) -> usize {
        let mut buffers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        buffers.last += 1;
        let number = buffers.last;
        buffers.noted.insert(number, (start, bytes));
        number
    }

    /// Whether the number stood for a buffer; it does not from now on.
    pub(super) fn forget(&self, number: usize) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).noted.remove(&number).is_some()
    }
}
