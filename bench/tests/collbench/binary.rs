//! The program itself: started as a user starts it, read as a script reads it, hurt as a machine hurts it.
//!
//! Every run has a watchdog: a program that does not end is killed and the test fails with what it said. Runs
//! of several ranks take turns.

mod collectives;
mod devices;

use std::ffi::OsStr;
use std::fs;
use std::io::Read;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::thread::{JoinHandle, sleep, spawn};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::alone;

/// What may pass beside a time that is promised: a second, as the host below may take a core; three under `.ci/disturb`.
fn stolen() -> Duration {
    Duration::from_secs(if std::env::var_os("CONSORT_TEST_DISTURBED").is_some() { 3 } else { 1 })
}

/// The longest that a run may take.
const WATCHDOG: Duration = Duration::from_secs(120);
/// How often something that is awaited is looked at.
const LOOK: Duration = Duration::from_millis(2);

/// What a run left behind.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// `None` after a signal.
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Outcome {
    #[track_caller]
    pub(crate) fn expect(self, code: i32) -> Self {
        assert_eq!(self.code, Some(code), "\n{}\n{}", self.out, self.err);
        self
    }

    /// The run succeeded and nothing was wrong.
    #[track_caller]
    fn fine(self) -> Self {
        let this = self.expect(0);
        assert!(this.out.contains("# Out of bounds values : 0 OK\n"), "{}", this.out);
        assert_eq!(this.err, "");
        this
    }

    /// The results, as words.
    fn rows(&self) -> Vec<Vec<&str>> {
        let rows = self.out.lines().filter(|line| !line.starts_with('#'));
        rows.map(|line| line.split_whitespace().collect()).collect()
    }

    /// It was used wrongly, and says all of this.
    #[track_caller]
    pub(crate) fn refused(self, says: &[&str]) {
        self.expect(6).complains(says);
    }

    #[track_caller]
    fn complains(self, of: &[&str]) -> Self {
        for text in of {
            assert!(self.err.contains(text), "'{text}' is missing:\n{}", self.err);
        }
        self
    }
}

/// A started program, killed when dropped.
pub(crate) struct Run {
    child: Child,
    out: std::sync::Arc<Mutex<String>>,
    readers: Vec<JoinHandle<String>>,
    begun: Instant,
}

/// Reads all of a stream, showing it as it comes.
fn reader(mut from: impl Read + Send + 'static, shown: std::sync::Arc<Mutex<String>>) -> JoinHandle<String> {
    spawn(move || {
        let (mut all, mut piece) = (Vec::new(), [0; 4096]);
        while let Ok(bytes @ 1..) = from.read(&mut piece) {
            all.extend_from_slice(&piece[..bytes]);
            *shown.lock().unwrap() = String::from_utf8_lossy(&all).into_owned();
        }
        String::from_utf8_lossy(&all).into_owned()
    })
}

/// Starts the program in an environment of these variables alone, so that no launcher around the tests is seen.
pub(crate) fn start(line: &str, files: &[&OsStr], environment: &[(&str, &str)]) -> Run {
    let begun = Instant::now();
    let mut child = Command::new(env!("CARGO_BIN_EXE_collbench"))
        .args(line.split_whitespace())
        .args(files)
        .env_clear()
        .envs(environment.iter().copied())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let out = std::sync::Arc::default();
    let readers = vec![
        reader(child.stdout.take().unwrap(), std::sync::Arc::clone(&out)),
        reader(child.stderr.take().unwrap(), std::sync::Arc::default()),
    ];
    Run { child, out, readers, begun }
}

/// Runs the program to its end.
fn run(line: &str) -> Outcome {
    start(line, &[], &[]).end()
}

