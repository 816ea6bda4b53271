//! Time that passes over links: which edge may start next, and when a chunk has arrived.
//!
//! Source: W. Won et al., "TACOS: Topology-Aware Collective Algorithm Synthesizer for Distributed Machine Learning",
//! MICRO 2024, which fills the links of a graph unrolled in time, step by step. There a link carries one chunk at a
//! time; here a route of several links does, and each of its links is free again after its own time, so that one slow
//! link does not block the fast ones beside it.
//!
//! Invariant: time is whole; what happens at one time is taken in the order of numbers. Absent: which chunk is worth
//! sending.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::wires::Wires;

/// A chunk on an edge.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Step {
    pub(super) start: u64,
    pub(super) end: u64,
    /// The number of the edge.
    pub(super) edge: u32,
    pub(super) chunk: u32,
}

/// What decides about chunks.
pub(super) trait Work {
    /// The chunk that an edge, which is free, takes next.
    fn pick(&mut self, edge: u32) -> Option<u32>;

    /// A chunk is there at the end of an edge.
    fn arrive(&mut self, edge: u32, chunk: u32);

    /// The place of an edge among those that could start at one time; the least is the first.
    fn order(&self, edge: u32) -> u64;
}

/// Runs until nothing moves any more; gives all steps by their start, and how many edges were looked at.
pub(super) fn run(wires: &Wires, work: &mut impl Work) -> (Vec<Step>, u64) {
    let mut steps: Vec<Step> = Vec::new();
    let mut free = vec![0u64; wires.times.len()];
    let mut looked = 0;
    // Arrivals have the number of their step, links that become free the largest number.
    let mut events: BinaryHeap<Reverse<(u64, u32, u32)>> = BinaryHeap::new();
    let mut woken = Woken::all(wires.edges.len());
    let mut now = 0;
    loop {
        let mut order: Vec<(u64, u32)> = Vec::new();
        for &edge in &woken.edges {
            if wires.edges[edge as usize].uses.iter().all(|part| free[*part as usize] <= now) {
                order.push((work.order(edge), edge));
            }
        }
        looked += woken.edges.len() as u64;
        order.sort_unstable();
        for (_, number) in order {
            let edge = &wires.edges[number as usize];
            if edge.uses.iter().any(|part| free[*part as usize] > now) {
                continue;
            }
            let Some(chunk) = work.pick(number) else { continue };
            for &part in &edge.uses {
                free[part as usize] = now + wires.times[part as usize];
                events.push(Reverse((free[part as usize], u32::MAX, part)));
            }
            events.push(Reverse((now + edge.time, steps.len() as u32, 0)));
            steps.push(Step { start: now, end: now + edge.time, edge: number, chunk });
        }
        let Some(&Reverse((next, ..))) = events.peek() else { return (steps, looked) };
        now = next;
        woken.clear();
        while let Some(&Reverse((time, step, part))) = events.peek() {
            if time > now {
                break;
            }
            events.pop();
            if step == u32::MAX {
                woken.wake(&wires.users[part as usize]);
            } else {
                let Step { edge, chunk, .. } = steps[step as usize];
                work.arrive(edge, chunk);
                woken.wake(&wires.leaving[wires.edges[edge as usize].to as usize]);
            }
        }
    }
}

/// Edges that may start, each once, in any order.
struct Woken {
    edges: Vec<u32>,
    is_in: Vec<bool>,
}

impl Woken {
    fn all(edges: usize) -> Woken {
        Woken { edges: (0..edges as u32).collect(), is_in: vec![true; edges] }
    }

    fn wake(&mut self, edges: &[u32]) {
        for &edge in edges {
            if !std::mem::replace(&mut self.is_in[edge as usize], true) {
                self.edges.push(edge);
            }
        }
    }

    fn clear(&mut self) {
        self.edges.drain(..).for_each(|edge| self.is_in[edge as usize] = false);
    }
}
