//! The ring: every rank sends only to its successor and receives only from its predecessor.
//!
//! Source: P. Patarasuk and X. Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations",
//! JPDC 69 (2009), whose all-reduce is the reduce-scatter phase followed by the all-gather phase below.
//!
//! Cost over `n` ranks, with `M` the bytes of the largest buffer of a rank:
//!
//! | collective | rounds | bytes out of (and into) the busiest port |
//! |---|---|---|
//! | all-reduce | `2(n-1)` | `2(n-1)/n M` |
//! | reduce-scatter, all-gather | `n-1` | `(n-1)/n M` |
//! | broadcast, reduce | `n-1` | `M` |
//!
//! Broadcast and reduce are chains; the loop over slices pipelines them, so that a long message takes the
//! time of one transfer plus `n-2` slices. In a chain the two ends use one port only.
//!
//! Fold order: arriving value first, then the own one. Block `b` of a reduce-scatter is therefore the left
//! fold over ranks `b+1, b+2, …, b` (modulo `n`); a reduce is the left fold over ranks `1, 2, …, n-1, 0`.

use crate::passes::{interleave, replicate, reverse};
use crate::{Channel, Chunk, Collective, Partition, Place, Rank, Round, Schedule, Transfer};

/// How a ring uses the machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RingOptions {
    /// Independent rings side by side, each with its own pieces; at least 1 (0 is read as 1).
    pub channels: u16,
    /// Whether the odd pieces travel the other way round, on channels of their own: both directions of every
    /// link carry half of the bytes. Doubles the channels.
    pub bidirectional: bool,
}

impl Default for RingOptions {
    fn default() -> Self {
        RingOptions { channels: 1, bidirectional: false }
    }
}

/// The ring schedule of `collective` over `ranks` ranks (at least 1). Rank 0 is the root of rooted ones.
///
/// # Panics
///
/// When there is no ring for the collective (point-to-point and all-to-all), `ranks` is 0, or there would be
/// more than 65,535 channels.
pub fn ring(collective: Collective, ranks: u32, options: RingOptions) -> Schedule {
    assert!(ranks > 0, "a ring needs a rank");
    let mut schedule = one_ring(collective, ranks);
    if options.bidirectional {
        schedule = interleave(&[schedule.clone(), reverse(&schedule)]);
    }
    let channels = options.channels.max(1);
    schedule = replicate(&schedule, channels);
    schedule.name = match (channels, options.bidirectional) {
        (1, false) => "ring".into(),
        (1, true) => "ring(bidirectional)".into(),
        (_, false) => format!("ring(channels={channels})"),
        (_, true) => format!("ring(channels={channels}, bidirectional)"),
    };
    schedule
}

fn one_ring(collective: Collective, ranks: u32) -> Schedule {
    let ring = Ring { collective, ranks };
    let rounds = match collective {
        _ if ranks == 1 => vec![ring.local_copies(1)],
        Collective::AllReduce => [ring.scatter_rounds(), ring.gather_rounds()].concat(),
        Collective::ReduceScatter => ring.scatter_rounds(),
        Collective::AllGather => ring.gather_rounds(),
        Collective::Broadcast => ring.broadcast_rounds(),
        Collective::Reduce => ring.reduce_rounds(),
        Collective::SendReceive | Collective::AllToAll => panic!("there is no ring for {collective}"),
    };
    let parts = if collective == Collective::AllReduce { ranks } else { 1 };
    Schedule { name: "ring".into(), collective, ranks, partition: Partition { parts }, rounds }
}

struct Ring {
    collective: Collective,
    ranks: u32,
}

impl Ring {
    /// `base - steps` around the ring.
    fn back(&self, base: u32, steps: u32) -> u32 {
        (base + 2 * self.ranks - steps) % self.ranks
    }

    fn hop(&self, from: u32, source: Place, target: Place, fold: Option<Place>) -> Transfer {
        let to = (from + 1) % self.ranks;
        Transfer {
            from: Rank(from),
            to: Rank(to),
            channel: Channel(0),
            source,
            target,
            fold,
            own_first: false,
        }
    }

    /// Each of the first `count` ranks copies its input to its own block of the output.
    fn local_copies(&self, count: u32) -> Round {
        let copy = |rank: u32| Transfer {
            from: Rank(rank),
            to: Rank(rank),
            channel: Channel(0),
            source: Place::Input(Chunk(0)),
            target: Place::Output(Chunk(if self.collective == Collective::AllGather { rank } else { 0 })),
            fold: None,
            own_first: false,
        };
        Round { transfers: (0..count).map(copy).collect() }
    }

    /// After round `n-2`, block `r` is complete on rank `r`.
    fn scatter_rounds(&self) -> Vec<Round> {
        let last = self.ranks - 2;
        let transfer = |round: u32, from: u32| {
            let block = Chunk(self.back(from, 1 + round));
            let source = if round == 0 { Place::Input(block) } else { Place::Scratch(block) };
            let target = match self.collective {
                _ if round < last => Place::Scratch(block),
                Collective::AllReduce => Place::Output(block),
                _ => Place::Output(Chunk(0)),
            };
            self.hop(from, source, target, Some(Place::Input(block)))
        };
        self.rounds(transfer)
    }

