//! Ranks that are killed and stopped while the slots between them migrate: exchanges and messages in pieces, and plans.
//!
//! Each run is one of `torture.rs`, with its checks and its variables. A round has a run of each traffic; its seed is printed.

use std::time::Duration;

use consort_tests::job::alone;
use consort_tests::system::Random;
use consort_tests::torture::{Fault, Plan, Traffic};

use super::{rounds, torture};

/// A run of each traffic.
fn plans(fault: Fault, random: &mut Random) -> [Plan; 3] {
    Traffic::POOLED.map(|traffic| Plan::pooled(traffic, fault, random.draw()))
}

fn say(plan: &Plan, took: Duration) {
    println!("{:?} of rank {} of {}, {:?}: {took:?}", plan.fault, plan.victims[0], plan.size, plan.traffic);
}

/// The others get the error that names it, in time.
#[test]
fn a_rank_killed_while_slots_migrate() {
    let _alone = alone();
    rounds("a_rank_killed_while_slots_migrate", 2, 3, |random, _| {
        for plan in plans(Fault::Kill, random) {
            say(&plan, torture(std::slice::from_ref(&plan))[0]);
        }
    });
}

/// No call fails, and no slot is lost: some hundred calls later results are right.
#[test]
fn ranks_stopped_for_a_while_while_slots_migrate() {
    let _alone = alone();
    rounds("ranks_stopped_for_a_while_while_slots_migrate", 1, 3, |random, _| {
        for plan in plans(Fault::Pause, random) {
            say(&plan, torture(std::slice::from_ref(&plan))[0]);
        }
    });
}

/// The others' deadlines name it; what it stores later is in no buffer that belongs to a caller again.
#[test]
fn a_rank_stopped_for_good_while_slots_migrate() {
    let _alone = alone();
    rounds("a_rank_stopped_for_good_while_slots_migrate", 1, 3, |random, _| {
        let plans = plans(Fault::Stop, random);
        plans.iter().zip(torture(&plans)).for_each(|(plan, took)| say(plan, took));
    });
}
