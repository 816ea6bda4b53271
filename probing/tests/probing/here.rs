//! This machine, whatever it is.

use std::path::Path;

use consort_algorithms::hardware::{NodeKind, PortState};
use consort_probing::Probe;

#[test]
fn this_machine_has_the_cpus_memory_and_interfaces_that_the_kernel_lists_elsewhere() {
    let probed = Probe::below(Path::new("/")).run();
    let hardware = &probed.hardware;
    hardware.check().expect("a machine that makes sense");
    let mut cpus = 0;
    for node in hardware.nodes() {
        if let NodeKind::Numa(numa) = &node.kind {
            cpus += numa.cpus.as_ref().map_or(0, |cpus| cpus.len());
        }
    }
    let text = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let processors = text("/proc/cpuinfo").lines().filter(|line| line.starts_with("processor")).count();
    if processors == 0 || cpus == 0 {
        eprintln!("SKIP: neither sysfs nor /proc/cpuinfo list CPUs here");
        return;
    }
    assert_eq!(cpus, processors, "{hardware}");
    the_nodes_have_the_memory_that_the_zones_have();
    // `/proc/net/dev` has all interfaces; the probe keeps at most 256 of them.
    let lines = text("/proc/net/dev");
    for name in lines.lines().filter_map(|line| line.split_once(':')).map(|(name, _)| name.trim()).take(200) {
        let is_it = |kind: &NodeKind| match kind {
            NodeKind::Port(port) => port.device.as_deref() == Some(name),
            _ => false,
        };
        let listed = hardware.nodes().iter().find(|node| {
            is_it(&node.kind)
                || node
                    .extra
                    .get("probe.interface")
                    .is_some_and(|names| names.split(',').any(|own| own == name))
        });
        let Some(node) = listed else {
            // In a network namespace that sysfs was not mounted for, the two differ.
            assert!(!Path::new("/sys/class/net").join(name).exists(), "{name} is missing:\n{hardware}");
            continue;
        };
        if name == "lo"
            && let NodeKind::Port(port) = &node.kind
        {
            assert!(port.virtual_device && port.state != PortState::Down, "{port:?}");
        }
    }
}

fn memory_of_nodes() -> u64 {
    let of = |kind: &NodeKind| match kind {
        NodeKind::Numa(numa) => numa.memory_bytes.unwrap_or(0),
        _ => 0,
    };
    Probe::below(Path::new("/")).run().hardware.nodes().iter().map(|node| of(&node.kind)).sum()
}

/// A guest whose host takes memory back has less than `/proc/meminfo` says, and another amount a moment later.
fn the_nodes_have_the_memory_that_the_zones_have() {
    const TRIES: usize = 100;
    let text = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let number = |line: &str| line.split_whitespace().nth(1)?.parse::<u64>().ok();
    let pages = || -> u64 {
        let zones = text("/proc/zoneinfo");
        zones.lines().map(str::trim).filter(|line| line.starts_with("managed")).filter_map(number).sum()
    };
    let maps = text("/proc/self/smaps");
    let page_kib = maps.lines().filter(|line| line.starts_with("KernelPageSize:")).filter_map(number).min();
    let (Some(page_kib), true) = (page_kib, pages() > 0) else {
        eprintln!("SKIP: /proc lists no zones or no pages here");
        return;
    };
    let mut seen = Vec::new();
    for _ in 0..TRIES {
        let (before, nodes, after) = (pages(), memory_of_nodes(), pages());
        if before == after && nodes == before * page_kib * 1024 {
            return;
        }
        seen = vec![before, nodes, after];
    }
    panic!("pages of {page_kib} KiB before, bytes of the nodes, pages after: {seen:?}");
}
