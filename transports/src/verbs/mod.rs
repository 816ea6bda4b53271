//! RDMA through verbs: InfiniBand and RoCE, by reliable queue pairs.
//!
//! ```text
//! library, sys   libibverbs as it is found at run time     port    an adapter's port, and registered memory
//! search         the ports that there are, and why none     sysfs   what the kernel says of them
//! choice, gid    which port, and by which address           options what is asked of both
//! queue          a queue pair                               status  what went wrong, in words
//! message        what two ends say to each other            line    one end: what it sends and hears
//! events         what a device says of itself            rated   what is known of ports without a connection
//! ```
//!
//! Each side makes a queue pair and its memory, and its address says where they are. Both connect when they know the other's; one of
//! them greets, again and again until the other is there and answers.
//!
//! Invariant: nothing that the peer sends lands outside of trays and mailboxes of this transport, for the device checks the keys; a
//! connection that was closed keeps its queue pair until the peer's device has everything. Absent: several queue pairs and
//! ports for one connection, and memory of devices.

mod choice;
mod events;
mod gid;
mod library;
mod line;
mod message;
#[cfg(test)]
mod null;
mod options;
mod port;
mod queue;
mod rated;
mod search;
#[cfg(test)]
mod standin;
mod status;
mod sys;
mod sysfs;

use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::{Duration, Instant};

use consort_memory::{Counter, Span, SpanMut};

use crate::closed::{Closed, Closing};
use crate::segment::nonce;
use crate::{
    AdapterTrouble, Address, Capabilities, Connecting, Connection, CounterKind, Endpoint, Layout, PeerState,
    RemoteRegion, Service, Transport, TransportError,
};
pub use choice::Near;
use events::Watch;
use line::{Line, memory};
use message::{Kind, Place, TRAY_BYTES, first_packet};
pub use options::{Addresses, PortFilter, RdmaOptions, Travel};
use port::{Domain, Port, Region, Written};
use queue::{Peer, Queue};
pub use rated::RatedPort;
use search::Search;
use sysfs::Sysfs;

const NAME: &str = "verbs";
/// How long a side that is there waits before it greets: the other one has its address at about the same time, and what comes too
/// early is lost.
const GREET_AFTER: Duration = Duration::from_millis(1);
/// The pauses after which a peer is greeted again that may not have been there: the first, and the last.
const GREET_FIRST: Duration = Duration::from_millis(50);
const GREET_LAST: Duration = Duration::from_secs(1);
/// How long a queue pair that was stopped may take to give out what had come.
const STOPPING: Duration = Duration::from_secs(5);
/// The transport of a rank over the best of its ports.
pub struct Verbs {
    shared: Arc<Shared>,
    /// The best first; all but it are kept for more than one.
    ports: Vec<Arc<Port>>,
    watch: Arc<Watch>,
}

struct Shared {
    port: Arc<Port>,
    /// What all connections may use: memory is registered once, however many of them write from it.
    domain: Arc<Domain>,
    /// Connections that were closed before everything had arrived.
    closed: Arc<Closed<Line>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Verbs {
    /// Over the best port of this system.
    ///
    /// # Errors
    /// As of [`Verbs::near`].
    pub fn new() -> Result<Self, TransportError> {
        Self::near(&RdmaOptions::default(), &Near::default())
    }

    /// Over the port of this system that is asked for and best for a rank in this place.
    ///
    /// # Errors
    /// Why there is none ([`AdapterTrouble`]), or the system's.
    pub fn near(options: &RdmaOptions, near: &Near) -> Result<Self, TransportError> {
        let functions = library::functions().map_err(|trouble| TransportError::adapter(NAME, trouble))?;
        let sysfs = &Sysfs::system();
        Self::over(Search { functions, sysfs, options, near }.ports()?)
    }

    /// Whether it is a forked child's copy, which must not be used.
    pub fn is_forked_child(&self) -> bool {
        self.shared.port.stamp.is_forked_child()
    }

    /// Whether its device has failed as a whole, and has to be opened again.
    pub fn has_failed(&self) -> bool {
        events::has_failed(self.shared.port.opened())
    }

    /// What hears what the devices of its ports say: ports that go down and come back, queue pairs and devices that fail.
    pub fn events(&self) -> Arc<dyn Service> {
        self.watch.clone()
    }

    /// What looks after connections that were closed before everything had arrived.
    pub fn closed(&self) -> Arc<dyn Service> {
        self.shared.closed.clone()
    }

    /// The ports that a rank in this place may use, the best first, for people: device, port and address.
    pub fn ports(&self) -> Vec<String> {
        self.ports.iter().map(|port| format!("{} ({})", port.name(), port.reach.gid)).collect()
    }

    /// Over the first of these ports.
    fn over(ports: Vec<Arc<Port>>) -> Result<Self, TransportError> {
        let mut devices: Vec<Arc<port::Opened>> = Vec::new();
        for port in &ports {
            if !devices.iter().any(|device| Arc::ptr_eq(device, port.opened())) {
                devices.push(Arc::clone(port.opened()));
            }
        }
        let watch = Arc::new(Watch::new(devices)?);
        let port = Arc::clone(ports.first().ok_or_else(|| {
            TransportError::adapter(NAME, AdapterTrouble::NoActivePort { ports: "there is none".into() })
        })?);
        tracing::debug!(device = port.device, port = port.number, reach = ?port.reach, "RDMA by this port");
        let domain = Domain::new(&port)?;
        Ok(Verbs { shared: Arc::new(Shared { port, domain, closed: Closed::new(NAME)? }), ports, watch })
    }
}

impl Transport for Verbs {
    fn name(&self) -> &'static str {
        NAME
    }

