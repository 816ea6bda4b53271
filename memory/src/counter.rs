//! Counters that publish bytes: one cache line, one writer, readers anywhere, also in other processes.
//!
//! Invariant: a reader that saw `value() >= v` sees every byte written before `raise(v, …)`, and the tag that
//! came with it, as long as the writer has not gone on to `v + 7`. Deliberately absent: waiting, peers.

use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

#[cfg(not(loom))]
use crate::Mapping;
use crate::sync::{AtomicU64, Ordering};

/// One cache line of shared memory: the value and the tags of its last raises.
#[repr(C, align(64))]
pub(crate) struct Line {
    value: AtomicU64,
    tags: [AtomicU64; Counter::TAGS_MAX],
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<Line>() == Counter::BYTES && align_of::<Line>() == Counter::BYTES);

#[derive(Clone)]
enum Keep {
    #[cfg(not(loom))]
    Mapping {
        _mapping: Arc<Mapping>,
    },
    Own {
        _line: Arc<Line>,
    },
}

/// A counter that one party raises and others read, with a tag for each of the last seven raises.
///
/// Clones refer to the same counter. It keeps the memory it lies in.
#[derive(Clone)]
pub struct Counter {
    line: NonNull<Line>,
    _keep: Keep,
}

// SAFETY: the line is atomics only and `_keep` holds its memory.
unsafe impl Send for Counter {}
// SAFETY: as above.
unsafe impl Sync for Counter {}

impl Counter {
    /// How many raises back a tag can be read; hence the most slots a mailbox can have.
    pub const TAGS_MAX: usize = 7;

    /// Bytes a counter takes, and its alignment.
    pub const BYTES: usize = 64;

    /// A counter in memory of its own, at zero.
    pub fn standalone() -> Self {
        let line =
            Arc::new(Line { value: AtomicU64::new(0), tags: std::array::from_fn(|_| AtomicU64::new(0)) });
        Self { line: NonNull::from(&*line), _keep: Keep::Own { _line: line } }
    }

    #[inline]
    fn line(&self) -> &Line {
        // SAFETY: inside memory that `_keep` holds, aligned, and every bit pattern is a line.
        unsafe { self.line.as_ref() }
    }

    /// The value.
    #[inline]
    pub fn value(&self) -> u64 {
        // Acquire: pairs with the Release in Counter::raise; sees the bytes and the tag of that raise.
        self.line().value.load(Ordering::Acquire)
    }

    /// Raises the value and leaves `tag` with it. Only one party may raise a counter, and never downwards.
    ///
    /// # Panics
    /// In debug builds, if `value` is not above the present one.
    #[inline]
    pub fn raise(&self, value: u64, tag: u64) {
        let line = self.line();
        debug_assert!(
            // Relaxed: this party is the only writer, so it reads its own store.
            line.value.load(Ordering::Relaxed) < value,
            "a counter only goes up"
        );
        // Relaxed: published by the Release below; its reader is Counter::tag, after Counter::value's Acquire.
        line.tags[Self::tag_index(value)].store(tag, Ordering::Relaxed);
        // Release: pairs with the Acquire in Counter::value; publishes the tag and every byte written before.
        line.value.store(value, Ordering::Release);
    }

    /// Leaves the tag of a `value` that a later raise goes beyond.
    #[inline]
    pub fn leave(&self, value: u64, tag: u64) {
        // Relaxed: published by the Release of that raise.
        self.line().tags[Self::tag_index(value)].store(tag, Ordering::Relaxed);
    }

    /// The tag that came with `value`. Meaningful after [`Counter::value`] returned at least `value`, and
    /// while the party that raises cannot have gone on to `value + 7`.
    #[inline]
    pub fn tag(&self, value: u64) -> u64 {
        // Relaxed: ordered by the Acquire in Counter::value, which pairs with the Release in Counter::raise.
        self.line().tags[Self::tag_index(value)].load(Ordering::Relaxed)
    }

    #[inline]
    fn tag_index(value: u64) -> usize {
        (value.wrapping_sub(1) % Self::TAGS_MAX as u64) as usize
    }
}

#[cfg(not(loom))]
impl Mapping {
    /// The counter at `offset`.
    ///
    /// # Panics
    /// If it is not aligned to [`Counter::BYTES`], or not inside the mapping.
    pub fn counter(self: &Arc<Self>, offset: usize) -> Counter {
        assert!(offset.is_multiple_of(Counter::BYTES), "counter at {offset} is not aligned");
        let start =
            NonNull::new(self.span(offset, Counter::BYTES).as_mut_ptr()).expect("mappings are not null");
        // Inside the mapping by the bounds check, aligned by the one before (mappings are page-aligned).
        Counter { line: start.cast(), _keep: Keep::Mapping { _mapping: Arc::clone(self) } }
    }
}

impl fmt::Debug for Counter {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_tuple("Counter").field(&self.value()).finish()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_last_seven_tags_are_kept() {
        let counter = Counter::standalone();
        let reader = counter.clone();
        for value in 1..=20u64 {
            counter.raise(value, value * 100);
            assert_eq!(reader.value(), value);
            for past in value.saturating_sub(6).max(1)..=value {
                assert_eq!(reader.tag(past), past * 100);
            }
        }
    }

    #[test]
    fn a_counter_in_a_mapping_keeps_it_and_is_shared() {
        let mapping = Arc::new(Mapping::anonymous(4096).unwrap());
        let here = mapping.counter(64);
        let there = mapping.counter(64);
        let other = mapping.counter(128);
        drop(mapping);
        here.raise(3, 9);
        assert_eq!((there.value(), there.tag(3), other.value()), (3, 9, 0));
    }
}
