//! The part of a machine in which rings are searched at once: a box with the world outside of it, or a whole machine.
//!
//! Invariant: a route passes no rank, so that what a rank forwards is counted as its own. Each link, and each limit of a
//! rank, has one capacity that all routes share. Absent: which links of the machine these are (see `layout`).

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};

/// Units of speed in a byte a second: shares of a bandwidth by 1 to 16 rings, and by some more, are whole numbers of units.
pub(super) const UNITS: u128 = 720_720;

/// A part of a machine. Its ranks are nodes `0..ranks`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub(super) struct Part {
    pub(super) ranks: usize,
    pub(super) nodes: usize,
    /// Whether the last rank stands for all that is outside.
    pub(super) has_outside: bool,
    /// Ends of each link.
    pub(super) links: Vec<(u32, u32)>,
    /// Units a second of each link; behind them, for each rank, of all that leaves it and of all that enters it.
    pub(super) capacity: Vec<u128>,
}

/// The most different widths of links from which speeds are made: those of the widest.
const WIDTHS_MAX: usize = 256;

/// The widths of links and their halves, thirds and quarters, in any order and perhaps several times.
pub(super) fn speeds_of(widths: impl Iterator<Item = u128>) -> impl Iterator<Item = u128> {
    let widths: BTreeSet<u128> = widths.collect();
    widths.into_iter().rev().take(WIDTHS_MAX).flat_map(|width| (1..=4).map(move |share| width / share))
}

/// What no limit bounds.
pub(super) const UNLIMITED: u128 = u128::MAX >> 1;

/// A closed ring through all ranks of a part, with the links from each rank to the next.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Placed {
    /// From the rank outside, where there is one, else from rank 0.
    pub(super) order: Vec<u32>,
    pub(super) hops: Vec<Vec<u32>>,
    /// Units a second.
    pub(super) speed: u128,
}

/// A part with lists by node, and what a search needs besides.
pub(super) struct Graph<'a> {
    pub(super) part: &'a Part,
    leaving: Vec<Vec<u32>>,
}

/// Ways from one rank to others; working memory.
pub(super) struct Ways {
    /// For each node the link by which it was reached.
    last: Vec<Option<u32>>,
    hops: Vec<u32>,
    source: u32,
}

impl<'a> Graph<'a> {
    pub(super) fn new(part: &'a Part) -> Self {
        let mut leaving = vec![Vec::new(); part.nodes];
        for (link, (from, _)) in (0..).zip(&part.links) {
            leaving[*from as usize].push(link);
        }
        Graph { part, leaving }
    }

    pub(super) fn ranks(&self) -> usize {
        self.part.ranks
    }

    /// The links that leave a node.
    pub(super) fn leaving(&self, node: u32) -> &[u32] {
        &self.leaving[node as usize]
    }

    /// What is left of all links that leave a rank, or of its limit.
    pub(super) fn room(&self, left: &[u128], rank: u32) -> u128 {
        let links: u128 = self.leaving(rank).iter().map(|link| left[*link as usize]).sum();
        links.min(left[self.out_of(rank)])
    }

    /// Whether a way and the way back have room for `speed` at once.
    pub(super) fn has_room(&self, left: &[u128], way: &[u32], back: &[u32], speed: u128) -> bool {
        let fits = |way: &[u32]| {
            let ends = |link: &u32| self.part.links[*link as usize];
            let (Some(first), Some(last)) = (way.first().map(ends), way.last().map(ends)) else {
                return false;
            };
            way.iter().all(|link| left[*link as usize] >= speed)
                && left[self.out_of(first.0)] >= speed
                && left[self.into(last.1)] >= speed
        };
        // Neither uses a link or a limit of the other.
        fits(way) && fits(back)
    }

    /// The place of the limit of what leaves a rank.
    fn out_of(&self, rank: u32) -> usize {
        self.part.links.len() + 2 * rank as usize
    }

    fn into(&self, rank: u32) -> usize {
        self.out_of(rank) + 1
    }

