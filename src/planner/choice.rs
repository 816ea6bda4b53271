//! Which program runs a call, and how long its slots are.

use consort_algorithms::builders::{RingOptions, pair, ring};
use consort_algorithms::{Collective, Partition, Schedule};

use super::Program;
use crate::call::Call;
use crate::options::{SLOT_BYTES_MAX, SLOT_BYTES_MIN, Settings};

/// Outputs of at least this many bytes are written past the caches.
const STREAMING_BYTES_MIN: usize = 16 << 20;

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
        match self.collective {
            Collective::SendReceive => pair(),
            collective => {
                let options = RingOptions { channels: self.channels, bidirectional: self.bidirectional };
                ring(collective, self.ranks, options)
            }
        }
    }

    /// Pieces of a block, without building the schedule.
    fn parts(&self) -> u32 {
        let per_channel = match self.collective {
            Collective::AllReduce => self.ranks,
            _ => 1,
        };
        let ways = if self.bidirectional { 2 } else { 1 };
        per_channel * self.channels as u32 * ways
    }
}

/// The choice for a call on `ranks` ranks.
pub(crate) fn choose(call: &Call, ranks: u32, settings: &Settings) -> Choice {
    let collective = call.kind.collective();
    let pair = collective == Collective::SendReceive;
    let program = Program {
        collective,
        ranks: if pair { 2 } else { ranks },
        channels: if pair { 1 } else { settings.channels },
        bidirectional: !pair && settings.bidirectional,
    };
    let element_bytes = call.data_type.size();
    let chunk_bytes = Partition { parts: program.parts() }.extents(call.count, element_bytes).longest();
    // Four slices at least, so that a rank works on one while the next travels; long ones amortise the
    // signals, short ones stay in the caches.
    let by_size = (chunk_bytes / 4).next_power_of_two().clamp(SLOT_BYTES_MIN, SLOT_BYTES_MAX);
    let bytes = call.count
        * element_bytes
        * collective.output_blocks(ranks).max(collective.input_blocks(ranks)) as usize;
    Choice {
        program,
        slot_bytes: settings.slot_bytes.unwrap_or(by_size),
        streaming: bytes >= STREAMING_BYTES_MIN,
    }
}
