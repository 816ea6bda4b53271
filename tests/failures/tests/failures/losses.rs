//! Ranks that die, stop, stay away, leave or have no memory: every other rank gets the error that names them, in
//! time, and keeps its own memory.

use std::time::{Duration, Instant};

use consort_tests::job::{Job, Start, alone, stolen};
use consort_tests::system::{self, Random};
use nix::sys::signal::Signal;

use crate::RANK;

/// The time from a rank's death to the error on every other rank: a second is the contract.
fn error_within() -> Duration {
    Duration::from_secs(1) + stolen()
}

fn kill_one(size: u32, transport: &str, op: &str, megabytes: usize, random: &mut Random) {
    kill_one_with(false, size, transport, op, megabytes, random);
}

fn kill_one_with(mapped: bool, size: u32, transport: &str, op: &str, megabytes: usize, random: &mut Random) {
    let _alone = alone();
    let names_before = system::shared_memory_names();
    let start = Start::new(RANK, "loop", size).with("op", op).with("bytes", megabytes << 20);
    let start = start.with("mapped", u32::from(mapped));
    let start = start.env("CONSORT_TRANSPORT", transport).env("CONSORT_TIMEOUT", 30);
    let mut job = start.with("sigpipe", "default").go();
    (0..size).for_each(|rank| drop(job.line(rank, "turn")));
    let victim = (random.draw() % u64::from(size)) as u32;
    std::thread::sleep(random.duration(Duration::from_millis(300)));
    let sockets = job.sockets();
    let pid = job.pid(victim);
    let killed = Instant::now();
    job.signal(victim, Signal::SIGKILL);
    for rank in (0..size).filter(|rank| *rank != victim) {
        let (text, at) = job.failure_at(rank, "PeerLost");
        let named = text.contains(&format!("rank {victim} ")) && text.contains(&format!("process {pid}"));
        assert!(named, "{op} over {transport}: {text}");
        let took = at.saturating_duration_since(killed);
        println!(
            "{op}, {megabytes} MiB, {size} ranks, {transport}: rank {rank} got the error about {victim} after {took:?}"
        );
        assert!(took < error_within(), "rank {rank} got its error after {took:?}");
    }
    for rank in (0..size).filter(|rank| *rank != victim) {
        job.line(rank, "clean");
        assert!(job.end(rank).success(), "{}", job.output());
    }
    job.end(victim);
    assert_eq!(system::shared_memory_names(), names_before);
    let left = || system::unix_sockets_left(&sockets);
    assert!(system::eventually(system::SOON, || left().is_empty()), "sockets are left: {:?}", left());
}

#[test]
fn a_killed_rank_over_shared_memory() {
    let mut random = Random::announced("a_killed_rank_over_shared_memory");
    kill_one(3, "shm", "all_reduce", 96, &mut random);
    kill_one(4, "shm", "all_reduce", 64, &mut random);
    kill_one(3, "shm", "all_reduce", 0, &mut random);
    kill_one(2, "shm", "all_gather", 64, &mut random);
    kill_one(3, "shm", "started", 32, &mut random);
}

#[test]
fn a_killed_rank_over_tcp() {
    let mut random = Random::announced("a_killed_rank_over_tcp");
    kill_one(3, "tcp", "all_reduce", 64, &mut random);
    kill_one(4, "tcp", "all_reduce", 32, &mut random);
    kill_one(2, "tcp", "broadcast", 32, &mut random);
    kill_one(2, "tcp", "send", 32, &mut random);
    kill_one(3, "tcp", "started", 32, &mut random);
}

/// A rank that dies while the wires between ranks are measured is named by all others.
fn kill_one_that_probes(transport: &str, random: &mut Random) {
    let _alone = alone();
    let start = Start::new(RANK, "probe", 3).env("CONSORT_TRANSPORT", transport).env("CONSORT_TIMEOUT", 30);
    let mut job = start.go();
    (0..3).for_each(|rank| drop(job.line(rank, "turn")));
    let victim = (random.draw() % 3) as u32;
    std::thread::sleep(random.duration(Duration::from_millis(300)));
    let killed = Instant::now();
    job.signal(victim, Signal::SIGKILL);
    for rank in (0..3).filter(|rank| *rank != victim) {
        let (text, at) = job.failure_at(rank, "PeerLost");
        assert!(text.contains(&format!("rank {victim} ")), "{transport}: {text}");
        let took = at.saturating_duration_since(killed);
        assert!(took < error_within(), "rank {rank} got its error after {took:?}");
        assert!(job.end(rank).success(), "{}", job.output());
    }
    job.end(victim);
}

