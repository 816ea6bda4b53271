//! All-reduce over aggregating switches: their results and costs, and the plans over groups.

use std::collections::HashMap;

use consort_algorithms::builders::{
    RingOptions, SwitchForm, ring, switch, switch_is_defined, switch_tree, switched, switched_is_defined,
};
use consort_algorithms::passes::fuse;
use consort_algorithms::plan::{Action, Extent, Position, Region};
use consort_algorithms::{
    Chunk, Collective, LowerError, LowerOptions, Place, Plan, Rank, Schedule, UNORDERED, lower, lower_all,
    lower_switch, verify,
};

use crate::common::{execute_often, sizes};

const FORMS: [SwitchForm; 2] = [SwitchForm::OneShot, SwitchForm::TwoStep];

/// Runs the rounds on symbols: the content of every rank's output, chunk by chunk. A switch has scratch alone, and no
/// place is written twice in a round.
fn outputs(schedule: &Schedule) -> Vec<Vec<String>> {
    let mut held: HashMap<(Rank, Place), String> = HashMap::new();
    for round in &schedule.rounds {
        let value = |rank: Rank, place: Place| match place {
            Place::Input(chunk) => format!("{}.{}", rank.0, chunk.0),
            _ => held[&(rank, place)].clone(),
        };
        let mut written = HashMap::new();
        for transfer in &round.transfers {
            for (node, place) in [(transfer.from, transfer.source), (transfer.to, transfer.target)] {
                assert!(node.0 < schedule.ranks || matches!(place, Place::Scratch(_)), "{transfer:?}");
            }
            let arriving = value(transfer.from, transfer.source);
            let result = match (transfer.fold, transfer.own_first) {
                (None, _) => arriving,
                (Some(fold), true) => format!("({}+{arriving})", value(transfer.to, fold)),
                (Some(fold), false) => format!("({arriving}+{})", value(transfer.to, fold)),
            };
            assert_eq!(written.insert((transfer.to, transfer.target), result), None, "{transfer:?}");
        }
        held.extend(written);
    }
    let output = |rank: u32, chunk: u32| held[&(Rank(rank), Place::Output(Chunk(chunk)))].clone();
    let chunks = schedule.partition.output_chunks(schedule.collective, schedule.ranks);
    (0..schedule.ranks).map(|rank| (0..chunks).map(|chunk| output(rank, chunk)).collect()).collect()
}

/// Contributions of `leaves` in order, folded from the left.
fn left(leaves: impl Iterator<Item = String>) -> String {
    leaves.reduce(|sum, next| format!("({sum}+{next})")).unwrap_or_default()
}

/// The longest chain of messages, and for every node the pieces out of and into it.
fn cost(schedule: &Schedule) -> (u32, Vec<[u32; 2]>) {
    let mut after: HashMap<(Rank, Place), u32> = HashMap::new();
    let mut ports = vec![[0; 2]; (schedule.ranks + schedule.switches) as usize];
    for round in &schedule.rounds {
        let before = after.clone();
        let known = |rank: Rank, place: Place| before.get(&(rank, place)).copied().unwrap_or(0);
        for transfer in &round.transfers {
            let moved = u32::from(transfer.from != transfer.to);
            let own = transfer.fold.map_or(0, |fold| known(transfer.to, fold));
            let depth = (known(transfer.from, transfer.source) + moved).max(own);
            after.insert((transfer.to, transfer.target), depth);
            ports[transfer.from.index()][0] += moved;
            ports[transfer.to.index()][1] += moved;
        }
    }
    (after.values().copied().max().unwrap_or(0), ports)
}

#[test]
fn switches_fold_everything_in_the_order_of_ranks() {
    for ranks in 1..=32u32 {
        for form in FORMS {
            let schedule = switch(ranks, form);
            let chunks = 0..schedule.partition.parts;
            let expected: Vec<String> =
                chunks.map(|chunk| left((0..ranks).map(|rank| format!("{rank}.{chunk}")))).collect();
            assert!(outputs(&schedule).iter().all(|held| *held == expected), "{ranks} {form:?}");
        }
        for per_leaf in 1..=ranks + 1 {
            let ports = |leaf: u32| leaf * per_leaf..(leaf * per_leaf + per_leaf).min(ranks);
            let of_leaf = |leaf: u32| left(ports(leaf).map(|rank| format!("{rank}.0")));
            let expected = vec![left((0..ranks.div_ceil(per_leaf)).map(of_leaf))];
            let schedule = switch_tree(ranks, per_leaf);
            assert!(outputs(&schedule).iter().all(|held| *held == expected), "{ranks} under {per_leaf}");
        }
    }
}

