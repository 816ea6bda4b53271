//! Blocks of their own from rank to rank: all-to-all, gather and scatter.
//!
//! Each block takes the path over ranks that is least in the way of those before it: a link is the longer the more
//! already passes it. Then all paths are chosen again, each beside all others.
//!
//! Invariant: a block has one path, and scratch places of its own on the ranks between. Absent: splitting a block over
//! several paths, but for the pieces that the schedule cuts it into.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use super::clock::{Work, run};
use super::emit::Emit;
use super::wires::Wires;
use crate::{Chunk, Collective, Place, Rank, Transfer};

/// How often paths are chosen.
const PASSES: usize = 3;

/// One piece of a block on its way.
struct Message {
    from: u32,
    to: u32,
    piece: u32,
    path: Vec<u32>,
}

/// Paths of all messages of a collective.
pub(super) struct Paths {
    messages: Vec<Message>,
    /// The time units that the fullest link needs.
    pub(super) fullest: u64,
    /// How many edges were looked at.
    pub(super) looked: u64,
}

/// The paths of `collective`, each block in `pieces` pieces; they are chosen once, and again until `looks` edges were
/// looked at. None where a rank is not reached.
pub(super) fn paths(wires: &Wires, collective: Collective, pieces: u32, looks: u64) -> Option<Paths> {
    let ranks = wires.ranks;
    let mut messages = Vec::new();
    for (distance, from, piece) in (1..ranks)
        .flat_map(|away| (0..ranks).flat_map(move |from| (0..pieces).map(move |piece| (away, from, piece))))
    {
        let to = (from + distance) % ranks;
        let is_wanted = match collective {
            Collective::Gather => to == 0,
            Collective::Scatter => from == 0,
            _ => true,
        };
        if is_wanted {
            messages.push(Message { from, to, piece, path: Vec::new() });
        }
    }
    let mut loads = vec![0u64; wires.times.len()];
    let mut looked = 0;
    let mut best: Option<Paths> = None;
    for pass in 0..PASSES {
        if pass > 0 && looked >= looks {
            break;
        }
        for message in &mut messages {
            let Message { from, to, path, .. } = message;
            for &edge in path.iter() {
                wires.edges[edge as usize].uses.iter().for_each(|part| loads[*part as usize] -= 1);
            }
            *path = nearest(wires, &loads, *from, *to, &mut looked)?;
            for &edge in path.iter() {
                wires.edges[edge as usize].uses.iter().for_each(|part| loads[*part as usize] += 1);
            }
        }
        let fullest = loads.iter().zip(&wires.times).map(|(load, time)| load * time).max().unwrap_or(0);
        if best.as_ref().is_none_or(|best| fullest < best.fullest) {
            let again = |of: &Message| Message { path: of.path.clone(), ..*of };
            best = Some(Paths { messages: messages.iter().map(again).collect(), fullest, looked: 0 });
        }
    }
    best.map(|best| Paths { looked, ..best })
}

/// The path of least cost: an edge costs the sum over its links of the time of one more chunk, times how full they are
/// then.
fn nearest(wires: &Wires, loads: &[u64], from: u32, to: u32, looked: &mut u64) -> Option<Vec<u32>> {
    let mut known: Vec<(u128, Option<u32>)> = vec![(u128::MAX, None); wires.ranks as usize];
    known[from as usize].0 = 0;
    let mut queue = BinaryHeap::from([Reverse((0u128, from))]);
    while let Some(Reverse((here, rank))) = queue.pop() {
        if rank == to {
            break;
        }
        if known[rank as usize].0 < here {
            continue;
        }
        for &number in &wires.leaving[rank as usize] {
            *looked += 1;
            let edge = &wires.edges[number as usize];
            let full = |part: &u32| {
                let time = u128::from(wires.times[*part as usize]);
                let after = u128::from(loads[*part as usize] + 1) * time;
                time * after
            };
            let there = here + edge.uses.iter().map(full).sum::<u128>();
            if there < known[edge.to as usize].0 {
                known[edge.to as usize] = (there, Some(number));
                queue.push(Reverse((there, edge.to)));
            }
        }
    }
    let mut path = Vec::new();
    let mut at = to;
    while at != from {
        let edge = known[at as usize].1?;
        path.push(edge);
        at = wires.edges[edge as usize].from;
    }
    path.reverse();
    Some(path)
}

/// Messages in the order in which each edge takes them.
struct Queues<'a> {
    wires: &'a Wires,
    messages: &'a [Message],
    waiting: Vec<VecDeque<u32>>,
    /// The edges of its path that each message has passed.
    passed: Vec<usize>,
}

impl Work for Queues<'_> {
    fn pick(&mut self, edge: u32) -> Option<u32> {
        self.waiting[edge as usize].pop_front()
    }

    fn arrive(&mut self, _: u32, message: u32) {
        let passed = &mut self.passed[message as usize];
        *passed += 1;
        if let Some(next) = self.messages[message as usize].path.get(*passed) {
            self.waiting[*next as usize].push_back(message);
        }
    }

    /// The edge on which most waits is first.
    fn order(&self, number: u32) -> u64 {
        let edge = &self.wires.edges[number as usize];
        u64::MAX - (self.waiting[number as usize].len() as u64).saturating_mul(edge.time)
    }
}

/// Adds the messages, as early as their edges are free.
pub(super) fn emit(wires: &Wires, paths: &Paths, into: &mut Emit) {
    let messages = &paths.messages;
    let mut queues = Queues {
        wires,
        messages,
        waiting: vec![VecDeque::new(); wires.edges.len()],
        passed: vec![0; messages.len()],
    };
    for (number, message) in (0..).zip(messages) {
        queues.waiting[message.path[0] as usize].push_back(number);
    }
    let (steps, _) = run(wires, &mut queues);
    let (collective, ranks, parts) = (into.collective, into.ranks, into.parts);
    // A block of a side that has one block of each rank, or the one block of a side that has one.
    let block = |blocks: u32, of: u32, piece: u32| Chunk(if blocks > 1 { of * parts + piece } else { piece });
    let source = |of: &Message| Place::Input(block(collective.input_blocks(ranks), of.to, of.piece));
    let target = |of: &Message| Place::Output(block(collective.output_blocks(ranks), of.from, of.piece));
    let mut passed = vec![0usize; messages.len()];
    let mut timed = Vec::with_capacity(steps.len());
    for step in &steps {
        let message = &messages[step.chunk as usize];
        let hop = &mut passed[step.chunk as usize];
        *hop += 1;
        // A place between is as long as its piece, which its number names where blocks differ in length.
        let own = Place::Scratch(match collective {
            Collective::Gather => block(ranks, message.from, message.piece),
            Collective::Scatter => block(ranks, message.to, message.piece),
            _ => Chunk(step.chunk),
        });
        let edge = &wires.edges[step.edge as usize];
        let transfer = Transfer {
            from: Rank(edge.from),
            to: Rank(edge.to),
            channel: into.channel(step.chunk, 0),
            source: if *hop == 1 { source(message) } else { own },
            target: if *hop == message.path.len() { target(message) } else { own },
            fold: None,
            own_first: false,
        };
        timed.push(((step.start, 0), transfer));
    }
    let keepers = if collective == Collective::AllToAll { ranks } else { 1 };
    for rank in 0..keepers {
        for piece in 0..parts {
            let own = Message { from: rank, to: rank, piece, path: Vec::new() };
            into.keep(rank, piece, source(&own), target(&own));
        }
    }
    into.by_time(0, timed);
}
