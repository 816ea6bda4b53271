//! Spanning trees packed into a machine: all-gather, reduce-scatter, broadcast and reduce at what its cuts allow.
//!
//! Each root has the same number of out-trees, all of one bandwidth. The machine becomes a graph whose edges carry whole
//! numbers of trees (`graph`), switches are taken out (`split`), and trees are packed into what is left (`grow`).
//! In-trees of reduce-scatter and reduce are out-trees of the machine turned round.
//!
//! Source: L. Zhao et al., "ForestColl: Throughput-Optimal Collective Communications on Heterogeneous Network Fabrics"
//! (arXiv 2402.06787). Invariant: whole numbers decide, so every rank finds the same trees; bytes travel on the routes of the
//! topology, of whose wires none has more than it carries. Absent: time (the simulator has it), all-reduce, and machines of
//! more than 64 ranks.

mod graph;
mod grow;
mod scale;
mod split;
mod spread;
mod ways;

use std::cmp::Reverse;
use std::collections::BTreeMap;

use crate::bounds::classes::Classes;
use crate::bounds::network::Network;
use crate::bounds::{Ratio, trees};
use crate::builders::{self, RootedTree, SpanningTree};
use crate::topology::Topology;
use crate::{Collective, Rank, Schedule};
use graph::{Demand, Graph};
use grow::Batch;
use scale::Scale;
use ways::Ways;

/// The most ranks of a machine for which trees are packed.
pub const RANKS_MAX: u32 = grow::RANKS_MAX;

/// The most trees of a root that a search without a limit takes, where the optimum needs more.
pub const TREES_MAX: u32 = 256;

/// The numbers of trees of a root that are tried besides that of the optimum.
pub const FEW: [u32; 4] = [1, 2, 4, 8];

/// The most trees that are tried only to be shallow.
const SHALLOW_MAX: u32 = 64;

/// What bounds a packing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options {
    /// The most trees of each root, equal ones counted as often as they are there; at least 1.
    pub trees_per_root_max: u32,
    /// The most ranks; at most [`RANKS_MAX`].
    pub ranks_max: u32,
    /// Whether trees keep to the routes of the topology. Otherwise an edge is any path, which only machines with
    /// routing by the source have.
    pub routed: bool,
}

impl Default for Options {
    fn default() -> Self {
        Options { trees_per_root_max: TREES_MAX, ranks_max: RANKS_MAX, routed: true }
    }
}

/// Equal trees of one root.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Tree {
    /// The root: of out-trees the rank that has the bytes, of in-trees the one that gets the result.
    pub root: Rank,
    /// The parent of each rank; none for the root.
    pub parents: Vec<Option<Rank>>,
    /// How many equal trees these are.
    pub share: u32,
}

impl Tree {
    /// The most hops between the root and a rank.
    pub fn depth(&self) -> u32 {
        let hops = |rank: usize| {
            std::iter::successors(self.parents[rank], |above| self.parents[above.index()]).count() as u32
        };
        (0..self.parents.len()).map(hops).max().unwrap_or(0)
    }
}

/// Trees of every root.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Forest {
    /// What they are for.
    pub collective: Collective,
    /// Number of ranks.
    pub ranks: u32,
    /// The trees, by root.
    pub trees: Vec<Tree>,
    /// The sum of the shares of each root's trees.
    pub trees_per_root: u32,
    /// The bytes a second of each tree.
    pub tree: Ratio,
    /// Whether no trees of this number a root are faster, on the routes of the topology.
    pub is_best: bool,
}

impl Forest {
    /// The algorithm bandwidth, in bytes of the collective's vector a second, as [`bounds`](crate::bounds) count it.
    pub fn rate(&self) -> Ratio {
        let blocks = match self.collective {
            Collective::AllGather | Collective::ReduceScatter => self.ranks,
            _ => 1,
        };
        let trees = u128::from(blocks) * u128::from(self.trees_per_root);
        self.tree.checked_mul(Ratio::new(trees, 1)).unwrap_or(Ratio::ZERO)
    }

