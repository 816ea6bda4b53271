//! Trees over boxes for the rails, as trees through all ranks.
//!
//! Each rail that no box lacks carries the same number of pieces. A door may pass some number of them, the least for
//! which there are trees: what a box may have on a rail beyond one edge a tree are the branches that it can be given.
//! A tree gives branches, two a box, to those that have most of them left, so that trees are low and no door passes
//! more than it may.
//!
//! Invariant: every tree is binary. Absent: what links carry inside of boxes.

use super::rails::Inside;
use crate::Rank;
use crate::builders::SpanningTree;

/// Pieces of a rail that some box lacks, at most.
const PIECES_MAX: u32 = 8;

/// Trees of all rails, `each` for a rail that no box lacks, and the height of the highest.
pub(super) fn trees(boxes: &[Inside], each: u32) -> (Vec<SpanningTree>, u32) {
    let rails = boxes.first().map_or(0, |of| of.doors.len());
    let lacks = |rail: usize| boxes.iter().any(|of| of.doors[rail].is_none());
    let others =
        boxes.iter().map(|of| of.doors.iter().flatten().count()).filter(|count| *count < rails).min();
    // A box that lacks a door hands its pieces to each of the others alike.
    let pieces = others.map_or(1, |others| (others as u32).min(PIECES_MAX));
    let widest = boxes.iter().flat_map(|of| of.doors.iter().flatten()).map(|door| door.capacity).max();
    // Rails that a box lacks come first: the others leave room for what those take.
    let mut order: Vec<usize> = (0..rails).collect();
    order.sort_by_key(|rail| (!lacks(*rail), *rail));
    let count = boxes.len() as u64;
    let total = u64::from(each * pieces);
    let count_of = |rail: usize| match boxes.iter().filter(|of| of.doors[rail].is_none()).count() as u64 {
        0 => u64::from(each),
        lacking => fair(count, lacking, total),
    };
    let least = (2 * (count - 1) * total).div_ceil(count).max(1);
    // A path has two edges at each box; what is narrower or lacks doors passes more than one tree's edge there.
    for most in least..=4 * total + least {
        let mut laying = Laying {
            boxes,
            widest: widest.unwrap_or(1).max(1),
            most,
            used: vec![vec![0; rails]; boxes.len()],
            trees: Vec::new(),
            height: 0,
        };
        let is_laid = order.iter().all(|rail| {
            let share = if lacks(*rail) { 1 } else { pieces };
            laying.rail(*rail, count_of(*rail) as u32, share)
        });
        if is_laid || most == 4 * total + least {
            return (laying.trees, laying.height);
        }
    }
    (Vec::new(), 0)
}

/// Pieces of a rail that `lacking` of `count` boxes lack, where a whole one has `total`, so that the doors of both
/// are as full: the others have all edges but one a tree for each box that is lacking.
fn fair(count: u64, lacking: u64, total: u64) -> u64 {
    let edges = 2 * (count - 1);
    let (doors, ends) = (count - lacking.min(count - 1), edges - lacking.min(edges - 1));
    (total * doors * edges / (ends * count)).clamp(1, total)
}

/// Trees under way.
struct Laying<'a> {
    boxes: &'a [Inside],
    /// Bytes a second of the widest door.
    widest: u64,
    /// The pieces that it may pass, each way.
    most: u64,
    /// For each box the pieces that pass each door.
    used: Vec<Vec<u64>>,
    trees: Vec<SpanningTree>,
    height: u32,
}

