//! A machine in whole trees: nodes, and edges with the number of trees that each can carry.
//!
//! Invariant: an edge has the links of one path of the machine, so that its trees are bytes on those links. Absent:
//! bytes a second, which the caller scales to trees.

use crate::bounds::flow::Flow;
use crate::bounds::network::Network;
use crate::topology::LinkId;

/// What trees pass from one node to another.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Edge {
    pub(super) from: u32,
    pub(super) to: u32,
    /// Trees.
    pub(super) capacity: u128,
    /// The links, in the order in which the trees pass them; none for the limit of a rank.
    pub(super) path: Vec<LinkId>,
}

/// Nodes `0..ranks` are the ranks; the others are switches, ports and limits of ranks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Graph {
    pub(super) ranks: u32,
    pub(super) nodes: u32,
    pub(super) edges: Vec<Edge>,
}

/// How many trees of each root must reach every rank.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Demand {
    pub(super) trees: Vec<u128>,
    pub(super) total: u128,
}

impl Demand {
    pub(super) fn new(trees: Vec<u128>) -> Demand {
        let total = trees.iter().sum();
        Demand { trees, total }
    }
}

impl Graph {
    /// The machine whose trees carry `numerator / denominator` bytes a second each.
    pub(super) fn new(network: &Network, numerator: u128, denominator: u128) -> Option<Graph> {
        let mut edges = Vec::with_capacity(network.arcs.len());
        for arc in &network.arcs {
            let capacity = arc.capacity.checked_mul(denominator)? / numerator;
            if capacity > 0 {
                edges.push(Edge {
                    from: arc.from,
                    to: arc.to,
                    capacity,
                    path: arc.link.into_iter().collect(),
                });
            }
        }
        Some(Graph { ranks: network.ranks, nodes: network.nodes() as u32, edges })
    }

    /// The most trees that are missing at any rank. The search ends where at least `enough` are.
    pub(super) fn missing(&self, demand: &Demand, enough: u128) -> u128 {
        let source = self.nodes as usize;
        let mut flow = Flow::new(source + 1);
        let edges = || self.edges.iter().filter(|edge| edge.capacity > 0);
        let feeds = || demand.trees.iter().enumerate().filter(|(_, trees)| **trees > 0);
        edges().for_each(|edge| flow.add(edge.from as usize, edge.to as usize, edge.capacity));
        feeds().for_each(|(root, trees)| flow.add(source, root, *trees));
        let mut worst = 0;
        for rank in 0..self.ranks as usize {
            flow.refill(edges().map(|edge| edge.capacity).chain(feeds().map(|(_, trees)| *trees)));
            worst = worst.max(demand.total - flow.maximum_to(source, rank, demand.total));
            if worst >= enough {
                break;
            }
        }
        worst
    }

    /// Whether every rank is reached by all trees.
    pub(super) fn carries(&self, demand: &Demand) -> bool {
        self.missing(demand, 1) == 0
    }

    /// Adds trees between two nodes by a path.
    pub(super) fn add(&mut self, edge: Edge) {
        let like =
            |other: &&mut Edge| (other.from, other.to) == (edge.from, edge.to) && other.path == edge.path;
        match self.edges.iter_mut().find(like) {
            Some(other) => other.capacity += edge.capacity,
            None => self.edges.push(edge),
        }
    }

    /// Takes trees away from two nodes by a path.
    pub(super) fn take(&mut self, edge: &Edge) {
        let like =
            |other: &&mut Edge| (other.from, other.to) == (edge.from, edge.to) && other.path == edge.path;
        if let Some(other) = self.edges.iter_mut().find(like) {
            other.capacity -= edge.capacity;
        }
    }
}
