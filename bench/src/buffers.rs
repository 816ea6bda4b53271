//! A rank's two buffers, ordinary private memory or such as the other ranks of the host can map, with guard bytes around
//! the part in use.
//!
//! Invariant: the part in use always begins at the same address (page-aligned, plus the asked misalignment)
//! and has [`GUARD`] bytes of known value directly before and after it.

use std::ops::{Deref, DerefMut};

use consort::SharedBuffer;

use crate::failure::{Exit, Failure};
use crate::sizes::human;

/// Bytes watched on either side.
pub(crate) const GUARD: usize = 4096;
/// What they hold.
pub(crate) const GUARD_BYTE: u8 = 0x5C;
const PAGE: usize = 4096;

/// Memory between guards.
pub(crate) struct Guarded {
    memory: Memory,
    start: usize,
    used: usize,
}

enum Memory {
    Private(Vec<u8>),
    Shared(SharedBuffer<u8>),
}

impl Deref for Memory {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Memory::Private(bytes) => bytes,
            Memory::Shared(bytes) => bytes,
        }
    }
}

impl DerefMut for Memory {
    fn deref_mut(&mut self) -> &mut [u8] {
        match self {
            Memory::Private(bytes) => bytes,
            Memory::Shared(bytes) => bytes,
        }
    }
}

impl Guarded {
    /// Bytes that a buffer for `bytes` takes.
    pub(crate) fn footprint(bytes: u64, unalign: usize) -> u64 {
        bytes + (2 * GUARD + PAGE + unalign) as u64
    }

    /// Memory for up to `bytes` bytes, every page of it touched.
    pub(crate) fn new(bytes: usize, unalign: usize, shared: bool) -> Result<Self, Failure> {
        let total = Self::footprint(bytes as u64, unalign) as usize;
        let refused = |error: String| {
            let needed = human(total as u64);
            Failure::new(
                Exit::Usage,
                format!("a buffer of {needed} ({total} bytes) could not be had: {error}"),
            )
        };
        let memory = if shared {
            Memory::Shared(consort::alloc(total).map_err(|error| refused(error.to_string()))?)
        } else {
            let mut memory = Vec::new();
            memory.try_reserve_exact(total).map_err(|error| refused(error.to_string()))?;
            memory.resize(total, 0u8);
            Memory::Private(memory)
        };
        let start = GUARD + memory[GUARD..].as_ptr().align_offset(PAGE) + unalign;
        Ok(Self { memory, start, used: 0 })
    }

    /// Declares `bytes` bytes in use and writes the guards around them.
    pub(crate) fn arm(&mut self, bytes: usize) {
        self.used = bytes;
        let end = self.start + bytes;
        self.memory[self.start - GUARD..self.start].fill(GUARD_BYTE);
        self.memory[end..end + GUARD].fill(GUARD_BYTE);
    }

    /// Guard bytes that have changed since `arm`.
    pub(crate) fn broken_guards(&self) -> u64 {
        let end = self.start + self.used;
        let guards = [&self.memory[self.start - GUARD..self.start], &self.memory[end..end + GUARD]];
        guards.into_iter().flatten().filter(|byte| **byte != GUARD_BYTE).count() as u64
    }

    /// The part in use.
    pub(crate) fn data(&self) -> &[u8] {
        &self.memory[self.start..self.start + self.used]
    }

    /// The part in use.
    pub(crate) fn data_mut(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..self.start + self.used]
    }

    #[cfg(test)]
    pub(crate) fn damage(&mut self, offset_from_end: usize) {
        let at = self.start + self.used + offset_from_end;
        self.memory[at] ^= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guards_stand_directly_around_the_data() {
        for (unalign, shared) in [(0, false), (1, false), (60, true)] {
            let mut buffer = Guarded::new(1000, unalign, shared).unwrap();
            for bytes in [0, 1, 999, 1000] {
                buffer.arm(bytes);
                assert_eq!(buffer.data().as_ptr() as usize % PAGE, unalign);
                buffer.data_mut().fill(7);
                assert_eq!(buffer.broken_guards(), 0);
                buffer.damage(0);
                buffer.damage(GUARD - 1);
                assert_eq!(buffer.broken_guards(), 2);
            }
        }
    }

    #[test]
    fn impossible_sizes_are_errors() {
        let failure = Guarded::new(1 << 60, 0, false).err().unwrap();
        assert!(failure.message.contains("1152921504606859264 bytes"), "{failure}");
    }
}
