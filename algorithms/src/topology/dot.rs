//! The Graphviz form of a topology: boxes as clusters, two opposite links of the same kind as one edge.

use std::fmt::Write;

use super::{Link, NodeKind, Topology};

/// Nodes by kind, links labelled with gigabytes a second and latency.
pub fn topology_dot(topology: &Topology) -> String {
    let mut text = format!("graph {:?} {{\n  layout=fdp;\n", topology.name);
    let name = |index: usize| &topology.nodes()[index].name;
    for (ranks, number) in topology.boxes().iter().zip(0..) {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "  subgraph cluster_{number} {{");
        for rank in ranks {
            let _ = writeln!(text, "    {:?} [shape=circle];", name(rank.index()));
        }
        text += "  }\n";
    }
    for node in topology.nodes() {
        let shape = match node.kind {
            NodeKind::Rank { .. } => continue,
            NodeKind::Port => "ellipse",
            NodeKind::Switch { aggregates: false } => "box",
            NodeKind::Switch { aggregates: true } => "doubleoctagon",
        };
        let _ = writeln!(text, "  {:?} [shape={shape}];", node.name);
    }
    let mut drawn: std::collections::BTreeMap<(u32, u32, u64, u64), Vec<&Link>> =
        std::collections::BTreeMap::new();
    for link in topology.links() {
        let (low, high) = (link.from.min(link.to), link.from.max(link.to));
        drawn.entry((low.0, high.0, link.latency_ns, link.bandwidth_bytes_s)).or_default().push(link);
    }
    for ((low, high, latency_ns, bandwidth_bytes_s), links) in drawn {
        let ways = links.iter().filter(|link| link.from.0 == low).count();
        let shown = |from: usize, to: usize, each: usize, dir: &str| {
            let many = if each == 1 { String::new() } else { format!("{each} x ") };
            let gigabytes = bandwidth_bytes_s as f64 / 1e9;
            let (from, to) = (name(from), name(to));
            format!("  {from:?} -- {to:?} [label=\"{many}{gigabytes} GB/s {latency_ns} ns\", dir={dir}];\n")
        };
        let (low, high, back) = (low as usize, high as usize, links.len() - ways);
        if ways == back {
            text += &shown(low, high, ways, "both");
        } else {
            if ways > 0 {
                text += &shown(low, high, ways, "forward");
            }
            if back > 0 {
                text += &shown(high, low, back, "forward");
            }
        }
    }
    text + "}\n"
}
