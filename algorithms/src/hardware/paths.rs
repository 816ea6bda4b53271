//! How data gets from one node to another, in the terms of NCCL.
//!
//! Invariant: of two paths the one of the better kind is taken, then the one with more bandwidth, then the one with fewer
//! links, then the one that was found first; so a path is the same on every rank. Source: NCCL at commit 5067397c,
//! `src/graph/paths.cc` (`ncclTopoSetPaths`, `ncclTopoComputePaths`). Absent: what depends on drivers and settings (peer
//! access, GPUDirect), which is taken for granted.

use std::fmt;

use super::{Hardware, LinkId, LinkKind, NodeId, NodeKind, Rates};

/// The kinds of paths, the best first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum PathKind {
    /// To itself.
    Loc,
    /// NVLink or xGMI.
    Nvl,
    /// NVLink through another GPU.
    Nvb,
    /// NVLink-C2C to the memory of a processor.
    C2c,
    /// At most one PCIe switch.
    Pix,
    /// Several PCIe switches, but no root complex.
    Pxb,
    /// From a GPU to a NIC by C2C and through the root complex.
    P2c,
    /// To a NIC through another GPU that is near to it.
    Pxn,
    /// Through the root complex.
    Phb,
    /// Between sockets.
    Sys,
    /// Through a network.
    Net,
    /// There is none.
    Dis,
}

/// All kinds, in their order, with their names.
const KINDS: [(PathKind, &str); 12] = [
    (PathKind::Loc, "LOC"),
    (PathKind::Nvl, "NVL"),
    (PathKind::Nvb, "NVB"),
    (PathKind::C2c, "C2C"),
    (PathKind::Pix, "PIX"),
    (PathKind::Pxb, "PXB"),
    (PathKind::P2c, "P2C"),
    (PathKind::Pxn, "PXN"),
    (PathKind::Phb, "PHB"),
    (PathKind::Sys, "SYS"),
    (PathKind::Net, "NET"),
    (PathKind::Dis, "DIS"),
];

impl PathKind {
    /// The kind of this name; `XGMI`, as RCCL writes it, is [`Nvl`](PathKind::Nvl).
    pub fn named(name: &str) -> Option<PathKind> {
        let name = if name == "XGMI" { "NVL" } else { name };
        KINDS.iter().find(|(_, known)| *known == name).map(|(kind, _)| *kind)
    }
}

impl fmt::Display for PathKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(KINDS[*self as usize].1)
    }
}

/// A path.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Path {
    /// Its kind.
    pub kind: PathKind,
    /// Bytes a second of its narrowest link in one direction; `None` where that of a link is not known, and where there is no
    /// path.
    pub bytes_s: Option<u64>,
    /// The links, from the first to the last.
    pub links: Vec<LinkId>,
}

/// What is known of the way from the source to a node.
#[derive(Clone, Copy)]
struct Reached {
    kind: PathKind,
    /// `None` is less than any number.
    bytes_s: Option<u64>,
    hops: u32,
    last: Option<LinkId>,
}

/// Paths of a machine.
#[derive(Debug)]
pub struct Paths<'a> {
    hardware: &'a Hardware,
    /// Per link its bytes a second.
    bytes_s: Vec<Option<u64>>,
    /// Per node whether it is a GPU that a plan may use.
    gpus: Vec<NodeId>,
}

impl<'a> Paths<'a> {
    /// Paths of `hardware`, whose links carry what `rates` say.
    pub fn new(hardware: &'a Hardware, rates: Rates) -> Self {
        let links = 0..hardware.links().len() as u32;
        let bytes_s = links.map(|link| hardware.bytes_s(LinkId(link), rates)).collect();
        Paths { hardware, bytes_s, gpus: hardware.gpus() }
    }

    /// The path between two nodes. From a GPU to a port it may lead through another GPU ([`PathKind::Pxn`]).
    ///
    /// # Panics
    ///
    /// When there is no such node.
    pub fn between(&self, from: NodeId, to: NodeId) -> Path {
        let reached = self.reach(from);
        self.finish(&reached, from, to)
    }

