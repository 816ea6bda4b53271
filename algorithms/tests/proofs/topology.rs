//! Topologies: printed forms against committed files, the text form back and forth, routes, profiles.

use consort_algorithms::builders::{RingOptions, ring};
use consort_algorithms::simulate::{Options, simulate, timeline_svg};
use consort_algorithms::topology::{
    Costs, Link, LinkId, NodeId, NodeKind, Routes, Topology, dgx_a100, dgx_h100, host_of_domains, parse,
    pcie, profile, tcp, topology_dot, torus,
};
use consort_algorithms::{Collective, Rank};

use crate::common::{Random, seed, snapshot};

const NAMES: [&str; 12] = [
    "host:8",
    "domains:2x4",
    "domains:4x2x4",
    "dgx-a100:2",
    "dgx-h100:1",
    "dgx-h100:3",
    "dgx-h200:2",
    "pcie:2",
    "tcp:4x2",
    "rdma:4x2",
    "torus:4x4",
    "torus:2x3x4",
];

fn found(name: &str) -> Topology {
    profile(name).unwrap_or_else(|fault| panic!("{fault}"))
}

#[test]
fn printed_forms_are_the_committed_ones() {
    for (name, file) in [
        ("dgx-h100:2", "dgx_h100_2"),
        ("tcp:2x2", "tcp_2x2"),
        ("torus:2x3", "torus_2x3"),
        ("domains:2x2", "domains_2x2"),
    ] {
        let topology = found(name);
        snapshot(&format!("{file}_topology.txt"), &topology.to_string());
        snapshot(&format!("{file}_topology.dot"), &topology_dot(&topology));
    }
    let schedule = ring(Collective::AllReduce, 3, RingOptions::default());
    let options = Options { timeline: true, ..Options::new(3 << 20) };
    let outcome = simulate(&schedule, &found("host:3"), &options).expect("it has a time");
    snapshot("all_reduce_ring_3_timeline.svg", &timeline_svg(&outcome));
}

#[test]
fn the_text_form_is_the_topology() {
    for name in NAMES {
        let topology = found(name);
        assert_eq!(parse(&topology.to_string()), Ok(topology.clone()), "{name}");
        assert_eq!(topology.name, name);
    }
    let mut limited = Topology::new("limited", Costs { copy_ns_per_byte: 0.1, lanes: 3, ..Costs::default() });
    limited.add_node("r0", NodeKind::Rank { in_box: 3, inject_bytes_s: Some(5), eject_bytes_s: None });
    limited.add_node("r1", NodeKind::Rank { in_box: 1, inject_bytes_s: None, eject_bytes_s: Some(7) });
    assert_eq!(parse(&limited.to_string()), Ok(limited.clone()));
    assert_eq!(limited.boxes(), [vec![Rank(1)], vec![Rank(0)]]);
}

#[test]
fn a_fault_names_its_line() {
    let fault = |text: &str| parse(text).expect_err(text).to_string();
    let two = "rank a box=0 # one\n\nrank b box=0\n";
    assert_eq!(fault("topology x\nnode a"), "line 2: not understood: node a");
    assert_eq!(fault("topology x y"), "line 1: not understood: topology x y");
    assert_eq!(fault("rank"), "line 1: not understood: rank");
    assert_eq!(fault(&format!("{two}rank a box=0")), "line 4: there are two nodes \"a\"");
    assert_eq!(fault("switch s\nrank a box=0"), "line 2: the ranks come before the other nodes");
    assert_eq!(fault("rank a"), "line 1: box= is missing");
    assert_eq!(fault("rank a box=-1"), "line 1: box=\"-1\" is no number that fits");
    assert_eq!(fault("rank a box=0 inject_bytes_s=0"), "line 1: inject_bytes_s must be above 0");
    assert_eq!(fault("rank a box=0 box=0"), "line 1: box= is unknown or given twice");
    let link = |rest: &str| fault(&format!("{two}link {rest}"));
    assert_eq!(link("a c"), "line 4: there is no node \"c\"");
    assert_eq!(link("a b latency_ns=1"), "line 4: bandwidth_bytes_s= is missing");
    assert_eq!(link("a b latency_ns=1 bandwidth_bytes_s=0"), "line 4: bandwidth_bytes_s must be above 0");
    assert_eq!(link("a a latency_ns=1 bandwidth_bytes_s=1"), "line 4: a link needs two ends");
    assert_eq!(link("a b 5"), "line 4: not key=value: \"5\"");
    let costs = "costs send_ns=1 receive_ns=1 copy_ns_per_byte=0 reduce_ns_per_byte=";
    assert_eq!(fault(&format!("{costs}-1")), "line 1: reduce_ns_per_byte must be 0 or more");
    assert_eq!(fault(&format!("{costs}inf")), "line 1: reduce_ns_per_byte must be 0 or more");
    assert_eq!(fault(&format!("{costs}0 lanes=0")), "line 1: lanes must be above 0");
    assert_eq!(fault(&format!("{costs}0 lanes=-1")), "line 1: lanes=\"-1\" is no number that fits");
}

