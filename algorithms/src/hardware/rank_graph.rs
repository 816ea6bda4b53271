//! The graph with which bounds, simulator and planner compute, of the GPUs that a job has.
//!
//! Invariant: rank `i` is the `i`-th GPU that was asked for; the other nodes follow in the order of the machine's, and
//! links in that of the machine's links. A link whose bandwidth is not known is left out and named; GPUs whose
//! links are not known have no graph. All NVSwitches of a host are one switch, as in NCCL (`ncclTopoAddNvLinks`),
//! since a route is one path. Deliberately absent: GPUs that the job has not, and what leads to nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::fmt;

use super::{Hardware, LinkId, LinkKind, NodeId, NodeKind, PathKind, Paths, Rates};
use crate::sets::Sets;
use crate::topology::{self, Costs, Topology};

/// Which links the graph has.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Wires {
    /// All whose bandwidth is known. What is provable of this graph is provable of the machine.
    #[default]
    All,
    /// As NCCL searches: in a host whose GPUs NVLink or xGMI joins, these links, and with several hosts besides what leads from each GPU
    /// to the nearest ports. In any other host all.
    Fastest,
}

/// The graph of some GPUs.
#[derive(Clone, PartialEq, Debug)]
pub struct RankGraph {
    /// The graph.
    pub topology: Topology,
    /// The GPU of each rank.
    pub gpus: Vec<NodeId>,
    /// Links that are left out since their bandwidth is not known.
    pub left_out: Vec<LinkId>,
}

/// There is no graph of these GPUs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NoRankGraph {
    /// Why.
    pub reason: String,
    /// What to do.
    pub remedy: String,
}

impl fmt::Display for NoRankGraph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {}", self.reason, self.remedy)
    }
}

impl Error for NoRankGraph {}

fn none<T>(reason: impl Into<String>, remedy: &str) -> Result<T, NoRankGraph> {
    Err(NoRankGraph { reason: reason.into(), remedy: remedy.to_owned() })
}

/// What a message costs a GPU; the figures of [`topology::dgx_a100`].
const COSTS: Costs =
    Costs { send_ns: 1000, receive_ns: 1000, reduce_ns_per_byte: 0.001, copy_ns_per_byte: 0.0005, lanes: 0 };

impl Hardware {
    /// The graph of `gpus`, in their order.
    ///
    /// # Errors
    ///
    /// Where a GPU is none or there twice, where it is not known how GPUs are linked, and where no known link joins them.
    ///
    /// # Panics
    ///
    /// When there is no such node.
    pub fn rank_graph(&self, gpus: &[NodeId], rates: Rates, wires: Wires) -> Result<RankGraph, NoRankGraph> {
        self.check_choice(gpus)?;
        let chosen: BTreeSet<NodeId> = gpus.iter().copied().collect();
        let (kept, left_out) = self.usable_links(&chosen, gpus, rates, wires);
        let merged = self.merged_switches();
        let end = |id: NodeId| merged.get(&id).copied().unwrap_or(id);
        // Parallel links between the same nodes are one after switches were merged.
        let mut edges: BTreeMap<(NodeId, NodeId, &str), (LinkId, u64)> = BTreeMap::new();
        for id in kept {
            let link = self.link(id);
            let (from, to) = (end(link.from), end(link.to));
            let bytes_s = self.bytes_s(id, rates).unwrap_or_default();
            if from != to && bytes_s > 0 {
                let edge = edges.entry((from.min(to), from.max(to), link.kind.word())).or_insert((id, 0));
                edge.1 = edge.1.saturating_add(bytes_s);
            }
        }
        let mut edges: Vec<(LinkId, NodeId, NodeId, u64)> =
            edges.into_iter().map(|((from, to, _), (id, bytes_s))| (id, from, to, bytes_s)).collect();
        edges.sort_unstable();
        self.prune(&mut edges, &chosen);
        let mut sets = Sets::new(self.nodes().len());
        for (_, from, to, _) in &edges {
            sets.join(from.index(), to.index());
        }
        let first = sets.root(gpus[0].index());
        if let Some(apart) = gpus.iter().find(|gpu| sets.root(gpu.index()) != first) {
            let (one, other) = (&self.node(gpus[0]).name, &self.node(*apart).name);
            let unknown = left_out.first().map(|id| self.link(*id));
            let unknown = unknown.map_or(String::new(), |link| {
                let (from, to) = (&self.node(link.from).name, &self.node(link.to).name);
                format!(" (not known is, for example, what {} from {from} to {to} carries)", link.kind.word())
            });
            return none(
                format!("no link of known bandwidth joins {one} and {other}{unknown}"),
                "state the bandwidths, or assume a machine (--assume dgx-h100)",
            );
        }
        let topology = self.build(gpus, &edges);
        Ok(RankGraph { topology, gpus: gpus.to_vec(), left_out })
    }

