//! Whole jobs in one thread under a seed, in virtual time: the real bootstrap, control links, engine and failure
//! code over [`consort_transports::simnet`] and loopback memory.
//!
//! A seed determines the number of ranks and their hosts, their calls, all durations, and the fault: see
//! [`faults::Fault`]. After the run [`judge`] checks every rank: the right bits or the right error, in time; the
//! caller's memory untouched after a call has returned; nothing left behind; the verdict names what the seed broke,
//! or a rank that failed before because of it.
//!
//! `CONSORT_SIMULATIONS` is the number of seeds (300 by default), from `CONSORT_TEST_SEED` on. To run one
//! seed again:
//! `CONSORT_TEST_SEED=<seed> CONSORT_SIMULATIONS=1 cargo test -p consort-tests-simulation seeds -- --nocapture`

mod changes;
mod faults;
mod judge;
mod line;
mod process;
mod program;
pub(crate) mod random;
mod running;
mod shrinking;
mod world;

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use std::time::Duration;

use consort_kernels::ReduceOp;
use consort_transports::simnet::Profile;

use consort_types::Rank;
use consort_types::call::Kind;
use faults::Fault;
use program::{Item, KINDS, Program};
use random::Random;
use world::{Job, World};

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// Runs a seed: returns the outcome of its ranks, and the hash of all data that travelled.
fn run(seed: u64) -> Result<(String, u64), String> {
    run_in(World::new(seed))
}

/// Runs a job.
fn run_in(mut world: World) -> Result<(String, u64), String> {
    // Thousands of jobs warn about their seeds' faults.
    consort_settings::notice::QUIET.store(true, Ordering::Relaxed);
    let name = world.describe();
    let ended = catch_unwind(AssertUnwindSafe(|| {
        world.run().and_then(|()| judge::judge(&mut world)).map(|end| (end, world.network.trace_hash()))
    }));
    let result = ended.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        Err(text.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string)).unwrap_or_default())
    });
    let result = result.and_then(|end| judge::nothing_left(world).map(|()| end));
    result.map_err(|error| format!("{name}\n    {error}"))
}

#[test]
fn seeds() {
    let (first, count) = (number("CONSORT_TEST_SEED", 0), number("CONSORT_SIMULATIONS", 300));
    run_all(&(first..first + count).collect::<Vec<_>>());
}

/// The same jobs, a quarter as many, of ranks that are linked to few others from the beginning, and to more when they have
/// something to say.
#[test]
fn sparse_seeds() {
    let (first, count) = (number("CONSORT_TEST_SEED", 0), number("CONSORT_SIMULATIONS", 300).div_ceil(4));
    run_all_in(World::sparse, "sparse_seeds", &(first..first + count).collect::<Vec<_>>());
}

/// As [`endings_that_were_judged_wrongly_once`], of [`sparse_seeds`] and of links that were made or counted on wrongly once.
#[test]
fn sparse_endings_that_were_wrong_once() {
    // A rank was lost by hearsay before its last words had come, or by its own end that it had announced.
    let announced = [29, 155, 169, 221, 247, 251];
    // A caller that left while it was answered was lost; a rank died while others still joined, and none was linked to it.
    let others = [147, 285, 183];
    run_all_in(World::sparse, "sparse_seeds", &[announced.as_slice(), &others].concat());
}

