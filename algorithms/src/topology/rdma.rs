//! Hosts between which RDMA carries everything, also between ranks of one host.
//!
//! Invariant: what ranks of one port send together is no faster than the port, in either direction, wherever it goes: to another port by
//! the network, or back through the adapter to a rank of the same port. Absent: memory that the ranks of a host share.

use std::collections::BTreeMap;

use super::profiles::{ADAPTER_BYTES_S, HOST_COSTS, SWITCH, in_turns, name_of_hosts};
use super::{Costs, Link, NodeId, NodeKind, Topology};

/// The port by which a rank sends and receives.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PortOf {
    /// Its number in the job; ranks with the same one share it.
    pub number: u32,
    /// Bytes a second in each direction, without what headers take; none where it is unknown.
    pub bytes_s: Option<u64>,
}

/// Bytes a second of a port of 400 Gb/s, less 3 % for headers.
const NDR_BYTES_S: u64 = 48_500_000_000;
/// From a core to its adapter, and from there to memory.
const BUS_NS: u64 = 300;
/// From a port to the middle of the network.
const WIRE_NS: u64 = 250;

/// A rank's own time for a message: a copy of some bytes, a work request and its doorbell at one end; a completion and a message that is
/// read at the other. No call of the system is made.
///
/// Source: `docs/measurements/benches.md`, posts and received messages over an adapter that does nothing, and some 100 ns for a store
/// over PCI Express.
const COSTS: Costs = Costs { send_ns: 300, receive_ns: 200, ..HOST_COSTS };

/// Hosts of as many ranks, each with a port of 400 Gb/s.
///
/// # Panics
///
/// When there is no rank.
pub fn rdma(hosts: u32, ranks_per_host: u32) -> Topology {
    let ranks = 0..hosts * ranks_per_host;
    let host_of: Vec<u32> = ranks.clone().map(|rank| rank / ranks_per_host).collect();
    let ports: Vec<PortOf> = ranks.map(|number| PortOf { number, bytes_s: Some(NDR_BYTES_S) }).collect();
    rdma_hosts(&host_of, &ports, &[], 1)
}

/// Ranks of these hosts (`host_of`, counted from 0 without gaps) at these ports; `turns` ranks take turns on each core. Between a host
/// and the middle of the network a message takes `far_ns` nanoseconds longer; where it is empty, none. Of a port whose speed is unknown 25 Gb/s are assumed.
///
/// Source: a message of 8 bytes takes 1.0 to 1.3 µs from memory to memory through one switch by `ib_write_lat` as makers of
/// adapters state it for 100 to 400 Gb/s; the division into bus, wire and ends is a guess.
///
/// # Panics
///
/// When there is no rank, or another number of ports than of ranks.
pub fn rdma_hosts(host_of: &[u32], ports: &[PortOf], far_ns: &[u64], turns: u32) -> Topology {
    assert_eq!(host_of.len(), ports.len(), "a port for each rank");
    let name = name_of_hosts("rdma", host_of);
    let mut topology = Topology::new(name.clone(), COSTS);
    for (rank, host) in host_of.iter().enumerate() {
        let kind = NodeKind::Rank { in_box: *host, inject_bytes_s: None, eject_bytes_s: None };
        topology.add_node(format!("r{rank}"), kind);
    }
    let network = topology.add_node("network", SWITCH);
    let mut ranks_at: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for (port, rank) in ports.iter().zip(0..) {
        ranks_at.entry(port.number).or_default().push(rank);
    }
    for (number, ranks) in ranks_at {
        let first = ranks[0] as usize;
        let bytes_s = ports[first].bytes_s.unwrap_or(ADAPTER_BYTES_S).max(1);
        let far = far_ns.get(host_of[first] as usize).copied().unwrap_or(0);
        let port = topology.add_node(format!("port{number}"), NodeKind::Port);
        match ranks[..] {
            [alone] => topology.connect(NodeId(alone), port, BUS_NS, bytes_s),
            // All of them pass the port, also those that send to each other.
            _ => shared(&mut topology, (number, port), &ranks, bytes_s),
        }
        topology.connect(port, network, WIRE_NS + far, bytes_s);
    }
    if turns <= 1 { topology } else { in_turns(topology, turns, name) }
}

/// Joins ranks to a port that all of them send by, and receive by.
fn shared(topology: &mut Topology, (number, port): (u32, NodeId), ranks: &[u32], bandwidth_bytes_s: u64) {
    let [out, into] = ["out", "in"].map(|way| topology.add_node(format!("{way}{number}"), NodeKind::Port));
    let mut link = |from, to, latency_ns| {
        topology.add_link(Link { from, to, latency_ns, bandwidth_bytes_s });
    };
    for rank in ranks {
        link(NodeId(*rank), out, BUS_NS);
        link(into, NodeId(*rank), BUS_NS);
    }
    link(out, port, 0);
    link(port, into, 0);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::{Routes, parse};

    fn at(numbers: &[u32], bytes_s: u64) -> Vec<PortOf> {
        numbers.iter().map(|number| PortOf { number: *number, bytes_s: Some(bytes_s) }).collect()
    }

    /// The names of the nodes between two ranks, and the bytes a second of the narrowest link.
    fn way(topology: &Topology, from: u32, to: u32) -> (Vec<String>, u64) {
        let route = Routes::new(topology).from(NodeId(from), &[NodeId(to)]).pop().flatten().expect("a route");
        let links: Vec<Link> = route.iter().map(|link| topology.links()[link.index()]).collect();
        let through = links[1..].iter().map(|link| topology.nodes()[link.from.index()].name.clone());
        (through.collect(), links.iter().map(|link| link.bandwidth_bytes_s).min().expect("links"))
    }

    #[test]
    fn ranks_of_one_port_share_it_on_every_way_and_ports_are_joined_by_the_network() {
        let mut ports = at(&[0, 0, 1], 12_000);
        ports.push(PortOf { number: 2, bytes_s: None });
        let topology = rdma_hosts(&[0, 0, 0, 1], &ports, &[], 1);
        assert_eq!((topology.name.as_str(), topology.boxes().len()), ("rdma:3+1", 2));
        assert_eq!(way(&topology, 0, 1), (["out0", "port0", "in0"].map(String::from).to_vec(), 12_000));
        let far = way(&topology, 1, 2);
        assert_eq!(far.0, ["out0", "port0", "network", "port1"]);
        assert_eq!(way(&topology, 3, 2), (["port2", "network", "port1"].map(String::from).to_vec(), 12_000));
        let unknown = Topology::links(&topology).iter().map(|link| link.bandwidth_bytes_s).max();
        assert_eq!(unknown, Some(ADAPTER_BYTES_S));
        assert_eq!(parse(&topology.to_string()).expect("a topology").to_string(), topology.to_string());
    }

    #[test]
    fn distance_and_turns_count() {
        let latency = |topology: &Topology| -> u64 {
            let route = Routes::new(topology).from(NodeId(0), &[NodeId(1)]).pop().flatten().expect("a route");
            route.iter().map(|link| topology.links()[link.index()].latency_ns).sum()
        };
        let near = rdma(2, 1);
        let far = rdma_hosts(&[0, 1], &at(&[0, 1], 1000), &[5_000, 0], 1);
        assert_eq!(latency(&far), latency(&near) + 5_000);
        let turns = rdma_hosts(&[0, 1], &at(&[0, 1], 1000), &[], 2);
        assert_eq!(turns.costs.send_ns, 2 * near.costs.send_ns);
        assert!(latency(&turns) > latency(&near));
    }
}
