//! The parallelism-coordinated all-to-all: run in many orders, passed through the passes, and on mapped buffers.

use consort_algorithms::builders::coordinated;
use consort_algorithms::passes::{fuse, replicate};
use consort_algorithms::{Collective, LowerOptions, lower_all, mapped, verify};

use crate::common::execute_often;

const SHAPES: [(u32, u32); 8] = [(1, 1), (2, 2), (4, 2), (6, 2), (6, 3), (8, 4), (9, 3), (12, 4)];

#[test]
fn it_runs_in_many_orders() {
    for (ranks, group) in SHAPES {
        for schedule in [coordinated(ranks, group), replicate(&coordinated(ranks, group), 3)] {
            let plans = lower_all(&schedule, &LowerOptions { slots: 2 }).expect("it is a schedule");
            let fused: Vec<_> = plans.iter().map(|plan| fuse(plan, &|_| true)).collect();
            for plans in [plans, fused] {
                verify(&plans).unwrap_or_else(|refusal| panic!("{ranks} in groups of {group}: {refusal}"));
                execute_often(&plans, 3, 8)
                    .unwrap_or_else(|fault| panic!("{ranks} in groups of {group}: {fault}"));
            }
        }
    }
}

#[test]
fn on_mapped_buffers_a_rank_stores_its_part_in_all_outputs_of_a_group() {
    for (ranks, group) in SHAPES {
        let plans = mapped(Collective::AllToAllReplicated { group }, ranks).expect("few ranks");
        verify(&plans).unwrap_or_else(|refusal| panic!("{ranks} in groups of {group}: {refusal}"));
        execute_often(&plans, 3, 8).unwrap_or_else(|fault| panic!("{ranks} in groups of {group}: {fault}"));
    }
    assert!(mapped(Collective::AllToAllReplicated { group: 2 }, 5).is_none());
    assert!(mapped(Collective::AllToAllReplicated { group: 0 }, 4).is_none());
}
