//! `collbench tune`: measures every candidate on this machine, writes the planner's table, and checks one.
//!
//! Invariant: a table holds what was measured here, under the planner's own name of the machine; standard
//! output without `-o` is the table, everything else on it is a remark of the table. The user chooses between near and
//! far cores: ranks run where the system puts them (see `taskset`).

mod rounds;

use std::ffi::OsString;
use std::fs::{self, OpenOptions};
use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::Parser;
use consort::Options;
use consort::planning::{Tuning, TuningLine};

use crate::arguments::{Place, parse_place};
use crate::backend::{self, Member};
use crate::bounds::Limits;
use crate::collective::Collective;
use crate::failure::{Exit, Failure};
use crate::group::Group;
use crate::launch;
use crate::planned;
use crate::samples::{Sample, Samples};
use crate::sizes::{Step, Sweep, parse_size};
use rounds::Order;

/// A choice that is at most this much slower than the fastest is as good: the table keeps it.
const TIE: f64 = 1.02;
/// From this number of bytes on, the second factor of [`FAR`] holds.
const LARGE_BYTES: u64 = 16 << 20;
/// A choice that is slower than this times the fastest is far from it: below [`LARGE_BYTES`], and from there on.
const FAR: [f64; 2] = [1.15, 1.25];
/// Something else ran, if a tenth of the rounds took more than this times as long as another tenth.
const NOISY: f64 = 3.0;

/// Measures every algorithm that a collective may take on this machine and writes a tuning table
/// (CONSORT_TUNING) of the fastest.
///
/// Candidates take turns, round after round; every result is checked. Ranks run where the system puts them:
/// taskset says where. Exit codes are those of a measurement.
#[derive(Parser, Debug)]
#[command(
    name = "collbench tune",
    bin_name = "collbench tune",
    args_override_self = true,
    max_term_width = 110
)]
struct Arguments {
    /// allreduce, broadcast and so on, or all [default: all]
    collectives: Vec<String>,

    /// Numbers of ranks, one after the other [default: as a measurement without --ranks]
    #[arg(long, value_name = "N,N", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=65_536))]
    ranks: Vec<u32>,

    /// Smallest size in bytes; K, M and G are powers of 1024
    #[arg(short = 'b', long = "minbytes", value_name = "SIZE", default_value = "8", value_parser = parse_size)]
    smallest: u64,

    /// Largest size
    #[arg(short = 'e', long = "maxbytes", value_name = "SIZE", default_value = "64M", value_parser = parse_size)]
    largest: u64,

    /// Factor between sizes
    #[arg(short = 'f', long = "stepfactor", value_name = "N", default_value_t = 2)]
    factor: u64,

    /// 1: a barrier after each call; 0: calls follow each other
    #[arg(short = 'z', long = "blocking", value_name = "0|1", default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=1))]
    blocking: u8,

    /// Rounds of each size [default: at least 7, and as many as fit into 0.4 s a candidate]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    repeats: Option<u64>,

    /// Seconds for everything: fewer rounds, at least 3; sizes that do not fit are left out
    #[arg(long = "budget", value_name = "SECONDS")]
    budget_s: Option<f64>,

    /// Ranks are threads of one process instead of processes
    #[arg(long)]
    threads: bool,

    /// Also algorithms that give other bits than the planner's own choice
    #[arg(long)]
    any_bits: bool,

    /// Seed of the data
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,

    /// Writes the table to a file instead of standard output
    #[arg(short = 'o', value_name = "FILE")]
    output: Option<PathBuf>,

    /// Writes the times of all candidates as comma-separated values
    #[arg(long, value_name = "FILE")]
    samples: Option<PathBuf>,

    /// Measures again with this table loaded, and compares its choices with the fastest; writes no table
    #[arg(long, value_name = "FILE", conflicts_with = "output")]
    check: Option<PathBuf>,

    /// Says on standard error what is done
    #[arg(short = 'v', long)]
    verbose: bool,

    /// Set by the parent process: rank, size, the parent's process, whether to report progress.
    #[arg(long = "as-rank", hide = true, value_name = "R/N/PID/P", value_parser = parse_place)]
    place: Option<Place>,

    /// Set by the parent process: why there are as many ranks as there are.
    #[arg(long = "as-rank-note", hide = true)]
    _note: Option<String>,

    /// Set by the parent process: where rank 0 leaves its samples.
    #[arg(long = "as-rank-samples", hide = true)]
    results: Option<PathBuf>,
}

