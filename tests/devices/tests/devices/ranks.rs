//! Ranks on devices, end to end through the Rust interface, on the stand-in driver (`standins/cuda`). The results
//! hold for this library's own code; they show nothing about NVIDIA's driver or devices.
//!
//! Ranks are processes that find the stand-in by `LD_LIBRARY_PATH`, each with one or several threads for ranks. Where the
//! stand-in was not built beside the test, as in the parts of `scripts/gpu-check`, ranks find that machine's driver: what
//! only the stand-in can be ordered to do is skipped there, aloud.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use consort_cuda::Driver;
use consort_tests::difference::Difference;
use consort_tests::job::{Job, PATIENCE, Start, alone, stolen};
use consort_tests::standin::{is_built, standin_cuda_dir};
use consort_tests::system::{Random, skip};

use crate::RANK;

/// The number of processes, of threads in each, and the path that they name and take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Way {
    processes: u32,
    threads: u32,
    devices: u32,
    named: &'static str,
    taken: &'static str,
}

const fn way(processes: u32, threads: u32, named: &'static str, taken: &'static str) -> Way {
    Way { processes, threads, devices: 1, named, taken }
}

/// Ranks in one process, by both of its paths.
const FUSED: Way = way(1, 4, "auto", "fused");
const HOST: Way = way(1, 3, "host", "host");
/// A rank in each process, on one device.
const APART: Way = way(2, 1, "host", "host");
const STREAMS: Way = way(2, 1, "auto", "streams");
/// A device for each rank.
const KERNELS: Way = Way { devices: 2, ..way(1, 2, "auto", "kernels") };
/// Several ranks in several processes.
const MIXED: Way = way(2, 2, "auto", "host");

/// Whether the driver that ranks find is the stand-in, whose devices are as many as a test likes and do what it orders.
fn is_standin() -> bool {
    static FOUND: OnceLock<bool> = OnceLock::new();
    let names_itself = || {
        let device = Driver::of_process().map(|driver| driver.device(0));
        device.is_ok_and(|device| device.is_ok_and(|device| device.name.contains("stand-in")))
    };
    *FOUND.get_or_init(|| is_built() || names_itself())
}

/// Says aloud what is left out where the driver is not the stand-in, and returns whether it is left out.
fn is_skipped(what: &str) -> bool {
    if !is_standin() {
        skip(&format!("{what} needs the stand-in"));
    }
    !is_standin()
}

/// Those ways for which there are devices here; the others are left out aloud.
pub(crate) fn here<const WAYS: usize>(ways: [Way; WAYS]) -> impl Iterator<Item = Way> {
    let is_here = |way: &Way| way.devices == 1 || !is_skipped(&format!("{way:?}, with devices of its own,"));
    ways.into_iter().filter(is_here)
}

impl Way {
    /// Ranks of one process with a device each.
    pub(crate) const fn of_kernels(ranks: u32) -> Way {
        Way { devices: ranks, ..way(1, ranks, "auto", "kernels") }
    }

    fn ranks(self) -> u32 {
        self.processes * self.threads
    }

    pub(crate) fn start(self, scenario: &'static str) -> Start {
        let start = Start::new(RANK, scenario, self.processes).with("threads", self.threads);
        let start = match is_built() {
            true => start.env("LD_LIBRARY_PATH", standin_cuda_dir().display()),
            // On another machine the loader finds that machine's driver.
            false => start,
        };
        let start = start.env("CONSORT_STANDIN_QUIET", 1);
        let start = start.env("CONSORT_STANDIN_DEVICES", self.devices);
        // The stand-in runs one at a time of all processes that have this directory, also of other tests.
        let turns = std::env::temp_dir().join(format!("consort-devices-{}", std::process::id()));
        std::fs::create_dir_all(&turns).expect("a directory");
        let start = start.env("TMPDIR", turns.display());
        start.env("CONSORT_DEVICE_PATH", self.named).env("CONSORT_TIMEOUT", 30)
    }

    /// Runs it to a successful end.
    pub(crate) fn passes(self, start: Start) {
        if here([self]).next().is_none() {
            return;
        }
        let _alone = alone();
        let mut job = start.go();
        job.all_end_well();
        assert_eq!(job.line(0, "path"), self.taken, "{self:?}");
    }
}

