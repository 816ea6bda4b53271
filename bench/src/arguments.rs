//! The command line, in nccl-tests' language.
//!
//! Invariant: what comes out as [`Settings`] is complete and consistent; every flag of nccl-tests is either
//! honoured, accepted at the value that changes nothing, or refused with a sentence that says why.

use std::fmt::Display;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::Parser;
use consort::DataType;
use consort::planning::Algorithm;

use crate::collective::Collective;
use crate::failure::Failure;
use crate::operator::Operator;
use crate::sizes::{Step, Sweep, parse_size};
use crate::statistics::Average;

/// nccl-tests' default size.
const DEFAULT_BYTES: u64 = 32 << 20;
/// nccl-tests' default step.
const DEFAULT_STEP: u64 = 1 << 20;
/// The most iterations that are made when none were asked for.
pub(crate) const ITERATIONS_MOST: u64 = 20;
/// The fewest.
pub(crate) const ITERATIONS_LEAST: u64 = 3;
/// How long the iterations of one size may take when their number was not asked for.
pub(crate) const ITERATIONS_TIME: Duration = Duration::from_secs(5);

/// Measures a collective between the ranks of this host, or of the job that started it, and checks every
/// element of every result.
///
/// Without a launcher it starts the ranks itself. Under torchrun, Open MPI, MPICH or Slurm it is one rank of
/// their job. Flags, table and exit codes are those of nccl-tests: 0 done, 1 internal error, 3 error of the
/// library or lost rank, 4 timeout, 6 wrong usage, 7 wrong data or bandwidth below the minimum.
///
/// `collbench trace OUT IN...` merges the trace files (CONSORT_TRACE) of several hosts. `collbench plan`,
/// `simulate` and `tune` (each with --help) ask the planner, price its candidates, and measure them. `collbench probe`
/// measures the wires between ranks, `collbench experts` dispatch and combine of a mixture of experts. `collbench env` shows every setting, its value now and where that came from.
#[derive(Parser, Debug)]
#[command(
    name = "collbench",
    version,
    disable_version_flag = true,
    args_override_self = true,
    max_term_width = 110
)]
pub(crate) struct Arguments {
    /// allreduce, reduce, broadcast, allgather, reducescatter, sendrecv, alltoall, gather, scatter, hypercube, or with
    /// blocks that differ alltoallv, allgatherv, reducescatterv, gatherv, scatterv; also as all_reduce, all_reduce_perf
    ///
    /// Where blocks differ, rank k's of n takes k + 1 of n * (n + 1) / 2 shares of the size; while there are fewer
    /// elements than shares some are empty. In alltoallv rank s sends block (d - s) mod n to rank d. The count column
    /// is the longest block. reducescatterv runs on aligned copies of the buffers, made beside the clock.
    #[arg(value_parser = |text: &str| text.parse::<Collective>())]
    collective: Collective,

    /// Smallest size in bytes; K, M and G are powers of 1024 [default: 32M]
    #[arg(short = 'b', long = "minbytes", value_name = "SIZE", value_parser = parse_size)]
    smallest: Option<u64>,

    /// Largest size [default: 32M]
    #[arg(short = 'e', long = "maxbytes", value_name = "SIZE", value_parser = parse_size)]
    largest: Option<u64>,

    /// Step between sizes [default: 1M]
    #[arg(short = 'i', long = "stepbytes", value_name = "SIZE", value_parser = parse_size)]
    step: Option<u64>,

    /// Factor between sizes, instead of a step
    #[arg(short = 'f', long = "stepfactor", value_name = "N")]
    factor: Option<u64>,

    /// One size: the same as -b SIZE -e SIZE
    #[arg(long, value_name = "SIZE", value_parser = parse_size, conflicts_with_all = ["smallest", "largest"])]
    size: Option<u64>,

    /// int8 uint8 int32 uint32 int64 uint64 half float double bfloat16 f8e4m3 f8e5m2, or all
    #[arg(short = 'd', long = "datatype", value_name = "TYPE", default_value = "float")]
    data_type: String,

    /// sum prod min max avg mulsum, or all. mulsum sums what even ranks multiply by 1 and odd ranks by 2
    #[arg(short = 'o', long = "op", value_name = "OP", default_value = "sum")]
    op: String,

