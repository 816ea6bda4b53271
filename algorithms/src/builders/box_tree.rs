//! The tree over boxes: a chain inside every box, a double binary tree between the boxes' first ranks.
//!
//! Sources: P. Sanders, J. Speck and J. L. Träff, "Two-tree algorithms for full bandwidth broadcast, reduction and
//! scan", Parallel Computing 35 (2009); S. Jeaugey, "Massively scale your deep learning training with NCCL 2.4",
//! NVIDIA technical blog, 2019 (the same over boxes).
//!
//! Half of the buffer is reduced towards the root of one tree and broadcast from there, the other half in
//! another tree, in which leaves of the first are inner nodes. Every box folds along its chain into its first
//! rank, the leader.
//!
//! Cost of all-reduce over `b` boxes of `g` ranks, with `M` the bytes of the buffer: a longest
//! chain of `2 ((g-1) + ceil(log2 b))` messages; `2 M` out of (and into) the busiest port between boxes from
//! 4 boxes on, `3/2 M` for 3 and `M` for 2; inside the box `2 M` from 3 ranks on and `M` for 2. Reduction
//! and broadcast are on channels of their own, so slices follow each other and a long message takes the time of
//! its bytes. A box's leader takes its children one after the other: there are more rounds than that.
//!
//! Scratch: a place for every tree in which the rank has something to fold and is not the root; 2 at most.
//!
//! Fold order: arriving value first. A chain is the left fold over local ranks `g-1, …, 1, 0`; a leader then
//! puts the sums of its children in the tree before it, the lower box's first.
//!
//! Deliberately absent: several leaders in a box; run copies of the schedule with the ranks of every box rotated.

use crate::{Channel, Chunk, Collective, Partition, Place, Rank, Round, Schedule, Transfer};

/// The tree is defined for all-reduce alone: the caller cannot choose its roots.
pub fn box_tree_is_defined(collective: Collective) -> bool {
    collective == Collective::AllReduce
}

/// The all-reduce over `boxes` boxes of `per_box` ranks; rank = box * `per_box` + local.
///
/// # Panics
///
/// When a number is 0.
pub fn box_tree(boxes: u32, per_box: u32) -> Schedule {
    assert!(boxes > 0 && per_box > 0, "a tree over boxes needs a box and ranks in it");
    let trees = if boxes > 1 { 2 } else { 1 };
    let mut rounds: Vec<Round> = Vec::new();
    for (round, transfer) in (0..trees).flat_map(|tree| Tree::new(tree, boxes, per_box).transfers()) {
        if rounds.len() <= round as usize {
            rounds.resize(round as usize + 1, Round::default());
        }
        rounds[round as usize].transfers.push(transfer);
    }
    Schedule {
        name: format!("tree({boxes}x{per_box})"),
        collective: Collective::AllReduce,
        ranks: boxes * per_box,
        switches: 0,
        partition: Partition { parts: trees },
        rounds,
    }
}

/// The parent of `node` in tree number `tree` over `nodes` nodes; `None` for the root.
///
/// The first is the in-order tree: a node with `z` trailing zeros is `z` levels above the leaves, and node 0
/// is the root above them all. The second is its mirror image, or where the number of nodes is odd the same
/// tree shifted by one, so that inner nodes become leaves.
pub fn parent(tree: u32, node: u32, nodes: u32) -> Option<u32> {
    let mirrored = |node: u32| nodes - 1 - node;
    match tree {
        0 => in_order_parent(node, nodes),
        _ if nodes.is_multiple_of(2) => in_order_parent(mirrored(node), nodes).map(mirrored),
        _ => in_order_parent((node + nodes - 1) % nodes, nodes).map(|parent| (parent + 1) % nodes),
    }
}

fn in_order_parent(node: u32, nodes: u32) -> Option<u32> {
    if node == 0 {
        return None;
    }
    let lowest = node & node.wrapping_neg();
    let (left, right) = (node - lowest, (node - lowest) | lowest << 1);
    Some(if right < nodes { right } else { left })
}

/// One of the trees with its chains.
struct Tree {
    chunk: Chunk,
    per_box: u32,
    /// Children of every box, in ascending order.
    children: Vec<Vec<u32>>,
    root: u32,
    /// The place of the partial sum of every rank.
    held: Vec<Place>,
    /// Transfers with their rounds.
    transfers: Vec<(u32, Transfer)>,
}

impl Tree {
    fn new(tree: u32, boxes: u32, per_box: u32) -> Self {
        let mut children = vec![Vec::new(); boxes as usize];
        let mut root = 0;
        for node in 0..boxes {
            match parent(tree, node, boxes) {
                Some(parent) => children[parent as usize].push(node),
                None => root = node,
            }
        }
        let chunk = Chunk(tree);
        let held = vec![Place::Input(chunk); (boxes * per_box) as usize];
        Tree { chunk, per_box, children, root, held, transfers: Vec::new() }
    }

    fn transfers(mut self) -> Vec<(u32, Transfer)> {
        for leader in (0..self.held.len() as u32).step_by(self.per_box as usize) {
            for local in (1..self.per_box).rev() {
                self.fold(self.per_box - 1 - local, leader + local, leader + local - 1);
            }
        }
        let done = self.reduce(self.root);
        let root = self.root * self.per_box;
        match self.transfers.last_mut() {
            // The last fold is into the root.
            Some((_, last)) => last.target = Place::Output(self.chunk),
            None => self.copy(done, root, root, Place::Input(self.chunk)),
        }
        self.broadcast(self.root, done);
        self.transfers
    }

