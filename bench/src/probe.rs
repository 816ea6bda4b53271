//! `collbench probe`: the ranks of a job measure the wires between each other and write them as a topology.
//!
//! Invariant: the measuring is the library's ([`Communicator::probe`](consort::Communicator::probe)); what is written is what
//! `CONSORT_TOPOLOGY` reads. Absent: choices by what was found (see `plan`).

use std::ffi::OsString;
use std::fmt::Write;
use std::path::PathBuf;
use std::time::Duration;

use clap::Parser;
use consort::Options;
use consort::planning::topology::MeasuredPair;
use consort::probe::{self, MeasuredPort, Probe};
use serde_json::json;

use crate::arguments::{Place, parse_place};
use crate::backend::{self, Member};
use crate::bounds::{self, Limits};
use crate::failure::{Exit, Failure};
use crate::group::Group;
use crate::launch;
use crate::planned;

/// Pairs that are listed one by one.
const LISTED_MAX: usize = 64;
/// What a rank holds for what it sends and receives.
const BUFFER_BYTES: u64 = 32 << 20;

/// Measures the wires between the ranks of a job, and writes them as a topology file: CONSORT_TOPOLOGY=FILE then plans by them.
///
/// Pairs of ranks measure the latency of short messages, and the rate of long ones there, back and both ways at once, over the connections that
/// collectives use; medians. No rank and no host is in two pairs at the same time. Started by a launcher, each process is a rank;
/// otherwise the ranks are processes of this host. Over RDMA the first rank of each host also measures each port that it may use, with
/// both ends of a connection at that port: what passes the adapter and comes back.
#[derive(Parser, Debug)]
#[command(
    name = "collbench probe",
    bin_name = "collbench probe",
    args_override_self = true,
    max_term_width = 110
)]
struct Arguments {
    /// Number of ranks [default: as a measurement without --ranks]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    ranks: Option<u32>,

    /// Seconds that all pairs together should take; slow wires take longer, as each is measured three times at least
    #[arg(long = "budget", value_name = "SECONDS", default_value_t = 20.0)]
    budget_s: f64,

    /// Seconds after which probing fails on all ranks [default: 30 and ten times the budget]
    #[arg(short = 'T', long = "timeout", value_name = "SECONDS")]
    timeout_s: Option<f64>,

    /// Ranks are threads of one process instead of processes
    #[arg(long)]
    threads: bool,

    /// Seed of the data
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,

    /// Writes the topology to a file; - for standard output, where the table is then in comments
    #[arg(short = 'o', long = "output", value_name = "FILE")]
    output: Option<PathBuf>,

    /// Writes what was measured as JSON: pairs of ranks, and ports of RDMA. - for standard output, where no table is then
    #[arg(short = 'J', long = "json", value_name = "FILE")]
    json: Option<PathBuf>,

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

/// Runs the subcommand. `words` are all of the command line.
pub(crate) fn run(words: &[OsString]) -> Result<Exit, Failure> {
    let Some(arguments) = planned::parse::<Arguments>(&words[1..])? else { return Ok(Exit::Done) };
    arguments.check()?;
    let options = Options::default();
    let is_asked_for = arguments.ranks.is_some() || arguments.threads;
    let note = arguments.note.as_deref();
    if let Some((member, note)) = launch::started(arguments.place, note, is_asked_for, &options)? {
        return arguments.one_rank(&member, &note);
    }
    let (limits, bytes) = (Limits::of_this_process(), bounds::rank_bytes(BUFFER_BYTES));
    let (ranks, note) = match arguments.ranks {
        None => limits.choose(bytes)?,
        Some(ranks) => {
            limits.check_memory(ranks, bytes)?;
            (ranks, format!("{ranks} ranks: as asked for"))
        }
    };
    if arguments.threads {
        return arguments.in_threads(ranks, &note, &options);
    }
    let (id, _root) = backend::create()?;
    launch::run(arguments.verbose, ranks, &note, &id, words)
}

impl Arguments {
    fn check(&self) -> Result<(), Failure> {
        let is_time = |seconds: f64| seconds > 0.0 && seconds <= 1e6;
        if !is_time(self.budget_s) || !self.timeout_s.is_none_or(is_time) {
            return Err(Failure::usage(
                "--budget and --timeout are seconds, more than 0 and at most 1000000",
            ));
        }
        if [&self.output, &self.json].into_iter().all(is_standard) {
            return Err(Failure::usage("--json - and -o -: standard output takes one of them"));
        }
        // Before anything is measured.
        for path in [&self.output, &self.json].into_iter().flatten().filter(|path| path.as_os_str() != "-") {
            let opened = std::fs::OpenOptions::new().append(true).create(true).open(path);
            opened.map_err(|error| Failure::usage(format!("cannot write {}: {error}", path.display())))?;
        }
        Ok(())
    }

