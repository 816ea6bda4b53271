//! The ring through lowering, fusion and the verifier.

use consort_algorithms::builders::{Ring, RingOptions, doubling, pair, ring, tree};
use consort_algorithms::passes::{fuse, pipeline};
use consort_algorithms::{
    Collective, LowerOptions, Plan, Rank, Schedule, lower_all, lower_one, verify, verify_regular,
};

use crate::common::sizes;

fn lowered(schedule: &Schedule, slots: u32) -> Vec<Plan> {
    lower_all(schedule, &LowerOptions { slots }).expect("rings lower")
}

fn fused(plans: &[Plan]) -> Vec<Plan> {
    plans.iter().map(|plan| fuse(plan, &|_| true)).collect()
}

fn rings() -> impl Iterator<Item = Collective> {
    Collective::ALL.into_iter().filter(|collective| {
        !matches!(
            collective,
            Collective::SendReceive | Collective::AllToAll | Collective::Gather | Collective::Scatter
        )
    })
}

fn proved(plans: &[Plan], what: &str) -> u64 {
    match verify(plans) {
        Ok(proof) => proof.fold_hash,
        Err(refusal) => panic!("{what}: {refusal}"),
    }
}

#[test]
fn every_ring_up_to_64_ranks_is_proved() {
    for ranks in sizes(&[]) {
        for collective in rings() {
            for (channels, bidirectional) in [(1, false), (2, true)] {
                if ranks > 9 && !matches!(ranks, 16 | 17) && channels > 1 {
                    continue;
                }
                let schedule = ring(collective, ranks, RingOptions { channels, bidirectional });
                let what = format!("{collective} over {ranks}, {}", schedule.name);
                let plans = lowered(&schedule, 4);
                let hash = proved(&plans, &what);
                assert_eq!(hash, proved(&fused(&plans), &format!("{what}, fused")));
            }
        }
    }
    let plans = lowered(&pair(), 1);
    assert_eq!(proved(&plans, "pair"), proved(&fused(&plans), "pair, fused"));
}

/// The plans of the first, a middle and the last rank alone; by the claim of symmetry they stand for all.
#[test]
fn large_rings_are_proved_by_one_rank() {
    for ranks in [128, 256, 1024] {
        for collective in [Collective::AllReduce, Collective::ReduceScatter, Collective::AllGather] {
            let ring = Ring::new(collective, ranks, RingOptions::default());
            let mut hashes = Vec::new();
            for rank in [0, ranks / 3, ranks - 1] {
                let what = format!("{collective} over {ranks}, rank {rank}");
                let plan = lower_one(&ring, Rank(rank), &LowerOptions { slots: 4 })
                    .unwrap_or_else(|error| panic!("{what}: {error}"));
                for plan in [fuse(&plan, &|_| true), plan] {
                    let proof = verify_regular(&ring, &plan);
                    hashes.push(proof.unwrap_or_else(|refusal| panic!("{what}: {refusal}")).fold_hash);
                }
            }
            assert!(
                hashes.windows(2).all(|pair| pair[0] == pair[1]),
                "{collective} over {ranks}: {hashes:?}"
            );
        }
    }
}

#[test]
fn doubling_is_proved_up_to_64_ranks() {
    for rounds in 1..=6 {
        let plans = lowered(&doubling(1 << rounds), 4);
        let hash = proved(&plans, "doubling");
        assert_eq!(hash, proved(&fused(&plans), "doubling, fused"));
    }
}

#[test]
fn slots_and_pipelining_leave_the_hash_alone_and_brackets_do_not() {
    let options = RingOptions::default();
    for collective in rings() {
        let schedule = ring(collective, 5, options);
        let one = proved(&lowered(&schedule, 1), "one slot");
        assert_eq!(one, proved(&lowered(&schedule, 7), "seven slots"));
        assert_eq!(one, proved(&fused(&lowered(&schedule, 2)), "fused"));
        let deep = pipeline(&schedule, 3);
        let deep_hash = proved(&lowered(&deep, 3), "pipelined");
        // Where each block has a bracketing of its own, the order of folds depends on the partition.
        let by_block = matches!(collective, Collective::AllReduce | Collective::ReduceScatter);
        assert_eq!(one != deep_hash, by_block, "{collective}");
        assert_eq!(deep_hash, proved(&fused(&lowered(&deep, 4)), "pipelined and fused"));
    }
    let there = ring(Collective::AllReduce, 4, options);
    let back = consort_algorithms::passes::reverse(&there);
    assert_ne!(proved(&lowered(&there, 2), "there"), proved(&lowered(&back, 2), "back"));
}

#[test]
fn too_few_slots_are_refused_with_who_waits_for_whom() {
    let fused = fused(&lowered(&ring(Collective::AllReduce, 4, RingOptions::default()), 1));
    let refusal = verify(&fused).expect_err("a fused ring needs two slots").to_string();
    assert!(refusal.starts_with("deadlock: ") && refusal.contains("credit[r0 <- r1 ch0]"), "{refusal}");
}

#[test]
fn fusion_saves_the_memory_traffic_it_promises() {
    let plan = &lowered(&ring(Collective::AllReduce, 8, RingOptions::default()), 2)[0];
    assert_eq!((plan.steps.len(), plan.scratch), (28 * 3, 1));
    let fused = fuse(plan, &|_| true);
    // One send, 13 arrivals that are sent on, one that stays; partial sums never touch scratch.
    assert_eq!((fused.steps.len(), fused.scratch), (3 + 13 * 5 + 3, 0));
    let unmapped = fuse(plan, &|_| false);
    assert_eq!((unmapped.steps.len(), unmapped.scratch), (plan.steps.len(), 1));
}

/// `cargo test --release -- --ignored --nocapture` prints the cost of the verifier; nothing is asserted.
#[test]
#[ignore = "a measurement"]
fn what_the_verifier_costs() {
    let ringed = [2, 8, 64].map(|ranks| ring(Collective::AllReduce, ranks, RingOptions::default()));
    let doubled = [8, 64, 1024].map(doubling);
    let trees = [8, 64, 1024].map(|ranks| tree(Collective::AllReduce, ranks));
    for schedule in ringed.iter().chain(&doubled).chain(&trees) {
        let plain = lowered(schedule, 4);
        for (plans, form) in [(fused(&plain), "fused"), (plain, "plain")] {
            let best = (0..10)
                .map(|_| {
                    let start = std::time::Instant::now();
                    proved(&plans, &schedule.name);
                    start.elapsed()
                })
                .min();
            println!("{} of all_reduce, {} ranks, {form}: {best:?}", schedule.name, schedule.ranks);
        }
    }
}
