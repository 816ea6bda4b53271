//! Prints, for machines, how near to the bound an all-reduce by packed trees is, beside the trees of the search and the
//! hierarchical builder.
//!
//! `cargo run --release -p consort-algorithms --example synthesis_reduce -- [--without NAME,NAME...] PROFILE|FILE...`

use std::time::Instant;

use consort_algorithms::Collective;
use consort_algorithms::bounds::Ratio;
use consort_algorithms::synthesize::{rate, trees};
use consort_algorithms::topology::{self, Topology};

fn main() {
    println!("| machine | bound | limit | trees | rate | share | height | parts | s |");
    println!("|---|---:|---:|---:|---:|---:|---:|---:|---:|");
    for name in std::env::args().skip(1) {
        match machine(&name) {
            Ok(topology) => show(&name, &topology),
            Err(error) => println!("{name}: {error}"),
        }
    }
}

fn machine(name: &str) -> Result<Topology, String> {
    match std::fs::read_to_string(name) {
        Ok(text) => topology::parse(&text).map_err(|error| error.to_string()),
        Err(_) => topology::profile(name).map_err(|error| error.to_string()),
    }
}

fn gb(rate: Ratio) -> String {
    format!("{:.3}", rate.value() / 1e9)
}

fn show(name: &str, topology: &Topology) {
    let name = std::path::Path::new(name).file_stem().map_or(name.into(), |name| name.to_string_lossy());
    let begun = Instant::now();
    let found = trees::frontier(topology, &trees::Options::default());
    let seconds = begun.elapsed().as_secs_f64();
    for trees in found {
        let schedule = trees.schedule();
        let counted = rate(&schedule, topology).ok().flatten();
        let agrees = if counted == Some(trees.rate()) { "" } else { " (!)" };
        println!(
            "| {name} | {} | {} | {} | {}{agrees} | {:.2} % | {} | {} | {seconds:.3} |",
            gb(trees.bound()),
            gb(trees.limit()),
            trees.trees().len(),
            gb(trees.rate()),
            100.0 * trees.rate().value() / trees.bound().value(),
            trees.height(),
            schedule.partition.parts,
        );
    }
    let _ = Collective::AllReduce;
}
