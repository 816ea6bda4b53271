//! Jobs whose ranks lose paths to each other in the middle: all of them plan for another machine from one call on.
//!
//! Invariant: messages take the network's time, ranks are at different calls when they hear of a change, and some are in their own code; a
//! rank of some jobs dies. Every result is compared with the definition, as in all jobs; and so are the numbers from which ranks plan for
//! which machine.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use consort_kernels::ReduceOp;
use consort_transports::simnet::Profile;

use super::faults::{Fault, Moment};
use super::program::{Item, KINDS, Program};
use super::random::Random;
use super::world::{Job, World};
use super::{judge, number};
use consort_types::Rank;
use consort_types::call::Kind;

/// A job of some hosts with a rank or two each, whose ranks lose one of two paths, and a second one or the first back.
fn job(random: &mut Random) -> Job {
    let hosts = 2 + random.below(3) as u32;
    let per_host = 1 + random.below(2) as u32;
    let ranks = hosts * per_host;
    let mut items = Vec::new();
    let length = 60 + random.below(40);
    // The same rank says both, as of others nothing is known.
    let by = random.below(ranks as usize) as Rank;
    let changes = [5 + random.below(10), 25 + random.below(10)];
    for index in 0..length {
        if let Some(nth) = changes.iter().position(|at| *at == index) {
            let others = (0..ranks).filter(|rank| rank / per_host != by / per_host);
            let left = if nth == 0 { 1 } else { 2 };
            let sights = others.map(|rank| (rank, left, 2)).collect();
            items.push(Item::Paths { by, sights });
        }
        if random.once_in(6) {
            items.push(Item::Compute { most: Duration::from_micros(1 << random.below(12)) });
        }
        let kind = KINDS[random.below(KINDS.len())];
        let root = if kind.is_rooted() { random.below(ranks as usize) as Rank } else { 0 };
        let count = [0, 1, 40, 700, 3000][random.below(5)];
        let count = if kind == Kind::Barrier { 1 } else { count };
        let op = if kind == Kind::Barrier { ReduceOp::Max } else { ReduceOp::Sum };
        let started = kind != Kind::Barrier && random.once_in(5);
        items.push(Item::Collective { on: 0, kind, op, root, count, started });
    }
    Job {
        ranks,
        hosts: (0..ranks).map(|rank| rank / per_host).collect(),
        timeout: Duration::from_secs(3),
        program: Program { items, colors: Vec::new() },
        fault: Fault::None,
        profile: Profile::ALL[random.below(Profile::ALL.len())],
        are_apart: true,
        hasty: None,
    }
}

/// By rank that came to its end, from which calls on it planned for which machine.
type Machines = BTreeMap<Rank, Vec<(u64, u16)>>;

/// Runs the job: how it ended, if that was right, and what its ranks planned for.
fn run(seed: u64, job: Job, random: Random) -> Result<(String, Machines), String> {
    consort_settings::notice::QUIET.store(true, std::sync::atomic::Ordering::Relaxed);
    let mut world = World::with(seed, job, random);
    let ended = catch_unwind(AssertUnwindSafe(|| {
        let ended = world.run().and_then(|()| judge::judge(&mut world));
        ended.map(|end| (end, world.machines.clone()))
    }));
    let (end, machines) = ended.map_err(|_| "a wrong result".to_owned())??;
    let machines = machines.lock().map_err(|error| error.to_string())?.clone();
    // A rank that came less far has heard of less.
    let longest = machines.values().max_by_key(|of| of.len()).cloned().unwrap_or_default();
    match machines.values().all(|of| longest.starts_with(of)) {
        true => Ok((end, machines)),
        false => Err(format!("ranks planned for machines from different calls on: {machines:?}")),
    }
}

fn seeds(count: u64) -> std::ops::Range<u64> {
    let first = number("CONSORT_TEST_SEED", 0);
    first..first + count
}

#[test]
fn all_ranks_plan_for_another_machine_from_one_call_on() {
    let mut went_over = 0;
    for seed in seeds(60) {
        let mut random = Random::new(seed);
        let job = job(&mut random);
        let (end, machines) =
            run(seed, job, random).unwrap_or_else(|wrong| panic!("CONSORT_TEST_SEED={seed}: {wrong}"));
        assert_eq!(end, "None: completed", "CONSORT_TEST_SEED={seed}");
        let first = &machines[&0];
        assert!(machines.values().all(|of| of == first), "CONSORT_TEST_SEED={seed}: {machines:?}");
        // There and back: the last machine is the first one again.
        let numbers: Vec<u16> = first.iter().map(|(_, machine)| *machine).collect();
        assert!([0, 1, 0].starts_with(&numbers), "CONSORT_TEST_SEED={seed}: {machines:?}");
        went_over += usize::from(numbers.len() == 3);
    }
    assert!(went_over > 30, "{went_over} of 60 jobs went there and back");
}

#[test]
fn a_rank_that_dies_meanwhile_ends_the_job_as_it_ends_any() {
    for seed in seeds(40) {
        let mut random = Random::new(seed);
        let mut job = job(&mut random);
        let rank = random.below(job.ranks as usize) as Rank;
        let turn = 40 + random.below(600) as u64;
        job.fault = Fault::Kill { rank, when: Moment::Turn(turn) };
        let wrong = run(seed, job, random).err();
        assert_eq!(wrong, None, "CONSORT_TEST_SEED={seed}");
    }
}

/// The defect that all of this is against, planted: it is found by differing plans, or at the latest by the numbers.
#[test]
fn a_rank_that_goes_over_as_soon_as_it_hears_of_a_change_is_found() {
    for seed in seeds(20) {
        let mut random = Random::new(seed);
        let mut job = job(&mut random);
        job.hasty = Some(random.below(job.ranks as usize) as Rank);
        let ended = run(seed, job, random);
        assert!(
            !matches!(&ended, Ok((end, _)) if end == "None: completed"),
            "CONSORT_TEST_SEED={seed}: nothing was found"
        );
    }
}
