//! The numbers of the buffers that are registered with a communicator.
//!
//! Invariant: a number stands for one buffer at most, and is given once. Absent: the buffers' addresses, which nothing asks for.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The last number that was given, and the numbers in use.
#[derive(Default)]
pub(super) struct Registrations(Mutex<(usize, BTreeSet<usize>)>);

impl Registrations {
    fn noted(&self) -> MutexGuard<'_, (usize, BTreeSet<usize>)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number of another buffer, never 0.
    pub(super) fn note(&self) -> usize {
        let (last, numbers) = &mut *self.noted();
        *last += 1;
        numbers.insert(*last);
        *last
    }

    /// Whether the number stood for a buffer; it does not from now on.
    pub(super) fn forget(&self, number: usize) -> bool {
        self.noted().1.remove(&number)
    }
}
