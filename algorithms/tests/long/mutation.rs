//! Small damage to every builder's plans: a damaged plan that the verifier accepts must run correctly.
//!
//! Every single-step mutant that is not refused is shown to be a correct program by an executor that shares no code
//! with the verifier. Larger sets are sampled, with a printed seed; `CONSORT_MUTANTS=all cargo test --release -p
//! consort-algorithms --test long mutation::` takes every mutant of every rank, for much longer.

use std::collections::BTreeMap;
use std::fmt::Arguments;

use consort_algorithms::builders::{
    PartnerOrder, RingOptions, SwitchForm, binomial, binomial_is_defined, blueconnect_is_defined, box_tree,
    bruck_all_gather, bruck_all_to_all, direct, direct_is_defined, direct_reduce, double_tree, doubling,
    halving_doubling, halving_doubling_is_defined, hierarchical, hierarchical_is_defined, one_shot, pair,
    pairwise, pat, pat_is_defined, ring, ring_is_defined, scatter_all_gather, spread_out, swing,
    swing_is_defined, switch, torus2d, tree, tree_is_defined, two_shot,
};
use consort_algorithms::passes::fuse;
use consort_algorithms::plan::{Action, Extent, Lane, Position, Region, Step};
use consort_algorithms::{
    Chunk, Collective, LowerOptions, Plan, Rank, Schedule, lower_all, lower_switch, mapped, verify,
};

use crate::common::{Random, execute_often, seed};

/// The damages to one plan that are drawn; the others are not made.
struct Drawn<'a> {
    plan: &'a Plan,
    odds: usize,
    random: &'a mut Random,
    /// Which step is damaged: its lane and its number there.
    at: (usize, usize),
    made: Vec<(String, Plan)>,
}

impl Drawn<'_> {
    fn plan(&mut self, what: Arguments<'_>, damage: impl FnOnce(&mut Plan)) {
        if self.random.one_in(self.odds) {
            let mut mutant = self.plan.clone();
            damage(&mut mutant);
            if mutant != *self.plan {
                let (lane, step) = self.at;
                self.made.push((format!("{} lane {lane} step {step}: {what}", self.plan.rank), mutant));
            }
        }
    }

    /// Damage to the steps of the lane, whose number may change.
    fn steps(&mut self, what: Arguments<'_>, damage: impl FnOnce(&mut Vec<Step>)) {
        let lane = self.at.0;
        self.plan(what, |plan| {
            let Lane { start, end, .. } = plan.lanes[lane];
            let mut steps = plan.lane(&plan.lanes[lane]).to_vec();
            damage(&mut steps);
            let count = steps.len() as u32;
            plan.steps.splice(start as usize..end as usize, steps);
            plan.lanes[lane].end = start + count;
            for later in &mut plan.lanes[lane + 1..] {
                (later.start, later.end) =
                    (later.start + start + count - end, later.end + start + count - end);
            }
        });
    }
}

/// One in `odds` of the single damages to a plan, each with its name.
fn mutants(plan: &Plan, odds: usize, random: &mut Random) -> Vec<(String, Plan)> {
    let mut drawn = Drawn { plan, odds, random, at: (0, 0), made: Vec::new() };
    for (lane, range) in plan.lanes.iter().enumerate() {
        let count = (range.end - range.start) as usize;
        for at in 0..count {
            drawn.at = (lane, at);
            step_mutants(&mut drawn, plan.steps[range.start as usize + at], at, count);
        }
    }
    drawn.made
}

/// Damages to step `at` of the `count` in its lane.
fn step_mutants(drawn: &mut Drawn<'_>, step: Step, at: usize, count: usize) {
    let plan = drawn.plan;
    drawn.steps(format_args!("drop"), |steps| {
        steps.remove(at);
    });
    drawn.steps(format_args!("duplicate"), |steps| steps.insert(at, step));
    for distance in 1..=4 {
        if at + distance < count {
            drawn.steps(format_args!("move by {distance}"), |steps| {
                let step = steps.remove(at);
                steps.insert(at + distance, step);
            });
            drawn.steps(format_args!("swap by {distance}"), |steps| steps.swap(at, at + distance));
        }
    }
    for flag in [Step::FINISH, Step::PACKET, Step::COUNTED] {
        drawn.steps(format_args!("flag {flag}"), |steps| steps[at].flags ^= flag);
    }
    for bit in 0..u32::from(step.sources) {
        drawn.steps(format_args!("raw bit {bit}"), |steps| steps[at].raw ^= 1 << bit);
    }
    for action in [Action::Copy, Action::Reduce, Action::Put, Action::Get, Action::Signal, Action::Wait] {
        if action != step.action {
            drawn.steps(format_args!("{action:?}"), |steps| steps[at].action = action);
        }
    }
    for change in [-2, -1, 1, 2] {
        drawn.steps(format_args!("value {change:+}"), |steps| steps[at].value += change);
    }
    if matches!(step.action, Action::Signal | Action::Wait) {
        for counter in (0..plan.counters.len() as u32).filter(|&counter| counter != step.counter) {
            drawn.steps(format_args!("counter {counter}"), |steps| steps[at].counter = counter);
        }
        return;
    }
    let chunks = 2 * plan.partition.parts * plan.ranks;
    for chunk in (0..chunks.min(6)).map(|chunk| Extent::chunk(Chunk(chunk))) {
        if chunk != step.extent {
            drawn.steps(format_args!("extent {chunk:?}"), |steps| steps[at].extent = chunk);
        }
    }
    operand_mutants(drawn, &step);
}