/// The rank's `nth` line about how a call ended; its process may have other ranks, whose lines come between.
#[track_caller]
fn ending(job: &mut Job, way: Way, rank: u32, nth: usize) -> (String, Instant) {
    let (process, until) = (rank / way.threads, Instant::now() + PATIENCE);
    loop {
        if let Some(said) = job.said(process, &format!("rank {rank} ")).get(nth) {
            return said.clone();
        }
        assert!(Instant::now() < until, "rank {rank} says nothing:\n{}", job.output());
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// The rank's line about its first call, which must fail like this.
#[track_caller]
fn failure(job: &mut Job, way: Way, rank: u32, variant: &str) -> (String, Instant) {
    let (line, at) = ending(job, way, rank, 0);
    (failed(&line, rank, variant).to_owned(), at)
}

#[track_caller]
fn failed<'a>(line: &'a str, rank: u32, variant: &str) -> &'a str {
    let text = line.strip_prefix("failed ").and_then(|line| line.strip_prefix(variant)?.strip_prefix(':'));
    text.unwrap_or_else(|| panic!("rank {rank} should fail with {variant}: {line}")).trim()
}

#[test]
fn typed_calls() {
    for way in [way(1, 1, "auto", "fused"), FUSED, HOST, APART, STREAMS, KERNELS, MIXED] {
        way.passes(way.start("device-typed"));
    }
}

fn everything(way: Way, one_of: u64, seed: u64) {
    way.passes(way.start("device-everything").with("seed", seed).with("one_of", one_of));
}

#[test]
fn every_collective_type_and_operator_by_one_launch() {
    let seed = Random::announced("every_collective_type_and_operator_by_one_launch").seed();
    everything(way(1, 1, "auto", "fused"), 3, seed);
    everything(way(1, 2, "fused", "fused"), 1, seed);
    everything(way(1, 4, "auto", "fused"), 3, seed);
    everything(way(1, 8, "auto", "fused"), 8, seed);
}

#[test]
fn every_collective_type_and_operator_through_the_host() {
    let seed = Random::announced("every_collective_type_and_operator_through_the_host").seed();
    everything(way(1, 2, "host", "host"), 1, seed);
    everything(way(1, 4, "host", "host"), 4, seed);
    everything(way(1, 8, "host", "host"), 8, seed);
    everything(way(1, 1, "host", "host"), 8, seed);
}

#[test]
fn every_collective_type_and_operator_among_processes() {
    let seed = Random::announced("every_collective_type_and_operator_among_processes").seed();
    everything(APART, 2, seed);
    everything(MIXED, 4, seed);
    everything(Way { devices: 2, ..APART }, 8, seed);
}

#[test]
fn every_collective_type_and_operator_in_streams_and_by_a_kernel_a_rank() {
    let test = "every_collective_type_and_operator_in_streams_and_by_a_kernel_a_rank";
    let seed = Random::announced(test).seed();
    everything(STREAMS, 4, seed);
    everything(KERNELS, 4, seed);
    everything(Way { devices: 2, ..way(2, 1, "auto", "kernels") }, 8, seed);
    for ranks in [3, 4, 8] {
        everything(way(ranks, 1, "auto", "streams"), 4 * u64::from(ranks), seed);
        everything(Way { devices: ranks, ..way(1, ranks, "auto", "kernels") }, 4 * u64::from(ranks), seed);
    }
}

/// Ranks that share a device and wait for each other in kernels, a path that is taken only where it is named.
#[test]
fn kernels_of_ranks_that_share_a_device() {
    let seed = Random::announced("kernels_of_ranks_that_share_a_device").seed();
    for ranks in [2, 4, 8] {
        let one = way(1, ranks, "kernels", "kernels");
        let start = one.start("device-everything").with("seed", seed).with("one_of", 12 * u64::from(ranks));
        // All ranks' programs in one launch; of eight, a rank's share of the device is too small for the usual plans.
        if ranks < 8 {
            one.passes(start.with("together", 3));
        }
        // Streams of each rank, as long as all have hardware queues of their own. No rank frees memory between calls,
        // since the driver waits for the device then.
        if ranks <= 4 {
            one.passes(one.start("device-typed").env("CUDA_DEVICE_MAX_CONNECTIONS", 32));
            one.passes(one.start("device-ring").env("CUDA_DEVICE_MAX_CONNECTIONS", 32));
        }
        let start = one.start("device-exchange").with("count", 70_001).with("messages", 2);
        one.passes(start.with("together", 1).env("CUDA_DEVICE_MAX_CONNECTIONS", 1));
    }
    let apart = way(2, 1, "kernels", "kernels");
    everything(apart, 24, seed);
    apart.passes(apart.start("device-ring"));
}

