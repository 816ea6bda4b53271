//! Seeded choices, and the elements that simulated operations fold.

use std::cell::Cell;

pub(super) use consort_testing::mix as hash;

/// A generator that its holders share.
pub(super) struct Random(Cell<u64>);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Random(Cell::new(seed))
    }

    pub(super) fn next(&self) -> u64 {
        let mut random = consort_testing::Random(self.0.get());
        let number = random.draw();
        self.0.set(random.seed());
        number
    }

    pub(super) fn below(&self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    /// True once in `times`.
    pub(super) fn once_in(&self, times: usize) -> bool {
        self.below(times) == 0
    }

    pub(super) fn pick<T: Copy>(&self, from: &[T]) -> T {
        from[self.below(from.len())]
    }
}

/// How elements are folded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fold {
    /// Wrapping addition.
    Sum,
    /// Neither commutative nor associative, with a mark for every `raw` and every `finish`: the result tells
    /// the whole bracketing.
    Mix,
}

impl Fold {
    pub(super) fn scale(self, value: u64) -> u64 {
        if self == Fold::Sum { value } else { value.wrapping_mul(5).wrapping_add(1) }
    }

    pub(super) fn join(self, first: u64, second: u64) -> u64 {
        match self {
            Fold::Sum => first.wrapping_add(second),
            Fold::Mix => first.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23) ^ second.wrapping_mul(3),
        }
    }

    pub(super) fn finish(self, value: u64) -> u64 {
        if self == Fold::Sum { value } else { value.rotate_left(31).wrapping_add(7) }
    }
}

/// The elements of some bytes.
pub(super) fn words(bytes: &[u8]) -> impl Iterator<Item = u64> {
    assert_eq!(bytes.len() % 8, 0, "steps have whole elements");
    bytes.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word))
}
