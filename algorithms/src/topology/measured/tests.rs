use std::collections::BTreeSet;

use super::*;
use crate::topology::{Routes, parse};

/// What all pairs measure where each host has a wire of one rate (bytes a second) and each way a latency.
fn pairs(host_of: &[u32], wires: &[u64], ways_ns: &[u64], slow: &[(u32, u32, u64)]) -> Vec<MeasuredPair> {
    let all = rounds(host_of, usize::MAX).into_iter().flatten();
    let of = |(one, other): (u32, u32)| {
        let (from, to) = (host_of[one as usize] as usize, host_of[other as usize] as usize);
        let slow = slow
            .iter()
            .find(|(a, b, _)| (*a, *b) == (from as u32, to as u32) || (*b, *a) == (from as u32, to as u32));
        let rate = match slow {
            _ if from == to => 9_000_000_000,
            Some((.., rate)) => *rate,
            None => wires[from].min(wires[to]),
        };
        let latency_ns = if from == to { 500 } else { ways_ns[from] + ways_ns[to] + 300 };
        MeasuredPair { one, other, latency_ns, there_bytes_s: rate, back_bytes_s: rate, both_bytes_s: rate }
    };
    all.map(of).collect()
}

/// The least bandwidth and the latency of the route between two ranks.
fn route(topology: &Topology, from: u32, to: u32) -> (u64, u64) {
    let route = Routes::new(topology).from(NodeId(from), &[NodeId(to)]).remove(0).expect("a route");
    let links = || route.iter().map(|id| topology.links()[id.index()]);
    let least = links().map(|link| link.bandwidth_bytes_s).min().expect("a link");
    (least, links().map(|link| link.latency_ns).sum())
}

#[test]
fn every_pair_meets_once_in_rounds_of_ranks_and_hosts_that_meet_one() {
    let layouts: [&[u32]; 8] = [
        &[0],
        &[0, 0],
        &[0, 1],
        &[0, 1, 2, 3],
        &[0, 0, 0],
        &[0, 1, 0, 1],
        &[0, 0, 1, 1, 2],
        &[0, 1, 1, 1, 2, 2, 3],
    ];
    for host_of in layouts {
        let mut seen = BTreeSet::new();
        for round in rounds(host_of, usize::MAX) {
            let (mut ranks, mut hosts) = (BTreeSet::new(), BTreeSet::new());
            assert!(!round.is_empty(), "{host_of:?}");
            for (one, other) in round {
                assert!(one < other && seen.insert((one, other)), "{host_of:?}: {one} and {other}");
                assert!(ranks.insert(one) && ranks.insert(other), "{host_of:?}");
                let (from, to) = (host_of[one as usize], host_of[other as usize]);
                assert!(
                    from == to || hosts.insert(from) && hosts.insert(to),
                    "{host_of:?}: a host is in two pairs"
                );
            }
        }
        assert_eq!(seen.len(), host_of.len() * (host_of.len() - 1) / 2, "{host_of:?}");
    }
    // Few for hosts of many ranks, beginning with ranks of one number.
    let thin: Vec<(u32, u32)> = rounds(&[0, 0, 1, 1], 2).into_iter().flatten().collect();
    assert_eq!(thin, [(0, 1), (2, 3), (0, 2), (1, 3)]);
}

#[test]
fn a_slow_host_is_one_slow_wire_of_a_switch() {
    let host_of = [0, 1, 2, 3];
    let (wires, ways) = ([125, 125, 12, 125].map(|mb: u64| mb * 1_000_000), [9_000, 10_000, 30_000, 8_000]);
    let graph = measured("m", &host_of, &pairs(&host_of, &wires, &ways, &[]));
    assert!(graph.nodes().iter().any(|node| node.name == "network"), "{graph}");
    for (one, other) in [(0, 1), (0, 2), (2, 3), (3, 0)] {
        let expected = (wires[one].min(wires[other]), ways[one] + ways[other]);
        assert_eq!(route(&graph, one as u32, other as u32), expected, "{graph}");
    }
    // A wire is shared: two others into one host have one wire between them.
    let narrow: Vec<&Link> =
        graph.links().iter().filter(|link| link.bandwidth_bytes_s < 100_000_000).collect();
    assert!(narrow.iter().any(|link| graph.nodes()[link.to.index()].name == "got2"), "{graph}");
    assert_eq!(parse(&graph.to_string()), Ok(graph));
}

#[test]
fn a_slow_way_between_two_hosts_is_a_link_of_its_own() {
    let host_of = [0, 0, 1, 1, 2, 2];
    let (wires, ways) = ([1_000_000_000; 3], [10_000; 3]);
    let graph = measured("m", &host_of, &pairs(&host_of, &wires, &ways, &[(0, 2, 50_000_000)]));
    assert!(graph.nodes().iter().all(|node| node.name != "network"), "{graph}");
    assert_eq!(route(&graph, 1, 4).0, 50_000_000);
    assert_eq!(route(&graph, 0, 2).0, 1_000_000_000);
    assert_eq!(route(&graph, 5, 3), (1_000_000_000, 20_000));
    assert_eq!(route(&graph, 0, 1), (9_000_000_000, 200));
    assert_eq!(graph.boxes().len(), 3);
}

#[test]
fn two_directions_that_share_a_wire_get_half_each() {
    let pair = |both_bytes_s| MeasuredPair {
        one: 0,
        other: 1,
        latency_ns: 1_000,
        there_bytes_s: 1_000,
        back_bytes_s: 800,
        both_bytes_s,
    };
    assert_eq!(pair(790).rates(), (1_000, 800));
    assert_eq!(pair(400).rates(), (500, 400));
    let graph = measured("m", &[0, 1], &[pair(400)]);
    assert_eq!((route(&graph, 0, 1).0, route(&graph, 1, 0).0), (500, 400));
}

#[test]
fn one_rank_has_no_wires() {
    assert!(rounds(&[0], 9).is_empty());
    let graph = measured("m", &[0], &[]);
    assert_eq!((graph.ranks(), graph.links().len()), (1, 0));
}
