//! Bounded views of memory that the library may read or write while another party (another lane, another
//! rank, the in-place alias of the same buffer) holds a view of the same bytes.
//!
//! Invariant: a span never leaves the bounds it was made with, and no `&[T]` or `&mut [T]` to its bytes is
//! ever handed out. That is why spans are `Copy`: like `&[Cell<u8>]`, they may alias, and like it they stay on
//! their thread (memory that crosses threads does so as a [`Lease`](crate::Lease) or lent by
//! [`lend`](crate::lend)). What keeps two ranks from touching the same bytes of a shared mapping at the same
//! time is the plan, which is verified before it runs.
//!
//! Deliberately absent: peers, collectives, reduction.

use std::marker::PhantomData;
use std::ptr::NonNull;

/// Plain old data: every bit pattern of the type's size is a value, and it has no padding.
///
/// # Safety
/// Implementors promise exactly that; peers write arbitrary bytes into buffers of such elements.
pub unsafe trait Plain: Copy + Send + Sync + 'static {}

macro_rules! plain {
    ($($t:ty),*) => {$(
        // SAFETY: primitive integers and floats have no padding and no invalid bit pattern.
        unsafe impl Plain for $t {}
    )*};
}
plain!(u8, i8, u16, i16, u32, i32, u64, i64, u128, i128, usize, isize, f32, f64);

// SAFETY: `repr(transparent)` over `u16`.
unsafe impl Plain for half::f16 {}
// SAFETY: `repr(transparent)` over `u16`.
unsafe impl Plain for half::bf16 {}

/// Memory that may be read for `'a`.
#[derive(Clone, Copy, Debug)]
pub struct Span<'a> {
    start: NonNull<u8>,
    bytes: usize,
    life: PhantomData<&'a [std::cell::Cell<u8>]>,
}

/// Memory that may be read and written for `'a`. Copies alias; see the module's invariant.
#[derive(Clone, Copy, Debug)]
pub struct SpanMut<'a> {
    start: NonNull<u8>,
    bytes: usize,
    life: PhantomData<&'a [std::cell::Cell<u8>]>,
}

impl<'a> Span<'a> {
    /// A view of nothing.
    pub const fn empty() -> Self {
        Self { start: NonNull::dangling(), bytes: 0, life: PhantomData }
    }

    /// A view of a slice.
    pub fn of<T: Plain>(slice: &'a [T]) -> Self {
        Self { start: NonNull::from(slice).cast(), bytes: size_of_val(slice), life: PhantomData }
    }

    /// A view of `bytes` bytes at `start`, for bindings that receive addresses.
    ///
    /// # Safety
    /// The range must be readable for `'a`, and nothing may write it during `'a` except through views that
    /// the same operation was given. A null `start` is allowed only with `bytes == 0`.
    pub unsafe fn from_raw(start: *const u8, bytes: usize) -> Self {
        Self {
            start: NonNull::new(start.cast_mut()).unwrap_or(NonNull::dangling()),
            bytes,
            life: PhantomData,
        }
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Whether the length is zero.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// The address, for comparisons and for kernels.
    pub fn as_ptr(&self) -> *const u8 {
        self.start.as_ptr()
    }

    /// `bytes` bytes from `offset` on.
    ///
    /// # Panics
    /// If the range is not inside this span.
    #[inline]
    pub fn slice(&self, offset: usize, bytes: usize) -> Span<'a> {
        if offset > self.bytes || bytes > self.bytes - offset {
            outside(self.bytes, offset, bytes);
        }
        // SAFETY: the offset was just checked against the length.
        Self { start: unsafe { self.start.add(offset) }, bytes, life: PhantomData }
    }
}

impl<'a> SpanMut<'a> {
    /// A view of nothing.
    pub const fn empty() -> Self {
        Self { start: NonNull::dangling(), bytes: 0, life: PhantomData }
    }

    /// A view of a slice.
    pub fn of<T: Plain>(slice: &'a mut [T]) -> Self {
        Self { bytes: size_of_val(slice), start: NonNull::from(slice).cast(), life: PhantomData }
    }

