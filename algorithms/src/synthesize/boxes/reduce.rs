//! Trees over boxes for the rails, as trees through all ranks.
//!
//! Invariant: each rail carries the same number of pieces. Of the boxes that a rail's trees used least the next tree makes its inner
//! nodes. Absent: what links carry inside of boxes.

use super::rails::{Door, Inside};
use crate::Rank;
use crate::builders::SpanningTree;

/// Trees of all rails, `each` for a rail that no box lacks, and the height of the highest.
pub(super) fn trees(boxes: &[Inside], each: u32) -> (Vec<SpanningTree>, u32) {
    let rails = boxes.first().map_or(0, |of| of.doors.len());
    let ranks: usize = boxes.iter().map(|of| of.ranks.len()).sum();
    let lacks = |rail: usize| boxes.iter().any(|of| of.doors[rail].is_none());
    // A box that lacks a door hands its pieces to each of the others alike.
    let others =
        boxes.iter().map(|of| of.doors.iter().flatten().count()).filter(|count| *count < rails).min();
    let pieces = others.map_or(1, |others| others.min(PIECES_MAX) as u32);
    let mut laying = Laying { boxes, used: vec![vec![0; rails]; boxes.len()], ranks, height: 0 };
    let mut all = Vec::new();
    // Rails that a box lacks come first: the others leave room for what those take.
    let mut order: Vec<usize> = (0..rails).collect();
    order.sort_by_key(|rail| (!lacks(*rail), *rail));
    for rail in order {
        let (count, share) = if lacks(rail) { (each * pieces, 1) } else { (each, pieces) };
        (0..count).for_each(|number| all.push(laying.tree(rail, number, share)));
    }
    (all, laying.height)
}

/// Pieces of a rail that is lacking, at most.
const PIECES_MAX: usize = 8;

/// Trees under way.
struct Laying<'a> {
    boxes: &'a [Inside],
    /// For each box the pieces that pass each door, each way.
    used: Vec<Vec<u64>>,
    ranks: usize,
    height: u32,
}

impl Laying<'_> {
    /// The next tree of a rail.
    fn tree(&mut self, rail: usize, number: u32, share: u32) -> SpanningTree {
        let count = self.boxes.len();
        let places = self.places(rail, number);
        let mut parents: Vec<Option<Rank>> = vec![None; self.ranks];
        // From each box to what it hangs on; boxes above come first.
        let mut hops = vec![0; count];
        for place in 0..count {
            let at = places[place];
            let centre = self.boxes[at].centres[rail];
            for rank in self.boxes[at].ranks.iter().filter(|rank| **rank != centre) {
                parents[*rank as usize] = Some(Rank(centre));
            }
            let mut own = u32::from(self.boxes[at].ranks.len() > 1);
            if place > 0 {
                let above = places[(place - 1) / 2];
                let (here, there) = (self.pass(at, rail, share), self.pass(above, rail, share));
                parents[here as usize] = Some(Rank(there));
                if here != centre {
                    parents[centre as usize] = Some(Rank(here));
                    own += 1;
                }
                let inside = u32::from(there != self.boxes[above].centres[rail]);
                hops[place] = hops[(place - 1) / 2] + 1 + inside + u32::from(here != centre);
            }
            self.height = self.height.max(hops[place] + own);
        }
        SpanningTree { parents, share }
    }

    /// The box at each place of a binary tree, whose place `p` hangs on `(p - 1) / 2`.
    fn places(&self, rail: usize, number: u32) -> Vec<usize> {
        let count = self.boxes.len();
        let children = |place: usize| (2 * place + 1..2 * place + 3).filter(|child| *child < count).count();
        let mut order: Vec<usize> = (0..count).collect();
        order.sort_by_key(|place| (usize::MAX - children(*place) - usize::from(*place > 0), *place));
        // Boxes whose door is used least first; all alike in turn.
        let turn = |at: usize| (at + count - (rail + number as usize) % count) % count;
        let fullness = |at: usize| match self.boxes[at].doors[rail] {
            Some(Door { capacity, .. }) => self.used[at][rail] * SCALE / capacity.max(1),
            None => u64::MAX,
        };
        let mut boxes: Vec<usize> = (0..count).collect();
        boxes.sort_by_key(|at| (fullness(*at), turn(*at)));
        let mut places = vec![0; count];
        order.into_iter().zip(boxes).for_each(|(place, at)| places[place] = at);
        places
    }

    /// The rank at which `share` pieces leave and enter a box: at the door of the rail, or at the one that is used least.
    fn pass(&mut self, at: usize, rail: usize, share: u32) -> u32 {
        let doors = &self.boxes[at].doors;
        let used = &self.used[at];
        let fullness = |(number, door): (usize, &Option<Door>)| {
            door.map(|door| (used[number] * SCALE / door.capacity.max(1), number, door))
        };
        let open = doors.iter().enumerate().filter(|(number, _)| doors[rail].is_none() || *number == rail);
        let Some((_, number, door)) =
            open.filter_map(fullness).min_by_key(|(full, number, _)| (*full, *number))
        else {
            return self.boxes[at].centres[rail];
        };
        self.used[at][number] += u64::from(share);
        door.rank
    }
}

/// Fullness is in this many parts of a byte a second.
const SCALE: u64 = 1 << 40;
