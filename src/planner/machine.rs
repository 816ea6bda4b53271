//! The machine that ranks run on, as they describe it to each other.
//!
//! Invariant: made from the table that all ranks have, so it is the same on all of them. Absent: probing, and
//! distances that are proved; prices need no proof.

pub(crate) mod graph;
mod lost;
mod ports;

use std::collections::HashMap;

use consort_algorithms::topology::{self, Inside, PortOf, Topology};

use consort_control::bootstrap::Member;
use consort_control::membership::group::LostPaths;
use consort_settings::options::TransportChoice;
use consort_topology::{Place, per_domain};
use graph::Graphs;
pub(super) use lost::without_lost;

/// What carries messages between hosts, or between all ranks.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Between {
    /// Memory that both ranks have mapped, or links that nothing is known of.
    Memory,
    /// The kernel's sockets, or what costs as much.
    Sockets,
    /// Adapters that write to the other rank's memory: no call of the system, and no copy in the kernel.
    Rdma,
}

impl Between {
    /// Whether it is messages, and each costs its ends time.
    pub(crate) fn is_messages(self) -> bool {
        self != Between::Memory
    }
}

/// The machine that a communicator's ranks run on.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Machine {
    pub(crate) ranks: u32,
    pub(crate) hosts: u32,
    /// Ranks of a host, where ranks are grouped host by host and equally; 1 otherwise.
    pub(crate) per_box: u32,
    /// On one host, the ranks that share a last-level cache or a memory node, where ranks are grouped by them, in order and
    /// equally; 1 otherwise.
    pub(crate) per_domain: u32,
    /// Cores of a host; of the one with the fewest.
    pub(crate) cores: u32,
    /// What carries messages between hosts, or between all ranks.
    pub(crate) between: Between,
    /// Ranks that take turns on a core, where that is most: hosts may be parts of one machine.
    pub(crate) turns: u32,
    /// Megabits a second of a host's way to others, of the slowest; 0 where no host says.
    pub(crate) wire_mbits: u32,
    /// The port of RDMA of each rank; empty where none is known.
    pub(crate) ports: Vec<PortOf>,
    /// Milliseconds of each host's round trip to the place where the ranks met, of the nearest of its ranks; empty where all are near.
    pub(crate) far_ms: Vec<u32>,
    /// The host of each rank, counted in the order in which they come, where `per_box` does not say it; empty otherwise.
    pub(crate) host_of: Vec<u32>,
    /// What is in the hosts, where the ranks know.
    pub(crate) graphs: Graphs,
    /// The hosts that have lost some of their paths to others.
    pub(crate) lost: Vec<LostPaths>,
}

impl Machine {
    /// What the ranks of a communicator, in their order, say of their hosts.
    pub fn of<'a>(members: impl Iterator<Item = &'a Member> + Clone) -> Self {
        let members = || members.clone();
        let (hosts, host_of) = numbered(members().map(|member| member.host_key));
        let ranks = host_of.len() as u32;
        let per_box = ranks / hosts;
        let even =
            per_box * hosts == ranks && host_of.iter().zip(0..).all(|(host, rank)| *host == rank / per_box);
        let (machines, machine_of) = numbered(members().map(|member| member.machine));
        let turns = |machine: u32| {
            let here =
                || members().zip(&machine_of).filter(|(_, of)| **of == machine).map(|(member, _)| member);
            let cores = here().map(|member| member.cores).min().unwrap_or(1).max(1);
            (here().count() as u32).div_ceil(cores)
        };
        let places: Vec<Place> = members().map(|member| member.place).collect();
        Machine {
            graphs: Graphs::of(members(), &host_of),
            per_domain: if hosts == 1 { per_domain(&places) } else { 1 },
            ranks,
            hosts,
            per_box: if even { per_box } else { 1 },
            cores: members().map(|member| member.cores).min().unwrap_or(1).max(1),
            between: if hosts > 1 { Between::Sockets } else { Between::Memory },
            turns: (0..machines).map(turns).max().unwrap_or(1),
            wire_mbits: members()
                .map(|member| member.wire_mbits)
                .filter(|mbits| *mbits > 0)
                .min()
                .unwrap_or(0),
            ports: Vec::new(),
            far_ms: far_ms(members(), &host_of),
            host_of: if even { Vec::new() } else { host_of },
            lost: Vec::new(),
        }
    }

    /// The same with the ports of these ranks of the table, which are its own in their order.
    pub(crate) fn at_ports(self, table: &[Member], ranks: &[u32]) -> Self {
        Machine { ports: ports::taken(table, ranks), ..self }
    }

    /// The host of each rank, counted in the order in which they come.
    pub(crate) fn hosts_of<'a>(members: impl Iterator<Item = &'a Member>) -> Vec<u32> {
        numbered(members.map(|member| member.host_key)).1
    }

    /// The same where these hosts have lost some of their paths.
    pub(crate) fn without(&self, lost: &[LostPaths]) -> Self {
        Machine { lost: lost.to_vec(), ..self.clone() }
    }

    /// A machine of one host, whose ranks take turns on its cores.
    pub(crate) fn of_one_host(ranks: u32, cores: u32) -> Self {
        let turns = ranks.div_ceil(cores.max(1));
        Machine {
            ranks,
            hosts: 1,
            per_box: ranks,
            per_domain: 1,
            cores,
            between: Between::Memory,
            turns,
            wire_mbits: 0,
            ports: Vec::new(),
            far_ms: Vec::new(),
            host_of: Vec::new(),
            graphs: Graphs::default(),
            lost: Vec::new(),
        }
    }

    /// The machine as a graph.
    pub(super) fn topology(&self, transport: TransportChoice) -> Topology {
        let &Machine { ranks, hosts, per_box, per_domain, cores, turns, .. } = self;
        // Some 6 % of the wire are headers.
        let adapter = (self.wire_mbits > 0).then(|| u64::from(self.wire_mbits) * 117_500);
        // Half of the way there and back.
        let far_ns: Vec<u64> = self.far_ms.iter().map(|far| u64::from(*far) * 500_000).collect();
        let by_host = |inside: Inside| {
            let even = |rank: u32| rank / per_box.max(1);
            let host_of: Vec<u32> =
                if self.host_of.is_empty() { (0..ranks).map(even).collect() } else { self.host_of.clone() };
            topology::tcp_hosts(&host_of, inside, adapter, &far_ns, turns)
        };
        match transport {
            TransportChoice::Verbs => self.rdma_topology(&far_ns),
            // The kernel copies between the ranks of one host; no adapter is in the way.
            by_messages if by_messages.is_by_messages() && hosts <= 1 => {
                topology::tcp_hosts(&(0..ranks).collect::<Vec<u32>>(), Inside::Memory, None, &[], turns)
            }
            by_messages if by_messages.is_by_messages() => by_host(Inside::Sockets),
            _ if hosts <= 1 && per_domain > 1 => {
                topology::host_of_domains(ranks / per_domain, per_domain, cores)
            }
            _ if hosts <= 1 => topology::host_of_cores(ranks, cores),
            _ => by_host(Inside::Memory),
        }
    }
}

