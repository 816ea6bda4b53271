//! A machine as boxes: which nodes belong to which box, and which boxes are equal.
//!
//! Invariant: equal boxes are one [`Part`], whose links are, in one order, links of each of them. A node that is no rank
//! belongs to the box to whose ranks it is nearer than to those of any other; all else is the network between boxes.
//! Absent: rings.

use std::collections::BTreeMap;

use super::part::{Part, UNITS, UNLIMITED};
use crate::topology::{LinkId, NodeKind, Topology};

/// The network, as the owner of a node.
pub(super) const NETWORK: u32 = u32::MAX;

/// One box.
#[derive(Debug)]
pub(super) struct Block {
    /// The number of the part that it is like.
    pub(super) class: usize,
    /// The rank of each rank of the part, without the one outside.
    pub(super) ranks: Vec<u32>,
    /// The link of each link of the part.
    pub(super) links: Vec<LinkId>,
}

/// A machine as boxes.
#[derive(Debug)]
pub(super) struct Layout {
    pub(super) classes: Vec<Part>,
    pub(super) blocks: Vec<Block>,
    /// For each node its box, or [`NETWORK`].
    pub(super) owner: Vec<u32>,
}

impl Layout {
    /// By the boxes of the topology, where networks join them.
    pub(super) fn of_boxes(topology: &Topology) -> Option<Layout> {
        let boxes = topology.boxes();
        if boxes.len() < 2 {
            return None;
        }
        let owner = owners(
            topology,
            &boxes.iter().map(|ranks| ranks.iter().map(|rank| rank.0).collect()).collect::<Vec<_>>(),
        );
        let joins_boxes = |link: &crate::topology::Link| {
            let (from, to) = (owner[link.from.index()], owner[link.to.index()]);
            from != to && from != NETWORK && to != NETWORK
        };
        if topology.links().iter().any(joins_boxes) {
            return None;
        }
        Some(Layout::new(topology, owner, boxes.len() as u32))
    }

    /// All in one.
    pub(super) fn whole(topology: &Topology) -> Layout {
        Layout::new(topology, vec![0; topology.nodes().len()], 1)
    }

    fn new(topology: &Topology, owner: Vec<u32>, boxes: u32) -> Layout {
        let has_outside = boxes > 1;
        let mut ranks: Vec<Vec<u32>> = vec![Vec::new(); boxes as usize];
        let mut others = ranks.clone();
        for (node, at) in topology.nodes().iter().zip(0u32..) {
            let owner = owner[at as usize];
            if owner == NETWORK {
                continue;
            }
            let list = if matches!(node.kind, NodeKind::Rank { .. }) { &mut ranks } else { &mut others };
            list[owner as usize].push(at);
        }
        let mut links: Vec<Vec<LinkId>> = vec![Vec::new(); boxes as usize];
        for (link, id) in topology.links().iter().zip(0..) {
            let ends = [owner[link.from.index()], owner[link.to.index()]];
            if let Some(of) = ends.into_iter().find(|of| *of != NETWORK) {
                links[of as usize].push(LinkId(id));
            }
        }
        let mut known: BTreeMap<Part, usize> = BTreeMap::new();
        let mut blocks = Vec::new();
        let mut local = vec![0u32; topology.nodes().len()];
        for ((ranks, others), links) in ranks.into_iter().zip(others).zip(links) {
            let outside = ranks.len() as u32;
            ranks.iter().zip(0..).for_each(|(node, at)| local[*node as usize] = at);
            let first = outside + u32::from(has_outside);
            others.iter().zip(first..).for_each(|(node, at)| local[*node as usize] = at);
            let end = |node: usize| if owner[node] == NETWORK { outside } else { local[node] };
            let ends = |id: &LinkId| {
                let link = &topology.links()[id.index()];
                (end(link.from.index()), end(link.to.index()))
            };
            let mut part = Part {
                ranks: first as usize,
                nodes: first as usize + others.len(),
                has_outside,
                links: links.iter().map(ends).collect(),
                capacity: links
                    .iter()
                    .map(|id| u128::from(topology.links()[id.index()].bandwidth_bytes_s) * UNITS)
                    .collect(),
            };
            for rank in &ranks {
                part.capacity.extend(limits(topology, *rank));
            }
            if has_outside {
                part.capacity.extend([UNLIMITED; 2]);
            }
            let next = known.len();
            let class = *known.entry(part).or_insert(next);
            blocks.push(Block { class, ranks, links });
        }
        let mut classes = vec![Part::default(); known.len()];
        known.into_iter().for_each(|(part, class)| classes[class] = part);
        Layout { classes, blocks, owner }
    }
}

/// Units a second of all that leaves a rank, and of all that enters it.
pub(super) fn limits(topology: &Topology, rank: u32) -> [u128; 2] {
    let units = |limit: Option<u64>| limit.map_or(UNLIMITED, |bytes_s| u128::from(bytes_s) * UNITS);
    match topology.nodes()[rank as usize].kind {
        NodeKind::Rank { inject_bytes_s, eject_bytes_s, .. } => [units(inject_bytes_s), units(eject_bytes_s)],
        _ => [UNLIMITED; 2],
    }
}

/// For each node the box whose ranks are fewest links away; the network where several are, or none.
fn owners(topology: &Topology, boxes: &[Vec<u32>]) -> Vec<u32> {
    const UNKNOWN: u32 = u32::MAX - 1;
    let mut near: Vec<Vec<u32>> = vec![Vec::new(); topology.nodes().len()];
    for link in topology.links() {
        near[link.from.index()].push(link.to.0);
        near[link.to.index()].push(link.from.0);
    }
    let mut owner = vec![UNKNOWN; near.len()];
    let mut level = Vec::new();
    for (ranks, number) in boxes.iter().zip(0..) {
        for rank in ranks {
            owner[*rank as usize] = number;
            level.push(*rank);
        }
    }
    while !level.is_empty() {
        // The owner is that of all neighbours of the level before, or the network.
        let mut reached: BTreeMap<u32, u32> = BTreeMap::new();
        for at in level {
            for to in near[at as usize].iter().filter(|to| owner[**to as usize] == UNKNOWN) {
                let of = owner[at as usize];
                let known = reached.entry(*to).or_insert(of);
                if *known != of {
                    *known = NETWORK;
                }
            }
        }
        reached.iter().for_each(|(node, of)| owner[*node as usize] = *of);
        level = reached.into_keys().collect();
    }
    owner.into_iter().map(|of| if of == UNKNOWN { NETWORK } else { of }).collect()
}
