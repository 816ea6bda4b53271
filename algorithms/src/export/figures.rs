//! The figures of a schedule: its nodes, its cost, and the names of its chunks in drawings.
//!
//! Invariant: counted from the transfers, never from a formula, and exact for equal chunks. Deliberately absent:
//! time; a price needs a machine.

use std::collections::HashMap;
use std::fmt;

use crate::{Chunk, Place, Rank, Schedule, Transfer};

/// Ranks and, numbered from there on, the aggregating switches that transfers name.
pub(super) fn nodes(schedule: &Schedule) -> u32 {
    let transfers = schedule.rounds.iter().flat_map(|round| &round.transfers);
    let named = transfers.map(|transfer| transfer.from.0.max(transfer.to.0).saturating_add(1));
    named.max().unwrap_or(0).max(schedule.ranks + schedule.switches)
}

/// `r3` for a rank, `sw0` for the first switch.
pub(super) fn node_name(schedule: &Schedule, node: Rank) -> String {
    match node.0.checked_sub(schedule.ranks) {
        None => node.to_string(),
        Some(switch) => format!("sw{switch}"),
    }
}

/// `all_reduce over 8 ranks` and, if there are any, `and 2 switches`.
pub(super) fn what_over_whom(schedule: &Schedule) -> String {
    let mut text = format!("{} over {}", schedule.collective, counted(schedule.ranks as usize, "rank"));
    let switches = nodes(schedule) - schedule.ranks;
    if switches > 0 {
        let plural = if switches == 1 { "" } else { "es" };
        text += &format!(" and {switches} switch{plural}");
    }
    text
}

/// `1 round`, `2 rounds`.
pub(super) fn counted(count: usize, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

/// The piece of the data that each transfer of each round carries: `c3`, or `s3` where no transfer filled the scratch
/// place 3.
///
/// A piece is named by its number in the largest buffer: in the output where blocks are gathered, in the input where
/// they are scattered (also in an all-to-all). Scratch places are followed.
pub(super) fn labels(schedule: &Schedule) -> Vec<Vec<String>> {
    let parts = schedule.partition.parts.max(1);
    let block =
        |rank: Rank, chunk: Chunk| Chunk(rank.0.saturating_mul(parts).saturating_add(chunk.0 % parts));
    let scatters = schedule.collective.input_blocks(schedule.ranks) > 1;
    let gathers = !scatters && schedule.collective.output_blocks(schedule.ranks) > 1;
    let mut held: HashMap<(Rank, Chunk), Chunk> = HashMap::new();
    let mut labels = Vec::with_capacity(schedule.rounds.len());
    for round in &schedule.rounds {
        let piece = |place: Place, rank: Rank| match place {
            Place::Input(chunk) if gathers => Some(block(rank, chunk)),
            Place::Output(chunk) if scatters => Some(block(rank, chunk)),
            Place::Input(chunk) | Place::Output(chunk) => Some(chunk),
            Place::Scratch(chunk) => held.get(&(rank, chunk)).copied(),
        };
        let carried = |transfer: &Transfer| {
            let Transfer { from, to, source, target, fold, .. } = *transfer;
            // The old content of the target is not part of the arrival, unless the two are folded.
            let target = Some(target).filter(|place| !matches!(place, Place::Scratch(_)));
            let places = [(Some(source), from), (fold, to), (target, to)];
            places.into_iter().find_map(|(place, rank)| piece(place?, rank))
        };
        let pieces: Vec<Option<Chunk>> = round.transfers.iter().map(carried).collect();
        let named =
            round.transfers.iter().zip(&pieces).map(|(transfer, piece)| match (piece, transfer.source) {
                (Some(chunk), _) => chunk.to_string(),
                (None, Place::Input(chunk) | Place::Output(chunk) | Place::Scratch(chunk)) => {
                    format!("s{}", chunk.0)
                }
            });
        labels.push(named.collect());
        // All transfers of a round read what was there before it.
        for (transfer, piece) in round.transfers.iter().zip(pieces) {
            if let (Place::Scratch(chunk), Some(piece)) = (transfer.target, piece) {
                held.insert((transfer.to, chunk), piece);
            }
        }
    }
    labels
}

/// The totals of a schedule's transfers.
pub(super) struct Figures {
    pub(super) rounds: usize,
    pub(super) messages: usize,
    /// Bytes out of the busiest rank.
    pub(super) out: Share,
    /// Bytes into the busiest rank.
    pub(super) into: Share,
}

impl Figures {
    pub(super) fn of(schedule: &Schedule) -> Figures {
        let mut out = vec![0u64; schedule.ranks as usize];
        let mut into = out.clone();
        // Switches are not ranks: bytes through their ports are not counted.
        let count = |moved: &mut Vec<u64>, node: Rank| {
            if let Some(chunks) = moved.get_mut(node.index()) {
                *chunks += 1;
            }
        };
        for transfer in schedule.rounds.iter().flat_map(|round| &round.transfers) {
            if transfer.from != transfer.to {
                count(&mut out, transfer.from);
                count(&mut into, transfer.to);
            }
        }
        let (collective, ranks, partition) = (schedule.collective, schedule.ranks, schedule.partition);
        let chunks =
            partition.input_chunks(collective, ranks).max(partition.output_chunks(collective, ranks));
        let busiest = |chunks_moved: &[u64]| Share {
            part: chunks_moved.iter().copied().max().unwrap_or(0),
            whole: u64::from(chunks),
        };
        Figures {
            rounds: schedule.rounds.len(),
            messages: schedule.messages(),
            out: busiest(&out),
            into: busiest(&into),
        }
    }
}

/// A multiple of `M`, the bytes of the largest buffer of a rank: `7/4 M`.
pub(super) struct Share {
    part: u64,
    whole: u64,
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (mut divisor, mut rest) = (self.whole.max(1), self.part);
        while rest != 0 {
            (divisor, rest) = (rest, divisor % rest);
        }
        match (self.part / divisor, self.whole / divisor) {
            (0, _) => f.write_str("0"),
            (1, 1) => f.write_str("M"),
            (part, 1) => write!(f, "{part} M"),
            (part, whole) => write!(f, "{part}/{whole} M"),
        }
    }
}
