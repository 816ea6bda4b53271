//! Where the network's chance comes from, and the fingerprint of what happened.
//!
//! Invariant: the same seed and the same calls draw the same numbers on every machine. Absent: secrecy.

pub(super) use consort_testing::mix;

/// What a network draws.
#[derive(Clone, Debug)]
pub(super) struct Random(consort_testing::Random);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self(consort_testing::Random(seed))
    }

    pub(super) fn draw(&mut self) -> u64 {
        self.0.draw()
    }

    /// Below `bound`, or 0 where that is 0.
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        if bound == 0 { 0 } else { self.draw() % bound }
    }

    /// True once in `times`.
    pub(super) fn one_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }

    /// How much of `bytes` goes in one piece: mostly all, at least one byte where there is one.
    pub(super) fn piece(&mut self, bytes: usize) -> usize {
        if bytes > 1 && self.one_in(4) { 1 + self.below(bytes as u64) as usize } else { bytes }
    }
}
