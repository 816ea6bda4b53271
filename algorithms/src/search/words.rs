//! What a search found, in words for people.
//!
//! Invariant: bandwidths are in GB/s (10^9 bytes a second) with two digits. Absent: drawings.

use std::fmt::Write;

use super::Rings;
use crate::bounds::{self, Ratio};
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

/// The rings of a machine, and bus bandwidths of collectives by them beside what is provable. With `bounds` off, only what was
/// found: bounds of many ranks in boxes that differ take long.
pub fn words(topology: &Topology, rings: &Rings, with_bounds: bool) -> String {
    let mut text = String::new();
    // Writing to a String cannot fail.
    let (found, limit) = (gb_s(rings.total().value()), gb_s(rings.limit.value()));
    let count = rings.rings.len();
    if count == 0 {
        let _ = writeln!(text, "rings: none found, at most {limit} GB/s: no way back to a rank but through another");
        return text;
    }
    let s = if count == 1 { "" } else { "s" };
    let reach = if rings.is_at_limit() { ", and no rings are faster" } else { "" };
    let _ = writeln!(text, "{count} ring{s} of {found} GB/s together, at most {limit}{reach}:");
    for ring in rings.rings.iter().filter(|_| topology.ranks() <= SHOWN_RANKS_MAX) {
        let _ = writeln!(text, "  {} GB/s: {}", gb_s(ring.bytes_s.value()), order(topology, &ring.order));
    }
    let _ = writeln!(text, "bus bandwidth in GB/s by these rings:");
    for collective in [Collective::AllReduce, Collective::AllGather, Collective::ReduceScatter, Collective::Broadcast] {
        let part = bus(collective, topology.ranks()).value();
        let Some(rate) = rings.rate(collective) else { continue };
        let bound = with_bounds.then(|| bounds::bound(topology, collective, &bounds::Options::default()).ok()).flatten();
        let bound = bound.map_or(String::new(), |bound| format!(", provable {}", gb_s(bound.rate.value() * part)));
        let _ = writeln!(text, "  {collective}: {}{bound}", gb_s(rate.value() * part));
    }
    text
}
