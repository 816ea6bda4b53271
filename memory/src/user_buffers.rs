//! Ordinary memory that a program has promised to keep, as by `ncclCommRegister`: what reads it where it is asks here first.
//!
//! The promise is that the memory stays allocated until the [`UserBuffer`] is dropped. Who breaks it, and frees the memory or maps other
//! memory there, has the bytes sent that were there before: an adapter keeps the pages that it was given. It is never given pages
//! of another owner by that.
//!
//! Invariant: a buffer's key is that of no other buffer, before or after, also of one at the same addresses. Of several that hold
//! an address, the one that was registered last is found, as only its promise is sure to be about what is there now. Absent: who
//! reads it; memory that other processes can map ([`crate::areas`]).

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use crate::MemoryError;

/// All of them.
static BUFFERS: Mutex<Table> = Mutex::new(Table { buffers: Vec::new(), keys: BTreeSet::new() });
/// What is called when one is no longer registered.
static FOLLOWERS: Mutex<Vec<Weak<dyn Follower>>> = Mutex::new(Vec::new());

/// What keeps something of buffers.
pub trait Follower: Send + Sync {
    /// The buffer of this key is not registered any more.
    fn gone(&self, key: u64);
}

/// Where a registered buffer is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Range {
    key: u64,
    start: usize,
    bytes: usize,
}

impl Range {
    /// Unlike that of any other buffer that this process has or had.
    pub fn key(&self) -> u64 {
        self.key
    }

    /// Its first address, of any alignment.
    pub fn start(&self) -> usize {
        self.start
    }

    /// Its length.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    fn end(&self) -> usize {
        self.start + self.bytes
    }
}

struct Table {
    /// By address, then by key; each with the largest end of itself and of all before it.
    buffers: Vec<(Range, usize)>,
    keys: BTreeSet<u64>,
}

impl Table {
    fn insert(&mut self, range: Range) {
        let before = |of: &(Range, usize)| (of.0.start, of.0.key) < (range.start, range.key);
        let at = self.buffers.partition_point(before);
        self.buffers.insert(at, (range, 0));
        self.keys.insert(range.key);
        self.reach(at);
    }

    fn remove(&mut self, range: Range) {
        if let Some(at) = self.buffers.iter().position(|(of, _)| *of == range) {
            self.buffers.remove(at);
            self.keys.remove(&range.key);
            self.reach(at);
        }
    }

    /// Computes the largest ends again, from a place on.
    fn reach(&mut self, from: usize) {
        let mut reach = if from == 0 { 0 } else { self.buffers[from - 1].1 };
        for (range, of) in &mut self.buffers[from..] {
            reach = reach.max(range.end());
            *of = reach;
        }
    }

    fn find(&self, start: usize, end: usize) -> Option<Range> {
        let behind = self.buffers.partition_point(|(range, _)| range.start <= start);
        let reaching = self.buffers[..behind].iter().rev().take_while(|(_, reach)| end <= *reach);
        reaching.map(|(range, _)| *range).filter(|range| end <= range.end()).max_by_key(|range| range.key)
    }
}

fn buffers() -> MutexGuard<'static, Table> {
    BUFFERS.lock().unwrap_or_else(PoisonError::into_inner)
}

fn followers() -> MutexGuard<'static, Vec<Weak<dyn Follower>>> {
    FOLLOWERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The buffer that holds all of these addresses, if one does: the last that was registered.
pub fn find(start: usize, bytes: usize) -> Option<Range> {
    buffers().find(start, start.checked_add(bytes)?)
}

/// Whether the buffer of this key is registered.
pub fn is_registered(key: u64) -> bool {
    buffers().keys.contains(&key)
}

/// Has something know of each buffer that is not registered any more, for as long as it lives.
pub fn follow(follower: Weak<dyn Follower>) {
    let mut followers = followers();
    followers.retain(|of| of.strong_count() > 0);
    followers.push(follower);
}

/// A buffer that a program has promised to keep until this is dropped.
#[derive(Debug)]
pub struct UserBuffer {
    range: Range,
    /// The process that made it.
    maker: u32,
}

impl UserBuffer {
    /// The program keeps `bytes` bytes at `start` allocated. Buffers may overlap, and be registered more than once; nothing is looked at.
    ///
    /// # Errors
    /// [`MemoryError::NotRegistrable`] for nothing, and for what ends at no address.
    pub fn new(start: usize, bytes: usize) -> Result<Self, MemoryError> {
        static KEYS: AtomicU64 = AtomicU64::new(1);
        let refused = |what, hint| Err(MemoryError::NotRegistrable { start, bytes, what, hint });
        if start == 0 || bytes == 0 {
            return refused("it is nothing", "pass the address and the bytes of a buffer");
        }
        if start.checked_add(bytes).is_none() {
            return refused("it ends at no address", "pass the bytes of the buffer");
        }
        // Relaxed: keys only have to differ; under the lock they are in the order of registrations too.
        let mut buffers = buffers();
        let range = Range { key: KEYS.fetch_add(1, Ordering::Relaxed), start, bytes };
        buffers.insert(range);
        Ok(UserBuffer { range, maker: std::process::id() })
    }