    fn endpoint(&self, layout: Layout) -> Result<Box<dyn Endpoint>, TransportError> {
        self.shared.port.check_fork()?;
        self.shared.closed.tidy();
        let domain = &self.shared.domain;
        let own = memory(domain, layout.mailbox_bytes, layout.node, Written::ByPeer)?;
        let queue = Queue::new(domain)?;
        let nonce = nonce(NAME)?;
        let peer = Peer {
            reach: self.shared.port.reach,
            number: queue.number(),
            first_packet: first_packet(*nonce.first_chunk().expect("a nonce has 16 bytes")),
        };
        let place = Place {
            peer,
            key: own.keys().1,
            start: own.address(0),
            mailbox_bytes: (own.bytes() - TRAY_BYTES) as u64,
            nonce,
        };
        let address = Address { transport: NAME.into(), bytes: place.encode() };
        let (shared, calls) = (Arc::clone(&self.shared), layout.calls);
        Ok(Box::new(VerbsEndpoint { shared, address, place, calls, queue, own }))
    }

    fn service(&self) -> Option<Arc<dyn Service>> {
        Some(self.events())
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if self.port.stamp.is_forked_child() {
            self.closed.abandon();
        } else {
            self.closed.finish();
        }
    }
}

impl Closing for Line {
    fn is_open(&mut self) -> bool {
        matches!(self.progress(), Ok(PeerState::Open))
    }

    fn say_end(&mut self) -> bool {
        self.send(None, Some((Kind::End, 0, 0))).unwrap_or(true)
    }

    fn is_delivered(&self) -> bool {
        Line::is_delivered(self)
    }
}

struct VerbsEndpoint {
    shared: Arc<Shared>,
    address: Address,
    place: Place,
    calls: Option<bool>,
    /// Before the memory that it writes.
    queue: Queue,
    own: Region,
}

impl Endpoint for VerbsEndpoint {
    fn address(&self) -> &Address {
        &self.address
    }

    fn connect(self: Box<Self>, peer: &Address) -> Result<Box<dyn Connecting>, TransportError> {
        let bad = |reason| TransportError::BadAddress { transport: NAME, reason };
        let bytes = peer.bytes_for(NAME)?;
        self.shared.port.check_fork()?;
        let peer = Place::decode(bytes).ok_or_else(|| bad("it is not one of an RDMA endpoint"))?;
        if peer.nonce == self.place.nonce {
            return Err(bad("it is this endpoint's own"));
        }
        if let Some(trouble) = gid::no_way(self.queue.port(), &peer.peer.reach) {
            return Err(TransportError::adapter(NAME, trouble));
        }
        let Self { shared, place, calls, queue, own, .. } = *self;
        let calls = calls.unwrap_or(place.nonce < peer.nonce);
        let line = Line::new(own, queue, &place, peer, calls)?;
        let (greet, pause) = (Greet::First(Instant::now() + GREET_AFTER), GREET_FIRST);
        Ok(Box::new(VerbsConnecting { shared, line: Some(line), calls, greet, pause, has_answered: false }))
    }
}

/// When the side that calls greets.
enum Greet {
    /// For the first time, at this time.
    First(Instant),
    /// Again at this time, if its hello has not been taken by then.
    At(Instant),
    /// Again when its queue pair, which was stopped at this time, has given out what had come.
    Stopped(Instant),
}

/// The side that calls greets, again and again until it is heard; the other answers when it is; and is established when the first has
/// heard that.
struct VerbsConnecting {
    shared: Arc<Shared>,
    /// Until it is the connection's.
    line: Option<Line>,
    calls: bool,
    greet: Greet,
    pause: Duration,
    /// Whether the first hello of the peer was answered.
    has_answered: bool,
}

