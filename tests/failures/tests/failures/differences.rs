//! Ranks with different calls or settings: every rank learns which rank differs and how.

use std::time::{Duration, Instant};

use consort::{Error, Options};
use consort_tests::difference::{Difference, variant};
use consort_tests::job::{Job, Start, alone, stolen, waiting};
use consort_tests::{Links, results_of_ranks};

use crate::RANK;

/// The time from the call to the error, on every rank: long before the deadline.
fn found_within() -> Duration {
    Duration::from_secs(2) + stolen()
}

fn assert_names(text: &str, difference: Difference, size: u32, deviant: u32, what: &str) {
    let [usual, other] = difference.texts();
    assert!(text.contains(usual) && text.contains(other), "{what}: both calls must be named: {text}");
    let deviants = format!("rank {deviant}: {other}");
    assert!(text.contains(&deviants), "{what}: '{deviants}' must be named: {text}");
    if size == 2 {
        assert!(text.contains(&format!("rank {}: {usual}", 1 - deviant)), "{what}: {text}");
    }
}

fn differ_as_processes(size: u32, deviant: u32, transport: &str) {
    for difference in Difference::ALL {
        let _alone = alone();
        let what = format!("{difference:?}, {size} ranks, {transport}");
        let start = Start::new(RANK, "differ", size).with("difference", format!("{difference:?}"));
        let start = start.with("deviant", deviant).env("CONSORT_TRANSPORT", transport);
        let mut job = start.env("CONSORT_TIMEOUT", 20).go();
        let begin = (0..size).map(|rank| job.line_at(rank, "begin").1).max().expect("ranks");
        for rank in 0..size {
            let (text, at) = job.failure_at(rank, "Mismatch");
            assert_names(&text, difference, size, deviant, &what);
            let took = at.saturating_duration_since(begin);
            assert!(took < found_within(), "{what}: rank {rank} took {took:?}");
        }
        (0..size).for_each(|rank| job.say(rank, "go"));
        job.all_end_well();
    }
}

#[test]
fn two_processes_differ_over_shared_memory() {
    differ_as_processes(2, 1, "shm");
}

#[test]
fn four_processes_differ_over_shared_memory() {
    differ_as_processes(4, 2, "shm");
}

#[test]
fn two_processes_differ_over_tcp() {
    differ_as_processes(2, 0, "tcp");
}

#[test]
fn four_processes_differ_over_tcp() {
    differ_as_processes(4, 3, "tcp");
}

#[test]
fn threads_differ_over_loopback() {
    for (size, deviant) in [(2, 0), (2, 1), (4, 2)] {
        for difference in Difference::ALL {
            let _alone = alone();
            let options = Options::default().timeout(Duration::from_secs(20));
            let results = results_of_ranks(size, Links::Local, &options, |comm| {
                let began = Instant::now();
                // The first rank that has passed the barrier may fail while others are still in it.
                let result = comm.barrier().and_then(|()| difference.act(comm, comm.rank() == deviant));
                (result, began.elapsed())
            });
            for (rank, (result, took)) in results.into_iter().enumerate() {
                let what = format!("{difference:?}, rank {rank} of {size}, loopback");
                match result {
                    Err(Error::Mismatch { difference: text, .. }) => {
                        assert_names(&text, difference, size, deviant, &what);
                    }
                    other => panic!("{what}: {other:?}"),
                }
                assert!(took < found_within(), "{what}: {took:?}");
            }
        }
    }
}

#[test]
fn work_without_a_wait_finds_a_difference_too() {
    let _alone = alone();
    for transport in ["shm", "tcp"] {
        let start = Start::new(RANK, "unattended", 3).with("deviant", 1).env("CONSORT_TRANSPORT", transport);
        let mut job = start.env("CONSORT_TIMEOUT", 20).go();
        let started = (0..3).map(|rank| job.line_at(rank, "started").1).max().expect("ranks");
        for rank in 0..3 {
            let (done, at) = job.line_at(rank, "done ");
            assert_eq!(done, "true", "{transport}: {}", job.output());
            let took = at.saturating_duration_since(started);
            assert!(
                took < found_within() + Duration::from_millis(300),
                "{transport}: rank {rank} took {took:?}"
            );
            let text = job.failure(rank, "Mismatch");
            let named =
                text.contains("rank 1: all_reduce of 1001") && text.contains("all_reduce of 1000 float");
            assert!(named, "{transport}: {text}");
        }
    }
}

