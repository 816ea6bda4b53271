//! Prints, for machines, the schedules that are packed for them beside what is provable, as a table in Markdown.
//!
//! `cargo run --release -p consort-algorithms --example synthesis -- [--time] [--few] [PROFILE|FILE...]`
//!
//! Without names: the fabrics of `algorithms/fabrics` of at most 64 ranks. `--time` leaves the simulator out; `--few` also lists
//! forests of at most 8 trees a root. The simulator moves 8 GiB, `work: false` (the copies and folds of ranks are left out), with
//! the slot length and copies of the schedule in the last columns, the first that reach 99 % of the schedule's rate; copies
//! with pieces are staggered.

use std::time::Instant;

use consort_algorithms::bounds::{self, Bound, bound};
use consort_algorithms::builders::{self, RingOptions};
use consort_algorithms::passes::{replicate, stagger};
use consort_algorithms::simulate::{self, simulate};
use consort_algorithms::synthesize::packing::{self, Forest, RANKS_MAX};
use consort_algorithms::synthesize::rate;
use consort_algorithms::topology::{self, Topology};
use consort_algorithms::{Collective, Rank, Schedule, search};

const COLLECTIVES: [Collective; 4] =
    [Collective::AllGather, Collective::ReduceScatter, Collective::Broadcast, Collective::Reduce];

const COLUMNS: [&str; 16] = [
    "machine",
    "collective",
    "provable GB/s",
    "trees a root",
    "trees",
    "depth",
    "GB/s",
    "share",
    "ring",
    "hierarchical",
    "rings searched",
    "ms",
    "simulated",
    "slot KiB",
    "copies",
    "channels",
];

/// Bytes of the vector of a simulated call.
const CALL_BYTES: u64 = 8 << 30;
/// What is tried in the simulator: bytes of a slot, how often the schedule runs side by side, and the pieces of each
/// copy, with which copies run out of step; 1 for copies in step.
const TRIED: [(usize, u16, u32); 9] = [
    (1 << 20, 1, 1),
    (256 << 10, 1, 1),
    (1 << 20, 4, 1),
    (4 << 20, 1, 1),
    (2 << 20, 2, 3),
    (1 << 20, 4, 5),
    (4 << 20, 4, 1),
    (4 << 20, 4, 5),
    (16 << 20, 1, 1),
];
/// The most messages of a simulated call: all of them are run, none is extrapolated.
const MESSAGES_MAX: u64 = 1 << 19;
/// The most channels: enough that every tree has its own.
const CHANNELS_MAX: u16 = 1024;

fn main() {
    let (mut timed, mut few, mut names) = (false, false, Vec::new());
    for word in std::env::args().skip(1) {
        match word.as_str() {
            "--time" => timed = true,
            "--few" => few = true,
            _ => names.push(word),
        }
    }
    if names.is_empty() {
        names = fabrics();
    }
    println!("| {} |\n|---|---|{}", COLUMNS.join(" | "), "---:|".repeat(COLUMNS.len() - 2));
    for name in names {
        match machine(&name) {
            Ok(topology) if topology.ranks() <= RANKS_MAX => show(&topology.bundled(), timed, few),
            Ok(_) => {}
            Err(error) => eprintln!("{name}: {error}"),
        }
    }
}

