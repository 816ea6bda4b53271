//! Spanning trees whose edges carry values up and results down: an all-reduce by them is as fast as they are together.
//!
//! Source: as NCCL's trees a channel is a tree with a speed; as Blink's (MLSys 2020) trees are packed into what links carry. Each
//! tree grows from a root by the nearest rank outside of it, from ranks with the most room first, as R. C. Prim's (1957).
//! Invariant: a tree uses a link and the one back alike, so links without one of the other direction carry none. Absent: trees
//! through ranks that only forward; a proof that no trees are faster.

use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};

use super::part::{Graph, UNITS, speeds_of};

/// Beginnings of a packing, at most.
const TRIES: usize = 3;

/// A parent with the links from it and to it.
type Edge = (u32, Vec<u32>, Vec<u32>);

/// A tree in a part.
#[derive(Clone, Debug)]
pub(super) struct Grown {
    /// For each rank its parent with the links from the parent and to it; none for the root.
    pub(super) parents: Vec<Option<Edge>>,
    pub(super) speed: u128,
}

/// Packs trees into one part.
pub(super) struct Trees<'a> {
    pub(super) graph: &'a Graph<'a>,
    /// Units a second that no trees exceed together.
    pub(super) limit: u128,
    pub(super) trees_max: usize,
    /// Ways that may still be looked for.
    pub(super) steps: u64,
}

/// For each link of a part one of the other direction, if there is one.
fn back(links: &[(u32, u32)]) -> Vec<Option<u32>> {
    let mut of: BTreeMap<(u32, u32), VecDeque<u32>> = BTreeMap::new();
    (0..).zip(links).for_each(|(link, ends)| of.entry(*ends).or_default().push_back(link));
    links.iter().map(|(from, to)| of.get_mut(&(*to, *from)).and_then(VecDeque::pop_front)).collect()
}

impl Trees<'_> {
    /// The trees with the largest total that is found; of those the fewest.
    pub(super) fn run(&mut self) -> Vec<Grown> {
        let back = back(&self.graph.part.links);
        let mut speeds: Vec<u128> = (1..=self.trees_max as u128)
            .filter(|count| UNITS.is_multiple_of(*count))
            .map(|count| self.limit / count)
            .collect();
        let links = self.graph.part.links.iter().zip(&self.graph.part.capacity);
        let of_ranks = links.filter(|((from, _), _)| (*from as usize) < self.graph.ranks());
        speeds.extend(speeds_of(of_ranks.map(|(_, capacity)| *capacity)));
        speeds.retain(|speed| (1..=self.limit).contains(speed));
        speeds.sort_unstable_by_key(|speed| Reverse(*speed));
        speeds.dedup();
        let total = |trees: &[Grown]| trees.iter().map(|tree| tree.speed).sum::<u128>();
        let mut best: Vec<Grown> = Vec::new();
        for (at, &speed) in speeds.iter().enumerate() {
            if speed * self.trees_max as u128 <= total(&best) {
                continue;
            }
            for try_number in 0..TRIES {
                let mut left = self.graph.part.capacity.clone();
                let mut trees = Vec::new();
                // What is left over takes slower trees.
                for &speed in &speeds[at..] {
                    while trees.len() < self.trees_max && total(&trees) + speed <= self.limit {
                        let root = (trees.len() + try_number) % self.graph.ranks();
                        let Some(tree) = self.grow(&mut left, &back, root as u32, speed) else { break };
                        trees.push(tree);
                    }
                }
                if total(&trees) > total(&best) {
                    best = trees;
                }
            }
            if total(&best) == self.limit || self.steps == 0 {
                break;
            }
        }
        best
    }

    /// A tree of a speed, taken out of `left`; none, and nothing taken, where there is no room.
    fn grow(&mut self, left: &mut [u128], back: &[Option<u32>], root: u32, speed: u128) -> Option<Grown> {
        let ranks = self.graph.ranks();
        let mut parents: Vec<Option<Edge>> = vec![None; ranks];
        let mut inside = vec![root];
        while inside.len() < ranks && self.steps > 0 {
            self.steps -= 1;
            let Some((way, up)) = self.nearest(left, back, &inside, speed) else { break };
            let links = &self.graph.part.links;
            let (from, to) = (links[*way.first()? as usize].0, links[*way.last()? as usize].1);
            self.graph.take(left, &way, speed);
            self.graph.take(left, &up, speed);
            parents[to as usize] = Some((from, way, up));
            inside.push(to);
        }
        if inside.len() < ranks {
            for (_, way, up) in parents.into_iter().flatten() {
                self.graph.give(left, &way, speed);
                self.graph.give(left, &up, speed);
            }
            return None;
        }
        Some(Grown { parents, speed })
    }

    /// The fewest links from a rank inside to one outside, and back.
    fn nearest(
        &self,
        left: &[u128],
        back: &[Option<u32>],
        inside: &[u32],
        speed: u128,
    ) -> Option<(Vec<u32>, Vec<u32>)> {
        let graph = self.graph;
        let mut sources: Vec<(Reverse<u128>, u32)> =
            inside.iter().map(|rank| (Reverse(graph.room(left, *rank)), *rank)).collect();
        sources.sort_unstable();
        let mut last: Vec<Option<u32>> = vec![None; graph.part.nodes];
        let is_inside = |node: u32| inside.contains(&node);
        let mut queue: VecDeque<u32> = sources.into_iter().map(|(_, rank)| rank).collect();
        while let Some(node) = queue.pop_front() {
            let mut links: Vec<u32> = graph.leaving(node).to_vec();
            links.sort_by_key(|link| Reverse(left[*link as usize]));
            for link in links {
                let to = graph.part.links[link as usize].1;
                let Some(twin) = back[link as usize] else { continue };
                let is_full = left[link as usize] < speed || left[twin as usize] < speed;
                if is_full || is_inside(to) || last[to as usize].is_some() {
                    continue;
                }
                last[to as usize] = Some(link);
                if (to as usize) >= graph.ranks() {
                    queue.push_back(to);
                    continue;
                }
                let (mut way, mut at) = (Vec::new(), to);
                while let Some(link) = last[at as usize] {
                    way.push(link);
                    at = graph.part.links[link as usize].0;
                }
                let up: Option<Vec<u32>> = way.iter().map(|link| back[*link as usize]).collect();
                way.reverse();
                let up = up?;
                if graph.has_room(left, &way, &up, speed) {
                    return Some((way, up));
                }
                // The rank may be reached from another.
                last[to as usize] = None;
            }
        }
        None
    }
}