fn operand_mutants(drawn: &mut Drawn<'_>, step: &Step) {
    let plan = drawn.plan;
    let first = step.operands as usize;
    for operand in first..first + usize::from(step.targets + step.sources) {
        let (old, which) = (plan.operands[operand], operand - first);
        let positions = match old.position {
            Position::Chunk(chunk) => {
                let chunks = plan.partition.parts * plan.ranks;
                (1..chunks.min(4)).map(|by| Position::Chunk(Chunk((chunk.0 + by) % chunks))).collect()
            }
            Position::Slot(slot) => vec![Position::Slot(slot + 1), Position::Slot(slot.saturating_sub(1))],
            Position::Scratch(place) => vec![Position::Scratch(place ^ 1)],
            Position::Table(_) => Vec::new(),
        };
        for position in positions.into_iter().filter(|&position| position != old.position) {
            let what = format_args!("operand {which}: {position:?}");
            drawn.plan(what, |mutant| mutant.operands[operand].position = position);
            // The same with the chunk's length.
            if let Position::Chunk(chunk) = position {
                let index = plan.steps.iter().position(|other| other == step).unwrap_or(0);
                drawn.plan(format_args!("operand {which}: {position:?} and extent"), |mutant| {
                    mutant.operands[operand].position = position;
                    mutant.steps[index].extent = Extent::chunk(chunk);
                });
            }
        }
        for region in (0..plan.regions.len() as u16).filter(|&region| region != old.region) {
            let what = format_args!("operand {which}: region {region}");
            drawn.plan(what, |mutant| mutant.operands[operand].region = region);
            let position = match plan.regions[usize::from(region)].region {
                Region::Mailbox { .. } => Position::Slot(0),
                Region::Scratch => Position::Scratch(0),
                _ => Position::Chunk(step.extent.as_chunk().unwrap_or(Chunk(0))),
            };
            drawn.plan(format_args!("operand {which}: region {region} at {position:?}"), |mutant| {
                mutant.operands[operand].region = region;
                mutant.operands[operand].position = position;
            });
        }
    }
    if step.sources == 2 {
        let at = first + usize::from(step.targets);
        drawn.plan(format_args!("sources swapped"), |mutant| mutant.operands.swap(at, at + 1));
    }
}

#[derive(Default)]
struct Tally {
    made: usize,
    let_through: usize,
    /// The mutants that were accepted, by the kind of damage.
    kinds: BTreeMap<String, usize>,
}

fn attack(plans: &[Plan], odds: usize, what: &str, tally: &mut Tally, random: &mut Random) {
    let rounds = 4;
    execute_often(plans, rounds, 4).unwrap_or_else(|fault| panic!("{what}, undamaged: {fault}"));
    verify(plans).unwrap_or_else(|refusal| panic!("{what}, undamaged: {refusal}"));
    let mut set = plans.to_vec();
    for rank in 0..plans.len() {
        for (name, mutant) in mutants(&plans[rank], odds, random) {
            let original = std::mem::replace(&mut set[rank], mutant);
            tally.made += 1;
            if verify(&set).is_ok() {
                tally.let_through += 1;
                let kind: String = name.split(": ").skip(1).collect::<Vec<_>>().join(" ");
                *tally.kinds.entry(kind).or_default() += 1;
                if let Err(fault) = execute_often(&set, rounds, 5) {
                    panic!("{what}, {name}: let through, but {fault}");
                }
            }
            set[rank] = original;
        }
    }
}

