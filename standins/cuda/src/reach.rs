//! A kernel's accesses to memory: the interpreter's [`Memory`] on real bytes.
//!
//! Invariant: every access is aligned and inside one region that the launch's device may access in this way. It is
//! done with the processor's atomic instructions, so that the host and other processes see it as a whole. Absent: a
//! search for races. Weak accesses are stronger than a GPU's.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering, fence};

use consort_standin_ptx::{Access, Atomic, Memory, Near, Problem, Scope, Semantics, Site};

use crate::code::Answer;
use crate::context::Context;
use crate::driver::{self, Driver};
use crate::gate::Resident;
use crate::memory::{Intent, Region};
use crate::settings::Peers;

/// Accesses between two checks of whether the launch should stop.
const LOOK: u32 = 1 << 14;

/// A region that was found, and what the launch may do there.
#[derive(Debug)]
struct Known {
    start: u64,
    end: u64,
    view: *mut u8,
    may_read: bool,
    may_write: bool,
    /// Keeps the view mapped.
    _region: Arc<Region>,
}

/// The memory that a launch reaches.
pub(crate) struct Reach<'a, 'g> {
    driver: &'static Driver,
    context: &'a Context,
    resident: &'a mut Resident<'g>,
    /// The regions found lately. They are few, as a kernel touches few.
    known: Vec<Known>,
    /// The index of the region that the next one replaces.
    oldest: usize,
    /// The table's number of changes when they were found.
    changes: u64,
    accesses: u32,
}

const KNOWN_MAX: usize = 16;

/// A word of memory that other processes and threads may access at the same time.
trait Word: Copy {
    type Atomic;
    fn load(at: &Self::Atomic, order: Ordering) -> Self;
    fn store(at: &Self::Atomic, value: Self, order: Ordering);
    fn update(at: &Self::Atomic, change: impl FnMut(Self) -> Self) -> Self;
}

macro_rules! words {
    ($($number:ty, $atomic:ty;)+) => {$(
        impl Word for $number {
            type Atomic = $atomic;
            fn load(at: &$atomic, order: Ordering) -> $number {
                at.load(order)
            }
            fn store(at: &$atomic, value: $number, order: Ordering) {
                at.store(value, order);
            }
            fn update(at: &$atomic, mut change: impl FnMut($number) -> $number) -> $number {
                let changed = at.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |old| Some(change(old)));
                changed.unwrap_or_else(|old| old)
            }
        }
    )+};
}
words! { u8, AtomicU8; u16, AtomicU16; u32, AtomicU32; u64, AtomicU64; }

/// The word at a checked place.
fn word<T: Word>(at: *mut u8) -> &'static T::Atomic {
    // SAFETY: only called with places that `Reach::at` has found inside a region and aligned to the word. The region
    // is held in `known` until the access is over, and the reference is dropped before. Every access to the word is
    // atomic.
    unsafe { &*at.cast::<T::Atomic>() }
}

impl<'a, 'g> Reach<'a, 'g> {
    pub(crate) fn new(context: &'a Context, resident: &'a mut Resident<'g>) -> Answer<Self> {
        let driver = driver::get()?;
        let changes = driver.table.changes();
        Ok(Reach { driver, context, resident, known: Vec::new(), oldest: 0, changes, accesses: 0 })
    }

    /// The place of the bytes of an access.
    fn at(&mut self, access: &Access, intent: Intent) -> Result<*mut u8, Problem> {
        let Access { address, bytes, .. } = *access;
        if !address.is_multiple_of(u64::from(bytes)) {
            return Err(Problem::Misaligned { address, bytes });
        }
        self.accesses += 1;
        if self.accesses >= LOOK {
            self.accesses = 0;
            if self.context.is_broken() {
                return Err(Problem::Stopped);
            }
            // Other processes get their turn even when the interpreter does not see that a kernel only spins.
            self.resident.breathe();
        }
        let changes = self.driver.table.changes();
        if changes != self.changes {
            self.known.clear();
            self.changes = changes;
        }
        let holds = |known: &Known| known.start <= address && address < known.end;
        let index = match self.known.iter().position(holds) {
            Some(index) => index,
            // A context that was destroyed has freed its memory under its kernels.
            None => self
                .find(access)
                .map_err(|why| if self.context.is_over() { Problem::Stopped } else { why })?,
        };
        let known = &self.known[index];
        let allowed = if intent == Intent::Read { known.may_read } else { known.may_write };
        if !allowed || address + u64::from(bytes) > known.end {
            return Err(Self::out_of_bounds(access, Some((known.start, known.end))));
        }
        Ok(known.view.wrapping_add((address - known.start) as usize))
    }

