//! The network's clock and everything in it.
//!
//! Invariant: things happen in the order of their time, those of the same time in the order in which they were
//! arranged; nothing happens but by [`World::step`]. An event of a port whose generation has gone on is void.
//! Absent: what the callers see ([`super::data`], [`super::stream`]), what travels ([`super::transit`]) and what breaks
//! ([`super::faults`]).

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque};
use std::net::SocketAddr;

use super::Node;
use super::Profile;
use super::port::{Ending, Kind, Port, PortId};
use super::random::{Random, mix};
use super::route::Route;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Event {
    /// What the port sent under this number arrives.
    Item { port: PortId, number: u64, generation: u32 },
    /// Some of the words of a one-sided put land before all of it has.
    Part { port: PortId, number: u64, generation: u32, part: u64 },
    /// The same as the first, and it will arrive once more.
    Copy { port: PortId, number: u64, generation: u32 },
    /// The port learns how much of what it sent has been taken.
    Room { port: PortId, generation: u32 },
    /// The port learns that it has ended.
    End { port: PortId, ending: Ending },
    /// The process is to look.
    Wake { node: Node },
}

/// A process.
#[derive(Debug, Default)]
pub(super) struct Process {
    pub(super) is_dead: bool,
    pub(super) is_frozen: bool,
    pub(super) ports: BTreeSet<PortId>,
    /// Streams that have not been accepted.
    pub(super) accepts: VecDeque<PortId>,
    /// Endpoints until one is denied.
    pub(super) denies_after: Option<u32>,
    pub(super) dialled: u16,
}

/// Who listens, or was the last to listen, at an address.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) node: Node,
    pub(super) is_open: bool,
}

#[derive(Debug)]
pub(super) struct World {
    pub(super) seed: u64,
    pub(super) has_own_pace: bool,
    pub(super) profile: Profile,
    pub(super) random: Random,
    pub(super) trace: u64,
    pub(super) now: u64,
    sequence: u64,
    agenda: BinaryHeap<Reverse<(u64, u64, Event)>>,
    pub(super) ports: Vec<Option<Box<Port>>>,
    pub(super) routes: Vec<Route>,
    pub(super) index: BTreeMap<(Node, Node), usize>,
    pub(super) processes: BTreeMap<Node, Process>,
    /// Whether a process was ever stopped or killed.
    pub(super) has_stopped: bool,
    pub(super) places: BTreeMap<SocketAddr, Place>,
    /// Sides of the partitions in force.
    pub(super) sides: Vec<BTreeSet<Node>>,
    touched: Vec<Node>,
    pub(super) held: [usize; 2],
    pub(super) in_flight: usize,
}

impl World {
    pub(super) fn new(seed: u64, has_own_pace: bool) -> Self {
        Self {
            seed,
            has_own_pace,
            profile: Profile::default(),
            random: Random::new(seed),
            trace: mix(seed),
            now: 0,
            sequence: 0,
            agenda: BinaryHeap::new(),
            ports: Vec::new(),
            routes: Vec::new(),
            index: BTreeMap::new(),
            processes: BTreeMap::new(),
            has_stopped: false,
            places: BTreeMap::new(),
            sides: Vec::new(),
            touched: Vec::new(),
            held: [0; 2],
            in_flight: 0,
        }
    }

    // Time.

    pub(super) fn arrange(&mut self, at: u64, event: Event) {
        self.sequence += 1;
        self.agenda.push(Reverse((at.max(self.now), self.sequence, event)));
    }

    fn is_void(&self, event: Event) -> bool {
        match event {
            Event::Item { port, generation, .. }
            | Event::Part { port, generation, .. }
            | Event::Copy { port, generation, .. }
            | Event::Room { port, generation } => {
                self.port(port).is_none_or(|port| port.generation != generation)
            }
            Event::End { port, .. } => self.port(port).is_none(),
            Event::Wake { .. } => false,
        }
    }

