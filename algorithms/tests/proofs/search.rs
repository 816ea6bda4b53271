//! Rings and trees that the search finds: on known machines, on random ones, and on parts of them.

use std::collections::BTreeMap;

use consort_algorithms::bounds::{self, bound};
use consort_algorithms::hardware::exchange::{Content, nccl_graph_xml, read, read_hardware};
use consort_algorithms::hardware::{Rates, Wires};
use consort_algorithms::search::{Options, Rings, Trees, graphs, rings, trees};
use consort_algorithms::simulate::{self, simulate};
use consort_algorithms::topology::{LinkId, NodeKind, Topology, parse, profile};
use consort_algorithms::{Collective, LowerOptions, Rank, lower_all, verify};

use crate::common::machines::machine;
use crate::common::{Random, seed};

fn fabric(name: &str) -> Topology {
    let path = format!("{}/fabrics/{name}.topology", env!("CARGO_MANIFEST_DIR"));
    parse(&std::fs::read_to_string(path).expect("it is committed")).expect("a topology")
}

/// Adds what a way from one rank to another takes, and compares that it is a way, through no third rank.
fn follow(
    topology: &Topology,
    from: Rank,
    to: Rank,
    way: &[LinkId],
    speed: f64,
    loads: &mut BTreeMap<u32, f64>,
) {
    let mut at = from.0;
    for (number, link) in way.iter().enumerate() {
        let is_rank = matches!(topology.nodes()[at as usize].kind, NodeKind::Rank { .. });
        assert!(number == 0 || !is_rank, "a way passes rank {at}");
        let found = topology.links()[link.index()];
        assert_eq!(found.from.0, at, "links follow each other");
        at = found.to.0;
        *loads.entry(link.0).or_default() += speed;
    }
    assert_eq!(at, to.0, "from {from} to {to}");
    *loads.entry(u32::MAX - 2 * from.0).or_default() += speed;
    *loads.entry(u32::MAX - 2 * to.0 - 1).or_default() += speed;
}

/// No link and no rank carries more than it can.
fn fits(topology: &Topology, loads: &BTreeMap<u32, f64>) {
    let is_below = |load: Option<&f64>, most: Option<u64>| {
        most.is_none_or(|most| load.copied().unwrap_or(0.0) <= most as f64 * (1.0 + 1e-9))
    };
    for (number, link) in (0..).zip(topology.links()) {
        assert!(is_below(loads.get(&number), Some(link.bandwidth_bytes_s)), "{link:?} of\n{topology}");
    }
    for (rank, node) in (0..topology.ranks()).zip(topology.nodes()) {
        let NodeKind::Rank { inject_bytes_s, eject_bytes_s, .. } = node.kind else { continue };
        assert!(is_below(loads.get(&(u32::MAX - 2 * rank)), inject_bytes_s), "{rank} sends\n{topology}");
        assert!(
            is_below(loads.get(&(u32::MAX - 2 * rank - 1)), eject_bytes_s),
            "{rank} receives\n{topology}"
        );
    }
}

fn check_rings(topology: &Topology, found: &Rings) {
    let mut loads = BTreeMap::new();
    for ring in &found.rings {
        let mut sorted = ring.order.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, (0..topology.ranks()).map(Rank).collect::<Vec<_>>(), "each rank once");
        for (at, way) in ring.hops.iter().enumerate() {
            let to = ring.order[(at + 1) % ring.order.len()];
            follow(topology, ring.order[at], to, way, ring.bytes_s.value(), &mut loads);
        }
    }
    fits(topology, &loads);
    assert!(found.total() <= found.limit, "{:?} above {:?}", found.total(), found.limit);
    for collective in [Collective::AllGather, Collective::ReduceScatter, Collective::AllReduce] {
        let most = bound(topology, collective, &bounds::Options::default()).expect("a bound").rate;
        assert!(found.rate(collective).expect("it has rings") <= most, "{collective} on\n{topology}");
    }
}

