//! Rings one after another: a walk over all ranks in which every step must have room, and goes back where it has none.
//!
//! Source: the recursive search of NCCL at commit 5067397c, `src/graph/search.cc` (`ncclTopoSearchRecGpu`), which also takes
//! channels of one speed out of what links carry. Ours goes to the nearest rank first, so that ranks behind one uplink follow
//! each other; after a ring it tries the same ring backwards; and it begins anew in another order where rings are missing.
//! Invariant: a link never carries more than it can. Absent: an exchange of rings that were found (see `covers`).

use std::cmp::Reverse;

use super::covers::{Numbers, covers};
use super::part::{Graph, Placed};

/// Steps of one walk before it is given up: a third of the ranks' number to the power of three, at most.
const WALK_STEPS: fn(u64) -> u64 = |ranks| (ranks * ranks * ranks / 3).clamp(64, 4096);
/// Beginnings, at most.
const TRIES: usize = 4;

/// One ring in the making.
struct Walk<'a, 'b> {
    graph: &'a Graph<'b>,
    speed: u128,
    /// What a rank prefers among equally near ones: a number for each pair of ranks.
    taste: &'a [Vec<u32>],
    /// Whether the wider of equally near ones come first.
    is_wide_first: bool,
    order: Vec<u32>,
    hops: Vec<Vec<u32>>,
    is_in: Vec<bool>,
    budget: u64,
}

impl Walk<'_, '_> {
    /// Goes on from the last rank; whether the ring could be closed. It calls itself once a rank.
    fn go(&mut self, left: &mut [u128]) -> bool {
        if self.budget == 0 {
            return false;
        }
        self.budget -= 1;
        let (first, last) = (self.order[0], self.order[self.order.len() - 1]);
        let ways = self.graph.ways(left, last, self.speed);
        if self.order.len() == self.graph.ranks() {
            let Some(way) = self.graph.way(&ways, first).filter(|_| last != first) else { return false };
            self.graph.take(left, &way, self.speed);
            self.hops.push(way);
            return true;
        }
        let outside = self.graph.part.has_outside;
        let mut next: Vec<(u32, Reverse<u128>, u32, u32)> = (0..self.graph.ranks() as u32)
            .filter(|rank| !self.is_in[*rank as usize])
            .filter_map(|rank| {
                let taste = self.taste[last as usize][rank as usize];
                let width = if self.is_wide_first { self.graph.width(&ways, left, rank) } else { 0 };
                Some((ways.hops(rank)?, Reverse(width), taste, rank))
            })
            .collect();
        next.sort_unstable();
        for (_, _, _, rank) in next {
            // The rank outside is the first.
            debug_assert!(!outside || rank as usize + 1 < self.graph.ranks());
            let Some(way) = self.graph.way(&ways, rank) else { continue };
            self.graph.take(left, &way, self.speed);
            self.order.push(rank);
            self.is_in[rank as usize] = true;
            self.hops.push(way);
            if self.go(left) {
                return true;
            }
            let way = self.hops.pop().unwrap_or_default();
            self.graph.give(left, &way, self.speed);
            self.is_in[rank as usize] = false;
            self.order.pop();
        }
        false
    }
}

/// The rank with which orders begin.
fn first(graph: &Graph<'_>) -> u32 {
    if graph.part.has_outside { graph.ranks() as u32 - 1 } else { 0 }
}

/// Up to `count` rings by walks; what they take is taken out of `left`.
fn walks(
    graph: &Graph<'_>,
    left: &mut [u128],
    speed: u128,
    count: usize,
    try_number: usize,
    steps: &mut u64,
) -> Vec<Placed> {
    let ranks = graph.ranks();
    let mut numbers = Numbers::new();
    let mut taste: Vec<Vec<u32>> = (0..ranks)
        // The rank behind comes first.
        .map(|rank| (0..ranks).map(|to| ((to + ranks - rank) % ranks) as u32).collect())
        .collect();
    for _ in 0..try_number * ranks * ranks {
        let (one, other, row) = (numbers.below(ranks), numbers.below(ranks), numbers.below(ranks));
        taste[row].swap(one, other);
    }
    let mut rings = Vec::new();
    while rings.len() < count {
        let start = first(graph);
        let mut is_in = vec![false; ranks];
        is_in[start as usize] = true;
        let budget = WALK_STEPS(ranks as u64).min(*steps);
        let (order, hops, is_wide_first) = (vec![start], Vec::new(), try_number.is_multiple_of(2));
        let mut walk = Walk { graph, speed, taste: &taste, is_wide_first, order, hops, is_in, budget };
        let is_closed = walk.go(left);
        *steps -= budget - walk.budget;
        if !is_closed {
            break;
        }
        let mut backwards = walk.order.clone();
        backwards[1..].reverse();
        rings.push(Placed { order: walk.order, hops: walk.hops, speed });
        if rings.len() < count && ranks > 2 {
            rings.extend(graph.place(left, &backwards, speed));
        }
    }
    rings
}

/// Up to `count` rings of `speed`.
pub(super) fn pack(
    graph: &Graph<'_>,
    left: &[u128],
    speed: u128,
    count: usize,
    steps: &mut u64,
) -> Vec<Placed> {
    let mut best = Vec::new();
    for try_number in 0..TRIES {
        if *steps == 0 {
            break;
        }
        let mut rest = left.to_vec();
        let found = walks(graph, &mut rest, speed, count, try_number, steps);
        if found.len() > best.len() {
            best = found;
        }
        if best.len() < count && try_number == 0 && count > 1 {
            let mut rest = left.to_vec();
            let orders = covers(graph, left, speed, count, first(graph) as usize, steps);
            let found: Vec<Placed> =
                orders.iter().filter_map(|order| graph.place(&mut rest, order, speed)).collect();
            if found.len() > best.len() {
                best = found;
            }
        }
        if best.len() == count {
            break;
        }
    }
    best
}