    /// When something happens next.
    pub(super) fn next(&mut self) -> Option<u64> {
        loop {
            let &Reverse((at, _, event)) = self.agenda.peek()?;
            if !self.is_void(event) {
                return Some(at);
            }
            self.agenda.pop();
        }
    }

    pub(super) fn advance(&mut self, to: u64) -> Vec<Node> {
        while let Some(at) = self.next()
            && at <= to
        {
            self.step();
        }
        self.now = self.now.max(to);
        let mut touched = std::mem::take(&mut self.touched);
        touched.sort_unstable();
        touched.dedup();
        touched
    }

    /// Lets one thing happen. Whether there was one.
    pub(super) fn step(&mut self) -> bool {
        if self.next().is_none() {
            return false;
        }
        let Some(Reverse((at, _, event))) = self.agenda.pop() else { return false };
        self.now = at;
        match event {
            Event::Item { port, number, .. } => self.deliver(port, number),
            Event::Part { port, number, part, .. } => self.land(port, number, |word| word == part),
            Event::Copy { port, number, .. } => self.deliver_copy(port, number),
            Event::Room { port, .. } => self.learn_of_room(port),
            Event::End { port, ending } => self.end(port, ending),
            Event::Wake { node } => {
                self.record([8, u64::from(node.0), 0, 0]);
                self.touch(node);
            }
        }
        true
    }

    /// At its own pace, what any call starts with.
    pub(super) fn own_pace(&mut self) {
        if self.has_own_pace {
            self.step();
            self.touched.clear();
        }
    }

    pub(super) fn record(&mut self, facts: [u64; 4]) {
        for fact in [self.now].into_iter().chain(facts) {
            self.trace = mix(self.trace ^ fact).wrapping_add(fact);
        }
    }

    pub(super) fn touch(&mut self, node: Node) {
        let process = self.processes.entry(node).or_default();
        if !process.is_frozen && !process.is_dead && self.touched.last() != Some(&node) {
            self.touched.push(node);
        }
    }

    // Processes, routes and ports.

    pub(super) fn process(&mut self, node: Node) -> &mut Process {
        self.processes.entry(node).or_default()
    }

    /// Whether the process can do anything.
    pub(super) fn runs(&self, node: Node) -> bool {
        !self.has_stopped
            || self.processes.get(&node).is_none_or(|process| !process.is_frozen && !process.is_dead)
    }

    pub(super) fn route(&mut self, a: Node, b: Node) -> usize {
        let pair = (a.min(b), a.max(b));
        if let Some(route) = self.index.get(&pair) {
            return *route;
        }
        let mut route = Route::new(self.seed, pair);
        route.is_cut = self.sides.iter().any(|side| side.contains(&a) != side.contains(&b));
        self.routes.push(route);
        self.index.insert(pair, self.routes.len() - 1);
        self.routes.len() - 1
    }

    pub(super) fn port(&self, port: PortId) -> Option<&Port> {
        self.ports.get(port)?.as_deref()
    }

    pub(super) fn port_mut(&mut self, port: PortId) -> Option<&mut Port> {
        self.ports.get_mut(port)?.as_deref_mut()
    }

    pub(super) fn open(&mut self, kind: Kind, node: Node) -> PortId {
        let port = Port::new(kind, node, &mut self.random);
        self.ports.push(Some(Box::new(port)));
        self.held[kind as usize] += 1;
        let id = self.ports.len() - 1;
        self.process(node).ports.insert(id);
        id
    }

    /// Forgets a port that has no holder and nothing under way.
    pub(super) fn tidy(&mut self, id: PortId) {
        let Some(port) = self.port(id) else { return };
        if port.is_held || !port.has_nothing_under_way() {
            return;
        }
        let (node, route) = (port.node, port.route);
        self.ports[id] = None;
        self.process(node).ports.remove(&id);
        if let Some(route) = route {
            self.routes[route].ports.remove(&id);
        }
    }
}
