//! RDMA through verbs: InfiniBand and RoCE, by reliable queue pairs.
//!
//! ```text
//! library, sys   libibverbs as it is found at run time     port    an adapter's port, and registered memory
//! search         the ports that there are, and why none     sysfs   what the kernel says of them
//! choice, gid    which port, and by which address           options what is asked of both
//! queue          a queue pair                               status  what went wrong, in words
//! message        what two ends say to each other            line    one end of a queue pair: what it sends and hears
//! meeting        how two ends meet                          events  what a device says of itself
//! one, session   a connection by one queue pair, by several memory  of programs and of devices, used where it is
//! rated          what is known of ports without a connection
//! ```
//!
//! Each side makes a queue pair and its memory, and its address says where they are. Both connect when they know the other's; one of
//! them greets, again and again until the other is there and answers.
//!
//! Invariant: nothing that the peer sends lands outside of trays, mailboxes and exposed memory of this transport, for the device checks
//! the keys; a connection that was closed keeps its queue pairs until the peer's device has everything.

mod attendant;
mod choice;
mod ends;
mod events;
mod gid;
mod library;
mod line;
mod meeting;
mod memory;
mod message;
#[cfg(test)]
mod null;
mod one;
mod options;
mod port;
mod queue;
mod rated;
mod search;
mod session;
#[cfg(any(test, feature = "conformance"))]
#[cfg_attr(not(test), allow(dead_code, unused_imports, reason = "tests of this crate ask more of it"))]
mod standin;
mod status;
mod sys;
mod sysfs;

use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;

use crate::closed::{Closed, Closing};
use crate::segment::nonce;
use crate::{
    AdapterTrouble, Address, Connecting, Connection, Endpoint, Layout, PeerState, Service, Transport,
    TransportError,
};
use attendant::Attendant;
pub use choice::Near;
use ends::{Ends, Memory, memory as mailboxes};
use events::Watch;
use line::Line;
use meeting::Meeting;
use memory::{Devices, Registrations};
use message::{LANE_BYTES, LANES_MAX, PORTS_MAX, Place, QueuePlace};
use one::{One, OneConnection};
pub use options::{Addresses, DeviceLevel, MemoryUse, PortFilter, RdmaOptions, RelaxedOrdering, Travel};
use port::{Domain, Port, Region, Written};
use queue::Queue;
pub use rated::RatedPort;
use search::Search;
use session::{Beginning, Session, SessionConnecting, Sessions};
use sysfs::Sysfs;

const NAME: &str = "verbs";

/// The transport of a rank over the best of its ports.
pub struct Verbs {
    shared: Arc<Shared>,
    service: Arc<Attendant>,
}

struct Shared {
    /// What all connections may use, of each port: memory is registered once, however many of them write from it.
    domains: Arc<[Arc<Domain>]>,
    /// Memory of programs that each of them knows.
    registrations: Arc<[Registrations]>,
    /// Memory of devices by the first.
    devices: Devices,
    /// Queue pairs of an endpoint: the port of each, and whether it is a reserve.
    lanes: Vec<(usize, bool)>,
    /// Connections that were closed before everything had arrived.
    closed: Arc<Closed<Box<dyn Closing>>>,
    sessions: Arc<Sessions>,
}

impl Shared {
    fn is_forked_child(&self) -> bool {
        self.domains[0].port.stamp.is_forked_child()
    }