    fn check_choice(&self, gpus: &[NodeId]) -> Result<(), NoRankGraph> {
        let mut seen = BTreeSet::new();
        let mut of_host: BTreeMap<Option<NodeId>, Vec<NodeId>> = BTreeMap::new();
        for &id in gpus {
            let node = self.node(id);
            if self.gpu(id).is_none() {
                return none(format!("{} is no GPU", node.name), "name GPUs of this machine");
            }
            if !seen.insert(id) {
                return none(format!("{} is there twice", node.name), "give each rank a GPU of its own");
            }
            of_host.entry(node.host).or_default().push(id);
        }
        for gpus in of_host.values().filter(|gpus| gpus.len() > 1) {
            let unknown = gpus.iter().find(|id| self.gpu(**id).is_some_and(|gpu| !gpu.links_known));
            if let Some(unknown) = unknown {
                return none(
                    format!(
                        "the source does not say whether NVLink joins {} and others",
                        self.node(*unknown).name
                    ),
                    "assume a machine: --assume dgx-a100 (or another profile), or --assume pcie where there is none",
                );
            }
        }
        if gpus.is_empty() {
            return none("there is no GPU", "choose at least one GPU of this machine");
        }
        Ok(())
    }

    /// The links that the graph may have, and those that it would have if their bandwidths were known.
    fn usable_links(
        &self,
        chosen: &BTreeSet<NodeId>,
        gpus: &[NodeId],
        rates: Rates,
        wires: Wires,
    ) -> (Vec<LinkId>, Vec<LinkId>) {
        let only = match wires {
            Wires::All => None,
            Wires::Fastest => Some(self.fastest(chosen, gpus, rates)),
        };
        let is_wanted = |id: &LinkId| {
            let link = self.link(*id);
            let plays = |end: NodeId| match &self.node(end).kind {
                NodeKind::Host(_) | NodeKind::Cores(_) => false,
                NodeKind::Gpu(_) => chosen.contains(&end),
                _ => true,
            };
            let to_nvswitch = matches!(link.kind, LinkKind::Pcie { .. })
                && matches!(self.node(link.to).kind, NodeKind::NvSwitch(_));
            plays(link.from)
                && plays(link.to)
                && !to_nvswitch
                && only.as_ref().is_none_or(|only| only.contains(id))
        };
        let all = (0..self.links().len() as u32).map(LinkId);
        all.filter(is_wanted).partition(|id| self.bytes_s(*id, rates).is_some())
    }

    /// The links of [`Wires::Fastest`].
    fn fastest(&self, chosen: &BTreeSet<NodeId>, gpus: &[NodeId], rates: Rates) -> BTreeSet<LinkId> {
        let merged = self.merged_switches();
        let end = |id: NodeId| merged.get(&id).copied().unwrap_or(id).index();
        let mut sets = Sets::new(self.nodes().len());
        for link in self.links().iter().filter(|link| link.kind.joins_gpus()) {
            let plays = |id: NodeId| self.gpu(id).is_none() || chosen.contains(&id);
            if plays(link.from) && plays(link.to) {
                sets.join(end(link.from), end(link.to));
            }
        }
        let mut of_host: BTreeMap<Option<NodeId>, Vec<NodeId>> = BTreeMap::new();
        for &gpu in gpus {
            of_host.entry(self.node(gpu).host).or_default().push(gpu);
        }
        let mut all = BTreeSet::new();
        let ids = || (0..self.links().len() as u32).map(LinkId);
        let several = of_host.len() > 1;
        let (paths, ends) = (Paths::new(self, rates), self.network_ends());
        for (host, gpus) in &of_host {
            let first = sets.root(gpus[0].index());
            let is_joined = gpus.iter().all(|gpu| sets.root(gpu.index()) == first);
            let is_here = |id: &LinkId| {
                let link = self.link(*id);
                self.node(link.from).host == *host || self.node(link.to).host == *host
            };
            let kept = |id: &LinkId| {
                let kind = self.link(*id).kind;
                is_here(id) && (!is_joined || kind.joins_gpus() || several && kind == LinkKind::Network)
            };
            all.extend(ids().filter(kept));
            if several && is_joined {
                all.extend(self.to_nearest_ports(&paths, gpus, *host, &ends));
            }
        }
        // Between switches of the network.
        let no_host = |id: &LinkId| {
            [self.link(*id).from, self.link(*id).to].iter().all(|end| self.node(*end).host.is_none())
        };
        all.extend(ids().filter(no_host));
        all
    }

