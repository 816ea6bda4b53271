//! Ranks that are processes: every collective, every type, work that nobody waits for, split.

use consort::{Options, TransportChoice};
use consort_tests::job::{Start, alone};
use consort_tests::{Links, bits, results_of_ranks};

const RANK: &str = env!("CARGO_BIN_EXE_rank");
const SMALL: &str = "0,1,3,97,4099";

fn everything(size: u32, transport: &str, counts: &str) {
    let _alone = alone();
    let start = Start::new(RANK, "everything", size).with("counts", counts);
    start.env("CONSORT_TRANSPORT", transport).env("CONSORT_TIMEOUT", 30).go().all_end_well();
}

#[test]
fn every_collective_over_shared_memory() {
    everything(1, "shm", SMALL);
    everything(2, "shm", "0,1,3,97,4099,600001");
    everything(3, "shm", "0,1,3,97,4099,400000");
    everything(5, "shm", SMALL);
    everything(7, "shm", "0,1,3,97,70001");
}

#[test]
fn eight_ranks_on_few_cores() {
    everything(8, "shm", "0,1,3,97,20011");
}

#[test]
fn every_collective_over_tcp() {
    everything(2, "tcp", "0,1,3,97,4099,600001");
    everything(3, "tcp", "0,1,3,97,4099,70001");
}

/// The two numbers of a job, which all ranks must say.
fn bits_of_processes(size: u32, transport: &str) -> [String; 2] {
    let _alone = alone();
    let start = Start::new(RANK, "bits", size).env("CONSORT_TRANSPORT", transport);
    let mut job = start.env("CONSORT_TIMEOUT", 30).go();
    let first = [job.line(0, "bits "), job.line(0, "bits ")];
    for rank in 1..size {
        assert_eq!(
            [job.line(rank, "bits "), job.line(rank, "bits ")],
            first,
            "rank {rank} of {size} ({transport})"
        );
    }
    job.all_end_well();
    first
}

fn bits_of_threads(size: u32, links: Links, options: &Options) -> [String; 2] {
    let all = results_of_ranks(size, links, options, |comm| {
        [0, 3].map(|offset| format!("{:016x}", bits::of_everything(comm, offset).expect("bits")))
    });
    assert!(all.iter().all(|bits| *bits == all[0]), "ranks of {size} differ: {all:?}");
    all[0].clone()
}

#[test]
fn bits_are_the_same_on_every_rank_in_every_run_over_every_transport() {
    for size in [2, 3] {
        let loopback = bits_of_threads(size, Links::Local, &Options::default());
        assert_eq!(loopback[0], loopback[1], "bits depend on the alignment of buffers");
        assert_eq!(bits_of_threads(size, Links::Local, &Options::default()), loopback, "runs differ");
        let tcp = Options::default().transport(TransportChoice::Tcp);
        assert_eq!(bits_of_threads(size, Links::Joined, &tcp), loopback, "tcp in one process");
        assert_eq!(bits_of_processes(size, "shm"), loopback, "shm");
        assert_eq!(bits_of_processes(size, "shm"), loopback, "shm again");
        assert_eq!(bits_of_processes(size, "tcp"), loopback, "tcp");
    }
}

#[test]
fn started_work_goes_on_when_nobody_waits() {
    let _alone = alone();
    for transport in ["shm", "tcp"] {
        let start = Start::new(RANK, "unattended", 3).env("CONSORT_TRANSPORT", transport);
        let mut job = start.env("CONSORT_TIMEOUT", 20).go();
        for rank in 0..3 {
            assert_eq!(job.line(rank, "done "), "true", "{transport}\n{}", job.output());
            job.line(rank, "passed");
        }
        job.all_end_well();
    }
}

#[test]
fn split_among_processes() {
    let _alone = alone();
    for transport in ["shm", "tcp"] {
        let start = Start::new(RANK, "split", 4).env("CONSORT_TRANSPORT", transport);
        start.env("CONSORT_TIMEOUT", 20).go().all_end_well();
    }
}
