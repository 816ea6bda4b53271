//! What a communicator leaves behind and what a repeated call costs besides its work, seen from outside.

use std::collections::BTreeMap;
use std::process::Command;

use consort_tests::job::{Start, alone};

const RANK: &str = env!("CARGO_BIN_EXE_rank");
/// How the library waits: these may be called while a peer has no core.
const WAITING: [&str; 2] = ["sched_yield", "clock_nanosleep"];

#[test]
fn nothing_is_left_of_threads_descriptors_and_environment() {
    let _alone = alone();
    let mut job = Start::new(RANK, "rounds", 1).with("rounds", 50).env("CONSORT_TIMEOUT", 20).go();
    job.line(0, "clean");
    job.all_end_well();
}

#[test]
fn a_repeated_small_call_between_processes_allocates_nothing() {
    let _alone = alone();
    let mut job = Start::new(RANK, "allocations", 2).env("CONSORT_TIMEOUT", 30).go();
    for rank in 0..2 {
        assert_eq!(
            job.line(rank, "allocations "),
            "0",
            "in 1000 calls of rank {rank}, the best of ten rounds"
        );
    }
    job.all_end_well();
}

#[test]
fn an_idle_communicator_is_small_and_says_so() {
    let _alone = alone();
    let mut job = Start::new(RANK, "idle", 2).with("many", 50).env("CONSORT_TIMEOUT", 30).go();
    for rank in 0..2 {
        let line = job.line(rank, "idle ");
        let (said, heap) = line.split_once(' ').expect("two numbers");
        println!("an idle communicator of rank {rank}: memory_bytes {said}, heap {heap}");
        let [said, heap]: [i64; 2] = [said, heap].map(|number| number.parse().expect("a number"));
        assert!(said > 0 && said < 100 << 10, "memory_bytes says {said}");
        assert!(heap < 100 << 10, "it takes {heap} bytes of heap");
        assert!(said >= heap / 2, "memory_bytes says {said}, and it takes {heap} bytes of heap");
        let used: i64 = job.line(rank, "used ").parse().expect("a number");
        assert!(used > said, "a used communicator says {used}, an idle one {said}");
    }
    job.all_end_well();
}

/// System calls of rank 0 by name in a job with so many all-reduces, and for how long it had no core.
fn system_calls(calls: u32) -> (BTreeMap<String, i64>, u64) {
    let file = std::env::temp_dir().join(format!("consort-strace-{}-{calls}", std::process::id()));
    let path = file.display().to_string();
    let start = Start::new(RANK, "count", 2).with("calls", calls).env("CONSORT_TIMEOUT", 30);
    let mut job = start.wrapped(&["strace", "-c", "-f", "-o", &path]).go();
    let waited = (0..2).map(|rank| job.line(rank, "waited ").parse().unwrap_or(0)).sum();
    job.all_end_well();
    let text = std::fs::read_to_string(&file).expect("strace's summary");
    let _ = std::fs::remove_file(&file);
    let line = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let share: f64 = fields.first()?.parse().ok()?;
        let name = fields.last().filter(|name| **name != "total" && share <= 100.0)?;
        Some(((*name).to_owned(), fields.get(3)?.parse().ok()?))
    };
    (text.lines().filter_map(line).collect(), waited)
}

#[test]
fn a_repeated_small_call_makes_no_system_call() {
    let _alone = alone();
    let tried = Command::new("strace").args(["-c", "-f", "-o", "/dev/null", "true"]).output();
    if !tried.is_ok_and(|output| output.status.success()) {
        println!("SKIP: strace is absent or may not trace here");
        return;
    }
    if std::thread::available_parallelism().map_or(1, usize::from) < 2 {
        println!("SKIP: two ranks do not spin on one core");
        return;
    }
    let (few, _) = system_calls(1_000);
    let mut last = String::new();
    for attempt in 0..3 {
        let (many, waited) = system_calls(100_000);
        let more: BTreeMap<&String, i64> =
            many.iter().map(|(name, calls)| (name, calls - few.get(name).unwrap_or(&0))).collect();
        let grown = |waits: bool| -> i64 {
            let counted = more.iter().filter(|(name, _)| WAITING.contains(&name.as_str()) == waits);
            counted.map(|(_, calls)| (*calls).max(0)).sum()
        };
        println!("attempt {attempt}: 99000 more calls, {more:?}, {waited} us without a core");
        // A peer without a core for 20 ms is asked what it is doing: some messages of the control thread.
        assert!(grown(false) < 2000, "system calls grow with calls: {more:?}");
        if grown(false) < 50 && grown(true) < 1000 {
            return;
        }
        last = format!("{more:?}");
        assert!(waited > 5_000, "system calls although both ranks had their cores: {last}");
    }
    println!("SKIP: the cores are too busy to say that spinning ranks make no system call: {last}");
}
