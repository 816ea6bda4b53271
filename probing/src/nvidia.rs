//! NVIDIA's GPUs as the management library describes them, and the links between them.
//!
//! Invariant: a link is there if it is up at both ends, where both are seen. A GPU for which the library knows no link has none; a GPU
//! whose links the library does not answer for has links that are not known. Absent: which library answers.

use std::collections::{BTreeMap, BTreeSet};

use consort_algorithms::hardware::{
    BusId, Gpu, Hardware, Link, LinkKind, NVIDIA, NodeId, NodeKind, Pci, UNSEEN_LINKS, nvlink_generation,
    unseen_link,
};
use consort_cuda::management::{Fabric, Management, NoAnswer, PeerUse, RemoteKind};

use super::devices::Placed;
use super::host::is_line;
use super::note::Trouble;
use super::tree::Tree;

/// More GPUs than a host has.
const GPUS_MAX: u32 = 256;
/// More links than a GPU has.
const LINKS_MAX: u32 = 64;
/// Above this number of GPUs, pairs are not asked for peer access one by one.
const PAIRS_MAX: usize = 64;
/// More coherent links than a GPU has.
const COHERENT_MAX: u32 = 64;

/// A link that is up.
#[derive(Clone, Debug)]
struct Up {
    remote: String,
    kind: RemoteKind,
    generation: Option<u8>,
}

/// A GPU of the library.
#[derive(Debug)]
pub(crate) struct Known {
    pub(crate) bus: BusId,
    /// The library's number of it.
    number: u32,
    uuid: Option<String>,
    model: Option<String>,
    sm: Option<u32>,
    is_split: bool,
    links: Vec<Up>,
    down: u32,
    links_known: bool,
    coherent: Option<(u32, Option<u64>)>,
    fabric: Option<Fabric>,
}

/// The library with notes of what it does not answer.
struct Asked<'a> {
    tree: &'a Tree,
    library: &'a dyn Management,
}

impl Asked<'_> {
    /// The answer, with a note where the reason is not that a device has no such thing.
    fn answer<T>(&self, question: &str, gpu: u32, answer: Result<T, NoAnswer>) -> Option<T> {
        match answer {
            Ok(answer) => Some(answer),
            Err(NoAnswer::NotSupported | NoAnswer::TooOld) => None,
            Err(error) => {
                self.note(question, gpu, error.to_string());
                None
            }
        }
    }

    fn note(&self, question: &str, gpu: u32, reason: String) {
        self.tree.note(format!("NVML: {question} of GPU {gpu}"), Trouble::NoAnswer { reason });
    }

    /// A short line of text; what else the library says is no name.
    fn line(&self, question: &str, gpu: u32, answer: Result<String, NoAnswer>) -> Option<String> {
        let text = self.answer(question, gpu, answer)?;
        if is_line(&text) {
            return Some(text);
        }
        self.tree.nonsense(&format!("NVML: {question} of GPU {gpu}"), &text);
        None
    }

    fn gpu(&self, number: u32) -> Option<Known> {
        let address = self.answer("the address", number, self.library.address(number))?;
        let Ok(bus) = address.parse::<BusId>() else {
            self.tree.nonsense(&format!("NVML: the address of GPU {number}"), &address);
            return None;
        };
        let capability = self.answer("the capability", number, self.library.capability(number));
        let sm = capability
            .filter(|(major, minor)| *major <= 99 && *minor <= 9)
            .map(|(major, minor)| major * 10 + minor);
        let is_split = self.answer("the MIG mode", number, self.library.is_split(number)).unwrap_or(false);
        let (links, down, links_known) = self.links(number, sm);
        let count = self.answer("the coherent links", number, self.library.coherent_links(number));
        let coherent = count.filter(|count| (1..=COHERENT_MAX).contains(count)).map(|count| {
            (count, self.answer("the rate of coherent links", number, self.library.coherent_mb_s(number)))
        });
        Some(Known {
            bus,
            number,
            uuid: self.line("the UUID", number, self.library.uuid(number)),
            model: self.line("the model", number, self.library.model(number)),
            sm,
            is_split,
            links,
            down,
            links_known,
            coherent,
            fabric: self.answer("the fabric", number, self.library.fabric(number)),
        })
    }

    /// The links that are up, how many are down, and whether the library knows that.
    fn links(&self, gpu: u32, sm: Option<u32>) -> (Vec<Up>, u32, bool) {
        let (mut links, mut down) = (Vec::new(), 0);
        for link in 0..LINKS_MAX {
            match self.library.is_link_up(gpu, link) {
                Ok(true) => links.extend(self.up(gpu, link, sm)),
                Ok(false) => down += 1,
                // A board may lack some of its model's links, those with low numbers as well.
                Err(NoAnswer::NotSupported) => {}
                // Links end where the library has no more of them.
                Err(NoAnswer::NoSuch) => return (links, down, true),
                Err(error) => {
                    self.note(&format!("the state of link {link}"), gpu, error.to_string());
                    return (links, down, false);
                }
            }
        }
        (links, down, true)
    }

    fn up(&self, gpu: u32, link: u32, sm: Option<u32>) -> Option<Up> {
        let name = format!("the other end of link {link}");
        let remote = self.answer(&name, gpu, self.library.link_remote(gpu, link))?;
        let kind = self.answer(&name, gpu, self.library.link_remote_kind(gpu, link));
        let version = self.answer("the version of links", gpu, self.library.link_version(gpu, link));
        // By `nvmlNvlinkVersion_t`; later libraries count on.
        let by_version = version.and_then(|version| match version {
            1 => Some(1),
            2 | 3 => Some(2),
            4 | 5 => Some(3),
            6 => Some(4),
            7 => Some(5),
            _ => None,
        });
        // Older libraries count generations. The capability is the same in all.
        let generation = sm.and_then(nvlink_generation).or(by_version);
        Some(Up { remote, kind: kind.unwrap_or(RemoteKind::Unknown), generation })
    }
}

