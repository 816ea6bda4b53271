//! Every schedule inside the box with every schedule between boxes, proved.

use consort_algorithms::builders::{
    PartnerOrder, RingOptions, binomial, binomial_is_defined, bruck_all_gather, bruck_all_to_all, direct,
    direct_is_defined, double_tree, doubling, halving_doubling, halving_doubling_is_defined, hierarchical,
    hierarchical_is_defined, one_shot, pairwise, ring, spread_out, tree_is_defined, two_shot,
};
use consort_algorithms::passes::fuse;
use consort_algorithms::{Collective, LowerOptions, Plan, Schedule, lower_all, verify};

/// A builder, and whether it is defined for a collective and a number of ranks.
type Inner = (fn(Collective, u32) -> Schedule, fn(Collective, u32) -> bool);

fn has_ring(collective: Collective, _: u32) -> bool {
    tree_is_defined(collective) || matches!(collective, Collective::ReduceScatter | Collective::AllGather)
}

const BUILDERS: [Inner; 12] = [
    (|collective, ranks| ring(collective, ranks, RingOptions::default()), has_ring),
    (|collective, ranks| ring(collective, ranks, RingOptions { channels: 2, bidirectional: true }), has_ring),
    (
        |collective, ranks| halving_doubling(collective, ranks, PartnerOrder::FarFirst),
        halving_doubling_is_defined,
    ),
    (
        |collective, ranks| halving_doubling(collective, ranks, PartnerOrder::NearFirst),
        halving_doubling_is_defined,
    ),
    (direct, |collective, _| direct_is_defined(collective)),
    (double_tree, |collective, _| tree_is_defined(collective)),
    (binomial, |collective, _| binomial_is_defined(collective)),
    (|_, ranks| doubling(ranks), |collective, _| collective == Collective::AllReduce),
    (|_, ranks| one_shot(ranks), |collective, _| collective == Collective::AllReduce),
    (|_, ranks| two_shot(ranks), |collective, _| collective == Collective::AllReduce),
    (|_, ranks| bruck_all_gather(ranks), |collective, _| collective == Collective::AllGather),
    (
        |_, ranks| match ranks % 3 {
            0 => pairwise(ranks),
            1 => spread_out(ranks),
            _ => bruck_all_to_all(ranks, 2),
        },
        |collective, _| collective == Collective::AllToAll,
    ),
];

fn prove(schedule: &Schedule) {
    let what = format!("{} over {}, {}", schedule.collective, schedule.ranks, schedule.name);
    let plans =
        lower_all(schedule, &LowerOptions { slots: 4 }).unwrap_or_else(|error| panic!("{what}: {error}"));
    let plain = verify(&plans).unwrap_or_else(|refusal| panic!("{what}: {refusal}"));
    let fused: Vec<Plan> = plans.iter().map(|plan| fuse(plan, &|_| true)).collect();
    let fused = verify(&fused).unwrap_or_else(|refusal| panic!("{what}, fused: {refusal}"));
    assert_eq!(plain.fold_hash, fused.fold_hash, "{what}");
}

#[test]
fn every_pair_is_proved() {
    let mut proved = 0;
    for (boxes, per_box) in [(2, 2), (2, 4), (4, 2), (3, 4), (4, 3), (5, 3), (4, 4), (2, 8), (3, 6), (7, 5)] {
        for collective in
            Collective::ALL.into_iter().filter(|&collective| hierarchical_is_defined(collective))
        {
            let inside = |inner: &&Inner| match collective {
                Collective::AllReduce => [Collective::ReduceScatter, Collective::AllGather]
                    .into_iter()
                    .all(|phase| inner.1(phase, per_box)),
                _ => inner.1(collective, per_box),
            };
            for inside in BUILDERS.iter().filter(inside) {
                for between in BUILDERS.iter().filter(|inner| inner.1(collective, boxes)) {
                    prove(&hierarchical(collective, boxes, per_box, &inside.0, &between.0));
                    proved += 1;
                }
            }
        }
    }
    println!("{proved} pairs");
    assert!(proved > 1000, "{proved} pairs");
}
