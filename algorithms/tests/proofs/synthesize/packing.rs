//! Trees packed into known fabrics and random machines: at the bound, never above it, the same on a second run.

use std::collections::hash_map::DefaultHasher;
use std::fmt::Write;
use std::hash::{Hash, Hasher};

use consort_algorithms::bounds::{Bound, Options as BoundOptions, Ratio, bound};
use consort_algorithms::passes::{fuse, replicate, stagger};
use consort_algorithms::simulate::{Options as SimulateOptions, simulate};
use consort_algorithms::synthesize::packing::{FEW, Forest, Options, TREES_MAX, forest, frontier};
use consort_algorithms::synthesize::rate;
use consort_algorithms::topology::NodeKind;
use consort_algorithms::{Collective, LowerOptions, Plan, Rank, Schedule, Topology, lower_all, verify};

use crate::bounds::fabric;
use crate::common::machines::machine;
use crate::common::{Random, seed};

const COLLECTIVES: [Collective; 4] =
    [Collective::AllGather, Collective::ReduceScatter, Collective::Broadcast, Collective::Reduce];

/// A fabric and the trees of a root of the optimal all-gather.
const TABLE: [(&str, u32); 15] = [
    ("dgx-1", 6),
    ("amd-hive-ring", 2),
    ("ndv2-x2", 1),
    ("dgx-a100-x1", 1),
    ("dgx-a100-x2", 13),
    ("dgx-a100-x4", 1),
    ("dgx-h100-x1", 1),
    ("dgx-h100-x2", 2),
    ("mi250", 3),
    ("mi300x", 1),
    ("torus-4x4", 4),
    ("torus-4x4x4", 2),
    ("hypercube-3", 3),
    ("hypercube-4", 4),
    ("pcie-dual-root", 1),
];

fn bound_of(topology: &Topology, collective: Collective) -> Bound {
    bound(topology, collective, &BoundOptions { root: Some(Rank(0)), in_network: false }).expect("a bound")
}

/// Lowers, proves, fuses and proves again.
fn prove(schedule: &Schedule, what: &str) {
    let plans =
        lower_all(schedule, &LowerOptions { slots: 4 }).unwrap_or_else(|error| panic!("{what}: {error}"));
    let proof = verify(&plans).unwrap_or_else(|refusal| panic!("{what}: {refusal}"));
    let fused: Vec<Plan> = plans.iter().map(|plan| fuse(plan, &|_| true)).collect();
    let again = verify(&fused).unwrap_or_else(|refusal| panic!("{what}, fused: {refusal}"));
    assert_eq!(proof.fold_hash, again.fold_hash, "{what}");
}

fn hash(forest: &Forest) -> u64 {
    let mut hasher = DefaultHasher::new();
    for tree in &forest.trees {
        (tree.root, &tree.parents, tree.share).hash(&mut hasher);
    }
    hasher.finish()
}

#[test]
fn every_fabric_of_the_table_is_at_its_bound() {
    // Packing into the largest takes seconds without optimisation.
    for (name, optimal) in TABLE.into_iter().filter(|(name, _)| *name != "torus-4x4x4") {
        let topology = fabric(name).bundled();
        for collective in COLLECTIVES {
            let what = format!("{collective} on {name}");
            let bound = bound_of(&topology, collective);
            let found = forest(&topology, collective, Rank(0), &Options::default());
            let found = found.unwrap_or_else(|| panic!("{what}: no trees"));
            assert_eq!(found.rate(), bound.rate, "{what}");
            let schedule = found.schedule(64);
            assert_eq!(rate(&schedule, &topology), Ok(Some(bound.rate)), "{what}");
            if matches!(collective, Collective::AllGather | Collective::ReduceScatter) {
                assert_eq!(found.trees_per_root, optimal, "{what}");
            }
            prove(&schedule, &what);
        }
    }
}

#[test]
fn few_trees_are_near_the_bound_or_the_best_of_their_number() {
    for (name, _) in TABLE.into_iter().filter(|(name, _)| *name != "torus-4x4x4") {
        let topology = fabric(name).bundled();
        let bound = bound_of(&topology, Collective::AllGather);
        let found = frontier(&topology, Collective::AllGather, Rank(0), &Options::default());
        for pair in found.windows(2) {
            assert!(
                pair[0].trees_per_root < pair[1].trees_per_root && pair[0].rate() < pair[1].rate(),
                "{name}"
            );
        }
        for forest in &found {
            assert!(forest.is_best, "{name}: {} trees", forest.trees_per_root);
        }
        let few = found.iter().rfind(|forest| forest.trees_per_root <= FEW[3]).expect("few trees");
        assert!(few.rate().value() >= 0.95 * bound.rate.value(), "{name}: {}", few.rate().value());
    }
}

/// ForestColl's figures for one tree a root (arXiv 2402.06787).
#[test]
fn one_tree_a_root_has_the_published_rate() {
    let giga = |numerator: u128, denominator: u128| Ratio::new(numerator * 1_000_000_000, denominator);
    for (name, expected) in
        [("dgx-a100-x1", giga(2400, 7)), ("dgx-a100-x2", giga(2400, 7)), ("mi250", giga(800, 3))]
    {
        let options = Options { trees_per_root_max: 1, ..Options::default() };
        let found = forest(&fabric(name).bundled(), Collective::AllGather, Rank(0), &options).expect("trees");
        assert_eq!(found.rate(), expected, "{name}");
    }
}

