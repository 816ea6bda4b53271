//! Ranks that are processes: every collective, every type, work that no thread waits for, split.

use consort::{Determinism, Options, TransportChoice};
use consort_tests::job::{Start, alone};
use consort_tests::plugins::{memory_plugin, own_plugin};
use consort_tests::{Links, bits, results_of_ranks};

use crate::RANK;

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
fn a_communicator_that_is_dropped_at_once_finishes_what_was_started() {
    let _alone = alone();
    for transport in ["shm", "tcp", "shm", "tcp"] {
        let start = Start::new(RANK, "dropped", 3).env("CONSORT_TRANSPORT", transport);
        start.env("CONSORT_TIMEOUT", 30).go().all_end_well();
    }
}

#[test]
fn every_collective_over_tcp() {
    everything(2, "tcp", "0,1,3,97,4099,600001");
    everything(3, "tcp", "0,1,3,97,4099,70001");
}

/// Ranks sleep by looking now and then: a plugin says nothing of when it can go on.
#[test]
fn every_collective_over_a_network_plugin() {
    let _alone = alone();
    for plugin in memory_plugin(&["NET_VERSION=12"]).into_iter().chain([own_plugin()]) {
        for (size, counts) in [(2, "0,1,3,97,4099,600001"), (3, "0,1,3,97,4099,70001")] {
            let start = Start::new(RANK, "everything", size).with("counts", counts);
            let start = start.env("CONSORT_TRANSPORT", "plugin").env("NCCL_NET_PLUGIN", plugin.display());
            start.env("CONSORT_TIMEOUT", 60).go().all_end_well();
        }
    }
}

/// The lines of every rank: for aligned buffers, and for others.
type Bits = [Vec<String>; 2];

#[track_caller]
fn assert_same(one: &[String], other: &[String], what: &str) {
    let differences = bits::differences(one, other);
    assert!(one.len() == 72 && other.len() == 72 && differences.is_empty(), "{what}: {differences:#?}");
}

fn bits_of_processes(size: u32, transport: &str, determinism: &str) -> Bits {
    let _alone = alone();
    let start = Start::new(RANK, "bits", size).env("CONSORT_TRANSPORT", transport);
    let start = start.env("CONSORT_DETERMINISM", determinism);
    let mut job = start.env("CONSORT_TIMEOUT", 30).go();
    let mut said = |rank| [(); 2].map(|()| job.line(rank, "bits ").split(' ').map(str::to_owned).collect());
    let all: Vec<Bits> = (0..size).map(&mut said).collect();
    job.all_end_well();
    all_the_same(all, &format!("{size} ranks, {transport}"))
}

fn bits_of_threads(size: u32, links: Links, options: &Options) -> Bits {
    let all: Vec<Bits> = results_of_ranks(size, links, options, |comm| {
        [0, 3].map(|offset| bits::of_everything(comm, offset).expect("bits"))
    });
    all_the_same(all, &format!("{size} ranks, {links:?}"))
}

fn all_the_same(all: Vec<Bits>, what: &str) -> Bits {
    for rank in 1..all.len() {
        for (first, other) in all[0].iter().zip(&all[rank]) {
            assert_same(first, other, &format!("{what}: ranks 0 and {rank}"));
        }
    }
    all.into_iter().next().expect("a rank")
}

#[test]
fn bits_are_the_same_on_every_rank_in_every_run_over_every_transport() {
    // Four ranks that wait for sockets on two cores take half of this test's seconds.
    let sizes: &[u32] =
        if std::env::var("CONSORT_MATRIX").as_deref() == Ok("all") { &[2, 3, 4] } else { &[2, 3] };
    for size in sizes.iter().copied() {
        let tcp = Options::default().transport(TransportChoice::Tcp);
        let local = |options: &Options| bits_of_threads(size, Links::Local, options);
        // The same machine: the same choices for threads and for processes.
        let of_memory = [local(&Options::default()), bits_of_processes(size, "shm", "run")];
        let of_tcp = [bits_of_threads(size, Links::Joined, &tcp), bits_of_processes(size, "tcp", "run")];
        let invariant = |options: Options| options.determinism(Determinism::Invariant);
        let of_all = [
            local(&invariant(Options::default())),
            bits_of_threads(size, Links::Joined, &invariant(tcp.clone())),
            bits_of_processes(size, "shm", "invariant"),
            bits_of_processes(size, "tcp", "invariant"),
        ];
        let again = local(&Options::default());
        assert_same(&of_memory[0][0], &again[0], &format!("{size} ranks, again"));
        let groups: [(&str, &[Bits]); 3] = [("memory", &of_memory), ("tcp", &of_tcp), ("any", &of_all)];
        for (what, group) in groups {
            for bits in group {
                assert_same(&group[0][0], &bits[0], &format!("{size} ranks, {what}"));
                assert_same(&bits[0], &bits[1], &format!("{size} ranks, {what}: buffers aligned and not"));
            }
        }
    }
}

#[test]
fn started_work_goes_on_when_no_rank_waits() {
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
