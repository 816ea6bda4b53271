//! Collectives over many boxes, along their rails, each at what leaves a box.
//!
//! All-gather over equal boxes: [`Rails`]. All-reduce: every rail has its part of the vector and some trees over
//! the boxes. In each box the other ranks hand their values to the rank at the rail's door, which sends on to the
//! next box; results come back the same ways. A tree over boxes is binary, and a box that is an inner node of one is
//! a leaf of another, so that every door carries at most twice its trees. A box that lacks a door is a leaf of that
//! rail's trees, and its values take the other doors in turn.
//!
//! Sources: P. Sanders, J. Speck and J. L. Träff, "Two-tree algorithms for full bandwidth broadcast, reduction and
//! scan", Parallel Computing 35 (2009), for trees whose inner nodes differ; M. Cho et al., "BlueConnect", MLSys 2019,
//! for parts along rails.
//!
//! Invariant: work is proportional to ranks times trees; nothing is searched but few trees over 3 to 10 boxes, so that a
//! thousand ranks take less than a second. Absent: boxes whose ranks do not reach each other by ways of equal width (a tree for each box would
//! serve those); reduce-scatter; all-gather over boxes that differ.

mod chains;
mod few;
mod rails;
mod reduce;

use super::rate::rate_of_trees;
use crate::bounds::{self, Ratio, bound};
use crate::builders::{Rails, SpanningTree, spanning_trees};
use crate::topology::{NodeId, Topology};
use crate::{Collective, Rank, Schedule};

/// What bounds the making of schedules over boxes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options {
    /// The most trees over boxes for each rail; more of them load doors more evenly.
    pub trees_max: u32,
}

impl Default for Options {
    fn default() -> Self {
        Options { trees_max: 16 }
    }
}

/// An all-reduce over boxes.
#[derive(Clone, PartialEq, Debug)]
pub struct Boxed {
    trees: Vec<SpanningTree>,
    height: u32,
    rate: Ratio,
    bound: Ratio,
}

impl Boxed {
    /// The trees, through all ranks.
    pub fn trees(&self) -> &[SpanningTree] {
        &self.trees
    }

    /// The all-reduce by them.
    pub fn schedule(&self) -> Schedule {
        Schedule {
            name: format!("boxes({})", self.trees.len()),
            ..spanning_trees(Collective::AllReduce, &self.trees)
        }
    }

    /// Hops from the highest tree's root to the farthest rank.
    pub fn height(&self) -> u32 {
        self.height
    }

    /// The algorithm bandwidth of long calls, in bytes of the vector a second, as [`rate`](super::rate()) counts it.
    pub fn rate(&self) -> Ratio {
        self.rate
    }

    /// What no schedule exceeds.
    pub fn bound(&self) -> Ratio {
        self.bound
    }
}

/// The fastest all-reduce over the boxes of a machine; none where there are fewer than two, or where one has no way
/// out.
pub fn all_reduce(topology: &Topology, options: &Options) -> Option<Boxed> {
    frontier(topology, options).pop()
}

/// The all-reduce of at most eight trees over the boxes of a machine, and before or after it the one of any number,
/// where that is faster; the fastest is the last.
pub fn frontier(topology: &Topology, options: &Options) -> Vec<Boxed> {
    let topology = &topology.bundled();
    let Some(boxes) = rails::rails(topology) else { return Vec::new() };
    let Ok(bound) = bound(topology, Collective::AllReduce, &bounds::Options::default()) else {
        return Vec::new();
    };
    let boxed = |(trees, height): (Vec<SpanningTree>, u32)| {
        let rate = rate_of_trees(&trees, topology).ok().flatten()?;
        Some(Boxed { trees, height, rate, bound: bound.rate })
    };
    let key = |of: &Boxed| (of.rate, std::cmp::Reverse(of.height));
    let mut few = few::trees(&boxes);
    few.extend(Some(reduce::trees(&boxes, 1)).filter(|(trees, _)| trees.len() <= FEW));
    let few = few.into_iter().filter_map(boxed).max_by(|one, other| key(one).cmp(&key(other)));
    let mut best: Option<Boxed> = None;
    let mut trees = 1;
    while trees <= options.trees_max.max(1) {
        let Some(found) = boxed(reduce::trees(&boxes, trees)) else { break };
        let new = (found.rate, found.height, trees);
        if best.as_ref().is_none_or(|best| is_worth(new, (best.rate, best.height))) {
            best = Some(found);
        }
        // Two trees may be less high; no more of them are worth it near the bound.
        let most = (bound.rate, u32::MAX, u32::MAX);
        if trees > 1 && best.as_ref().is_some_and(|best| !is_worth(most, (best.rate, best.height))) {
            break;
        }
        trees *= 2;
    }
    let mut all: Vec<Boxed> = few.into_iter().chain(best).collect();
    all.sort_by_key(|of| of.rate);
    let is_few = |of: &Boxed| of.trees.len() <= FEW;
    let last = all.len().saturating_sub(1);
    all.into_iter().enumerate().filter(|(at, of)| *at == last || is_few(of)).map(|(_, of)| of).collect()
}