fn check_trees(topology: &Topology, found: &Trees) {
    let mut loads = BTreeMap::new();
    for tree in &found.trees {
        assert_eq!(tree.parents.iter().filter(|parent| parent.is_none()).count(), 1, "one root");
        for (rank, parent) in (0..).map(Rank).zip(&tree.parents) {
            let Some(parent) = parent else { continue };
            let up = std::iter::successors(Some(rank), |rank| tree.parents[rank.index()]);
            assert!(up.take(topology.ranks() as usize + 1).count() <= topology.ranks() as usize, "a cycle");
            let speed = tree.bytes_s.value();
            follow(topology, *parent, rank, &tree.down[rank.index()], speed, &mut loads);
            follow(topology, rank, *parent, &tree.up[rank.index()], speed, &mut loads);
        }
    }
    fits(topology, &loads);
    let most = bound(topology, Collective::AllReduce, &bounds::Options::default()).expect("a bound").rate;
    assert!(found.total() <= most.min(found.limit), "trees above the bound of\n{topology}");
}

#[test]
fn random_machines_get_rings_and_trees_that_fit() {
    let mut random = Random::new(seed(0x5ea4c4));
    let (mut with_rings, mut with_trees) = (0, 0);
    for _ in 0..300 {
        let topology = machine(&mut random, 9, 4);
        let (found, grown) = (rings(&topology, &Options::default()), trees(&topology, &Options::default()));
        check_rings(&topology, &found);
        check_trees(&topology, &grown);
        assert_eq!(found, rings(&topology, &Options::default()), "the same again");
        with_rings += usize::from(!found.rings.is_empty());
        with_trees += usize::from(!grown.trees.is_empty());
    }
    assert!(with_rings > 50 && with_trees > 50, "{with_rings} machines have rings, {with_trees} trees");
}

/// GB/s of the rings together, how many there are, and the same of the trees.
fn summary(topology: &Topology) -> (f64, usize, f64) {
    let (found, grown) = (rings(topology, &Options::default()), trees(topology, &Options::default()));
    check_rings(topology, &found);
    check_trees(topology, &grown);
    (found.total().value() / 1e9, found.rings.len(), (grown.total().value() / 1e7).round() / 100.0)
}

#[test]
fn known_machines_have_rings_at_their_limit() {
    assert_eq!(summary(&fabric("dgx-1")), (150.0, 6, 83.33), "three rings, both ways");
    assert_eq!(summary(&fabric("mi300x")), (448.0, 7, 256.0), "seven rings without a common link");
    assert_eq!(summary(&fabric("pcie-dual-root")), (24.0, 1, 13.71), "uplinks carry a ring once");
    assert_eq!(summary(&fabric("torus-4x4")).0, 4.0);
    assert_eq!(summary(&profile("dgx-h100:1").expect("a profile")), (450.0, 1, 257.14));
    let (found, count, grown) = summary(&profile("dgx-h100:2").expect("a profile"));
    assert_eq!((found, count), (400.0, 8), "one ring an adapter");
    assert!(grown > 260.0, "trees use NVLink beside adapters: {grown}");
}

#[test]
fn rings_over_boxes_stay_on_their_rails() {
    for (name, crosses) in [("dgx-h100:4", 0), ("dgx-h100:3", 8)] {
        let topology = profile(name).expect("a profile");
        let found = rings(&topology, &Options::default());
        assert!(found.is_at_limit() && found.rings.len() == 8, "{name}");
        let spine =
            |link: &LinkId| topology.nodes()[topology.links()[link.index()].to.index()].name == "spine";
        let crossing =
            found.rings.iter().flat_map(|ring| &ring.hops).flatten().filter(|link| spine(link)).count();
        // Where boxes are not even in number a ring ends in another rail than it began.
        assert_eq!(crossing, crosses, "{name}");
    }
}

