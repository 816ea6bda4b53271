//! Where input and output are the same memory when a caller works in place, as NCCL defines it.
//!
//! Invariant: this is the only definition; the fusion pass and the verifier both use it.

use crate::{Chunk, Collective, Partition, Rank};

/// The chunk of `rank`'s output that is the same memory as `chunk` of its input in the in-place form, if any.
///
/// All-reduce, reduce (root) and broadcast (root): the buffers are the same. All-gather and gather
/// (root): the input is the own block of the output. Reduce-scatter and scatter (root): the output is the own
/// block of the input.
pub(crate) fn output_of_input(
    collective: Collective,
    partition: Partition,
    rank: Rank,
    chunk: Chunk,
) -> Option<Chunk> {
    if !(collective.has_input(rank) && collective.has_output(rank)) {
        return None;
    }
    let block = rank.0.checked_mul(partition.parts)?;
    match collective {
        Collective::AllReduce | Collective::Reduce | Collective::Broadcast => Some(chunk),
        Collective::AllGather | Collective::Gather => block.checked_add(chunk.0).map(Chunk),
        Collective::ReduceScatter | Collective::Scatter => {
            chunk.0.checked_sub(block).filter(|&piece| piece < partition.parts).map(Chunk)
        }
        Collective::SendReceive | Collective::AllToAll | Collective::AllToAllReplicated { .. } => None,
    }
}

/// The chunk of `rank`'s input that is the same memory as `chunk` of its output in the in-place form, if any.
pub(crate) fn input_of_output(
    collective: Collective,
    partition: Partition,
    ranks: u32,
    rank: Rank,
    chunk: Chunk,
) -> Option<Chunk> {
    let block = rank.0.checked_mul(partition.parts)?;
    let input = match collective {
        Collective::AllGather | Collective::Gather => chunk.0.checked_sub(block)?,
        Collective::ReduceScatter | Collective::Scatter => chunk.0.checked_add(block)?,
        _ => chunk.0,
    };
    let is_input = input < partition.input_chunks(collective, ranks);
    let input = Chunk(input);
    (is_input && output_of_input(collective, partition, rank, input) == Some(chunk)).then_some(input)
}
