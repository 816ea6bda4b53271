//! Prints, for machines, the bandwidth of the rings that the search finds beside what is provable, and the time of the search.
//!
//! `cargo run --release -p consort-algorithms --example rings -- [--fastest] [--orders] [--assume NAME] [--first N] PROFILE|FILE...`

use std::time::Instant;

use consort_algorithms::bounds::{self, bound};
use consort_algorithms::hardware::exchange::{self, Content};
use consort_algorithms::hardware::{Rates, Wires};
use consort_algorithms::topology::{self, Topology};
use consort_algorithms::{Collective, search};

/// More ranks than this take minutes to bound.
const BOUND_RANKS_MAX: u32 = 256;

fn main() {
    let (mut wires, mut orders, mut assume, mut first) = (Wires::All, false, None, usize::MAX);
    let mut words = std::env::args().skip(1);
    println!(
        "| machine | ranks | rings | found | at most by rings | all-gather | provable | all-reduce | trees, all-reduce | provable | ms, rings | ms, trees |"
    );
    println!("|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|");
    while let Some(word) = words.next() {
        match word.as_str() {
            "--fastest" => wires = Wires::Fastest,
            "--all" => wires = Wires::All,
            "--orders" => orders = true,
            "--assume" => assume = words.next().filter(|name| name != "none"),
            "--first" => first = words.next().and_then(|word| word.parse().ok()).unwrap_or(usize::MAX),
            name => match machine(name, wires, assume.as_deref(), first) {
                Ok(topology) => show(name, &topology, orders),
                Err(error) => println!("{name}: {error}"),
            },
        }
    }
}

fn machine(name: &str, wires: Wires, assume: Option<&str>, first: usize) -> Result<Topology, String> {
    let Ok(bytes) = std::fs::read(name) else {
        return topology::profile(name).map_err(|error| error.to_string());
    };
    if let Ok(topology) = topology::parse(&String::from_utf8_lossy(&bytes)) {
        return Ok(topology);
    }
    let read = exchange::read(&bytes).map_err(|error| error.to_string())?;
    let Content::Hardware(mut hardware) = read.content else { return Err("a file of no machine".into()) };
    if let Some(name) = assume {
        hardware.assume(name).map_err(|error| error.to_string())?;
    }
    let gpus: Vec<_> = hardware.gpus().into_iter().take(first).collect();
    let graph = hardware.rank_graph(&gpus, Rates::DataSheet, wires).map_err(|error| error.to_string())?;
    Ok(graph.topology)
}

fn show(name: &str, topology: &Topology, orders: bool) {
    let begun = Instant::now();
    let found = search::rings(topology, &search::Options::default());
    let ms = begun.elapsed().as_secs_f64() * 1e3;
    let begun = Instant::now();
    let trees = search::trees(topology, &search::Options::default());
    let trees_ms = begun.elapsed().as_secs_f64() * 1e3;
    let name = std::path::Path::new(name).file_name().map_or(name.into(), |name| name.to_string_lossy());
    let gb = |rate: f64| format!("{:.2}", rate / 1e9);
    let provable = |collective: Collective| match bound(topology, collective, &bounds::Options::default()) {
        Ok(bound) if topology.ranks() <= BOUND_RANKS_MAX => gb(bound.rate.value()),
        _ => "-".into(),
    };
    let rate = |collective| found.rate(collective).map_or("-".into(), |rate| gb(rate.value()));
    println!(
        "| {name} | {} | {} | {} | {} | {} | {} | {} | {} ({}) | {} | {ms:.1} | {trees_ms:.1} |",
        topology.ranks(),
        found.rings.len(),
        gb(found.total().value()),
        gb(found.limit.value()),
        rate(Collective::AllGather),
        provable(Collective::AllGather),
        rate(Collective::AllReduce),
        gb(trees.total().value()),
        trees.trees.len(),
        provable(Collective::AllReduce),
    );
    for ring in found.rings.iter().filter(|_| orders) {
        let order: Vec<String> = ring.order.iter().take(64).map(|rank| rank.0.to_string()).collect();
        println!("  {} GB/s: {}", gb(ring.bytes_s.value()), order.join(" "));
    }
}
