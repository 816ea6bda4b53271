//! Regular schedules: a rank's own plan without the others', and the proof of all of them from one.
//!
//! The full verifier and the one by symmetry must agree wherever both run, on schedules as they are built and on
//! damaged ones; the damage moves along with the ranks, so that the damaged schedule is as symmetric.

use consort_algorithms::builders::{
    Doubling, Ring, RingGrid, RingOptions, blueconnect, blueconnect_is_defined, ring_is_defined,
};
use consort_algorithms::passes::fuse;
use consort_algorithms::plan::Step;
use consort_algorithms::{
    Collective, LowerOptions, Own, Place, Plan, Rank, Refusal, Regular, Round, Schedule, Symmetry, lower,
    lower_all, lower_one, verify, verify_regular, whole,
};

fn rings(ranks: u32) -> Vec<Box<dyn Regular>> {
    let mut made: Vec<Box<dyn Regular>> = Vec::new();
    for collective in Collective::ALL.into_iter().filter(|&collective| ring_is_defined(collective)) {
        for (channels, bidirectional) in [(1, false), (2, false), (1, true), (3, true)] {
            if ranks <= 12 || channels == 1 {
                made.push(Box::new(Ring::new(collective, ranks, RingOptions { channels, bidirectional })));
            }
        }
    }
    made
}

/// The grids of two dimensions, and one of three.
fn dimensions(ranks: u32) -> Vec<Vec<u32>> {
    let divisors = (2..ranks).filter(|divisor| ranks.is_multiple_of(*divisor));
    let mut made: Vec<Vec<u32>> = divisors.map(|divisor| vec![divisor, ranks / divisor]).collect();
    let half = made.iter().find(|two| two[1].is_multiple_of(2) && two[1] > 2).cloned();
    made.extend(half.map(|two| vec![two[0], two[1] / 2, 2]));
    made
}

fn grids(ranks: u32) -> Vec<Box<dyn Regular>> {
    let mut made: Vec<Box<dyn Regular>> = Vec::new();
    for collective in Collective::ALL.into_iter().filter(|&collective| blueconnect_is_defined(collective)) {
        for dimensions in dimensions(ranks) {
            let grid = RingGrid::new("grid", collective, &dimensions).expect("there are two ranks");
            made.push(Box::new(grid));
        }
    }
    made
}

#[test]
fn a_grid_rank_by_rank_is_the_grid() {
    for ranks in (4..=24).chain([36, 48, 64]) {
        for collective in Collective::ALL.into_iter().filter(|&collective| blueconnect_is_defined(collective))
        {
            for dimensions in dimensions(ranks) {
                let grid = RingGrid::new("", collective, &dimensions).expect("there are two ranks");
                let (mine, all) = (whole(&grid), blueconnect(collective, &dimensions));
                assert_eq!((mine.partition, mine.rounds.len()), (all.partition, all.rounds.len()));
                for (mine, all) in mine.rounds.iter().zip(&all.rounds) {
                    // Ranks follow each other in another order; what one sends has the same.
                    let of_ranks = |round: &Round| {
                        let mut transfers = round.transfers.clone();
                        transfers.sort_by_key(|transfer| (transfer.from, transfer.to));
                        transfers
                    };
                    assert_eq!(of_ranks(mine), of_ranks(all), "{collective} over {dimensions:?}");
                }
            }
        }
    }
}

fn regulars(ranks: u32) -> Vec<Box<dyn Regular>> {
    let mut made = rings(ranks);
    made.extend(grids(ranks).into_iter().filter(|_| ranks <= 17));
    made.push(Box::new(Doubling::new(ranks)));
    made
}

/// The numbers of ranks that are tried.
fn sizes() -> impl Iterator<Item = u32> {
    (1..=12).chain([16, 17, 31, 32, 63, 64])
}

fn name(regular: &dyn Regular) -> String {
    let head = regular.head();
    format!("{} of {} over {}", head.name, head.collective, head.ranks)
}

#[test]
fn the_own_plan_is_the_one_of_the_whole_schedule() {
    for regular in (1..=64)
        .flat_map(|ranks| {
            if ranks <= 8 {
                regulars(ranks)
            } else {
                vec![Box::new(Doubling::new(ranks)) as Box<dyn Regular>]
            }
        })
        .chain([16, 33, 64].into_iter().flat_map(rings))
        .chain([12, 16, 30].into_iter().flat_map(grids))
    {
        let what = name(&*regular);
        let schedule = whole(&*regular);
        for slots in [1, 4] {
            let options = LowerOptions { slots };
            let all = lower_all(&schedule, &options).unwrap_or_else(|error| panic!("{what}: {error}"));
            for (rank, plan) in (0..).map(Rank).zip(&all) {
                assert_eq!(lower_one(&*regular, rank, &options).as_ref(), Ok(plan), "{what}, {rank}");
            }
            let middle = Rank(schedule.ranks / 2);
            assert_eq!(lower(&schedule, middle, &options).as_ref(), Ok(&all[middle.index()]));
        }
    }
}

