//! The transfers that builders are made of.
//!
//! Invariant: one constructor for each kind of transfer, so that a builder names what moves and not the fields of a
//! [`Transfer`]. Absent: any algorithm.

use crate::{Channel, Chunk, Collective, Partition, Place, Rank, Round, Schedule, Transfer};

/// A copy of the value at `source` to `target`.
pub(super) fn copy(from: u32, to: u32, channel: u16, source: Place, target: Place) -> Transfer {
    Transfer {
        from: Rank(from),
        to: Rank(to),
        channel: Channel(channel),
        source,
        target,
        fold: None,
        own_first: false,
    }
}

/// A copy of a rank's own part from its input to its output, in schedules of one piece per block.
pub(super) fn own_part(collective: Collective, rank: u32, channel: u16) -> Transfer {
    let all_in = collective == Collective::AllToAll;
    let all_out = all_in || collective == Collective::AllGather;
    let source = Place::Input(Chunk(if all_in { rank } else { 0 }));
    let target = Place::Output(Chunk(if all_out { rank } else { 0 }));
    copy(rank, rank, channel, source, target)
}

/// The schedule of a rank that is alone: its input is its output.
pub(super) fn alone(name: impl Into<String>, collective: Collective) -> Schedule {
    let round = Round { transfers: vec![own_part(collective, 0, 0)] };
    schedule(name, collective, 1, 1, vec![round])
}

/// A schedule without switches. Rounds without transfers are left out.
pub(super) fn schedule(
    name: impl Into<String>,
    collective: Collective,
    ranks: u32,
    parts: u32,
    mut rounds: Vec<Round>,
) -> Schedule {
    rounds.retain(|round| !round.transfers.is_empty());
    let (name, partition) = (name.into(), Partition { parts });
    Schedule { name, collective, ranks, switches: 0, partition, rounds }
}

/// The least `k` with `2^k >= ranks`: the number of bits of a rank's number.
pub(super) const fn bits(ranks: u32) -> u32 {
    ranks.next_power_of_two().ilog2()
}
