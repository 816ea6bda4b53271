//! Ports of network adapters: InfiniBand's class for those that speak verbs, the class of interfaces for the others.
//!
//! Invariant: a port is listed once: an interface whose device has ports of verbs is a name of one of those. Interfaces that
//! are no hardware are listed and marked, and so are virtual functions beside the port whose wire they share. Absent: which
//! ports a plan uses.

use std::collections::{BTreeMap, BTreeSet};

use consort_algorithms::hardware::{
    BusId, Hardware, LinkKind, LinkLayer, Nic, NodeId, NodeKind, Port, PortState, is_virtual_name,
};

use super::devices::Placed;
use super::tree::Tree;

const VERBS: &str = "sys/class/infiniband";
const INTERFACES: &str = "sys/class/net";
/// Identifiers of a port that are looked at.
const GIDS_MAX: usize = 256;
/// Interfaces that are kept: hosts of containers have thousands of virtual ones.
const INTERFACES_MAX: usize = 256;

/// Adds all ports. `home` is where adapters without a PCI device are put.
pub(crate) fn add(tree: &Tree, hardware: &mut Hardware, home: Option<NodeId>, placed: &Placed) {
    let Some(host) = hardware.hosts().first().copied() else { return };
    let mut ports = Ports { tree, hardware, host, home, placed, wires: BTreeMap::new() };
    let interfaces = ports.interfaces();
    ports.find_wires(&interfaces);
    let with_verbs = ports.verbs(&interfaces);
    for interface in interfaces {
        if !with_verbs.contains(&interface.name) {
            ports.interface(interface);
        }
    }
}

/// A network interface of the kernel.
struct Interface {
    name: String,
    /// The nearest PCI device of its device.
    bus: Option<BusId>,
    is_virtual: bool,
    /// Counted from 0; ports of one PCI device have different ones.
    port: Option<u32>,
}

struct Ports<'a> {
    tree: &'a Tree,
    hardware: &'a mut Hardware,
    host: NodeId,
    home: Option<NodeId>,
    placed: &'a Placed,
    /// Per device with virtual functions the one function, itself or a part of it, whose ports stand for its wires.
    wires: BTreeMap<BusId, BusId>,
}

/// Whether a path is that of a part of a device (`mlx5_core.sf.2`) that shares its wire.
fn is_subfunction(path: &str) -> bool {
    path.split('/').any(|part| part.contains(".sf."))
}

/// Whether a port is the end of a virtual function or of a part in a switch of the adapter: `pf0vf3`, `c1pf0sf88`.
fn is_representor(name: &str) -> bool {
    let after = name.split_once("pf").map(|(_, rest)| rest.trim_start_matches(|c: char| c.is_ascii_digit()));
    after.is_some_and(|rest| rest.starts_with("vf") || rest.starts_with("sf"))
}

