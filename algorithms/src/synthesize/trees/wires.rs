//! What an edge of a tree takes of a machine, as limits on sums.
//!
//! A tree's edge between two ranks sends its share once each way, on the routes of the simulator. Every link of these
//! routes, and what the two ranks may inject and eject, is a limit that edges of all trees share: adapters, ports of
//! a switch and the links of PCIe need no case of their own.
//!
//! Invariant: limits that all pairs load alike are one limit, the narrowest of them. Absent: pairs whose route passes
//! another rank, where the others hold all ranks together: the two halves of such a route are edges that take no
//! more.

use std::collections::BTreeMap;

use crate::topology::{LinkId, NodeId, Routes, Topology};

/// The pairs of ranks that may be edges, and what they load.
#[derive(Debug)]
pub(super) struct Wires {
    pub(super) ranks: usize,
    /// Bytes a second of each limit.
    pub(super) capacity: Vec<u64>,
    /// The two ranks of each pair, the lower one first.
    pub(super) pairs: Vec<(u32, u32)>,
    /// For each pair the limits that an edge loads, and how often.
    pub(super) loads: Vec<Vec<(u32, u32)>>,
    /// For each rank the ranks that it may have an edge with, and the pair.
    pub(super) near: Vec<Vec<(u32, u32)>>,
}

/// A pair with the limits of its two routes, by the topology's links and, behind them, what ranks inject and eject.
type Edge = ((u32, u32), Vec<usize>);

impl Wires {
    /// The wires of a machine; none where edges do not join all ranks.
    pub(super) fn new(topology: &Topology) -> Option<Wires> {
        let ranks = topology.ranks() as usize;
        let (all, direct) = edges(topology);
        let edges = [direct, all].into_iter().find(|edges| joins(ranks, edges))?;
        let capacity = capacities(topology);
        let mut users: Vec<BTreeMap<u32, u32>> = vec![BTreeMap::new(); capacity.len()];
        for ((_, limits), pair) in edges.iter().zip(0u32..) {
            for limit in limits.iter().filter(|limit| capacity[**limit].is_some()) {
                *users[*limit].entry(pair).or_default() += 1;
            }
        }
        let mut groups: BTreeMap<BTreeMap<u32, u32>, u64> = BTreeMap::new();
        for (users, capacity) in users.into_iter().zip(capacity).filter(|(users, _)| !users.is_empty()) {
            let Some(capacity) = capacity else { continue };
            groups.entry(users).and_modify(|least| *least = capacity.min(*least)).or_insert(capacity);
        }
        let pairs: Vec<(u32, u32)> = edges.iter().map(|(pair, _)| *pair).collect();
        let mut loads = vec![Vec::new(); pairs.len()];
        for (users, limit) in groups.keys().zip(0u32..) {
            users.iter().for_each(|(pair, times)| loads[*pair as usize].push((limit, *times)));
        }
        Some(Wires::of(ranks, groups.into_values().collect(), pairs, loads))
    }

    /// Pairs with what they load.
    pub(super) fn of(
        ranks: usize,
        capacity: Vec<u64>,
        pairs: Vec<(u32, u32)>,
        loads: Vec<Vec<(u32, u32)>>,
    ) -> Wires {
        let mut wires = Wires { ranks, capacity, loads, near: vec![Vec::new(); ranks], pairs };
        for ((one, other), pair) in wires.pairs.iter().zip(0u32..) {
            wires.near[*one as usize].push((*other, pair));
            wires.near[*other as usize].push((*one, pair));
        }
        wires
    }

    /// What a tree of one byte a second loads each limit with.
    pub(super) fn usage(&self, tree: &[u32]) -> Vec<u64> {
        let mut usage = vec![0; self.capacity.len()];
        for (limit, times) in tree.iter().flat_map(|pair| &self.loads[*pair as usize]) {
            usage[*limit as usize] += u64::from(*times);
        }
        usage
    }

    /// The sum of lengths of limits along both ways of each pair.
    pub(super) fn weights(&self, lengths: &[u64]) -> Vec<u64> {
        let weight = |loads: &Vec<(u32, u32)>| {
            loads.iter().map(|(limit, times)| lengths[*limit as usize] * u64::from(*times)).sum()
        };
        self.loads.iter().map(weight).collect()
    }
}

/// Both routes of each pair that has them, and those of them that pass no third rank.
fn edges(topology: &Topology) -> (Vec<Edge>, Vec<Edge>) {
    let nodes: Vec<NodeId> = (0..topology.ranks()).map(NodeId).collect();
    let mut routes = Routes::new(topology);
    let found: Vec<Vec<Option<Vec<LinkId>>>> = nodes.iter().map(|node| routes.from(*node, &nodes)).collect();
    let links = topology.links().len();
    let is_direct = |way: &[LinkId]| {
        let mut entered = way.iter().skip(1).map(|link| topology.links()[link.index()].from);
        entered.all(|node| node.0 >= topology.ranks())
    };
    let (mut all, mut direct) = (Vec::new(), Vec::new());
    for (one, from_one) in found.iter().enumerate() {
        for (other, there) in from_one.iter().enumerate().skip(one + 1) {
            let (Some(there), Some(back)) = (there, &found[other][one]) else { continue };
            let mut limits: Vec<usize> = there.iter().chain(back).map(|link| link.index()).collect();
            limits.extend([one, other].into_iter().flat_map(|rank| [links + 2 * rank, links + 2 * rank + 1]));
            let edge = ((one as u32, other as u32), limits);
            if is_direct(there) && is_direct(back) {
                direct.push(edge.clone());
            }
            all.push(edge);
        }
    }
    (all, direct)
}

/// What passes each link, leaves and enters each rank, in bytes a second; none without a limit.
fn capacities(topology: &Topology) -> Vec<Option<u64>> {
    let links = topology.links().iter().map(|link| Some(link.bandwidth_bytes_s));
    let ends =
        topology.rank_limits(false).zip(topology.rank_limits(true)).flat_map(|(out, into)| [out, into]);
    links.chain(ends).collect()
}

fn joins(ranks: usize, edges: &[Edge]) -> bool {
    let mut above: Vec<usize> = (0..ranks).collect();
    let mut parts = ranks;
    for ((one, other), _) in edges {
        let [one, other] = [*one, *other].map(|rank| top(&mut above, rank as usize));
        if one != other {
            above[one] = other;
            parts -= 1;
        }
    }
    parts <= 1
}

/// What stands for the part of `at`.
fn top(above: &mut [usize], mut at: usize) -> usize {
    while above[at] != at {
        above[at] = above[above[at]];
        at = above[at];
    }
    at
}
