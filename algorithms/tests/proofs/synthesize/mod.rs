//! Schedules made for one machine: proved chunk by chunk, held against their bounds, and certified.

mod boxes;
mod certificates;
mod exchange;
mod greedy;
mod hosts;
mod packing;
mod rooted;
mod stages;
mod trees;

use consort_algorithms::topology::{Link, NodeId, Topology, parse, profile};
use consort_algorithms::{LowerOptions, Schedule, lower_all, verify};

/// A fabric of `algorithms/fabrics`, or a profile; links side by side are one.
fn fabric(name: &str) -> Topology {
    let file = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("fabrics/{name}.topology"));
    let topology = match std::fs::read_to_string(&file) {
        Ok(text) => parse(&text).unwrap_or_else(|fault| panic!("{name}: {fault}")),
        Err(_) => profile(name).unwrap_or_else(|fault| panic!("{fault}")),
    };
    topology.bundled()
}

/// The machine without these nodes, by their names, and without links between two names with a stroke between them.
fn without(topology: &Topology, gone: &[&str]) -> Topology {
    let mut left = Topology::new(topology.name.clone(), topology.costs);
    left.relay = topology.relay;
    let name = |node: NodeId| topology.nodes()[node.index()].name.as_str();
    let mut numbers = vec![None; topology.nodes().len()];
    for (number, node) in
        topology.nodes().iter().enumerate().filter(|(_, node)| !gone.contains(&node.name.as_str()))
    {
        numbers[number] = Some(left.add_node(node.name.clone(), node.kind));
    }
    for link in topology.links() {
        let ways =
            [(link.from, link.to), (link.to, link.from)].map(|(a, b)| format!("{}/{}", name(a), name(b)));
        let is_cut = ways.iter().any(|way| gone.contains(&way.as_str()));
        if let (Some(from), Some(to)) = (numbers[link.from.index()], numbers[link.to.index()])
            && !is_cut
        {
            left.add_link(Link { from, to, ..*link });
        }
    }
    left
}

fn prove(schedule: &Schedule, what: &str) {
    let plans =
        lower_all(schedule, &LowerOptions { slots: 4 }).unwrap_or_else(|error| panic!("{what}: {error}"));
    verify(&plans).unwrap_or_else(|refusal| panic!("{what}: {refusal}"));
}
