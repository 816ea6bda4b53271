//! How many bytes a thread has allocated.
//!
//! Invariant: counting allocates nothing and changes nothing about where memory comes from. Absent: other threads' bytes;
//! memory that was mapped.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    /// Bytes that this thread allocated and did not free (it may free another's), and the most there were.
    static LIVE: Cell<(isize, isize)> = const { Cell::new((0, 0)) };
}

fn count(bytes: isize) {
    // A thread that ends allocates without being counted.
    let _ = LIVE.try_with(|live| {
        let (now, most) = live.get();
        let now = now.wrapping_add(bytes);
        live.set((now, most.max(now)));
    });
}

/// The system's allocator, counting: to be a test's `#[global_allocator]`.
#[derive(Debug)]
pub struct Counting;

// SAFETY: everything is left to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: as promised by the caller.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: as promised by the caller.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: as promised by the caller.
        unsafe { System.dealloc(start, layout) }
    }

    unsafe fn realloc(&self, start: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        count(bytes as isize - layout.size() as isize);
        // SAFETY: as promised by the caller.
        unsafe { System.realloc(start, layout, bytes) }
    }
}

/// Bytes that this thread holds.
pub fn live_bytes() -> isize {
    LIVE.with(|live| live.get().0)
}

/// Watches the thread from now on.
pub(super) struct Gauge {
    before: isize,
}

impl Gauge {
    pub(super) fn start() -> Self {
        let before = live_bytes();
        LIVE.with(|live| live.set((before, before)));
        Gauge { before }
    }

    /// The most bytes more than at the start that there were at any time.
    pub(super) fn most(&self) -> usize {
        LIVE.with(|live| live.get().1).wrapping_sub(self.before).max(0).unsigned_abs()
    }
}

/// # Panics
/// When the allocator that counts is not the one in use.
pub(super) fn check() {
    let before = live_bytes();
    let room = std::hint::black_box(Vec::<u8>::with_capacity(4096));
    assert!(live_bytes() - before >= 4096, "fuzzing needs `Counting` as the global allocator of the test");
    drop(room);
}
