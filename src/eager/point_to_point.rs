//! The slots of messages between two ranks that share memory.
//!
//! Invariant: both ranks lay them out alike. Absent: their use (`engine::packets::letters`).

use consort_memory::Row;

use super::{ROWS, payloads};

/// The longest payload of each row, in bytes, and its slots. Fewer long slots are
/// faster up to 64 KiB, where the reader's touch counts, and slower for a megabyte (`docs/measurements/house.md`).
pub(crate) const PAYLOADS: [usize; ROWS] = payloads(16 << 10);
pub(crate) const SLOTS: [usize; ROWS] = [16, 8, 64];

/// Bytes of each side's slots, of all rows.
pub(crate) const MAILBOX_BYTES: usize = {
    let (mut row, mut bytes) = (0, 0);
    while row < ROWS {
        bytes += Row::bytes(SLOTS[row], PAYLOADS[row]);
        row += 1;
    }
    bytes
};
