//! Short messages that carry their own flag: a row of slots which one party fills and one other party empties.
//!
//! A slot is one cache line with the flag in its last word; payloads of more than [`Row::LINE_PAYLOAD_BYTES`] follow in
//! lines of their own. So a message of a line costs one transfer of one line between two cores: the fewest that there
//! are. The scheme is the "LL" one of the GPU libraries and of shared-memory MPI ("fast boxes"); here flag and payload
//! are ordered by Release and Acquire rather than by the width of a store, so that a line can be full.
//!
//! Invariant: a flag names the message, so that nothing has to be cleared, and a slot is filled again only once its
//! reader is known to have emptied it. The two parties go through the same numbered operations, one after the other:
//! a party that has heard of its peer in operation `o` knows that it is through with all before `o`, and needs no other
//! credit. Deliberately absent: waiting, peers, collectives.

use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::span::LINE_BYTES;
use crate::sync::{AtomicU64, Ordering};
#[cfg(not(loom))]
use crate::{Counter, Mapping};
use crate::{Span, SpanMut};

/// The words of a line before its flag.
const WORDS: usize = Row::LINE_PAYLOAD_BYTES / 8;

/// The first line of a slot.
#[repr(C, align(64))]
struct Line {
    payload: [AtomicU64; WORDS],
    flag: AtomicU64,
}

#[derive(Clone)]
enum Keep {
    #[cfg(not(loom))]
    Mapping {
        _mapping: Arc<Mapping>,
    },
    Own {
        _lines: Arc<[Line]>,
    },
}

/// Slots in shared memory: where they are, and how long. Clones are of the same slots.
#[derive(Clone)]
pub struct Row {
    start: NonNull<u8>,
    stride: usize,
    mask: u32,
    payload_bytes: usize,
    /// The longest payload that is all of a message's line but its flag; 0 where payloads have lines of their own.
    line_bytes: usize,
    /// Where in a slot the payload begins.
    payload_at: usize,
    _keep: Keep,
}

// SAFETY: the memory is kept by `_keep`; flags are atomics, and payloads are reached as spans, by the party whose turn
// the flags say it is.
unsafe impl Send for Row {}
// SAFETY: as above.
unsafe impl Sync for Row {}

impl Row {
    /// The longest payload that shares a line with its flag.
    pub const LINE_PAYLOAD_BYTES: usize = 56;

    /// The most slots of a row.
    pub const SLOTS_MAX: usize = 64;

    /// Bytes that `slots` slots for payloads of at most `payload_bytes` take.
    pub const fn bytes(slots: usize, payload_bytes: usize) -> usize {
        slots * Self::stride(payload_bytes)
    }

    const fn stride(payload_bytes: usize) -> usize {
        if payload_bytes <= Self::LINE_PAYLOAD_BYTES {
            LINE_BYTES
        } else {
            LINE_BYTES + payload_bytes.next_multiple_of(LINE_BYTES)
        }
    }

    /// Slots in zeroed memory at `offset` of a mapping.
    ///
    /// # Panics
    /// If `offset` is not aligned to a line, the row is not inside the mapping, or `slots` is no power of two of at
    /// most [`Row::SLOTS_MAX`].
    #[cfg(not(loom))]
    pub fn in_mapping(mapping: Arc<Mapping>, offset: usize, slots: usize, payload_bytes: usize) -> Self {
        assert!(offset.is_multiple_of(LINE_BYTES), "a row at {offset} is not aligned");
        let whole = mapping.span(offset, Self::bytes(slots, payload_bytes));
        let start = NonNull::new(whole.as_mut_ptr()).expect("mappings are not null");
        // Inside the mapping by the bounds check, aligned as mappings are page-aligned.
        Self::at(start, slots, payload_bytes, Keep::Mapping { _mapping: mapping })
    }

