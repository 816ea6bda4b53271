//! Trees over boxes as many channels take them: some along each rail, with chains inside of the boxes.
//!
//! A tree over boxes is binary, and boxes whose doors have passed least are nearest to its root, so that a box that lacks a door,
//! whose other doors have more to pass, is a leaf more often. In a box values go from rank to rank to the one at the door, so that no rank
//! folds more than one arriving value of its box a slice and tree.
//!
//! Source: P. Sanders, J. Speck and J. L. Träff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan", Parallel
//! Computing 35 (2009), for trees whose inner nodes differ; which box is where in a tree is balanced here by what its doors have passed.
//!
//! Invariant: all trees have the same share. Absent: links inside of boxes that are narrower than others.

use super::rails::Inside;
use crate::Rank;
use crate::builders::SpanningTree;

/// Trees over all boxes, `each` along every rail.
pub(super) fn trees(boxes: &[Inside], each: u32) -> Vec<SpanningTree> {
    let rails = boxes.first().map_or(0, |of| of.doors.len());
    let mut passed = Passed::new(boxes, rails);
    let mut ends: Vec<Ends> = boxes.iter().map(Ends::new).collect();
    let mut all = Vec::new();
    for number in 0..each as usize * rails {
        let doors: Vec<usize> = (0..boxes.len()).map(|at| passed.door(at, number % rails)).collect();
        let order = passed.order(&doors, number / rails);
        for (place, at) in order.iter().enumerate() {
            passed.add(*at, doors[*at], below(&order, place) + u64::from(place > 0));
        }
        all.push(tree(boxes, &mut ends, &doors, &order));
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
        let busy = &mut self.busy[at][door];
        *busy = busy.saturating_add(pieces.saturating_mul(u64::try_from(each).unwrap_or(u64::MAX)));
    }
}

/// What ranks of a box receive from others of it, by where they are in its chains.
struct Ends {
    is_whole: bool,
    /// For each rank the chains that it was at an end of. In others it receives a message up and one down; the last rank has none up, and
    /// the one at the door receives through it what goes down.
    at_end: Vec<u64>,
}

impl Ends {
    fn new(of: &Inside) -> Self {
        Ends { is_whole: of.doors.iter().all(Option::is_some), at_end: vec![0; of.ranks.len()] }
    }

    /// The places of a box's ranks from the one at the door on: in turn, and where a door is lacking last the one that received most.
    fn chain(&mut self, first: usize) -> Vec<usize> {
        let count = self.at_end.len();
        let mut chain: Vec<usize> = (0..count).map(|step| (first + step) % count).collect();
        if !self.is_whole && count > 1 {
            let busiest = (1..count).rev().min_by_key(|step| self.at_end[chain[*step]]).unwrap_or(count - 1);
            let last = chain.remove(busiest);
            chain.push(last);
        }
        for end in [chain[0], chain[count - 1]] {
            self.at_end[end] += 1;
        }
        chain
    }
}

/// The boxes that hang on the one at a place.
fn below(order: &[usize], place: usize) -> u64 {
    (2 * place + 3).min(order.len()).saturating_sub(2 * place + 1) as u64
}

/// The tree in which the box at place `i` hangs on that at place `(i - 1) / 2`.
fn tree(boxes: &[Inside], ends: &mut [Ends], doors: &[usize], order: &[usize]) -> SpanningTree {
    let ranks: usize = boxes.iter().map(|of| of.ranks.len()).sum();
    let head = |at: usize| {
        let of = &boxes[at];
        of.doors[doors[at]].map_or(of.ranks[0], |door| door.rank)
    };
    let mut parents: Vec<Option<Rank>> = vec![None; ranks];
    for (place, &at) in order.iter().enumerate() {
        let of = &boxes[at].ranks;
        let first = of.iter().position(|rank| *rank == head(at)).unwrap_or(0);
        let chain = ends[at].chain(first);
        for pair in chain.windows(2) {
            parents[of[pair[1]] as usize] = Some(Rank(of[pair[0]]));
        }
        if place > 0 {
            parents[of[chain[0]] as usize] = Some(Rank(head(order[(place - 1) / 2])));
        }
    }
    SpanningTree { parents, share: 1 }
}
