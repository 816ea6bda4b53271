//! The direct exchange is compiled from the schedule: each rank sends, keeps and folds what the collective asks for, and
//! schedules that are no direct exchange are refused.

use std::collections::BTreeMap;
use std::sync::Arc;

use consort_algorithms::catalogue::{Algorithm, Shape, candidates};
use consort_kernels::{DataType, ReduceOp, Reducer};
use consort_memory::{Span, SpanMut};

use super::exchange::{Direct, Exchange, Leg};
use super::sides::{self, Other};
use crate::Rank;
use crate::eager::{Moves, Use};
use crate::engine::{Buffers, Progress};
use crate::planner::{Planner, Program};
use consort_control::report::evidence::Want;
use consort_types::call::{Call, Kind};

fn call(kind: Kind, root: Rank) -> Call {
    Call::new(kind, DataType::Int32, kind.collective().reduces().then_some(ReduceOp::Sum), root, 1)
}

fn algorithm(call: &Call, size: u32) -> Algorithm {
    match call.kind {
        Kind::AllToAll => Algorithm::Spread,
        _ => Algorithm::Direct { first: call.first_folded(size) },
    }
}

/// The exchanges of all ranks.
fn directs(call: &Call, size: u32) -> Vec<Direct> {
    let program =
        Program { collective: call.kind.collective(), ranks: size, algorithm: algorithm(call, size) };
    let moves = Planner::default().direct(program).expect("a direct exchange");
    let reducer = Reducer::new(DataType::Int32, ReduceOp::Sum, size);
    (0..size).map(|me| Direct::new(call, &moves, &reducer, me, false)).collect()
}

/// What a rank's output is by the meaning of the collective: by block, the contributions as rank and block, in the order
/// of the fold.
fn meant(kind: Kind, me: Rank, root: Rank, size: u32) -> BTreeMap<u32, Vec<(Rank, u32)>> {
    let all = |block: u32| (0..size).map(|rank| (rank, block)).collect::<Vec<_>>();
    let each = |block: u32| (0..size).map(move |rank| (rank, vec![(rank, block)]));
    match kind {
        Kind::Reduce | Kind::Gather if me != root => BTreeMap::new(),
        Kind::AllReduce | Kind::Reduce => BTreeMap::from([(0, all(0))]),
        Kind::ReduceScatter => BTreeMap::from([(0, all(me))]),
        Kind::Broadcast => BTreeMap::from([(0, vec![(root, 0)])]),
        Kind::Scatter => BTreeMap::from([(0, vec![(root, me)])]),
        Kind::AllGather | Kind::Gather => each(0).collect(),
        Kind::AllToAll => each(me).collect(),
        kind => panic!("{kind:?} moves nothing"),
    }
}

/// What the exchange makes of it.
fn made(directs: &[Direct], me: Rank) -> BTreeMap<u32, Vec<(Rank, u32)>> {
    let direct = &directs[me as usize];
    let leg = |of: Rank, with: Rank| directs[of as usize].legs.iter().find(|leg| leg.peer == with).copied();
    let sent = |from: Rank| leg(from, me).and_then(|leg| leg.sends);
    let received = |from: Rank| leg(me, from).and_then(|leg| leg.receives);
    let ranks = 0..directs.len() as Rank;
    let folded = if direct.folds.is_empty() { ranks.collect() } else { direct.folds.to_vec() };
    let mut takes: Vec<(Rank, u32, u32)> = Vec::new();
    for from in folded {
        if from == me {
            takes.extend(direct.own.map(|(input, output)| (me, input, output)));
            continue;
        }
        assert_eq!(sent(from).is_some(), received(from).is_some(), "what is sent is waited for");
        takes.extend(sent(from).zip(received(from)).map(|(input, output)| (from, input, output)));
    }
    let mut made: BTreeMap<u32, Vec<(Rank, u32)>> = BTreeMap::new();
    for (from, input, output) in takes {
        made.entry(output).or_default().push((from, input));
    }
    assert!(direct.purpose == Use::Fold || made.values().all(|of| of.len() == 1), "kept twice");
    made
}

#[test]
fn every_rank_gets_what_the_collective_means_folded_from_rank_zero_on() {
    for size in 2..=9 {
        for kind in Kind::ALL.into_iter().filter(|kind| Moves::are_defined(*kind) && *kind != Kind::Barrier) {
            for root in 0..if kind.is_rooted() { size } else { 1 } {
                let directs = directs(&call(kind, root), size);
                for me in 0..size {
                    assert_eq!(made(&directs, me), meant(kind, me, root, size), "{kind:?} of {size}, {root}");
                    let distance = |leg: &Leg| (leg.peer + size - me) % size;
                    let legs = &directs[me as usize].legs;
                    assert!(legs.iter().map(distance).is_sorted(), "the next rank first");
                }
            }
        }
    }
}