#[test]
fn devices_that_no_kernel_fits_go_through_the_host() {
    if is_skipped("a device of capability 7.5") {
        return;
    }
    let old = |way: Way| way.start("device-typed").env("CONSORT_STANDIN_CAPABILITY", "7.5");
    for way in [way(1, 1, "auto", "host"), way(1, 2, "auto", "host"), way(2, 1, "auto", "host")] {
        way.passes(old(way));
    }
    let apart = Way { devices: 2, ..way(1, 2, "auto", "host") };
    apart.passes(old(apart));
}

#[test]
fn a_second_communicator_of_a_process_loads_nothing() {
    for way in here([Way { devices: 2, ..way(2, 1, "auto", "kernels") }, way(2, 1, "auto", "streams")]) {
        let _alone = alone();
        let log = std::env::temp_dir().join(format!("consort-devices-{}-calls", std::process::id()));
        // Another driver logs nothing, and the number of images that it loads is not known.
        std::fs::write(&log, "").expect("a log");
        let mut job = way.start("device-second").env("CONSORT_STANDIN_LOG", log.display()).go();
        job.all_end_well();
        std::fs::remove_file(&log).expect("a log");
        assert_eq!(job.line(0, "second path"), way.taken);
        if is_skipped("the number of images that a driver loaded") {
            continue;
        }
        let loads = job.line(0, "loads");
        let (first, second) = loads.split_once(" and ").expect("two numbers");
        assert!(first != "0" && second == "0", "{way:?}: images were loaded {loads} times");
    }
}

/// A child shares the words by which ranks tell each other that they write no more.
#[test]
fn a_forked_child_takes_leave_of_no_peer() {
    for way in here([STREAMS, KERNELS]) {
        let _alone = alone();
        let mut job = way.start("device-fork").go();
        for process in job.ranks() {
            let status = job.line(process, "child ");
            assert!(status.starts_with("Exited(") && status.ends_with(", 0)"), "{status}\n{}", job.output());
        }
        job.all_end_well();
    }
}

#[test]
fn one_thread_drives_all_ranks_by_groups() {
    let seed = Random::announced("one_thread_drives_all_ranks_by_groups").seed();
    for (way, together) in [(FUSED, 1), (FUSED, 7), (HOST, 5), (way(1, 8, "auto", "fused"), 3)] {
        let start = way.start("device-everything").with("seed", seed).with("one_of", 11);
        way.passes(start.with("together", together));
    }
}

#[test]
fn messages_around_a_ring() {
    for way in [way(1, 1, "auto", "fused"), FUSED, HOST, APART, STREAMS, KERNELS, MIXED] {
        way.passes(way.start("device-ring"));
    }
    FUSED.passes(FUSED.start("device-ring").with("together", 1));
    HOST.passes(HOST.start("device-ring").with("together", 1));
}

/// Devices of three ranks, by the two paths that move messages themselves.
const KERNELS_3: Way = Way { devices: 3, ..way(1, 3, "auto", "kernels") };
const STREAMS_3: Way = way(3, 1, "auto", "streams");

#[test]
fn groups_of_messages_longer_than_mailboxes() {
    // Five slots of the only block that a message then has, and of a stream.
    for (way, count) in [(KERNELS_3, 5 * (64 << 10) / 8), (STREAMS_3, 5 * (1 << 20) / 8)] {
        let start = || way.start("device-exchange").with("count", count).env("NCCL_MAX_CTAS", 1);
        for messages in [1, 2] {
            way.passes(start().with("messages", messages));
            way.passes(start().with("messages", messages).env("CUDA_DEVICE_MAX_CONNECTIONS", 1));
        }
        way.passes(start().env("CUDA_LAUNCH_BLOCKING", 1));
    }
}

