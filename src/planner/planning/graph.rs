//! The job's graph, for people and reports.
//!
//! Invariant: it is the same on all ranks. Absent: where it comes from (`machine/graph`, and the settings).

use consort_algorithms::hardware::PathKind;
use consort_algorithms::topology::{Routes, Topology};
use consort_control::bootstrap::Member;
use consort_control::report::machine::{Way, Wires};

use super::super::machine::graph;
use super::Planning;
use consort_settings::options::{digest, graph_for};

/// The way between two ranks in a graph: between boxes it is a network; what is inside one, no graph of ranks says.
fn way_in(topology: &Topology, from: u32, to: u32) -> Option<Way> {
    let ends = (from < topology.ranks() && to < topology.ranks()).then_some((from, to))?;
    let (from, to) =
        (consort_algorithms::topology::NodeId(ends.0), consort_algorithms::topology::NodeId(ends.1));
    let route = Routes::new(topology).from(from, &[to]).pop().flatten()?;
    let bytes_s = route.iter().map(|link| topology.links()[link.0 as usize].bandwidth_bytes_s).min();
    let is_inside = topology
        .boxes()
        .iter()
        .any(|ranks| [ends.0, ends.1].iter().all(|of| ranks.iter().any(|rank| rank.0 == *of)));
    Some(Way { kind: (!is_inside).then(|| PathKind::Net.to_string()), bytes_s })
}

impl Wires for Planning {
    fn graph(&self) -> (String, u64) {
        (self.topology.name.clone(), self.graph_hash())
    }

    fn way(&self, ranks: &[&Member], from: u32, to: u32) -> Option<Way> {
        // A machine that a setting names goes before what hosts say.
        if !self.is_named && self.device_graph.is_some() {
            let host_of = super::super::machine::Machine::hosts_of(ranks.iter().copied());
            if let Some((kind, bytes_s)) = graph::way(ranks, &host_of, from as usize, to as usize) {
                return Some(Way { kind: Some(kind.to_string()), bytes_s });
            }
        }
        way_in(&self.topology, from, to)
    }
}

impl Planning {
    /// The graph of the ranks' GPUs, where they know what is in their hosts: by files (`NCCL_TOPO_FILE`), or by what they see.
    pub fn device_graph(&self) -> Option<&Topology> {
        self.device_graph.as_ref()
    }

    /// A hash of the job's graph, the same on all ranks: of [`topology`](Planning::topology) and of
    /// [`device_graph`](Planning::device_graph).
    pub fn graph_hash(&self) -> u64 {
        let devices = self.device_graph.as_ref().map_or_else(String::new, Topology::to_string);
        digest(&format!("{}{devices}", self.topology))
    }

    /// Why a machine that a setting or the ranks' hosts name is not that of these ranks, which are then planned by what the table of ranks
    /// says; and whether a user named it.
    pub(crate) fn misfit(&self) -> Option<(String, bool)> {
        let graphs = &self.machine.graphs;
        let (named, why) = match self.preferences.topology.as_deref() {
            Some(text) => {
                let misfit = graph_for(text, self.machine.ranks, graphs.with_devices).err();
                ("CONSORT_TOPOLOGY", misfit.map(|misfit| misfit.to_string()))
            }
            None if graphs.is_seen => ("what the ranks see of their hosts", graphs.misfit.clone()),
            None => ("NCCL_TOPO_FILE", graphs.misfit.clone()),
        };
        let is_by_user = self.preferences.topology.is_some() || !graphs.is_seen;
        why.map(|why| (format!("{named} is not the machine of this job: {why}"), is_by_user))
    }
}
