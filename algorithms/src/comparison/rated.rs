//! A topology with the rates that NCCL expects instead of those of data sheets.
//!
//! Invariant: latencies and costs stay; only what NCCL has a figure for changes. Absent: machines whose nodes are not
//! named as the profiles name them.

use crate::hardware::Rates;
use crate::topology::{Link, NodeKind, Topology};

/// What NVLink carries by NCCL's search, in thousandths of its data sheet, by the generation's compute capability.
fn nvlink_permille(sm: u32) -> u64 {
    let rate = |rates: Rates| {
        let generation = crate::hardware::nvlink_generation(sm);
        generation.and_then(|generation| rates.nvlink_bytes_s(generation, Some(sm))).unwrap_or(1)
    };
    rate(Rates::Nccl) * 1000 / rate(Rates::DataSheet)
}

/// The same machine with NCCL's rates: NVLink of its generation, and a bus of `bus_bytes_s` between GPUs and adapters.
pub fn rated(topology: &Topology, sm: u32, bus_bytes_s: u64) -> Topology {
    let permille = nvlink_permille(sm);
    let name = |node: crate::topology::NodeId| topology.nodes()[node.index()].name.as_str();
    topology.map_links(|topology, link| {
        let ends = [link.from, link.to];
        let is_rank = |node: crate::topology::NodeId| {
            matches!(topology.nodes()[node.index()].kind, NodeKind::Rank { .. })
        };
        if ends.iter().any(|end| name(*end).starts_with("nvswitch")) {
            let bandwidth_bytes_s = link.bandwidth_bytes_s / 1000 * permille;
            return Link { bandwidth_bytes_s, ..link };
        }
        if ends.iter().any(|end| is_rank(*end)) {
            return Link { bandwidth_bytes_s: link.bandwidth_bytes_s.min(bus_bytes_s), ..link };
        }
        link
    })
}