/// Trees that are few.
const FEW: usize = 8;

/// An all-reduce by trees along rails with chains inside of the boxes.
#[derive(Clone, PartialEq, Debug)]
pub struct Chained {
    /// The all-reduce.
    pub schedule: Schedule,
    /// The algorithm bandwidth of long calls, in bytes of the vector a second, as [`rate`](super::rate()) counts it.
    pub rate: Ratio,
    /// Hops on the longest way from a rank to a root, between boxes and inside of them.
    pub hops: [u32; 2],
}

/// The all-reduce by `each` trees along every rail over the boxes of a machine, as many channels side by side take it; none where
/// there are fewer than two boxes, or where one has no way out.
///
/// # Panics
///
/// When all trees together are more than 32,767.
pub fn chained(topology: &Topology, each: u32) -> Option<Chained> {
    let topology = &topology.bundled();
    let boxes = rails::rails(topology)?;
    let trees = chains::trees(&boxes, each.max(1));
    let rate = rate_of_trees(&trees, topology).ok().flatten()?;
    let schedule = spanning_trees(Collective::AllReduce, &trees);
    let inside = boxes.iter().map(|of| of.ranks.len() as u32 - 1).max().unwrap_or(0);
    Some(Chained { schedule, rate, hops: [boxes.len().ilog2(), inside] })
}

/// The number of rails of a machine whose boxes are not all alike: one has another number of ranks, or lacks a door; none of
/// other machines.
pub fn rails_of_unlike(topology: &Topology) -> Option<u32> {
    if look_alike(topology) {
        return None;
    }
    let boxes = rails::rails(&topology.bundled())?;
    let first = boxes.first()?;
    let is_like =
        |of: &rails::Inside| of.ranks.len() == first.ranks.len() && of.doors.iter().all(Option::is_some);
    (!boxes.iter().all(is_like)).then_some(first.doors.len() as u32)
}

/// Whether the ranks of all boxes have as many links, to nodes with as many: no way has to be looked for where that is so.
fn look_alike(topology: &Topology) -> bool {
    let mut to: Vec<Vec<NodeId>> = vec![Vec::new(); topology.nodes().len()];
    topology.links().iter().for_each(|link| to[link.from.index()].push(link.to));
    let of_rank = |rank: &Rank| {
        let mut counts: Vec<usize> = to[rank.index()].iter().map(|near| to[near.index()].len()).collect();
        counts.sort_unstable();
        counts
    };
    let of_box = |ranks: &Vec<Rank>| {
        let mut all: Vec<Vec<usize>> = ranks.iter().map(of_rank).collect();
        all.sort_unstable();
        all
    };
    let boxes = topology.boxes();
    let Some(first) = boxes.first().map(of_box) else { return true };
    boxes.iter().all(|of| of_box(of) == first)
}

/// The all-gather over the equal boxes of a machine, whose ranks are numbered box by box; none where boxes differ, or
/// a rank has no door of its own.
pub fn all_gather(topology: &Topology) -> Option<Rails> {
    let boxes = rails::rails(&topology.bundled())?;
    let per_box = boxes.first()?.ranks.len();
    let is_whole = |(number, of): (usize, &rails::Inside)| {
        let in_order = of.ranks.iter().zip(number * per_box..).all(|(rank, at)| *rank as usize == at);
        let has_doors =
            of.doors.iter().zip(&of.ranks).all(|(door, rank)| door.is_some_and(|door| door.rank == *rank));
        of.ranks.len() == per_box && of.doors.len() == per_box && in_order && has_doors
    };
    boxes
        .iter()
        .enumerate()
        .all(is_whole)
        .then(|| Rails::new(Collective::AllGather, boxes.len() as u32, per_box as u32, 1))
}

/// Whether a rate is worth more trees, one part in a hundred more, or two trees of half the height are worth more
/// than paths.
fn is_worth((rate, height, trees): (Ratio, u32, u32), (known, high): (Ratio, u32)) -> bool {
    let is_more = known.checked_mul(Ratio::new(101, 100)).is_none_or(|than| rate > than);
    is_more || (trees == 2 && rate >= known && 2 * height <= high)
}
