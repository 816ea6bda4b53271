//! Rings of a machine with the largest total bandwidth that is found, each with its share of the links.
//!
//! A channel is one ring through all ranks with a speed; channels share links, switches, uplinks and adapters, and none of
//! these carries more than it can. A ring passes each cut of the machine at least once, so all rings together are at most as
//! fast as the smallest cut: [`Rings::limit`]. Over boxes a ring is in one box after the other, and enters each by one adapter.
//!
//! Invariant: the same topology gives the same rings on every rank: work is bounded by counted steps, never by time, numbers
//! are whole, and what is tried at random has a fixed seed. Absent: latency; rings whose hops pass other ranks; which
//! collective is worth it on them (builders make schedules of them, the planner prices those).

mod channels;
mod compose;
mod covers;
mod given;
mod layout;
mod part;
mod place;
mod schedules;
mod stages;
mod trees;
mod words;

use crate::bounds::{self, Ratio};
use crate::topology::{LinkId, NodeKind, Topology};
use crate::{Collective, Rank};
use layout::Layout;
use part::{Graph, Part, UNITS, UNLIMITED};
use stages::Stages;

pub use channels::graphs;
pub use given::given;
pub(crate) use schedules::named;
pub use words::words;

/// What bounds a search.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options {
    /// The most rings.
    pub rings_max: usize,
    /// The most steps: one is a rank that a ring might go to next, or an exchange between rings. Fewer are taken where boxes have
    /// fewer than 16 ranks, or more than some thousand links.
    pub steps: u64,
}

impl Default for Options {
    fn default() -> Self {
        Options { rings_max: 16, steps: 20_000 }
    }
}

/// Steps for each ordered pair of ranks of a box, at most.
const STEPS_PAIR: u64 = 125;
/// Links and nodes that all steps together look at, at most: a step may look at each of them.
const LOOKS_MAX: u64 = 1 << 25;

/// The most ranks of a box, and of a machine that is no boxes with a network between them, in which rings are searched.
pub const BOX_RANKS_MAX: u32 = 64;

/// A ring, with its links.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Ring {
    /// All ranks in the order in which the ring passes them, from rank 0.
    pub order: Vec<Rank>,
    /// For each rank of the order the links from it to the next one, and from the last to the first.
    pub hops: Vec<Vec<LinkId>>,
    /// Bytes a second that travel on each hop.
    pub bytes_s: Ratio,
}

/// The rings that a search found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rings {
    /// The fastest first.
    pub rings: Vec<Ring>,
    /// Bytes a second that no rings through all ranks exceed together: the smallest cut, and over boxes the smallest cut of any
    /// box with all that is outside as one rank. What a network between boxes narrows is not in it.
    pub limit: Ratio,
}

impl Rings {
    /// Bytes a second of all rings together: the bus bandwidth of long ring collectives.
    pub fn total(&self) -> Ratio {
        let units: u128 = self.rings.iter().map(|ring| units(ring.bytes_s)).sum();
        Ratio::new(units, UNITS)
    }

    /// Whether no rings are faster together.
    pub fn is_at_limit(&self) -> bool {
        !self.limit.is_zero() && self.total() == self.limit
    }

    /// The algorithm bandwidth of a long collective by these rings, in bytes of its vector a second, as
    /// [`bounds`] count it; none for collectives that have no ring.
    pub fn rate(&self, collective: Collective) -> Option<Ratio> {
        let ranks = self.rings.first().map_or(2, |ring| ring.order.len() as u128).max(2);
        let part = match collective {
            Collective::AllGather | Collective::ReduceScatter => Ratio::new(ranks, ranks - 1),
            Collective::AllReduce => Ratio::new(ranks, 2 * (ranks - 1)),
            Collective::Broadcast | Collective::Reduce => Ratio::new(1, 1),
            _ => return None,
        };
        self.total().checked_mul(part)
    }
}

impl Rings {
    /// The same rings of ranks that are counted from `root`, as schedules of rooted collectives count them.
    ///
    /// # Panics
    /// When there is no such rank.
    pub fn from_root(&self, root: Rank) -> Rings {
        let turned = |ring: &Ring| {
            let ranks = ring.order.len();
            let first = ring.order.iter().position(|rank| *rank == root).expect("the root is a rank");
            let mut order: Vec<Rank> = ring.order.iter().map(|rank| from(*rank, root, ranks)).collect();
            let mut hops = ring.hops.clone();
            order.rotate_left(first);
            hops.rotate_left(first.min(ring.hops.len()));
            Ring { order, hops, bytes_s: ring.bytes_s }
        };
        Rings { rings: self.rings.iter().map(turned).collect(), limit: self.limit }
    }
}

