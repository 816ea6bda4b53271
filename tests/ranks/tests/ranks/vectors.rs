//! Blocks that differ in length: threads and processes, gaps and none, and counts that disagree.

use std::time::{Duration, Instant};

use consort::{Blocks, Communicator, Error, Options, ReduceOp, Result, TransportChoice};
use consort_tests::job::{Start, alone};
use consort_tests::system::Random;
use consort_tests::{Links, on_ranks, results_of_ranks, vectors};

use crate::RANK;

/// Elements of several slices of the longest slot.
const LONG: usize = 600_011;

#[test]
fn blocks_that_differ_over_loopback() {
    let seed = Random::announced("blocks_that_differ_over_loopback").seed();
    for size in [1, 2, 3, 4, 5, 7, 8] {
        let longest = if size > 4 { 20_001 } else { LONG };
        on_ranks(size, Links::Local, &Options::default(), |comm| {
            vectors::everything(comm, seed ^ u64::from(size), 3, longest)
        });
    }
}

#[test]
fn blocks_that_differ_with_channels_and_both_directions() {
    let seed = Random::announced("blocks_that_differ_with_channels_and_both_directions").seed();
    for (channels, bidirectional) in [(1, true), (3, false), (2, true)] {
        for size in [2, 3, 4] {
            let options =
                Options::default().channels(channels).bidirectional(bidirectional).slot_bytes(16 << 10);
            on_ranks(size, Links::Local, &options, |comm| vectors::everything(comm, seed, 2, 70_001));
        }
    }
}

#[test]
fn blocks_that_differ_over_tcp() {
    let seed = Random::announced("blocks_that_differ_over_tcp").seed();
    for size in [2, 3] {
        let options = Options::default().transport(TransportChoice::Tcp);
        on_ranks(size, Links::Joined, &options, |comm| vectors::everything(comm, seed, 2, 100_003));
    }
}

#[test]
fn blocks_that_differ_among_processes() {
    let _alone = alone();
    let seed = Random::announced("blocks_that_differ_among_processes").seed();
    for (size, transport) in [(2, "shm"), (3, "tcp"), (5, "shm"), (8, "shm")] {
        let start = Start::new(RANK, "vectors", size).with("seed", seed).env("CONSORT_TRANSPORT", transport);
        start.env("CONSORT_TIMEOUT", 30).go().all_end_well();
    }
}

/// Every rank gets a mismatch, with these words, well before the deadline of 20 s.
#[track_caller]
fn all_mismatch(results: Vec<(Result<()>, Duration)>, words: &[&str]) {
    for (rank, (result, took)) in results.into_iter().enumerate() {
        let Err(Error::Mismatch { difference, .. }) = result else { panic!("rank {rank}: {result:?}") };
        assert!(words.iter().all(|word| difference.contains(word)), "{words:?} must be in: {difference}");
        assert_eq!(difference.matches("; ").count(), 1, "two kinds of calls: {difference}");
        assert!(took < Duration::from_secs(10), "rank {rank} took {took:?}");
    }
}

fn act(size: u32, body: impl Fn(&Communicator) -> Result<()> + Send + Sync) -> Vec<(Result<()>, Duration)> {
    let _alone = alone();
    let options = Options::default().timeout(Duration::from_secs(20));
    results_of_ranks(size, Links::Local, &options, |comm| {
        let began = Instant::now();
        (comm.barrier().and_then(|()| body(comm)).and_then(|()| comm.barrier()), began.elapsed())
    })
}

#[test]
fn counts_that_do_not_agree_are_found() {
    // The sum and the longest are equal; only rank 2 has another order.
    let results = act(3, |comm| {
        let counts = if comm.rank() == 2 { [50, 100, 100] } else { [100, 50, 100] };
        let input = vec![1.0f32; counts[comm.rank() as usize]];
        comm.all_gather_v(&input, &mut [0.0; 250], &counts)
    });
    all_mismatch(
        results,
        &[
            "rank 2: all_gather_v of 100 float at most, counts #",
            ": all_gather_v of 100 float at most, counts #",
        ],
    );
    let results = act(3, |comm| {
        let counts = if comm.rank() == 1 { [9, 9, 10] } else { [9, 9, 9] };
        let input = vec![1.0f32; counts.iter().sum()];
        let mut output = vec![0.0; counts[comm.rank() as usize]];
        comm.reduce_scatter_v(&input, &mut output, &counts, ReduceOp::Sum)
    });
    all_mismatch(results, &["rank 1: reduce_scatter_v of 10 float (sum) at most", ": reduce_scatter_v of 9"]);
    // One rank has nothing to exchange and gets the error at the next call.
    let results = act(2, |comm| {
        let counts = if comm.rank() == 1 { [0, 0] } else { [0, 3] };
        let mut output = vec![0u8; counts.iter().sum()];
        comm.all_gather_v(&vec![0u8; counts[comm.rank() as usize]], &mut output, &counts)
    });
    all_mismatch(results, &["all_gather_v of 0 uint8", "all_gather_v of 3 uint8"]);
}

