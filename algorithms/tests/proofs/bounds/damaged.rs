//! Machines that are damaged or absurd: a bound or an error, never a panic.

use consort_algorithms::bounds::{Argument, BoundError, Options, bound};
use consort_algorithms::topology::{Costs, Link, NodeId, NodeKind, Topology, parse};
use consort_algorithms::{Collective, Rank};

use crate::common::machines::BOUNDED;

const FAST: u64 = 1_000_000_000;

fn ranks(count: u32) -> Topology {
    let mut topology = Topology::new("ranks", Costs::default());
    for rank in 0..count {
        let kind = NodeKind::Rank { in_box: 0, inject_bytes_s: None, eject_bytes_s: None };
        topology.add_node(format!("r{rank}"), kind);
    }
    topology
}

#[test]
fn a_machine_that_is_apart_has_the_bound_0_and_says_which_ranks() {
    let mut apart = ranks(5);
    apart.connect(NodeId(0), NodeId(1), 0, FAST);
    apart.connect(NodeId(1), NodeId(2), 0, FAST);
    apart.connect(NodeId(3), NodeId(4), 0, FAST);
    let mut one_way = ranks(3);
    for (from, to) in [(0, 1), (1, 0), (1, 2)] {
        let (from, to) = (NodeId(from), NodeId(to));
        one_way.add_link(Link { from, to, latency_ns: 0, bandwidth_bytes_s: FAST });
    }
    for (topology, words) in [(&apart, "r0 cannot reach r3"), (&one_way, "r2 cannot reach r0")] {
        for collective in BOUNDED {
            let found = bound(topology, collective, &Options::default()).expect("a bound");
            assert!(found.rate.is_zero() && found.exact && found.steps.is_none(), "{found:?}");
            assert_eq!(found.argument, Argument::Unreachable, "{collective}");
            let pair: Vec<&str> = found.cut.words.split(" cannot reach ").collect();
            let number = |name: &str| name[1..].parse::<u32>().expect("a rank");
            let (from, to) = (number(pair[0]), number(pair[1]));
            let reaches = |from: u32, to: u32| match topology.ranks() {
                5 => (from < 3) == (to < 3),
                _ => from != 2 || to == 2,
            };
            assert!(!reaches(from, to), "{collective}: {}", found.cut.words);
            if collective == Collective::AllGather {
                assert!(
                    found.cut.words.starts_with(&words[..2]) || topology.ranks() == 5,
                    "{}",
                    found.cut.words
                );
            }
        }
    }
    // From a root that reaches all ranks a broadcast is possible.
    let options = Options { root: Some(Rank(0)), in_network: false };
    assert!(!bound(&one_way, Collective::Broadcast, &options).expect("a bound").rate.is_zero());
    assert!(bound(&one_way, Collective::Reduce, &options).expect("a bound").rate.is_zero());
}

#[test]
fn a_machine_without_a_second_rank_has_no_bound() {
    for topology in [ranks(0), ranks(1), parse("").expect("no line")] {
        for collective in BOUNDED {
            let found = bound(&topology, collective, &Options::default());
            assert_eq!(found, Err(BoundError::TooFewRanks { ranks: topology.ranks() }), "{collective}");
        }
    }
    let options = Options { root: Some(Rank(2)), in_network: false };
    let error = bound(&ranks(2), Collective::Broadcast, &options).expect_err("no such rank");
    assert_eq!(error.to_string(), "there is no root r2: the machine has 2 ranks");
    for collective in [Collective::SendReceive, Collective::Gather, Collective::Scatter] {
        let error = bound(&ranks(2), collective, &Options::default()).expect_err("no bound");
        assert_eq!(error, BoundError::NotBounded { collective });
    }
}

#[test]
fn capacities_as_large_as_numbers_are_no_overflow() {
    let mut mesh = ranks(7);
    let switch = mesh.add_node("switch", NodeKind::Switch { aggregates: true });
    for from in 0..7 {
        for to in 0..from {
            for copy in 0..40 {
                mesh.connect(NodeId(from), NodeId(to), 0, u64::MAX - u64::from(from * 7 + to + copy));
            }
        }
        mesh.connect(NodeId(from), switch, 0, if from == 3 { 1 } else { u64::MAX });
    }
    for collective in BOUNDED {
        for in_network in [false, true] {
            let found = bound(&mesh, collective, &Options { root: None, in_network }).expect("a bound");
            assert!(found.gb_s() > 1e9 && found.gb_s().is_finite(), "{collective}: {found:?}");
        }
    }
    // 6 ranks of 40 links each and the switch, into rank 3.
    let found = bound(&mesh, Collective::AllGather, &Options::default()).expect("a bound");
    assert!(found.cut.words.starts_with("6 ranks into r3 over 1 link of "), "{}", found.cut.words);
}

