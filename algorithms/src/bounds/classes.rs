//! Equal nodes as one: flows in a network whose symmetries are folded.
//!
//! A partition of the nodes is equitable when every two nodes of a class have the same capacity to each class, and
//! from it. A flow between unions of classes can be spread over the arcs of each pair of classes in proportion to
//! their capacities, and is a flow again. So a maximum flow of the folded network, whose nodes are the classes and
//! whose capacities are sums, is one of the network, and its minimum cut is one of the network.
//!
//! Source: M. Grohe, K. Kersting, M. Mladenov, E. Selman, "Dimension reduction via colour refinement", ESA 2014; the
//! refinement by the smaller parts is that of J. Hopcroft (1971). Invariant: what is found does not depend on how
//! much could be folded; a network without symmetries is only not folded.

use super::flow::{ENDLESS, Flow};
use super::network::Network;

/// An equitable partition.
#[derive(Clone, Debug)]
pub(crate) struct Classes {
    /// The nodes, class by class, and the place of each node.
    order: Vec<u32>,
    place: Vec<u32>,
    class: Vec<u32>,
    /// The first place of each class and the one after its last.
    range: Vec<(u32, u32)>,
}

impl Classes {
    /// The coarsest partition of a network in which ranks are apart from other nodes.
    pub(crate) fn new(network: &Network) -> Classes {
        let nodes = network.nodes() as u32;
        let mut classes = Classes {
            order: (0..nodes).collect(),
            place: (0..nodes).collect(),
            class: vec![0; nodes as usize],
            range: vec![(0, nodes)],
        };
        let ranks: Vec<u32> = (0..network.ranks).collect();
        classes.apart(network, &ranks);
        classes
    }

    /// The same with a set of nodes apart from all others.
    pub(super) fn with(&self, network: &Network, set: &[u32]) -> Classes {
        let mut classes = self.clone();
        classes.apart(network, set);
        classes
    }

    pub(super) fn class_of(&self, node: u32) -> usize {
        self.class[node as usize] as usize
    }

    fn len(&self, class: u32) -> u32 {
        let (start, end) = self.range[class as usize];
        end - start
    }

    /// The number of ranks in a class; a class has only ranks or none.
    fn ranks_in(&self, network: &Network, class: usize) -> u32 {
        let first = self.order[self.range[class].0 as usize];
        if first < network.ranks { self.len(class as u32) } else { 0 }
    }

    /// Moves nodes of one class, some but not all of it, to a new one.
    fn split(&mut self, nodes: &[u32]) -> u32 {
        let old = self.class[nodes[0] as usize];
        let new = self.range.len() as u32;
        let (start, mut end) = self.range[old as usize];
        let last = end;
        for &node in nodes {
            end -= 1;
            let (here, other) = (self.place[node as usize], self.order[end as usize]);
            self.order.swap(here as usize, end as usize);
            self.place[other as usize] = here;
            self.place[node as usize] = end;
            self.class[node as usize] = new;
        }
        self.range[old as usize] = (start, end);
        self.range.push((end, last));
        new
    }

    /// Splits off a set of nodes and refines until the partition is equitable.
    fn apart(&mut self, network: &Network, set: &[u32]) {
        let mut by_class: Vec<(u32, u32)> =
            set.iter().map(|node| (self.class[*node as usize], *node)).collect();
        by_class.sort_unstable();
        by_class.dedup();
        // On the first call no class has been a splitter yet.
        let mut queue: Vec<u32> = if self.range.len() == 1 { vec![0] } else { Vec::new() };
        for group in by_class.chunk_by(|one, other| one.0 == other.0) {
            let nodes: Vec<u32> = group.iter().map(|(_, node)| *node).collect();
            if (nodes.len() as u32) < self.len(group[0].0) {
                let new = self.split(&nodes);
                queue.push(new);
            }
        }
        self.refine(network, queue);
    }

