//! Trees and exchanges, whose depth is logarithmic, through lowering, fusion and the verifier.

use std::collections::HashMap;

use consort_algorithms::builders::{
    PartnerOrder, bruck_all_gather, bruck_all_to_all, double_tree, doubling, halving_doubling,
    halving_doubling_is_defined, pat, pat_is_defined, tree, tree_is_defined,
};
use consort_algorithms::passes::fuse;
use consort_algorithms::{
    Chunk, Collective, LowerOptions, Place, Plan, Rank, Schedule, Transfer, lower_all, verify,
};

use crate::common::{execute_often, sizes};

fn proved(plans: &[Plan], what: &str) -> u64 {
    match verify(plans) {
        Ok(proof) => proof.fold_hash,
        Err(refusal) => panic!("{what}: {refusal}"),
    }
}

/// Lowers and proves the schedule, as it is and fused.
fn prove_with(schedule: &Schedule, slots: u32) -> (Vec<Plan>, u64) {
    let what = format!("{} over {}, {}, {slots} slots", schedule.collective, schedule.ranks, schedule.name);
    let plans = lower_all(schedule, &LowerOptions { slots }).unwrap_or_else(|e| panic!("{what}: {e}"));
    let hash = proved(&plans, &what);
    let fused: Vec<Plan> = plans.iter().map(|plan| fuse(plan, &|_| true)).collect();
    assert_eq!(hash, proved(&fused, &format!("{what}, fused")), "{what}");
    if (3..=24).contains(&schedule.ranks) {
        // Boxes of three, mapped within.
        let fused: Vec<Plan> =
            plans.iter().map(|plan| fuse(plan, &|peer| peer.0 / 3 == plan.rank.0 / 3)).collect();
        assert_eq!(hash, proved(&fused, &format!("{what}, fused within boxes")), "{what}");
    }
    (plans, hash)
}

/// With the slots that are used, and over few ranks with the fewest that a fused cycle can have.
fn prove(schedule: &Schedule) -> (Vec<Plan>, u64) {
    let (plans, hash) = prove_with(schedule, 4);
    if schedule.ranks <= 24 {
        assert_eq!(hash, prove_with(schedule, 2).1, "{}", schedule.name);
    }
    (plans, hash)
}

/// The bracketing of chunk `chunk` of the output of `rank`.
fn folded(schedule: &Schedule, rank: u32, chunk: u32) -> String {
    let mut held: HashMap<(Rank, Place), String> = HashMap::new();
    for round in &schedule.rounds {
        let value = |rank: Rank, place: Place| match place {
            Place::Input(_) => rank.0.to_string(),
            _ => held[&(rank, place)].clone(),
        };
        let result = |t: &Transfer| match (value(t.from, t.source), t.fold.map(|fold| value(t.to, fold))) {
            (arriving, None) => arriving,
            (arriving, Some(own)) if t.own_first => format!("({own} {arriving})"),
            (arriving, Some(own)) => format!("({arriving} {own})"),
        };
        let results: Vec<_> = round.transfers.iter().map(|t| ((t.to, t.target), result(t))).collect();
        held.extend(results);
    }
    held[&(Rank(rank), Place::Output(Chunk(chunk)))].clone()
}

fn defined(is_defined: impl Fn(Collective) -> bool) -> impl Iterator<Item = Collective> {
    Collective::ALL.into_iter().filter(move |&collective| is_defined(collective))
}

/// The positions of rank `index` of `ranks` in the two trees of a double tree.
fn positions(index: u32, ranks: u32) -> [u32; 2] {
    let second = match ranks % 2 {
        0 => ranks - index,
        _ => (index + 1) % ranks + 1,
    };
    [index + 1, second]
}

