//! Lengths of links that show where a machine is narrow, by multiplicative weights.
//!
//! Every demand takes the shortest path again and again, and each use makes the links of the path longer. The lengths
//! approach those of the dual of the linear program of the maximum concurrent flow. Floating point is enough here: the
//! lengths are then whole numbers, and what they prove is computed exactly.
//!
//! Source: N. Garg and J. Könemann, "Faster and simpler algorithms for multicommodity flow" (1998), and L. Fleischer
//! (2000). Invariant: only additions, multiplications, divisions and comparisons in one order, so that every machine
//! finds the same lengths.

use super::network::Network;
use super::paths::{FAR, distance_bound, distances};
use super::ratio::Ratio;

/// The growth of the fullest link in a round.
const GROWTH: f64 = 0.125;
/// Rounds in which each pair is routed once.
const ROUNDS: usize = 120;
/// The longest of the small lengths that are tried.
const STEPS_MAX: u64 = 8;
/// The longest length as a whole number.
const SCALE: f64 = (1u64 << 24) as f64;

/// The lengths of a network's arcs, which change with every round.
pub(super) struct Weights {
    capacity: Vec<f64>,
    weight: Vec<f64>,
    /// Of the fullest link in a round, as a part of its length.
    growth: f64,
}

impl Weights {
    /// Lengths that fall with the capacity; none without arcs.
    pub(super) fn new(network: &Network, growth: f64) -> Option<Weights> {
        let largest = network.arcs.iter().map(|arc| arc.capacity).max()? as f64;
        let capacity: Vec<f64> = network.arcs.iter().map(|arc| arc.capacity as f64 / largest).collect();
        let weight = capacity.iter().map(|capacity| 1.0 / capacity).collect();
        Some(Weights { capacity, weight, growth })
    }

    /// As whole numbers.
    fn lengths(&self) -> Vec<u64> {
        let longest = self.weight.iter().copied().fold(0.0, f64::max);
        self.weight.iter().map(|weight| (weight / longest * SCALE) as u64).collect()
    }

    /// Routes what each node demands to send to each other one (none for none) over shortest paths, makes them longer, and
    /// gives what passed each arc. None where a demand has no path or a sum does not fit.
    pub(super) fn round<'a>(
        &mut self,
        network: &Network,
        demands: impl Fn(u32) -> Option<&'a [u128]>,
    ) -> Option<Vec<u128>> {
        let lengths = self.lengths();
        let mut load = vec![0u128; network.arcs.len()];
        for source in 0..network.nodes() as u32 {
            if let Some(demands) = demands(source) {
                route(network, &lengths, source, demands, &mut load)?;
            }
        }
        let full = |(load, capacity): (&u128, &f64)| *load as f64 / capacity;
        let fullest = load.iter().zip(&self.capacity).map(full).fold(0.0, f64::max);
        if fullest > 0.0 {
            for (weight, at) in self.weight.iter_mut().zip(load.iter().zip(&self.capacity)) {
                *weight *= 1.0 + self.growth * full(at) / fullest;
            }
        }
        Some(load)
    }
}

/// The best of the lengths that were met for an all-to-all, with the rate of each pair that they allow.
pub(super) fn lengths(network: &Network) -> Option<(Ratio, Vec<u64>)> {
    let ones: Vec<u128> =
        (0..network.nodes()).map(|node| u128::from(node < network.ranks as usize)).collect();
    let mut weights = Weights::new(network, GROWTH)?;
    let mut best: Option<(Ratio, Vec<u64>)> = None;
    for _ in 0..ROUNDS {
        let lengths = weights.lengths();
        let found = distance_bound(network, &lengths)?;
        if best.as_ref().is_none_or(|(known, _)| found < *known) {
            best = Some((found, lengths));
        }
        weights.round(network, |source| (source < network.ranks).then_some(&ones[..]))?;
    }
    let (_, lengths) = best.clone()?;
    // Links of equal importance have equal lengths in the dual: small whole numbers often hit it.
    let longest = lengths.iter().copied().max()?;
    for most in 1..=STEPS_MAX {
        let small: Vec<u64> =
            lengths.iter().map(|length| (length * most + longest / 2) / longest.max(1)).collect();
        let found = distance_bound(network, &small).map(|found| (found, small));
        best = best.into_iter().chain(found).min_by_key(|(found, _)| *found);
    }
    best
}

/// Adds the demands of a node along a tree of shortest paths.
fn route(network: &Network, lengths: &[u64], source: u32, demands: &[u128], load: &mut [u128]) -> Option<()> {
    if demands.iter().all(|demand| *demand == 0) {
        return Some(());
    }
    let mut order = Vec::new();
    let distance = distances(network, lengths, source, &mut order);
    let mut place = vec![usize::MAX; network.nodes()];
    order.iter().enumerate().for_each(|(at, node)| place[*node as usize] = at);
    let unreached = |(demand, place): (&u128, &usize)| *demand > 0 && *place == usize::MAX;
    if demands.iter().zip(&place).any(unreached) {
        return None;
    }
    let mut passing = demands.to_vec();
    for &node in order.iter().rev().filter(|node| **node != source) {
        let here = passing[node as usize];
        let last = network.entering[node as usize].iter().find(|number| {
            let arc = &network.arcs[**number as usize];
            let from = distance[arc.from as usize];
            // Links of length 0 must not lead in a circle.
            let earlier = place[arc.from as usize] < place[node as usize];
            from != FAR && earlier && from + u128::from(lengths[**number as usize]) == distance[node as usize]
        });
        if let Some(&number) = last {
            let from = &mut passing[network.arcs[number as usize].from as usize];
            *from = from.checked_add(here)?;
            load[number as usize] = load[number as usize].checked_add(here)?;
        }
    }
    Some(())
}