    /// Slots of a line each in memory of their own.
    ///
    /// # Panics
    /// If `slots` is no power of two of at most [`Row::SLOTS_MAX`].
    pub fn standalone(slots: usize) -> Self {
        let line = |_| Line { payload: std::array::from_fn(|_| AtomicU64::new(0)), flag: AtomicU64::new(0) };
        let lines: Arc<[Line]> = (0..slots).map(line).collect();
        Self::at(NonNull::from(&*lines).cast(), slots, Self::LINE_PAYLOAD_BYTES, Keep::Own { _lines: lines })
    }

    fn at(start: NonNull<u8>, slots: usize, payload_bytes: usize, keep: Keep) -> Self {
        assert!(slots.is_power_of_two() && slots <= Self::SLOTS_MAX, "a row of {slots} slots");
        let stride =
            if matches!(keep, Keep::Own { .. }) { size_of::<Line>() } else { Self::stride(payload_bytes) };
        let payload_at = if payload_bytes <= Self::LINE_PAYLOAD_BYTES { 0 } else { LINE_BYTES };
        let line_bytes = if payload_at == 0 { payload_bytes } else { 0 };
        Self { start, stride, mask: slots as u32 - 1, payload_bytes, line_bytes, payload_at, _keep: keep }
    }

    /// The longest payload, in bytes.
    pub fn payload_bytes(&self) -> usize {
        self.payload_bytes
    }

    /// How many slots there are.
    pub fn slots(&self) -> usize {
        self.mask as usize + 1
    }

    /// The first lines of all slots as counters, where a row is used for counters and not for messages; none where it lies in
    /// memory of its own.
    #[cfg(not(loom))]
    pub fn counters(&self) -> Vec<Counter> {
        let Keep::Mapping { _mapping: mapping } = &self._keep else { return Vec::new() };
        let first = self.start.as_ptr() as usize - mapping.span(0, 0).as_mut_ptr() as usize;
        (0..self.slots()).map(|slot| mapping.counter(first + slot * self.stride)).collect()
    }

    #[inline(always)]
    fn line(&self, number: u32) -> &Line {
        let at = (number & self.mask) as usize * self.stride;
        // SAFETY: the mask keeps the slot inside the row, which is inside memory that `_keep` holds; slots are aligned
        // to lines, and every bit pattern is a line.
        unsafe { self.start.add(at).cast().as_ref() }
    }

    /// The flag of a slot, where a row is used for something else than messages.
    #[inline]
    pub(crate) fn flag(&self, number: u32) -> &AtomicU64 {
        &self.line(number).flag
    }

    #[inline(always)]
    pub(crate) fn payload(&self, number: u32) -> SpanMut<'_> {
        let at = (number & self.mask) as usize * self.stride + self.payload_at;
        // SAFETY: inside the slot, by the stride; the flags say whose turn it is (invariant of the module), as the plan
        // does for other shared memory.
        unsafe { SpanMut::from_raw(self.start.as_ptr().add(at), self.payload_bytes) }
    }

    /// The slot, from its flag's line to the end of the payload.
    fn slot(&self, number: u32) -> SpanMut<'_> {
        let at = (number & self.mask) as usize * self.stride;
        // SAFETY: as of `payload`, which begins `payload_at` bytes later.
        unsafe { SpanMut::from_raw(self.start.as_ptr().add(at), self.payload_at + self.payload_bytes) }
    }
}

impl fmt::Debug for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Row")
            .field("slots", &self.slots())
            .field("payload_bytes", &self.payload_bytes)
            .finish()
    }
}

/// The flag of message `number`: its low half says which message it is, its high half is the upper half of `mark`.
#[inline]
const fn flag(number: u32, mark: u64) -> u64 {
    mark & !0xffff_ffff | number as u64
}

#[cold]
#[inline(never)]
fn too_long(bytes: usize) -> ! {
    panic!("a line of {bytes} bytes");
}