    /// Root of reduce, broadcast, gather, scatter, gatherv and scatterv; -1 for each in turn
    #[arg(
        short = 'r',
        long = "root",
        value_name = "RANK",
        default_value_t = 0,
        allow_negative_numbers = true
    )]
    root: i64,

    /// Iterations per size [default: 20, or fewer (at least 3) if they would take more than 5 s]
    #[arg(short = 'n', long = "iters", value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    iterations: Option<u64>,

    /// Iterations before the clock starts
    #[arg(
        short = 'w',
        long = "warmup_iters",
        visible_alias = "warmup-iters",
        value_name = "N",
        default_value_t = 1
    )]
    warmups: u64,

    /// Calls per iteration
    #[arg(short = 'm', long = "agg_iters", visible_alias = "agg-iters", value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    calls: u64,

    /// How often everything is measured; 0 for ever
    #[arg(
        short = 'N',
        long = "run_cycles",
        visible_alias = "run-cycles",
        value_name = "N",
        default_value_t = 1
    )]
    cycles: u64,

    /// Rounds of checking each result; 0 for none
    #[arg(short = 'c', long = "check", value_name = "N", default_value_t = 1)]
    checks: u64,

    /// 1: a barrier after each call; 0, 2, 3: none (calls on a host always return when they are done)
    #[arg(short = 'z', long = "blocking", value_name = "0-3", default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=3))]
    blocking: u8,

    /// How the ranks' times become one: 0 rank 0, 1 average, 2 minimum, 3 maximum
    #[arg(short = 'a', long = "average", value_name = "0-3", default_value_t = 1, value_parser = clap::value_parser!(u8).range(0..=3))]
    average: u8,

    /// Seconds after which a call fails; 0 for the library's own limit
    #[arg(short = 'T', long = "timeout", value_name = "SECONDS", default_value_t = 0)]
    timeout: u64,

    /// Bytes by which the buffers are moved off their alignment
    #[arg(short = 'u', long = "unalign", value_name = "BYTES", default_value_t = 0, value_parser = clap::value_parser!(u64).range(0..=4096))]
    unalign: u64,

    /// Buffers that the ranks of a host map (1) or ordinary ones (0)
    #[arg(short = 'R', long = "local_register", alias = "local-register", value_name = "0/1", default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=1))]
    local_register: u8,

    /// Times each iteration: columns i_min, i_max, i_p99, i_cv% (some 50 ns are added to each)
    #[arg(short = 'I', long = "per_iter_timing", visible_alias = "per-iter-timing", num_args = 0..=1, default_value_t = 0, default_missing_value = "1")]
    per_iteration: u8,

    /// Times each iteration: columns p50, p95, p99, min, max
    #[arg(long)]
    percentiles: bool,

    /// Reports the library's memory per rank: 0 or 1
    #[arg(short = 'M', long = "memory", num_args = 0..=1, default_value_t = 0, default_missing_value = "1")]
    memory: u8,

    /// Number of ranks [default: the least that physical cores, affinity, control group and memory allow, but at
    /// least 2; all ranks together may take 60 % of the memory that is available]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    ranks: Option<u32>,

    /// Ranks are threads of one process instead of processes
    #[arg(long)]
    threads: bool,

    /// Where the buffers are: in the host's memory, or on CUDA devices. On devices a call is put into the rank's stream, and
    /// a time ends when the stream is empty: after all iterations of a size, or with -I after each
    #[arg(long, value_name = "DEVICE", value_parser = ["host", "cuda"], default_value = "host")]
    device: String,

    /// Devices that the ranks of a host take in turn, by number: 0,1,... [default: all]. With more ranks than devices
    /// several share one. Without --ranks there are as many ranks as devices, at least 2
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    gpus: Option<Vec<u32>>,

    /// How calls on devices run, if they can: sets CONSORT_DEVICE_PATH before anything starts
    #[arg(long, value_name = "PATH", value_parser = ["auto", "fused", "kernels", "streams", "host"])]
    path: Option<String>,

    /// Ranks on devices that one thread of one process drives, in groups; -t of such threads
    #[arg(short = 'g', long = "ngpus", value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    per_thread: Option<u32>,

    /// What runs the collective, instead of what the library would choose: tree, ring(channels=2), ...
    #[arg(long = "algo", value_name = "NAME", value_parser = |text: &str| text.parse::<Algorithm>())]
    algorithm: Option<Algorithm>,

    /// Seed of the data
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,

    /// Fails (7) if the average bus bandwidth is below 0.9 times this many GB/s; also NCCL_TESTS_MIN_BW
    #[arg(long = "min-bw", alias = "min_bw", value_name = "GB/S")]
    bandwidth_min: Option<f64>,

    /// Writes results as JSON with nccl-tests' keys
    #[arg(short = 'J', long = "json", alias = "output_file", alias = "output-file", value_name = "FILE")]
    json: Option<PathBuf>,

    /// Writes results as comma-separated values
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,

    /// Says on standard error what is done
    #[arg(short = 'v', long)]
    verbose: bool,

    /// Prints the version
    #[arg(long, action = clap::ArgAction::Version)]
    version: Option<bool>,

    /// Threads of a process; each has -g ranks.
    #[arg(short = 't', long = "nthreads", hide = true)]
    nthreads: Option<u32>,

    #[command(flatten)]
    foreign: Foreign,

    /// For tests of the check: this rank changes one element of each result before the check looks at it.
    #[arg(long, hide = true, value_name = "RANK")]
    corrupt: Option<u32>,

    /// Set by the parent process: rank, size, the parent's process, whether to report progress.
    #[arg(long = "as-rank", hide = true, value_name = "R/N/PID/P", value_parser = parse_place)]
    place: Option<Place>,

    /// Set by the parent process: why there are as many ranks as there are.
    #[arg(long = "as-rank-note", hide = true)]
    note: Option<String>,
}

