//! What a schedule reaches with long messages: its bytes on each wire against what the wire carries.
//!
//! Invariant: bytes travel on the routes that the simulator takes, and numbers are whole. Absent: time. A rank's rounds may leave
//! wires idle, so a schedule is at most as fast.

use std::collections::BTreeMap;

use crate::bounds::Ratio;
use crate::builders::SpanningTree;
use crate::simulate::SimulateError;
use crate::topology::{NodeId, Routes, Topology};
use crate::{Rank, Schedule};

/// Chunks from each rank to each other.
type Pairs = BTreeMap<Rank, BTreeMap<Rank, u64>>;

/// The chunks that a schedule sends over each wire.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Loads {
    /// Chunks over each link of the topology, by its number.
    pub links: Vec<u64>,
    /// Chunks out of each rank.
    pub sent: Vec<u64>,
    /// Chunks into each rank.
    pub received: Vec<u64>,
}

impl Loads {
    /// The loads of `schedule` on `topology`; all chunks count as equally long.
    ///
    /// # Errors
    ///
    /// As [`simulate`](crate::simulate::simulate()): when the machine is too small or has no route.
    pub fn new(schedule: &Schedule, topology: &Topology) -> Result<Loads, SimulateError> {
        let aggregators: Vec<NodeId> = topology.aggregators().collect();
        let node = |rank: Rank| {
            let above = rank.0.checked_sub(schedule.ranks);
            let node = match above {
                None => Some(NodeId::from(rank)).filter(|node| node.0 < topology.ranks()),
                Some(switch) => aggregators.get(switch as usize).copied(),
            };
            node.ok_or(SimulateError::NoSuchNode { rank })
        };
        let mut pairs = Pairs::new();
        let transfers = schedule.rounds.iter().flat_map(|round| &round.transfers);
        for transfer in transfers.filter(|transfer| transfer.from != transfer.to) {
            *pairs.entry(transfer.from).or_default().entry(transfer.to).or_default() += 1;
        }
        Loads::between(pairs, topology, node, schedule.ranks)
    }

    /// The loads of an all-reduce by trees, whose edges carry their share once each way.
    fn of_trees(trees: &[SpanningTree], topology: &Topology) -> Result<Loads, SimulateError> {
        let mut pairs = Pairs::new();
        for tree in trees {
            for (rank, parent) in (0..).map(Rank).zip(&tree.parents) {
                for (from, to) in parent.iter().flat_map(|parent| [(rank, *parent), (*parent, rank)]) {
                    *pairs.entry(from).or_default().entry(to).or_default() += u64::from(tree.share);
                }
            }
        }
        let node = |rank: Rank| {
            Some(NodeId::from(rank))
                .filter(|node| node.0 < topology.ranks())
                .ok_or(SimulateError::NoSuchNode { rank })
        };
        Loads::between(pairs, topology, node, topology.ranks())
    }

    /// The loads of chunks between pairs; nodes from `ranks` on are switches.
    fn between(
        pairs: Pairs,
        topology: &Topology,
        node: impl Fn(Rank) -> Result<NodeId, SimulateError>,
        ranks: u32,
    ) -> Result<Loads, SimulateError> {
        let mut loads = Loads {
            links: vec![0; topology.links().len()],
            sent: vec![0; topology.ranks() as usize],
            received: vec![0; topology.ranks() as usize],
        };
        let mut routes = Routes::new(topology);
        for (from, targets) in pairs {
            let nodes: Vec<NodeId> = targets.keys().map(|to| node(*to)).collect::<Result<_, _>>()?;
            let found = routes.from(node(from)?, &nodes);
            for ((to, chunks), route) in targets.into_iter().zip(found) {
                let route = route.ok_or(SimulateError::NoRoute { from, to })?;
                route.iter().for_each(|link| loads.links[link.index()] += chunks);
                if let Some(sent) = loads.sent.get_mut(from.index()).filter(|_| from.0 < ranks) {
                    *sent += chunks;
                }
                if let Some(received) = loads.received.get_mut(to.index()).filter(|_| to.0 < ranks) {
                    *received += chunks;
                }
            }
        }
        Ok(loads)
    }

    /// The most chunks a second, by the wire that needs most time; none where nothing travels.
    fn chunks_s(&self, topology: &Topology) -> Option<Ratio> {
        let links = topology.links().iter().map(|link| Some(link.bandwidth_bytes_s)).zip(&self.links);
        let ends =
            topology.rank_limits(false).zip(&self.sent).chain(topology.rank_limits(true).zip(&self.received));
        let all = links.chain(ends).filter(|(_, chunks)| **chunks > 0);
        all.filter_map(|(limit, chunks)| Some(Ratio::new(u128::from(limit?), u128::from(*chunks)))).min()
    }
}

/// [`rate()`] of the all-reduce by [`spanning_trees`](crate::builders::spanning_trees), which is not built.
///
/// # Errors
///
/// As [`Loads::new`].
pub(super) fn rate_of_trees(
    trees: &[SpanningTree],
    topology: &Topology,
) -> Result<Option<Ratio>, SimulateError> {
    let chunks_s = Loads::of_trees(trees, topology)?.chunks_s(topology);
    let chunks: u128 = trees.iter().map(|tree| u128::from(tree.share)).sum();
    Ok(chunks_s.and_then(|rate| rate.checked_mul(Ratio::new(chunks, 1))))
}

/// The algorithm bandwidth that no call of `schedule` exceeds on `topology`, in bytes of its vector a second, as
/// [`bounds`](crate::bounds) count it; none where nothing limits it.
///
/// # Errors
///
/// As [`Loads::new`].
pub fn rate(schedule: &Schedule, topology: &Topology) -> Result<Option<Ratio>, SimulateError> {
    let chunks_s = Loads::new(schedule, topology)?.chunks_s(topology);
    let (collective, ranks) = (schedule.collective, schedule.ranks);
    let blocks = collective.input_blocks(ranks).max(collective.output_blocks(ranks));
    let chunks = u128::from(blocks) * u128::from(schedule.partition.parts);
    Ok(chunks_s.and_then(|rate| rate.checked_mul(Ratio::new(chunks, 1))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Collective;
    use crate::bounds::{Options, bound};
    use crate::builders::{RingOptions, ring};
    use crate::topology::profile;

    fn of_bound(name: &str, schedule: &Schedule) -> f64 {
        let topology = profile(name).expect("a profile");
        let rate = rate(schedule, &topology).expect("routes").expect("a limit").value();
        rate / bound(&topology, schedule.collective, &Options::default()).expect("a bound").rate.value()
    }

    #[test]
    fn a_ring_in_a_box_is_at_the_bound_and_one_over_boxes_is_not() {
        for collective in [Collective::AllReduce, Collective::AllGather, Collective::ReduceScatter] {
            let of = |ranks: u32| ring(collective, ranks, RingOptions::default());
            assert_eq!(of_bound("dgx-a100:1", &of(8)), 1.0, "{collective}");
            // One adapter of each box carries what eight could.
            assert!(of_bound("dgx-a100:2", &of(16)) < 0.1, "{collective}");
        }
    }

    #[test]
    fn a_machine_that_is_too_small_is_named() {
        let schedule = ring(Collective::AllGather, 9, RingOptions::default());
        let topology = profile("dgx-a100:1").expect("a profile");
        assert_eq!(rate(&schedule, &topology), Err(SimulateError::NoSuchNode { rank: Rank(8) }));
    }
}