/// Copies at most a line in words; the last may overlap the one before it.
///
/// # Safety
/// As of `copy_nonoverlapping`.
#[inline(always)]
unsafe fn copy_line(from: *const u8, to: *mut u8, bytes: usize) {
    // SAFETY: every access is inside the first `bytes` bytes of both (caller's promise).
    unsafe {
        let word =
            |at: usize| to.add(at).cast::<u64>().write_unaligned(from.add(at).cast::<u64>().read_unaligned());
        let half =
            |at: usize| to.add(at).cast::<u32>().write_unaligned(from.add(at).cast::<u32>().read_unaligned());
        if bytes == 8 {
            word(0);
        } else if bytes > 8 {
            let mut at = 0;
            while at + 8 < bytes {
                word(at);
                at += 8;
            }
            word(bytes - 8);
        } else if bytes >= 4 {
            half(0);
            half(bytes - 4);
        } else {
            for at in 0..bytes {
                *to.add(at) = *from.add(at);
            }
        }
    }
}

/// Copies between spans that are apart; as much as shares a line with a flag without a call.
///
/// # Panics
/// If their lengths differ.
#[inline(always)]
pub fn copy_short(to: SpanMut<'_>, from: Span<'_>) {
    let bytes = to.len();
    if bytes != from.len() || bytes > Row::LINE_PAYLOAD_BYTES {
        return to.copy_from(from);
    }
    // SAFETY: both have that many bytes. Where they overlap, the bytes are unspecified, as of every write to a span.
    unsafe { copy_line(from.as_ptr(), to.as_mut_ptr(), bytes) }
}

/// What came.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Arrival {
    /// Nothing yet.
    None,
    /// The message.
    Here,
    /// A message with another mark.
    Other,
}

/// The side that fills.
#[derive(Debug)]
pub struct Outbox {
    row: Row,
    /// Messages sent so far; the flag has the low half of it: slots are reused long before it wraps.
    sent: u32,
    /// The operation in which each slot was filled last.
    filled: Box<[u64]>,
}

impl Outbox {
    /// Of a row that was never used.
    pub fn new(row: Row) -> Self {
        Self { sent: 0, filled: vec![0; row.slots()].into(), row }
    }

    /// Whether the next message has a slot, when the reader is through with all operations up to `through`.
    #[inline(always)]
    pub fn has_room(&self, through: u64) -> bool {
        let next = self.sent.wrapping_add(1);
        self.filled[(next & self.row.mask) as usize] <= through
    }

    /// Where the next message's payload goes. Only while it has a slot.
    #[inline]
    pub fn payload(&self) -> SpanMut<'_> {
        self.row.payload(self.sent.wrapping_add(1))
    }

    /// Puts a payload of at most [`Row::LINE_PAYLOAD_BYTES`] there, without a call.
    ///
    /// # Panics
    /// If it is longer, or longer than the row's payloads.
    #[inline(always)]
    pub fn put_line(&self, from: Span<'_>) {
        let bytes = from.len();
        if bytes > Row::LINE_PAYLOAD_BYTES || bytes > self.row.payload_bytes {
            too_long(bytes);
        }
        // SAFETY: the payload has that many bytes; it is no part of the source, which the caller may not have shared.
        unsafe { copy_line(from.as_ptr(), self.payload().as_mut_ptr(), bytes) }
    }

    /// Sends a payload that shares a line with its flag, as [`Outbox::put_line`] and [`Outbox::send`] do. Whether there was a
    /// slot for it, as [`Outbox::has_room`] says.
    ///
    /// # Panics
    /// If it is longer than such a payload, or payloads have lines of their own.
    #[inline(always)]
    pub fn send_line(&mut self, from: Span<'_>, through: u64, operation: u64, mark: u64) -> bool {
        let bytes = from.len();
        if bytes > self.row.line_bytes {
            too_long(bytes);
        }
        let next = self.sent.wrapping_add(1);
        let slot = (next & self.row.mask) as usize;
        // SAFETY: there is a number for each slot of the row, and the mask keeps this one among them.
        let filled = unsafe { self.filled.get_unchecked_mut(slot) };
        if *filled > through {
            return false;
        }
        *filled = operation;
        let line = self.row.line(next);
        // SAFETY: the line has that many bytes before its flag; it is no part of the source, which the caller may not have
        // shared.
        unsafe { copy_line(from.as_ptr(), std::ptr::from_ref(line).cast_mut().cast(), bytes) }
        // Release: as in `send`.
        line.flag.store(flag(next, mark), Ordering::Release);
        self.sent = next;
        true
    }

    /// Puts a word beside the payload, where that has lines of its own.
    ///
    /// # Panics
    /// If the payload is in the flag's line.
    #[inline]
    pub fn put_word(&self, word: u64) {
        assert!(self.row.payload_at != 0, "a word in the payload's place");
        // Relaxed: published by the flag's Release.
        self.row.line(self.sent.wrapping_add(1)).payload[0].store(word, Ordering::Relaxed);
    }

    /// Sends what was put there, as part of `operation`; operations are numbered from 1.
    #[inline(always)]
    pub fn send(&mut self, operation: u64, mark: u64) {
        self.sent = self.sent.wrapping_add(1);
        self.filled[(self.sent & self.row.mask) as usize] = operation;
        // Release: pairs with the Acquire in Inbox::look; publishes the payload.
        self.row.line(self.sent).flag.store(flag(self.sent, mark), Ordering::Release);
    }

    /// How many were sent, modulo 2^32.
    pub fn sent(&self) -> u32 {
        self.sent
    }
}

