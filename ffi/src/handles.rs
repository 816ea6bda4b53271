//! Handles for C: numbers in the form of pointers.
//!
//! Invariant: a handle is a kind, an index and a generation, never an address. So a handle that was freed, made up or
//! of another kind is refused, and nothing is dereferenced. A value stays until its handle is freed and no call borrows
//! it; the last of these drops it.

use std::ffi::c_void;
use std::ops::Deref;
use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::{Arc, PoisonError, RwLock, RwLockWriteGuard};

use consort::Registered;
use consort_nccl::{Comm, Failure, Result, Stream};

/// The most handles of a kind that a process can have at once.
pub(crate) const HANDLES_MAX: usize = 4096;
const INDEX_BITS: u32 = 12;
const GENERATION_BITS: u32 = 32;
/// The kind is above these bits, which no address of a process has.
const KIND_BIT: u32 = INDEX_BITS + GENERATION_BITS;

/// Aligned to two cache lines, as processors fetch pairs: threads of one process have a communicator each, and look
/// it up in every call.
#[repr(align(128))]
struct Place<T> {
    /// The generation of the handle, 0 while there is none, above the number of borrows. One step for a borrow and one
    /// for its end are less than a lock and a count take, which are two each.
    borrows: AtomicU64,
    /// What the handle stands for, in `slot`.
    at: AtomicPtr<T>,
    slot: RwLock<Slot<T>>,
}

struct Slot<T> {
    generation: u32,
    /// Whether the value's handle is in use; if not, borrows are left.
    is_live: bool,
    value: Option<Arc<T>>,
}

/// The bits of [`Place::borrows`] above the number of borrows.
const GENERATION_BIT: u32 = 32;

impl<T> Place<T> {
    const fn new() -> Self {
        Place {
            borrows: AtomicU64::new(0),
            at: AtomicPtr::new(std::ptr::null_mut()),
            slot: RwLock::new(Slot { generation: 0, is_live: false, value: None }),
        }
    }

    fn write(&self) -> RwLockWriteGuard<'_, Slot<T>> {
        self.slot.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends a borrow, or an attempt at one.
    #[inline]
    fn give_back(&self) {
        // Release: what was done with the value comes before its end.
        if self.borrows.fetch_sub(1, Ordering::Release) == 1 {
            self.clear();
        }
    }

    /// Drops a value whose handle was freed and that no call borrows.
    #[cold]
    fn clear(&self) {
        let mut slot = self.write();
        let is_over = !slot.is_live && self.borrows.load(Ordering::Relaxed) == 0;
        let value = if is_over { slot.value.take() } else { None };
        drop(slot);
        // Acquire: with the Release of all borrows' ends.
        fence(Ordering::Acquire);
        drop(value);
    }
}

/// A value that a call borrows by its handle.
pub(crate) struct Borrowed<T: 'static>(&'static Place<T>);

impl<T> Deref for Borrowed<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: it was stored before the generation that the borrow has seen, of a value that stays in its slot while
        // there are borrows: `remove` leaves it there, `clear` takes it when there are none, and no other is inserted
        // in between.
        unsafe { &*self.0.at.load(Ordering::Relaxed) }
    }
}

impl<T> Drop for Borrowed<T> {
    #[inline]
    fn drop(&mut self) {
        self.0.give_back();
    }
}

/// All handles of a kind. It begins as zeros, so that the library's file does not contain it.
pub(crate) struct Slab<T: 'static, const KIND: usize> {
    slots: [Place<T>; HANDLES_MAX],
    /// All slots below it were taken when it was set; a hint.
    free: AtomicUsize,
}

pub(crate) static COMMS: Slab<Comm, 0x5_C001> = Slab::new();
pub(crate) static STREAMS: Slab<Stream, 0x5_C002> = Slab::new();
pub(crate) static REGISTRATIONS: Slab<Registered, 0x5_C003> = Slab::new();

impl<T, const KIND: usize> Slab<T, KIND> {
    const fn new() -> Self {
        Slab { slots: [const { Place::new() }; HANDLES_MAX], free: AtomicUsize::new(0) }
    }

