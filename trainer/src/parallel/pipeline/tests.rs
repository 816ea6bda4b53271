//! Orders alone: what is computed when, the bubble, what is in flight, and messages that end on both sides at once.

use std::collections::BTreeSet;

use super::order::{cost, timed};
use super::*;
use crate::error::Error;

/// Orders of each kind, for all small pipelines.
fn plans() -> Vec<Plan> {
    let mut plans = Vec::new();
    for (ranks, micro_batches) in (1..=6).flat_map(|ranks| (1..=12).map(move |count| (ranks, count))) {
        let orders = [Order::GPipe, Order::OneForwardOneBackward];
        let interleaved = (1..=3).map(|chunks| Order::Interleaved { chunks });
        let all = orders.into_iter().chain(interleaved).map(|order| Plan { order, ranks, micro_batches });
        plans.extend(all.filter(|plan| plan.check().is_ok()));
    }
    plans
}

fn actions(plan: &Plan) -> Vec<Vec<Action>> {
    (0..plan.ranks).map(|rank| plan.actions(rank)).collect()
}

/// The time until the last action is over, less what a rank computes, in forward passes of a rank's share of the model.
fn bubble(plan: &Plan) -> f64 {
    let actions = actions(plan);
    let begins = timed(plan, &actions).expect("each action can begin");
    let end = |(actions, begins): (&Vec<Action>, &Vec<usize>)| {
        begins[begins.len() - 1] + cost(actions[actions.len() - 1])
    };
    let ends = actions.iter().zip(&begins).map(end).max().expect("ranks");
    let busy: usize = actions[0].iter().copied().map(cost).sum();
    (ends - busy) as f64 / plan.order.chunks() as f64
}

fn in_flight(plan: &Plan) -> Vec<usize> {
    actions(plan).iter().map(|actions| rooms(plan, actions, |_| 0).1.len()).collect()
}

#[test]
fn each_micro_batch_goes_through_each_stage_once_and_in_order() {
    for plan in plans() {
        let mut seen = BTreeSet::new();
        for (rank, actions) in actions(&plan).iter().enumerate() {
            for action in actions {
                assert_eq!(plan.rank(action.stage), rank, "{plan:?}");
                let is_backward = action.pass == Pass::Backward;
                assert!(seen.insert((action.stage, action.micro, is_backward)), "{plan:?}: {action:?} twice");
                let earlier = |micro| seen.contains(&(action.stage, micro, is_backward));
                assert!((0..action.micro).all(earlier), "{plan:?}: {action:?} before its turn");
            }
            // The stages end from the last to the first.
            let last =
                |action: &&Action| action.pass == Pass::Backward && action.micro + 1 == plan.micro_batches;
            assert!(actions.iter().filter(last).is_sorted_by(|a, b| a.stage > b.stage), "{plan:?}");
        }
        assert_eq!(seen.len(), 2 * plan.stages() * plan.micro_batches, "{plan:?}");
    }
}

#[test]
fn the_bubble_is_that_of_the_formula() {
    for plan in plans() {
        let expected = 3.0 * (plan.ranks - 1) as f64 / plan.order.chunks() as f64;
        assert_eq!(bubble(&plan), expected, "{plan:?}");
    }
    let table = |order| {
        [(4, 8), (4, 16), (2, 8), (8, 16)]
            .map(|(ranks, micro_batches)| bubble(&Plan { order, ranks, micro_batches }))
    };
    assert_eq!(table(Order::GPipe), [9.0, 9.0, 3.0, 21.0]);
    assert_eq!(table(Order::OneForwardOneBackward), [9.0, 9.0, 3.0, 21.0]);
    assert_eq!(table(Order::Interleaved { chunks: 2 }), [4.5, 4.5, 1.5, 10.5]);
}

#[test]
fn as_many_are_in_flight_as_the_formula_says() {
    for plan in plans() {
        let Plan { order, ranks, micro_batches } = plan;
        let expected: Vec<usize> = (0..ranks)
            .map(|rank| match order {
                Order::GPipe => micro_batches,
                Order::OneForwardOneBackward => (ranks - rank).min(micro_batches),
                Order::Interleaved { chunks } => {
                    ((chunks - 1) * ranks + 2 * (ranks - 1 - rank) + 1).min(micro_batches * chunks)
                }
            })
            .collect();
        assert_eq!(in_flight(&plan), expected, "{plan:?}");
    }
    let table = |order| in_flight(&Plan { order, ranks: 4, micro_batches: 8 });
    assert_eq!(table(Order::OneForwardOneBackward), [4, 3, 2, 1]);
    assert_eq!(table(Order::Interleaved { chunks: 2 }), [11, 9, 7, 5]);
}

