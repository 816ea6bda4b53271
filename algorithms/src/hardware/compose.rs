//! Several hosts with a network between them.
//!
//! Invariant: hosts stand in their order, with all that they have; only names change. Hosts may differ. Absent: networks
//! of several stages (see the generators of networks).

use std::error::Error;
use std::fmt;

use super::check::room;
use super::{Hardware, Link, LinkKind, NodeId, NodeKind};

/// A network between hosts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Network {
    /// One switch for each number of a port, and a spine above them that is as fast as all of them together: the first port of each host is
    /// on the first switch.
    Rail,
    /// One switch for all ports.
    Flat,
}

impl Network {
    /// The network of this name: `rail` or `flat`.
    pub fn named(name: &str) -> Option<Network> {
        match name {
            "rail" => Some(Network::Rail),
            "flat" => Some(Network::Flat),
            _ => None,
        }
    }
}

/// Hosts that no network joins.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NoNetwork {
    /// Why, and what to do.
    pub reason: String,
}

impl fmt::Display for NoNetwork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)
    }
}

impl Error for NoNetwork {}

impl Hardware {
    /// All `boxes` in their order, joined by `network`; a node of box 2 is named `h2.gpu0`. A box may be several hosts.
    ///
    /// # Errors
    ///
    /// [`NoNetwork`] where there is no box, one of several has no port that a plan may use, or all have more nodes or links
    /// than a machine may have.
    pub fn compose(boxes: &[&Hardware], network: Network) -> Result<Hardware, NoNetwork> {
        let fault = |reason: String| Err(NoNetwork { reason });
        if boxes.is_empty() {
            return fault("there is no box; give one at least".into());
        }
        let fits = |nodes: usize, links: usize| {
            room(nodes, links).map_err(|fault| NoNetwork { reason: fault.to_string() })
        };
        // The sizes are compared before anything is copied.
        fits(
            boxes.iter().map(|each| each.nodes().len()).sum(),
            boxes.iter().map(|each| each.links().len()).sum(),
        )?;
        let mut whole = Hardware::new(format!("{}:{}", boxes[0].name, boxes.len()));
        let mut ends: Vec<Vec<NodeId>> = Vec::new();
        for (number, each) in boxes.iter().enumerate() {
            let base = whole.nodes().len() as u32;
            let moved = |id: NodeId| NodeId(base + id.0);
            for node in each.nodes() {
                let mut kind = node.kind.clone();
                if let NodeKind::Host(host) = &mut kind {
                    // Equal boxes are different hosts.
                    host.hash = host.hash.take().map(|hash| format!("{hash}-{number}"));
                }
                if let NodeKind::Gpu(gpu) = &mut kind {
                    gpu.rank = None;
                }
                let id = whole.add_node(format!("h{number}.{}", node.name), node.host.map(moved), kind);
                whole.node_mut(id).extra = node.extra.clone();
            }
            for link in each.links() {
                whole.add_link(Link { from: moved(link.from), to: moved(link.to), ..*link });
            }
            ends.push(each.network_ends().into_iter().map(moved).collect());
        }
        if boxes.len() == 1 {
            return Ok(whole);
        }
        if let Some(number) = ends.iter().position(Vec::is_empty) {
            return fault(format!(
                "box {number} has no port that a plan may use; give a source with its NICs"
            ));
        }
        whole.join_ends(&ends, network);
        fits(whole.nodes().len(), whole.links().len())?;
        Ok(whole)
    }

    fn join_ends(&mut self, ends: &[Vec<NodeId>], network: Network) {
        let switch = NodeKind::Switch { aggregates: false };
        match network {
            Network::Flat => {
                let switch = self.add_node("network", None, switch);
                for &end in ends.iter().flatten() {
                    self.plug(end, switch);
                }
            }
            Network::Rail => {
                let rails = ends.iter().map(Vec::len).max().unwrap_or_default();
                let spine = self.add_node("spine", None, switch.clone());
                for rail in 0..rails {
                    let node = self.add_node(format!("rail{rail}"), None, switch.clone());
                    let here: Vec<NodeId> = ends.iter().filter_map(|ends| ends.get(rail).copied()).collect();
                    // Where a port's speed is not known, that of the way up is not either.
                    let up = here.iter().map(|end| self.port_bytes_s(*end)).sum::<Option<u64>>();
                    for end in here {
                        self.plug(end, node);
                    }
                    let kind = LinkKind::Network;
                    self.add_link(Link { from: spine, to: node, kind, bytes_s: up, latency_ns: None });
                }
            }
        }
    }

    fn port_bytes_s(&self, end: NodeId) -> Option<u64> {
        match &self.node(end).kind {
            NodeKind::Port(port) => port.speed_mbit_s.map(|speed| speed.saturating_mul(125_000)),
            _ => None,
        }
    }

    fn plug(&mut self, end: NodeId, switch: NodeId) {
        let latency_ns = match &self.node(end).kind {
            NodeKind::Port(port) => port.latency_ns,
            _ => None,
        };
        let bytes_s = self.port_bytes_s(end);
        self.add_link(Link { from: end, to: switch, kind: LinkKind::Network, bytes_s, latency_ns });
    }
}
