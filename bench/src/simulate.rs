//! `collbench simulate`: what every candidate should take, size by size, beside what was measured.
//!
//! Invariant: predictions are virtual time, the planner's own prices, and the same everywhere; measurements
//! come from files and are drawn as they are. NCCL's own model stands beside them on the machines it knows.
//! Absent: measuring (see `tune`), fits.

mod against;
mod fleet;
mod measured;

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Parser;
use clap::builder::ArgPredicate;
use consort::planning::comparison::{Call, Prices};
use consort::planning::export::{Axis, Chart, Mark, Series, Unit, chart_svg};
use consort::planning::hardware::Rates;
use consort::planning::simulate::nccl_model;
use consort::planning::{Algorithm, Candidate, Collective, Planning, Topology};

use self::against::Asked;
use self::fleet::{Bound, Kind, PER_BOX, with_fleet};

use crate::described::rates;
use crate::failure::{Exit, Failure};
use crate::planned::{self, Machine, refused};
use crate::sizes::{Step, Sweep, human, parse_size};

/// Prints what every algorithm of a collective should take on a machine, and draws it beside measurements.
///
/// Times are the planner's prices; `*` marks its choice. On DGX machines NCCL's own model is printed too, and drawn
/// with the bound and the best of NCCL's schedules on the same wires. With --against nccl: how the planner's choices
/// compare with these, as Markdown.
#[derive(Parser, Debug)]
#[command(name = "collbench simulate", bin_name = "collbench simulate", max_term_width = 110)]
struct Arguments {
    /// all_reduce, reduce, broadcast, all_gather, reduce_scatter, send_receive, all_to_all, gather or scatter
    #[arg(value_parser = planned::collective, required_unless_present = "against")]
    collective: Option<Collective>,

    #[command(flatten)]
    machine: Machine,

    /// Smallest size in bytes; K, M and G are powers of 1024
    #[arg(short = 'b', long = "minbytes", value_name = "SIZE", default_value = "8", value_parser = parse_size)]
    #[arg(default_value_if("against", ArgPredicate::IsPresent, "64K"))]
    smallest: u64,

    /// Largest size
    #[arg(short = 'e', long = "maxbytes", value_name = "SIZE", default_value = "64M", value_parser = parse_size)]
    #[arg(default_value_if("against", ArgPredicate::IsPresent, "8G"))]
    largest: u64,

    /// Factor between sizes
    #[arg(short = 'f', long = "stepfactor", value_name = "N", default_value_t = 2)]
    factor: u64,

    /// Only these, of those that are defined; for example ring,tree,bruck(radix=4)
    #[arg(long = "algo", value_name = "NAME,NAME")]
    algorithms: Option<String>,

    /// What was measured: samples of collbench tune, a tuning table, or a result of collbench (--csv, --json)
    #[arg(long, value_name = "FILE")]
    measured: Option<PathBuf>,

    /// Draws the times as SVG
    #[arg(short = 'o', value_name = "FILE")]
    chart: Option<PathBuf>,

    /// Writes the times as comma-separated values
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,

    /// Compares the planner's choices with NCCL's schedules on the machines of --machines and --boxes, for one
    /// collective or for all that NCCL has
    #[arg(long, value_name = "RIVAL", value_parser = ["nccl"], conflicts_with_all = ["topology", "ranks", "measured", "chart"])]
    against: Option<String>,

    /// With --against: dgx-a100, dgx-h100 or dgx-h200
    #[arg(long, value_name = "NAME,NAME", value_delimiter = ',', value_parser = kind, default_value = "dgx-a100,dgx-h100")]
    machines: Vec<Kind>,

    /// With --against: numbers of boxes
    #[arg(long, value_name = "N,N", value_delimiter = ',', default_value = "1,2,4,8,32,128")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=4096))]
    boxes: Vec<u32>,

    /// With --against: what links carry: sheet, as data sheets say, or nccl, what NCCL expects to be left
    #[arg(long, value_name = "SET", value_parser = rates, default_value = "sheet")]
    rates: Rates,
}

fn kind(name: &str) -> Result<Kind, String> {
    let known = Kind::ALL.into_iter().find(|kind| kind.name() == name);
    known.ok_or_else(|| format!("known: {}", Kind::ALL.map(Kind::name).join(", ")))
}

