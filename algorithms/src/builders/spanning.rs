//! Spanning trees side by side, each with its share of the bytes: values are folded up to a root and the result is sent down.
//!
//! Source: G. Wang et al., "Blink: Fast and Generic Collectives for Distributed ML", MLSys 2020, which packs trees into what
//! links carry; the pipelining by slices is that of P. Sanders, J. Speck and J. L. Träff, "Two-tree algorithms for full bandwidth
//! broadcast, reduction and scan", Parallel Computing 35 (2009). Cost: in each tree the height in messages each way; a rank sends
//! and receives its share as often as it has neighbours in the tree.
//!
//! Fold order: a rank folds what arrives from its children, in ascending order of ranks, with what it has; arriving value first.

use super::forest::RootedTree;
use crate::{Channel, Chunk, Collective, Partition, Place, Rank, Round, Schedule, Transfer};

/// A tree of [`spanning_trees`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SpanningTree {
    /// The parent of each rank; none for the root.
    pub parents: Vec<Option<Rank>>,
    /// How many pieces of each block it carries; at least 1.
    pub share: u32,
}

/// Whether `collective` has spanning trees.
pub const fn spanning_trees_are_defined(collective: Collective) -> bool {
    matches!(collective, Collective::AllReduce | Collective::Broadcast | Collective::Reduce)
}

/// The schedule of `collective` by trees over all ranks. Rank 0 is the root of rooted collectives, to which trees are turned.
///
/// # Panics
///
/// When the collective has no trees, there is no tree or one without a share, or the parents are no tree of all ranks.
pub fn spanning_trees(collective: Collective, trees: &[SpanningTree]) -> Schedule {
    assert!(spanning_trees_are_defined(collective), "there are no trees for {collective}");
    let ranks = trees.first().map_or(0, |tree| tree.parents.len());
    let trees: Vec<Sides> = apart(trees.iter().map(|tree| (tree.share, [tree.parents.as_slice(); 2])));
    along_trees("trees", collective, ranks, &trees)
}

/// The same with trees that share channels: each goes up on twice its channel and down on the one after that.
///
/// # Panics
///
/// As [`spanning_trees`], and when twice a tree's channel is no channel.
pub fn spanning_trees_on(collective: Collective, trees: &[RootedTree]) -> Schedule {
    assert!(spanning_trees_are_defined(collective), "there are no trees for {collective}");
    let ranks = trees.first().map_or(0, |tree| tree.parents.len());
    let trees: Vec<Sides> =
        trees.iter().map(|tree| (tree.channel, tree.share, [tree.parents.as_slice(); 2])).collect();
    along_trees("trees", collective, ranks, &trees)
}

/// A tree's channel, its share, its parents up and its parents down.
type Sides<'a> = (u16, u32, [&'a Parents; 2]);

/// Trees with a channel for each.
fn apart<'a>(trees: impl Iterator<Item = (u32, [&'a Parents; 2])>) -> Vec<Sides<'a>> {
    (0..).zip(trees).map(|(channel, (share, ways))| (channel, share, ways)).collect()
}

/// The schedule of trees over `ranks` ranks.
fn along_trees(name: &str, collective: Collective, ranks: usize, trees: &[Sides<'_>]) -> Schedule {
    let is_channel = |(number, ..): &Sides<'_>| *number <= u16::MAX / 2;
    assert!(ranks > 0 && trees.iter().all(is_channel), "no rank, or more trees than channels");
    let mut rounds: Vec<Round> = Vec::new();
    let mut chunk = 0;
    for &(number, share, ways) in trees {
        let is_whole = share > 0 && ways.iter().all(|parents| parents.len() == ranks);
        assert!(is_whole, "tree {number} has no share or not {ranks} ranks");
        let [up, down] = ways.map(|parents| Shape::new(parents, collective != Collective::AllReduce));
        assert_eq!(up.root, down.root, "tree {number} goes down from another rank");
        for piece in (chunk..chunk + share).map(Chunk) {
            let (input, output) = (Place::Input(piece), Place::Output(piece));
            let channels = [2 * number, 2 * number + 1];
            let along = Along { collective, input, output, scratch: piece, channels };
            along.add_to(&mut rounds, [&up, &down]);
        }
        chunk += share;
    }
    Schedule {
        name: format!("{name}({})", trees.len()),
        collective,
        ranks: ranks as u32,
        switches: 0,
        partition: Partition { parts: chunk },
        rounds,
    }
}

/// The parent of each rank; none of the root.
type Parents = [Option<Rank>];

/// A tree to a root and a tree from it, of [`two_way_trees`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TwoWayTree {
    /// The rank to which each rank hands its values; none for the root.
    pub up: Vec<Option<Rank>>,
    /// The rank from which each rank has the result; none for the same root.
    pub down: Vec<Option<Rank>>,
    /// How many pieces of each block they carry; at least 1.
    pub share: u32,
}