    fn out_of_bounds(access: &Access, range: Option<(u64, u64)>) -> Problem {
        let near = range.map(|(start, end)| Near {
            name: format!("{start:#x}"),
            offset: access.address.wrapping_sub(start) as i64,
            bytes: end - start,
        });
        Problem::OutOfBounds { address: access.address, bytes: access.bytes, near }
    }

    /// Looks a region up and remembers it.
    fn find(&mut self, access: &Access) -> Result<usize, Problem> {
        let regions = self.driver.table.snapshot();
        let before = regions.range(..=access.address).next_back().map(|(_, region)| region);
        let near = before.map(|region| (region.start, region.start + region.bytes));
        let region = before.filter(|region| access.address - region.start < region.bytes);
        let region = region.ok_or_else(|| Self::out_of_bounds(access, near))?;
        let device = self.context.device;
        let may = |intent| region.allows(device, intent, |peer| self.context.has_peer(peer));
        let lie = self.driver.settings.peers == Peers::Lie;
        let view = region.view(region.start, device, lie).map_err(|_| Self::out_of_bounds(access, near))?;
        let known = Known {
            start: region.start,
            end: region.start + region.bytes,
            view,
            may_read: may(Intent::Read),
            may_write: may(Intent::Write),
            _region: Arc::clone(region),
        };
        if self.known.len() < KNOWN_MAX {
            self.known.push(known);
            return Ok(self.known.len() - 1);
        }
        self.oldest = (self.oldest + 1) % KNOWN_MAX;
        self.known[self.oldest] = known;
        Ok(self.oldest)
    }
}

/// Orders of loads and stores.
fn orders(semantics: Semantics) -> (Ordering, Ordering) {
    match semantics {
        Semantics::Weak => (Ordering::Relaxed, Ordering::Relaxed),
        Semantics::Sequential => (Ordering::SeqCst, Ordering::SeqCst),
        _ => (Ordering::Acquire, Ordering::Release),
    }
}

impl Memory for Reach<'_, '_> {
    fn load(&mut self, _: &Site, access: &Access) -> Result<u128, Problem> {
        let at = self.at(access, Intent::Read)?;
        let order = orders(access.semantics).0;
        let half = |at| u128::from(u64::load(word::<u64>(at), order));
        Ok(match access.bytes {
            1 => u8::load(word::<u8>(at), order).into(),
            2 => u16::load(word::<u16>(at), order).into(),
            4 => u32::load(word::<u32>(at), order).into(),
            8 => half(at),
            _ => half(at) | half(at.wrapping_add(8)) << 64,
        })
    }

    fn store(&mut self, _: &Site, access: &Access, value: u128) -> Result<bool, Problem> {
        let at = self.at(access, Intent::Write)?;
        let order = orders(access.semantics).1;
        match access.bytes {
            1 => u8::store(word::<u8>(at), value as u8, order),
            2 => u16::store(word::<u16>(at), value as u16, order),
            4 => u32::store(word::<u32>(at), value as u32, order),
            8 => u64::store(word::<u64>(at), value as u64, order),
            _ => {
                u64::store(word::<u64>(at), value as u64, order);
                u64::store(word::<u64>(at.wrapping_add(8)), (value >> 64) as u64, order);
            }
        }
        Ok(true)
    }

    fn atomic(&mut self, _: &Site, access: &Access, atomic: &Atomic) -> Result<u64, Problem> {
        let at = self.at(access, Intent::Write)?;
        let bytes = access.bytes;
        Ok(match bytes {
            2 => u16::update(word::<u16>(at), |old| atomic.apply(bytes, old.into()) as u16).into(),
            4 => u32::update(word::<u32>(at), |old| atomic.apply(bytes, old.into()) as u32).into(),
            _ => u64::update(word::<u64>(at), |old| atomic.apply(bytes, old)),
        })
    }

    fn fence(&mut self, _: &Site, _: Semantics, _: Scope) {
        fence(Ordering::SeqCst);
    }

    fn admit(&mut self) -> bool {
        self.resident.admit()
    }

    fn block_ended(&mut self) {
        self.resident.ended();
    }

    fn idle(&mut self, turns: u64) -> Result<(), Problem> {
        if self.context.is_broken() {
            return Err(Problem::Stopped);
        }
        if turns < 32 {
            std::thread::yield_now();
        } else {
            self.resident.pause();
        }
        Ok(())
    }
}