impl Machine {
    /// The machine as a graph where adapters carry everything.
    fn rdma_topology(&self, far_ns: &[u64]) -> Topology {
        let even = |rank: u32| rank / self.per_box.max(1);
        let host_of: Vec<u32> = match (self.hosts, &self.host_of[..]) {
            // Nothing that ranks of one host share is faster than their ports.
            (..=1, _) => (0..self.ranks).collect(),
            (_, []) => (0..self.ranks).map(even).collect(),
            (_, known) => known.to_vec(),
        };
        let unknown = || (0..self.ranks).map(|number| PortOf { number, bytes_s: None }).collect();
        let ports = if self.ports.is_empty() { unknown() } else { self.ports.clone() };
        topology::rdma_hosts(&host_of, &ports, far_ns, self.turns)
    }
}

/// Milliseconds of each host's round trip to the meeting point, of the nearest of its ranks; empty where all are near, or one host.
fn far_ms<'a>(members: impl Iterator<Item = &'a Member>, host_of: &[u32]) -> Vec<u32> {
    let hosts = host_of.iter().max().map_or(0, |last| *last as usize + 1);
    let mut far = vec![u32::MAX; hosts];
    for (member, host) in members.zip(host_of) {
        let of_host = &mut far[*host as usize];
        *of_host = member.round_trip.milliseconds().min(*of_host);
    }
    if hosts > 1 && far.iter().any(|far| *far > 0) { far } else { Vec::new() }
}

/// The box of each rank, where boxes are not even and in the order of ranks; empty otherwise.
pub(super) fn boxes_of(topology: &Topology) -> Vec<u32> {
    if even_boxes(topology) > 1 || topology.boxes().len() <= 1 {
        return Vec::new();
    }
    let mut boxes = vec![0; topology.ranks() as usize];
    for (ranks, number) in topology.boxes().iter().zip(0..) {
        ranks.iter().for_each(|rank| boxes[rank.index()] = number);
    }
    boxes
}

/// The number of each of `keys`, counted in the order in which they first come, and how many there are.
fn numbered(keys: impl Iterator<Item = [u8; 16]>) -> (u32, Vec<u32>) {
    let mut seen: HashMap<[u8; 16], u32> = HashMap::new();
    let numbers = keys.map(|key| {
        let next = seen.len() as u32;
        *seen.entry(key).or_insert(next)
    });
    let numbers = numbers.collect();
    (seen.len().max(1) as u32, numbers)
}

/// Ranks of a box (a host of several, or a domain of one) where they are grouped box by box, in order and equally; 1 otherwise.
pub(super) fn even_boxes(topology: &Topology) -> u32 {
    let boxes = topology.boxes();
    let first = boxes.first().map_or(1, Vec::len).max(1);
    let in_order = boxes.iter().flatten().zip(0..).all(|(rank, expected)| rank.0 == expected);
    let even = boxes.iter().all(|ranks| ranks.len() == first) && in_order;
    if even && boxes.len() > 1 { first as u32 } else { 1 }
}