    /// # Errors
    /// That this is a forked child.
    fn check_fork(&self) -> Result<(), TransportError> {
        self.domains[0].port.check_fork()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Verbs {
    /// Over the best ports of this system.
    ///
    /// # Errors
    /// As of [`Verbs::near`].
    pub fn new() -> Result<Self, TransportError> {
        Self::near(&RdmaOptions::default(), &Near::default())
    }

    /// Over the ports of this system that are asked for and best for a rank in this place.
    ///
    /// # Errors
    /// Why there is none ([`AdapterTrouble`]), or the system's.
    pub fn near(options: &RdmaOptions, near: &Near) -> Result<Self, TransportError> {
        let functions = library::functions().map_err(|trouble| TransportError::adapter(NAME, trouble))?;
        let sysfs = &Sysfs::system();
        let module = sysfs.peer_memory_module();
        Self::over(
            &Search { functions, sysfs, options, near }.ports()?,
            options.queue_pairs,
            near.ranks,
            module,
        )
    }

    /// Whether it is a forked child's copy, which must not be used.
    pub fn is_forked_child(&self) -> bool {
        self.shared.is_forked_child()
    }

    /// Whether one of its devices has failed as a whole, and has to be opened again.
    pub fn has_failed(&self) -> bool {
        self.shared.domains.iter().any(|domain| events::has_failed(domain.port.opened()))
    }

    /// Over those of these ports that one of as many ranks in this place takes, with as many queue pairs by each, where this module joins
    /// adapters and memory of devices.
    fn over(
        ports: &[Arc<Port>],
        queue_pairs: u16,
        ranks: usize,
        module: Option<&'static str>,
    ) -> Result<Self, TransportError> {
        let mut devices: Vec<Arc<port::Opened>> = Vec::new();
        for port in ports {
            if !devices.iter().any(|device| Arc::ptr_eq(device, port.opened())) {
                devices.push(Arc::clone(port.opened()));
            }
        }
        if ports.is_empty() {
            let ports = "there is none".into();
            return Err(TransportError::adapter(NAME, AdapterTrouble::NoActivePort { ports }));
        }
        let standings: Vec<_> = ports.iter().map(|port| &port.standing).collect();
        let shares = choice::share(&standings, ranks, PORTS_MAX);
        let domain = |(at, _): &(usize, bool)| Domain::new(&ports[*at]);
        let domains: Arc<[Arc<Domain>]> = shares.iter().map(domain).collect::<Result<_, _>>()?;
        // Each port has as many, also where all together would be more than a connection has.
        let reserves = shares.iter().filter(|(_, is_reserve)| *is_reserve).count();
        let most = (LANES_MAX - reserves) / (shares.len() - reserves);
        let mut lanes = Vec::new();
        for (number, (at, is_reserve)) in shares.iter().enumerate() {
            let port = &ports[*at];
            tracing::debug!(device = port.device, port = port.number, reach = ?port.reach, is_reserve, "RDMA by this port");
            let count = if *is_reserve { 1 } else { usize::from(queue_pairs).clamp(1, most) };
            lanes.extend(std::iter::repeat_n((number, *is_reserve), count));
        }
        let (closed, sessions) = (Closed::new(NAME)?, Sessions::new()?);
        let parts: [Arc<dyn Service>; 3] = [Arc::new(Watch::new(devices)?), closed.clone(), sessions.clone()];
        let service = Arc::new(Attendant::new(parts)?);
        let registrations = domains.iter().map(Registrations::new).collect();
        let devices = Devices::new(&domains[0], module);
        let shared = Arc::new(Shared { domains, registrations, devices, lanes, closed, sessions });
        Ok(Verbs { shared, service })
    }
}

impl Transport for Verbs {
    fn name(&self) -> &'static str {
        NAME
    }

    fn endpoint(&self, layout: Layout) -> Result<Box<dyn Endpoint>, TransportError> {
        let shared = &self.shared;
        shared.check_fork()?;
        shared.closed.tidy();
        shared.registrations.iter().for_each(Registrations::tidy);
        shared.devices.tidy(&shared.registrations[0]);
        let room = (shared.lanes.len(), layout.mailbox_bytes);
        let own = mailboxes(&shared.domains, room, layout.node, Written::ByPeer)?;
        let queue = |(port, _): &(usize, bool)| Queue::new(&shared.domains[*port]);
        let queues = shared.lanes.iter().map(queue).collect::<Result<Vec<_>, _>>()?;
        let lanes = shared.lanes.iter().zip(&queues);
        let place = Place {
            nonce: nonce(NAME)?,
            start: own.address(0),
            mailbox_bytes: (own.bytes() - room.0 * LANE_BYTES) as u64,
            ports: (0..).zip(&*shared.domains).map(|(at, of)| (of.port.reach, own.keys(at).1)).collect(),
            queues: lanes
                .map(|((port, is_reserve), queue)| QueuePlace {
                    port: *port,
                    is_reserve: *is_reserve,
                    number: queue.number(),
                })
                .collect(),
        };
        let address = Address { transport: NAME.into(), bytes: place.encode() };
        let shared = Arc::clone(shared);
        Ok(Box::new(VerbsEndpoint { shared, address, place, layout, queues, own }))
    }

    fn gains_by_turns(&self) -> bool {
        true
    }

    fn service(&self) -> Option<Arc<dyn Service>> {
        Some(self.service.clone())
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if self.is_forked_child() {
            self.closed.abandon();
        } else {
            self.closed.finish();
        }
    }
}

struct VerbsEndpoint {
    shared: Arc<Shared>,
    address: Address,
    place: Place,
    layout: Layout,
    /// Before the memory that they write.
    queues: Vec<Queue>,
    own: Arc<Region>,
}

impl Endpoint for VerbsEndpoint {
    fn address(&self) -> &Address {
        &self.address
    }

