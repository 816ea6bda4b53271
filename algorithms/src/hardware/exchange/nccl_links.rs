//! The links of GPUs in NCCL's topology XML.
//!
//! Invariant: both ends of a link say the same number, or one says nothing. Source as `nccl.rs` (`ncclTopoAddNvLinks`,
//! `ncclTopoAddC2c`).

use std::collections::BTreeMap;

use super::draft::Draft;
use super::error::ReadError;
use super::nccl::{Wire, WireKind};
use crate::hardware::{BusId, Hardware, Link, LinkKind, NodeId, NodeKind, Pci, known_gpu, nvlink_generation};

/// NVSwitches and bridges of POWER machines, by class.
const NVSWITCH: u32 = 0x06_8000;
const POWER_BRIDGE: u32 = 0x06_8001;

/// What a link leads to, as far as the file says.
enum Other {
    Node(NodeId),
    /// A device that is not in the file.
    Absent,
}

/// Links of one pair of nodes, in the order in which the file has them.
struct Pair {
    line: u32,
    is_xgmi: bool,
    /// By the first end and by the second.
    counts: [u32; 2],
}

/// Adds the links.
pub(super) fn resolve(draft: &mut Draft<'_>, wires: Vec<Wire>) -> Result<(), ReadError> {
    let mut found: BTreeMap<(Option<NodeId>, BusId), NodeId> = BTreeMap::new();
    for (id, node) in draft.hardware.iter() {
        if let (NodeKind::Gpu(_) | NodeKind::NvSwitch(_), Some(bus)) =
            (&node.kind, node.kind.pci().and_then(|pci| pci.bus))
        {
            found.entry((node.host, bus)).or_insert(id);
        }
    }
    let hosts = draft.hardware.hosts().len();
    let on_hosts = found.keys().map(|(host, bus)| (*bus, *host)).collect();
    let mut finder = Finder { found, hidden: BTreeMap::new(), hosts, on_hosts };
    let mut order: Vec<(NodeId, NodeId)> = Vec::new();
    let mut pairs: BTreeMap<(NodeId, NodeId), Pair> = BTreeMap::new();
    for wire in wires {
        let (is_xgmi, target, class) = match wire.kind {
            WireKind::Peer { is_xgmi, target, class } => (is_xgmi, target, class),
            WireKind::C2c { mb_s } => {
                c2c(draft, wire.gpu, wire.count, mb_s);
                continue;
            }
        };
        let Other::Node(other) = finder.find(draft, wire.gpu, wire.line, &target, class)? else {
            let name = if is_xgmi { "xGMI" } else { "NVLink" };
            draft.note(wire.line, format!("{name} to {target}, which is not in the file, is left out"));
            continue;
        };
        if other == wire.gpu {
            return Err(draft.error(
                wire.line,
                format!("a GPU is linked to itself ({target})"),
                "name the other end",
            ));
        }
        let key = (wire.gpu.min(other), wire.gpu.max(other));
        let pair = pairs.entry(key).or_insert_with(|| {
            order.push(key);
            Pair { line: wire.line, is_xgmi, counts: [0, 0] }
        });
        let side = &mut pair.counts[usize::from(wire.gpu != key.0)];
        *side = side.saturating_add(wire.count);
        pair.line = wire.line;
    }
    for key in order {
        connect(draft, key, &pairs[&key])?;
    }
    Ok(())
}

fn connect(draft: &mut Draft<'_>, (from, to): (NodeId, NodeId), pair: &Pair) -> Result<(), ReadError> {
    let [one, other] = pair.counts;
    let (first, second) = (address(&draft.hardware, from), address(&draft.hardware, to));
    let both_say = draft.hardware.gpu(from).is_some() && draft.hardware.gpu(to).is_some();
    if one != other && one > 0 && other > 0 {
        let reason = format!("{first} has {one} links to {second}, which has {other} to it");
        return Err(draft.error(
            pair.line,
            reason,
            "both ends of a link have the same number; write the file again",
        ));
    }
    if both_say && one.min(other) == 0 {
        let (said, silent) = if one > 0 { (&first, &second) } else { (&second, &first) };
        draft.note(pair.line, format!("only {said} has links to {silent}; they are taken for links of both"));
    }
    let count = one.max(other);
    let kind = if pair.is_xgmi {
        LinkKind::Xgmi { count }
    } else {
        let ends = [from, to].map(|end| draft.hardware.gpu(end));
        let generation = ends.into_iter().flatten().find_map(|gpu| {
            let sm = gpu.sm.or_else(|| known_gpu(&gpu.pci).and_then(|known| known.sm));
            sm.and_then(nvlink_generation)
        });
        LinkKind::NvLink { generation, count }
    };
    draft.hardware.connect(from, to, kind);
    Ok(())
}

