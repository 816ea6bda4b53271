//! RDMA through verbs: InfiniBand and RoCE, by reliable queue pairs.
//!
//! ```text
//! library, sys   libibverbs as it is found at run time     port   an adapter's port, and registered memory
//! queue          a queue pair                               status what went wrong, in words
//! message        what two ends say to each other            line   one end: what it sends and hears
//! ```
//!
//! Each side makes a queue pair and its memory, and its address says where they are. Both connect when they know the other's: the
//! first packet of the side that is first is not answered until the other side is there, so it begins again until it is.
//!
//! Invariant: nothing that the peer sends lands outside of the tray and the mailbox of its connection, for the device checks the
//! key; a connection that was closed keeps its queue pair until the peer's device has everything. Absent: several queue pairs and
//! ports for one connection, and memory of devices.

mod library;
mod line;
mod message;
mod port;
mod queue;
#[cfg(test)]
mod standin;
mod status;
mod sys;

use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::{Duration, Instant};

use consort_memory::{Counter, ForkStamp, Span, SpanMut};

use crate::segment::nonce;
use crate::{
    Address, Capabilities, Connecting, Connection, CounterKind, Endpoint, Layout, PeerState, RemoteRegion,
    Transport, TransportError,
};
use line::{Line, kind_of, memory};
use message::{Kind, Place, TRAY_BYTES, first_packet};
use port::{Port, Region};
use queue::{Peer, Queue};

const NAME: &str = "verbs";
/// How long a connection that was closed waits for the peer's device.
const LINGER: Duration = Duration::from_secs(30);
/// The same where the whole transport goes.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// The transport of a process over one port.
pub struct Verbs {
    shared: Arc<Shared>,
}

struct Shared {
    port: Arc<Port>,
    stamp: ForkStamp,
    /// Connections that were closed before everything had arrived.
    lingering: Mutex<Vec<Lingering>>,
}

struct Lingering {
    line: Line,
    since: Instant,
    has_said_end: bool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Verbs {
    /// Over the first active port of this system.
    ///
    /// # Errors
    /// Why there is none: no library, no device, no active port.
    pub fn new() -> Result<Self, TransportError> {
        let lacks =
            |what: String| TransportError::system(NAME, "looking for adapters", std::io::Error::other(what));
        let functions =
            library::functions().map_err(|why| lacks(format!("there is no libibverbs.so.1: {why}")))?;
        let ports = Port::all(functions, &|_, _| true)?;
        let first = ports.into_iter().next();
        Self::over(first.ok_or_else(|| lacks("no device has an active port (see `ibv_devinfo`)".into()))?)
    }

    /// Whether it is a forked child's copy, which must not be used.
    pub fn is_forked_child(&self) -> bool {
        self.shared.stamp.is_forked_child()
    }

    /// Over this port.
    fn over(port: Arc<Port>) -> Result<Self, TransportError> {
        let stamp = ForkStamp::new().map_err(|error| TransportError::memory(NAME, error))?;
        tracing::debug!(device = port.device, port = port.number, reach = ?port.reach, "RDMA by this port");
        Ok(Verbs { shared: Arc::new(Shared { port, stamp, lingering: Mutex::default() }) })
    }
}

impl Transport for Verbs {
    fn name(&self) -> &'static str {
        NAME
    }

    fn endpoint(&self, layout: Layout) -> Result<Box<dyn Endpoint>, TransportError> {
        self.shared.has_lingering();
        let own = memory(&self.shared.port, layout.mailbox_bytes, layout.node)?;
        let queue = Queue::new(&self.shared.port)?;
        let nonce = nonce(NAME)?;
        let peer = Peer {
            reach: self.shared.port.reach,
            number: queue.number(),
            first_packet: first_packet(*nonce.first_chunk().expect("a nonce has so many bytes")),
        };
        let place = Place {
            peer,
            key: own.keys().1,
            start: own.address(0),
            mailbox_bytes: (own.bytes() - TRAY_BYTES) as u64,
            nonce,
        };
        let address = Address { transport: NAME.into(), bytes: place.encode() };
        Ok(Box::new(VerbsEndpoint { shared: Arc::clone(&self.shared), address, place, own, queue }))
    }
}

