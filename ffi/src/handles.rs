//! Communicator handles for C: numbers dressed as pointers.
//!
//! Invariant: a handle is an index and a generation, never an address, so one that was freed or made up is
//! found out and nothing is dereferenced.

use std::ffi::c_void;
use std::sync::{Arc, PoisonError, RwLock};

use consort::Communicator;

use crate::timeout;

/// How many communicators a process can have at once through the C ABI.
const HANDLES_MAX: usize = 4096;
/// Handles are multiples of this, so that no small number or aligned address passes for one by chance.
const INDEX_BITS: u32 = 12;
const TAG: usize = 0x5C0 << 48;

/// What a handle stands for.
pub(crate) struct Handle {
    pub(crate) communicator: Communicator,
    /// What C set for all later calls.
    pub(crate) timeout: timeout::OfHandle,
}

struct Slot {
    generation: u32,
    handle: Option<Arc<Handle>>,
}

static SLOTS: [RwLock<Slot>; HANDLES_MAX] =
    [const { RwLock::new(Slot { generation: 0, handle: None }) }; HANDLES_MAX];

/// Keeps a communicator and makes its handle; `None` when there are too many.
pub(crate) fn insert(communicator: Communicator) -> Option<*mut c_void> {
    let handle = Arc::new(Handle { communicator, timeout: timeout::OfHandle::default() });
    for (index, slot) in SLOTS.iter().enumerate() {
        let mut slot = slot.write().unwrap_or_else(PoisonError::into_inner);
        if slot.handle.is_none() {
            slot.generation = slot.generation.wrapping_add(1);
            slot.handle = Some(handle);
            return Some((TAG | (slot.generation as usize) << INDEX_BITS | index) as *mut c_void);
        }
    }
    None
}

fn slot(handle: *mut c_void) -> Option<(&'static RwLock<Slot>, u32)> {
    let bits = handle as usize;
    let generation = (bits & !TAG) >> INDEX_BITS;
    (bits & TAG == TAG).then(|| (&SLOTS[bits & (HANDLES_MAX - 1)], generation as u32))
}

/// What a handle stands for, unless it was freed or never was one.
pub(crate) fn find(handle: *mut c_void) -> Option<Arc<Handle>> {
    let (slot, generation) = slot(handle)?;
    let slot = slot.read().unwrap_or_else(PoisonError::into_inner);
    if slot.generation == generation { slot.handle.clone() } else { None }
}

/// Whether it is a handle that was made here, freed or not.
pub(crate) fn was_made(handle: *mut c_void) -> bool {
    slot(handle).is_some_and(|(slot, generation)| {
        let slot = slot.read().unwrap_or_else(PoisonError::into_inner);
        generation != 0 && generation <= slot.generation
    })
}

/// Frees a handle and hands out what it stood for.
pub(crate) fn remove(handle: *mut c_void) -> Option<Arc<Handle>> {
    let (slot, generation) = slot(handle)?;
    let mut slot = slot.write().unwrap_or_else(PoisonError::into_inner);
    if slot.generation == generation { slot.handle.take() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn freed_and_foreign_handles_are_found_out() {
        let communicator = Communicator::local(1).expect("one rank").pop().expect("one rank");
        let handle = insert(communicator).expect("a handle");
        assert!(find(handle).is_some());
        assert!(remove(handle).is_some());
        assert!(find(handle).is_none() && remove(handle).is_none());
        assert!(was_made(handle));
        let other =
            insert(Communicator::local(1).expect("one rank").pop().expect("one rank")).expect("a handle");
        assert_ne!(handle, other);
        assert!(find(handle).is_none());
        remove(other);
        for foreign in [0usize, 1, 0x7fff_dead_beef, usize::MAX] {
            assert!(find(foreign as *mut c_void).is_none() && !was_made(foreign as *mut c_void));
        }
    }
}
