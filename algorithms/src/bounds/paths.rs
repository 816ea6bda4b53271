//! Shortest paths by whole lengths of arcs, and the loads when all pairs share theirs equally.
//!
//! Source: E. Dijkstra (1959); the sums over all shortest paths are those of U. Brandes, "A faster algorithm for
//! betweenness centrality" (2001). Invariant: exact, or absent where a number does not fit.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::network::Network;
use super::ratio::Ratio;

/// Not reached.
pub(super) const FAR: u128 = u128::MAX;

/// For each node its distance from `source`; in `order` the nodes that are reached, nearest first.
pub(super) fn distances(network: &Network, lengths: &[u64], source: u32, order: &mut Vec<u32>) -> Vec<u128> {
    let mut distance = vec![FAR; network.nodes()];
    let mut done = vec![false; network.nodes()];
    order.clear();
    distance[source as usize] = 0;
    let mut heap = BinaryHeap::from([Reverse((0u128, source))]);
    while let Some(Reverse((here, node))) = heap.pop() {
        if std::mem::replace(&mut done[node as usize], true) {
            continue;
        }
        order.push(node);
        for &number in &network.leaving[node as usize] {
            let to = network.arcs[number as usize].to;
            let there = here + u128::from(lengths[number as usize]);
            if there < distance[to as usize] {
                distance[to as usize] = there;
                heap.push(Reverse((there, to)));
            }
        }
    }
    distance
}

/// The rate of each ordered pair that no all-to-all can exceed: `sum of capacity * length / sum of distances`. None
/// where a rank is not reached or all distances are 0.
pub(super) fn distance_bound(network: &Network, lengths: &[u64]) -> Option<Ratio> {
    let volume = network.arcs.iter().zip(lengths).try_fold(0u128, |sum, (arc, length)| {
        sum.checked_add(arc.capacity.checked_mul(u128::from(*length))?)
    })?;
    let mut sum = 0u128;
    let mut order = Vec::new();
    for source in 0..network.ranks {
        let distance = distances(network, lengths, source, &mut order);
        for far in &distance[..network.ranks as usize] {
            sum = sum.checked_add(Some(*far).filter(|far| *far != FAR)?)?;
        }
    }
    (sum > 0).then(|| Ratio::new(volume, sum))
}

/// The rate of each ordered pair when every pair's bytes take all of its shortest paths in equal parts. Lengths are
/// above 0.
pub(super) fn shared_paths(network: &Network, lengths: &[u64]) -> Option<Ratio> {
    let one = Ratio::new(1, 1);
    let mut loads = vec![Ratio::ZERO; network.arcs.len()];
    let mut order = Vec::new();
    for source in 0..network.ranks {
        let distance = distances(network, lengths, source, &mut order);
        let on_path = |number: u32| {
            let arc = &network.arcs[number as usize];
            let from = distance[arc.from as usize];
            from != FAR && from + u128::from(lengths[number as usize]) == distance[arc.to as usize]
        };
        let mut paths = vec![0u128; network.nodes()];
        paths[source as usize] = 1;
        for &node in &order {
            for &number in network.leaving[node as usize].iter().filter(|number| on_path(**number)) {
                let to = network.arcs[number as usize].to as usize;
                paths[to] = paths[to].checked_add(paths[node as usize])?;
            }
        }
        let mut passing = vec![Ratio::ZERO; network.nodes()];
        for &node in order.iter().rev() {
            let ends = node < network.ranks && node != source;
            let here = if ends { passing[node as usize].checked_add(one)? } else { passing[node as usize] };
            if here.is_zero() {
                continue;
            }
            for &number in network.entering[node as usize].iter().filter(|number| on_path(**number)) {
                let from = network.arcs[number as usize].from as usize;
                let share = here.checked_mul(Ratio::new(paths[from], paths[node as usize]))?;
                loads[number as usize] = loads[number as usize].checked_add(share)?;
                passing[from] = passing[from].checked_add(share)?;
            }
        }
    }
    let rate = |(arc, load): (&super::network::Arc, &Ratio)| {
        Some(Ratio::new(arc.capacity, 1).checked_mul(load.inverse()?))
    };
    network.arcs.iter().zip(&loads).filter_map(rate).try_fold(None, |least: Option<Ratio>, rate| {
        let rate = rate?;
        Some(Some(least.map_or(rate, |least| least.min(rate))))
    })?
}

/// Lengths that fall with the capacity, as whole numbers above 0.
pub(super) fn inverse_lengths(network: &Network) -> Vec<u64> {
    let largest = network.arcs.iter().map(|arc| arc.capacity).max().unwrap_or(1);
    // 2^20 for the largest; the slowest links are all equally far.
    let length = |capacity: u128| ((largest << 20) / capacity).min(1 << 44) as u64;
    network.arcs.iter().map(|arc| length(arc.capacity)).collect()
}
