//! Prints, for machines, how near to the bound an all-reduce by packed trees is, beside trees over boxes.
//! Simulated shares are with slots of 4 MiB and 1 MiB, as the trees are or in staggered copies, whichever is faster.
//!
//! `cargo run --release -p consort-algorithms --example synthesis_reduce -- [--simulate] [--without NODE,NODE...] PROFILE|FILE...`
//!
//! `--without` takes nodes of these names away, and links between two nodes, as `r7/nvswitch0`, for the machines that
//! follow.

use std::time::Instant;

use consort_algorithms::Schedule;
use consort_algorithms::bounds::Ratio;
use consort_algorithms::passes::stagger;
use consort_algorithms::simulate::{self, simulate};
use consort_algorithms::synthesize::{boxes, rate, rooted, trees};
use consort_algorithms::topology::{self, NodeId, Topology};

fn main() {
    println!(
        "| machine | maker | bound | limit | trees | rate | share | height | pieces | s | simulated, 8 GiB | 256 MiB |"
    );
    println!("|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|");
    let mut words = std::env::args().skip(1);
    let (mut without, mut simulates) = (String::new(), false);
    while let Some(word) = words.next() {
        match word.as_str() {
            "--without" => without = words.next().unwrap_or_default(),
            "--simulate" => simulates = true,
            name => match machine(name) {
                Ok(topology) => show(name, &damaged(&topology.bundled(), &without), &without, simulates),
                Err(error) => println!("{name}: {error}"),
            },
        }
    }
}

fn machine(name: &str) -> Result<Topology, String> {
    match std::fs::read_to_string(name) {
        Ok(text) => topology::parse(&text).map_err(|error| error.to_string()),
        Err(_) => topology::profile(name).map_err(|error| error.to_string()),
    }
}

/// The machine without the nodes of these names, and without links of pairs of names.
fn damaged(topology: &Topology, without: &str) -> Topology {
    let gone: Vec<&str> = without.split(',').filter(|name| !name.is_empty()).collect();
    let is_gone = |name: &str| gone.contains(&name);
    let mut left = Topology::new(topology.name.clone(), topology.costs);
    left.relay = topology.relay;
    let mut numbers = vec![None; topology.nodes().len()];
    for (number, node) in topology.nodes().iter().enumerate().filter(|(_, node)| !is_gone(&node.name)) {
        numbers[number] = Some(left.add_node(node.name.clone(), node.kind));
    }
    let end = |node: NodeId| numbers[node.index()];
    let name = |node: NodeId| topology.nodes()[node.index()].name.as_str();
    for link in topology.links() {
        let ends = [name(link.from), name(link.to)];
        if gone.iter().any(|gone| gone.split_once('/').is_some_and(|(a, b)| ends == [a, b] || ends == [b, a]))
        {
            continue;
        }
        if let (Some(from), Some(to)) = (end(link.from), end(link.to)) {
            left.add_link(topology::Link { from, to, ..*link });
        }
    }
    left
}

fn gb(rate: Ratio) -> String {
    format!("{:.3}", rate.value() / 1e9)
}

fn show(name: &str, topology: &Topology, without: &str, simulates: bool) {
    let name = std::path::Path::new(name).file_stem().map_or(name.into(), |name| name.to_string_lossy());
    let name = if without.is_empty() { name.into_owned() } else { format!("{name} - {without}") };
    let begun = Instant::now();
    let found = trees::frontier(topology, &trees::Options::default());
    let seconds = begun.elapsed().as_secs_f64();
    let begun = Instant::now();
    let two_way = if found.is_empty() { rooted::all_reduce(topology) } else { None };
    let seconds_two_way = begun.elapsed().as_secs_f64();
    if let Some(found) = two_way {
        let row = Row {
            maker: "rooted",
            bound: found.bound,
            limit: "-".into(),
            trees: usize::from(found.schedule.channels()) / 2,
            rate: found.rate,
            height: found.schedule.cost().depth,
            seconds: seconds_two_way,
        };
        row.print(&name, &found.schedule, topology, simulates);
    }
    for trees in found {
        let row = Row {
            maker: "trees",
            bound: trees.bound(),
            limit: gb(trees.limit()),
            trees: trees.trees().len(),
            rate: trees.rate(),
            height: trees.height(),
            seconds,
        };
        row.print(&name, &trees.schedule(), topology, simulates);
    }
    let begun = Instant::now();
    let found = boxes::frontier(topology, &boxes::Options::default());
    let seconds = begun.elapsed().as_secs_f64();
    for boxed in found {
        let row = Row {
            maker: "boxes",
            bound: boxed.bound(),
            limit: "-".into(),
            trees: boxed.trees().len(),
            rate: boxed.rate(),
            height: boxed.height(),
            seconds,
        };
        row.print(&name, &boxed.schedule(), topology, simulates);
    }
}

struct Row {
    maker: &'static str,
    bound: Ratio,
    limit: String,
    trees: usize,
    rate: Ratio,
    height: u32,
    seconds: f64,
}

impl Row {
    fn print(&self, name: &str, schedule: &Schedule, topology: &Topology, simulates: bool) {
        let counted = rate(schedule, topology).ok().flatten();
        let agrees = if counted == Some(self.rate) { "" } else { " (counted otherwise)" };
        // Long calls have long slots.
        let simulated = |bytes: usize, slot_bytes: usize| {
            if !simulates {
                return "-".into();
            }
            let options = simulate::Options { slot_bytes, ..simulate::Options::new(bytes) };
            let tried = [schedule.clone(), stagger(schedule, 2, 3), stagger(schedule, 4, 5)];
            let seconds = |of: &Schedule| Some(simulate(of, topology, &options).ok()?.seconds());
            let fastest = tried.iter().filter_map(seconds).reduce(f64::min);
            fastest.map_or("-".into(), |seconds| {
                format!("{:.1} %", 100.0 * bytes as f64 / seconds / self.bound.value())
            })
        };
        println!(
            "| {name} | {} | {} | {} | {} | {}{agrees} | {:.2} % | {} | {} | {:.3} | {} | {} |",
            self.maker,
            gb(self.bound),
            self.limit,
            self.trees,
            gb(self.rate),
            100.0 * self.rate.value() / self.bound.value(),
            self.height,
            schedule.partition.parts,
            self.seconds,
            simulated(8 << 30, 4 << 20),
            simulated(256 << 20, 1 << 20),
        );
    }
}
