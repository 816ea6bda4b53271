//! Schedules made of schedules: an inner one over some of the ranks becomes rounds of an outer one.
//!
//! Invariant: an inner transfer becomes one outer transfer for each outer piece that its piece stands for, in the
//! same round, between the ranks that the inner ones stand for. Only transfers that would copy a place onto itself
//! are left out. Phases are rounds after rounds (`concat`); groups without common ranks run in the same rounds
//! ([`beside`]). Deliberately absent: what the phases compute, which the caller decides.
use crate::{Channel, Chunk, Place, Rank, Round, Schedule, Transfer};

/// What the ranks, pieces and channels of an inner schedule are in the outer one.
///
/// The places of a piece are a list, because the outer partition may be finer. All places that meet in one
/// inner transfer have lists of the same length and the same order of pieces.
#[derive(Clone, Copy)]
pub struct Embedding<'a> {
    /// The outer rank of each inner one; the first is the inner root.
    pub ranks: &'a [Rank],
    /// The place of a chunk of an inner rank's input. When phases follow each other, this is the place of the result
    /// of the phase before.
    pub input: &'a dyn Fn(Rank, Chunk) -> Vec<Place>,
    /// Where a chunk of an inner rank's output goes.
    pub output: &'a dyn Fn(Rank, Chunk) -> Vec<Place>,
    /// The outer numbers of an inner scratch place, each congruent to the piece it holds.
    pub scratch: &'a dyn Fn(Chunk) -> Vec<Chunk>,
    /// Added to every channel.
    pub channel: u16,
}

/// The rounds of `inner` as rounds of the outer schedule.
///
/// # Panics
///
/// When the embedding names fewer ranks than `inner` has, `inner` has switches, the lists of the places of a
/// transfer differ in length, or there would be more than 65,535 channels.
pub fn embed(inner: &Schedule, embedding: &Embedding<'_>) -> Vec<Round> {
    assert_eq!(inner.switches, 0, "switches are no ranks of the outer schedule");
    assert!(embedding.ranks.len() >= inner.ranks as usize, "every inner rank is an outer one");
    let round = |round: &Round| Round {
        transfers: round.transfers.iter().flat_map(|transfer| embed_one(transfer, embedding)).collect(),
    };
    inner.rounds.iter().map(round).collect()
}

pub(super) fn embed_one(transfer: &Transfer, embedding: &Embedding<'_>) -> Vec<Transfer> {
    let places = |rank: Rank, place: Place| match place {
        Place::Input(chunk) => (embedding.input)(rank, chunk),
        Place::Output(chunk) => (embedding.output)(rank, chunk),
        Place::Scratch(number) => (embedding.scratch)(number).into_iter().map(Place::Scratch).collect(),
    };
    let sources = places(transfer.from, transfer.source);
    let targets = places(transfer.to, transfer.target);
    let folds = transfer.fold.map(|fold| places(transfer.to, fold));
    let equal = sources.len() == targets.len() && folds.as_ref().is_none_or(|of| of.len() == targets.len());
    assert!(equal, "the places of a transfer stand for equally many pieces: {transfer:?}");
    let channel = transfer.channel.0.checked_add(embedding.channel).expect("at most 65,535 channels");
    let piece = |(index, (source, target)): (usize, (Place, Place))| Transfer {
        from: embedding.ranks[transfer.from.index()],
        to: embedding.ranks[transfer.to.index()],
        channel: Channel(channel),
        source,
        target,
        fold: folds.as_ref().map(|folds| folds[index]),
        own_first: transfer.own_first,
    };
    let moves = |of: &Transfer| of.from != of.to || of.source != of.target || of.fold.is_some();
    sources.into_iter().zip(targets).enumerate().map(piece).filter(moves).collect()
}

/// Rounds of several groups without common ranks: all first rounds together, and so on.
pub fn beside(groups: impl IntoIterator<Item = Vec<Round>>) -> Vec<Round> {
    let mut result: Vec<Round> = Vec::new();
    for group in groups {
        if result.len() < group.len() {
            result.resize(group.len(), Round::default());
        }
        for (into, round) in result.iter_mut().zip(group) {
            into.transfers.extend(round.transfers);
        }
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Collective;
    use crate::builders::{RingOptions, ring};

    #[test]
    fn pieces_split_and_copies_onto_themselves_vanish() {
        let inner = ring(Collective::AllGather, 2, RingOptions::default());
        let twice =
            |chunk: Chunk| vec![Place::Output(Chunk(2 * chunk.0)), Place::Output(Chunk(2 * chunk.0 + 1))];
        let embedding = Embedding {
            ranks: &[Rank(7), Rank(3)],
            input: &|rank, _| twice(Chunk(rank.0)),
            output: &|_, chunk| twice(chunk),
            scratch: &|number| vec![number; 2],
            channel: 5,
        };
        let rounds = embed(&inner, &embedding);
        let mut sent: Vec<(u32, u32, Place)> =
            rounds[0].transfers.iter().map(|t| (t.from.0, t.to.0, t.target)).collect();
        sent.sort_by_key(|&(from, ..)| from);
        let piece = |chunk| Place::Output(Chunk(chunk));
        assert_eq!(sent, [(3, 7, piece(2)), (3, 7, piece(3)), (7, 3, piece(0)), (7, 3, piece(1))]);
        assert!(rounds[0].transfers.iter().all(|t| t.source == t.target && t.channel == Channel(5)));
        let both = beside([rounds.clone(), [rounds.clone(), rounds].concat()]);
        assert_eq!(both.iter().map(|round| round.transfers.len()).collect::<Vec<_>>(), [8, 4]);
    }
}