    fn connect(self: Box<Self>, peer: &Address) -> Result<Box<dyn Connecting>, TransportError> {
        let bad = |reason| TransportError::BadAddress { transport: NAME, reason };
        let bytes = peer.bytes_for(NAME)?;
        self.shared.check_fork()?;
        let peer = Place::decode(bytes).ok_or_else(|| bad("it is not one of an RDMA endpoint"))?;
        if peer.nonce == self.place.nonce {
            return Err(bad("it is this endpoint's own"));
        }
        let Self { shared, place, layout, queues, own, .. } = *self;
        let calls = layout.calls.unwrap_or(place.nonce < peer.nonce);
        let pairs = if calls { pairs(&place, &peer) } else { turned(pairs(&peer, &place)) };
        let first = &shared.domains[0];
        if pairs.is_empty() {
            let trouble = gid::no_way(&first.port, &peer.ports[0].0);
            let why = "none of its ports can be reached from here";
            return Err(trouble.map_or(bad(why), |trouble| TransportError::adapter(NAME, trouble)));
        }
        let trays = [place.queues.len(), peer.queues.len()];
        let room = (trays[1], peer.mailbox_bytes as usize);
        let memory = Memory { own, theirs: mailboxes(&shared.domains, room, None, Written::Here)? };
        let mut queues: Vec<Option<Queue>> = queues.into_iter().map(Some).collect();
        let mut lanes = pairs.iter().filter_map(|&[own, other]| {
            let facts = [calls, pairs.len() == 1, layout.is_in_turn];
            let ends = Ends::of([&place, &peer], [own, other], facts);
            let is_reserve = place.queues[own].is_reserve;
            Some(Beginning { queue: queues[own].take()?, ends, is_reserve })
        });
        if pairs.len() > 1 {
            let domains = Arc::clone(&shared.domains);
            let known = Arc::clone(&shared.registrations);
            let session = Session::new(lanes.collect(), (domains, known), memory, trays, calls)?;
            return Ok(Box::new(SessionConnecting::new(shared, session)));
        }
        let Beginning { queue, ends, .. } = lanes.next().ok_or_else(|| bad("it has no queue pair"))?;
        let one = One::new(Line::new(queue, memory.clone(), ends)?, memory, trays);
        let meeting = Meeting::new(layout.is_in_turn);
        Ok(Box::new(OneConnecting { shared, one: Some(one), meeting, is_woken: false }))
    }
}

/// Which queue pairs of the side that calls and of the other belong together: those of ports that can reach each other, of addresses that
/// have most in common; and reserves with reserves.
fn pairs(caller: &Place, callee: &Place) -> Vec<[usize; 2]> {
    let mut free = vec![true; callee.queues.len()];
    let mut pairs = Vec::new();
    for (one, queue) in caller.queues.iter().enumerate() {
        let near = &caller.ports[queue.port].0;
        let fit = |other: usize| {
            let there = callee.queues[other];
            let far = &callee.ports[there.port].0;
            (there.is_reserve == queue.is_reserve, near.gid.in_common(&far.gid), std::cmp::Reverse(other))
        };
        let can = |other: &usize| free[*other] && near.reaches(&callee.ports[callee.queues[*other].port].0);
        if let Some(other) = (0..callee.queues.len()).filter(can).max_by_key(|other| fit(*other)) {
            free[other] = false;
            pairs.push([one, other]);
        }
    }
    pairs
}

fn turned(pairs: Vec<[usize; 2]>) -> Vec<[usize; 2]> {
    pairs.into_iter().map(|[one, other]| [other, one]).collect()
}

/// A connection by one queue pair on its way.
struct OneConnecting {
    shared: Arc<Shared>,
    /// Until it is the connection's.
    one: Option<One>,
    meeting: Meeting,
    /// Whether it goes on when something comes, and so does not need to be looked at soon.
    is_woken: bool,
}

impl Connecting for OneConnecting {
    fn poll(&mut self) -> Result<Poll<Box<dyn Connection>>, TransportError> {
        loop {
            let Some(one) = &mut self.one else { return Err(TransportError::PeerClosed { transport: NAME }) };
            one.line.queue.port().check_fork()?;
            let heard = if self.meeting.is_stopped() { Ok(PeerState::Open) } else { one.hear() };
            let meeting = &mut self.meeting;
            let has_met = one.with(|line, take| meeting.go_on(line, heard, take))?;
            if has_met {
                break;
            }
            self.is_woken = !one.line.calls() || meeting.is_listening();
            // What has come meanwhile has announced nothing.
            if !self.is_woken || one.with(|line, take| line.arm(take))? {
                return Ok(Poll::Pending);
            }
        }
        let one = self.one.take().ok_or(TransportError::PeerClosed { transport: NAME })?;
        Ok(Poll::Ready(Box::new(OneConnection::new(Arc::clone(&self.shared), one))))
    }

    fn ring_at(&mut self, _waker: u64) -> bool {
        self.is_woken
    }

    fn wake(&self) -> Option<(BorrowedFd<'_>, bool)> {
        let line = self.one.as_ref().map(|one| &one.line).filter(|_| self.is_woken)?;
        Some((line.queue.descriptor(), false))
    }
}

#[cfg(test)]
mod tests;
