//! The printed forms against committed files. `CONSORT_SNAPSHOTS=write cargo test` writes them anew.

use std::path::Path;

use consort_algorithms::builders::{RingOptions, ring};
use consort_algorithms::export::{plan_dot, plan_text, schedule_dot, schedule_text};
use consort_algorithms::passes::fuse;
use consort_algorithms::{Collective, LowerOptions, Rank, lower};

fn check(name: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/snapshots").join(name);
    if std::env::var_os("CONSORT_SNAPSHOTS").is_some_and(|value| value == "write") {
        std::fs::write(&path, text).expect("the snapshot can be written");
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(expected, text, "{name} differs; CONSORT_SNAPSHOTS=write cargo test writes it anew");
}

#[test]
fn printed_forms_are_the_committed_ones() {
    let schedule = ring(Collective::AllReduce, 3, RingOptions::default());
    check("all_reduce_ring_3.txt", &schedule_text(&schedule));
    check("all_reduce_ring_3.dot", &schedule_dot(&schedule));
    let plan = lower(&schedule, Rank(0), &LowerOptions { slots: 2 }).expect("rings lower");
    check("all_reduce_ring_3_rank_0.txt", &plan_text(&plan));
    let fused = fuse(&plan, &|_| true);
    check("all_reduce_ring_3_rank_0_fused.txt", &plan_text(&fused));
    check("all_reduce_ring_3_rank_0_fused.dot", &plan_dot(&fused));
    let both = ring(Collective::AllGather, 3, RingOptions { channels: 1, bidirectional: true });
    check("all_gather_ring_3_bidirectional.txt", &schedule_text(&both));
}
