//! The memory of a call as its checks see it: where it begins and how long it is, on the host or on a device.
//!
//! Invariant: nothing here reads or writes memory. Absent: whether it is host or device memory.

use consort_cuda::DeviceSpan;
use consort_memory::{Span, SpanMut};

/// A range of addresses.
pub trait Stretch: Copy {
    /// Its first address.
    fn start(&self) -> usize;

    /// Its length in bytes.
    fn bytes(&self) -> usize;

    /// `bytes` bytes from `offset` on.
    ///
    /// # Panics
    /// If the range is not inside this one.
    fn part(&self, offset: usize, bytes: usize) -> Self;
}

impl Stretch for Span<'_> {
    fn start(&self) -> usize {
        self.as_ptr().addr()
    }

    fn bytes(&self) -> usize {
        self.len()
    }

    fn part(&self, offset: usize, bytes: usize) -> Self {
        self.slice(offset, bytes)
    }
}

impl Stretch for SpanMut<'_> {
    fn start(&self) -> usize {
        self.as_mut_ptr().addr()
    }

    fn bytes(&self) -> usize {
        self.len()
    }

    fn part(&self, offset: usize, bytes: usize) -> Self {
        self.slice(offset, bytes)
    }
}

impl Stretch for DeviceSpan {
    fn start(&self) -> usize {
        self.address() as usize
    }

    fn bytes(&self) -> usize {
        self.len()
    }

    fn part(&self, offset: usize, bytes: usize) -> Self {
        self.slice(offset, bytes)
    }
}
