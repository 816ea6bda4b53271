//! A machine in a few numbers, its links, and what a person should look at.
//!
//! Invariant: the same machine gives the same text; warnings name devices as users know them. Absent: searches and bounds.

use std::collections::{BTreeMap, BTreeSet};

use crate::export::{document, lines, object, string};

use super::{Hardware, Lanes, LinkId, LinkKind, NodeId, NodeKind, PortState, Rates, known_gpu};

/// More are of no use to a person.
const WARNINGS_MAX: usize = 100;

/// A link for readers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SummaryLink {
    /// One end, by name.
    pub from: String,
    /// The other end, by name.
    pub to: String,
    /// Its kind: `nvlink`, `xgmi`, `c2c`, `pcie`, `socket`, `network`.
    pub kind: &'static str,
    /// Bytes a second in one direction, for all that run side by side; `None` where that is not known.
    pub bytes_s: Option<u64>,
}

/// A machine in short.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Summary {
    /// Its name.
    pub name: String,
    /// How many GPUs ([`Hardware::gpus`]).
    pub gpus: usize,
    /// How many ports a plan may use, or network adapters where no port is known ([`Hardware::network_ends`]).
    pub nics: usize,
    /// How many NUMA domains.
    pub numa: usize,
    /// How many NVSwitches; those that a virtual machine does not see are one.
    pub nvswitches: usize,
    /// Every wire once, in the order of the links.
    pub links: Vec<SummaryLink>,
    /// What to look at.
    pub warnings: Vec<String>,
}

impl Hardware {
    /// The machine in short, with these rates.
    pub fn summary(&self, rates: Rates) -> Summary {
        let ids = (0..self.links().len() as u32).map(LinkId);
        let wires = ids.filter(|id| self.link(*id).kind != LinkKind::Local);
        let links = wires.map(|id| {
            let link = self.link(id);
            SummaryLink {
                from: self.node(link.from).name.clone(),
                to: self.node(link.to).name.clone(),
                kind: link.kind.word(),
                bytes_s: self.bytes_s(id, rates),
            }
        });
        Summary {
            name: self.name.clone(),
            gpus: self.gpus().len(),
            nics: self.network_ends().len(),
            numa: self.numas().len(),
            nvswitches: self.nvswitches().len(),
            links: links.collect(),
            warnings: self.warnings(),
        }
    }

