//! The paths that bytes take: the one route of each two ranks.
//!
//! Invariant: a path between two ranks is allowed when it is their route, and one that ends elsewhere when it is a part
//! of a route. Absent: choosing routes, which the topology does.

use std::collections::{BTreeMap, BTreeSet};

use crate::topology::{LinkId, NodeId, Routes, Topology};

/// The paths that edges may stand for.
#[derive(Clone, Debug)]
pub(super) enum Ways {
    /// Any path.
    Any,
    /// Routes and their parts.
    Routes {
        /// The route between each two ranks.
        routes: BTreeMap<(u32, u32), Vec<LinkId>>,
        /// All parts of routes, the whole ones as well.
        parts: BTreeSet<Vec<LinkId>>,
    },
}

impl Ways {
    /// The routes of a machine; turned round where trees are grown against the direction in which bytes travel.
    pub(super) fn routes(topology: &Topology, turned: bool) -> Ways {
        let ranks = topology.ranks();
        let all: Vec<NodeId> = (0..ranks).map(NodeId).collect();
        let has_others = topology.nodes().len() > ranks as usize;
        let has_limits =
            topology.rank_limits(false).chain(topology.rank_limits(true)).any(|limit| limit.is_some());
        let is_joined = has_others || has_limits;
        let (mut routes, mut parts) = (BTreeMap::new(), BTreeSet::new());
        let mut search = Routes::new(topology);
        for from in 0..ranks {
            for (to, route) in (0..ranks).zip(search.from(NodeId(from), &all)) {
                let Some(mut route) = route.filter(|route| !route.is_empty()) else { continue };
                if turned {
                    route.reverse();
                }
                for first in 0..route.len() {
                    let longest = if is_joined { route.len() } else { first + 1 };
                    (first + 1..=longest).for_each(|end| {
                        parts.insert(route[first..end].to_vec());
                    });
                }
                routes.insert(if turned { (to, from) } else { (from, to) }, route);
            }
        }
        Ways::Routes { routes, parts }
    }

    /// Whether a link is on any route.
    pub(super) fn uses(&self, link: LinkId) -> bool {
        match self {
            Ways::Any => true,
            Ways::Routes { parts, .. } => parts.contains([link].as_slice()),
        }
    }

    /// Whether trees may go from one node to another by a path; nodes below `ranks` are ranks.
    pub(super) fn allow(&self, ranks: u32, from: u32, to: u32, path: &[LinkId]) -> bool {
        match self {
            Ways::Any => true,
            Ways::Routes { routes, .. } if from < ranks && to < ranks => {
                routes.get(&(from, to)).is_some_and(|route| route == path)
            }
            Ways::Routes { parts, .. } => path.is_empty() || parts.contains(path),
        }
    }
}