/// The number of a rank that is counted from `root`.
fn from(rank: Rank, root: Rank, ranks: usize) -> Rank {
    Rank(((rank.index() + ranks - root.index()) % ranks) as u32)
}

/// The steps of a search in these parts.
fn steps_of(options: &Options, parts: &[Part]) -> u64 {
    let size = parts.iter().map(|part| part.nodes + part.links.len()).max().unwrap_or(0) as u64;
    options.steps.min(LOOKS_MAX / size.max(1))
}

/// A speed in whole units, as all speeds of rings are.
fn units(speed: Ratio) -> u128 {
    speed.numerator() * (UNITS / speed.denominator())
}

/// `numerator / denominator`; a denominator of 0 is no limit.
fn ratio(numerator: u128, denominator: u128) -> Ratio {
    Ratio::new(numerator, denominator.max(1))
}

/// `speed * numerator / denominator`, or less where that does not fit; the fraction is at most 1.
fn scaled(speed: u128, mut numerator: u128, mut denominator: u128) -> u128 {
    while speed.checked_mul(numerator).is_none() {
        (numerator, denominator) = (numerator >> 1, (denominator + 1) >> 1);
    }
    speed * numerator / denominator.max(1)
}

/// Searches the rings of a machine; none where it has fewer than two ranks, where it has more than [`BOX_RANKS_MAX`] in a box,
/// or where a rank is not reached without passing another.
pub fn rings(topology: &Topology, options: &Options) -> Rings {
    let none = Rings { rings: Vec::new(), limit: Ratio::ZERO };
    if topology.ranks() < 2 {
        return none;
    }
    let layout = Layout::of_boxes(topology).unwrap_or_else(|| Layout::whole(topology));
    if layout.blocks.iter().any(|block| block.ranks.len() > BOX_RANKS_MAX as usize) {
        return none;
    }
    let limit = layout.classes.iter().filter_map(smallest_cut).min().unwrap_or(Ratio::ZERO);
    let graphs: Vec<Graph<'_>> = layout.classes.iter().map(Graph::new).collect();
    let limit_units = limit.numerator() * UNITS / limit.denominator();
    let rings_max = options.rings_max.max(1);
    let largest = graphs.iter().map(|graph| graph.ranks() as u64).max().unwrap_or(0);
    let steps = steps_of(options, &layout.classes).min(STEPS_PAIR * largest * largest);
    let mut stages = Stages { graphs: &graphs, limit: limit_units, rings_max, steps };
    let found = stages.run();
    let mut whole = compose::compose(topology, &layout, &found.rings);
    whole.sort_by_key(|ring| std::cmp::Reverse(ring.speed));
    let ring = |ring: compose::Whole| {
        let first = ring.order.iter().position(|rank| *rank == 0).unwrap_or_default();
        let (mut order, mut hops) = (ring.order, ring.hops);
        order.rotate_left(first);
        hops.rotate_left(first);
        Ring { order: order.into_iter().map(Rank).collect(), hops, bytes_s: Ratio::new(ring.speed, UNITS) }
    };
    Rings { rings: whole.into_iter().map(ring).collect(), limit }
}

/// A tree through all ranks, with its links.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Tree {
    /// The parent of each rank; none for the root.
    pub parents: Vec<Option<Rank>>,
    /// For each rank the links from its parent; none for the root.
    pub down: Vec<Vec<LinkId>>,
    /// For each rank the links to its parent.
    pub up: Vec<Vec<LinkId>>,
    /// Bytes a second that travel along each edge, each way.
    pub bytes_s: Ratio,
}

/// The trees that a search found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Trees {
    /// In the order in which they were found.
    pub trees: Vec<Tree>,
    /// Bytes a second that no trees through all ranks exceed together: the smallest cut.
    pub limit: Ratio,
}

impl Trees {
    /// Bytes a second of all trees together: the algorithm bandwidth of long all-reduces, broadcasts and reduces by them.
    pub fn total(&self) -> Ratio {
        let units: u128 = self.trees.iter().map(|tree| units(tree.bytes_s)).sum();
        Ratio::new(units, UNITS)
    }