/// The all-reduce by trees whose edges up and down differ, for links that carry more one way than the other.
///
/// # Panics
///
/// When there is no tree or one without a share, the parents are no tree of all ranks, or the two roots differ.
pub fn two_way_trees(trees: &[TwoWayTree]) -> Schedule {
    let ranks = trees.first().map_or(0, |tree| tree.up.len());
    let trees = apart(trees.iter().map(|tree| (tree.share, [tree.up.as_slice(), tree.down.as_slice()])));
    along_trees("two-way-trees", Collective::AllReduce, ranks, &trees)
}

/// A tree from its root.
pub(super) struct Shape {
    root: u32,
    children: Vec<Vec<u32>>,
    /// Parents before their children.
    order: Vec<u32>,
}

impl Shape {
    /// A tree over all ranks; turned to rank 0 with `from_first`.
    pub(super) fn new(parents: &[Option<Rank>], from_first: bool) -> Shape {
        let mut near: Vec<Vec<u32>> = vec![Vec::new(); parents.len()];
        for (rank, parent) in (0..).zip(parents) {
            if let Some(parent) = parent {
                near[rank as usize].push(parent.0);
                near[parent.index()].push(rank);
            }
        }
        near.iter_mut().for_each(|near| near.sort_unstable());
        let roots = parents.iter().filter(|parent| parent.is_none()).count();
        let own = parents.iter().position(Option::is_none).unwrap_or_default() as u32;
        let root = if from_first { 0 } else { own };
        let mut children = vec![Vec::new(); parents.len()];
        let mut is_seen = vec![false; parents.len()];
        is_seen[root as usize] = true;
        let mut order = vec![root];
        let mut at = 0;
        while let Some(&rank) = order.get(at) {
            at += 1;
            for &next in &near[rank as usize] {
                if !std::mem::replace(&mut is_seen[next as usize], true) {
                    children[rank as usize].push(next);
                    order.push(next);
                }
            }
        }
        assert!(
            roots == 1 && order.len() == parents.len(),
            "the parents are no tree of all ranks: {parents:?}"
        );
        Shape { root, children, order }
    }
}

/// One piece along a tree: its places on every rank, and the channels up and down.
#[derive(Clone, Copy)]
pub(super) struct Along {
    pub(super) collective: Collective,
    pub(super) input: Place,
    pub(super) output: Place,
    pub(super) scratch: Chunk,
    pub(super) channels: [u16; 2],
}

impl Along {
    /// Adds the transfers of the piece up the first shape and down the second, each in the first round in which it
    /// can be.
    pub(super) fn add_to(self, rounds: &mut Vec<Round>, [shape, down]: [&Shape; 2]) {
        let held = vec![self.input; shape.order.len()];
        let mut growing = Growing { shape, down, along: self, held, transfers: Vec::new() };
        growing.run();
        for (round, transfer) in growing.transfers {
            if rounds.len() <= round as usize {
                rounds.resize(round as usize + 1, Round::default());
            }
            rounds[round as usize].transfers.push(transfer);
        }
    }
}

/// The transfers of one piece along a tree.
struct Growing<'a> {
    /// The way of folds.
    shape: &'a Shape,
    /// The way of copies.
    down: &'a Shape,
    along: Along,
    /// The place of the partial result of every rank.
    held: Vec<Place>,
    /// With their rounds.
    transfers: Vec<(u32, Transfer)>,
}

