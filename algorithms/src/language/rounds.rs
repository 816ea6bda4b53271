//! From moves in an order to rounds: each as early as what it depends on allows.
//!
//! Invariant: a move is in a later round than the last write of all that it reads, and not in an earlier one than a
//! read of what it overwrites. A send reads the state before its round, so the overwriting may be in the same one.
//! Absent: channels, which are the program's.

use std::collections::BTreeMap;

use super::trace::{Event, Shape};
use super::values::{Placed, Resolved};
use crate::{Channel, Place, Rank, Round, Schedule, Transfer, aliasing, lengths};

/// Sweeps over the edges after which messages that are overtaken at their source wait in scratch instead. Without such
/// messages one sweep is enough, and few cycles of them need more than two.
const SWEEPS_MAX: usize = 16;

/// The rounds of resolved moves, as a schedule. `apart` is how many rounds a write comes after a send of what was
/// there, 0 or 1: with 0, two ranks may exchange values in place; with 1, more messages fit between two ranks in a
/// round than a mailbox has slots.
pub(super) fn schedule(name: String, shape: &Shape, mut resolved: Resolved, apart: u32) -> Schedule {
    let levels = match levels(shape, &resolved, apart, SWEEPS_MAX) {
        Some(levels) => levels,
        None => {
            hold_at_target(shape, &mut resolved);
            // All moves are at once now, so that every edge leads on in the order of the events, and two sweeps settle
            // them. What did not would be refused by the verifier.
            levels(shape, &resolved, apart, SWEEPS_MAX).unwrap_or_else(|| vec![0; resolved.moves.len()])
        }
    };
    let last = levels.iter().copied().max().map_or(0, |last| last as usize + 1);
    let mut rounds = vec![Round::default(); last];
    let order = resolved.events.iter().filter_map(|event| match event {
        Event::Write(index) => Some(*index),
        Event::Read(_) => None,
    });
    for index in order {
        let Placed { channel, from, to, source, target, fold, own_first } = resolved.moves[index];
        let transfer = Transfer { from, to, channel: Channel(channel), source, target, fold, own_first };
        rounds[levels[index] as usize].transfers.push(transfer);
    }
    for round in &mut rounds {
        // In the order for readers: channel by channel, local copies last.
        round.transfers.sort_by_key(|transfer| (transfer.channel, transfer.from == transfer.to));
    }
    let Shape { collective, ranks, switches, partition, .. } = *shape;
    Schedule { name, collective, ranks, switches, partition, rounds }
}

#[derive(Default)]
struct History {
    writer: Option<usize>,
    /// Each with whether it is a send.
    readers: Vec<(usize, bool)>,
}

/// An edge: the second move is this many rounds after the first, or more.
type Edge = (usize, usize, u32);

fn edges(shape: &Shape, resolved: &Resolved, apart: u32) -> Vec<Edge> {
    let Resolved { moves, events, .. } = resolved;
    let mut histories: BTreeMap<(Rank, Place), History> = BTreeMap::new();
    let mut edges = Vec::new();
    let read = |histories: &mut BTreeMap<_, History>, edges: &mut Vec<Edge>, rank, place, by, sends| {
        let history = histories.entry((rank, place)).or_default();
        edges.extend(history.writer.filter(|writer| *writer != by).map(|writer| (writer, by, 1)));
        history.readers.push((by, sends));
    };
    for event in events {
        match *event {
            Event::Read(by) => {
                let Placed { from, to, source, .. } = moves[by];
                read(&mut histories, &mut edges, from, source, by, from != to);
            }
            Event::Write(by) => {
                let Placed { from, to, source, target, fold, .. } = moves[by];
                if let Some(fold) = fold {
                    read(&mut histories, &mut edges, to, fold, by, false);
                }
                let input = input_of(shape, to, target);
                // A copy of a piece onto itself in place changes nothing.
                let stays = from == to && fold.is_none() && input == Some(source);
                let touched = [Some(target), input.filter(|_| !stays)];
                for place in touched.into_iter().flatten() {
                    let history = histories.entry((to, place)).or_default();
                    let readers = history.readers.iter().filter(|(reader, _)| *reader != by);
                    edges
                        .extend(readers.map(|(reader, sends)| (*reader, by, if *sends { apart } else { 1 })));
                    edges.extend(history.writer.filter(|writer| *writer != by).map(|writer| (writer, by, 1)));
                    if place == target {
                        *history = History { writer: Some(by), readers: Vec::new() };
                    }
                }
            }
        }
    }
    edges
}

/// The input that is the same memory as an output in place.
fn input_of(shape: &Shape, rank: Rank, place: Place) -> Option<Place> {
    let Place::Output(output) = place else { return None };
    let Shape { collective, ranks, partition, .. } = *shape;
    aliasing::input_of_output(collective, partition, ranks, rank, output).map(Place::Input)
}

/// The round of each move; `None` where this number of sweeps does not settle them.
fn levels(shape: &Shape, resolved: &Resolved, apart: u32, sweeps: usize) -> Option<Vec<u32>> {
    let edges = edges(shape, resolved, apart);
    let mut levels = vec![0u32; resolved.moves.len()];
    for _ in 0..sweeps {
        let mut changed = false;
        for &(before, after, apart) in &edges {
            let least = levels[before] + apart;
            if levels[after] < least {
                levels[after] = least;
                changed = true;
            }
        }
        if !changed {
            return Some(levels);
        }
    }
    None
}

/// Lets messages whose source is overwritten before they arrive travel at once to a place of their own.
fn hold_at_target(shape: &Shape, resolved: &mut Resolved) {
    let Shape { collective, partition, .. } = *shape;
    let mut open: BTreeMap<usize, ()> = BTreeMap::new();
    let mut events = Vec::with_capacity(resolved.events.len());
    let old = std::mem::take(&mut resolved.events);
    for (at, event) in old.iter().enumerate() {
        match *event {
            Event::Read(index) if old.get(at + 1) != Some(&Event::Write(index)) => {
                let Placed { from, to, source, target, .. } = resolved.moves[index];
                let piece = [(from, source), (to, target)]
                    .into_iter()
                    .find_map(|(rank, place)| lengths::of(collective, partition, rank, place));
                let (Place::Input(number) | Place::Output(number) | Place::Scratch(number)) = target;
                let place = resolved.scratch.fresh(to.0, piece.unwrap_or(number).0);
                let message = Placed { target: place, fold: None, own_first: false, ..resolved.moves[index] };
                let new = resolved.moves.len();
                resolved.moves.push(message);
                resolved.moves[index] = Placed { from: to, source: place, ..resolved.moves[index] };
                events.extend([Event::Read(new), Event::Write(new)]);
                open.insert(index, ());
            }
            Event::Write(index) if open.remove(&index).is_some() => {
                events.extend([Event::Read(index), Event::Write(index)]);
            }
            other => events.push(other),
        }
    }
    resolved.events = events;
}