#[test]
fn trees_are_proved() {
    for ranks in sizes(&[128, 255, 256, 1024]) {
        for collective in defined(tree_is_defined) {
            let (one, _) = prove(&tree(collective, ranks));
            let (two, _) = prove(&double_tree(collective, ranks));
            let root = 1 << ranks.ilog2();
            for (rank, (one, two)) in (0..).zip(one.iter().zip(&two)) {
                // A place on inner ranks that are no root; even positions are inner.
                let inner = |position: u32| position.is_multiple_of(2) && collective.reduces();
                let position = (rank + root - 1) % ranks + 1;
                assert_eq!(one.scratch, u32::from(rank > 0 && inner(position)), "{rank} of {ranks}");
                let places = match collective {
                    Collective::Reduce if rank == 0 => 0,
                    Collective::Reduce => {
                        positions(rank - 1, ranks - 1).into_iter().filter(|&p| inner(p)).count()
                    }
                    _ => positions(rank, ranks).into_iter().filter(|&p| inner(p) && p != root).count(),
                };
                assert_eq!(two.scratch as usize, places, "rank {rank} of {ranks}, {collective}");
            }
        }
    }
}

#[test]
fn trees_fold_in_the_order_of_positions() {
    assert_eq!(folded(&tree(Collective::Reduce, 6), 0, 0), "((((3 4) 5) 0) (1 2))");
    assert_eq!(folded(&tree(Collective::AllReduce, 6), 2, 0), "((((3 4) 5) 0) (1 2))");
    let double = double_tree(Collective::AllReduce, 6);
    assert_eq!(folded(&double, 5, 0), "((((0 1) 2) 3) (4 5))");
    assert_eq!(folded(&double, 0, 1), "((((5 4) 3) 2) (1 0))");
    let odd = double_tree(Collective::AllReduce, 5);
    assert_eq!(folded(&odd, 0, 0), "((((0 1) 2) 3) 4)");
    assert_eq!(folded(&odd, 4, 1), "((((4 0) 1) 2) 3)");
    assert_eq!(folded(&double_tree(Collective::Reduce, 4), 0, 1), "(((3 1) 2) 0)");
}

#[test]
fn doubling_is_proved_over_any_number_of_ranks() {
    for ranks in (1..=64).chain([128, 255, 256, 1023]) {
        let (plans, _) = prove(&doubling(ranks));
        let pairs = ranks - (1 << ranks.ilog2());
        for (rank, plan) in (0..).zip(&plans) {
            let folds = ranks.ilog2() + u32::from(rank < 2 * pairs);
            let folds = if rank < 2 * pairs && rank % 2 == 1 { 0 } else { folds };
            assert_eq!(plan.scratch, u32::from(folds > 1), "rank {rank} of {ranks}");
        }
    }
    assert_eq!(folded(&doubling(7), 3, 0), "(((0 1) (2 3)) ((4 5) 6))");
}

#[test]
fn halving_and_doubling_are_proved() {
    for order in [PartnerOrder::FarFirst, PartnerOrder::NearFirst] {
        for ranks in sizes(&[128]) {
            for collective in defined(|collective| halving_doubling_is_defined(collective, ranks)) {
                let (plans, hash) = prove(&halving_doubling(collective, ranks, order));
                let places = if collective == Collective::ReduceScatter { ranks / 2 } else { 0 };
                assert!(plans.iter().all(|plan| plan.scratch == places.saturating_sub(1)), "{ranks}");
                if collective == Collective::AllReduce {
                    let brackets = prove(&doubling(ranks)).1;
                    // Far first differs as soon as there are two bits.
                    let same = order == PartnerOrder::NearFirst || ranks < 4;
                    assert_eq!(hash == brackets, same, "{ranks}");
                }
            }
        }
    }
    let far = halving_doubling(Collective::AllReduce, 8, PartnerOrder::FarFirst);
    assert!((0..8).all(|chunk| folded(&far, chunk, 7 - chunk) == "(((0 4) (2 6)) ((1 5) (3 7)))"));
}

#[test]
fn bruck_all_gather_is_proved() {
    for ranks in sizes(&[100, 128, 256]) {
        let (plans, _) = prove(&bruck_all_gather(ranks));
        assert!(plans.iter().all(|plan| plan.scratch == 0));
    }
}

