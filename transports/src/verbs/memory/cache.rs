//! Registrations that are kept for the next use, so that memory that is sent again and again is registered once.
//!
//! Invariant: an entry is found by the allocation that it was made of and by addresses inside of it, so memory that was freed and allocated
//! again at the same place is another; what is in use is never given back; neither entries nor bytes exceed their limits. Absent:
//! how memory is registered, which allocation an address is of.

use std::collections::BTreeMap;
use std::io;
use std::ops::{Bound, Range};
use std::sync::Arc;

use super::super::port::Written;

/// Ranges that are registered begin and end with a page of this many bytes.
const PAGE: usize = 4096;
/// Uses of the cache after which memory that could not be registered is tried again.
const RETRY_AFTER: u64 = 4096;

/// Which allocation an address is of.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Owner {
    /// Memory of the host, by the [key](consort_memory::areas::Area::key) of its area.
    Host(u64),
    /// Memory that the program keeps, by the [key](consort_memory::user_buffers::Range::key) of its buffer.
    User(u64),
    /// Memory of a device, by its buffer id.
    Device(u64),
}

/// Who it is of, and who may write there.
pub(super) type Of = (Owner, Written);

/// Where the entries of devices begin: behind all others.
const DEVICES: (Of, usize) = ((Owner::Device(0), Written::ByPeer), 0);

/// What the cache may hold.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub(super) entries: usize,
    pub(super) bytes: usize,
}

/// Registrations of one protection domain.
pub(super) struct Cache<R> {
    limits: Limits,
    entries: BTreeMap<(Of, usize), Entry<R>>,
    bytes: usize,
    /// Uses so far.
    clock: u64,
    /// Entries that were ever made.
    made: u64,
    /// Which entry of a device was looked at last.
    swept: (Of, usize),
}

struct Entry<R> {
    bytes: usize,
    used: u64,
    /// An address that surely is in its allocation; it begins with a page, which others may share.
    inside: usize,
    /// None where it could not be registered.
    registered: Option<Arc<R>>,
}

impl<R> Entry<R> {
    fn is_in_use(&self) -> bool {
        self.registered.as_ref().is_some_and(|of| Arc::strong_count(of) > 1)
    }

    /// Bytes that it locks.
    fn locked_bytes(&self) -> usize {
        if self.registered.is_some() { self.bytes } else { 0 }
    }
}

/// The whole pages that hold a range.
pub(super) fn pages(range: &Range<usize>) -> Range<usize> {
    let end = range.end.checked_next_multiple_of(PAGE).unwrap_or(range.end);
    range.start / PAGE * PAGE..end
}

impl<R> Cache<R> {
    pub(super) fn new(limits: Limits) -> Self {
        Cache { limits, entries: BTreeMap::new(), bytes: 0, clock: 0, made: 0, swept: DEVICES }
    }

    /// The registration of `asked`, which lies in the allocation `whole`: that is registered as a whole where it fits, or else the pages of
    /// what is asked. None where it cannot be registered, or what is in use leaves no room.
    pub(super) fn registered(
        &mut self,
        of: Of,
        asked: &Range<usize>,
        whole: &Range<usize>,
        mut register: impl FnMut(Range<usize>) -> io::Result<R>,
    ) -> Option<Arc<R>> {
        self.clock += 1;
        if let Some(found) = self.find(of, asked) {
            return found;
        }
        let range = if whole.len() <= self.limits.bytes { whole.clone() } else { pages(asked) };
        // What begins there is shorter, or could not be registered.
        let key = (of, range.start);
        if self.entries.get(&key).is_some_and(Entry::is_in_use) {
            return None;
        }
        self.remove(key);
        if !self.make_room(range.len()) {
            return None;
        }
        let registered = loop {
            match register(range.clone()) {
                Ok(registered) => break Some(Arc::new(registered)),
                // Other memory is in its way.
                Err(error)
                    if matches!(error.raw_os_error(), Some(libc::ENOMEM | libc::EAGAIN)) && self.evict() => {}
                Err(error) => {
                    tracing::debug!(bytes = range.len(), %error, "memory is copied instead of registered");
                    break None;
                }
            }
        };
        let (bytes, inside) = (range.len(), asked.start);
        let entry = Entry { bytes, used: self.clock, inside, registered: registered.clone() };
        self.made += 1;
        self.bytes += entry.locked_bytes();
        self.entries.insert(key, entry);
        registered
    }