fn plans(regular: &dyn Regular, slots: u32, fused: bool) -> Vec<Plan> {
    let plans = (0..regular.head().ranks).map(|rank| lower_one(regular, Rank(rank), &LowerOptions { slots }));
    let plans: Vec<Plan> = plans.collect::<Result<_, _>>().expect("regular schedules lower");
    if fused { plans.iter().map(|plan| fuse(plan, &|_| true)).collect() } else { plans }
}

#[test]
fn one_rank_proves_what_all_do() {
    let mut refused = 0;
    let large = [24, 36].into_iter().flat_map(grids);
    for regular in sizes().flat_map(regulars).chain(large).filter(|regular| regular.symmetry().is_some()) {
        let ranks = regular.head().ranks;
        for (slots, fused) in (1..=4).flat_map(|slots| [(slots, false), (slots, true)]) {
            if ranks > 17 && slots % 2 == 1 {
                continue;
            }
            let what = format!("{}, {slots} slots, fused: {fused}", name(&*regular));
            let plans = plans(&*regular, slots, fused);
            let full = verify(&plans);
            refused += usize::from(full.is_err());
            for rank in [0, ranks / 3, ranks - 1] {
                match (&full, verify_regular(&*regular, &plans[rank as usize])) {
                    (Ok(full), Ok(proof)) => assert_eq!(*full, proof, "{what}, rank {rank}"),
                    (Err(Refusal::Stuck { .. }), Err(Refusal::Stuck { .. })) => {}
                    (full, other) => panic!("{what}, rank {rank}: {full:?} and {other:?}"),
                }
            }
        }
    }
    assert!(refused > 10, "fused rings with one slot are stuck, {refused} were");
}

/// Damage that is the same on all ranks.
#[derive(Clone, Copy, Debug)]
enum Damage {
    Dropped(u32),
    Doubled(u32),
    NotFolded(u32),
    OtherOrder(u32),
    FromInput(u32),
    Completes(u32),
    /// On one rank only: not symmetric.
    OneRank(u32),
}

struct Damaged<'a>(&'a dyn Regular, Damage);

impl Regular for Damaged<'_> {
    fn head(&self) -> Schedule {
        self.0.head()
    }

    fn own(&self, rank: Rank, take: &mut dyn FnMut(Own)) {
        self.0.own(rank, &mut |own| {
            let mut damaged = own;
            let transfer = &mut damaged.transfer;
            match self.1 {
                Damage::Dropped(round) if own.round == round => return,
                Damage::Doubled(round) if own.round == round => take(own),
                Damage::NotFolded(round) if own.round == round => transfer.fold = None,
                Damage::OtherOrder(round) if own.round == round => transfer.own_first ^= true,
                Damage::FromInput(round) if own.round == round => {
                    if let Place::Scratch(chunk) | Place::Output(chunk) = transfer.source {
                        transfer.source = Place::Input(chunk);
                    }
                }
                Damage::Completes(round) if own.round == round => damaged.complete ^= true,
                Damage::OneRank(round) if own.round == round && transfer.to == Rank(1) => {
                    transfer.own_first ^= true;
                }
                _ => {}
            }
            take(damaged);
        });
    }

    fn symmetry(&self) -> Option<Symmetry> {
        self.0.symmetry()
    }

    fn piece(&self, by: Rank, piece: u32) -> u32 {
        self.0.piece(by, piece)
    }
}

#[test]
fn damaged_schedules_are_refused_by_both() {
    let (mut refused, mut proved) = (0, 0);
    for regular in
        [2, 3, 4, 5, 8].into_iter().flat_map(regulars).filter(|regular| regular.symmetry().is_some())
    {
        let rounds = whole(&*regular).rounds.len() as u32;
        let kinds: [fn(u32) -> Damage; 6] = [
            Damage::Dropped,
            Damage::Doubled,
            Damage::NotFolded,
            Damage::OtherOrder,
            Damage::FromInput,
            Damage::Completes,
        ];
        for damage in (0..rounds).flat_map(|round| kinds.map(|kind| kind(round))) {
            let damaged = Damaged(&*regular, damage);
            let ranks = (0..damaged.head().ranks).map(Rank);
            let plans = ranks.map(|rank| lower_one(&damaged, rank, &LowerOptions { slots: 2 }));
            let Ok(plans) = plans.collect::<Result<Vec<Plan>, _>>() else { continue };
            for fused in [false, true] {
                let mapped = |plan: &Plan| if fused { fuse(plan, &|_| true) } else { plan.clone() };
                let plans: Vec<Plan> = plans.iter().map(mapped).collect();
                let full = verify(&plans);
                for plan in [&plans[0], &plans[plans.len() - 1]] {
                    let one = verify_regular(&damaged, plan);
                    let what = format!("{}, {damage:?}, fused: {fused}", name(&*regular));
                    let order = matches!(damage, Damage::OtherOrder(_)) && full.is_ok();
                    if order && matches!(one, Err(Refusal::Asymmetric { .. })) {
                        // Where two ranks meet, the higher one's value now comes first, against the claim.
                        continue;
                    }
                    assert_eq!(full.is_ok(), one.is_ok(), "{what}: {full:?} and {one:?}");
                    if let (Ok(full), Ok(one)) = (&full, &one) {
                        assert_eq!(full, one, "{what}");
                    }
                }
                *if full.is_ok() { &mut proved } else { &mut refused } += 1;
            }
        }
    }
    println!("{refused} damaged schedules refused by both verifiers, {proved} proved by both");
    assert!(refused > 500 && proved > 100, "{refused} and {proved}");
}

