//! The optimum of known fabrics, to the last digit that is published, and the cuts in words.
//!
//! Source of the figures: L. Zhao et al., "ForestColl" (arXiv 2402.06787) for all-gather on DGX A100 and MI250, Z. Cai et al.,
//! "Synthesizing optimal collective algorithms" (SCCL, PPoPP 2021) for DGX-1, X. Liu et al., "Rethinking machine learning
//! collective communication as a multi-commodity flow problem" (TE-CCL, SIGCOMM 2024) for NDv2; the others follow from
//! the formulas of the module.

use std::fmt::Write;

use consort_algorithms::Collective;
use consort_algorithms::bounds::{Bound, Options, Ratio, bound};

use super::fabric;
use crate::common::snapshot;

/// A row: the fabric; GB/s of all-gather (and reduce-scatter), all-to-all, all-reduce, all-reduce in the network, and
/// broadcast (and reduce) with the digits that are known; the least number of steps. Empty where nothing is known.
const TABLE: [(&str, [&str; 5], Option<u32>); 17] = [
    ("dgx-1", ["171.43", "75.0", "85.71", "", "150"], Some(2)),
    ("amd-hive-ring", ["2.667", "2.0", "1.333", "", "2"], Some(2)),
    ("ndv2-x2", ["25.0", "3.125", "12.5", "12.5", "12.5"], Some(5)),
    ("dgx-a100-x1", ["342.86", "342.86", "171.43", "300", "300"], Some(1)),
    ("dgx-a100-x2", ["346.67", "50.0", "173.33", "200", "200"], Some(1)),
    ("dgx-a100-x4", ["266.67", "33.33", "133.33", "200", "200"], None),
    ("dgx-h100-x2", ["533.33", "100", "266.67", "400", "400"], None),
    ("dgx-h100-x16", ["426.67", "53.33", "213.33", "400", "400"], None),
    ("dgx-h100-flat:128", ["403.15", "50.39", "201.57", "400", "400"], None),
    ("mi250", ["342.86", "75.0", "171.43", "", "300"], Some(5)),
    ("mi300x", ["512.0", "512", "256", "", "448"], Some(1)),
    ("torus-4x4", ["4.267", "2.0", "2.133", "", "4"], Some(4)),
    ("torus-4x4x4", ["6.095", "2.0", "3.048", "", "6"], Some(6)),
    ("hypercube-3", ["3.429", "2.0", "1.714", "", "3"], Some(3)),
    ("hypercube-4", ["4.267", "2.0", "2.133", "", "4"], Some(4)),
    ("pcie-dual-root", ["27.43", "12.0", "13.71", "24", "24"], Some(1)),
    ("dgx-h100-x1", ["", "", "", "450", ""], Some(1)),
];

fn found(name: &str, collective: Collective, in_network: bool) -> Bound {
    bound(&fabric(name), collective, &Options { root: None, in_network }).expect("a bound")
}

/// With as many digits as `like`.
fn digits(bound: &Bound, like: &str) -> String {
    let after = like.split_once('.').map_or(0, |(_, after)| after.len());
    format!("{:.after$}", bound.gb_s())
}

#[test]
fn bounds_of_known_fabrics_are_the_published_ones() {
    for (name, columns, steps) in TABLE {
        let [gather, exchange, reduce, in_network, broadcast] = columns;
        for (collective, expected, folds) in [
            (Collective::AllGather, gather, false),
            (Collective::ReduceScatter, gather, false),
            (Collective::AllToAll, exchange, false),
            (Collective::AllReduce, reduce, false),
            (Collective::AllReduce, in_network, true),
            (Collective::Broadcast, broadcast, false),
            (Collective::Reduce, broadcast, false),
        ] {
            if expected.is_empty() {
                continue;
            }
            let bound = found(name, collective, folds);
            assert_eq!(digits(&bound, expected), expected, "{collective} on {name}: {bound:?}");
            // Published as the optimum, not only as a bound. No flow that fills MI250's cut was found.
            let is_open = folds || (name, collective) == ("mi250", Collective::AllToAll);
            assert!(bound.exact || is_open, "{collective} on {name}: {bound:?}");
            if let Some(steps) = steps {
                assert_eq!(bound.steps, Some(steps), "{collective} on {name}");
            }
        }
    }
}

#[test]
fn bounds_are_exact_numbers() {
    let gb = 1_000_000_000u128;
    for (name, collective, numerator, denominator) in [
        ("dgx-1", Collective::AllGather, 1200, 7),
        ("dgx-a100-x2", Collective::AllGather, 1040, 3),
        ("dgx-a100-x2", Collective::AllReduce, 520, 3),
        ("dgx-h100-x16", Collective::AllGather, 1280, 3),
        ("dgx-h100-flat:128", Collective::AllToAll, 6400, 127),
        ("mi250", Collective::AllReduce, 1200, 7),
        ("torus-4x4x4", Collective::AllReduce, 64, 21),
        ("pcie-dual-root", Collective::AllGather, 192, 7),
    ] {
        let rate = found(name, collective, false).rate;
        assert_eq!(rate, Ratio::new(numerator * gb, denominator), "{collective} on {name}");
    }
}

/// The box's graph and the rails of a profile lose nothing against one switch between all GPUs.
#[test]
fn rails_and_adapters_allow_what_a_flat_network_allows() {
    for boxes in [1, 2, 3, 5] {
        for collective in [Collective::AllGather, Collective::AllReduce, Collective::AllToAll] {
            let rails = found(&format!("dgx-h100:{boxes}"), collective, false);
            let flat = found(&format!("dgx-h100-flat:{boxes}"), collective, false);
            assert_eq!((rails.rate, rails.exact), (flat.rate, flat.exact), "{collective}, {boxes} boxes");
        }
    }
}

#[test]
fn the_committed_fabrics_are_the_profiles() {
    for (file, name) in [
        ("dgx-a100-x2", "dgx-a100-flat:2"),
        ("dgx-a100-x4", "dgx-a100-flat:4"),
        ("dgx-h100-x1", "dgx-h100-flat:1"),
        ("dgx-h100-x16", "dgx-h100-flat:16"),
    ] {
        let (file, profile) = (fabric(file), fabric(name));
        let shape = |topology: &consort_algorithms::Topology| {
            let links = topology.links().iter().map(|link| (link.from, link.to, link.bandwidth_bytes_s));
            (topology.boxes(), links.collect::<std::collections::BTreeSet<_>>())
        };
        assert_eq!(shape(&file), shape(&profile), "{name}");
    }
}

/// `CONSORT_SNAPSHOTS=write` writes the file anew.
#[test]
fn cuts_in_words_are_the_committed_ones() {
    let mut text = String::new();
    for (name, ..) in TABLE {
        let _ = writeln!(text, "{name}");
        for (collective, folds) in [
            (Collective::AllGather, false),
            (Collective::ReduceScatter, false),
            (Collective::AllToAll, false),
            (Collective::AllReduce, false),
            (Collective::AllReduce, true),
            (Collective::Broadcast, false),
            (Collective::Reduce, false),
        ] {
            let bound = found(name, collective, folds);
            let way = if folds { " in the network" } else { "" };
            let exact = if bound.exact { "exact" } else { "at most" };
            let (rate, argument, words) = (bound.gb_s(), bound.argument, &bound.cut.words);
            let _ = writeln!(text, "  {collective}{way}: {rate:.3} GB/s, {exact}, {argument}: {words}");
        }
    }
    snapshot("bounds.txt", &text);
}