    /// The paths from a node to each of some others, in their order.
    ///
    /// # Panics
    ///
    /// When there is no such node.
    pub fn from(&self, source: NodeId, targets: &[NodeId]) -> Vec<Path> {
        let reached = self.reach(source);
        targets.iter().map(|target| self.finish(&reached, source, *target)).collect()
    }

    /// The paths inside a host from a node to each of some others, in their order, and never through another GPU to a port.
    pub(super) fn inside(&self, source: NodeId, targets: &[NodeId]) -> Vec<Path> {
        let reached = self.reach_over(source, false);
        targets.iter().map(|target| self.path(&reached, source, *target)).collect()
    }

    fn finish(&self, reached: &[Reached], from: NodeId, to: NodeId) -> Path {
        let direct = self.path(reached, from, to);
        let is_gpu = |id: NodeId| matches!(self.hardware.node(id).kind, NodeKind::Gpu(_));
        let is_port =
            |id: NodeId| matches!(self.hardware.node(id).kind, NodeKind::Port(_) | NodeKind::Nic(_));
        if is_gpu(from) && is_port(to) && direct.kind != PathKind::Dis {
            return self.to_port(direct, from, to);
        }
        direct
    }

    /// The best known way from `source` to each node: rounds of a search by links, as NCCL's, whose rounds are over when no
    /// way got better.
    fn reach(&self, source: NodeId) -> Vec<Reached> {
        self.reach_over(source, true)
    }

    /// As [`reach`](Paths::reach), over networks or not.
    fn reach_over(&self, source: NodeId, networks: bool) -> Vec<Reached> {
        let unknown = Reached { kind: PathKind::Dis, bytes_s: None, hops: 0, last: None };
        let mut reached = vec![unknown; self.hardware.nodes().len()];
        reached[source.index()] =
            Reached { kind: PathKind::Loc, bytes_s: Some(super::LOCAL_BYTES_S), hops: 0, last: None };
        let mut changed = vec![source];
        let mut is_next = vec![false; reached.len()];
        while !changed.is_empty() {
            let mut next: Vec<NodeId> = Vec::new();
            is_next.fill(false);
            for &at in &changed {
                for &id in self.hardware.touching(at) {
                    let to = self.hardware.link(id).other(at);
                    if !networks && self.hardware.link(id).kind == LinkKind::Network {
                        continue;
                    }
                    let Some(way) = self.step(&reached, source, at, id) else { continue };
                    let known = reached[to.index()];
                    let better = (way.kind, std::cmp::Reverse(way.bytes_s), way.hops)
                        < (known.kind, std::cmp::Reverse(known.bytes_s), known.hops);
                    if to != source && better {
                        reached[to.index()] = way;
                        if !std::mem::replace(&mut is_next[to.index()], true) {
                            next.push(to);
                        }
                    }
                }
            }
            changed = next;
        }
        reached
    }

