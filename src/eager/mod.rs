//! What the eager paths, which send before the receiver has asked, are by agreement: how long a message may be, how slots
//! are laid out, and which block of a collective goes from which rank to which ([`direct`]).
//!
//! Invariant: pure; the planner chooses by it and the engine runs it, so it knows neither. Absent: memory and waiting
//! (`engine::packets`).

mod direct;
pub(crate) mod point_to_point;

use consort_memory::Row;

pub(crate) use direct::{Moves, Use};

/// How many rows of slots two ranks have in each direction, the shortest payloads first.
pub(crate) const ROWS: usize = 3;
/// The longest payloads, in bytes, of all rows but the last: a line, and a few of them.
const PAYLOADS: [usize; ROWS - 1] = [Row::LINE_PAYLOAD_BYTES, 1 << 10];
/// The row of the longest payloads.
pub(crate) const LONG: usize = ROWS - 1;

/// The payloads of all rows; that of the last row has `longest` bytes.
pub(crate) const fn payloads(longest: usize) -> [usize; ROWS] {
    [PAYLOADS[0], PAYLOADS[1], longest]
}

/// The row of a message of `bytes` bytes.
#[inline]
pub(crate) fn row_of(bytes: usize) -> usize {
    usize::from(bytes > PAYLOADS[0]) + usize::from(bytes > PAYLOADS[1])
}

/// The channels of mailboxes for messages, above those of plans: of collectives, and between two ranks.
pub(crate) const COLLECTIVES_CHANNEL: u16 = 0xffff;
pub(crate) const MESSAGES_CHANNEL: u16 = 0xfffe;

/// The longest message of a collective, in bytes.
pub(crate) const MESSAGE_BYTES_MAX: usize = 64 << 10;
/// Messages of more bytes are sent only once it is known that the callers' buffers are not mapped by all ranks.
pub(crate) const UNASKED_BYTES_MAX: usize = 16 << 10;
/// The most ranks that send to each other all at once.
pub(crate) const RANKS_MAX: u32 = 16;