impl Shared {
    /// Whether connections that were closed have not delivered everything; those that have are forgotten.
    fn has_lingering(&self) -> bool {
        let mut lingering = lock(&self.lingering);
        lingering.retain_mut(|of| !of.is_over());
        !lingering.is_empty()
    }
}

impl Drop for Shared {
    /// What was closed before everything had arrived is waited for: a device that works needs microseconds.
    fn drop(&mut self) {
        if self.stamp.is_forked_child() {
            std::mem::forget(std::mem::take(&mut *lock(&self.lingering)));
            return;
        }
        let begun = Instant::now();
        while self.has_lingering() && begun.elapsed() < LAST_WORDS {
            std::thread::yield_now();
        }
    }
}

impl Lingering {
    fn is_over(&mut self) -> bool {
        // The end of the peer is the end of this one too, as is a failure.
        let is_open = matches!(self.line.progress(), Ok(PeerState::Open));
        if is_open && !self.has_said_end {
            self.has_said_end = self.line.send(None, Some((Kind::End, 0, 0))).unwrap_or(true);
        }
        !is_open || (self.has_said_end && self.line.is_delivered()) || self.since.elapsed() > LINGER
    }
}

struct VerbsEndpoint {
    shared: Arc<Shared>,
    address: Address,
    place: Place,
    own: Region,
    queue: Queue,
}

impl Endpoint for VerbsEndpoint {
    fn address(&self) -> &Address {
        &self.address
    }

    fn connect(self: Box<Self>, peer: &Address) -> Result<Box<dyn Connecting>, TransportError> {
        let bad = |reason| TransportError::BadAddress { transport: NAME, reason };
        let bytes = peer.bytes_for(NAME)?;
        let peer = Place::decode(bytes).ok_or_else(|| bad("it is not one of an RDMA endpoint"))?;
        if peer.nonce == self.place.nonce {
            return Err(bad("it is this endpoint's own"));
        }
        if peer.peer.reach.is_ethernet != self.place.peer.reach.is_ethernet {
            return Err(bad("one side is on InfiniBand and the other on Ethernet"));
        }
        let Self { shared, place, own, mut queue, .. } = *self;
        queue.connect(&peer.peer, place.peer.first_packet)?;
        let mut line = Line::new(queue, own, peer)?;
        line.send(None, Some((Kind::Hello, 0, 0)))?;
        let first_packet = place.peer.first_packet;
        Ok(Box::new(VerbsConnecting { shared, line: Some(line), first_packet, has_urged: false }))
    }
}

struct VerbsConnecting {
    shared: Arc<Shared>,
    /// Until it is the connection's.
    line: Option<Line>,
    first_packet: u32,
    /// Whether a second hello was sent: the peer's device answers it with what it misses, the first one.
    has_urged: bool,
}

impl Connecting for VerbsConnecting {
    fn poll(&mut self) -> Result<Poll<Box<dyn Connection>>, TransportError> {
        let Some(line) = &mut self.line else { return Err(TransportError::PeerClosed { transport: NAME }) };
        match line.progress() {
            Ok(_) => {}
            // Its peer is not there yet.
            Err(_) if line.is_unanswered() && !line.is_met => {
                line.queue.begin_again()?;
                line.begin_again();
                line.queue.connect(&line.peer.peer, self.first_packet)?;
                line.send(None, Some((Kind::Hello, 0, 0)))?;
                return Ok(Poll::Pending);
            }
            Err(error) => return Err(error),
        }
        if line.is_met && !line.is_delivered() && !self.has_urged && !line.has_ended {
            self.has_urged = line.send(None, Some((Kind::Hello, 0, 0)))?;
        }
        if !line.is_met && !line.is_delivered() {
            return Ok(Poll::Pending);
        }
        let line = self.line.take();
        Ok(Poll::Ready(Box::new(VerbsConnection { shared: Arc::clone(&self.shared), line })))
    }

