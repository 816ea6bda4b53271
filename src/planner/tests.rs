//! What the planner chooses, refuses and prefers, without a communicator.

mod domains;
mod far;
mod hosts;
mod measured;
mod rails;
mod rdma;
mod searched;

use std::collections::BTreeSet;

use consort_algorithms::catalogue::{Algorithm, Family};
use consort_algorithms::{Collective, Schedule};
use consort_kernels::{DataType, ReduceOp};

use super::planning::size_class;
use super::{Choice, Machine, Origin, Planner, Planning, Program};
use consort_settings::options::{Determinism, Tuning, TuningLine, digest};
use consort_settings::options::{Options, SLOT_BYTES_MIN, Settings};
use consort_types::call::Call;

fn settings(change: impl FnOnce(Options) -> Options) -> Settings {
    Settings::resolve_from(&change(Options::default()), &|_| None).expect("settings")
}

/// One host of many cores.
fn machine(ranks: u32) -> Machine {
    Machine::of_one_host(ranks, 64)
}

fn planning_on(machine: Machine, settings: &Settings) -> Planning {
    Planning::new(machine, settings)
}

fn planning(ranks: u32, settings: &Settings) -> Planning {
    planning_on(machine(ranks), settings)
}

#[test]
fn every_call_finds_a_plan_that_is_defined_and_fits_its_links() {
    for ranks in [1, 2, 3, 4, 5, 8, 16, 17, 64, 100] {
        let planning = planning(ranks, &settings(|options| options));
        for collective in Collective::ALL {
            if collective == Collective::SendReceive && ranks == 1 {
                continue;
            }
            for bytes in [1u64, 8, 4096, 1 << 20, 1 << 30] {
                let chosen = planning.choose(collective, bytes).expect("a choice");
                let over = if collective == Collective::SendReceive { 2 } else { ranks };
                assert!(
                    chosen.algorithm.is_defined(collective, over),
                    "{chosen:?} of {collective} over {ranks}"
                );
                let longest = planning.longest_slot(chosen.algorithm);
                assert!(chosen.slot_bytes.is_power_of_two() && chosen.slot_bytes <= longest);
                assert!(!chosen.short || chosen.slot_bytes == SLOT_BYTES_MIN);
            }
        }
    }
}

#[test]
fn small_all_reduces_take_few_steps_and_large_ones_few_bytes() {
    let planning = planning(8, &settings(|options| options));
    let cost = |bytes| {
        let explanation = planning.explain(Collective::AllReduce, bytes).expect("an explanation");
        let chosen = explanation.chosen().expect("one is chosen").clone();
        let cost = chosen.cost.expect("eight ranks are counted");
        (cost.rounds.min(cost.depth), f64::from(cost.out_pieces) / f64::from(cost.largest_pieces))
    };
    let (small, large) = (cost(8), cost(64 << 20));
    assert!(small.0 <= 3, "{small:?}");
    assert!((large.1 - 1.75).abs() < 1e-9, "{large:?}");
}

#[test]
fn a_restriction_binds_and_what_it_leaves_empty_is_said() {
    let only = settings(|options| options.algorithms("tree;all_to_all:ring"));
    let meets = |settings: &Settings, bytes| {
        let chosen =
            planning_on(machine(4), settings).choose(Collective::AllReduce, bytes).expect("a choice");
        (chosen.meets, chosen.mapped)
    };
    assert_eq!(meets(&only, 1 << 20), (true, false), "how bytes cross is open still");
    assert_eq!(meets(&only, 32 << 10), (false, false));
    assert_eq!(meets(&settings(|options| options), 32 << 10), (true, true));
    let planning = planning(6, &only);
    assert_eq!(planning.choose(Collective::AllReduce, 8).ok().map(|c| c.algorithm), Some(Algorithm::Tree));
    let error = planning.choose(Collective::AllToAll, 8).expect_err("there is no ring").to_string();
    assert!(error.contains("possible: ") && error.contains("pairwise"), "{error}");
    let explanation = planning.explain(Collective::AllReduce, 8).expect("an explanation");
    assert!(
        explanation.candidates.iter().any(|c| c.algorithm.family() == Family::Ring && c.excluded.is_some())
    );
    assert!(explanation.to_string().contains("(excluded: Options::algorithms leaves it out)"));
}

