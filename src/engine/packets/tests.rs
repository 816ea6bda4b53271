//! The exchange in messages is the direct exchange: the same blocks go to the same ranks, and are folded in the same order.

use std::collections::HashMap;

use consort_algorithms::builders::{direct, direct_reduce, one_shot, spread_out};
use consort_algorithms::{Chunk, Collective, Place, Schedule};

use crate::Rank;
use crate::call::Kind;
use crate::eager::{Moves, Use};

/// A value as it was made: `r2.c1` is chunk 1 of rank 2's input.
type Made = String;

fn leaf(rank: Rank, block: u32) -> Made {
    format!("r{rank}.c{block}")
}

fn folded(left: &Made, right: &Made) -> Made {
    format!("({left}+{right})")
}

/// What a schedule makes of every rank's output, with rank `root` as its rank 0; blocks as the callers count them.
fn by_schedule(schedule: &Schedule, root: Rank) -> Vec<HashMap<u32, Made>> {
    let size = schedule.ranks;
    let absolute = |relative: u32| (relative + root) % size;
    // Where one buffer holds the blocks of all ranks they are in the order of ranks, not of the schedule's.
    let (inputs, outputs) = (schedule.collective.input_blocks(size), schedule.collective.output_blocks(size));
    let mut values: HashMap<(u32, Place), Made> = HashMap::new();
    for rank in 0..size {
        for block in 0..inputs {
            let of = if inputs == 1 { 0 } else { absolute(block) };
            values.insert((rank, Place::Input(Chunk(block))), leaf(absolute(rank), of));
        }
    }
    for round in &schedule.rounds {
        let before = values.clone();
        for transfer in &round.transfers {
            let arriving = &before[&(transfer.from.0, transfer.source)];
            let made = match transfer.fold {
                None => arriving.clone(),
                Some(place) if transfer.own_first => folded(&before[&(transfer.to.0, place)], arriving),
                Some(place) => folded(arriving, &before[&(transfer.to.0, place)]),
            };
            values.insert((transfer.to.0, transfer.target), made);
        }
    }
    let output = |rank: u32| {
        let mine = values.iter().filter_map(|((of, place), made)| match place {
            Place::Output(Chunk(block)) if absolute(*of) == rank => {
                Some((if outputs == 1 { 0 } else { absolute(*block) }, made.clone()))
            }
            _ => None,
        });
        mine.collect()
    };
    (0..size).map(output).collect()
}

/// What the exchange in messages makes of it.
fn by_moves(kind: Kind, size: u32, root: Rank) -> Vec<HashMap<u32, Made>> {
    let all: Vec<Moves> = (0..size).map(|rank| Moves::new(kind, rank, root)).collect();
    let output = |me: Rank| {
        let moves = all[me as usize];
        let mut output: HashMap<u32, Made> = HashMap::new();
        let mut fold: Option<Made> = None;
        for from in 0..size {
            let sent = if from == me { moves.own() } else { all[from as usize].sends(me) };
            let expected = if from == me { moves.own().is_some() } else { moves.receives(from) };
            assert_eq!(sent.is_some(), expected, "{kind:?}: from {from} to {me} of {size}, root {root}");
            let Some(block) = sent else { continue };
            let value = leaf(from, block);
            match moves.purpose() {
                Use::Meet => panic!("{kind:?} moves something"),
                Use::Fold => {
                    fold = Some(fold.map_or_else(|| value.clone(), |before| folded(&before, &value)));
                }
                Use::Keep => assert!(output.insert(moves.keeps(from), value).is_none(), "kept twice"),
            }
        }
        if let Some(made) = fold.filter(|_| moves.own().is_some()) {
            output.insert(0, made);
        }
        output
    };
    (0..size).map(output).collect()
}

#[test]
fn moves_are_those_of_the_direct_schedules() {
    for size in 2..=9 {
        for root in 0..size {
            for (kind, schedule) in [
                (Kind::AllReduce, one_shot(size)),
                // Whoever is the root, the fold begins at rank 0.
                (Kind::Reduce, direct_reduce(size, (size - root) % size)),
                (Kind::Broadcast, direct(Collective::Broadcast, size)),
                (Kind::AllGather, direct(Collective::AllGather, size)),
                (Kind::ReduceScatter, direct(Collective::ReduceScatter, size)),
                (Kind::AllToAll, spread_out(size)),
                (Kind::Gather, direct(Collective::Gather, size)),
                (Kind::Scatter, direct(Collective::Scatter, size)),
            ] {
                let root = if kind.is_rooted() { root } else { 0 };
                assert_eq!(
                    by_moves(kind, size, root),
                    by_schedule(&schedule, root),
                    "{kind:?} of {size}, {root}"
                );
            }
        }
    }
}

#[test]
fn a_barrier_moves_nothing_and_hears_of_everybody() {
    let moves = Moves::new(Kind::Barrier, 1, 0);
    assert_eq!((moves.purpose(), moves.own()), (Use::Meet, None));
    assert!((0..4).filter(|rank| *rank != 1).all(|rank| moves.receives(rank) && moves.sends(rank).is_some()));
}
