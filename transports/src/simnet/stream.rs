//! Byte streams between listeners and who dials them, as control connections use them.
//!
//! Invariant: bytes arrive in the order in which they were written, or not at all and the stream has ended or broken;
//! nothing blocks. Closing one with unread bytes is not a reset by itself: only what arrives later is answered by one.
//! Absent: half-open listeners, limits of how many may wait to be accepted.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::task::Poll;

use super::port::{Ending, Item, Kind, PIECE_BYTES_MAX, Room};
use super::world::{Event, Place};
use super::{Handle, Network, Node};

/// What it takes to be refused where nothing has ever listened.
const REFUSAL_NANOSECONDS: u64 = 50_000;
const FIRST_PORT: u16 = 32_768;

impl Node {
    /// Where it dials from.
    pub fn ip(self) -> IpAddr {
        let [_, high, middle, low] = self.0.to_be_bytes();
        Ipv4Addr::new(10, high, middle, low).into()
    }
}

impl Network {
    /// The node listens at `address`, in place of the node that did before.
    pub fn listen(&self, node: Node, address: SocketAddr) {
        let mut world = self.world();
        if !world.process(node).is_dead {
            world.places.insert(address, Place { node, is_open: true });
        }
    }

    /// Nothing listens there any more; a stream that was not accepted is turned away.
    pub fn unlisten(&self, address: SocketAddr) {
        let mut world = self.world();
        let Some(place) = world.places.get_mut(&address) else { return };
        place.is_open = false;
        let node = place.node;
        let waiting = std::mem::take(&mut world.process(node).accepts);
        let at = |id: &usize| world.port(*id).and_then(|port| port.here) == Some(address);
        let (turned_away, kept): (VecDeque<_>, VecDeque<_>) = waiting.into_iter().partition(at);
        world.process(node).accepts = kept;
        turned_away.into_iter().for_each(|id| world.release(id));
    }

    /// The next stream that was dialled to this node: with the address it listens at, and where it comes from.
    pub fn accept(&self, node: Node) -> Option<(Stream, SocketAddr, SocketAddr)> {
        let mut world = self.world();
        world.own_pace();
        if !world.runs(node) {
            return None;
        }
        let id = world.process(node).accepts.pop_front()?;
        let port = world.port(id)?;
        let (here, peer_node, caller) = (port.here?, port.peer_node, port.peer?);
        let from = world.port(caller).and_then(|port| port.here);
        let handle = Handle { network: self.clone(), port: id };
        let from = from.unwrap_or_else(|| SocketAddr::new(peer_node.ip(), FIRST_PORT));
        Some((Stream { handle, peer_node }, here, from))
    }

    /// Starts to connect to the node that listens at `address`.
    pub fn dial(&self, from: Node, address: SocketAddr) -> Dialling {
        let mut world = self.world();
        let port = world.open(Kind::Stream, from);
        let process = world.process(from);
        let (is_dead, number) = (process.is_dead, process.dialled);
        process.dialled = (number + 1) % (u16::MAX - FIRST_PORT);
        let place = world.places.get(&address).copied();
        if let Some(state) = world.port_mut(port) {
            state.dialled = Some(address);
            state.here = Some(SocketAddr::new(from.ip(), FIRST_PORT + number));
            state.is_dead = is_dead;
        }
        match place {
            _ if is_dead => {}
            Some(place) => world.link(port, place.node, None),
            None => {
                let at = world.now.saturating_add(REFUSAL_NANOSECONDS);
                world.arrange(at, Event::End { port, ending: Ending::Refused });
            }
        }
        drop(world);
        Dialling { handle: Some(Handle { network: self.clone(), port }) }
    }
}

/// A stream on its way.
#[derive(Debug)]
pub struct Dialling {
    /// Until it becomes the stream.
    handle: Option<Handle>,
}

