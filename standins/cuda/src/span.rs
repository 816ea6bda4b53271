//! The bytes behind an address and a length, for a copy, a fill or a stream's memory operation.
//!
//! Invariant: a span is checked against the table of regions when it is made, and holds the regions until it is
//! dropped. Memory that the table does not know is the caller's own and unchecked, as with the driver. Absent:
//! kernels' accesses (`reach`).

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use crate::code::{Answer, Code};
use crate::context::Context;
use crate::driver;
use crate::memory::{Intent, Kind, Region};
use crate::settings::Peers;

/// Bytes behind an address.
#[derive(Debug)]
pub(crate) struct Span {
    pieces: Vec<(*mut u8, usize)>,
    regions: Vec<Arc<Region>>,
    pub(crate) bytes: u64,
}

// SAFETY: the pieces are addresses in regions that the value holds, or memory of the caller of an exported function,
// who vouches for it until the call's work has ended.
unsafe impl Send for Span {}

impl Span {
    /// The bytes at `address` as `context` reaches them with a copy.
    ///
    /// # Errors
    /// `INVALID_VALUE` when the span begins in memory that the driver knows and leaves it, or when it may not be
    /// accessed.
    pub(crate) fn of(context: &Context, address: u64, bytes: u64, intent: Intent) -> Answer<Self> {
        let driver = driver::get()?;
        if bytes == 0 {
            return Ok(Span { pieces: Vec::new(), regions: Vec::new(), bytes });
        }
        let end = address.checked_add(bytes).filter(|_| address != 0).ok_or(Code::INVALID_VALUE)?;
        let (mut at, mut pieces, mut regions) = (address, Vec::new(), Vec::new());
        while at < end {
            let Some(region) = driver.table.find(at) else {
                if at != address || driver.table.overlaps(at, end - at) {
                    return Err(Code::INVALID_VALUE);
                }
                return Ok(Span { pieces: vec![(at as *mut u8, bytes as usize)], regions, bytes });
            };
            // Copies between devices that do not reach each other go through the host.
            if matches!(region.kind, Kind::Virtual { .. }) && !region.allows(context.device, intent, |_| true)
            {
                return Err(Code::INVALID_VALUE);
            }
            let length = (region.start + region.bytes).min(end) - at;
            let lie = driver.settings.peers == Peers::Lie;
            pieces.push((region.view(at, context.device, lie)?, length as usize));
            regions.push(region);
            at += length;
        }
        Ok(Span { pieces, regions, bytes })
    }

    /// Whether the driver knows the memory, on a device or on the host.
    pub(crate) fn is_known(&self) -> bool {
        !self.regions.is_empty() || self.bytes == 0
    }

    /// Whether bytes of a device are in it.
    pub(crate) fn is_device(&self) -> bool {
        self.regions.iter().any(|region| region.is_device())
    }

    /// Whether bytes of another device are in it.
    pub(crate) fn is_of_peer(&self, device: u32) -> bool {
        self.regions.iter().any(|region| region.is_device() && region.device != device)
    }

    /// Copies the bytes of another span of the same length.
    pub(crate) fn copy_from(&self, from: &Span) {
        let (mut to, mut from) = (self.pieces.iter().copied(), from.pieces.iter().copied());
        let (mut write, mut read) = (to.next(), from.next());
        while let (Some((target, room)), Some((source, left))) = (write, read) {
            let bytes = room.min(left);
            // SAFETY: both spans were found to be that long in regions that are held, or are the caller's. A race
            // with a kernel or another process is the program's own, as on a device.
            unsafe { std::ptr::copy(source, target, bytes) };
            let rest = |(at, length): (*mut u8, usize)| (at.wrapping_add(bytes), length - bytes);
            write = if room == bytes { to.next() } else { Some(rest((target, room))) };
            read = if left == bytes { from.next() } else { Some(rest((source, left))) };
        }
        // Later work of the stream, also in other processes, sees the bytes.
        fence(Ordering::SeqCst);
    }

    /// A copy of the bytes as they are now.
    pub(crate) fn staged(&self) -> Vec<u8> {
        let mut all = Vec::with_capacity(self.bytes as usize);
        for (at, bytes) in &self.pieces {
            // SAFETY: as in `copy_from`.
            all.extend_from_slice(unsafe { std::slice::from_raw_parts(*at, *bytes) });
        }
        all
    }

    /// Writes bytes that were staged.
    pub(crate) fn copy_from_staged(&self, mut from: &[u8]) {
        for (at, bytes) in &self.pieces {
            let (now, rest) = from.split_at((*bytes).min(from.len()));
            // SAFETY: as in `copy_from`; `now` is no longer than the piece.
            unsafe { std::ptr::copy(now.as_ptr(), *at, now.len()) };
            from = rest;
        }
        fence(Ordering::SeqCst);
    }

    /// Fills the bytes with a pattern of 1, 2 or 4 bytes.
    pub(crate) fn fill(&self, pattern: &[u8]) {
        let Some(first) = pattern.first() else { return };
        let is_one_byte = pattern.iter().all(|byte| byte == first);
        let mut written = 0;
        for (at, bytes) in &self.pieces {
            if is_one_byte {
                // SAFETY: as in `copy_from`.
                unsafe { at.write_bytes(*first, *bytes) };
                continue;
            }
            for index in 0..*bytes {
                // SAFETY: as above.
                unsafe { at.add(index).write(pattern[(written + index) % pattern.len()]) };
            }
            written += bytes;
        }
        fence(Ordering::SeqCst);
    }

    fn word<T>(&self) -> Option<&T> {
        let (at, bytes) = *self.pieces.first()?;
        let fits = bytes >= size_of::<T>() && at.cast::<T>().is_aligned();
        // SAFETY: in a region that is held, long enough and aligned. Every access to the word is atomic.
        fits.then(|| unsafe { &*at.cast::<T>() })
    }

    /// The 32 bits, with acquire.
    pub(crate) fn load_32(&self) -> u32 {
        self.word::<AtomicU32>().map_or(0, |word| word.load(Ordering::Acquire))
    }

    /// The 64 bits, with acquire.
    pub(crate) fn load_64(&self) -> u64 {
        self.word::<AtomicU64>().map_or(0, |word| word.load(Ordering::Acquire))
    }

    /// Writes 32 bits after all that came before.
    pub(crate) fn store_32(&self, value: u32) {
        if let Some(word) = self.word::<AtomicU32>() {
            word.store(value, Ordering::SeqCst);
        }
    }

    /// Writes 64 bits after all that came before.
    pub(crate) fn store_64(&self, value: u64) {
        if let Some(word) = self.word::<AtomicU64>() {
            word.store(value, Ordering::SeqCst);
        }
    }
}
