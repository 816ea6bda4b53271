//! The order of events as far as lanes hear of their rank's neighbours, directly or through others.
//!
//! A lane that hears another learns what that one heard, of the lanes of its own rank and of the ranks that it exchanges
//! with. In a tree an answer comes back so: the lane down a tree hears its parent's, which heard through the root what the
//! parent's lane up did, and that one heard this rank's lane up.
//!
//! Invariant: what is affirmed exists, as happens-before is transitive. Each lane keeps what it learned in the order in which it
//! did; a listener takes what is new since it listened last, so that all of it together costs as much as was learned.
//! Absent: what is heard of ranks that are no neighbours, and what was heard by the other lanes of a rank before they met.

use std::ops::Range;

use super::order::{Clocks, Epoch, POOL_MAX};
use super::program::Program;
use super::refusal::Refusal;

/// The entries that all lanes together may keep; what is beyond is not learned.
const LEARNED_MAX: usize = POOL_MAX >> 4;

/// A lane's past up to one of its moments, as it travels with a signal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Past {
    lane: u32,
    clock: u32,
    /// How much the lane had learned.
    learned: u32,
}

/// What lanes know of the lanes of their rank's neighbours.
pub(super) struct Relayed {
    now: Vec<u32>,
    /// For each lane: the latest known of others, in the order of lanes.
    known: Vec<Vec<Past>>,
    /// For each lane: what it learned, in its order.
    learned: Vec<Vec<Past>>,
    /// Entries of all lanes.
    entries: usize,
    rank_of: Vec<u32>,
    /// For each lane: its clock when the lanes of its rank met last.
    met: Vec<u32>,
    /// For each rank: itself and those that it exchanges with, in their order.
    near: Vec<Vec<u32>>,
    /// Room for what is still to be taken.
    open: Vec<Past>,
}

impl Relayed {
    /// `lane` learns of a past and of all that is new in it.
    fn hear(&mut self, lane: u32, past: Past) {
        let mut open = std::mem::take(&mut self.open);
        open.push(past);
        while let Some(past) = open.pop() {
            if let Some(news) = self.take(lane, past) {
                open.extend_from_slice(&self.learned[past.lane as usize][news]);
            }
        }
        self.open = open;
    }

    /// Notes a past; returns which part of what that lane learned is new to `lane`.
    fn take(&mut self, lane: u32, past: Past) -> Option<Range<usize>> {
        let near = &self.near[self.rank_of[lane as usize] as usize];
        if self.entries > LEARNED_MAX {
            return None;
        }
        if past.lane == lane || near.binary_search(&self.rank_of[past.lane as usize]).is_err() {
            return None;
        }
        let known = &mut self.known[lane as usize];
        let before = match known.binary_search_by_key(&past.lane, |known| known.lane) {
            Ok(at) if known[at].clock >= past.clock && known[at].learned >= past.learned => return None,
            Ok(at) => std::mem::replace(&mut known[at], past).learned,
            Err(at) => {
                known.insert(at, past);
                0
            }
        };
        self.learned[lane as usize].push(past);
        self.entries += 1;
        Some(before as usize..past.learned as usize)
    }

    fn past(&self, lane: u32) -> Past {
        Past { lane, clock: self.now[lane as usize], learned: self.learned[lane as usize].len() as u32 }
    }
}

impl Clocks for Relayed {
    type Snapshot = Past;

    fn new(program: &Program) -> Result<Self, Refusal> {
        // A counted arrival has an order of its own, which is not kept here.
        if program.arrivals() > 0 {
            return Err(Refusal::TooLarge { what: "counted writes" });
        }
        let lanes = program.lanes.len();
        Ok(Relayed {
            now: vec![1; lanes],
            known: vec![Vec::new(); lanes],
            learned: vec![Vec::new(); lanes],
            entries: 0,
            rank_of: program.lanes.iter().map(|lane| lane.rank).collect(),
            met: vec![0; lanes],
            near: program.neighbours(),
            open: Vec::new(),
        })
    }

    fn now(&self, lane: u32) -> u32 {
        self.now[lane as usize]
    }