    /// Keeps a value and makes its handle.
    ///
    /// # Errors
    /// Where all handles of the kind are in use.
    pub(crate) fn insert(&self, value: Arc<T>) -> Result<*mut c_void> {
        // Relaxed: a hint.
        let first = self.free.load(Ordering::Relaxed);
        for step in 0..HANDLES_MAX {
            let index = (first + step) % HANDLES_MAX;
            let place = &self.slots[index];
            let mut slot = place.write();
            if slot.value.is_none() {
                slot.generation = slot.generation.wrapping_add(1).max(1);
                place.at.store(Arc::as_ptr(&value).cast_mut(), Ordering::Relaxed);
                (slot.is_live, slot.value) = (true, Some(value));
                // Release: pairs with the Acquire in `borrow`. The number of attempts at a borrow stays.
                place.borrows.fetch_or(u64::from(slot.generation) << GENERATION_BIT, Ordering::Release);
                self.free.store(index + 1, Ordering::Relaxed);
                let generation = slot.generation as usize;
                return Ok((KIND << KIND_BIT | generation << INDEX_BITS | index) as *mut c_void);
            }
        }
        Err(Failure::usage(
            format!("this process has {HANDLES_MAX} of them, as many as there can be"),
            "destroy some before making more",
        ))
    }

    #[inline]
    fn place(&self, handle: *mut c_void) -> Option<(&Place<T>, u32)> {
        let bits = handle as usize;
        let generation = (bits >> INDEX_BITS) as u32;
        (bits >> KIND_BIT == KIND).then(|| (&self.slots[bits % HANDLES_MAX], generation))
    }

    /// The value of a handle, for as long as a call takes; `None` if it was freed or is not a handle.
    #[inline]
    pub(crate) fn borrow(&'static self, handle: *mut c_void) -> Option<Borrowed<T>> {
        let (place, generation) = self.place(handle)?;
        // Acquire: pairs with the Release in `insert`.
        let before = place.borrows.fetch_add(1, Ordering::Acquire);
        // One of a place without a value is given back as any other.
        let borrowed = Borrowed(place);
        ((before >> GENERATION_BIT) as u32 == generation && generation != 0).then_some(borrowed)
    }

    /// The value of a handle; `None` if it was freed or is not a handle.
    #[inline]
    pub(crate) fn find(&self, handle: *mut c_void) -> Option<Arc<T>> {
        let (place, generation) = self.place(handle)?;
        let slot = place.slot.read().unwrap_or_else(PoisonError::into_inner);
        if slot.generation == generation && slot.is_live { slot.value.clone() } else { None }
    }

    /// Frees a handle and returns its value.
    pub(crate) fn remove(&self, handle: *mut c_void) -> Option<Arc<T>> {
        let (place, generation) = self.place(handle)?;
        let mut slot = place.write();
        if slot.generation != generation || !slot.is_live {
            return None;
        }
        slot.is_live = false;
        let borrows = place.borrows.fetch_and((1 << GENERATION_BIT) - 1, Ordering::Acquire) as u32;
        // The last borrow drops what is left here.
        if borrows == 0 { slot.value.take() } else { slot.value.clone() }
    }

    /// Number of handles in use.
    fn count(&self) -> usize {
        let is_taken =
            |place: &&Place<T>| place.slot.read().unwrap_or_else(PoisonError::into_inner).value.is_some();
        self.slots.iter().filter(is_taken).count()
    }

    /// Whether the handle was made here, freed or not.
    pub(crate) fn was_made(&self, handle: *mut c_void) -> bool {
        self.place(handle).is_some_and(|(place, generation)| {
            let slot = place.slot.read().unwrap_or_else(PoisonError::into_inner);
            generation != 0 && generation <= slot.generation
        })
    }
}

/// Numbers of handles of communicators and of streams in use, for tests of leaks.
pub fn handles_in_use() -> (usize, usize) {
    (COMMS.count(), STREAMS.count())
}

/// The same for registered memory.
pub fn registrations_in_use() -> usize {
    REGISTRATIONS.count()
}