#[test]
fn broken_text_is_refused_or_read_but_never_worse() {
    let whole = found("tcp:2x2").to_string();
    let seed = seed(0x70f0);
    let mut random = Random(seed);
    for _ in 0..2000 {
        let mut bytes = whole.clone().into_bytes();
        for _ in 0..1 + random.below(4) {
            let at = random.below(bytes.len());
            match random.below(3) {
                0 => bytes[at] = b"0123456789 =\n#rlx-"[random.below(18)],
                1 => drop(bytes.remove(at)),
                _ => bytes.truncate(at.max(1)),
            }
        }
        let text = String::from_utf8(bytes).expect("it stays ASCII");
        if let Ok(topology) = parse(&text) {
            assert_eq!(parse(&topology.to_string()), Ok(topology));
        }
    }
}

#[test]
fn an_unknown_name_lists_what_there_is() {
    for name in
        ["", "host", "host:", "host:0", "host:x", "dgx-h100:1x2", "tcp:4", "torus:", "dgx:1", "host:9999999"]
    {
        let fault = profile(name).expect_err(name).to_string();
        assert!(fault.contains(&format!("{name:?}")) && fault.contains("tcp:HOSTSxRANKS"), "{fault}");
    }
}

/// The route as names.
fn way(topology: &Topology, from: u32, to: u32) -> String {
    let route = Routes::new(topology).from(NodeId(from), &[NodeId(to)]).remove(0).expect("there is a route");
    let names = route.iter().map(|link| {
        let end = topology.links()[link.index()].to;
        topology.nodes()[end.index()].name.as_str()
    });
    names.collect::<Vec<_>>().join(" ")
}

#[test]
fn routes_are_the_ones_of_the_machine() {
    let dgx = dgx_a100(2);
    assert_eq!(way(&dgx, 1, 5), "nvswitch0 r5");
    assert_eq!(way(&dgx, 3, 11), "nic0.3 rail3 nic1.3 r11");
    assert_eq!(way(&dgx, 3, 8), "nic0.3 rail3 spine rail0 nic1.0 r8");
    let pcie = pcie(2);
    assert_eq!(way(&pcie, 0, 1), "bridge0.0 r1");
    assert_eq!(way(&pcie, 0, 7), "bridge0.0 socket0.0 socket0.1 bridge0.3 r7");
    assert_eq!(way(&pcie, 6, 8), "bridge0.3 socket0.1 socket0.0 nic0 network nic1 socket1.0 bridge1.0 r8");
    assert_eq!(way(&tcp(2, 2), 0, 3), "nic0 network nic1 r3");
    let domains = host_of_domains(2, 2, 4);
    assert_eq!([way(&domains, 0, 1), way(&domains, 1, 2)], ["memory0 r1", "gate0 fabric gate1 r2"]);
    let shared = host_of_domains(2, 2, 2);
    assert_eq!([way(&shared, 0, 1), way(&shared, 1, 2)], ["memory0 r1", "gate0 fabric gate1 r2"]);
    assert_eq!(way(&host_of_domains(1, 2, 2), 0, 1), "memory0 r1");
    assert_eq!(way(&torus(&[4, 4]), 0, 3), "r3");
    assert_eq!(way(&torus(&[4, 4]), 0, 10).split(' ').count(), 4);
    assert_eq!(way(&torus(&[4, 4]), 6, 6), "");
}