/// Flags of nccl-tests that mean nothing here: letter, name in both forms, the value that changes nothing, and why there is no other.
const FOREIGN: [&str; 8] = [
    "p parallel_init parallel-init 0 ranks always join at the same time",
    "y stream_null stream-null 0 the default stream is not used, and there are none on a host",
    "G cudagraph cuda-graph 0 calls are not captured in CUDA graphs",
    "C report_cputime report-cputime 0 only the time to the end is measured; on a host it is the processor's",
    "S report_timestamps report-timestamps 0 the table has no such column; --json has begin and end",
    "x cta_policy cta-policy -1 the library chooses how many thread blocks there are",
    "D device_implementation device-implementation 0 the library's own device code is measured",
    "V device_cta_count device-cta-count 16 the library's own device code is measured",
];

/// The refusal of the first that has another value.
#[derive(Debug)]
struct Foreign(Option<String>);

fn foreign() -> impl Iterator<Item = [&'static str; 5]> {
    FOREIGN.into_iter().map(|flag| {
        let mut words = flag.splitn(5, ' ');
        std::array::from_fn(|_| words.next().unwrap_or_default())
    })
}

impl clap::Args for Foreign {
    fn augment_args(command: clap::Command) -> clap::Command {
        foreign().fold(command, |command, [letter, name, alias, ..]| {
            let flag = clap::Arg::new(name).short(letter.chars().next()).long(name).alias(alias);
            command.arg(flag.hide(true).allow_negative_numbers(true))
        })
    }

    fn augment_args_for_update(command: clap::Command) -> clap::Command {
        Self::augment_args(command)
    }
}

impl clap::FromArgMatches for Foreign {
    fn from_arg_matches(matches: &clap::ArgMatches) -> Result<Self, clap::Error> {
        let differs = |[_, name, _, neutral, _]: &[&str; 5]| {
            matches.get_one::<String>(name).is_some_and(|value| value != neutral)
        };
        let refusal =
            |[letter, name, .., why]: [&str; 5]| format!("-{letter}/--{name} is not supported: {why}");
        Ok(Foreign(foreign().find(differs).map(refusal)))
    }

    fn update_from_arg_matches(&mut self, matches: &clap::ArgMatches) -> Result<(), clap::Error> {
        Self::from_arg_matches(matches).map(|read| *self = read)
    }
}

/// Where a rank process stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Place {
    pub(crate) rank: u32,
    pub(crate) size: u32,
    pub(crate) parent: i32,
    pub(crate) progress: bool,
}

impl Place {
    pub(crate) fn argument(&self) -> String {
        format!("--as-rank={}/{}/{}/{}", self.rank, self.size, self.parent, u8::from(self.progress))
    }
}

