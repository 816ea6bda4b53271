//! The schedule of blocks whose pieces take ways of their own.
//!
//! Invariant: hop `i` of every way is in round `i`; between its hops a piece lies in a scratch place that only it uses, and it stays
//! on one channel, so that pieces wait for each other only in the lanes of the ranks they pass. Absent: choice of ways.

use crate::builders::stream;
use crate::{Channel, Chunk, Collective, Partition, Place, Rank, Round, Schedule, Transfer};

/// A piece of the block of one rank for another, with the ranks on its way.
#[derive(Clone, Debug)]
pub(super) struct Routed {
    pub(super) from: u32,
    pub(super) to: u32,
    /// The number of the piece in its block.
    pub(super) piece: u32,
    /// The ranks between the first and the last.
    pub(super) over: Vec<u32>,
}

/// The schedule of all pieces; blocks have `pieces` of them.
pub(super) fn emit(name: String, ranks: u32, pieces: u32, all: &[Routed]) -> Schedule {
    let mut rounds: Vec<Round> = vec![Round::default()];
    for routed in all {
        let Routed { from, to, piece, over } = routed;
        let held = Place::Scratch(Chunk((from * ranks + to) * pieces + piece));
        let stops: Vec<u32> = [*from].into_iter().chain(over.iter().copied()).chain([*to]).collect();
        for (at, hop) in stops.windows(2).enumerate() {
            let source = if at == 0 { Place::Input(Chunk(to * pieces + piece)) } else { held };
            let target = if at == over.len() { Place::Output(Chunk(from * pieces + piece)) } else { held };
            if rounds.len() <= at {
                rounds.push(Round::default());
            }
            let channel = channel(routed);
            rounds[at].transfers.push(Transfer {
                from: Rank(hop[0]),
                to: Rank(hop[1]),
                channel: Channel(channel),
                source,
                target,
                fold: None,
                own_first: false,
            });
        }
    }
    for rank in 0..ranks {
        let own = |piece| {
            let chunk = Chunk(rank * pieces + piece);
            Transfer {
                from: Rank(rank),
                to: Rank(rank),
                channel: Channel(0),
                source: Place::Input(chunk),
                target: Place::Output(chunk),
                fold: None,
                own_first: false,
            }
        };
        rounds[0].transfers.extend((0..pieces).map(own));
    }
    Schedule { name, collective: Collective::AllToAll, ranks, switches: 0, partition: Partition { parts: pieces }, rounds }
}

fn channel(routed: &Routed) -> u16 {
    stream(routed.from, routed.to)
}
