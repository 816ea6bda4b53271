//! The buffers that are registered with a communicator, by number.
//!
//! Invariant: a number stands for one buffer at most, and is given once; a buffer is registered until its number is forgotten, or the
//! communicator goes. Absent: what adapters make of it ([`consort_memory::user_buffers`]).

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use consort_memory::UserBuffer;

/// The last number that was given, and the buffers by those in use.
#[derive(Default)]
pub(super) struct Registrations(Mutex<(usize, BTreeMap<usize, UserBuffer>)>);

impl Registrations {
    fn noted(&self) -> MutexGuard<'_, (usize, BTreeMap<usize, UserBuffer>)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number of another buffer, never 0.
    pub(super) fn note(&self, buffer: UserBuffer) -> usize {
        let (last, buffers) = &mut *self.noted();
        *last += 1;
        buffers.insert(*last, buffer);
        *last
    }

    /// Whether the number stood for a buffer; it does not from now on.
    pub(super) fn forget(&self, number: usize) -> bool {
        let gone = self.noted().1.remove(&number);
        gone.is_some()
    }
}

#[cfg(test)]
mod tests {
    use consort_memory::user_buffers;

    use super::*;

    #[test]
    fn buffers_are_registered_until_their_number_is_forgotten_or_all_go() {
        let registrations = Registrations::default();
        let data = [0u8; 64];
        let start = data.as_ptr() as usize;
        let note = || registrations.note(UserBuffer::new(start, data.len()).expect("a buffer"));
        let (first, second) = (note(), note());
        assert!(first != second && first > 0);
        assert!(registrations.forget(second) && !registrations.forget(second));
        assert!(user_buffers::find(start, 64).is_some(), "the first still is");
        drop(registrations);
        assert_eq!(user_buffers::find(start, 64), None);
    }
}
