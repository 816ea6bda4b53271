//! No schedule of the catalogue beats its bound on thousands of random machines; what bounds cost on large machines.

use std::time::Instant;

use consort_algorithms::bounds::{Options, bound};
use consort_algorithms::topology::profile;

use crate::common::machines::{BOUNDED, shares};
use crate::common::{Random, seed};

#[test]
fn no_schedule_beats_its_bound_on_thousands_of_machines() {
    let mut random = Random::new(seed(0xb0d_1000));
    let (mut timed, mut most) = (0, 0.0f64);
    for _ in 0..4000 {
        let (here, share) = shares(&mut random);
        timed += here;
        most = most.max(share);
    }
    println!("{timed} schedules; the best is {most:.6} of its bound");
    assert!(timed > 40_000 && most > 0.99, "{timed} schedules, {most}: the machines say nothing");
}

/// `cargo test --release -p consort-algorithms --test long bounds:: -- --ignored --nocapture`
#[test]
#[ignore = "a measurement: build with --release"]
fn what_bounds_of_large_machines_cost() {
    for name in ["dgx-h100:32", "torus:16x16", "dgx-h100-flat:128", "dgx-h100:128", "torus:32x32"] {
        let topology = profile(name).expect("a profile");
        for collective in BOUNDED {
            let began = Instant::now();
            let found = bound(&topology, collective, &Options::default()).expect("a bound");
            let exact = if found.exact { "exact" } else { "at most" };
            println!(
                "{name} {collective}: {:.4} GB/s ({exact}, {}) in {:.3} s",
                found.gb_s(),
                found.argument,
                began.elapsed().as_secs_f64()
            );
        }
    }
}
