//! What was found, as the graphs that NCCL reads and writes.
//!
//! Source: NCCL at commit 5067397c, `src/graph/search.cc`. Invariant: a graph's channels have one speed, so that there is one graph
//! for rings of each speed and the first of them is NCCL's graph 0. Absent: machines of several hosts, whose channels are those
//! of one host for each of them.

use super::Rings;
use crate::hardware::exchange::{Channel, ChannelGpu, Graph, Graphs, Pattern};
use crate::hardware::{Hardware, NodeId, PathKind, Paths, Rates};

/// The rings of one host as graphs; `gpus` are the GPUs of the ranks. None where the GPUs are on several hosts or have no index.
pub fn graphs(rings: &Rings, hardware: &Hardware, gpus: &[NodeId], rates: Rates) -> Option<Graphs> {
    let host = hardware.node(*gpus.first()?).host;
    if gpus.iter().any(|gpu| hardware.node(*gpu).host != host) {
        return None;
    }
    let index: Option<Vec<u64>> = gpus.iter().map(|gpu| hardware.gpu(*gpu)?.index.map(u64::from)).collect();
    let index = index?;
    let paths = Paths::new(hardware, rates);
    let mut graphs: Vec<Graph> = Vec::new();
    for ring in &rings.rings {
        let speed = u64::try_from(ring.bytes_s.numerator() / ring.bytes_s.denominator()).ok()?;
        let next = ring.order.iter().cycle().skip(1);
        let kinds = ring
            .order
            .iter()
            .zip(next)
            .map(|(from, to)| paths.between(gpus[from.index()], gpus[to.index()]).kind);
        let worst = kinds.max().unwrap_or(PathKind::Loc);
        let gpu = |rank: &crate::Rank| ChannelGpu { index: index[rank.index()], rank: Some(rank.0) };
        let channel = Channel { line: None, nets: Vec::new(), gpus: ring.order.iter().map(gpu).collect() };
        match graphs.last_mut().filter(|graph| graph.intra_bytes_s == speed) {
            Some(graph) => {
                graph.channels.push(channel);
                graph.intra = graph.intra.max(worst);
            }
            None => graphs.push(Graph {
                // Graphs 1 and more are trees and switches there, and a second speed has no number of its own.
                id: graphs.len() as u32 * 16,
                pattern: Pattern::Ring,
                cross_nic: 0,
                intra_bytes_s: speed,
                inter_bytes_s: speed,
                inter_latency_ns: 0,
                intra: worst,
                inter: PathKind::Pix,
                same_channels: 0,
                channels: vec![channel],
            }),
        }
    }
    Some(Graphs { graphs })
}