/// Predicted times of one column, microseconds.
struct Column {
    name: String,
    /// One for each size; none where there is no prediction.
    times_us: Vec<Option<f64>>,
}

/// Everything that is predicted.
struct Table {
    collective: Collective,
    ranks: u32,
    machine: String,
    sizes: Vec<u64>,
    columns: Vec<Column>,
    /// The planner's choice for each size.
    chosen: Vec<String>,
    /// What cannot be chosen, and why.
    excluded: Vec<(String, String)>,
    /// What is drawn besides: the bound, the planner's choice and the best of NCCL's schedules, where they are known.
    yardsticks: Vec<Column>,
}

/// Runs the subcommand; its name is the first word.
pub(crate) fn run(words: &[OsString]) -> Result<Exit, Failure> {
    let Some(arguments) = planned::parse::<Arguments>(words)? else { return Ok(Exit::Done) };
    if arguments.against.is_some() {
        let rows = against::rows(&arguments.asked()?)?;
        planned::write(&against::markdown(&rows), None)?;
        if let Some(path) = &arguments.csv {
            planned::write(&against::csv(&rows), Some(path))?;
        }
        return Ok(Exit::Done);
    }
    let planning = arguments.machine.planning()?;
    let table = arguments.table(&planning)?;
    let measured = match &arguments.measured {
        Some(path) => measured::read(path, table.collective, table.ranks)?,
        None => Vec::new(),
    };
    planned::write(&table.text(), None)?;
    if let Some(path) = &arguments.csv {
        planned::write(&table.csv(), Some(path))?;
    }
    if let Some(path) = &arguments.chart {
        planned::write(&chart_svg(&table.chart(measured)), Some(path))?;
    }
    Ok(Exit::Done)
}

impl Arguments {
    fn sizes(&self) -> Result<Vec<u64>, Failure> {
        let sweep = Sweep::new(self.smallest, self.largest, Step::Factor(self.factor));
        Ok(sweep.map_err(Failure::usage)?.sizes().collect())
    }

    fn asked(&self) -> Result<Asked, Failure> {
        let collectives = self.collective.map_or(against::COLLECTIVES.to_vec(), |one| vec![one]);
        if let Some(none) = collectives.iter().find(|one| !against::COLLECTIVES.contains(one)) {
            return Err(Failure::usage(format!(
                "--against: NCCL has no algorithm for {none}, only messages"
            )));
        }
        let (machines, boxes) = (self.machines.clone(), self.boxes.clone());
        Ok(Asked { machines, rates: self.rates, boxes, collectives, sizes: self.sizes()? })
    }

    fn table(&self, planning: &Planning) -> Result<Table, Failure> {
        let Some(collective) = self.collective else {
            return Err(Failure::usage("a collective is missing"));
        };
        let ranks = if collective == Collective::SendReceive { 2 } else { planning.ranks() };
        let sizes: Vec<u64> = self
            .sizes()?
            .into_iter()
            .filter(|size| planned::block_bytes(collective, *size, ranks) > 0)
            .collect();
        let blocks = || sizes.iter().map(|size| planned::block_bytes(collective, *size, ranks));
        let candidates = planning.candidates(collective).map_err(refused)?;
        // All that `plan` lists, with the same reasons.
        let listed =
            blocks().next().map(|bytes| planning.explain(collective, bytes)).transpose().map_err(refused)?;
        let listed = listed.map(|explanation| explanation.candidates).unwrap_or_default();
        let algorithms = match &self.algorithms {
            Some(names) => named(names, collective, ranks, &candidates)?,
            None => listed.iter().map(|candidate| candidate.algorithm).collect(),
        };
        let excluded = |candidate: &Candidate| {
            let reason = candidate.excluded.as_ref().filter(|_| algorithms.contains(&candidate.algorithm))?;
            Some((candidate.algorithm.to_string(), reason.clone()))
        };
        let excluded = listed.iter().filter_map(excluded).collect();
        let priced = |algorithm: &Algorithm| Column {
            name: algorithm.to_string(),
            times_us: blocks()
                .map(|bytes| Some(planning.price(*algorithm, collective, bytes) * 1e6))
                .collect(),
        };
        let mut columns: Vec<Column> = algorithms.iter().map(priced).collect();
        columns.extend(nccl(planning.topology(), collective, &sizes));
        let chosen = blocks().map(|bytes| planning.algorithm(collective, bytes).map(|one| one.to_string()));
        let chosen = chosen.collect::<Result<_, _>>().map_err(refused)?;
        let machine = planning.topology().name.clone();
        let yardsticks =
            if self.chart.is_some() { yardsticks(planning, collective, &sizes)? } else { Vec::new() };
        Ok(Table { collective, ranks, machine, sizes, columns, chosen, excluded, yardsticks })
    }
}

