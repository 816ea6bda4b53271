//! From port to port: what is sent, held back, sent again, delivered and taken.
//!
//! Invariant: an item is in its sender's port until its event delivers it; then it is in the receiver's inbox, or
//! nowhere. Room in the sender's window is given back when the receiver takes it, not when it arrives. Absent: what
//! the items mean to their taker.

use std::collections::VecDeque;
use std::net::SocketAddr;

use consort_memory::Span;

use super::port::{Ending, Item, Kind, Port, PortId, Room};
use super::random::mix;
use super::route::direction;
use super::world::{Event, Place, World};
use super::{NAME, Node};
use crate::CounterKind;
use crate::mapped::check_bounds;

/// One-sided puts land in words of this length, in bytes; a word lands whole.
const WORD_BYTES: usize = 8;
/// The most moments at which the words of one put land.
const PARTS: u64 = 4;

impl World {
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

    /// It has no holder any more.
    pub(super) fn release(&mut self, id: PortId) {
        self.close(id);
        let Some(port) = self.port_mut(id) else { return };
        port.is_held = false;
        port.region = None;
        let kind = port.kind;
        self.held[kind as usize] -= 1;
        self.take_inbox(id);
        self.tidy(id);
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
        let mut arrival = route.arrival(port.direction, *now, bytes, random);
        let is_one_sided = port.is_one_sided;
        if is_one_sided && random.one_in(8) {
            arrival = arrival.saturating_add(random.below(4) * route.delay(random));
        }
        let at = port.not_before(number, arrival);
        let generation = port.generation;
        if is_one_sided && bytes > WORD_BYTES {
            for part in 1..PARTS {
                let at = self.now + self.random.below(at - self.now + 1);
                self.arrange(at, Event::Part { port: id, number, generation, part });
            }
        }
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
            may_copy &= is_put
                || matches!(item, Some(Item::Signal { signal, .. }) if signal.kind == CounterKind::Credit);
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

    /// Lets those words of a one-sided put land whose part is chosen. One that does not fit lands nowhere.
    pub(super) fn land(&self, from: PortId, number: u64, lands: impl Fn(u64) -> bool) {
        let Some(sender) = self.port(from) else { return };
        let Some(Item::Put { write, offset, bytes, .. }) = sender.item(number) else { return };
        let Some(receiver) = sender.peer.and_then(|to| self.port(to)).filter(|port| port.takes()) else {
            return;
        };
        let Some(region) = receiver.region.as_deref().filter(|_| !self.swallows(sender)) else { return };
        if check_bounds(NAME, *offset, bytes.len(), region.bytes()).is_err() {
            return;
        }
        for (at, word) in (0..).zip(bytes.chunks(WORD_BYTES)) {
            if lands(mix(at ^ write << 32) % PARTS) {
                let place = region.span(offset + at as usize * WORD_BYTES, word.len());
                place.copy_from(Span::of(word));
            }
        }
    }

    /// Whether what this port sends gets lost without a word.
    fn swallows(&self, sender: &Port) -> bool {
        let swallows = |route: usize| self.routes[route].blackholes[sender.direction];
        sender.kind == Kind::Data && sender.route.is_some_and(swallows)
    }

    pub(super) fn deliver(&mut self, from: PortId, number: u64) {
        // The rest of it; the receiver hears of it now.
        let is_short = |item: &Item| item.len() <= WORD_BYTES;
        let is_short = self.port(from).and_then(|sender| sender.item(number)).is_some_and(is_short);
        self.land(from, number, |part| part == 0 || is_short);
        let Some(sender) = self.port_mut(from) else { return };
        let Some(item) = sender.remove(number) else { return };
        self.in_flight -= 1;
        self.hand_over(from, item);
        self.tidy(from);
    }

    pub(super) fn deliver_copy(&mut self, from: PortId, number: u64) {
        let Some(sender) = self.port(from) else { return };
        if sender.is_one_sided {
            return self.land(from, number, |_| true);
        }
        if let Some(Item::Put { write, offset, bytes, .. }) = sender.item(number) {
            let copy = Item::Put { write: *write, offset: *offset, bytes: bytes.clone(), is_copy: true };
            self.hand_over(from, copy);
        }
    }

    fn hand_over(&mut self, from: PortId, item: Item) {
        let Some(sender) = self.port(from) else { return };
        let (kind, to, dialled) = (sender.kind, sender.peer, sender.dialled);
        let (node, peer_node) = (sender.node, sender.peer_node);
        if self.swallows(sender) {
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
                // Who gives up is no caller any more; and it is not for strangers to end a connection.
                if !was_established {
                    receiver.callers.retain(|caller| *caller != from);
                }
                if let (Some(to), true) = (to, receiver.peer == Some(from)) {
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
            Some(receiver)
                if receiver.takes()
                    && receiver.ended.is_none()
                    && receiver.peer.is_none_or(|peer| peer == from) =>
            {
                receiver.callers.push(from);
                let node = receiver.node;
                self.touch(node);
            }
            _ => self.answer_end(from, Ending::Closed),
        }
    }

    /// A node dials an address.
    fn ring(&mut self, from: PortId, address: Option<SocketAddr>) {
        let place = address.and_then(|address| self.places.get(&address)).copied();
        let Some(Place { node, is_open: true }) = place else {
            return self.answer_end(from, Ending::Refused);
        };
        let Some(caller_node) = self.port(from).map(|port| port.node) else { return };
        let id = self.open(Kind::Stream, node);
        if let Some(port) = self.port_mut(id) {
            (port.callers, port.here, port.is_established) = (vec![from], address, true);
        }
        self.link(id, caller_node, Some(from));
        if let Some(port) = self.port_mut(from) {
            port.peer = Some(id);
        }
        self.process(node).accepts.push_back(id);
        self.touch(node);
    }

    /// It is not taken: a stream hears so, a data connection has heard.
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

    pub(super) fn end(&mut self, id: PortId, ending: Ending) {
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
        let (Some(route), generation, down_until) = (port.route, port.generation, port.down_until) else {
            return;
        };
        if !self.routes[route].is_cut {
            let delay = self.routes[route].delay(&mut self.random);
            self.arrange(
                self.now.max(down_until).saturating_add(delay),
                Event::Room { port: id, generation },
            );
        }
    }

    pub(super) fn learn_of_room(&mut self, id: PortId) {
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
        let (inbox, peer) = (std::mem::take(&mut port.inbox), port.peer);
        let mut room = Room::default();
        inbox.iter().for_each(|item| room += item.room());
        if let Some(peer) = peer {
            self.give_room(peer, room);
        }
        inbox
    }
}
