//! What a person should look at in a machine, and can change.
//!
//! Invariant: the same machine gives the same sentences in the same order; they name devices as users know them. Of hosts
//! that are alike there is one sentence. Absent: what follows from settings and drivers.

use std::collections::{BTreeMap, BTreeSet};

use super::summary::gigabytes;
use super::titles::{Titles, counted};
use super::{Bridge, Hardware, Lanes, LinkKind, NodeId, NodeKind, PortState, Rates, known_gpu};

/// More are of no use to a person.
const WARNINGS_MAX: usize = 100;
/// Firmware gives less than this as the distance of two NUMA domains of one package (local is 10), and more between packages.
const PACKAGE_DISTANCE: u16 = 16;

/// Something to look at.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Warning {
    /// The devices that it is about; none where it is about the machine.
    pub nodes: Vec<NodeId>,
    /// A sentence without a full stop.
    pub text: String,
}

/// A sentence in its parts, so that hosts can be named between them.
struct Sentence {
    nodes: Vec<NodeId>,
    host: Option<NodeId>,
    subject: String,
    rest: String,
}

/// What was found so far.
pub(super) struct Found {
    pub(super) titles: Titles,
    sentences: Vec<Sentence>,
}

impl Found {
    /// A sentence about no single device. The host, where it is about one of several, is named between its parts.
    pub(super) fn general(&mut self, host: Option<NodeId>, subject: String, rest: String) {
        self.sentences.push(Sentence { nodes: Vec::new(), host, subject, rest });
    }

    /// A sentence about a device.
    pub(super) fn about(&mut self, hardware: &Hardware, id: NodeId, rest: String) {
        let subject = self.titles.of(hardware, id);
        self.named(hardware, id, subject, rest);
    }

    /// A sentence about a device that is known by another name.
    pub(super) fn named(&mut self, hardware: &Hardware, id: NodeId, subject: String, rest: String) {
        let host = hardware.node(id).host;
        self.sentences.push(Sentence { nodes: vec![id], host, subject, rest });
    }
}

impl Hardware {
    /// What a person should look at, as sentences without a full stop.
    pub fn warnings(&self) -> Vec<String> {
        self.located_warnings().into_iter().map(|warning| warning.text).collect()
    }

    /// [`warnings`](Hardware::warnings) with the devices that they are about.
    pub fn located_warnings(&self) -> Vec<Warning> {
        let mut found = Found { titles: self.titles(), sentences: Vec::new() };
        self.warn_of_peers(&mut found);
        self.warn_of_lanes(&mut found);
        self.warn_of_uplinks(&mut found);
        self.warn_of_ports(&mut found);
        self.warn_of_slots(&mut found);
        self.warn_of_far_ports(&mut found);
        self.warn_of_links_that_differ(&mut found);
        self.warn_of_bare_domains(&mut found);
        self.warn_of_access_control(&mut found);
        self.warn_of_access(&mut found);
        self.joined(found.sentences)
    }

    /// One warning for all hosts that have the same.
    fn joined(&self, found: Vec<Sentence>) -> Vec<Warning> {
        let mut order: Vec<(String, String)> = Vec::new();
        let mut alike: BTreeMap<(String, String), (Vec<NodeId>, BTreeSet<NodeId>)> = BTreeMap::new();
        for Sentence { nodes, host, subject, rest } in found {
            let key = (subject, rest);
            let (all, hosts) = alike.entry(key.clone()).or_insert_with(|| {
                order.push(key);
                (Vec::new(), BTreeSet::new())
            });
            all.extend(nodes);
            hosts.extend(host);
        }
        let count = self.hosts().len();
        let place = |hosts: &BTreeSet<NodeId>| {
            let names: Vec<&str> = hosts.iter().take(2).map(|host| self.node(*host).name.as_str()).collect();
            match (names[..].as_ref(), hosts.len()) {
                _ if count < 2 => String::new(),
                ([], _) => String::new(),
                (_, all) if all == count => " of every host".into(),
                ([one], _) => format!(" of {one}"),
                ([one, other], 2) => format!(" of {one} and of {other}"),
                ([one, ..], all) => format!(" of {one} and of {} more hosts", all - 1),
            }
        };
        let warning = |key: &(String, String)| {
            let (nodes, hosts) = &alike[key];
            Warning { nodes: nodes.clone(), text: format!("{}{}{}", key.0, place(hosts), key.1) }
        };
        let mut warnings: Vec<Warning> = order.iter().take(WARNINGS_MAX).map(warning).collect();
        if order.len() > WARNINGS_MAX {
            let more = order.len() - WARNINGS_MAX;
            let are = if more == 1 { "is" } else { "are" };
            let text = format!("there {are} {} like these", counted(more, "more warning"));
            warnings.push(Warning { nodes: Vec::new(), text });
        }
        warnings
    }