/// Runs the subcommand. `words` are all of the command line.
pub(crate) fn run(words: &[OsString]) -> Result<Exit, Failure> {
    let Some(arguments) = planned::parse::<Arguments>(&words[1..])? else { return Ok(Exit::Done) };
    if std::env::var_os("CONSORT_TUNING").is_some() {
        let why = "unset it: tables are measured without one, and --check names the one to check";
        return Err(Failure::usage(format!("CONSORT_TUNING is set; {why}")));
    }
    let order = arguments.order()?;
    let table = arguments.check.as_deref().map(read_table).transpose()?;
    let options = match &arguments.check {
        Some(path) => Options::default().tuning(path),
        None => Options::default(),
    };
    let job = Job { order, options, table };
    if let Some(place) = arguments.place {
        let id = launch::enter(place)?;
        let member = backend::join(place.rank, place.size, &id, &job.options)?;
        let samples = job.one_rank(&member)?;
        return match arguments.results.filter(|_| place.rank == 0) {
            Some(path) => planned::write(&samples.to_string(), Some(&path)).map(|()| Exit::Done),
            None => Ok(Exit::Done),
        };
    }
    for path in [&arguments.output, &arguments.samples].into_iter().flatten() {
        let opened = OpenOptions::new().append(true).create(true).open(path);
        opened.map_err(|error| Failure::usage(format!("cannot write {}: {error}", path.display())))?;
    }
    if let Some(launch) = backend::detect()?.filter(|launch| launch.size > 1) {
        if !arguments.ranks.is_empty() || arguments.threads {
            let text = format!("{} started the ranks; leave out --ranks and --threads", launch.launcher);
            return Err(Failure::usage(text));
        }
        let member = backend::launched(&job.options)?;
        if member.rank() == 0 {
            println!("# {} ranks: as {} says\n{}", launch.size, launch.launcher, rounds::heading());
        }
        let samples = job.one_rank(&member)?;
        return if member.rank() == 0 { arguments.finish(&samples) } else { Ok(Exit::Done) };
    }
    arguments.every_count(job, words)
}

impl Arguments {
    fn order(&self) -> Result<Order, Failure> {
        let is_tuned = |one: &Collective| *one != Collective::SendRecv && planned::of(*one).is_some();
        let all = || Collective::ALL.into_iter().filter(is_tuned);
        let mut collectives: Vec<Collective> = Vec::new();
        for name in &self.collectives {
            match name.as_str() {
                "all" => collectives.extend(all()),
                name => collectives.push(name.parse().map_err(Failure::usage)?),
            }
        }
        if let Some(one) = collectives.iter().find(|one| !is_tuned(one)) {
            return Err(Failure::usage(format!("{one} has one algorithm; there is nothing to choose")));
        }
        if collectives.is_empty() {
            collectives = all().collect();
        }
        let sweep = Sweep::new(self.smallest, self.largest, Step::Factor(self.factor));
        Ok(Order {
            collectives,
            sweep: sweep.map_err(Failure::usage)?,
            blocking: self.blocking == 1,
            repeats: self.repeats,
            // A choice is compared with the fastest of all.
            any_bits: self.any_bits || self.check.is_some(),
            budget_s: self.budget_s,
            seed: self.seed,
        })
    }

    /// One job for each number of ranks, one after the other.
    fn every_count(&self, mut job: Job, words: &[OsString]) -> Result<Exit, Failure> {
        let limits = Limits::of_this_process();
        let counts: Vec<(u32, String)> = match &self.ranks[..] {
            [] => vec![limits.choose(job.order.rank_bytes(2))?],
            ranks => ranks.iter().map(|ranks| (*ranks, format!("{ranks} ranks: as asked for"))).collect(),
        };
        for (ranks, _) in &counts {
            limits.check_memory(*ranks, job.order.rank_bytes(*ranks))?;
        }
        let (begun, mut samples) = (Instant::now(), Samples::default());
        for (index, (ranks, note)) in counts.iter().enumerate() {
            let left_s = self.budget_s.map(|budget| budget - begun.elapsed().as_secs_f64());
            // Each of those that are left may take the same.
            job.order.budget_s = left_s.map(|left| left / (counts.len() - index) as f64);
            println!("# {note}; seed {}", self.seed);
            println!("{}", rounds::heading());
            let measured = match self.threads {
                true => job.threads(*ranks)?,
                false => match job.processes(*ranks, note, words, self.verbose)? {
                    Ok(measured) => measured,
                    Err(exit) => return Ok(exit),
                },
            };
            samples.machine = measured.machine;
            samples.all.extend(measured.all);
        }
        self.finish(&samples)
    }

