//! Which nodes of a machine a plan may use, and in which order.
//!
//! Invariant: the order is that of hosts and of the numbers that users know, whatever the order of a file.

use std::collections::{BTreeMap, BTreeSet};

use super::{Gpu, Hardware, LinkLayer, NodeId, NodeKind, Port, PortState};

/// The slowest port that a plan may use is faster than this, in megabits a second: ports of 1 Gb/s are for management.
const MANAGEMENT_MBIT_S: u64 = 1000;

/// Names of interfaces that are no hardware: what they begin with.
const VIRTUAL: [&str; 19] = [
    "lxc",
    "br-",
    "docker",
    "veth",
    "virbr",
    "vnet",
    "tun",
    "tap",
    "cni",
    "flannel",
    "cali",
    "vxlan",
    "dummy",
    "wg",
    "tailscale",
    "ifb",
    "kube",
    "cilium",
    "podman",
];

/// Whether an interface of this name is no hardware, by the conventions of Linux and of what runs containers.
pub fn is_virtual_name(name: &str) -> bool {
    name == "lo" || VIRTUAL.iter().any(|start| name.starts_with(start))
}

impl Port {
    /// Whether it is no hardware, as its source says or by its name.
    pub fn is_virtual(&self) -> bool {
        self.virtual_device || self.device.as_deref().is_some_and(is_virtual_name)
    }
}

impl Hardware {
    /// The nodes of a kind, in the order of their numbers.
    fn every(&self, is_wanted: impl Fn(&NodeKind) -> bool) -> Vec<NodeId> {
        self.iter().filter(|(_, node)| is_wanted(&node.kind)).map(|(id, _)| id).collect()
    }

    /// The hosts.
    pub fn hosts(&self) -> Vec<NodeId> {
        self.every(|kind| matches!(kind, NodeKind::Host(_)))
    }

    /// The NUMA domains that have a number, or all if none has one.
    pub fn numas(&self) -> Vec<NodeId> {
        let numbered = self.every(|kind| matches!(kind, NodeKind::Numa(numa) if numa.number.is_some()));
        if numbered.is_empty() { self.every(|kind| matches!(kind, NodeKind::Numa(_))) } else { numbered }
    }

    /// The network adapters that are hardware, in the order of the nodes.
    pub fn adapters(&self) -> Vec<NodeId> {
        let has_port = |id: NodeId| {
            self.below(id).any(|(_, port)| match &self.node(port).kind {
                NodeKind::Port(port) => !port.is_virtual(),
                _ => false,
            })
        };
        let mut adapters = self.every(|kind| matches!(kind, NodeKind::Nic(_)));
        adapters.retain(|id| self.node(*id).kind.pci().is_some() || has_port(*id));
        adapters
    }

    /// The NVSwitches.
    pub fn nvswitches(&self) -> Vec<NodeId> {
        self.every(|kind| matches!(kind, NodeKind::NvSwitch(_)))
    }

    /// The GPUs: those that the source describes, or, where it describes none, the PCI devices with the class of one.
    ///
    /// Their order is that of the hosts and, in a host, of their indices where all of them have one, else of their PCI
    /// addresses where all have one, else of the nodes.
    pub fn gpus(&self) -> Vec<NodeId> {
        let described = self.every(|kind| matches!(kind, NodeKind::Gpu(Gpu { described: true, .. })));
        let all = if described.is_empty() {
            self.every(|kind| matches!(kind, NodeKind::Gpu(_)))
        } else {
            described
        };
        let mut of_hosts: BTreeMap<Option<NodeId>, Vec<NodeId>> = BTreeMap::new();
        for id in all {
            of_hosts.entry(self.node(id).host).or_default().push(id);
        }
        for gpus in of_hosts.values_mut() {
            let gpu = |id: &NodeId| self.gpu(*id).expect("only GPUs are in this list");
            if gpus.iter().all(|id| gpu(id).index.is_some()) {
                gpus.sort_by_key(|id| gpu(id).index);
            } else if gpus.iter().all(|id| gpu(id).pci.bus.is_some()) {
                gpus.sort_by_key(|id| gpu(id).pci.bus);
            }
        }
        of_hosts.into_values().flatten().collect()
    }

    /// Whether a plan may use a port: it is hardware, not down, and faster than 1 Gb/s or of unknown speed. Wi-Fi, which
    /// has no speed of its own, is never meant.
    pub fn is_usable(port: &Port) -> bool {
        let is_slow = port.speed_mbit_s.is_some_and(|speed| speed <= MANAGEMENT_MBIT_S);
        let is_wire = port.layer != LinkLayer::Wireless;
        is_wire && !port.is_virtual() && !is_slow && port.state != PortState::Down
    }

    /// The distinct ports that a plan may use, in the order of the nodes. A port is the same as another of its host with the
    /// same name and number; a device that joins others of this list (`mlx5_0+mlx5_1`) is none.
    pub fn usable_ports(&self) -> Vec<NodeId> {
        let name = |id: NodeId| match &self.node(id).kind {
            NodeKind::Port(port) => port.device.as_deref().unwrap_or_default(),
            _ => "",
        };
        let mut seen = BTreeSet::new();
        let mut ports = self.every(|kind| matches!(kind, NodeKind::Port(port) if Hardware::is_usable(port)));
        ports.retain(|id| {
            let NodeKind::Port(port) = &self.node(*id).kind else { return false };
            port.device.is_none() || seen.insert((self.node(*id).host, port.device.clone(), port.number))
        });
        let names: BTreeSet<(Option<NodeId>, &str)> =
            ports.iter().map(|id| (self.node(*id).host, name(*id))).collect();
        let joins_others = |id: &NodeId| {
            let host = self.node(*id).host;
            name(*id).contains('+') && name(*id).split('+').all(|part| names.contains(&(host, part)))
        };
        let joined: Vec<bool> = ports.iter().map(joins_others).collect();
        let mut joined = joined.into_iter();
        ports.retain(|_| !joined.next().unwrap_or_default());
        ports
    }

    /// Where a plan enters a network: [`usable_ports`](Hardware::usable_ports), or, where the source lists no port at
    /// all, the network adapters that are PCI devices.
    pub fn network_ends(&self) -> Vec<NodeId> {
        if self.iter().any(|(_, node)| matches!(node.kind, NodeKind::Port(_))) {
            self.usable_ports()
        } else {
            self.every(|kind| matches!(kind, NodeKind::Nic(nic) if nic.pci.is_some()))
        }
    }
}
