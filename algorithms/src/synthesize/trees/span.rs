//! Spanning trees of least weight, and the shape of a tree: its centre, its height, its two sides without an edge.
//!
//! Source: R. C. Prim, "Shortest connection networks and some generalizations" (1957). Invariant: of edges of equal
//! weight the one that makes the tree less high is taken, then the one of the lowest numbers. Absent: what trees may
//! carry.

use super::wires::Wires;
use crate::Rank;

/// The pairs of a spanning tree, grown from `root`; a pair's weight may depend on those taken before.
pub(super) fn grow<W>(
    wires: &Wires,
    root: u32,
    mut weight: impl FnMut(u32) -> W,
    mut take: impl FnMut(u32),
) -> Vec<u32>
where
    W: Ord + Copy,
{
    let mut depth: Vec<Option<u32>> = vec![None; wires.ranks];
    depth[root as usize] = Some(0);
    let mut tree = Vec::with_capacity(wires.ranks.saturating_sub(1));
    while tree.len() + 1 < wires.ranks {
        let mut best: Option<(W, u32, u32, u32)> = None;
        for (from, depth_of) in depth.iter().enumerate().filter_map(|(at, depth)| Some((at, (*depth)?))) {
            for &(to, pair) in wires.near[from].iter().filter(|(to, _)| depth[*to as usize].is_none()) {
                let found = (weight(pair), depth_of, to, pair);
                if best.is_none_or(|best| found < best) {
                    best = Some(found);
                }
            }
        }
        let Some((_, above, to, pair)) = best else { break };
        depth[to as usize] = Some(above + 1);
        tree.push(pair);
        take(pair);
    }
    tree
}

/// The pairs of a spanning tree of the least weight.
pub(super) fn least(wires: &Wires, weights: &[u64], root: u32) -> Vec<u32> {
    // For each rank outside the lightest way in: weight, depth, pair.
    let mut ways: Vec<Option<(u64, u32, u32)>> = vec![None; wires.ranks];
    let mut inside = vec![false; wires.ranks];
    let mut tree = Vec::with_capacity(wires.ranks.saturating_sub(1));
    let (mut at, mut depth) = (root, 0);
    loop {
        inside[at as usize] = true;
        for &(to, pair) in wires.near[at as usize].iter().filter(|(to, _)| !inside[*to as usize]) {
            let way = (weights[pair as usize], depth, pair);
            if ways[to as usize].is_none_or(|known| way < known) {
                ways[to as usize] = Some(way);
            }
        }
        let outside = (0..wires.ranks as u32).filter(|rank| !inside[*rank as usize]);
        let next = outside.filter_map(|rank| Some((ways[rank as usize]?, rank))).min();
        let Some(((_, above, pair), rank)) = next else { return tree };
        tree.push(pair);
        (at, depth) = (rank, above + 1);
    }
}

/// The neighbours of each rank in a tree.
pub(super) fn neighbours(wires: &Wires, tree: &[u32]) -> Vec<Vec<u32>> {
    let mut near = vec![Vec::new(); wires.ranks];
    for pair in tree {
        let (one, other) = wires.pairs[*pair as usize];
        near[one as usize].push(other);
        near[other as usize].push(one);
    }
    near
}

/// Ranks in the order in which they are reached from `root`, with their parents and distances.
pub(super) fn reached(near: &[Vec<u32>], root: u32) -> Vec<(u32, Option<u32>, u32)> {
    let mut order = vec![(root, None, 0)];
    let mut at = 0;
    while let Some(&(rank, parent, distance)) = order.get(at) {
        at += 1;
        let next = near[rank as usize].iter().filter(|next| Some(**next) != parent);
        order.extend(next.map(|next| (*next, Some(rank), distance + 1)));
    }
    order
}

/// The rank whose farthest rank is nearest.
pub(super) fn centre(near: &[Vec<u32>]) -> u32 {
    let last = |from: u32| reached(near, from).last().map_or(from, |(rank, ..)| *rank);
    let one = last(last(0));
    let order = reached(near, one);
    let Some(&(mut at, _, length)) = order.last() else { return 0 };
    let mut parents = vec![None; near.len()];
    order.iter().for_each(|(rank, parent, _)| parents[*rank as usize] = *parent);
    for _ in 0..length / 2 {
        at = parents[at as usize].unwrap_or(at);
    }
    at
}

/// The parent of each rank in a tree from its centre, and its height in hops.
pub(super) fn parents(wires: &Wires, tree: &[u32]) -> (Vec<Option<Rank>>, u32) {
    let near = neighbours(wires, tree);
    let order = reached(&near, centre(&near));
    let mut parents = vec![None; wires.ranks];
    order.iter().for_each(|(rank, parent, _)| parents[*rank as usize] = parent.map(Rank));
    (parents, order.last().map_or(0, |(.., distance)| *distance))
}

/// For each rank whether it is on the side of the first rank of `without`, which is a pair of the tree.
pub(super) fn side(wires: &Wires, near: &[Vec<u32>], without: u32) -> Vec<bool> {
    let (one, other) = wires.pairs[without as usize];
    let mut inside = vec![false; wires.ranks];
    inside[one as usize] = true;
    let mut queue = vec![one];
    while let Some(rank) = queue.pop() {
        for next in &near[rank as usize] {
            let is_without = (rank, *next) == (one, other);
            if !is_without && !std::mem::replace(&mut inside[*next as usize], true) {
                queue.push(*next);
            }
        }
    }
    inside
}
