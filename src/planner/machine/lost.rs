//! A graph in which hosts have lost some of their paths to others.
//!
//! Invariant: a pure function of graph and losses, the same on all ranks. A host's paths count as equally fast. Absent: which paths are
//! lost, and since which call.

use consort_algorithms::topology::{Link, NodeKind, Topology};
use consort_control::membership::group::LostPaths;

/// The host in whose box a node is, where it is nearer to that host's ranks than to all others'; `None` between hosts.
fn owners(topology: &Topology) -> Vec<Option<u32>> {
    let nodes = topology.nodes().len();
    let mut neighbours = vec![Vec::new(); nodes];
    for link in topology.links() {
        neighbours[link.from.index()].push(link.to.index());
        neighbours[link.to.index()].push(link.from.index());
    }
    // What a node was reached from first: no host yet, one, or several.
    let mut reached: Vec<Option<Option<u32>>> = vec![None; nodes];
    let mut edge: Vec<usize> = Vec::new();
    for (ranks, host) in topology.boxes().iter().zip(0..) {
        for rank in ranks {
            reached[rank.index()] = Some(Some(host));
            edge.push(rank.index());
        }
    }
    while !edge.is_empty() {
        let mut next: Vec<(usize, Option<u32>)> = Vec::new();
        for node in &edge {
            let host = reached[*node].flatten();
            next.extend(neighbours[*node].iter().filter(|to| reached[**to].is_none()).map(|to| (*to, host)));
        }
        edge.clear();
        for (node, host) in next {
            match reached[node] {
                None => {
                    reached[node] = Some(host);
                    edge.push(node);
                }
                Some(other) if other != host && edge.contains(&node) => reached[node] = Some(None),
                Some(_) => {}
            }
        }
    }
    reached.into_iter().map(Option::flatten).collect()
}

/// The graph with what hosts have left: of each host that has lost paths, the links at its adapters carry as much less, and those that leave
/// it. The name says so.
pub(in crate::planner) fn without_lost(topology: Topology, lost: &[LostPaths]) -> Topology {
    if lost.is_empty() {
        return topology;
    }
    let owners = owners(&topology);
    let is_rank = |node: usize| matches!(topology.nodes()[node].kind, NodeKind::Rank { .. });
    let is_port = |node: usize| topology.nodes()[node].kind == NodeKind::Port;
    let narrowed = |link: &Link, of: &LostPaths| {
        let ends = [link.from.index(), link.to.index()];
        let here = ends.map(|node| owners[node] == Some(of.host));
        let leaves = here[0] != here[1];
        leaves
            || (here[0] && ends.iter().all(|node| !is_rank(*node)) && ends.iter().any(|node| is_port(*node)))
    };
    let mut changed = topology.map_links(|_, link| {
        let mut bandwidth_bytes_s = link.bandwidth_bytes_s;
        for of in lost.iter().filter(|of| narrowed(&link, of)) {
            let left = u128::from(link.bandwidth_bytes_s) * u128::from(of.left) / u128::from(of.of.max(1));
            bandwidth_bytes_s = bandwidth_bytes_s.min(u64::try_from(left).unwrap_or(u64::MAX)).max(1);
        }
        Link { bandwidth_bytes_s, ..link }
    });
    let said: Vec<String> =
        lost.iter().map(|of| format!("host {} with {} of {} paths", of.host, of.left, of.of)).collect();
    changed.name = format!("{}, {}", changed.name, said.join(", "));
    changed
}

#[cfg(test)]
mod tests {
    use consort_algorithms::topology::{Inside, NodeId, Routes, profile, tcp_hosts};

    use super::*;

    /// Bytes a second of the narrowest link from one rank to another.
    fn between(topology: &Topology, from: u32, to: u32) -> u64 {
        let route = Routes::new(topology).from(NodeId(from), &[NodeId(to)]).pop().flatten().expect("a route");
        route.iter().map(|link| topology.links()[link.index()].bandwidth_bytes_s).min().expect("links")
    }

    #[test]
    fn a_host_that_has_lost_one_of_two_paths_has_half_the_speed_to_all_others_and_its_own_inside() {
        let whole = tcp_hosts(&[0, 0, 1, 1, 2, 2], Inside::Memory, Some(1_000_000_000), &[], 1);
        let lost = without_lost(whole.clone(), &[LostPaths { host: 1, left: 1, of: 2 }]);
        assert_eq!(lost.name, "tcp:3x2, host 1 with 1 of 2 paths");
        for (from, to, share) in [(0, 1, 1), (2, 3, 1), (0, 4, 1), (0, 2, 2), (3, 5, 2), (4, 2, 2)] {
            assert_eq!(between(&lost, from, to), between(&whole, from, to) / share, "{from} to {to}");
        }
        assert_eq!(without_lost(whole.clone(), &[]).to_string(), whole.to_string());
    }

    #[test]
    fn two_hosts_that_have_lost_the_same_path_have_one_half_and_no_quarter() {
        let whole = tcp_hosts(&[0, 1], Inside::Memory, Some(1_000_000_000), &[], 1);
        let lost = [0, 1].map(|host| LostPaths { host, left: 1, of: 2 });
        let lost = without_lost(whole, &lost);
        assert_eq!(between(&lost, 0, 1), 500_000_000);
    }

    #[test]
    fn the_adapters_of_a_named_machine_lose_as_much() {
        let whole = profile("dgx-h100:2").expect("a profile");
        let lost = without_lost(whole.clone(), &[LostPaths { host: 0, left: 1, of: 2 }]);
        assert_eq!(between(&lost, 0, 8), between(&whole, 0, 8) / 2);
        assert_eq!(between(&lost, 0, 1), between(&whole, 0, 1));
        assert_eq!(between(&lost, 8, 9), between(&whole, 8, 9));
    }
}