    fn options(&self) -> probe::Options {
        let options =
            probe::Options::default().budget(Duration::from_secs_f64(self.budget_s)).seed(self.seed);
        self.timeout_s.map_or(options, |seconds| options.deadline(Duration::from_secs_f64(seconds)))
    }

    /// Probes as one rank; rank 0 says what was found.
    fn one_rank(&self, member: &Member, note: &str) -> Result<Exit, Failure> {
        let probe = member.communicator().probe(&self.options()).map_err(|error| {
            let failure = member.failure(error);
            Failure::new(failure.exit, format!("rank {}: {failure}", member.rank()))
        })?;
        if member.rank() == 0 {
            self.say(&probe, note)?;
        }
        Ok(Exit::Done)
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

    fn say(&self, probe: &Probe, note: &str) -> Result<(), Failure> {
        let topology = probe.topology().to_string();
        if let Some(path) = &self.json {
            planned::write(
                &json(probe),
                Some(path).filter(|path| path.as_os_str() != "-").map(|path| &**path),
            )?;
        }
        let table = if is_standard(&self.json) { String::new() } else { table(probe, note) };
        match &self.output {
            Some(path) if path.as_os_str() == "-" => planned::write(&format!("{table}{topology}"), None),
            Some(path) => {
                planned::write(&format!("{table}{topology}"), Some(path))?;
                let path = path.display();
                let hint = format!(
                    "# CONSORT_TOPOLOGY={path} plans by these wires; collbench plan --topology {path} says how\n"
                );
                planned::write(&(table + &hint), None)
            }
            None if table.is_empty() => Ok(()),
            None => planned::write(&table, None),
        }
    }
}

fn is_standard(path: &Option<PathBuf>) -> bool {
    path.as_ref().is_some_and(|path| path.as_os_str() == "-")
}

/// What was found, for programs.
fn json(probe: &Probe) -> String {
    let pair = |pair: &MeasuredPair| {
        let MeasuredPair { one, other, latency_ns, there_bytes_s, back_bytes_s, both_bytes_s } = *pair;
        json!({
            "ranks": [one, other],
            "hosts": [probe.host_of[one as usize], probe.host_of[other as usize]],
            "latency_ns": latency_ns,
            "there_bytes_s": there_bytes_s,
            "back_bytes_s": back_bytes_s,
            "both_bytes_s": both_bytes_s,
        })
    };
    let port = |port: &MeasuredPort| {
        json!({
            "rank": port.rank,
            "host": probe.host_of[port.rank as usize],
            "device": port.device,
            "port": port.port,
            "gid_index": port.gid_index,
            "gid": port.gid,
            "rated_mbit_s": port.rated_mbit_s,
            "latency_ns": port.latency_ns,
            "bytes_s": port.bytes_s,
            "trouble": port.trouble,
        })
    };
    let all = json!({
        "seconds": probe.seconds,
        "left_out": probe.left_out,
        "pairs": probe.pairs.iter().map(pair).collect::<Vec<_>>(),
        "ports": probe.ports.iter().map(port).collect::<Vec<_>>(),
    });
    format!("{all:#}\n")
}

/// The ports that were measured, each a line with its rated speed beside what was found.
fn ports(text: &mut String, probe: &Probe) {
    if probe.ports.is_empty() {
        return;
    }
    let _ = writeln!(
        text,
        "# {:>5} {:>6} {:>4} {:>10} {:>12} {:>12} {:>12}  gid",
        "rank", "device", "port", "gid index", "latency us", "MB/s", "rated MB/s"
    );
    for port in &probe.ports {
        let _ =
            write!(text, "# {:>5} {:>6} {:>4} {:>10} ", port.rank, port.device, port.port, port.gid_index);
        let rated = match port.rated_mbit_s {
            0 => "-".to_owned(),
            mbits => format!("{:.0}", mbits as f64 / 8.0),
        };
        let (latency, rate) = (port.latency_ns as f64 / 1e3, port.bytes_s as f64 / 1e6);
        let _ = match &port.trouble {
            Some(why) => writeln!(text, "{:>12} {:>12} {rated:>12}  {}: {why}", "-", "-", port.gid),
            None => writeln!(text, "{latency:>12.2} {rate:>12.2} {rated:>12}  {}", port.gid),
        };
    }
}

/// What was found, for a person; every line is a comment of a topology.
fn table(probe: &Probe, note: &str) -> String {
    let mut text = String::new();
    let hosts = probe.host_of.iter().max().map_or(1, |last| last + 1);
    // Writing to a String cannot fail.
    let _ = writeln!(
        text,
        "# {note}; {hosts} hosts, {} pairs measured in {:.1} s",
        probe.pairs.len(),
        probe.seconds
    );
    if probe.left_out > 0 {
        let _ = writeln!(
            text,
            "# {} pairs of ranks were not measured: others of their hosts stand for them (--budget gives more time)",
            probe.left_out
        );
    }
    let _ = writeln!(
        text,
        "# {:>5} {:>5} {:>6} {:>12} {:>12} {:>12} {:>12}",
        "rank", "rank", "hosts", "latency us", "there MB/s", "back MB/s", "both MB/s"
    );
    // The slowest are what a person looks for.
    let slowest = |pair: &&MeasuredPair| pair.there_bytes_s.min(pair.back_bytes_s).min(pair.both_bytes_s);
    let mut shown: Vec<&MeasuredPair> = probe.pairs.iter().collect();
    if shown.len() > LISTED_MAX {
        shown.sort_by_key(slowest);
        let _ = writeln!(text, "# the {LISTED_MAX} slowest of {}:", shown.len());
        shown.truncate(LISTED_MAX);
    }
    for pair in shown {
        let host = |rank: u32| probe.host_of[rank as usize];
        let mb = |rate: u64| rate as f64 / 1e6;
        let _ = writeln!(
            text,
            "# {:>5} {:>5} {:>6} {:>12.2} {:>12.2} {:>12.2} {:>12.2}",
            pair.one,
            pair.other,
            format!("{}-{}", host(pair.one), host(pair.other)),
            pair.latency_ns as f64 / 1e3,
            mb(pair.there_bytes_s),
            mb(pair.back_bytes_s),
            mb(pair.both_bytes_s)
        );
    }
    ports(&mut text, probe);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> Result<Arguments, Failure> {
        let words: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
        let arguments = planned::parse::<Arguments>(&words)?.expect("no help");
        arguments.check().map(|()| arguments)
    }

    #[test]
    fn ranks_that_are_threads_write_a_topology_that_is_read_back() {
        let path = std::env::temp_dir().join(format!("collbench-probe-{}.topology", std::process::id()));
        let line = format!("probe --threads --budget 0.05 -o {}", path.display());
        let arguments = read(&line).expect("good words");
        let exit = arguments.in_threads(3, "3 ranks", &Options::default()).expect("they probe");
        assert_eq!(exit, Exit::Done);
        let text = std::fs::read_to_string(&path).expect("a file");
        assert!(text.starts_with("# 3 ranks; 1 hosts, 3 pairs measured in "), "{text}");
        let topology = consort::planning::read_topology(&path.display().to_string()).expect("a topology");
        assert!(topology.ranks() == 3 && topology.measured, "{topology}");
        std::fs::remove_file(&path).expect("removed");
    }

    #[test]
    fn ports_stand_in_table_and_json_with_their_rated_speed() {
        let members = backend::local(2, &Options::default()).expect("two ranks");
        let options = || probe::Options::default().budget(Duration::from_millis(20));
        let mut found = std::thread::scope(|scope| {
            let probes = members.iter().map(|member| scope.spawn(|| member.communicator().probe(&options())));
            let probes: Vec<_> = probes.collect();
            probes.into_iter().map(|probe| probe.join().expect("no panic").expect("a probe")).next()
        })
        .expect("a probe");
        assert!(found.ports.is_empty() && !table(&found, "").contains("gid"), "no RDMA was asked for");
        let port = |device: &str, trouble: Option<&str>| MeasuredPort {
            rank: 1,
            device: device.into(),
            port: 1,
            gid_index: 3,
            gid: "10.0.0.7".into(),
            rated_mbit_s: 400_000,
            latency_ns: 1_250,
            bytes_s: 48_000_000_000,
            trouble: trouble.map(String::from),
        };
        found.ports = vec![port("mlx5_0", None), port("mlx5_1", Some("it is down"))];
        let text = table(&found, "");
        let lines: Vec<&str> = text.lines().filter(|line| line.contains("mlx5_")).collect();
        assert!(lines[0].ends_with("1.25     48000.00        50000  10.0.0.7"), "{text}");
        assert!(lines[1].ends_with("-            -        50000  10.0.0.7: it is down"), "{text}");
        let read: serde_json::Value = serde_json::from_str(&json(&found)).expect("JSON");
        let first = &read["ports"][0];
        assert_eq!([&first["device"], &first["gid"]], ["mlx5_0", "10.0.0.7"]);
        assert_eq!([&first["rated_mbit_s"], &first["bytes_s"]], [400_000, 48_000_000_000u64]);
        assert_eq!(read["ports"][1]["trouble"], "it is down");
        assert_eq!(read["pairs"][0]["ranks"], serde_json::json!([0, 1]));
    }

    #[test]
    fn times_that_make_no_sense_are_refused() {
        for line in [
            "probe --budget 0",
            "probe --budget NaN",
            "probe -T -1",
            "probe --ranks 0",
            "probe -o /nowhere/at/all",
            "probe -J /nowhere/at/all",
            "probe -J - -o -",
        ] {
            assert_eq!(read(line).expect_err(line).exit, Exit::Usage, "{line}");
        }
    }
}
