//! Devices on PCI as sysfs lists them: what they are, what is above them, and their links.
//!
//! Invariant: a device has the place that the path to which its link leads says; numbers that cannot be are unknown.
//! Absent: which of them matter, and nodes.

use std::collections::BTreeMap;

use consort_algorithms::hardware::exchange::pcie_generation;
use consort_algorithms::hardware::{BusId, CpuSet, Lanes, Pci};

use super::note::Trouble;
use super::tree::Tree;

/// Where sysfs lists all devices.
const DEVICES: &str = "sys/bus/pci/devices";
/// More devices in a row than any machine has.
const DEPTH_MAX: usize = 64;
/// The configuration space of a PCI Express device.
const CONFIG_MAX: usize = 4096;

/// A device.
#[derive(Debug)]
pub(crate) struct Device {
    pub(crate) bus: BusId,
    pub(crate) pci: Pci,
    /// Its directory.
    pub(crate) path: String,
    /// The root complex: domain and bus.
    pub(crate) root: BusId,
    /// The devices above it, from the root complex down.
    pub(crate) above: Vec<BusId>,
    /// The number of its NUMA domain, where sysfs knows it.
    pub(crate) numa: Option<u32>,
    /// The CPUs near to it.
    pub(crate) cpus: Option<CpuSet>,
    /// Its link, as it is. Of a port that leads down it is the link below.
    pub(crate) now: Lanes,
    /// Its link as this end could have it.
    pub(crate) best: Lanes,
    /// The device whose virtual function it is.
    pub(crate) physical: Option<BusId>,
}

/// All devices by their addresses.
pub(crate) fn devices(tree: &Tree) -> BTreeMap<BusId, Device> {
    let mut devices = BTreeMap::new();
    for name in tree.names(DEVICES) {
        let listed = format!("{DEVICES}/{name}");
        let Ok(bus) = name.parse::<BusId>() else {
            tree.nonsense(DEVICES, &name);
            continue;
        };
        let Some(path) = tree.resolve(&listed) else { continue };
        let Some((root, mut above)) = place(&path) else {
            tree.note(listed, Trouble::LeftOut { why: format!("{path} names no root complex") });
            continue;
        };
        if above.pop() != Some(bus) || above.contains(&bus) || above.len() > DEPTH_MAX {
            let how = format!("the device is at {path}; it is left out");
            tree.note(listed, Trouble::Contradiction { how });
            continue;
        }
        let device = device(tree, bus, path, root, above);
        devices.insert(bus, device);
    }
    devices
}

/// The root complex that a path names last, and the devices behind it.
fn place(path: &str) -> Option<(BusId, Vec<BusId>)> {
    let parts: Vec<&str> = path.split('/').collect();
    let root = |part: &str| {
        let (domain, bus) = part.strip_prefix("pci")?.split_once(':')?;
        format!("{domain}:{bus}:00.0").parse::<BusId>().ok()
    };
    let (at, root) = parts.iter().enumerate().rev().find_map(|(at, part)| Some((at, root(part)?)))?;
    let below: Result<Vec<BusId>, _> = parts[at + 1..].iter().map(|part| part.parse()).collect();
    Some((root, below.ok()?))
}

fn device(tree: &Tree, bus: BusId, path: String, root: BusId, above: Vec<BusId>) -> Device {
    let file = |name: &str| format!("{path}/{name}");
    let word = |name: &str| tree.hexadecimal(&file(name), 0xffff).map(|value| value as u16);
    let pci = Pci {
        bus: Some(bus),
        class: tree.hexadecimal(&file("class"), 0xff_ffff),
        vendor: word("vendor"),
        device: word("device"),
        subsystem_vendor: word("subsystem_vendor"),
        subsystem_device: word("subsystem_device"),
    };
    // -1 is a domain that the firmware does not say.
    let numa = tree.number::<i64>(&file("numa_node")).filter(|numa| *numa != -1);
    let number = numa.and_then(|numa| u32::try_from(numa).ok());
    if let (Some(numa), None) = (numa, number) {
        tree.nonsense(&file("numa_node"), &numa.to_string());
    }
    let cpus = tree.text(&file("local_cpulist")).and_then(|text| text.parse().ok());
    let physical = tree.target_name(&file("physfn")).and_then(|name| name.parse().ok());
    let now = lanes(tree, &path, "current");
    let best = lanes(tree, &path, "max");
    Device { bus, pci, root, above, numa: number, cpus, now, best, physical, path }
}

