//! Collectives between hosts of different numbers of ranks, and between hosts whose ranks are in no order.
//!
//! Every piece has a tree of its own over all ranks: a chain over the hosts, which begins in the host of the piece's root, and in each host
//! a chain over its ranks, from the one at the door on. So a piece comes into each host once and leaves it once at most, whatever ranks
//! the host has and whatever their numbers are. Pieces of an all-reduce have their roots in all hosts in turn, so that every wire carries
//! `2 (h-1)/h` of the vector each way between `h` hosts; all-gather and reduce-scatter carry into a host (or out of it) what is not
//! its own. That is what no schedule can save between hosts with equal wires. Where hosts have several ranks, doors are shared out
//! among them.
//!
//! Sources: P. Sanders, J. Speck and J. L. Träff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan", Parallel
//! Computing 35 (2009), for slices that follow each other up and down trees; M. Cho et al., "BlueConnect", MLSys 2019, for parts
//! along rails. Cost of an all-reduce: `h-1` messages between hosts and `g-1` inside of each on the way of a value, up and down.
//!
//! Invariant: the schedule follows from the hosts of the ranks alone, and is the same on all of them. Absent: wires of different speed,
//! for which other makers see the links; equal hosts in order, which the catalogue knows; all-to-alls, whose blocks cross once anyway.

use super::Offer;
use super::offers::{MESSAGES_MAX, offer};
use crate::builders::{RootedTree, forest, forest_is_defined, spanning_trees_are_defined, spanning_trees_on};
use crate::topology::Topology;
use crate::{Collective, Rank, Schedule};

/// The most trees with channels of their own: each has links of its own to two or three ranks.
const TREES_APART_MAX: usize = 16;
/// The most trees of an all-reduce for which the doors of hosts are shared out.
const TREES_ON_RAILS_MAX: usize = 8;

/// The ranks of each host.
struct Hosts {
    ranks_of: Vec<Vec<u32>>,
    ranks: usize,
}

impl Hosts {
    /// The hosts of a machine, whose ranks are counted from `root`; none where the catalogue knows them.
    fn of(topology: &Topology, root: Rank) -> Option<Hosts> {
        let ranks = topology.ranks();
        let boxes = topology.boxes();
        let in_order = boxes.iter().flatten().zip(0..).all(|(rank, expected)| rank.0 == expected);
        let is_even = boxes.iter().all(|of| of.len() == boxes[0].len());
        if boxes.len() < 2 || boxes.len() == ranks as usize || (in_order && is_even) {
            return None;
        }
        let counted = |rank: &Rank| (rank.0 + ranks - root.0 % ranks) % ranks;
        let ranks_of = boxes.iter().map(|of| of.iter().map(counted).collect()).collect();
        Some(Hosts { ranks_of, ranks: ranks as usize })
    }

    /// The tree that begins at the rank `door` of the host `first`, and comes into the hosts after it at the rank of the same number,
    /// counted round.
    fn tree(&self, first: usize, door: usize, channel: usize) -> RootedTree {
        let count = self.ranks_of.len();
        let mut parents = vec![None; self.ranks];
        let mut above = None;
        for step in 0..count {
            let ranks = &self.ranks_of[(first + step) % count];
            let place = |at: usize| ranks[(door + at) % ranks.len()];
            parents[place(0) as usize] = above;
            for at in 1..ranks.len() {
                parents[place(at) as usize] = Some(Rank(place(at - 1)));
            }
            above = Some(Rank(place(0)));
        }
        RootedTree { parents, share: 1, channel: channel as u16 }
    }

    /// In how many parts the ranks of a host share what passes its door: the fewest by which the busiest rank of all has least.
    fn rails(&self) -> usize {
        let most = (TREES_ON_RAILS_MAX / self.ranks_of.len()).max(1);
        let fewest = self.ranks_of.iter().map(Vec::len).min().unwrap_or(1);
        // A rank of the smallest host is the busiest.
        (1..=most).min_by_key(|rails| (rails.div_ceil(fewest) * 840 / rails, *rails)).unwrap_or(1)
    }

    fn all_reduce(&self) -> Schedule {
        let count = self.ranks_of.len();
        let of = |number: usize| self.tree(number % count, number / count, number % TREES_APART_MAX);
        let trees: Vec<RootedTree> = (0..count * self.rails()).map(of).collect();
        spanning_trees_on(Collective::AllReduce, &trees)
    }

    /// From rank 0, or to it.
    fn rooted(&self, collective: Collective) -> Schedule {
        let (first, door) = self.place_of(0);
        spanning_trees_on(collective, &[self.tree(first, door, 0)])
    }

    /// A tree of each rank.
    fn forest(&self, collective: Collective) -> Schedule {
        let of = |rank: usize| {
            let (first, door) = self.place_of(rank as u32);
            self.tree(first, door, rank % TREES_APART_MAX)
        };
        forest(collective, &(0..self.ranks).map(of).collect::<Vec<RootedTree>>())
    }

    /// The host of a rank and its number there.
    fn place_of(&self, rank: u32) -> (usize, usize) {
        let places = self.ranks_of.iter().enumerate();
        let mut places =
            places.filter_map(|(host, of)| Some((host, of.iter().position(|one| *one == rank)?)));
        places.next().unwrap_or_default()
    }

    fn schedule(&self, collective: Collective) -> Option<Schedule> {
        match collective {
            Collective::AllReduce => Some(self.all_reduce()),
            _ if spanning_trees_are_defined(collective) => Some(self.rooted(collective)),
            _ if forest_is_defined(collective) => Some(self.forest(collective)),
            _ => None,
        }
    }
}

/// The schedule of `collective` between hosts that are not alike or whose ranks are in no order. None where the catalogue knows the
/// hosts, for other collectives, and where there would be more than [`MESSAGES_MAX`] messages. `root` is that of a rooted collective; the
/// schedule's rank `i` is rank `(i + root) % ranks` of the topology.
pub fn offer_between_hosts(topology: &Topology, collective: Collective, root: Rank) -> Option<Offer> {
    let schedule = Hosts::of(topology, root)?.schedule(collective)?;
    if schedule.messages() > MESSAGES_MAX {
        return None;
    }
    offer(topology, "hosts", root, schedule)
}
