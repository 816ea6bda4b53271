//! Schedules of what a search found, as candidates of a planner.
//!
//! Invariant: a schedule's name has a hash of what it is, so that one name means one schedule in every process. Absent: prices.

use super::part::UNITS;
use super::{Rings, Trees, units};
use crate::builders::{
    self, OrderedRing, RingOptions, SpanningTree, ring_is_defined, spanning_trees_are_defined,
};
use crate::numbers::fnv;
use crate::{Collective, Rank, Schedule};

/// The most pieces of a block among which rings of different speeds share it.
const PIECES_MAX: u32 = 32;

/// What one channel carries, about: four slots of 128 KiB are on their way for some 10 to 20 microseconds. Faster rings run several
/// times side by side, as NCCL doubles its channels (`src/graph/search.cc`, `ncclTopoDupChannels`).
const CHANNEL_BYTES_S: u128 = 16_000_000_000;
/// The most channels of a schedule.
const CHANNELS_MAX: usize = 16;
/// The most messages of a schedule: all of them are simulated and proved. Channels and their shares are fewer where ranks are many.
const MESSAGES_MAX: usize = 1 << 14;

/// A hash of words.
pub(super) fn hash(words: impl Iterator<Item = u32>) -> u64 {
    fnv(words.flat_map(u32::to_le_bytes))
}

/// Whole shares in about the proportion of `speeds`, of at most `pieces_max` pieces: the fewest pieces that lose at most one
/// part in fifty to the best such shares. A share may be 0.
pub(super) fn shares(speeds: &[u128], pieces_max: u32) -> Vec<u32> {
    let total: u128 = speeds.iter().sum();
    let of = |pieces: u32| -> Vec<u32> {
        speeds.iter().map(|speed| (speed * u128::from(pieces) / total.max(1)) as u32).collect()
    };
    // The slowest piece decides when all are done.
    let rate = |shares: &[u32]| {
        let slowest = speeds.iter().zip(shares).filter(|(_, share)| **share > 0);
        let slowest = slowest.map(|(speed, share)| speed / u128::from(*share)).min().unwrap_or(0);
        slowest * u128::from(shares.iter().sum::<u32>())
    };
    let all: Vec<Vec<u32>> = (1..=pieces_max).map(of).collect();
    let best = all.iter().map(|shares| rate(shares)).max().unwrap_or(0);
    all.into_iter().find(|shares| rate(shares) * 50 >= best * 49).unwrap_or_default()
}

impl Rings {
    /// The rings with whole shares of a block's pieces, about in the proportion of their speeds, fast ones several times; at most
    /// `pieces_max` pieces in all. Rings of too little are left out.
    fn channels(&self, pieces_max: usize) -> Vec<OrderedRing> {
        let rings = &self.rings[..self.rings.len().min(pieces_max)];
        let speeds: Vec<u128> = rings.iter().map(|ring| units(ring.bytes_s)).collect();
        let shares = shares(&speeds, pieces_max.min(PIECES_MAX as usize) as u32);
        let copies = copies(&speeds, &shares, pieces_max);
        let all = rings.iter().zip(shares).filter(|(_, share)| *share > 0);
        repeated(copies, all.map(|(ring, share)| OrderedRing { order: ring.order.clone(), share }))
    }

    /// The schedule of a collective by these rings; none where the collective has no ring, and where the rings are no more than
    /// one in the order of ranks, or have too many messages.
    pub fn schedule(&self, collective: Collective) -> Option<Schedule> {
        let ranks = self.rings.first()?.order.len() as u32;
        if !ring_is_defined(collective) {
            return None;
        }
        let one = builders::ring(collective, ranks, RingOptions::default()).messages();
        let channels = self.channels(MESSAGES_MAX / one.max(1));
        let is_plain = |ring: &OrderedRing| ring.order.iter().zip(0..).all(|(rank, at)| *rank == Rank(at));
        let is_one = channels.len() <= 1 && channels.iter().all(is_plain);
        if is_one {
            return None;
        }
        let words = channels.iter().flat_map(|ring| ring.order.iter().map(|rank| rank.0).chain([ring.share]));
        let hash = hash(words);
        Some(named("rings", hash, builders::rings(collective, &channels)))
    }
}

