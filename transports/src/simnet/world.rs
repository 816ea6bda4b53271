//! The network's clock and everything in it.
//!
//! Invariant: things happen in the order of their time, those of the same time in the order in which they were
//! arranged; nothing happens but by [`World::advance`]. An event of a port whose generation has gone on is void.
//! Absent: what the callers see ([`super::data`], [`super::stream`]) and what breaks ([`super::faults`]).

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque};
use std::net::SocketAddr;

use super::Node;
use super::port::{Ending, Item, Kind, Port, PortId, Room};
use super::random::{Random, mix};
use super::route::{Route, direction};
use crate::CounterKind;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Event {
    /// What the port sent under this number arrives.
    Item { port: PortId, number: u64, generation: u32 },
    /// The same, and it will arrive once more.
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
    /// Streams that nobody has accepted.
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
    pub(super) random: Random,
    pub(super) trace: u64,
    pub(super) now: u64,
    sequence: u64,
    agenda: BinaryHeap<Reverse<(u64, u64, Event)>>,
    ports: Vec<Option<Box<Port>>>,
    pub(super) routes: Vec<Route>,
    pub(super) index: BTreeMap<(Node, Node), usize>,
    pub(super) processes: BTreeMap<Node, Process>,
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
            random: Random::new(seed),
            trace: mix(seed),
            now: 0,
            sequence: 0,
            agenda: BinaryHeap::new(),
            ports: Vec::new(),
            routes: Vec::new(),
            index: BTreeMap::new(),
            processes: BTreeMap::new(),
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

    fn record(&mut self, facts: [u64; 4]) {
        for fact in [self.now].into_iter().chain(facts) {
            self.trace = mix(self.trace ^ fact).wrapping_add(fact);
        }
    }

    fn touch(&mut self, node: Node) {
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
        self.processes.get(&node).is_none_or(|process| !process.is_frozen && !process.is_dead)
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

    /// Sets who is at the other end, and says hello.
    pub(super) fn link(&mut self, id: PortId, peer_node: Node, peer: Option<PortId>) {
        let Some(node) = self.port(id).map(|port| port.node) else { return };
        let route = self.route(node, peer_node);
        self.routes[route].ports.insert(id);
        let Some(port) = self.port_mut(id) else { return };
        (port.peer_node, port.peer, port.route) = (peer_node, peer, Some(route));
        port.direction = direction(node, peer_node);
        self.send(id, Item::Hello);
    }

    /// Ends this side's direction, after everything that was sent.
    pub(super) fn close(&mut self, id: PortId) {
        let Some(port) = self.port_mut(id) else { return };
        if !std::mem::replace(&mut port.is_closed, true) {
            let was_established = port.is_established;
            self.send(id, Item::End { was_established });
        }
    }

    /// Nobody holds it any more.
    pub(super) fn release(&mut self, id: PortId) {
        self.close(id);
        let Some(port) = self.port_mut(id) else { return };
        port.is_held = false;
        let kind = port.kind;
        self.held[kind as usize] -= 1;
        self.take_inbox(id);
        self.tidy(id);
    }

    /// Forgets a port that nobody holds and that has nothing under way.
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

    // Sending.

    pub(super) fn send(&mut self, id: PortId, item: Item) {
        let Some(port) = self.ports.get_mut(id).and_then(Option::as_deref_mut) else { return };
        if port.route.is_none() || port.is_lost {
            return;
        }
        port.used += item.room();
        let number = port.keep(item);
        self.in_flight += 1;
        self.schedule(id, number);
    }

    fn schedule(&mut self, id: PortId, number: u64) {
        let Self { ports, routes, random, now, .. } = self;
        let Some(port) = ports.get_mut(id).and_then(Option::as_deref_mut) else { return };
        let Some(route) = port.route.map(|route| &mut routes[route]) else { return };
        if route.is_cut {
            return;
        }
        let bytes = port.item(number).map_or(0, Item::len);
        let arrival = route.arrival(port.direction, *now, bytes, random);
        let at = port.not_before(number, arrival);
        let generation = port.generation;
        self.arrange(at, Event::Item { port: id, number, generation });
    }

    /// All that is under way from this port arrives anew, after `outage`; puts perhaps twice, where they may.
    pub(super) fn reschedule(&mut self, id: PortId, outage: u64, has_copies: bool) {
        let floor = self.now.saturating_add(outage);
        let Some(port) = self.port_mut(id) else { return };
        port.generation += 1;
        port.restart(floor);
        let (generation, numbers) = (port.generation, port.numbers());
        let (owes, route) = (port.owed != Room::default(), port.route);
        if route.is_none_or(|route| self.routes[route].is_cut) {
            return;
        }
        let mut may_copy = has_copies;
        for number in numbers {
            let item = self.port(id).and_then(|port| port.item(number));
            let is_put = matches!(item, Some(Item::Put { .. }));
            // What comes after a signal must not come before it.
            may_copy &= is_put || matches!(item, Some(Item::Signal { kind: CounterKind::Credit, .. }));
            if is_put && may_copy && self.random.one_in(2) {
                self.arrange(self.now, Event::Copy { port: id, number, generation });
            }
            self.schedule(id, number);
        }
        if owes {
            self.tell_of_room(id);
        }
    }

    /// Nothing that is under way from this port arrives until [`World::reschedule`].
    pub(super) fn hold_back(&mut self, id: PortId) {
        if let Some(port) = self.port_mut(id) {
            port.generation += 1;
        }
    }

    // Delivering.

    fn deliver(&mut self, from: PortId, number: u64) {
        let Some(sender) = self.port_mut(from) else { return };
        let Some(item) = sender.remove(number) else { return };
        self.in_flight -= 1;
        self.hand_over(from, item);
        self.tidy(from);
    }

    fn deliver_copy(&mut self, from: PortId, number: u64) {
        let item = self.port(from).and_then(|sender| sender.item(number));
        if let Some(Item::Put { offset, bytes, .. }) = item {
            let copy = Item::Put { offset: *offset, bytes: bytes.clone(), is_copy: true };
            self.hand_over(from, copy);
        }
    }

    fn hand_over(&mut self, from: PortId, item: Item) {
        let Some(sender) = self.port(from) else { return };
        let (kind, to, dialled, direction) = (sender.kind, sender.peer, sender.dialled, sender.direction);
        let (node, peer_node) = (sender.node, sender.peer_node);
        let is_swallowed =
            kind == Kind::Data && sender.route.is_some_and(|route| self.routes[route].blackholes[direction]);
        if is_swallowed {
            return;
        }
        let nodes = u64::from(node.0) << 32 | u64::from(peer_node.0);
        self.record([item.code(), nodes, item.len() as u64, from as u64]);
        if matches!(item, Item::Hello) {
            return match (kind, to) {
                (Kind::Stream, None) => self.ring(from, dialled),
                _ => self.greet(from, to),
            };
        }
        let Some(receiver) = to.and_then(|to| self.port_mut(to)) else {
            return self.refuse(from, &item);
        };
        let takes = receiver.takes();
        match item {
            Item::End { was_established } => {
                if receiver.kind == Kind::Data && !was_established && receiver.caller == Some(from) {
                    receiver.caller = None;
                }
                if let Some(to) = to {
                    self.end(to, Ending::Closed);
                }
                return;
            }
            item if takes => receiver.inbox.push_back(item),
            item if receiver.is_mute && receiver.is_held && !receiver.is_dead => {
                self.give_room(from, item.room());
                return;
            }
            item => return self.refuse(from, &item),
        }
        let node = receiver.node;
        if let Some(bell) = &receiver.bell {
            let _ = bell.write(1);
        }
        self.touch(node);
    }

    /// A data connection's other side, or the answer of who was dialled.
    fn greet(&mut self, from: PortId, to: Option<PortId>) {
        match to.and_then(|to| self.port_mut(to)) {
            Some(receiver) if receiver.takes() && receiver.ended.is_none() => {
                receiver.caller = Some(from);
                let node = receiver.node;
                self.touch(node);
            }
            _ => self.answer_end(from, Ending::Closed),
        }
    }

    /// Somebody dials an address.
    fn ring(&mut self, from: PortId, address: Option<SocketAddr>) {
        let place = address.and_then(|address| self.places.get(&address)).copied();
        let Some(Place { node, is_open: true }) = place else {
            return self.answer_end(from, Ending::Refused);
        };
        let Some(caller_node) = self.port(from).map(|port| port.node) else { return };
        let id = self.open(Kind::Stream, node);
        if let Some(port) = self.port_mut(id) {
            (port.caller, port.here, port.is_established) = (Some(from), address, true);
        }
        self.link(id, caller_node, Some(from));
        if let Some(port) = self.port_mut(from) {
            port.peer = Some(id);
        }
        self.process(node).accepts.push_back(id);
        self.touch(node);
    }

    /// Nobody takes it: a stream is told, a data connection has been.
    fn refuse(&mut self, from: PortId, item: &Item) {
        if matches!(item, Item::Bytes { .. }) {
            self.answer_end(from, Ending::Reset);
        }
    }

    /// Tells a port, after the way back, that it has ended.
    pub(super) fn answer_end(&mut self, port: PortId, ending: Ending) {
        let route = self.port(port).and_then(|port| port.route);
        let delay = route.map_or(0, |route| self.routes[route].delay(&mut self.random));
        self.arrange(self.now.saturating_add(delay), Event::End { port, ending });
    }

    fn end(&mut self, id: PortId, ending: Ending) {
        let Some(port) = self.port_mut(id) else { return };
        let node = port.node;
        match port.ended {
            None => port.ended = Some(ending),
            Some(Ending::Closed) if ending == Ending::Reset && port.kind == Kind::Stream => {
                port.is_deaf = true
            }
            Some(_) => return,
        }
        if let Some(bell) = &port.bell {
            let _ = bell.write(1);
        }
        self.record([9, u64::from(node.0), ending as u64, id as u64]);
        self.touch(node);
    }

    // Taking.

    /// The receiver took so much of what `sender` sent.
    pub(super) fn give_room(&mut self, sender: PortId, room: Room) {
        let Some(port) = self.port_mut(sender) else { return };
        if room == Room::default() {
            return;
        }
        if !port.is_blocked {
            port.used -= room;
            return;
        }
        let is_told = port.owed != Room::default();
        port.owed += room;
        if !is_told {
            self.tell_of_room(sender);
        }
    }

    fn tell_of_room(&mut self, id: PortId) {
        let Some(port) = self.port(id) else { return };
        let (Some(route), generation) = (port.route, port.generation) else { return };
        if !self.routes[route].is_cut {
            let delay = self.routes[route].delay(&mut self.random);
            self.arrange(self.now.saturating_add(delay), Event::Room { port: id, generation });
        }
    }

    fn learn_of_room(&mut self, id: PortId) {
        let Some(port) = self.port_mut(id) else { return };
        let owed = std::mem::take(&mut port.owed);
        port.used -= owed;
        port.is_blocked = false;
        let node = port.node;
        self.record([10, u64::from(node.0), owed.bytes as u64, id as u64]);
        self.touch(node);
    }

    /// Everything that has arrived for the port.
    pub(super) fn take_inbox(&mut self, id: PortId) -> VecDeque<Item> {
        let Some(port) = self.port_mut(id) else { return VecDeque::new() };
        if let (Some(bell), None) = (&port.bell, port.ended) {
            let _ = bell.read();
        }
        let (inbox, peer) = (std::mem::take(&mut port.inbox), port.caller);
        let mut room = Room::default();
        inbox.iter().for_each(|item| room += item.room());
        if let Some(peer) = peer {
            self.give_room(peer, room);
        }
        inbox
    }
}
