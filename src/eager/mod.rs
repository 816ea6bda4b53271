//! What the eager paths, which send before the receiver has asked, are by agreement: how long a message may be, how slots
//! are laid out, and which block of a collective goes from which rank to which ([`direct`]).
//!
//! Invariant: pure; the planner chooses by it and the engine runs it, so it knows neither. Absent: memory and waiting
//! (`engine::packets`).

mod direct;

use consort_algorithms::Collective;
use consort_memory::Row;

pub(crate) use direct::{Moves, Use};

/// How many rows of slots two ranks have in each direction, the shortest payloads first.
pub(crate) const ROWS: usize = 2;
/// The longest payload of each row, in bytes: a line, and a few of them.
pub(crate) const PAYLOADS: [usize; ROWS] = [Row::LINE_PAYLOAD_BYTES, 1 << 10];
/// The slots of each row. Short messages go round in few lines, which stay in the first cache.
pub(crate) const SLOTS: [usize; ROWS] = [16, 8];
/// What stands for the row of longer messages, which go in pieces.
pub(crate) const LONG: usize = ROWS;

/// The row of a message of `bytes` bytes.
#[inline]
pub(crate) fn row_of(bytes: usize) -> usize {
    usize::from(bytes > PAYLOADS[0]) + usize::from(bytes > PAYLOADS[1])
}

/// Bytes of all rows.
pub(crate) const ROWS_BYTES: usize = Row::bytes(SLOTS[0], PAYLOADS[0]) + Row::bytes(SLOTS[1], PAYLOADS[1]);

/// The longest piece of a message of `bytes` bytes that goes one way while nothing comes back, in bytes: the reader begins
/// early, and looks seldom. A quarter, or an eighth where that is more than 32 KiB: four pieces of 64 KiB do not stay beside the
/// callers' buffers in a second cache (`docs/measurements/crossing.md`).
pub(crate) fn piece_one_way(bytes: usize) -> usize {
    let eighth = (bytes / 8).next_power_of_two().min(PIECE_BYTES_MAX);
    (bytes / 4).next_power_of_two().clamp(4 << 10, PIECE_BYTES_MAX / 2).max(eighth)
}

/// The same of `bytes` bytes where as much comes back at the same time: two pieces above 8 KiB, and as many more as let a piece stay
/// in the first two caches.
pub(crate) fn piece_both_ways(bytes: usize) -> usize {
    let most = if bytes < 256 << 10 { PIECE_BYTES_MAX / 2 } else { PIECE_BYTES_MAX };
    (bytes / 2).next_power_of_two().clamp(8 << 10, most)
}

/// The longest piece, in bytes.
const PIECE_BYTES_MAX: usize = 64 << 10;

/// The slots of pieces in each rank's memory for each other rank, and the bytes of each, among `ranks` ranks: the four pieces of a
/// message of two ranks may stay with their reader, and more ranks have short messages alone. A slot is longer than the longest piece, so
/// that the beginnings of slots lie in different sets of a cache.
pub(crate) fn pool_slots(ranks: u32) -> (usize, usize) {
    let (count, longest) =
        if ranks == 2 { (16, PIECE_BYTES_MAX) } else { (8, piece_both_ways(MESSAGE_BYTES_MAX)) };
    (count, longest + longest / 4 - 64)
}

/// The channels of mailboxes for messages, above those of plans: of collectives, and between two ranks.
pub(crate) const COLLECTIVES_CHANNEL: u16 = 0xffff;
pub(crate) const MESSAGES_CHANNEL: u16 = 0xfffe;

/// The longest message of a collective in which ranks send to several others, or fold all that comes, in bytes.
pub(crate) const MESSAGE_BYTES_MAX: usize = 64 << 10;
/// The longest message of a collective of two ranks, in bytes. Longer calls go by plans, which may store past the caches.
const PAIR_BYTES_MAX: usize = 4 << 20;

/// The longest message of a collective among `ranks` ranks, in bytes: longer ones go by plans. Two ranks reduce long ones in two
/// hops.
pub(crate) fn longest(collective: Collective, is_two_shot: bool, ranks: u32) -> usize {
    match (ranks, is_two_shot) {
        (2, true) => PAIR_BYTES_MAX,
        (_, true) => 0,
        (2, false) if collective != Collective::AllReduce => PAIR_BYTES_MAX,
        _ => MESSAGE_BYTES_MAX,
    }
}
/// Messages of more bytes are sent only once it is known that the callers' buffers are not mapped by all ranks.
pub(crate) const UNASKED_BYTES_MAX: usize = 16 << 10;
/// The most ranks that send to each other all at once.
pub(crate) const RANKS_MAX: u32 = 16;
