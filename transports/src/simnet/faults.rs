//! What breaks, and when it is mended.
//!
//! Invariant: a fault acts on what is under way and on what is sent from then on; nothing that a process has taken
//! is ever changed. Absent: chance (who tests decides what breaks when).

use std::time::Duration;

use super::port::{Ending, Kind, PortId};
use super::route::{direction, nanoseconds};
use super::world::{Event, World};
use super::{Network, Node, Pace};

impl Network {
    /// How fast the way between two nodes is from now on.
    pub fn set_pace(&self, a: Node, b: Node, pace: Pace) {
        let mut world = self.world();
        let route = world.route(a, b);
        world.routes[route].pace = pace;
        world.routes[route].is_idle_again();
    }

    /// Cuts the ways between `side` and all other nodes, known yet or not. What is under way or sent meanwhile is
    /// held back, and neither side hears of it.
    pub fn partition(&self, side: &[Node]) {
        let mut world = self.world();
        let side: std::collections::BTreeSet<Node> = side.iter().copied().collect();
        let between = |pair: &(Node, Node)| side.contains(&pair.0) != side.contains(&pair.1);
        let routes: Vec<usize> =
            world.index.iter().filter(|(pair, _)| between(pair)).map(|(_, route)| *route).collect();
        routes.into_iter().for_each(|route| world.cut(route));
        world.sides.push(side);
    }

    /// Cuts the way between two nodes, as [`Network::partition`] does.
    pub fn cut(&self, a: Node, b: Node) {
        let mut world = self.world();
        let route = world.route(a, b);
        world.cut(route);
    }

    /// Ends all cuts: what was held back is sent again.
    pub fn heal(&self) {
        let mut world = self.world();
        world.sides.clear();
        for route in 0..world.routes.len() {
            if std::mem::take(&mut world.routes[route].is_cut) {
                world.routes[route].is_idle_again();
                let ports = world.ports_of(route);
                ports.into_iter().for_each(|port| world.reschedule(port, 0, false));
            }
        }
    }

    /// From now on data connections deliver nothing in this direction, and neither side hears of it. Not ended by
    /// [`Network::heal`].
    pub fn blackhole_data(&self, from: Node, to: Node) {
        let mut world = self.world();
        let route = world.route(from, to);
        world.routes[route].blackholes[direction(from, to)] = true;
    }

    /// Breaks all streams and data connections between the two. What is under way is lost; both sides hear it
    /// after the latency, also across a cut.
    pub fn reset(&self, a: Node, b: Node) {
        let mut world = self.world();
        let route = world.route(a, b);
        for id in world.ports_of(route) {
            let Some(port) = world.port_mut(id) else { continue };
            port.generation += 1;
            port.is_lost = true;
            let lost = port.lose();
            world.in_flight -= lost;
            world.answer_end(id, Ending::Reset);
            world.tidy(id);
        }
    }

    /// The links below the data connections between the two are lost and made again: what is under way is sent
    /// again after `outage`, and some puts arrive twice (before the signal that publishes them).
    pub fn remake(&self, a: Node, b: Node, outage: Duration) {
        let mut world = self.world();
        let route = world.route(a, b);
        world.routes[route].is_idle_again();
        for id in world.ports_of(route) {
            if world.port(id).is_some_and(|port| port.kind == Kind::Data) {
                world.reschedule(id, nanoseconds(outage), true);
            }
        }
    }

    /// The process dies. What it sent before still arrives, then its streams and data connections end; nothing it
    /// holds is of use any more. A dead node stays dead: a new process is a new [`Node`], and may listen at the
    /// same addresses.
    pub fn kill(&self, node: Node) {
        let mut world = self.world();
        world.has_stopped = true;
        let process = world.process(node);
        process.is_dead = true;
        let ports: Vec<PortId> = process.ports.iter().copied().collect();
        for id in ports {
            if let Some(port) = world.port_mut(id) {
                port.is_dead = true;
            }
            world.take_inbox(id);
            world.close(id);
        }
        for unaccepted in std::mem::take(&mut world.process(node).accepts) {
            world.release(unaccepted);
        }
        for place in world.places.values_mut().filter(|place| place.node == node) {
            place.is_open = false;
        }
    }

    /// The process stops: nothing that it calls does anything, and it is not reported by [`Network::advance`].
    /// What it sent before arrives; what is sent to it arrives until its windows are full.
    pub fn freeze(&self, node: Node) {
        let mut world = self.world();
        world.has_stopped = true;
        world.process(node).is_frozen = true;
    }

    /// The process goes on; it is reported at once.
    pub fn thaw(&self, node: Node) {
        let mut world = self.world();
        if std::mem::take(&mut world.process(node).is_frozen) {
            let now = world.now;
            world.arrange(now, Event::Wake { node });
        }
    }

    /// Of the endpoints that this node asks for from now on, the one after the first `after` fails for lack of
    /// memory.
    pub fn deny_memory(&self, node: Node, after: u32) {
        self.world().process(node).denies_after = Some(after);
    }
}

impl World {
    fn ports_of(&self, route: usize) -> Vec<PortId> {
        self.routes[route].ports.iter().copied().collect()
    }

    fn cut(&mut self, route: usize) {
        if !std::mem::replace(&mut self.routes[route].is_cut, true) {
            self.ports_of(route).into_iter().for_each(|port| self.hold_back(port));
        }
    }
}
