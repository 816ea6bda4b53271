//! Seeded numbers and files of machines for the tests of all crates.
//!
//! Invariant: the same seed and the same calls draw the same numbers on every machine and in every version. Absent:
//! secrecy, and any code of the library.

pub mod machines;

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The seed in `CONSORT_TEST_SEED`, if that is set.
pub fn given_seed() -> Option<u64> {
    std::env::var("CONSORT_TEST_SEED").ok()?.trim().parse().ok()
}

/// SplitMix64 (Steele, Lea and Flood, *Fast splittable pseudorandom number generators*, 2014). The field is the seed
/// of the numbers that are still to be drawn.
#[derive(Clone, Debug)]
pub struct Random(pub u64);

impl Random {
    /// The sequence of a seed.
    pub fn new(seed: u64) -> Self {
        Random(seed)
    }

    /// A sequence seeded by the clock, or by `CONSORT_TEST_SEED` where that is set; the seed is printed.
    pub fn announced(test: &str) -> Self {
        let now = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos() as u64;
        let seed = given_seed().unwrap_or_else(now);
        println!("{test}: CONSORT_TEST_SEED={seed}");
        Random(seed)
    }

    /// The seed that repeats the sequence from here on.
    pub fn seed(&self) -> u64 {
        self.0
    }

    /// The next number.
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// A number below `bound`; 0 where `bound` is 0.
    pub fn below(&mut self, bound: usize) -> usize {
        (self.draw() % bound.max(1) as u64) as usize
    }

    /// True once in `times`.
    pub fn one_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }

    /// One of some values.
    ///
    /// # Panics
    /// If there is none.
    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }

    /// Puts the items in another order.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last + 1));
        }
    }

    /// Random bytes.
    pub fn bytes(&mut self, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count];
        for piece in bytes.chunks_mut(8) {
            piece.copy_from_slice(&self.draw().to_le_bytes()[..piece.len()]);
        }
        bytes
    }

    /// Elements of `size` bytes: random bits, or a sign and an exponent of small numbers, so that sums of floats are
    /// finite.
    pub fn elements(&mut self, count: usize, size: usize) -> Vec<u8> {
        let mut all: Vec<u8> = (0..count * size).map(|_| (self.draw() >> 24) as u8).collect();
        for element in all.chunks_mut(size) {
            let top = &mut element[size - 1];
            if self.draw() >> 60 > 3 {
                *top = *top & 0x80 | if size == 1 { *top & 0x3f } else { 0x3c + (*top & 7) };
            }
        }
        all
    }

    /// A duration below `most`, in whole microseconds.
    pub fn duration(&mut self, most: Duration) -> Duration {
        Duration::from_micros(self.draw() % (most.as_micros() as u64).max(1))
    }
}

/// The finish of SplitMix64: each bit of the result depends on all bits of the argument.
pub fn mix(word: u64) -> u64 {
    let word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ word >> 31
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sequence_is_that_of_the_authors() {
        let mut random = Random::new(1_234_567);
        // From the generator's reference implementation in C (Vigna, splitmix64.c).
        let expected = [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423];
        assert_eq!([random.draw(), random.draw(), random.draw()], expected);
    }
}