    fn refine(&mut self, network: &Network, mut queue: Vec<u32>) {
        let mut queued = vec![false; network.nodes() + 1];
        queue.iter().for_each(|class| queued[*class as usize] = true);
        let mut weight = vec![0u128; network.nodes()];
        while let Some(splitter) = queue.pop() {
            queued[splitter as usize] = false;
            let (start, end) = self.range[splitter as usize];
            let members = self.order[start as usize..end as usize].to_vec();
            for arcs in [&network.leaving, &network.entering] {
                let mut touched: Vec<u32> = Vec::new();
                for &member in &members {
                    for &arc in &arcs[member as usize] {
                        let arc = &network.arcs[arc as usize];
                        // The end that is not the member's.
                        let other = arc.from ^ arc.to ^ member;
                        if weight[other as usize] == 0 {
                            touched.push(other);
                        }
                        weight[other as usize] += arc.capacity;
                    }
                }
                touched
                    .sort_unstable_by_key(|node| (self.class[*node as usize], weight[*node as usize], *node));
                let classes: Vec<Vec<u32>> = touched
                    .chunk_by(|one, other| self.class[*one as usize] == self.class[*other as usize])
                    .map(<[u32]>::to_vec)
                    .collect();
                for nodes in classes {
                    self.split_by(&nodes, &weight, &mut queue, &mut queued);
                }
                touched.iter().for_each(|node| weight[*node as usize] = 0);
            }
        }
    }

    /// Splits a class by the weights of its touched nodes, which are sorted by them; all others have weight 0.
    fn split_by(&mut self, nodes: &[u32], weight: &[u128], queue: &mut Vec<u32>, queued: &mut [bool]) {
        let old = self.class[nodes[0] as usize];
        let all_touched = nodes.len() as u32 == self.len(old);
        let groups: Vec<&[u32]> =
            nodes.chunk_by(|one, other| weight[*one as usize] == weight[*other as usize]).collect();
        // The last group stays where no node is untouched.
        let moved = groups.len() - usize::from(all_touched);
        if moved == 0 {
            return;
        }
        let mut pieces = vec![old];
        for group in &groups[..moved] {
            pieces.push(self.split(group));
        }
        if !queued[old as usize] {
            // What is equal towards the whole and all pieces but one is so towards that one.
            let largest = pieces.iter().copied().max_by_key(|piece| (self.len(*piece), *piece));
            pieces.retain(|piece| Some(*piece) != largest);
        }
        for piece in pieces {
            if !std::mem::replace(&mut queued[piece as usize], true) {
                queue.push(piece);
            }
        }
    }

    /// A minimum cut. `scale` multiplies the capacities of arcs; `feed` is what each rank is given by the source, `from`
    /// and `to` are nodes that belong to the source and to the sink, each a union of classes. Gives the value and, for each
    /// node, whether it is on the sink's side, which is the smallest one.
    pub(super) fn minimum_cut(&self, network: &Network, wanted: &Wanted<'_>) -> (u128, Vec<bool>) {
        let count = self.range.len();
        let (source, sink) = (count, count + 1);
        let mut flow = Flow::new(count + 2);
        // Nodes of a class have the same capacity to each class, so that one of them speaks for all.
        let mut arcs: Vec<(u64, u128)> = Vec::new();
        for (from, &(start, end)) in self.range.iter().enumerate() {
            let leaving = &network.leaving[self.order[start as usize] as usize];
            arcs.extend(leaving.iter().map(|arc| &network.arcs[*arc as usize]).filter_map(|arc| {
                let to = self.class_of(arc.to);
                let capacity = arc.capacity * u128::from(end - start);
                (to != from).then_some(((from * count + to) as u64, capacity))
            }));
        }
        arcs.sort_unstable_by_key(|(pair, _)| *pair);
        for group in arcs.chunk_by(|one, other| one.0 == other.0) {
            let capacity: u128 = group.iter().map(|(_, capacity)| capacity).sum();
            let pair = group[0].0 as usize;
            flow.add(pair / count, pair % count, capacity * wanted.scale);
        }
        let classes_of = |nodes: &[u32]| {
            let mut classes: Vec<usize> = nodes.iter().map(|node| self.class_of(*node)).collect();
            classes.sort_unstable();
            classes.dedup();
            classes
        };
        for class in (0..count).filter(|_| wanted.feed > 0) {
            let ranks = self.ranks_in(network, class);
            if ranks > 0 {
                flow.add(source, class, wanted.feed * u128::from(ranks));
            }
        }
        classes_of(wanted.from).into_iter().for_each(|class| flow.add(source, class, ENDLESS));
        classes_of(wanted.to).into_iter().for_each(|class| flow.add(class, sink, ENDLESS));
        let value = flow.maximum(source, sink);
        let sides = flow.sink_side(sink);
        (value, self.class.iter().map(|class| sides[*class as usize]).collect())
    }
}

/// What a minimum cut separates.
pub(super) struct Wanted<'a> {
    pub(super) scale: u128,
    pub(super) feed: u128,
    pub(super) from: &'a [u32],
    pub(super) to: &'a [u32],
}
