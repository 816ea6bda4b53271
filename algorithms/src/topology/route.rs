//! Shortest paths from one node to some others.
//!
//! Invariant: one search serves all targets of a source and stops when the last is found, so that large
//! machines cost little and nothing is kept. Ties go to fewer hops, then to the lower link number.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::{NodeId, NodeKind, Topology};

/// The number of a link, counted from 0.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct LinkId(pub u32);

impl LinkId {
    /// The number as an index.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// Finds routes; reuses its working memory from one search to the next.
#[derive(Debug)]
pub struct Routes<'a> {
    topology: &'a Topology,
    /// Per node the best known (latency, hops, last link) and the search that wrote it.
    best: Vec<(u64, u32, LinkId)>,
    written: Vec<u32>,
    search: u32,
    /// Per node the links that enter it, once they are asked for.
    entering: Option<Vec<Vec<LinkId>>>,
}

impl<'a> Routes<'a> {
    /// Routes of `topology`.
    pub fn new(topology: &'a Topology) -> Self {
        let nodes = topology.nodes().len();
        Routes {
            topology,
            best: vec![(0, 0, LinkId(0)); nodes],
            written: vec![0; nodes],
            search: 0,
            entering: None,
        }
    }

    /// The route to each of `targets`, in their order: links from the first to the last. `None` where there is no
    /// path; empty from a node to itself.
    pub fn from(&mut self, source: NodeId, targets: &[NodeId]) -> Vec<Option<Vec<LinkId>>> {
        self.search += 1;
        let search = self.search;
        let mut wanted: Vec<NodeId> = targets.to_vec();
        wanted.sort_unstable();
        wanted.dedup();
        let mut missing = wanted.len();
        let mut settled: Vec<NodeId> = Vec::new();
        let mut queue = BinaryHeap::from([Reverse((0u64, 0u32, source))]);
        self.best[source.index()] = (0, 0, LinkId(0));
        self.written[source.index()] = search;
        while let Some(Reverse((latency_ns, hops, node))) = queue.pop() {
            let (known_ns, known_hops, _) = self.best[node.index()];
            if (known_ns, known_hops) != (latency_ns, hops) {
                continue;
            }
            if wanted.binary_search(&node).is_ok() {
                missing -= 1;
                settled.push(node);
                if missing == 0 {
                    break;
                }
            }
            let is_rank = matches!(self.topology.nodes[node.index()].kind, NodeKind::Rank { .. });
            if is_rank && node != source && !self.topology.relay {
                continue;
            }
            for &id in &self.topology.leaving[node.index()] {
                let link = &self.topology.links[id.index()];
                let next = (latency_ns + link.latency_ns, hops + 1, id);
                let to = link.to.index();
                let known = self.written[to] == search;
                let closer = !known || (next.0, next.1) < (self.best[to].0, self.best[to].1);
                if closer {
                    queue.push(Reverse((next.0, next.1, link.to)));
                }
                if closer || next < self.best[to] {
                    self.best[to] = next;
                    self.written[to] = search;
                }
            }
        }
        settled.sort_unstable();
        targets
            .iter()
            .map(|target| settled.binary_search(target).ok().map(|_| self.back(source, *target)))
            .collect()
    }

    /// Whether a route of the last search is the only one of its latency and hops.
    pub(crate) fn is_only(&mut self, source: NodeId, route: &[LinkId]) -> bool {
        let topology = self.topology;
        let entering = self.entering.get_or_insert_with(|| {
            let mut entering = vec![Vec::new(); topology.nodes.len()];
            for (link, number) in topology.links.iter().zip(0..) {
                entering[link.to.index()].push(LinkId(number));
            }
            entering
        });
        route.iter().all(|&taken| {
            let node = topology.links[taken.index()].to;
            let (latency_ns, hops, _) = self.best[node.index()];
            entering[node.index()].iter().all(|&other| {
                let link = &topology.links[other.index()];
                let before = link.from.index();
                let is_rank = matches!(topology.nodes[before].kind, NodeKind::Rank { .. });
                let may_pass = link.from == source || !is_rank || topology.relay;
                let (known_ns, known_hops, _) = self.best[before];
                other == taken
                    || self.written[before] != self.search
                    || !may_pass
                    || (known_ns + link.latency_ns, known_hops + 1) != (latency_ns, hops)
            })
        })
    }

    fn back(&self, source: NodeId, target: NodeId) -> Vec<LinkId> {
        let mut route = Vec::new();
        let mut node = target;
        while node != source {
            let (_, _, last) = self.best[node.index()];
            route.push(last);
            node = self.topology.links[last.index()].from;
        }
        route.reverse();
        route
    }
}
