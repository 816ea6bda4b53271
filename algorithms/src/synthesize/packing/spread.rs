//! What passes a switch, spread over pairs of its neighbours.
//!
//! Invariant: amounts are whole, pairs that are not allowed get none, and no more passes a port than it can carry. As
//! much passes as can; among all ways to do that, the largest amount of a pair is least.

use crate::bounds::flow::{ENDLESS, Flow};

/// Amounts for pairs `(entering port, leaving port)`; `is_allowed` says which pairs may have any.
pub(super) fn spread(
    enter: &[u128],
    leave: &[u128],
    is_allowed: impl Fn(usize, usize) -> bool,
) -> Vec<(usize, usize, u128)> {
    let pairs: Vec<(usize, usize)> = (0..enter.len())
        .flat_map(|from| (0..leave.len()).map(move |to| (from, to)))
        .filter(|(from, to)| is_allowed(*from, *to))
        .collect();
    let (mut enter, mut leave) = (enter.to_vec(), leave.to_vec());
    // What every pair can have at once.
    let partners = |own: usize, is_entering: bool| {
        let of = |pair: &(usize, usize)| if is_entering { pair.0 } else { pair.1 };
        pairs.iter().filter(|pair| of(pair) == own).count() as u128
    };
    let shares = |ports: &[u128], is_entering: bool| -> Option<u128> {
        let share = |(port, capacity): (usize, &u128)| capacity.checked_div(partners(port, is_entering));
        ports.iter().enumerate().filter_map(share).min()
    };
    let even = shares(&enter, true).into_iter().chain(shares(&leave, false)).min().unwrap_or(0);
    for &(from, to) in &pairs {
        enter[from] -= even;
        leave[to] -= even;
    }
    // The rest by the least limit of a pair with which as much passes as without one.
    let all = passing(&enter, &leave, &pairs, ENDLESS).0;
    let (mut below, mut limit) = (0, enter.iter().chain(&leave).copied().max().unwrap_or(0));
    while below + 1 < limit {
        let middle = below + (limit - below) / 2;
        if passing(&enter, &leave, &pairs, middle).0 == all { limit = middle } else { below = middle }
    }
    let rest = passing(&enter, &leave, &pairs, limit).1;
    let amounts = pairs.iter().zip(rest).map(|(&(from, to), rest)| (from, to, even + rest));
    amounts.filter(|(.., amount)| *amount > 0).collect()
}

/// The most that passes with at most `limit` by each pair, and what passes by each.
fn passing(enter: &[u128], leave: &[u128], pairs: &[(usize, usize)], limit: u128) -> (u128, Vec<u128>) {
    let (source, sink) = (enter.len() + leave.len(), enter.len() + leave.len() + 1);
    let mut flow = Flow::new(sink + 1);
    pairs.iter().for_each(|(from, to)| flow.add(*from, enter.len() + to, limit));
    enter.iter().enumerate().for_each(|(port, capacity)| flow.add(source, port, *capacity));
    leave.iter().enumerate().for_each(|(port, capacity)| flow.add(enter.len() + port, sink, *capacity));
    let value = flow.maximum(source, sink);
    (value, (0..pairs.len()).map(|pair| flow.passing(pair)).collect())
}