#[test]
fn a_barrier_moves_nothing_and_hears_of_everybody() {
    let directs = directs(&call(Kind::Barrier, 0), 4);
    for direct in &directs {
        assert_eq!((direct.purpose, direct.own), (Use::Meet, None));
        assert_eq!(direct.legs.len(), 3);
        assert!(direct.legs.iter().all(|leg| leg.sends.is_some() && leg.receives.is_some()));
    }
}

#[test]
fn only_direct_exchanges_are_taken() {
    let shape = Shape { all_pairs: true, ..Shape::default() };
    let mut refused = 0;
    for kind in Kind::ALL.into_iter().filter(|kind| Moves::are_defined(*kind)) {
        for algorithm in candidates(kind.collective(), 4, &shape) {
            let program = Program { collective: kind.collective(), ranks: 4, algorithm };
            let is_direct = matches!(algorithm, Algorithm::Direct { .. } | Algorithm::Spread);
            match Planner::default().direct(program) {
                Ok(_) => {}
                Err(error) => {
                    assert!(!is_direct, "{kind:?} by {algorithm}: {error}");
                    refused += 1;
                }
            }
        }
    }
    assert!(refused > 8, "{refused}");
}

/// A peer that does one thing after the other: an all-reduce in two hops says for which of them it waits.
#[test]
fn two_hops_say_what_they_wait_for() {
    const BYTES: usize = 256 << 10;
    const PIECE: usize = 32 << 10;
    const MARK: u64 = 0x1234_5678;
    let (mut board, ends) = sides::against();
    let mut other = Other::of_board(&*ends[0], 2);
    let (input, mut output) = (vec![1u8; BYTES], vec![0u8; BYTES]);
    let buffers = Buffers { input: Span::of(&input), output: SpanMut::of(&mut output) };
    let reducer = Reducer::new(DataType::Int32, ReduceOp::Sum, 2);
    let moves = |call: &Call| {
        let algorithm = algorithm(call, 2);
        let program = Program { collective: call.kind.collective(), ranks: 2, algorithm };
        Planner::default().direct(program).expect("a direct exchange")
    };
    let sent = call(Kind::Broadcast, 0);
    let sent = Arc::new(Direct::new(&sent, &moves(&sent), &reducer, 0, false));
    // Four pieces, and three: all that may be under way.
    for bytes in [BYTES / 2, BYTES * 3 / 8] {
        let mut exchange = Exchange::begin(&mut board, sent.clone(), reducer, bytes, MARK);
        let progress = exchange.advance(&mut board, buffers);
        assert!(matches!(progress, Ok(Progress::Done)), "{progress:?}");
        assert_eq!(exchange.standing(), None);
    }
    let summed = call(Kind::AllReduce, 0);
    let summed = Arc::new(Direct::new(&summed, &moves(&summed), &reducer, 0, true));
    let mut exchange = Exchange::begin(&mut board, summed, reducer, BYTES, MARK);
    let mut stands = |want: Want, step: u32, slice: u32| {
        loop {
            match exchange.advance(&mut board, buffers) {
                Ok(Progress::Moved) => {}
                Ok(Progress::Blocked) => break,
                progress => panic!("{progress:?}"),
            }
        }
        assert_eq!(exchange.wanted(), Some((1, want)));
        let standing = exchange.standing().expect("it goes in two hops");
        let found = (standing.peer, standing.step, standing.steps, standing.slice, standing.slices);
        assert_eq!(found, (1, step, 2, slice, 4));
    };
    let read = |other: &mut Other, pieces: usize| {
        for _ in 0..pieces {
            let found =
                other.pieces.look(MARK, usize::MAX).expect("nothing is amiss").map(|piece| piece.span.len());
            other.pieces.take(found.expect("a piece is here")).expect("nothing is amiss");
        }
    };
    let send = |other: &mut Other, pieces: usize| {
        for _ in 0..pieces {
            let piece = [2u8; PIECE];
            assert_eq!(other.pieces.send(MARK, Span::of(&piece), None, None), Ok(true));
        }
    };
    // No slot has come back.
    stands(Want::Room, 0, 0);
    // Two pieces are sent then; none has come that could be folded.
    read(&mut other, 7);
    stands(Want::Data, 0, 0);
    send(&mut other, 2);
    stands(Want::Data, 0, 2);
    // All are folded; no sum of those that were sent is back.
    read(&mut other, 4);
    send(&mut other, 2);
    stands(Want::Data, 1, 0);
}
