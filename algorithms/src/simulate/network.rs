//! The shares of links: max-min fair shares of the messages under way.
//!
//! Invariant: at every moment between changes, no message could be faster without slowing down one that is not faster
//! than it. That is, each message has a bottleneck: a full limit on its path where no other is faster than it. These
//! shares are unique, so they are computed anew only around a change, and further out only as long as a message there
//! has no bottleneck. Links that cannot fill up, whatever travels, are counted but never solved for.

use std::collections::HashMap;

use super::SimulateError;
use super::program::Program;
use crate::Rank;
use crate::topology::{LinkId, NodeId, NodeKind, Routes, Topology};

/// The path between two nodes.
#[derive(Debug)]
struct Path {
    latency_ps: u64,
    /// All links of the topology on it.
    links: Vec<LinkId>,
    /// The limits that can bind: links, injection and ejection.
    limits: Vec<u32>,
}

#[derive(Clone, Debug, Default)]
struct Flow {
    remaining: f64,
    /// Bytes a picosecond; 0 before the first share.
    rate: f64,
    /// The time at which `remaining` was exact.
    since_ps: u64,
    /// The number of announced ends; only the last announcement is valid.
    version: u32,
}

/// Rates that differ by less than this part are one rate.
const SAME: f64 = 1e-9;

/// How well sums of such rates must agree.
const CLOSE: f64 = 1e-6;

/// The flows whose shares are computed together, and the limits that they use.
#[derive(Debug, Default)]
struct Region {
    flows: Vec<u32>,
    limits: Vec<u32>,
}

/// The messages under way, at most one a connection.
#[derive(Debug)]
pub(super) struct Network {
    paths: Vec<Path>,
    /// The path of each connection.
    path_of: Vec<u32>,
    flows: Vec<Flow>,
    /// For each limit: its capacity, bytes a picosecond, and its users.
    capacity: Vec<f64>,
    active: Vec<Vec<u32>>,
    /// Limits whose users changed since the last shares were computed.
    changed: Vec<u32>,
    /// Marks of a region: the last search that included a limit or a flow.
    search: u32,
    seen_limit: Vec<u32>,
    seen_flow: Vec<u32>,
    /// For each flow: its share in the last solution that included it, and the number of that solution.
    wanted: Vec<f64>,
    solved_flow: Vec<u32>,
    solution: u32,
    /// For each limit: the last solution that was summed up, its sum and its fastest flow.
    levels: Vec<(u32, f64, f64)>,
    /// Working memory: the flows to be included.
    unsettled: Vec<u32>,
    /// For each limit, while shares are computed: what is left, and for how many flows.
    left: Vec<(f64, u32)>,
    /// For each link: its users, the time since which it has any, and the time for which it had some before.
    users: Vec<u32>,
    busy_since_ps: Vec<u64>,
    busy_ps: Vec<u64>,
}

impl Network {
    pub(super) fn new(program: &Program, topology: &Topology, ranks: u32) -> Result<Network, SimulateError> {
        let (paths, path_of) = paths(program, topology, ranks)?;
        let links = topology.links().len();
        let capacity = capacities(topology);
        let mut network = Network {
            paths,
            path_of,
            flows: vec![Flow::default(); program.connections.len()],
            active: vec![Vec::new(); capacity.len()],
            changed: Vec::new(),
            search: 0,
            seen_limit: vec![0; capacity.len()],
            seen_flow: vec![0; program.connections.len()],
            wanted: vec![0.0; program.connections.len()],
            solved_flow: vec![0; program.connections.len()],
            solution: 0,
            levels: vec![(0, 0.0, 0.0); capacity.len()],
            unsettled: Vec::new(),
            left: vec![(0.0, 0); capacity.len()],
            users: vec![0; links],
            busy_since_ps: vec![0; links],
            busy_ps: vec![0; links],
            capacity,
        };
        network.leave_out_slack();
        Ok(network)
    }

    pub(super) fn latency_ps(&self, connection: u32) -> u64 {
        self.paths[self.path_of[connection as usize] as usize].latency_ps
    }

    pub(super) fn links(&self, connection: u32) -> &[LinkId] {
        &self.paths[self.path_of[connection as usize] as usize].links
    }

    /// How long each link had users.
    pub(super) fn busy_ps(&self) -> &[u64] {
        &self.busy_ps
    }

