//! Buffers of buckets, which calls that were started own meanwhile.

use crate::number::Number;

/// Buffers that are free, and how many there are.
pub(super) struct Pool<T> {
    free: Vec<Vec<T>>,
    /// Elements for which a new one has room, at least.
    least: usize,
    made: usize,
}

impl<T: Number> Pool<T> {
    /// No buffer yet. Each will have room for `least` elements.
    pub(super) fn new(least: usize) -> Self {
        Pool { free: Vec::new(), least, made: 0 }
    }

    /// A buffer of `elements` elements, whatever they are.
    pub(super) fn take(&mut self, elements: usize) -> Vec<T> {
        let mut buffer = self.free.pop().unwrap_or_else(|| {
            let room = self.least.max(elements);
            self.made += room;
            Vec::with_capacity(room)
        });
        buffer.resize(elements, T::ZERO);
        buffer
    }

    /// Gives a buffer of [`Pool::take`] back.
    pub(super) fn give(&mut self, buffer: Vec<T>) {
        self.free.push(buffer);
    }

    /// The memory of all buffers that were made.
    pub(super) fn bytes(&self) -> usize {
        self.made * size_of::<T>()
    }
}
