//! The part of the PCI tree that matters: GPUs, NVSwitches, network adapters, and the switches between them and their root
//! complexes.
//!
//! Invariant: a PCIe switch is one node, with the address of the port that leads up; root complexes are below the NUMA
//! domain that their devices name. Devices of a virtual machine that shows no switch have links of unknown width and
//! speed: such a tree says nothing of the machine. Absent: links beside PCIe.

use std::collections::{BTreeMap, BTreeSet};

use consort_algorithms::hardware::{
    Bridge, BusId, GUESSED_PORTS, Gpu, Hardware, Lanes, LinkKind, NVIDIA, Nic, NodeId, NodeKind, Numa, Pci,
};

use super::cores::Numas;
use super::note::Trouble;
use super::pci::{self, Device, PortKind};
use super::tree::Tree;

/// What became of the devices.
#[derive(Debug, Default)]
pub(crate) struct Placed {
    /// GPUs, NVSwitches and adapters by their addresses.
    pub(crate) nodes: BTreeMap<BusId, NodeId>,
    /// Their directories.
    pub(crate) paths: BTreeMap<BusId, String>,
    /// Virtual functions that are no nodes, with the device that each is a part of.
    pub(crate) functions: BTreeMap<BusId, BusId>,
}

/// What a device is to a plan.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Gpu,
    NvSwitch,
    Nic,
}

/// `described` are the GPUs that a library or a driver describes.
fn kind(device: &Device, described: &BTreeSet<BusId>) -> Option<Kind> {
    if described.contains(&device.bus) || device.pci.looks_like_gpu() {
        Some(Kind::Gpu)
    } else if device.pci.class16() == Some(0x0680) && device.pci.vendor == Some(NVIDIA) {
        Some(Kind::NvSwitch)
    } else if device.pci.looks_like_nic() {
        Some(Kind::Nic)
    } else {
        None
    }
}

pub(crate) struct Placer<'a> {
    pub(crate) tree: &'a Tree,
    pub(crate) hardware: &'a mut Hardware,
    pub(crate) host: NodeId,
    pub(crate) numas: &'a Numas,
    pub(crate) is_virtual: bool,
    /// Domain and bus of root complexes.
    roots: BTreeMap<BusId, NodeId>,
    bridges: BTreeMap<BusId, NodeId>,
    /// The domain of devices whose domain is not known.
    nowhere: Option<NodeId>,
}

impl<'a> Placer<'a> {
    pub(crate) fn new(
        tree: &'a Tree,
        hardware: &'a mut Hardware,
        host: NodeId,
        numas: &'a Numas,
        is_virtual: bool,
    ) -> Self {
        Placer {
            tree,
            hardware,
            host,
            numas,
            is_virtual,
            roots: BTreeMap::new(),
            bridges: BTreeMap::new(),
            nowhere: None,
        }
    }

    /// Adds the devices that matter.
    pub(crate) fn place(mut self, described: &BTreeSet<BusId>) -> Placed {
        let devices = pci::devices(self.tree);
        let is_of_present = |device: &Device| device.physical.is_some_and(|bus| devices.contains_key(&bus));
        let wanted: Vec<(&Device, Kind)> = devices
            .values()
            .filter(|device| !is_of_present(device))
            .filter_map(|device| Some((device, kind(device, described)?)))
            .collect();
        let homes = self.homes(&wanted);
        let (ports, is_guessed) = self.ports(&devices, &wanted);
        if is_guessed {
            self.hardware.node_mut(self.host).extra.insert(GUESSED_PORTS.into(), "yes".into());
        }
        let is_flat = self.is_flat(&wanted, &ports);
        let functions = devices.values().filter(|device| is_of_present(device));
        let functions = functions.filter_map(|device| Some((device.bus, device.physical?))).collect();
        let mut placed = Placed { functions, ..Placed::default() };
        for (device, kind) in wanted {
            let mut above = self.root(device.root, homes[&device.root]);
            for (at, bus) in device.above.iter().enumerate() {
                if ports[bus].0 == PortKind::Up {
                    let below = &device.above[at + 1..];
                    above = self.bridge(above, &devices, *bus, below, &ports);
                }
            }
            let link = self.link(&devices, device, kind, is_flat);
            let node = match kind {
                Kind::Gpu => NodeKind::Gpu(Gpu { pci: device.pci, ..Gpu::default() }),
                Kind::NvSwitch => NodeKind::NvSwitch(device.pci),
                Kind::Nic => NodeKind::Nic(Nic { pci: Some(device.pci) }),
            };
            let id = self.hardware.add_node("", Some(self.host), node);
            self.hardware.connect(above, id, link);
            self.keep_speed(device, kind, id, is_flat);
            placed.nodes.insert(device.bus, id);
            placed.paths.insert(device.bus, device.path.clone());
        }
        placed
    }

