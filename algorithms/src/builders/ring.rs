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

use crate::passes::with_chunks;
use crate::{
    Channel, Chunk, Collective, Own, Partition, Place, Rank, Regular, Schedule, Symmetry, Transfer, whole,
};

/// How a ring uses the machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RingOptions {
    /// Independent rings side by side, each with its own pieces; at least 1 (0 is read as 1).
    pub channels: u16,
    /// Whether the odd pieces travel in the other direction, on channels of their own: both directions of every link
    /// carry half of the bytes. Doubles the channels.
    pub bidirectional: bool,
}

impl Default for RingOptions {
    fn default() -> Self {
        RingOptions { channels: 1, bidirectional: false }
    }
}

/// Whether `collective` has a ring. It then has one for any number of ranks.
pub const fn ring_is_defined(collective: Collective) -> bool {
    use Collective::{AllGather, AllReduce, Broadcast, Reduce, ReduceScatter};
    matches!(collective, AllReduce | ReduceScatter | AllGather | Broadcast | Reduce)
}

/// The ring schedule of `collective` over `ranks` ranks (at least 1). Rank 0 is the root of rooted ones.
///
/// # Panics
///
/// When the collective has no ring ([`ring_is_defined`]), `ranks` is 0, or there would be more than 65,535 channels.
pub fn ring(collective: Collective, ranks: u32, options: RingOptions) -> Schedule {
    whole(&Ring::new(collective, ranks, options))
}

/// The ring, rank by rank.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ring {
    collective: Collective,
    ranks: u32,
    /// Rings in one direction.
    channels: u16,
    /// 2 when as many rings run in the other direction, else 1.
    directions: u16,
}

/// The ring from which all others are copied or mirrored: one channel, ranks and blocks in their order.
struct Plain {
    collective: Collective,
    ranks: u32,
}

impl Ring {
    /// As [`ring`], without making the schedule of all ranks.
    ///
    /// # Panics
    ///
    /// As [`ring`].
    pub fn new(collective: Collective, ranks: u32, options: RingOptions) -> Self {
        assert!(ranks > 0, "a ring needs a rank");
        assert!(ring_is_defined(collective), "there is no ring for {collective}");
        let (channels, directions) = (options.channels.max(1), if options.bidirectional { 2 } else { 1 });
        assert!(channels.checked_mul(directions).is_some(), "at most 65,535 channels");
        Ring { collective, ranks, channels, directions }
    }

    fn streams(&self) -> u32 {
        u32::from(self.channels) * u32::from(self.directions)
    }

    /// The rank of the plain ring whose part a rank plays; its own inverse.
    fn mirror(&self, reversed: bool, rank: u32) -> u32 {
        if reversed { (self.ranks - rank) % self.ranks } else { rank }
    }

    /// The transfer of a channel that corresponds to one of the plain ring. Blocks that belong to ranks follow them.
    fn on_channel(&self, channel: u16, own: Own) -> Own {
        let reversed = channel % self.directions == 1;
        let stream = u32::from(channel % self.directions * self.channels + channel / self.directions);
        let chunk = |place: Place, chunk: Chunk| {
            let blocked = match place {
                Place::Input(_) => self.collective.input_blocks(self.ranks) > 1,
                Place::Output(_) => self.collective.output_blocks(self.ranks) > 1,
                Place::Scratch(_) => self.collective == Collective::ReduceScatter,
            };
            let chunk = if blocked { self.mirror(reversed, chunk.0) } else { chunk.0 };
            Chunk(chunk * self.streams() + stream)
        };
        let rank = |rank: Rank| Rank(self.mirror(reversed, rank.0));
        let renamed = with_chunks(&own.transfer, chunk);
        let (from, to) = (rank(renamed.from), rank(renamed.to));
        Own { transfer: Transfer { from, to, channel: Channel(channel), ..renamed }, ..own }
    }
}

impl Regular for Ring {
    fn head(&self) -> Schedule {
        let name = match (self.channels, self.directions) {
            (1, 1) => "ring".into(),
            (1, _) => "ring(bidirectional)".into(),
            (channels, 1) => format!("ring(channels={channels})"),
            (channels, _) => format!("ring(channels={channels}, bidirectional)"),
        };
        let blocks = if self.collective == Collective::AllReduce { self.ranks } else { 1 };
        Schedule {
            name,
            collective: self.collective,
            ranks: self.ranks,
            switches: 0,
            partition: Partition { parts: blocks * self.streams() },
            rounds: Vec::new(),
        }
    }

    fn own(&self, rank: Rank, take: &mut dyn FnMut(Own)) {
        let plain = Plain { collective: self.collective, ranks: self.ranks };
        for round in 0..plain.rounds() {
            for channel in 0..self.channels * self.directions {
                let rank = Rank(self.mirror(channel % self.directions == 1, rank.0));
                plain.own(round, rank, &mut |own| take(self.on_channel(channel, own)));
            }
        }
    }