impl Run {
    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id() as i32), signal).expect("not waited for yet");
    }

    /// What it has said so far, once that contains `text`.
    fn said(&self, text: &str) -> String {
        loop {
            let said = self.out.lock().unwrap().clone();
            if said.contains(text) {
                return said;
            }
            assert!(self.begun.elapsed() < WATCHDOG, "'{text}' does not come:\n{said}");
            sleep(LOOK);
        }
    }

    /// The process numbers of the ranks, once they all have joined.
    fn ranks(&self) -> Vec<Pid> {
        let said = self.said("#        (B)");
        let numbers = said.lines().filter_map(|line| {
            let words: Vec<&str> = line.strip_prefix("#  Rank")?.split_whitespace().collect();
            Some(Pid::from_raw(words[4].parse().unwrap()))
        });
        let numbers: Vec<Pid> = numbers.collect();
        let mut children = family(self.child.id());
        children.sort();
        let mut sorted = numbers.clone();
        sorted.sort();
        assert_eq!(children, sorted, "the table's processes are the children:\n{said}");
        numbers
    }

    /// Waits until each of these ranks, which have joined, has used a core for the time `each`: then they are at work,
    /// also where other programs have the cores.
    fn work(&self, ranks: &[Pid], each: Duration) {
        let before: Vec<Duration> = ranks.iter().map(|rank| busy(*rank)).collect();
        while ranks.iter().zip(&before).any(|(rank, before)| busy(*rank) < *before + each) {
            assert!(self.begun.elapsed() < WATCHDOG, "the ranks do not work");
            sleep(LOOK);
        }
    }

    /// Waits for its end; none of its processes may be left then.
    #[track_caller]
    pub(crate) fn end(mut self) -> Outcome {
        let status = loop {
            match self.child.try_wait().expect("a child") {
                Some(status) => break status,
                None if self.begun.elapsed() < WATCHDOG => sleep(LOOK),
                None => {
                    // The ranks go with their parent, so the readers come to an end.
                    self.signal(Signal::SIGKILL);
                    let said: Vec<String> = self.readers.drain(..).map(|r| r.join().unwrap()).collect();
                    panic!("still running after {WATCHDOG:?}:\n{}", said.join("\n"));
                }
            }
        };
        let left = family(self.child.id());
        assert!(status.code().is_none() || left.is_empty(), "processes are left: {left:?}");
        let err = self.readers.pop().unwrap().join().unwrap();
        let out = self.readers.pop().unwrap().join().unwrap();
        Outcome { code: status.code(), out, err }
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// What follows `name` in a process's arguments; they are empty once the process has ended.
fn argument(process: Pid, name: &str) -> Option<String> {
    let line = fs::read_to_string(format!("/proc/{process}/cmdline")).ok()?;
    line.split('\0').find_map(|argument| argument.strip_prefix(name)).map(str::to_owned)
}

/// How long a process has had a core, by the kernel's account of it in hundredths of a second.
fn busy(process: Pid) -> Duration {
    let account = fs::read_to_string(format!("/proc/{process}/stat")).expect("it runs");
    let (_, behind_the_name) = account.rsplit_once(')').expect("a name in brackets");
    let ticks = |at: usize| -> u64 {
        behind_the_name.split_whitespace().nth(at).expect("a field").parse().expect("a number")
    };
    Duration::from_millis(10 * (ticks(11) + ticks(12)))
}

/// The living rank processes that `parent` started; orphans among them have another parent by now.
fn family(parent: u32) -> Vec<Pid> {
    let processes = fs::read_dir("/proc").expect("procfs").flatten();
    let numbers = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let ours = numbers.filter(|number| {
        let place = argument(Pid::from_raw(*number), "--as-rank=").unwrap_or_default();
        place.split('/').nth(2) == Some(&parent.to_string())
    });
    ours.map(Pid::from_raw).collect()
}

/// A path for a file of one test.
fn file(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{}-{name}", std::process::id()))
}

#[test]
fn a_run_ends_with_a_table_without_mistakes() {
    let _alone = alone();
    let outcome = run("allreduce --size 64K -n 2 -w 1 --ranks 2").fine();
    let rows = outcome.rows();
    assert_eq!(rows.len(), 1, "{}", outcome.out);
    assert_eq!(rows[0][..5], ["65536", "16384", "float", "sum", "-1"]);
    assert_eq!((rows[0].len(), rows[0][8], rows[0][12]), (13, "0", "0"));
    assert!(outcome.out.contains("# 2 ranks: as asked for\n"), "{}", outcome.out);
}

#[test]
fn the_number_of_ranks_is_explained() {
    let _alone = alone();
    let outcome = run("allreduce --size 64K -n 2 -w 1").fine();
    let line = outcome.out.lines().find(|line| line.contains(" ranks: ")).expect("the line is there");
    for part in ["physical cores", "affinity", "cgroup cpu", "memory 60 % of"] {
        assert!(line.contains(part), "'{part}' is missing: {line}");
    }
    let ranks = outcome.out.lines().filter(|line| line.starts_with("#  Rank")).count();
    assert!(ranks >= 2 && line.starts_with(&format!("# {ranks} ranks: ")), "{line}");
}

#[test]
fn the_files_can_be_read() {
    let _alone = alone();
    let (json, csv) = (file("result.json"), file("result.csv"));
    let files: Vec<&OsStr> = vec!["--json".as_ref(), json.as_ref(), "--csv".as_ref(), csv.as_ref()];
    start("allreduce -b 8 -e 64 -f 8 -n 2 --ranks 2", &files, &[]).end().fine();

    let all: Value = serde_json::from_slice(&fs::read(&json).unwrap()).expect("JSON");
    let has = |value: &Value, keys: &[&str]| {
        for key in keys {
            assert!(value.get(*key).is_some(), "'{key}' is missing in {value:#}");
        }
    };
    has(&all, &["version", "start_time", "end_time", "args", "env", "nccl_version", "config", "results"]);
    has(
        &all["config"],
        &["nthreads", "ngpus", "minimum_bytes", "maximum_bytes", "step_factor", "warmup_iters"],
    );
    has(
        &all["config"],
        &["iterations", "aggregated_iterations", "validation", "graph", "blocking_collectives", "devices"],
    );
    assert_eq!(all["config"]["devices"].as_array().map(Vec::len), Some(2));
    has(&all["config"]["devices"][1], &["rank", "group", "pid", "hostname", "device", "device_info"]);
    assert_eq!(all["out_of_bounds"], serde_json::json!({ "count": 0, "okay": "true" }));
    has(&all["average_bus_bandwidth"], &["bandwidth", "okay"]);
    let results = all["results"].as_array().expect("a list");
    assert_eq!(results.iter().map(|row| &row["size"]).collect::<Vec<_>>(), [8, 64]);
    for row in results {
        has(row, &["count", "type", "redop", "root"]);
        assert!(row["algorithm"].is_string(), "{row:#}");
        for placement in ["out_of_place", "in_place"] {
            assert!(row[placement]["time"].is_f64() && row[placement]["nwrong"] == 0, "{row:#}");
            has(&row[placement], &["alg_bw", "bus_bw"]);
        }
    }
    let text = fs::read_to_string(&json).unwrap();
    assert!(!text.contains("--as-rank"), "what the parent adds is nobody's argument: {text}");

    let text = fs::read_to_string(&csv).unwrap();
    let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split(',').collect()).collect();
    assert_eq!(lines.len(), 3, "{text}");
    assert_eq!(lines[0][..6], ["size", "count", "type", "redop", "root", "out_of_place_time_us"]);
    assert!(lines.iter().all(|line| line.len() == lines[0].len()), "{text}");
    assert!(lines[1][5].parse::<f64>().is_ok(), "{text}");
    fs::remove_file(json).unwrap();
    fs::remove_file(csv).unwrap();
}