impl Laying<'_> {
    /// Lays the trees of a rail; false where doors would pass more than they may.
    fn rail(&mut self, rail: usize, count: u32, share: u32) -> bool {
        let Some(mut branches) = self.branches(rail, count, share) else { return false };
        for number in 0..count as usize {
            let places = places(&mut branches, rail + number);
            self.tree(rail, number, &places, share);
        }
        let is_within = |at: usize, door: usize| self.used[at][door] <= self.may(at, door);
        (0..self.boxes.len()).all(|at| (0..self.boxes[at].doors.len()).all(|door| is_within(at, door)))
    }

    /// The pieces that a door may pass.
    fn may(&self, at: usize, rail: usize) -> u64 {
        let capacity = self.boxes[at].doors[rail].map_or(0, |door| door.capacity);
        (u128::from(self.most) * u128::from(capacity) / u128::from(self.widest)) as u64
    }

    /// For each box the branches that it can be given in `count` trees; none where they are too few, or a box cannot
    /// have one edge in each tree.
    fn branches(&self, rail: usize, count: u32, share: u32) -> Option<Vec<u64>> {
        let all: Option<Vec<u64>> = (0..self.boxes.len())
            .map(|at| match self.boxes[at].doors[rail] {
                None => Some(0),
                Some(_) => {
                    let edges = self.may(at, rail).checked_sub(self.used[at][rail])? / u64::from(share);
                    edges.checked_sub(u64::from(count)).map(|more| more.min(2 * u64::from(count)))
                }
            })
            .collect();
        let wanted = u64::from(count) * (self.boxes.len() as u64).saturating_sub(2);
        all.filter(|all| all.iter().sum::<u64>() >= wanted)
    }

    /// A tree over boxes as a tree through all ranks: each box has the place of a parent, but the first.
    fn tree(&mut self, rail: usize, number: usize, places: &[(usize, Option<usize>)], share: u32) {
        let ranks: usize = self.boxes.iter().map(|of| of.ranks.len()).sum();
        let mut parents: Vec<Option<Rank>> = vec![None; ranks];
        let mut hops = vec![0; places.len()];
        for (place, &(at, above)) in places.iter().enumerate() {
            let centre = self.boxes[at].centre(rail, number);
            for rank in self.boxes[at].ranks.iter().filter(|rank| **rank != centre) {
                parents[*rank as usize] = Some(Rank(centre));
            }
            let mut inside = u32::from(self.boxes[at].ranks.len() > 1);
            if let Some(above) = above {
                let parent = places[above].0;
                let (here, there) = (self.pass(at, rail, share), self.pass(parent, rail, share));
                parents[here as usize] = Some(Rank(there));
                let is_apart = here != centre;
                if is_apart {
                    parents[centre as usize] = Some(Rank(here));
                    inside += 1;
                }
                let onward = u32::from(there != self.boxes[parent].centre(rail, number));
                hops[place] = hops[above] + 1 + onward + u32::from(is_apart);
            }
            self.height = self.height.max(hops[place] + inside);
        }
        self.trees.push(SpanningTree { parents, share });
    }

    /// The rank at which `share` pieces leave and enter a box: at the door of the rail, or at the one that is used
    /// least.
    fn pass(&mut self, at: usize, rail: usize, share: u32) -> u32 {
        let doors = &self.boxes[at].doors;
        let fullness = |number: usize| {
            let capacity = doors[number].map_or(1, |door| door.capacity).max(1);
            u128::from(self.used[at][number]) * u128::from(self.widest) / u128::from(capacity)
        };
        let open = (0..doors.len()).filter(|door| doors[*door].is_some());
        let chosen = match doors[rail] {
            Some(_) => Some(rail),
            None => open.min_by_key(|door| (fullness(*door), *door)),
        };
        let Some(door) = chosen.and_then(|number| Some((number, doors[number]?))) else {
            return self.boxes[at].centre(rail, 0);
        };
        self.used[at][door.0] += u64::from(share);
        door.1.rank
    }
}

/// The boxes of a tree, parents first, each with the place of its parent; takes the branches that it gives. Boxes
/// that have as many left take turns.
fn places(branches: &mut [u64], turn: usize) -> Vec<(usize, Option<usize>)> {
    let count = branches.len();
    let mut order: Vec<usize> = (0..count).collect();
    order.sort_by_key(|at| (u64::MAX - branches[*at], (at + count - turn % count) % count));
    let mut left = count.saturating_sub(2) as u64;
    let mut edges: Vec<u64> = vec![1; count];
    for &at in &order {
        let given = branches[at].min(2).min(left);
        edges[at] += given;
        branches[at] -= given;
        left -= given;
    }
    // Those with most edges are near the root.
    order.sort_by_key(|at| (u64::MAX - edges[*at], (at + count - turn % count) % count));
    let mut places: Vec<(usize, Option<usize>)> = Vec::with_capacity(count);
    let mut open: std::collections::VecDeque<usize> = std::collections::VecDeque::new();
    for (place, at) in order.into_iter().enumerate() {
        let above = open.pop_front();
        places.push((at, above));
        let below = edges[at] - u64::from(above.is_some());
        open.extend((0..below).map(|_| place));
    }
    places
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_gives_the_branches_that_are_left() {
        for count in 2..=40 {
            let mut branches = vec![2; count];
            for turn in 0..2 {
                let places = places(&mut branches, turn);
                assert!(
                    places[0].1.is_none() && places[1..].iter().all(|(_, above)| above.is_some()),
                    "{count}"
                );
                let mut boxes: Vec<usize> = places.iter().map(|(at, _)| *at).collect();
                boxes.sort_unstable();
                assert_eq!(boxes, (0..count).collect::<Vec<_>>());
                let children =
                    |place: usize| places.iter().filter(|(_, above)| *above == Some(place)).count();
                assert!((0..count).all(|place| children(place) <= 3 - usize::from(place > 0)), "{count}");
            }
            // Two trees over n boxes have 2 (n - 2) branches.
            assert_eq!(branches.iter().sum::<u64>(), 4, "{count}");
        }
    }
}
