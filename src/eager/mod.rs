//! What the eager paths, which send before the receiver has asked, are by agreement: how long a message may be, how slots
//! are laid out, and which block of a collective goes from which rank to which.
//!
//! Invariant: pure; the planner chooses by it and the engine runs it, so it knows neither. Absent: memory and waiting
//! (`engine::packets`).

mod moves;
pub(crate) mod point_to_point;

pub(crate) use moves::{Moves, Use};

/// The longest message of a collective, in bytes.
pub(crate) const MESSAGE_BYTES_MAX: usize = 64 << 10;
/// Messages of more bytes are sent only once it is known that the callers' buffers are not mapped by all ranks.
pub(crate) const UNASKED_BYTES_MAX: usize = 16 << 10;
/// The most ranks that send to each other all at once.
pub(crate) const RANKS_MAX: u32 = 16;