    fn wake(&self) -> Option<(BorrowedFd<'_>, bool)> {
        None
    }
}

struct VerbsConnection {
    shared: Arc<Shared>,
    /// None when it is dropped.
    line: Option<Line>,
}

impl VerbsConnection {
    fn line(&self) -> &Line {
        self.line.as_ref().expect("there until it is dropped")
    }

    fn line_mut(&mut self) -> &mut Line {
        self.line.as_mut().expect("there until it is dropped")
    }

    fn send(
        &mut self,
        data: Option<(usize, Span<'_>)>,
        says: Option<(Kind, u64, u64)>,
    ) -> Result<Poll<()>, TransportError> {
        Ok(if self.line_mut().send(data, says)? { Poll::Ready(()) } else { Poll::Pending })
    }
}

impl Connection for VerbsConnection {
    fn transport(&self) -> &'static str {
        NAME
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { load_store: false, put: true, ordered: true, needs_progress: true }
    }

    fn mailbox(&self) -> SpanMut<'_> {
        self.line().mailbox()
    }

    fn kept_bytes(&self) -> usize {
        self.line().kept_bytes()
    }

    fn remote(&self) -> RemoteRegion<'_> {
        RemoteRegion { bytes: self.line().peer_mailbox_bytes(), mapped: None }
    }

    fn counter(&self, kind: CounterKind) -> &Counter {
        match kind {
            CounterKind::Ready => &self.line().ready,
            CounterKind::Credit => &self.line().credit,
        }
    }

    fn peer_counter(&self, _kind: CounterKind) -> Option<&Counter> {
        None
    }

    fn put(&mut self, offset: usize, bytes: Span<'_>, done: &mut usize) -> Result<Poll<()>, TransportError> {
        crate::mapped::check_bounds(NAME, offset, bytes.len(), self.line().peer_mailbox_bytes())?;
        let put = self.send(Some((offset, bytes)), None)?;
        if put.is_ready() {
            *done = bytes.len();
        }
        Ok(put)
    }

    fn fill(
        &mut self,
        offset: usize,
        bytes: Span<'_>,
        (value, tag): (u64, u64),
        done: &mut usize,
    ) -> Result<Poll<()>, TransportError> {
        crate::mapped::check_bounds(NAME, offset, bytes.len(), self.line().peer_mailbox_bytes())?;
        let filled = self.send(Some((offset, bytes)), Some((Kind::Ready, value, tag)))?;
        if filled.is_ready() {
            *done = bytes.len();
        }
        Ok(filled)
    }

    fn signal(&mut self, kind: CounterKind, value: u64, tag: u64) -> Result<Poll<()>, TransportError> {
        self.send(None, Some((kind_of(kind), value, tag)))
    }

    fn is_delivered(&self) -> bool {
        self.line().is_delivered()
    }

    fn progress(&mut self) -> Result<PeerState, TransportError> {
        self.line_mut().progress()
    }

    fn wake_at(&self, at: usize) -> Option<BorrowedFd<'_>> {
        (at == 0).then(|| self.line().queue.descriptor())
    }
}

impl Drop for VerbsConnection {
    fn drop(&mut self) {
        let Some(line) = self.line.take() else { return };
        // A child's copy is the parent's queue pair.
        if self.shared.stamp.is_forked_child() {
            std::mem::forget(line);
            return;
        }
        let mut lingering = Lingering { line, since: Instant::now(), has_said_end: false };
        if !lingering.is_over() {
            lock(&self.shared.lingering).push(lingering);
        }
    }
}

#[cfg(test)]
mod tests;