    /// A message of `bytes` (above 0) enters. It moves once [`share`](Network::share) was called.
    pub(super) fn start(&mut self, connection: u32, bytes: u64, now_ps: u64) {
        let flow = &mut self.flows[connection as usize];
        (flow.remaining, flow.rate, flow.since_ps) = (bytes as f64, 0.0, now_ps);
        let path = &self.paths[self.path_of[connection as usize] as usize];
        for &limit in &path.limits {
            self.active[limit as usize].push(connection);
            self.changed.push(limit);
        }
        for link in &path.links {
            self.users[link.index()] += 1;
            if self.users[link.index()] == 1 {
                self.busy_since_ps[link.index()] = now_ps;
            }
        }
    }

    /// Whether an announced end is still valid; then the message is out.
    pub(super) fn end(&mut self, connection: u32, version: u32, now_ps: u64) -> bool {
        if self.flows[connection as usize].version != version {
            return false;
        }
        let path = &self.paths[self.path_of[connection as usize] as usize];
        for &limit in &path.limits {
            let active = &mut self.active[limit as usize];
            active.retain(|&other| other != connection);
            if !active.is_empty() {
                self.changed.push(limit);
            }
        }
        for link in &path.links {
            self.users[link.index()] -= 1;
            if self.users[link.index()] == 0 {
                self.busy_ps[link.index()] += now_ps - self.busy_since_ps[link.index()];
            }
        }
        true
    }

    /// Computes what changed and announces the new ends: (when, connection, version).
    pub(super) fn share(&mut self, now_ps: u64, mut announce: impl FnMut(u64, u32, u32)) {
        if self.changed.is_empty() {
            return;
        }
        self.search += 1;
        let mut region = Region::default();
        for limit in std::mem::take(&mut self.changed) {
            self.take_users(limit, &mut region);
        }
        let mut new = 0;
        while new < region.flows.len() {
            new = region.flows.len();
            self.solve(&region);
            self.take_unsettled(&mut region);
        }
        for &flow in &region.flows {
            self.set_rate(flow, self.wanted[flow as usize], now_ps, &mut announce);
        }
    }

    /// All users of a limit, with the limits that they use.
    fn take_users(&mut self, limit: u32, region: &mut Region) {
        for index in 0..self.active[limit as usize].len() {
            self.take(self.active[limit as usize][index], region);
        }
    }

    fn take(&mut self, flow: u32, region: &mut Region) {
        if self.seen_flow[flow as usize] == self.search {
            return;
        }
        self.seen_flow[flow as usize] = self.search;
        region.flows.push(flow);
        for &limit in &self.paths[self.path_of[flow as usize] as usize].limits {
            if self.seen_limit[limit as usize] != self.search {
                self.seen_limit[limit as usize] = self.search;
                region.limits.push(limit);
            }
        }
    }

    fn is_inside(&self, flow: u32) -> bool {
        self.seen_flow[flow as usize] == self.search
    }

    /// The rate of a message: the present one, or the one of the last solution.
    fn rate(&self, flow: u32) -> f64 {
        if self.is_inside(flow) { self.wanted[flow as usize] } else { self.flows[flow as usize].rate }
    }

    /// Water-filling among the flows inside the region, with what those outside leave: the tightest limit gives its
    /// users equal parts and they are done; then the next one.
    fn solve(&mut self, region: &Region) {
        for &limit in &region.limits {
            let (mut left, mut open) = (self.capacity[limit as usize], 0);
            for &flow in &self.active[limit as usize] {
                if self.is_inside(flow) {
                    open += 1;
                } else {
                    left -= self.flows[flow as usize].rate;
                }
            }
            self.left[limit as usize] = (left.max(0.0), open);
        }
        self.solution += 1;
        let mut open_limits = region.limits.clone();
        let mut missing = region.flows.len();
        while missing > 0 {
            let share = |left: (f64, u32)| left.0 / f64::from(left.1);
            let shares = open_limits.iter().map(|&limit| share(self.left[limit as usize]));
            let least = shares.fold(f64::INFINITY, f64::min);
            for &limit in &open_limits {
                let left = self.left[limit as usize];
                if left.1 == 0 || share(left) > least * (1.0 + SAME) {
                    continue;
                }
                for index in 0..self.active[limit as usize].len() {
                    let flow = self.active[limit as usize][index] as usize;
                    if !self.is_inside(flow as u32) || self.solved_flow[flow] == self.solution {
                        continue;
                    }
                    self.solved_flow[flow] = self.solution;
                    self.wanted[flow] = least;
                    missing -= 1;
                    for &used in &self.paths[self.path_of[flow] as usize].limits {
                        let left = &mut self.left[used as usize];
                        *left = ((left.0 - least).max(0.0), left.1 - 1);
                    }
                }
            }
            open_limits.retain(|&limit| self.left[limit as usize].1 > 0);
        }
    }