/// The algorithms of a list, whose names may have commas in parentheses.
fn named(
    names: &str,
    collective: Collective,
    ranks: u32,
    candidates: &[Algorithm],
) -> Result<Vec<Algorithm>, Failure> {
    let mut depth = 0i32;
    let parts = names.split(|c: char| {
        depth += i32::from(c == '(') - i32::from(c == ')');
        c == ',' && depth == 0
    });
    let algorithm = |name: &str| {
        let algorithm: Algorithm =
            name.parse().map_err(|error| Failure::usage(format!("--algo: {error}")))?;
        if algorithm.is_defined(collective, ranks) {
            return Ok(algorithm);
        }
        let possible: Vec<String> = candidates.iter().map(Algorithm::to_string).collect();
        Err(Failure::usage(format!(
            "--algo: {algorithm} is not defined for {collective} over {ranks} ranks; possible: {}",
            possible.join(", ")
        )))
    };
    parts.map(|name| algorithm(name.trim())).collect()
}

/// What NCCL's own model says, for machines that it knows: its algorithms, each by the protocol that it would
/// take.
fn nccl(topology: &Topology, collective: Collective, sizes: &[u64]) -> Vec<Column> {
    let nodes = topology.boxes().len() as u32;
    let Some(kind) = Kind::of(topology) else { return Vec::new() };
    let machine = kind.nccl(nodes);
    let column = |algorithm: nccl_model::Algorithm| {
        let time = |bytes: &u64| {
            let call = nccl_model::Call { collective, ranks: topology.ranks(), nodes, bytes: *bytes };
            let protocols = nccl_model::Protocol::ALL.into_iter();
            let times =
                protocols.filter_map(|protocol| nccl_model::predict_us(&machine, &call, algorithm, protocol));
            times.min_by(f64::total_cmp)
        };
        let times_us: Vec<Option<f64>> = sizes.iter().map(time).collect();
        let name = format!("NCCL {algorithm:?}").to_lowercase().replace("nccl", "NCCL");
        times_us.iter().any(Option::is_some).then_some(Column { name, times_us })
    };
    nccl_model::Algorithm::ALL.into_iter().filter_map(column).collect()
}

/// The bound, the planner's choice, and the best of NCCL's schedules where the machine has them.
fn yardsticks(planning: &Planning, collective: Collective, sizes: &[u64]) -> Result<Vec<Column>, Failure> {
    let topology = planning.topology();
    let mut columns = Vec::new();
    if let Some(bound) = Bound::of(topology, collective) {
        let times_us = sizes.iter().map(|size| Some(bound.seconds(*size) * 1e6)).collect();
        columns.push(Column { name: "bound".into(), times_us });
    }
    let chosen = |size: &u64| {
        let block_bytes = planned::block_bytes(collective, *size, planning.ranks());
        let algorithm = planning.algorithm(collective, block_bytes).map_err(refused)?;
        Ok(Some(planning.price(algorithm, collective, block_bytes) * 1e6))
    };
    let times_us = sizes.iter().map(chosen).collect::<Result<_, Failure>>()?;
    columns.push(Column { name: "the planner's choice".into(), times_us });
    if let Some(kind) = Kind::of(topology) {
        let boxes = topology.boxes().len() as u32;
        let times_us: Vec<Option<f64>> = with_fleet(kind, Rates::DataSheet, |fleet| {
            let mut prices = Prices::new(fleet);
            let best = |&bytes: &u64| {
                let call = Call { collective, bytes, per_box: PER_BOX, boxes };
                Some(prices.best(&call)?.seconds * 1e6)
            };
            sizes.iter().map(best).collect()
        });
        if times_us.iter().any(Option::is_some) {
            columns.push(Column { name: "NCCL's best, simulated".into(), times_us });
        }
    }
    Ok(columns)
}

