//! Tables from names to numbers, and hashes that are compared between processes.
//!
//! Invariant: the content of a table does not depend on the hash, and nothing depends on the order in which one is iterated over.
//! Names come from plans and schedules of this library, so the hash is quick instead of safe against chosen names.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// Numbers, or other facts, by name.
pub(crate) type Numbers<K, V = u32> = HashMap<K, V, BuildHasherDefault<Mixer>>;

/// FNV-1a: the same number for the same bytes in every process and build.
pub(crate) fn fnv(bytes: impl Iterator<Item = u8>) -> u64 {
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

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
