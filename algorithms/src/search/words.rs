//! What a search found, in words for people.
//!
//! Invariant: bandwidths are in GB/s (10^9 bytes a second) with two digits. Absent: drawings.

use std::fmt::Write;

use super::{Rings, Trees};
use crate::bounds::{self, Ratio};
use crate::builders::spanning_trees_are_defined;
use crate::topology::Topology;
use crate::{Collective, Rank};

/// The most ranks whose orders are shown.
const SHOWN_RANKS_MAX: u32 = 64;

fn gb_s(rate: f64) -> String {
    format!("{:.2}", rate / 1e9)
}

/// The part of the algorithm bandwidth that counts on the bus: what each rank sends of a vector, through the vector, times the
/// number of ways in which it must be sent.
fn bus(collective: Collective, ranks: u32) -> Ratio {
    let (ranks, others) = (u128::from(ranks), u128::from(ranks) - 1);
    match collective {
        Collective::AllReduce => Ratio::new(2 * others, ranks),
        Collective::AllGather | Collective::ReduceScatter | Collective::AllToAll => Ratio::new(others, ranks),
        _ => Ratio::new(1, 1),
    }
}

/// The ring by the names of its ranks.
fn order(topology: &Topology, order: &[Rank]) -> String {
    let names = order.iter().map(|rank| topology.nodes()[rank.index()].name.as_str());
    names.collect::<Vec<_>>().join(" ")
}

/// The rings and trees of a machine, and bus bandwidths of collectives by them beside what is provable. With `bounds` off, only what was
/// found: bounds of many ranks in boxes that differ take long.
pub fn words(topology: &Topology, rings: &Rings, trees: &Trees, with_bounds: bool) -> String {
    let mut text = String::new();
    // Writing to a String cannot fail.
    let (found, limit) = (gb_s(rings.total().value()), gb_s(rings.limit.value()));
    let count = rings.rings.len();
    if count == 0 {
        let _ = writeln!(text, "rings: none found; at most {limit} GB/s");
    }
    if count > 0 {
        let s = if count == 1 { "" } else { "s" };
        let reach = if rings.is_at_limit() { ", and no rings are faster" } else { "" };
        let _ = writeln!(text, "{count} ring{s} of {found} GB/s together, at most {limit}{reach}:");
    }
    let is_shown = topology.ranks() <= SHOWN_RANKS_MAX;
    for ring in rings.rings.iter().filter(|_| is_shown) {
        let _ = writeln!(text, "  {} GB/s: {}", gb_s(ring.bytes_s.value()), order(topology, &ring.order));
    }
    if !trees.trees.is_empty() {
        let (count, found) = (trees.trees.len(), gb_s(trees.total().value()));
        let s = if count == 1 { "" } else { "s" };
        let _ = writeln!(text, "{count} tree{s} of {found} GB/s together, each rank with its parent:");
    }
    for tree in trees.trees.iter().filter(|_| is_shown) {
        let name = |rank: usize| topology.nodes()[rank].name.as_str();
        let edges = tree.parents.iter().enumerate().filter_map(|(rank, parent)| {
            parent.map(|parent| format!("{}-{}", name(rank), name(parent.index())))
        });
        let edges: Vec<String> = edges.collect();
        let _ = writeln!(text, "  {} GB/s: {}", gb_s(tree.bytes_s.value()), edges.join(" "));
    }
    let _ = writeln!(text, "bus bandwidth in GB/s that was found:");
    for collective in
        [Collective::AllReduce, Collective::AllGather, Collective::ReduceScatter, Collective::Broadcast]
    {
        let part = bus(collective, topology.ranks()).value();
        let by_rings = rings.rate(collective).map_or(0.0, Ratio::value);
        let has_trees = spanning_trees_are_defined(collective);
        let by_trees = if has_trees { trees.total().value() } else { 0.0 };
        let bound = with_bounds
            .then(|| bounds::bound(topology, collective, &bounds::Options::default()).ok())
            .flatten();
        let bound =
            bound.map_or(String::new(), |bound| format!(", provable {}", gb_s(bound.rate.value() * part)));
        let by_trees =
            if has_trees { format!(", {} by trees", gb_s(by_trees * part)) } else { String::new() };
        let _ = writeln!(text, "  {collective}: {} by rings{by_trees}{bound}", gb_s(by_rings * part));
    }
    text
}