/// The communicator of a handle; `None` if the handle was freed or is not a communicator's.
#[inline]
pub(crate) fn find(handle: *mut c_void) -> Option<Arc<Comm>> {
    COMMS.find(handle)
}

/// The communicator of a handle.
///
/// # Errors
/// For an invalid or freed handle.
#[inline]
pub(crate) fn comm(handle: *mut c_void) -> Result<Arc<Comm>> {
    find(handle).ok_or_else(|| {
        Failure::argument(
            "the communicator handle is null, freed or foreign",
            "pass one that ncclCommInitRank or the like made",
        )
    })
}

/// The host stream of a call; `None` for null and for any other stream, such as a stream of CUDA's. A call on host
/// memory with such a stream is complete when it returns.
///
/// # Errors
/// For a host stream that was destroyed: no other stream has such a handle.
#[inline]
pub(crate) fn stream(handle: *mut c_void) -> Result<Option<Arc<Stream>>> {
    if handle.is_null() {
        return Ok(None);
    }
    match STREAMS.find(handle) {
        None if STREAMS.was_made(handle) => Err(Failure::argument(
            "the stream was destroyed",
            "pass one that is still there, or NULL for a call that is complete when it returns",
        )),
        found => Ok(found),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_destroyed_stream_is_not_taken_for_a_foreign_one() {
        let handle = STREAMS.insert(Arc::new(Stream::create().expect("a stream"))).expect("a handle");
        assert!(stream(handle).is_ok_and(|found| found.is_some()));
        STREAMS.remove(handle);
        assert!(stream(handle).is_err());
        for foreign in [0usize, 1, 2, 0x7fff_dead_beef, usize::MAX] {
            assert!(stream(foreign as *mut c_void).is_ok_and(|found| found.is_none()));
        }
    }

    #[test]
    fn a_value_stays_until_its_last_borrow_ends_and_its_handle_is_no_longer_found() {
        let stream = Arc::new(Stream::create().expect("a stream"));
        let handle = STREAMS.insert(stream.clone()).expect("a handle");
        let (one, other) = (STREAMS.borrow(handle).expect("it is there"), STREAMS.borrow(handle));
        assert!(std::ptr::eq(&*one, &*stream) && other.is_some());
        assert_eq!(Arc::strong_count(&stream), 2, "a borrow does not count");
        drop(STREAMS.remove(handle).expect("it is there"));
        assert!(STREAMS.borrow(handle).is_none() && STREAMS.find(handle).is_none());
        assert!(STREAMS.remove(handle).is_none() && STREAMS.was_made(handle));
        assert_eq!(Arc::strong_count(&stream), 2, "it stays");
        drop(one);
        assert_eq!(Arc::strong_count(&stream), 2, "the other borrow is left");
        drop(other);
        assert_eq!(Arc::strong_count(&stream), 1);
        let handle = STREAMS.insert(stream.clone()).expect("a handle");
        drop(STREAMS.borrow(handle));
        assert_eq!(Arc::strong_count(&stream), 2, "its handle is in use");
        drop(STREAMS.remove(handle));
        assert_eq!(Arc::strong_count(&stream), 1);
        assert!(
            [0usize, 1, usize::MAX].iter().all(|foreign| STREAMS.borrow(*foreign as *mut c_void).is_none())
        );
    }

    #[test]
    fn freed_and_foreign_handles_are_found_out() {
        let comms = || Comm::local(1, None).expect("one rank").pop().expect("one rank");
        let handle = COMMS.insert(comms()).expect("a handle");
        assert!(find(handle).is_some());
        assert!(STREAMS.find(handle).is_none(), "of another kind");
        assert!(COMMS.remove(handle).is_some());
        assert!(find(handle).is_none() && COMMS.remove(handle).is_none());
        assert!(COMMS.was_made(handle));
        let other = COMMS.insert(comms()).expect("a handle");
        assert_ne!(handle, other);
        assert!(find(handle).is_none());
        COMMS.remove(other);
        for foreign in [0usize, 1, 0x7fff_dead_beef, usize::MAX] {
            assert!(find(foreign as *mut c_void).is_none() && !COMMS.was_made(foreign as *mut c_void));
        }
    }
}