/// The contributions in a sum, sorted.
fn leaves(sum: &str) -> Vec<String> {
    let mut leaves: Vec<String> =
        sum.split(['(', ')', '+']).filter(|leaf| !leaf.is_empty()).map(str::to_owned).collect();
    leaves.sort();
    leaves
}

#[test]
fn switches_of_boxes_fold_every_contribution_once() {
    for (boxes, per_box, channels) in
        [(1, 1, 1), (1, 8, 3), (2, 4, 2), (3, 2, 4), (4, 1, 2), (5, 3, 2), (8, 2, 2)]
    {
        let (ranks, parts) = (boxes * per_box, u32::from(channels));
        let all = |chunk: u32| {
            let mut leaves: Vec<String> = (0..ranks).map(|rank| format!("{rank}.{chunk}")).collect();
            leaves.sort();
            leaves
        };
        for collective in [Collective::AllReduce, Collective::AllGather, Collective::ReduceScatter] {
            if !switched_is_defined(collective, boxes) {
                continue;
            }
            let schedule = switched(collective, boxes, per_box, channels);
            let held = outputs(&schedule);
            for (rank, held) in (0..).zip(&held) {
                for (chunk, sum) in (0..).zip(held) {
                    let expected = match collective {
                        Collective::AllReduce => all(chunk),
                        Collective::ReduceScatter => all(rank * parts + chunk),
                        _ => vec![format!("{}.{}", chunk / parts, chunk % parts)],
                    };
                    // A single rank's piece is not cut.
                    if ranks > 1 {
                        assert_eq!(leaves(sum), expected, "{}: {rank} {chunk}", schedule.name);
                    }
                }
            }
            assert!(collective != Collective::AllReduce || held.iter().all(|of| *of == held[0]));
        }
    }
}

#[test]
fn heads_share_what_leaves_a_box() {
    // The table's row over one box: 4 messages in a chain, and (1 + 1/g) M through each port.
    let (depth, ports) = cost(&switched(Collective::AllReduce, 1, 8, 2));
    assert_eq!((depth, &ports[..8]), (4, &[[18, 18]; 8][..]));
    // Over 4 boxes a tree of height 2, up and down; of a head's two pieces each tree has one.
    let schedule = switched(Collective::AllReduce, 4, 2, 2);
    assert_eq!(cost(&schedule).0, 4 + 2 * 2);
    let mut out = [0; 8];
    for transfer in schedule.rounds.iter().flat_map(|round| &round.transfers) {
        if transfer.from.0 < 8 && transfer.to.0 < 8 {
            out[transfer.from.index()] += 1;
        }
    }
    assert!(out.iter().all(|&pieces| pieces <= 4) && out.iter().sum::<u32>() == 2 * 3 * 4, "{out:?}");
}

#[test]
fn the_cost_is_the_row_of_the_table() {
    for ranks in 2..=64u32 {
        // With one piece: M is 1.
        let (depth, ports) = cost(&switch(ranks, SwitchForm::OneShot));
        assert_eq!((depth, &ports[..ranks as usize]), (2, &vec![[1, 1]; ranks as usize][..]));
        // M is `ranks` pieces: (1 + 1/n) M.
        let (depth, ports) = cost(&switch(ranks, SwitchForm::TwoStep));
        assert_eq!((depth, &ports[..ranks as usize]), (4, &vec![[ranks + 1, ranks + 1]; ranks as usize][..]));
        for per_leaf in 1..ranks {
            let schedule = switch_tree(ranks, per_leaf);
            let (depth, ports) = cost(&schedule);
            assert_eq!((depth, &ports[..ranks as usize]), (4, &vec![[1, 1]; ranks as usize][..]));
            let leaves = ranks.div_ceil(per_leaf);
            assert_eq!((schedule.switches, ports.last()), (leaves + 1, Some(&[leaves, leaves])));
        }
    }
}

fn plans(schedule: &Schedule) -> Result<Vec<Plan>, LowerError> {
    (0..schedule.ranks).map(|rank| lower_switch(schedule, Rank(rank))).collect()
}

