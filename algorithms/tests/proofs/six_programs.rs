//! The six programs that usually break plan formats (ADR 1), written by hand and proved; and for each, the
//! nearest wrong program, refused. `CONSORT_SNAPSHOTS=write cargo test` writes their listings anew.

use consort_algorithms::export::plan_text;
use consort_algorithms::plan::{Action, CounterRole, Engine, Extent, Position, Region, Step};
use consort_algorithms::{Chunk, Collective, Plan, Rank, Refusal, verify};

use crate::common::hand::{Hand, Spot, counter, flag, input, output, scratch, settle, slot};
use crate::common::{execute_often, snapshot};

fn len(chunk: u32) -> Extent {
    Extent::chunk(Chunk(chunk))
}

fn every_rank(ranks: u32, program: impl Fn(u32) -> Hand) -> Vec<Plan> {
    settle((0..ranks).map(program).collect())
}

/// Proves, runs, and compares the listing of rank 0 with the committed one.
fn accept(plans: &[Plan], name: &str) {
    verify(plans).unwrap_or_else(|refusal| panic!("{name}: {refusal}"));
    execute_often(plans, 4, 20).unwrap_or_else(|fault| panic!("{name}: {fault}"));
    snapshot(&format!("{name}.txt"), &plan_text(&plans[0]));
}

fn without(plans: &[Plan], rank: usize, step: usize) -> Vec<Plan> {
    let mut plans = plans.to_vec();
    plans[rank].steps.remove(step);
    plans[rank].lanes[0].end -= 1;
    plans
}

/// The last step of rank `rank` of that action.
fn last(plans: &[Plan], rank: usize, action: Action) -> usize {
    plans[rank].steps.iter().rposition(|step| step.action == action).expect("there is one")
}

fn refuse_race(plans: &[Plan]) {
    match verify(plans) {
        Err(Refusal::Race { .. }) => {}
        other => panic!("expected a race, got {other:?}"),
    }
}

/// Every rank reads all inputs in place: no slots, no copies.
fn mapped(ranks: u32) -> Vec<Plan> {
    every_rank(ranks, |me| {
        let mut hand = Hand::new("mapped", Collective::AllReduce, me, ranks, ranks, 1);
        hand.lane(Engine::Processor);
        hand.barrier(0);
        let sources: Vec<Spot> = (0..ranks).map(|rank| input(rank, me)).collect();
        let raw = (1 << ranks) - 1;
        hand.act(Action::Reduce, len(me), &[output(me, me)], &sources, raw, Step::FINISH);
        hand.barrier(1);
        for peer in (0..ranks).filter(|&peer| peer != me) {
            hand.copy(len(peer), output(me, peer), output(peer, peer));
        }
        hand.barrier(2);
        hand
    })
}

#[test]
fn mapped_buffer_host_all_reduce() {
    let plans = mapped(3);
    accept(&plans, "six_1_mapped_all_reduce");
    // A rank that returns while a peer still reads its output.
    refuse_race(&without(&plans, 1, last(&plans, 1, Action::Wait)));
    // A rank that reads an input before its owner has entered.
    refuse_race(&without(&plans, 0, 2));
}

/// Every rank stores its input with flags into a slot of each peer, and folds what arrives.
fn packets(ranks: u32, slots: u32) -> Vec<Plan> {
    every_rank(ranks, |me| {
        let mut hand = Hand::new("ll one-shot", Collective::AllReduce, me, ranks, 1, slots);
        hand.lane(Engine::Processor);
        let mailboxes: Vec<Spot> =
            (0..ranks).filter(|&peer| peer != me).map(|peer| slot(peer, me, 0, 0)).collect();
        hand.act(Action::Copy, len(0), &mailboxes, &[input(me, 0)], 1, Step::PACKET);
        let from = |rank| if rank == me { input(me, 0) } else { slot(me, rank, 0, 0) };
        let sources: Vec<Spot> = (0..ranks).map(from).collect();
        let flags = Step::PACKET | Step::FINISH;
        hand.act(Action::Reduce, len(0), &[output(me, 0)], &sources, 1 << me, flags);
        hand
    })
}

#[test]
fn ll_one_shot() {
    accept(&packets(3, 2), "six_2_ll_one_shot");
    // With one slot, the next operation's packet may overtake a peer that still reads this one's.
    assert!(matches!(verify(&packets(3, 1)), Err(Refusal::Overwritten { .. } | Refusal::Race { .. })));
}

/// Each rank lets the switch fold its part and stores the result to all.
fn multimem(ranks: u32) -> Vec<Plan> {
    every_rank(ranks, |me| {
        let mut hand = Hand::new("nvls two-shot", Collective::AllReduce, me, ranks, ranks, 1);
        hand.plan.groups = vec![(0..ranks).map(Rank).collect()];
        hand.lane(Engine::Processor);
        hand.barrier(0);
        let part = |output: bool| (Region::Group { group: 0, output }, Position::Chunk(Chunk(me)));
        hand.act(Action::Copy, len(me), &[part(true)], &[part(false)], 1, Step::FINISH);
        hand.barrier(1);
        hand
    })
}

#[test]
fn nvls_two_shot() {
    let plans = multimem(3);
    accept(&plans, "six_3_nvls_two_shot");
    refuse_race(&without(&plans, 2, last(&plans, 2, Action::Wait)));
    let mut unscaled = plans.clone();
    unscaled[1].steps.iter_mut().for_each(|step| step.raw = 0);
    assert!(matches!(verify(&unscaled), Err(Refusal::WrongOutput { .. })));
}

