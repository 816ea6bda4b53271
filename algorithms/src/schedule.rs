//! The symbolic form of a collective, for all ranks: which rank moves or folds which chunk to which other, and in
//! what order.
//!
//! Invariant: a schedule is data. It has no sizes, addresses, slots or clocks. Rounds give the order: all transfers
//! of a round read the state before the round. The transfers of a rank in one round on one channel happen in the
//! order of the list, sends before receives.

use crate::{Channel, Chunk, Collective, Partition, Rank};

/// The place of a chunk on a rank.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Place {
    /// In the caller's input; never written.
    Input(Chunk),
    /// In the caller's output.
    Output(Chunk),
    /// In memory of the library, as long as a chunk; the builder numbers these places.
    Scratch(Chunk),
}

/// One chunk on its way from one rank to another (or to the same: a local copy).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Transfer {
    /// The rank that has the bytes.
    pub from: Rank,
    /// The rank that gets them.
    pub to: Rank,
    /// The channel they travel on.
    pub channel: Channel,
    /// Their place on `from`.
    pub source: Place,
    /// Their place on `to`.
    pub target: Place,
    /// The place that `to` folds with the arriving value, if any: `target = arriving (+) fold`, in that order.
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
    /// The builder's name and parameters, for users: `ring(channels=2)`.
    pub name: String,
    /// The kind of collective.
    pub collective: Collective,
    /// Number of ranks.
    pub ranks: u32,
    /// Aggregating switches between the ranks. Transfers number them after the last rank. They have scratch places
    /// only, fold at the speed of their links, and send one place to many in one round as one multicast.
    pub switches: u32,
    /// The cut of the buffers.
    pub partition: Partition,
    /// The rounds in their order.
    pub rounds: Vec<Round>,
}

impl Schedule {
    /// Transfers between different ranks, over all rounds.
    pub fn messages(&self) -> usize {
        self.rounds.iter().flat_map(|round| &round.transfers).filter(|t| t.from != t.to).count()
    }

    /// One more than the highest channel in use (1 when there are no transfers).
    pub fn channels(&self) -> u16 {
        self.rounds.iter().flat_map(|round| &round.transfers).map(|t| t.channel.0 + 1).max().unwrap_or(1)
    }
}
