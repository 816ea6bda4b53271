//! Good lengths of links for an all-to-all, by multiplicative weights.
//!
//! Every pair's bytes take the shortest path again and again, and each use makes the links of the path longer. The
//! lengths approach those of the linear program's dual. Floating point is enough here: the lengths are then whole
//! numbers, and what they prove is computed exactly.
//!
//! Source: N. Garg and J. Könemann, "Faster and simpler algorithms for multicommodity flow" (1998), and L. Fleischer
//! (2000). Invariant: only additions, multiplications, divisions and comparisons in one order, so that every machine
//! finds the same lengths.

use super::network::Network;
use super::paths::{FAR, distance_bound, distances};
use super::ratio::Ratio;

/// The growth of a link that one round fills.
const GROWTH: f64 = 0.25;
/// Rounds in which each pair is routed once.
const ROUNDS: usize = 80;
/// The longest length as a whole number.
const SCALE: f64 = (1u64 << 24) as f64;

/// The best of the lengths that were met, with the rate of each pair that they allow.
pub(super) fn lengths(network: &Network) -> Option<(Ratio, Vec<u64>)> {
    let largest = network.arcs.iter().map(|arc| arc.capacity).max()? as f64;
    let capacity: Vec<f64> = network.arcs.iter().map(|arc| arc.capacity as f64 / largest).collect();
    let mut weight: Vec<f64> = capacity.iter().map(|capacity| 1.0 / capacity).collect();
    let mut best: Option<(Ratio, Vec<u64>)> = None;
    let mut load = vec![0.0f64; network.arcs.len()];
    let mut order = Vec::new();
    for _ in 0..ROUNDS {
        let whole = rounded(&weight);
        let found = distance_bound(network, &whole)?;
        if best.as_ref().is_none_or(|(known, _)| found < *known) {
            best = Some((found, whole.clone()));
        }
        load.fill(0.0);
        for source in 0..network.ranks {
            route(network, &whole, source, &mut order, &mut load);
        }
        let fullest = load.iter().zip(&capacity).map(|(load, capacity)| load / capacity).fold(0.0, f64::max);
        for ((weight, load), capacity) in weight.iter_mut().zip(&load).zip(&capacity) {
            *weight *= 1.0 + GROWTH * load / capacity / fullest;
        }
    }
    best
}

fn rounded(weight: &[f64]) -> Vec<u64> {
    let longest = weight.iter().copied().fold(0.0, f64::max);
    weight.iter().map(|weight| (weight / longest * SCALE) as u64).collect()
}

/// Adds a unit for every rank along a tree of shortest paths.
fn route(network: &Network, lengths: &[u64], source: u32, order: &mut Vec<u32>, load: &mut [f64]) {
    let distance = distances(network, lengths, source, order);
    let mut place = vec![u32::MAX; network.nodes()];
    order.iter().zip(0..).for_each(|(node, at)| place[*node as usize] = at);
    let mut passing = vec![0.0f64; network.nodes()];
    for &node in order.iter().rev().filter(|node| **node != source) {
        let here = passing[node as usize] + f64::from(u8::from(node < network.ranks));
        let last = network.entering[node as usize].iter().find(|number| {
            let arc = &network.arcs[**number as usize];
            let from = distance[arc.from as usize];
            // Links of length 0 must not lead in a circle.
            let earlier = place[arc.from as usize] < place[node as usize];
            from != FAR && earlier && from + u128::from(lengths[**number as usize]) == distance[node as usize]
        });
        if let Some(&number) = last {
            load[number as usize] += here;
            passing[network.arcs[number as usize].from as usize] += here;
        }
    }
}