    /// A view of `bytes` bytes at `start`, for bindings that receive addresses and for mappings.
    ///
    /// # Safety
    /// The range must be readable and writable for `'a`, and nothing may touch it during `'a` except through
    /// views that the same operation was given, or in the order a verified plan lays down. A null `start` is
    /// allowed only with `bytes == 0`.
    pub unsafe fn from_raw(start: *mut u8, bytes: usize) -> Self {
        Self { start: NonNull::new(start).unwrap_or(NonNull::dangling()), bytes, life: PhantomData }
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Whether the length is zero.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// The address, for comparisons and for kernels.
    pub fn as_mut_ptr(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// The same bytes, for reading.
    #[inline]
    pub fn read(&self) -> Span<'a> {
        Span { start: self.start, bytes: self.bytes, life: PhantomData }
    }

    /// `bytes` bytes from `offset` on.
    ///
    /// # Panics
    /// If the range is not inside this span.
    #[inline]
    pub fn slice(&self, offset: usize, bytes: usize) -> SpanMut<'a> {
        if offset > self.bytes || bytes > self.bytes - offset {
            outside(self.bytes, offset, bytes);
        }
        // SAFETY: the offset was just checked against the length.
        Self { start: unsafe { self.start.add(offset) }, bytes, life: PhantomData }
    }

    /// Copies `from` here; the two may overlap.
    ///
    /// # Panics
    /// If the lengths differ.
    #[inline]
    pub fn copy_from(&self, from: Span<'_>) {
        assert_eq!(self.bytes, from.len(), "copy between spans of different lengths");
        // SAFETY: both ranges are valid for their lengths by construction; `copy` allows overlap.
        unsafe { std::ptr::copy(from.as_ptr(), self.start.as_ptr(), self.bytes) }
    }

    /// Makes the lines of these bytes, which this core has just read, modified in its cache: stores into each line a byte that it
    /// holds already. Where the read has moved the lines with the right to write them, a store of another core to one fetches it
    /// with that right; to a line that is clean here it waits for the right on its own (ADR-2 has the figures). Where the read
    /// leaves lines shared, it is one more transaction. Only while the writer of these bytes has no word that they may be written
    /// again: a store in between is lost.
    #[inline]
    pub fn touch(&self) {
        #[cfg(test)]
        TOUCHES.set(TOUCHES.get() + 1);
        for at in (0..self.bytes).step_by(LINE_BYTES) {
            // SAFETY: inside the span, and no other party stores here meanwhile (caller's promise, as for any write to a span);
            // volatile, as the compiler would drop a store of what is there.
            unsafe {
                let byte = self.start.as_ptr().add(at);
                byte.write_volatile(byte.read_volatile());
            }
        }
    }
}

/// A cache line in bytes.
pub(crate) const LINE_BYTES: usize = 64;

#[cfg(test)]
thread_local! {
    /// How often this thread has touched spans, as a touch leaves nothing that can be seen.
    pub(crate) static TOUCHES: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
}

/// Apart, so that what it says costs those nothing that stay inside.
#[cold]
#[inline(never)]
fn outside(all: usize, offset: usize, bytes: usize) -> ! {
    panic!("span of {all} bytes cut at {offset}+{bytes}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_bounded() {
        let mut data = [1u32, 2, 3, 4];
        let span = SpanMut::of(&mut data);
        assert_eq!(span.len(), 16);
        span.slice(0, 4).copy_from(span.read().slice(12, 4));
        assert!(std::panic::catch_unwind(|| Span::of(&[0u8; 4]).slice(3, 2)).is_err());
        assert!(std::panic::catch_unwind(|| Span::of(&[0u8; 4]).slice(usize::MAX, 2)).is_err());
        assert_eq!(data, [4, 2, 3, 4]);
    }

    #[test]
    fn a_touch_changes_nothing_and_stays_inside() {
        use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous, mprotect, munmap};
        const PAGE: usize = 4096;
        let two = std::num::NonZeroUsize::new(2 * PAGE).expect("two pages");
        let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: fresh pages that nothing else knows; what lies behind the first may not be touched at all.
        let start = unsafe {
            let start = mmap_anonymous(None, two, access, MapFlags::MAP_PRIVATE).expect("two pages");
            mprotect(start.add(PAGE), PAGE, ProtFlags::PROT_NONE).expect("a guard");
            start
        };
        // SAFETY: the first page is readable and writable until the end of this test.
        let page = unsafe { SpanMut::from_raw(start.as_ptr().cast(), PAGE) };
        let before: Vec<u8> = (0..PAGE).map(|at| at as u8).collect();
        page.copy_from(Span::of(&before));
        for (at, bytes) in
            [(0, 0), (PAGE, 0), (0, 1), (1, 64), (3, 65), (PAGE - 1, 1), (PAGE - 63, 63), (0, PAGE)]
        {
            page.slice(at, bytes).touch();
        }
        let mut after = vec![0; PAGE];
        SpanMut::of(&mut after).copy_from(page.read());
        assert_eq!(after, before);
        // SAFETY: mapped above, and not used again.
        unsafe { munmap(start, 2 * PAGE).expect("unmapped") };
    }
}
