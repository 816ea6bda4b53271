//! What one rank can send to another, and what that occupies.
//!
//! Invariant: bytes between two ranks travel the one route that the topology gives them; pairs whose routes share a
//! link, or that end at one rank with a limit, share what that carries. A pair whose route passes a rank is left out:
//! that rank can keep the bytes and send them on. Absent: latency.

use crate::Rank;
use crate::bounds::Ratio;
use crate::topology::{NodeId, Routes, Topology};

/// Time units that a chunk takes on the fastest link. It has many divisors, so that the times of common links are
/// exact.
const UNIT: u128 = 5040;

/// A pair of ranks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Edge {
    pub(super) from: u32,
    pub(super) to: u32,
    /// The links and limits that it occupies.
    pub(super) uses: Vec<u32>,
    /// Time units of a chunk from end to end: those of the slowest of them.
    pub(super) time: u64,
}

/// All pairs, and the times of a chunk on what they occupy.
#[derive(Clone, Debug)]
pub(super) struct Wires {
    pub(super) ranks: u32,
    /// Time units in which the fastest link carries what it carries in a second, a byte a chunk.
    pub(super) units: u128,
    /// Time units of a chunk on each link, then on each rank's limits of injection and of ejection.
    pub(super) times: Vec<u64>,
    pub(super) edges: Vec<Edge>,
    /// For each rank the edges that leave it, and those that enter it.
    pub(super) leaving: Vec<Vec<u32>>,
    pub(super) entering: Vec<Vec<u32>>,
    /// For each link or limit the edges that occupy it.
    pub(super) users: Vec<Vec<u32>>,
}

impl Wires {
    pub(super) fn new(topology: &Topology) -> Wires {
        let (ranks, links) = (topology.ranks(), topology.links().len());
        let mut bandwidths: Vec<Option<u64>> =
            topology.links().iter().map(|link| Some(link.bandwidth_bytes_s)).collect();
        bandwidths.extend(topology.rank_limits(false).chain(topology.rank_limits(true)));
        let fastest = bandwidths.iter().flatten().copied().max().unwrap_or(1);
        let time = |bandwidth: &Option<u64>| match *bandwidth {
            // A limit of nothing is as slow as can be counted.
            Some(0) => u64::MAX >> 24,
            Some(bandwidth) => {
                (u128::from(fastest) * UNIT).div_ceil(u128::from(bandwidth)).min(1 << 40) as u64
            }
            None => 0,
        };
        let times: Vec<u64> = bandwidths.iter().map(time).collect();
        let all: Vec<NodeId> = (0..ranks).map(NodeId).collect();
        let mut routes = Routes::new(topology);
        let mut edges = Vec::new();
        for from in 0..ranks {
            for (to, route) in (0..ranks).zip(routes.from(NodeId(from), &all)).filter(|(to, _)| *to != from) {
                let Some(route) = route else { continue };
                let is_passed =
                    route.iter().skip(1).any(|link| topology.links()[link.index()].from.0 < ranks);
                if is_passed {
                    continue;
                }
                let ends = [links as u32 + from, links as u32 + ranks + to];
                let limits = ends.into_iter().filter(|limit| bandwidths[*limit as usize].is_some());
                let uses: Vec<u32> = route.iter().map(|link| link.0).chain(limits).collect();
                let time = uses.iter().map(|part| times[*part as usize]).max().unwrap_or(1);
                edges.push(Edge { from, to, uses, time });
            }
        }
        Wires::of(ranks, u128::from(fastest) * UNIT, times, edges)
    }

    fn of(ranks: u32, units: u128, times: Vec<u64>, edges: Vec<Edge>) -> Wires {
        let (mut leaving, mut entering) =
            (vec![Vec::new(); ranks as usize], vec![Vec::new(); ranks as usize]);
        let mut users = vec![Vec::new(); times.len()];
        for (edge, number) in edges.iter().zip(0..) {
            leaving[edge.from as usize].push(number);
            entering[edge.to as usize].push(number);
            edge.uses.iter().for_each(|part| users[*part as usize].push(number));
        }
        Wires { ranks, units, times, edges, leaving, entering, users }
    }

    /// Every pair turned round; it occupies what the pair does.
    pub(super) fn transposed(&self) -> Wires {
        let turn = |edge: &Edge| Edge { from: edge.to, to: edge.from, ..edge.clone() };
        Wires::of(self.ranks, self.units, self.times.clone(), self.edges.iter().map(turn).collect())
    }

    /// The rate of a vector of `chunks` chunks that keeps the fullest link for `time` units, in bytes a second; a
    /// little less where a link's time was rounded.
    pub(super) fn rate(&self, chunks: u32, time: u64) -> Ratio {
        Ratio::new(self.units * u128::from(chunks), u128::from(time.max(1)))
    }

    /// Whether every rank is reached from `source`, over other ranks where that is needed.
    pub(super) fn reaches_all(&self, source: Rank) -> bool {
        let mut reached = vec![false; self.ranks as usize];
        let mut stack = vec![source.0];
        while let Some(rank) = stack.pop() {
            if !std::mem::replace(&mut reached[rank as usize], true) {
                stack.extend(self.leaving[rank as usize].iter().map(|edge| self.edges[*edge as usize].to));
            }
        }
        !reached.contains(&false)
    }
}