/// The GPUs of the library, in its order.
pub(crate) fn gpus(tree: &Tree, library: &dyn Management) -> Vec<Known> {
    let asked = Asked { tree, library };
    let count = match library.gpus() {
        Ok(count) => count,
        Err(error) => {
            tree.note("NVML: the number of GPUs", Trouble::NoAnswer { reason: error.to_string() });
            return Vec::new();
        }
    };
    if count > GPUS_MAX {
        tree.note("NVML: GPUs", Trouble::TooMany { most: GPUS_MAX as usize });
    }
    let mut gpus: Vec<Known> = Vec::new();
    for known in (0..count.min(GPUS_MAX)).filter_map(|number| asked.gpu(number)) {
        if gpus.iter().any(|other| other.bus == known.bus) {
            let how = format!("two GPUs are at {}; the first is taken", known.bus);
            tree.note("NVML: the addresses", Trouble::Contradiction { how });
        } else {
            gpus.push(known);
        }
    }
    gpus
}

/// Completes the GPUs of the PCI tree and adds their links. A GPU that is not in the tree, as in a container with a part of it, is put
/// below `home`.
pub(crate) fn add(
    tree: &Tree,
    library: &dyn Management,
    hardware: &mut Hardware,
    home: Option<NodeId>,
    placed: &mut Placed,
    gpus: &[Known],
) {
    let Some(host) = hardware.hosts().first().copied() else { return };
    let mut ids: BTreeMap<BusId, (NodeId, &Known)> = BTreeMap::new();
    for known in gpus {
        let id = placed.nodes.get(&known.bus).copied().filter(|id| hardware.gpu(*id).is_some());
        let Some(id) = id.or_else(|| {
            let pci = Pci { bus: Some(known.bus), class: None, vendor: Some(NVIDIA), ..Pci::default() };
            let id = hardware.add_node("", Some(host), NodeKind::Gpu(Gpu { pci, ..Gpu::default() }));
            hardware.connect(home?, id, LinkKind::Pcie { now: Default::default(), best: Default::default() });
            tree.note(
                format!("NVML: GPU {}", known.number),
                Trouble::Contradiction {
                    how: format!(
                        "it is at {}, which sysfs does not show; its PCIe link is not known",
                        known.bus
                    ),
                },
            );
            placed.nodes.insert(known.bus, id);
            Some(id)
        }) else {
            continue;
        };
        complete(hardware, id, known);
        ids.insert(known.bus, (id, known));
    }
    let mut joiner =
        Joiner { tree, hardware, host, placed, ids: &ids, hidden: None, unseen: BTreeMap::new() };
    joiner.join();
    refusals(tree, library, hardware, &ids);
}

