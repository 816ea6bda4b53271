//! Transfers of blocks whose pieces take ways of their own.
//!
//! Invariant: the hops of a way are in rising rounds; between them a piece lies in a scratch place that only it uses, and it stays
//! on one channel, so that pieces wait for each other only in the lanes of the ranks they pass. Absent: choice of ways.

use crate::{Channel, Chunk, Collective, Partition, Place, Rank, Round, Schedule, Transfer};

/// A piece of the block of one rank for another, with the ranks on its way.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Routed {
    pub(super) from: u32,
    pub(super) to: u32,
    /// The number of the piece in its block.
    pub(super) piece: u32,
    /// The ranks between the first and the last.
    pub(super) over: Vec<u32>,
    /// The round of each hop, one more than there are ranks between.
    pub(super) rounds: Vec<u32>,
}

impl Routed {
    /// The ranks between which hop `at` leads.
    pub(super) fn ends(&self, at: usize) -> (u32, u32) {
        let from = if at == 0 { self.from } else { self.over[at - 1] };
        (from, self.over.get(at).copied().unwrap_or(self.to))
    }

    /// The transfer of hop `at` where blocks have `pieces` pieces.
    pub(super) fn hop(&self, at: usize, ranks: u32, pieces: u32, channel: u16) -> Transfer {
        let Routed { from, to, piece, .. } = *self;
        let held = Place::Scratch(Chunk((from * ranks + to) * pieces + piece));
        let source = if at == 0 { Place::Input(Chunk(to * pieces + piece)) } else { held };
        let target = if at == self.over.len() { Place::Output(Chunk(from * pieces + piece)) } else { held };
        copy(self.ends(at), channel, source, target)
    }
}

/// The copies of a rank's own block from its input to its output.
pub(super) fn own_block(rank: u32, pieces: u32) -> impl Iterator<Item = Transfer> {
    (0..pieces).map(move |piece| {
        let chunk = Chunk(rank * pieces + piece);
        copy((rank, rank), 0, Place::Input(chunk), Place::Output(chunk))
    })
}

fn copy((from, to): (u32, u32), channel: u16, source: Place, target: Place) -> Transfer {
    let (from, to, channel) = (Rank(from), Rank(to), Channel(channel));
    Transfer { from, to, channel, source, target, fold: None, own_first: false }
}

/// The schedule of all pieces, in the order in which they are sent; blocks have `pieces` of them.
pub(super) fn emit(name: String, ranks: u32, pieces: u32, all: &[Routed], channels: u16) -> Schedule {
    let mut rounds: Vec<Round> = vec![Round::default()];
    for routed in all {
        // Ranks use channels in turn for their successors, as ways that are turned do.
        let successor = (routed.to + ranks - routed.from) % ranks;
        let channel = ((successor * pieces + routed.piece) % u32::from(channels)) as u16;
        for (at, round) in routed.rounds.iter().enumerate() {
            let round = *round as usize;
            if rounds.len() <= round {
                rounds.resize(round + 1, Round::default());
            }
            rounds[round].transfers.push(routed.hop(at, ranks, pieces, channel));
        }
    }
    rounds[0].transfers.extend((0..ranks).flat_map(|rank| own_block(rank, pieces)));
    let partition = Partition { parts: pieces };
    Schedule { name, collective: Collective::AllToAll, ranks, switches: 0, partition, rounds }
}