    /// The entry that has this range: what is registered, or that it could not be.
    fn find(&mut self, of: Of, asked: &Range<usize>) -> Option<Option<Arc<R>>> {
        let clock = self.clock;
        let (key, entry) = self.entries.range_mut((of, 0)..=(of, asked.start)).next_back()?;
        let is_inside = asked.end <= key.1 + entry.bytes;
        if !is_inside || (entry.registered.is_none() && clock - entry.used > RETRY_AFTER) {
            return None;
        }
        if entry.registered.is_some() {
            entry.used = clock;
        }
        Some(entry.registered.clone())
    }

    /// Gives back what was used least recently until there is room for one more. Whether there is.
    fn make_room(&mut self, bytes: usize) -> bool {
        if bytes > self.limits.bytes {
            return false;
        }
        while self.entries.len() >= self.limits.entries || self.bytes > self.limits.bytes - bytes {
            if !self.evict() {
                return false;
            }
        }
        true
    }

    /// Gives back the entry that was used least recently of those that are not in use. Whether there was one.
    fn evict(&mut self) -> bool {
        let idle = self.entries.iter().filter(|(_, entry)| !entry.is_in_use());
        let Some(key) = idle.min_by_key(|(_, entry)| entry.used).map(|(key, _)| *key) else { return false };
        self.remove(key);
        true
    }

    fn remove(&mut self, key: (Of, usize)) {
        if let Some(gone) = self.entries.remove(&key) {
            self.bytes -= gone.locked_bytes();
        }
    }

    /// Gives back what is of allocations that are there no longer. Whether none of that is left, as something may be in use.
    pub(super) fn keep(&mut self, is_there: impl Fn(Owner, usize) -> bool) -> bool {
        let is_gone = |((of, _), start): &&(Of, usize)| !is_there(*of, *start);
        let gone = self.entries.keys().filter(is_gone).copied().collect();
        self.give_back(gone)
    }

    /// Gives back what is of one allocation. Whether none of that is left, as something may be in use.
    pub(super) fn forget(&mut self, gone: Owner) -> bool {
        let of_it = |by| self.entries.range(((gone, by), 0)..=((gone, by), usize::MAX)).map(|(key, _)| *key);
        let keys: Vec<_> = Written::ALL.into_iter().flat_map(of_it).collect();
        self.give_back(keys)
    }

    /// Entries that were ever made.
    pub(super) fn made(&self) -> u64 {
        self.made
    }

    /// Looks at up to `most` entries of devices, each in its turn, and gives back those whose allocation is there no longer.
    pub(super) fn sweep(&mut self, most: usize, is_there: impl Fn(u64, usize) -> bool) {
        let behind = self.entries.range((Bound::Excluded(self.swept), Bound::Unbounded));
        let around = self.entries.range(DEVICES..=self.swept);
        let mut gone = Vec::new();
        let mut last = self.swept;
        for (key, entry) in behind.chain(around).take(most) {
            last = *key;
            if let ((Owner::Device(id), _), _) = key
                && !is_there(*id, entry.inside)
            {
                gone.push(*key);
            }
        }
        self.swept = last;
        self.give_back(gone);
    }

    /// Gives back those of these that are not in use. Whether all are gone.
    fn give_back(&mut self, keys: Vec<(Of, usize)>) -> bool {
        let (used, idle): (Vec<_>, Vec<_>) = keys.into_iter().partition(|key| self.entries[key].is_in_use());
        idle.into_iter().for_each(|key| self.remove(key));
        used.is_empty()
    }