#[test]
fn invariant_bits_leave_one_order_of_folding() {
    for ranks in [2, 3, 8] {
        let invariant = settings(|options| options.determinism(Determinism::Invariant));
        let planning = planning(ranks, &invariant);
        let mut folds = BTreeSet::new();
        for algorithm in planning.candidates(Collective::AllReduce).expect("some are left") {
            folds.insert(planning.fold_hash(algorithm, Collective::AllReduce));
        }
        assert_eq!(folds.len(), 1, "{ranks} ranks");
        assert!(planning.candidates(Collective::AllGather).expect("all").len() > 1);
        let named = |algorithm| planning.demand(algorithm, Collective::AllReduce, 8);
        assert!(named(Algorithm::Tree).is_err() && named(Algorithm::TwoShot).is_ok());
    }
    let call = |root| Call::reduce(DataType::Float32, ReduceOp::Sum, 4, root);
    let invariant = settings(|options| options.determinism(Determinism::Invariant));
    let planning = planning(5, &invariant);
    let first = |root| Choice::of(&planning, &call(root)).expect("a choice").program.algorithm;
    assert_eq!(first(0), Algorithm::Direct { first: 0 });
    assert_eq!(first(2), Algorithm::Direct { first: 3 });
}

fn table(planning: &Planning, algorithm: Algorithm, fold_hash: u64) -> Tuning {
    let line = TuningLine {
        collective: Collective::AllReduce,
        ranks: planning.ranks(),
        bytes: 1 << 20,
        algorithm,
        slot_bytes: 32 << 10,
        fold_hash,
        nanoseconds: 1000,
    };
    Tuning { machine: planning.machine(), lines: vec![line] }
}

#[test]
fn a_table_names_an_imported_schedule() {
    let (collective, ranks) = (Collective::AllReduce, 4);
    let ours = Schedule { name: "ours.tuned".into(), ..Algorithm::RING.schedule(collective, ranks) };
    let plain = settings(|options| options.schedule(ours).expect("it is right"));
    let reference = planning(ranks, &plain);
    let imported: Algorithm = "ours.tuned".parse().expect("it is known");
    assert!(reference.candidates(collective).expect("candidates").contains(&imported));
    let fold = reference.fold_hash(imported, collective).expect("it was proved");
    let chosen = |fold| {
        let mut tuned = plain.clone();
        let text = table(&reference, imported, fold).to_string();
        tuned.preferences.tuning = Some(Tuning::parse(&text).expect("a table").into());
        let explained = planning(ranks, &tuned).explain(collective, 4096).expect("explained");
        (explained.origin, explained.chosen().is_some_and(|of| of.algorithm == imported))
    };
    assert_eq!(chosen(fold), (Origin::Tuned, true));
    assert_eq!(
        chosen(fold ^ 1),
        (Origin::Priced, false),
        "it folds in another order than when it was measured"
    );
}

#[test]
fn what_was_measured_is_preferred_unless_it_folds_differently_now() {
    let plain = settings(|options| options);
    let reference = planning(4, &plain);
    let tree = Algorithm::Tree;
    let fold = reference.fold_hash(tree, Collective::AllReduce).expect("trees are proved");
    let with = |table: Tuning| {
        let mut tuned = plain.clone();
        tuned.preferences.tuning = Some(table.into());
        planning(4, &tuned)
    };
    let explain =
        |planning: &Planning| planning.explain(Collective::AllReduce, 4096).expect("an explanation");
    let tuned = explain(&with(table(&reference, tree, fold)));
    assert_eq!((tuned.origin, tuned.chosen().map(|c| c.algorithm)), (Origin::Tuned, Some(tree)));
    assert_eq!(tuned.slot_bytes, SLOT_BYTES_MIN, "short messages have their own slots");
    let other_fold = explain(&with(table(&reference, tree, fold ^ 1)));
    assert_eq!(other_fold.origin, Origin::Priced);
    let elsewhere = Tuning { machine: "hosts=9".into(), ..table(&reference, tree, fold) };
    assert_eq!(explain(&with(elsewhere)).origin, Origin::Priced);
}

