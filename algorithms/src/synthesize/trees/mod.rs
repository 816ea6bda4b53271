//! All-reduce by spanning trees that together fill a machine's wires, each edge carrying values up and results down.
//!
//! Where a link carries as much each way, trees that fill both ways of their edges are as fast as `2 (n - 1)`
//! messages for each element allow (C. St. J. A. Nash-Williams; W. T. Tutte, 1961), also where a reduce-scatter and
//! then an all-gather are not: in parts of a box, with an adapter or a link missing. [`limit`](Trees::limit) is what
//! no trees exceed on the routes that messages take; [`bound`](Trees::bound) what nothing does. Links side by side
//! between two nodes count as one ([`Topology::bundled`]).
//!
//! Sources: G. Wang et al., "Blink: Fast and Generic Collectives for Distributed ML", MLSys 2020 (packing by a linear
//! program, then few trees); the parts name theirs. Invariant: the same topology gives the same trees on every rank:
//! steps are counted, what decides is whole. Absent: different trees up and down, which links that carry more one way
//! than the other could use; machines of more than [`RANKS_MAX`] ranks (`boxes` is for those).

mod fixed;
mod goals;
mod parts;
mod program;
mod span;
mod wires;

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use crate::bounds::{self, Ratio, bound};
use crate::builders::{SpanningTree, spanning_trees};
use crate::topology::Topology;
use crate::{Collective, Schedule};
use fixed::Search;
use goals::{Goal, MIXED, goals, shares};
pub(super) use parts::{Between, Joined, hung, joined};
use program::{Lengths, solve};
use wires::Wires;

/// The most ranks of a machine whose trees are searched.
pub const RANKS_MAX: u32 = 64;

/// What bounds a search.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options {
    /// The most trees, some of them perhaps equal.
    pub trees_max: usize,
    /// The most exchanges of edges that are looked at, over all numbers of trees; fewer on machines of few pairs of
    /// ranks.
    pub steps: u64,
}

impl Default for Options {
    fn default() -> Self {
        Options { trees_max: 64, steps: 24_000_000 }
    }
}

/// Trees that share a machine.
#[derive(Clone, PartialEq, Debug)]
pub struct Trees {
    trees: Vec<SpanningTree>,
    height: u32,
    rate: Ratio,
    limit: Ratio,
    bound: Ratio,
}

impl Trees {
    /// The trees, those with the largest shares first.
    pub fn trees(&self) -> &[SpanningTree] {
        &self.trees
    }

    /// The all-reduce by them.
    pub fn schedule(&self) -> Schedule {
        spanning_trees(Collective::AllReduce, &self.trees)
    }

    /// Hops from the highest tree's root to the farthest rank.
    pub fn height(&self) -> u32 {
        self.height
    }

    /// The algorithm bandwidth of long calls, in bytes of the vector a second, as [`rate`](super::rate()) counts it.
    pub fn rate(&self) -> Ratio {
        self.rate
    }

    /// What no trees exceed that use both ways of their edges alike.
    pub fn limit(&self) -> Ratio {
        self.limit
    }

    /// What no schedule exceeds.
    pub fn bound(&self) -> Ratio {
        self.bound
    }

    fn is_better(&self, other: &Trees) -> bool {
        let key = |trees: &Trees| (trees.rate, Reverse(trees.trees.len()), Reverse(trees.height));
        key(self) > key(other)
    }
}

/// The fastest trees that are found; none for fewer than two or more than [`RANKS_MAX`] ranks, or where ranks are
/// apart.
pub fn all_reduce(topology: &Topology, options: &Options) -> Option<Trees> {
    frontier(topology, options).pop()
}

/// The fastest trees of at most 1, 2, 4, 8, … trees, each faster than those before.
pub fn frontier(topology: &Topology, options: &Options) -> Vec<Trees> {
    let mut found: Vec<Trees> = Vec::new();
    let Some(packing) = Packing::new(topology) else { return found };
    let most = options.steps.min(STEPS_PAIR * packing.wires.pairs.len() as u64);
    for (counts, part) in COUNTS {
        let counts = counts.filter(|count| *count <= options.trees_max);
        let known = found.last().map_or(Ratio::ZERO, |trees| trees.rate);
        if counts.clone().next().is_none() || known >= packing.most() {
            break;
        }
        let mut steps = most / part;
        found.extend(packing.fastest(counts, known, &mut steps).map(|found| found.trees));
    }
    found
}

