//! `collbench experts`: dispatch and combine of a mixture of experts, measured and checked, beside an all-to-all of the same rows.
//!
//! Invariant: every rank can say what every other one has, from the seed alone, so each row and each sum is checked by the rank that
//! got it. Times are the median over iterations of the slowest rank's. Absent: experts that compute.

mod plain;
mod routing;

use std::ffi::OsString;
use std::fmt::Write;
use std::time::Instant;

use clap::{Parser, ValueEnum};
use consort::experts::{Exchange, ExpertOptions, Experts, Payload, Route, Traffic};
use consort::{DataType, Options, Real, ReduceOp, bf16};

use crate::arguments::{Place, parse_place};
use crate::backend::{self, Member};
use crate::bounds::{self, Limits};
use crate::failure::{Exit, Failure};
use crate::group::Group;
use crate::launch;
use crate::planned;
use crate::statistics::Spread;
use plain::Plain;
use routing::Routing;

/// Measures the dispatch of tokens to experts and the combination of what they return, and checks every row and every sum.
///
/// Each token chooses experts that differ, uniformly, by the seed, with weights that differ. An expert multiplies its rows by a factor
/// of its own, which takes no part in the times. Beside it
/// the same tokens go by an all-to-all of blocks that differ in length, a row for each choice, there and back, with a pass over the rows between.
/// Started by a launcher, each process is a rank; otherwise the ranks are processes of this host.
#[derive(Parser, Debug)]
#[command(
    name = "collbench experts",
    bin_name = "collbench experts",
    args_override_self = true,
    max_term_width = 110
)]
pub(super) struct Arguments {
    /// Number of ranks [default: 2]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    ranks: Option<u32>,

    /// Tokens of a rank
    #[arg(long, value_name = "N", default_value_t = 4096, value_parser = clap::value_parser!(u32).range(1..=1 << 24))]
    tokens: u32,

    /// Elements of a row
    #[arg(long, value_name = "N", default_value_t = 7168, value_parser = clap::value_parser!(u32).range(1..=1 << 24))]
    hidden: u32,

    /// Choices of a token
    #[arg(long = "top-k", value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=1 << 10))]
    top_k: u32,

    /// Experts of all ranks
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    experts: u32,

    /// float, double or bfloat16
    #[arg(short = 'd', long = "datatype", value_name = "TYPE", default_value = "bfloat16")]
    data_type: DataType,

    /// Rows are dispatched in 8-bit form
    #[arg(long)]
    fp8: bool,

    /// The route of rows [default: by expected copies between hosts]
    #[arg(long, value_enum, value_name = "ROUTE")]
    route: Option<Ways>,

    /// How ranks learn how many rows come [default: by the longest message]
    #[arg(long, value_enum, value_name = "HOW")]
    exchange: Option<Lengths>,

    /// Iterations
    #[arg(short = 'n', long = "iters", value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    iterations: u32,

    /// Iterations before the clock starts
    #[arg(short = 'w', long = "warmup-iters", value_name = "N", default_value_t = 1)]
    warmups: u32,

    /// Seed of the choices
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,

    /// Leaves out the all-to-all of the same rows
    #[arg(long)]
    alone: bool,

    /// Ranks are threads of one process instead of processes
    #[arg(long)]
    threads: bool,

    /// Says on standard error what is done
    #[arg(short = 'v', long)]
    verbose: bool,

    /// Set by the parent process: rank, size, the parent's process, whether to report progress.
    #[arg(long = "as-rank", hide = true, value_name = "R/N/PID/P", value_parser = parse_place)]
    place: Option<Place>,

    /// Set by the parent process: why there are as many ranks as there are.
    #[arg(long = "as-rank-note", hide = true)]
    note: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum, Debug)]
enum Ways {
    Direct,
    Hierarchical,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum, Debug)]
enum Lengths {
    Counted,
    Slots,
}

