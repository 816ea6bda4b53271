//! Schedules along rails as candidates: where they are, what they cost over many boxes, and that their plans are proved.

use consort_algorithms::catalogue::Algorithm;
use consort_algorithms::simulate::{self, simulate};
use consort_algorithms::{Collective, topology};

use crate::planner::{Planner, Planning, Program};
use consort_settings::options::{Determinism, Options, SLOTS};

fn planning_with(name: &str, options: &Options) -> Planning {
    let topology = topology::profile(name).expect("a profile");
    Planning::for_topology(&topology, options).expect("a plan")
}

fn planning(name: &str) -> Planning {
    planning_with(name, &Options::default())
}

fn along_rails(planning: &Planning, collective: Collective) -> Vec<Algorithm> {
    let all = planning.candidates(collective).expect("candidates").into_iter();
    all.filter(|algorithm| algorithm.is_along_rails()).collect()
}

#[test]
fn rails_are_candidates_where_links_carry_the_bytes() {
    for name in ["dgx-h100:1", "dgx-a100:2", "dgx-h100:16"] {
        let planning = planning(name);
        for collective in [Collective::AllReduce, Collective::AllGather, Collective::Broadcast] {
            assert!(!along_rails(&planning, collective).is_empty(), "{collective} on {name}");
        }
        assert!(along_rails(&planning, Collective::AllToAll).is_empty(), "{name}");
    }
    for name in ["host:8", "tcp:4x2"] {
        assert!(along_rails(&planning(name), Collective::AllReduce).is_empty(), "{name}");
    }
    // Long calls over many boxes take them.
    for name in ["dgx-h100:12", "dgx-h100:16"] {
        let many = planning(name);
        for collective in [Collective::Broadcast, Collective::Reduce, Collective::AllReduce] {
            let chosen = many.algorithm(collective, 1 << 30).expect("a choice");
            assert!(chosen.is_along_rails(), "{collective} on {name}: {chosen}");
        }
    }
    // Ranks that are boxes of their own, and boxes in which too many would exchange with all.
    for name in ["torus:4x4", "nvlink:gpus=72"] {
        let topology = topology::profile(name).expect("a profile");
        let planning = Planning::for_topology(&topology, &Options::default()).expect("a plan");
        let all = planning.all(Collective::AllReduce);
        assert!(all.iter().all(|algorithm| !algorithm.is_along_rails()), "{name}: {all:?}");
    }
}

#[test]
fn a_price_that_is_continued_is_that_of_all_boxes() {
    let planning = planning("dgx-h100:16");
    let mut wrong = Vec::new();
    for (collective, bytes) in [
        (Collective::AllReduce, 256u64 << 20),
        (Collective::AllReduce, 16 << 20),
        (Collective::Broadcast, 64 << 20),
        (Collective::Reduce, 256 << 20),
        (Collective::AllGather, 2 << 20),
        (Collective::ReduceScatter, 2 << 20),
        (Collective::ReduceScatter, 64 << 10),
    ] {
        for algorithm in along_rails(&planning, collective) {
            let continued = planning.price(algorithm, collective, bytes);
            let options = simulate::Options {
                slot_bytes: planning.with_slots(algorithm, collective, bytes).slot_bytes,
                slots: SLOTS,
                messages_max: 1 << 19,
                ..simulate::Options::new(bytes as usize)
            };
            let schedule = algorithm.schedule(collective, planning.ranks());
            let whole = simulate(&schedule, planning.topology(), &options).expect("a time").seconds();
            let off = continued / whole - 1.0;
            if off.abs() > 0.15 {
                wrong.push(format!("{algorithm} of {collective}, {bytes}: {continued} for {whole}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn trees_are_planned_for_each_root_and_proved() {
    let (planning, planner) = (planning("dgx-h100:2"), Planner::default());
    for collective in [Collective::Broadcast, Collective::Reduce] {
        for algorithm in along_rails(&planning, collective) {
            for root in [0, 3, 8, 15] {
                let turned = planning.turned(algorithm, collective, root);
                assert_eq!(turned == algorithm, root % 8 == 0, "{turned} from {root}");
                let program = Program { collective, ranks: 16, algorithm: turned };
                let proved = planner.plan(program, 5, vec![true; 16]);
                assert!(proved.is_ok(), "{turned} of {collective} from {root}: {:?}", proved.err());
            }
        }
    }
}

#[test]
fn all_reduces_that_no_proof_follows_come_last() {
    // 128 trees of 1,032 ranks have more lanes than are followed, 32 have not.
    let (near, far) = (planning("dgx-h100:128"), planning("dgx-h100:129"));
    let trees = |trees: u16| Algorithm::RailTrees { per_box: 8, trees, first: 0 };
    let has = |planning: &Planning, of: Algorithm| along_rails(planning, Collective::AllReduce).contains(&of);
    assert!(has(&near, trees(16)) && !has(&far, trees(16)) && has(&far, trees(4)));
    // What has more lanes than whole clocks can follow is proved.
    let program = Program { collective: Collective::AllReduce, ranks: 512, algorithm: trees(4) };
    let proved = Planner::default().plan(program, 5, vec![true; 512]);
    assert!(proved.is_ok(), "{:?}", proved.err());
}

#[test]
fn words_of_what_a_box_has_are_different() {
    let mut words = std::collections::BTreeSet::new();
    let per_box = 8;
    let rails = [1, 4, 16].map(|channels| Algorithm::Rails { per_box, channels });
    let trees = [1, 2, 4, 16]
        .into_iter()
        .flat_map(|trees| (0..per_box).map(move |first| Algorithm::RailTrees { per_box, trees, first }));
    for algorithm in rails.into_iter().chain(trees) {
        assert!(words.insert(algorithm.word()), "{algorithm} has the word of another");
    }
}

#[test]
fn what_switches_fold_is_priced_and_never_taken() {
    let planning = planning("dgx-h100:1");
    let bytes = 256 << 20;
    let explanation = planning.explain(Collective::AllReduce, bytes).expect("an explanation");
    let switched = explanation.candidates.iter().find(|candidate| candidate.algorithm.is_switched());
    let switched = switched.expect("a candidate through the switch");
    let chosen = explanation.candidates.iter().find(|candidate| candidate.chosen).expect("a choice");
    assert!(switched.predicted_s < chosen.predicted_s, "{} {}", switched.predicted_s, chosen.predicted_s);
    assert!(!switched.chosen && switched.fold_hash.is_none());
    let why = switched.excluded.as_deref().unwrap_or_default();
    assert!(why.contains("no order"), "{why}");
    assert!(explanation.to_string().contains("unordered"), "{explanation}");
    let named = planning.plans(switched.algorithm, Collective::AllReduce).expect_err("no plan");
    assert!(named.to_string().contains("no transport reaches them"), "{named}");
    // Elsewhere there is none.
    let all = planning_with("dgx-a100:1", &Options::default()).explain(Collective::AllReduce, bytes);
    let all = all.expect("an explanation").candidates;
    assert!(all.iter().all(|candidate| !candidate.algorithm.is_switched()));
    let invariant = planning_with("dgx-h100:1", &Options::default().determinism(Determinism::Invariant));
    let chosen = invariant.algorithm(Collective::AllReduce, bytes).expect("a choice");
    assert!(chosen.folds_in_rank_order(), "{chosen}");
}
