//! The job's graph, for people and reports.
//!
//! Invariant: it is the same on all ranks. Absent: where it comes from (`machine/graph`, and the settings).

use consort_algorithms::topology::Topology;

use super::Planning;
use consort_settings::options::{digest, graph_for};

impl Planning {
    /// The graph of the ranks' GPUs, where the files of their hosts say it (`NCCL_TOPO_FILE`).
    pub fn device_graph(&self) -> Option<&Topology> {
        self.device_graph.as_ref()
    }

    /// A hash of the job's graph, the same on all ranks: of [`topology`](Planning::topology) and of
    /// [`device_graph`](Planning::device_graph).
    pub fn graph_hash(&self) -> u64 {
        let devices = self.device_graph.as_ref().map_or_else(String::new, Topology::to_string);
        digest(&format!("{}{devices}", self.topology))
    }

    /// Why a machine that a setting or the ranks' hosts name is not that of these ranks, which are then planned by what they see.
    pub(crate) fn misfit(&self) -> Option<String> {
        let (variable, why) = match self.preferences.topology.as_deref() {
            Some(text) => {
                let misfit = graph_for(text, self.machine.ranks, self.for_devices).err();
                ("CONSORT_TOPOLOGY", misfit.map(|misfit| misfit.to_string()))
            }
            None => ("NCCL_TOPO_FILE", self.machine.graphs.misfit.clone()),
        };
        why.map(|why| format!("{variable} is not the machine of this job: {why}"))
    }
}
