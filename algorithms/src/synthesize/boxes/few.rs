//! At most eight trees over boxes, with shares that together fill every door.
//!
//! One tree a rail leaves a door unused wherever a box is a leaf, so that `b` boxes reach `(b - 1) / b` of what their
//! doors carry. Trees of unequal shares that change rails from box to box fill them: over four boxes of eight doors
//! four trees with a whole door an edge and four with a third, over sixteen one of a whole, six of a half and one of
//! a quarter, which are not searched but laid. Inside a box a tree branches at the ranks that other trees branch at least.
//!
//! Invariant: doors are loaded as the search over boxes says; edges keep to one rail. Absent: boxes that lack a door
//! (`reduce` has those); what links carry inside of boxes, for which several shapes are made.

use super::super::trees::{Between, Joined, hung, joined};
use super::rails::Inside;
use crate::Rank;
use crate::builders::SpanningTree;

/// The most boxes that are searched; over more the search finds no more than one tree a rail has.
const BOXES_MAX: usize = 10;

/// Trees of the boxes, in shapes that branch more and more; none for other boxes.
pub(super) fn trees(boxes: &[Inside]) -> Vec<(Vec<SpanningTree>, u32)> {
    let rails = boxes.first().map_or(0, |of| of.doors.len());
    let is_whole = boxes.iter().all(|of| of.doors.iter().all(Option::is_some));
    if boxes.len() < 3 || !is_whole {
        return Vec::new();
    }
    let capacity = boxes.iter().flat_map(|of| of.doors.iter().flatten().map(|door| door.capacity)).collect();
    let limit = |at: usize, rail: usize| (at * rails + rail) as u32;
    let mut between = Vec::new();
    for (one, other) in (0..boxes.len()).flat_map(|one| (one + 1..boxes.len()).map(move |other| (one, other)))
    {
        between.extend((0..rails).map(|rail| Between {
            parts: (one as u32, other as u32),
            limits: (limit(one, rail), limit(other, rail)),
        }));
    }
    let found = match woven(boxes.len() as u32, rails) {
        Some(trees) => {
            let pair = |(one, other, rail): &(u32, u32, u32)| {
                let limits = (limit(*one as usize, *rail as usize), limit(*other as usize, *rail as usize));
                between.iter().position(|of| of.limits == limits).map(|pair| pair as u32)
            };
            let pairs = |edges: &[Edge]| edges.iter().map(pair).collect::<Option<Vec<u32>>>();
            let tree =
                |(edges, share): &(Vec<Edge>, u32)| hung(boxes.len(), &between, &pairs(edges)?, *share);
            trees.iter().map(tree).collect::<Option<Vec<Joined>>>()
        }
        None if boxes.len() <= BOXES_MAX => joined(boxes.len(), capacity, &between),
        None => None,
    };
    let Some(mut found) = found else { return Vec::new() };
    found.sort_by_key(|tree| std::cmp::Reverse(tree.share));
    let rail = |pair: u32| between[pair as usize].limits.0 as usize % rails;
    let shape = |wide: (u64, u64)| Shaping::new(boxes, &found, wide).run(&found, rail);
    WIDE.into_iter().map(shape).collect()
}

/// Two boxes, the lower one first, and the rail between them.
type Edge = (u32, u32, u32);

/// Trees over 12, 14 or 16 boxes of 8 doors, with quarters of a door as shares: one of 4, six of 2 and one of 1.
///
/// The first alternates between rails 5 and 6 along all boxes. Five have a rail each, a cycle of all boxes without an
/// edge. The sixth of a half has those edges, which join the pairs of a matching on rail 7; the last runs along rail 7
/// beside the matching. Where pairs are more than those edges join, rail 6 has room between the first box and the
/// last; over 16 boxes one of the five gives two edges and has that room as well.
fn woven(boxes: u32, rails: usize) -> Option<Vec<(Vec<Edge>, u32)>> {
    if rails != 8 || ![12, 14, 16].contains(&boxes) {
        return None;
    }
    let last = boxes - 1;
    let path = |rail: &dyn Fn(u32) -> u32| (0..last).map(|at| (at, at + 1, rail(at))).collect::<Vec<Edge>>();
    let bond = |number: u32, rail: u32| (2 * number + 1, 2 * number + 2, rail);
    let mut trees = vec![(path(&|at| 5 + at % 2), 4)];
    let mut sixth: Vec<Edge> = (0..boxes / 2).map(|pair| (2 * pair, 2 * pair + 1, 7)).collect();
    for rail in 0..5 {
        let given = bond((rail + 4) % 5, rail);
        sixth.push(given);
        let cycle = path(&|_| rail).into_iter().chain([(0, last, rail)]);
        trees.push((cycle.filter(|edge| *edge != given).collect(), 2));
    }
    if boxes > 12 {
        sixth.push((0, last, 6));
    }
    if boxes == 16 {
        // Without the bonds 4 and 5 the first box is in one part of this cycle and the last in the other.
        let parts: [&[u32]; 2] = [&[10, 0, 1, 2, 3, 4, 11], &[12, 13, 14, 15, 5, 6, 7, 8, 9]];
        let along = parts.into_iter().flat_map(|part| part.windows(2));
        let edge = |ends: &[u32]| (ends[0].min(ends[1]), ends[0].max(ends[1]), 0);
        trees[1].0 = along.map(edge).chain([(0, last, 6)]).collect();
        sixth.push(bond(5, 0));
    }
    trees.push((sixth, 2));
    trees.push((path(&|_| 7), 1));
    Some(trees)
}

