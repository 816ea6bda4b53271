//! Real processes, random operations, and one fault at a random moment: every rank that lives gets the same error, in
//! time, and never gets wrong bits.
//!
//! `CONSORT_TORTURE_RUNS` sets the number of runs, or `CONSORT_TORTURE_SECONDS` their duration, and
//! `CONSORT_TEST_SEED` the first seed; the tests of `torture/pools.rs` make their runs here and go by the same variables. A run that fails prints the line that repeats it. The plan (see
//! `support/torture.rs`) is a function of the seed; only time differs.
//!
//! In runs with a fault that ends the communicator, the ranks call operations until it fails: no rank is through
//! before the fault, so no rank may pass. These results are allowed, and no others:
//!
//! | fault | the world's error on every rank that lives |
//! |---|---|
//! | none, a pause, a nap | none: all pass |
//! killed, exited | `PeerLost` that names a rank that is lost, and its process |
//! the same at the end of the operations | that, or to pass: a rank is through as soon as it needs no other |
//! left, panicked | `PeerLeft` that names the rank: its drop has sent its leave to the others, whatever ended it |
//! stopped | `Timeout` that names the stopped ranks as not answering; the stopped rank gets it too. Of two, one may be named alone: in a message no rank asks ranks without a part in it |
//! | away | `Timeout` that names the rank as not in a call: its control thread answers; the rank gets it too |
//! | aborted, revoked | `Aborted`, `Revoked` by a rank that did it |
//!
//! A communicator that was split off the world ends with the world where a process is gone. Otherwise it has a
//! failure of its own: its own deadline, its own rank that left; and once the world has failed, ranks drop it,
//! which its other ranks may find while they are still in a call on it (`PeerLeft`). A world that fails during a
//! split may leave a communicator that some ranks have made and others have not and cannot drop: on those who have
//! it, its deadline ends it, and they see the world's failure after that.
//!
//! In some runs there are communicators of all ranks beside the world; a thread of its own calls on each of them at
//! the same time. They pass where the world must; otherwise they may fail as split communicators do, or are aborted
//! by a rank whose world has failed.

mod pools;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use consort_tests::job::{Job, PATIENCE, Start, alone, stolen};
use consort_tests::system::{self, Random, Starvation};
use consort_tests::torture::{Ends, Fault, Plan, Traffic};
use nix::sys::signal::Signal;

use crate::RANK;

/// The time from a fault, or from a deadline, to the error on every rank.
const TOLD_WITHIN: Duration = Duration::from_secs(1);
/// Up to eight ranks spin on two cores, beside the control threads and the harness that reads the time: this much may
/// pass before the thread that matters gets a core, where other programs take it too.
fn scheduling() -> Duration {
    Duration::from_millis(500) + stolen()
}
/// The text of a deadline on a communicator whose `split` failed on a rank.
const HALF_MADE: &str = "has not made the communicator yet";
/// Runs when `CONSORT_TORTURE_RUNS` is not set.
const RUNS: u32 = 12;

/// Prints how to repeat a run that panics.
struct Replay<'a>(&'a [Plan]);

impl Drop for Replay<'_> {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            return;
        }
        self.0.iter().for_each(|plan| eprintln!("{plan:?}"));
        // Those of pools follow from the seed of their test, which has printed it.
        if let [Plan { traffic: Traffic::Any, seed, .. }] = self.0 {
            eprintln!(
                "repeat it with: CONSORT_TORTURE_RUNS=1 CONSORT_TEST_SEED={seed} cargo test -p consort-tests-failures -- torture"
            );
        }
    }
}

/// A directory for the temporary files of a run.
struct Temporary(PathBuf);