fn address(hardware: &Hardware, id: NodeId) -> String {
    let bus = hardware.node(id).kind.pci().and_then(|pci| pci.bus);
    bus.map_or("a device without address".into(), |bus| bus.to_string())
}

fn c2c(draft: &mut Draft<'_>, gpu: NodeId, count: u32, mb_s: u64) {
    let Some(numa) = draft.hardware.numa_of(gpu) else { return };
    let bytes_s = mb_s.checked_mul(1_000_000).and_then(|bytes_s| bytes_s.checked_mul(count.into()));
    let bytes_s = bytes_s.filter(|bytes_s| *bytes_s > 0);
    let kind = LinkKind::C2c { count };
    draft.hardware.add_link(Link { from: numa.min(gpu), to: numa.max(gpu), kind, bytes_s, latency_ns: None });
}

struct Finder {
    found: BTreeMap<(Option<NodeId>, BusId), NodeId>,
    /// Per host the switches that its files do not see.
    hidden: BTreeMap<Option<NodeId>, NodeId>,
    hosts: usize,
    /// Per address a host that has it.
    on_hosts: BTreeMap<BusId, Option<NodeId>>,
}

impl Finder {
    fn find(
        &mut self,
        draft: &mut Draft<'_>,
        gpu: NodeId,
        line: u32,
        target: &str,
        class: Option<u32>,
    ) -> Result<Other, ReadError> {
        let host = draft.hardware.node(gpu).host;
        if BusId::is_hidden(target) {
            // In a file of several hosts they are switches of a rack, which belong to none of them.
            let host = host.filter(|_| self.hosts == 1);
            let hidden = *self.hidden.entry(host).or_insert_with(|| switch(draft, line, host, None));
            return Ok(Other::Node(hidden));
        }
        let bus: BusId = target.parse().map_err(|_| {
            draft.error(line, format!("target={target:?} is no PCI address"), "write it as 0000:3b:00.0")
        })?;
        if let Some(known) = self.found.get(&(host, bus)) {
            return Ok(Other::Node(*known));
        }
        match class {
            Some(POWER_BRIDGE) => Ok(draft.hardware.numa_of(gpu).map_or(Other::Absent, Other::Node)),
            Some(class) if class >> 8 == NVSWITCH >> 8 => {
                let id = switch(draft, line, host, Some(bus));
                self.found.insert((host, bus), id);
                Ok(Other::Node(id))
            }
            class => {
                let elsewhere = self.on_hosts.get(&bus).is_some_and(|other| *other != host);
                if elsewhere {
                    let reason = format!("the link leads to {bus}, which is on another host");
                    return Err(draft.error(
                        line,
                        reason,
                        "the file may mix two hosts: give each its own file",
                    ));
                }
                if class.is_none() {
                    let reason =
                        format!("the link leads to {bus}, which is not in the file, and has no tclass");
                    return Err(draft.error(
                        line,
                        reason,
                        "add the device, or tclass=\"0x068000\" for an NVSwitch",
                    ));
                }
                Ok(Other::Absent)
            }
        }
    }
}

/// Adds an NVSwitch that is not in the tree.
fn switch(draft: &mut Draft<'_>, line: u32, host: Option<NodeId>, bus: Option<BusId>) -> NodeId {
    let pci = Pci { bus, class: bus.map(|_| NVSWITCH), ..Pci::default() };
    let id = draft.add(line, None, NodeKind::NvSwitch(pci));
    draft.hardware.node_mut(id).host = host;
    id
}