/// Runs the subcommand. `words` are all of the command line.
pub(crate) fn run(words: &[OsString]) -> Result<Exit, Failure> {
    let Some(arguments) = planned::parse::<Arguments>(&words[1..])? else { return Ok(Exit::Done) };
    let options = Options::default();
    let is_asked_for = arguments.ranks.is_some() || arguments.threads;
    let note = arguments.note.as_deref();
    if let Some((member, note)) = launch::started(arguments.place, note, is_asked_for, &options)? {
        return arguments.one_rank(&member, &note);
    }
    let ranks = arguments.ranks.unwrap_or(2);
    Limits::of_this_process().check_memory(ranks, bounds::rank_bytes(arguments.bytes()))?;
    let note =
        format!("{ranks} ranks: {}", if arguments.ranks.is_some() { "as asked for" } else { "the least" });
    if arguments.threads {
        return arguments.in_threads(ranks, &note, &options);
    }
    let (id, _root) = backend::create()?;
    launch::run(arguments.verbose, ranks, &note, &id, words)
}

/// What was measured in one direction of one way.
struct Line {
    name: &'static str,
    /// Of the slowest rank, in seconds.
    times: Spread,
    traffic: Traffic,
}

impl Arguments {
    /// What a rank holds, about: tokens and sums, rows of its experts, and messages of both kinds both ways.
    fn bytes(&self) -> u64 {
        let tokens = u64::from(self.tokens) * u64::from(self.hidden) * self.data_type.size() as u64;
        tokens * (6 + u64::from(self.top_k) * if self.alone { 1 } else { 3 })
    }

    fn options(&self) -> ExpertOptions {
        let sizes = [self.hidden, self.top_k, self.tokens].map(|size| size as usize);
        let mut options = ExpertOptions::new(self.experts, sizes[0], sizes[1], sizes[2]);
        if let Some(route) = self.route {
            options = options.route(match route {
                Ways::Direct => Route::Direct,
                Ways::Hierarchical => Route::Hierarchical,
            });
        }
        if let Some(exchange) = self.exchange {
            options = options.exchange(match exchange {
                Lengths::Counted => Exchange::Counted,
                Lengths::Slots => Exchange::Slots,
            });
        }
        options.payload(if self.fp8 { Payload::EightBit } else { Payload::Element })
    }

    fn one_rank(&self, member: &Member, note: &str) -> Result<Exit, Failure> {
        let result = match self.data_type {
            DataType::Float32 => self.measured::<f32>(member, note),
            DataType::Float64 => self.measured::<f64>(member, note),
            DataType::Bfloat16 => self.measured::<bf16>(member, note),
            other => Err(Failure::usage(format!("-d {other}: experts take float, double and bfloat16"))),
        };
        result.map_err(|failure| Failure::new(failure.exit, format!("rank {}: {failure}", member.rank())))
    }

    fn in_threads(&self, ranks: u32, note: &str, options: &Options) -> Result<Exit, Failure> {
        let members = backend::local(ranks, options)?;
        std::thread::scope(|scope| {
            let threads: Vec<_> =
                members.iter().map(|member| scope.spawn(move || self.one_rank(member, note))).collect();
            let panicked = |_| Err(Failure::internal("a rank panicked"));
            let ends: Vec<Result<Exit, Failure>> =
                threads.into_iter().map(|thread| thread.join().unwrap_or_else(panicked)).collect();
            ends.into_iter().try_fold(Exit::Done, |worst, end| end.map(|exit| worst.worse(exit)))
        })
    }