#[test]
fn a_pair_that_does_not_agree_is_named() {
    for (sent, received) in [(100, 101), (101, 100), (0, 5), (5, 0), (100, 300_000)] {
        let results = act(4, |comm| {
            let mut out = [10; 4];
            let mut back = [10; 4];
            match comm.rank() {
                1 => out[3] = sent,
                3 => back[1] = received,
                _ => {}
            }
            let (input, mut output) = (vec![1.0f32; out.iter().sum()], vec![0.0; back.iter().sum()]);
            comm.all_to_all_v(&input, &out, &mut output, &back)?;
            // The next message finds data that no rank receives.
            comm.all_to_all_v(&[1.0f32; 4], &[1; 4], &mut [0.0; 4], &[1; 4])
        });
        let words = [
            format!("rank 1: send of {sent} float to 3"),
            format!("rank 3: receive of {received} float from 1"),
        ];
        all_mismatch(results, &[&words[0], &words[1]]);
    }
}

#[test]
fn blocks_that_do_not_fit_are_refused() {
    on_ranks(2, Links::Local, &Options::default(), |comm| {
        let mut data = [1u32; 10];
        let refused = |result: Result<()>, words: &str| match result {
            Err(Error::InvalidArgument { what, .. }) => assert!(what.contains(words), "{words} in: {what}"),
            other => panic!("{words}: {other:?}"),
        };
        let own = vec![0u32; 3];
        refused(comm.all_gather_v(&own, &mut data, &[3, 3]), "40 bytes and must have 24");
        refused(comm.all_gather_v(&own, &mut data[..9], &[3, 3, 3]), "3 counts");
        refused(comm.all_gather_v(&own[..2], &mut data[..6], &[3, 3]), "8 bytes and must have 12");
        refused(comm.all_gather_v(&own, &mut data, Blocks::at(&[3, 3], &[0, 2])), "ranks 0 and 1");
        refused(comm.all_gather_v(&own, &mut data, Blocks::at(&[3, 3], &[0, 8])), "block of rank 1");
        refused(comm.all_gather_v_in_place(&mut data, &[3, 3]), "must have 24");
        refused(
            comm.reduce_scatter_v(&data, &mut [0; 4], &[5, 5], ReduceOp::Max),
            "16 bytes and must have 20",
        );
        refused(comm.all_to_all_v(&own, &[1, 1], &mut data, &[5, 5]), "input has 12 bytes");
        refused(comm.all_to_all_v(&own, &[1, 2], &mut data, &[5, 4]), "output has 40 bytes");
        let me = comm.rank();
        refused(comm.gather_v(&own, &mut data, &[3, 3], me), "40 bytes and must have 24");
        refused(comm.scatter_v(&data, &[3, 3], &mut [0; 3], me), "40 bytes and must have 24");
        refused(comm.gather_v(&own, &mut data, &[3, 3], 2), "rank 2 does not exist");
        // An own block of another length than the root's count.
        let mut counts = [5, 5];
        counts[me as usize] = 4;
        refused(comm.gather_v(&[0u32; 5], &mut data[..9], &counts, me), "has 20 bytes and must have 16");
        comm.barrier()
    });
}

#[test]
fn blocks_of_other_ranks_than_the_root_are_not_looked_at() {
    let world = Communicator::local(2).expect("two ranks");
    std::thread::scope(|threads| {
        for comm in &world {
            threads.spawn(move || {
                let root = comm.rank() == 0;
                // Counts without displacements: invalid, on a rank that needs neither.
                let blocks = if root { Blocks::from(&[1, 1]) } else { Blocks::at(&[1, 1], &[]) };
                let mut all = [0u32; 2];
                let own = [comm.rank() + 5];
                let output = if root { &mut all[..] } else { &mut [] };
                comm.gather_v(&own, output, blocks, 0).expect("gathered");
                let mut back = [0u32];
                let input = if root { &[5, 6][..] } else { &[] };
                comm.scatter_v(input, blocks, &mut back, 0).expect("scattered");
                assert_eq!(back, own);
                assert!(!root || all == [5, 6]);
            });
        }
    });
}