/// Reads [`Place::argument`] without its name.
pub(crate) fn parse_place(text: &str) -> Result<Place, String> {
    let fields: Vec<i64> = text.split('/').map_while(|field| field.parse().ok()).collect();
    match fields[..] {
        [rank, size, parent, progress] if rank >= 0 && rank < size => {
            Ok(Place { rank: rank as u32, size: size as u32, parent: parent as i32, progress: progress != 0 })
        }
        _ => Err("this argument is set by collbench itself".into()),
    }
}

/// Where buffers on devices are.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Devices {
    /// The devices that ranks take in turn; `None` for all.
    pub(crate) gpus: Option<Vec<u32>>,
    /// What `CONSORT_DEVICE_PATH` is to be.
    pub(crate) path: Option<String>,
    /// Ranks of one thread.
    pub(crate) per_thread: u32,
}

/// What to measure, and how.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) collective: Collective,
    pub(crate) sweep: Sweep,
    pub(crate) data_types: Vec<DataType>,
    pub(crate) ops: Vec<Operator>,
    /// `None` for each rank in turn.
    pub(crate) root: Option<u32>,
    /// `None` for as many as fit.
    pub(crate) iterations: Option<u64>,
    pub(crate) warmups: u64,
    pub(crate) calls: u64,
    pub(crate) cycles: u64,
    pub(crate) checks: u64,
    pub(crate) blocking: u8,
    pub(crate) average: Average,
    pub(crate) timeout: Option<Duration>,
    pub(crate) unalign: usize,
    pub(crate) shared: bool,
    pub(crate) per_iteration: bool,
    pub(crate) percentiles: bool,
    pub(crate) memory: bool,
    pub(crate) ranks: Option<u32>,
    pub(crate) threads: bool,
    /// `None` for the host's memory.
    pub(crate) devices: Option<Devices>,
    /// `None` for what the library chooses.
    pub(crate) algorithm: Option<Algorithm>,
    pub(crate) seed: u64,
    pub(crate) bandwidth_min: Option<f64>,
    pub(crate) json: Option<PathBuf>,
    pub(crate) csv: Option<PathBuf>,
    pub(crate) verbose: bool,
    /// The rank that changes one element of each result before it is checked.
    pub(crate) corrupt: Option<u32>,
    pub(crate) place: Option<Place>,
    pub(crate) note: Option<String>,
}

impl Arguments {
    fn devices(&self) -> Result<Option<Devices>, Failure> {
        if self.device == "cuda" {
            if self.algorithm.is_some() {
                return Err(Failure::usage(
                    "--algo: on devices --path says how calls run; an algorithm cannot be named",
                ));
            }
            let per_thread = self.per_thread.unwrap_or(1);
            return Ok(Some(Devices { gpus: self.gpus.clone(), path: self.path.clone(), per_thread }));
        }
        if self.per_thread.is_some_and(|ranks| ranks > 1) {
            return Err(Failure::usage(
                "-g/--ngpus is not supported on a host, where a rank has a thread; use --ranks for more ranks, or \
                 --device cuda",
            ));
        }
        match (&self.gpus, &self.path) {
            (None, None) => Ok(None),
            _ => Err(Failure::usage("--gpus and --path are for --device cuda")),
        }
    }

    /// Whether ranks are threads, and how many ranks there are, where the flags say it; each thread drives `per_thread`.
    fn ranks(&self, per_thread: u32) -> Result<(bool, Option<u32>), Failure> {
        let threads = match self.nthreads {
            Some(0) => return Err(Failure::usage("-t/--nthreads must be at least 1")),
            None | Some(1) if per_thread == 1 => return Ok((self.threads, self.ranks)),
            threads => threads,
        };
        let uneven = |ranks: &u32| !ranks.is_multiple_of(per_thread);
        if let (None, Some(ranks)) = (threads, self.ranks.filter(uneven)) {
            return Err(Failure::usage(format!(
                "--ranks {ranks}: each thread has {per_thread} of them (-g); ask for a multiple"
            )));
        }
        let asked = threads.map(|threads| threads.saturating_mul(per_thread));
        match (asked, self.ranks) {
            (Some(asked), Some(ranks)) if asked != ranks => {
                Err(Failure::usage("-t and -g say how many ranks there are; give them or --ranks, not both"))
            }
            (asked, ranks) => Ok((true, asked.or(ranks).or(Some(per_thread)))),
        }
    }