    /// Block `r` starts on rank `r` and visits everybody.
    fn gather_rounds(&self) -> Vec<Round> {
        let from_input = self.collective == Collective::AllGather;
        let transfer = |round: u32, from: u32| {
            let block = Chunk(self.back(from, round));
            let source = if round == 0 && from_input { Place::Input(Chunk(0)) } else { Place::Output(block) };
            self.hop(from, source, Place::Output(block), None)
        };
        let mut rounds = self.rounds(transfer);
        if from_input {
            rounds[0].transfers.extend(self.local_copies(self.ranks).transfers);
        }
        rounds
    }

    fn rounds(&self, transfer: impl Fn(u32, u32) -> Transfer) -> Vec<Round> {
        (0..self.ranks - 1)
            .map(|round| Round { transfers: (0..self.ranks).map(|from| transfer(round, from)).collect() })
            .collect()
    }

    /// The chain 0, 1, …, n-1.
    fn broadcast_rounds(&self) -> Vec<Round> {
        let chunk = Chunk(0);
        let hop = |from: u32| {
            let source = if from == 0 { Place::Input(chunk) } else { Place::Output(chunk) };
            Round { transfers: vec![self.hop(from, source, Place::Output(chunk), None)] }
        };
        let mut rounds: Vec<Round> = (0..self.ranks - 1).map(hop).collect();
        rounds[0].transfers.extend(self.local_copies(1).transfers);
        rounds
    }

    /// The chain 1, 2, …, n-1, 0.
    fn reduce_rounds(&self) -> Vec<Round> {
        let chunk = Chunk(0);
        let hop = |from: u32| {
            let source = if from == 1 { Place::Input(chunk) } else { Place::Scratch(chunk) };
            let target = if from == self.ranks - 1 { Place::Output(chunk) } else { Place::Scratch(chunk) };
            Round { transfers: vec![self.hop(from, source, target, Some(Place::Input(chunk)))] }
        };
        (1..self.ranks).map(hop).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// (rounds, messages, pieces of the largest buffer, pieces out of the busiest port)
    fn measured(schedule: &Schedule) -> (u32, u32, u32, u32) {
        let n = schedule.ranks;
        let mut out = vec![0u32; n as usize];
        let mut into = vec![0u32; n as usize];
        for transfer in schedule.rounds.iter().flat_map(|round| &round.transfers) {
            if transfer.from != transfer.to {
                out[transfer.from.index()] += 1;
                into[transfer.to.index()] += 1;
            }
        }
        let busiest = out.iter().max().copied().unwrap_or(0);
        assert_eq!(busiest, into.iter().max().copied().unwrap_or(0));
        let partition = schedule.partition;
        let largest = partition
            .input_chunks(schedule.collective, n)
            .max(partition.output_chunks(schedule.collective, n));
        (schedule.rounds.len() as u32, schedule.messages() as u32, largest, busiest)
    }

    #[test]
    fn cost_equals_the_formula() {
        for n in 2..=64 {
            for (channels, bidirectional) in [(1, false), (2, false), (1, true), (3, true)] {
                let streams = u32::from(channels) * if bidirectional { 2 } else { 1 };
                let options = RingOptions { channels, bidirectional };
                let cost = |collective| measured(&ring(collective, n, options));
                let all = n * streams;
                let hops = n - 1;
                // With every piece equal, M is `all` (or `streams`) pieces; bytes are exact in pieces.
                assert_eq!(cost(Collective::AllReduce), (2 * hops, 2 * hops * all, all, 2 * hops * all / n));
                assert_eq!(cost(Collective::ReduceScatter), (hops, hops * all, all, hops * all / n));
                assert_eq!(cost(Collective::AllGather), (hops, hops * all, all, hops * all / n));
                assert_eq!(cost(Collective::Broadcast), (hops, hops * streams, streams, streams));
                assert_eq!(cost(Collective::Reduce), (hops, hops * streams, streams, streams));
            }
        }
    }

    #[test]
    fn one_rank_copies_to_itself() {
        for collective in [Collective::AllReduce, Collective::AllGather, Collective::Reduce] {
            let schedule = ring(collective, 1, RingOptions::default());
            assert_eq!(measured(&schedule), (1, 0, 1, 0));
            assert_eq!(schedule.rounds[0].transfers.len(), 1);
        }
    }

    #[test]
    fn the_odd_half_travels_the_other_way() {
        let schedule = ring(Collective::AllGather, 5, RingOptions { channels: 1, bidirectional: true });
        for transfer in schedule.rounds.iter().flat_map(|round| &round.transfers) {
            let (Place::Input(chunk) | Place::Output(chunk) | Place::Scratch(chunk)) = transfer.target;
            let step = (transfer.to.0 + 5 - transfer.from.0) % 5;
            let expected = if transfer.from == transfer.to {
                0
            } else if chunk.0 % 2 == 0 {
                1
            } else {
                4
            };
            assert_eq!(step, expected, "{transfer:?}");
            assert_eq!(u32::from(transfer.channel.0), chunk.0 % 2);
        }
    }
}
