//! The shares of links: max-min fair shares of the messages under way.
//!
//! Invariant: at every moment between changes, no message could be faster without slowing down one that is not faster
//! than it. That is, each message has a bottleneck: a full limit on its path where no other is faster than it. These
//! shares are unique, so they are computed anew only around a change, and further out only as long as a message there
//! has no bottleneck. Links that cannot fill up, whatever travels, are counted but never solved for.

use super::paths::{Path, Paths, Weighted};

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

/// The rounding of a time that is left, as a part of it and in picoseconds. Sums of rates are taken in the order in
/// which messages started, so equal messages have rates that differ in the last bits.
const ROUNDING: f64 = 1e-12;
const ROUNDING_PS: f64 = 1e-3;

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
    /// For each limit: its capacity, bytes a picosecond, and its users, each with the number of flows that it stands
    /// for.
    capacity: Vec<f64>,
    active: Vec<Vec<Weighted>>,
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
    /// The network of paths whose limits may be slack.
    pub(super) fn new(paths: Paths) -> Network {
        let Paths { paths, path_of, capacity, links } = paths;
        Network {
            paths,
            flows: vec![Flow::default(); path_of.len()],
            active: vec![Vec::new(); capacity.len()],
            changed: Vec::new(),
            search: 0,
            seen_limit: vec![0; capacity.len()],
            seen_flow: vec![0; path_of.len()],
            wanted: vec![0.0; path_of.len()],
            solved_flow: vec![0; path_of.len()],
            solution: 0,
            levels: vec![(0, 0.0, 0.0); capacity.len()],
            unsettled: Vec::new(),
            left: vec![(0.0, 0); capacity.len()],
            users: vec![0; links],
            busy_since_ps: vec![0; links],
            busy_ps: vec![0; links],
            capacity,
            path_of,
        }
    }

    pub(super) fn latency_ps(&self, connection: u32) -> u64 {
        self.paths[self.path_of[connection as usize] as usize].latency_ps
    }

    /// The links of a connection, each with the number of connections on it that this one stands for.
    pub(super) fn links(&self, connection: u32) -> &[Weighted] {
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
        for &Weighted { of: limit, weight } in &path.limits {
            self.active[limit as usize].push(Weighted { of: connection, weight });
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
        for &Weighted { of: limit, .. } in &path.limits {
            let active = &mut self.active[limit as usize];
            active.retain(|other| other.of != connection);
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
            self.take(self.active[limit as usize][index].of, region);
        }
    }

    fn take(&mut self, flow: u32, region: &mut Region) {
        if self.seen_flow[flow as usize] == self.search {
            return;
        }
        self.seen_flow[flow as usize] = self.search;
        region.flows.push(flow);
        for &Weighted { of: limit, .. } in &self.paths[self.path_of[flow as usize] as usize].limits {
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
            for &Weighted { of: flow, weight } in &self.active[limit as usize] {
                if self.is_inside(flow) {
                    open += weight;
                } else {
                    left -= self.flows[flow as usize].rate * f64::from(weight);
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
                    let flow = self.active[limit as usize][index].of as usize;
                    if !self.is_inside(flow as u32) || self.solved_flow[flow] == self.solution {
                        continue;
                    }
                    self.solved_flow[flow] = self.solution;
                    self.wanted[flow] = least;
                    missing -= 1;
                    for &Weighted { of: used, weight } in &self.paths[self.path_of[flow] as usize].limits {
                        let left = &mut self.left[used as usize];
                        *left = ((left.0 - least * f64::from(weight)).max(0.0), left.1 - weight);
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
                let flow = self.active[limit as usize][user].of;
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
            for &Weighted { of: limit, .. } in &self.paths[self.path_of[flow as usize] as usize].limits {
                for &Weighted { of: other, .. } in &self.active[limit as usize] {
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
            let limit = self.paths[path].limits[index].index();
            let (used, fastest) = self.level(limit);
            fastest <= rate * (1.0 + CLOSE)
                && (used - self.capacity[limit]).abs() <= CLOSE * self.capacity[limit]
        })
    }

    /// The sum of a limit's users and the fastest of them, in the last solution; summed up once for each.
    fn level(&mut self, limit: usize) -> (f64, f64) {
        if self.levels[limit].0 != self.solution {
            let rates = self.active[limit].iter().map(|user| (self.rate(user.of), f64::from(user.weight)));
            let (used, fastest) = rates.fold((0.0, 0.0f64), |(used, fastest), (rate, weight)| {
                (used + rate * weight, fastest.max(rate))
            });
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
        // What is whole but for rounding is whole, so that equal messages end together. Every transfer takes at least a
        // picosecond.
        let needed_ps = flow.remaining / rate;
        let needed_ps = (needed_ps - needed_ps * ROUNDING - ROUNDING_PS).ceil().max(1.0) as u64;
        announce(now_ps + needed_ps, connection, flow.version);
    }
}
