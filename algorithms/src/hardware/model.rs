//! One or several hosts as a graph of typed nodes and links.
//!
//! Invariant: a link has two directions of the same bandwidth; of two links that hold a tree together (`Local`, `Pcie`)
//! the first end is the upper one. What a source does not say is `None`. The order of nodes and links is that of the
//! source. Absent: bandwidths (see [`Rates`](super::Rates)), and whether the graph makes sense (see
//! [`check`](Hardware::check)).

use std::collections::BTreeMap;

use super::{BusId, CpuSet, Pci};

/// The number of a node, counted from 0.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct NodeId(pub u32);

impl NodeId {
    /// The number as an index.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// The number of a link, counted from 0.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct LinkId(pub u32);

impl LinkId {
    /// The number as an index.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// A host: memory, processors and devices under one operating system.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Host {
    /// The hash by which NCCL tells hosts apart, or another identity of the host.
    pub hash: Option<String>,
    /// The name of the product.
    pub model: Option<String>,
    /// Whether it is a virtual machine.
    pub is_virtual: Option<bool>,
    /// What its IOMMU does with the addresses that GPUs use.
    pub iommu: Option<Iommu>,
    /// How network adapters reach the memory of its GPUs.
    pub gpudirect: Option<GpuDirect>,
}

/// What an IOMMU does with the addresses that devices use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Iommu {
    /// There is none, or it is off.
    Off,
    /// Devices use physical addresses.
    PassesThrough,
    /// It translates them: what devices send each other passes the root complex.
    Translates,
}

impl Iommu {
    /// All of them, with their words in the text form.
    pub(super) const WORDS: [(&'static str, Iommu); 3] =
        [("off", Iommu::Off), ("pass-through", Iommu::PassesThrough), ("translates", Iommu::Translates)];
}

/// How network adapters reach the memory of GPUs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GpuDirect {
    /// By no known way.
    None,
    /// By a kernel module with which the adapter's driver asks the GPU's for pages (`nvidia_peermem`, `amdkfd`).
    PeerMemory,
    /// By buffers that one driver exports and the other maps (dma-buf).
    DmaBuf,
}

impl GpuDirect {
    /// All of them, with their words in the text form.
    pub(super) const WORDS: [(&'static str, GpuDirect); 3] =
        [("none", GpuDirect::None), ("peer-memory", GpuDirect::PeerMemory), ("dma-buf", GpuDirect::DmaBuf)];
}

/// A processor, as its instructions identify it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Processor {
    /// The instruction set: `x86_64`, `arm64`, `ppc64`.
    pub arch: Option<String>,
    /// The vendor: `GenuineIntel`, `AuthenticAMD`.
    pub vendor: Option<String>,
    /// The family; extended families are added (AMD's Zen 2 is 23).
    pub family: Option<u32>,
    /// The model within the family.
    pub model: Option<u32>,
}

/// A NUMA domain: memory and the processors to which it is near. NCCL calls it `cpu`.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Numa {
    /// The operating system's number; `None` where devices are attached to a domain that is not known.
    pub number: Option<u32>,
    /// Its CPUs.
    pub cpus: Option<CpuSet>,
    /// Its processor.
    pub processor: Processor,
    /// Its memory in bytes.
    pub memory_bytes: Option<u64>,
}

/// Cores that share a last-level cache.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Cores {
    /// Their CPUs.
    pub cpus: CpuSet,
    /// The level of the cache.
    pub cache_level: Option<u8>,
    /// The bytes of the cache.
    pub cache_bytes: Option<u64>,
}

/// A PCIe switch.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Bridge {
    /// Its upstream port.
    pub pci: Pci,
    /// Whether access control (ACS) sends traffic between its devices up to the root.
    pub acs: Option<bool>,
}

