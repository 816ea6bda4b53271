//! Tables from names to numbers.
//!
//! Invariant: the content of a table does not depend on the hash, and no code iterates over one in the table's order.
//! Names come from plans and schedules of this library, so the hash is quick instead of safe against chosen names.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// Numbers, or other facts, by name.
pub(crate) type Numbers<K, V = u32> = HashMap<K, V, BuildHasherDefault<Mixer>>;

/// One multiplication for each word.
#[derive(Default)]
pub(crate) struct Mixer(u64);

impl Hasher for Mixer {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_u64(byte.into()));
    }

    fn write_u16(&mut self, word: u16) {
        self.write_u64(word.into());
    }

    fn write_u32(&mut self, word: u32) {
        self.write_u64(word.into());
    }

    fn write_u64(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(23) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn write_isize(&mut self, word: isize) {
        self.write_u64(word as u64);
    }

    fn finish(&self) -> u64 {
        self.0 ^ (self.0 >> 32)
    }
}
