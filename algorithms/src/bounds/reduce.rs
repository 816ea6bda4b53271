//! All-reduce: the least of what the cuts and the counted messages allow, beside what is known to be reached.

use super::classes::Classes;
use super::network::Network;
use super::parts::{Counted, counted, tightest};
use super::ratio::Ratio;
use super::trees::{Limit, gather, smallest_cut};

/// Above this number of ranks the best partition is not searched for; single ranks and boxes are tried.
const SEARCH_RANKS_MAX: u32 = 128;

/// What limits an all-reduce.
#[derive(Debug)]
pub(super) enum Tight {
    /// A set of nodes that the whole vector must leave and enter.
    Cut(Limit),
    /// The messages between the parts of a partition, counted where they leave their parts or where they enter them.
    Messages { counted: Counted, enter: bool },
}

impl Tight {
    pub(super) fn rate(&self) -> Ratio {
        match self {
            Tight::Cut(limit) => limit.rate,
            Tight::Messages { counted, .. } => counted.rate,
        }
    }
}

/// The bound without in-network compute, and the rate that a reduce-scatter and then an all-gather reach where all
/// switches let out as much as they take in.
pub(super) fn all_reduce(
    network: &Network,
    transposed: &Network,
    symmetries: &Classes,
) -> (Tight, Option<Ratio>) {
    let reached = network.is_balanced().then(|| in_turn(network, transposed, symmetries)).flatten();
    let mut best = Tight::Cut(smallest_cut(network, transposed, symmetries));
    let is_met = |best: &Tight| reached.is_some_and(|reached| reached >= best.rate());
    let singles: Vec<Vec<u32>> = (0..network.ranks).map(|rank| vec![rank]).collect();
    let boxes: Vec<Vec<u32>> =
        network.boxes.iter().map(|ranks| ranks.iter().map(|rank| rank.0).collect()).collect();
    let mut partitions = vec![singles];
    if boxes.len() > 1 && boxes.len() < network.ranks as usize {
        partitions.push(boxes);
    }
    let ways = [(network, false), (transposed, true)];
    for (parts, (way, enter)) in partitions.iter().flat_map(|parts| ways.map(|way| (parts, way))) {
        if !is_met(&best) {
            let found = counted(way, symmetries, parts);
            if found.rate < best.rate() {
                best = Tight::Messages { counted: found, enter };
            }
        }
    }
    for (way, enter) in ways {
        if !is_met(&best) && network.is_small(SEARCH_RANKS_MAX) {
            let start = counted(way, symmetries, &partitions[0]);
            let found = tightest(way, symmetries, start);
            if found.rate < best.rate() {
                best = Tight::Messages { counted: found, enter };
            }
        }
    }
    (best, reached)
}

/// The rate of a reduce-scatter and then an all-gather, each at its best.
fn in_turn(network: &Network, transposed: &Network, symmetries: &Classes) -> Option<Ratio> {
    let ranks = Ratio::new(network.ranks.into(), 1);
    let rate = |way: &Network| gather(way, symmetries).rate.checked_mul(ranks);
    let gathered = rate(network)?;
    let scattered = if network.is_mirrored() { gathered } else { rate(transposed)? };
    match (gathered.inverse(), scattered.inverse()) {
        (Some(one), Some(other)) => one.checked_add(other)?.inverse(),
        _ => Some(Ratio::ZERO),
    }
}
