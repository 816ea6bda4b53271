//! What trees can carry: all-gather, broadcast, and the smallest cut between any two ranks.
//!
//! A cut is a set of nodes with some ranks inside and some outside. All-gather: each rank inside must push its part of
//! the gathered vector out at least once. Broadcast: the whole vector must leave the set that has the root.
//!
//! Source: J. Edmonds, "Edge-disjoint branchings" (1973): arborescences of these rates exist if the maximum flows do;
//! L. Zhao et al., "ForestColl" (arXiv 2402.06787), for all-gather and for nodes that are no rank, which can be split
//! off where as much enters as leaves. The search is W. Dinkelbach's, "On nonlinear fractional programming" (1967).
//! Invariant: rates are exact, and the set that comes with a rate proves it.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::classes::{Classes, Wanted};
use super::network::{Arc, Network};
use super::ratio::Ratio;

/// A rate with the set of nodes that limits it.
#[derive(Clone, Debug)]
pub(crate) struct Limit {
    pub(crate) rate: Ratio,
    /// For each node whether it is on the side that sends.
    pub(crate) sending: Vec<bool>,
}

fn not(side: &[bool]) -> Vec<bool> {
    side.iter().map(|inside| !inside).collect()
}

/// The bytes a second of each rank's own part in an all-gather of at least 2 ranks, at most: the least
/// `B+(S) / |S's ranks|` over all sets that miss a rank.
///
/// One sweep over the ranks finds it. A rank's flow says whether a set that misses this rank is tighter than all
/// before; if so, the search goes on with that set's rate, which the earlier ranks' sets allow as well.
pub(crate) fn gather(network: &Network, symmetries: &Classes) -> Limit {
    let others = u128::from(network.ranks - 1);
    let only = |rank: u32| (0..network.nodes() as u32).map(|node| node != rank).collect::<Vec<bool>>();
    let into = |rank: u32| -> u128 {
        network.entering[rank as usize].iter().map(|arc| network.arcs[*arc as usize].capacity).sum()
    };
    let first = (0..network.ranks).min_by_key(|rank| into(*rank)).unwrap_or(0);
    let mut best = Limit { rate: Ratio::new(into(first), others), sending: only(first) };
    for rank in 0..network.ranks {
        let classes = symmetries.with(network, &[rank]);
        loop {
            let (feed, scale) = (best.rate.numerator(), best.rate.denominator());
            let wanted = Wanted { scale, feed, from: &[], to: &[rank] };
            let (value, sink_side) = classes.minimum_cut(network, &wanted);
            if value == feed * u128::from(network.ranks) {
                break;
            }
            let sending = not(&sink_side);
            let ranks = network.ranks_in(&sending);
            let rate = Ratio::new(network.out_of(&sending), ranks.into());
            debug_assert!(rate < best.rate, "the set of a smaller flow is tighter");
            best = Limit { rate, sending };
        }
    }
    best
}

/// The bytes a second that can reach every rank from `root`, at most: the least maximum flow.
pub(crate) fn broadcast(network: &Network, symmetries: &Classes, root: u32) -> Limit {
    let rooted = symmetries.with(network, &[root]);
    let flow = |rank: u32| {
        let classes = rooted.with(network, &[rank]);
        let wanted = Wanted { scale: 1, feed: 0, from: &[root], to: &[rank] };
        classes.minimum_cut(network, &wanted)
    };
    let others = (0..network.ranks).filter(|rank| *rank != root);
    let found = others.map(flow).reduce(|best, other| if other.0 < best.0 { other } else { best });
    let (value, sink_side) = found.unwrap_or_else(|| (0, vec![false; network.nodes()]));
    Limit { rate: Ratio::new(value, 1), sending: not(&sink_side) }
}

/// The least maximum flow between any two ranks, in either direction. Every set with a rank inside and one outside
/// either has rank 0 or lacks it, so the flows from and to rank 0 find it.
pub(super) fn smallest_cut(network: &Network, transposed: &Network, symmetries: &Classes) -> Limit {
    let from = broadcast(network, symmetries, 0);
    if network.is_mirrored() {
        return from;
    }
    let to = broadcast(transposed, symmetries, 0);
    if to.rate < from.rate { Limit { sending: not(&to.sending), ..to } } else { from }
}

/// The most that can leave a set of ranks towards all others, with the set of nodes that limits it.
pub(super) fn out_of_ranks(network: &Network, symmetries: &Classes, ranks: &[u32]) -> (u128, Vec<bool>) {
    let mut inside = vec![false; network.ranks as usize];
    ranks.iter().for_each(|rank| inside[*rank as usize] = true);
    let others: Vec<u32> = (0..network.ranks).filter(|rank| !inside[*rank as usize]).collect();
    let classes = symmetries.with(network, ranks);
    let wanted = Wanted { scale: 1, feed: 0, from: ranks, to: &others };
    let (value, sink_side) = classes.minimum_cut(network, &wanted);
    (value, not(&sink_side))
}

/// The nodes with more than two neighbours, at which a tree may branch.
pub(super) fn branching(network: &Network) -> impl Iterator<Item = u32> + '_ {
    (0..network.nodes() as u32).filter(|node| {
        let arcs = |numbers: &[u32], end: fn(&Arc) -> u32| {
            numbers.iter().map(|number| end(&network.arcs[*number as usize])).collect::<Vec<u32>>()
        };
        let at = *node as usize;
        let mut neighbours = arcs(&network.leaving[at], |arc| arc.to);
        neighbours.extend(arcs(&network.entering[at], |arc| arc.from));
        neighbours.sort_unstable();
        neighbours.dedup();
        neighbours.len() > 2
    })
}

/// The most that each link of one tree over all ranks can carry in both directions at once; 0 where there is no such
/// tree. The tree may pass any node.
pub(super) fn widest_tree(network: &Network) -> u128 {
    let mut one_way: BTreeMap<(u32, u32), u128> = BTreeMap::new();
    for arc in &network.arcs {
        *one_way.entry((arc.from, arc.to)).or_default() += arc.capacity;
    }
    let both = one_way
        .iter()
        .filter(|((from, to), _)| from < to)
        .filter_map(|(&(from, to), &there)| Some((there.min(*one_way.get(&(to, from))?), from, to)));
    let mut edges: Vec<(u128, u32, u32)> = both.collect();
    edges.sort_unstable_by_key(|(capacity, from, to)| (Reverse(*capacity), *from, *to));
    // Each node's way to the node that stands for its part, and the ranks in the part.
    let mut above: Vec<u32> = (0..network.nodes() as u32).collect();
    let mut ranks: Vec<u32> = above.iter().map(|node| u32::from(*node < network.ranks)).collect();
    let find = |above: &mut Vec<u32>, mut node: u32| {
        while above[node as usize] != node {
            above[node as usize] = above[above[node as usize] as usize];
            node = above[node as usize];
        }
        node
    };
    for (capacity, from, to) in edges {
        let (one, other) = (find(&mut above, from), find(&mut above, to));
        if one != other {
            above[other as usize] = one;
            ranks[one as usize] += ranks[other as usize];
            if ranks[one as usize] == network.ranks {
                return capacity;
            }
        }
    }
    0
}
