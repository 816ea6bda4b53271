//! Whether a machine makes sense.
//!
//! Invariant: what passes has a tree without cycles in which each node has one place, names and numbers that mean one
//! thing, and links that the kinds of their ends can have. Every reader ends with this check. Absent: whether it is fast.

use std::collections::BTreeMap;
use std::error::Error;
use std::fmt;

use super::{Hardware, Lanes, Link, LinkKind, NodeId, NodeKind};

/// More nodes or links than a machine has for which plans are made; what every reader accepts, the text form has too.
pub(super) const NODES_MAX: usize = 1 << 17;
pub(super) const LINKS_MAX: usize = 1 << 19;

/// More links side by side than any device has.
const COUNT_MAX: u32 = 1024;

/// What is wrong with a machine.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fault {
    /// The nodes that it concerns; readers give the line of the last.
    pub nodes: Vec<NodeId>,
    /// What is wrong.
    pub reason: String,
    /// What to do.
    pub remedy: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {}", self.reason, self.remedy)
    }
}

impl Error for Fault {}

/// What to do about two things with one identity.
const MIXED: &str = "the source may mix two hosts: give each host its own file, or its own host_hash";

impl Hardware {
    /// Checks sizes, names, identities, the tree and the ends of links.
    ///
    /// # Errors
    ///
    /// The first [`Fault`] in the order of nodes and links.
    pub fn check(&self) -> Result<(), Fault> {
        room(self.nodes().len(), self.links().len())?;
        let mut names = BTreeMap::new();
        for (id, node) in self.iter() {
            let is_word =
                |text: &str| !text.is_empty() && !text.contains(|c: char| c.is_whitespace() || c == '#');
            if !is_word(&node.name) {
                return fault([id], format!("{:?} is no name", node.name), "a name is one word without #");
            }
            if let Some(before) = names.insert(node.name.as_str(), id) {
                return fault(
                    [before, id],
                    format!("two nodes are called {}", node.name),
                    "rename one of them",
                );
            }
            let is_host = |host: NodeId| {
                self.nodes().get(host.index()).is_some_and(|node| matches!(node.kind, NodeKind::Host(_)))
            };
            if node.host.is_some_and(|host| !is_host(host)) {
                return fault(
                    [id],
                    format!("the host of {} is none", node.name),
                    "name a node that is a host",
                );
            }
        }
        for link in self.links() {
            self.check_ends(link)?;
            check_numbers(link)?;
        }
        self.check_tree()?;
        self.check_identities()
    }

    fn check_ends(&self, link: &Link) -> Result<(), Fault> {
        use NodeKind::{Bridge, Cores, Gpu, Host, Nic, Numa, NvSwitch, Port, Root, Switch};
        let (from, to) = (self.node(link.from), self.node(link.to));
        let fits = matches!(
            (link.kind, &from.kind, &to.kind),
            (LinkKind::Local, Host(_), Numa(_) | Root(_) | Cores(_))
                | (LinkKind::Local, Numa(_), Root(_) | Cores(_) | Nic(_))
                | (LinkKind::Local, Nic(_), Port(_))
                | (
                    LinkKind::Pcie { .. },
                    Numa(_) | Root(_) | Bridge(_),
                    Bridge(_) | Gpu(_) | NvSwitch(_) | Nic(_),
                )
                | (LinkKind::NvLink { .. }, Gpu(_), Gpu(_) | NvSwitch(_) | Numa(_))
                | (LinkKind::NvLink { .. }, NvSwitch(_), Gpu(_) | NvSwitch(_))
                | (LinkKind::NvLink { .. } | LinkKind::C2c { .. }, Numa(_), Gpu(_))
                | (LinkKind::Xgmi { .. }, Gpu(_), Gpu(_))
                | (LinkKind::C2c { .. }, Gpu(_), Numa(_) | Gpu(_))
                | (LinkKind::Socket { .. }, Numa(_), Numa(_))
                | (LinkKind::Network, Port(_) | Nic(_) | Switch { .. }, Port(_) | Nic(_) | Switch { .. })
        );
        let ends = [link.from, link.to];
        let (kind, from_word, to_word) = (link.kind.word(), from.kind.word(), to.kind.word());
        if link.from == link.to {
            return fault(
                ends,
                format!("a link leads from {} to itself", from.name),
                "a link needs two ends",
            );
        }
        if !fits {
            let reason = format!(
                "no {kind} link can lead from {} (a {from_word}) to {} (a {to_word})",
                from.name, to.name
            );
            return fault(ends, reason, "correct the kind of the link or its ends");
        }
        let inside =
            !matches!(link.kind, LinkKind::Network | LinkKind::NvLink { .. } | LinkKind::Xgmi { .. });
        let host =
            |id: NodeId| if matches!(self.node(id).kind, Host(_)) { Some(id) } else { self.node(id).host };
        if inside && host(link.from) != host(link.to) {
            let reason = format!("the {kind} link from {} to {} leaves a host", from.name, to.name);
            return fault(ends, reason, "only NVLink, xGMI and networks join hosts");
        }
        Ok(())
    }

