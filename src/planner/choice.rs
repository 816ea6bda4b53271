//! Which program runs a call, and how long its slots are.

use consort_algorithms::builders::{RingOptions, doubling, pair, ring};
use consort_algorithms::{Collective, Partition, Schedule};
use consort_kernels::{DataType, ReduceOp};

use super::{Algorithm, Program};
use crate::call::Call;
use crate::options::{SLOT_BYTES_MAX, SLOT_BYTES_MIN, SLOTS, Settings};

/// The channel of point-to-point operations, apart from all channels of collectives.
const PAIR_CHANNEL: u16 = 0x100;
/// The channel of recursive doubling.
const DOUBLING_CHANNEL: u16 = 0x200;
/// One slot holds the longest message of recursive doubling.
const DOUBLING_SLOT_BYTES: usize = DOUBLING_BYTES_MAX;

/// Outputs of at least this many bytes are written past the caches.
const STREAMING_BYTES_MIN: usize = 16 << 20;

/// All-reduces of at most this many bytes take the fewest rounds instead of the fewest bytes.
const DOUBLING_BYTES_MAX: usize = 16 << 10;

/// What was chosen for a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Choice {
    pub(crate) program: Program,
    pub(crate) slot_bytes: usize,
    /// Whether outputs are written past the caches.
    pub(crate) streaming: bool,
}

impl Program {
    /// The schedule, built anew.
    pub(crate) fn schedule(&self) -> Schedule {
        match self.algorithm {
            Algorithm::Pair => pair(),
            Algorithm::Ring { channels, bidirectional } => {
                ring(self.collective, self.ranks, RingOptions { channels, bidirectional })
            }
            Algorithm::Doubling => doubling(self.ranks),
        }
    }

    /// The algorithm's name for people.
    pub(crate) fn name(&self) -> &'static str {
        match self.algorithm {
            Algorithm::Pair => "pair",
            Algorithm::Ring { bidirectional: false, .. } => "ring",
            Algorithm::Ring { bidirectional: true, .. } => "bidirectional ring",
            Algorithm::Doubling => "recursive doubling",
        }
    }

    /// Pieces of a block, without building the schedule.
    fn parts(&self) -> u32 {
        match self.algorithm {
            Algorithm::Pair | Algorithm::Doubling => 1,
            Algorithm::Ring { channels, bidirectional } => {
                let blocks = if self.collective == Collective::AllReduce { self.ranks } else { 1 };
                blocks * channels as u32 * if bidirectional { 2 } else { 1 }
            }
        }
    }

    /// The first of the channels that its links use. Programs that are used side by side on short and long
    /// messages have links of their own, so that neither waits for the other's slots to empty.
    pub(crate) fn channel_base(&self) -> u16 {
        match self.algorithm {
            Algorithm::Ring { .. } => 0,
            Algorithm::Pair => PAIR_CHANNEL,
            Algorithm::Doubling => DOUBLING_CHANNEL,
        }
    }
}

/// The choice for a call on `ranks` ranks.
pub(crate) fn choose(call: &Call, ranks: u32, settings: &Settings) -> Choice {
    let collective = call.kind.collective();
    let block_bytes = call.count * call.data_type.size();
    let program = if collective == Collective::SendReceive {
        Program { collective, ranks: 2, algorithm: Algorithm::Pair }
    } else if collective == Collective::AllReduce
        && ranks.is_power_of_two()
        && ranks > 1
        && block_bytes <= DOUBLING_BYTES_MAX
        && !rounds_contributions(call)
    {
        Program { collective, ranks, algorithm: Algorithm::Doubling }
    } else {
        let Settings { channels, bidirectional, .. } = *settings;
        Program { collective, ranks, algorithm: Algorithm::Ring { channels, bidirectional } }
    };
    // Four slices at least, so that a rank works on one while the next travels; long ones amortise the
    // signals, short ones stay in the caches.
    let chunk_bytes =
        Partition { parts: program.parts() }.extents(call.count, call.data_type.size()).longest();
    let by_size = (chunk_bytes / 4).next_power_of_two().clamp(SLOT_BYTES_MIN, SLOT_BYTES_MAX);
    let slot_bytes = match program.algorithm {
        Algorithm::Doubling => DOUBLING_SLOT_BYTES,
        _ => settings.slot_bytes.unwrap_or(by_size),
    };
    let blocks = collective.output_blocks(ranks).max(collective.input_blocks(ranks)) as usize;
    Choice { program, slot_bytes, streaming: block_bytes * blocks >= STREAMING_BYTES_MIN }
}

/// Whether a scaled contribution that has travelled was rounded, and one folded where it was made was not. Two
/// ranks that exchange contributions would then hold different bits.
fn rounds_contributions(call: &Call) -> bool {
    use DataType::{Bfloat16, Float8E4m3, Float8E5m2, Float16};
    call.op == Some(ReduceOp::Avg) && matches!(call.data_type, Float16 | Bfloat16 | Float8E4m3 | Float8E5m2)
}

/// Bytes of each side's mailbox on a channel.
pub(crate) fn mailbox_bytes(channel: u16) -> usize {
    match channel {
        DOUBLING_CHANNEL => SLOTS as usize * DOUBLING_SLOT_BYTES,
        _ => SLOTS as usize * SLOT_BYTES_MAX,
    }
}
