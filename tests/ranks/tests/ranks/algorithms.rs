//! Every collective by every algorithm, of every type, on threads and processes, over memory and TCP.
//!
//! A sample is drawn by a seed that is printed; `CONSORT_MATRIX=all` takes every case.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use consort::planning::{Algorithm, Collective, Family, Planning, topology};
use consort::{DataType, Error, Options, ReduceOp, TransportChoice};
use consort_tests::job::{Start, alone};
use consort_tests::matrix::{
    Case, Draw, LONG, algorithms, check_all, collectives, collectives_over, drawn, everything,
};
use consort_tests::system::Random;
use consort_tests::{Links, on_ranks, results_of_ranks};

use crate::RANK;

/// Whether every case is taken.
fn all() -> bool {
    std::env::var("CONSORT_MATRIX").is_ok_and(|text| text == "all")
}

fn draw(test: &str) -> Draw {
    Draw { seed: Random::announced(test).seed(), one_of: 1, all: all() }
}

/// Some cases of one algorithm in `one_of`; all cases of all algorithms with `CONSORT_MATRIX=all`.
fn some(test: &str, one_of: u64) -> Draw {
    Draw { one_of: if all() { 1 } else { one_of }, all: false, ..draw(test) }
}

#[test]
fn every_candidate_and_every_family_is_in_the_matrix() {
    let mut families = BTreeSet::from([Family::Pair]);
    for ranks in 1..=16 {
        let planning = Planning::for_host(ranks, 2, &Options::default()).expect("a plan");
        for collective in collectives_over(ranks) {
            let all = algorithms(collective, ranks);
            for candidate in planning.candidates(collective).expect("candidates") {
                assert!(all.contains(&candidate), "{candidate} of {collective} over {ranks} ranks");
            }
            families.extend(all.into_iter().map(Algorithm::family));
        }
    }
    // What goes through switches is priced only.
    let run = Family::ALL.into_iter().filter(|family| *family != Family::Switched);
    assert_eq!(families, run.collect());
}

/// Machines of 8 and of 16 ranks whose links are unlike each other.
const FABRICS: [&str; 10] = [
    "dgx-a100:1",
    "dgx-h100:1",
    "pcie:1",
    "torus:2x4",
    "torus:2x2x2",
    "dgx-a100:2",
    "dgx-h100-flat:2",
    "pcie:2",
    "torus:4x4",
    "torus:2x2x4",
];

#[test]
fn what_is_made_for_a_fabric_runs_on_ranks_of_one_host() {
    let mut random = Random::announced("what_is_made_for_a_fabric_runs_on_ranks_of_one_host");
    let seed = random.seed();
    let mut fabrics = BTreeSet::new();
    for fabric in FABRICS {
        let options = Options::default().topology(fabric).slot_bytes(16 << 10);
        let topology = topology::profile(fabric).expect("a profile");
        let planning = Planning::for_topology(&topology, &Options::default()).expect("a plan");
        let mut cases = Vec::new();
        for collective in collectives() {
            let all = planning.candidates(collective).expect("candidates").into_iter();
            let made: Vec<Algorithm> =
                all.filter(|of| !planning.sources(*of, collective).is_empty()).collect();
            // One of what was found and made, with some of its cases.
            let Some(one) = made.get(random.draw() as usize % made.len().max(1)) else { continue };
            let drawn = drawn(collective, *one, topology.ranks(), seed);
            let some: Vec<Case> = drawn.into_iter().step_by(3).collect();
            assert!(!some.is_empty(), "{one} of {collective}");
            fabrics.insert((fabric, collective));
            cases.extend(some);
        }
        on_ranks(topology.ranks(), Links::Local, &options, |comm| check_all(comm, seed, &cases));
    }
    for collective in [
        Collective::AllReduce,
        Collective::AllGather,
        Collective::ReduceScatter,
        Collective::Broadcast,
        Collective::Reduce,
    ] {
        let of = FABRICS.iter().filter(|fabric| fabrics.contains(&(**fabric, collective))).count();
        assert!(of >= 8, "{collective} has something made on {of} fabrics");
    }
}