/// Stream-ordered waits, copies and writes; no processor takes part.
fn copy_engine(ranks: u32) -> Vec<Plan> {
    every_rank(ranks, |me| {
        let mut hand = Hand::new("copy engine", Collective::AllGather, me, ranks, 1, 1);
        hand.lane(Engine::CopyEngine);
        hand.barrier(0);
        hand.copy(len(me), output(me, me), input(me, 0));
        for peer in (0..ranks).filter(|&peer| peer != me) {
            hand.copy(len(me), output(peer, me), input(me, 0));
        }
        hand.barrier(1);
        hand
    })
}

#[test]
fn copy_engine_all_gather() {
    let plans = copy_engine(3);
    accept(&plans, "six_4_copy_engine_all_gather");
    let mut computing = multimem(3);
    computing.iter_mut().for_each(|plan| plan.lanes[0].engine = Engine::CopyEngine);
    assert!(matches!(verify(&computing), Err(Refusal::BadStep { .. })));
}

/// A ring reduce-scatter over writes that arrive in any order: each slot has a flag of its own, and a scratch
/// place in flight is not used again before its arrival is known.
fn counted(ranks: u32) -> Vec<Plan> {
    every_rank(ranks, |me| {
        let hops = ranks - 1;
        let (next, before) = ((me + 1) % ranks, (me + ranks - 1) % ranks);
        let mut hand = Hand::new("counted ring", Collective::ReduceScatter, me, ranks, 1, hops);
        let credit = |owner, writer| counter(owner, writer, 0, CounterRole::Credit);
        hand.lane(Engine::Processor);
        for hop in 0..hops {
            let (sent, folded) = ((me + 2 * ranks - 1 - hop) % ranks, (me + 2 * ranks - 2 - hop) % ranks);
            if hop == 0 {
                hand.act(Action::Copy, len(sent), &[scratch(0)], &[input(me, sent)], 1, 0);
            }
            hand.wait(credit(me, next), hop as i32 + 1 - hops as i32);
            hand.counted_put(len(sent), slot(next, me, 0, hop), scratch(hop), flag(next, me, hop as u16));
            hand.wait(flag(me, before, hop as u16), 1);
            let (target, flags) =
                if hop + 1 == hops { (output(me, 0), Step::FINISH) } else { (scratch(hop + 1), 0) };
            let sources = [slot(me, before, 0, hop), input(me, folded)];
            hand.act(Action::Reduce, len(folded), &[target], &sources, 0b10, flags);
            hand.signal(credit(before, me));
        }
        hand.wait(credit(me, next), hops as i32);
        hand
    })
}

#[test]
fn ring_over_counted_writes() {
    let plans = counted(4);
    accept(&plans, "six_5_counted_ring");
    // Without the last wait the next operation may change what is still being sent.
    refuse_race(&without(&plans, 0, last(&plans, 0, Action::Wait)));
    // One counter for all slots proves nothing about a single one.
    let mut shared = plans.clone();
    for plan in &mut shared {
        let flags = |id: &mut consort_algorithms::plan::CounterId| {
            if let CounterRole::Flag(number) = &mut id.role {
                *number = 0;
            }
        };
        plan.counters.iter_mut().for_each(|used| flags(&mut used.id));
        let mut kept: Vec<consort_algorithms::plan::CounterUse> = Vec::new();
        let ids: Vec<_> = plan.counters.iter().map(|used| used.id).collect();
        for used in &plan.counters {
            if kept.iter().all(|other| other.id != used.id) {
                kept.push(*used);
            }
        }
        let mut waits = 0;
        for step in &mut plan.steps {
            if step.has(Step::COUNTED) || matches!(step.action, Action::Signal | Action::Wait) {
                let id = ids[step.counter as usize];
                step.counter = kept.iter().position(|used| used.id == id).expect("it was kept") as u32;
                if step.action == Action::Wait && matches!(id.role, CounterRole::Flag(_)) {
                    waits += 1;
                    step.value = waits;
                }
            }
        }
        for used in kept.iter_mut().filter(|used| matches!(used.id.role, CounterRole::Flag(_))) {
            used.per_iteration = 3;
        }
        plan.counters = kept;
    }
    let refusal = verify(&shared).expect_err("arrivals have no order");
    assert!(matches!(refusal, Refusal::AmbiguousCount { .. } | Refusal::Race { .. }), "{refusal}");
}

/// Every pair's bytes are an entry of a table that the devices fill.
fn table(ranks: u32) -> Vec<Plan> {
    every_rank(ranks, |me| {
        let mut hand = Hand::new("table all-to-all", Collective::AllToAll, me, ranks, 1, 1);
        hand.lane(Engine::Processor);
        hand.barrier(0);
        for to in 0..ranks {
            let entry = me * ranks + to;
            let target = (Region::Output(Rank(to)), Position::Table(entry));
            let source = (Region::Input(Rank(me)), Position::Table(entry));
            let action = if to == me { Action::Copy } else { Action::Put };
            hand.act(action, Extent::table(entry), &[target], &[source], 0, 0);
        }
        hand.barrier(1);
        hand
    })
}

#[test]
fn all_to_all_whose_counts_only_the_device_knows() {
    let plans = table(3);
    accept(&plans, "six_6_table_all_to_all");
    let mut wrong = plans.clone();
    let step = wrong[0].steps.iter().position(|step| step.action == Action::Put).expect("it puts");
    wrong[0].steps[step].extent = Extent::table(0);
    assert!(matches!(verify(&wrong), Err(Refusal::BadStep { .. })));
}