    /// What a person should look at, as sentences without a full stop.
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        self.warn_of_peers(&mut warnings);
        self.warn_of_lanes(&mut warnings);
        self.warn_of_ports(&mut warnings);
        self.warn_of_links_that_differ(&mut warnings);
        for (_, node) in self.iter() {
            if let NodeKind::Bridge(bridge) = &node.kind
                && bridge.acs == Some(true)
            {
                let name = bridge.pci.bus.map_or(node.name.clone(), |bus| bus.to_string());
                add(&mut warnings, || format!("ACS on {name} forces peer traffic through the root"));
            }
        }
        warnings
    }

    /// The name of a device as users know it: `GPU 3`, `mlx5_3`, `NIC 2`.
    fn title(&self, id: NodeId) -> String {
        let node = self.node(id);
        let hosts = self.hosts();
        let host = node.host.filter(|_| hosts.len() > 1).map(|host| format!(" of {}", self.node(host).name));
        let host = host.unwrap_or_default();
        let at = |all: Vec<NodeId>| {
            let here: Vec<NodeId> =
                all.into_iter().filter(|other| self.node(*other).host == node.host).collect();
            here.iter().position(|other| *other == id)
        };
        match &node.kind {
            NodeKind::Gpu(gpu) => match gpu.index.map(|index| index as usize).or_else(|| at(self.gpus())) {
                Some(index) => format!("GPU {index}{host}"),
                None => format!("{}{host}", node.name),
            },
            NodeKind::Port(port) => match &port.device {
                Some(device) => format!("{device}{host}"),
                None => format!("{}{host}", node.name),
            },
            NodeKind::Nic(_) => {
                let nics = self.iter().filter(|(_, node)| matches!(node.kind, NodeKind::Nic(_)));
                match at(nics.map(|(id, _)| id).collect()) {
                    Some(index) => format!("NIC {index}{host}"),
                    None => node.name.clone(),
                }
            }
            _ => node.name.clone(),
        }
    }

    /// Where no NVLink is drawn, and why.
    fn warn_of_peers(&self, warnings: &mut Vec<String>) {
        let gpus = self.gpus();
        if gpus.len() < 2 || self.links().iter().any(|link| link.kind.joins_gpus()) {
            return;
        }
        let gpu = |id: &NodeId| self.gpu(*id);
        let silent = gpus.iter().any(|id| gpu(id).is_some_and(|gpu| !gpu.links_known));
        let model = gpus.iter().find_map(|id| gpu(id).and_then(|gpu| known_gpu(&gpu.pci)));
        warnings.push(match (silent, model) {
            (true, Some(known)) => format!(
                "the source does not say how the GPUs are linked, and boards of their model ({}) have NVLink: none is drawn; assume a \
                 machine with --assume",
                known.model
            ),
            (true, None) => "the source does not say how the GPUs are linked: no NVLink is drawn; assume a machine \
                             with --assume"
                .into(),
            (false, Some(known)) => format!(
                "the source lists no NVLink or xGMI, though boards of the GPUs' model ({}) have it: none is drawn; see nvidia-smi nvlink -s or rocm-smi --showtopo",
                known.model
            ),
            (false, None) => "the source lists no NVLink or xGMI: the GPUs are joined by PCIe alone".into(),
        });
    }

    /// PCIe links that are narrower or slower than those of like devices, or than they could be.
    fn warn_of_lanes(&self, warnings: &mut Vec<String>) {
        let lanes = |id: NodeId| -> Option<(Lanes, Lanes)> {
            match self.link(self.above(id)?.0).kind {
                LinkKind::Pcie { now, best } => Some((now, best)),
                _ => None,
            }
        };
        let words = |lanes: Lanes| match (lanes.generation, lanes.width) {
            (Some(generation), Some(width)) => format!("PCIe {generation} x{width}"),
            (Some(generation), None) => format!("PCIe {generation}"),
            (None, Some(width)) => format!("PCIe x{width}"),
            (None, None) => "PCIe".into(),
        };
        let gpus = self.gpus();
        let all: Vec<Lanes> = gpus.iter().filter_map(|id| lanes(*id)).map(|(now, _)| now).collect();
        let widest = all.iter().filter_map(|lanes| lanes.width).max();
        let newest = all.iter().filter_map(|lanes| lanes.generation).max();
        for &id in &gpus {
            let Some((now, _)) = lanes(id) else { continue };
            if let (Some(width), Some(widest)) =
                (now.width, widest.filter(|widest| now.width < Some(*widest)))
            {
                add(warnings, || {
                    format!("{} is at PCIe x{width}, its siblings at x{widest}", self.title(id))
                });
            }
            if let (Some(own), Some(newest)) =
                (now.generation, newest.filter(|newest| now.generation < Some(*newest)))
            {
                add(warnings, || {
                    format!("{} is at PCIe generation {own}, its siblings at {newest}", self.title(id))
                });
            }
        }
        for (id, node) in self.iter() {
            let Some((now, best)) = lanes(id) else { continue };
            let less =
                |now: Option<u8>, best: Option<u8>| now.zip(best).is_some_and(|(now, best)| now < best);
            if less(now.width, best.width) || less(now.generation, best.generation) {
                add(warnings, || {
                    let name = match node.kind {
                        NodeKind::Bridge(_) => {
                            node.kind.pci().and_then(|pci| pci.bus).map(|bus| format!("the switch {bus}"))
                        }
                        _ => Some(self.title(id)),
                    };
                    let name = name.unwrap_or_else(|| node.name.clone());
                    format!("{name} runs at {}, and could at {}", words(now), words(best))
                });
            }
        }
        self.warn_of_uplinks(warnings);
    }

    /// Switches whose way up is narrower than that of a device below them; switches that are alike are one warning.
    fn warn_of_uplinks(&self, warnings: &mut Vec<String>) {
        let rates = Rates::DataSheet;
        let mut alike: BTreeMap<(u64, u64), Vec<String>> = BTreeMap::new();
        for (id, node) in self.iter() {
            let NodeKind::Bridge(bridge) = &node.kind else { continue };
            let up = self.above(id).and_then(|(link, _)| self.bytes_s(link, rates));
            let widest = self.below(id).filter_map(|(link, _)| self.bytes_s(link, rates)).max();
            if let Some((up, down)) = up.zip(widest).filter(|(up, down)| up < down) {
                let name = bridge.pci.bus.map_or(node.name.clone(), |bus| bus.to_string());
                alike.entry((up, down)).or_default().push(name);
            }
        }
        for ((up, down), names) in alike {
            let (up, down) = (gigabytes(up), gigabytes(down));
            let (switches, are, them) =
                if names.len() == 1 { ("the switch", "is", "it") } else { ("the switches", "are", "them") };
            let names = names.join(", ");
            add(warnings, || {
                format!(
                    "{switches} {names} {are} linked up at {up} GB/s, and a device below {them} at {down}"
                )
            });
        }
    }

    fn warn_of_ports(&self, warnings: &mut Vec<String>) {
        for (id, node) in self.iter() {
            if matches!(&node.kind, NodeKind::Port(port) if port.state == PortState::Down) {
                add(warnings, || format!("{} is down", self.title(id)));
            }
        }
        let ends = self.network_ends();
        let ports = self.iter().filter(|(_, node)| matches!(node.kind, NodeKind::Port(_))).count();
        if ports > 0 && ends.is_empty() {
            warnings.push(format!(
                "no port can be used for data between hosts: of {ports} listed all are virtual, down, or of 1 Gb/s"
            ));
        }
        let near: BTreeSet<NodeId> = self.gpus().into_iter().filter_map(|gpu| self.numa_of(gpu)).collect();
        let with_gpus: BTreeSet<Option<NodeId>> =
            self.gpus().into_iter().map(|gpu| self.node(gpu).host).collect();
        for id in ends {
            let Some(numa) = self.numa_of(id).filter(|numa| !near.contains(numa)) else { continue };
            let is_known = matches!(&self.node(numa).kind, NodeKind::Numa(numa) if numa.number.is_some());
            if !is_known || !with_gpus.contains(&self.node(id).host) {
                continue;
            }
            add(warnings, || {
                let nic = match self.node(id).kind {
                    NodeKind::Port(_) => self.above(id).map_or(id, |(_, nic)| nic),
                    _ => id,
                };
                let port = if nic == id { String::new() } else { format!(" ({})", self.title(id)) };
                format!("{}{port} is on the other socket from every GPU", self.title(nic))
            });
        }
    }

    /// GPUs with fewer links between GPUs than their siblings: one may be down.
    fn warn_of_links_that_differ(&self, warnings: &mut Vec<String>) {
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
                add(warnings, || format!("{} has {count} NVLinks, its siblings {most}", self.title(*gpu)));
            }
        }
    }
}

