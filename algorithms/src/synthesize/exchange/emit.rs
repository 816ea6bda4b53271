//! Transfers of blocks whose pieces take ways of their own.
//!
//! Every piece is cut once more into a part for each channel. So each channel carries the whole exchange, with rounds
//! as even as those of one, and channels fill each other's waits.
//!
//! Invariant: the hops of a way are in rising rounds; between them a part lies in a scratch place that only it uses,
//! and it stays on its channel. Absent: choice of ways.

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

    /// The transfer of hop `at` on one channel.
    pub(super) fn hop(&self, at: usize, cut: Cut, channel: u16) -> Transfer {
        let Routed { from, to, .. } = *self;
        let part = self.piece * u32::from(cut.channels) + u32::from(channel);
        let held = Place::Scratch(Chunk((from * cut.ranks + to) * cut.parts() + part));
        let source = if at == 0 { Place::Input(Chunk(to * cut.parts() + part)) } else { held };
        let target =
            if at == self.over.len() { Place::Output(Chunk(from * cut.parts() + part)) } else { held };
        copy(self.ends(at), channel, source, target)
    }
}

/// How blocks are cut.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Cut {
    pub(super) ranks: u32,
    /// Pieces of a block that take ways of their own.
    pub(super) pieces: u32,
    /// Parts of a piece, each on its channel.
    pub(super) channels: u16,
}

impl Cut {
    /// Parts of a block.
    pub(super) fn parts(self) -> u32 {
        self.pieces * u32::from(self.channels)
    }

    /// The schedule without its rounds.
    pub(super) fn head(self, name: String) -> Schedule {
        let partition = Partition { parts: self.parts() };
        let (collective, ranks) = (Collective::AllToAll, self.ranks);
        Schedule { name, collective, ranks, switches: 0, partition, rounds: Vec::new() }
    }

    /// The copies of a rank's own block from its input to its output.
    pub(super) fn own_block(self, rank: u32) -> impl Iterator<Item = Transfer> {
        (0..self.parts()).map(move |part| {
            let chunk = Chunk(rank * self.parts() + part);
            let channel = (part % u32::from(self.channels)) as u16;
            copy((rank, rank), channel, Place::Input(chunk), Place::Output(chunk))
        })
    }
}

fn copy((from, to): (u32, u32), channel: u16, source: Place, target: Place) -> Transfer {
    let (from, to, channel) = (Rank(from), Rank(to), Channel(channel));
    Transfer { from, to, channel, source, target, fold: None, own_first: false }
}

/// The schedule of all pieces, in the order in which they are sent.
pub(super) fn emit(name: String, cut: Cut, all: &[Routed]) -> Schedule {
    let mut rounds: Vec<Round> = vec![Round::default()];
    for routed in all {
        for (at, round) in routed.rounds.iter().enumerate() {
            let round = *round as usize;
            if rounds.len() <= round {
                rounds.resize(round + 1, Round::default());
            }
            rounds[round].transfers.extend((0..cut.channels).map(|channel| routed.hop(at, cut, channel)));
        }
    }
    rounds[0].transfers.extend((0..cut.ranks).flat_map(|rank| cut.own_block(rank)));
    Schedule { rounds, ..cut.head(name) }
}