#[test]
fn send_and_receive_of_different_lengths() {
    let _alone = alone();
    for transport in ["shm", "tcp"] {
        for (sent, received) in [(100, 101), (101, 100), (100, 2_000_000), (2_000_000, 100)] {
            let start = Start::new(RANK, "messages", 3).with("sent", sent).with("received", received);
            let start = start.env("CONSORT_TRANSPORT", transport).env("CONSORT_TIMEOUT", 20);
            let mut job = start.go();
            for rank in 0..3 {
                let text = job.failure(rank, "Mismatch");
                let named = text.contains(&format!("send of {sent} float to 1"))
                    && text.contains(&format!("receive of {received} float from 0"))
                    && text.contains("rank 0: send")
                    && text.contains("rank 1: receive");
                assert!(named, "{transport} {sent} {received}: {text}");
            }
            (0..3).for_each(|rank| job.say(rank, "go"));
            job.all_end_well();
        }
    }
}

/// Asserts that every started rank prints `failed Variant`; returns their texts.
fn refused(mut job: Job, variant: &str) -> Vec<String> {
    job.ranks().into_iter().map(|rank| job.failure(rank, variant)).collect()
}

#[test]
fn different_settings_are_named() {
    let _alone = alone();
    for (name, usual, other) in [("CONSORT_CHANNELS", "1", "2"), ("CONSORT_SLOT_BYTES", "16384", "65536")] {
        let start = Start::new(RANK, "only-join", 3).env("CONSORT_JOIN_TIMEOUT", 20).env(name, usual);
        for text in refused(start.env_of(1, name, other).go(), "Settings") {
            let setting = name.trim_start_matches("CONSORT_").to_lowercase().replace('_', " ");
            let named = text.contains(&setting) && text.contains(usual) && text.contains(other);
            assert!(named && text.contains("rank 1"), "{name}: {text}");
        }
    }
}

#[test]
fn a_rank_that_never_joins_is_named() {
    let _waiting = waiting();
    // Two seconds: all ranks that join must have begun before the first one fails.
    let start = Start::new(RANK, "only-join", 4).env("CONSORT_JOIN_TIMEOUT", 2).only(&[0, 1, 3]);
    let mut job = start.go();
    let took = |rank| job.line(rank, "took ").parse().expect("milliseconds");
    let longest = [0, 1, 3].map(took).into_iter().max().map(Duration::from_millis).expect("ranks");
    // The first rank has waited this long, and has its answer a second later at most.
    assert!(longest >= Duration::from_millis(1900), "{longest:?}");
    assert!(longest < Duration::from_secs(3) + stolen(), "{longest:?}");
    for rank in [0, 1, 3] {
        let text = job.failure(rank, "MissingRanks");
        assert!(text.contains("1 of 4 ranks") && text.contains("missing rank 2;"), "{text}");
    }
}

#[test]
fn different_sizes_are_refused() {
    let _alone = alone();
    // Ranks of a job of three, and one that expects two.
    let id = consort::UniqueId::create().expect("an id");
    let options = Options::default().join_timeout(Duration::from_secs(3));
    let results: Vec<_> = std::thread::scope(|threads| {
        let (id, options) = (&id, &options);
        let join =
            |rank, size| threads.spawn(move || consort::Communicator::join_with(rank, size, id, options));
        let ranks = [join(0, 3), join(1, 2), join(2, 3)];
        ranks.into_iter().map(|rank| rank.join().expect("no panic").map(drop)).collect()
    });
    let errors: Vec<Error> =
        results.into_iter().map(|result: Result<(), _>| result.expect_err("no")).collect();
    let different = errors.iter().filter(|error| variant(error) == "Settings");
    for text in different.clone().map(ToString::to_string) {
        assert!(text.contains("rank 1") && text.contains('2') && text.contains('3'), "{text}");
    }
    // The third may come when the root has refused the others and has ended.
    assert!(different.count() >= 2, "{errors:?}");
    assert!(errors.iter().all(|error| ["Settings", "Join"].contains(&variant(error).as_str())), "{errors:?}");
}

