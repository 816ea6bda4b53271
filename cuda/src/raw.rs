//! A handle of the driver's, which is an address that only the driver looks at.
//!
//! Invariant: never dereferenced here. Absent: what it is of, and who gives it back.

/// A handle that threads may hand to each other: the driver's functions may be called from all of them.
#[derive(Debug)]
pub(super) struct Raw<T>(pub(super) *mut T);

impl<T> Clone for Raw<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Raw<T> {}

impl<T> PartialEq for Raw<T> {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}

impl<T> Eq for Raw<T> {}

// SAFETY: a number to everybody but the driver, which locks its own state.
unsafe impl<T> Send for Raw<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Raw<T> {}