    /// The summary and the files.
    fn finish(&self, samples: &Samples) -> Result<Exit, Failure> {
        let (points, far) =
            (samples.points().count(), samples.points().filter(|point| is_far(point)).count());
        println!(
            "# {far} of {points} choices are slower than {} times the fastest ({} times from 16 MiB on): <",
            FAR[0], FAR[1]
        );
        let noisy = samples.points().filter(|point| is_noisy(point)).count();
        if noisy > 0 {
            println!(
                "# {noisy} of {points} sizes were disturbed (a tenth of the rounds took {NOISY} times as long as another): ~"
            );
        }
        if let Some(path) = &self.samples {
            planned::write(&samples.to_string(), Some(path))?;
        }
        if self.check.is_none() {
            planned::write(&table(samples).to_string(), self.output.as_deref())?;
        }
        Ok(Exit::Done)
    }
}

fn read_table(path: &Path) -> Result<Tuning, Failure> {
    let text = fs::read_to_string(path).map_err(|error| error.to_string());
    let table = text.and_then(|text| Tuning::parse(&text).map_err(|error| error.to_string()));
    table.map_err(|why| Failure::usage(format!("the tuning table {} cannot be read: {why}", path.display())))
}

/// The work of a job's ranks.
struct Job {
    order: Order,
    options: Options,
    /// The table that is checked.
    table: Option<Tuning>,
}

impl Job {
    /// Rank 0's samples; none of the others.
    fn one_rank(&self, member: &Member) -> Result<Samples, Failure> {
        let machine = member.planning().machine();
        if let Some(table) = self.table.as_ref().filter(|table| table.machine != machine) {
            let text = format!("the table was measured on \"{}\" and this is \"{machine}\"", table.machine);
            return Err(Failure::usage(text));
        }
        rounds::run(&self.order, member, &mut |line| println!("{line}"))
            .map_err(|failure| Failure::new(failure.exit, format!("rank {}: {failure}", member.rank())))
    }

    /// All ranks as threads of this process.
    fn threads(&self, ranks: u32) -> Result<Samples, Failure> {
        let members = backend::local(ranks, &self.options)?;
        let results: Vec<Result<Samples, Failure>> = std::thread::scope(|scope| {
            let threads: Vec<_> =
                members.iter().map(|member| scope.spawn(move || self.one_rank(member))).collect();
            let panicked = |_| Err(Failure::internal("a rank panicked"));
            threads.into_iter().map(|thread| thread.join().unwrap_or_else(panicked)).collect()
        });
        let all = results.into_iter().collect::<Result<Vec<_>, _>>()?;
        all.into_iter().next().ok_or_else(|| Failure::internal("there was no rank"))
    }

    /// All ranks as processes. Failed ranks: how they ended.
    fn processes(
        &self,
        ranks: u32,
        note: &str,
        words: &[OsString],
        verbose: bool,
    ) -> Result<Result<Samples, Exit>, Failure> {
        let name = format!("collbench-samples-{}-{ranks}.csv", std::process::id());
        let path = std::env::temp_dir().join(name);
        let mut arguments = words.to_vec();
        let mut results = OsString::from("--as-rank-samples=");
        results.push(&path);
        arguments.push(results);
        arguments.extend(self.order.budget_s.map(|left| format!("--budget={left}").into()));
        let (id, _root) = backend::create()?;
        let exit = launch::run(verbose, ranks, note, &id, &arguments)?;
        let text = fs::read_to_string(&path);
        drop(fs::remove_file(&path));
        if exit != Exit::Done {
            return Ok(Err(exit));
        }
        let lost = |why: String| Failure::internal(format!("rank 0 left no samples: {why}"));
        let text = text.map_err(|error| lost(error.to_string()))?;
        Ok(Ok(Samples::parse(&text).map_err(lost)?))
    }
}

fn fastest(point: &[Sample]) -> Option<&Sample> {
    point.iter().min_by(|one, other| one.median_us.total_cmp(&other.median_us))
}