    /// The way over one more link, where it may be used.
    fn step(&self, reached: &[Reached], source: NodeId, at: NodeId, id: LinkId) -> Option<Reached> {
        use NodeKind::{Bridge, Gpu, Host, Nic, Numa, NvSwitch, Port, Root};
        let link = self.hardware.link(id);
        let to = link.other(at);
        let (before, to_kind, at_kind) =
            (reached[at.index()], &self.hardware.node(to).kind, &self.hardware.node(at).kind);
        // A host is no wire, and ports end a way but where a network begins.
        if matches!(to_kind, Host(_)) || matches!(at_kind, Host(_)) && at != source {
            return None;
        }
        // A GPU forwards for one other over NVLink, and for none else.
        let source_is_gpu = matches!(self.hardware.node(source).kind, Gpu(_));
        let through_gpu = at != source && matches!(at_kind, Gpu(_));
        let forwards =
            source_is_gpu && link.kind.joins_gpus() && matches!(to_kind, Gpu(_)) && before.hops == 1;
        if through_gpu && !(forwards && before.kind == PathKind::Nvl) {
            return None;
        }
        // An NVSwitch forwards between NVLinks; its own PCIe link is for management.
        let is_nvlink = matches!(link.kind, LinkKind::NvLink { .. });
        if at != source && matches!(at_kind, NvSwitch(_)) && !(is_nvlink && before.kind <= PathKind::Nvl) {
            return None;
        }
        let is_root = |kind: &NodeKind| matches!(kind, Numa(_) | Root(_));
        let kind = match link.kind {
            _ if through_gpu => PathKind::Nvb,
            LinkKind::NvLink { .. } | LinkKind::Xgmi { .. } => PathKind::Nvl,
            LinkKind::C2c { .. } => PathKind::C2c,
            LinkKind::Socket { .. } => PathKind::Sys,
            LinkKind::Network => PathKind::Net,
            LinkKind::Pcie { .. } if is_root(at_kind) || is_root(to_kind) => PathKind::Phb,
            LinkKind::Pcie { .. } if matches!((at_kind, to_kind), (Bridge(_), Bridge(_))) => PathKind::Pxb,
            LinkKind::Pcie { .. } => PathKind::Pix,
            // An adapter without a PCI device is attached to a processor.
            LinkKind::Local if matches!((at_kind, to_kind), (Numa(_), Nic(_)) | (Nic(_), Numa(_))) => {
                PathKind::Phb
            }
            LinkKind::Local => PathKind::Loc,
        };
        if matches!(at_kind, Port(_)) && at != source && kind != PathKind::Net && before.kind != PathKind::Net
        {
            return None;
        }
        let bytes_s = match (before.bytes_s, self.bytes_s[id.index()]) {
            (Some(before), Some(link)) => Some(before.min(link)),
            _ => None,
        };
        Some(Reached { kind: before.kind.max(kind), bytes_s, hops: before.hops + 1, last: Some(id) })
    }

    fn path(&self, reached: &[Reached], from: NodeId, to: NodeId) -> Path {
        let end = reached[to.index()];
        let (mut links, mut at) = (Vec::new(), to);
        // What follows a way back meets each node once.
        while let (Some(last), true) = (reached[at.index()].last, at != from && links.len() < reached.len()) {
            links.push(last);
            at = self.hardware.link(last).other(at);
        }
        links.reverse();
        let bytes_s = if end.kind == PathKind::Dis { None } else { end.bytes_s };
        Path { kind: end.kind, bytes_s, links }
    }

    /// The way of a GPU to a port: by C2C, or through a GPU that is nearer to the port and a peer over NVLink.
    fn to_port(&self, direct: Path, gpu: NodeId, port: NodeId) -> Path {
        let of_port = self.reach_over(port, false);
        let host = self.hardware.node(gpu).host;
        let nearest = self
            .gpus
            .iter()
            .map(|id| of_port[id.index()])
            .map(|way| (way.kind, std::cmp::Reverse(way.bytes_s)));
        let nearest = nearest.min();
        let own = of_port[gpu.index()];
        let is_nearest = Some((own.kind, std::cmp::Reverse(own.bytes_s))) == nearest;
        if is_nearest {
            let numa = self.hardware.numa_of(gpu);
            let c2c = numa.map(|numa| self.between(gpu, numa)).filter(|path| path.kind == PathKind::C2c);
            let meets = numa.is_some() && numa == self.hardware.numa_of(port);
            let better = direct.kind == PathKind::Phb && c2c.is_some() && meets;
            return Path { kind: if better { PathKind::P2c } else { direct.kind }, ..direct };
        }
        let relay = self.gpus.iter().find(|id| {
            let way = of_port[id.index()];
            Some((way.kind, std::cmp::Reverse(way.bytes_s))) == nearest
                && way.kind <= PathKind::P2c
                && self.hardware.node(**id).host == host
        });
        let Some(&relay) = relay.filter(|relay| **relay != gpu) else { return direct };
        let (first, second) =
            (self.between(gpu, relay), self.path(&self.reach_over(relay, false), relay, port));
        let worth = second.bytes_s > direct.bytes_s || direct.kind > PathKind::Pxn;
        if first.kind != PathKind::Nvl || !worth {
            return direct;
        }
        let bytes_s = first.bytes_s.zip(second.bytes_s).map(|(first, second)| first.min(second));
        Path { kind: PathKind::Pxn, bytes_s, links: [first.links, second.links].concat() }
    }
}
