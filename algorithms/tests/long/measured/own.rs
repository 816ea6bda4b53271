//! What the library itself would run on the machines of measured rows, at effective rates.
//!
//! Rows through one switch of 72 GPUs have a ring and a tree: nothing else is offered there. Nothing here was measured:
//! the row's measured time is that of another library's schedule on the same machine. Slots are NCCL's. The
//! test pins the quotients as they are.

use consort_algorithms::catalogue::Algorithm;
use consort_algorithms::search::{self, rings, trees};
use consort_algorithms::synthesize::{offers, rate};
use consort_algorithms::{Rank, Schedule, Topology};

use super::{EFFECTIVE, Row, SLOT, machine, measured_us, rows, timed_us};

/// Messages that are simulated of each, as for a price of trees.
const MESSAGES_MAX: u64 = 1 << 13;
/// The most ranks of a box that a planner gives schedules along rails, and of a machine that is searched here.
const RANKS_MAX: u32 = 16;

/// Rows that may have a better schedule than the one in the table, with hundredths of the measured time that
/// the fastest takes, and its name without what it is a hash of.
const BEST: [(usize, u32, &str); 4] = [
    (1, 130, "rails(1x8, 16)"),
    (20, 114, "ring(channels=16)"),
    (29, 90, "wire-trees-"),
    (30, 113, "rings-all-gather-"),
];

/// The library's schedules for a row's machine.
fn schedules(row: &Row, topology: &Topology) -> Vec<Schedule> {
    let ranks = row.nodes * row.in_box;
    if ranks > RANKS_MAX {
        let ring = Algorithm::Ring { channels: 16, bidirectional: false };
        return vec![ring.schedule(row.collective, ranks), Algorithm::Tree.schedule(row.collective, ranks)];
    }
    let rails = [1, 4, 16].map(|channels| Algorithm::Rails { per_box: row.in_box, channels });
    let rail_trees = [1, 2, 4].map(|trees| Algorithm::RailTrees { per_box: row.in_box, trees, first: 0 });
    let catalogue = rails.into_iter().chain(rail_trees);
    let defined = catalogue.filter(|algorithm| algorithm.is_defined(row.collective, ranks));
    let mut all: Vec<Schedule> = defined.map(|algorithm| algorithm.schedule(row.collective, ranks)).collect();
    let options = search::Options::default();
    all.extend(rings(topology, &options).schedule(row.collective));
    all.extend(trees(topology, &options).schedule(row.collective));
    all.extend(offers(topology, row.collective, Rank(0)).into_iter().map(|offer| offer.schedule));
    all
}

/// `cargo test --release -p consort-algorithms --test long own:: -- --ignored --nocapture`
#[test]
#[ignore = "a minute: build with --release"]
fn the_library_on_measured_machines() {
    let rows = rows();
    let mut wrong = Vec::new();
    for (number, expected, expected_name) in BEST {
        let row = &rows[number];
        let (topology, measured) = (machine(row, &EFFECTIVE), measured_us(row));
        let timed = |schedule: &Schedule| {
            // A beginning says little of trees that fill slowly: none is faster than its links.
            let carried = rate(schedule, &topology).ok().flatten().map_or(f64::INFINITY, |rate| rate.value());
            let us = timed_us(row, schedule, &topology, SLOT, MESSAGES_MAX);
            (schedule.name.clone(), us.max(row.bytes as f64 / carried * 1e6))
        };
        let mut all: Vec<(String, f64)> = schedules(row, &topology).iter().map(timed).collect();
        all.sort_by(|one, other| one.1.total_cmp(&other.1));
        for (name, us) in &all {
            println!("| {number} | {} | {name} | {us:.1} | {:.2} |", row.system, us / measured);
        }
        let (name, us) = &all[0];
        let hundredths = (us / measured * 100.0).round() as u32;
        if hundredths != expected || !name.starts_with(expected_name) {
            wrong.push(format!("row {number}: {name} {hundredths}"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}