#[test]
fn a_killed_rank_is_named() {
    let _alone = alone();
    for victim in [0, 1] {
        let json = file("lost.json");
        let files = ["--json".as_ref(), json.as_os_str()];
        let running = start("allreduce --size 64M -n 1000 -w 0 --ranks 2", &files, &[]);
        let ranks = running.ranks();
        running.work(&ranks, Duration::from_millis(500));
        kill(ranks[victim], Signal::SIGKILL).unwrap();
        let killed = Instant::now();
        let outcome = running.end().expect(3);
        let waited = killed.elapsed();
        let other = 1 - victim;
        let outcome = outcome.complains(&[
            &format!("FAILED: rank {victim} was killed by signal 9 (SIGKILL)"),
            &format!("then rank {other} ended with exit status 3"),
            &format!("rank {other}: rank {victim} ("),
            "was lost during all_reduce",
        ]);
        assert!(waited < Duration::from_secs(1) + stolen(), "noticed only after {waited:?}: {}", outcome.err);

        let mut partial = json.clone().into_os_string();
        partial.push(".partial");
        assert!(!fs::exists(partial).unwrap(), "half a file is left");
        // Rank 0 writes the file, so without it there is none.
        assert_eq!(json.exists(), victim == 1);
        if victim == 1 {
            let all: Value = serde_json::from_slice(&fs::read(&json).unwrap()).expect("JSON");
            assert!(all["errors"][0].as_str().unwrap().starts_with("rank 1 ("), "{all:#}");
            fs::remove_file(json).unwrap();
        }
    }
}

