//! Traces of all ranks in one file, flight records after a failure, and the name of a straggler.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use consort::{Communicator, Error, Options, ReduceOp};
use consort_tests::job::{Start, alone, stolen};
use consort_tests::{Links, await_call, on_ranks, system};
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::RANK;

/// A directory of a test's own, which is deleted afterwards.
struct Place(PathBuf);

impl Place {
    fn new(name: &str) -> Self {
        let place = std::env::temp_dir().join(format!("consort-traces-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&place);
        std::fs::create_dir_all(&place).expect("a directory");
        Place(place)
    }

    fn join(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    fn names(&self) -> Vec<String> {
        names(&self.0)
    }
}

fn names(directory: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let mut names: Vec<_> = entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn json(path: &Path) -> Value {
    let text = std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}\n{text}", path.display()))
}

fn events(path: &Path) -> Vec<Value> {
    json(path).as_array().expect("an array").clone()
}

fn with<'a>(events: &'a [Value], key: &str, value: &str) -> Vec<&'a Value> {
    events.iter().filter(|event| event[key] == value).collect()
}

#[test]
fn processes_write_one_trace() {
    let _alone = alone();
    let place = Place::new("processes");
    for transport in ["shm", "tcp"] {
        let file = place.join(&format!("{transport}/trace.json"));
        let start = Start::new(RANK, "traced", 4).with("calls", 30).env("CONSORT_TRANSPORT", transport);
        start.env("CONSORT_TIMEOUT", 20).env("CONSORT_TRACE", file.display()).go().all_end_well();
        let events = events(&file);
        let operations = with(&events, "ph", "X");
        // A split, 30 and 2 on the first, 30 on the second.
        assert_eq!(operations.len(), 4 * (33 + 30), "{transport}");
        let mut rows = std::collections::BTreeSet::new();
        for rank in 0..4 {
            let of_rank: Vec<_> = operations.iter().filter(|event| event["pid"] == rank).collect();
            assert_eq!(of_rank.len(), 63);
            let small = of_rank.iter().filter(|event| event["name"] == "broadcast");
            let arguments: Vec<_> = small.map(|event| &event["args"]).collect();
            assert_eq!(arguments.len(), 30);
            assert!(arguments.iter().all(|args| args["root"] == 1 && args["bytes"] == 7));
            rows.extend(of_rank.iter().map(|event| event["tid"].to_string()));
        }
        assert!(rows.len() >= 3, "two halves and the whole: {rows:?}");
        let names: Vec<String> = with(&events, "name", "thread_name")
            .iter()
            .map(|event| event["args"]["name"].to_string())
            .collect();
        assert!(names.iter().any(|name| name.contains("(ranks 0, 2)")), "{names:?}");
        assert!(with(&events, "ph", "i").is_empty(), "nothing was dropped");
        one_clock(&operations, 1.0);
    }
}

/// On one clock no rank leaves an all-reduce before the last has entered it, within the error of the clock in
/// microseconds.
#[track_caller]
fn one_clock(operations: &[&Value], error: f64) {
    for sequence in 2..32 {
        let of_all: Vec<(f64, f64)> = operations
            .iter()
            .filter(|event| event["args"]["sequence"] == sequence && event["name"] == "all_reduce")
            .map(|event| (event["ts"].as_f64().expect("ts"), event["dur"].as_f64().expect("dur")))
            .collect();
        assert_eq!(of_all.len(), 4);
        let last = of_all.iter().map(|(start, _)| *start).fold(0.0, f64::max);
        let first_out = of_all.iter().map(|(start, took)| start + took).fold(f64::MAX, f64::min);
        assert!(first_out + error >= last, "#{sequence}: {of_all:?}");
        // No rank was in it for seconds.
        assert!(last - first_out < 5e6, "#{sequence}: {of_all:?}");
    }
}

#[test]
fn a_rank_with_another_clock_is_aligned() {
    let _alone = alone();
    let wrapper = ["unshare", "--time", "--fork", "--kill-child", "--monotonic", "1000"];
    let mut attempt = std::process::Command::new(wrapper[0]);
    if !attempt.args(&wrapper[1..]).arg("true").output().is_ok_and(|output| output.status.success()) {
        system::skip("no clocks of one's own: unshare --time is not permitted");
        return;
    }
    let place = Place::new("clocks");
    let file = place.join("trace.json");
    let start = Start::new(RANK, "traced", 4).with("calls", 30).env("CONSORT_TIMEOUT", 20);
    start.env("CONSORT_TRACE", file.display()).wrapped(&wrapper).go().all_end_well();
    let events = events(&file);
    let (mut offsets, mut worst) = (0, 0.0f64);
    for event in with(&events, "name", "process_name") {
        let [offset, error] =
            ["offset_ns", "error_ns"].map(|key| event["args"]["clock"][key].as_f64().expect(key));
        let ahead = if event["pid"] == 0 { 0.0 } else { 1e12 };
        assert!((offset - ahead).abs() <= error, "{event}");
        offsets += 1;
        worst = worst.max(error);
    }
    assert_eq!(offsets, 8, "two communicators of four ranks");
    // Small enough that the other rank's clock was really used.
    assert!(worst < 1e11, "{worst} ns");
    one_clock(&with(&events, "ph", "X"), 2.0 * worst / 1e3 + 1.0);
}

#[test]
fn threads_write_one_trace_and_say_what_they_dropped() {
    let place = Place::new("threads");
    let file = place.join("trace.json");
    let options = Options::default().trace(&file).trace_events(128);
    for _ in 0..2 {
        on_ranks(3, Links::Local, &options, |comm| {
            (0..200).try_for_each(|_| comm.barrier())?;
            let pair = comm.split((comm.rank() < 2).then_some(0), 0)?;
            pair.map_or(Ok(()), |pair| pair.barrier())
        });
    }
    let events = events(&file);
    assert_eq!(with(&events, "ph", "X").len(), 2 * (3 * 128 + 2));
    let dropped: Vec<_> =
        with(&events, "ph", "i").iter().map(|event| event["args"]["dropped"].as_u64()).collect();
    assert_eq!(dropped, [Some(73); 6]);
    assert_eq!(place.names(), ["trace.json"]);
}

#[test]
fn a_late_rank_is_named() {
    let _alone = alone();
    for transport in ["shm", "tcp"] {
        let start = Start::new(RANK, "late", 4).with("calls", 20).with("deviant", 2).with("milliseconds", 15);
        let mut job = start.env("CONSORT_TRANSPORT", transport).env("CONSORT_TIMEOUT", 20).go();
        let found: Value = serde_json::from_str(&job.line(0, "json ")).expect("json");
        job.all_end_well();
        println!("{}", job.output());
        assert_eq!((&found["latest"], &found["collectives"]), (&Value::from(2), &Value::from(20)), "{found}");
        let rank = &found["ranks"][2];
        assert_eq!(rank["last"], 20, "{found}");
        // A lower bound: a program that takes its core makes it later still.
        let late = rank["mean_s"].as_f64().expect("seconds");
        assert!(late > 0.010 && found["error_s"].as_f64() < Some(late), "{found}");
    }
}

#[test]
fn a_late_thread_is_named_from_another_one_at_any_time() {
    let _alone = alone();
    on_ranks(3, Links::Local, &Options::default(), |comm| {
        for number in 1..=20 {
            if comm.rank() == 1 {
                await_call(comm, &[0, 2], "barrier", number);
                std::thread::sleep(Duration::from_millis(10));
            }
            comm.barrier()?;
        }
        let stragglers = comm.stragglers()?;
        assert_eq!((stragglers.latest, stragglers.by), (Some(1), comm.rank()), "{stragglers}");
        assert!(stragglers.ranks[1].last == 20 && stragglers.silent.is_empty(), "{stragglers}");
        comm.barrier()
    });
    // While another thread waits in a call, and after a failure.
    let ranks = Communicator::local(2).expect("two ranks");
    std::thread::scope(|threads| {
        threads.spawn(|| ranks[0].all_reduce(&mut [1.0f32; 8], ReduceOp::Sum));
        let entered = || ranks[0].flight_record().expect("a record").operations.len() == 1;
        assert!(system::eventually(Duration::from_secs(5), entered));
        let record = ranks[0].flight_record().expect("a record");
        assert!(record.operations[0].ended.is_none() && record.to_string().contains("open"), "{record}");
        assert_eq!(ranks[1].stragglers().expect("both answer").collectives, 0);
        ranks[1].abort("the test says so");
    });
    let record = ranks[0].flight_record().expect("a record");
    assert!(record.operations[0].failed && record.to_string().contains("failed"), "{record}");
    assert!(ranks[0].stragglers().is_ok());
}

#[test]
fn a_killed_rank_leaves_the_others_records_on_disk() {
    let _alone = alone();
    let place = Place::new("killed");
    let (records, trace) = (place.join("new/records"), place.join("trace.json"));
    let start = Start::new(RANK, "traced", 3).with("calls", 5).with("then", "fail").with("deviant", 1);
    let start = start.env("CONSORT_TRACE", trace.display()).env("CONSORT_TIMEOUT", 20);
    let mut job = start.env("CONSORT_FLIGHT_RECORD", records.display()).go();
    job.line(1, "alone");
    let (pid, killed) = (job.pid(1), Instant::now());
    job.signal(1, Signal::SIGKILL);
    for rank in [0, 2] {
        let (text, at) = job.failure_at(rank, "PeerLost");
        // A second is the contract, and writing takes little time.
        let took = at.saturating_duration_since(killed);
        assert!(took < Duration::from_secs(2) + stolen(), "the error came after {took:?}");
        assert!(job.end(rank).success(), "{}", job.output());
        let of_rank = |name: &String| name.ends_with(&format!("-rank{rank}.json"));
        let names = names(&records);
        let name = names.iter().find(|name| of_rank(name)).unwrap_or_else(|| panic!("{names:?}"));
        let record = json(&records.join(name));
        let error = record["error"].as_str().expect("a text");
        assert_eq!(text, error.replace('\n', " "));
        assert!(error.contains("rank 1") && error.contains(&format!("process {pid}")), "{error}");
        let last = record["operations"].as_array().and_then(|all| all.last()).expect("operations");
        assert_eq!((&last["call"]["name"], &last["failed"]), (&Value::from("barrier"), &Value::from(true)));
    }
    assert_eq!(names(&records).len(), 2, "one of each rank that lives");
    let events = events(&trace);
    let failed = events.iter().filter(|event| event["args"]["failed"] == true).count();
    assert_eq!(failed, 2, "the barriers of the ranks that live");
    assert!(with(&events, "ph", "X").iter().all(|event| event["pid"] != 1));
}

#[test]
fn a_deadline_s_record_holds_the_report() {
    let place = Place::new("deadline");
    let options = Options::default().timeout(Duration::from_millis(300)).flight_record(&place.0);
    let ranks = Communicator::local_with(2, &options).expect("two ranks");
    let error = ranks[0].barrier().expect_err("rank 1 does not come");
    assert!(matches!(error, Error::Timeout { .. }), "{error}");
    let name = place.names().pop().expect("a file");
    let record = json(&place.join(&name));
    assert!(name.ends_with("-rank0.json"), "{name}");
    assert_eq!(record["error"], error.to_string());
    assert_eq!(record["report"]["guilty"]["kind"], "ranks", "{record:#}");
    // Rank 1 makes no further call: its record is written when it closes.
    assert_eq!(place.names().len(), 1);
    drop(ranks);
    assert_eq!(place.names().len(), 2);
}

#[test]
fn communicators_that_end_well_leave_no_record() {
    let place = Place::new("well");
    on_ranks(2, Links::Joined, &Options::default().flight_record(&place.0), |comm| {
        let wrong = comm.broadcast(&mut [1u8], 5);
        assert!(matches!(wrong, Err(Error::InvalidArgument { .. })), "{wrong:?}");
        comm.barrier()
    });
    assert_eq!(place.names(), Vec::<String>::new());
}

#[test]
fn what_cannot_be_written_does_not_change_the_error() {
    let place = Place::new("unwritable");
    let file = place.join("file");
    std::fs::write(&file, "a letter").expect("written");
    // Below a file there can be no directory; the file itself is not a trace.
    let options = Options::default().flight_record(file.join("below")).trace(&file);
    let ranks = Communicator::local_with(2, &options).expect("two ranks");
    ranks[1].abort("the test says so");
    for _ in 0..2 {
        for rank in &ranks {
            let error = rank.barrier().expect_err("aborted");
            assert!(
                matches!(&error, Error::Aborted { rank: 1, reason } if reason == "the test says so"),
                "{error}"
            );
        }
    }
    drop(ranks);
    assert_eq!(std::fs::read_to_string(&file).ok().as_deref(), Some("a letter"));
    assert_eq!(place.names(), ["file"]);
}

#[test]
fn a_forked_child_writes_nothing() {
    let _alone = alone();
    let place = Place::new("forked");
    let trace = place.join("trace.json");
    let start = Start::new(RANK, "fork", 2).env("CONSORT_TIMEOUT", 20).env("CONSORT_TRACE", trace.display());
    let mut job = start.env("CONSORT_FLIGHT_RECORD", place.join("records").display()).go();
    job.all_end_well();
    // The children's own communicators are listed; the parents' are listed once.
    let mut rows: Vec<String> =
        with(&events(&trace), "name", "thread_name").iter().map(ToString::to_string).collect();
    let all = rows.len();
    rows.sort();
    rows.dedup();
    assert_eq!(rows.len(), all);
    assert!(all > 2 * (2 + 2 * 2), "{rows:?}");
    assert_eq!(place.names(), ["trace.json"]);
}
