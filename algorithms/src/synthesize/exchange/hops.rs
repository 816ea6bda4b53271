//! What ranks send each other directly, and the wires that these hops share.
//!
//! A pair's bytes travel on one route. A block that is cut into pieces can take several ways all the same: each piece
//! goes from rank to rank, every hop on its route. So a flow that a schedule can carry is one in the graph of hops.
//!
//! Invariant: a wire is a link, or the limit of what leaves or enters a rank, as [`rate`](super::super::rate())
//! counts them; hops name the wires that they load. Absent: time.

use std::collections::BTreeMap;

use crate::topology::{LinkId, NodeId, Routes, Topology};

/// The hops between ranks. Where ranks are alike, those of rank 0 stand for all ([`turned`](super::turned)).
#[derive(Clone, Debug)]
pub(super) struct Hops {
    /// Per rank the ranks that it reaches in one hop, with the number of the hop.
    pub(super) leaving: Vec<Vec<(u32, u32)>>,
    /// Per hop the wires that it loads.
    pub(super) wires: Vec<Vec<u32>>,
    /// Bytes a second on each wire.
    pub(super) capacity: Vec<f64>,
    /// The ranks whose blocks are sent.
    pub(super) sources: Vec<u32>,
}

/// A direct way from one rank to another.
#[derive(Clone, Debug)]
pub(super) struct Hop {
    pub(super) from: u32,
    pub(super) to: u32,
    /// By the numbers that [`Wires`] gives.
    pub(super) wires: Vec<u32>,
    /// Whether the route passes a third rank.
    pub(super) relayed: bool,
}

/// All wires of a topology: its links, then what may leave and what may enter each rank, where that is limited.
#[derive(Debug)]
pub(super) struct Wires {
    pub(super) capacity: Vec<u64>,
    leaving: Vec<Option<u32>>,
    entering: Vec<Option<u32>>,
}

impl Wires {
    pub(super) fn new(topology: &Topology) -> Wires {
        let mut capacity: Vec<u64> = topology.links().iter().map(|link| link.bandwidth_bytes_s).collect();
        let mut limits = |enters: bool| -> Vec<Option<u32>> {
            let mut number = |limit: u64| {
                capacity.push(limit);
                capacity.len() as u32 - 1
            };
            topology.rank_limits(enters).map(|limit| limit.map(&mut number)).collect()
        };
        let (leaving, entering) = (limits(false), limits(true));
        Wires { capacity, leaving, entering }
    }

    /// Whether any rank has a limit.
    pub(super) fn are_limited(&self) -> bool {
        self.leaving.iter().chain(&self.entering).any(Option::is_some)
    }

    fn of(&self, from: u32, to: u32, route: &[LinkId]) -> Vec<u32> {
        let ends = [self.leaving[from as usize], self.entering[to as usize]];
        route.iter().map(|link| link.0).chain(ends.into_iter().flatten()).collect()
    }
}

/// Every hop of a topology for which there is a route, by its ends.
pub(super) fn hops(topology: &Topology, wires: &Wires) -> Vec<Hop> {
    let ranks = topology.ranks();
    let targets: Vec<NodeId> = (0..ranks).map(NodeId).collect();
    let mut routes = Routes::new(topology);
    let mut all = Vec::new();
    for from in 0..ranks {
        for (to, route) in (0..).zip(routes.from(NodeId(from), &targets)) {
            let Some(route) = route.filter(|_| to != from) else { continue };
            let middle = &route[..route.len().saturating_sub(1)];
            let relayed = middle.iter().any(|link| topology.links()[link.index()].to.0 < ranks);
            all.push(Hop { from, to, wires: wires.of(from, to, &route), relayed });
        }
    }
    all
}

impl Hops {
    /// The hops of all ranks.
    pub(super) fn of_all(ranks: u32, all: &[Hop], wires: &Wires) -> Hops {
        let mut hops = Hops {
            leaving: vec![Vec::new(); ranks as usize],
            wires: Vec::with_capacity(all.len()),
            capacity: Vec::new(),
            sources: (0..ranks).collect(),
        };
        let mut numbers: BTreeMap<u32, u32> = BTreeMap::new();
        for (hop, number) in all.iter().zip(0..) {
            hops.leaving[hop.from as usize].push((hop.to, number));
            let mut of_wire = |wire: &u32| {
                *numbers.entry(*wire).or_insert_with(|| {
                    hops.capacity.push(wires.capacity[*wire as usize] as f64);
                    hops.capacity.len() as u32 - 1
                })
            };
            hops.wires.push(hop.wires.iter().map(&mut of_wire).collect());
        }
        hops
    }

    pub(super) fn ranks(&self) -> usize {
        self.leaving.len()
    }
}