impl Growing<'_> {
    fn run(&mut self) {
        let Along { collective, input, output, .. } = self.along;
        let mut done = 0;
        if collective.reduces() {
            done = self.reduce();
        }
        let root = self.shape.root;
        match self.transfers.last_mut() {
            // The last fold is into the root.
            Some((_, last)) => last.target = output,
            None => self.copy(done, root, root, input),
        }
        if !matches!(collective, Collective::Reduce | Collective::ReduceScatter) {
            self.send(done);
        }
    }

    /// Folds all into the root; gives the round after the last one.
    fn reduce(&mut self) -> u32 {
        let shape = self.shape;
        let mut ready = vec![0u32; shape.order.len()];
        for &rank in shape.order.iter().rev() {
            for &child in &shape.children[rank as usize] {
                let round = ready[rank as usize].max(ready[child as usize]);
                self.fold(round, child, rank);
                ready[rank as usize] = round + 1;
            }
        }
        ready[shape.root as usize]
    }

    /// Sends the result on, which the root has before `round`.
    fn send(&mut self, round: u32) {
        let shape = self.down;
        let mut has = vec![round; shape.order.len()];
        let Along { collective, input, output, .. } = self.along;
        let is_first = |rank: u32| rank == shape.root && !collective.reduces();
        let source = |rank: u32| if is_first(rank) { input } else { output };
        let sources: Vec<Place> = (0..shape.order.len() as u32).map(source).collect();
        for &rank in &shape.order {
            for &child in &shape.children[rank as usize] {
                self.copy(has[rank as usize], rank, child, sources[rank as usize]);
                has[child as usize] = has[rank as usize] + 1;
            }
        }
    }

    fn fold(&mut self, round: u32, from: u32, to: u32) {
        let (target, fold) = (Place::Scratch(self.along.scratch), Some(self.held[to as usize]));
        let source = self.held[from as usize];
        self.held[to as usize] = target;
        self.add(round, Transfer { source, target, fold, ..self.between(from, to, self.along.channels[0]) });
    }

    fn copy(&mut self, round: u32, from: u32, to: u32, source: Place) {
        let target = self.along.output;
        self.add(round, Transfer { source, target, ..self.between(from, to, self.along.channels[1]) });
    }

    fn between(&self, from: u32, to: u32, channel: u16) -> Transfer {
        let place = self.along.input;
        Transfer {
            from: Rank(from),
            to: Rank(to),
            channel: Channel(channel),
            source: place,
            target: place,
            fold: None,
            own_first: false,
        }
    }

    fn add(&mut self, round: u32, transfer: Transfer) {
        self.transfers.push((round, transfer));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::passes::fuse;
    use crate::{LowerOptions, Plan, lower_all, verify};

    /// A tree in which rank `r` hangs on one of the ranks before it, turned by `shift`.
    fn tree(ranks: u32, wide: u32, shift: u32, share: u32) -> SpanningTree {
        let mut parents = vec![None; ranks as usize];
        for rank in 1..ranks {
            parents[((rank + shift) % ranks) as usize] = Some(Rank(((rank - 1) / wide + shift) % ranks));
        }
        SpanningTree { parents, share }
    }

    #[test]
    fn every_tree_is_proved() {
        for collective in [Collective::AllReduce, Collective::Broadcast, Collective::Reduce] {
            for (ranks, wide) in [(1, 1), (2, 1), (3, 2), (7, 1), (8, 2), (9, 8), (16, 3)] {
                let trees = [tree(ranks, wide, 0, 1), tree(ranks, 1, ranks / 2, 2)];
                let schedule = spanning_trees(collective, &trees);
                let what = format!("{collective} over {ranks}, {wide} wide");
                let plans = lower_all(&schedule, &LowerOptions { slots: 4 }).expect("trees lower");
                let proof = verify(&plans).unwrap_or_else(|refusal| panic!("{what}: {refusal}"));
                let fused: Vec<Plan> = plans.iter().map(|plan| fuse(plan, &|_| true)).collect();
                let again = verify(&fused).unwrap_or_else(|refusal| panic!("{what}, fused: {refusal}"));
                assert_eq!(proof.fold_hash, again.fold_hash, "{what}");
            }
        }
    }

    #[test]
    fn a_rank_sends_to_its_neighbours_alone() {
        let schedule = spanning_trees(Collective::AllReduce, &[tree(8, 2, 0, 1)]);
        // Up and down each of the seven edges.
        assert_eq!((schedule.messages(), schedule.cost().depth), (14, 6));
    }

    #[test]
    fn trees_that_differ_up_and_down_are_proved() {
        for ranks in [2, 3, 8] {
            // Up to the next rank and down from the one before, or by a star.
            let up = (0..ranks).map(|rank| (rank + 1 < ranks).then_some(Rank(rank + 1))).collect();
            let down = (0..ranks).map(|rank| (rank + 1 < ranks).then_some(Rank(ranks - 1))).collect();
            let schedule = two_way_trees(&[TwoWayTree { up, down, share: 2 }]);
            let plans = lower_all(&schedule, &LowerOptions { slots: 4 }).expect("trees lower");
            verify(&plans).unwrap_or_else(|refusal| panic!("{ranks}: {refusal}"));
            assert_eq!(schedule.messages() as u32, 4 * (ranks - 1));
        }
    }

    #[test]
    #[should_panic(expected = "no tree of all ranks")]
    fn a_cycle_is_no_tree() {
        let parents = vec![None, Some(Rank(2)), Some(Rank(1))];
        spanning_trees(Collective::AllReduce, &[SpanningTree { parents, share: 1 }]);
    }
}
