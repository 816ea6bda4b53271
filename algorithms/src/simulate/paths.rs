//! The paths of messages, and what limits them.
//!
//! Invariant: a limit is a link, what a rank sends at most, or what it takes in at most; limits are numbered in that
//! order. A limit is left out of all paths only if it can never bind. Absent: shares, which change while messages are
//! under way.

use super::SimulateError;
use super::program::Connection;
use crate::Rank;
use crate::numbers::Numbers;
use crate::topology::{LinkId, NodeId, Routes, Topology};

/// Something that stands for several of its kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Weighted {
    /// Its number.
    pub(super) of: u32,
    /// For how many; 1 where all are run.
    pub(super) weight: u32,
}

impl Weighted {
    pub(super) const fn one(of: u32) -> Weighted {
        Weighted { of, weight: 1 }
    }

    pub(super) const fn index(self) -> usize {
        self.of as usize
    }
}

/// The path between two nodes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Path {
    pub(super) latency_ps: u64,
    /// All links of the topology on it.
    pub(super) links: Vec<Weighted>,
    /// The limits that can bind.
    pub(super) limits: Vec<Weighted>,
}

/// The paths of all connections.
#[derive(Debug)]
pub(super) struct Paths {
    pub(super) paths: Vec<Path>,
    /// The path of each connection.
    pub(super) path_of: Vec<u32>,
    /// For each limit: its capacity, bytes a picosecond.
    pub(super) capacity: Vec<f64>,
    /// The number of links, which are the first limits.
    pub(super) links: usize,
}

impl Paths {
    /// One path for each pair of nodes that exchange, and the path of each connection.
    pub(super) fn new(
        connections: &[Connection],
        topology: &Topology,
        ranks: u32,
    ) -> Result<Paths, SimulateError> {
        let mut pairs: Vec<(Rank, Rank)> = connections.iter().map(|c| (c.from, c.to)).collect();
        pairs.sort_unstable();
        pairs.dedup();
        let capacity = capacities(topology);
        let mut routes = Routes::new(topology);
        let aggregators: Vec<NodeId> = topology.aggregators().collect();
        let node = |rank| node_of(rank, &aggregators, topology, ranks);
        let mut paths = Vec::with_capacity(pairs.len());
        for same_source in pairs.chunk_by(|one, other| one.0 == other.0) {
            let source = node(same_source[0].0)?;
            let targets: Vec<NodeId> =
                same_source.iter().map(|pair| node(pair.1)).collect::<Result<_, _>>()?;
            for ((route, target), &(from, to)) in
                routes.from(source, &targets).into_iter().zip(targets).zip(same_source)
            {
                let route = route.ok_or(SimulateError::NoRoute { from, to })?;
                let ends = [(from.0 < ranks).then_some(source), (to.0 < ranks).then_some(target)];
                paths.push(path(&route, ends, topology, &capacity));
            }
        }
        let number: Numbers<(Rank, Rank), u32> = pairs.into_iter().zip(0..).collect();
        let path_of = connections.iter().map(|c| number[&(c.from, c.to)]).collect();
        Ok(Paths { paths, path_of, capacity, links: topology.links().len() })
    }

