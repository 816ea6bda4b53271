//! The symbolic form of a collective: who moves or folds which chunk to whom, in what order, for all ranks.
//!
//! Invariant: a schedule is data. It knows no sizes, no addresses, no slots and no clock. Rounds give the
//! order: all transfers of a round read what was there before the round. What a rank does in one round on one
//! channel, it does in the order of the list, sends before receives.

use crate::{Channel, Chunk, Collective, Partition, Rank};

/// Where a chunk lives on a rank.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Place {
    /// In the caller's input; never written.
    Input(Chunk),
    /// In the caller's output.
    Output(Chunk),
    /// In memory of the library, as long as a chunk; the numbers are the builder's.
    Scratch(Chunk),
}

/// One chunk on its way from one rank to another (or to the same: a local copy).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Transfer {
    /// Who has the bytes.
    pub from: Rank,
    /// Who gets them.
    pub to: Rank,
    /// The stream they travel on.
    pub channel: Channel,
    /// Where they are on `from`.
    pub source: Place,
    /// Where they end on `to`.
    pub target: Place,
    /// When set, what `to` folds with the arriving value: `target = arriving (+) fold`, in that order.
    pub fold: Option<Place>,
    /// The other order: `target = fold (+) arriving`.
    pub own_first: bool,
}

/// Transfers that happen at the same time.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Round {
    /// In list order; each reads the state before the round.
    pub transfers: Vec<Transfer>,
}

/// A whole collective over all ranks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Schedule {
    /// The builder's name and parameters, for people: `ring(channels=2)`.
    pub name: String,
    /// What is computed.
    pub collective: Collective,
    /// How many ranks take part.
    pub ranks: u32,
    /// Aggregating switches between the ranks. In transfers they are numbered on from the last rank; they have
    /// scratch places only, fold at the speed of their links, and send one place to many in one round as one
    /// multicast.
    pub switches: u32,
    /// How the buffers are cut.
    pub partition: Partition,
    /// The order of things.
    pub rounds: Vec<Round>,
}

impl Schedule {
    /// Transfers between different ranks, over all rounds.
    pub fn messages(&self) -> usize {
        self.rounds.iter().flat_map(|round| &round.transfers).filter(|t| t.from != t.to).count()
    }

    /// One more than the highest channel in use (1 when nothing travels).
    pub fn channels(&self) -> u16 {
        self.rounds.iter().flat_map(|round| &round.transfers).map(|t| t.channel.0 + 1).max().unwrap_or(1)
    }
}
