//! Forked children of ranks.

use std::time::{Duration, Instant};

use consort_tests::job::{Start, alone, stolen};
use consort_tests::system::{SOON, eventually};
use nix::sys::signal::Signal;

use crate::RANK;

#[test]
fn a_child_is_refused_at_once_and_disturbs_no_rank() {
    let _alone = alone();
    for transport in ["shm", "tcp"] {
        let start = Start::new(RANK, "fork", 2).env("CONSORT_TRANSPORT", transport);
        let mut job = start.env("CONSORT_TIMEOUT", 20).go();
        for rank in [0, 1] {
            for _ in 0..2 {
                let status = job.line(rank, "child ");
                assert!(
                    status.starts_with("Exited(") && status.ends_with(", 0)"),
                    "{status}\n{}",
                    job.output()
                );
            }
            job.line(rank, "passed");
        }
        job.all_end_well();
    }
}

/// The operation goes on as if there had been no child.
#[test]
fn children_of_a_rank_whose_buffers_are_mapped_store_nothing_that_peers_see() {
    let _alone = alone();
    let start = Start::new(RANK, "fork-mapped", 2).with("deviant", 0).env("CONSORT_TIMEOUT", 30);
    let mut job = start.go();
    for _ in 0..10 {
        let status = job.line(0, "child ");
        assert!(status.starts_with("Exited(") && status.ends_with(", 0)"), "{status}\n{}", job.output());
    }
    job.line(0, "forked");
    job.say(1, "go");
    (0..2).for_each(|rank| drop(job.line(rank, "passed")));
    job.all_end_well();
}

#[test]
fn a_rank_dies_while_its_child_holds_its_sockets() {
    let _alone = alone();
    for transport in ["shm", "tcp"] {
        let start = Start::new(RANK, "fork-and-die", 3).with("deviant", 1);
        let mut job = start.env("CONSORT_TRANSPORT", transport).env("CONSORT_TIMEOUT", 20).go();
        let child = job.line(1, "forked ");
        (0..3).for_each(|rank| drop(job.line(rank, "begin")));
        std::thread::sleep(Duration::from_millis(100));
        let killed = Instant::now();
        job.signal(1, Signal::SIGKILL);
        for rank in [0, 2] {
            let (text, at) = job.failure_at(rank, "PeerLost");
            assert!(text.contains("rank 1 "), "{text}");
            // A second is the contract.
            let took = at.saturating_duration_since(killed);
            assert!(took < Duration::from_secs(1) + stolen(), "{transport}: rank {rank} after {took:?}");
        }
        let is_there = || std::fs::read_link(format!("/proc/{child}/exe")).is_ok();
        assert!(is_there(), "the child outlives its parent");
        drop(job);
        assert!(eventually(SOON, || !is_there()), "the child stays");
    }
}