    /// Includes the flows outside that got room or lost their bottleneck, and those whose speed keeps a flow inside
    /// slow.
    fn take_unsettled(&mut self, region: &mut Region) {
        for index in 0..region.limits.len() {
            let limit = region.limits[index];
            for user in 0..self.active[limit as usize].len() {
                let flow = self.active[limit as usize][user];
                if self.is_inside(flow) || self.has_bottleneck(flow) {
                    continue;
                }
                self.unsettled.push(flow);
            }
        }
        for index in 0..region.flows.len() {
            let flow = region.flows[index];
            if self.has_bottleneck(flow) {
                continue;
            }
            for &limit in &self.paths[self.path_of[flow as usize] as usize].limits {
                for &other in &self.active[limit as usize] {
                    if !self.is_inside(other) && self.rate(other) > self.rate(flow) * (1.0 + CLOSE) {
                        self.unsettled.push(other);
                    }
                }
            }
        }
        for flow in std::mem::take(&mut self.unsettled) {
            self.take(flow, region);
        }
    }

    /// Whether a limit on the path is full and no other flow there is faster.
    fn has_bottleneck(&mut self, flow: u32) -> bool {
        let rate = self.rate(flow);
        let path = self.path_of[flow as usize] as usize;
        (0..self.paths[path].limits.len()).any(|index| {
            let limit = self.paths[path].limits[index] as usize;
            let (used, fastest) = self.level(limit);
            fastest <= rate * (1.0 + CLOSE)
                && (used - self.capacity[limit]).abs() <= CLOSE * self.capacity[limit]
        })
    }

    /// The sum of a limit's users and the fastest of them, in the last solution; summed up once for each.
    fn level(&mut self, limit: usize) -> (f64, f64) {
        if self.levels[limit].0 != self.solution {
            let rates = self.active[limit].iter().map(|&flow| self.rate(flow));
            let (used, fastest) =
                rates.fold((0.0, 0.0f64), |(used, fastest), rate| (used + rate, fastest.max(rate)));
            self.levels[limit] = (self.solution, used, fastest);
        }
        let (_, used, fastest) = self.levels[limit];
        (used, fastest)
    }

    fn set_rate(
        &mut self,
        connection: u32,
        rate: f64,
        now_ps: u64,
        announce: &mut impl FnMut(u64, u32, u32),
    ) {
        let flow = &mut self.flows[connection as usize];
        if (flow.rate - rate).abs() <= SAME * rate {
            return;
        }
        let passed = flow.rate * (now_ps - flow.since_ps) as f64;
        flow.remaining = (flow.remaining - passed).max(0.0);
        (flow.rate, flow.since_ps) = (rate, now_ps);
        flow.version = flow.version.wrapping_add(1);
        // Every transfer takes at least a picosecond.
        let needed_ps = (flow.remaining / rate).ceil().max(1.0) as u64;
        announce(now_ps + needed_ps, connection, flow.version);
    }

