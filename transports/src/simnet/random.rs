//! Where the network's chance comes from, and the fingerprint of what happened.
//!
//! Invariant: the same seed and the same calls draw the same numbers on every machine. Absent: secrecy.

/// Splitmix64.
#[derive(Clone, Debug)]
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(super) fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
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

pub(super) fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}