/// A rank can be lost or stopped before all have met; which moment this hits is not the same in every run.
#[test]
fn a_rank_lost_while_joining_is_named() {
    let alone = alone();
    let hurt = |(signal, victim): (Signal, u32)| {
        let running = start("allreduce --size 1M -n 100000000 -T 2 --ranks 3", &[], &[]);
        let place = format!("{victim}/");
        let found = loop {
            let of = |pid: &Pid| argument(*pid, "--as-rank=").is_some_and(|p| p.starts_with(&place));
            if let Some(pid) = family(running.child.id()).into_iter().find(of) {
                break pid;
            }
            assert!(running.begun.elapsed() < WATCHDOG, "rank {victim} does not start");
        };
        kill(found, signal).unwrap();
        running
    };
    let cases = [(Signal::SIGKILL, 0), (Signal::SIGKILL, 1), (Signal::SIGSTOP, 0), (Signal::SIGSTOP, 1)];
    let mut runs = cases.map(hurt).into_iter();
    let killed: Vec<_> = runs.by_ref().take(2).map(Run::end).collect();
    // Where a rank has stopped, nothing happens for seconds; others may run meanwhile.
    drop(alone);
    let stopped = runs.map(Run::end);
    for ((signal, victim), outcome) in cases.into_iter().zip(killed.into_iter().chain(stopped)) {
        println!("{signal} to rank {victim}:\n{}", outcome.err);
        match signal {
            Signal::SIGKILL => {
                outcome.expect(3).complains(&[&format!("FAILED: rank {victim} was killed by signal 9")])
            }
            _ => outcome.expect(4).complains(&[&format!("rank {victim} did not end by itself")]),
        };
    }
}

#[test]
fn a_stopped_rank_is_named_and_killed() {
    let _alone = alone();
    let running = start("allreduce --size 16M -n 2000 -w 0 -T 2 --ranks 2", &[], &[]);
    let ranks = running.ranks();
    running.work(&ranks, Duration::from_millis(200));
    kill(ranks[1], Signal::SIGSTOP).unwrap();
    running.end().expect(4).complains(&[
        "FAILED: rank 0 ended with exit status 4",
        "did not finish within 2.",
        " s: rank 1 (",
        "does not answer rank",
        "hang report of communicator",
        "rank 1 did not end by itself",
    ]);
}

#[test]
fn ranks_go_with_their_parent() {
    let _alone = alone();
    for (signal, stop_one) in [(Signal::SIGKILL, false), (Signal::SIGKILL, true), (Signal::SIGTERM, false)] {
        let running = start("allreduce --size 1M -n 100000000 --ranks 3", &[], &[]);
        let (parent, ranks) = (running.child.id(), running.ranks());
        if stop_one {
            kill(ranks[1], Signal::SIGSTOP).unwrap();
        }
        running.signal(signal);
        assert_eq!(running.end().code, None);
        let until = Instant::now() + Duration::from_secs(2) + stolen();
        while !family(parent).is_empty() {
            assert!(Instant::now() < until, "still there: {:?}", family(parent));
            sleep(LOOK);
        }
    }
}