impl Ports<'_> {
    fn interfaces(&self) -> Vec<Interface> {
        let mut interfaces = Vec::new();
        for name in self.tree.names(INTERFACES) {
            let place = format!("{INTERFACES}/{name}");
            // `bonding_masters` is a file beside the interfaces.
            let Some(path) =
                self.tree.resolve(&place).filter(|_| self.tree.exists(&format!("{place}/address")))
            else {
                continue;
            };
            if interfaces.len() == INTERFACES_MAX {
                self.tree.note(INTERFACES, super::note::Trouble::TooMany { most: INTERFACES_MAX });
                break;
            }
            let bus = self.near(&path).or_else(|| self.near(&self.tree.resolve(&format!("{place}/device"))?));
            let switched = self.tree.text(&format!("{place}/phys_port_name")).unwrap_or_default();
            let is_virtual = path.contains("/virtual/")
                || bus.is_none() && is_virtual_name(&name)
                || is_subfunction(&path)
                || is_representor(&switched);
            // Ports of older drivers share one PCI device, and differ by this number alone.
            let port = self.tree.number(&format!("{place}/dev_port"));
            interfaces.push(Interface { name, bus, is_virtual, port });
        }
        interfaces
    }

    /// The last device of the tree, or part of one, that a path passes.
    fn near(&self, path: &str) -> Option<BusId> {
        let mut buses = path.split('/').rev().filter_map(|part| part.parse::<BusId>().ok());
        buses.find(|bus| self.placed.nodes.contains_key(bus) || self.placed.functions.contains_key(bus))
    }

    /// Finds which function stands for the wires of each device: the device itself where this process sees a port of it, else its
    /// first function with one. In a network namespace a function may be all that a process sees.
    fn find_wires(&mut self, interfaces: &[Interface]) {
        let of_verbs = self.tree.names(VERBS).into_iter().filter_map(|device| {
            let path = self.tree.resolve(&format!("{VERBS}/{device}/device"))?;
            self.near(&path).filter(|_| !is_subfunction(&path))
        });
        let of_kernel =
            interfaces.iter().filter(|interface| !interface.is_virtual).filter_map(|interface| interface.bus);
        let seen: BTreeSet<BusId> = of_kernel.chain(of_verbs).collect();
        for bus in seen {
            let physical = self.placed.functions.get(&bus).copied().unwrap_or(bus);
            let stands = self.wires.entry(physical).or_insert(bus);
            if bus == physical {
                *stands = bus;
            }
        }
    }

    /// Whether the ports of a function share the wire of ports that are listed for it.
    fn shares_wire(&self, bus: Option<BusId>) -> bool {
        let wire = |bus: BusId| self.wires.get(self.placed.functions.get(&bus)?).copied();
        bus.is_some_and(|bus| wire(bus).is_some_and(|stands| stands != bus))
    }

    /// The adapter of a PCI device, or one without.
    fn nic(&mut self, bus: Option<BusId>) -> Option<NodeId> {
        let bus = bus.map(|bus| self.placed.functions.get(&bus).copied().unwrap_or(bus));
        let of_device = bus.and_then(|bus| self.placed.nodes.get(&bus).copied());
        let is_nic = |id: &NodeId| matches!(self.hardware.node(*id).kind, NodeKind::Nic(_));
        if let Some(id) = of_device.filter(is_nic) {
            return Some(id);
        }
        let home = self.home?;
        let id = self.hardware.add_node("", Some(self.host), NodeKind::Nic(Nic { pci: None }));
        self.hardware.connect(home, id, LinkKind::Local);
        Some(id)
    }

    fn add(&mut self, nic: NodeId, port: Port) -> NodeId {
        let id = self.hardware.add_node("", Some(self.host), NodeKind::Port(port));
        self.hardware.connect(nic, id, LinkKind::Local);
        id
    }

    fn keep(&mut self, id: NodeId, key: &str, value: Option<String>) {
        if let Some(value) = value.filter(|value| !value.is_empty() && value.len() <= 200) {
            self.hardware.node_mut(id).extra.insert(format!("probe.{key}"), value);
        }
    }

    /// Adds the ports that speak verbs; gives the interfaces that are names of them.
    fn verbs(&mut self, interfaces: &[Interface]) -> BTreeSet<String> {
        let mut named = BTreeSet::new();
        let with_verbs: BTreeSet<BusId> =
            self.tree.names(VERBS).iter().filter_map(|device| self.verbs_bus(device)).collect();
        for device in self.tree.names(VERBS) {
            let place = format!("{VERBS}/{device}");
            let bus = self.verbs_bus(&device);
            let path = self.tree.resolve(&place).unwrap_or_default();
            let is_virtual =
                bus.is_none() && path.contains("/virtual/") || is_subfunction(&path) || self.shares_wire(bus);
            let Some(nic) = self.nic(bus) else { continue };
            let guid =
                self.tree.text(&format!("{place}/node_guid")).and_then(|text| self.guid(&place, &text));
            for number in self.tree.names(&format!("{place}/ports")) {
                let Ok(number) = number.parse::<u32>() else { continue };
                let place = format!("{place}/ports/{number}");
                let beside: Vec<&Interface> = interfaces
                    .iter()
                    .filter(|interface| bus.is_some() && interface.bus == bus)
                    .filter(|interface| !interface.is_virtual && !is_subfunction(&path))
                    .collect();
                let is_only = beside.len() == 1;
                let own = beside.into_iter().filter(|interface| {
                    is_only || interface.port.is_none_or(|port| port.checked_add(1) == Some(number))
                });
                let mut own: Vec<String> = own.map(|interface| interface.name.clone()).collect();
                own.extend(self.aggregated(&own, bus, interfaces, &with_verbs));
                let port = Port {
                    device: Some(device.clone()),
                    number: Some(number),
                    speed_mbit_s: self.verbs_speed(&place),
                    guid,
                    state: self.verbs_state(&place),
                    layer: match self.tree.text(&format!("{place}/link_layer")).as_deref() {
                        Some("InfiniBand") => LinkLayer::InfiniBand,
                        Some("Ethernet") => LinkLayer::Ethernet,
                        _ => LinkLayer::Unknown,
                    },
                    virtual_device: is_virtual,
                    ..Port::default()
                };
                let id = self.add(nic, port);
                self.keep(id, "gids", self.gids(&place));
                self.keep(id, "interface", Some(own.join(",")));
                if let Some(name) = own.first() {
                    let place = format!("{INTERFACES}/{name}");
                    self.keep(
                        id,
                        "mtu",
                        self.tree.number::<u32>(&format!("{place}/mtu")).map(|mtu| mtu.to_string()),
                    );
                    self.keep(id, "bond", self.tree.target_name(&format!("{place}/master")));
                }
                named.extend(own);
            }
        }
        named
    }

    /// The PCI device of a device of verbs.
    fn verbs_bus(&self, device: &str) -> Option<BusId> {
        let at = self.tree.resolve(&format!("{VERBS}/{device}/device"));
        at.as_deref().and_then(|path| self.near(path))
    }

    /// The bond that an interface is in.
    fn bond(&self, interface: &str) -> Option<String> {
        self.tree.target_name(&format!("{INTERFACES}/{interface}/master"))
    }

    /// The other interfaces that a port of verbs stands for besides its `own`: an adapter that joins its ports by itself (RoCE LAG) has one
    /// device of verbs at its first function, for all interfaces of the bond that are on its functions.
    fn aggregated(
        &self,
        own: &[String],
        bus: Option<BusId>,
        interfaces: &[Interface],
        with_verbs: &BTreeSet<BusId>,
    ) -> Vec<String> {
        let bonds: BTreeSet<String> = own.iter().filter_map(|name| self.bond(name)).collect();
        let Some(bus) = bus.filter(|_| !bonds.is_empty()) else { return Vec::new() };
        let is_beside = |other: BusId| BusId { function: bus.function, ..other } == bus && other != bus;
        let others = interfaces.iter().filter(|interface| {
            !interface.is_virtual
                && interface.bus.is_some_and(|other| is_beside(other) && !with_verbs.contains(&other))
                && self.bond(&interface.name).is_some_and(|bond| bonds.contains(&bond))
        });
        others.map(|interface| interface.name.clone()).collect()
    }

    /// `9a70:5000:03ae:6d94`.
    fn guid(&self, place: &str, text: &str) -> Option<u64> {
        let digits = text.replace(':', "");
        let guid = u64::from_str_radix(&digits, 16).ok().filter(|_| digits.len() == 16);
        if guid.is_none() {
            self.tree.nonsense(&format!("{place}/node_guid"), text);
        }
        guid.filter(|guid| *guid != 0)
    }

    /// `4: ACTIVE`. A port that initialises or is armed cannot carry data.
    fn verbs_state(&self, place: &str) -> PortState {
        let path = format!("{place}/state");
        let Some(text) = self.tree.text(&path) else { return PortState::Unknown };
        match text.split(':').next().map(str::trim) {
            Some("4") => PortState::Up,
            Some("1" | "2" | "3" | "5") => PortState::Down,
            _ => {
                self.tree.nonsense(&path, &text);
                PortState::Unknown
            }
        }
    }

    /// Megabits of `400 Gb/sec (4X NDR)`, `2.5 Gb/sec (1X SDR)`.
    fn verbs_speed(&self, place: &str) -> Option<u64> {
        let path = format!("{place}/rate");
        let text = self.tree.text(&path)?;
        let speed = text.split_whitespace().next().and_then(|number| {
            let (whole, tenths) = number.split_once('.').unwrap_or((number, "0"));
            let (whole, tenths): (u64, u64) = (whole.parse().ok()?, tenths.get(..1)?.parse().ok()?);
            whole.checked_mul(1000)?.checked_add(tenths * 100)
        });
        let speed = speed.filter(|speed| (1..=100_000_000).contains(speed) && text.contains("Gb/sec"));
        if speed.is_none() {
            self.tree.nonsense(&path, &text);
        }
        speed
    }

    /// The kinds of identifiers that the port has: `IB/RoCE v1`, `RoCE v2`.
    fn gids(&self, place: &str) -> Option<String> {
        let types = format!("{place}/gid_attrs/types");
        let mut kinds = BTreeSet::new();
        for index in self.tree.names(&types).into_iter().take(GIDS_MAX) {
            // Reading the kind of an identifier that is not set is an error of the kernel, which is no trouble.
            kinds.extend(
                self.tree
                    .text(&format!("{types}/{index}"))
                    .filter(|kind| kind.len() <= 20 && !kind.is_empty()),
            );
        }
        Some(kinds.into_iter().collect::<Vec<_>>().join(", "))
    }

    fn interface(&mut self, interface: Interface) {
        let place = format!("{INTERFACES}/{}", interface.name);
        let is_virtual = interface.is_virtual || self.shares_wire(interface.bus);
        let Some(nic) = self.nic(interface.bus) else { return };
        // -1 is what an interface says that is down or has no speed of its own.
        let speed = self.tree.number::<i64>(&format!("{place}/speed"));
        let speed = speed
            .and_then(|speed| u64::try_from(speed).ok())
            .filter(|speed| (1..=100_000_000).contains(speed));
        let has_carrier = self.tree.text(&format!("{place}/carrier"));
        let state = match (self.tree.text(&format!("{place}/operstate")).as_deref(), has_carrier.as_deref()) {
            (Some("up"), _) | (Some("unknown"), Some("1")) => PortState::Up,
            (Some("down" | "lowerlayerdown" | "notpresent"), _) => PortState::Down,
            _ => PortState::Unknown,
        };
        let is_wireless =
            ["wireless", "phy80211"].iter().any(|of| self.tree.exists(&format!("{place}/{of}")));
        let layer = match self.tree.number::<u32>(&format!("{place}/type")) {
            _ if is_wireless => LinkLayer::Wireless,
            Some(1) => LinkLayer::Ethernet,
            Some(32) => LinkLayer::InfiniBand,
            _ => LinkLayer::Unknown,
        };
        let port = Port {
            device: Some(interface.name.clone()),
            number: interface.port,
            speed_mbit_s: speed,
            state,
            layer,
            virtual_device: is_virtual,
            ..Port::default()
        };
        let id = self.add(nic, port);
        self.keep(id, "mtu", self.tree.number::<u32>(&format!("{place}/mtu")).map(|mtu| mtu.to_string()));
        self.keep(id, "bond", self.tree.target_name(&format!("{place}/master")));
        if self.tree.exists(&format!("{place}/bonding")) {
            let members = self.tree.text(&format!("{place}/bonding/slaves")).unwrap_or_default();
            self.keep(id, "members", Some(members));
        }
    }
}