impl Temporary {
    fn new() -> Self {
        let path = std::env::temp_dir().join(format!("consort-torture-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a directory");
        Temporary(path)
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// How a rank ended: `passed`, or its error's variant and text.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Outcome {
    Passed,
    Failed(String, String),
}

struct Run<'a> {
    plan: &'a Plan,
    job: Job,
    sockets: BTreeSet<String>,
    began: Instant,
    /// The time of the fault, where the harness caused it.
    struck: Option<Instant>,
    starvation: Starvation,
}

impl<'a> Run<'a> {
    /// Starts the ranks, and causes the fault if that is the harness's to do.
    fn begin(plan: &'a Plan, temporary: &Temporary) -> Self {
        let start = Start::new(RANK, "torture", plan.size).with("seed", plan.seed);
        let start =
            start.with("traffic", format!("{:?}", plan.traffic)).with("fault", format!("{:?}", plan.fault));
        let start = start.env("TMPDIR", temporary.0.display()).env("CONSORT_TRANSPORT", plan.transport);
        let mut job = start.env("CONSORT_TIMEOUT", plan.timeout.as_secs()).go();
        let all = 0..plan.size;
        all.clone().for_each(|rank| drop(job.line(rank, "joined")));
        let (sockets, starvation) = (job.sockets(), Starvation::watch());
        all.for_each(|rank| job.say(rank, "begin"));
        let mut run = Run { plan, job, sockets, began: Instant::now(), struck: None, starvation };
        run.struck = run.strike();
        run
    }

    fn is_victim(&self, rank: u32) -> bool {
        self.plan.victims.contains(&rank)
    }

    /// Whether a victim stays alive and fails as the others do.
    fn all_live(&self) -> bool {
        matches!(
            self.plan.fault,
            Fault::None
                | Fault::Stop
                | Fault::Pause
                | Fault::Nap
                | Fault::Away
                | Fault::Abort
                | Fault::Revoke
        )
    }

    fn others(&self) -> Vec<u32> {
        (0..self.plan.size).filter(|rank| !self.is_victim(*rank)).collect()
    }

    fn living(&self) -> Vec<u32> {
        if self.all_live() { (0..self.plan.size).collect() } else { self.others() }
    }

    fn outcome(&mut self, rank: u32) -> (Outcome, Instant) {
        let (line, at) = self.job.line_at(rank, "ended ");
        match line.split_once(": ") {
            Some((variant, text)) => (Outcome::Failed(variant.into(), text.into()), at),
            None => (Outcome::Passed, at),
        }
    }

    /// The harness's part of the fault. Returns the time of the fault, if there was one.
    fn strike(&mut self) -> Option<Instant> {
        let plan = self.plan;
        if !matches!(plan.fault, Fault::Kill | Fault::Stop | Fault::Pause) {
            return None;
        }
        plan.victims.iter().for_each(|victim| drop(self.job.line(*victim, "at")));
        std::thread::sleep(plan.delay);
        for (index, victim) in plan.victims.iter().enumerate() {
            if plan.fault == Fault::Kill {
                if index > 0 {
                    std::thread::sleep(plan.lasts);
                }
                self.job.signal(*victim, Signal::SIGKILL);
            } else if plan.fault == Fault::Stop {
                self.job.signal(*victim, Signal::SIGSTOP);
            }
        }
        let struck = Instant::now();
        if plan.fault == Fault::Pause {
            self.pause();
            self.job.say(0, "end");
        }
        Some(struck)
    }

    /// Stops ranks, one after the other; calls go on in between.
    fn pause(&mut self) {
        for (number, pause) in self.plan.pauses.iter().enumerate() {
            if number > 0 {
                self.await_operations();
            }
            self.job.signal(pause.rank, Signal::SIGSTOP);
            std::thread::sleep(pause.lasts);
            self.job.signal(pause.rank, Signal::SIGCONT);
            std::thread::sleep(pause.delay);
        }
    }

    /// Waits until the victim has come to its point once more.
    fn await_operations(&mut self) {
        let victim = self.plan.victims[0];
        let before = self.job.said(victim, "at").len();
        let goes_on = system::eventually(PATIENCE, || self.job.said(victim, "at").len() > before);
        assert!(goes_on, "rank {victim} makes no more calls\n{}", self.job.output());
    }

    /// The time of the fault, as printed by the ranks that caused it themselves.
    fn struck(&mut self) -> Option<Instant> {
        let victims = self.plan.victims.clone();
        victims.iter().filter_map(|victim| Some(self.job.said(*victim, "fault").first()?.1)).min()
    }