impl Table {
    fn text(&self) -> String {
        let Table { collective, ranks, machine, sizes, columns, chosen, .. } = self;
        let mut text =
            format!("# {collective} over {ranks} ranks on {machine}: predicted us, * the planner's choice\n");
        let width = |column: &Column| column.name.len().max(10);
        let names = columns.iter().map(|column| format!("  {:>1$}", column.name, width(column)));
        text += &format!("# {:>8}{}\n", "size", names.collect::<String>());
        for (row, size) in sizes.iter().enumerate() {
            let cell = |column: &Column| {
                let mark = if column.name == chosen[row] { "*" } else { "" };
                let time = column.times_us[row].map_or("-".into(), |time| format!("{mark}{time:.2}"));
                format!("  {time:>0$}", width(column))
            };
            text += &format!("{:>10}{}\n", human(*size), columns.iter().map(cell).collect::<String>());
        }
        for (name, reason) in &self.excluded {
            text += &format!("# {name} is excluded: {reason}\n");
        }
        text
    }

    fn csv(&self) -> String {
        let mut text = String::from("collective,ranks,size,algorithm,predicted_us,chosen\n");
        for (row, size) in self.sizes.iter().enumerate() {
            for column in &self.columns {
                let Some(time) = column.times_us[row] else { continue };
                let (collective, ranks, name) = (self.collective, self.ranks, &column.name);
                let chosen = u8::from(*name == self.chosen[row]);
                text += &format!("{collective},{ranks},{size},\"{name}\",{time:.4},{chosen}\n");
            }
        }
        text
    }

