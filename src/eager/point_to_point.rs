//! The slots of messages between two ranks that share memory.
//!
//! Invariant: both ranks lay them out alike. Absent: their use (`engine::packets::letters`).

use consort_memory::Row;

/// The channel of such messages.
pub(crate) const CHANNEL: u16 = 0xfffe;

/// Slots and the longest payload, in bytes, of each row. A long slot that was not used for a while has left the reader's
/// first caches, and is written several times faster.
pub(crate) const ROWS: [(usize, usize); 3] = [(16, Row::LINE_PAYLOAD_BYTES), (8, 1 << 10), (64, 16 << 10)];

/// Bytes of each side's slots, and of its bell.
pub(crate) const MAILBOX_BYTES: usize = SLOTS_BYTES + Row::bytes(1, Row::LINE_PAYLOAD_BYTES);

/// Bytes of the slots of all rows.
pub(crate) const SLOTS_BYTES: usize = {
    let (mut row, mut bytes) = (0, 0);
    while row < ROWS.len() {
        bytes += Row::bytes(ROWS[row].0, ROWS[row].1);
        row += 1;
    }
    bytes
};