impl Trees {
    /// The trees with whole shares of a block's pieces, about in the proportion of their speeds, fast ones several times; at most
    /// `pieces_max` pieces in all.
    fn channels(&self, pieces_max: usize) -> Vec<SpanningTree> {
        let trees = &self.trees[..self.trees.len().min(pieces_max)];
        let speeds: Vec<u128> = trees.iter().map(|tree| units(tree.bytes_s)).collect();
        let shares = shares(&speeds, pieces_max.min(PIECES_MAX as usize) as u32);
        let copies = copies(&speeds, &shares, pieces_max);
        let all = trees.iter().zip(shares).filter(|(_, share)| *share > 0);
        repeated(copies, all.map(|(tree, share)| SpanningTree { parents: tree.parents.clone(), share }))
    }

    /// The schedule of an all-reduce, a broadcast or a reduce by these trees; none for other collectives, and where no tree was
    /// found, or they have too many messages.
    pub fn schedule(&self, collective: Collective) -> Option<Schedule> {
        if !spanning_trees_are_defined(collective) {
            return None;
        }
        let parents = self.trees.first()?.parents.clone();
        let one = builders::spanning_trees(collective, &[SpanningTree { parents, share: 1 }]).messages();
        let channels = self.channels(MESSAGES_MAX / one.max(1));
        if channels.is_empty() {
            return None;
        }
        let word = |parent: &Option<Rank>| parent.map_or(u32::MAX, |rank| rank.0);
        let words = channels.iter().flat_map(|tree| tree.parents.iter().map(word).chain([tree.share]));
        let hash = hash(words);
        Some(named("trees", hash, builders::spanning_trees(collective, &channels)))
    }
}

/// How many times channels run side by side: as often as the fastest needs, as far as channels and pieces go.
fn copies(speeds: &[u128], shares: &[u32], pieces_max: usize) -> usize {
    let fastest = speeds.iter().max().map_or(0, |speed| speed / UNITS);
    let needed = usize::try_from(fastest.div_ceil(CHANNEL_BYTES_S)).unwrap_or(CHANNELS_MAX);
    let channels = shares.iter().filter(|share| **share > 0).count().max(1);
    let pieces = shares.iter().sum::<u32>().max(1) as usize;
    needed.min(CHANNELS_MAX / channels).min(pieces_max / pieces).max(1)
}

fn repeated<T: Clone>(copies: usize, once: impl Iterator<Item = T>) -> Vec<T> {
    let once: Vec<T> = once.collect();
    (0..copies).flat_map(|_| once.iter().cloned()).collect()
}

/// The schedule under a name of its family, its collective, its ranks and a hash of what it is.
pub(crate) fn named(family: &str, hash: u64, schedule: Schedule) -> Schedule {
    let collective = schedule.collective.to_string().replace('_', "-");
    Schedule { name: format!("{family}-{collective}-{}-{hash:016x}", schedule.ranks), ..schedule }
}

#[cfg(test)]
mod tests {
    use super::super::Ring;
    use super::*;
    use crate::bounds::Ratio;

    #[test]
    fn shares_are_few_and_near_to_speeds() {
        assert_eq!(shares(&[25, 25, 25], 32), [1, 1, 1]);
        assert_eq!(shares(&[2, 1], 32), [2, 1]);
        assert_eq!(shares(&[100, 1], 32), [1, 0], "not worth a hundred pieces");
        assert_eq!(shares(&[], 32), [0u32; 0]);
    }

    /// `count` rings of 32 ranks with 50 GB/s each, as four boxes with one adapter a GPU have them.
    fn fast(ranks: u32, count: u32) -> Rings {
        let bytes_s = Ratio::new(50_000_000_000, 1);
        let ring = |number: u32| Ring {
            order: (0..ranks).map(|at| Rank((at * (1 + 2 * number)) % ranks)).collect(),
            hops: Vec::new(),
            bytes_s,
        };
        Rings {
            rings: (0..count).map(ring).collect(),
            limit: Ratio::new(50_000_000_000 * u128::from(count), 1),
        }
    }

    #[test]
    fn many_ranks_have_fewer_channels_and_none_too_many_messages() {
        let channels = |schedule: &Schedule| {
            let transfers = schedule.rounds.iter().flat_map(|round| &round.transfers);
            transfers.map(|transfer| transfer.channel.0).max().map_or(0, |last| last + 1)
        };
        for (ranks, count, expected) in [(16, 8, 16), (32, 8, 8), (32, 16, 8), (16, 1, 4)] {
            let schedule = fast(ranks, count).schedule(Collective::AllReduce).expect("rings are a schedule");
            assert!(schedule.messages() <= MESSAGES_MAX, "{ranks} ranks: {}", schedule.messages());
            assert_eq!(channels(&schedule), expected, "{count} rings of {ranks} ranks");
        }
        // One ring of as many ranks has more messages than are simulated.
        assert_eq!(fast(128, 8).schedule(Collective::AllReduce), None);
    }
}
