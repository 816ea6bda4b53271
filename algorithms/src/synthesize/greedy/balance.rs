//! Trees with less on the wire that needs most time.
//!
//! A rank that gets a chunk over the fullest link gets it from another rank instead, over links that stay emptier than
//! that one was.
//!
//! Invariant: trees stay trees, and the time of the fullest link never grows. Absent: the order in time, which is
//! found anew.

use std::collections::BTreeSet;

use super::spread::Parents;
use super::wires::Wires;

/// The time units that the fullest link needs for the trees.
pub(super) fn fullest(wires: &Wires, parents: &Parents) -> u64 {
    let loads = loads(wires, parents);
    loads.iter().zip(&wires.times).map(|(load, time)| load * time).max().unwrap_or(0)
}

/// Chunks of the trees on each link and limit.
pub(super) fn loads(wires: &Wires, parents: &Parents) -> Vec<u64> {
    let mut loads = vec![0u64; wires.times.len()];
    let parts = parents.iter().flatten().flatten().flat_map(|edge| &wires.edges[*edge as usize].uses);
    parts.for_each(|part| loads[*part as usize] += 1);
    loads
}

/// Moves chunks away from the fullest links until that helps no more, or `looks` edges were looked at; gives how many
/// were. Beside the trees the links carry what is in `others`.
pub(super) fn balance(wires: &Wires, parents: &mut Parents, others: &[u64], looks: u64) -> u64 {
    let mut moving = Moving::new(wires, parents);
    moving.loads.iter_mut().zip(others).for_each(|(load, other)| *load += other);
    while moving.looked < looks {
        let times = |part: &usize| moving.loads[*part] * wires.times[*part];
        // Of equally full ones the first: if that stays as it is, so does the time of the trees.
        let Some(part) = (0..moving.loads.len()).max_by_key(|part| (times(part), std::cmp::Reverse(*part)))
        else {
            break;
        };
        if !moving.relieve(part) {
            break;
        }
    }
    moving.looked
}

struct Moving<'a> {
    wires: &'a Wires,
    parents: &'a mut Parents,
    loads: Vec<u64>,
    /// For each link or limit what passes it: the chunk and the rank that gets it.
    passing: Vec<BTreeSet<(u32, u32)>>,
    looked: u64,
}

impl<'a> Moving<'a> {
    fn new(wires: &'a Wires, parents: &'a mut Parents) -> Moving<'a> {
        let mut passing = vec![BTreeSet::new(); wires.times.len()];
        for (chunk, tree) in (0..).zip(parents.iter()) {
            for (rank, edge) in (0..).zip(tree) {
                let parts = edge.iter().flat_map(|edge| &wires.edges[*edge as usize].uses);
                parts.for_each(|part| _ = passing[*part as usize].insert((chunk, rank)));
            }
        }
        Moving { wires, loads: loads(wires, parents), parents, passing, looked: 0 }
    }

    /// Moves one chunk off a link.
    fn relieve(&mut self, part: usize) -> bool {
        let most = self.loads[part] * self.wires.times[part];
        let passing: Vec<(u32, u32)> = self.passing[part].iter().copied().collect();
        let found =
            passing.into_iter().find_map(|(chunk, rank)| Some((chunk, rank, self.other(chunk, rank, most)?)));
        let Some((chunk, rank, number)) = found else { return false };
        let old = self.parents[chunk as usize][rank as usize].replace(number);
        for (edge, comes) in old.map(|old| (old, false)).into_iter().chain([(number, true)]) {
            for &part in &self.wires.edges[edge as usize].uses {
                let (load, passing) = (&mut self.loads[part as usize], &mut self.passing[part as usize]);
                if comes {
                    *load += 1;
                    passing.insert((chunk, rank));
                } else {
                    *load -= 1;
                    passing.remove(&(chunk, rank));
                }
            }
        }
        true
    }

    /// Another edge over which a rank can get a chunk, so that what it occupies takes less time than `most`: the one
    /// that takes least.
    fn other(&mut self, chunk: u32, rank: u32, most: u64) -> Option<u32> {
        let old = &self.wires.edges[self.parents[chunk as usize][rank as usize]? as usize].uses;
        let mut best: Option<(u64, u32)> = None;
        for &number in &self.wires.entering[rank as usize] {
            self.looked += 1;
            let edge = &self.wires.edges[number as usize];
            let after = edge.uses.iter().map(|part| {
                let comes = u64::from(!old.contains(part));
                (self.loads[*part as usize] + comes) * self.wires.times[*part as usize]
            });
            let after = after.max().unwrap_or(0);
            let is_better = after < most && best.is_none_or(|(least, _)| after < least);
            if is_better && !self.is_below(chunk, edge.from, rank) {
                best = Some((after, number));
            }
        }
        best.map(|(_, number)| number)
    }

    /// Whether a rank gets a chunk by way of another one.
    fn is_below(&self, chunk: u32, rank: u32, other: u32) -> bool {
        let above = |at: &u32| {
            self.parents[chunk as usize][*at as usize].map(|edge| self.wires.edges[edge as usize].from)
        };
        std::iter::successors(Some(rank), above).any(|at| at == other)
    }
}
