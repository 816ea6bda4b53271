//! A global allocator that counts allocations.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

static CALLS: AtomicU64 = AtomicU64::new(0);
static BYTES: AtomicI64 = AtomicI64::new(0);

/// The system's allocator, counted over all threads.
#[derive(Debug)]
pub struct Counting;

/// Allocations so far, growing ones included.
pub fn calls() -> u64 {
    CALLS.load(Ordering::SeqCst)
}

/// Bytes that are allocated now.
pub fn bytes() -> i64 {
    BYTES.load(Ordering::SeqCst)
}

// SAFETY: every call goes to the system's allocator unchanged; the counters are not part of its memory.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        CALLS.fetch_add(1, Ordering::Relaxed);
        BYTES.fetch_add(layout.size() as i64, Ordering::Relaxed);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        BYTES.fetch_sub(layout.size() as i64, Ordering::Relaxed);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(start, layout) }
    }

    unsafe fn realloc(&self, start: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        CALLS.fetch_add(1, Ordering::Relaxed);
        BYTES.fetch_add(bytes as i64 - layout.size() as i64, Ordering::Relaxed);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.realloc(start, layout, bytes) }
    }
}