/// A GPU, or a die of one that is a device of its own.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Gpu {
    /// The device.
    pub pci: Pci,
    /// The management library's number of it on its host (NCCL's `dev`).
    pub index: Option<u32>,
    /// The rank that used it when the source was written.
    pub rank: Option<u32>,
    /// NVIDIA's compute capability, ten times the major plus the minor number. For AMD's devices a source may have a count of
    /// units here.
    pub sm: Option<u32>,
    /// AMD's architecture: `gfx942`, `gfx90a`.
    pub gcn: Option<String>,
    /// The identity that survives changes of numbers.
    pub uuid: Option<String>,
    /// The name of the model.
    pub model: Option<String>,
    /// Whether the source describes it as a GPU, and does not merely list a PCI device with the class of one.
    pub described: bool,
    /// Whether the source says to which others it is linked. Where it does not, links that are not there are unknown.
    pub links_known: bool,
}

/// A network adapter: one device with one or several ports.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Nic {
    /// The device; `None` where the source has no PCI device for it.
    pub pci: Option<Pci>,
}

/// Whether a port can carry data.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum PortState {
    /// The source does not say.
    #[default]
    Unknown,
    /// It can.
    Up,
    /// It cannot.
    Down,
}

/// What a port speaks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum LinkLayer {
    /// The source does not say.
    #[default]
    Unknown,
    /// Ethernet.
    Ethernet,
    /// InfiniBand.
    InfiniBand,
    /// Wi-Fi.
    Wireless,
}

/// A port of a network adapter.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Port {
    /// The name of the device or interface: `mlx5_0`, `eth0`.
    pub device: Option<String>,
    /// The number in the source (NCCL's `dev`); NCCL leaves a port without one out.
    pub index: Option<u32>,
    /// The number of the port on its device.
    pub number: Option<u32>,
    /// Megabits a second, each way.
    pub speed_mbit_s: Option<u64>,
    /// Nanoseconds that the network adds, by the source.
    pub latency_ns: Option<u64>,
    /// The identity of the adapter.
    pub guid: Option<u64>,
    /// Whether it can carry data.
    pub state: PortState,
    /// What it speaks.
    pub layer: LinkLayer,
    /// Whether it is known to be no hardware: a bridge, a tunnel, one end of a pair.
    pub virtual_device: bool,
}

/// What a node is.
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(
    clippy::large_enum_variant,
    reason = "a machine has some hundred nodes, and most of the large ones are GPUs"
)]
pub enum NodeKind {
    /// A host.
    Host(Host),
    /// A NUMA domain.
    Numa(Numa),
    /// Cores that share a last-level cache.
    Cores(Cores),
    /// A PCIe root complex (host bridge); its address names domain and bus.
    Root(Option<BusId>),
    /// A PCIe switch.
    Bridge(Bridge),
    /// A GPU.
    Gpu(Gpu),
    /// An NVSwitch; without an address, all those that a virtual machine does not see.
    NvSwitch(Pci),
    /// A network adapter.
    Nic(Nic),
    /// A port of one.
    Port(Port),
    /// A switch of a network.
    Switch {
        /// Whether it folds values on their way.
        aggregates: bool,
    },
}

impl NodeKind {
    /// The word for it, as the text form has it.
    pub const fn word(&self) -> &'static str {
        match self {
            NodeKind::Host(_) => "host",
            NodeKind::Numa(_) => "numa",
            NodeKind::Cores(_) => "cores",
            NodeKind::Root(_) => "root",
            NodeKind::Bridge(_) => "bridge",
            NodeKind::Gpu(_) => "gpu",
            NodeKind::NvSwitch(_) => "nvswitch",
            NodeKind::Nic(_) => "nic",
            NodeKind::Port(_) => "port",
            NodeKind::Switch { aggregates: false } => "switch",
            NodeKind::Switch { aggregates: true } => "aggregator",
        }
    }

    /// Its PCI device.
    pub fn pci(&self) -> Option<&Pci> {
        match self {
            NodeKind::Bridge(Bridge { pci, .. })
            | NodeKind::Gpu(Gpu { pci, .. })
            | NodeKind::NvSwitch(pci) => Some(pci),
            NodeKind::Nic(nic) => nic.pci.as_ref(),
            _ => None,
        }
    }
}

/// A vertex.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Node {
    /// Its name for users, one word, unique: `gpu3`.
    pub name: String,
    /// The node of its host; `None` for hosts and for what belongs to none, as the switches of a network.
    pub host: Option<NodeId>,
    /// What it is.
    pub kind: NodeKind,
    /// What the source says besides, by the source's own keys.
    pub extra: BTreeMap<String, String>,
}

