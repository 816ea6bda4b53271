//! One machine of what several processes of a host see of it: in containers each may see one GPU and a part of the PCI tree.
//!
//! Invariant: nodes are the same if they have one identity: the address on PCI, the number of a NUMA domain, the name of a port. The result does not
//! depend on the order of the sources; what one source does not know another may say; sources that differ in what cannot change are a
//! fault, and of what can (the state of a port, the width of a link now) the worse counts. Absent: several hosts, which
//! [`compose`](Hardware::compose) joins.

mod fields;

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::fmt;

use super::check::Fault;
use super::{BusId, Hardware, Link, LinkId, LinkKind, Node, NodeId, NodeKind};

/// Where a probe keeps links to GPUs that its process does not see: `ADDRESS*COUNT*GENERATION`, with commas between.
pub const UNSEEN_LINKS: &str = "probe.nvlinks_unseen";

/// What a host has under this key says that it is what one process sees by itself.
pub const PROBED: &str = "probe.view";

/// What a host has under this key says that its process may not read what the devices above others are: where it puts
/// switches is a guess.
pub const GUESSED_PORTS: &str = "probe.ports_guessed";

impl Hardware {
    /// Whether the place of its switches is a guess.
    fn is_guessed(&self) -> bool {
        self.hosts().iter().any(|id| self.node(*id).extra.contains_key(GUESSED_PORTS))
    }

    /// A machine as a process sees it, for the other processes of its host: without what is of the process alone.
    pub fn into_view(mut self) -> Hardware {
        for id in self.hosts() {
            let extra = &mut self.node_mut(id).extra;
            extra.retain(|key, _| !fields::OF_PROCESSES.contains(&key.as_str()));
            extra.insert(PROBED.into(), "yes".into());
        }
        self
    }

    /// Whether it is what processes see by themselves, and not what a file says.
    pub fn is_view(&self) -> bool {
        self.hosts().iter().any(|id| self.node(*id).extra.contains_key(PROBED))
    }

    /// A machine that is not what processes see by themselves, whatever its file says.
    pub fn into_file(mut self) -> Hardware {
        for id in self.hosts() {
            self.node_mut(id).extra.remove(PROBED);
        }
        self
    }
}

/// Why sources are no one machine.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum MergeFault {
    /// There is no source.
    Nothing,
    /// A source has no host, or several.
    Hosts {
        /// Its place among the sources.
        source: usize,
        /// How many it has.
        hosts: usize,
    },
    /// Sources are of different hosts.
    Others {
        /// The place of the source that differs from those before it.
        source: usize,
        /// The identities of the hosts.
        hosts: [String; 2],
    },
    /// Sources differ in something of one device.
    Differ {
        /// The place of the source that differs from those before it.
        source: usize,
        /// The device.
        device: String,
        /// In what.
        field: &'static str,
        /// What those before it say, and what it says.
        values: [String; 2],
    },
    /// What comes out makes no sense.
    Senseless(Fault),
}

impl fmt::Display for MergeFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MergeFault::Nothing => f.write_str("there is nothing to merge"),
            MergeFault::Hosts { source, hosts } => {
                write!(f, "source {source} has {hosts} hosts, and not one")
            }
            MergeFault::Others { source, hosts: [one, other] } => {
                write!(f, "source {source} is of the host {other}, and those before it of {one}")
            }
            MergeFault::Differ { source, device, field, values: [one, other] } => {
                write!(f, "{device}: source {source} says {field} {other}, and those before it {one}")
            }
            MergeFault::Senseless(fault) => {
                write!(f, "what the sources say together makes no sense: {fault}")
            }
        }
    }
}

impl Error for MergeFault {}

/// The identity of a node within its host; the order is that of the result.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Key {
    Host,
    Numa(u32),
    /// Where devices are whose domain is not known.
    NoNuma,
    /// By their lowest CPU.
    Cores(u32),
    Root(BusId),
    Bridge(BusId),
    Gpu(BusId),
    NvSwitch(BusId),
    HiddenSwitches,
    Nic(BusId),
    /// A port by the names of its device and its number.
    Port(String, Option<u32>),
    /// What has no identity but its name.
    Named(&'static str, String),
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Key::Host => f.write_str("the host"),
            Key::Numa(number) => write!(f, "NUMA domain {number}"),
            Key::NoNuma => f.write_str("the unknown NUMA domain"),
            Key::Cores(cpu) => write!(f, "the cores from CPU {cpu}"),
            Key::Root(bus) => write!(f, "the root complex {bus}"),
            Key::Bridge(bus) => write!(f, "the switch {bus}"),
            Key::Gpu(bus) => write!(f, "the GPU {bus}"),
            Key::NvSwitch(bus) => write!(f, "the NVSwitch {bus}"),
            Key::HiddenSwitches => f.write_str("the NVSwitches"),
            Key::Nic(bus) => write!(f, "the adapter {bus}"),
            Key::Port(device, Some(number)) => write!(f, "{device} port {number}"),
            Key::Port(device, None) => f.write_str(device),
            Key::Named(word, name) => write!(f, "the {word} {name}"),
        }
    }
}

