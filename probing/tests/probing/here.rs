//! This machine, whatever it is.

use std::path::Path;

use consort_algorithms::hardware::{NodeKind, PortState};
use consort_probing::Probe;

/// Of the processors that the library runs on.
const PAGE_BYTES: u64 = 4096;

#[test]
fn this_machine_has_the_cpus_memory_and_interfaces_that_the_kernel_lists_elsewhere() {
    let probed = Probe::below(Path::new("/")).run();
    let hardware = &probed.hardware;
    hardware.check().expect("a machine that makes sense");
    let (mut cpus, mut bytes) = (0, 0);
    for node in hardware.nodes() {
        if let NodeKind::Numa(numa) = &node.kind {
            cpus += numa.cpus.as_ref().map_or(0, |cpus| cpus.len());
            bytes += numa.memory_bytes.unwrap_or(0);
        }
    }
    let text = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let processors = text("/proc/cpuinfo").lines().filter(|line| line.starts_with("processor")).count();
    if processors == 0 || cpus == 0 {
        eprintln!("SKIP: neither sysfs nor /proc/cpuinfo list CPUs here");
        return;
    }
    assert_eq!(cpus, processors, "{hardware}");
    // A guest whose host has taken memory back has less than `/proc/meminfo` says, and may have another amount by now.
    let managed = || -> u64 {
        let zones = text("/proc/zoneinfo");
        let pages =
            zones.lines().filter_map(|line| line.trim().strip_prefix("managed")?.trim().parse::<u64>().ok());
        pages.sum::<u64>() * PAGE_BYTES
    };
    let (before, after) = (managed(), managed());
    if before == after && before != 0 {
        let again = Probe::below(Path::new("/")).run();
        let of = |kind: &NodeKind| match kind {
            NodeKind::Numa(numa) => numa.memory_bytes.unwrap_or(0),
            _ => 0,
        };
        let bytes_again: u64 = again.hardware.nodes().iter().map(|node| of(&node.kind)).sum();
        let is_steady = bytes == bytes_again && managed() == before;
        assert!(!is_steady || bytes == before, "{bytes} of {before}");
    }
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