/// The largest number of blocks after any round that have made a hop and have another one to make.
fn most_under_way(ranks: u32, radix: u32) -> u32 {
    let mut most = 0;
    let mut stride = 1;
    while stride < ranks {
        for value in 1..radix {
            let under_way = |way: &u32| {
                let (low, digit, high) = (way % stride, way / stride % radix, way / stride / radix);
                let made = low > 0 || (1..=value).contains(&digit);
                let to_make = high > 0 || digit > value;
                made && to_make
            };
            most = most.max((1..ranks).filter(under_way).count());
        }
        stride *= radix;
    }
    most as u32
}

#[test]
fn bruck_all_to_all_is_proved() {
    for ranks in sizes(&[]) {
        for radix in [2, 3, 4, ranks] {
            let (plans, _) = prove(&bruck_all_to_all(ranks, radix));
            let places = most_under_way(ranks, radix.min(ranks).max(2));
            assert!(places < ranks && (radix < ranks || places == 0));
            for plan in plans {
                assert_eq!(plan.scratch, places, "{ranks}, radix {radix}");
            }
        }
    }
}

#[test]
fn pat_is_proved() {
    for ranks in sizes(&[128, 256]) {
        for collective in defined(pat_is_defined) {
            let mut hashes = Vec::new();
            let aggregations = match ranks {
                ..=24 => vec![1, 2, 4, u32::MAX],
                _ => vec![2, u32::MAX],
            };
            for most in aggregations {
                let (plans, hash) = prove(&pat(collective, ranks, most));
                hashes.push(hash);
                let bits = ranks.next_power_of_two().ilog2();
                let a = if ranks == 1 { 1 } else { most.min(1 << (bits - 1)) };
                let places = if collective == Collective::ReduceScatter { a * (bits - a.ilog2()) } else { 0 };
                for plan in plans {
                    assert!(plan.scratch <= places.saturating_sub(1), "{ranks}, {most}: {}", plan.scratch);
                    if ranks.is_power_of_two() {
                        assert_eq!(plan.scratch, places.saturating_sub(1), "{ranks}, {most}");
                    }
                }
            }
            assert!(hashes.windows(2).all(|pair| pair[0] == pair[1]), "{ranks}: {hashes:?}");
        }
    }
    let sums = pat(Collective::ReduceScatter, 7, 2);
    assert_eq!(folded(&sums, 2, 0), "(((2 3) (4 5)) ((6 0) 1))");
}

#[test]
fn numbers_come_out_right_under_random_interleavings() {
    use Collective::{AllGather, AllReduce, Broadcast, Reduce, ReduceScatter};
    for ranks in [2, 3, 5, 6, 8, 13, 16] {
        let mut schedules = vec![doubling(ranks), bruck_all_gather(ranks)];
        schedules.extend([2, 3].map(|radix| bruck_all_to_all(ranks, radix)));
        for collective in [AllReduce, Broadcast, Reduce] {
            schedules.extend([tree(collective, ranks), double_tree(collective, ranks)]);
        }
        for collective in [AllGather, ReduceScatter] {
            schedules.extend([1, 2, ranks].map(|most| pat(collective, ranks, most)));
        }
        for order in [PartnerOrder::FarFirst, PartnerOrder::NearFirst] {
            let collectives = defined(|collective| halving_doubling_is_defined(collective, ranks));
            schedules.extend(collectives.map(|collective| halving_doubling(collective, ranks, order)));
        }
        for schedule in schedules {
            let plans = lower_all(&schedule, &LowerOptions { slots: 4 }).expect("it lowers");
            let fused: Vec<Plan> = plans.iter().map(|plan| fuse(plan, &|_| true)).collect();
            for (plans, form) in [(&plans, "plain"), (&fused, "fused")] {
                execute_often(plans, 3, 3).unwrap_or_else(|fault| {
                    panic!("{} over {ranks}, {}, {form}: {fault}", schedule.collective, schedule.name)
                });
            }
        }
    }
}