#[test]
fn what_choices_depend_on_is_in_the_key() {
    let machine = Machine::of_one_host(4, 4);
    let plain = Planning::key(&machine, &settings(|options| options));
    let others = [
        Planning::key(&Machine { cores: 2, ..machine.clone() }, &settings(|options| options)),
        Planning::key(&machine, &settings(|options| options.algorithms("ring"))),
        Planning::key(&machine, &settings(|options| options.channels(2))),
        Planning::key(&machine, &settings(|options| options.determinism(Determinism::Invariant))),
        Planning::key(&machine, &settings(|options| options.topology("host:4"))),
    ];
    let all: BTreeSet<u64> = others.into_iter().chain([plain]).collect();
    assert_eq!(all.len(), 6);
    assert_ne!(digest("a"), digest("b"));
}

#[test]
fn sizes_of_a_class_share_a_choice_and_calls_may_name_theirs() {
    assert_eq!([0, 1, 2, 3, 4096, 4097].map(size_class), [1, 1, 2, 4, 4096, 8192]);
    let planning = planning(4, &settings(|options| options));
    let call = |count| Call::all_reduce(DataType::Uint8, ReduceOp::Sum, count);
    let known = Choice::of(&planning, &call(5000)).expect("a choice");
    assert_eq!(Choice::of(&planning, &call(8192)).ok(), Some(known));
    let named = Call { algorithm: Some(Algorithm::Tree), ..call(5000) };
    let named = Choice::of(&planning, &named).expect("trees are defined").program.algorithm;
    assert_eq!(named, Algorithm::Tree);
    let impossible = Call { algorithm: Some(Algorithm::Pairwise), ..call(8) };
    let error = Choice::of(&planning, &impossible).expect_err("no all-reduce").to_string();
    assert!(error.contains("possible: ring"), "{error}");
}

#[test]
fn among_many_ranks_one_makes_its_plan_alone() {
    let program = |ranks| Program {
        collective: Collective::AllReduce,
        ranks,
        algorithm: Algorithm::Ring { channels: 1, bidirectional: false },
    };
    let plan = |ranks, rank| {
        let planner = Planner::default();
        let proved = planner.plan(program(ranks), rank, vec![true; ranks as usize]).expect("a proved plan");
        assert_eq!((proved.plan.rank.0, proved.plan.ranks), (rank, ranks));
        proved
    };
    // Alone, and with all others.
    let steps = |ranks: u32| plan(ranks, ranks - 1).plan.steps.len() as u32;
    assert_eq!(steps(65) - steps(64), steps(64) - steps(63));
    let many = plan(2000, 7);
    assert_eq!(many.fold_hash, plan(2000, 1999).fold_hash);
    // Ranks of many hosts reach none but themselves in memory.
    let mut remote = vec![false; 2000];
    remote[5] = true;
    let far = Planner::default().plan(program(2000), 5, remote).expect("a proved plan");
    assert_eq!(far.fold_hash, many.fold_hash);
    // Where links differ, the symmetry does not hold.
    let mut mapped = vec![true; 66];
    mapped[3] = false;
    let mixed = Planner::default().plan(program(66), 2, mapped).expect("a proved plan");
    assert_eq!(mixed.fold_hash, plan(66, 2).fold_hash);
}

