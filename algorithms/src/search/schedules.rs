//! Schedules of what a search found, as candidates of a planner.
//!
//! Invariant: a schedule's name has a hash of what it is, so that one name means one schedule in every process. Absent: prices.

use super::part::UNITS;
use super::{Rings, Trees, units};
use crate::builders::{self, OrderedRing, SpanningTree, ring_is_defined, spanning_trees_are_defined};
use crate::{Collective, Rank, Schedule};

/// The most pieces of a block among which rings of different speeds share it.
const PIECES_MAX: u32 = 32;

/// What one channel carries, about: four slots of 128 KiB are on their way for some 10 to 20 microseconds. Faster rings run several
/// times side by side, as NCCL doubles its channels (`src/graph/search.cc`, `ncclTopoDupChannels`).
const CHANNEL_BYTES_S: u128 = 16_000_000_000;
/// The most channels of a schedule.
const CHANNELS_MAX: usize = 16;

/// FNV-1a over words.
pub(super) fn hash(words: impl Iterator<Item = u32>) -> u64 {
    words
        .flat_map(u32::to_le_bytes)
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
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
    /// The rings with whole shares of a block's pieces, about in the proportion of their speeds, fast ones several times. Rings of
    /// too little are left out.
    pub fn channels(&self) -> Vec<OrderedRing> {
        let speeds: Vec<u128> = self.rings.iter().map(|ring| units(ring.bytes_s)).collect();
        let all = self.rings.iter().zip(shares(&speeds, PIECES_MAX));
        let once: Vec<OrderedRing> = all
            .filter(|(_, share)| *share > 0)
            .map(|(ring, share)| OrderedRing { order: ring.order.clone(), share })
            .collect();
        copied(&speeds, once)
    }

    /// The schedule of a collective by these rings; none where the collective has no ring, and where the rings are no more than
    /// one in the order of ranks.
    pub fn schedule(&self, collective: Collective) -> Option<Schedule> {
        let channels = self.channels();
        let is_plain = |ring: &OrderedRing| ring.order.iter().zip(0..).all(|(rank, at)| *rank == Rank(at));
        let is_one = channels.len() <= 1 && channels.iter().all(is_plain);
        if !ring_is_defined(collective) || is_one {
            return None;
        }
        let words = channels.iter().flat_map(|ring| ring.order.iter().map(|rank| rank.0).chain([ring.share]));
        let hash = hash(words);
        Some(named("rings", hash, builders::rings(collective, &channels)))
    }
}

impl Trees {
    /// The trees with whole shares of a block's pieces, about in the proportion of their speeds, fast ones several times.
    pub fn channels(&self) -> Vec<SpanningTree> {
        let speeds: Vec<u128> = self.trees.iter().map(|tree| units(tree.bytes_s)).collect();
        let all = self.trees.iter().zip(shares(&speeds, PIECES_MAX));
        let once: Vec<SpanningTree> = all
            .filter(|(_, share)| *share > 0)
            .map(|(tree, share)| SpanningTree { parents: tree.parents.clone(), share })
            .collect();
        copied(&speeds, once)
    }

    /// The schedule of an all-reduce, a broadcast or a reduce by these trees; none for other collectives, and where no tree was
    /// found.
    pub fn schedule(&self, collective: Collective) -> Option<Schedule> {
        let channels = self.channels();
        if !spanning_trees_are_defined(collective) || channels.is_empty() {
            return None;
        }
        let word = |parent: &Option<Rank>| parent.map_or(u32::MAX, |rank| rank.0);
        let words = channels.iter().flat_map(|tree| tree.parents.iter().map(word).chain([tree.share]));
        let hash = hash(words);
        Some(named("trees", hash, builders::spanning_trees(collective, &channels)))
    }
}

/// Channels as often side by side as the fastest needs.
fn copied<T: Clone>(speeds: &[u128], once: Vec<T>) -> Vec<T> {
    let fastest = speeds.iter().max().map_or(0, |speed| speed / UNITS);
    let copies = fastest.div_ceil(CHANNEL_BYTES_S).min((CHANNELS_MAX / once.len().max(1)) as u128);
    (0..copies.max(1)).flat_map(|_| once.iter().cloned()).collect()
}

fn named(family: &str, hash: u64, schedule: Schedule) -> Schedule {
    let collective = schedule.collective.to_string().replace('_', "-");
    Schedule { name: format!("{family}-{collective}-{}-{hash:016x}", schedule.ranks), ..schedule }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_few_and_near_to_speeds() {
        assert_eq!(shares(&[25, 25, 25], 32), [1, 1, 1]);
        assert_eq!(shares(&[2, 1], 32), [2, 1]);
        assert_eq!(shares(&[100, 1], 32), [1, 0], "not worth a hundred pieces");
        assert_eq!(shares(&[], 32), [0u32; 0]);
    }
}