    /// Folds the boxes below `node` into its leader; returns the round in which the sum is complete.
    fn reduce(&mut self, node: u32) -> u32 {
        let mut ready = self.per_box - 1;
        for child in self.children[node as usize].clone() {
            let sends = self.reduce(child).max(ready);
            self.fold(sends, child * self.per_box, node * self.per_box);
            ready = sends + 1;
        }
        ready
    }

    /// Sends the result on, which the leader of `node` has in `round`.
    fn broadcast(&mut self, node: u32, round: u32) {
        let (leader, output) = (node * self.per_box, Place::Output(self.chunk));
        for child in self.children[node as usize].clone() {
            self.copy(round, leader, child * self.per_box, output);
            self.broadcast(child, round + 1);
        }
        for local in 1..self.per_box {
            self.copy(round + local - 1, leader + local - 1, leader + local, output);
        }
    }

    fn fold(&mut self, round: u32, from: u32, to: u32) {
        let target = Place::Scratch(self.chunk);
        let transfer = Transfer {
            from: Rank(from),
            to: Rank(to),
            channel: Channel(2 * self.chunk.0 as u16),
            source: self.held[from as usize],
            target,
            fold: Some(self.held[to as usize]),
            own_first: false,
        };
        self.held[to as usize] = target;
        self.transfers.push((round, transfer));
    }

    fn copy(&mut self, round: u32, from: u32, to: u32, source: Place) {
        let transfer = Transfer {
            from: Rank(from),
            to: Rank(to),
            channel: Channel(2 * self.chunk.0 as u16 + 1),
            source,
            target: Place::Output(self.chunk),
            fold: None,
            own_first: false,
        };
        self.transfers.push((round, transfer));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::passes::fuse;
    use crate::{LowerOptions, Plan, lower_all, verify};
    use std::collections::HashMap;

    /// Messages in the longest chain of them, and pieces out of and into the busiest ports inside the box and
    /// between boxes.
    fn cost(schedule: &Schedule, per_box: u32) -> (u32, [u32; 4]) {
        let mut after: HashMap<(Rank, Place), u32> = HashMap::new();
        let mut ports = vec![[0; 4]; schedule.ranks as usize];
        for round in &schedule.rounds {
            let before = after.clone();
            let known = |rank: Rank, place: Place| before.get(&(rank, place)).copied().unwrap_or(0);
            for transfer in round.transfers.iter().filter(|transfer| transfer.from != transfer.to) {
                let own = transfer.fold.map_or(0, |fold| known(transfer.to, fold));
                let depth = (known(transfer.from, transfer.source) + 1).max(own);
                after.insert((transfer.to, transfer.target), depth);
                let between = usize::from(transfer.from.0 / per_box != transfer.to.0 / per_box);
                ports[transfer.from.index()][2 * between] += 1;
                ports[transfer.to.index()][2 * between + 1] += 1;
            }
        }
        let busiest = |port: usize| ports.iter().map(|of| of[port]).max().unwrap_or(0);
        (after.values().copied().max().unwrap_or(0), [0, 1, 2, 3].map(busiest))
    }

    #[test]
    fn the_cost_is_the_formula() {
        for boxes in 1..=64u32 {
            for per_box in 1..=8 {
                let (depth, ports) = cost(&box_tree(boxes, per_box), per_box);
                let levels = if boxes == 1 { 0 } else { (boxes - 1).ilog2() + 1 };
                assert_eq!(depth, 2 * (per_box - 1 + levels), "{boxes}x{per_box}");
                let pieces = if boxes > 1 { 2 } else { 1 };
                let inside = match per_box {
                    1 => 0,
                    2 => pieces,
                    _ => 2 * pieces,
                };
                let between = [0, 2, 3, 4][boxes.min(4) as usize - 1];
                assert_eq!(ports, [inside, inside, between, between], "{boxes}x{per_box}");
            }
        }
    }

    #[test]
    fn inner_boxes_of_one_tree_are_leaves_of_the_other() {
        for boxes in 2..=65 {
            let inner = |tree| (0..boxes).filter_map(|node| parent(tree, node, boxes)).collect::<Vec<u32>>();
            let both: Vec<u32> = inner(0).into_iter().filter(|node| inner(1).contains(node)).collect();
            // The two trees are not complete, so one or two boxes may have a child in both.
            assert!(both.len() <= 2, "{boxes}: {both:?}");
        }
    }

    #[test]
    fn every_tree_is_proved() {
        for (boxes, per_box) in
            (1..=64).flat_map(|boxes| (1..=64 / boxes).map(move |per_box| (boxes, per_box)))
        {
            let schedule = box_tree(boxes, per_box);
            for slots in [2, 4] {
                let what = format!("{}, {slots} slots", schedule.name);
                let plans = lower_all(&schedule, &LowerOptions { slots }).expect("trees lower");
                let proof = verify(&plans).unwrap_or_else(|refusal| panic!("{what}: {refusal}"));
                let fused: Vec<Plan> = plans.iter().map(|plan| fuse(plan, &|_| true)).collect();
                let again = verify(&fused).unwrap_or_else(|refusal| panic!("{what}, fused: {refusal}"));
                assert_eq!(proof.fold_hash, again.fold_hash);
                assert!(plans.iter().all(|plan| plan.scratch <= 2), "{what}");
                // Reduction and broadcast of a tree run side by side, but at its root.
                for plan in &plans {
                    let root = |tree: u32| Tree::new(tree, boxes, per_box).root * per_box;
                    let trees = 0..schedule.partition.parts;
                    let lanes: usize = trees.map(|tree| if plan.rank.0 == root(tree) { 1 } else { 2 }).sum();
                    assert_eq!(plan.lanes.len(), lanes, "{what}");
                }
            }
        }
    }
}
