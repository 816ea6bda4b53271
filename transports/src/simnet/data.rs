//! Data connections: puts that land in a mailbox, signals that raise counters.
//!
//! Invariant: what arrives waits in the network until the connection that owns the mailbox takes it in, and is checked
//! then. An address names a port of this very network. Absent: when anything arrives ([`super::port`]).

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, OnceLock};
use std::task::Poll;

use consort_memory::{Counter, Mapping, Span, SpanMut};
use nix::errno::Errno;
use nix::sys::eventfd::{EfdFlags, EventFd};

use super::port::{Ending, Item, Kind, PIECE_BYTES_MAX, PortId};
use super::world::World;
use super::{Handle, NAME, Network, Node, Profile};
use crate::arrival::{Arrivals, Departures, Signal};
use crate::counters::raise;
use crate::mapped::check_bounds;
use crate::{
    Address, Capabilities, Connecting, Connection, CounterKind, Endpoint, Layout, PeerState, RemoteRegion,
    Transport, TransportError,
};

/// Signals that may wait for the network.
const SIGNALS_MAX: usize = 16;

fn closed() -> TransportError {
    TransportError::PeerClosed { transport: NAME }
}

fn reset() -> TransportError {
    TransportError::system(NAME, "recv", Errno::ECONNRESET)
}

/// One node's transport.
#[derive(Clone, Debug)]
pub struct Simnet {
    network: Network,
    node: Node,
}

impl Simnet {
    pub(super) fn new(network: Network, node: Node) -> Self {
        Self { network, node }
    }

    /// Whose it is.
    pub fn node(&self) -> Node {
        self.node
    }
}

impl Transport for Simnet {
    fn name(&self) -> &'static str {
        NAME
    }

    fn endpoint(&self, layout: Layout) -> Result<Box<dyn Endpoint>, TransportError> {
        let mailbox_bytes = layout.mailbox_bytes;
        let mut world = self.network.world();
        let process = world.process(self.node);
        if process.is_dead {
            return Err(TransportError::system(NAME, "socket", Errno::ESRCH));
        }
        match &mut process.denies_after {
            Some(0) => {
                process.denies_after = None;
                return Err(TransportError::OutOfMemory {
                    transport: NAME,
                    needed_bytes: mailbox_bytes,
                    what: "mailbox",
                    source: Errno::ENOMEM.into(),
                });
            }
            Some(after) => *after -= 1,
            None => {}
        }
        let mailbox = Mapping::anonymous(mailbox_bytes);
        let mailbox = Arc::new(mailbox.map_err(|error| TransportError::memory(NAME, error))?);
        let port = world.open(Kind::Data, self.node);
        if let (Profile::OneSided, Some(port)) = (world.profile, world.port_mut(port)) {
            (port.is_one_sided, port.region) = (true, Some(mailbox.clone()));
        }
        let place = Place { seed: world.seed, port, node: self.node, mailbox_bytes };
        drop(world);
        let address = Address { transport: NAME.into(), bytes: place.encode() };
        Ok(Box::new(SimnetEndpoint {
            address,
            mailbox,
            handle: Handle { network: self.network.clone(), port },
        }))
    }
}

/// What an address says.
#[derive(Debug)]
struct Place {
    seed: u64,
    port: PortId,
    node: Node,
    mailbox_bytes: usize,
}

impl Place {
    fn encode(&self) -> Vec<u8> {
        let words = [self.seed, self.port as u64, u64::from(self.node.0), self.mailbox_bytes as u64];
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let (words, rest) = bytes.as_chunks::<8>();
        let [seed, port, node, mailbox_bytes] = words else { return None };
        let port = usize::try_from(u64::from_le_bytes(*port)).ok()?;
        let node = Node(u32::try_from(u64::from_le_bytes(*node)).ok()?);
        let mailbox_bytes = usize::try_from(u64::from_le_bytes(*mailbox_bytes)).ok()?;
        rest.is_empty().then_some(Self { seed: u64::from_le_bytes(*seed), port, node, mailbox_bytes })
    }
}

#[derive(Debug)]
struct SimnetEndpoint {
    address: Address,
    mailbox: Arc<Mapping>,
    handle: Handle,
}

impl Endpoint for SimnetEndpoint {
    fn address(&self) -> &Address {
        &self.address
    }

    fn connect(self: Box<Self>, peer: &Address) -> Result<Box<dyn Connecting>, TransportError> {
        let bad = |reason| TransportError::BadAddress { transport: NAME, reason };
        let peer = Place::decode(peer.bytes_for(NAME)?).ok_or_else(|| bad("it cannot be read"))?;
        let mut world = self.handle.network.world();
        if peer.seed != world.seed {
            return Err(bad("it belongs to another network"));
        }
        if peer.port == self.handle.port {
            return Err(bad("it is this endpoint's own"));
        }
        // One that is gone is found out on the way there.
        if let Some(port) = world.port(peer.port)
            && (port.kind != Kind::Data || port.node != peer.node)
        {
            return Err(bad("there is something else"));
        }
        world.link(self.handle.port, peer.node, Some(peer.port));
        drop(world);
        Ok(Box::new(SimnetConnecting {
            port: self.handle.port,
            network: self.handle.network.clone(),
            peer_mailbox_bytes: peer.mailbox_bytes,
            ends: Some((self.handle, self.mailbox)),
        }))
    }
}