#[test]
fn a_killed_rank_while_wires_are_measured() {
    let mut random = Random::announced("a_killed_rank_while_wires_are_measured");
    kill_one_that_probes("shm", &mut random);
    kill_one_that_probes("tcp", &mut random);
}

/// A job of three ranks; one of them does not go on.
struct Stopped {
    job: Job,
    rank: u32,
    at: Instant,
    of: String,
}

const STOPPED_SIZE: u32 = 3;
const STOPPED_DEADLINE: Duration = Duration::from_secs(2);

fn stop_one(mapped: bool, transport: &str, op: &str, random: &mut Random) -> Stopped {
    let size = STOPPED_SIZE;
    let start = Start::new(RANK, "loop", size).with("op", op).with("bytes", 8 << 20).with("reuse", 1);
    let start = start.with("mapped", u32::from(mapped));
    let start = start.env("CONSORT_TRANSPORT", transport).env("CONSORT_TIMEOUT", STOPPED_DEADLINE.as_secs());
    let mut job = start.go();
    (0..size).for_each(|rank| drop(job.line(rank, "turn")));
    let rank = if op == "broadcast" { 1 } else { (random.draw() % u64::from(size)) as u32 };
    std::thread::sleep(random.duration(Duration::from_millis(100)));
    job.signal(rank, Signal::SIGSTOP);
    Stopped { job, rank, at: Instant::now(), of: format!("{op} over {transport}") }
}

impl Stopped {
    fn is_named_and_harms_no_other(&mut self) {
        let Stopped { job, rank: stopped, at: at_stop, of } = self;
        let stopped = *stopped;
        let others: Vec<u32> = (0..STOPPED_SIZE).filter(|rank| *rank != stopped).collect();
        let (op, _) = of.split_once(' ').expect("an operation");
        for rank in &others {
            let (text, at) = job.failure_at(*rank, "Timeout");
            let named = text.contains(&format!("rank {stopped} (")) && text.contains("does not answer");
            assert!(named && text.contains(op), "{of}, rank {stopped} stopped: {text}");
            let took = at.saturating_duration_since(*at_stop);
            assert!(took < STOPPED_DEADLINE + error_within(), "{of}: rank {rank} after {took:?}");
            job.line(*rank, "filled");
        }
        job.signal(stopped, Signal::SIGCONT);
        job.failure(stopped, "Timeout");
        job.line(stopped, "filled");
        job.say(stopped, "check");
        job.line(stopped, "clean");
        assert!(job.end(stopped).success());
        for rank in &others {
            job.say(*rank, "check");
            assert_eq!(job.line(*rank, "changed "), "0", "{of}: bytes of rank {rank} changed");
        }
        job.all_end_well();
    }
}

/// Jobs that wait for their deadline side by side, which costs no core: each is started when those before it wait.
fn stopped(mapped: bool, transport: &str, ops: &[&str], random: &mut Random) {
    let _alone = alone();
    let mut jobs: Vec<Stopped> = ops.iter().map(|op| stop_one(mapped, transport, op, random)).collect();
    jobs.iter_mut().for_each(Stopped::is_named_and_harms_no_other);
}

#[test]
fn a_stopped_rank_over_shared_memory() {
    let mut random = Random::announced("a_stopped_rank_over_shared_memory");
    stopped(false, "shm", &["all_reduce", "all_gather", "broadcast"], &mut random);
}

/// Its late writes end in pages that no buffer has any more: the buffers belong to the callers again.
#[test]
fn a_stopped_rank_that_writes_to_the_others_buffers() {
    let mut random = Random::announced("a_stopped_rank_that_writes_to_the_others_buffers");
    stopped(true, "shm", &["all_reduce", "all_gather", "broadcast", "all_reduce", "all_gather"], &mut random);
}

#[test]
fn a_killed_rank_that_writes_to_the_others_buffers() {
    let mut random = Random::announced("a_killed_rank_that_writes_to_the_others_buffers");
    kill_one_with(true, 3, "shm", "all_reduce", 96, &mut random);
    kill_one_with(true, 4, "shm", "all_reduce", 16, &mut random);
    kill_one_with(true, 2, "shm", "all_gather", 64, &mut random);
}

#[test]
fn a_stopped_rank_over_tcp() {
    let mut random = Random::announced("a_stopped_rank_over_tcp");
    stopped(false, "tcp", &["all_reduce", "all_gather", "broadcast"], &mut random);
}