/// Numbers of trees that are tried, for each step of the frontier, and the part of all steps that it takes.
const COUNTS: [(RangeInclusive<usize>, u64); 5] =
    [(1..=1, 16), (2..=2, 16), (3..=4, 8), (5..=8, 4), (9..=64, 2)];
/// Exchanges that are looked at for each pair of ranks, at most.
const STEPS_PAIR: u64 = 40_000;
/// Goals that are tried for a number of trees, at most.
const GOALS_MAX: usize = 24;

/// A machine whose wires trees share.
struct Packing {
    wires: Wires,
    lengths: Lengths,
    limit: Ratio,
    bound: Ratio,
}

/// Trees with their pairs.
struct Found {
    trees: Trees,
    pairs: Vec<Vec<u32>>,
    shares: Vec<u64>,
}

impl Packing {
    fn new(topology: &Topology) -> Option<Packing> {
        let ranks = topology.ranks();
        if !(2..=RANKS_MAX).contains(&ranks) {
            return None;
        }
        let topology = &topology.bundled();
        let wires = Wires::new(topology).filter(|wires| !wires.capacity.is_empty())?;
        let lengths = solve(&wires, 100 + 60 * wires.capacity.len());
        let limit = lengths.limit(&wires);
        let bound = bound(topology, Collective::AllReduce, &bounds::Options::default()).ok()?.rate;
        Some(Packing { wires, lengths, limit: limit.min(bound), bound })
    }

    /// What no trees exceed.
    fn most(&self) -> Ratio {
        self.limit
    }

    /// The fastest trees of one of these numbers that are faster than `known`.
    fn fastest(&self, counts: impl Iterator<Item = usize>, known: Ratio, steps: &mut u64) -> Option<Found> {
        let mut all: Vec<Goal> = Vec::new();
        for shares in counts.flat_map(shares) {
            all.extend(goals(&self.wires, &self.lengths, &shares, [known, self.most()]));
        }
        // Of equally fast ones first those whose small shares fill what large ones leave, then those of fewer trees
        // with fewer shares.
        let is_mixed = |goal: &Goal| MIXED.iter().any(|mixed| *goal.wanted.shares == *mixed);
        let parts =
            |goal: &Goal| (!is_mixed(goal), goal.wanted.shares.len(), goal.wanted.shares.iter().sum::<u64>());
        all.sort_by(|one, other| other.rate.cmp(&one.rate).then(parts(one).cmp(&parts(other))));
        let mut best: Option<Found> = None;
        let tries = all.len().min(GOALS_MAX) as u64;
        for (goal, number) in all.iter().zip(0..tries) {
            // Later goals are easier, but all have their part.
            let mut budget = *steps / (tries - number).clamp(4, 8);
            let given = budget;
            let found = Search::run(&self.wires, &goal.wanted, &mut budget);
            *steps -= given - budget;
            let Some((pairs, is_found)) = found else { continue };
            // What misses its goal may be faster than what is known all the same.
            let trees = self.trees(&pairs, &goal.wanted.shares);
            if trees.rate > known && best.as_ref().is_none_or(|best| trees.is_better(&best.trees)) {
                best = Some(Found { trees, pairs, shares: goal.wanted.shares.clone() });
            }
            if is_found {
                break;
            }
        }
        best
    }

    /// Trees of pairs as trees from their centres, equal ones as one.
    fn trees(&self, trees: &[Vec<u32>], shares: &[u64]) -> Trees {
        let mut load = vec![0u64; self.wires.capacity.len()];
        let mut merged: BTreeMap<Vec<u32>, u64> = BTreeMap::new();
        for (tree, share) in trees.iter().zip(shares) {
            let usage = self.wires.usage(tree);
            load.iter_mut().zip(usage).for_each(|(load, times)| *load += times * share);
            let mut sorted = tree.clone();
            sorted.sort_unstable();
            *merged.entry(sorted).or_default() += share;
        }
        let total: u64 = shares.iter().sum();
        let full = self.wires.capacity.iter().zip(&load).filter(|(_, load)| **load > 0);
        let rates =
            full.map(|(limit, load)| Ratio::new(u128::from(*limit) * u128::from(total), u128::from(*load)));
        let mut height = 0;
        let mut trees: Vec<SpanningTree> = merged
            .into_iter()
            .map(|(tree, share)| {
                let (parents, high) = span::parents(&self.wires, &tree);
                height = height.max(high);
                SpanningTree { parents, share: share as u32 }
            })
            .collect();
        trees.sort_by_key(|tree| Reverse(tree.share));
        let rate = rates.min().unwrap_or(Ratio::ZERO);
        Trees { trees, height, rate, limit: self.limit, bound: self.bound }
    }
}
