//! A topology as a network of flows: nodes and arcs with whole capacities.
//!
//! Invariant: every set of bytes that a schedule moves in a second is a flow of this network. Nodes `0..ranks` are the
//! ranks, then the topology's other nodes with their numbers. A limit of what leaves or enters a rank over all its
//! links is an arc between the rank and a node of its own to which the links are attached; bytes that a rank only
//! relays do not pass that arc.

use std::collections::BTreeMap;

use crate::Rank;
use crate::topology::{LinkId, NodeId, NodeKind, Topology};

/// Above this number of arcs nothing is searched for.
const ARCS_MAX: usize = 1 << 13;

/// A directed edge.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arc {
    pub(crate) from: u32,
    pub(crate) to: u32,
    /// Bytes a second.
    pub(crate) capacity: u128,
    /// The link of the topology; none for a limit of a rank.
    pub(crate) link: Option<LinkId>,
}

/// Nodes and arcs.
#[derive(Clone, Debug)]
pub(crate) struct Network {
    pub(crate) ranks: u32,
    /// For each node the topology's node that it is a part of.
    pub(crate) parts_of: Vec<NodeId>,
    pub(crate) arcs: Vec<Arc>,
    /// The ranks of each box.
    pub(crate) boxes: Vec<Vec<Rank>>,
    /// For each rank the node where what it sends meets its links, and the node where what comes to it leaves them.
    pub(crate) gates: Vec<(u32, u32)>,
    /// Arcs that leave each node, and those that enter it.
    pub(crate) leaving: Vec<Vec<u32>>,
    pub(crate) entering: Vec<Vec<u32>>,
}

impl Network {
    pub(crate) fn new(topology: &Topology) -> Network {
        let ranks = topology.ranks();
        let nodes = topology.nodes().len();
        let mut parts_of: Vec<NodeId> = (0..nodes as u32).map(NodeId).collect();
        let mut arcs = Vec::new();
        let (mut out, mut into) = (vec![0u128; nodes], vec![0u128; nodes]);
        for link in topology.links() {
            out[link.from.index()] += u128::from(link.bandwidth_bytes_s);
            into[link.to.index()] += u128::from(link.bandwidth_bytes_s);
        }
        // Where the links that leave and enter a node are attached.
        let mut outside: Vec<(u32, u32)> = (0..nodes as u32).map(|node| (node, node)).collect();
        for rank in 0..ranks {
            let at = rank as usize;
            let NodeKind::Rank { inject_bytes_s, eject_bytes_s, .. } = topology.nodes()[at].kind else {
                continue;
            };
            // A limit that links cannot reach is none.
            let binding = |limit: Option<u64>, all: u128| limit.map(u128::from).filter(|limit| *limit < all);
            let (inject, eject) = (binding(inject_bytes_s, out[at]), binding(eject_bytes_s, into[at]));
            let mut gate = |limit: Option<u128>, all: u128, leaves: bool| {
                if limit.is_none() && !(topology.relay && (inject.is_some() || eject.is_some())) {
                    return rank;
                }
                let node = parts_of.len() as u32;
                parts_of.push(NodeId(rank));
                let (from, to) = if leaves { (rank, node) } else { (node, rank) };
                arcs.push(Arc { from, to, capacity: limit.unwrap_or(all), link: None });
                node
            };
            let (left, entered) = (gate(inject, out[at], true), gate(eject, into[at], false));
            outside[at] = (left, entered);
            if left != rank && entered != rank && topology.relay {
                arcs.push(Arc { from: entered, to: left, capacity: into[at].min(out[at]), link: None });
            }
        }
        for (link, number) in topology.links().iter().zip(0..) {
            arcs.push(Arc {
                from: outside[link.from.index()].0,
                to: outside[link.to.index()].1,
                capacity: link.bandwidth_bytes_s.into(),
                link: Some(LinkId(number)),
            });
        }
        outside.truncate(ranks as usize);
        let gates = outside;
        Network::of(Network {
            ranks,
            parts_of,
            arcs,
            boxes: topology.boxes(),
            gates,
            leaving: Vec::new(),
            entering: Vec::new(),
        })
    }