/// Every builder's schedules over few ranks; a builder that is not here is not attacked.
fn schedules() -> Vec<Schedule> {
    let mut made = vec![pair()];
    for ranks in [2u32, 3, 4, 5, 8] {
        let defined = |is_defined: &dyn Fn(Collective) -> bool, build: &dyn Fn(Collective) -> Schedule| {
            let defined = Collective::ALL.into_iter().filter(|&collective| is_defined(collective));
            defined.map(build).collect::<Vec<Schedule>>()
        };
        for bidirectional in [false, true] {
            let options = RingOptions { channels: 1, bidirectional };
            made.extend(defined(&ring_is_defined, &|collective| ring(collective, ranks, options)));
        }
        made.extend([doubling(ranks), one_shot(ranks), two_shot(ranks), scatter_all_gather(ranks)]);
        made.extend([
            bruck_all_gather(ranks),
            bruck_all_to_all(ranks, 2),
            pairwise(ranks),
            spread_out(ranks),
        ]);
        made.extend(defined(&tree_is_defined, &|collective| tree(collective, ranks)));
        made.extend(defined(&tree_is_defined, &|collective| double_tree(collective, ranks)));
        made.extend(defined(&binomial_is_defined, &|collective| binomial(collective, ranks)));
        made.extend(defined(&direct_is_defined, &|collective| direct(collective, ranks)));
        made.extend(defined(&pat_is_defined, &|collective| pat(collective, ranks, 2)));
        let is_defined = |collective| halving_doubling_is_defined(collective, ranks);
        for order in [PartnerOrder::FarFirst, PartnerOrder::NearFirst] {
            made.extend(defined(&is_defined, &|collective| halving_doubling(collective, ranks, order)));
        }
        let is_defined = |collective| swing_is_defined(collective, &[ranks]);
        made.extend(defined(&is_defined, &|collective| swing(collective, &[ranks])));
    }
    for (columns, rows) in [(2, 2), (2, 3), (4, 2)] {
        let defined = Collective::ALL.into_iter().filter(|&collective| blueconnect_is_defined(collective));
        made.extend(defined.map(|collective| torus2d(collective, columns, rows)));
    }
    for (boxes, per_box) in [(2, 2), (2, 3)] {
        let defined = Collective::ALL.into_iter().filter(|&collective| hierarchical_is_defined(collective));
        made.extend(defined.map(|collective| hierarchical(collective, boxes, per_box, &inner, &inner)));
    }
    made.extend([(2, 2), (3, 2)].map(|(boxes, per_box)| box_tree(boxes, per_box)));
    made.push(direct_reduce(4, 2));
    made.extend([SwitchForm::OneShot, SwitchForm::TwoStep].map(|form| switch(3, form)));
    made
}

/// The schedule along one dimension.
fn inner(collective: Collective, ranks: u32) -> Schedule {
    match collective {
        Collective::AllToAll => pairwise(ranks),
        _ => ring(collective, ranks, RingOptions::default()),
    }
}

/// The plans of all ranks: over mailboxes, or where a switch folds over the group.
fn lowered(schedule: &Schedule) -> Vec<Plan> {
    let plans = match schedule.switches {
        0 => lower_all(schedule, &LowerOptions { slots: 4 }),
        _ => (0..schedule.ranks).map(|rank| lower_switch(schedule, Rank(rank))).collect(),
    };
    plans.unwrap_or_else(|error| panic!("{} over {}: {error}", schedule.name, schedule.ranks))
}

fn attack_all(form: &str, sets: impl IntoIterator<Item = Vec<Plan>>) {
    let all = std::env::var_os("CONSORT_MUTANTS").is_some_and(|value| value == "all");
    let mut random = Random(seed(20_240_607));
    let mut tally = Tally::default();
    for plans in sets {
        let steps: usize = plans.iter().map(|plan| plan.steps.len()).sum();
        let odds = if all { 1 } else { 1 + steps * steps / 300 + steps / 2 };
        let Plan { name, collective, ranks, .. } = &plans[0];
        attack(
            &plans,
            odds,
            &format!("{name} of {collective} over {ranks}, {form}"),
            &mut tally,
            &mut random,
        );
    }
    let Tally { made, let_through, kinds } = tally;
    println!("{form}: let through by kind: {kinds:?}");
    println!(
        "{form}: {made} mutants: {} refused, {let_through} let through and shown correct",
        made - let_through
    );
    assert!(made > 2_000 && let_through > 0 && let_through * 4 < made);
}

#[test]
fn what_is_let_through_of_plain_plans_runs_correctly() {
    attack_all("plain", schedules().iter().map(lowered));
}

#[test]
fn what_is_let_through_of_fused_plans_runs_correctly() {
    let fused = |plans: Vec<Plan>| plans.iter().map(|plan| fuse(plan, &|_| true)).collect();
    attack_all("fused", schedules().iter().map(lowered).map(fused));
}

#[test]
fn what_is_let_through_of_mapped_plans_runs_correctly() {
    let sets = (2..=8u32).flat_map(|ranks| {
        Collective::ALL.into_iter().filter_map(move |collective| mapped(collective, ranks))
    });
    attack_all("mapped", sets);
}