impl Dialling {
    /// Goes on; never blocks.
    ///
    /// # Errors
    /// [`ErrorKind::ConnectionRefused`] when nothing listens there, [`ErrorKind::ConnectionReset`] when it broke, and
    /// [`ErrorKind::NotConnected`] when the process is dead or the stream was given already. The attempt is then
    /// over.
    pub fn poll(&mut self) -> Poll<io::Result<Stream>> {
        let Some(handle) = &self.handle else { return Poll::Ready(Err(ErrorKind::NotConnected.into())) };
        let mut world = handle.network.world();
        world.own_pace();
        let Some(port) = world.port(handle.port).filter(|port| !port.is_dead) else {
            return Poll::Ready(Err(ErrorKind::NotConnected.into()));
        };
        let (node, peer_node, has_heard) = (port.node, port.peer_node, port.has_heard());
        match port.ended {
            Some(Ending::Refused) => return Poll::Ready(Err(ErrorKind::ConnectionRefused.into())),
            Some(Ending::Reset) => return Poll::Ready(Err(ErrorKind::ConnectionReset.into())),
            _ if !has_heard || !world.runs(node) => return Poll::Pending,
            _ => {}
        }
        drop(world);
        match self.handle.take() {
            Some(handle) => Poll::Ready(Ok(Stream { handle, peer_node })),
            None => Poll::Pending,
        }
    }
}

/// One end of a stream; closed on drop. Never blocks: [`ErrorKind::WouldBlock`].
#[derive(Debug)]
pub struct Stream {
    handle: Handle,
    peer_node: Node,
}

impl Stream {
    /// Who is at the other end.
    pub fn peer_node(&self) -> Node {
        self.peer_node
    }

    /// Writes no more; the peer reads what was written, then the end.
    pub fn shutdown_write(&self) {
        self.handle.network.world().close(self.handle.port);
    }

    /// Neither writes nor reads any more; what arrives is thrown away.
    pub fn shutdown_both(&self) {
        let mut world = self.handle.network.world();
        world.close(self.handle.port);
        world.take_inbox(self.handle.port);
        if let Some(port) = world.port_mut(self.handle.port) {
            port.is_mute = true;
        }
    }
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut guard = self.handle.network.world();
        let world = &mut *guard;
        world.own_pace();
        let wanted = world.random.piece(buffer.len());
        let Some(port) = world.port(self.handle.port).filter(|port| !port.is_dead) else {
            return Err(ErrorKind::NotConnected.into());
        };
        if !world.runs(port.node) {
            return Err(ErrorKind::WouldBlock.into());
        }
        if port.is_mute || buffer.is_empty() {
            return Ok(0);
        }
        let Some(port) = world.port_mut(self.handle.port) else { return Ok(0) };
        let (mut got, mut room) = (0, Room::default());
        while got < wanted
            && let Some(Item::Bytes { bytes, taken }) = port.inbox.front_mut()
        {
            let length = (bytes.len() - *taken).min(wanted - got);
            buffer[got..got + length].copy_from_slice(&bytes[*taken..*taken + length]);
            (got, *taken) = (got + length, *taken + length);
            room.bytes += length;
            if *taken == bytes.len() {
                room.messages += 1;
                port.inbox.pop_front();
            }
        }
        let (ended, sender) = (port.ended, port.peer);
        if got > 0 {
            if let Some(sender) = sender {
                world.give_room(sender, room);
            }
            return Ok(got);
        }
        match ended {
            None => Err(ErrorKind::WouldBlock.into()),
            Some(Ending::Closed) => Ok(0),
            Some(Ending::Reset | Ending::Refused) => Err(ErrorKind::ConnectionReset.into()),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let id = self.handle.port;
        let mut world = self.handle.network.world();
        let wanted = world.random.piece(bytes.len());
        let node = world.port(id).map(|port| port.node);
        let runs = node.is_some_and(|node| world.runs(node));
        let Some(port) = world.port_mut(id).filter(|port| !port.is_dead) else {
            return Err(ErrorKind::NotConnected.into());
        };
        if !runs {
            return Err(ErrorKind::WouldBlock.into());
        }
        if port.ended == Some(Ending::Reset) {
            return Err(ErrorKind::ConnectionReset.into());
        }
        if port.is_closed || port.is_deaf {
            return Err(ErrorKind::BrokenPipe.into());
        }
        let room = port.room().unwrap_or(0);
        if bytes.is_empty() {
            return Ok(0);
        }
        if room == 0 {
            port.is_blocked = true;
            return Err(ErrorKind::WouldBlock.into());
        }
        let accepted = wanted.min(room);
        let mut sent = 0;
        while sent < accepted {
            let length = world.random.piece((accepted - sent).min(PIECE_BYTES_MAX));
            world.send(id, Item::Bytes { bytes: bytes[sent..sent + length].to_vec(), taken: 0 });
            sent += length;
        }
        Ok(accepted)
    }

    /// Nothing waits here.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