/// How much more than the mean the edges of a rank may carry inside of its box.
const WIDE: [(u64, u64); 3] = [(1, 1), (5, 4), (1000, 1)];

/// Trees through all ranks under way.
struct Shaping<'a> {
    boxes: &'a [Inside],
    /// For each box and place in it the shares of edges inside of the box.
    load: Vec<Vec<u64>>,
    /// The most of them, for each box.
    most: Vec<u64>,
    height: u32,
}

impl<'a> Shaping<'a> {
    fn new(boxes: &'a [Inside], trees: &[Joined], (wide, of): (u64, u64)) -> Shaping<'a> {
        let total: u64 = trees.iter().map(|tree| u64::from(tree.share)).sum();
        let mean = |of: &Inside| (2 * (of.ranks.len() as u64 - 1) * total).div_ceil(of.ranks.len() as u64);
        Shaping {
            boxes,
            // Each rank has an edge in every tree.
            load: boxes.iter().map(|of| vec![total; of.ranks.len()]).collect(),
            most: boxes.iter().map(|inside| mean(inside) * wide / of).collect(),
            height: 0,
        }
    }

    fn run(mut self, trees: &[Joined], rail: impl Fn(u32) -> usize) -> (Vec<SpanningTree>, u32) {
        let trees = trees.iter().map(|tree| self.tree(tree, &rail)).collect();
        (trees, self.height)
    }

    fn tree(&mut self, tree: &Joined, rail: &impl Fn(u32) -> usize) -> SpanningTree {
        // For each box the rails of its edges, that to its parent first.
        let mut rails: Vec<Vec<usize>> = vec![Vec::new(); self.boxes.len()];
        for &(part, above) in &tree.order {
            let Some((parent, pair)) = above else { continue };
            rails[part as usize].push(rail(pair));
            rails[parent as usize].push(rail(pair));
        }
        let ranks: usize = self.boxes.iter().map(|of| of.ranks.len()).sum();
        let mut growing = Growing { parents: vec![None; ranks], hops: vec![0; ranks], share: tree.share };
        for &(part, above) in &tree.order {
            let at = part as usize;
            let doors: Vec<u32> = rails[at].iter().filter_map(|rail| self.door(at, *rail)).collect();
            let first = doors.first().copied().unwrap_or(self.boxes[at].ranks[0]);
            let there = above.and_then(|(parent, pair)| self.door(parent as usize, rail(pair)));
            if let Some(there) = there {
                growing.hang(first, there);
            }
            self.inside(at, first, &doors, &mut growing);
        }
        self.height = self.height.max(growing.hops.into_iter().max().unwrap_or(0));
        SpanningTree { parents: growing.parents, share: tree.share }
    }

    fn door(&self, at: usize, rail: usize) -> Option<u32> {
        self.boxes[at].doors[rail].map(|door| door.rank)
    }

    /// Hangs the ranks of a box below `first`, those at doors before the others.
    fn inside(&mut self, at: usize, first: u32, doors: &[u32], growing: &mut Growing) {
        let (ranks, share) = (&self.boxes[at].ranks, u64::from(growing.share));
        let load = &mut self.load[at];
        let place_of = |rank: u32| ranks.iter().position(|of| *of == rank).unwrap_or(0);
        let mut placed = vec![place_of(first)];
        load[placed[0]] -= share;
        let mut order: Vec<usize> = doors.iter().map(|rank| place_of(*rank)).chain(0..ranks.len()).collect();
        // Those that have least to carry come early, so that others may hang on them.
        order[doors.len()..].sort_by_key(|place| (load[*place], *place));
        for place in order {
            if placed.contains(&place) {
                continue;
            }
            let hops = |of: &usize| growing.hops[ranks[*of] as usize];
            let is_full = |of: &usize| load[*of] + share > self.most[at];
            let Some(above) = placed.iter().copied().min_by_key(|of| (is_full(of), hops(of), load[*of], *of))
            else {
                continue;
            };
            load[above] += share;
            growing.hang(ranks[place], ranks[above]);
            placed.push(place);
        }
    }
}

/// A tree through ranks under way.
struct Growing {
    parents: Vec<Option<Rank>>,
    /// From the root to each rank.
    hops: Vec<u32>,
    share: u32,
}

impl Growing {
    fn hang(&mut self, rank: u32, on: u32) {
        self.parents[rank as usize] = Some(Rank(on));
        self.hops[rank as usize] = self.hops[on as usize] + 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn woven_trees_fill_no_door_twice() {
        for boxes in [12, 14, 16] {
            let trees = woven(boxes, 8).expect("trees");
            let mut load = vec![[0; 8]; boxes as usize];
            for (edges, share) in &trees {
                assert_eq!(edges.len() as u32, boxes - 1);
                for (one, other, rail) in edges {
                    load[*one as usize][*rail as usize] += share;
                    load[*other as usize][*rail as usize] += share;
                }
            }
            assert!(load.iter().flatten().all(|load| *load <= 4), "{boxes}: {load:?}");
            assert_eq!(trees.iter().map(|(_, share)| share).sum::<u32>(), 17);
        }
        assert!(woven(13, 8).is_none() && woven(16, 4).is_none());
    }
}