impl VerbsConnecting {
    /// Greets when it is time, and begins again where the peer may not have been there.
    fn say_hello(&mut self, now: Instant) -> Result<(), TransportError> {
        let Some(line) = &mut self.line else { return Ok(()) };
        match self.greet {
            Greet::At(at) if now >= at && (!line.is_delivered() || line.is_unanswered()) => {
                line.stop()?;
                self.greet = Greet::Stopped(now);
            }
            Greet::First(at) if now >= at => {
                line.greet()?;
                self.greet = Greet::At(now + self.pause);
            }
            Greet::First(_) | Greet::At(_) => {}
            Greet::Stopped(_) if line.has_begun_again()? => {
                self.has_answered = line.greeted() > 0;
                self.pause = (self.pause * 2).min(GREET_LAST);
                self.greet = Greet::At(now + self.pause);
            }
            Greet::Stopped(since) if now.saturating_duration_since(since) > STOPPING => {
                let source = std::io::Error::from(std::io::ErrorKind::TimedOut);
                return Err(TransportError::system(
                    NAME,
                    "waiting for what a queue pair has flushed",
                    source,
                ));
            }
            Greet::Stopped(_) => {}
        }
        Ok(())
    }
}

impl Connecting for VerbsConnecting {
    fn poll(&mut self) -> Result<Poll<Box<dyn Connection>>, TransportError> {
        let calls = self.calls;
        let Some(line) = &mut self.line else { return Err(TransportError::PeerClosed { transport: NAME }) };
        let is_stopped = matches!(self.greet, Greet::Stopped(_));
        line.queue.port().check_fork()?;
        if !is_stopped {
            match heard(line) {
                // Its peer may not be there yet.
                Err(TransportError::Completion { .. }) if calls && line.is_unanswered() => {}
                Err(error) => return Err(error),
                Ok(PeerState::Closed) if line.greeted() == 0 => {
                    return Err(TransportError::PeerClosed { transport: NAME });
                }
                Ok(_) => {}
            }
            if line.greeted() > 0 && !self.has_answered {
                self.has_answered = line.greet()?;
            }
        }
        let greeted = line.greeted();
        if self.has_answered && greeted > u64::from(!calls) && !is_stopped {
            let (shared, line) = (Arc::clone(&self.shared), self.line.take());
            return Ok(Poll::Ready(Box::new(VerbsConnection { shared, line })));
        }
        if calls {
            self.say_hello(Instant::now())?;
        } else if let Some(line) = &mut self.line {
            // What has come meanwhile is looked at soon enough: a sleep on connections on their way is short.
            line.arm()?;
        }
        Ok(Poll::Pending)
    }

    fn wake(&self) -> Option<(BorrowedFd<'_>, bool)> {
        // One that calls has a clock of its own.
        let line = self.line.as_ref().filter(|_| !self.calls)?;
        Some((line.queue.descriptor(), false))
    }
}

/// Takes in what has come, and what the device has said of the queue pair.
fn heard(line: &mut Line) -> Result<PeerState, TransportError> {
    let heard = line.progress();
    if let Err(TransportError::Completion { .. }) = &heard {
        // Its reason may be there, and the control thread not have come to it yet.
        line.queue.port().hear();
    }
    match events::trouble(&line.queue) {
        Some(trouble) if !matches!(heard, Ok(PeerState::Closed)) => Err(trouble),
        _ => heard,
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
        self.line().queue.port().check_fork()?;
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
        let filled = self.send(Some((offset, bytes)), Some((Kind::Ready, value, tag)))?;
        if filled.is_ready() {
            *done = bytes.len();
        }
        Ok(filled)
    }

    fn signal(&mut self, kind: CounterKind, value: u64, tag: u64) -> Result<Poll<()>, TransportError> {
        match kind {
            CounterKind::Ready => self.send(None, Some((Kind::Ready, value, tag))),
            CounterKind::Credit => {
                self.line().queue.port().check_fork()?;
                Ok(if self.line_mut().credit(value, tag)? { Poll::Ready(()) } else { Poll::Pending })
            }
        }
    }

    fn flush_credits(&mut self) {
        // A failure is the next look's to say.
        if self.line().queue.port().check_fork().is_ok() {
            let _ = self.line_mut().flush_credits();
        }
    }

    fn deferred_credits(&self) -> u64 {
        self.line().deferred_credits()
    }

    fn looks_by_calls(&self) -> bool {
        false
    }

    fn arm(&mut self) -> bool {
        self.line().queue.port().check_fork().is_ok() && self.line_mut().arm().unwrap_or(false)
    }

    fn is_delivered(&self) -> bool {
        self.line().is_delivered()
    }

    fn progress(&mut self) -> Result<PeerState, TransportError> {
        self.line().queue.port().check_fork()?;
        heard(self.line_mut())
    }

    fn wake_at(&self, at: usize) -> Option<BorrowedFd<'_>> {
        (at == 0).then(|| self.line().queue.descriptor())
    }
}

impl Drop for VerbsConnection {
    fn drop(&mut self) {
        let Some(line) = self.line.take() else { return };
        // A child's copy is the parent's queue pair.
        if self.shared.port.stamp.is_forked_child() {
            std::mem::forget(line);
            return;
        }
        self.shared.closed.keep(line);
    }
}

#[cfg(test)]
mod tests;