#[test]
fn every_algorithm_over_loopback() {
    let draw = draw("every_algorithm_over_loopback");
    for size in [1, 2, 3, 4, 5, 7, 8, 16] {
        let options = Options::default().slot_bytes(16 << 10);
        if !draw.all {
            on_ranks(size, Links::Local, &options, |comm| everything(comm, &draw));
            continue;
        }
        // One after the other: all together would take longer than a test's ranks may.
        for cases in collectives_over(size).flat_map(|collective| draw.cases(collective, size)) {
            on_ranks(size, Links::Local, &options, |comm| check_all(comm, draw.seed, &cases));
        }
    }
}

#[test]
fn some_algorithms_over_tcp() {
    let draw = some("some_algorithms_over_tcp", 2);
    for size in [2, 3, 4, 5] {
        let options = Options::default().transport(TransportChoice::Tcp).slot_bytes(16 << 10);
        on_ranks(size, Links::Joined, &options, |comm| everything(comm, &draw));
    }
}

#[test]
fn some_algorithms_among_processes() {
    let draw = some("some_algorithms_among_processes", 2);
    for (size, transport) in [(2, "shm"), (3, "shm"), (4, "tcp"), (8, "shm")] {
        let _alone = alone();
        let start = Start::new(RANK, "matrix", size).with("seed", draw.seed).with("one_of", draw.one_of);
        let start = start.env("CONSORT_SLOT_BYTES", 16 << 10);
        start.env("CONSORT_TRANSPORT", transport).env("CONSORT_TIMEOUT", 60).go().all_end_well();
    }
}

/// Ranks that name different algorithms for the same call.
#[test]
fn ranks_that_name_different_algorithms_get_an_error() {
    let pairs = [
        (Collective::AllReduce, Algorithm::Tree, Algorithm::Doubling),
        (Collective::AllReduce, Algorithm::TwoShot, Algorithm::Direct { first: 0 }),
        (Collective::AllReduce, ring(1), ring(2)),
        (
            Collective::AllReduce,
            Algorithm::Hierarchical { per_box: 2 },
            Algorithm::Hierarchical { per_box: 4 },
        ),
        (Collective::AllGather, ring(1), Algorithm::Direct { first: 0 }),
        (Collective::AllGather, Algorithm::Bruck { radix: 2 }, Algorithm::Pat),
        (Collective::Broadcast, Algorithm::Binomial, Algorithm::ScatterAllGather),
        (Collective::AllToAll, Algorithm::Bruck { radix: 2 }, Algorithm::Bruck { radix: 3 }),
        (Collective::AllToAll, Algorithm::Pairwise, Algorithm::Spread),
        (Collective::Gather, Algorithm::Binomial, Algorithm::Direct { first: 0 }),
    ];
    for (collective, usual, other) in pairs {
        for count in [1, LONG] {
            let options = Options::default().timeout(Duration::from_secs(20));
            let results = results_of_ranks(4, Links::Local, &options, |comm| {
                let began = Instant::now();
                let algorithm = if comm.rank() == 2 { other } else { usual };
                let case = Case {
                    collective,
                    algorithm,
                    data_type: DataType::Int32,
                    fold: ReduceOp::Sum.into(),
                    count,
                    root: 0,
                    in_place: false,
                };
                let result = comm.barrier().and_then(|()| check_all(comm, 1, &[case]));
                // A rank that did not have to wait gets the error here.
                (result.and_then(|()| comm.barrier()), began.elapsed())
            });
            for (rank, (result, took)) in results.into_iter().enumerate() {
                let what = format!("{usual} and {other} of {count} by {collective} on rank {rank}, {took:?}");
                let Err(Error::Mismatch { difference, .. }) = result else { panic!("{what}: {result:?}") };
                let named =
                    difference.contains(&usual.family().to_string()) && difference.contains("rank 2: ");
                assert!(named, "{what}: {difference}");
                assert!(took < Duration::from_secs(10), "{what}");
            }
        }
    }
}

/// A ring of `channels` channels.
fn ring(channels: u16) -> Algorithm {
    Algorithm::Ring { channels, bidirectional: false }
}