    /// The time after the fault within which every rank must have failed. A deadline passes first on the split
    /// communicator, and then on the world.
    fn limit(&mut self) -> Duration {
        let half_made = self
            .living()
            .into_iter()
            .any(|rank| self.job.said(rank, "child ").iter().any(|(line, _)| line.contains(HALF_MADE)));
        let deadlines = match self.plan.fault {
            Fault::Stop | Fault::Away => 1 + u32::from(self.plan.splits),
            _ => u32::from(half_made),
        };
        self.plan.timeout * deadlines + TOLD_WITHIN + self.scheduling()
    }

    /// As [`scheduling`], with what other programs took during the run.
    fn scheduling(&self) -> Duration {
        scheduling() + self.starvation.so_far()
    }

    fn check_outcome(&mut self, rank: u32, outcome: &Outcome) {
        let plan = self.plan;
        let Outcome::Failed(variant, text) = outcome else {
            let may_pass = matches!(plan.ends, Ends::After(_) | Ends::Line);
            assert!(may_pass, "rank {rank} passed:\n{}", self.job.output());
            return;
        };
        let pids: Vec<(u32, u32)> = plan.victims.iter().map(|rank| (*rank, self.job.pid(*rank))).collect();
        let names = |begin: &str| {
            pids.iter().any(|(rank, pid)| {
                text.starts_with(&begin.replace('#', &rank.to_string()).replace('@', &pid.to_string()))
            })
        };
        let fits = match plan.fault {
            Fault::None | Fault::Pause | Fault::Nap => false,
            Fault::Kill | Fault::Exit { .. } => {
                let place = pids.iter().any(|(rank, pid)| {
                    text.starts_with(&format!("rank {rank} (host "))
                        && text.contains(&format!(", process {pid}) was lost"))
                });
                variant == "PeerLost" && place
            }
            Fault::Leave { .. } | Fault::Panic { .. } => {
                let left = text.contains(") closed the communicator before ");
                variant == "PeerLeft" && names("rank # (host ") && left
            }
            Fault::Stop => {
                let is_named =
                    plan.victims.len() > 1 || text.contains(&format!("rank {} (", plan.victims[0]));
                variant == "Timeout" && text.contains("not answer") && is_named
            }
            Fault::Away => variant == "Timeout" && text.contains("it is not in a call now"),
            Fault::Abort => {
                variant == "Aborted" && names("the communicator was aborted by rank #: the plan says so;")
            }
            Fault::Revoke => {
                variant == "Revoked" && names("the communicator was revoked by rank #: the plan says so;")
            }
        };
        assert!(fits, "rank {rank} failed with {variant}: {text}\n{}", self.job.output());
    }

    /// Checks the ends of split communicators, and of those beside the world.
    fn check_children(&mut self) {
        let allowed: &[&str] = match self.plan.fault {
            Fault::None | Fault::Pause | Fault::Nap => &[],
            Fault::Kill | Fault::Exit { .. } => &["PeerLost", "PeerLeft"],
            Fault::Stop | Fault::Away => &["Timeout", "PeerLeft"],
            Fault::Leave { .. } | Fault::Panic { .. } | Fault::Abort | Fault::Revoke => &["PeerLeft"],
        };
        for rank in self.living() {
            for (line, _) in self.job.said(rank, "beside ") {
                let is_ended = line.starts_with("Aborted: ") && line.contains(": the run is over;");
                let fits = allowed.iter().any(|variant| line.starts_with(&format!("{variant}: ")))
                    || (is_ended && !allowed.is_empty());
                assert!(fits, "beside the world, rank {rank} failed with {line}\n{}", self.job.output());
            }
        }
        for rank in self.living() {
            for (line, _) in self.job.said(rank, "child ") {
                let half_made = self.plan.ends == Ends::Failure && line.contains(HALF_MADE);
                let fits = allowed.iter().any(|variant| line.starts_with(&format!("{variant}: ")))
                    || (half_made && line.starts_with("Timeout: "));
                assert!(fits, "a child of rank {rank} failed with {line}\n{}", self.job.output());
            }
        }
    }