#[test]
fn long_calls_reach_the_rate_in_the_simulator() {
    for name in ["amd-hive-ring", "hypercube-3", "dgx-1"] {
        let topology = fabric(name).bundled();
        let found = forest(&topology, Collective::AllGather, Rank(0), &Options::default()).expect("trees");
        let block_bytes = (1usize << 33) / topology.ranks() as usize;
        let options = SimulateOptions {
            work: false,
            slot_bytes: 1 << 20,
            messages_max: 1 << 16,
            ..SimulateOptions::new(block_bytes)
        };
        let time = simulate(&found.schedule(1024), &topology, &options).expect("a time").seconds();
        let share = (block_bytes * topology.ranks() as usize) as f64 / time / found.rate().value();
        assert!(share > 0.98 && share < 1.0 + 1e-4, "{name}: {share}");
    }
}

/// The trees of a root with which every capacity of a machine is a whole number of trees at the bound, or more.
fn optimal_trees(topology: &Topology, bound: &Bound) -> u128 {
    let gcd = |mut one: u64, mut other: u64| {
        while other != 0 {
            (one, other) = (other, one % other);
        }
        one
    };
    let limits = topology.nodes().iter().flat_map(|node| match node.kind {
        NodeKind::Rank { inject_bytes_s, eject_bytes_s, .. } => [inject_bytes_s, eject_bytes_s],
        _ => [None, None],
    });
    let links = topology.links().iter().map(|link| link.bandwidth_bytes_s);
    let common = links.chain(limits.flatten()).reduce(gcd).unwrap_or(1);
    let is_rooted = matches!(bound.collective, Collective::Broadcast | Collective::Reduce);
    let roots = if is_rooted { 1 } else { topology.ranks() };
    let of_root = bound.rate.checked_mul(Ratio::new(1, u128::from(roots) * u128::from(common)));
    of_root.expect("small numbers").numerator()
}

/// What packing does on one random machine, with paths as the topology has them or any.
fn check(random: &mut Random, tally: &mut [u32; 4], proofs: bool) {
    let topology = machine(random, 8, 4).bundled();
    let collective = random.pick(&COLLECTIVES);
    let bound = bound_of(&topology, collective);
    for routed in [true, false] {
        let options = Options { routed, ..Options::default() };
        let found = frontier(&topology, collective, Rank(0), &options);
        let again = frontier(&topology, collective, Rank(0), &options);
        let hashes = |all: &[Forest]| all.iter().map(hash).collect::<Vec<u64>>();
        assert_eq!(hashes(&found), hashes(&again), "{collective} on\n{topology}");
        let mut text = String::new();
        for forest in &found {
            let _ = write!(text, " {}: {}", forest.trees_per_root, forest.rate());
            assert!(forest.rate() <= bound.rate, "{collective}, {text}, {} on\n{topology}", bound.rate);
        }
        let Some(best) = found.last() else { continue };
        tally[0] += 1;
        if routed {
            let schedule = best.schedule(64);
            let reached = rate(&schedule, &topology).expect("routes").expect("a limit");
            let is_within = reached >= best.rate() && reached <= bound.rate;
            assert!(is_within, "{collective}: {reached}, {text}, {} on\n{topology}", bound.rate);
            tally[1] += u32::from(reached == bound.rate);
            if proofs {
                prove(&schedule, &format!("{collective} on\n{topology}"));
            }
            continue;
        }
        if bound.exact && optimal_trees(&topology, &bound) <= TREES_MAX.into() {
            assert_eq!(best.rate(), bound.rate, "{collective}, {text} on\n{topology}");
        }
        tally[2] += u32::from(best.rate() == bound.rate);
        tally[3] += u32::from(bound.exact);
    }
}

#[test]
fn random_machines_are_never_above_their_bound_and_balanced_ones_at_it() {
    let mut random = Random::new(seed(0x7ace));
    let mut tally = [0; 4];
    for _ in 0..120 {
        check(&mut random, &mut tally, true);
    }
    let [all, routed, any, exact] = tally;
    println!("{all} packings; at the bound: {routed} on routes, {any} on any path; {exact} bounds are exact");
    assert!(all > 200 && routed > 40 && any > 60 && exact > 40, "{tally:?}");
}

/// `cargo test --release -p consort-algorithms --test proofs thousands_of_random -- --ignored --nocapture`
#[test]
#[ignore = "takes minutes"]
fn thousands_of_random_machines_are_never_above_their_bound() {
    let mut random = Random::new(seed(0x7acf));
    let mut tally = [0; 4];
    for _ in 0..5000 {
        check(&mut random, &mut tally, false);
    }
    println!("{tally:?}");
}

#[test]
fn staggered_copies_are_proved_and_hide_latency() {
    let topology = fabric("dgx-1");
    for collective in COLLECTIVES {
        let found = forest(&topology, collective, Rank(0), &Options::default()).expect("trees");
        let schedule = found.schedule(64);
        let staggered = stagger(&schedule, 2, 3);
        super::prove(&staggered, collective.name());
        let known = rate(&schedule, &topology).expect("routes");
        assert_eq!(rate(&staggered, &topology).expect("routes"), known, "{collective}");
    }
    // A box whose trees are equally long, so that all messages in step are.
    let topology = fabric("dgx-h100-x1");
    let found = forest(&topology, Collective::Broadcast, Rank(0), &Options::default()).expect("trees");
    let schedule = found.schedule(64);
    let options = SimulateOptions { slot_bytes: 1 << 20, work: false, ..SimulateOptions::new(1 << 30) };
    let time = |schedule: &Schedule| simulate(schedule, &topology, &options).expect("routes").seconds();
    let (out_of_step, in_step) = (time(&stagger(&schedule, 2, 3)), time(&replicate(&schedule, 2)));
    assert!(out_of_step < in_step, "{out_of_step} s, {in_step} s in step");
}