#[test]
fn no_room_is_that_of_two_at_once() {
    for plan in plans() {
        for actions in actions(&plan) {
            let (slots, kinds) = rooms(&plan, &actions, |chunk| chunk % 2);
            let mut used = vec![false; kinds.len()];
            for action in &actions {
                let chunk = action.stage / plan.ranks;
                let slot = slots[chunk * plan.micro_batches + action.micro];
                let is_forward = action.pass == Pass::Forward;
                assert!(kinds[slot] == chunk % 2 && used[slot] != is_forward, "{plan:?}: {action:?}");
                used[slot] = is_forward;
            }
        }
    }
}

#[test]
fn messages_end_on_both_sides_at_once_and_no_rank_waits_for_ever() {
    for plan in plans() {
        let programs = program(&plan);
        let mut at = vec![0; plan.ranks];
        let mut computed = Vec::new();
        let mut here = Vec::new();
        loop {
            let before = at.clone();
            for rank in 0..plan.ranks {
                match programs[rank].get(at[rank]) {
                    Some(Doing::Compute(action)) => {
                        assert!(
                            plan.source(*action).is_none() || here.contains(action),
                            "{plan:?}: {action:?}"
                        );
                        computed.push(*action);
                        at[rank] += 1;
                    }
                    Some(Doing::Send(action)) => {
                        // What is sent was made by the last action.
                        let made = programs[rank][..at[rank]].iter().rev().find_map(|doing| match doing {
                            Doing::Compute(made) => Some(*made),
                            _ => None,
                        });
                        assert_eq!(made.and_then(|made| plan.next(made)), Some(*action), "{plan:?}");
                        let to = plan.rank(action.stage);
                        if programs[to].get(at[to]) == Some(&Doing::Receive(*action)) {
                            assert_eq!(plan.source(*action), Some(rank), "{plan:?}");
                            here.push(*action);
                            at[rank] += 1;
                            at[to] += 1;
                        }
                    }
                    // The other side makes it go on.
                    Some(Doing::Receive(_)) | None => {}
                }
            }
            if at == before {
                break;
            }
        }
        let ends: Vec<usize> = programs.iter().map(Vec::len).collect();
        assert_eq!(at, ends, "{plan:?}: ranks wait for each other");
        assert_eq!(computed.len(), 2 * plan.stages() * plan.micro_batches, "{plan:?}");
    }
}

/// More than links hold: no rank receives before all have sent.
#[test]
fn rows_are_on_their_way_before_they_are_received() {
    let plan = Plan { order: Order::OneForwardOneBackward, ranks: 2, micro_batches: 4 };
    let elements = 1 << 18;
    let options = consort::Options::default().timeout(Duration::from_secs(60));
    let comms = Communicator::local_with(2, &options).expect("ranks");
    let doings = program(&plan);
    std::thread::scope(|threads| {
        for (rank, comm) in comms.iter().enumerate() {
            let mut hops = Hops::<f32>::new(plan, &doings[rank], elements);
            let action = |stage, micro| {
                let pass = if stage == 1 { Pass::Forward } else { Pass::Backward };
                Action { pass, stage, micro }
            };
            threads.spawn(move || {
                let mut rows = vec![0.0; elements];
                for step in 0..2 {
                    hops.begin();
                    let value = |stage, micro| (step * 100 + stage * 10 + micro) as f32;
                    for micro in 0..4 {
                        rows.fill(value(1 - rank, micro));
                        hops.send(comm, action(1 - rank, micro), &rows).expect("it begins");
                    }
                    for micro in 0..4 {
                        hops.ask(comm, micro + 1).expect("it begins");
                        hops.wait(action(rank, micro)).expect("it comes");
                        hops.receive(action(rank, micro), &mut rows);
                        assert!(rows.iter().all(|row| *row == value(rank, micro)), "{rank} {micro}");
                    }
                    hops.end().expect("the other has taken all");
                    assert_eq!(hops.sent_bytes(), 4 * elements * size_of::<f32>());
                }
            });
        }
    });
}

#[test]
fn an_order_that_cannot_go_on_is_seen() {
    let plan = Plan { order: Order::OneForwardOneBackward, ranks: 2, micro_batches: 2 };
    let mut actions = actions(&plan);
    actions[1].reverse();
    assert_eq!(timed(&plan, &actions), None);
}

#[test]
fn interleaved_micro_batches_are_a_multiple_of_the_ranks() {
    let check = |ranks, chunks, micro_batches| {
        Plan { order: Order::Interleaved { chunks }, ranks, micro_batches }.check()
    };
    check(4, 2, 8).unwrap();
    for (ranks, chunks, micro_batches) in [(4, 2, 6), (4, 0, 8), (1, 2, 8)] {
        let error = check(ranks, chunks, micro_batches).expect_err("it does not fit");
        assert!(matches!(error, Error::Configuration { .. }), "{error}");
    }
}