    /// Checks the report of a deadline: the same on all ranks, and it names the guilty ranks.
    fn check_reports(&mut self) {
        let mut reports = Vec::new();
        for rank in self.living() {
            let said = self.job.said(rank, "report ").into_iter().map(|(report, _)| report).next();
            reports.push(said.unwrap_or_else(|| panic!("rank {rank} has no report\n{}", self.job.output())));
        }
        let different: BTreeSet<&String> = reports.iter().collect();
        assert_eq!(different.len(), 1, "reports differ: {different:#?}\n{}", self.job.output());
        let report: serde_json::Value = serde_json::from_str(&reports[0]).expect("JSON");
        let guilty = &report["guilty"];
        let named: Vec<u64> =
            guilty["ranks"].as_array().into_iter().flatten().filter_map(serde_json::Value::as_u64).collect();
        let kind = if self.plan.fault == Fault::Stop { "unreachable" } else { "ranks" };
        let right = guilty["kind"] == kind
            && !named.is_empty()
            && named.iter().all(|rank| self.is_victim(*rank as u32));
        assert!(right, "not the guilty: {guilty}\n{}", self.job.output());
    }

    /// Waits for the ends of all ranks. The time from the fault to the last error.
    fn end(&mut self) -> Duration {
        let (plan, began) = (self.plan, self.began);
        let blocked = matches!(plan.fault, Fault::Stop | Fault::Away);
        let first = if blocked { self.others() } else { self.living() };
        let mut outcomes: BTreeMap<u32, (Outcome, Instant)> = BTreeMap::new();
        for rank in first {
            let outcome = self.outcome(rank);
            outcomes.insert(rank, outcome);
        }
        let struck = self.struck.or_else(|| self.struck()).unwrap_or(began);
        let limit = self.limit();
        let last = outcomes.values().map(|(_, at)| *at).max().unwrap_or(struck);
        let took = last.saturating_duration_since(struck);
        if plan.ends == Ends::Failure {
            assert!(
                took < limit,
                "the error came after {took:?}, {limit:?} are allowed\n{}",
                self.job.output()
            );
        }
        if blocked {
            // Their memory belongs to them before the others go on.
            self.others().iter().for_each(|rank| drop(self.job.line(*rank, "filled")));
            let woken = Instant::now();
            for victim in &plan.victims {
                if plan.fault == Fault::Stop {
                    self.job.signal(*victim, Signal::SIGCONT);
                } else {
                    self.job.say(*victim, "go on");
                }
            }
            for victim in &plan.victims {
                let (outcome, at) = self.outcome(*victim);
                let took = at.saturating_duration_since(woken);
                assert!(
                    took < TOLD_WITHIN + self.scheduling(),
                    "rank {victim} got its error {took:?} after it woke\n{}",
                    self.job.output()
                );
                self.job.line(*victim, "filled");
                outcomes.insert(*victim, (outcome, at));
            }
        }
        self.check(&outcomes);
        let failed: Vec<u32> = outcomes
            .iter()
            .filter(|(_, (outcome, _))| *outcome != Outcome::Passed)
            .map(|(rank, _)| *rank)
            .collect();
        self.finish(&failed);
        let left = || system::unix_sockets_left(&self.sockets);
        assert!(system::eventually(system::SOON, || left().is_empty()), "sockets are left: {:?}", left());
        took
    }

    fn check(&mut self, outcomes: &BTreeMap<u32, (Outcome, Instant)>) {
        for (rank, (outcome, _)) in outcomes {
            self.check_outcome(*rank, outcome);
        }
        self.check_children();
        let failures: BTreeSet<&Outcome> = outcomes
            .values()
            .map(|(outcome, _)| outcome)
            .filter(|outcome| **outcome != Outcome::Passed)
            .collect();
        assert!(failures.len() < 2, "ranks fail differently: {failures:#?}\n{}", self.job.output());
        if matches!(self.plan.fault, Fault::Stop | Fault::Away) {
            self.check_reports();
        }
    }