#[test]
fn the_plans_over_a_group_are_proved() {
    for ranks in sizes(&[]) {
        let hashes = FORMS.map(|form| {
            let plans =
                plans(&switch(ranks, form)).unwrap_or_else(|error| panic!("{ranks} {form:?}: {error}"));
            assert!(plans.iter().all(|plan| plan.scratch == 0));
            // A group's step has no form that fusion joins.
            assert!(plans.iter().all(|plan| ranks == 1 || fuse(plan, &|_| true) == *plan));
            if ranks <= 5 {
                execute_often(&plans, 4, 20).unwrap_or_else(|fault| panic!("{ranks} {form:?}: {fault}"));
            }
            verify(&plans).unwrap_or_else(|refusal| panic!("{ranks} {form:?}: {refusal}")).fold_hash
        });
        assert_eq!(hashes[0], hashes[1], "{ranks}");
        assert_eq!(hashes[0] == UNORDERED, ranks > 1, "{ranks}");
    }
    let two_step = plans(&switch(4, SwitchForm::TwoStep)).expect("it lowers");
    // Every rank: signal and await three, one copy, signal and await three.
    assert!(two_step.iter().all(|plan| plan.steps.len() == 13));
    // One shot: rank 0 runs the copy; the others signal that they have entered and wait for it.
    let one_shot = plans(&switch(4, SwitchForm::OneShot)).expect("it lowers");
    assert_eq!(one_shot.iter().map(|plan| plan.steps.len()).collect::<Vec<_>>(), [7, 2, 2, 2]);
}

#[test]
fn ranks_that_each_fold_a_group_may_differ() {
    // Rank 0's copy stores to all; here each rank makes a copy of its own, into its own output.
    let mut plans = plans(&switch(2, SwitchForm::TwoStep)).expect("it lowers");
    for plan in &mut plans {
        let own = Region::Output(plan.rank);
        for used in
            plan.regions.iter_mut().filter(|used| matches!(used.region, Region::Group { output: true, .. }))
        {
            used.region = own;
        }
        for operand in &mut plan.operands {
            operand.position = Position::Chunk(Chunk(0));
        }
        plan.partition.parts = 1;
        for step in plan.steps.iter_mut().filter(|step| step.action == Action::Copy) {
            step.extent = Extent::chunk(Chunk(0));
        }
    }
    let refusal = verify(&plans).expect_err("bits would differ").to_string();
    assert!(refusal.contains("in another order"), "{refusal}");
}

#[test]
fn a_plan_that_misses_a_wait_is_refused() {
    for form in FORMS {
        let plans = plans(&switch(3, form)).expect("it lowers");
        for rank in 0..3 {
            for step in 0..plans[rank].steps.len() {
                let mut broken = plans.clone();
                broken[rank].steps.remove(step);
                broken[rank].lanes[0].end -= 1;
                assert!(verify(&broken).is_err(), "{form:?}, rank {rank} without step {step}");
            }
        }
    }
}

#[test]
fn what_a_group_cannot_do_is_not_lowered() {
    let options = LowerOptions { slots: 4 };
    let one_shot = switch(4, SwitchForm::OneShot);
    assert_eq!(lower_all(&one_shot, &options), Err(LowerError::Switches { switches: 1 }));
    assert_eq!(lower(&one_shot, Rank(0), &options), Err(LowerError::Switches { switches: 1 }));
    assert_eq!(plans(&switch_tree(6, 2)), Err(LowerError::Switches { switches: 4 }));
    assert_eq!(lower_switch(&one_shot, Rank(4)), Err(LowerError::NoSuchRank { rank: Rank(4) }));

    // The folds the other way round.
    let mut turned = one_shot.clone();
    turned.rounds.iter_mut().flat_map(|round| &mut round.transfers).for_each(|t| t.own_first = false);
    assert_eq!(plans(&turned), Err(LowerError::NotOfGroup { round: 1 }));
    // A rank that gets nothing, a rank that gets the sum of some, one that is never folded.
    let mut unheard = one_shot.clone();
    unheard.rounds[4].transfers.pop();
    assert_eq!(plans(&unheard), Err(LowerError::NotMulticast { chunk: Chunk(0) }));
    let mut early = one_shot.clone();
    early.rounds.remove(3);
    assert_eq!(plans(&early), Err(LowerError::NotOfGroup { round: 3 }));
    // Ranks that exchange without the switch, and places that a switch does not have.
    let mut beside = one_shot.clone();
    beside.rounds[0]
        .transfers
        .extend(&ring(Collective::AllReduce, 4, RingOptions::default()).rounds[0].transfers);
    beside.partition.parts = 4;
    assert_eq!(plans(&beside), Err(LowerError::NotOfGroup { round: 0 }));
    let mut input = one_shot.clone();
    input.rounds[1].transfers[0].source = Place::Input(Chunk(0));
    let place = Place::Input(Chunk(0));
    assert_eq!(plans(&input), Err(LowerError::NoSuchPlace { rank: Rank(4), place }));
    assert!(Collective::ALL.into_iter().filter(|&it| switch_is_defined(it)).eq([Collective::AllReduce]));
}
