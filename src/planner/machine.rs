//! The machine that ranks run on, as they describe it to each other.
//!
//! Invariant: made from the table that all ranks have, so it is the same on all of them. Absent: probing, and
//! distances that are proved; prices need no proof.

use std::collections::BTreeSet;

use consort_algorithms::topology::{self, Topology};

use crate::control::group::Group;
use crate::options::TransportChoice;
use crate::topology::{Place, per_domain};

/// The machine that a communicator's ranks run on.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Machine {
    pub(crate) ranks: u32,
    pub(crate) hosts: u32,
    /// Ranks of a host, where ranks are grouped host by host and equally; 1 otherwise.
    pub(crate) per_box: u32,
    /// On one host, the ranks that share a last-level cache or a memory node, where ranks are grouped by them, in order and
    /// equally; 1 otherwise.
    pub(crate) per_domain: u32,
    /// Cores of a host; of the one with the fewest.
    pub(crate) cores: u32,
}

impl Machine {
    /// What the ranks of a communicator say of their hosts.
    pub(crate) fn of(group: &Group) -> Self {
        let table = &group.member.table;
        let members = || group.members.iter().map(|rank| &table[*rank as usize]);
        let hosts: BTreeSet<[u8; 16]> = members().map(|member| member.boot).collect();
        let ranks = group.size();
        let per_box = ranks / hosts.len().max(1) as u32;
        let boots: Vec<[u8; 16]> = members().map(|member| member.boot).collect();
        let mut boxes = boots.chunks(per_box.max(1) as usize);
        let even =
            boxes.len() == hosts.len() && boxes.all(|ranks| ranks.iter().all(|boot| *boot == ranks[0]));
        let places: Vec<Place> = members().map(|member| member.place).collect();
        Machine {
            per_domain: if hosts.len() == 1 { per_domain(&places) } else { 1 },
            ranks,
            hosts: hosts.len() as u32,
            per_box: if even { per_box } else { 1 },
            cores: members().map(|member| member.cores).min().unwrap_or(1).max(1),
        }
    }

    /// The machine as a graph.
    pub(super) fn topology(&self, transport: TransportChoice) -> Topology {
        let &Machine { ranks, hosts, per_box, per_domain, cores } = self;
        match transport {
            TransportChoice::Tcp => topology::tcp(ranks, 1),
            _ if hosts <= 1 && per_domain > 1 => {
                topology::host_of_domains(ranks / per_domain, per_domain, cores)
            }
            _ if hosts <= 1 => topology::host_of_cores(ranks, cores),
            _ if per_box > 1 => topology::tcp(hosts, per_box),
            _ => topology::tcp(ranks, 1),
        }
    }
}

/// Ranks of a box (a host of several, or a domain of one) where they are grouped box by box, in order and equally; 1 otherwise.
pub(super) fn even_boxes(topology: &Topology) -> u32 {
    let boxes = topology.boxes();
    let first = boxes.first().map_or(1, Vec::len).max(1);
    let in_order = boxes.iter().flatten().zip(0..).all(|(rank, expected)| rank.0 == expected);
    let even = boxes.iter().all(|ranks| ranks.len() == first) && in_order;
    if even && boxes.len() > 1 { first as u32 } else { 1 }
}