/// Adds a warning, unless there are more than a person reads.
fn add(warnings: &mut Vec<String>, text: impl FnOnce() -> String) {
    if warnings.len() < WARNINGS_MAX {
        warnings.push(text());
    }
}

/// Gigabytes, with as many digits as there are.
fn gigabytes(bytes: u64) -> String {
    let text = format!("{}.{:09}", bytes / 1_000_000_000, bytes % 1_000_000_000);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

impl Summary {
    /// One JSON object: `name`, `gpus`, `nics`, `numa`, `nvswitches` (numbers), `links` (each wire once, with `from`, `to`, `kind` and
    /// `gb_s`, gigabytes a second in one direction or `null`) and `warnings`.
    pub fn json(&self) -> String {
        let links = self.links.iter().map(|link| {
            object(&[
                ("from", string(&link.from)),
                ("to", string(&link.to)),
                ("kind", string(link.kind)),
                ("gb_s", link.bytes_s.map_or("null".into(), gigabytes)),
            ])
        });
        document(&[
            ("name", string(&self.name)),
            ("gpus", self.gpus.to_string()),
            ("nics", self.nics.to_string()),
            ("numa", self.numa.to_string()),
            ("nvswitches", self.nvswitches.to_string()),
            ("links", lines(links, 1)),
            ("warnings", lines(self.warnings.iter().map(|text| string(text)), 1)),
        ])
    }
}
