//! What proves a bound by addition alone: sets of nodes, or lengths of links.
//!
//! Invariant: a reader that adds up what leaves the sets, or capacities times lengths, finds the rate without a search.
//! Absent: words for people.

use super::network::Network;
use crate::Rank;
use crate::topology::{LinkId, NodeId};

/// A set of nodes. A rank with a limit has three parts, each on one of the sides: itself, where what it sends has
/// passed its limit and meets its links, and where what comes to it has left its links and not passed its limit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Side {
    /// Its nodes, in the order of their numbers.
    pub nodes: Vec<NodeId>,
    /// The ranks whose links begin on this side.
    pub begins: Vec<Rank>,
    /// The ranks whose links end on this side.
    pub ends: Vec<Rank>,
}

impl Side {
    pub(super) fn new(network: &Network, inside: &[bool]) -> Side {
        let is_whole = |node: &u32| network.parts_of[*node as usize] == NodeId(*node);
        let ranks = || (0..).map(Rank).zip(&network.gates);
        Side {
            nodes: (0..network.nodes() as u32)
                .filter(|node| is_whole(node) && inside[*node as usize])
                .map(NodeId)
                .collect(),
            begins: ranks().filter(|(_, gate)| inside[gate.0 as usize]).map(|(rank, _)| rank).collect(),
            ends: ranks().filter(|(_, gate)| inside[gate.1 as usize]).map(|(rank, _)| rank).collect(),
        }
    }
}

/// A part of a machine that has a capacity.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Part {
    /// A link.
    Link(LinkId),
    /// What a rank may inject.
    Inject(Rank),
    /// What a rank may eject.
    Eject(Rank),
    /// What passes a rank with a limit on its way to others.
    Through(Rank),
}

/// What proves a rate.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Witness {
    /// The set that sends across the cut.
    Cut(Side),
    /// For each part of a partition a set with its ranks and no others.
    Parts {
        /// The sets, in the order of the parts.
        sides: Vec<Side>,
        /// Whether what enters the sets is counted, or what leaves them.
        enter: bool,
    },
    /// The lengths by which distances are taken; all others are 0.
    Lengths(Vec<(Part, u64)>),
}

impl Witness {
    pub(super) fn lengths(network: &Network, lengths: &[u64]) -> Witness {
        let part = |number: usize| {
            let arc = &network.arcs[number];
            let rank = Rank(network.parts_of[arc.from as usize].0);
            match arc.link {
                Some(link) => Part::Link(link),
                None if arc.from < network.ranks => Part::Inject(rank),
                None if arc.to < network.ranks => Part::Eject(rank),
                None => Part::Through(rank),
            }
        };
        let all = lengths.iter().enumerate().filter(|(_, length)| **length > 0);
        Witness::Lengths(all.map(|(number, length)| (part(number), *length)).collect())
    }
}