    /// The schedule, with at most `channels_max` channels where its trees allow it; each tree has one of its own where these
    /// are enough, equal ones as well. Rank 0 is the root of rooted collectives, so that the schedule's rank `i` is rank `(i +
    /// root) % ranks` of the topology.
    pub fn schedule(&self, channels_max: u16) -> Schedule {
        let is_rooted = matches!(self.collective, Collective::Broadcast | Collective::Reduce);
        // Trees up and down have a channel each.
        let needed = if is_rooted { 2 * self.trees_per_root } else { self.ranks * self.trees_per_root };
        let single = needed <= channels_max.into();
        let parts = |tree: &Tree| if single { tree.share } else { 1 };
        let each = self.trees.iter().flat_map(|tree| std::iter::repeat_n(tree, parts(tree) as usize));
        let share = |tree: &Tree| tree.share / parts(tree);
        if is_rooted {
            let tree = |tree: &Tree| SpanningTree { parents: self.relative(tree), share: share(tree) };
            return builders::spanning_trees(self.collective, &each.map(tree).collect::<Vec<_>>());
        }
        let each: Vec<&Tree> = each.collect();
        let channels = self.channels(&each, channels_max);
        let tree = |(tree, channel): (&&Tree, u16)| RootedTree {
            parents: tree.parents.clone(),
            share: share(tree),
            channel,
        };
        builders::forest(self.collective, &each.iter().zip(channels).map(tree).collect::<Vec<_>>())
    }

    /// The parents of a tree whose root is rank 0.
    fn relative(&self, tree: &Tree) -> Vec<Option<Rank>> {
        let relative = |rank: Rank| (rank.0 + self.ranks - tree.root.0) % self.ranks;
        let mut parents = vec![None; tree.parents.len()];
        for (rank, parent) in (0..).map(Rank).zip(&tree.parents) {
            parents[relative(rank) as usize] = parent.map(|parent| Rank(relative(parent)));
        }
        parents
    }

    /// The channel of each tree: the trees of a root are on different ones as far as there are enough, and so are those of
    /// neighbouring roots.
    fn channels(&self, trees: &[&Tree], channels_max: u16) -> Vec<u16> {
        let channels_max = u32::from(channels_max.max(1));
        let count = |root: u32| trees.iter().filter(|tree| tree.root.0 == root).count() as u32;
        let widest = (0..self.ranks).map(count).max().unwrap_or(1).max(1);
        // Groups of roots whose trees are on different channels.
        let groups = (channels_max / widest).clamp(1, self.ranks);
        let mut numbers = vec![0u32; self.ranks as usize];
        let channel = |tree: &&Tree| {
            let number = &mut numbers[tree.root.index()];
            *number += 1;
            (((tree.root.0 % groups) * widest + *number - 1) % channels_max) as u16
        };
        trees.iter().map(channel).collect()
    }

    fn is_better(&self, other: &Forest) -> bool {
        (self.rate(), Reverse(self.depth())) > (other.rate(), Reverse(other.depth()))
    }

    /// The most hops of any tree.
    pub fn depth(&self) -> u32 {
        self.trees.iter().map(Tree::depth).max().unwrap_or(0)
    }
}

/// Whether trees are packed for `collective`.
pub const fn is_defined(collective: Collective) -> bool {
    matches!(
        collective,
        Collective::AllGather | Collective::ReduceScatter | Collective::Broadcast | Collective::Reduce
    )
}

/// The fastest trees of `collective` on `topology`, of equally fast ones the shallowest, and of these the fewest of a root; none for other
/// collectives, less than 2 or too many ranks, and machines on which a rank does not reach another.
/// `root` is that of a broadcast or reduce.
pub fn forest(topology: &Topology, collective: Collective, root: Rank, options: &Options) -> Option<Forest> {
    let mut all = frontier(topology, collective, root, options);
    all.pop()
}

/// Trees of `collective`, from the fewest of a root to the fastest: each is faster than those with fewer, or as fast and
/// shallower. Only a broadcast or reduce is tried with more trees than the optimum has, as these alone may be a chain.
pub fn frontier(topology: &Topology, collective: Collective, root: Rank, options: &Options) -> Vec<Forest> {
    let Some(asked) = Asked::new(topology, collective, root, options) else { return Vec::new() };
    let most = options.trees_per_root_max.max(1);
    let optimal = asked.scale.optimal_trees().filter(|trees| *trees <= most);
    let mut counts: Vec<u32> = FEW.into_iter().filter(|few| *few <= most).collect();
    // Where the optimum has too many trees, more than a few come nearer to it.
    counts.extend(optimal.is_none().then_some([16, 32, 64]).into_iter().flatten().filter(|few| *few <= most));
    counts.retain(|few| optimal.is_none_or(|optimal| *few < optimal));
    counts.extend(optimal);
    if let Some(optimal) = optimal.filter(|_| asked.root.is_some()) {
        // A root in a box can send each other rank of it a tree of its own.
        let neighbours = topology.boxes().iter().map(|ranks| ranks.len() as u32 - 1).max().unwrap_or(1);
        let more = [2, neighbours].map(|times| optimal.saturating_mul(times));
        counts.extend(more.into_iter().filter(|more| *more > optimal && *more <= most.min(SHALLOW_MAX)));
    }
    let mut found: Vec<Forest> = Vec::new();
    for trees in counts {
        if let Some(forest) = asked.forest(trees)
            && found.last().is_none_or(|last| forest.is_better(last))
        {
            found.push(forest);
        }
    }
    found
}