    fn to_nearest_ports(
        &self,
        paths: &Paths<'_>,
        gpus: &[NodeId],
        host: Option<NodeId>,
        ends: &[NodeId],
    ) -> Vec<LinkId> {
        let mut ends = ends.to_vec();
        ends.retain(|end| self.node(*end).host == host);
        let mut links = Vec::new();
        for &gpu in gpus {
            let ways = paths.inside(gpu, &ends);
            let order = |way: &super::Path| (way.kind, std::cmp::Reverse(way.bytes_s));
            let Some(best) = ways.iter().map(order).min() else { continue };
            let near = ways.iter().filter(|way| order(way) == best && way.kind < PathKind::Net);
            links.extend(near.flat_map(|way| way.links.clone()));
        }
        links
    }

    /// Per NVSwitch the first of its host.
    fn merged_switches(&self) -> BTreeMap<NodeId, NodeId> {
        let mut first = BTreeMap::new();
        let switches = self.nvswitches();
        switches.iter().map(|id| (*id, *first.entry(self.node(*id).host).or_insert(*id))).collect()
    }

    /// Removes what leads to nothing: nodes that are no rank and have one edge.
    fn prune(&self, edges: &mut Vec<(LinkId, NodeId, NodeId, u64)>, chosen: &BTreeSet<NodeId>) {
        let mut degree = vec![0usize; self.nodes().len()];
        let mut of_node: Vec<Vec<usize>> = vec![Vec::new(); degree.len()];
        for (at, (_, from, to, _)) in edges.iter().enumerate() {
            for end in [from, to] {
                degree[end.index()] += 1;
                of_node[end.index()].push(at);
            }
        }
        let is_end = |degree: &[usize], id: NodeId| degree[id.index()] == 1 && !chosen.contains(&id);
        let mut ends: Vec<NodeId> = self.iter().map(|(id, _)| id).filter(|id| is_end(&degree, *id)).collect();
        let mut is_gone = vec![false; edges.len()];
        while let Some(end) = ends.pop() {
            let Some(&at) = of_node[end.index()].iter().find(|at| !is_gone[**at]) else { continue };
            is_gone[at] = true;
            let (_, from, to, _) = edges[at];
            for id in [from, to] {
                degree[id.index()] -= 1;
                if is_end(&degree, id) {
                    ends.push(id);
                }
            }
        }
        let mut gone = is_gone.into_iter();
        edges.retain(|_| !gone.next().unwrap_or_default());
    }

    fn build(&self, gpus: &[NodeId], edges: &[(LinkId, NodeId, NodeId, u64)]) -> Topology {
        let mut topology = Topology::new(self.name.clone(), COSTS);
        let mut ids: BTreeMap<NodeId, topology::NodeId> = BTreeMap::new();
        let mut boxes: Vec<Option<NodeId>> = gpus.iter().map(|gpu| self.node(*gpu).host).collect();
        boxes.sort_unstable();
        boxes.dedup();
        for &gpu in gpus {
            let in_box = boxes.partition_point(|host| *host < self.node(gpu).host) as u32;
            let kind = topology::NodeKind::Rank { in_box, inject_bytes_s: None, eject_bytes_s: None };
            ids.insert(gpu, topology.add_node(self.node(gpu).name.clone(), kind));
        }
        let others: BTreeSet<NodeId> = edges
            .iter()
            .flat_map(|(_, from, to, _)| [*from, *to])
            .filter(|id| !ids.contains_key(id))
            .collect();
        for id in others {
            let kind = match self.node(id).kind {
                NodeKind::NvSwitch(_) => topology::NodeKind::Switch { aggregates: self.folds(id) },
                NodeKind::Switch { aggregates } => topology::NodeKind::Switch { aggregates },
                _ => topology::NodeKind::Port,
            };
            ids.insert(id, topology.add_node(self.node(id).name.clone(), kind));
        }
        for (link, from, to, bytes_s) in edges {
            topology.connect(ids[from], ids[to], self.latency_ns(*link), *bytes_s);
        }
        topology
    }

    /// Whether an NVSwitch folds values on their way: those of the third generation, which NVLink 4 brought.
    fn folds(&self, id: NodeId) -> bool {
        let fourth =
            |link: &LinkId| matches!(self.link(*link).kind, LinkKind::NvLink { generation: Some(4..), .. });
        self.touching(id).iter().any(fourth)
    }
}
