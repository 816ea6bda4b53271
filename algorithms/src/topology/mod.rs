//! The machine as a graph: ranks, switches and the directed links between them.
//!
//! Invariant: a topology is data. Nodes `0..ranks` are the ranks, in order; the others are switches, network adapters
//! and bridges. A link has one direction; two pairs of ranks share a link when both routes pass it. Routes are the
//! shortest by latency, then by hops, then by the lowest link numbers, so they are the same on every rank.
//! Deliberately absent: probing (it makes a topology), load (the simulator has it) and multipath.

mod dot;
mod lookup;
mod measured;
mod networks;
mod profiles;
mod rdma;
mod route;
mod text;

use std::fmt;

pub use dot::topology_dot;
pub use lookup::{NoSuchProfile, profile};
pub use measured::{MeasuredPair, measured, rounds};
pub(crate) use profiles::host_figures;
pub use profiles::{
    Inside, dgx_a100, dgx_a100_flat, dgx_h100, dgx_h100_flat, dgx_h200, host, host_of_cores, host_of_domains,
    pcie, tcp, tcp_hosts, torus,
};
pub use rdma::{PortOf, rdma, rdma_hosts};
pub use route::{LinkId, Routes};
pub(crate) use text::Fields;
pub use text::{ParseError, parse};

use crate::Rank;

/// The number of a node, counted from 0; the ranks come first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct NodeId(pub u32);

impl NodeId {
    /// The number as an index.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl From<Rank> for NodeId {
    fn from(rank: Rank) -> NodeId {
        NodeId(rank.0)
    }
}

/// The kind of a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NodeKind {
    /// A member of the communicator.
    Rank {
        /// The number of its box, counted from 0. A box is a host of several, or the ranks of one host that share a
        /// cache or a memory node.
        in_box: u32,
        /// The most that leaves it over all its links, bytes a second.
        inject_bytes_s: Option<u64>,
        /// The most that enters it over all its links, bytes a second.
        eject_bytes_s: Option<u64>,
    },
    /// A network adapter or a bridge: on the path, never an end.
    Port,
    /// A switch.
    Switch {
        /// Whether it folds values on their way and sends one value to many.
        aggregates: bool,
    },
}

/// A vertex of the graph.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Node {
    /// Its name for users; one word.
    pub name: String,
    /// Its kind.
    pub kind: NodeKind,
}

/// A directed edge of the graph.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Link {
    /// The node where bytes enter.
    pub from: NodeId,
    /// The node where they leave.
    pub to: NodeId,
    /// The time of the first byte from end to end.
    pub latency_ns: u64,
    /// Bytes that pass in a second; above 0.
    pub bandwidth_bytes_s: u64,
}

/// What messages and bytes cost a rank itself, in time.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Costs {
    /// The sender's work for a message, whatever its length.
    pub send_ns: u64,
    /// The receiver's work for a message, whatever its length.
    pub receive_ns: u64,
    /// The receiver's work to fold an arriving byte.
    pub reduce_ns_per_byte: f64,
    /// The receiver's work to move an arriving byte out of its slot.
    pub copy_ns_per_byte: f64,
    /// Lanes of a rank that copy and fold at once, each at these costs of a byte: thread blocks of a GPU. A rank with
    /// fewer lanes spreads each over as many blocks as there are for it. Up to 1 there is one processor, for which a
    /// rank's lanes queue.
    pub lanes: u32,
}

impl Costs {
    /// Nanoseconds in which one of a rank's `lanes` lanes copies and folds that many bytes.
    pub fn work_ns(&self, copied: u64, folded: u64, lanes: u32) -> f64 {
        let alone = copied as f64 * self.copy_ns_per_byte + folded as f64 * self.reduce_ns_per_byte;
        alone / f64::from((self.lanes / lanes.max(1)).max(1))
    }
}

/// A machine.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Topology {
    /// Its name for users; one word, for example `dgx-h100:2`.
    pub name: String,
    /// What messages cost the ranks.
    pub costs: Costs,
    /// Whether ranks forward messages for others, as routers of a torus do.
    pub relay: bool,
    /// Whether ranks measured it between each other ([`measured()`]); a job on these ranks is planned with all that it has besides.
    pub measured: bool,
    nodes: Vec<Node>,
    links: Vec<Link>,
    ranks: u32,
    /// Per node the links that leave it, in the order of their numbers.
    leaving: Vec<Vec<LinkId>>,
}

impl Topology {
    /// A topology without nodes.
    pub fn new(name: impl Into<String>, costs: Costs) -> Topology {
        Topology { name: name.into(), costs, ..Topology::default() }
    }

    /// Adds a node and gives its number.
    ///
    /// # Panics
    ///
    /// When it is a rank and another kind of node was added before.
    pub fn add_node(&mut self, name: impl Into<String>, kind: NodeKind) -> NodeId {
        let id = NodeId(self.nodes.len() as u32);
        if let NodeKind::Rank { .. } = kind {
            assert_eq!(self.ranks, id.0, "the ranks come first");
            self.ranks += 1;
        }
        self.nodes.push(Node { name: name.into(), kind });
        self.leaving.push(Vec::new());
        id
    }

