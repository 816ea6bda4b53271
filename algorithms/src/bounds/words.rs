//! A cut in words: "7 ranks into GPU 5 over 6 links of 25 GB/s".

use std::collections::BTreeMap;
use std::fmt::Write;

use super::network::Network;
use super::parts::Counted;
use crate::topology::{NodeKind, Topology};

/// The most names that are listed.
const NAMES_MAX: usize = 4;

/// A bandwidth in GB/s with as many digits as it has, at most six.
pub(super) fn gb_s(bytes_s: f64) -> String {
    let text = format!("{:.6}", bytes_s / 1e9);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// `gpu5` as "GPU 5"; any other name as it is.
fn name(topology: &Topology, node: usize) -> String {
    let name = &topology.nodes()[node].name;
    match name.strip_prefix("gpu") {
        Some(number) if !number.is_empty() && number.bytes().all(|c| c.is_ascii_digit()) => {
            format!("GPU {number}")
        }
        _ => name.clone(),
    }
}

/// `count` of a thing.
fn of(count: usize, thing: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {thing}{plural}")
}

/// A set of ranks as the receiving or sending end.
pub(super) fn ranks(topology: &Topology, ranks: &[u32]) -> String {
    if let [one] = ranks {
        return name(topology, *one as usize);
    }
    let boxes = topology.boxes();
    if boxes.len() > 1 {
        let of_box = |at: u32| match topology.nodes()[at as usize].kind {
            NodeKind::Rank { in_box, .. } => in_box,
            _ => 0,
        };
        let mut numbers: Vec<u32> = ranks.iter().map(|rank| of_box(*rank)).collect();
        numbers.sort_unstable();
        numbers.dedup();
        let whole: usize = boxes
            .iter()
            .filter(|ranks| numbers.binary_search(&of_box(ranks[0].0)).is_ok())
            .map(Vec::len)
            .sum();
        // Boxes of one rank are named as ranks.
        if whole == ranks.len() && numbers.len() < ranks.len() {
            return match numbers[..] {
                [one] => format!("box {one}"),
                _ => format!("boxes {}", list(numbers.iter().map(u32::to_string).collect())),
            };
        }
    }
    list(ranks.iter().map(|rank| name(topology, *rank as usize)).collect())
}

/// Names with commas; many are cut short.
fn list(names: Vec<String>) -> String {
    let shown = names[..names.len().min(NAMES_MAX)].join(", ");
    match names.len().saturating_sub(NAMES_MAX) {
        0 => shown,
        1 => format!("{shown}, {}", names[NAMES_MAX]),
        more => format!("{shown} and {more} more"),
    }
}

/// The links that leave a set of nodes, by capacity.
fn links(network: &Network, topology: &Topology, sending: &[bool]) -> String {
    // Limits come last, then links by falling capacity.
    let mut by_capacity: BTreeMap<(bool, std::cmp::Reverse<u128>), (usize, usize)> = BTreeMap::new();
    for arc in network.crossing(sending) {
        let key = (arc.link.is_none(), std::cmp::Reverse(arc.capacity));
        let is_adapter = [arc.from, arc.to].iter().any(|node| {
            let node = &topology.nodes()[network.parts_of[*node as usize].index()];
            node.kind == NodeKind::Port && node.name.starts_with("nic")
        });
        let entry = by_capacity.entry(key).or_default();
        entry.0 += 1;
        entry.1 += usize::from(is_adapter);
    }
    let mut text = String::new();
    for ((is_limit, capacity), (count, adapters)) in by_capacity {
        let thing = match (is_limit, adapters == count) {
            (true, _) => "limit",
            (false, true) => "adapter",
            (false, false) => "link",
        };
        let before = if text.is_empty() { "" } else { " and " };
        let _ = write!(text, "{before}{} of {} GB/s", of(count, thing), gb_s(capacity.0 as f64));
    }
    if text.is_empty() { "no link".into() } else { text }
}

/// The ranks of a set of nodes, or those outside of it.
pub(super) fn members(network: &Network, sending: &[bool], inside: bool) -> Vec<u32> {
    (0..network.ranks).filter(|rank| sending[*rank as usize] == inside).collect()
}

/// The sentence for a cut: the ranks of both sides and the links between them. The smaller side is named.
pub(super) fn cut(network: &Network, topology: &Topology, sending: &[bool]) -> String {
    let (inside, outside) = (members(network, sending, true), members(network, sending, false));
    let over = links(network, topology, sending);
    if outside.len() <= inside.len() {
        format!("{} into {} over {over}", of(inside.len(), "rank"), ranks(topology, &outside))
    } else {
        format!("{} into {} over {over}", ranks(topology, &inside), of(outside.len(), "rank"))
    }
}

/// The sentence for a partition: how many messages an element needs and what can leave the parts together.
pub(super) fn parts(network: &Network, topology: &Topology, counted: &Counted) -> String {
    let parts = &counted.parts;
    let messages = 2 * (parts.len() - 1);
    let together = counted.rate.value() * messages as f64;
    let (every, thing) = match network.ranks as usize == parts.len() {
        true => ("every rank", "ranks"),
        false if is_boxes(network, parts) => ("every box", "boxes"),
        false => ("every part", "parts"),
    };
    let first = ranks(topology, &parts[0]);
    let of = if thing == "parts" { format!(" (the first is {first})") } else { String::new() };
    format!(
        "{messages} messages for each element between {} {thing}{of} over {} GB/s, the sum of {every}'s links",
        parts.len(),
        gb_s(together)
    )
}

fn is_boxes(network: &Network, parts: &[Vec<u32>]) -> bool {
    let boxes = network.boxes.iter().map(|ranks| ranks.iter().map(|rank| rank.0).collect::<Vec<_>>());
    let (mut boxes, mut parts) = (boxes.collect::<Vec<_>>(), parts.to_vec());
    boxes.sort_unstable();
    parts.sort_unstable();
    boxes == parts
}

/// The sentence for a bound by distances.
pub(super) fn distance(network: &Network, lengths: &[u64]) -> String {
    let links = network.arcs.iter().filter(|arc| arc.link.is_some());
    let sum: u128 = links.clone().map(|arc| arc.capacity).sum();
    let all = format!("{} links of {} GB/s together", links.count(), gb_s(sum as f64));
    let weighted = lengths.iter().any(|length| *length != lengths[0]);
    if weighted {
        format!("{all}, each with a length of its own, and the distances by them between all pairs of ranks")
    } else {
        format!("{all}, and the hops between all pairs of ranks")
    }
}
