//! A host in lines for people: processors, memory, caches, interfaces.
//!
//! Invariant: what is not known is left out. Absent: GPUs and what joins devices.

use std::collections::BTreeMap;
use std::fmt::Write;

use consort::planning::hardware::{
    Cores, GpuDirect, Hardware, Iommu, LinkLayer, NodeId, NodeKind, Numa, Port, PortState,
};

/// Virtual interfaces that are listed; hosts of containers have hundreds.
const VIRTUAL_MAX: usize = 8;

/// The lines; none of a machine whose source says nothing of memory and caches.
pub(crate) fn text(hardware: &Hardware) -> String {
    let is_described = |kind: &NodeKind| match kind {
        NodeKind::Cores(_) => true,
        NodeKind::Numa(numa) => numa.memory_bytes.is_some(),
        _ => false,
    };
    if !hardware.nodes().iter().any(|node| is_described(&node.kind)) {
        return String::new();
    }
    let mut text = String::new();
    for host in hardware.hosts() {
        text += &host_line(hardware, host);
        for (id, node) in hardware.iter().filter(|(_, node)| node.host == Some(host)) {
            if let NodeKind::Numa(numa) = &node.kind {
                // Writing to a String cannot fail.
                let _ = writeln!(text, "  {}: {}", node.name, numa_words(hardware, id, numa));
            }
        }
        text += &interfaces(hardware, host);
    }
    text
}

fn host_line(hardware: &Hardware, id: NodeId) -> String {
    let node = hardware.node(id);
    let NodeKind::Host(host) = &node.kind else { return String::new() };
    let mut parts: Vec<String> = host.model.iter().cloned().collect();
    parts.extend(node.extra.get("probe.processor").cloned());
    if host.is_virtual == Some(true) {
        parts.push("a virtual machine".into());
    }
    parts.extend(host.iommu.map(|iommu| {
        let words = match iommu {
            Iommu::Off => "IOMMU off",
            Iommu::PassesThrough => "IOMMU passes through",
            Iommu::Translates => "IOMMU translates",
        };
        words.to_owned()
    }));
    parts.extend(host.gpudirect.map(|way| {
        let words = match way {
            GpuDirect::None => "no GPUDirect",
            GpuDirect::PeerMemory => "GPUDirect by peer memory",
            GpuDirect::DmaBuf => "GPUDirect by dma-buf",
        };
        words.to_owned()
    }));
    let quota = node.extra.get("probe.cpu_quota_milli").and_then(|milli| milli.parse::<f64>().ok());
    parts.extend(quota.map(|milli| format!("at most {} CPUs of time", milli / 1000.0)));
    parts.extend(
        node.extra.get("probe.cpus_allowed").map(|cpus| format!("this process may run on CPUs {cpus}")),
    );
    format!("{}: {}\n", node.name, parts.join(", "))
}

fn numa_words(hardware: &Hardware, id: NodeId, numa: &Numa) -> String {
    let mut parts = Vec::new();
    match &numa.cpus {
        Some(cpus) => parts.push(format!("{} CPUs ({cpus})", cpus.len())),
        None if numa.number.is_none() => parts.push("devices whose NUMA domain is not known".into()),
        None => {}
    }
    parts.extend(numa.memory_bytes.map(|bytes| format!("{} of memory", binary(bytes))));
    let processor = &numa.processor;
    if let Some(vendor) = &processor.vendor {
        let number = |word: &str, value: Option<u32>| {
            value.map(|value| format!(" {word} {value}")).unwrap_or_default()
        };
        let (family, model) = (number("family", processor.family), number("model", processor.model));
        parts.push(format!("{vendor}{family}{model}"));
    }
    let mut alike: BTreeMap<(usize, Option<u8>, Option<u64>), usize> = BTreeMap::new();
    for (_, below) in hardware.below(id) {
        if let NodeKind::Cores(Cores { cpus, cache_level, cache_bytes }) = &hardware.node(below).kind {
            *alike.entry((cpus.len(), *cache_level, *cache_bytes)).or_default() += 1;
        }
    }
    for ((cpus, level, bytes), count) in alike {
        let groups = if count == 1 { "group".to_owned() } else { "groups".to_owned() };
        let bytes = bytes.map(|bytes| format!(" {} of", binary(bytes))).unwrap_or_default();
        let level = level.map(|level| format!(" level-{level}")).unwrap_or_default();
        parts.push(format!("{count} {groups} of {cpus} CPUs that share{bytes}{level} cache"));
    }
    parts.join(", ")
}