    /// Where no link between GPUs is drawn, and why.
    fn warn_of_peers(&self, found: &mut Found) {
        let gpus = self.gpus();
        if gpus.len() < 2 || self.links().iter().any(|link| link.kind.joins_gpus()) {
            return;
        }
        let gpu = |id: &NodeId| self.gpu(*id);
        let silent = gpus.iter().any(|id| gpu(id).is_some_and(|gpu| !gpu.links_known));
        let model = gpus.iter().find_map(|id| gpu(id).and_then(|gpu| known_gpu(&gpu.pci)));
        let subject = match (silent, model) {
            (true, Some(known)) => format!(
                "the source does not say how the GPUs are linked, and boards of their model ({}) have NVLink: none is drawn; assume a \
                 machine with --assume",
                known.model
            ),
            (true, None) => {
                "the source does not say how the GPUs are linked: no NVLink is drawn; assume a machine \
                             with --assume"
                    .into()
            }
            (false, Some(known)) => format!(
                "the source lists no NVLink or xGMI, though boards of the GPUs' model ({}) have it: none is drawn; see nvidia-smi nvlink -s or rocm-smi --showtopo",
                known.model
            ),
            (false, None) => "the source lists no NVLink or xGMI: the GPUs are joined by PCIe alone".into(),
        };
        found.general(None, subject, String::new());
    }

    /// Generation and width of the PCIe link of a device, as they are and as they could be.
    fn lanes(&self, id: NodeId) -> Option<(Lanes, Lanes)> {
        match self.link(self.above(id)?.0).kind {
            LinkKind::Pcie { now, best } => Some((now, best)),
            _ => None,
        }
    }

    /// PCIe links that are narrower or slower than those of like devices, or than they could be.
    fn warn_of_lanes(&self, found: &mut Found) {
        let mut hosts: BTreeMap<Option<NodeId>, Vec<NodeId>> = BTreeMap::new();
        for gpu in self.gpus() {
            hosts.entry(self.node(gpu).host).or_default().push(gpu);
        }
        let mut narrow = BTreeSet::new();
        for gpus in hosts.values() {
            let now = |id: &NodeId| self.lanes(*id).map(|(now, _)| now);
            let widest = gpus.iter().filter_map(now).filter_map(|lanes| lanes.width).max();
            let newest = gpus.iter().filter_map(now).filter_map(|lanes| lanes.generation).max();
            for id in gpus {
                let Some(now) = now(id) else { continue };
                let (width, generation) = (now.width, now.generation);
                if let Some((width, widest)) = width.zip(widest).filter(|(width, widest)| width < widest) {
                    narrow.insert(*id);
                    found.about(self, *id, format!(" is at PCIe x{width}, its siblings at x{widest}"));
                }
                if let Some((own, newest)) = generation.zip(newest).filter(|(own, newest)| own < newest) {
                    narrow.insert(*id);
                    let rest = format!(" is at PCIe generation {own}, its siblings at {newest}");
                    found.about(self, *id, rest);
                }
            }
        }
        for (id, node) in self.iter().filter(|(id, _)| !narrow.contains(id)) {
            let Some((now, best)) = self.lanes(id) else { continue };
            let less =
                |now: Option<u8>, best: Option<u8>| now.zip(best).is_some_and(|(now, best)| now < best);
            let is_slow = less(now.generation, best.generation);
            if less(now.width, best.width) || is_slow {
                // A GPU that has nothing to do lowers its speed, and no other device its width.
                let may_rest =
                    is_slow && !less(now.width, best.width) && matches!(node.kind, NodeKind::Gpu(_));
                let hint =
                    if may_rest { " (look again while it works: idle GPUs slow their links)" } else { "" };
                let rest = format!(" runs at {}, and could at {}{hint}", lanes_words(now), lanes_words(best));
                let subject = match &node.kind {
                    NodeKind::Bridge(bridge) => format!("the switch {}", address(&node.name, bridge)),
                    _ => found.titles.of(self, id),
                };
                found.named(self, id, subject, rest);
            }
        }
    }