    pub(crate) fn settings(self) -> Result<Settings, Failure> {
        if let Some(refusal) = self.foreign.0 {
            return Err(Failure::usage(refusal));
        }
        let devices = self.devices()?;
        let (threads, ranks) = self.ranks(devices.as_ref().map_or(1, |devices| devices.per_thread))?;
        let step = match self.factor {
            Some(factor) if factor > 1 => Step::Factor(factor),
            _ => Step::Bytes(self.step.unwrap_or(DEFAULT_STEP)),
        };
        let smallest = self.size.or(self.smallest);
        let largest = self.size.or(self.largest);
        // One limit alone must not be contradicted by the default of the other.
        let smallest_or = smallest.unwrap_or(largest.unwrap_or(DEFAULT_BYTES).min(DEFAULT_BYTES));
        let largest_or = largest.unwrap_or(smallest_or.max(DEFAULT_BYTES));
        if self.algorithm.is_some() && self.collective.planned().is_none() {
            return Err(Failure::usage(format!(
                "--algo: {} is made of messages between two ranks, which have no algorithm",
                self.collective
            )));
        }
        let sweep = Sweep::new(smallest_or, largest_or, step).map_err(Failure::usage)?;
        let root = match self.root {
            -1 => None,
            root => Some(u32::try_from(root).map_err(|_| {
                Failure::usage(format!("-r {root}: a root is a rank, or -1 for each in turn"))
            })?),
        };
        Ok(Settings {
            collective: self.collective,
            sweep,
            data_types: one_or_all("-d", &self.data_type, &DataType::ALL)?,
            ops: match self.collective.folds() {
                true => one_or_all("-o", &self.op, &Operator::ALL)?,
                false => vec![Operator::Sum],
            },
            root,
            iterations: self.iterations,
            warmups: self.warmups,
            calls: self.calls,
            cycles: self.cycles,
            checks: self.checks,
            blocking: self.blocking,
            average: [Average::Rank0, Average::Mean, Average::Min, Average::Max][usize::from(self.average)],
            timeout: (self.timeout > 0).then(|| Duration::from_secs(self.timeout)),
            unalign: self.unalign as usize,
            shared: self.local_register == 1,
            per_iteration: self.per_iteration != 0,
            percentiles: self.percentiles,
            memory: self.memory != 0,
            ranks,
            threads,
            devices,
            algorithm: self.algorithm,
            seed: self.seed,
            bandwidth_min: self
                .bandwidth_min
                .or_else(|| std::env::var("NCCL_TESTS_MIN_BW").ok()?.parse().ok()),
            json: self.json,
            csv: self.csv,
            verbose: self.verbose,
            corrupt: self.corrupt,
            place: self.place,
            note: self.note,
        })
    }
}

/// The one that a text names, or all.
fn one_or_all<T: FromStr<Err: Display> + Copy>(flag: &str, text: &str, all: &[T]) -> Result<Vec<T>, Failure> {
    if text == "all" {
        return Ok(all.to_vec());
    }
    let one = text.parse().map_err(|error| Failure::usage(format!("{flag}: {error}, all")))?;
    Ok(vec![one])
}

impl Settings {
    /// Whether each iteration is timed.
    pub(crate) fn times_each(&self) -> bool {
        self.per_iteration || self.percentiles
    }

    /// The largest send and receive buffers, in bytes, of any size and type.
    pub(crate) fn buffer_bytes(&self, ranks: u32) -> (u64, u64) {
        let mut largest = (0, 0);
        for data_type in &self.data_types {
            let element = data_type.size();
            for size in [self.sweep.largest, self.sweep.smallest] {
                let shape = self.collective.shape(size, element, ranks);
                largest.0 = largest.0.max((shape.send * element) as u64);
                largest.1 = largest.1.max((shape.receive * element) as u64);
            }
        }
        largest
    }
}

/// Reads the command line. On failure: the text for the user, and whether it is an error.
pub(crate) fn parse(
    arguments: impl IntoIterator<Item = std::ffi::OsString>,
) -> Result<Settings, (String, bool)> {
    let arguments = Arguments::try_parse_from(arguments)
        .map_err(|error| (error.render().to_string(), error.use_stderr()))?;
    arguments.settings().map_err(|failure| (format!("error: {failure}\n"), true))
}

#[cfg(test)]
mod tests;