/// The side that empties.
#[derive(Debug)]
pub struct Inbox {
    row: Row,
    /// Messages taken so far.
    taken: u32,
}

impl Inbox {
    /// Of a row that was never used.
    pub fn new(row: Row) -> Self {
        Self { row, taken: 0 }
    }

    /// Whether the next message is here and is marked so.
    #[inline(always)]
    pub fn look(&self, mark: u64) -> Arrival {
        let next = self.taken.wrapping_add(1);
        // Acquire: pairs with the Release in Outbox::send; sees the payload.
        let found = self.row.line(next).flag.load(Ordering::Acquire);
        if found == flag(next, mark) {
            Arrival::Here
        } else if found as u32 == next {
            Arrival::Other
        } else {
            Arrival::None
        }
    }

    /// The payload of the next message, which shares a line with its flag, if it is here and is marked so. It has all bytes of
    /// such a payload.
    #[inline(always)]
    pub fn look_line(&self, mark: u64) -> Option<Span<'_>> {
        let next = self.taken.wrapping_add(1);
        let line = self.row.line(next);
        // Acquire: as in `look`.
        if line.flag.load(Ordering::Acquire) != flag(next, mark) {
            return None;
        }
        // SAFETY: the line has that many bytes before its flag, which says that they are this party's to read.
        Some(unsafe { Span::from_raw(std::ptr::from_ref(line).cast(), self.row.line_bytes) })
    }

    /// The payload of the next message, which is here.
    #[inline]
    pub fn payload(&self) -> Span<'_> {
        self.row.payload(self.taken.wrapping_add(1)).read()
    }

    /// The word beside the next message, which is here.
    ///
    /// # Panics
    /// If the payload is in the flag's line.
    #[inline]
    pub fn word(&self) -> u64 {
        assert!(self.row.payload_at != 0, "a word in the payload's place");
        // Relaxed: ordered by the flag's Acquire.
        self.row.line(self.taken.wrapping_add(1)).payload[0].load(Ordering::Relaxed)
    }

    /// Takes a payload of at most [`Row::LINE_PAYLOAD_BYTES`] from there, without a call.
    ///
    /// # Panics
    /// If it is longer, or longer than the row's payloads.
    #[inline]
    pub fn get_line(&self, to: SpanMut<'_>) {
        let bytes = to.len();
        if bytes > Row::LINE_PAYLOAD_BYTES || bytes > self.row.payload_bytes {
            too_long(bytes);
        }
        // SAFETY: as in Outbox::put_line.
        unsafe { copy_line(self.payload().as_ptr(), to.as_mut_ptr(), bytes) }
    }

    /// Goes on to the message after it.
    #[inline]
    pub fn take(&mut self) {
        self.taken = self.taken.wrapping_add(1);
    }

    /// As [`Inbox::take`], and [touches](SpanMut::touch) the flag's line and the `bytes` bytes of the payload that were read.
    #[inline]
    pub fn take_touched(&mut self, bytes: usize) {
        self.row.slot(self.taken.wrapping_add(1)).slice(0, self.row.payload_at + bytes).touch();
        self.take();
    }

    /// How many were taken, modulo 2^32.
    pub fn taken(&self) -> u32 {
        self.taken
    }

    /// How many slots the row has.
    pub fn slots(&self) -> usize {
        self.row.slots()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn pair(slots: usize, payload_bytes: usize) -> (Outbox, Inbox) {
        let mapping = Arc::new(Mapping::anonymous(64 + Row::bytes(slots, payload_bytes)).expect("memory"));
        let row = Row::in_mapping(mapping, 64, slots, payload_bytes);
        (Outbox::new(row.clone()), Inbox::new(row))
    }

    #[test]
    fn messages_arrive_in_order_and_slots_are_used_again() {
        for payload_bytes in [1, 8, 56, 57, 64, 1000] {
            let (mut out, mut inbox) = pair(4, payload_bytes);
            for operation in 1..=40u64 {
                assert_eq!(inbox.look(operation << 32), Arrival::None);
                assert!(out.has_room(operation - 1));
                assert!(
                    operation <= 4 || !out.has_room(operation - 5),
                    "the slot's last message was not taken"
                );
                let bytes = vec![operation as u8; payload_bytes];
                out.payload().copy_from(Span::of(&bytes));
                let has_lines = payload_bytes > Row::LINE_PAYLOAD_BYTES;
                if has_lines {
                    out.put_word(operation * 3);
                }
                out.send(operation, operation << 32);
                assert_eq!(inbox.look((operation + 1) << 32), Arrival::Other);
                assert_eq!(
                    inbox.look(operation << 32 | 0xffff),
                    Arrival::Here,
                    "the low half is the number's"
                );
                assert!(!has_lines || inbox.word() == operation * 3);
                let mut got = vec![0u8; payload_bytes];
                SpanMut::of(&mut got).copy_from(inbox.payload());
                assert_eq!(got, bytes);
                // A touch of a slot changes nothing.
                let slot = inbox.row.slot(inbox.taken.wrapping_add(1));
                assert_eq!(slot.len(), inbox.row.payload_at + payload_bytes);
                slot.touch();
                assert_eq!(inbox.look(operation << 32), Arrival::Here);
                if operation % 2 == 0 { inbox.take() } else { inbox.take_touched(payload_bytes) }
            }
            assert_eq!((out.sent(), inbox.taken()), (40, 40));
        }
    }

    #[test]
    fn numbers_wrap() {
        let (mut out, mut inbox) = pair(2, 8);
        (out.sent, inbox.taken) = (u32::MAX - 3, u32::MAX - 3);
        for operation in 1..=8u64 {
            assert_eq!(inbox.look(0), Arrival::None);
            out.send(operation, 0);
            assert_eq!(inbox.look(0), Arrival::Here);
            inbox.take();
        }
    }

    #[test]
    fn rows_stay_inside_their_memory() {
        let mapping = Arc::new(Mapping::anonymous(4096).expect("memory"));
        for (offset, slots, payload_bytes) in
            [(8, 2, 8), (4096, 1, 8), (64, 16, 1000), (0, 3, 8), (0, 128, 8)]
        {
            let mapping = mapping.clone();
            let made = std::panic::catch_unwind(|| Row::in_mapping(mapping, offset, slots, payload_bytes));
            assert!(made.is_err(), "{slots} slots of {payload_bytes} at {offset}");
        }
    }
}