/// The plan of a call of the scenario `device-plans`, whose root is rank 1; none where prices of the kernels path choose it.
fn plan(path: &str, ranks: u32, what: &str) -> Option<String> {
    let (collective, bytes) = what.split_once(' ').unwrap_or((what, "0"));
    let bytes: usize = bytes.parse().expect("a number of bytes");
    let streams = path == "streams";
    let name = match collective {
        "message" => "pair pair",
        "all_reduce" if !streams && bytes <= 32 << 10 => "one-shot, in packets",
        // Half as many steps as those of a one-shot.
        "all_reduce" if !streams && ranks == 8 => "doubling",
        "all_reduce" if !streams || bytes <= 256 << 10 => "one-shot",
        "gather" | "scatter" => "direct",
        _ if !streams => return None,
        // Streams run plans of one lane.
        "all_reduce" | "all_gather" | "reduce_scatter" => "ring",
        "all_to_all" => "pairwise",
        // The fold begins at rank 0, whose number counted from the root this is.
        "reduce" => return Some(format!("direct(first={})", ranks - 1)),
        _ => "direct",
    };
    Some(name.to_owned())
}

#[test]
fn plans_that_run() {
    let seed = Random::announced("plans_that_run").seed();
    for ranks in [2, 3, 8] {
        let kernels = Way { devices: ranks, ..way(1, ranks, "auto", "kernels") };
        for way in here([kernels, way(ranks, 1, "auto", "streams")]) {
            let _alone = alone();
            let mut job = way.start("device-plans").with("seed", seed).go();
            job.all_end_well();
            for rank in 0..ranks {
                let said = job.said(rank / way.threads, "plan ");
                let own = said.iter().filter_map(|(line, _)| {
                    let (what, plan) = line.split_once(&format!(" on {rank}: "))?;
                    Some((what, plan))
                });
                let own: Vec<_> = own.collect();
                // Eight collectives of three lengths each, and a message.
                assert_eq!(own.len(), 25, "{way:?}: {said:?}");
                for (what, ran) in own {
                    if let Some(expected) = plan(way.taken, ranks, what) {
                        assert_eq!(ran, expected, "{way:?}: {what} on rank {rank}");
                    }
                    if what == "message" {
                        continue;
                    }
                    // Algorithms, where plans have their builders' names; the explained plan has rank 0 as its root.
                    let algorithm = match ran {
                        "one-shot" | "one-shot, in packets" => "direct",
                        "spread-out" => "spread",
                        "double-tree" => "tree",
                        ran if ran.starts_with("direct") => "direct",
                        ran => ran,
                    };
                    let carrier = if ran.ends_with("packets") { "packets" } else { way.taken };
                    let program = format!("{carrier}/{algorithm}");
                    let begin = format!("explained {what} on {rank}: ");
                    let explained = job.said(rank / way.threads, &begin);
                    assert_eq!(explained[0].0, program, "{way:?}: {what} on rank {rank}");
                }
            }
        }
    }
}

#[test]
fn a_group_of_one_rank_beside_single_calls_of_the_other() {
    for way in [KERNELS, STREAMS] {
        for how in ["sums", "sums-swapped", "both-ways", "two-one-way"] {
            // A few bytes, and more slots than a mailbox has.
            for count in [100, 5 * (2 << 20) / 8] {
                let start = way.start("device-uneven").with("how", how).with("count", count);
                way.passes(start.env("NCCL_MAX_CTAS", 2));
            }
        }
    }
}

#[test]
fn blocks_that_differ() {
    let seed = Random::announced("blocks_that_differ").seed();
    for way in [FUSED, HOST, APART, STREAMS, KERNELS] {
        way.passes(way.start("device-vectors").with("seed", seed));
    }
}

#[test]
fn streams_and_communicators_beside_each_other() {
    for way in [FUSED, HOST, APART, STREAMS, KERNELS, MIXED] {
        way.passes(way.start("device-interleaved"));
    }
}

#[test]
fn no_rank_loads_a_kernel_while_others_wait_for_it() {
    for way in [MIXED, Way { devices: 2, ..way(1, 4, "auto", "host") }] {
        way.passes(way.start("device-crossing"));
    }
}

#[test]
fn one_hardware_queue_is_enough() {
    for way in [FUSED, HOST, APART, STREAMS, KERNELS] {
        let one = |start: Start| start.env("CUDA_DEVICE_MAX_CONNECTIONS", 1);
        way.passes(one(way.start("device-interleaved")));
        way.passes(one(way.start("device-many")));
        way.passes(one(way.start("device-typed")));
    }
}

#[test]
fn many_operations_wait_in_streams() {
    for way in [FUSED, HOST, APART, STREAMS, KERNELS] {
        way.passes(way.start("device-many"));
    }
}