#[test]
fn ranks_pass_nothing_on_unless_they_do() {
    let mut topology = Topology::new("line", Costs::default());
    for rank in 0..3 {
        let kind = NodeKind::Rank { in_box: 0, inject_bytes_s: None, eject_bytes_s: None };
        topology.add_node(format!("r{rank}"), kind);
    }
    topology.connect(NodeId(0), NodeId(1), 1, 1);
    topology.connect(NodeId(1), NodeId(2), 1, 1);
    let route = |topology: &Topology| Routes::new(topology).from(NodeId(0), &[NodeId(2), NodeId(1)]);
    assert_eq!(route(&topology), [None, Some(vec![LinkId(0)])]);
    topology.relay = true;
    assert_eq!(route(&topology), [Some(vec![LinkId(0), LinkId(2)]), Some(vec![LinkId(0)])]);
}

#[test]
fn routes_are_shortest() {
    let seed = seed(0x2047);
    let mut random = Random(seed);
    for _ in 0..200 {
        let nodes = 2 + random.below(7) as u32;
        let mut topology = Topology::new("random", Costs::default());
        topology.relay = true;
        for rank in 0..nodes {
            let kind = NodeKind::Rank { in_box: 0, inject_bytes_s: None, eject_bytes_s: None };
            topology.add_node(format!("r{rank}"), kind);
        }
        for _ in 0..3 * nodes {
            let (from, to) = (random.below(nodes as usize) as u32, random.below(nodes as usize) as u32);
            if from != to {
                let latency_ns = random.below(4) as u64;
                topology.add_link(Link {
                    from: NodeId(from),
                    to: NodeId(to),
                    latency_ns,
                    bandwidth_bytes_s: 1,
                });
            }
        }
        // Bellman and Ford over (latency, hops).
        let mut best = vec![None; nodes as usize];
        best[0] = Some((0u64, 0usize));
        for _ in 0..nodes {
            for link in topology.links() {
                let next = best[link.from.index()].map(|(ns, hops)| (ns + link.latency_ns, hops + 1));
                if let Some(next) =
                    next.filter(|next| best[link.to.index()].is_none_or(|known| *next < known))
                {
                    best[link.to.index()] = Some(next);
                }
            }
        }
        let targets: Vec<NodeId> = (0..nodes).map(NodeId).collect();
        let mut routes = Routes::new(&topology);
        let found = routes.from(NodeId(0), &targets);
        assert_eq!(found, routes.from(NodeId(0), &targets), "the working memory is kept clean");
        for (route, best) in found.iter().zip(&best) {
            let cost = route.as_ref().map(|route| {
                let links = route.iter().map(|link| topology.links()[link.index()]);
                assert!(links.clone().zip(links.clone().skip(1)).all(|(one, next)| one.to == next.from));
                (links.map(|link| link.latency_ns).sum::<u64>(), route.len())
            });
            assert_eq!(cost, *best);
        }
    }
}

#[test]
fn profiles_are_what_their_sources_say() {
    let h100 = dgx_h100(4);
    assert_eq!((h100.ranks(), h100.boxes().len(), h100.aggregates()), (32, 4, true));
    assert_eq!(h100.boxes()[2], (16..24).map(Rank).collect::<Vec<_>>());
    assert_eq!(h100.aggregators().collect::<Vec<_>>(), (32..36).map(NodeId).collect::<Vec<_>>());
    assert!(!dgx_a100(1).aggregates());
    let out_gb = |topology: &Topology, rank: u32, to: &str| {
        let links = topology.links().iter().filter(|link| link.from == NodeId(rank));
        let there = links.filter(|link| topology.nodes()[link.to.index()].name.starts_with(to));
        there.map(|link| link.bandwidth_bytes_s).sum::<u64>() / 1_000_000_000
    };
    assert_eq!([out_gb(&h100, 9, "nvswitch1"), out_gb(&h100, 9, "nic1.1")], [450, 64]);
    assert_eq!(out_gb(&dgx_a100(1), 0, "nvswitch"), 300);
    // Two neighbours in each dimension of 3 and more, one in a dimension of 2, none in one of 1.
    let degree = |dimensions: &[u32]| {
        let torus = torus(dimensions);
        torus.links().iter().filter(|link| link.from == NodeId(0)).count()
    };
    assert_eq!([degree(&[4, 4, 4]), degree(&[2, 3]), degree(&[1, 5]), degree(&[2, 2])], [6, 3, 2, 2]);
}