    /// Adds a link.
    ///
    /// # Panics
    ///
    /// When an end does not exist, both are the same, or the bandwidth is 0.
    pub fn add_link(&mut self, link: Link) -> LinkId {
        let exist = link.from.index().max(link.to.index()) < self.nodes.len();
        assert!(exist && link.from != link.to, "no such link: {link:?}");
        assert!(link.bandwidth_bytes_s > 0, "nothing passes {link:?}");
        let id = LinkId(self.links.len() as u32);
        self.links.push(link);
        self.leaving[link.from.index()].push(id);
        id
    }

    /// Adds two links, one each way.
    ///
    /// # Panics
    ///
    /// As [`add_link`](Topology::add_link).
    pub fn connect(&mut self, one: NodeId, other: NodeId, latency_ns: u64, bandwidth_bytes_s: u64) {
        self.add_link(Link { from: one, to: other, latency_ns, bandwidth_bytes_s });
        self.add_link(Link { from: other, to: one, latency_ns, bandwidth_bytes_s });
    }

    /// The same machine with every link replaced by the result of `change`.
    ///
    /// # Panics
    ///
    /// As [`add_link`](Topology::add_link).
    #[must_use]
    pub fn map_links(&self, change: impl Fn(&Topology, Link) -> Link) -> Topology {
        let mut result =
            Topology { links: Vec::new(), leaving: vec![Vec::new(); self.nodes.len()], ..self.clone() };
        for &link in &self.links {
            result.add_link(change(self, link));
        }
        result
    }

    /// The same machine with one link for all links between the same two nodes in one direction, as fast as all of them together and
    /// with the least of their latencies: a transfer is striped over the wires of a bundle, as over NVLinks and xGMI links.
    #[must_use]
    pub fn bundled(&self) -> Topology {
        let mut result =
            Topology { links: Vec::new(), leaving: vec![Vec::new(); self.nodes.len()], ..self.clone() };
        let mut seen: std::collections::BTreeMap<(NodeId, NodeId), LinkId> =
            std::collections::BTreeMap::new();
        for &link in &self.links {
            let Some(id) = seen.get(&(link.from, link.to)) else {
                seen.insert((link.from, link.to), result.add_link(link));
                continue;
            };
            let bundle = &mut result.links[id.index()];
            bundle.bandwidth_bytes_s = bundle.bandwidth_bytes_s.saturating_add(link.bandwidth_bytes_s);
            bundle.latency_ns = bundle.latency_ns.min(link.latency_ns);
        }
        result
    }

    /// Number of ranks.
    pub fn ranks(&self) -> u32 {
        self.ranks
    }

    /// For each rank the most that enters it over all its links, or leaves it, bytes a second; none where links alone limit it.
    pub(crate) fn rank_limits(&self, enters: bool) -> impl Iterator<Item = Option<u64>> + '_ {
        self.nodes[..self.ranks as usize].iter().map(move |node| match node.kind {
            NodeKind::Rank { eject_bytes_s, .. } if enters => eject_bytes_s,
            NodeKind::Rank { inject_bytes_s, .. } => inject_bytes_s,
            _ => None,
        })
    }

    /// All nodes; the ranks come first.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// All links, in the order of their numbers.
    pub fn links(&self) -> &[Link] {
        &self.links
    }

    /// The links that leave a node, in the order of their numbers.
    pub(crate) fn leaving(&self, node: NodeId) -> &[LinkId] {
        &self.leaving[node.index()]
    }

    /// The ranks of each box, in the order of the boxes' numbers; boxes without a rank are left out.
    pub fn boxes(&self) -> Vec<Vec<Rank>> {
        let mut boxes: std::collections::BTreeMap<u32, Vec<Rank>> = std::collections::BTreeMap::new();
        for (node, rank) in self.nodes.iter().zip(0..) {
            if let NodeKind::Rank { in_box, .. } = node.kind {
                boxes.entry(in_box).or_default().push(Rank(rank));
            }
        }
        boxes.into_values().collect()
    }

    /// The switches that aggregate, in the order of their numbers. A schedule's switch `i` is the `i`-th of them.
    pub fn aggregators(&self) -> impl Iterator<Item = NodeId> {
        let aggregates = |node: &Node| matches!(node.kind, NodeKind::Switch { aggregates: true });
        self.nodes.iter().zip(0..).filter(move |(node, _)| aggregates(node)).map(|(_, id)| NodeId(id))
    }

    /// Whether any switch folds values on their way.
    pub fn aggregates(&self) -> bool {
        self.aggregators().next().is_some()
    }
}

impl fmt::Display for Topology {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&text::topology_text(self))
    }
}
