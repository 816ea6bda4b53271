//! Local folds in the order of ranks.
//!
//! Programs of GPUs let every rank of an all-reduce begin with its own contribution; the bits of their results then
//! differ from rank to rank. Here all ranks must have the same bits.
//!
//! Invariant: only runs of folds into one cell of one rank change, whose operands stay as they are meanwhile; the value
//! and who sends what to whom stay. Absent: runs that go through several ranks.

use std::collections::BTreeMap;

use super::trace::{Buffer, Cell, Event, Move, Trace};
use super::values::Firsts;

/// The trace with each run of folds into a cell in the order of the operands' first contributors, which
/// [`resolve`](super::values::resolve) found.
pub(super) fn in_rank_order(trace: &Trace, firsts: &[Firsts]) -> Trace {
    let chains = find(trace);
    let last: BTreeMap<usize, &Vec<usize>> =
        chains.iter().map(|chain| (chain[chain.len() - 1], chain)).collect();
    let member: BTreeMap<usize, ()> = chains.iter().flatten().map(|index| (*index, ())).collect();
    let mut result = Trace::new(trace.shape);
    let mut renamed: BTreeMap<usize, usize> = BTreeMap::new();
    let of_move = |moved: &Move| [Some(moved.source), Some(moved.target), moved.fold];
    let known = trace.moves.iter().flat_map(of_move).flatten().filter(|cell| cell.buffer == Buffer::Held);
    let mut held = known.map(|cell| cell.index + 1).max().unwrap_or(0);
    // What arrives from elsewhere waits in a cell of its own.
    let mut waiting: BTreeMap<usize, Cell> = BTreeMap::new();
    for event in &trace.events {
        match *event {
            Event::Read(index) => {
                let Move { origin, channel, source, target, .. } = trace.moves[index];
                if !member.contains_key(&index) || source.rank != target.rank {
                    renamed.insert(index, result.depart(origin, channel, source));
                }
            }
            Event::Write(index) => {
                let Move { origin, source, target, fold, .. } = trace.moves[index];
                if !member.contains_key(&index) {
                    result.arrive(renamed[&index], origin, target, fold);
                    continue;
                }
                if source.rank != target.rank {
                    let cell = Cell { rank: target.rank, buffer: Buffer::Held, index: held };
                    held += 1;
                    result.arrive(renamed[&index], origin, cell, None);
                    waiting.insert(index, cell);
                }
                if let Some(chain) = last.get(&index) {
                    let (origins, operands) = operands(trace, firsts, chain, &waiting);
                    emit(&mut result, &origins, &operands, target, &mut held);
                }
            }
        }
    }
    result
}

/// Runs of at least two folds into one cell, which nothing else touches meanwhile.
fn find(trace: &Trace) -> Vec<Vec<usize>> {
    let mut open: BTreeMap<Cell, Vec<usize>> = BTreeMap::new();
    let mut found = Vec::new();
    let mut close = |open: &mut BTreeMap<Cell, Vec<usize>>, touched: Cell, written: bool| {
        // A run ends where its cell is touched, or one of its operands changes.
        let ends = |(cell, chain): (&Cell, &Vec<usize>)| {
            let operand = |index: &usize| trace.moves[*index].source == touched;
            (*cell == touched || (written && chain.iter().any(operand))).then_some(*cell)
        };
        let ended: Vec<Cell> = if written { open.iter().filter_map(ends).collect() } else { vec![touched] };
        found.extend(ended.iter().filter_map(|cell| open.remove(cell)).filter(|chain| chain.len() > 1));
    };
    for event in &trace.events {
        match *event {
            Event::Read(index) => close(&mut open, trace.moves[index].source, false),
            Event::Write(index) => {
                let Move { target, fold, .. } = trace.moves[index];
                let goes_on = fold == Some(target);
                if let Some(fold) = fold.filter(|_| !goes_on) {
                    close(&mut open, fold, false);
                }
                let chain = if goes_on { open.remove(&target).unwrap_or_default() } else { Vec::new() };
                close(&mut open, target, true);
                if goes_on {
                    open.insert(target, [chain, vec![index]].concat());
                }
            }
        }
    }
    found.extend(open.into_values().filter(|chain| chain.len() > 1));
    found
}

/// The operands by their first contributors, and the origins of the folds.
fn operands(
    trace: &Trace,
    firsts: &[Firsts],
    chain: &[usize],
    waiting: &BTreeMap<usize, Cell>,
) -> (Vec<(u32, u16)>, Vec<Cell>) {
    let begin = trace.moves[chain[0]].target;
    let mut operands: Vec<(u32, Cell)> = vec![(firsts[chain[0]].1.unwrap_or(0), begin)];
    let source = |index: &usize| {
        let cell = waiting.get(index).copied().unwrap_or(trace.moves[*index].source);
        (firsts[*index].0, cell)
    };
    operands.extend(chain.iter().map(source));
    operands.sort();
    let origins =
        chain.iter().map(|index| (trace.moves[*index].origin, trace.moves[*index].channel)).collect();
    (origins, operands.into_iter().map(|(_, cell)| cell).collect())
}

fn emit(result: &mut Trace, origins: &[(u32, u16)], operands: &[Cell], target: Cell, held: &mut u32) {
    let sum = Cell { rank: target.rank, buffer: Buffer::Held, index: *held };
    *held += 1;
    let mut own = operands[0];
    for (at, (operand, (origin, channel))) in operands[1..].iter().zip(origins).enumerate() {
        let into = if at + 1 == origins.len() { target } else { sum };
        result.at_once(*origin, *channel, *operand, into, Some(own));
        own = sum;
    }
}