    /// Measures as one rank; rank 0 says what was found.
    fn measured<T: Real>(&self, member: &Member, note: &str) -> Result<Exit, Failure> {
        let failed = |error| member.failure(error);
        let comm = member.communicator();
        let mut experts = Experts::<T>::new(comm, self.options()).map_err(failed)?;
        let routing = Routing::new(self, experts.host_of());
        let own = member.rank();
        let tokens: Vec<T> = routing.tokens(own);
        let indices = routing.indices(own);
        let (weights, grouped) = (routing.weights::<T>(), routing.grouped(own));
        let (mut rows, mut sums) = (Vec::new(), vec![T::default(); tokens.len()]);
        let (mut there, mut back) = (Vec::new(), Vec::new());
        let mut traffics = [Traffic::default(); 2];
        let mut wrong = 0;
        let mut load = None;
        for iteration in 0..self.warmups + self.iterations {
            comm.barrier().map_err(failed)?;
            let begun = Instant::now();
            let handle = experts.dispatch(&tokens, &indices, &weights, &mut rows).map_err(failed)?;
            there.push(begun.elapsed().as_secs_f64());
            wrong += routing.wrong_rows(&grouped, &rows);
            routing.compute(&grouped, &mut rows);
            comm.barrier().map_err(failed)?;
            let begun = Instant::now();
            traffics[1] = experts.combine(&handle, &rows, &mut sums).map_err(failed)?;
            back.push(begun.elapsed().as_secs_f64());
            traffics[0] = handle.traffic();
            wrong += routing.wrong_sums(&indices, &tokens, &sums, true);
            if iteration == 0 {
                load = Some(experts.load(&handle).map_err(failed)?);
            }
        }
        let warmups = self.warmups as usize;
        let mut lines = Vec::new();
        let mut line = |name, times: &[f64], traffic| -> Result<(), Failure> {
            lines.extend(slowest(member, name, &times[warmups..], traffic)?);
            Ok(())
        };
        line("dispatch", &there, traffics[0])?;
        line("combine", &back, traffics[1])?;
        if !self.alone {
            drop(rows);
            let plain = Plain::new(&routing, &tokens, (&indices, &weights));
            let found = plain.measure(member, warmups + self.iterations as usize)?;
            wrong += found.wrong;
            line("all-to-all there", &found.there, found.traffic[0])?;
            line("all-to-all back", &found.back, found.traffic[1])?;
        }
        let mut numbers = [wrong as u64, routing.copies_between_hosts(own)];
        comm.all_reduce(&mut numbers, ReduceOp::Sum).map_err(failed)?;
        if own == 0 {
            let row_bytes = (self.hidden as usize * size_of::<T>()) as u64;
            let sent_bytes = if self.fp8 { u64::from(self.hidden) } else { row_bytes };
            let least = [sent_bytes, row_bytes].map(|bytes| bytes * numbers[1]);
            let largest = load.map_or(0.0, |load| load.largest_over_mean);
            let head = format!("# {note}\n# {}\n# {}\n", self.head(), experts.explain());
            let text = table(&lines, least);
            let tail = format!(
                "# at least {} bytes there and {} back cross between hosts in an iteration\n# the fullest expert has {largest:.2} times \
                 the mean\n# Out of bounds values : {} {}\n",
                least[0],
                least[1],
                numbers[0],
                if numbers[0] == 0 { "OK" } else { "FAILED" }
            );
            planned::write(&(head + &text + &tail), None)?;
        }
        Ok(if numbers[0] == 0 { Exit::Done } else { Exit::WrongData })
    }

    fn head(&self) -> String {
        let Arguments { tokens, hidden, top_k, experts, data_type, seed, iterations, .. } = self;
        let form = if self.fp8 { ", dispatched in 8-bit form" } else { "" };
        format!(
            "{tokens} tokens of a rank, rows of {hidden} {data_type}{form}, {top_k} of {experts} experts; seed {seed}, {iterations} iterations"
        )
    }
}

/// The times of the slowest rank and the bytes of all ranks.
fn slowest(
    member: &Member,
    name: &'static str,
    times: &[f64],
    traffic: Traffic,
) -> Result<Option<Line>, Failure> {
    let failed = |error| member.failure(error);
    let (mut times, mut bytes) = (times.to_vec(), [traffic.bytes, traffic.bytes_between_hosts]);
    member.communicator().all_reduce(&mut times, ReduceOp::Max).map_err(failed)?;
    member.communicator().all_reduce(&mut bytes, ReduceOp::Sum).map_err(failed)?;
    let traffic = Traffic { bytes: bytes[0], bytes_between_hosts: bytes[1] };
    Ok(Spread::of(times).map(|times| Line { name, times, traffic }))
}