#[test]
fn ranks_that_do_not_do_the_same_get_an_error() {
    for way in here([way(1, 3, "auto", "fused"), HOST, APART, STREAMS, KERNELS]) {
        for difference in Difference::ALL {
            let deviant = way.ranks() - 1;
            let _alone = alone();
            let start = way.start("device-differ").with("difference", format!("{difference:?}"));
            let mut job = start.with("deviant", deviant).go();
            for process in job.ranks() {
                job.line(process, "begin");
            }
            let began = Instant::now();
            for rank in 0..way.ranks() {
                let (text, at) = failure(&mut job, way, rank, "Mismatch");
                let parts = [format!("rank {deviant}: "), difference.texts()[0].into()];
                for part in parts.iter().map(String::as_str).chain([difference.texts()[1]]) {
                    assert!(text.contains(part), "{way:?} {difference:?}: no {part:?} in {text}");
                }
                let took = at.saturating_duration_since(began);
                // The error comes before the deadline.
                assert!(
                    took < Duration::from_secs(10),
                    "{way:?} {difference:?}: the error came after {took:?}"
                );
            }
            job.ranks().into_iter().for_each(|process| job.say(process, "go"));
            job.all_end_well();
        }
    }
}

#[test]
fn a_rank_that_does_not_call_is_named() {
    let _alone = alone();
    // The jobs wait for their deadlines side by side, without turns.
    let start = |(at, way): (usize, Way)| {
        let place = std::env::temp_dir().join(format!("consort-devices-{}-{at}", std::process::id()));
        std::fs::create_dir_all(&place).expect("a directory");
        let start = way.start("device-without").with("how", "absent").env("TMPDIR", place.display());
        let mut job = start.env("CONSORT_TIMEOUT", 2).go();
        job.ranks().into_iter().for_each(|process| drop(job.line(process, "begin")));
        (way, job)
    };
    let jobs: Vec<(Way, Job)> = here([FUSED, HOST, APART, STREAMS, KERNELS]).enumerate().map(start).collect();
    for (way, mut job) in jobs {
        let last = way.ranks() - 1;
        for rank in 0..last {
            let (text, _) = failure(&mut job, way, rank, "Timeout");
            assert!(text.contains(&format!("rank {last} ")), "{way:?}: no rank is named: {text}");
        }
        for process in job.ranks() {
            (0..2).for_each(|_| job.say(process, "go"));
        }
        job.all_end_well();
    }
}

#[test]
fn an_abort_ends_calls() {
    for way in here([FUSED, HOST, APART, STREAMS, KERNELS]) {
        let _alone = alone();
        let last = way.ranks() - 1;
        let mut job = way.start("device-without").with("how", "abort").go();
        let (line, aborted) = ending(&mut job, way, last, 0);
        assert_eq!(line, "aborts");
        for rank in 0..last {
            let (text, at) = failure(&mut job, way, rank, "Aborted");
            assert!(text.contains("the test says so") && text.contains(&format!("rank {last}")), "{text}");
            // A second is the contract.
            let took = at.saturating_duration_since(aborted);
            assert!(took < Duration::from_secs(1) + stolen(), "{way:?}: {took:?}");
        }
        job.ranks().into_iter().for_each(|process| job.say(process, "go"));
        job.all_end_well();
    }
}

#[test]
fn a_rank_that_left_is_named() {
    for way in here([FUSED, HOST, APART, STREAMS, KERNELS]) {
        let _alone = alone();
        let last = way.ranks() - 1;
        let mut job = way.start("device-without").with("how", "leave").go();
        for rank in 0..last {
            let (text, _) = failure(&mut job, way, rank, "PeerLeft");
            assert!(text.contains(&format!("rank {last} ")), "{way:?}: {text}");
        }
        job.ranks().into_iter().for_each(|process| job.say(process, "go"));
        job.all_end_well();
    }
}

#[test]
fn too_little_memory_is_an_error_like_others() {
    for way in [APART, way(1, 1, "auto", "fused")] {
        let _alone = alone();
        let memory: u64 = 48 << 20;
        let mut job = way.start("device-memory").env("CONSORT_STANDIN_MEMORY", memory).go();
        for rank in 0..way.ranks() {
            // Another driver's device has what it has.
            if is_standin() {
                assert_eq!(job.line(rank, "memory"), memory.to_string());
            }
            let (text, _) = failure(&mut job, way, rank, "InvalidArgument");
            assert!(text.contains("CUDA_ERROR_OUT_OF_MEMORY"), "{text}");
            let (line, _) = ending(&mut job, way, rank, 1);
            let text = failed(&line, rank, "InvalidArgument");
            assert!(text.contains("ask for fewer"), "{text}");
        }
        job.all_end_well();
    }
}