#[derive(Debug)]
struct SimnetConnecting {
    network: Network,
    port: PortId,
    peer_mailbox_bytes: usize,
    /// Until they become the connection.
    ends: Option<(Handle, Arc<Mapping>)>,
}

impl Connecting for SimnetConnecting {
    fn poll(&mut self) -> Result<Poll<Box<dyn Connection>>, TransportError> {
        let mut world = self.network.world();
        world.own_pace();
        let Some(port) = world.port(self.port).filter(|port| !port.is_dead) else { return Err(closed()) };
        if !world.runs(port.node) {
            return Ok(Poll::Pending);
        }
        match port.ended {
            Some(Ending::Reset) => return Err(reset()),
            Some(_) if !port.has_heard() => return Err(closed()),
            _ if !port.has_heard() => return Ok(Poll::Pending),
            _ => {}
        }
        let (handle, mailbox) = self.ends.take().ok_or_else(closed)?;
        if let Some(port) = world.port_mut(self.port) {
            port.is_established = true;
        }
        let arrivals = (world.profile == Profile::OneSided).then(Arrivals::default);
        drop(world);
        Ok(Poll::Ready(Box::new(SimnetConnection {
            mailbox,
            ready: Counter::standalone(),
            credit: Counter::standalone(),
            peer_mailbox_bytes: self.peer_mailbox_bytes,
            departures: Departures::default(),
            arrivals,
            signals: VecDeque::new(),
            wrong: None,
            bell: OnceLock::new(),
            handle,
        })))
    }
}

#[derive(Debug)]
struct SimnetConnection {
    mailbox: Arc<Mapping>,
    ready: Counter,
    credit: Counter,
    peer_mailbox_bytes: usize,
    departures: Departures,
    /// Where the network keeps no order.
    arrivals: Option<Arrivals>,
    /// Taken over, and not in the network yet.
    signals: VecDeque<Item>,
    /// What the peer did wrong.
    wrong: Option<&'static str>,
    /// For a sleeper.
    bell: OnceLock<Option<Arc<EventFd>>>,
    handle: Handle,
}

/// Whether anything can be sent; whether it can be now.
fn check_usable(
    world: &World,
    port: PortId,
    wrong: Option<&'static str>,
) -> Result<Poll<()>, TransportError> {
    if let Some(what) = wrong {
        return Err(TransportError::Protocol { transport: NAME, what });
    }
    match world.port(port) {
        Some(port) if port.is_dead => Err(closed()),
        Some(port) if !world.runs(port.node) => Ok(Poll::Pending),
        Some(port) => match port.ended {
            None => Ok(Poll::Ready(())),
            Some(Ending::Reset) => Err(reset()),
            Some(_) => Err(closed()),
        },
        None => Err(closed()),
    }
}

/// Room for one more item, and bytes in it; notes that the sender waits where there is none.
fn room(world: &mut World, port: PortId) -> Option<usize> {
    let port = world.port_mut(port)?;
    let room = port.room();
    port.is_blocked |= room.is_none();
    room
}

/// Sends waiting signals. Whether none is left.
fn flush(world: &mut World, port: PortId, signals: &mut VecDeque<Item>) -> bool {
    while !signals.is_empty() && room(world, port).is_some() {
        if let Some(signal) = signals.pop_front() {
            world.send(port, signal);
        }
    }
    signals.is_empty()
}

impl SimnetConnection {
    fn take_in(&mut self, item: &Item) -> Result<(), &'static str> {
        match item {
            Item::Put { write, offset, bytes, .. } => {
                check_bounds(NAME, *offset, bytes.len(), self.mailbox.bytes())
                    .map_err(|_| "it put bytes outside the mailbox")?;
                match &mut self.arrivals {
                    Some(arrivals) => arrivals.landed(*write)?,
                    None => self.mailbox.span(*offset, bytes.len()).copy_from(Span::of(bytes)),
                }
            }
            Item::Signal { place, signal } => match &mut self.arrivals {
                Some(arrivals) => arrivals.signalled(*place, *signal)?,
                None => self.raise(*signal)?,
            },
            Item::Hello | Item::Bytes { .. } | Item::End { .. } => return Err("it sent what is not data"),
        }
        while let Some(signal) = self.arrivals.as_mut().and_then(Arrivals::release) {
            self.raise(signal)?;
        }
        Ok(())
    }

    fn raise(&self, Signal { kind, value, tag }: Signal) -> Result<(), &'static str> {
        raise(self.counter(kind), value, tag)
    }
}