    /// Lines are predicted, points measured; one algorithm has one colour.
    fn chart(&self, measured: Vec<measured::Curve>) -> Chart {
        // What is drawn over the candidates comes last.
        let columns = || self.columns.iter().chain(&self.yardsticks);
        let mut names: Vec<&str> = columns().map(|column| column.name.as_str()).collect();
        let mut series: Vec<Series> = Vec::new();
        for (color, column) in columns().enumerate() {
            let of = |(size, time): (&u64, &Option<f64>)| Some((*size as f64, (*time)? * 1e-6));
            let is_yardstick = color >= self.columns.len();
            series.push(Series {
                name: column.name.clone(),
                mark: if is_yardstick { Mark::LineAndPoints } else { Mark::Line },
                color,
                points: self.sizes.iter().zip(&column.times_us).filter_map(of).collect(),
            });
        }
        for curve in &measured {
            let known = names.iter().position(|name| *name == curve.name);
            let color = known.unwrap_or_else(|| {
                names.push(&curve.name);
                names.len() - 1
            });
            let shown =
                |(size, _): &&(u64, f64)| self.sizes.first() <= Some(size) && Some(size) <= self.sizes.last();
            let points = curve.points.iter().filter(shown);
            let points = points.map(|(size, time_us)| (*size as f64, time_us * 1e-6)).collect();
            series.push(Series {
                name: format!("{}, measured", curve.name),
                mark: Mark::Points,
                color,
                points,
            });
        }
        Chart {
            title: format!("{} over {} ranks on {}", self.collective, self.ranks, self.machine),
            x: Axis { label: "size".into(), unit: Unit::Bytes },
            y: Axis { label: "time".into(), unit: Unit::Seconds },
            series,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(line: &str) -> Result<Table, Failure> {
        let words: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
        let arguments = planned::parse::<Arguments>(&words)?.expect("no help");
        arguments.table(&arguments.machine.planning()?)
    }

    #[test]
    fn every_size_has_a_choice_among_the_candidates() {
        let table = table("simulate allreduce --ranks 4 --cores 2 -b 8 -e 64K -f 8").expect("a table");
        assert_eq!(table.sizes, [8, 64, 512, 4096, 32768]);
        for (row, chosen) in table.chosen.iter().enumerate() {
            let column = table.columns.iter().find(|column| column.name == *chosen).expect("a candidate");
            let least =
                table.columns.iter().filter_map(|column| column.times_us[row]).fold(f64::MAX, f64::min);
            assert_eq!(column.times_us[row], Some(least), "{chosen}");
        }
        let text = table.text();
        assert_eq!(
            text.lines().filter(|line| line.contains('*') && !line.starts_with('#')).count(),
            5,
            "{text}"
        );
        assert_eq!(table.csv().lines().count(), 1 + 5 * table.columns.len());
    }

    #[test]
    fn sizes_without_a_block_are_left_out() {
        let table = table("simulate allgather --ranks 4 -b 8 -e 256").expect("a table");
        assert_eq!(table.sizes, [64, 128, 256]);
    }

    #[test]
    fn the_model_of_nccl_stands_beside_on_its_machines() {
        let of =
            table("simulate allreduce --topology dgx-h100:2 -b 1M -e 1M --algo ring,tree").expect("a table");
        let names: Vec<&str> = of.columns.iter().map(|column| column.name.as_str()).collect();
        assert_eq!(names, ["ring", "tree", "NCCL ring", "NCCL tree", "NCCL nvlstree"]);
        assert!(of.columns.iter().all(|column| column.times_us[0].is_some_and(|time| time > 0.0)));
        let of = table("simulate allreduce --ranks 8 -b 1M -e 1M").expect("a table");
        assert!(of.columns.iter().all(|column| !column.name.contains("NCCL")));
    }

    #[test]
    fn algorithms_by_name() {
        let of =
            table("simulate alltoall --ranks 8 -b 1M -e 1M --algo bruck(radix=3),pairwise").expect("a table");
        let names: Vec<&str> = of.columns.iter().map(|column| column.name.as_str()).collect();
        assert_eq!(names, ["bruck(radix=3)", "pairwise"]);
        let list = "ring(channels=2,bidirectional),tree";
        assert_eq!(named(list, Collective::AllReduce, 4, &[]).map(|all| all.len()), Ok(2));
        let failure = table("simulate alltoall --ranks 8 --algo ring").err().expect("not defined");
        assert!(failure.exit == Exit::Usage && failure.message.contains("possible: bruck"), "{failure}");
    }

    #[test]
    fn a_drawing_shows_the_distance_from_the_bound_and_from_nccl() {
        let of = table("simulate allgather --topology dgx-h100:2 -b 256M -e 1G -f 4 -o none.svg")
            .expect("a table");
        let yardstick = |name: &str| {
            let column = of.yardsticks.iter().find(|column| column.name == name).expect(name);
            let times: Option<Vec<f64>> = column.times_us.iter().copied().collect();
            times.expect("a time of each size")
        };
        let (bound, ours, nccl) =
            (yardstick("bound"), yardstick("the planner's choice"), yardstick("NCCL's best, simulated"));
        for (row, chosen) in of.chosen.iter().enumerate() {
            let column = of.columns.iter().find(|column| column.name == *chosen).expect("a candidate");
            assert_eq!(column.times_us[row], Some(ours[row]), "{chosen}");
            assert!(bound[row] <= ours[row] && bound[row] <= nccl[row], "{bound:?} {ours:?} {nccl:?}");
        }
        let chart = of.chart(Vec::new());
        let svg = chart_svg(&chart);
        assert!(["bound", "the planner's choice", "NCCL's best"].iter().all(|name| svg.contains(name)));
        let of = table("simulate allgather --topology torus:2x2 -b 1M -e 1M -o none.svg").expect("a table");
        assert!(
            of.yardsticks.iter().all(|column| !column.name.contains("NCCL")),
            "NCCL knows no such machine"
        );
    }

    #[test]
    fn measured_points_have_the_colour_of_their_prediction() {
        let table = table("simulate allreduce --ranks 4 -b 64 -e 1K --algo ring,tree").expect("a table");
        let curve =
            |name: &str| measured::Curve { name: name.into(), points: vec![(64, 1.0), (1 << 20, 2.0)] };
        let chart = table.chart(vec![curve("tree"), curve("collbench")]);
        let of = |name: &str| chart.series.iter().find(|series| series.name == name).expect("a series");
        assert_eq!(of("tree, measured").color, of("tree").color);
        assert_eq!(of("collbench, measured").color, 2);
        // What lies outside of the sweep is not drawn.
        assert_eq!(of("tree, measured").points, [(64.0, 1e-6)]);
        assert!(chart_svg(&chart).contains("tree, measured"));
    }
}