    /// The same trees of ranks that are counted from `root`, as schedules of rooted collectives count them.
    ///
    /// # Panics
    /// When there is no such rank.
    pub fn from_root(&self, root: Rank) -> Trees {
        fn turned<T: Clone>(of_ranks: &[T], root: Rank) -> Vec<T> {
            let mut turned = of_ranks.to_vec();
            turned.rotate_left(root.index().min(of_ranks.len()));
            turned
        }
        let tree = |tree: &Tree| {
            let above = |of: Option<Rank>| of.map(|rank| from(rank, root, tree.parents.len()));
            Tree {
                parents: turned(&tree.parents, root).into_iter().map(above).collect(),
                down: turned(&tree.down, root),
                up: turned(&tree.up, root),
                bytes_s: tree.bytes_s,
            }
        };
        Trees { trees: self.trees.iter().map(tree).collect(), limit: self.limit }
    }
}

/// Searches trees of a machine, whose edges carry as much up as down; none where it has fewer than two ranks or more than
/// [`BOX_RANKS_MAX`].
pub fn trees(topology: &Topology, options: &Options) -> Trees {
    let none = Trees { trees: Vec::new(), limit: Ratio::ZERO };
    if !(2..=BOX_RANKS_MAX).contains(&topology.ranks()) {
        return none;
    }
    let layout = Layout::whole(topology);
    let (part, links) = (&layout.classes[0], &layout.blocks[0].links);
    let limit = smallest_cut(part).unwrap_or(Ratio::ZERO);
    let graph = Graph::new(part);
    let limit_units = limit.numerator() * UNITS / limit.denominator();
    let (trees_max, steps) = (options.rings_max.max(1), steps_of(options, &layout.classes));
    let found = trees::Trees { graph: &graph, limit: limit_units, trees_max, steps }.run();
    let global = |way: &[u32]| way.iter().map(|link| links[*link as usize]).collect();
    let tree = |tree: trees::Grown| Tree {
        parents: tree.parents.iter().map(|of| of.as_ref().map(|(rank, ..)| Rank(*rank))).collect(),
        down: tree
            .parents
            .iter()
            .map(|of| of.as_ref().map_or(Vec::new(), |(_, down, _)| global(down)))
            .collect(),
        up: tree.parents.iter().map(|of| of.as_ref().map_or(Vec::new(), |(.., up)| global(up))).collect(),
        bytes_s: Ratio::new(tree.speed, UNITS),
    };
    Trees { trees: found.into_iter().map(tree).collect(), limit }
}

/// The smallest cut of a part, in bytes a second: what a broadcast from its worst root cannot exceed.
fn smallest_cut(part: &Part) -> Option<Ratio> {
    let mut topology = Topology::new("part", crate::topology::Costs::default());
    let bytes_s = |units: u128| u64::try_from(units / UNITS).unwrap_or(u64::MAX);
    for node in 0..part.nodes {
        let limit = |at: usize| {
            let units = part.capacity[part.links.len() + 2 * node + at];
            (units < UNLIMITED).then(|| bytes_s(units))
        };
        let kind = if node < part.ranks {
            NodeKind::Rank { in_box: 0, inject_bytes_s: limit(0), eject_bytes_s: limit(1) }
        } else {
            NodeKind::Port
        };
        topology.add_node(format!("n{node}"), kind);
    }
    for ((from, to), units) in part.links.iter().zip(&part.capacity) {
        topology.add_link(crate::topology::Link {
            from: crate::topology::NodeId(*from),
            to: crate::topology::NodeId(*to),
            latency_ns: 0,
            bandwidth_bytes_s: bytes_s(*units).max(1),
        });
    }
    let bound = bounds::bound(&topology, Collective::Broadcast, &bounds::Options::default());
    bound.ok().map(|bound| bound.rate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_fewer_where_each_looks_at_many_links() {
        let part = |links: usize| Part { nodes: 8, links: vec![(0, 1); links], ..Part::default() };
        let options = Options::default();
        assert_eq!(steps_of(&options, &[part(56)]), options.steps, "a mesh of 8");
        assert_eq!(steps_of(&options, &[part(1000)]), options.steps);
        let many = steps_of(&options, &[part(56), part(100_000)]);
        assert!(many > 0 && many * 100_000 <= LOOKS_MAX, "{many}");
        assert_eq!(steps_of(&options, &[]), options.steps);
    }
}
