//! Packed trees: at the bound on known fabrics, near it on damaged ones, never above it.

use consort_algorithms::bounds::{Options as Asked, Ratio, bound};
use consort_algorithms::synthesize::rate;
use consort_algorithms::synthesize::trees::{Options, Trees, all_reduce, frontier};
use consort_algorithms::topology::Topology;
use consort_algorithms::{Collective, Rank};

use super::{fabric, prove, without};
use crate::common::machines::machine;
use crate::common::{Random, seed};

fn share(trees: &Trees) -> f64 {
    trees.rate().value() / trees.bound().value()
}

/// Each tree holds all ranks, what is counted by hand is what is said, and nothing is above the bound.
fn check(topology: &Topology, trees: &Trees, what: &str) {
    let schedule = trees.schedule();
    assert_eq!(rate(&schedule, topology).expect("routes"), Some(trees.rate()), "{what}");
    let most = bound(topology, Collective::AllReduce, &Asked::default()).expect("a bound").rate;
    assert_eq!(trees.bound(), most, "{what}");
    assert!(trees.rate() <= trees.limit() && trees.limit() <= most, "{what}: {:?}", trees.rate());
    for tree in trees.trees() {
        assert_eq!(tree.parents.iter().filter(|parent| parent.is_none()).count(), 1, "{what}");
    }
}

#[test]
fn trees_are_at_the_bound_of_known_fabrics() {
    // The least share of the bound with at most 8 trees, in thousandths; with any number of trees they are at the
    // bound.
    for (name, few) in [
        ("dgx-1", 990),
        ("amd-hive-ring", 1000),
        ("dgx-a100-x1", 1000),
        ("dgx-a100-x2", 980),
        ("dgx-h100-x2", 1000),
        ("mi250", 950),
        ("mi300x", 1000),
        ("torus-4x4", 995),
        ("torus-4x4x4", 980),
        ("hypercube-3", 1000),
        ("hypercube-4", 995),
        ("pcie-dual-root", 1000),
    ] {
        let topology = fabric(name);
        let found = frontier(&topology, &Options::default());
        for (one, next) in found.iter().zip(&found[1..]) {
            assert!(one.rate() < next.rate(), "{name}: more trees are faster");
        }
        let best = found.last().unwrap_or_else(|| panic!("{name}: no trees"));
        check(&topology, best, name);
        assert!(share(best) >= 0.999, "{name}: {}", share(best));
        prove(&best.schedule(), name);
        let of_few = found.iter().rfind(|trees| trees.trees().len() <= 8).expect("one tree");
        assert!(
            share(of_few) * 1000.0 >= f64::from(few),
            "{name}: {} by {}",
            share(of_few),
            of_few.trees().len()
        );
    }
}

#[test]
fn rates_are_exact_numbers() {
    let gb = 1_000_000_000u128;
    for (name, numerator, denominator) in
        [("dgx-1", 600, 7), ("dgx-h100-x2", 800, 3), ("mi250", 1200, 7), ("pcie-dual-root", 96, 7)]
    {
        let found = all_reduce(&fabric(name), &Options::default()).expect("trees");
        assert_eq!(found.rate(), Ratio::new(numerator * gb, denominator), "{name}");
    }
}

#[test]
fn damaged_boxes_are_near_their_bound() {
    let all = Options::default();
    for (name, gone, least) in [
        ("dgx-1", &["gpu7"][..], 0.999),
        ("dgx-1", &["gpu5", "gpu6", "gpu7"], 0.999),
        ("dgx-1", &["gpu0/gpu1"], 0.999),
        ("dgx-a100:1", &["r7"], 0.999),
        ("dgx-a100:1", &["r2", "r5", "r6"], 0.999),
        // What trees lose there by using NVLink and adapters of two unequal boxes is proved: the limit is below the
        // bound.
        ("dgx-h100:2", &["nic0.7"], 0.985),
        ("dgx-h100:2", &["r3"], 0.98),
        ("dgx-h100:2", &["r7/nvswitch0"], 0.999),
    ] {
        let topology = without(&fabric(name), gone);
        let what = format!("{name} without {gone:?}");
        let found = all_reduce(&topology, &all).unwrap_or_else(|| panic!("{what}: no trees"));
        check(&topology, &found, &what);
        assert!(share(&found) >= least, "{what}: {}", share(&found));
        prove(&found.schedule(), &what);
        assert_eq!(all_reduce(&topology, &all).as_ref(), Some(&found), "{what}, again");
    }
}

#[test]
fn random_machines_have_trees_within_their_bound() {
    random(60, 0x7ee5);
}

/// `cargo test --release -p consort-algorithms --test proofs synthesize::trees -- --ignored`
#[test]
#[ignore = "minutes"]
fn thousands_of_random_machines_have_trees_within_their_bound() {
    random(5000, 0x7ee6);
}

fn random(count: usize, own: u64) {
    let mut random = Random::new(seed(own));
    let options = Options { steps: 400_000, ..Options::default() };
    let (mut made, mut at_limit) = (0, 0);
    for number in 0..count {
        let topology = machine(&mut random, 10, 4);
        let bundled = topology.bundled();
        // Pairs of ranks may have no way back.
        let Some(found) = all_reduce(&topology, &options) else { continue };
        check(&bundled, &found, &format!("machine {number}:\n{topology}"));
        made += 1;
        at_limit += usize::from(found.rate().value() >= 0.97 * found.limit().value());
        if number % 10 == 0 {
            prove(&found.schedule(), &format!("machine {number}"));
        }
    }
    println!("{made} of {count} machines have trees, {at_limit} of them within 3 % of what trees can");
    assert!(made * 2 > count && at_limit * 2 > made, "{made} made, {at_limit} at the limit");
}

#[test]
fn ranks_that_are_apart_or_alone_have_no_trees() {
    assert_eq!(all_reduce(&without(&fabric("dgx-a100:1"), &["nvswitch0"]), &Options::default()), None);
    let one = without(&fabric("dgx-a100:1"), &["r1", "r2", "r3", "r4", "r5", "r6", "r7"]);
    assert_eq!(one.boxes(), [[Rank(0)]]);
    assert_eq!(all_reduce(&one, &Options::default()), None);
}