    /// What each device above another is, and whether access control redirects what peers send; and whether some of it is guessed, as this
    /// process may not read it.
    fn ports(
        &self,
        devices: &BTreeMap<BusId, Device>,
        wanted: &[(&Device, Kind)],
    ) -> (BTreeMap<BusId, (PortKind, Option<bool>)>, bool) {
        let (mut ports, mut is_guessed) = (BTreeMap::new(), false);
        for (at, bus) in wanted.iter().flat_map(|(device, _)| device.above.iter().enumerate()) {
            ports.entry(*bus).or_insert_with(|| {
                let config =
                    devices.get(bus).map(|device| pci::config(self.tree, &device.path)).unwrap_or_default();
                // Without the configuration space the place in the row says it: a root's port, then pairs of ports of switches.
                let by_place = match at {
                    0 => PortKind::Root,
                    _ if at % 2 == 1 => PortKind::Up,
                    _ => PortKind::Down,
                };
                is_guessed |= config.port.is_none();
                (config.port.unwrap_or(by_place), config.redirects)
            });
        }
        (ports, is_guessed)
    }

    /// Whether a virtual machine shows its devices without what joins them.
    fn is_flat(&self, wanted: &[(&Device, Kind)], ports: &BTreeMap<BusId, (PortKind, Option<bool>)>) -> bool {
        let ends = wanted.iter().filter(|(_, kind)| *kind != Kind::NvSwitch).count();
        let has_gpu = wanted.iter().any(|(_, kind)| *kind == Kind::Gpu);
        let has_switch = ports.values().any(|(kind, _)| *kind == PortKind::Up);
        self.is_virtual && has_gpu && ends > 1 && !has_switch
    }

    /// The NUMA domain of each root complex.
    fn homes(&mut self, wanted: &[(&Device, Kind)]) -> BTreeMap<BusId, NodeId> {
        let mut votes: BTreeMap<BusId, BTreeMap<u32, usize>> = BTreeMap::new();
        for (device, _) in wanted {
            let votes = votes.entry(device.root).or_default();
            if let Some(numa) = self.numa_of(device) {
                *votes.entry(numa).or_default() += 1;
            }
        }
        let mut homes = BTreeMap::new();
        for (root, votes) in votes {
            if votes.len() > 1 {
                let all: Vec<String> = votes.keys().map(u32::to_string).collect();
                let how =
                    format!("its devices are in the NUMA domains {}; most of them decide", all.join(", "));
                self.tree.note(written(root), Trouble::Contradiction { how });
            }
            let most = votes.iter().max_by_key(|(numa, count)| (**count, std::cmp::Reverse(**numa)));
            let known = most.and_then(|(numa, _)| self.numas.get(numa).copied());
            let only = self.numas.values().next().copied().filter(|_| self.numas.len() == 1);
            homes.insert(root, known.or(only).unwrap_or_else(|| self.unknown_numa()));
        }
        homes
    }

    fn numa_of(&self, device: &Device) -> Option<u32> {
        if let Some(numa) = device.numa {
            if self.numas.contains_key(&numa) {
                return Some(numa);
            }
            if !self.numas.is_empty() {
                let how = format!("the device is in NUMA domain {numa}, which is not there");
                self.tree.note(format!("{}/numa_node", device.path), Trouble::Contradiction { how });
            }
        }
        // CPUs that are all in one of several domains name it as well.
        let cpus = device.cpus.as_ref().filter(|cpus| !cpus.is_empty())?;
        let mut near = self.numas.iter().filter(|(_, id)| match &self.hardware.node(**id).kind {
            NodeKind::Numa(Numa { cpus: Some(own), .. }) => cpus.iter().any(|cpu| own.contains(cpu)),
            _ => false,
        });
        let first = near.next()?;
        near.next().is_none().then_some(*first.0)
    }

