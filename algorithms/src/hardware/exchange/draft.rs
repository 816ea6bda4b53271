//! A machine while a file is read: nodes with the lines on which they stand, and names at the end.
//!
//! Invariant: what comes out has passed [`check`](Hardware::check), and names follow from the kinds and order of nodes.

use std::collections::{BTreeMap, BTreeSet};

use super::error::{Note, Place, ReadError};
use crate::hardware::check::room;
use crate::hardware::{Hardware, LinkKind, NodeId, NodeKind};

/// More notes are of no use to a reader of them.
const NOTES_MAX: usize = 1000;
/// More NUMA domains than a host has, and more hosts than a file of NCCL has.
pub(super) const NUMAS_MAX: usize = 256;
const HOSTS_MAX: usize = 1024;

#[derive(Debug)]
pub(super) struct Draft<'a> {
    pub(super) hardware: Hardware,
    pub(super) place: &'a Place,
    lines: Vec<u32>,
    notes: BTreeSet<Note>,
}

impl<'a> Draft<'a> {
    pub(super) fn new(place: &'a Place) -> Draft<'a> {
        Draft { hardware: Hardware::default(), place, lines: Vec::new(), notes: BTreeSet::new() }
    }

    /// Adds a node below another.
    pub(super) fn add(&mut self, line: u32, above: Option<(NodeId, LinkKind)>, kind: NodeKind) -> NodeId {
        let host = above.map(|(above, _)| {
            let node = self.hardware.node(above);
            if matches!(node.kind, NodeKind::Host(_)) { Some(above) } else { node.host }
        });
        let id = self.hardware.add_node("", host.flatten(), kind);
        self.lines.push(line);
        if let Some((above, link)) = above {
            self.hardware.connect(above, id, link);
        }
        id
    }

    pub(super) fn line(&self, id: NodeId) -> u32 {
        self.lines[id.index()]
    }

    pub(super) fn note(&mut self, line: u32, text: impl Into<String>) {
        if self.notes.len() < NOTES_MAX {
            self.notes.insert(Note { line, text: text.into() });
        }
    }

    pub(super) fn error(&self, line: u32, reason: impl Into<String>, remedy: &str) -> ReadError {
        self.place.error(line, reason, remedy)
    }

    /// Whether there is room for all nodes so far, and for `links` links in all.
    pub(super) fn room(&self, links: usize) -> Result<(), ReadError> {
        let line = self.lines.last().copied().unwrap_or(1);
        let nodes = self.hardware.nodes().len();
        room(nodes, links).map_err(|fault| self.place.error(line, fault.reason, &fault.remedy))
    }

    /// Every two NUMA domains of a host joined, where they are not yet (NCCL's `ncclTopoConnectCpus`).
    pub(super) fn join_sockets(&mut self) -> Result<(), ReadError> {
        let mut of_hosts: BTreeMap<Option<NodeId>, Vec<NodeId>> = BTreeMap::new();
        for (id, node) in self.hardware.iter() {
            if matches!(node.kind, NodeKind::Numa(_)) {
                of_hosts.entry(node.host).or_default().push(id);
            }
        }
        if let Some(many) = of_hosts.values().find(|numas| numas.len() > NUMAS_MAX) {
            let reason = format!("{} NUMA domains on one host", many.len());
            return Err(self.error(self.line(many[NUMAS_MAX]), reason, "no host has more than 256"));
        }
        if of_hosts.len() > HOSTS_MAX {
            let line = of_hosts.values().nth(HOSTS_MAX).map_or(1, |numas| self.line(numas[0]));
            return Err(self.error(
                line,
                format!("{} hosts in one file", of_hosts.len()),
                "give at most 1024",
            ));
        }
        let sockets =
            self.hardware.links().iter().filter(|link| matches!(link.kind, LinkKind::Socket { .. }));
        let joined: BTreeSet<(NodeId, NodeId)> = sockets.map(|link| (link.from, link.to)).collect();
        // 1024 hosts of 256 domains have more links than memory: their number is bounded before the first is made.
        let pairs: usize = of_hosts.values().map(|numas| numas.len() * (numas.len() - 1) / 2).sum();
        self.room(self.hardware.links().len() + pairs.saturating_sub(joined.len()))?;
        for numas in of_hosts.values() {
            for (at, &one) in numas.iter().enumerate() {
                for &other in numas[at + 1..].iter().filter(|other| !joined.contains(&(one, **other))) {
                    self.hardware.connect(one, other, LinkKind::Socket { distance: None });
                }
            }
        }
        Ok(())
    }

    /// Names and checks.
    pub(super) fn finish(mut self) -> Result<(Hardware, Vec<Note>), ReadError> {
        self.hardware.name_nodes();
        if let Err(fault) = self.hardware.check() {
            let line = fault.nodes.last().map_or(1, |id| self.lines[id.index()]);
            return Err(self.place.error(line, fault.reason, &fault.remedy));
        }
        Ok((self.hardware, self.notes.into_iter().collect()))
    }
}

impl Hardware {
    /// Gives every node its name: the word of its kind and a number, behind the host's where there are several (`h1.gpu3`).
    /// GPUs and NUMA domains have their own numbers where those are distinct; the others are counted in their order.
    pub fn name_nodes(&mut self) {
        let hosts = self.hosts();
        let place =
            |host: Option<NodeId>| host.and_then(|host| hosts.iter().position(|known| *known == host));
        let mut counters: BTreeMap<(Option<usize>, &'static str), u32> = BTreeMap::new();
        let mut taken: BTreeSet<String> = BTreeSet::new();
        let mut names: Vec<Option<String>> = vec![None; self.nodes().len()];
        let prefix = |host: Option<usize>| match host {
            Some(host) if hosts.len() > 1 => format!("h{host}."),
            _ => String::new(),
        };
        for (id, node) in self.iter() {
            let number = match &node.kind {
                NodeKind::Gpu(gpu) => gpu.index,
                NodeKind::Numa(numa) => numa.number,
                _ => None,
            };
            if let Some(number) = number {
                let name = format!("{}{}{number}", prefix(place(node.host)), node.kind.word());
                names[id.index()] = taken.insert(name.clone()).then_some(name);
            }
        }
        for (id, node) in self.iter() {
            if names[id.index()].is_some() {
                continue;
            }
            let host = place(node.host);
            let counter = counters.entry((host, node.kind.word())).or_default();
            names[id.index()] = Some(loop {
                let name = format!("{}{}{counter}", prefix(host), node.kind.word());
                *counter += 1;
                if taken.insert(name.clone()) {
                    break name;
                }
            });
        }
        for (index, name) in names.into_iter().enumerate() {
            self.node_mut(NodeId(index as u32)).name = name.unwrap_or_default();
        }
    }
}
