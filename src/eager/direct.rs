//! The direct exchange of a collective, read off a builder's schedule: which block each rank sends to which other, and
//! what becomes of the blocks that arrive.
//!
//! [`Moves`] is what symbolic execution of the schedule gives for one rank, so the exchange that an engine runs without a
//! plan is the one that the verifier has proved. A schedule in which a message carries anything but one block of its
//! sender's input, or in which a fold is no left fold, is no direct exchange.
//!
//! Invariant: pure; the same schedule gives the same moves on every rank. Absent: memory, waiting, proofs.

use std::collections::HashMap;

use consort_algorithms::{Chunk, Partition, Place, Schedule};

use consort_types::call::Kind;

/// What a rank does with the blocks that arrive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Use {
    /// Nothing: the rank only waits for them.
    Meet,
    /// Folds them, with its own, in the order in which they are listed.
    Fold,
    /// Keeps each at its place.
    Keep,
}

/// A contribution to a rank's output. Ranks and blocks are counted from the root.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Taken {
    pub(crate) from: u32,
    /// Which block of the input of `from`.
    pub(crate) input: u32,
    /// Which block of the output it becomes, or is folded into.
    pub(crate) output: u32,
}

/// The exchange of one rank. Ranks and blocks are counted from the root.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Moves {
    /// Whether what is taken is folded, or each contribution kept.
    pub(crate) folds: bool,
    /// Which rank gets which block of this rank's input, the nearest successor first.
    pub(crate) sends: Vec<(u32, u32)>,
    /// What makes this rank's output, its own contribution included: in the order of the fold, or of the output's blocks.
    pub(crate) takes: Vec<Taken>,
}

/// A block of a rank's input.
type Leaf = (u32, u32);

impl Moves {
    /// Whether calls of a kind have a direct exchange: the collectives whose blocks are of one length and that are the
    /// program's and have no groups, and the barrier.
    pub(crate) fn are_defined(kind: Kind) -> bool {
        let has_groups = kind == Kind::AllToAllReplicated;
        !kind.is_message() && !kind.varies() && !has_groups && (!kind.is_own() || kind == Kind::Barrier)
    }

    /// The moves of every rank of a schedule; none where it is no direct exchange.
    pub(crate) fn of(schedule: &Schedule) -> Option<Vec<Moves>> {
        let Schedule { collective, ranks, switches: 0, partition: Partition { parts: 1 }, rounds, .. } =
            schedule
        else {
            return None;
        };
        let ranks = *ranks;
        // What is at each place of each rank: the blocks that were folded into it, from left to right.
        let mut values: HashMap<(u32, Place), Vec<Leaf>> = HashMap::new();
        for rank in 0..ranks {
            let blocks = 0..collective.input_blocks(ranks);
            values.extend(blocks.map(|block| ((rank, Place::Input(Chunk(block))), vec![(rank, block)])));
        }
        let mut sends = vec![Vec::new(); ranks as usize];
        for round in rounds {
            let mut written = Vec::with_capacity(round.transfers.len());
            for transfer in &round.transfers {
                let (from, to) = (transfer.from.0, transfer.to.0);
                let arriving = values.get(&(from, transfer.source))?;
                if from != to {
                    let [(owner, block)] = arriving[..] else { return None };
                    if owner != from {
                        return None;
                    }
                    sends[from as usize].push((to, block));
                }
                let made = match transfer.fold {
                    None => arriving.clone(),
                    Some(place) => {
                        let own = values.get(&(to, place))?;
                        let (left, right) =
                            if transfer.own_first { (own, arriving) } else { (arriving, own) };
                        let [right] = right[..] else { return None };
                        left.iter().copied().chain([right]).collect()
                    }
                };
                written.push(((to, transfer.target), made));
            }
            values.extend(written);
        }
        let folds = collective.reduces();
        let take = |rank: u32| {
            let blocks = 0..collective.output_blocks(ranks);
            let made =
                blocks.filter_map(|block| Some((block, values.get(&(rank, Place::Output(Chunk(block))))?)));
            made.flat_map(|(output, leaves)| {
                leaves.iter().map(move |(from, input)| Taken { from: *from, input: *input, output })
            })
            .collect::<Vec<Taken>>()
        };
        let mut all = Vec::with_capacity(ranks as usize);
        for (rank, mut sends) in (0..ranks).zip(sends) {
            sends.sort_unstable_by_key(|(to, _)| (to + ranks - rank) % ranks);
            all.push(Moves { folds, sends, takes: take(rank) });
        }
        Self::agree(&all, ranks).then_some(all)
    }

    /// Bytes of the lists.
    pub(crate) fn memory_bytes(&self) -> usize {
        size_of::<Self>() + size_of_val(&*self.sends) + size_of_val(&*self.takes)
    }

    /// Whether each contribution is taken where it is sent to, once, and every fold is of all ranks.
    fn agree(all: &[Moves], ranks: u32) -> bool {
        let taken = |from: u32, to: u32| {
            let mut of = all[to as usize].takes.iter().filter(move |taken| taken.from == from);
            (of.next().map(|taken| taken.input), of.next().is_none())
        };
        let sent = |from: u32, to: u32| {
            let mut of = all[from as usize].sends.iter().filter(move |(other, _)| *other == to);
            (of.next().map(|(_, block)| *block), of.next().is_none())
        };
        let pairs = (0..ranks).flat_map(|from| (0..ranks).map(move |to| (from, to)));
        let (mut ordered, mut others) = (all.iter(), pairs.filter(|(from, to)| from != to));
        others.all(|(from, to)| taken(from, to) == sent(from, to) && sent(from, to).1)
            && ordered
                .all(|moves| !moves.folds || moves.takes.is_empty() || moves.takes.len() == ranks as usize)
    }
}