fn complete(hardware: &mut Hardware, id: NodeId, known: &Known) {
    let node = hardware.node_mut(id);
    if known.is_split {
        node.extra.insert("probe.mig".into(), "on".into());
    }
    if known.down > 0 {
        node.extra.insert("probe.nvlinks_down".into(), known.down.to_string());
    }
    if let Some(fabric) = &known.fabric {
        // Without a cluster the host is a domain of its own.
        if fabric.cluster.bytes().any(|digit| digit != b'0') {
            node.extra.insert("probe.fabric".into(), format!("{}/{}", fabric.cluster, fabric.clique));
        }
        if !fabric.is_joined {
            node.extra.insert("probe.fabric_joined".into(), "no".into());
        }
    }
    if let NodeKind::Gpu(gpu) = &mut node.kind {
        gpu.index = Some(known.number);
        gpu.uuid = known.uuid.clone();
        gpu.model = known.model.clone();
        gpu.sm = known.sm;
        gpu.described = true;
        gpu.links_known = known.links_known;
    }
    if let (Some((count, mb_s)), Some(numa)) = (known.coherent, hardware.numa_of(id)) {
        let bytes_s = mb_s
            .and_then(|mb_s| mb_s.checked_mul(1_000_000)?.checked_mul(count.into()))
            .filter(|rate| *rate > 0);
        let kind = LinkKind::C2c { count };
        hardware.add_link(Link { from: numa.min(id), to: numa.max(id), kind, bytes_s, latency_ns: None });
    }
}

/// Links while they are joined.
struct Joiner<'a> {
    tree: &'a Tree,
    hardware: &'a mut Hardware,
    host: NodeId,
    placed: &'a Placed,
    ids: &'a BTreeMap<BusId, (NodeId, &'a Known)>,
    /// The NVSwitch that stands for those that are not on PCI.
    hidden: Option<NodeId>,
    /// Per GPU and the address of another that is not seen, how many links join them, and their generation.
    unseen: BTreeMap<(NodeId, BusId), (u32, Option<u8>)>,
}

