//! How much all pairs of ranks can exchange at once over hops, and ways that carry nearly as much, by multiplicative
//! weights.
//!
//! Every wire has a length. Each pair takes the shortest way again and again, and what it loads becomes longer. The
//! lengths approach those of the dual of the maximum concurrent flow: whatever they are, `sum of capacity * length /
//! sum of distances` is at least the flow. The ways that were taken are what rounding chooses from.
//!
//! Source: N. Garg and J. Könemann, "Faster and simpler algorithms for multicommodity flow" (1998); L. Fleischer,
//! "Approximating fractional multicommodity flow independent of the number of commodities" (2000), whose phases these
//! rounds are. Invariant: only additions, multiplications, divisions and comparisons of floating point in one order,
//! so that every machine finds the same. Absent: exactness. The rate of what is made of the ways is counted in whole
//! numbers.

use super::hops::Hops;

/// Ways that are remembered for a pair: those with the largest flow.
const WAYS_MAX: usize = 24;
/// The first growth of a wire that a round fills; it falls with the rounds.
const GROWTH: f64 = 0.5;
/// Lengths are scaled down when one is longer.
const LONGEST: f64 = 1e60;

/// A way from rank to rank, by the numbers of its hops.
#[derive(Clone, Debug)]
pub(super) struct Way {
    pub(super) hops: Vec<u32>,
    /// Of all that the pair sent, in rounds.
    pub(super) flow: f64,
}

/// The ways of one pair.
#[derive(Clone, Debug)]
pub(super) struct Pair {
    pub(super) from: u32,
    pub(super) to: u32,
    pub(super) ways: Vec<Way>,
}

/// What was found.
#[derive(Clone, Debug)]
pub(super) struct Flow {
    /// No pair's rate can be more, as a part of the rate that was asked for.
    pub(super) at_most: f64,
    pub(super) pairs: Vec<Pair>,
}

/// The flow of all pairs, where each wants `rate` bytes a second; none where a rank is not reached.
pub(super) fn flow(hops: &Hops, rate: f64, rounds: u32) -> Option<Flow> {
    let capacity: Vec<f64> = hops.capacity.iter().map(|capacity| capacity / rate).collect();
    let mut length: Vec<f64> = capacity.iter().map(|capacity| 1.0 / capacity).collect();
    let mut load = vec![0.0f64; capacity.len()];
    let ranks = hops.ranks() as u32;
    let to_all = |from: u32| (0..ranks).filter(move |to| *to != from);
    let pair = |(from, to)| Pair { from, to, ways: Vec::new() };
    let all = hops.sources.iter().flat_map(|from| to_all(*from).map(move |to| (*from, to)));
    let mut pairs: Vec<Pair> = all.map(pair).collect();
    let mut at_most = f64::INFINITY;
    let mut search = Search::new(hops);
    for round in 0..rounds {
        let mut distances = 0.0;
        let growth = GROWTH / (1.0 + f64::from(round) / 8.0);
        // Later rounds know the lengths better.
        let weight = f64::from(round + 1);
        for of_source in pairs.chunks_mut(ranks as usize - 1) {
            search.run(hops, &length, of_source[0].from);
            load.fill(0.0);
            for pair in of_source.iter_mut() {
                distances += search.distance(pair.to)?;
                let way = search.way(pair.from, pair.to);
                for hop in &way {
                    hops.wires[*hop as usize].iter().for_each(|wire| load[*wire as usize] += 1.0);
                }
                remember(&mut pair.ways, way, weight);
            }
            for ((length, load), capacity) in length.iter_mut().zip(&load).zip(&capacity) {
                *length *= 1.0 + growth * load / capacity;
            }
        }
        let volume: f64 = length.iter().zip(&capacity).map(|(length, capacity)| length * capacity).sum();
        // Lengths have grown since the distances were taken, so that these are no longer than those of now.
        at_most = at_most.min(volume / distances);
        if length.iter().any(|length| *length > LONGEST) {
            length.iter_mut().for_each(|length| *length /= LONGEST);
        }
    }
    Some(Flow { at_most, pairs })
}

fn remember(ways: &mut Vec<Way>, hops: Vec<u32>, weight: f64) {
    if let Some(known) = ways.iter_mut().find(|way| way.hops == hops) {
        known.flow += weight;
        return;
    }
    if ways.len() == WAYS_MAX {
        let least = |least: usize, at: usize| if ways[at].flow < ways[least].flow { at } else { least };
        let least = (1..ways.len()).fold(0, least);
        ways.swap_remove(least);
    }
    ways.push(Way { hops, flow: weight });
}

/// Shortest ways from one rank.
struct Search {
    hop_length: Vec<f64>,
    /// Per rank its distance, hops, and the rank and hop before.
    best: Vec<(f64, u32, u32, u32)>,
    done: Vec<bool>,
}

impl Search {
    fn new(hops: &Hops) -> Search {
        let ranks = hops.ranks();
        Search {
            hop_length: vec![0.0; hops.wires.len()],
            best: vec![(f64::INFINITY, 0, 0, 0); ranks],
            done: vec![false; ranks],
        }
    }

    fn run(&mut self, hops: &Hops, length: &[f64], from: u32) {
        for (of_hop, wires) in self.hop_length.iter_mut().zip(&hops.wires) {
            *of_hop = wires.iter().map(|wire| length[*wire as usize]).sum();
        }
        self.best.fill((f64::INFINITY, u32::MAX, 0, 0));
        self.done.fill(false);
        self.best[from as usize] = (0.0, 0, from, 0);
        loop {
            let open =
                (0..self.best.len()).filter(|rank| !self.done[*rank] && self.best[*rank].0 < f64::INFINITY);
            let nearer = |one: usize, other: usize| {
                let (a, b) = (self.best[one], self.best[other]);
                if (b.0, b.1) < (a.0, a.1) { other } else { one }
            };
            let Some(rank) = open.reduce(nearer) else { return };
            self.done[rank] = true;
            let (distance, count, ..) = self.best[rank];
            for &(to, hop) in &hops.leaving[rank] {
                let next = (distance + self.hop_length[hop as usize], count + 1);
                let known = &mut self.best[to as usize];
                if next < (known.0, known.1) {
                    *known = (next.0, next.1, rank as u32, hop);
                }
            }
        }
    }

    fn distance(&self, to: u32) -> Option<f64> {
        Some(self.best[to as usize].0).filter(|distance| *distance < f64::INFINITY)
    }

    fn way(&self, from: u32, to: u32) -> Vec<u32> {
        let mut way = Vec::new();
        let mut at = to;
        while at != from {
            let (_, _, before, hop) = self.best[at as usize];
            way.push(hop);
            at = before;
        }
        way.reverse();
        way
    }
}