#[test]
fn a_long_chain_of_ports_needs_no_stack() {
    let mut chain = ranks(2);
    let mut last = NodeId(0);
    for port in 0..50_000 {
        let next = chain.add_node(format!("port{port}"), NodeKind::Port);
        chain.connect(last, next, 0, FAST + port % 7);
        last = next;
    }
    chain.connect(last, NodeId(1), 0, FAST);
    for collective in BOUNDED {
        let found = bound(&chain, collective, &Options::default()).expect("a bound");
        assert!(found.rate.value() >= FAST as f64, "{collective}: {found:?}");
        assert_eq!(found.steps, Some(1));
    }
}

#[test]
fn limits_of_ranks_count_for_their_own_bytes_alone() {
    // A chain of three; the middle one may inject and eject a tenth of what its links carry.
    let mut chain = Topology::new("chain", Costs::default());
    for rank in 0..3 {
        let limit = (rank == 1).then_some(FAST / 10);
        let kind = NodeKind::Rank { in_box: rank, inject_bytes_s: limit, eject_bytes_s: limit };
        chain.add_node(format!("r{rank}"), kind);
    }
    chain.connect(NodeId(0), NodeId(1), 0, FAST);
    chain.connect(NodeId(1), NodeId(2), 0, FAST);
    let gather = |topology: &Topology| {
        let found = bound(topology, Collective::AllGather, &Options::default()).expect("a bound");
        (found.gb_s() * 1000.0).round() / 1000.0
    };
    // Without relaying, two ranks' parts pass the limit; with it, those of the others pass by.
    assert_eq!(gather(&chain), 0.15);
    chain.relay = true;
    assert_eq!(gather(&chain), 0.15);
    let options = Options { root: Some(Rank(0)), in_network: false };
    let pairs = |topology: &Topology| {
        bound(topology, Collective::AllToAll, &Options::default()).expect("a bound").gb_s()
    };
    assert!((pairs(&chain) - 0.15).abs() < 1e-9);
    chain.relay = false;
    // Now the middle one also takes in and sends on the others' bytes: 4 pairs through a tenth.
    assert!((pairs(&chain) - 0.075).abs() < 1e-9, "{}", pairs(&chain));
    assert_eq!(bound(&chain, Collective::Broadcast, &options).expect("a bound").gb_s(), 0.1);
}

#[test]
fn a_port_that_lets_out_more_than_it_takes_in_makes_no_bound_exact() {
    // The port takes in what one rank needs and would have to send it twice.
    let fork = |into: u64| {
        let mut fork = ranks(3);
        let port = fork.add_node("port", NodeKind::Port);
        for (from, to, bandwidth_bytes_s) in
            [(NodeId(0), port, into), (port, NodeId(1), FAST), (port, NodeId(2), FAST)]
        {
            fork.add_link(Link { from, to, latency_ns: 0, bandwidth_bytes_s });
        }
        let options = Options { root: Some(Rank(0)), in_network: false };
        bound(&fork, Collective::Broadcast, &options).expect("a bound")
    };
    let (narrow, even) = (fork(FAST), fork(2 * FAST));
    assert_eq!((narrow.gb_s(), narrow.exact), (1.0, false));
    assert_eq!((even.gb_s(), even.exact), (1.0, true));
}

#[test]
fn a_tree_that_branches_in_a_port_makes_no_bound_in_the_network_exact() {
    let star = |middle: NodeKind| {
        let mut star = ranks(3);
        let middle = star.add_node("middle", middle);
        for rank in 0..3 {
            star.connect(NodeId(rank), middle, 0, FAST);
        }
        let options = Options { root: None, in_network: true };
        let found = bound(&star, Collective::AllReduce, &options).expect("a bound");
        (found.gb_s(), found.exact)
    };
    assert_eq!(star(NodeKind::Switch { aggregates: true }), (1.0, true));
    assert_eq!(star(NodeKind::Port), (1.0, false));
}