    fn unknown_numa(&mut self) -> NodeId {
        if let Some(known) = self.nowhere {
            return known;
        }
        let id = self.hardware.add_node("", Some(self.host), NodeKind::Numa(Numa::default()));
        self.hardware.connect(self.host, id, LinkKind::Local);
        for other in self.numas.values() {
            self.hardware.connect(*other, id, LinkKind::Socket { distance: None });
        }
        self.nowhere = Some(id);
        id
    }

    fn root(&mut self, root: BusId, home: NodeId) -> NodeId {
        if let Some(known) = self.roots.get(&root) {
            return *known;
        }
        let id = self.hardware.add_node("", Some(self.host), NodeKind::Root(Some(root)));
        self.hardware.connect(home, id, LinkKind::Local);
        self.roots.insert(root, id);
        id
    }

    /// The switch whose port that leads up is at `bus`. `below` are the devices behind that port, on the way to one device: the
    /// first is a port of the switch that leads down.
    fn bridge(
        &mut self,
        above: NodeId,
        devices: &BTreeMap<BusId, Device>,
        bus: BusId,
        below: &[BusId],
        ports: &BTreeMap<BusId, (PortKind, Option<bool>)>,
    ) -> NodeId {
        let device = devices.get(&bus);
        let id = *self.bridges.entry(bus).or_insert_with(|| {
            let pci = device.map_or(Pci { bus: Some(bus), ..Pci::default() }, |device| device.pci);
            let id = self.hardware.add_node("", Some(self.host), NodeKind::Bridge(Bridge { pci, acs: None }));
            let link =
                device.map_or(LinkKind::Pcie { now: Lanes::default(), best: Lanes::default() }, |device| {
                    LinkKind::Pcie {
                        now: device.now,
                        best: least(device, device.above.last().and_then(|bus| devices.get(bus))),
                    }
                });
            self.hardware.connect(above, id, link);
            id
        });
        let Some((port, (_, Some(redirects)))) =
            below.first().and_then(|port| Some((port, ports.get(port)?)))
        else {
            return id;
        };
        let node = self.hardware.node_mut(id);
        if let NodeKind::Bridge(bridge) = &mut node.kind {
            bridge.acs = Some(bridge.acs == Some(true) || *redirects);
        }
        if *redirects {
            let list = node.extra.entry("probe.acs_ports".into()).or_default();
            if !list.split(',').any(|known| known == port.to_string()) {
                *list += if list.is_empty() { "" } else { "," };
                *list += &port.to_string();
            }
        }
        id
    }

    fn link(
        &self,
        devices: &BTreeMap<BusId, Device>,
        device: &Device,
        kind: Kind,
        is_flat: bool,
    ) -> LinkKind {
        if is_flat {
            return LinkKind::Pcie { now: Lanes::default(), best: Lanes::default() };
        }
        let best = least(device, device.above.last().and_then(|bus| devices.get(bus)));
        let mut now = device.now;
        if kind == Kind::Gpu && now.generation < best.generation && now.generation.is_some() {
            // An idle GPU lowers the speed of its link, and raises it when it works.
            now.generation = best.generation;
        }
        LinkKind::Pcie { now, best }
    }

    /// Keeps what sysfs says of a link that is taken for another.
    fn keep_speed(&mut self, device: &Device, kind: Kind, id: NodeId, is_flat: bool) {
        let Some(generation) = device.now.generation else { return };
        let is_kept = is_flat || kind == Kind::Gpu && device.best.generation > Some(generation);
        if is_kept {
            let width = device.now.width.map_or(String::new(), |width| format!(" x{width}"));
            let value = format!("{generation}{width}");
            self.hardware.node_mut(id).extra.insert("probe.link_now".into(), value);
        }
    }
}

/// A root complex as sysfs names it.
fn written(root: BusId) -> String {
    format!("sys/devices/pci{:04x}:{:02x}", root.domain, root.bus)
}

/// What both ends of a link can do.
fn least(device: &Device, above: Option<&Device>) -> Lanes {
    let (own, other) = (device.best, above.map(|above| above.best).unwrap_or_default());
    let least = |one: Option<u8>, other: Option<u8>| match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        // One end alone does not say what the link can do, but nothing more than that end can it do.
        (one, other) => one.or(other),
    };
    Lanes { generation: least(own.generation, other.generation), width: least(own.width, other.width) }
}