/// Generation and width; `Unknown`, 0 and 255 are the kernel's words for what it does not know.
fn lanes(tree: &Tree, path: &str, which: &str) -> Lanes {
    let speed = format!("{path}/{which}_link_speed");
    let generation =
        tree.text(&speed).filter(|text| !text.is_empty() && !text.starts_with("Unknown")).and_then(|text| {
            let generation = pcie_generation(&text);
            if generation.is_none() {
                tree.nonsense(&speed, &text);
            }
            generation
        });
    let place = format!("{path}/{which}_link_width");
    let width = tree.number::<u64>(&place).filter(|width| !matches!(width, 0 | 255)).and_then(|width| {
        let known = matches!(width, 1 | 2 | 4 | 8 | 12 | 16 | 32);
        if !known {
            tree.nonsense(&place, &width.to_string());
        }
        known.then_some(width as u8)
    });
    Lanes { generation, width }
}

/// What a port of PCI Express is, by its configuration space.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PortKind {
    /// It leads down from a root complex.
    Root,
    /// It leads up from a switch.
    Up,
    /// It leads down from a switch.
    Down,
    /// Another bridge.
    Other,
}

/// What the configuration space of a device says. Only the first 64 bytes are for all users, so most processes see nothing of it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Config {
    pub(crate) port: Option<PortKind>,
    /// Whether access control redirects requests between peers up; `None` where that cannot be read.
    pub(crate) redirects: Option<bool>,
}

/// Reads the configuration space.
///
/// Source: PCI Express Base Specification 5.0, 7.5.3 (capability 0x10, its flags) and 7.7.8 (extended capability 0x000d).
pub(crate) fn config(tree: &Tree, path: &str) -> Config {
    // As many bytes as this process may read; there may be fewer than the file has.
    let Some(bytes) = tree.bytes(&format!("{path}/config"), CONFIG_MAX) else { return Config::default() };
    let byte = |at: usize| bytes.get(at).copied();
    let word = |at: usize| Some(u16::from_le_bytes([byte(at)?, byte(at + 1)?]));
    let mut config = Config::default();
    let mut at = usize::from(byte(0x34).unwrap_or(0) & !3);
    // Each capability has four bytes at least, so a longer list goes in a circle.
    for _ in 0..48 {
        let Some(id) = byte(at).filter(|_| at >= 0x40) else { break };
        if id == 0x10 {
            config.port = word(at + 2).map(|flags| match flags >> 4 & 0xf {
                4 => PortKind::Root,
                5 => PortKind::Up,
                6 => PortKind::Down,
                _ => PortKind::Other,
            });
        }
        at = usize::from(byte(at + 1).unwrap_or(0) & !3);
    }
    let mut at = 0x100;
    for _ in 0..480 {
        let (Some(low), Some(high)) = (word(at), word(at + 2)) else { break };
        if low == 0x000d {
            config.redirects = word(at + 6).map(|control| control & REQUEST_REDIRECT != 0);
            break;
        }
        if at == 0x100 && (low, high) != (0, 0) {
            // There are extended capabilities, and access control is none of them unless the list says so.
            config.redirects = Some(false);
        }
        at = usize::from(high >> 4 & !3);
        if at < 0x100 {
            break;
        }
    }
    config
}

/// P2P Request Redirect of the control register.
const REQUEST_REDIRECT: u16 = 1 << 2;
