//! A handle of the driver's, which is an address that only the driver looks at, and a stream's, which is a number to programs.
//!
//! Invariant: never dereferenced here. Absent: what it is of, and who gives it back.

use cudarc::driver::sys::CUstream;

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

// SAFETY: a number to all but the driver, which locks its own state.
unsafe impl<T> Send for Raw<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Raw<T> {}

/// A stream by the number that the driver, and CUDA's runtime, has for it. The code that makes one out of a number says
/// that it is such a number: the driver looks at what is there, as it does for every program that calls it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct RawStream(pub u64);

impl RawStream {
    /// The default stream, by the number that programs pass for it.
    pub const DEFAULT: RawStream = RawStream(0);
    /// The default stream that waits for all others (`CU_STREAM_LEGACY`).
    pub const LEGACY: RawStream = RawStream(1);
    /// A thread's own default stream (`CU_STREAM_PER_THREAD`).
    pub const PER_THREAD: RawStream = RawStream(2);

    /// Whether it is one of the default streams, which every context has for itself.
    pub fn is_default(self) -> bool {
        self.0 <= Self::PER_THREAD.0
    }

    /// The number as the driver's functions take it.
    #[inline]
    pub(super) fn handle(self) -> CUstream {
        std::ptr::with_exposed_provenance_mut(self.0 as usize)
    }
}
