//! Maximum flows over whole capacities.
//!
//! Source: E. Dinic, "Algorithm for solution of a problem of maximum flow in networks with power estimation", Soviet
//! Mathematics Doklady 11 (1970). Invariant: exact and deterministic; no recursion, so that a long chain of nodes
//! needs no stack. Capacities are below 2^126, and so are the sums of those at one node, but for
//! [`ENDLESS`] ones.

/// More than all capacities together.
pub(crate) const ENDLESS: u128 = 1 << 126;

/// A network with its flow.
#[derive(Clone, Debug)]
pub(crate) struct Flow {
    /// For each node its edges, by number.
    edges_of: Vec<Vec<u32>>,
    /// The head of each edge and what may still pass; edge `e ^ 1` is `e` turned round.
    edges: Vec<(u32, u128)>,
    level: Vec<u32>,
    next: Vec<usize>,
}

const UNSEEN: u32 = u32::MAX;

impl Flow {
    pub(crate) fn new(nodes: usize) -> Flow {
        Flow {
            edges_of: vec![Vec::new(); nodes],
            edges: Vec::new(),
            level: vec![UNSEEN; nodes],
            next: vec![0; nodes],
        }
    }

    pub(crate) fn add(&mut self, from: usize, to: usize, capacity: u128) {
        let number = self.edges.len() as u32;
        self.edges.extend([(to as u32, capacity), (from as u32, 0)]);
        self.edges_of[from].push(number);
        self.edges_of[to].push(number + 1);
    }

    /// Takes all flow away and gives every edge, in the order in which they were added, a new capacity.
    pub(crate) fn refill(&mut self, capacities: impl IntoIterator<Item = u128>) {
        for (pair, capacity) in self.edges.chunks_exact_mut(2).zip(capacities) {
            (pair[0].1, pair[1].1) = (capacity, 0);
        }
    }

    /// What passes the edge that was added with this number.
    pub(crate) fn passing(&self, number: usize) -> u128 {
        self.edges[2 * number + 1].1
    }

    /// The value of a maximum flow.
    pub(crate) fn maximum(&mut self, source: usize, sink: usize) -> u128 {
        self.maximum_to(source, sink, ENDLESS)
    }

    /// The value of a maximum flow, or `limit` where that is less.
    pub(crate) fn maximum_to(&mut self, source: usize, sink: usize, limit: u128) -> u128 {
        let mut value = 0;
        while value < limit && self.levels(source, sink) {
            self.next.fill(0);
            while value < limit {
                let pushed = self.path(source, sink, limit - value);
                if pushed == 0 {
                    break;
                }
                value += pushed;
            }
        }
        value
    }

    /// Distances from the source over edges that are not full; whether the sink is reached.
    fn levels(&mut self, source: usize, sink: usize) -> bool {
        self.level.fill(UNSEEN);
        self.level[source] = 0;
        let mut queue = vec![source as u32];
        let mut at = 0;
        while let Some(&node) = queue.get(at) {
            at += 1;
            for &edge in &self.edges_of[node as usize] {
                let (to, left) = self.edges[edge as usize];
                if left > 0 && self.level[to as usize] == UNSEEN {
                    self.level[to as usize] = self.level[node as usize] + 1;
                    queue.push(to);
                }
            }
        }
        self.level[sink] != UNSEEN
    }

    /// Fills one path along the levels, with at most `limit`, and gives what passes it; 0 when there is none.
    fn path(&mut self, source: usize, sink: usize, limit: u128) -> u128 {
        let mut path: Vec<u32> = Vec::new();
        let mut node = source;
        while node != sink {
            let Some(&edge) = self.edges_of[node].get(self.next[node]) else {
                // A dead end: one step back, and past the edge that led here.
                let Some(edge) = path.pop() else { return 0 };
                node = self.edges[edge as usize ^ 1].0 as usize;
                self.next[node] += 1;
                continue;
            };
            let (to, left) = self.edges[edge as usize];
            if left > 0 && self.level[to as usize] == self.level[node] + 1 {
                path.push(edge);
                node = to as usize;
            } else {
                self.next[node] += 1;
            }
        }
        let pushed = path.iter().map(|edge| self.edges[*edge as usize].1).min().unwrap_or(0).min(limit);
        for edge in path {
            self.edges[edge as usize].1 -= pushed;
            self.edges[edge as usize ^ 1].1 += pushed;
        }
        pushed
    }

    /// After [`maximum`](Flow::maximum): for each node whether the sink can still be reached from it. The nodes from
    /// which it can are the smallest sink side of all minimum cuts.
    pub(crate) fn sink_side(&self, sink: usize) -> Vec<bool> {
        let mut reaches = vec![false; self.edges_of.len()];
        reaches[sink] = true;
        let mut stack = vec![sink];
        while let Some(node) = stack.pop() {
            for &edge in &self.edges_of[node] {
                let (from, _) = self.edges[edge as usize];
                let (_, left) = self.edges[edge as usize ^ 1];
                if left > 0 && !reaches[from as usize] {
                    reaches[from as usize] = true;
                    stack.push(from as usize);
                }
            }
        }
        reaches
    }
}
