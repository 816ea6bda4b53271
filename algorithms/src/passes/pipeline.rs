//! Software pipelining: a rank works on the next piece while one is in flight.
//!
//! Invariant: a round of the result moves `depth` pieces one after the other on the same channel, so a rank
//! first sends all of them and then receives them in the same order. Until piece `d` has arrived, pieces
//! `d+1…` are already on their way; [`fuse`](super::fuse()) then joins each arrival with its next hop.
//! Deliberately absent: new channels (that is [`replicate`](super::replicate())).

use super::replicate::with_chunks;
use crate::{Chunk, Round, Schedule};

/// Each chunk becomes `depth` chunks (0 is read as 1) that follow each other through every hop.
///
/// The sends of a round come before its receives, so in a cyclic schedule a plan needs `depth` slots, and one
/// more once fused; with fewer it deadlocks, which the verifier reports.
pub fn pipeline(schedule: &Schedule, depth: u32) -> Schedule {
    let depth = depth.max(1);
    let mut result = schedule.clone();
    result.partition.parts *= depth;
    if depth > 1 {
        result.name = format!("pipeline({}, {depth})", schedule.name);
    }
    for (round, from) in result.rounds.iter_mut().zip(&schedule.rounds) {
        let pieces = (0..depth).flat_map(|piece| {
            let renamed = move |_, chunk: Chunk| Chunk(chunk.0 * depth + piece);
            from.transfers.iter().map(move |transfer| with_chunks(transfer, renamed))
        });
        *round = Round { transfers: pieces.collect() };
    }
    result
}