#[test]
fn a_thousand_ranks_in_equal_boxes_are_searched_as_one_box() {
    let found = rings(&profile("dgx-h100:128").expect("a profile"), &Options::default());
    assert!(found.is_at_limit() && found.rings.iter().all(|ring| ring.order.len() == 1024));
}

#[test]
fn parts_of_a_box_have_what_is_left_to_them() {
    let (hardware, _) = read_hardware(super::hardware::dgx_1().as_bytes()).expect("a machine");
    let all = hardware.gpus();
    let mut random = Random::new(seed(0x5b5e7));
    for _ in 0..20 {
        let mut gpus = all.clone();
        random.shuffle(&mut gpus);
        gpus.truncate(2 + random.below(7));
        for wires in [Wires::All, Wires::Fastest] {
            let graph = hardware.rank_graph(&gpus, Rates::DataSheet, wires).expect("a graph");
            summary(&graph.topology);
        }
    }
    // One GPU hangs on another by NVLink, so that no ring passes it; trees do, at the bound.
    let five = hardware.rank_graph(&all[..5], Rates::DataSheet, Wires::Fastest).expect("a graph").topology;
    assert_eq!(summary(&five), (0.0, 0, 50.0));
}

#[test]
fn what_is_found_does_not_hang_on_the_order_of_ranks() {
    let (hardware, _) = read_hardware(super::hardware::dgx_1().as_bytes()).expect("a machine");
    let mut random = Random::new(seed(0x0d3));
    let mut gpus = hardware.gpus();
    for _ in 0..10 {
        random.shuffle(&mut gpus);
        let graph = hardware.rank_graph(&gpus, Rates::DataSheet, Wires::Fastest).expect("a graph");
        assert_eq!(summary(&graph.topology).0, 150.0, "{gpus:?}");
    }
}

#[test]
fn rings_become_graphs_that_come_back() {
    let (hardware, _) = read_hardware(super::hardware::dgx_1().as_bytes()).expect("a machine");
    let gpus = hardware.gpus();
    let graph = hardware.rank_graph(&gpus, Rates::DataSheet, Wires::Fastest).expect("a graph");
    let found = rings(&graph.topology, &Options::default());
    let made = graphs(&found, &hardware, &gpus, Rates::DataSheet).expect("one host");
    made.check(&hardware).expect("its GPUs");
    assert_eq!(
        (made.graphs.len(), made.graphs[0].channels.len(), made.graphs[0].intra_bytes_s),
        (1, 6, 25_000_000_000)
    );
    let again = read(nccl_graph_xml(&made).as_bytes()).expect("NCCL's form");
    assert_eq!(again.content, Content::Graphs(made));
}

#[test]
fn schedules_of_what_is_found_are_proved_and_near_to_their_rate() {
    let topology = fabric("dgx-1");
    let (found, grown) = (rings(&topology, &Options::default()), trees(&topology, &Options::default()));
    let by_rings = [Collective::AllReduce, Collective::AllGather, Collective::ReduceScatter];
    let by_rings = by_rings.into_iter().map(|collective| found.schedule(collective));
    let all = by_rings.chain([grown.schedule(Collective::AllReduce)]);
    for schedule in all.map(|schedule| schedule.expect("there are channels")) {
        let plans = lower_all(&schedule, &LowerOptions { slots: 4 }).expect("it lowers");
        verify(&plans).unwrap_or_else(|refusal| panic!("{}: {refusal}", schedule.name));
        let block_bytes = if schedule.collective == Collective::AllReduce { 256 << 20 } else { 32 << 20 };
        let options =
            simulate::Options { work: false, messages_max: 1 << 15, ..simulate::Options::new(block_bytes) };
        let seconds = simulate(&schedule, &topology, &options).expect("it has routes").seconds();
        let most = bound(&topology, schedule.collective, &bounds::Options::default()).expect("a bound");
        let share = f64::from(256 << 20) / seconds / most.rate.value();
        assert!((0.3..=1.0 + 1e-4).contains(&share), "{}: {share} of the bound", schedule.name);
    }
}