fn fabrics() -> Vec<String> {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("fabrics");
    let files = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> = files.map(|file| file.path().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

fn machine(name: &str) -> Result<Topology, String> {
    match std::fs::read_to_string(name) {
        Ok(text) => topology::parse(&text).map_err(|error| error.to_string()),
        Err(_) => topology::profile(name).map_err(|error| error.to_string()),
    }
}

fn show(topology: &Topology, timed: bool, few: bool) {
    for collective in COLLECTIVES {
        let options = bounds::Options { root: Some(Rank(0)), in_network: false };
        let bound = bound(topology, collective, &options).expect("a bound of at least 2 ranks");
        let limits = [few.then_some(packing::FEW[3]), Some(packing::TREES_MAX)];
        let mut last = None;
        for limit in limits.into_iter().flatten() {
            let options = packing::Options { trees_per_root_max: limit, ..Default::default() };
            let begun = Instant::now();
            let found = packing::forest(topology, collective, Rank(0), &options);
            let ms = begun.elapsed().as_secs_f64() * 1e3;
            match found {
                Some(forest) if last != Some(forest.trees_per_root) => {
                    last = Some(forest.trees_per_root);
                    row(topology, &bound, &forest, ms, timed);
                }
                Some(_) => {}
                None => println!("| {} | {collective} | {:.3} | none |", topology.name, bound.gb_s()),
            }
        }
    }
}

fn row(topology: &Topology, bound: &Bound, forest: &Forest, ms: f64, timed: bool) {
    let schedule = forest.schedule(CHANNELS_MAX);
    let share = |schedule: &Schedule| match rate(schedule, topology) {
        Ok(Some(rate)) => format!("{:.1} %", 1e2 * rate.value() / bound.rate.value()),
        _ => "-".into(),
    };
    let reached = rate(&schedule, topology).ok().flatten().unwrap_or(bounds::Ratio::ZERO);
    let simulated = if timed { None } else { simulated(topology, &schedule) };
    let simulated = simulated.map_or("- | - | - | -".into(), |(bytes_s, slot_bytes, copies, each)| {
        let channels = schedule.channels() * copies;
        let share = 1e2 * bytes_s / bound.rate.value();
        let pieces = if each > 1 { format!("{copies} of {each} pieces") } else { copies.to_string() };
        format!("{share:.1} % | {} | {pieces} | {channels}", slot_bytes >> 10)
    });
    println!(
        "| {} | {} | {:.3} | {} | {} | {} | {:.3} | {} | {} | {} | {} | {ms:.1} | {simulated} |",
        topology.name,
        forest.collective,
        bound.gb_s(),
        forest.trees_per_root,
        forest.trees.len(),
        forest.depth(),
        reached.value() / 1e9,
        share(&schedule),
        share(&builders::ring(forest.collective, topology.ranks(), RingOptions::default())),
        hierarchical(topology, forest.collective).map_or("-".into(), |schedule| share(&schedule)),
        search::rings(topology, &search::Options::default())
            .schedule(forest.collective)
            .map_or("-".into(), |schedule| share(&schedule)),
    );
}

/// Rings in the boxes and between them.
fn hierarchical(topology: &Topology, collective: Collective) -> Option<Schedule> {
    let boxes = topology.boxes();
    let per_box = boxes.first()?.len() as u32;
    let is_even = boxes.iter().all(|ranks| ranks.len() as u32 == per_box);
    let ring = |collective, ranks| builders::ring(collective, ranks, RingOptions::default());
    (is_even && boxes.len() > 1)
        .then(|| builders::hierarchical(collective, boxes.len() as u32, per_box, &ring, &ring))
}

/// Bytes of the vector a second in the simulator, with the bytes of a slot, the copies and their pieces.
fn simulated(topology: &Topology, schedule: &Schedule) -> Option<(f64, usize, u16, u32)> {
    let (collective, ranks) = (schedule.collective, topology.ranks());
    let blocks = collective.input_blocks(ranks).max(collective.output_blocks(ranks));
    let block_bytes = (CALL_BYTES / u64::from(blocks)) as usize;
    let most = rate(schedule, topology).ok()??.value();
    let mut best: Option<(f64, usize, u16, u32)> = None;
    for (slot_bytes, copies, each) in TRIED {
        let pieces = u64::from(schedule.partition.parts) * u64::from(copies) * u64::from(each);
        let slices = (block_bytes as u64).div_ceil(pieces).div_ceil(slot_bytes as u64);
        let turns = u64::from(copies) * u64::from(each.min(2));
        if schedule.messages() as u64 * turns * slices > MESSAGES_MAX {
            continue;
        }
        let tried = if each > 1 { stagger(schedule, copies, each) } else { replicate(schedule, copies) };
        let options = simulate::Options { slot_bytes, work: false, ..simulate::Options::new(block_bytes) };
        let outcome = simulate(&tried, topology, &options).ok()?;
        let bytes_s = block_bytes as f64 * f64::from(blocks) / outcome.seconds();
        if outcome.slices_run == outcome.slices && best.is_none_or(|(other, ..)| bytes_s > other) {
            best = Some((bytes_s, slot_bytes, copies, each));
        }
        if bytes_s >= 0.99 * most {
            break;
        }
    }
    best
}
