//! Greedy schedules for any machine on which every rank reaches every other, however odd: time is unrolled, and each
//! link takes, whenever it is free, a chunk that its end lacks.
//!
//! For groups of any size, parts of a machine, and machines with broken links, GPUs or adapters. What it finds is not
//! optimal; how far it is from what is possible comes with it.
//!
//! Source: W. Won et al., "TACOS: Topology-Aware Collective Algorithm Synthesizer for Distributed Machine Learning",
//! MICRO 2024; folds are spreads with every link turned round, backwards in time, as there. Added here: links that
//! routes share, a second copy over slow links only where no fast one brings it (`spread`), and the moves of
//! `balance`. Cost: the trees of an all-gather take `n (n - 1) pieces` chunks; some hundred edges are looked at for
//! each.
//!
//! Invariant: the work is bounded by counted looks at edges, and numbers decide everything: the same topology gives
//! the same schedule. Absent: latency, and aggregating switches.

mod balance;
mod clock;
mod emit;
mod pairs;
mod spread;
mod wires;

use crate::bounds::{self, Bound, Ratio, bound};
use crate::topology::{Link, NodeId, Topology};
use crate::{Collective, Rank, Schedule};
use clock::Step;
use emit::Emit;
use spread::{Parents, Way};
use wires::Wires;

/// Machines of more ranks get no schedule.
pub const RANKS_MAX: u32 = 128;
/// How many times slower an edge is than the wires of a group before it brings no second copy.
const SLOWER: [u64; 2] = [2, 4];
/// Transfers of trees that are tried; more pieces would make longer schedules than the ranks keep.
const TRANSFERS_MAX: u64 = 1 << 16;

/// How much is tried.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options {
    /// The most pieces that a rank's block (or the n-th part of a vector) is cut into; powers of 2 up to it are tried.
    pub pieces_max: u32,
    /// Streams side by side between two ranks, at most.
    pub channels: u16,
    /// Looks at edges, after which nothing more is tried. The first try is always made.
    pub looks_max: u64,
}

impl Default for Options {
    fn default() -> Self {
        Options { pieces_max: 8, channels: 16, looks_max: 1 << 20 }
    }
}

/// A schedule, and how good it is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Greedy {
    /// The schedule; its rank `i` is the machine's rank `(root + i) % n`.
    pub schedule: Schedule,
    /// The algorithm bandwidth that it reaches with long messages, bytes a second.
    pub rate: Ratio,
    /// What none exceeds; none for gather and scatter, which have no bounds.
    pub bound: Option<Bound>,
}

impl Greedy {
    /// The rate through the bound.
    pub fn share(&self) -> Option<Ratio> {
        self.rate.checked_mul(self.bound.as_ref()?.rate.inverse()?)
    }
}

/// The schedule of `collective` on `topology`; `root` is the machine's rank that is the root, and rank 0 of the
/// schedule.
///
/// None for fewer than 2 or more than [`RANKS_MAX`] ranks, a root that is no rank, a message between two ranks, or a
/// machine on which a rank does not reach another that it must.
pub fn schedule(
    topology: &Topology,
    collective: Collective,
    root: Rank,
    options: &Options,
) -> Option<Greedy> {
    let ranks = topology.ranks();
    if !(2..=RANKS_MAX).contains(&ranks) || root.0 >= ranks || collective == Collective::SendReceive {
        return None;
    }
    let turned = (root.0 > 0).then(|| from_root(topology, root));
    let topology = turned.as_ref().unwrap_or(topology);
    let is_rooted = matches!(collective, Collective::Broadcast | Collective::Reduce);
    let asked = bounds::Options { root: is_rooted.then_some(Rank(0)), in_network: false };
    let bound = bound(topology, collective, &asked).ok();
    let wires = Wires::new(topology);
    let goal = bound.as_ref().map(|bound| bound.rate);
    let schedule = match collective {
        Collective::AllToAll | Collective::Gather | Collective::Scatter => {
            exchange(&wires, collective, options, goal)?
        }
        _ => trees(&wires, collective, options, goal)?,
    };
    let rate = super::rate(&schedule, topology).ok()??;
    Some(Greedy { schedule, rate, bound })
}

