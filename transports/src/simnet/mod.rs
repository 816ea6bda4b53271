//! A network of many processes inside one, in virtual time: data connections, byte streams, and what breaks them.
//!
//! A test makes a [`Network`] from a seed, gives each process that it plays a [`Node`], calls what these have
//! to do, and lets the time go on with [`Network::advance`] to [`Network::next`]. Puts are cut into pieces that
//! arrive in any order before the ready signal that publishes them; credits overtake data and data credits;
//! connections overtake each other; streams are read and written in parts; windows fill up. So a credit publishes
//! no puts, and of two puts to the same place before one signal either may be the last. With [`Profile::OneSided`] data
//! connections are as with remote direct memory access: puts land without the receiver, in pieces of eight bytes, and
//! nothing keeps its order.
//!
//! Invariant: the same seed and the same calls give the same events, whatever the machine, and nothing happens
//! unless the time is moved on. Bytes reach a mailbox only while its connection lives, and as messages only through its
//! own `progress`. Absent: clocks, threads, sleeping, sockets, ranks; loss of single packets (what is not broken
//! retransmits).

mod data;
mod faults;
mod port;
mod random;
mod route;
mod stream;
mod transit;
mod world;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use port::{Kind, PortId};
use route::nanoseconds;
use world::{Event, World};

pub use data::Simnet;
pub use stream::{Dialling, Stream};

const NAME: &str = "simnet";

/// A process.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Node(pub u32);

/// How fast the way between two nodes is, in both directions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pace {
    /// What everything takes.
    pub latency: Duration,
    /// What it takes more, at most; drawn for each piece.
    pub jitter: Duration,
    /// What all connections together transmit; 0: any number.
    pub bytes_per_second: u64,
}

/// What data connections are made of.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Profile {
    /// Messages: puts reach the mailbox when the receiver takes them in, a ready signal after the puts before it.
    #[default]
    Messages,
    /// One-sided writes: puts land in the mailbox when they arrive, in pieces of eight bytes and any order, and signals
    /// are not ordered behind them. The transport restores the order that [`crate::Capabilities::ordered`] promises.
    OneSided,
}

impl Profile {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::Messages, Self::OneSided];
}

/// The network; clones are the same.
#[derive(Clone, Debug)]
pub struct Network {
    world: Arc<Mutex<World>>,
}

impl Network {
    /// A network whose chance comes from `seed`; also the pace of each pair of nodes, unless it is set: from 5 to
    /// 200 µs and up to as much again.
    pub fn new(seed: u64) -> Self {
        Self { world: Arc::new(Mutex::new(World::new(seed, false))) }
    }

    /// A network that moves its own time on: every `poll`, `progress`, `accept` and `read` lets one thing
    /// happen first. Connections then have descriptors to wait for ([`crate::Connection::wake`]; asking for one
    /// lets things happen until there is something to take in). For one thread as deterministic as the other kind.
    pub fn with_own_pace(seed: u64) -> Self {
        Self { world: Arc::new(Mutex::new(World::new(seed, true))) }
    }

    /// The same with data connections of another make; before the first endpoint.
    #[must_use]
    pub fn with_profile(self, profile: Profile) -> Self {
        self.world().profile = profile;
        self
    }

    /// Virtual time since the start.
    pub fn now(&self) -> Duration {
        Duration::from_nanos(self.world().now)
    }

    /// When something happens next. [`None`]: not unless a node does something.
    pub fn next(&self) -> Option<Duration> {
        self.world().next().map(Duration::from_nanos)
    }

    /// Lets everything happen that is due up to `to`. Gives the nodes that should look, each once, in order.
    pub fn advance(&self, to: Duration) -> Vec<Node> {
        self.world().advance(nanoseconds(to))
    }

    /// Has the node reported by [`Network::advance`] at that time: a timer of its own.
    pub fn wake_at(&self, node: Node, at: Duration) {
        self.world().arrange(nanoseconds(at), Event::Wake { node });
    }

    /// The node's transport; each call gives a new object of the same process.
    pub fn transport(&self, node: Node) -> Arc<Simnet> {
        Arc::new(Simnet::new(self.clone(), node))
    }

    /// Endpoints, connections and what is between, as long as they have a holder.
    pub fn open_endpoints(&self) -> usize {
        self.world().held[Kind::Data as usize]
    }

    /// Streams, dialled, not accepted yet, or established, as long as they have a holder.
    pub fn open_streams(&self) -> usize {
        self.world().held[Kind::Stream as usize]
    }

    /// What was sent and has not arrived, held back or not.
    pub fn in_flight(&self) -> usize {
        self.world().in_flight
    }

    /// A fingerprint of everything that has happened: when, what, between whom, how long.
    pub fn trace_hash(&self) -> u64 {
        self.world().trace
    }

    fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A hold on a port; lets go of it on drop.
#[derive(Debug)]
struct Handle {
    network: Network,
    port: PortId,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.network.world().release(self.port);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Layout, Transport};

    #[test]
    fn nothing_is_kept_of_what_is_gone() {
        let network = Network::new(1);
        let (a, b, c) = (Node(1), Node(2), Node(3));
        let at = "10.0.0.1:1".parse().expect("address");
        network.listen(b, at);
        for round in 0..8 {
            let [here, there, lonely] =
                [a, b, c].map(|node| network.transport(node).endpoint(Layout::new(64)).expect("endpoint"));
            let (here_at, there_at) = (here.address().clone(), there.address().clone());
            let held = (here.connect(&there_at), there.connect(&here_at), lonely.connect(&here_at));
            let dialling = network.dial(a, at);
            network.advance(network.now() + Duration::from_micros(round * 30));
            let accepted = network.accept(b);
            match round {
                5 => network.cut(a, b),
                6 => network.reset(a, b),
                7 => network.kill(b),
                _ => {}
            }
            drop((held, dialling, accepted));
        }
        network.heal();
        network.unlisten(at);
        network.advance(Duration::from_secs(1));
        assert_eq!((network.open_endpoints(), network.open_streams(), network.in_flight()), (0, 0, 0));
        let world = network.world();
        assert!(world.ports.iter().all(Option::is_none));
        assert!(world.routes.iter().all(|route| route.ports.is_empty()));
        assert!(world.processes.values().all(|process| process.ports.is_empty()));
    }
}
