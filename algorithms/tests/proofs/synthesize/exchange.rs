//! All-to-alls that are made for a machine: at the published optimum on known fabrics, near the flow on random and
//! damaged ones, never above the bound, proved, and the same twice.

use consort_algorithms::bounds::Ratio;
use consort_algorithms::builders::pairwise;
use consort_algorithms::simulate::{self, simulate};
use consort_algorithms::synthesize::exchange::{Exchange, Form, Options, exchange};
use consort_algorithms::synthesize::rate;
use consort_algorithms::topology::{Link, LinkId, Topology, profile};
use consort_algorithms::{LowerOptions, Rank, Schedule, lower_all, lower_one, verify, verify_regular, whole};

use crate::bounds::fabric;
use crate::common::machines::machine;
use crate::common::{Random, seed};

/// A fabric, the optimum in GB/s as it is published, how it is reached, the most pieces of a block, and the most hops.
///
/// Sources as in the table of bounds. That of MI250 is known as a bound alone; the schedule shows that it is the
/// optimum.
const TABLE: [(&str, &str, Form, u32, u32); 15] = [
    ("dgx-1", "75.0", Form::Flow, 12, 4),
    ("amd-hive-ring", "2.0", Form::Turned, 4, 2),
    ("ndv2-x2", "3.125", Form::Flow, 2, 6),
    ("mi250", "75.0", Form::Flow, 12, 8),
    ("mi300x", "512", Form::Direct, 1, 1),
    ("pcie-dual-root", "12.0", Form::Direct, 1, 1),
    ("torus-4x4", "2.0", Form::Turned, 4, 4),
    ("torus-4x4x4", "2.0", Form::Turned, 4, 6),
    ("hypercube-3", "2.0", Form::Turned, 4, 3),
    ("hypercube-4", "2.0", Form::Turned, 4, 4),
    ("dgx-a100-x2", "50.0", Form::Direct, 1, 1),
    ("dgx-a100-x4", "33.33", Form::Direct, 1, 1),
    ("dgx-h100-x2", "100", Form::Direct, 1, 1),
    ("dgx-h100-x16", "53.33", Form::Direct, 1, 1),
    // Routes change rails inside of the boxes, whose ranks forward messages.
    ("rail-only:boxes=4,box=dgx-h100", "66.67", Form::Direct, 1, 1),
];

fn found(topology: &Topology) -> Exchange {
    exchange(topology, &Options::default()).expect("an all-to-all")
}

fn prove(schedule: &Schedule) {
    let plans = lower_all(schedule, &LowerOptions { slots: 4 });
    let plans = plans.unwrap_or_else(|error| panic!("{}: {error}", schedule.name));
    verify(&plans).unwrap_or_else(|refusal| panic!("{}: {refusal}", schedule.name));
}

#[test]
fn known_fabrics_are_at_their_optimum() {
    for (name, expected, form, pieces_max, depth_max) in TABLE {
        let topology = fabric(name);
        let found = found(&topology);
        let after = expected.split_once('.').map_or(0, |(_, after)| after.len());
        assert_eq!(format!("{:.after$}", found.rate().value() / 1e9), expected, "{name}: {}", found.share());
        let (pieces, depth) = (found.pieces(), found.depth());
        assert_eq!(found.form(), form, "{name}");
        assert!(pieces <= pieces_max && depth <= depth_max, "{name}: {pieces} pieces, {depth} hops");
        let counted = rate(found.schedule(), &topology.bundled()).expect("routes");
        assert_eq!((counted, found.schedule().ranks), (Some(found.rate()), topology.ranks()), "{name}");
        if topology.ranks() <= 32 {
            prove(found.schedule());
        }
        println!("{name}: {:.4} of the bound, {pieces} pieces, {depth} hops", found.share());
    }
}

/// Proof and plan of one rank serve all, so that boxes by the hundred are proved.
#[test]
fn ranks_that_are_alike_are_proved_by_one() {
    for name in
        ["torus-4x4x4", "hypercube-4", "dgx-h100-x16", "rail-only:boxes=12,box=dgx-a100", "torus:6x10"]
    {
        let found = found(&fabric(name));
        let regular = found.regular().unwrap_or_else(|| panic!("{name} has ranks that are alike"));
        assert_eq!(&whole(regular), found.schedule(), "{name}");
        let options = LowerOptions { slots: 4 };
        // A rank that makes its own part takes what peers send in a round in the order of ways, not in that of the peers.
        let own = |rank| lower_one(regular, Rank(rank), &options).expect("it lowers");
        let ranks = found.schedule().ranks;
        if ranks <= 64 {
            verify(&(0..ranks).map(own).collect::<Vec<_>>())
                .unwrap_or_else(|refusal| panic!("{name}: {refusal}"));
        }
        for rank in [0, 1, ranks / 2] {
            verify_regular(regular, &own(rank)).unwrap_or_else(|refusal| panic!("{name}: {refusal}"));
        }
        assert!(found.share() > 0.99, "{name}: {}", found.share());
    }
}