/// Bytes in the largest unit that has a whole number of tenths or more.
fn binary(bytes: u64) -> String {
    let (unit, name) = match bytes {
        0..0x10_0000 => (1 << 10, "KiB"),
        0x10_0000..0x4000_0000 => (1 << 20, "MiB"),
        _ => (1u64 << 30, "GiB"),
    };
    let tenths = (bytes as f64 / unit as f64 * 10.0).round() / 10.0;
    format!("{tenths} {name}")
}

fn interfaces(hardware: &Hardware, host: NodeId) -> String {
    let mut text = String::new();
    let ports: Vec<(NodeId, &Port)> = hardware
        .iter()
        .filter(|(_, node)| node.host == Some(host))
        .filter_map(|(id, node)| match &node.kind {
            NodeKind::Port(port) => Some((id, port)),
            _ => None,
        })
        .collect();
    let real = ports.iter().filter(|(_, port)| !port.virtual_device);
    let virtual_ports: Vec<_> = ports.iter().filter(|(_, port)| port.virtual_device).collect();
    for (id, port) in real.chain(virtual_ports.iter().copied().take(VIRTUAL_MAX)) {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "  {}", port_words(hardware, *id, port));
    }
    if virtual_ports.len() > VIRTUAL_MAX {
        let more = virtual_ports.len() - VIRTUAL_MAX;
        // Writing to a String cannot fail.
        let _ = writeln!(text, "  and {more} more virtual interfaces");
    }
    text
}

fn port_words(hardware: &Hardware, id: NodeId, port: &Port) -> String {
    let extra = &hardware.node(id).extra;
    let kept = |key: &str| extra.get(key).filter(|value| !value.is_empty());
    let mut parts = Vec::new();
    parts.push(match port.layer {
        LinkLayer::Ethernet if port.guid.is_some() => "RoCE".to_owned(),
        LinkLayer::Ethernet => "Ethernet".to_owned(),
        LinkLayer::InfiniBand => "InfiniBand".to_owned(),
        LinkLayer::Wireless => "Wi-Fi".to_owned(),
        LinkLayer::Unknown => "interface".to_owned(),
    });
    if port.virtual_device {
        parts.push("virtual".into());
    }
    parts.extend(port.speed_mbit_s.map(|speed| format!("{} Gb/s", speed as f64 / 1000.0)));
    parts.extend(match port.state {
        PortState::Up => Some("up".to_owned()),
        PortState::Down => Some("down".to_owned()),
        PortState::Unknown => None,
    });
    let nic = hardware.above(id).map(|(_, nic)| nic);
    parts.extend(nic.and_then(|nic| hardware.node(nic).kind.pci()?.bus).map(|bus| format!("at {bus}")));
    let numa = nic.filter(|_| !port.virtual_device).and_then(|nic| hardware.numa_of(nic));
    parts.extend(numa.map(|numa| format!("on {}", hardware.node(numa).name)));
    parts.extend(kept("probe.interface").map(|name| format!("interface {name}")));
    parts.extend(kept("probe.bond").map(|bond| format!("part of {bond}")));
    parts.extend(kept("probe.members").map(|members| format!("joins {members}")));
    parts.extend(kept("probe.mtu").map(|mtu| format!("MTU {mtu}")));
    parts.extend(kept("probe.gids").map(|gids| format!("GIDs {gids}")));
    let device = port.device.as_deref().unwrap_or("a port");
    let number = port.number.filter(|_| port.guid.is_some()).map(|number| format!(" port {number}"));
    format!("{device}{}: {}", number.unwrap_or_default(), parts.join(", "))
}
