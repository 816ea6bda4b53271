//! All-to-all: the most that every ordered pair of ranks can exchange at once.
//!
//! It is the maximum concurrent flow. Any lengths of links bound it: the capacities' sum, each with its length, is used up
//! by all pairs, each over at least its distance. A cut is the case where the links that cross it have length 1 and all
//! others 0. A rate is exact where equal shares of shortest paths reach it, as they do on graphs where all links are alike
//! and between equal boxes.
//!
//! Source: F. Shahrokhi and D. Matula, "The maximum concurrent flow problem" (1990). Invariant: every rate here is
//! exact in whole numbers; candidates come from the boxes, from the ranks' numbers and from `weights`.

use std::collections::BTreeSet;

use super::network::Network;
use super::paths::{distance_bound, distances, inverse_lengths, shared_paths};
use super::ratio::Ratio;
use super::trees::{self, Limit, out_of_ranks};
use super::{Argument, Asked, Bound, Cut, Witness, across, of_ranks, opposite, weights, words};

/// Above this number of ranks lengths and sets are not searched for.
const SEARCH_RANKS_MAX: u32 = 64;
/// The widest gaps between distances that are tried as cuts, for each rank.
const GAPS: usize = 3;

/// What limits the pairs.
enum Tight {
    Cut(Limit),
    Distance { rate: Ratio, lengths: Vec<u64> },
}

impl Tight {
    fn rate(&self) -> Ratio {
        match self {
            Tight::Cut(limit) => limit.rate,
            Tight::Distance { rate, .. } => *rate,
        }
    }
}

impl Asked<'_> {
    pub(super) fn exchange(&self) -> Bound {
        let ranks = self.network.ranks;
        if self.steps.is_none() {
            let Limit { rate, sending } =
                trees::smallest_cut(&self.network, &self.transposed, &self.symmetries);
            return self.cut(rate, true, Argument::Unreachable, &sending);
        }
        let mut best = self.simple();
        self.sets(&mut best, halves(&self.network));
        let all = [inverse_lengths(&self.network), vec![1; self.network.arcs.len()]];
        let mut rates = all.iter().filter_map(|lengths| shared_paths(&self.network, lengths));
        let mut reached = rates.find(|reached| *reached >= best.rate()).unwrap_or(Ratio::ZERO);
        if reached < best.rate() && self.network.is_small(SEARCH_RANKS_MAX) {
            self.search(&mut best);
            let mut all = all.to_vec();
            if let Tight::Distance { lengths, .. } = &best {
                all.push(lengths.iter().map(|length| 1 + length).collect());
            }
            let found = all.iter().filter_map(|lengths| shared_paths(&self.network, lengths)).max();
            reached = found.unwrap_or(Ratio::ZERO);
        }
        let exact = reached >= best.rate()
            || match &best {
                Tight::Cut(limit) if self.network.is_small(SEARCH_RANKS_MAX) => {
                    across::fills(&self.network, &limit.sending, limit.rate)
                }
                _ => false,
            };
        match best {
            Tight::Cut(Limit { rate, sending }) => {
                self.cut(of_ranks(rate, ranks), exact, Argument::PairsCut, &sending)
            }
            Tight::Distance { rate, lengths } => {
                let words = words::distance(&self.network, &lengths);
                let cut =
                    Cut { words, nodes: Vec::new(), witness: Witness::lengths(&self.network, &lengths) };
                self.found(of_ranks(rate, ranks), exact, Argument::Distance, cut)
            }
        }
    }

    /// The best of what needs no search: single ranks, boxes, and hops.
    fn simple(&self) -> Tight {
        let mut best = self.set(&[0], false);
        self.sets(&mut best, (0..self.network.ranks).map(|rank| vec![rank]));
        let boxes = &self.network.boxes;
        if boxes.len() > 1 && boxes.len() < self.network.ranks as usize {
            self.sets(&mut best, boxes.iter().map(|ranks| ranks.iter().map(|rank| rank.0).collect()));
        }
        let lengths = vec![1; self.network.arcs.len()];
        self.lengths(&mut best, lengths);
        best
    }

    /// The cut of a set of ranks, by what can leave or enter it.
    fn set(&self, set: &[u32], enters: bool) -> Tight {
        let network = if enters { &self.transposed } else { &self.network };
        let (value, sending) = out_of_ranks(network, &self.symmetries, set);
        let pairs = set.len() as u128 * (u128::from(self.network.ranks) - set.len() as u128);
        let sending = if enters { opposite(&sending) } else { sending };
        Tight::Cut(Limit { rate: Ratio::new(value, pairs), sending })
    }

    fn sets(&self, best: &mut Tight, sets: impl IntoIterator<Item = Vec<u32>>) -> bool {
        let mut found = false;
        for set in sets {
            for tight in [false, true].map(|enters| self.set(&set, enters)) {
                if tight.rate() < best.rate() {
                    *best = tight;
                    found = true;
                }
            }
        }
        found
    }

    fn lengths(&self, best: &mut Tight, lengths: Vec<u64>) {
        if let Some(rate) = distance_bound(&self.network, &lengths).filter(|rate| *rate < best.rate()) {
            *best = Tight::Distance { rate, lengths };
        }
    }

    /// Lengths by multiplicative weights, the sets that they show, and sets near the best one.
    fn search(&self, best: &mut Tight) {
        let Some((_, lengths)) = weights::lengths(&self.network) else { return };
        // A cut that is as tight says more than lengths.
        self.sets(best, gaps(&self.network, &lengths));
        while let Tight::Cut(limit) = &*best {
            let near = neighbours(&words::members(&self.network, &limit.sending, true), self.network.ranks);
            if !self.sets(best, near) {
                break;
            }
        }
        self.lengths(best, lengths);
    }
}