/// Both ends, and the word of the kind.
type LinkKey = (Key, Key, &'static str);

/// Merges what processes of one host see of it.
///
/// # Errors
///
/// [`MergeFault`].
pub fn merge(sources: &[Hardware]) -> Result<Hardware, MergeFault> {
    let mut merger = Merger::default();
    // What is known comes before what is guessed, and stays.
    let (guessed, known): (Vec<_>, Vec<_>) = sources.iter().zip(0..).partition(|(of, _)| of.is_guessed());
    for (hardware, source) in known {
        merger.add(hardware, source)?;
    }
    merger.known = merger.nodes.keys().cloned().collect();
    for (hardware, source) in guessed {
        merger.add(hardware, source)?;
    }
    if sources.is_empty() {
        return Err(MergeFault::Nothing);
    }
    // The name of a container is of no more use than that of another.
    let name = sources.iter().map(|hardware| &hardware.name).filter(|name| !name.is_empty()).min();
    merger.finish(name.cloned().unwrap_or_default())
}

#[derive(Default)]
struct Merger {
    nodes: BTreeMap<Key, Node>,
    links: BTreeMap<LinkKey, Link>,
    /// Of each node that is below another the link that leads up.
    above: BTreeMap<Key, LinkKey>,
    /// What each source numbers its GPUs.
    indices: BTreeMap<Key, BTreeSet<Option<u32>>>,
    /// Addresses by identities of GPUs.
    uuids: BTreeMap<String, BusId>,
    /// The nodes of sources that guess nothing.
    known: BTreeSet<Key>,
}

impl Merger {
    fn add(&mut self, hardware: &Hardware, source: usize) -> Result<(), MergeFault> {
        let hosts = hardware.hosts().len();
        if hosts != 1 {
            return Err(MergeFault::Hosts { source, hosts });
        }
        let keys: Vec<Key> = hardware.iter().map(|(id, node)| key(hardware, id, node)).collect();
        for ((_, node), key) in hardware.iter().zip(&keys) {
            self.add_node(key, node, source)?;
        }
        for (link, id) in hardware.links().iter().zip(0..) {
            let (from, to) = (&keys[link.from.index()], &keys[link.to.index()]);
            self.add_link(hardware, LinkId(id), from, to, source)?;
        }
        Ok(())
    }

    fn add_node(&mut self, key: &Key, node: &Node, source: usize) -> Result<(), MergeFault> {
        if let NodeKind::Gpu(gpu) = &node.kind {
            self.indices.entry(key.clone()).or_default().insert(gpu.index);
            if let (Some(uuid), Some(bus)) = (&gpu.uuid, gpu.pci.bus)
                && let Some(before) = self.uuids.insert(uuid.clone(), bus).filter(|before| *before != bus)
            {
                return Err(MergeFault::Differ {
                    source,
                    device: format!("the GPU {uuid}"),
                    field: "the address",
                    values: [before.to_string(), bus.to_string()],
                });
            }
        }
        match self.nodes.get_mut(key) {
            None => {
                self.nodes.insert(key.clone(), node.clone());
                Ok(())
            }
            Some(known) => fields::merge_node(key, known, node, source),
        }
    }

    fn add_link(
        &mut self,
        hardware: &Hardware,
        id: LinkId,
        from: &Key,
        to: &Key,
        source: usize,
    ) -> Result<(), MergeFault> {
        let link = *hardware.link(id);
        let is_tree = link.kind.is_of_tree();
        let (from, to) = if is_tree || from <= to { (from, to) } else { (to, from) };
        if is_tree
            && let Some(before) = self.above.get(to).cloned()
            && (&before.0, before.2) != (from, link.kind.word())
        {
            // A place that says nothing gives way to one that does.
            let is_better = |one: &Key, other: &Key| says(one) > says(other);
            if is_better(&before.0, from) || self.known.contains(to) && hardware.is_guessed() {
                return Ok(());
            }
            if !is_better(from, &before.0) {
                return Err(MergeFault::Differ {
                    source,
                    device: to.to_string(),
                    field: "that it is below",
                    values: [before.0.to_string(), from.to_string()],
                });
            }
            self.links.remove(&before);
        }
        let key = (from.clone(), to.clone(), link.kind.word());
        match self.links.get_mut(&key) {
            None => {
                if is_tree {
                    self.above.insert(to.clone(), key.clone());
                }
                self.links.insert(key, link);
                Ok(())
            }
            Some(known) => fields::merge_link(&key, known, &link, source),
        }
    }

    fn finish(mut self, name: String) -> Result<Hardware, MergeFault> {
        self.join_unseen();
        let keeps_indices = self.indices_agree();
        // A domain for devices without one that all have one by now.
        let is_used = self.links.keys().any(|(from, ..)| *from == Key::NoNuma);
        if !is_used {
            self.nodes.remove(&Key::NoNuma);
            self.links.retain(|(from, to, _), _| *from != Key::NoNuma && *to != Key::NoNuma);
        }
        if !self.known.is_empty() {
            self.drop_guesses();
        }
        // The same for adapters whose ports have another by now.
        let with_ports: BTreeSet<Key> = self.links.keys().map(|(from, ..)| from.clone()).collect();
        let is_left = |key: &Key| is_adapter_without_place(key) && !with_ports.contains(key);
        self.nodes.retain(|key, _| !is_left(key));
        self.links.retain(|(_, to, _), _| !is_left(to));
        let mut hardware = Hardware::new(name);
        let mut ids: BTreeMap<&Key, NodeId> = BTreeMap::new();
        let mut gpus = 0;
        for (key, node) in &self.nodes {
            let host = (*key != Key::Host && node.host.is_some()).then(|| ids[&Key::Host]);
            let mut kind = node.kind.clone();
            if let NodeKind::Gpu(gpu) = &mut kind {
                if !keeps_indices {
                    gpu.index = gpu.described.then_some(gpus);
                }
                gpus += u32::from(gpu.described);
            }
            let id = hardware.add_node("", host, kind);
            hardware.node_mut(id).extra = node.extra.clone();
            // What differs between processes is empty by now.
            hardware.node_mut(id).extra.retain(|_, value| !value.is_empty());
            ids.insert(key, id);
        }
        for ((from, to, _), link) in &self.links {
            let (from, to) = (ids[from], ids[to]);
            let (from, to) = if link.kind.is_of_tree() { (from, to) } else { (from.min(to), from.max(to)) };
            hardware.add_link(Link { from, to, ..*link });
        }
        hardware.name_nodes();
        hardware.check().map_err(MergeFault::Senseless)?;
        Ok(hardware)
    }

    /// Leaves out switches that a guess puts where nothing is below them, as what is known says otherwise.
    fn drop_guesses(&mut self) {
        if let Some(host) = self.nodes.get_mut(&Key::Host) {
            host.extra.remove(GUESSED_PORTS);
        }
        loop {
            let above: BTreeSet<&Key> = self.links.keys().map(|(from, ..)| from).collect();
            let is_empty = |key: &&Key| {
                matches!(key, Key::Bridge(_)) && !self.known.contains(key) && !above.contains(key)
            };
            let Some(key) = self.nodes.keys().find(is_empty).cloned() else { return };
            self.nodes.remove(&key);
            self.links.retain(|(from, to, _), _| *from != key && *to != key);
        }
    }

    /// Whether the numbers of GPUs can stay: each source has the same for one GPU, and no two GPUs have one number. In containers
    /// each process counts from 0.
    fn indices_agree(&self) -> bool {
        let mut seen = BTreeSet::new();
        self.indices.values().all(|numbers| {
            let known: Vec<u32> = numbers.iter().copied().flatten().collect();
            known.len() <= 1 && known.into_iter().all(|number| seen.insert(number))
        })
    }

    /// Links that each process saw from one end.
    fn join_unseen(&mut self) {
        let mut ends: BTreeMap<(BusId, BusId), (u32, Option<u8>)> = BTreeMap::new();
        for (key, node) in &self.nodes {
            let Key::Gpu(own) = key else { continue };
            for (other, count, generation) in unseen(node) {
                if self.nodes.contains_key(&Key::Gpu(other)) && other != *own {
                    let end = ends.entry((*own.min(&other), *own.max(&other))).or_insert((count, generation));
                    // Of two ends that differ the one with fewer links counts, as for a probe that sees both.
                    *end = (end.0.min(count), end.1.or(generation));
                }
            }
        }
        for ((one, other), (count, generation)) in &ends {
            let key = (Key::Gpu(*one), Key::Gpu(*other), "nvlink");
            let kind = LinkKind::NvLink { generation: *generation, count: *count };
            // The ends are set when all nodes have numbers.
            let link = Link { from: NodeId(0), to: NodeId(0), kind, bytes_s: None, latency_ns: None };
            self.links.entry(key).or_insert(link);
        }
        let seen: BTreeSet<BusId> = ends.keys().flat_map(|(one, other)| [*one, *other]).collect();
        for (key, node) in &mut self.nodes {
            if matches!(key, Key::Gpu(_)) {
                let left: Vec<String> = unseen(node)
                    .into_iter()
                    .filter(|(other, ..)| !seen.contains(other))
                    .map(|(other, count, generation)| unseen_link(other, count, generation))
                    .collect();
                node.extra.remove(UNSEEN_LINKS);
                if !left.is_empty() {
                    node.extra.insert(UNSEEN_LINKS.into(), left.join(","));
                }
            }
        }
    }
}

/// One link to a GPU that is not seen, as a probe keeps it.
pub fn unseen_link(other: BusId, count: u32, generation: Option<u8>) -> String {
    format!("{other}*{count}*{}", generation.map_or("?".into(), |generation| generation.to_string()))
}

/// The links of a GPU to those that its process does not see; what is none is left out.
fn unseen(node: &Node) -> Vec<(BusId, u32, Option<u8>)> {
    let text = node.extra.get(UNSEEN_LINKS).map(String::as_str).unwrap_or_default();
    let link = |text: &str| {
        let mut parts = text.split('*');
        let bus = parts.next()?.parse().ok()?;
        let count = parts.next()?.parse().ok().filter(|count| *count > 0)?;
        Some((bus, count, parts.next()?.parse().ok()))
    };
    text.split(',').filter_map(link).collect()
}

/// How much a place in the tree says: directly below memory is where a probe puts what has none.
fn says(above: &Key) -> u8 {
    match above {
        Key::NoNuma => 0,
        Key::Numa(_) => 1,
        _ if is_adapter_without_place(above) => 1,
        _ => 2,
    }
}

/// An adapter that is known by its port alone, since its source does not see its PCI device.
const ADAPTER: &str = "adapter of";

fn is_adapter_without_place(key: &Key) -> bool {
    matches!(key, Key::Named(word, _) if *word == ADAPTER)
}

/// The identity of a node.
fn key(hardware: &Hardware, id: NodeId, node: &Node) -> Key {
    let named = || Key::Named(node.kind.word(), node.name.clone());
    match &node.kind {
        NodeKind::Host(_) => Key::Host,
        NodeKind::Numa(numa) => numa.number.map_or(Key::NoNuma, Key::Numa),
        NodeKind::Cores(cores) => cores.cpus.iter().next().map_or_else(named, Key::Cores),
        NodeKind::Root(bus) => bus.map_or_else(named, Key::Root),
        NodeKind::Bridge(bridge) => bridge.pci.bus.map_or_else(named, Key::Bridge),
        NodeKind::Gpu(gpu) => gpu.pci.bus.map_or_else(named, Key::Gpu),
        NodeKind::NvSwitch(pci) => pci.bus.map_or(Key::HiddenSwitches, Key::NvSwitch),
        NodeKind::Nic(nic) => match nic.pci.and_then(|pci| pci.bus) {
            Some(bus) => Key::Nic(bus),
            // An adapter that is no PCI device is known by its port.
            None => {
                let port = hardware.below(id).find_map(|(_, below)| port_device(&hardware.node(below).kind));
                port.map_or_else(named, |device| Key::Named(ADAPTER, device))
            }
        },
        NodeKind::Port(port) => match &port.device {
            Some(device) => Key::Port(device.clone(), port.number),
            None => named(),
        },
        NodeKind::Switch { .. } => named(),
    }
}

fn port_device(kind: &NodeKind) -> Option<String> {
    match kind {
        NodeKind::Port(port) => port.device.clone(),
        _ => None,
    }
}