/// Every collective and every way to send, in many sizes, started and not, between ranks on wires that keep no order. Ranks
/// compare their results with the definition, bit by bit.
#[test]
fn one_sided_wires_carry_every_collective() {
    const COUNTS: [usize; 7] = [0, 1, 3, 64, 700, 5_000, 20_000];
    let first = number("CONSORT_TEST_SEED", 0);
    for (ranks, seed) in (2..=5).flat_map(|ranks| (first..first + 3).map(move |seed| (ranks, seed))) {
        let mut random = Random::new(seed);
        let mut items = Vec::new();
        for count in COUNTS {
            for kind in KINDS {
                let op = [ReduceOp::Sum, ReduceOp::Max][random.below(2)];
                let root = if kind.is_rooted() { random.below(ranks as usize) as Rank } else { 0 };
                let count = if kind == Kind::Barrier { 1 } else { count };
                let op = if kind == Kind::Barrier { ReduceOp::Max } else { op };
                let started = kind != Kind::Barrier && random.once_in(4);
                items.push(Item::Collective { on: 0, kind, op, root, count, started });
            }
            for started in [false, true, true] {
                items.push(Item::Shift { on: 0, by: 1, count, started });
            }
            items.push(Item::Message { on: 0, from: ranks - 1, to: 0, count });
            items.push(Item::Group { on: 0, count, messages: 2 });
        }
        let job = Job {
            ranks,
            hosts: (0..ranks).collect(),
            timeout: Duration::from_secs(3),
            program: Program { items, colors: Vec::new() },
            fault: Fault::None,
            profile: Profile::OneSided,
            are_apart: false,
            hasty: None,
        };
        match run_in(World::with(seed, job, random)) {
            Ok((end, _)) => assert_eq!(end, "None: completed", "{ranks} ranks, seed {seed}"),
            Err(error) => panic!("{error}"),
        }
    }
}

/// Seeds of faults that were judged wrong once. A change of the draws changes the meaning of a seed; these are then
/// ordinary ones.
#[test]
fn endings_that_were_judged_wrongly_once() {
    // Ranks that were still joining were named, and not the one that had stopped, or those on the other side.
    let joining = [6575, 7693, 8068];
    // A rank that had finished the call was named as having made fewer calls, where data was lost on the way.
    let left = [6690];
    // A rank that had made another call and left was named as having lost its data.
    let differs = [6544];
    // The same where the link to it, which it had closed, was named as broken.
    let closed = [4417];
    // Among ranks that waited for connections the lowest was named, and not those between which the network was cut:
    // in the last seed one end knew of the other and not the other way round.
    let connections = [2064, 3191, 8564, 9010];
    run_all(&[joining.as_slice(), &left, &differs, &closed, &connections].concat());
}

fn run_all(seeds: &[u64]) {
    run_all_in(World::new, "seeds", seeds);
}

/// Runs the jobs of these seeds, which `test` repeats.
fn run_all_in(world: fn(u64) -> World, test: &str, seeds: &[u64]) {
    let next = AtomicUsize::new(0);
    let (failures, ends) = (Mutex::new(Vec::new()), Mutex::new(BTreeMap::<String, u64>::new()));
    std::thread::scope(|threads| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            threads.spawn(|| {
                loop {
                    let seed = seeds.get(next.fetch_add(1, Ordering::Relaxed)).copied();
                    let Some(seed) = seed.filter(|_| failures.lock().expect("no panic").len() <= 20) else {
                        return;
                    };
                    match run_in(world(seed)) {
                        Ok((end, _)) => {
                            *ends.lock().expect("no panic").entry(end).or_default() += 1;
                        }
                        Err(error) => failures.lock().expect("no panic").push((seed, error)),
                    }
                }
            });
        }
    });
    for (end, times) in &*ends.lock().expect("no panic") {
        println!("{times:>8} x {end}");
    }
    let failures = failures.into_inner().expect("no panic");
    for (seed, error) in &failures {
        eprintln!(
            "{error}\n    again: CONSORT_TEST_SEED={seed} CONSORT_SIMULATIONS=1 cargo test -p consort-tests-simulation {test} -- --nocapture"
        );
    }
    let failed: Vec<u64> = failures.iter().map(|(seed, _)| *seed).collect();
    assert!(failed.is_empty(), "{} of {} seeds failed: {failed:?}", failed.len(), seeds.len());
}

#[test]
fn a_seed_is_always_the_same_run() {
    let first = number("CONSORT_TEST_SEED", 0);
    for seed in first..first + 60 {
        assert_eq!(run(seed), run(seed), "seed {seed}");
    }
}