/// Sets of ranks by their numbers: the first ones, up to each power of two's multiple, the first boxes, and those with a
/// bit set.
fn halves(network: &Network) -> Vec<Vec<u32>> {
    let ranks = network.ranks;
    let mut sets: BTreeSet<Vec<u32>> = BTreeSet::new();
    sets.insert((0..ranks / 2).collect());
    let boxes = &network.boxes;
    let first: Vec<u32> = boxes[..boxes.len() / 2].iter().flatten().map(|rank| rank.0).collect();
    sets.insert(first);
    for bit in 0..ranks.ilog2() + 1 {
        sets.insert((0..ranks).filter(|rank| rank >> bit & 1 == 1).collect());
    }
    sets.retain(|set| !set.is_empty() && set.len() < ranks as usize);
    sets.into_iter().collect()
}

/// The ranks on the near side of the widest gaps between the distances from each rank.
fn gaps(network: &Network, lengths: &[u64]) -> BTreeSet<Vec<u32>> {
    let mut sets = BTreeSet::new();
    let mut order = Vec::new();
    for source in 0..network.ranks {
        let distance = distances(network, lengths, source, &mut order);
        let mut ranks: Vec<(u128, u32)> =
            (0..network.ranks).map(|rank| (distance[rank as usize], rank)).collect();
        ranks.sort_unstable();
        let mut gaps: Vec<(u128, usize)> =
            (1..ranks.len()).map(|at| (ranks[at].0 - ranks[at - 1].0, at)).collect();
        gaps.sort_unstable_by_key(|(gap, at)| (std::cmp::Reverse(*gap), *at));
        for &(_, at) in gaps.iter().take(GAPS) {
            let mut set: Vec<u32> = ranks[..at].iter().map(|(_, rank)| *rank).collect();
            set.sort_unstable();
            sets.insert(set);
        }
    }
    sets
}

/// The sets that differ by one rank.
fn neighbours(set: &[u32], ranks: u32) -> Vec<Vec<u32>> {
    let toggled = |rank: u32| {
        let mut other: Vec<u32> = set.iter().copied().filter(|member| *member != rank).collect();
        if other.len() == set.len() {
            other.push(rank);
            other.sort_unstable();
        }
        other
    };
    (0..ranks).map(toggled).filter(|set| !set.is_empty() && set.len() < ranks as usize).collect()
}