    #[inline]
    fn knows(&self, lane: u32, epoch: Epoch) -> bool {
        let of = epoch.lane as usize;
        if epoch.clock == 0 || epoch.lane == lane {
            return self.now[lane as usize] >= epoch.clock;
        }
        if self.rank_of[of] == self.rank_of[lane as usize] && self.met[of] >= epoch.clock {
            return true;
        }
        let known = &self.known[lane as usize];
        let at = known.binary_search_by_key(&epoch.lane, |known| known.lane);
        at.is_ok_and(|at| known[at].clock >= epoch.clock)
    }

    fn tick(&mut self, lane: u32) {
        self.now[lane as usize] += 1;
    }

    fn release(&mut self, lane: u32) -> Result<Past, Refusal> {
        // What knows less is refused sooner or later.
        if self.entries > LEARNED_MAX {
            return Err(Refusal::TooLarge { what: "lanes that hear of each other" });
        }
        Ok(self.past(lane))
    }

    fn join(&mut self, lane: u32, past: Past) {
        self.hear(lane, past);
    }

    fn learn(&mut self, _: u32, _: u32) {}

    fn forget(&mut self, _: Past) {}

    fn meet(&mut self, lanes: Range<u32>) {
        self.tick(lanes.start);
        for lane in lanes {
            self.met[lane as usize] = self.now[lane as usize];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::order::{Neighbours, Vectors};
    use super::super::{Proof, compile, decide, proof, run};
    use super::*;
    use crate::builders::{RailTrees, box_tree, rail_trees, tree};
    use crate::plan::Action;
    use crate::{Collective, LowerOptions, Plan, Schedule, lower_all};
    use consort_testing::Random;

    fn plans(schedule: &Schedule) -> Vec<Plan> {
        lower_all(schedule, &LowerOptions { slots: 4 }).expect("it lowers")
    }

    fn trees(boxes: u32, per_box: u32, trees: u32) -> Vec<Plan> {
        plans(&rail_trees(Collective::AllReduce, RailTrees { boxes, per_box, trees, first: 0 }))
    }

    fn decided<C: Clocks>(plans: &[Plan]) -> Result<Proof, Refusal> {
        run::<C>(&compile::compile(plans)?).map(|decided| proof(plans, &decided))
    }

    #[test]
    fn what_comes_back_through_a_root_is_known() {
        let plans = trees(6, 3, 2);
        assert!(decided::<Neighbours>(&plans).is_err(), "an order through third ranks is not heard directly");
        let proof = decided::<Relayed>(&plans).unwrap_or_else(|refusal| panic!("{refusal}"));
        assert_eq!(Ok(proof), decided::<Vectors>(&plans));
    }

    #[test]
    fn trees_whose_lanes_are_too_many_for_whole_clocks_are_proved() {
        let plans = trees(64, 8, 4);
        assert!(matches!(decided::<Vectors>(&plans), Err(Refusal::TooLarge { .. })));
        decide(&plans, 4096).unwrap_or_else(|refusal| panic!("{refusal}"));
    }

    #[test]
    fn damaged_plans_are_refused_where_whole_clocks_refuse_them() {
        let mut random = Random::announced("damaged plans, relayed");
        let mut below = |bound: usize| random.below(bound);
        let whole = [trees(3, 2, 2), plans(&tree(Collective::AllReduce, 7)), plans(&box_tree(3, 3))];
        for plans in &whole {
            assert_eq!(decided::<Relayed>(plans), decided::<Vectors>(plans));
        }
        for _ in 0..600 {
            let mut plans = whole[below(whole.len())].clone();
            let plan = below(plans.len());
            let steps = &mut plans[plan].steps;
            let waits: Vec<usize> = (0..steps.len()).filter(|&at| steps[at].action == Action::Wait).collect();
            let at = waits[below(waits.len())];
            steps[at].value -= 1 + below(2) as i32;
            // No wait of a lowered plan is for more than it needs.
            let refusal = decided::<Vectors>(&plans).expect_err("a wait for less is found");
            let relayed = decided::<Relayed>(&plans);
            assert!(relayed.is_err(), "rank {plan}, step {at}: whole clocks find {refusal}");
        }
    }
}
