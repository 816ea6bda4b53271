//! Prints, for machines, the share of the bound that greedy schedules reach, by their bytes on each wire and in the
//! simulator, and the time in which they were found.
//!
//! `cargo run --release -p consort-algorithms --example greedy -- [--broken N] [--seed N] [--channels N]
//! PROFILE|FILE...`: with `--broken`, one link in N is left out, both ways.

use std::collections::BTreeMap;
use std::time::Instant;

use consort_algorithms::simulate::{self, simulate};
use consort_algorithms::synthesize::greedy::{Options, schedule};
use consort_algorithms::topology::{self, Topology};
use consort_algorithms::{Collective, Rank};
use consort_testing::Random;

/// Bytes of the longest buffer of a simulated call.
const BYTES: usize = 64 << 20;

fn main() {
    let (mut broken, mut random, mut options) = (0, Random::new(1), Options::default());
    println!(
        "| machine | ranks | collective | pieces | rounds | depth | rate, GB/s | of the bound | simulated, GB/s | ms |"
    );
    println!("|---|---:|---|---:|---:|---:|---:|---:|---:|---:|");
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let mut number = || words.next().and_then(|word| word.parse().ok()).unwrap_or(0);
        match word.as_str() {
            "--broken" => broken = number() as usize,
            "--seed" => random = Random::new(number()),
            "--channels" => options.channels = number() as u16,
            name => match machine(name) {
                Ok(whole) => {
                    let topology = if broken > 0 { without(&whole, &mut random, broken) } else { whole };
                    show(name, &topology, &options);
                }
                Err(error) => println!("{name}: {error}"),
            },
        }
    }
}

fn machine(name: &str) -> Result<Topology, String> {
    let Ok(text) = std::fs::read_to_string(name) else {
        return topology::profile(name).map_err(|error| error.to_string());
    };
    topology::parse(&text).map_err(|error| error.to_string())
}

/// The machine without one link in `times`.
fn without(whole: &Topology, random: &mut Random, times: usize) -> Topology {
    let mut rest = Topology::new(whole.name.clone(), whole.costs);
    rest.relay = whole.relay;
    for node in whole.nodes() {
        rest.add_node(node.name.clone(), node.kind);
    }
    let mut broken = BTreeMap::new();
    for link in whole.links() {
        let pair = (link.from.min(link.to), link.from.max(link.to));
        if !*broken.entry(pair).or_insert_with(|| random.one_in(times)) {
            rest.add_link(*link);
        }
    }
    rest
}

fn show(name: &str, topology: &Topology, options: &Options) {
    for collective in Collective::ALL.into_iter().filter(|one| *one != Collective::SendReceive) {
        let begun = Instant::now();
        let found = schedule(topology, collective, Rank(0), options);
        let ms = begun.elapsed().as_secs_f64() * 1e3;
        let Some(found) = found else {
            println!("| {name} | {} | {collective} | none | | | | | | {ms:.1} |", topology.ranks());
            continue;
        };
        let cost = found.schedule.cost();
        let share = found.share().map_or("–".into(), |share| format!("{:.1} %", 100.0 * share.value()));
        let blocks =
            collective.input_blocks(topology.ranks()).max(collective.output_blocks(topology.ranks()));
        let asked = simulate::Options { work: false, ..simulate::Options::new(BYTES / blocks as usize) };
        let simulated = simulate(&found.schedule, topology, &asked)
            .map_or("–".into(), |outcome| format!("{:.2}", BYTES as f64 / outcome.seconds() / 1e9));
        println!(
            "| {name} | {} | {collective} | {} | {} | {} | {:.2} | {share} | {simulated} | {ms:.1} |",
            topology.ranks(),
            found.schedule.partition.parts,
            cost.rounds,
            cost.depth,
            found.rate.value() / 1e9
        );
    }
}