/// The machine with its ranks numbered from `root` on.
fn from_root(topology: &Topology, root: Rank) -> Topology {
    let ranks = topology.ranks();
    let mut turned = Topology::new(topology.name.clone(), topology.costs);
    (turned.relay, turned.measured) = (topology.relay, topology.measured);
    let nodes = topology.nodes();
    let (low, others) = nodes.split_at(ranks as usize);
    for node in low[root.index()..].iter().chain(&low[..root.index()]).chain(others) {
        turned.add_node(node.name.clone(), node.kind);
    }
    let number = |node: NodeId| match node.0 < ranks {
        true => NodeId((node.0 + ranks - root.0) % ranks),
        false => node,
    };
    for link in topology.links() {
        turned.add_link(Link { from: number(link.from), to: number(link.to), ..*link });
    }
    turned
}

/// Trees of all chunks, with their number.
struct Found {
    pieces: u32,
    parents: Parents,
    fullest: u64,
}

fn origins(collective: Collective, ranks: u32, pieces: u32) -> Vec<u32> {
    let is_rooted = matches!(collective, Collective::Broadcast | Collective::Reduce);
    (0..ranks * pieces).map(|chunk| if is_rooted { 0 } else { chunk / pieces }).collect()
}

fn trees(wires: &Wires, collective: Collective, options: &Options, goal: Option<Ratio>) -> Option<Schedule> {
    let ranks = wires.ranks;
    let transposed = wires.transposed();
    let (folds, copies) = match collective {
        Collective::AllReduce => (true, true),
        Collective::Reduce | Collective::ReduceScatter => (true, false),
        _ => (false, true),
    };
    // A spread from one rank needs that this one reaches all; one from each rank, that all do.
    let is_rooted = matches!(collective, Collective::Broadcast | Collective::Reduce);
    let is_possible = match (is_rooted, folds) {
        (true, false) => wires.reaches_all(Rank(0)),
        (true, true) => transposed.reaches_all(Rank(0)),
        (false, _) => wires.reaches_all(Rank(0)) && transposed.reaches_all(Rank(0)),
    };
    if !is_possible {
        return None;
    }
    // Each half of an all-reduce is faster than the whole.
    let goal = goal.filter(|_| collective != Collective::AllReduce);
    let tries = Tries { collective, options, goal };
    let mut fold = folds.then(|| tries.best(&transposed, None));
    // What is folded and then sent has one number of pieces.
    let pieces = fold.as_ref().map(|fold| fold.pieces);
    let mut copy = copies.then(|| tries.best(wires, pieces));
    if let (Some(fold), Some(copy)) = (&mut fold, &mut copy) {
        // A link carries both, one after the other.
        let others = balance::loads(&transposed, &fold.parents);
        balance::balance(wires, &mut copy.parents, &others, options.looks_max);
        let others = balance::loads(wires, &copy.parents);
        balance::balance(&transposed, &mut fold.parents, &others, options.looks_max);
    }
    let pieces = copy.as_ref().or(fold.as_ref())?.pieces;
    let all = origins(collective, ranks, pieces);
    let block =
        if matches!(collective, Collective::AllGather | Collective::ReduceScatter) { 1 } else { ranks };
    let channels = options.channels.min((ranks * pieces).min(u32::from(u16::MAX / 2)) as u16);
    let mut emit = Emit::new(collective, ranks, block * pieces, channels);
    let timed = |wires: &Wires, found: &Found| -> Vec<Step> { spread::along(wires, &all, &found.parents) };
    if let Some(fold) = fold.take() {
        emit.fold(&transposed, &all, &timed(&transposed, &fold));
    }
    if let Some(copy) = copy {
        let first = if folds { channels } else { 0 };
        emit.copy(wires, &all, &timed(wires, &copy), first);
    }
    Some(emit.schedule(format!("greedy(pieces={pieces})")))
}

