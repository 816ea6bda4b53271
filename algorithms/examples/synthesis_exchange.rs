//! Prints, for machines, what all-to-alls reach that are made for them, beside what is provable and what known
//! algorithms reach.
//!
//! `cargo run --release -p consort-algorithms --example synthesis_exchange -- [OPTION NUMBER]... PROFILE|FILE...`
//!
//! | option | number |
//! |---|---|
//! | `--pieces` | the most pieces of a block that take ways of their own |
//! | `--rounds` | rounds of the flow |
//! | `--channels` | channels of the schedule |
//! | `--buffer` | bytes of a rank's send buffer in the simulator (1 GiB) |
//! | `--slot` | bytes of a slot in the simulator (256 KiB) |
//! | `--stages` | times the stages of an exchange of unequal counts between that number of boxes |

use std::time::Instant;

use consort_algorithms::builders::{hierarchical, pairwise};
use consort_algorithms::simulate::{self, simulate};
use consort_algorithms::synthesize::exchange::{Options, exchange, makespan, stages};
use consort_algorithms::synthesize::rate;
use consort_algorithms::topology::{self, Topology};
use consort_algorithms::{Schedule, bounds};

fn main() {
    let mut options = Options::default();
    let (mut call_bytes, mut slot_bytes) = (1usize << 30, 256usize << 10);
    let mut words = std::env::args().skip(1);
    println!(
        "| machine | ranks | bound | exact | flow at most | emitted | share | form | pieces | depth | channels \
         | simulated | pairwise | simulated | hierarchical | simulated | ms, bound | ms |"
    );
    println!("|---|---:|---:|---|---:|---:|---:|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|");
    while let Some(word) = words.next() {
        let mut number = || words.next().and_then(|word| word.parse().ok()).unwrap_or(1);
        match word.as_str() {
            "--pieces" => options.pieces_max = number() as u32,
            "--rounds" => options.rounds = number() as u32,
            "--channels" => options.channels = number() as u16,
            "--stages" => time_stages(number()),
            "--buffer" => call_bytes = number(),
            "--slot" => slot_bytes = number(),
            name => match machine(name) {
                Ok(topology) => show(name, &topology.bundled(), &options, call_bytes, slot_bytes),
                Err(error) => println!("{name}: {error}"),
            },
        }
    }
}

/// Times the stages of an exchange between a number of boxes, with counts that differ up to 16 times, and some of 0.
fn time_stages(boxes: usize) {
    let mut state = 0x5eed_u64;
    let mut bytes = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let drawn = state >> 33;
        if drawn.is_multiple_of(8) { 0 } else { 65_536 + drawn % 1_000_000 }
    };
    let matrix: Vec<Vec<u64>> = (0..boxes).map(|_| (0..boxes).map(|_| bytes()).collect()).collect();
    let begun = Instant::now();
    let mut found = stages(&matrix);
    let first = begun.elapsed();
    let begun = Instant::now();
    for _ in 0..10 {
        found = stages(&matrix);
    }
    let each = begun.elapsed() / 10;
    let length: u64 = found.iter().map(|stage| stage.length).sum();
    assert_eq!(length, makespan(&matrix), "the stages are as long as the fullest box");
    println!("{boxes} boxes: {} stages, first {first:?}, then {each:?} each", found.len());
}

fn machine(name: &str) -> Result<Topology, String> {
    match std::fs::read_to_string(name) {
        Ok(text) => topology::parse(&text).map_err(|error| error.to_string()),
        Err(_) => topology::profile(name).map_err(|error| error.to_string()),
    }
}

fn show(name: &str, topology: &Topology, options: &Options, call_bytes: usize, slot_bytes: usize) {
    let name = std::path::Path::new(name).file_stem().map_or(name.into(), |name| name.to_string_lossy());
    let begun = Instant::now();
    let bound =
        bounds::bound(topology, consort_algorithms::Collective::AllToAll, &bounds::Options::default());
    let bound_ms = begun.elapsed().as_secs_f64() * 1e3;
    let begun = Instant::now();
    let found = exchange(topology, options);
    let ms = begun.elapsed().as_secs_f64() * 1e3 - bound_ms;
    let (Ok(bound), Some(found)) = (bound, found) else {
        println!("| {name} | {} | none |", topology.ranks());
        return;
    };
    let simulated = |schedule: &Schedule| simulated(schedule, topology, &bound, call_bytes, slot_bytes);
    let share = |schedule: &Schedule| match rate(schedule, topology) {
        Ok(Some(rate)) => format!("{:.3}", rate.value() / bound.rate.value()),
        _ => "-".into(),
    };
    let others = |schedule: Option<&Schedule>| match schedule {
        Some(schedule) => format!("{} | {}", share(schedule), simulated(schedule)),
        None => "- | -".into(),
    };
    let boxes = topology.boxes();
    let per_box = boxes[0].len();
    let grid = boxes.len() > 1 && per_box > 1 && boxes.iter().all(|of| of.len() == per_box);
    let build = |_, ranks| pairwise(ranks);
    let staged = grid.then(|| {
        let (collective, boxes) = (consort_algorithms::Collective::AllToAll, boxes.len() as u32);
        hierarchical(collective, boxes, per_box as u32, &build, &build)
    });
    println!(
        "| {name} | {} | {:.3} | {} | {} | {:.3} | {:.4} | {} | {} | {} | {} | {} | {} | {} | {bound_ms:.2} | {ms:.2} |",
        topology.ranks(),
        bound.gb_s(),
        if bound.exact { "yes" } else { "open" },
        found.at_most().map_or("-".into(), |most| format!("{:.3}", most / 1e9)),
        found.rate().value() / 1e9,
        found.share(),
        found.form().name(),
        found.pieces(),
        found.depth(),
        found.schedule().channels(),
        simulated(found.schedule()),
        others(Some(&pairwise(topology.ranks()))),
        others(staged.as_ref()),
    );
}

/// The part of the bound that the simulator gives a long call.
fn simulated(
    schedule: &Schedule,
    topology: &Topology,
    bound: &bounds::Bound,
    call_bytes: usize,
    slot_bytes: usize,
) -> String {
    let block_bytes = call_bytes / schedule.ranks as usize;
    let options = simulate::Options {
        work: false,
        slot_bytes,
        messages_max: 1 << 16,
        ..simulate::Options::new(block_bytes)
    };
    match simulate(schedule, topology, &options) {
        Ok(outcome) => format!("{:.3}", call_bytes as f64 / outcome.seconds() / bound.rate.value()),
        Err(_) => "-".into(),
    }
}