    /// Switches whose way up is narrower than that of a device below them; switches of a host that are alike are one warning.
    fn warn_of_uplinks(&self, found: &mut Found) {
        let rates = Rates::DataSheet;
        // By host and rates: the switches with their names.
        type Alike = BTreeMap<(Option<NodeId>, u64, u64), (Vec<NodeId>, Vec<String>)>;
        let mut alike = Alike::new();
        for (id, node) in self.iter() {
            let NodeKind::Bridge(bridge) = &node.kind else { continue };
            let up = self.above(id).and_then(|(link, _)| self.bytes_s(link, rates));
            let widest = self.below(id).filter_map(|(link, _)| self.bytes_s(link, rates)).max();
            if let Some((up, down)) = up.zip(widest).filter(|(up, down)| up < down) {
                let (nodes, names) = alike.entry((node.host, up, down)).or_default();
                nodes.push(id);
                names.push(address(&node.name, bridge));
            }
        }
        for ((host, up, down), (nodes, names)) in alike {
            let (up, down) = (gigabytes(up), gigabytes(down));
            let (switches, are, them) =
                if names.len() == 1 { ("the switch", "is", "it") } else { ("the switches", "are", "them") };
            let subject = format!("{switches} {}", names.join(", "));
            let rest = format!(" {are} linked up at {up} GB/s, and a device below {them} at {down}");
            found.sentences.push(Sentence { nodes, host, subject, rest });
        }
    }

    fn warn_of_ports(&self, found: &mut Found) {
        let mut ports = 0;
        for (id, node) in self.iter() {
            let NodeKind::Port(port) = &node.kind else { continue };
            ports += 1;
            if port.state == PortState::Down && !port.is_virtual() {
                found.about(self, id, " is down".into());
            }
        }
        if ports > 0 && self.network_ends().is_empty() {
            let which =
                if ports == 1 { "the only one is".into() } else { format!("of {ports} listed all are") };
            let subject = format!(
                "no port can be used for data between hosts: {which} virtual, down, wireless, or of 1 Gb/s"
            );
            found.general(None, subject, String::new());
        }
    }

    /// Adapters whose PCIe link carries less than one of their ports.
    fn warn_of_slots(&self, found: &mut Found) {
        for (id, _) in self.iter().filter(|(_, node)| matches!(node.kind, NodeKind::Nic(_))) {
            let ports = self.below(id).filter_map(|(_, port)| match &self.node(port).kind {
                NodeKind::Port(port) if Hardware::is_usable(port) => port.speed_mbit_s,
                _ => None,
            });
            let (Some(fastest), Some((link, _))) = (ports.max(), self.above(id)) else { continue };
            let LinkKind::Pcie { now, .. } = self.link(link).kind else { continue };
            let carries = self.bytes_s(link, Rates::DataSheet).map(|bytes_s| bytes_s / 125_000);
            if let Some(carries) = carries.filter(|carries| *carries < fastest) {
                let gigabits = |mbit_s: u64| gigabytes(mbit_s.saturating_mul(1_000_000));
                let rest = format!(
                    " has a port of {} Gb/s in a slot of {}, which carries {}",
                    gigabits(fastest),
                    lanes_words(now),
                    gigabits(carries)
                );
                found.about(self, id, rest);
            }
        }
    }