impl Joiner<'_> {
    fn join(&mut self) {
        // Per pair of nodes how many links each end has, and their generation.
        let mut pairs: BTreeMap<(NodeId, NodeId), ([u32; 2], Option<u8>)> = BTreeMap::new();
        let all: Vec<(NodeId, Up)> = self
            .ids
            .values()
            .flat_map(|(id, known)| known.links.iter().map(|up| (*id, up.clone())))
            .collect();
        for (id, up) in all {
            let Some(other) = self.other(id, &up) else { continue };
            let pair = pairs.entry((id.min(other), id.max(other))).or_insert(([0, 0], up.generation));
            pair.0[usize::from(id > other)] += 1;
        }
        for ((id, bus), (count, generation)) in std::mem::take(&mut self.unseen) {
            let list = self.hardware.node_mut(id).extra.entry(UNSEEN_LINKS.into()).or_default();
            *list += if list.is_empty() { "" } else { "," };
            *list += &unseen_link(bus, count, generation);
        }
        for ((from, to), (counts, generation)) in pairs {
            let [one, other] = counts;
            let both_are_gpus = self.hardware.gpu(from).is_some() && self.hardware.gpu(to).is_some();
            let count = if both_are_gpus { one.min(other) } else { one.max(other) };
            if both_are_gpus && one != other {
                let name = |id: NodeId| {
                    self.hardware.node(id).kind.pci().and_then(|pci| pci.bus).unwrap_or_default()
                };
                let how = format!(
                    "{} has {one} links to {}, which has {other} to it; the smaller number is taken",
                    name(from),
                    name(to)
                );
                self.tree.note("NVML: NVLinks", Trouble::Contradiction { how });
            }
            if count > 0 {
                self.hardware.connect(from, to, LinkKind::NvLink { generation, count });
            }
        }
    }

    /// The node to which a link leads.
    fn other(&mut self, id: NodeId, up: &Up) -> Option<NodeId> {
        let place = || {
            format!(
                "NVML: the links of {}",
                self.hardware.node(id).kind.pci().and_then(|pci| pci.bus).unwrap_or_default()
            )
        };
        let bus = up.remote.parse::<BusId>().ok().filter(|bus| *bus != BusId::default());
        let bus = bus.filter(|_| !BusId::is_hidden(&up.remote));
        if bus.is_some() && bus == self.hardware.node(id).kind.pci().and_then(|pci| pci.bus) {
            let how = "a link leads back to its GPU; it is left out".into();
            self.tree.note(place(), Trouble::Contradiction { how });
            return None;
        }
        let listed = bus.and_then(|bus| self.placed.nodes.get(&bus).copied());
        let is_switch = |id: &NodeId| matches!(self.hardware.node(*id).kind, NodeKind::NvSwitch(_));
        let seen = bus.and_then(|bus| self.ids.get(&bus).map(|(id, _)| *id)).or(listed.filter(is_switch));
        // A GPU that is on PCI and not the library's is another process's.
        let is_gpu = listed.is_some_and(|listed| self.hardware.gpu(listed).is_some());
        let kind = if is_gpu { RemoteKind::Gpu } else { up.kind };
        match (seen, kind) {
            (Some(seen), _) => Some(seen),
            (None, RemoteKind::Processor) => self.hardware.numa_of(id),
            // A process that sees one GPU of several has links to GPUs that it does not see.
            (None, RemoteKind::Gpu) => {
                match bus {
                    Some(bus) => self.unseen.entry((id, bus)).or_insert((0, up.generation)).0 += 1,
                    None => self.tree.nonsense(&place(), &up.remote),
                }
                None
            }
            (None, RemoteKind::Switch | RemoteKind::Unknown) => Some(self.switch(bus)),
        }
    }

    /// The NVSwitch at an address that is not on PCI here, or the one for all that have none.
    fn switch(&mut self, bus: Option<BusId>) -> NodeId {
        let same = |node: &NodeKind| matches!(node, NodeKind::NvSwitch(pci) if pci.bus == bus);
        let known = match bus {
            None => self.hidden,
            Some(_) => self.hardware.iter().find(|(_, node)| same(&node.kind)).map(|(id, _)| id),
        };
        known.unwrap_or_else(|| {
            let pci = Pci { bus, class: bus.map(|_| 0x06_8000), ..Pci::default() };
            let id = self.hardware.add_node("", Some(self.host), NodeKind::NvSwitch(pci));
            if bus.is_none() {
                self.hidden = Some(id);
            }
            id
        })
    }
}

/// Keeps for each GPU those whose memory it may not use, and why.
fn refusals(
    tree: &Tree,
    library: &dyn Management,
    hardware: &mut Hardware,
    ids: &BTreeMap<BusId, (NodeId, &Known)>,
) {
    if ids.len() > PAIRS_MAX {
        tree.note("NVML: peer access", Trouble::TooMany { most: PAIRS_MAX });
        return;
    }
    for (id, known) in ids.values() {
        let mut refused: BTreeMap<&'static str, BTreeSet<u32>> = BTreeMap::new();
        for (_, other) in ids.values().filter(|(_, other)| other.number != known.number) {
            let ask = |how| library.refusal(known.number, other.number, how).ok().flatten();
            if let Some(reason) = ask(PeerUse::Read).or_else(|| ask(PeerUse::Write)) {
                refused.entry(reason).or_default().insert(other.number);
            }
        }
        for (reason, others) in refused {
            let others: Vec<String> = others.iter().map(u32::to_string).collect();
            let extra = &mut hardware.node_mut(*id).extra;
            let list = extra.entry("probe.no_peers".into()).or_default();
            *list += &format!("{}{} ({reason})", if list.is_empty() { "" } else { "; " }, others.join(","));
        }
    }
}
