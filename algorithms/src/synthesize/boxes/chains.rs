//! Trees over boxes as many channels take them: some along each rail, with chains inside of the boxes.
//!
//! A tree over boxes is binary, and boxes whose doors have passed least are nearest to its root, so that a box that lacks a door,
//! whose other doors have more to pass, is a leaf more often. In a box the values go from rank to rank to the one at the door, so that
//! none folds more than one arriving value a slice and tree: what ranks and not doors limit is then as even as it can be.
//!
//! Source: as of [`rail_trees`](crate::builders::rail_trees), for boxes that lack nothing.
//!
//! Invariant: all trees have the same share. Absent: links inside of boxes that are narrower than others.

use super::rails::Inside;
use crate::Rank;
use crate::builders::SpanningTree;

/// Trees over all boxes, `each` along every rail.
pub(super) fn trees(boxes: &[Inside], each: u32) -> Vec<SpanningTree> {
    let rails = boxes.first().map_or(0, |of| of.doors.len());
    let mut passed = Passed::new(boxes, rails);
    let mut all = Vec::new();
    for number in 0..each as usize * rails {
        let doors: Vec<usize> = (0..boxes.len()).map(|at| passed.door(at, number % rails)).collect();
        let order = passed.order(&doors, number / rails);
        for (place, at) in order.iter().enumerate() {
            let below = [2 * place + 1, 2 * place + 2].iter().filter(|place| **place < order.len()).count();
            passed.add(*at, doors[*at], below as u64 + u64::from(place > 0));
        }
        all.push(tree(boxes, &doors, &order));
    }
    all
}

/// The time for which doors are busy.
struct Passed<'a> {
    boxes: &'a [Inside],
    /// The capacity of the widest door.
    widest: u64,
    /// For each box and door pieces, of a door as wide as the widest.
    busy: Vec<Vec<u64>>,
}

/// So that pieces through narrower doors are whole numbers.
const UNIT: u64 = 1 << 16;

impl<'a> Passed<'a> {
    fn new(boxes: &'a [Inside], rails: usize) -> Self {
        let doors = boxes.iter().flat_map(|of| of.doors.iter().flatten());
        let widest = doors.map(|door| door.capacity).max().unwrap_or(1);
        Passed { boxes, widest, busy: vec![vec![0; rails]; boxes.len()] }
    }

    /// The door through which a box is in a tree along a rail: the one there, or the one that has passed least.
    fn door(&self, at: usize, rail: usize) -> usize {
        let doors = &self.boxes[at].doors;
        if doors[rail].is_some() {
            return rail;
        }
        let open = (0..doors.len()).filter(|door| doors[*door].is_some());
        open.min_by_key(|door| (self.busy[at][*door], *door)).unwrap_or(rail)
    }

    /// The boxes, those with the emptiest doors first; those alike take turns.
    fn order(&self, doors: &[usize], turn: usize) -> Vec<usize> {
        let count = doors.len();
        let mut order: Vec<usize> = (0..count).collect();
        order.sort_by_key(|at| (self.busy[*at][doors[*at]], (at + count - turn % count) % count));
        order
    }

    fn add(&mut self, at: usize, door: usize, pieces: u64) {
        let capacity = self.boxes[at].doors[door].map_or(1, |door| door.capacity).max(1);
        let each = u128::from(UNIT) * u128::from(self.widest) / u128::from(capacity);
        self.busy[at][door] += pieces * each as u64;
    }
}

/// The tree in which the box at place `i` hangs on that at place `(i - 1) / 2`.
fn tree(boxes: &[Inside], doors: &[usize], order: &[usize]) -> SpanningTree {
    let ranks: usize = boxes.iter().map(|of| of.ranks.len()).sum();
    let head = |at: usize| {
        let of = &boxes[at];
        of.doors[doors[at]].map_or(of.ranks[0], |door| door.rank)
    };
    let mut parents: Vec<Option<Rank>> = vec![None; ranks];
    for (place, &at) in order.iter().enumerate() {
        let of = &boxes[at].ranks;
        let first = of.iter().position(|rank| *rank == head(at)).unwrap_or(0);
        for step in 1..of.len() {
            let [above, rank] = [step - 1, step].map(|step| of[(first + step) % of.len()]);
            parents[rank as usize] = Some(Rank(above));
        }
        if place > 0 {
            parents[of[first] as usize] = Some(Rank(head(order[(place - 1) / 2])));
        }
    }
    SpanningTree { parents, share: 1 }
}
