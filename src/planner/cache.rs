//! Finds a bound plan again in a few nanoseconds.
//!
//! Invariant: a lookup is one hash, one set of four keys to compare, no allocation. Keys name shapes (what,
//! which types, which root, which size class), never addresses.

use std::sync::Arc;

use super::Choice;
use crate::call::Call;

const SETS: usize = 64;
const WAYS: usize = 4;

/// How many algorithms a key can tell apart.
pub(crate) const ALGORITHMS_MAX: usize = 1 << 12;

/// The shape of a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct CacheKey(u64);

impl CacheKey {
    /// The settings are fixed for a communicator's life, so the rest of the choice follows from these.
    pub(crate) fn new(call: &Call, choice: &Choice) -> Self {
        // Not the scalar: each operation brings its own.
        let op = call.operator().map_or(7, |op| op.code() as u64);
        let class = choice.slot_bytes.trailing_zeros() as u64;
        CacheKey(
            call.kind as u64
                | (call.data_type.code() as u64) << 5
                | op << 9
                | class << 12
                | (choice.streaming as u64) << 17
                | (choice.channel_base as u64 >> 14) << 18
                | (choice.id as u64) << 20
                | (call.root as u64) << 32,
        )
    }

    fn set(self) -> usize {
        (self.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 58) as usize % SETS
    }
}

type Set<T> = [Option<(CacheKey, Arc<T>)>; WAYS];

/// A set-associative cache that forgets the oldest of a set.
pub(crate) struct Cache<T> {
    sets: Vec<Set<T>>,
    next: Vec<u8>,
}

impl<T> Cache<T> {
    pub(crate) fn new() -> Self {
        Cache { sets: (0..SETS).map(|_| Default::default()).collect(), next: vec![0; SETS] }
    }

    #[inline]
    pub(crate) fn find(&self, key: CacheKey) -> Option<&Arc<T>> {
        self.sets[key.set()].iter().flatten().find(|(other, _)| *other == key).map(|(_, value)| value)
    }

    /// What is kept.
    pub(crate) fn values(&self) -> impl Iterator<Item = &Arc<T>> {
        self.sets.iter().flatten().flatten().map(|(_, value)| value)
    }

    /// Bytes of the table itself.
    pub(crate) fn table_bytes(&self) -> usize {
        size_of_val(&*self.sets) + self.next.len()
    }

    pub(crate) fn insert(&mut self, key: CacheKey, value: Arc<T>) {
        let set = key.set();
        let way = self.next[set] as usize % WAYS;
        self.sets[set][way] = Some((key, value));
        self.next[set] = self.next[set].wrapping_add(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_set_forgets_its_oldest() {
        let mut cache = Cache::new();
        let keys: Vec<CacheKey> =
            (0..100_000u64).map(CacheKey).filter(|key| key.set() == 3).take(WAYS + 1).collect();
        for (value, key) in keys.iter().enumerate() {
            cache.insert(*key, Arc::new(value));
        }
        assert!(cache.find(keys[0]).is_none());
        for (value, key) in keys.iter().enumerate().skip(1) {
            assert_eq!(cache.find(*key).map(|found| **found), Some(value));
        }
    }
}