    /// Entries, and bytes that they lock.
    #[cfg(test)]
    pub(in super::super) fn held(&self) -> (usize, usize) {
        (self.entries.len(), self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::sync::Mutex;

    use consort_testing::Random;

    use super::*;

    /// What is registered at present, each with its place.
    #[derive(Clone, Default)]
    struct Device(Arc<Mutex<(HashSet<u64>, u64)>>);

    struct Registered {
        device: Device,
        number: u64,
        range: Range<usize>,
    }

    impl Device {
        fn register(&self, range: Range<usize>) -> io::Result<Registered> {
            let mut state = self.0.lock().expect("not poisoned");
            state.1 += 1;
            let number = state.1;
            state.0.insert(number);
            Ok(Registered { device: self.clone(), number, range })
        }

        /// Registrations that are there, and how many ever were.
        fn counts(&self) -> (usize, u64) {
            let state = self.0.lock().expect("not poisoned");
            (state.0.len(), state.1)
        }
    }

    impl Drop for Registered {
        fn drop(&mut self) {
            assert!(self.device.0.lock().expect("not poisoned").0.remove(&self.number), "given back twice");
        }
    }

    const HERE: fn(u64) -> Of = |key| (Owner::Host(key), Written::Here);

    #[test]
    fn an_allocation_is_registered_once_and_found_by_any_range_inside() {
        let (device, mut cache) = (Device::default(), Cache::new(Limits { entries: 4, bytes: 1 << 20 }));
        let whole = 0x10000..0x20000;
        for asked in [0x10000..0x10001, 0x1fff0..0x20000, 0x10000..0x20000, 0x15000..0x15000] {
            let found = cache.registered(HERE(1), &asked, &whole, |range| device.register(range));
            assert_eq!(found.expect("registered").range, whole);
        }
        assert_eq!((device.counts(), cache.held()), ((1, 1), (1, 0x10000)));
        // The same addresses of another allocation, and of the same for another purpose.
        for of in [HERE(2), (Owner::Device(1), Written::Here), (Owner::Host(1), Written::ByPeer)] {
            assert!(cache.registered(of, &whole, &whole, |range| device.register(range)).is_some());
        }
        assert_eq!(device.counts(), (4, 4));
        assert!(cache.keep(|of, start| (of, start) == (Owner::Device(1), 0x10000)));
        assert_eq!((device.counts().0, cache.held()), (1, (1, 0x10000)));
    }

    #[test]
    fn what_is_larger_than_the_cache_is_registered_in_pages_of_what_is_asked() {
        let (device, mut cache) = (Device::default(), Cache::new(Limits { entries: 4, bytes: 0x4000 }));
        let whole = 0x10000..0x20000;
        let mut ask = |asked: Range<usize>| {
            cache
                .registered(HERE(1), &asked, &whole, |range| device.register(range))
                .map(|of| of.range.clone())
        };
        assert_eq!(ask(0x11001..0x12001), Some(0x11000..0x13000));
        assert_eq!(ask(0x12000..0x13000), Some(0x11000..0x13000));
        assert_eq!(ask(0x11001..0x14000), Some(0x11000..0x14000));
        assert_eq!(ask(0x10000..0x18000), None);
        assert!(cache.held().1 <= 0x4000);
    }

    #[test]
    fn what_is_in_use_stays_and_else_the_least_recently_used_goes_first() {
        let (device, mut cache) = (Device::default(), Cache::new(Limits { entries: 2, bytes: 1 << 30 }));
        let ask = |cache: &mut Cache<Registered>, key: u64| {
            let whole = (key as usize) << 16..(key as usize + 1) << 16;
            cache.registered(HERE(key), &whole, &whole, |range| device.register(range))
        };
        let first = ask(&mut cache, 1).expect("registered");
        drop(ask(&mut cache, 2));
        drop(ask(&mut cache, 3));
        assert_eq!(device.counts(), (2, 3), "the second went, as the first is in use");
        let third = ask(&mut cache, 3).expect("registered");
        assert!(ask(&mut cache, 4).is_none(), "all are in use");
        drop((first, third));
        drop(ask(&mut cache, 4));
        drop(ask(&mut cache, 3));
        assert_eq!(device.counts(), (2, 4), "the first went, and the third was found");
    }

    #[test]
    fn memory_that_cannot_be_registered_makes_others_go_and_is_not_tried_each_time() {
        let (device, mut cache) = (Device::default(), Cache::new(Limits { entries: 8, bytes: 1 << 30 }));
        let whole = 0..4096;
        for key in 1..=3 {
            drop(cache.registered(HERE(key), &whole, &whole, |range| device.register(range)));
        }
        let mut tries = 0;
        // The limit of the process is reached until two others are gone.
        let found = cache.registered(HERE(4), &whole, &whole, |range| {
            tries += 1;
            if tries < 3 { Err(io::Error::from_raw_os_error(libc::ENOMEM)) } else { device.register(range) }
        });
        assert!(found.is_some() && tries == 3 && device.counts().0 == 2);
        drop(found);
        let mut tries = 0;
        for _ in 0..2 * RETRY_AFTER {
            let refused = cache.registered(HERE(5), &whole, &whole, |_| {
                tries += 1;
                Err(io::Error::from_raw_os_error(libc::EFAULT))
            });
            assert!(refused.is_none());
        }
        assert_eq!((tries, device.counts().0), (2, 2));
    }

    #[test]
    fn entries_of_devices_are_looked_at_in_turn_and_what_is_gone_is_given_back() {
        let (device, mut cache) = (Device::default(), Cache::new(Limits { entries: 100, bytes: 1 << 30 }));
        let place = |id: u64| (id as usize) << 20;
        let make = |cache: &mut Cache<Registered>, owner| {
            let (Owner::Host(id) | Owner::User(id) | Owner::Device(id)) = owner;
            let (asked, whole) = (place(id) + 512..place(id) + 600, place(id)..place(id) + 4096);
            cache.registered((owner, Written::Here), &asked, &whole, |range| device.register(range))
        };
        make(&mut cache, Owner::Host(3));
        make(&mut cache, Owner::User(4));
        let used = make(&mut cache, Owner::Device(2));
        (1..=10).for_each(|id| drop(make(&mut cache, Owner::Device(id))));
        assert_eq!(cache.made(), 12);
        let asked = std::cell::RefCell::new(Vec::new());
        let sweep = |cache: &mut Cache<Registered>, gone: &[u64]| {
            cache.sweep(4, |id, address| {
                assert_eq!(address, place(id) + 512);
                asked.borrow_mut().push(id);
                !gone.contains(&id)
            });
        };
        (0..3).for_each(|_| sweep(&mut cache, &[]));
        assert_eq!(asked.take(), [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 1, 2]);
        sweep(&mut cache, &[1, 2, 3, 4]);
        assert_eq!((asked.take(), cache.held().0), (vec![3, 4, 5, 6], 10));
        (0..2).for_each(|_| sweep(&mut cache, &[1, 2, 7, 8, 9, 10]));
        assert_eq!((asked.take(), cache.held().0), (vec![7, 8, 9, 10, 1, 2, 5, 6], 5), "2 is in use");
        drop(used);
        sweep(&mut cache, &[2, 5, 6]);
        assert_eq!((asked.take(), cache.held().0), (vec![2, 5, 6], 2), "each once");
        sweep(&mut cache, &[]);
        assert!(asked.take().is_empty());
    }

    #[test]
    fn limits_hold_whatever_is_asked() {
        let mut random = Random::announced("limits_hold_whatever_is_asked");
        for _ in 0..200 {
            let limits = Limits { entries: 1 + random.below(6), bytes: 4096 * (1 + random.below(40)) };
            let (device, mut cache) = (Device::default(), Cache::new(limits));
            let mut used: Vec<Arc<Registered>> = Vec::new();
            for _ in 0..200 {
                let key = 1 + random.below(8);
                let start = key << 20;
                let whole = start..start + 4096 * (1 + (key * 7) % 20);
                let from = whole.start + random.below(whole.len());
                let asked = from..from + 1 + random.below(whole.end - from);
                let fails = random.below(10) == 0;
                let found = cache.registered(HERE(key as u64), &asked, &whole, |range| {
                    if fails {
                        Err(io::Error::from_raw_os_error(libc::ENOMEM))
                    } else {
                        device.register(range)
                    }
                });
                if let Some(found) = found {
                    assert!(found.range.start <= asked.start && asked.end <= found.range.end);
                    assert!(whole.start <= found.range.start && found.range.end <= whole.end);
                    used.push(found);
                }
                if random.below(3) > 0 && !used.is_empty() {
                    used.swap_remove(random.below(used.len()));
                }
                if random.below(20) == 0 {
                    cache.keep(|of, _| of != Owner::Host(key as u64));
                }
                let (entries, bytes) = cache.held();
                assert!(
                    entries <= limits.entries && bytes <= limits.bytes,
                    "{entries}, {bytes} of {limits:?}"
                );
            }
            drop(used);
            cache.keep(|_, _| false);
            assert_eq!((cache.held(), device.counts().0), ((0, 0), 0));
        }
    }
}
