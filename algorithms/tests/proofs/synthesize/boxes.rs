//! Trees along rails: what leaves a box limits them, also where a box lacks an adapter, a GPU or a link.

use consort_algorithms::bounds::Ratio;
use consort_algorithms::bounds::{self, bound};
use consort_algorithms::synthesize::boxes::{
    Boxed, Options, all_gather, all_reduce, chained, frontier, rails_of_unlike,
};
use consort_algorithms::synthesize::{offer_over_boxes, rate};
use consort_algorithms::{Collective, whole};

use super::{fabric, prove, without};

fn made(name: &str, gone: &[&str]) -> Boxed {
    let topology = without(&fabric(name), gone);
    let found = all_reduce(&topology, &Options::default()).unwrap_or_else(|| panic!("{name}: nothing"));
    assert_eq!(rate(&found.schedule(), &topology).expect("routes"), Some(found.rate()), "{name}");
    assert!(found.rate() <= found.bound(), "{name}");
    assert_eq!(Some(&found), all_reduce(&topology, &Options::default()).as_ref(), "{name}, again");
    found
}

fn share(found: &Boxed) -> f64 {
    found.rate().value() / found.bound().value()
}

#[test]
fn whole_boxes_are_at_what_leaves_a_box() {
    for (name, numerator, denominator, height) in [
        ("dgx-a100:2", 1200, 7, 2),
        ("dgx-a100-x4", 400, 3, 3),
        // NVLink of the ranks at the doors limits it, as over two boxes.
        ("dgx-h100:4", 1800, 7, 4),
        ("dgx-h100:8", 1600, 7, 5),
    ] {
        let found = made(name, &[]);
        assert_eq!(found.rate(), Ratio::new(numerator * 1_000_000_000, denominator), "{name}");
        assert!(found.height() <= height, "{name}: {}", found.height());
        if found.schedule().ranks <= 32 {
            prove(&found.schedule(), name);
        }
    }
}

#[test]
fn at_most_eight_trees_fill_the_doors_of_a_few_boxes() {
    // The least share of the bound, in thousandths.
    for (name, least) in [
        ("dgx-a100-x4", 1000),
        ("dgx-h100:4", 960),
        ("dgx-h100:5", 1000),
        ("dgx-h100:7", 960),
        ("dgx-h100:8", 980),
        ("dgx-h100:9", 1000),
        ("dgx-h100:10", 950),
        ("dgx-h100:12", 970),
        ("dgx-h100:14", 980),
        ("dgx-h100-x16", 995),
        // One tree a rail.
        ("dgx-h100:20", 950),
    ] {
        let topology = fabric(name);
        let found = frontier(&topology, &Options::default());
        let few = found.iter().rfind(|of| of.trees().len() <= 8).unwrap_or_else(|| panic!("{name}: none"));
        assert!(share(few) * 1000.0 >= f64::from(least) - 1e-6, "{name}: {}", share(few));
        assert_eq!(rate(&few.schedule(), &topology).expect("routes"), Some(few.rate()), "{name}");
        if topology.ranks() <= 32 {
            prove(&few.schedule(), name);
        }
    }
}

#[test]
fn a_box_that_lacks_something_costs_a_few_parts_in_a_hundred() {
    for (name, gone, least) in [
        ("dgx-h100:2", &["nic0.7"][..], 0.97),
        ("dgx-h100:2", &["r3"], 0.95),
        ("dgx-h100:4", &["nic2.0"], 0.95),
        ("dgx-h100:4", &["r9", "nic1.1"], 0.95),
        ("dgx-h100:4", &["r7/nvswitch0"], 0.95),
        ("dgx-h100:4", &["nic3.3/rail3"], 0.95),
    ] {
        let found = made(name, gone);
        assert!(share(&found) >= least, "{name} without {gone:?}: {}", share(&found));
        if found.schedule().partition.parts <= 64 {
            prove(&found.schedule(), name);
        }
    }
}

#[test]
fn trees_on_many_channels_are_near_the_bound_where_boxes_are_not_alike() {
    for (name, gone, least) in [
        ("dgx-h100:2", &["nic0.7"][..], 0.90),
        ("dgx-h100:3", &["nic0.7"], 0.90),
        ("dgx-h100:3", &["r9"], 0.90),
        ("dgx-h100:4", &["r9", "nic1.1"], 0.90),
        ("dgx-h100:4", &["r7/nvswitch0"], 0.90),
        ("dgx-h100:8", &["nic0.7"], 0.94),
        ("dgx-h100:16", &["nic0.7"], 0.94),
    ] {
        let topology = without(&fabric(name), gone);
        let what = format!("{name} without {gone:?}");
        assert!(rails_of_unlike(&topology).is_some(), "{what}");
        let found = chained(&topology, 16).unwrap_or_else(|| panic!("{what}: nothing"));
        assert_eq!(rate(&found.schedule, &topology).expect("routes"), Some(found.rate), "{what}");
        let bound = bound(&topology, Collective::AllReduce, &bounds::Options::default()).expect("a bound");
        let share = found.rate.value() / bound.rate.value();
        assert!((least..1.0 + 1e-9).contains(&share), "{what}: {share}");
        if topology.ranks() <= 32 {
            prove(&chained(&topology, 4).expect("trees").schedule, &what);
        }
    }
}

#[test]
fn only_boxes_that_are_not_alike_have_an_offer_over_boxes() {
    let whole = fabric("dgx-h100:4");
    assert_eq!(offer_over_boxes(&whole), None);
    let damaged = without(&whole, &["nic0.7"]);
    let offer = offer_over_boxes(&damaged).expect("an offer");
    assert_eq!((offer.hops, offer.schedule.partition.parts), (Some([2, 7]), 128));
    assert_eq!(Some(&offer), offer_over_boxes(&damaged).as_ref(), "again");
}

#[test]
fn one_adapter_of_eight_is_at_most_six_parts_in_a_hundred() {
    for boxes in [2, 8] {
        let name = format!("dgx-h100:{boxes}");
        let (whole, damaged) = (made(&name, &[]), made(&name, &["nic0.7"]));
        let slower = whole.rate().value() / damaged.rate().value();
        assert!(slower <= 1.06, "{name}: {slower}");
    }
}

#[test]
fn all_gathers_by_rails_are_at_what_leaves_a_box() {
    let topology = fabric("dgx-a100:4");
    let found = all_gather(&topology).expect("equal boxes");
    let schedule = whole(&found);
    assert_eq!(schedule.collective, Collective::AllGather);
    let gb = 1_000_000_000u128;
    assert_eq!(rate(&schedule, &topology).expect("routes"), Some(Ratio::new(800 * gb, 3)));
    prove(&schedule, "all-gather");
    // Boxes that differ have none.
    assert!(all_gather(&without(&topology, &["r3"])).is_none());
    assert!(all_gather(&without(&topology, &["nic0.3"])).is_none());
    assert!(all_gather(&fabric("dgx-a100:1")).is_none());
}