    /// Every rank ends; nothing is left.
    fn finish(&mut self, failed: &[u32]) {
        let plan = self.plan;
        for rank in failed {
            if plan.fault == Fault::Revoke {
                self.job.line(*rank, "recovered");
            }
        }
        let leaves = matches!(plan.fault, Fault::Leave { .. });
        let asked: Vec<u32> = if leaves { (0..plan.size).collect() } else { failed.to_vec() };
        asked.iter().for_each(|rank| self.job.say(*rank, "check"));
        for rank in failed {
            assert_eq!(self.job.line(*rank, "changed "), "0", "bytes of rank {rank}:\n{}", self.job.output());
        }
        for rank in 0..plan.size {
            let status = self.job.end(rank);
            let code = match plan.fault {
                Fault::Kill if self.is_victim(rank) => continue,
                Fault::Exit { code, .. } if self.is_victim(rank) => Some(code),
                _ => {
                    self.job.line(rank, "clean");
                    Some(0)
                }
            };
            assert_eq!(status.code(), code, "rank {rank}:\n{}", self.job.output());
        }
        let output = self.job.output();
        assert!(!output.contains("WRONG BITS"), "{output}");
    }
}

/// Processes of the ranks' program that belong to no job.
fn ranks_left() -> Vec<String> {
    let program = std::fs::canonicalize(RANK).expect("the program");
    let processes = std::fs::read_dir("/proc").expect("procfs").flatten();
    let of_ranks = processes
        .filter(|entry| std::fs::read_link(entry.path().join("exe")).is_ok_and(|found| found == program));
    of_ranks.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

/// Runs: each begins when those before it have their fault. The times until the ranks knew.
fn torture(plans: &[Plan]) -> Vec<Duration> {
    let replay = Replay(plans);
    let names = system::shared_memory_names();
    let temporary = Temporary::new();
    let mut runs: Vec<Run<'_>> = plans.iter().map(|plan| Run::begin(plan, &temporary)).collect();
    let took = runs.iter_mut().map(Run::end).collect();
    assert_eq!(system::shared_memory_names(), names);
    let left: Vec<_> = std::fs::read_dir(&temporary.0).expect("the directory").flatten().collect();
    assert!(left.is_empty(), "files are left: {left:?}");
    assert!(system::eventually(system::SOON, || ranks_left().is_empty()), "left: {:?}", ranks_left());
    drop(runs);
    drop(replay);
    took
}

/// Makes rounds of `runs` runs, as many as the variables say or else `default` rounds.
fn rounds(test: &str, default: u32, runs: u32, mut round: impl FnMut(&mut Random, u32)) {
    let mut random = Random::announced(test);
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<u32>().ok());
    let seconds = number("CONSORT_TORTURE_SECONDS").map(|seconds| Duration::from_secs(seconds.into()));
    let limit = number("CONSORT_TORTURE_RUNS")
        .map(|all| all.div_ceil(runs))
        .unwrap_or(if seconds.is_some() { u32::MAX } else { default });
    let began = Instant::now();
    let mut rounds = 0;
    while rounds < limit && seconds.is_none_or(|seconds| began.elapsed() < seconds) {
        round(&mut random, rounds);
        rounds += 1;
    }
    println!("{rounds} rounds in {:?}", began.elapsed());
}

#[test]
fn ranks_that_live_get_the_same_error_in_time() {
    let _alone = alone();
    let mut kinds: BTreeMap<Fault, (u32, Duration)> = BTreeMap::new();
    rounds("torture", RUNS, 1, |random, run| {
        let plan = Plan::new(random.seed());
        random.draw();
        let took = torture(std::slice::from_ref(&plan))[0];
        let (count, most) = kinds.entry(plan.fault).or_default();
        (*count, *most) = (*count + 1, took.max(*most));
        println!(
            "run {run}, seed {}: {:?} of {} over {}, {} beside, {took:?}",
            plan.seed, plan.fault, plan.size, plan.transport, plan.beside
        );
    });
    kinds.iter().for_each(|(fault, (count, most))| println!("{count:4} {fault:?}, {most:?} at most"));
}
