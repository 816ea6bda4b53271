//! Trees of given whole shares that together load no limit above what it is allowed.
//!
//! Trees are grown one after the other by what is left. Then single edges are exchanged: out of a limit that is
//! loaded above its allowance, into the place of the tree that adds least above others. Where no exchange helps,
//! limits that are above their allowance weigh more from then on.
//!
//! Source: P. Morris, "The breakout method for escaping from local minima", AAAI 1993, for the weights; F. Glover,
//! "Tabu search" (1989): an edge does not come back at once. Invariant: numbers are whole and steps are counted.
//! Absent: a proof that there are no such trees, where none are found.

use super::span::{grow, neighbours, side};
use super::wires::Wires;

/// Exchanges during which an edge that left a tree does not return.
const TENURE: u64 = 12;

/// What is asked for.
#[derive(Clone, Debug)]
pub(super) struct Wanted {
    /// The share of each tree.
    pub(super) shares: Vec<u64>,
    /// The most that each limit is loaded, in shares.
    pub(super) allowed: Vec<u64>,
}

/// Trees under way.
pub(super) struct Search<'a> {
    wires: &'a Wires,
    wanted: &'a Wanted,
    trees: Vec<Vec<u32>>,
    load: Vec<u64>,
    /// What a share above the allowance counts, for each limit.
    weight: Vec<u64>,
    /// For each tree and pair the step before which the pair does not return.
    barred: Vec<Vec<u64>>,
    steps: u64,
}

/// An exchange: the tree, the place of the edge in it, the edge that comes.
type Exchange = (usize, usize, u32);

impl<'a> Search<'a> {
    /// The trees, each as a list of pairs, and whether they are within all allowances; none where `budget` does not
    /// suffice to grow them. A unit of it is an exchange that is looked at.
    pub(super) fn run(
        wires: &'a Wires,
        wanted: &'a Wanted,
        budget: &mut u64,
    ) -> Option<(Vec<Vec<u32>>, bool)> {
        let mut search = Search {
            wires,
            wanted,
            trees: Vec::new(),
            load: vec![0; wires.capacity.len()],
            weight: vec![1; wires.capacity.len()],
            barred: vec![vec![0; wires.pairs.len()]; wanted.shares.len()],
            steps: 0,
        };
        search.begin(budget)?;
        loop {
            let above: Vec<u32> =
                (0..search.load.len() as u32).filter(|limit| search.excess(*limit) > 0).collect();
            let Some(&limit) = above.get(search.steps as usize % above.len().max(1)) else {
                return Some((search.trees, true));
            };
            search.steps += 1;
            match search.best(limit, budget) {
                Some((change, exchange)) if change <= 0 => search.make(exchange),
                _ => above.iter().for_each(|limit| search.weight[*limit as usize] += 1),
            }
            if *budget == 0 {
                return Some((search.trees, false));
            }
        }
    }

    fn excess(&self, limit: u32) -> u64 {
        self.load[limit as usize].saturating_sub(self.wanted.allowed[limit as usize])
    }

    /// What `share` more on a pair counts: above allowances, and how full limits are.
    fn added(&self, pair: u32, share: u64) -> (i64, u64) {
        let (mut above, mut full) = (0, 0);
        for &(limit, times) in &self.wires.loads[pair as usize] {
            let (load, allowed) = (self.load[limit as usize], self.wanted.allowed[limit as usize]);
            let after = load + share * u64::from(times);
            let more = after.saturating_sub(allowed) - load.saturating_sub(allowed);
            above += (more * self.weight[limit as usize]) as i64;
            full += (after << 8) / allowed.max(1);
        }
        (above, full)
    }

    fn load(&mut self, pair: u32, share: u64) {
        for &(limit, times) in &self.wires.loads[pair as usize] {
            self.load[limit as usize] += share * u64::from(times);
        }
    }

    fn unload(&mut self, pair: u32, share: u64) {
        for &(limit, times) in &self.wires.loads[pair as usize] {
            self.load[limit as usize] -= share * u64::from(times);
        }
    }

    /// Grows all trees, from another root each.
    fn begin(&mut self, budget: &mut u64) -> Option<()> {
        let shares = &self.wanted.shares;
        for (number, share) in shares.iter().copied().enumerate() {
            let looks = (self.wires.ranks * self.wires.pairs.len()) as u64;
            *budget = budget.checked_sub(looks / 4)?;
            let root = (number * self.wires.ranks / shares.len()) as u32;
            let search = std::cell::RefCell::new(&mut *self);
            let wires = search.borrow().wires;
            let tree = grow(
                wires,
                root,
                |pair| search.borrow().added(pair, share),
                |pair| search.borrow_mut().load(pair, share),
            );
            self.trees.push(tree);
        }
        Some(())
    }

    /// The exchange that takes an edge out of `limit` and adds least, with what it adds above allowances.
    fn best(&mut self, limit: u32, budget: &mut u64) -> Option<(i64, Exchange)> {
        let mut best: Option<((i64, u64, u64), Exchange)> = None;
        for number in 0..self.trees.len() {
            let share = self.wanted.shares[number];
            let uses = |pair: &u32| self.wires.loads[*pair as usize].iter().any(|(of, _)| *of == limit);
            let places: Vec<usize> =
                (0..self.trees[number].len()).filter(|at| uses(&self.trees[number][*at])).collect();
            if places.is_empty() {
                continue;
            }
            let near = neighbours(self.wires, &self.trees[number]);
            for place in places {
                let out = self.trees[number][place];
                let inside = side(self.wires, &near, out);
                self.unload(out, share);
                let gained = self.added(out, share).0;
                for (pair, (one, other)) in (0u32..).zip(&self.wires.pairs) {
                    let crosses = inside[*one as usize] != inside[*other as usize];
                    if !crosses || pair == out || self.barred[number][pair as usize] > self.steps {
                        continue;
                    }
                    let (above, full) = self.added(pair, share);
                    let found = (above - gained, full, mixed(self.steps, pair, number));
                    if best.is_none_or(|(known, _)| found < known) {
                        best = Some((found, (number, place, pair)));
                    }
                }
                self.load(out, share);
                *budget = budget.saturating_sub(self.wires.pairs.len() as u64);
            }
        }
        best.map(|((above, ..), exchange)| (above, exchange))
    }

    fn make(&mut self, (number, place, pair): Exchange) {
        let share = self.wanted.shares[number];
        let out = std::mem::replace(&mut self.trees[number][place], pair);
        self.unload(out, share);
        self.load(pair, share);
        self.barred[number][out as usize] = self.steps + TENURE;
    }
}

/// A number that decides between equals, another one at each step.
fn mixed(step: u64, pair: u32, tree: usize) -> u64 {
    let seed = step << 40 ^ (tree as u64) << 24 ^ u64::from(pair);
    let once = (seed ^ seed >> 31).wrapping_mul(0x7fb5_d329_728e_a185);
    (once ^ once >> 27).wrapping_mul(0x81da_def4_bc2d_d44d) >> 33
}