/// What is tried for trees.
struct Tries<'a> {
    collective: Collective,
    options: &'a Options,
    /// The rate that none exceeds: trees that reach it are good enough.
    goal: Option<Ratio>,
}

impl Tries<'_> {
    /// The best trees that are found: those whose fullest link needs the least time for each byte, then those of fewer
    /// pieces. There are `pieces` pieces, or as many as are best.
    fn best(&self, wires: &Wires, pieces: Option<u32>) -> Found {
        let ranks = wires.ranks;
        let most = self.options.pieces_max.clamp(1, 1 << 8);
        let all = (0..=most.ilog2()).map(|power| 1 << power);
        let all: Vec<u32> = pieces.map_or_else(|| all.collect(), |pieces| vec![pieces]);
        let groups = SLOWER.into_iter().filter(|slower| spread::has_groups(wires, *slower));
        let ways: Vec<Option<u64>> = groups.map(Some).chain([None]).collect();
        let mut left = self.options.looks_max;
        let mut best: Option<Found> = None;
        for (pieces, (turn, &slower)) in
            all.iter().flat_map(|pieces| (0..).zip(&ways).map(move |way| (*pieces, way)))
        {
            let transfers = u64::from(ranks) * u64::from(ranks - 1) * u64::from(pieces);
            let is_good = |best: &Found| {
                self.goal.is_some_and(|goal| wires.rate(ranks * best.pieces, best.fullest) >= goal)
            };
            if best.as_ref().is_some_and(|best| left == 0 || transfers > TRANSFERS_MAX || is_good(best)) {
                break;
            }
            let origins = origins(self.collective, ranks, pieces);
            let (mut parents, looked) = spread::spread(wires, &origins, Way { slower, turn });
            left = left.saturating_sub(looked);
            // What a try found is balanced even if the tries are at their end.
            let looks = left.max(self.options.looks_max / 4);
            left = left.saturating_sub(balance::balance(wires, &mut parents, &[], looks));
            let fullest = balance::fullest(wires, &parents);
            let is_better = |best: &Found| {
                u128::from(fullest) * u128::from(best.pieces) < u128::from(best.fullest) * u128::from(pieces)
            };
            if best.as_ref().is_none_or(is_better) {
                best = Some(Found { pieces, parents, fullest });
            }
        }
        best.unwrap_or(Found { pieces: 1, parents: Vec::new(), fullest: 0 })
    }
}

/// Blocks of their own, each over one path.
fn exchange(
    wires: &Wires,
    collective: Collective,
    options: &Options,
    goal: Option<Ratio>,
) -> Option<Schedule> {
    let ranks = wires.ranks;
    let mut best: Option<(u32, pairs::Paths)> = None;
    let mut left = options.looks_max;
    let mut pieces = 1;
    let is_good = |best: &Option<(u32, pairs::Paths)>| {
        let reached = best.as_ref().map(|(pieces, best)| wires.rate(ranks * pieces, best.fullest));
        goal.zip(reached).is_some_and(|(goal, reached)| reached >= goal)
    };
    while pieces <= options.pieces_max.max(1) && (best.is_none() || (left > 0 && !is_good(&best))) {
        let found = pairs::paths(wires, collective, pieces, options.looks_max)?;
        left = left.saturating_sub(found.looked);
        let is_better = |(other, best): &(u32, pairs::Paths)| {
            u128::from(found.fullest) * u128::from(*other) < u128::from(best.fullest) * u128::from(pieces)
        };
        if best.as_ref().is_none_or(is_better) {
            best = Some((pieces, found));
        }
        pieces *= 2;
    }
    let (pieces, paths) = best?;
    let channels = options.channels.min((ranks * pieces) as u16);
    let mut emit = Emit::new(collective, ranks, pieces, channels);
    pairs::emit(wires, &paths, &mut emit);
    Some(emit.schedule(format!("greedy(pieces={pieces})")))
}
