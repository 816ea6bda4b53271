//! A network before its hosts have become ranks or adapters.

use crate::topology::{Costs, NodeId, NodeKind, Topology};

/// The most hosts: those of the largest profile.
pub(super) const HOSTS_MAX: u64 = 1 << 17;
const SWITCHES_MAX: u64 = 1 << 17;
const CABLES_MAX: u64 = 1 << 20;

/// Gigabits a second of a cable where nothing else is asked for: those of a ConnectX-7 adapter.
pub(super) const CABLE_GBIT: u32 = 400;

/// From a host to its switch; as the rails of [`dgx_a100`](super::super::dgx_a100).
const HOST_NS: u64 = 700;
/// Between switches, and between hosts that forward messages in their adapters.
const SWITCH_NS: u64 = 500;

/// What messages cost a host whose adapter moves them; as [`dgx_a100`](super::super::dgx_a100).
const COSTS: Costs =
    Costs { send_ns: 1000, receive_ns: 1000, reduce_ns_per_byte: 0.001, copy_ns_per_byte: 0.0005, lanes: 0 };

/// Bytes a second of as many gigabits.
pub(super) fn bytes_s(gbit: u32) -> u64 {
    u64::from(gbit) * 125_000_000
}

/// An end of a cable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum End {
    Host(u32),
    Switch(u32),
}

/// Cables that lie side by side.
pub(super) struct Cable {
    pub(super) one: End,
    pub(super) other: End,
    /// As many times the bandwidth of a cable.
    pub(super) times: u32,
}

/// Hosts, switches and cables.
pub(super) struct Draft {
    pub(super) hosts: u32,
    pub(super) switches: Vec<String>,
    pub(super) cables: Vec<Cable>,
    /// Cables of an adapter, where adapters are the hosts.
    pub(super) cables_a_host: u32,
    /// Whether hosts forward messages for others.
    pub(super) forwards: bool,
    /// Whether the hosts are one domain of load and store, whose switches fold values on their way.
    pub(super) is_domain: bool,
    /// What was announced: hosts, switches and cables that lie side by side counted once.
    announced: [u64; 3],
}

impl Draft {
    /// A draft that will have this many hosts, switches and links.
    ///
    /// # Errors
    ///
    /// Where these are more than a graph may have.
    pub(super) fn announce(hosts: u64, switches: u64, cables: u64) -> Result<Draft, String> {
        for (count, most, noun) in [
            (hosts, HOSTS_MAX, "hosts"),
            (switches, SWITCHES_MAX, "switches"),
            (cables, CABLES_MAX, "cables"),
        ] {
            if count > most {
                return Err(format!("the network would have {count} {noun}, and {most} are the most"));
            }
        }
        Ok(Draft {
            hosts: hosts as u32,
            switches: Vec::with_capacity(switches as usize),
            cables: Vec::with_capacity(cables as usize),
            cables_a_host: 1,
            forwards: false,
            is_domain: false,
            announced: [hosts, switches, cables],
        })
    }

    /// Adds `count` switches called `{name}0`, `{name}1` and so on; gives the first.
    pub(super) fn switches(&mut self, name: &str, count: u32) -> u32 {
        let first = self.switches.len() as u32;
        self.switches.extend((0..count).map(|number| format!("{name}{number}")));
        first
    }

    pub(super) fn cable(&mut self, one: End, other: End) {
        self.trunk(one, other, 1);
    }

    /// Cables side by side.
    pub(super) fn trunk(&mut self, one: End, other: End, times: u32) {
        self.cables.push(Cable { one, other, times });
    }

    /// Adds switches and cables to a topology that has the hosts.
    ///
    /// # Panics
    ///
    /// Where the draft is not what it announced.
    pub(super) fn build(&self, topology: &mut Topology, gbit: u32, hosts: &[NodeId]) {
        let made = [self.hosts.into(), self.switches.len() as u64, self.cables.len() as u64];
        assert_eq!(made, self.announced, "{}: the draft differs from its formula", topology.name);
        let kind = NodeKind::Switch { aggregates: self.is_domain };
        let switches: Vec<NodeId> =
            self.switches.iter().map(|name| topology.add_node(name.clone(), kind)).collect();
        let node = |end: End| match end {
            End::Host(number) => hosts[number as usize],
            End::Switch(number) => switches[number as usize],
        };
        for cable in &self.cables {
            let is_to_switch = matches!(
                (cable.one, cable.other),
                (End::Host(_), End::Switch(_)) | (End::Switch(_), End::Host(_))
            );
            let latency_ns = if is_to_switch && !self.is_domain { HOST_NS } else { SWITCH_NS };
            let bandwidth = bytes_s(gbit) * u64::from(cable.times);
            topology.connect(node(cable.one), node(cable.other), latency_ns, bandwidth);
        }
    }

    /// The network where each host is a rank.
    pub(super) fn hosts_as_ranks(&self, name: String, gbit: u32) -> Topology {
        let mut topology = Topology::new(name, COSTS);
        topology.relay = self.forwards;
        let rank = |number: u32| {
            let in_box = if self.is_domain { 0 } else { number };
            let kind = NodeKind::Rank { in_box, inject_bytes_s: None, eject_bytes_s: None };
            topology.add_node(format!("r{number}"), kind)
        };
        let hosts: Vec<NodeId> = (0..self.hosts).map(rank).collect();
        self.build(&mut topology, gbit, &hosts);
        topology
    }
}

/// Every pair of `groups` joined by the same number of cables, as many as `ports` a group allow: the group and the port
/// of both ends.
///
/// Port `q` of a group leads to the group `q mod (groups - 1)`, its own left out ("absolute arrangement").
///
/// Source: the first of the arrangements in M. García et al., "Global misrouting policies in two-level hierarchical
/// networks", INA-OCMC 2013, and E. Hastings et al., "Comparing global link arrangements for Dragonfly networks",
/// CLUSTER 2015.
pub(super) fn all_pairs(groups: u32, ports: u32) -> impl Iterator<Item = [(u32, u32); 2]> {
    let peers = groups - 1;
    let pairs = (0..groups).flat_map(move |low| (low + 1..groups).map(move |high| (low, high)));
    let joined = move |copy: u32| {
        pairs.clone().map(move |(low, high)| [(low, copy * peers + high - 1), (high, copy * peers + low)])
    };
    (0..ports / peers).flat_map(joined)
}
