//! Bounds: fabrics whose optimum is published, exhaustive search on small machines, schedules that must not be faster,
//! and damaged machines.

mod damaged;
mod exhaustive;
mod table;

use consort_algorithms::builders::{SwitchForm, switch, switch_tree};
use consort_algorithms::topology::{Topology, dgx_h100, parse, profile};

use crate::common::machines::{share_of_bound, shares};
use crate::common::{Random, seed};

/// A fabric of `algorithms/fabrics`, or a profile.
pub(crate) fn fabric(name: &str) -> Topology {
    let file = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("fabrics/{name}.topology"));
    match std::fs::read_to_string(&file) {
        Ok(text) => parse(&text).unwrap_or_else(|fault| panic!("{name}: {fault}")),
        Err(_) => profile(name).unwrap_or_else(|fault| panic!("{fault}")),
    }
}

#[test]
fn no_schedule_beats_its_bound() {
    let mut random = Random::new(seed(0xb0d));
    let (mut timed, mut most) = (0, 0.0f64);
    for _ in 0..300 {
        let (here, share) = shares(&mut random);
        timed += here;
        most = most.max(share);
    }
    println!("{timed} schedules; the best is {most:.6} of its bound");
    // Otherwise the machines are such that nothing could be near.
    assert!(timed > 3000 && most > 0.95, "{timed} schedules, {most}");
}

#[test]
fn switches_that_fold_do_not_beat_the_bound_in_the_network() {
    let topology = dgx_h100(1);
    for form in [SwitchForm::OneShot, SwitchForm::TwoStep] {
        let share = share_of_bound(&switch(8, form), &topology, 256 << 20).expect("a time");
        assert!(share < 1.0 && share > 0.05, "{form:?}: {share}");
    }
    let tree = share_of_bound(&switch_tree(16, 8), &dgx_h100(2), 64 << 20);
    assert!(tree.is_none_or(|share| share < 1.0), "{tree:?}");
}