#[test]
fn random_machines_are_near_their_flow_and_never_above_the_bound() {
    let mut random = Random::new(seed(0xa2a));
    let (mut least, mut sum, mut count, mut none) = (f64::INFINITY, 0.0, 0, 0);
    for _ in 0..150 {
        let topology = machine(&mut random, 9, 4);
        let Some(found) = exchange(&topology, &Options::default()) else {
            none += 1;
            continue;
        };
        assert!(
            found.rate() <= found.bound().rate,
            "{} beats its bound on\n{topology}",
            found.schedule().name
        );
        assert_eq!(
            exchange(&topology, &Options::default()).as_ref(),
            Some(&found),
            "twice the same\n{topology}"
        );
        prove(found.schedule());
        let bundled = topology.bundled();
        if let Ok(Some(straight)) = rate(&pairwise(topology.ranks()), &bundled) {
            assert!(found.rate() >= straight, "pairwise is faster on\n{topology}");
        }
        let most = found.at_most().unwrap_or(found.bound().rate.value());
        let share = found.rate().value() / most;
        assert!(share < 1.0 + 1e-9, "{share} of the flow on\n{topology}");
        (least, sum, count) = (least.min(share), sum + share, count + 1);
        let options = simulate::Options { work: false, ..simulate::Options::new(1 << 16) };
        let seconds = simulate(found.schedule(), &bundled, &options).expect("a time").seconds();
        let simulated = f64::from(topology.ranks()) * f64::from(1 << 16) / seconds;
        assert!(simulated <= found.rate().value() * (1.0 + 1e-4), "simulated above its rate on\n{topology}");
    }
    println!(
        "{count} machines ({none} without ways): {:.4} of the flow on average, {least:.4} at least",
        sum / f64::from(count)
    );
    // What is seen is 0.96 and 0.69: few pieces of odd links, and a dual that is loose after a counted number of rounds.
    assert!(count > 100 && sum / f64::from(count) > 0.94 && least > 0.6, "{count}, {sum}, {least}");
}

/// The topology without the links between two ranks, both ways.
fn without(topology: &Topology, one: u32, other: u32) -> Topology {
    let mut damaged = Topology::new(format!("{}-damaged", topology.name), topology.costs);
    damaged.relay = topology.relay;
    for node in topology.nodes() {
        damaged.add_node(node.name.clone(), node.kind);
    }
    let lost = |link: &Link| [(one, other), (other, one)].contains(&(link.from.0, link.to.0));
    for link in topology.links().iter().filter(|link| !lost(link)) {
        let _: LinkId = damaged.add_link(*link);
    }
    damaged
}

#[test]
fn damaged_boxes_are_near_their_flow() {
    for (name, one, other) in [
        ("dgx-1", 0, 3),
        ("dgx-1", 0, 4),
        ("mi300x", 2, 5),
        ("torus-4x4", 0, 1),
        ("hypercube-4", 3, 7),
        ("mi250", 0, 8),
        ("ndv2-x2", 2, 6),
    ] {
        let damaged = without(&fabric(name), one, other);
        let found = found(&damaged);
        let most = found.at_most().unwrap_or(found.bound().rate.value());
        let share = found.rate().value() / most;
        println!("{name} without {one}-{other}: {:.4} of the bound, {share:.4} of the flow", found.share());
        // The torus has 0.92 of what its flow's dual allows.
        assert!(share > 0.9 && found.rate() <= found.bound().rate, "{name}: {share}");
        prove(found.schedule());
    }
}

#[test]
fn fewer_pieces_are_respected_and_cost_rate() {
    let topology = fabric("dgx-1");
    let mut before = Ratio::ZERO;
    for pieces_max in [1, 2, 16] {
        let found =
            exchange(&topology, &Options { pieces_max, ..Options::default() }).expect("an all-to-all");
        assert!(found.pieces() <= pieces_max && found.rate() >= before);
        before = found.rate();
    }
    // 16 blocks over 6 links are 3 on one of them.
    let one = exchange(&topology, &Options { pieces_max: 1, ..Options::default() }).expect("an all-to-all");
    assert!(one.rate() < before, "{} and {before}", one.rate());
}

#[test]
fn what_cannot_exchange_has_no_schedule() {
    let alone = profile("torus:1").expect("a profile");
    assert_eq!(exchange(&alone, &Options::default()), None);
    let mut apart = fabric("amd-hive-ring");
    for (one, other) in [(0, 1), (2, 3), (0, 2), (1, 3)] {
        apart = without(&apart, one, other);
    }
    assert_eq!(exchange(&apart, &Options::default()), None);
}
