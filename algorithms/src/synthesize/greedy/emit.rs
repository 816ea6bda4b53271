//! Trees in time as the rounds of a schedule.
//!
//! Each distinct start is a round, and of a fold each distinct end, backwards. A chunk's tree has one channel, and no
//! other chunk touches its places; so the streams of a rank run side by side, as many as there are channels, and the
//! slices of a long call follow each other in each.
//!
//! Fold order: what arrives first, in each rank; arriving value first.

use std::collections::BTreeMap;

use super::clock::Step;
use super::wires::Wires;
use crate::{Channel, Chunk, Collective, Partition, Place, Rank, Round, Schedule, Transfer};

/// A schedule in the making.
pub(super) struct Emit {
    pub(super) collective: Collective,
    pub(super) ranks: u32,
    /// Pieces of a block.
    pub(super) parts: u32,
    /// Streams between two ranks.
    pub(super) channels: u16,
    rounds: Vec<Round>,
}

impl Emit {
    pub(super) fn new(collective: Collective, ranks: u32, parts: u32, channels: u16) -> Emit {
        Emit { collective, ranks, parts, channels: channels.max(1), rounds: Vec::new() }
    }

    pub(super) fn schedule(self, name: String) -> Schedule {
        let Emit { collective, ranks, parts, rounds, .. } = self;
        Schedule { name, collective, ranks, switches: 0, partition: Partition { parts }, rounds }
    }

    /// A stream of `chunk`, of those that begin at channel `first`.
    pub(super) fn channel(&self, chunk: u32, first: u16) -> Channel {
        Channel(first + (chunk % u32::from(self.channels)) as u16)
    }

    /// A copy within a rank, in the first round.
    pub(super) fn keep(&mut self, rank: u32, chunk: u32, source: Place, target: Place) {
        if self.rounds.is_empty() {
            self.rounds.push(Round::default());
        }
        let channel = self.channel(chunk, 0);
        let (from, to) = (Rank(rank), Rank(rank));
        self.rounds[0].transfers.push(Transfer {
            from,
            to,
            channel,
            source,
            target,
            fold: None,
            own_first: false,
        });
    }

    /// Adds transfers by their times: those of equal times are a round, and the first round is `first` or later.
    pub(super) fn by_time(&mut self, first: usize, timed: Vec<((u64, u32), Transfer)>) {
        let mut rounds: BTreeMap<(u64, u32), Vec<Transfer>> = BTreeMap::new();
        for (time, transfer) in timed {
            rounds.entry(time).or_default().push(transfer);
        }
        for (number, transfers) in (first..).zip(rounds.into_values()) {
            if self.rounds.len() <= number {
                self.rounds.resize(number + 1, Round::default());
            }
            self.rounds[number].transfers.extend(transfers);
        }
    }

    /// Folds chunks into their origins: the steps of a spread on the transposed wires, backwards.
    pub(super) fn fold(&mut self, wires: &Wires, origins: &[u32], steps: &[Step]) {
        let last = steps.iter().map(|step| step.end).max().unwrap_or(0);
        let mut order: Vec<(u64, &Step)> = steps.iter().map(|step| (last - step.end, step)).collect();
        order.sort_by_key(|(time, step)| (*time, step.edge, step.chunk));
        let mut missing = vec![0u32; origins.len()];
        for step in steps {
            let into = wires.edges[step.edge as usize].from;
            missing[step.chunk as usize] += u32::from(into == origins[step.chunk as usize]);
        }
        let mut held: BTreeMap<(u32, u32), Place> = BTreeMap::new();
        let mut timed = Vec::with_capacity(steps.len());
        // A fold reads what was there before its round: what arrives at one time for one place is folded in rounds of
        // its own.
        let mut arrived: BTreeMap<(u32, u32), (u64, u32)> = BTreeMap::new();
        for (time, &Step { edge, chunk, .. }) in order {
            // Backwards: what was the end of the edge sends.
            let (from, to) = (wires.edges[edge as usize].to, wires.edges[edge as usize].from);
            let own = |rank: u32| held.get(&(rank, chunk)).copied().unwrap_or(Place::Input(Chunk(chunk)));
            let (source, fold) = (own(from), Some(own(to)));
            let left = &mut missing[chunk as usize];
            *left -= u32::from(to == origins[chunk as usize]);
            let target = if to == origins[chunk as usize] && *left == 0 {
                let block = self.collective.input_blocks(self.ranks) > 1;
                Place::Output(Chunk(if block { chunk % self.parts } else { chunk }))
            } else {
                Place::Scratch(Chunk(chunk))
            };
            held.insert((to, chunk), target);
            let turn = match arrived.get(&(to, chunk)) {
                Some((last, turn)) if *last == time => turn + 1,
                _ => 0,
            };
            arrived.insert((to, chunk), (time, turn));
            let channel = self.channel(chunk, 0);
            let (from, to) = (Rank(from), Rank(to));
            timed
                .push(((time, turn), Transfer { from, to, channel, source, target, fold, own_first: false }));
        }
        self.by_time(0, timed);
    }

    /// Sends chunks from their origins, on channels from `first` on, after all rounds that there are.
    pub(super) fn copy(&mut self, wires: &Wires, origins: &[u32], steps: &[Step], first: u16) {
        let after = self.rounds.len();
        let (collective, parts) = (self.collective, self.parts);
        let start = |chunk: u32| match collective {
            Collective::AllReduce => Place::Output(Chunk(chunk)),
            Collective::AllGather => Place::Input(Chunk(chunk % parts)),
            _ => Place::Input(Chunk(chunk)),
        };
        let transfer = |&Step { start: time, edge, chunk, .. }: &Step| {
            let (from, to) = (wires.edges[edge as usize].from, wires.edges[edge as usize].to);
            let target = Place::Output(Chunk(chunk));
            let source = if from == origins[chunk as usize] { start(chunk) } else { target };
            let channel = self.channel(chunk, first);
            (
                (time, 0),
                Transfer {
                    from: Rank(from),
                    to: Rank(to),
                    channel,
                    source,
                    target,
                    fold: None,
                    own_first: false,
                },
            )
        };
        let timed: Vec<((u64, u32), Transfer)> = steps.iter().map(transfer).collect();
        if self.collective != Collective::AllReduce {
            for (chunk, &origin) in (0..).zip(origins) {
                let source = start(chunk);
                self.keep(origin, chunk, source, Place::Output(Chunk(chunk)));
            }
        }
        self.by_time(after, timed);
    }
}