    /// Removes from the paths the limits that never bind, because all limits before them, or all behind them,
    /// together let less pass. A limit that makes another one slack stays.
    fn leave_out_slack(&mut self) {
        let mut before: Vec<(u32, Option<u32>)> = Vec::new();
        let mut after: Vec<(u32, Option<u32>)> = Vec::new();
        for path in &self.paths {
            for (index, &limit) in path.limits.iter().enumerate() {
                before.push((limit, index.checked_sub(1).map(|index| path.limits[index])));
                after.push((limit, path.limits.get(index + 1).copied()));
            }
        }
        let mut order: Vec<u32> = before.iter().map(|(limit, _)| *limit).collect();
        for pairs in [&mut before, &mut after] {
            pairs.sort_unstable();
            pairs.dedup();
        }
        order.sort_unstable_by(|one, other| {
            let capacity = |limit: u32| self.capacity[limit as usize];
            capacity(*other).total_cmp(&capacity(*one)).then(one.cmp(other))
        });
        order.dedup();
        let mut out = vec![false; self.capacity.len()];
        let mut kept = vec![false; self.capacity.len()];
        for limit in order {
            if kept[limit as usize] {
                continue;
            }
            for pairs in [&before, &after] {
                let start = pairs.partition_point(|pair| pair.0 < limit);
                let neighbours =
                    || pairs[start..].iter().take_while(|pair| pair.0 == limit).map(|pair| pair.1);
                let all = neighbours().all(|other| other.is_some_and(|other| !out[other as usize]));
                let sum: f64 = neighbours().flatten().map(|other| self.capacity[other as usize]).sum();
                if all && sum <= self.capacity[limit as usize] {
                    out[limit as usize] = true;
                    for other in neighbours().flatten() {
                        kept[other as usize] = true;
                    }
                    break;
                }
            }
        }
        for path in &mut self.paths {
            path.limits.retain(|&limit| !out[limit as usize]);
        }
    }
}

/// Links first, then each rank's injection, then each rank's ejection; bytes a picosecond.
fn capacities(topology: &Topology) -> Vec<f64> {
    let limit = |limit: Option<u64>| limit.map_or(f64::INFINITY, |bytes_s| bytes_s as f64 / 1e12);
    let limits = |eject: bool| {
        topology.nodes().iter().filter_map(move |node| match node.kind {
            NodeKind::Rank { inject_bytes_s, eject_bytes_s, .. } => {
                Some(limit(if eject { eject_bytes_s } else { inject_bytes_s }))
            }
            _ => None,
        })
    };
    let links = topology.links().iter().map(|link| link.bandwidth_bytes_s as f64 / 1e12);
    links.chain(limits(false)).chain(limits(true)).collect()
}

/// One path for each pair of nodes that exchange, and the path of each connection.
fn paths(program: &Program, topology: &Topology, ranks: u32) -> Result<(Vec<Path>, Vec<u32>), SimulateError> {
    let aggregators: Vec<NodeId> = topology.aggregators().collect();
    let node = |rank: Rank| {
        let node = if rank.0 < ranks {
            Some(NodeId::from(rank))
        } else {
            aggregators.get((rank.0 - ranks) as usize).copied()
        };
        node.filter(|node| rank.0 >= ranks || node.0 < topology.ranks())
            .ok_or(SimulateError::NoSuchNode { rank })
    };
    let mut pairs: Vec<(Rank, Rank)> = program.connections.iter().map(|c| (c.from, c.to)).collect();
    pairs.sort_unstable();
    pairs.dedup();
    let capacity = capacities(topology);
    let links = topology.links().len() as u32;
    let mut routes = Routes::new(topology);
    let mut paths = Vec::with_capacity(pairs.len());
    for same_source in pairs.chunk_by(|one, other| one.0 == other.0) {
        let source = node(same_source[0].0)?;
        let targets: Vec<NodeId> = same_source.iter().map(|pair| node(pair.1)).collect::<Result<_, _>>()?;
        for ((route, target), &(from, to)) in
            routes.from(source, &targets).into_iter().zip(targets).zip(same_source)
        {
            let route = route.ok_or(SimulateError::NoRoute { from, to })?;
            let mut limits: Vec<u32> = Vec::with_capacity(route.len() + 2);
            limits.extend((from.0 < ranks).then_some(links + source.0));
            limits.extend(route.iter().map(|link| link.0));
            limits.extend((to.0 < ranks).then_some(links + topology.ranks() + target.0));
            limits.retain(|&limit| capacity[limit as usize].is_finite());
            let latency_ns: u64 = route.iter().map(|link| topology.links()[link.index()].latency_ns).sum();
            paths.push(Path { latency_ps: latency_ns * 1000, links: route, limits });
        }
    }
    let number: HashMap<(Rank, Rank), u32> = pairs.into_iter().zip(0..).collect();
    let path_of = program.connections.iter().map(|c| number[&(c.from, c.to)]).collect();
    Ok((paths, path_of))
}
