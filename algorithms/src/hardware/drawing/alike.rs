//! Hosts that are alike: the same devices with the same links, whatever their names and addresses.
//!
//! Invariant: hosts of one kind are drawn once in detail.

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::hardware::{Hardware, LinkKind, NodeId, NodeKind};

/// A host's devices and links without what tells equal hosts apart, so that equal texts are equal hosts.
fn likeness(hardware: &Hardware, nodes: &[NodeId]) -> String {
    let place: BTreeMap<NodeId, usize> = nodes.iter().copied().zip(0..).collect();
    let mut text = String::new();
    for id in nodes {
        // Writing to a String cannot fail.
        let _ = match &hardware.node(*id).kind {
            NodeKind::Host(host) => write!(text, "host {:?}", host.model),
            NodeKind::Numa(numa) => write!(text, "{numa:?}"),
            NodeKind::Cores(cores) => write!(text, "{cores:?}"),
            NodeKind::Bridge(bridge) => write!(text, "bridge {:?}", bridge.acs),
            NodeKind::Gpu(gpu) => {
                write!(text, "gpu {:?} {:?} {:?} {:?}", gpu.index, gpu.sm, gpu.gcn, gpu.model)
            }
            NodeKind::Port(port) => write!(
                text,
                "port {:?} {:?} {:?} {:?} {:?} {}",
                port.device, port.number, port.speed_mbit_s, port.state, port.layer, port.virtual_device
            ),
            other => write!(text, "{}", other.word()),
        };
        for link in hardware.touching(*id) {
            let link = hardware.link(*link);
            let other = place.get(&link.other(*id));
            let _ = match (link.kind, other) {
                // Each link of a host once.
                (_, Some(_)) if link.from != *id => Ok(()),
                (LinkKind::Local, _) => write!(text, " {other:?}"),
                (kind, _) => write!(text, " {other:?} {kind:?} {:?}", link.bytes_s),
            };
        }
        text.push('\n');
    }
    text
}

/// Kinds of hosts: each with its hosts, by their places in [`Hardware::hosts`], in the order of their first hosts.
pub(super) fn kinds(hardware: &Hardware) -> Vec<Vec<usize>> {
    let hosts = hardware.hosts();
    let place: BTreeMap<NodeId, usize> = hosts.iter().copied().zip(0..).collect();
    let mut nodes: Vec<Vec<NodeId>> = hosts.iter().map(|host| vec![*host]).collect();
    for (id, node) in hardware.iter() {
        if let Some(at) = node.host.and_then(|host| place.get(&host)) {
            nodes[*at].push(id);
        }
    }
    let mut kinds: Vec<Vec<usize>> = Vec::new();
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    for (at, nodes) in nodes.iter().enumerate() {
        let kind = *seen.entry(likeness(hardware, nodes)).or_insert(kinds.len());
        if kind == kinds.len() {
            kinds.push(Vec::new());
        }
        kinds[kind].push(at);
    }
    kinds
}

/// Numbers in words: `0–3, 7`.
pub(super) fn stretches(numbers: &[usize]) -> String {
    let mut words: Vec<String> = Vec::new();
    let mut at = 0;
    while at < numbers.len() {
        let first = numbers[at];
        while numbers.get(at + 1) == Some(&(numbers[at] + 1)) {
            at += 1;
        }
        words.push(if numbers[at] == first {
            first.to_string()
        } else {
            format!("{first}–{}", numbers[at])
        });
        at += 1;
    }
    let more = words.len().saturating_sub(12);
    words.truncate(12);
    let text = words.join(", ");
    if more > 0 { format!("{text} and others") } else { text }
}