    /// Where it is.
    pub fn range(&self) -> Range {
        self.range
    }
}

impl Drop for UserBuffer {
    /// Followers have heard of it when this returns.
    fn drop(&mut self) {
        // A child uses nothing that its parent has registered, and another thread may have held a lock when it was forked.
        if self.maker != std::process::id() {
            return;
        }
        buffers().remove(self.range);
        let followers: Vec<Arc<dyn Follower>> = followers().iter().filter_map(Weak::upgrade).collect();
        followers.iter().for_each(|follower| follower.gone(self.range.key));
    }
}

#[cfg(test)]
mod tests {
    use consort_testing::Random;

    use super::*;

    /// Addresses that no other test has.
    const PLACE: usize = 1 << 50;

    fn key(start: usize, bytes: usize) -> Option<u64> {
        find(PLACE + start, bytes).map(|range| range.key())
    }

    fn new(start: usize, bytes: usize) -> (UserBuffer, u64) {
        let buffer = UserBuffer::new(PLACE + start, bytes).expect("a buffer");
        let key = buffer.range().key();
        (buffer, key)
    }

    /// Serialises the tests that share [`PLACE`].
    fn alone() -> MutexGuard<'static, ()> {
        static ALONE: Mutex<()> = Mutex::new(());
        ALONE.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[test]
    fn a_buffer_is_found_by_what_lies_in_it_and_the_last_of_several_first() {
        let _alone = alone();
        let (first, one) = new(1001, 5000);
        assert_eq!(
            [key(1001, 5000), key(1000, 2), key(6000, 1), key(6000, 2)],
            [Some(one), None, Some(one), None]
        );
        // A part of it, all of it and more, the same again, and what overlaps its end.
        let (inner, two) = new(2000, 100);
        assert_eq!([key(2000, 100), key(2000, 101), key(1999, 2)], [Some(two), Some(one), Some(one)]);
        let (outer, three) = new(0, 10_000);
        assert_eq!([key(2000, 100), key(1001, 5000), key(0, 1)], [Some(three); 3]);
        let (again, four) = new(1001, 5000);
        assert_eq!([key(2000, 100), key(500, 1000)], [Some(four), Some(three)]);
        let (behind, five) = new(6000, 10_000);
        assert_eq!([key(6000, 1), key(5999, 2), key(9999, 2)], [Some(five), Some(four), Some(five)]);
        assert_eq!(key(5000, 8000), None, "no one buffer holds it");
        drop((outer, again));
        assert_eq!([key(2000, 100), key(1001, 5000), key(0, 1)], [Some(two), Some(one), None]);
        drop((first, inner, behind));
        assert_eq!([key(1001, 1), key(2000, 1), key(7000, 1)], [None; 3]);
        let (_again, six) = new(1001, 5000);
        assert!(key(1001, 1) == Some(six) && !is_registered(one) && is_registered(six));
        for (start, bytes) in [(0, 5), (5, 0), (5, usize::MAX)] {
            assert!(matches!(UserBuffer::new(start, bytes), Err(MemoryError::NotRegistrable { .. })));
        }
    }

    #[test]
    fn what_is_found_is_what_a_search_of_all_finds() {
        let _alone = alone();
        let mut random = Random::announced("user buffers");
        let mut kept: Vec<UserBuffer> = Vec::new();
        for _ in 0..2000 {
            if kept.len() < 30 && random.below(2) == 0 {
                kept.push(new(random.below(1000), 1 + random.below(300)).0);
            } else if !kept.is_empty() {
                kept.swap_remove(random.below(kept.len()));
            }
            let (start, bytes) = (random.below(1300), random.below(60));
            let asked = PLACE + start..PLACE + start + bytes;
            let holds = |of: &&UserBuffer| of.range.start <= asked.start && asked.end <= of.range.end();
            let expected = kept.iter().filter(holds).map(|of| of.range.key).max();
            assert_eq!(key(start, bytes), expected, "{asked:?}");
        }
    }

    /// Keeps the keys that it has heard of.
    #[derive(Default)]
    struct Heard(Mutex<Vec<(u64, bool)>>);

    impl Follower for Heard {
        fn gone(&self, key: u64) {
            self.0.lock().expect("not poisoned").push((key, is_registered(key)));
        }
    }

    #[test]
    fn followers_hear_of_each_that_goes_and_children_of_fork_say_nothing() {
        let _alone = alone();
        let heard = Arc::new(Heard::default());
        let weak: Weak<dyn Follower> = Arc::downgrade(&(Arc::clone(&heard) as Arc<dyn Follower>));
        follow(weak);
        let ((first, one), (second, two)) = (new(0, 10), new(0, 10));
        drop(first);
        assert_eq!(*heard.0.lock().expect("not poisoned"), [(one, false)]);
        let foreign = UserBuffer { range: second.range, maker: std::process::id() + 1 };
        drop(foreign);
        assert!(is_registered(two) && heard.0.lock().expect("not poisoned").len() == 1);
        drop(second);
        assert_eq!(heard.0.lock().expect("not poisoned").last(), Some(&(two, false)));
        let mark = Arc::downgrade(&heard);
        drop(heard);
        drop(new(0, 10));
        assert_eq!(mark.strong_count(), 0);
    }
}