    /// Ports that are far from every GPU of their host.
    fn warn_of_far_ports(&self, found: &mut Found) {
        let gpus = self.gpus();
        let own: BTreeSet<NodeId> = gpus.iter().filter_map(|gpu| self.numa_of(*gpu)).collect();
        let mut near = own.clone();
        for link in self.links() {
            // Domains of one package are not on the other socket.
            if matches!(link.kind, LinkKind::Socket { distance: Some(distance) } if distance <= PACKAGE_DISTANCE)
            {
                for (one, other) in [(link.from, link.to), (link.to, link.from)] {
                    if own.contains(&one) {
                        near.insert(other);
                    }
                }
            }
        }
        let with_gpus: BTreeSet<Option<NodeId>> = gpus.iter().map(|gpu| self.node(*gpu).host).collect();
        let mut far: BTreeMap<NodeId, Vec<String>> = BTreeMap::new();
        for id in self.network_ends() {
            let Some(numa) = self.numa_of(id).filter(|numa| !near.contains(numa)) else { continue };
            let is_known = matches!(&self.node(numa).kind, NodeKind::Numa(numa) if numa.number.is_some());
            if !is_known || !with_gpus.contains(&self.node(id).host) {
                continue;
            }
            match self.above(id).filter(|_| matches!(self.node(id).kind, NodeKind::Port(_))) {
                Some((_, nic)) => far.entry(nic).or_default().push(found.titles.of(self, id)),
                None => drop(far.entry(id).or_default()),
            }
        }
        for (nic, ports) in far {
            let ports = if ports.is_empty() { String::new() } else { format!(" ({})", ports.join(", ")) };
            found.about(self, nic, format!(" is on the other socket from every GPU{ports}"));
        }
    }

    /// GPUs with fewer links between GPUs than their siblings: one may be down.
    fn warn_of_links_that_differ(&self, found: &mut Found) {
        let mut counts: BTreeMap<(Option<NodeId>, NodeId), u32> = BTreeMap::new();
        for gpu in self.gpus() {
            let links = self.touching(gpu).iter().map(|link| match self.link(*link).kind {
                LinkKind::NvLink { count, .. } => count,
                _ => 0,
            });
            counts.insert((self.node(gpu).host, gpu), links.fold(0, u32::saturating_add));
        }
        let mut most: BTreeMap<Option<NodeId>, u32> = BTreeMap::new();
        for ((host, _), count) in &counts {
            let most = most.entry(*host).or_default();
            *most = (*most).max(*count);
        }
        for ((host, gpu), count) in &counts {
            if let Some(most) = most.get(host).filter(|most| count < most) {
                found.about(
                    self,
                    *gpu,
                    format!(" has {}, its siblings {most}", counted(*count as usize, "NVLink")),
                );
            }
        }
    }

    /// NUMA domains whose CPUs have no memory near to them.
    fn warn_of_bare_domains(&self, found: &mut Found) {
        for (id, node) in self.iter() {
            let NodeKind::Numa(numa) = &node.kind else { continue };
            let has_cpus = numa.cpus.as_ref().is_some_and(|cpus| !cpus.is_empty());
            if numa.memory_bytes == Some(0) && has_cpus {
                found.about(self, id, " has CPUs and no memory: look at its memory modules".into());
            }
        }
    }

    fn warn_of_access_control(&self, found: &mut Found) {
        for (id, node) in self.iter() {
            let NodeKind::Bridge(bridge) = &node.kind else { continue };
            if bridge.acs == Some(true) {
                let subject = format!("ACS on {}", address(&node.name, bridge));
                found.named(self, id, subject, " forces peer traffic through the root".into());
            }
        }
    }
}

/// A switch by its address, or by its name where that is not known.
fn address(name: &str, bridge: &Bridge) -> String {
    bridge.pci.bus.map_or_else(|| name.to_owned(), |bus| bus.to_string())
}

/// `PCIe 4 x16`.
fn lanes_words(lanes: Lanes) -> String {
    match (lanes.generation, lanes.width) {
        (Some(generation), Some(width)) => format!("PCIe {generation} x{width}"),
        (Some(generation), None) => format!("PCIe {generation}"),
        (None, Some(width)) => format!("PCIe x{width}"),
        (None, None) => "PCIe".into(),
    }
}
