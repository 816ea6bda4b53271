//! Which pieces of the callers' buffers are equally long when blocks differ.
//!
//! Invariant: in collectives whose blocks may differ in length (gather and scatter kinds), a piece is named by the
//! side that holds all blocks: chunk `c` of a buffer of one block is piece `rank * parts + c`. In all other
//! collectives every block is equally long and only the piece within the block matters. This is the only definition;
//! lowering, verifier and executor use it. Absent: bytes.

use crate::{Chunk, Collective, Partition, Place, Rank};

/// Whether blocks may differ in length.
pub const fn may_differ(collective: Collective) -> bool {
    holds_all(collective, true) != holds_all(collective, false)
}

/// Whether the output (or input) holds one block of every rank.
pub const fn holds_all(collective: Collective, output: bool) -> bool {
    match collective {
        Collective::AllGather | Collective::Gather => output,
        Collective::ReduceScatter | Collective::Scatter => !output,
        Collective::AllToAll | Collective::AllToAllReplicated { .. } => true,
        _ => false,
    }
}

/// The piece whose length a place of `rank` has; `None` for scratch.
pub(crate) fn of(collective: Collective, partition: Partition, rank: Rank, place: Place) -> Option<Chunk> {
    let (chunk, output) = match place {
        Place::Input(chunk) => (chunk, false),
        Place::Output(chunk) => (chunk, true),
        Place::Scratch(_) => return None,
    };
    if may_differ(collective) && !holds_all(collective, output) {
        return rank.0.checked_mul(partition.parts)?.checked_add(chunk.0).map(Chunk);
    }
    Some(chunk)
}

/// The number of named pieces.
pub(crate) fn count(collective: Collective, partition: Partition, ranks: u32) -> u32 {
    partition.input_chunks(collective, ranks).max(partition.output_chunks(collective, ranks))
}

/// The length class of a piece: equal for pieces that are equally long for any lengths of blocks.
pub(crate) fn class(collective: Collective, partition: Partition, piece: Chunk) -> u32 {
    if may_differ(collective) { piece.0 } else { piece.0 % partition.parts.max(1) }
}