#[test]
fn wrong_usage_has_its_own_code() {
    let _alone = alone();
    for (line, about) in [
        ("", "<COLLECTIVE>"),
        ("alltonone", "reduce_scatter"),
        ("hypercube --ranks 3", "power of two"),
        ("gather -r 2 --ranks 2", "-r 2: there is no such rank"),
        ("allreduce --algo pigeons", "is no algorithm; known: "),
        ("sendrecv --algo ring", "have no algorithm"),
        ("allreduce --nonsense", "--nonsense"),
        ("allreduce --size 1X", "1X"),
        ("allreduce -d complex", "complex"),
        ("reduce -r 9 --ranks 2", "-r 9: there is no such rank; the last is 1"),
        ("allreduce -g 8", "-g/--ngpus is not supported"),
        ("allreduce --size 1000000G --ranks 2", "not enough memory"),
        ("allreduce --json /nonexistent/result.json --ranks 2", "/nonexistent/result.json"),
        ("allreduce --size 8 --corrupt 2 --ranks 2", "there is no such rank"),
    ] {
        let outcome = run(line).expect(6).complains(&[about]);
        assert_eq!(outcome.out, "", "{line}");
    }
    let help = run("--help").expect(0);
    assert!(help.out.contains("60 % of the memory that is available"), "{}", help.out);
    assert!(!help.out.contains("--corrupt") && !help.out.contains("--as-rank"), "{}", help.out);
}

#[test]
fn too_little_bandwidth_has_its_own_code() {
    let _alone = alone();
    let outcome = run("allreduce --size 64K -n 2 --ranks 2 --min-bw 1e9").expect(7);
    assert!(outcome.out.contains("# Out of bounds values : 0 OK\n"), "{}", outcome.out);
    let verdict = outcome.out.lines().find(|line| line.contains("Avg bus bandwidth")).unwrap();
    assert!(verdict.ends_with(" FAILED"), "{verdict}");
    outcome.complains(&["wrong data, or too little bandwidth"]);
}

#[test]
fn tcp_between_processes() {
    let _alone = alone();
    let tcp = [("CONSORT_TRANSPORT", "tcp")];
    let outcome = start("allreduce -b 8 -e 1M -f 64 -n 2 --ranks 2", &[], &tcp).end().fine();
    assert_eq!(outcome.rows().len(), 3, "{}", outcome.out);
    let bad = [("CONSORT_TRANSPORT", "pigeons")];
    start("allreduce --size 8 --ranks 2", &[], &bad)
        .end()
        .expect(3)
        .complains(&["pigeons", "auto, shm, tcp"]);
}

#[test]
fn as_ranks_of_torchrun() {
    let _alone = alone();
    // torchrun's own agent holds the port.
    let agent = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = agent.local_addr().unwrap().port().to_string();
    let job = format!("collbench-{}", std::process::id());
    let rank = |rank: &'static str, line: &str| {
        let variables = [
            ("RANK", rank),
            ("WORLD_SIZE", "2"),
            ("LOCAL_RANK", rank),
            ("LOCAL_WORLD_SIZE", "2"),
            ("MASTER_ADDR", "localhost"),
            ("MASTER_PORT", &port),
            ("TORCHELASTIC_RUN_ID", &job),
        ];
        start(line, &[], &variables)
    };
    let line = "allreduce --size 64K -n 2";
    let (first, second) = (rank("0", line), rank("1", line));
    let (first, second) = (first.end().fine(), second.end().expect(0));
    assert_eq!(first.rows().len(), 1, "{}", first.out);
    assert!(first.out.contains("# 2 ranks: as torchrun says\n"), "{}", first.out);
    assert_eq!((second.out.as_str(), second.err.as_str()), ("", ""));
    rank("0", "allreduce --ranks 3").end().expect(6).complains(&["torchrun", "rank 0 of 2", "--ranks"]);
}

/// Prints how long a user waits for the smallest result; checks that the result comes, is right, and ends the run.
#[test]
fn the_smallest_run_is_right_every_time() {
    let _alone = alone();
    let (mut row, mut end) = (Vec::new(), Vec::new());
    for _ in 0..11 {
        let running = start("allreduce --size 8 -n 1 -w 0 -c 0 --ranks 2", &[], &[]);
        running.said("float     sum");
        row.push(running.begun.elapsed());
        let begun = running.begun;
        running.end().fine();
        end.push(begun.elapsed());
    }
    row.sort();
    end.sort();
    println!("median of 11: first line of results after {:?}, end after {:?}", row[5], end[5]);
}