/// A question with what is made of its machine.
struct Asked<'a> {
    topology: &'a Topology,
    collective: Collective,
    root: Option<Rank>,
    /// Turned round where trees are in-trees.
    network: Network,
    ways: Ways,
    scale: Scale,
}

impl<'a> Asked<'a> {
    fn new(
        topology: &'a Topology,
        collective: Collective,
        root: Rank,
        options: &Options,
    ) -> Option<Asked<'a>> {
        let ranks = topology.ranks();
        let is_rooted = matches!(collective, Collective::Broadcast | Collective::Reduce);
        let fits = (2..=options.ranks_max.min(RANKS_MAX)).contains(&ranks);
        if !is_defined(collective) || !fits || (is_rooted && root.0 >= ranks) {
            return None;
        }
        let turned = matches!(collective, Collective::ReduceScatter | Collective::Reduce);
        let ways = if options.routed { Ways::routes(topology, turned) } else { Ways::Any };
        let network = Network::new(topology);
        let network = if turned { network.transposed() } else { network };
        let network = network.kept(|arc| arc.link.is_none_or(|link| ways.uses(link)));
        let symmetries = Classes::new(&network);
        let limit = if is_rooted {
            trees::broadcast(&network, &symmetries, root.0)
        } else {
            trees::gather(&network, &symmetries)
        };
        let scale = Scale::new(&network, limit.rate)?;
        Some(Asked { topology, collective, root: is_rooted.then_some(root), network, ways, scale })
    }

    fn demand(&self, trees: u32) -> Demand {
        let of = |rank: u32| if self.root.is_none_or(|root| root.0 == rank) { trees.into() } else { 0 };
        Demand::new((0..self.network.ranks).map(of).collect())
    }

    /// The fastest trees that are found, this many for each root.
    fn forest(&self, trees: u32) -> Option<Forest> {
        let demand = self.demand(trees);
        let graph = |tree: Ratio| Graph::new(&self.network, tree.numerator(), tree.denominator());
        let carries = |tree: Ratio| graph(tree).is_some_and(|graph| graph.carries(&demand));
        let place = self.places();
        let packed = |tree: Ratio| -> Option<Vec<Batch>> {
            let graph = split::without_switches(graph(tree)?, &demand, &self.ways, &place)?;
            grow::grow(&graph, &demand)
        };
        let speeds = self.scale.speeds(trees, carries);
        // Where switches cannot be taken out without loss, slower trees are tried.
        let (mut at, mut step) = (0, 1);
        while let Some(&tree) = speeds.get(at) {
            if let Some(batches) = packed(tree) {
                return Some(self.found(trees, tree, at == 0, &batches));
            }
            at += step;
            step *= 2;
        }
        None
    }

    /// The box of each rank and its place there.
    fn places(&self) -> Vec<(u32, u32)> {
        let mut places = vec![(0, 0); self.network.ranks as usize];
        for (number, ranks) in (0..).zip(self.topology.boxes()) {
            (0..).zip(ranks).for_each(|(place, rank)| places[rank.index()] = (number, place));
        }
        places
    }

    fn found(&self, trees_per_root: u32, tree: Ratio, is_best: bool, batches: &[Batch]) -> Forest {
        let mut trees: BTreeMap<(u32, Vec<Option<u32>>), u128> = BTreeMap::new();
        for batch in batches {
            *trees.entry((batch.root, batch.parents.clone())).or_default() += batch.count;
        }
        let tree_of = |((root, parents), share): ((u32, Vec<Option<u32>>), u128)| Tree {
            root: Rank(root),
            parents: parents.into_iter().map(|parent| parent.map(Rank)).collect(),
            share: share as u32,
        };
        Forest {
            collective: self.collective,
            ranks: self.network.ranks,
            trees: trees.into_iter().map(tree_of).collect(),
            trees_per_root,
            tree,
            is_best,
        }
    }
}