/// Generation and width of a PCIe link; `None` where a source does not say.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Lanes {
    /// The generation, 1 to 7.
    pub generation: Option<u8>,
    /// The number of lanes, 1 to 32.
    pub width: Option<u8>,
}

/// What a link is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LinkKind {
    /// The lower end is part of the upper one, or in the same package: no wire that limits anything.
    Local,
    /// NVLinks.
    NvLink {
        /// Their generation, 1 to 5.
        generation: Option<u8>,
        /// How many run side by side.
        count: u32,
    },
    /// AMD's links between GPUs.
    Xgmi {
        /// How many run side by side.
        count: u32,
    },
    /// NVLink-C2C between a GPU and the memory of a processor.
    C2c {
        /// How many run side by side.
        count: u32,
    },
    /// PCIe.
    Pcie {
        /// As the link is.
        now: Lanes,
        /// As it could be.
        best: Lanes,
    },
    /// Between the memories of two NUMA domains: QPI, UPI, xGMI, or the mesh within a package.
    Socket {
        /// The firmware's relative latency; 10 is local.
        distance: Option<u16>,
    },
    /// A cable of a network.
    Network,
}

impl LinkKind {
    /// The word for it, as the text form and the summary have it.
    pub const fn word(&self) -> &'static str {
        match self {
            LinkKind::Local => "local",
            LinkKind::NvLink { .. } => "nvlink",
            LinkKind::Xgmi { .. } => "xgmi",
            LinkKind::C2c { .. } => "c2c",
            LinkKind::Pcie { .. } => "pcie",
            LinkKind::Socket { .. } => "socket",
            LinkKind::Network => "network",
        }
    }

    /// Whether it holds a tree together: its second end is below its first.
    pub const fn is_of_tree(&self) -> bool {
        matches!(self, LinkKind::Local | LinkKind::Pcie { .. })
    }

    /// Whether it joins GPUs without PCIe: NVLink or xGMI.
    pub const fn joins_gpus(&self) -> bool {
        matches!(self, LinkKind::NvLink { .. } | LinkKind::Xgmi { .. })
    }
}

/// An edge.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Link {
    /// One end; the upper one in a tree, otherwise the one with the lower number.
    pub from: NodeId,
    /// The other end.
    pub to: NodeId,
    /// What it is.
    pub kind: LinkKind,
    /// Bytes a second in one direction, for all that run side by side, where the source states them. They are used instead
    /// of those that follow from the kind.
    pub bytes_s: Option<u64>,
    /// Nanoseconds from end to end, where the source states them.
    pub latency_ns: Option<u64>,
}

impl Link {
    /// The end that is not `end`.
    pub fn other(&self, end: NodeId) -> NodeId {
        if self.from == end { self.to } else { self.from }
    }
}

/// What is in one or several hosts, and between them.
#[derive(Clone, Debug, Default)]
pub struct Hardware {
    /// Its name for users; may be empty.
    pub name: String,
    nodes: Vec<Node>,
    links: Vec<Link>,
    /// Per node its links, in the order of their numbers.
    touching: Vec<Vec<LinkId>>,
}

impl PartialEq for Hardware {
    fn eq(&self, other: &Self) -> bool {
        // `touching` follows from the links.
        (&self.name, &self.nodes, &self.links) == (&other.name, &other.nodes, &other.links)
    }
}

impl Hardware {
    /// Without nodes.
    pub fn new(name: impl Into<String>) -> Hardware {
        Hardware { name: name.into(), ..Hardware::default() }
    }

    /// Adds a node and gives its number. The name is not compared with others here; [`check`](Hardware::check) does that.
    pub fn add_node(&mut self, name: impl Into<String>, host: Option<NodeId>, kind: NodeKind) -> NodeId {
        let id = NodeId(self.nodes.len() as u32);
        self.nodes.push(Node { name: name.into(), host, kind, extra: BTreeMap::new() });
        self.touching.push(Vec::new());
        id
    }