#[test]
fn a_rank_that_makes_a_call_more() {
    let _waiting = waiting();
    let start = |transport: &str, then: &str| {
        let start = Start::new(RANK, "extra", 3).with("deviant", 1).with("then", then);
        start.env("CONSORT_TRANSPORT", transport).env("CONSORT_TIMEOUT", 2).go()
    };
    for transport in ["shm", "tcp"] {
        // The others have left.
        let text = start(transport, "leave").failure(1, "PeerLeft");
        assert!(text.contains("all_reduce #2") && text.contains("made fewer calls"), "{text}");
    }
    // The others are busy elsewhere, and learn of it when they come back. Both jobs wait for their deadlines at once.
    for mut job in ["shm", "tcp"].map(|transport| start(transport, "busy")) {
        let text = job.failure(1, "Timeout");
        assert!(text.contains("ranks 0, 2") && text.contains("have not entered all_reduce #2"), "{text}");
        assert!(text.contains("their last call was barrier #1"), "{text}");
        for rank in [0, 2] {
            job.say(rank, "go");
            assert_eq!(job.failure(rank, "Timeout"), text);
        }
    }
}

/// A file of a machine with `domains` domains of four CPUs each, which is deleted afterwards.
struct Machine(std::path::PathBuf);

impl Machine {
    fn of(name: &str, domains: u32) -> Machine {
        let path = std::env::temp_dir().join(format!("consort-machine-{name}-{}.txt", std::process::id()));
        let mut text = String::from("hardware m\nhost h0\n");
        for domain in 0..domains {
            let first = 4 * domain;
            text += &format!("numa n{domain} on=h0 number={domain} cpus={first}-{}\n", first + 3);
        }
        for domain in 1..domains {
            text += &format!("link n0 n{domain} socket bytes_s=20000000000\n");
        }
        std::fs::write(&path, text).expect("a file");
        Machine(path)
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        drop(std::fs::remove_file(&self.0));
    }
}

#[test]
fn ranks_of_a_host_that_name_other_machines_are_named_with_the_first_difference() {
    let (one, other) = (Machine::of("one", 1), Machine::of("other", 2));
    let start = Start::new(RANK, "only-join", 3).env("NCCL_TOPO_FILE", one.0.display());
    let mut job = start.env_of(2, "NCCL_TOPO_FILE", other.0.display()).env("CONSORT_JOIN_TIMEOUT", 20).go();
    for rank in 0..3 {
        let text = job.failure(rank, "Settings");
        let named =
            "rank 0 says nothing in line 4 of 3 lines, rank 2 says \"numa n1 on=h0 number=1 cpus=4-7\"";
        assert!(text.contains(named), "{text}");
    }
}

#[test]
fn the_machine_that_one_rank_knows_is_the_graph_of_all() {
    let machine = Machine::of("known", 2);
    let hashes = |start: Start| {
        let mut job = start.go();
        let lines: Vec<String> = (0..2).map(|rank| job.line(rank, "graph")).collect();
        job.all_end_well();
        assert_eq!(lines[0], lines[1]);
        lines[0].clone()
    };
    let start = || Start::new(RANK, "graph", 2);
    let plain = hashes(start());
    let known = hashes(start().env_of(1, "NCCL_TOPO_FILE", machine.0.display()));
    let all = hashes(start().env("NCCL_TOPO_FILE", machine.0.display()));
    assert_eq!(known, all);
    // A machine with a core for each rank is planned by the file's domains.
    let has_cores = std::thread::available_parallelism().is_ok_and(|cores| cores.get() >= 2);
    assert_eq!(known != plain, has_cores, "{known} and {plain}");
    // What is not there, is damaged or is another job's is left out.
    let damaged = Machine::of("damaged", 1);
    std::fs::write(&damaged.0, "<system version=\"1\"><cpu").expect("a file");
    assert_eq!(hashes(start().env("NCCL_TOPO_FILE", damaged.0.display())), plain);
    assert_eq!(hashes(start().env("NCCL_TOPO_FILE", "/nonexistent/topology.xml")), plain);
    assert_eq!(hashes(start().env("CONSORT_TOPOLOGY", "host:7")), plain);
}