    /// The network with its arcs above 0 found from both of their ends.
    fn of(network: Network) -> Network {
        let Network { ranks, parts_of, mut arcs, boxes, gates, .. } = network;
        arcs.retain(|arc| arc.capacity > 0);
        let (mut leaving, mut entering) =
            (vec![Vec::new(); parts_of.len()], vec![Vec::new(); parts_of.len()]);
        for (arc, number) in arcs.iter().zip(0..) {
            leaving[arc.from as usize].push(number);
            entering[arc.to as usize].push(number);
        }
        Network { ranks, parts_of, arcs, boxes, gates, leaving, entering }
    }

    /// The network with every arc turned round.
    pub(crate) fn transposed(&self) -> Network {
        let turn = |arc: &Arc| Arc { from: arc.to, to: arc.from, ..*arc };
        let gates = self.gates.iter().map(|(left, entered)| (*entered, *left)).collect();
        Network::of(Network { arcs: self.arcs.iter().map(turn).collect(), gates, ..self.clone() })
    }

    /// The network of the arcs that are wanted.
    pub(crate) fn kept(&self, is_wanted: impl Fn(&Arc) -> bool) -> Network {
        let arcs = self.arcs.iter().filter(|arc| is_wanted(arc)).copied().collect();
        Network::of(Network { arcs, ..self.clone() })
    }

    /// The network of the arcs that are wanted, with one arc for those between the same nodes.
    pub(crate) fn merged(&self, is_wanted: impl Fn(&Arc) -> bool) -> Network {
        let mut between: BTreeMap<(u32, u32), u128> = BTreeMap::new();
        for arc in self.arcs.iter().filter(|arc| is_wanted(arc)) {
            *between.entry((arc.from, arc.to)).or_default() += arc.capacity;
        }
        let arc = |((from, to), capacity)| Arc { from, to, capacity, link: None };
        Network::of(Network { arcs: between.into_iter().map(arc).collect(), ..self.clone() })
    }

    /// Whether it is worth a search: at most `ranks_max` ranks, and few enough arcs.
    pub(crate) fn is_small(&self, ranks_max: u32) -> bool {
        self.ranks <= ranks_max && self.arcs.len() <= ARCS_MAX
    }

    pub(crate) fn nodes(&self) -> usize {
        self.parts_of.len()
    }

    /// The capacity of the arcs that leave a set of nodes.
    pub(crate) fn out_of(&self, inside: &[bool]) -> u128 {
        self.crossing(inside).map(|arc| arc.capacity).sum()
    }

    /// The arcs that leave a set of nodes.
    pub(crate) fn crossing<'a>(&'a self, inside: &'a [bool]) -> impl Iterator<Item = &'a Arc> {
        self.arcs.iter().filter(|arc| inside[arc.from as usize] && !inside[arc.to as usize])
    }

    /// Whether as much can leave as can enter at every node that is no rank.
    pub(crate) fn is_balanced(&self) -> bool {
        let sum = |arcs: &[u32]| arcs.iter().map(|arc| self.arcs[*arc as usize].capacity).sum::<u128>();
        (self.ranks as usize..self.nodes()).all(|node| sum(&self.leaving[node]) == sum(&self.entering[node]))
    }

    /// Whether between any two nodes as much can pass one way as the other.
    pub(crate) fn is_mirrored(&self) -> bool {
        let mut between: BTreeMap<(u32, u32), [u128; 2]> = BTreeMap::new();
        for arc in &self.arcs {
            let ends = (arc.from.min(arc.to), arc.from.max(arc.to));
            between.entry(ends).or_default()[usize::from(arc.from > arc.to)] += arc.capacity;
        }
        between.values().all(|[there, back]| there == back)
    }

    /// How many ranks are in a set of nodes.
    pub(crate) fn ranks_in(&self, inside: &[bool]) -> u32 {
        inside[..self.ranks as usize].iter().filter(|inside| **inside).count() as u32
    }
}