#[test]
fn what_is_chosen_for_many_ranks_can_be_proved_and_has_a_price() {
    for (ranks, determinism) in
        [(24, Determinism::Invariant), (65, Determinism::Invariant), (1024, Determinism::Run)]
    {
        let planning = planning(ranks, &settings(|options| options.determinism(determinism)));
        for collective in Collective::ALL {
            for bytes in [8, 1 << 20] {
                for algorithm in planning.candidates(collective).expect("some are left") {
                    let price = planning.price(algorithm, collective, bytes);
                    assert!(price.is_finite() && price > 0.0, "{algorithm} of {collective} over {ranks}");
                }
                let chosen = planning.choose(collective, bytes).expect("a choice").algorithm;
                if determinism == Determinism::Invariant && collective == Collective::AllReduce && bytes > 8 {
                    assert_eq!(chosen, Algorithm::TwoShot, "over {ranks}");
                }
                if ranks == 1024 && matches!(collective, Collective::AllReduce | Collective::AllGather) {
                    let program = Program { collective, ranks, algorithm: chosen };
                    let proved = Planner::default().plan(program, 1, vec![true; 1024]);
                    assert!(proved.is_ok(), "{chosen} of {collective}: {:?}", proved.err());
                }
            }
        }
    }
}

#[test]
fn what_is_found_on_a_machine_is_a_candidate_where_links_justify_it() {
    let planning = |name: &str| {
        let topology = consort_algorithms::topology::profile(name).expect("a profile");
        Planning::for_topology(&topology, &crate::Options::default()).expect("a plan")
    };
    let found = |planning: &Planning, collective: Collective| -> Vec<Algorithm> {
        let all = planning.candidates(collective).expect("candidates").into_iter();
        all.filter(|algorithm| algorithm.is_imported()).collect()
    };
    let boxes = planning("dgx-h100:2");
    for collective in [Collective::AllReduce, Collective::AllGather, Collective::ReduceScatter] {
        let bytes = if collective == Collective::AllReduce { 64 << 20 } else { 16 << 20 };
        let chosen = boxes.algorithm(collective, bytes).expect("a choice");
        let found = found(&boxes, collective);
        // It is chosen by its price.
        let price = |algorithm| boxes.price(algorithm, collective, bytes);
        let best = found.iter().copied().min_by(|one, other| price(*one).total_cmp(&price(*other)));
        let best = best.expect("something is found");
        assert!(chosen.is_along_rails() && price(chosen) < price(best), "{collective}: {chosen} for {best}");
        assert!(boxes.is_searched(best, collective) && !boxes.is_searched(Algorithm::RING, collective));
        assert!(price(best) * 2.0 < price(Algorithm::RING), "{collective}");
        assert!(boxes.algorithm(collective, 8).is_ok_and(|of| !found.contains(&of)), "{collective}: short");
    }
    let broadcast = Collective::Broadcast;
    let chosen = boxes.algorithm(broadcast, 256 << 20).expect("a choice");
    assert!(found(&boxes, broadcast).contains(&chosen), "{chosen}");
    // No price is below what links carry: 257.14 GB/s of an all-reduce on one box.
    let one = planning("dgx-h100:1");
    for algorithm in found(&one, Collective::AllReduce) {
        let seconds = one.price(algorithm, Collective::AllReduce, 256 << 20);
        assert!(f64::from(256 << 20) / seconds <= 257.15e9, "{algorithm}: {seconds}");
    }
    // Rings that need as many channels as there may be, and would have too many messages with these.
    for name in ["dgx-h100:3", "dgx-h100:4"] {
        let names: Vec<&str> =
            found(&planning(name), Collective::AllReduce).iter().map(|of| of.family().name()).collect();
        assert!(names.iter().any(|of| of.starts_with("rings-")), "{name}: {names:?}");
    }
    for name in ["host:8", "tcp:4x2", "tcp:2x1"] {
        assert!(found(&planning(name), Collective::AllReduce).is_empty(), "{name}");
    }
}
