//! Handles for C: numbers in the form of pointers.
//!
//! Invariant: a handle is a kind, an index and a generation, never an address. So a handle that was freed, made up or
//! of another kind is refused, and nothing is dereferenced.

use std::ffi::c_void;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

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
struct Place<T>(RwLock<Slot<T>>);

struct Slot<T> {
    generation: u32,
    value: Option<Arc<T>>,
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
        Slab {
            slots: [const { Place(RwLock::new(Slot { generation: 0, value: None })) }; HANDLES_MAX],
            free: AtomicUsize::new(0),
        }
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
            let mut slot = self.slots[index].0.write().unwrap_or_else(PoisonError::into_inner);
            if slot.value.is_none() {
                slot.generation = slot.generation.wrapping_add(1);
                slot.value = Some(value);
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

    fn slot(&self, handle: *mut c_void) -> Option<(&RwLock<Slot<T>>, u32)> {
        let bits = handle as usize;
        let generation = (bits >> INDEX_BITS) as u32;
        (bits >> KIND_BIT == KIND).then(|| (&self.slots[bits % HANDLES_MAX].0, generation))
    }

    /// The value of a handle; `None` if it was freed or is not a handle.
    #[inline]
    pub(crate) fn find(&self, handle: *mut c_void) -> Option<Arc<T>> {
        let (slot, generation) = self.slot(handle)?;
        let slot = slot.read().unwrap_or_else(PoisonError::into_inner);
        if slot.generation == generation { slot.value.clone() } else { None }
    }

    /// Frees a handle and returns its value.
    pub(crate) fn remove(&self, handle: *mut c_void) -> Option<Arc<T>> {
        let (slot, generation) = self.slot(handle)?;
        let mut slot = slot.write().unwrap_or_else(PoisonError::into_inner);
        if slot.generation == generation { slot.value.take() } else { None }
    }

    /// Number of handles in use.
    fn count(&self) -> usize {
        let is_taken =
            |place: &&Place<T>| place.0.read().unwrap_or_else(PoisonError::into_inner).value.is_some();
        self.slots.iter().filter(is_taken).count()
    }

    /// Whether the handle was made here, freed or not.
    pub(crate) fn was_made(&self, handle: *mut c_void) -> bool {
        self.slot(handle).is_some_and(|(slot, generation)| {
            let slot = slot.read().unwrap_or_else(PoisonError::into_inner);
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
