//! The job's graph, for people and reports.
//!
//! Invariant: it is the same on all ranks. Absent: where it comes from (`machine/graph`, and the settings).

use consort_algorithms::topology::Topology;

use super::Planning;
use consort_settings::options::{digest, graph_for};

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
