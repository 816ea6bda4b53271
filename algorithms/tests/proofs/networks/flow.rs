//! Cuts and distances of small topologies, for tests: plain and slow, to stand beside the crate's own. An exact flow in the
//! crate can take its place.

use std::collections::VecDeque;

use consort_algorithms::Topology;
use consort_algorithms::topology::NodeKind;

/// The least bandwidth, bytes a second, that has to be removed so that nothing passes from the ranks in `near` to the
/// others: the largest flow, by shortest augmenting paths (J. Edmonds, R. Karp 1972).
pub(super) fn cut(topology: &Topology, near: &[bool]) -> u64 {
    let nodes = topology.nodes().len();
    let (source, sink) = (nodes, nodes + 1);
    let mut arcs: Vec<(usize, u64)> = Vec::new();
    let mut leaving: Vec<Vec<usize>> = vec![Vec::new(); nodes + 2];
    let mut add = |from: usize, to: usize, capacity: u64| {
        // An arc and its reverse are neighbours: `arc ^ 1` is the other.
        for (from, to, capacity) in [(from, to, capacity), (to, from, 0)] {
            leaving[from].push(arcs.len());
            arcs.push((to, capacity));
        }
    };
    for link in topology.links() {
        add(link.from.index(), link.to.index(), link.bandwidth_bytes_s);
    }
    for (rank, is_near) in near.iter().enumerate() {
        if *is_near { add(source, rank, u64::MAX / 4) } else { add(rank, sink, u64::MAX / 4) }
    }
    let mut flow = 0;
    loop {
        let mut last: Vec<Option<usize>> = vec![None; nodes + 2];
        let mut waiting = VecDeque::from([source]);
        while let Some(node) = waiting.pop_front() {
            for &arc in &leaving[node] {
                let (to, room) = arcs[arc];
                if room > 0 && to != source && last[to].is_none() {
                    last[to] = Some(arc);
                    waiting.push_back(to);
                }
            }
        }
        if last[sink].is_none() {
            return flow;
        }
        let way: Vec<usize> = std::iter::successors(last[sink], |&arc| last[arcs[arc ^ 1].0]).collect();
        let room = way.iter().map(|&arc| arcs[arc].1).min().expect("a way has arcs");
        for arc in way {
            arcs[arc].1 -= room;
            arcs[arc ^ 1].1 += room;
        }
        flow += room;
    }
}

/// The least cut between two halves of the ranks, over all halves. Only for a few ranks.
pub(super) fn bisection(topology: &Topology) -> u64 {
    let ranks = topology.ranks();
    assert!(ranks.is_multiple_of(2) && ranks <= 16, "{ranks} ranks have too many halves");
    // Rank 0 is in the first half.
    let halves = (0..1u32 << ranks).filter(|half| half & 1 == 1 && half.count_ones() == ranks / 2);
    let near = |half: u32| (0..ranks).map(move |rank| half >> rank & 1 == 1).collect::<Vec<bool>>();
    halves.map(|half| cut(topology, &near(half))).min().expect("there is a half")
}

/// The largest distance of two ranks, in links of the weight that `weight` gives them by their ends; ranks on the way are
/// passed only where the topology says so.
pub(super) fn diameter(topology: &Topology, weight: impl Fn(&NodeKind, &NodeKind) -> u64) -> u64 {
    let nodes = topology.nodes();
    let mut leaving: Vec<Vec<(usize, u64)>> = vec![Vec::new(); nodes.len()];
    for link in topology.links() {
        let [from, to] = [link.from.index(), link.to.index()];
        leaving[from].push((to, weight(&nodes[from].kind, &nodes[to].kind)));
    }
    let ranks = topology.ranks() as usize;
    let mut most = 0;
    for start in 0..ranks {
        let mut distance = vec![u64::MAX; nodes.len()];
        distance[start] = 0;
        let mut waiting = std::collections::BinaryHeap::from([(std::cmp::Reverse(0), start)]);
        while let Some((std::cmp::Reverse(so_far), node)) = waiting.pop() {
            if so_far > distance[node] || (node < ranks && node != start && !topology.relay) {
                continue;
            }
            for &(to, weight) in &leaving[node] {
                if so_far + weight < distance[to] {
                    distance[to] = so_far + weight;
                    waiting.push((std::cmp::Reverse(distance[to]), to));
                }
            }
        }
        most = most.max(*distance[..ranks].iter().max().expect("there is a rank"));
    }
    most
}
