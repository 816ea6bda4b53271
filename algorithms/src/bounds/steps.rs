//! Latency: how many messages in a row a collective needs at least.
//!
//! A rank learns of another no sooner than over the shortest chain of ranks between them.
//!
//! Source: E. Chan et al., "Collective communication: theory, practice, and experience" (2007).

use std::collections::VecDeque;

use crate::topology::{NodeKind, Topology};

/// For each node the fewest messages between neighbours by which something of `root` can reach it; none where no path
/// leads. Switches and ports pass on within a message; ranks receive and send, also where they relay.
fn distances(topology: &Topology, leaving: &[Vec<u32>], root: u32) -> Vec<Option<u32>> {
    let is_rank = |node: u32| matches!(topology.nodes()[node as usize].kind, NodeKind::Rank { .. });
    let mut steps: Vec<Option<u32>> = vec![None; topology.nodes().len()];
    steps[root as usize] = Some(0);
    let mut queue = VecDeque::from([root]);
    // A message is counted where it leaves a rank, so that edges have length 0 or 1.
    while let Some(node) = queue.pop_front() {
        let here = steps[node as usize].unwrap_or(0);
        let step = u32::from(is_rank(node));
        for &to in &leaving[node as usize] {
            if steps[to as usize].is_none_or(|known| known > here + step) {
                steps[to as usize] = Some(here + step);
                if step == 0 { queue.push_front(to) } else { queue.push_back(to) }
            }
        }
    }
    steps
}

/// The most of the fewest steps from `root`, or between any two ranks without one; `towards` turns the links round.
/// None where a rank is not reached.
pub(super) fn steps(topology: &Topology, root: Option<u32>, towards: bool) -> Option<u32> {
    let mut leaving = vec![Vec::new(); topology.nodes().len()];
    for link in topology.links() {
        let (from, to) = if towards { (link.to, link.from) } else { (link.from, link.to) };
        leaving[from.index()].push(to.0);
    }
    for neighbours in &mut leaving {
        neighbours.sort_unstable();
        neighbours.dedup();
    }
    let roots = root.map_or(0..topology.ranks(), |root| root..root + 1);
    let mut most = 0;
    for root in roots {
        let found = distances(topology, &leaving, root);
        for rank in &found[..topology.ranks() as usize] {
            most = most.max((*rank)?);
        }
    }
    Some(most)
}