    /// Removes from the paths the limits that never bind, because all limits before them, or all behind them,
    /// together let less pass. A limit that makes another one slack stays. `class` gives for each limit the first of
    /// those that are alike, which stay or go together.
    pub(super) fn leave_out_slack(&mut self, class: &[u32]) {
        let mut before: Vec<(u32, Option<u32>)> = Vec::new();
        let mut after: Vec<(u32, Option<u32>)> = Vec::new();
        for path in &self.paths {
            for (index, limit) in path.limits.iter().enumerate() {
                before.push((limit.of, index.checked_sub(1).map(|index| path.limits[index].of)));
                after.push((limit.of, path.limits.get(index + 1).map(|limit| limit.of)));
            }
        }
        for pairs in [&mut before, &mut after] {
            pairs.sort_unstable();
            pairs.dedup();
        }
        let mut members: Vec<u32> = before.iter().map(|(limit, _)| *limit).collect();
        members.dedup();
        let of = |limit: u32| class[limit as usize];
        members.sort_unstable_by(|one, other| {
            let capacity = |limit: u32| self.capacity[limit as usize];
            capacity(*other).total_cmp(&capacity(*one)).then((of(*one), one).cmp(&(of(*other), other)))
        });
        let mut out = vec![false; self.capacity.len()];
        let mut kept = vec![false; self.capacity.len()];
        for alike in members.chunk_by(|one, other| of(*one) == of(*other)) {
            let first = of(alike[0]);
            if kept[first as usize] {
                continue;
            }
            for pairs in [&before, &after] {
                let lets_less_pass = |limit: u32| {
                    let neighbours = || neighbours(pairs, limit);
                    let stays = |other: u32| !out[of(other) as usize] && of(other) != first;
                    let sum: f64 = neighbours().flatten().map(|other| self.capacity[other as usize]).sum();
                    neighbours().all(|other| other.is_some_and(stays)) && sum <= self.capacity[limit as usize]
                };
                if alike.iter().all(|&limit| lets_less_pass(limit)) {
                    out[first as usize] = true;
                    for other in alike.iter().flat_map(|&limit| neighbours(pairs, limit)).flatten() {
                        kept[of(other) as usize] = true;
                    }
                    break;
                }
            }
        }
        for path in &mut self.paths {
            path.limits.retain(|limit| !out[of(limit.of) as usize]);
        }
    }
}

/// The second of all pairs whose first is `limit`.
fn neighbours(pairs: &[(u32, Option<u32>)], limit: u32) -> impl Iterator<Item = Option<u32>> {
    let start = pairs.partition_point(|pair| pair.0 < limit);
    pairs[start..].iter().take_while(move |pair| pair.0 == limit).map(|pair| pair.1)
}

/// Links first, then each rank's injection, then each rank's ejection; bytes a picosecond.
pub(super) fn capacities(topology: &Topology) -> Vec<f64> {
    let limit = |limit: Option<u64>| limit.map_or(f64::INFINITY, |bytes_s| bytes_s as f64 / 1e12);
    let links = topology.links().iter().map(|link| link.bandwidth_bytes_s as f64 / 1e12);
    let ends = topology.rank_limits(false).chain(topology.rank_limits(true));
    links.chain(ends.map(limit)).collect()
}

/// The node of a rank, or of a switch that the schedule numbers above its `ranks`.
pub(super) fn node_of(
    rank: Rank,
    aggregators: &[NodeId],
    topology: &Topology,
    ranks: u32,
) -> Result<NodeId, SimulateError> {
    let node = if rank.0 < ranks {
        Some(NodeId::from(rank))
    } else {
        aggregators.get((rank.0 - ranks) as usize).copied()
    };
    node.filter(|node| rank.0 >= ranks || node.0 < topology.ranks()).ok_or(SimulateError::NoSuchNode { rank })
}

/// The path along a route; `ends` are the ranks at its ends.
pub(super) fn path(
    route: &[LinkId],
    ends: [Option<NodeId>; 2],
    topology: &Topology,
    capacity: &[f64],
) -> Path {
    let links = topology.links().len() as u32;
    let mut limits: Vec<Weighted> = Vec::with_capacity(route.len() + 2);
    limits.extend(ends[0].map(|source| Weighted::one(links + source.0)));
    limits.extend(route.iter().map(|link| Weighted::one(link.0)));
    limits.extend(ends[1].map(|target| Weighted::one(links + topology.ranks() + target.0)));
    limits.retain(|limit| capacity[limit.index()].is_finite());
    let latency_ns: u64 = route.iter().map(|link| topology.links()[link.index()].latency_ns).sum();
    let links = route.iter().map(|link| Weighted::one(link.0)).collect();
    Path { latency_ps: latency_ns * 1000, links, limits }
}
