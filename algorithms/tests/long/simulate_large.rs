//! The simulator's time for 1,024 ranks, and a check that the schedules used are right.

use std::time::Instant;

use consort_algorithms::builders::{RingOptions, ring};
use consort_algorithms::simulate::{Options, simulate};
use consort_algorithms::topology::dgx_h100;
use consort_algorithms::{Collective, LowerOptions, lower_all, verify};

use crate::common::shapes::{double_tree, hierarchical};

#[test]
fn the_schedules_over_boxes_are_all_reduces() {
    for (boxes, in_box) in [(2, 2), (2, 4), (3, 2), (4, 1), (4, 3), (5, 2)] {
        let mut schedules = vec![double_tree(boxes, in_box, 1), double_tree(boxes, in_box, 2)];
        if in_box > 1 {
            schedules.push(hierarchical(boxes, in_box));
        }
        for mut schedule in schedules {
            // Up and down in one lane: the root reads what it wrote.
            let transfers = schedule.rounds.iter_mut().flat_map(|round| &mut round.transfers);
            transfers.for_each(|transfer| transfer.channel.0 /= 2);
            let plans = lower_all(&schedule, &LowerOptions { slots: 8 }).expect("it lowers");
            verify(&plans).unwrap_or_else(|refusal| panic!("{}: {refusal}", schedule.name));
        }
    }
}

/// `cargo test --release -p consort-algorithms --test long simulate_large:: -- --ignored --nocapture`
#[test]
#[ignore = "a measurement: build with --release"]
fn what_1024_ranks_cost() {
    let boxes = 128;
    let began = Instant::now();
    let topology = dgx_h100(boxes);
    println!("dgx-h100:{boxes} made in {:.3} s", began.elapsed().as_secs_f64());
    let names = ["ring", "double tree", "hierarchical"];
    for name in names {
        let began = Instant::now();
        let schedule = match name {
            "ring" => ring(Collective::AllReduce, boxes * 8, RingOptions::default()),
            "double tree" => double_tree(boxes, 8, 1),
            _ => hierarchical(boxes, 8),
        };
        let made_s = began.elapsed().as_secs_f64();
        let began = Instant::now();
        let outcome = simulate(&schedule, &topology, &Options::new(1 << 30)).expect("it has a time");
        println!(
            "{name}: schedule made in {made_s:.2} s, simulated in {:.2} s; {:.3} ms, {} messages, {} of {} slices run",
            began.elapsed().as_secs_f64(),
            outcome.seconds() * 1e3,
            outcome.messages,
            outcome.slices_run,
            outcome.slices
        );
    }
}