    /// The fewest links from `source` to each rank, over links with room for `speed`.
    pub(super) fn ways(&self, left: &[u128], source: u32, speed: u128) -> Ways {
        let mut ways = Ways { last: vec![None; self.part.nodes], hops: vec![0; self.part.nodes], source };
        if left[self.out_of(source)] < speed {
            return ways;
        }
        let mut queue = vec![source];
        let mut at = 0;
        while let Some(&node) = queue.get(at) {
            at += 1;
            for &link in &self.leaving[node as usize] {
                let to = self.part.links[link as usize].1;
                if left[link as usize] < speed || to == source || ways.last[to as usize].is_some() {
                    continue;
                }
                let is_rank = (to as usize) < self.part.ranks;
                if is_rank && left[self.into(to)] < speed {
                    continue;
                }
                ways.last[to as usize] = Some(link);
                ways.hops[to as usize] = ways.hops[node as usize] + 1;
                if !is_rank {
                    queue.push(to);
                }
            }
        }
        ways
    }

    /// The links to a rank, and how many there are; none where it was not reached.
    pub(super) fn way(&self, ways: &Ways, to: u32) -> Option<Vec<u32>> {
        let (mut links, mut at) = (Vec::new(), to);
        while at != ways.source || links.is_empty() {
            let link = ways.last[at as usize]?;
            links.push(link);
            at = self.part.links[link as usize].0;
        }
        links.reverse();
        Some(links)
    }

    /// What is left of the last link to a rank that was reached.
    pub(super) fn width(&self, ways: &Ways, left: &[u128], to: u32) -> u128 {
        ways.last[to as usize].map_or(0, |link| left[link as usize])
    }

    /// The most that one way from `source` carries to each rank: the direct links, and the widest way over nodes that are no
    /// ranks.
    pub(super) fn widths(&self, left: &[u128], source: u32) -> Vec<(u128, u128)> {
        let mut width = vec![0u128; self.part.nodes];
        let mut direct = vec![0u128; self.part.ranks];
        // The widest node first, the first of equally wide ones.
        let mut open: BinaryHeap<(u128, Reverse<usize>)> = BinaryHeap::new();
        let mut widen = |node: usize, from: u128, open: &mut BinaryHeap<(u128, Reverse<usize>)>| {
            for &link in &self.leaving[node] {
                let to = self.part.links[link as usize].1 as usize;
                let through = from.min(left[link as usize]);
                if node == source as usize && to < self.part.ranks {
                    direct[to] += through;
                } else if through > width[to] {
                    width[to] = through;
                    if to >= self.part.ranks {
                        open.push((through, Reverse(to)));
                    }
                }
            }
        };
        widen(source as usize, UNLIMITED, &mut open);
        let mut is_done = vec![false; self.part.nodes];
        while let Some((from, Reverse(node))) = open.pop() {
            if !std::mem::replace(&mut is_done[node], true) {
                widen(node, from, &mut open);
            }
        }
        (0..self.part.ranks).map(|rank| (direct[rank], width[rank])).collect()
    }

    /// Takes a way out of what is left.
    pub(super) fn take(&self, left: &mut [u128], way: &[u32], speed: u128) {
        let ends = |link: &u32| self.part.links[*link as usize];
        let (Some(first), Some(last)) = (way.first().map(ends), way.last().map(ends)) else { return };
        for link in way {
            left[*link as usize] -= speed;
        }
        left[self.out_of(first.0)] -= speed;
        left[self.into(last.1)] -= speed;
    }

    /// Gives back what [`take`](Graph::take) took.
    pub(super) fn give(&self, left: &mut [u128], way: &[u32], speed: u128) {
        let ends = |link: &u32| self.part.links[*link as usize];
        let (Some(first), Some(last)) = (way.first().map(ends), way.last().map(ends)) else { return };
        for link in way {
            left[*link as usize] += speed;
        }
        left[self.out_of(first.0)] += speed;
        left[self.into(last.1)] += speed;
    }

    /// Takes the ways of a ring, from each rank to the next; none, and nothing taken, where one has no room.
    pub(super) fn place(&self, left: &mut [u128], order: &[u32], speed: u128) -> Option<Placed> {
        let mut hops: Vec<Vec<u32>> = Vec::with_capacity(order.len());
        for (at, &from) in order.iter().enumerate() {
            let to = order[(at + 1) % order.len()];
            let way = self.way(&self.ways(left, from, speed), to);
            let Some(way) = way else {
                hops.iter().for_each(|way| self.give(left, way, speed));
                return None;
            };
            self.take(left, &way, speed);
            hops.push(way);
        }
        Some(Placed { order: order.to_vec(), hops, speed })
    }
}

impl Ways {
    /// The number of links to a rank; none where it was not reached.
    pub(super) fn hops(&self, to: u32) -> Option<u32> {
        self.last[to as usize].map(|_| self.hops[to as usize])
    }
}