    fn symmetry(&self) -> Option<Symmetry> {
        let rooted = matches!(self.collective, Collective::Broadcast | Collective::Reduce);
        (!rooted).then(|| Symmetry { dimensions: vec![self.ranks], lower_first: false })
    }

    fn piece(&self, by: Rank, piece: u32) -> u32 {
        let (block, stream) = (piece / self.streams(), piece % self.streams());
        let reversed = stream >= u32::from(self.channels);
        (block + self.mirror(reversed, by.0)) % self.ranks * self.streams() + stream
    }
}

impl Plain {
    fn rounds(&self) -> u32 {
        match self.collective {
            _ if self.ranks == 1 => 1,
            Collective::AllReduce => 2 * (self.ranks - 1),
            _ => self.ranks - 1,
        }
    }

    /// `base - steps` around the ring.
    fn back(&self, base: u32, steps: u32) -> u32 {
        (base + 2 * self.ranks - steps) % self.ranks
    }

    /// The transfers of a rank in a round: its send, its receive, its copy.
    fn own(&self, round: u32, rank: Rank, take: &mut dyn FnMut(Own)) {
        if self.ranks > 1 {
            for from in [rank.0, self.back(rank.0, 1)] {
                if let Some((source, target, fold, complete)) = self.hop(round, from) {
                    let transfer = Transfer {
                        from: Rank(from),
                        to: Rank((from + 1) % self.ranks),
                        channel: Channel(0),
                        source,
                        target,
                        fold,
                        own_first: false,
                    };
                    take(Own { round, transfer, complete });
                }
            }
        }
        let keeps = match self.collective {
            _ if self.ranks == 1 => true,
            Collective::AllGather => round == 0,
            Collective::Broadcast => round == 0 && rank.0 == 0,
            _ => false,
        };
        if keeps {
            let transfer = Transfer {
                from: rank,
                to: rank,
                channel: Channel(0),
                source: Place::Input(Chunk(0)),
                target: Place::Output(Chunk(if self.collective == Collective::AllGather {
                    rank.0
                } else {
                    0
                })),
                fold: None,
                own_first: false,
            };
            take(Own { round, transfer, complete: self.collective.reduces() });
        }
    }

    /// The transfer from `from` to its successor in a round, if there is one: source, target, the place that the
    /// successor folds it with, and whether the result is then complete.
    fn hop(&self, round: u32, from: u32) -> Option<(Place, Place, Option<Place>, bool)> {
        let last = self.ranks - 2;
        match self.collective {
            Collective::AllReduce if round > last => Some(self.gather(round - last - 1, from)),
            Collective::AllReduce | Collective::ReduceScatter => Some(self.scatter(round, from)),
            Collective::AllGather => Some(self.gather(round, from)),
            // The chain 0, 1, …, n-1.
            Collective::Broadcast => (from == round).then_some({
                let source = if from == 0 { Place::Input(Chunk(0)) } else { Place::Output(Chunk(0)) };
                (source, Place::Output(Chunk(0)), None, false)
            }),
            // The chain 1, 2, …, n-1, 0.
            _ => (from == round + 1).then_some({
                let chunk = Chunk(0);
                let source = if from == 1 { Place::Input(chunk) } else { Place::Scratch(chunk) };
                let target = if round == last { Place::Output(chunk) } else { Place::Scratch(chunk) };
                (source, target, Some(Place::Input(chunk)), round == last)
            }),
        }
    }

    /// After round `n-2`, block `r` is complete on rank `r`.
    fn scatter(&self, round: u32, from: u32) -> (Place, Place, Option<Place>, bool) {
        let complete = round == self.ranks - 2;
        let block = Chunk(self.back(from, 1 + round));
        let source = if round == 0 { Place::Input(block) } else { Place::Scratch(block) };
        let target = match self.collective {
            _ if !complete => Place::Scratch(block),
            Collective::AllReduce => Place::Output(block),
            _ => Place::Output(Chunk(0)),
        };
        (source, target, Some(Place::Input(block)), complete)
    }

    /// Block `r` starts on rank `r` and visits all ranks.
    fn gather(&self, round: u32, from: u32) -> (Place, Place, Option<Place>, bool) {
        let from_input = self.collective == Collective::AllGather && round == 0;
        let block = Chunk(self.back(from, round));
        let source = if from_input { Place::Input(Chunk(0)) } else { Place::Output(block) };
        (source, Place::Output(block), None, false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// (rounds, messages, pieces of the largest buffer, pieces out of the busiest port)
    fn measured(schedule: &Schedule) -> (u32, u32, u32, u32) {
        let cost = schedule.cost();
        assert_eq!(cost.out_pieces, cost.into_pieces);
        assert_eq!(cost.depth, cost.rounds, "in a ring every message waits for the one before");
        (cost.rounds, cost.messages as u32, cost.largest_pieces, cost.out_pieces)
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
            assert_eq!(measured(&schedule), (0, 0, 1, 0));
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