/// How many times slower the planner's choice is than the fastest; 1 where it was not measured.
fn ratio(point: &[Sample]) -> f64 {
    let chosen = point.iter().find(|sample| sample.chosen);
    chosen.zip(fastest(point)).map_or(1.0, |(chosen, fastest)| chosen.median_us / fastest.median_us)
}

fn is_far(point: &[Sample]) -> bool {
    let large = point.first().is_some_and(|sample| sample.size >= LARGE_BYTES);
    ratio(point) > FAR[usize::from(large)]
}

/// Whether something else ran: the fastest candidate or the choice took much longer in many of its rounds.
fn is_noisy(point: &[Sample]) -> bool {
    let compared = point.iter().filter(|sample| sample.chosen).chain(fastest(point));
    compared.into_iter().any(|sample| sample.p90_us > NOISY * sample.p10_us)
}

/// The fastest of each point; the planner's own choice where that is as good.
fn table(samples: &Samples) -> Tuning {
    let line = |point: &[Sample]| {
        let own = point.iter().find(|sample| sample.chosen).filter(|_| ratio(point) <= TIE);
        let best = own.or_else(|| fastest(point))?;
        Some(TuningLine {
            collective: best.collective,
            ranks: best.ranks,
            bytes: best.bytes,
            algorithm: best.algorithm,
            slot_bytes: best.slot_bytes,
            fold_hash: best.fold_hash,
            nanoseconds: (best.median_us * 1e3).round() as u64,
        })
    };
    Tuning { machine: samples.machine.clone(), lines: samples.points().filter_map(line).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples::tests::of;

    #[test]
    fn the_fastest_is_in_the_table_unless_the_choice_is_as_good() {
        let all = vec![
            of("tree", 64, 10.0, false),
            of("ring", 64, 10.1, true),
            of("tree", 128, 10.0, false),
            of("ring", 128, 10.5, true),
            of("tree", 256, 10.0, false),
        ];
        let samples = Samples { machine: "hosts=1 cores=2 transport=auto".into(), all };
        let table = table(&samples);
        let names: Vec<String> = table.lines.iter().map(|line| line.algorithm.to_string()).collect();
        assert_eq!(names, ["ring", "tree", "tree"]);
        assert_eq!((table.lines[0].nanoseconds, table.lines[0].slot_bytes), (10_100, 16384));
        assert_eq!(Tuning::parse(&table.to_string()), Ok(table));
    }

    #[test]
    fn far_is_farther_for_large_messages() {
        let point = |bytes, ratio| [of("tree", bytes, 10.0, false), of("ring", bytes, 10.0 * ratio, true)];
        assert!(is_far(&point(64, 1.16)) && !is_far(&point(64, 1.14)));
        assert!(is_far(&point(LARGE_BYTES, 1.26)) && !is_far(&point(LARGE_BYTES, 1.24)));
        assert!(!is_far(&[of("tree", 64, 10.0, false)]));
    }

    #[test]
    fn disturbed_sizes_are_seen() {
        let with = |p90_us, chosen| Sample { p90_us, ..of("ring", 64, 10.0, chosen) };
        let fastest = Sample { p90_us: 9.0, ..of("tree", 64, 9.0, false) };
        assert!(is_noisy(&[fastest.clone(), with(15.1, true)]));
        assert!(!is_noisy(&[fastest.clone(), with(14.9, true)]));
        // The noise of a candidate that is neither the fastest nor the choice does not matter.
        assert!(!is_noisy(&[fastest, with(15.1, false)]));
    }

    #[test]
    fn what_cannot_be_tuned_is_refused() {
        let order = |line: &str| {
            let words: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
            planned::parse::<Arguments>(&words)?.expect("no help").order()
        };
        let all = order("tune").unwrap().collectives;
        assert!(all.contains(&Collective::AllReduce) && !all.contains(&Collective::SendRecv));
        assert_eq!(order("tune all").unwrap().collectives, all);
        assert_eq!(order("tune allreduce").unwrap().collectives, [Collective::AllReduce]);
        for (line, says) in [
            ("tune sendrecv", "nothing to choose"),
            ("tune allsum", "no collective"),
            ("tune -b 1M -e 1K", "larger than the largest"),
            ("tune --ranks 0", "0"),
        ] {
            let failure = order(line).expect_err(line);
            assert_eq!(failure.exit, Exit::Usage, "{line}");
            assert!(failure.message.contains(says), "{failure}");
        }
    }
}