impl Connection for SimnetConnection {
    fn transport(&self) -> &'static str {
        NAME
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { load_store: false, put: true, ordered: true, needs_progress: true }
    }

    fn mailbox(&self) -> SpanMut<'_> {
        self.mailbox.span(0, self.mailbox.bytes())
    }

    fn remote(&self) -> RemoteRegion<'_> {
        RemoteRegion { bytes: self.peer_mailbox_bytes, mapped: None }
    }

    fn counter(&self, kind: CounterKind) -> &Counter {
        match kind {
            CounterKind::Ready => &self.ready,
            CounterKind::Credit => &self.credit,
        }
    }

    fn peer_counter(&self, _kind: CounterKind) -> Option<&Counter> {
        None
    }

    fn put(&mut self, offset: usize, bytes: Span<'_>, done: &mut usize) -> Result<Poll<()>, TransportError> {
        check_bounds(NAME, offset, bytes.len(), self.peer_mailbox_bytes)?;
        let port = self.handle.port;
        let mut world = self.handle.network.world();
        if check_usable(&world, port, self.wrong)?.is_pending() {
            return Ok(Poll::Pending);
        }
        // Signals that were taken over before go before.
        if *done < bytes.len() && !flush(&mut world, port, &mut self.signals) {
            return Ok(Poll::Pending);
        }
        while *done < bytes.len() {
            let room = match room(&mut world, port) {
                None | Some(0) => {
                    world.port_mut(port).ok_or_else(closed)?.is_blocked = true;
                    return Ok(Poll::Pending);
                }
                Some(room) => room,
            };
            let length = world.random.piece((bytes.len() - *done).min(room).min(PIECE_BYTES_MAX));
            let mut piece = vec![0; length];
            SpanMut::of(&mut piece).copy_from(bytes.slice(*done, length));
            let write = self.departures.write();
            world.send(port, Item::Put { write, offset: offset + *done, bytes: piece, is_copy: false });
            *done += length;
        }
        Ok(Poll::Ready(()))
    }

    fn signal(&mut self, kind: CounterKind, value: u64, tag: u64) -> Result<Poll<()>, TransportError> {
        let port = self.handle.port;
        let mut world = self.handle.network.world();
        if check_usable(&world, port, self.wrong)?.is_pending() {
            return Ok(Poll::Pending);
        }
        if !flush(&mut world, port, &mut self.signals) && self.signals.len() == SIGNALS_MAX {
            return Ok(Poll::Pending);
        }
        let place = self.departures.signal(kind);
        self.signals.push_back(Item::Signal { place, signal: Signal { kind, value, tag } });
        flush(&mut world, port, &mut self.signals);
        Ok(Poll::Ready(()))
    }

    fn is_flushed(&self) -> bool {
        self.signals.is_empty()
            || self.wrong.is_some()
            || self.handle.network.world().port(self.handle.port).is_none_or(|port| port.ended.is_some())
    }

    fn progress(&mut self) -> Result<PeerState, TransportError> {
        let port = self.handle.port;
        let mut world = self.handle.network.world();
        world.own_pace();
        if let Some(what) = self.wrong {
            return Err(TransportError::Protocol { transport: NAME, what });
        }
        let Some(state) = world.port(port).filter(|port| !port.is_dead) else { return Err(closed()) };
        if !world.runs(state.node) {
            return Ok(PeerState::Open);
        }
        let ended = state.ended;
        let inbox = if state.inbox.is_empty() { VecDeque::new() } else { world.take_inbox(port) };
        if ended.is_none() {
            flush(&mut world, port, &mut self.signals);
        }
        drop(world);
        for item in inbox {
            if let Err(what) = self.take_in(&item) {
                self.wrong = Some(what);
                return Err(TransportError::Protocol { transport: NAME, what });
            }
        }
        match ended {
            None => Ok(PeerState::Open),
            Some(Ending::Reset) => Err(reset()),
            Some(_) => Ok(PeerState::Closed),
        }
    }

    fn wake_at(&self, at: usize) -> Option<BorrowedFd<'_>> {
        let mut world = self.handle.network.world();
        if at > 0 || !world.has_own_pace {
            return None;
        }
        let bell = self.bell.get_or_init(|| {
            let flags = EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC;
            EventFd::from_value_and_flags(0, flags).ok().map(Arc::new)
        });
        if let (Some(bell), Some(port)) = (bell, world.port_mut(self.handle.port)) {
            if port.bell.is_none() && !(port.inbox.is_empty() && port.ended.is_none()) {
                let _ = bell.write(1);
            }
            port.bell = Some(Arc::clone(bell));
        }
        let has_nothing = |world: &World| {
            let port = world.port(self.handle.port);
            port.is_some_and(|port| port.inbox.is_empty() && port.ended.is_none())
        };
        while has_nothing(&world) && world.step() {}
        bell.as_deref().map(AsFd::as_fd)
    }
}

impl Drop for SimnetConnection {
    fn drop(&mut self) {
        let mut world = self.handle.network.world();
        // A dead process has lost them.
        if world.port(self.handle.port).is_some_and(|port| !port.is_dead && port.ended.is_none()) {
            for signal in self.signals.drain(..) {
                world.send(self.handle.port, signal);
            }
        }
    }
}