    /// Adds a link between nodes that exist, without a stated bandwidth or latency. Links that hold no tree together have the
    /// lower number first.
    ///
    /// # Panics
    ///
    /// When an end does not exist.
    pub fn connect(&mut self, from: NodeId, to: NodeId, kind: LinkKind) -> LinkId {
        let (from, to) = if kind.is_of_tree() { (from, to) } else { (from.min(to), from.max(to)) };
        self.add_link(Link { from, to, kind, bytes_s: None, latency_ns: None })
    }

    /// Adds a link.
    ///
    /// # Panics
    ///
    /// When an end does not exist.
    pub fn add_link(&mut self, link: Link) -> LinkId {
        let id = LinkId(self.links.len() as u32);
        assert!(link.from.max(link.to).index() < self.nodes.len(), "no such node: {link:?}");
        self.touching[link.from.index()].push(id);
        if link.to != link.from {
            self.touching[link.to.index()].push(id);
        }
        self.links.push(link);
        id
    }

    /// All nodes, in the order of their numbers.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// All links, in the order of their numbers.
    pub fn links(&self) -> &[Link] {
        &self.links
    }

    /// A node.
    ///
    /// # Panics
    ///
    /// When there is no such node.
    pub fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id.index()]
    }

    /// A node that may be changed.
    ///
    /// # Panics
    ///
    /// When there is no such node.
    pub fn node_mut(&mut self, id: NodeId) -> &mut Node {
        &mut self.nodes[id.index()]
    }

    /// A link.
    ///
    /// # Panics
    ///
    /// When there is no such link.
    pub fn link(&self, id: LinkId) -> &Link {
        &self.links[id.index()]
    }

    /// A link whose kind, bandwidth and latency may be changed. Its ends stay.
    ///
    /// # Panics
    ///
    /// When there is no such link.
    pub fn set_link(&mut self, id: LinkId, kind: LinkKind, bytes_s: Option<u64>, latency_ns: Option<u64>) {
        let link = &mut self.links[id.index()];
        *link = Link { kind, bytes_s, latency_ns, ..*link };
    }

    /// The links of a node, in the order of their numbers.
    ///
    /// # Panics
    ///
    /// When there is no such node.
    pub fn touching(&self, id: NodeId) -> &[LinkId] {
        &self.touching[id.index()]
    }

    /// All numbers of nodes with their nodes.
    pub fn iter(&self) -> impl Iterator<Item = (NodeId, &Node)> {
        self.nodes.iter().zip(0..).map(|(node, id)| (NodeId(id), node))
    }

    /// The node of this name.
    pub fn find(&self, name: &str) -> Option<NodeId> {
        self.iter().find(|(_, node)| node.name == name).map(|(id, _)| id)
    }

    /// The GPU, if the node is one.
    pub fn gpu(&self, id: NodeId) -> Option<&Gpu> {
        match &self.node(id).kind {
            NodeKind::Gpu(gpu) => Some(gpu),
            _ => None,
        }
    }

    /// The link to the node above and that node, in the tree of hosts, NUMA domains and PCIe.
    pub fn above(&self, id: NodeId) -> Option<(LinkId, NodeId)> {
        let is_above = |link: &&LinkId| self.link(**link).kind.is_of_tree() && self.link(**link).to == id;
        self.touching(id).iter().find(is_above).map(|link| (*link, self.link(*link).from))
    }

    /// The links to the nodes below and those nodes, in the order of the links' numbers.
    pub fn below(&self, id: NodeId) -> impl Iterator<Item = (LinkId, NodeId)> {
        let links = self.touching(id).iter().map(|link| (*link, self.link(*link)));
        links
            .filter(move |(_, link)| link.kind.is_of_tree() && link.from == id)
            .map(|(id, link)| (id, link.to))
    }

    /// The NUMA domain below which a node is in the tree; a NUMA domain is its own.
    pub fn numa_of(&self, id: NodeId) -> Option<NodeId> {
        let mut at = id;
        // A tree that is checked has no cycle; this loop ends in any other as well.
        for _ in 0..=self.nodes.len() {
            if let NodeKind::Numa(_) = self.node(at).kind {
                return Some(at);
            }
            at = self.above(at)?.1;
        }
        None
    }
}