/// Every rank gets the same error, and the communicator still works on host memory.
fn path_is_refused(way: Way, rank_1: Option<&str>, variant: &str, parts: &[&str]) {
    let _alone = alone();
    let mut start = way.start("device-path");
    if let Some(named) = rank_1 {
        start = start.env_of(1, "CONSORT_DEVICE_PATH", named);
    }
    let mut job = start.go();
    for rank in 0..way.ranks() {
        let (text, _) = failure(&mut job, way, rank, variant);
        for part in parts {
            assert!(text.contains(part), "{way:?}: no {part:?} in {text}");
        }
    }
    job.ranks().into_iter().for_each(|process| job.say(process, "go"));
    for rank in 0..way.ranks() {
        assert_eq!(ending(&mut job, way, rank, 1).0, "works");
    }
    job.all_end_well();
}

#[test]
fn paths_that_cannot_be_are_refused() {
    let nonsense = way(2, 1, "teleport", "");
    path_is_refused(nonsense, None, "InvalidArgument", &["CONSORT_DEVICE_PATH", "teleport", "auto, fused"]);
    let apart = way(2, 1, "fused", "");
    path_is_refused(apart, None, "InvalidArgument", &["CONSORT_DEVICE_PATH is fused", "in another process"]);
    let together = way(1, 2, "streams", "");
    path_is_refused(together, None, "InvalidArgument", &["streams", "two ranks of one process"]);
    let parts = ["rank 0 says host", "rank 1 says auto"];
    path_is_refused(way(2, 1, "host", ""), Some("auto"), "Settings", &parts);
}

#[test]
fn ranks_whose_devices_may_not_share_memory_go_through_the_host() {
    let processes = Way { devices: 2, ..way(2, 1, "auto", "kernels") };
    let through_host = |way: Way| Way { taken: "host", ..way };
    for way in [STREAMS, KERNELS, processes] {
        for (name, value) in [("NCCL_P2P_DISABLE", "1"), ("NCCL_P2P_LEVEL", "LOC"), ("NCCL_P2P_LEVEL", "0")] {
            through_host(way).passes(way.start("device-typed").env(name, value));
        }
        for (name, value) in [("NCCL_P2P_DISABLE", "0"), ("NCCL_P2P_LEVEL", "SYS"), ("NCCL_P2P_LEVEL", "1")] {
            way.passes(way.start("device-typed").env(name, value));
        }
    }
    // Ranks whose link NVML does not know count as not linked.
    through_host(processes).passes(processes.start("device-typed").env("NCCL_P2P_LEVEL", "NVL"));
    // One rank with the variable is enough.
    through_host(processes).passes(processes.start("device-typed").env_of(1, "NCCL_P2P_DISABLE", "1"));
    // One launch for all ranks of a process shares nothing between devices.
    FUSED.passes(FUSED.start("device-typed").env("NCCL_P2P_DISABLE", 1));
    // The named path comes first.
    let named = Way { named: "kernels", ..processes };
    named.passes(named.start("device-typed").env("NCCL_P2P_DISABLE", 1));
}

#[test]
fn a_copy_between_devices_that_does_not_end_is_given_up() {
    if is_skipped("a copy that does not end") {
        return;
    }
    for way in [KERNELS, Way { devices: 2, ..way(2, 1, "auto", "kernels") }] {
        let _alone = alone();
        let start = way.start("device-hang").env("CONSORT_STANDIN_PEERS", "hang");
        let mut job = start.env("CONSORT_CONNECT_TIMEOUT", 1).go();
        for process in job.ranks() {
            assert_eq!(job.line(process, "path"), "host", "{way:?}");
        }
        job.all_end_well();
        let output = job.output();
        for (rank, peer) in [(0, 1), (1, 0)] {
            let expected = format!(
                "rank {rank}: a way between devices fails its test: the cuda-ipc link between rank {rank} and rank {peer} \
                 failed: cuda-ipc: a copy of the self-test of peer access has not ended after 1s"
            );
            assert!(output.contains(&expected), "{way:?}: no {expected:?} in {output}");
        }
    }
}