    fn check_tree(&self) -> Result<(), Fault> {
        let mut above: Vec<Option<NodeId>> = vec![None; self.nodes().len()];
        let name = |id: NodeId| &self.node(id).name;
        for link in self.links().iter().filter(|link| link.kind.is_of_tree()) {
            if let Some(before) = above[link.to.index()].replace(link.from) {
                let reason =
                    format!("{} is below both {} and {}", name(link.to), name(before), name(link.from));
                return fault([before, link.from, link.to], reason, "a device has one place in the tree");
            }
        }
        // A walk up visits each node that is not known to be good once.
        let mut good = vec![false; above.len()];
        for start in 0..above.len() {
            let (mut at, mut walk) = (start, Vec::new());
            while !good[at] {
                walk.push(at);
                let Some(next) = above[at] else { break };
                at = next.index();
                if walk.len() > above.len() {
                    let id = NodeId(at as u32);
                    return fault([id], format!("{} lies below itself", name(id)), "a tree has no cycle");
                }
            }
            for visited in walk {
                good[visited] = true;
            }
        }
        Ok(())
    }

    fn check_identities(&self) -> Result<(), Fault> {
        let mut seen: BTreeMap<(Option<NodeId>, String), NodeId> = BTreeMap::new();
        for (id, node) in self.iter() {
            let mut identities = Vec::new();
            match &node.kind {
                NodeKind::Gpu(gpu) => {
                    identities.extend(gpu.pci.bus.map(|bus| (node.host, format!("GPU at {bus}"))));
                    identities
                        .extend(gpu.index.map(|index| (node.host, format!("GPU with the number {index}"))));
                    identities.extend(gpu.rank.map(|rank| (None, format!("GPU of rank {rank}"))));
                }
                NodeKind::Numa(numa) => {
                    identities.extend(numa.number.map(|number| (node.host, format!("NUMA domain {number}"))));
                }
                NodeKind::NvSwitch(pci) => {
                    identities.extend(pci.bus.map(|bus| (node.host, format!("NVSwitch at {bus}"))));
                }
                NodeKind::Host(host) => {
                    identities.extend(host.hash.as_ref().map(|hash| (None, format!("host {hash}"))));
                }
                _ => {}
            }
            for (host, identity) in identities {
                if let Some(before) = seen.insert((host, identity.clone()), id) {
                    let reason = format!(
                        "there are two of one {identity}: {} and {}",
                        self.node(before).name,
                        node.name
                    );
                    return fault([before, id], reason, MIXED);
                }
            }
        }
        // A GPU is no other device.
        for (id, node) in self.iter().filter(|(_, node)| !matches!(node.kind, NodeKind::Gpu(_))) {
            let bus = node.kind.pci().and_then(|pci| pci.bus);
            let gpu = bus.and_then(|bus| seen.get(&(node.host, format!("GPU at {bus}"))));
            if let (Some(gpu), Some(bus)) = (gpu, bus) {
                let reason =
                    format!("{} and {} are both at {bus} on one host", self.node(*gpu).name, node.name);
                return fault([*gpu, id], reason, MIXED);
            }
        }
        Ok(())
    }
}

/// Whether a machine may have as many nodes and links: a caller asks before it makes them.
pub(super) fn room(nodes: usize, links: usize) -> Result<(), Fault> {
    for (count, most, what) in [(nodes, NODES_MAX, "nodes"), (links, LINKS_MAX, "links")] {
        if count > most {
            let reason = format!("{count} {what} are more than the {most} that a machine may have");
            return fault([], reason, "describe fewer hosts, or fewer devices of each");
        }
    }
    Ok(())
}

fn check_numbers(link: &Link) -> Result<(), Fault> {
    let ends = [link.from, link.to];
    let lanes_fit = |lanes: Lanes| {
        lanes.generation.is_none_or(|generation| (1..=7).contains(&generation))
            && lanes.width.is_none_or(|width| matches!(width, 1 | 2 | 4 | 8 | 12 | 16 | 32))
    };
    match link.kind {
        LinkKind::NvLink { count, .. } | LinkKind::Xgmi { count } | LinkKind::C2c { count }
            if !(1..=COUNT_MAX).contains(&count) =>
        {
            return fault(ends, format!("{count} links side by side"), "there are 1 to 1024");
        }
        LinkKind::NvLink { generation: Some(generation), .. } if !(1..=9).contains(&generation) => {
            return fault(ends, format!("there is no NVLink {generation}"), "generations begin at 1");
        }
        LinkKind::Pcie { now, best } if !lanes_fit(now) || !lanes_fit(best) => {
            return fault(
                ends,
                "a PCIe link has a generation of 1 to 7 and 1, 2, 4, 8, 12, 16 or 32 lanes".into(),
                "correct the number, or leave it out where it is not known",
            );
        }
        _ => {}
    }
    if link.bytes_s == Some(0) {
        return fault(ends, "nothing passes a link of 0 bytes a second".into(), "leave the link out");
    }
    Ok(())
}

fn fault<const N: usize>(nodes: [NodeId; N], reason: String, remedy: &str) -> Result<(), Fault> {
    Err(Fault { nodes: nodes.to_vec(), reason, remedy: remedy.to_owned() })
}