#[test]
fn what_is_not_symmetric_is_seen_by_the_rank_or_a_peer() {
    let ring = Ring::new(Collective::AllReduce, 6, RingOptions::default());
    let doubling = Doubling::new(8);
    for regular in [&ring as &dyn Regular, &doubling] {
        let damaged = Damaged(regular, Damage::OneRank(1));
        let ranks = 0..regular.head().ranks;
        let plan = |rank| lower_one(&damaged, Rank(rank), &LowerOptions { slots: 2 }).expect("it lowers");
        let refused = ranks
            .filter(|&rank| matches!(verify_regular(&damaged, &plan(rank)), Err(Refusal::Asymmetric { .. })));
        let refused: Vec<u32> = refused.collect();
        assert!(refused.contains(&1) && refused.len() >= 2, "{}: {refused:?}", name(regular));
    }
    let chain = Ring::new(Collective::Broadcast, 4, RingOptions::default());
    let plan = lower_one(&chain, Rank(0), &LowerOptions { slots: 2 }).expect("it lowers");
    assert!(matches!(verify_regular(&chain, &plan), Err(Refusal::Asymmetric { .. })));
}

/// The same step of every rank's plan dropped, doubled, moved or changed.
fn damaged_step(plan: &Plan, at: usize, kind: usize) -> Option<Plan> {
    let mut damaged = plan.clone();
    let lane = damaged.lanes.iter().position(|lane| (lane.start..lane.end).contains(&(at as u32)))?;
    let end = damaged.lanes[lane].end as usize;
    let mut by = 0;
    match kind {
        0 => {
            damaged.steps.remove(at);
            by = -1;
        }
        1 => {
            damaged.steps.insert(at, plan.steps[at]);
            by = 1;
        }
        2..=5 if at + kind - 1 < end => damaged.steps.swap(at, at + kind - 1),
        6 => damaged.steps[at].value += 1,
        7 => damaged.steps[at].value -= 1,
        8 => damaged.steps[at].flags ^= Step::FINISH,
        9 => damaged.steps[at].raw ^= 1,
        10 if damaged.steps[at].counter > 0 => damaged.steps[at].counter -= 1,
        11 if damaged.steps[at].sources > 1 => {
            let first = plan.steps[at].operands as usize + usize::from(plan.steps[at].targets);
            damaged.operands.swap(first, first + 1);
        }
        _ => return None,
    }
    for (index, lane) in damaged.lanes.iter_mut().enumerate().skip(lane) {
        lane.end = lane.end.checked_add_signed(by)?;
        if index > 0 && lane.start > at as u32 {
            lane.start = lane.start.checked_add_signed(by)?;
        }
    }
    Some(damaged)
}

#[test]
fn damaged_plans_that_one_rank_proves_are_proved_in_full() {
    let (mut refused, mut proved, mut stricter) = (0, 0, 0);
    for regular in [2, 3, 4].into_iter().flat_map(regulars).filter(|regular| regular.symmetry().is_some()) {
        for (slots, fused) in [(1, false), (2, false), (2, true), (3, true)] {
            let plans = plans(&*regular, slots, fused);
            let steps = plans[0].steps.len();
            for (at, kind) in (0..steps).flat_map(|at| (0..12).map(move |kind| (at, kind))) {
                let damaged: Option<Vec<Plan>> =
                    plans.iter().map(|plan| damaged_step(plan, at, kind)).collect();
                let Some(damaged) = damaged else { continue };
                let (full, one) = (verify(&damaged), verify_regular(&*regular, &damaged[plans.len() - 1]));
                let what = format!("{}, step {at}, damage {kind}, {slots} slots", name(&*regular));
                match (full, one) {
                    (Ok(full), Ok(one)) => {
                        assert_eq!(full, one, "{what}");
                        proved += 1;
                    }
                    (Ok(_), Err(refusal)) => {
                        stricter += 1;
                        if stricter < 6 {
                            println!("{what}: only by the full verifier: {refusal}");
                        }
                    }
                    (Err(_), Err(_)) => refused += 1,
                    (Err(full), Ok(_)) => panic!("{what}: one rank proves what is wrong: {full}"),
                }
            }
        }
    }
    println!("{refused} refused by both, {proved} proved by both, {stricter} by the full verifier only");
    assert!(
        refused > 5_000 && proved > 500 && stricter * 20 < proved + refused,
        "{refused} {proved} {stricter}"
    );
}
