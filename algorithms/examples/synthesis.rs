//! Prints, for machines, the schedules that are packed for them beside what is provable.
//!
//! `cargo run --release -p consort-algorithms --example synthesis -- [--simulate] [--frontier] PROFILE|FILE...`

use std::time::Instant;

use consort_algorithms::bounds::{self, bound};
use consort_algorithms::simulate::{self, simulate};
use consort_algorithms::synthesize::packing::{self, Forest};
use consort_algorithms::synthesize::rate;
use consort_algorithms::topology::{self, Topology};
use consort_algorithms::{Collective, Rank};

const COLLECTIVES: [Collective; 4] =
    [Collective::AllGather, Collective::ReduceScatter, Collective::Broadcast, Collective::Reduce];

fn main() {
    for name in std::env::args().skip(1) {
        let text = std::fs::read_to_string(&name);
        let topology = match text {
            Ok(text) => topology::parse(&text).expect("a topology"),
            Err(_) => topology::profile(&name).expect("a profile"),
        };
        show(&topology.bundled());
    }
}

fn show(topology: &Topology) {
    for collective in COLLECTIVES {
        let options = bounds::Options { root: Some(Rank(0)), in_network: false };
        let bound = bound(topology, collective, &options).expect("a bound");
        let begun = Instant::now();
        let frontier = packing::frontier(topology, collective, Rank(0), &packing::Options::default());
        let ms = begun.elapsed().as_secs_f64() * 1e3;
        for forest in &frontier {
            let begun = Instant::now();
            let options = packing::Options { trees_per_root_max: forest.trees_per_root, ..Default::default() };
            let _ = packing::forest(topology, collective, Rank(0), &options);
            let own_ms = begun.elapsed().as_secs_f64() * 1e3;
            row(topology, &bound, forest, ms, own_ms);
        }
    }
}

fn row(topology: &Topology, bound: &bounds::Bound, forest: &Forest, ms: f64, own_ms: f64) {
    let schedule = forest.schedule(64);
    let reached = rate(&schedule, topology).expect("routes").expect("a limit");
    let ranks = u64::from(topology.ranks());
    let is_rooted = matches!(forest.collective, Collective::Broadcast | Collective::Reduce);
    let total: u64 = 8 << 30;
    let block = if is_rooted { total } else { total / ranks } as usize;
    let options = simulate::Options { work: false, ..simulate::Options::new(block) };
    let begun = Instant::now();
    let time = simulate(&schedule, topology, &options).expect("a time").seconds();
    let sim_s = begun.elapsed().as_secs_f64();
    let bytes = if is_rooted { block as f64 } else { block as f64 * ranks as f64 };
    println!(
        "| {} | {} | {:.3} | {:.3} | {:.2}% | {} | k {} | trees {} | depth {} | ch {} | {:.2}% | {ms:.1} ms all | {own_ms:.1} ms | sim {sim_s:.2} s",
        topology.name,
        forest.collective,
        bound.gb_s(),
        reached.value() / 1e9,
        100.0 * reached.value() / bound.rate.value(),
        forest.rate() == reached,
        forest.trees_per_root,
        forest.trees.len(),
        forest.depth(),
        schedule.channels(),
        100.0 * bytes / time / bound.rate.value(),
    );
}