/// What was found; `least` are the bytes that must cross between hosts there and back.
fn table(lines: &[Line], least: [u64; 2]) -> String {
    let mut text = String::new();
    // Writing to a String cannot fail.
    let _ = writeln!(
        text,
        "# {:<18}{:>12}{:>12}{:>14}{:>20}{:>16}",
        "", "median us", "min us", "sent MB", "between hosts MB", "times the least"
    );
    for (number, Line { name, times, traffic }) in lines.iter().enumerate() {
        let mb = |bytes: u64| bytes as f64 / 1e6;
        let ratio = match least[number % 2] {
            0 => "-".to_owned(),
            least => format!("{:.3}", traffic.bytes_between_hosts as f64 / least as f64),
        };
        let _ = writeln!(
            text,
            "  {name:<18}{:>12.1}{:>12.1}{:>14.3}{:>20.3}{ratio:>16}",
            times.p50 * 1e6,
            times.min * 1e6,
            mb(traffic.bytes),
            mb(traffic.bytes_between_hosts)
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run_in_threads(line: &str, ranks: u32) -> Result<Exit, Failure> {
        let words: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
        let arguments = planned::parse::<Arguments>(&words)?.expect("no help");
        arguments.in_threads(ranks, "ranks", &Options::default())
    }

    #[test]
    fn every_type_and_way_is_right() {
        for line in [
            "experts --tokens 40 --hidden 33 --top-k 3 --experts 12 -n 2",
            "experts --tokens 40 --hidden 130 --top-k 4 --experts 12 -n 1 -d float --route hierarchical --exchange slots",
            "experts --tokens 7 --hidden 5 --top-k 6 --experts 6 -n 1 -d double --exchange counted",
            "experts --tokens 20 --hidden 300 --top-k 2 --experts 6 -n 1 --fp8 --alone -w 0",
        ] {
            assert_eq!(run_in_threads(line, 3), Ok(Exit::Done), "{line}");
        }
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        let refused = |line| run_in_threads(line, 2).expect_err(line).to_string();
        assert!(refused("experts --experts 7").contains("7 experts on 2 ranks"));
        assert!(refused("experts -d int8").contains("experts take float"));
        assert!(refused("experts --tokens 0").contains("tokens"));
    }

    #[test]
    fn a_wrong_row_and_a_wrong_sum_are_seen() {
        let words = ["experts", "--tokens", "9", "--hidden", "4", "--top-k", "2", "--experts", "4"];
        let words: Vec<OsString> = words.map(OsString::from).to_vec();
        let arguments = planned::parse::<Arguments>(&words).expect("good words").expect("no help");
        let routing = Routing::new(&arguments, &[0]);
        let tokens: Vec<f32> = routing.tokens(0);
        let (indices, weights) = (routing.indices(0), routing.weights::<f32>());
        let (mut rows, grouped) = (routing.expected(0), routing.grouped(0));
        let wrong_sums = |sums: &[f32], changed| routing.wrong_sums(&indices, &tokens, sums, changed);
        assert_eq!((routing.wrong_rows(&grouped, &rows), wrong_sums(&tokens, false)), (0, 0));
        rows[5] += 1.0;
        assert_eq!(routing.wrong_rows(&grouped, &rows), 1);
        assert!(rows.len() == 2 * tokens.len() && routing.wrong_rows(&grouped, &rows[4..]) > 0);
        let mut sums = tokens.clone();
        sums[3] = f32::NAN;
        assert_eq!(wrong_sums(&sums, false), 1);
        // Experts whose factors are mixed up, and a sum without its smallest part.
        assert!(wrong_sums(&tokens, true) > 0);
        let sums: Vec<f32> = tokens.iter().map(|token| token * (1.0 - weights[0])).collect();
        assert_eq!(wrong_sums(&sums, false), tokens.iter().filter(|token| **token != 0.0).count());
    }
}
