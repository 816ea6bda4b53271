//! Out-trees packed into a graph between ranks: each root's trees reach every rank, and no edge carries more than it can.
//!
//! Trees of one root that are equal so far are one batch with a count. A batch grows edge by edge, from the ranks nearest
//! to its root; an edge is admissible for as many trees as no set of ranks then lacks: a set that a batch has not reached
//! needs an edge into it for each of its trees. Tight sets stay tight, so that each is found by one flow and afterwards
//! refuses edges without one.
//!
//! Source: J. Edmonds, "Edge-disjoint branchings" (1973); K. Bérczi and A. Frank, "Variations for Lovász' submodular
//! ideas" (2008), for batches. Invariant: the same graph gives the same trees. At most 64 ranks, whose sets are the bits of
//! a number.

use super::graph::{Demand, Graph};
use crate::bounds::flow::{ENDLESS, Flow};

/// The most ranks of a graph.
pub(super) const RANKS_MAX: u32 = 64;

/// Equal trees of one root.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Batch {
    pub(super) root: u32,
    /// How many trees.
    pub(super) count: u128,
    /// The parent of each rank; none for the root.
    pub(super) parents: Vec<Option<u32>>,
    depth: Vec<u32>,
    /// Bit `r`: rank `r` is reached.
    reached: u64,
}

/// Packs trees; none where a rank is not reached by all of them.
pub(super) fn grow(graph: &Graph, demand: &Demand) -> Option<Vec<Batch>> {
    if graph.ranks > RANKS_MAX || !graph.carries(demand) {
        return None;
    }
    let mut growing = Growing::new(graph, demand);
    growing.run().then_some(growing.batches)
}

struct Growing {
    ranks: usize,
    /// What each edge can still carry, by its ends.
    left: Vec<u128>,
    batches: Vec<Batch>,
    /// Sets of ranks into which every edge is needed by a batch that has not reached the set.
    tight: Vec<u64>,
}

impl Growing {
    fn new(graph: &Graph, demand: &Demand) -> Growing {
        let ranks = graph.ranks as usize;
        let mut left = vec![0; ranks * ranks];
        for edge in &graph.edges {
            left[edge.from as usize * ranks + edge.to as usize] += edge.capacity;
        }
        let batch = |(root, count): (u32, &u128)| Batch {
            root,
            count: *count,
            parents: vec![None; ranks],
            depth: vec![0; ranks],
            reached: 1 << root,
        };
        let batches = (0..).zip(&demand.trees).filter(|(_, count)| **count > 0).map(batch).collect();
        Growing { ranks, left, batches, tight: Vec::new() }
    }

    fn all(&self) -> u64 {
        u64::MAX >> (64 - self.ranks)
    }

    fn run(&mut self) -> bool {
        for level in 0..self.ranks as u32 {
            let mut at = 0;
            // Batches that are split off are behind the others.
            while at < self.batches.len() {
                self.extend(at, level);
                at += 1;
            }
            if self.batches.iter().all(|batch| batch.reached == self.all()) {
                return true;
            }
        }
        false
    }

    /// Adds to a batch what it can reach from its ranks at a distance from the root.
    fn extend(&mut self, at: usize, level: u32) {
        for whole in [true, false] {
            let batch = &self.batches[at];
            let is_end = |rank: usize| batch.reached >> rank & 1 == 1 && batch.depth[rank] == level;
            let mut edges: Vec<(u128, usize, usize)> = Vec::new();
            for from in (0..self.ranks).filter(|rank| is_end(*rank)) {
                for to in (0..self.ranks).filter(|rank| batch.reached >> rank & 1 == 0) {
                    let left = self.left[from * self.ranks + to];
                    if left > 0 {
                        edges.push((left, from, to));
                    }
                }
            }
            // Wide edges first: they split no batch.
            edges.sort_by_key(|(left, from, to)| {
                (std::cmp::Reverse(*left), (to + self.ranks - from) % self.ranks)
            });
            for (_, from, to) in edges {
                self.try_edge(at, from, to, whole);
            }
        }
    }

    fn try_edge(&mut self, at: usize, from: usize, to: usize, whole: bool) {
        let batch = &self.batches[at];
        if batch.reached >> to & 1 == 1 {
            return;
        }
        let most = self.left[from * self.ranks + to].min(batch.count);
        if most == 0 || (whole && most < batch.count) {
            return;
        }
        let amount = self.admissible(at, from, to, most);
        if amount == 0 || (whole && amount < self.batches[at].count) {
            return;
        }
        if amount < self.batches[at].count {
            let mut rest = self.batches[at].clone();
            rest.count -= amount;
            self.batches.push(rest);
        }
        self.left[from * self.ranks + to] -= amount;
        let batch = &mut self.batches[at];
        batch.count = amount;
        batch.reached |= 1 << to;
        batch.parents[to] = Some(from as u32);
        batch.depth[to] = batch.depth[from] + 1;
    }

    /// How many of at most `most` trees of a batch may take an edge.
    fn admissible(&mut self, at: usize, from: usize, to: usize, most: u128) -> u128 {
        let own = self.batches[at].reached;
        let has = |set: u64, rank: usize| set >> rank & 1 == 1;
        if self.tight.iter().any(|set| has(*set, to) && !has(*set, from) && set & own != 0) {
            return 0;
        }
        // Batches that have not reached `to`, as nodes that are fed with their trees.
        let mut others: Vec<(u64, u128)> = self
            .batches
            .iter()
            .enumerate()
            .filter(|(number, batch)| *number != at && !has(batch.reached, to))
            .map(|(_, batch)| (batch.reached, batch.count))
            .collect();
        others.sort_unstable();
        others.dedup_by(|later, first| {
            let is_same = later.0 == first.0;
            first.1 += if is_same { later.1 } else { 0 };
            is_same
        });
        let needed: u128 = others.iter().map(|(_, count)| count).sum();
        let source = self.ranks + others.len();
        let mut flow = Flow::new(source + 1);
        for (place, left) in self.left.iter().enumerate().filter(|(_, left)| **left > 0) {
            flow.add(place / self.ranks, place % self.ranks, *left);
        }
        flow.add(source, from, ENDLESS);
        for (node, (reached, count)) in (self.ranks..).zip(&others) {
            flow.add(source, node, *count);
            for rank in (0..self.ranks).filter(|rank| has(*reached, *rank)) {
                flow.add(node, rank, ENDLESS);
            }
        }
        let value = flow.maximum_to(source, to, needed + most);
        let amount = value.saturating_sub(needed);
        if amount == 0 {
            let side = flow.sink_side(to);
            self.tight.push((0..self.ranks).filter(|rank| side[*rank]).fold(0, |set, rank| set | 1 << rank));
        }
        amount
    }
}
