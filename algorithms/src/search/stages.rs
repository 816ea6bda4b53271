//! Which speeds rings have: shares of the limit first, then what links carry, stage by stage until nothing is left.
//!
//! Invariant: the rings of all classes of boxes are as many and as fast, so that ring `i` of each box joins ring `i` of the
//! next. Speeds are compared in whole units. Absent: where rings run (see `place`).

use super::part::{Graph, Placed, UNITS, speeds_of};
use super::place::pack;

/// Speeds that are tried in a stage, at most.
const SPEEDS_MAX: usize = 8;

/// A speed may take this part of the steps that are left: speeds that promise most come first.
const STEPS_PART: u64 = 5;

/// The rings of each class, and what they leave.
#[derive(Clone)]
pub(super) struct State {
    pub(super) rings: Vec<Vec<Placed>>,
    left: Vec<Vec<u128>>,
    total: u128,
}

impl State {
    pub(super) fn new(graphs: &[Graph<'_>]) -> State {
        State {
            rings: vec![Vec::new(); graphs.len()],
            left: graphs.iter().map(|graph| graph.part.capacity.clone()).collect(),
            total: 0,
        }
    }

    fn count(&self) -> usize {
        self.rings.first().map_or(0, Vec::len)
    }
}

/// A search for rings.
pub(super) struct Stages<'a> {
    pub(super) graphs: &'a [Graph<'a>],
    /// Units a second that no rings exceed.
    pub(super) limit: u128,
    pub(super) rings_max: usize,
    pub(super) steps: u64,
}

impl Stages<'_> {
    /// The most rings of a speed that each rank could be in by its links alone.
    fn count_at_most(&self, state: &State, speed: u128) -> usize {
        let mut most = self.rings_max - state.count();
        for (graph, left) in self.graphs.iter().zip(&state.left) {
            let (mut out, mut into) = (vec![0u128; graph.ranks()], vec![0u128; graph.ranks()]);
            for ((from, to), left) in graph.part.links.iter().zip(left) {
                for (ends, node) in [(&mut out, *from as usize), (&mut into, *to as usize)] {
                    if let Some(count) = ends.get_mut(node) {
                        *count += left / speed;
                    }
                }
            }
            for (rank, (out, into)) in out.into_iter().zip(into).enumerate() {
                let limits = &left[graph.part.links.len() + 2 * rank..][..2];
                let fits = out.min(into).min(limits[0] / speed).min(limits[1] / speed);
                most = most.min(usize::try_from(fits).unwrap_or(most));
            }
        }
        most.min(usize::try_from((self.limit - state.total) / speed).unwrap_or(most))
    }

    /// Speeds with the number of rings that may have them, those with the most in total first, then those with the fewest rings.
    fn speeds(&self, state: &State) -> Vec<(u128, usize)> {
        let open = self.limit - state.total;
        let mut speeds: Vec<u128> = (1..=self.rings_max as u128)
            .filter(|count| UNITS.is_multiple_of(*count))
            .map(|count| open / count)
            .collect();
        for (graph, left) in self.graphs.iter().zip(&state.left) {
            let at_rank = |ends: &(u32, u32)| (ends.0.min(ends.1) as usize) < graph.ranks();
            let links = graph.part.links.iter().zip(left).filter(|(ends, _)| at_rank(ends));
            speeds.extend(speeds_of(links.map(|(_, left)| *left)));
        }
        speeds.retain(|speed| (1..=open).contains(speed));
        speeds.sort_unstable();
        speeds.dedup();
        let mut all: Vec<(u128, usize)> =
            speeds.into_iter().map(|speed| (speed, self.count_at_most(state, speed))).collect();
        all.retain(|(_, count)| *count > 0);
        all.sort_by_key(|(speed, count)| (std::cmp::Reverse(speed * *count as u128), *count));
        all.truncate(SPEEDS_MAX);
        all
    }

    /// The state with rings of a speed in all classes.
    fn with(&mut self, state: &State, speed: u128, count: usize) -> Option<State> {
        let mut next = state.clone();
        let mut fewest = count;
        let mut packed = Vec::new();
        for (graph, left) in self.graphs.iter().zip(&state.left) {
            let mut steps = self.steps / STEPS_PART;
            self.steps -= steps;
            let rings = pack(graph, left, speed, fewest, &mut steps);
            self.steps += steps;
            fewest = rings.len();
            packed.push(rings);
        }
        if fewest == 0 {
            return None;
        }
        for (class, (rings, graph)) in packed.into_iter().zip(self.graphs).enumerate() {
            for ring in rings.into_iter().take(fewest) {
                ring.hops.iter().for_each(|way| graph.take(&mut next.left[class], way, speed));
                next.rings[class].push(ring);
            }
        }
        next.total += speed * fewest as u128;
        Some(next)
    }

    /// The state after one more stage.
    fn stage(&mut self, state: &State) -> Option<State> {
        let mut best: Option<State> = None;
        for (speed, count) in self.speeds(state) {
            let possible = state.total + speed * count as u128;
            if best.as_ref().is_some_and(|best| best.total >= possible) {
                break;
            }
            let found = self.with(state, speed, count);
            if let Some(found) =
                found.filter(|found| best.as_ref().is_none_or(|best| found.total > best.total))
            {
                best = Some(found);
            }
        }
        best
    }

    /// The rings with the largest total that were found; of those the fewest.
    pub(super) fn run(&mut self) -> State {
        let empty = State::new(self.graphs);
        let mut best = empty.clone();
        for (speed, count) in self.speeds(&empty) {
            let Some(mut state) = self.with(&empty, speed, count) else { continue };
            let is_all = state.total == self.limit;
            while state.total < self.limit && state.count() < self.rings_max && self.steps > 0 {
                let Some(next) = self.stage(&state) else { break };
                state = next;
            }
            let order = |state: &State| (state.total, std::cmp::Reverse(state.count()));
            if order(&state) > order(&best) {
                best = state;
            }
            if is_all || self.steps == 0 {
                break;
            }
        }
        best
    }
}