#[test]
fn a_rank_that_stays_away() {
    let _alone = alone();
    // Both wait for their deadlines at the same time.
    let start = |transport: &'static str| {
        let start = Start::new(RANK, "absent", 4).with("deviant", 2).env("CONSORT_TIMEOUT", 2);
        let mut job = start.env("CONSORT_TRANSPORT", transport).go();
        job.line(2, "away");
        (transport, job)
    };
    for (transport, mut job) in ["shm", "tcp"].map(start) {
        // The root may return from a broadcast before the last rank has entered it, but not from the barrier behind
        // it.
        for rank in [0, 1, 3] {
            let text = job.failure(rank, "Timeout");
            let named = text.contains("rank 2 (") && text.contains("its last call was all_reduce #1");
            let named = named && text.contains("has not entered");
            assert!(named, "{transport}: {text}");
        }
        job.say(2, "go");
        assert!(job.failure(2, "Timeout").contains("has not entered"));
        (0..4).for_each(|rank| job.say(rank, "end"));
        job.all_end_well();
    }
}

#[test]
fn the_report_names_the_hop_in_which_an_all_reduce_waits() {
    let _alone = alone();
    let start = Start::new(RANK, "absent-in-two-hops", 2).with("deviant", 1).with("bytes", 1 << 20);
    let start = start.env("CONSORT_TRANSPORT", "shm").env("CONSORT_TIMEOUT", 2);
    let mut job = start.env("CONSORT_ALGO", "all_reduce:two-shot").go();
    job.line(1, "away");
    job.failure(0, "Timeout");
    let report: serde_json::Value = serde_json::from_str(&job.line(0, "report ")).expect("JSON");
    let waiting = &report["ranks"][0]["waiting"];
    let of = |field: &str| waiting[field].as_str().unwrap_or_default().to_owned();
    assert_eq!(
        [of("algorithm"), of("step"), of("wants")],
        ["two-shot, in packets", "step 1 of 2, slice 1 of 8", "data from"],
        "{report:#}"
    );
    assert_eq!(waiting["peer"], 1, "{report:#}");
    job.say(1, "end");
    job.all_end_well();
}

#[test]
fn a_rank_that_leaves_early() {
    let _alone = alone();
    for transport in ["shm", "tcp"] {
        for then in ["stay", "exit"] {
            let start = Start::new(RANK, "leave", 4).with("deviant", 1).with("then", then);
            let mut job = start.env("CONSORT_TRANSPORT", transport).env("CONSORT_TIMEOUT", 10).go();
            for rank in [0, 2, 3] {
                let text = job.failure(rank, "PeerLeft");
                let named = text.starts_with("rank 1 (host ")
                    && text.contains("closed the communicator before all_reduce #2");
                assert!(named, "{transport}, {then}: {text}");
            }
            (0..4).for_each(|rank| job.say(rank, "end"));
            job.all_end_well();
        }
    }
}

#[test]
fn an_abort_from_another_thread() {
    let _alone = alone();
    for (transport, by) in [("shm", 0), ("shm", 2), ("tcp", 1)] {
        let start = Start::new(RANK, "abort", 3).with("by", by).env("CONSORT_TRANSPORT", transport);
        let mut job = start.env("CONSORT_TIMEOUT", 30).go();
        drop(job.line(2, "begin"));
        [0, 1].iter().for_each(|rank| drop(job.line(*rank, "in it")));
        let aborted = Instant::now();
        job.say(by, "now");
        for rank in 0..3 {
            let (text, at) = job.failure_at(rank, "Aborted");
            assert!(text.contains(&format!("by rank {by}: the test says so")), "{text}");
            let took = at.saturating_duration_since(aborted);
            assert!(took < error_within(), "rank {rank} got its error after {took:?}");
        }
        job.all_end_well();
    }
}

fn too_little_memory(limit: &str, at_least: u64) {
    let _alone = alone();
    let start = Start::new(RANK, "memory", 3).with("deviant", 1).with("limit", limit);
    let mut job = start.env("CONSORT_TRANSPORT", "shm").env("CONSORT_TIMEOUT", 10).go();
    for rank in 0..3 {
        let text = job.failure(rank, "OutOfMemory");
        let bytes: u64 = text.split(' ').nth(3).and_then(|word| word.parse().ok()).expect("a number");
        assert!(bytes > at_least, "{text}");
        assert!(text.contains("rank 1 needed") && text.contains("connection to rank"), "{text}");
    }
    (0..3).for_each(|rank| job.say(rank, "end"));
    job.all_end_well();
}

#[test]
fn too_little_address_space_says_how_much_was_needed() {
    too_little_memory("space", 1 << 17);
}

#[test]
fn too_short_files_say_how_much_was_needed() {
    too_little_memory("file", 1 << 20);
}
