//! The graph of ranks that run on CPUs of hosts, for [`Hardware::cpu_graph`].
//!
//! Invariant: rank `i` runs on the `i`-th CPU that was asked for. Ranks that share a last-level cache exchange through it; others
//! through the memory of their NUMA domains and the links between those. Figures as those of [`topology::host_of_domains`].

use std::collections::BTreeMap;

use super::{Cores, Hardware, LinkKind, NoRankGraph, NodeId, NodeKind, Rates};
use crate::topology::{self, Topology, host_figures};

/// Where a CPU is.
#[derive(Clone, Copy)]
struct Place {
    /// The cores with which it shares a cache.
    cores: Option<NodeId>,
    numa: NodeId,
}

impl Hardware {
    /// The graph of ranks on these CPUs: the host of each, and the operating system's number of the CPU. A box of the graph is a
    /// host. Several ranks may be on one CPU.
    ///
    /// # Errors
    ///
    /// Where no CPU is given, where no NUMA domain of the host has it, and where a link between two NUMA domains that are
    /// needed is not known.
    ///
    /// # Panics
    ///
    /// When there is no such node.
    pub fn cpu_graph(&self, cpus: &[(NodeId, u32)], rates: Rates) -> Result<Topology, NoRankGraph> {
        let places: Vec<Place> =
            cpus.iter().map(|(host, cpu)| self.place_of_cpu(*host, *cpu)).collect::<Result<_, _>>()?;
        if places.is_empty() {
            return refuse("there is no rank".into(), "name one CPU at least");
        }
        let mut hosts: Vec<NodeId> = cpus.iter().map(|(host, _)| *host).collect();
        hosts.sort_unstable();
        hosts.dedup();
        if hosts.len() > 1 {
            return refuse(
                "ranks on CPUs of several hosts have no graph of this kind".into(),
                "make one of each host, and join them by topology::tcp_hosts",
            );
        }
        let mut graph = Topology::new(self.name.clone(), host_figures::COSTS);
        let most = Some(host_figures::NEAR_BYTES_S);
        for rank in 0..places.len() {
            let kind = topology::NodeKind::Rank { in_box: 0, inject_bytes_s: most, eject_bytes_s: most };
            graph.add_node(format!("r{rank}"), kind);
        }
        let mut caches: BTreeMap<NodeId, topology::NodeId> = BTreeMap::new();
        let mut numas: BTreeMap<NodeId, topology::NodeId> = BTreeMap::new();
        let switch = topology::NodeKind::Switch { aggregates: false };
        for (place, rank) in places.iter().zip(0u32..) {
            let numa = *numas
                .entry(place.numa)
                .or_insert_with(|| graph.add_node(self.node(place.numa).name.clone(), switch));
            let (node, name) =
                (place.cores.unwrap_or(place.numa), place.cores.map(|cores| &self.node(cores).name));
            let above = match name {
                Some(name) => *caches.entry(node).or_insert_with(|| {
                    let cache = graph.add_node(name.clone(), switch);
                    let way = host_figures::DOMAIN_BYTES_S;
                    graph.connect(cache, numa, host_figures::FAR_LINE_NS, way);
                    cache
                }),
                None => numa,
            };
            graph.connect(
                topology::NodeId(rank),
                above,
                host_figures::NEAR_LINE_NS,
                host_figures::NEAR_BYTES_S,
            );
        }
        self.join_numas(&mut graph, &numas, rates)?;
        Ok(graph)
    }

    fn join_numas(
        &self,
        graph: &mut Topology,
        numas: &BTreeMap<NodeId, topology::NodeId>,
        rates: Rates,
    ) -> Result<(), NoRankGraph> {
        for (link, id) in self.links().iter().zip(0..) {
            let (LinkKind::Socket { .. }, Some(from), Some(to)) =
                (link.kind, numas.get(&link.from), numas.get(&link.to))
            else {
                continue;
            };
            let id = super::LinkId(id);
            let Some(bytes_s) = self.bytes_s(id, rates) else {
                let (from, to) = (&self.node(link.from).name, &self.node(link.to).name);
                return refuse(
                    format!("what the link between {from} and {to} carries is not known"),
                    "state it (bytes_s=), or assume a machine (--assume dgx-h100)",
                );
            };
            graph.connect(*from, *to, self.latency_ns(id), bytes_s);
        }
        Ok(())
    }

    fn place_of_cpu(&self, host: NodeId, cpu: u32) -> Result<Place, NoRankGraph> {
        let here = || self.iter().filter(|(_, node)| node.host == Some(host));
        let cores = here().find_map(|(id, node)| match &node.kind {
            NodeKind::Cores(Cores { cpus, .. }) if cpus.contains(cpu) => Some(id),
            _ => None,
        });
        let of_cores = cores.and_then(|cores| self.numa_of(cores));
        let numa = of_cores.or_else(|| {
            here().find_map(|(id, node)| match &node.kind {
                NodeKind::Numa(numa) if numa.cpus.as_ref().is_some_and(|cpus| cpus.contains(cpu)) => Some(id),
                _ => None,
            })
        });
        match numa {
            Some(numa) => Ok(Place { cores, numa }),
            None => refuse(
                format!("no NUMA domain of {} has CPU {cpu}", self.node(host).name),
                "name a CPU that the machine has",
            ),
        }
    }
}

fn refuse<T>(reason: String, remedy: &str) -> Result<T, NoRankGraph> {
    Err(NoRankGraph { reason, remedy: remedy.to_owned() })
}
