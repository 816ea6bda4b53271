//! Connections inside one process.
//!
//! Invariant: endpoints find each other by nonce in the registry of one [`Loopback`] object; a segment is in the
//! registry from its making until the peer took it or its owner gave up, and a connection is established once
//! both were taken. Absent: anything the system would have to know.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;

use consort_memory::{ForkStamp, Mapping, Waker};

use crate::mapped::{MappedConnection, OwnSegment};
use crate::segment::{self, NONCE_BYTES, Nonce, Segment, nonce};
use crate::{Address, Connecting, Connection, Endpoint, Layout, Transport, TransportError};

const NAME: &str = "loopback";

/// The transport inside one process; clones share one registry, and only their endpoints find each other.
#[derive(Clone, Debug)]
pub struct Loopback {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    /// Tells the addresses of this registry from others'.
    registry: Nonce,
    waiting: Mutex<HashMap<Nonce, Waiting>>,
    stamp: Arc<ForkStamp>,
}

/// A segment that the peer is to take, and the waker that is rung then.
#[derive(Debug)]
struct Waiting {
    segment: Segment,
    waker: Option<u64>,
}

impl Shared {
    fn waiting(&self) -> MutexGuard<'_, HashMap<Nonce, Waiting>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Loopback {
    /// A new registry.
    ///
    /// # Errors
    /// [`TransportError`] when the system has no page or no randomness left.
    pub fn new() -> Result<Self, TransportError> {
        let stamp = ForkStamp::new().map_err(|error| TransportError::memory(NAME, error))?;
        let shared = Shared { registry: nonce(NAME)?, waiting: Mutex::default(), stamp: Arc::new(stamp) };
        Ok(Self { shared: Arc::new(shared) })
    }
}

impl Transport for Loopback {
    fn name(&self) -> &'static str {
        NAME
    }

    fn endpoint(&self, layout: Layout) -> Result<Box<dyn Endpoint>, TransportError> {
        let nonce = nonce(NAME)?;
        let mapping = Mapping::anonymous_on(Segment::bytes(layout, NAME)?, layout.node)
            .map_err(|error| TransportError::memory(NAME, error))?;
        segment::say_misplaced(&mapping, layout);
        let segment = Segment::create(mapping, &nonce);
        self.shared.waiting().insert(nonce, Waiting { segment: segment.share(), waker: None });
        let bytes = [self.shared.registry, nonce].concat();
        Ok(Box::new(LoopbackEndpoint {
            address: Address { transport: NAME.into(), bytes },
            registration: Registration { shared: Arc::clone(&self.shared), nonce },
            own: OwnSegment::new(segment, Arc::clone(&self.shared.stamp)),
        }))
    }
}

/// An entry in the registry; withdrawn on drop.
#[derive(Debug)]
struct Registration {
    shared: Arc<Shared>,
    nonce: Nonce,
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.shared.waiting().remove(&self.nonce);
    }
}

#[derive(Debug)]
struct LoopbackEndpoint {
    address: Address,
    registration: Registration,
    own: OwnSegment,
}

impl Endpoint for LoopbackEndpoint {
    fn address(&self) -> &Address {
        &self.address
    }

    fn connect(self: Box<Self>, peer: &Address) -> Result<Box<dyn Connecting>, TransportError> {
        let bad = |reason| TransportError::BadAddress { transport: NAME, reason };
        let bytes: &[u8; 2 * NONCE_BYTES] =
            peer.bytes_for(NAME)?.try_into().map_err(|_| bad("it has the wrong length"))?;
        let (registry, nonce) = bytes.split_at(NONCE_BYTES);
        if registry != self.registration.shared.registry {
            return Err(bad("it belongs to another registry"));
        }
        let nonce: Nonce = nonce.try_into().expect("the other half");
        if nonce == self.registration.nonce {
            return Err(bad("it is this endpoint's own"));
        }
        // Taken at once: an address of this registry that is not there is of an endpoint that is gone.
        let taken = self.registration.shared.waiting().remove(&nonce);
        let Waiting { segment: peer, waker } = taken.ok_or(TransportError::PeerClosed { transport: NAME })?;
        waker.into_iter().for_each(Waker::ring);
        Ok(Box::new(LoopbackConnecting { registration: self.registration, ends: Some((self.own, peer)) }))
    }
}

#[derive(Debug)]
struct LoopbackConnecting {
    registration: Registration,
    /// Until they become the connection.
    ends: Option<(OwnSegment, Segment)>,
}

impl Connecting for LoopbackConnecting {
    fn poll(&mut self) -> Result<Poll<Box<dyn Connection>>, TransportError> {
        // In this order: a peer that took ours, sent and closed at once must be seen to have taken it.
        let closed = self.ends.as_ref().is_none_or(|(_, peer)| peer.is_closed());
        let taken = !self.registration.shared.waiting().contains_key(&self.registration.nonce);
        if !taken {
            return if closed {
                Err(TransportError::PeerClosed { transport: NAME })
            } else {
                Ok(Poll::Pending)
            };
        }
        let (own, peer) = self.ends.take().ok_or(TransportError::PeerClosed { transport: NAME })?;
        Ok(Poll::Ready(Box::new(MappedConnection::new(NAME, own, peer))))
    }

    fn ring_at(&mut self, waker: u64) -> bool {
        match self.registration.shared.waiting().get_mut(&self.registration.nonce) {
            Some(waiting) => waiting.waker = Some(waker),
            None => Waker::ring(waker),
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Layout;

    #[test]
    fn a_side_that_waits_is_rung_when_the_other_comes() {
        let loopback = Loopback::new().expect("a registry");
        let waker = Waker::new().expect("a socket");
        let [here, there] = [(); 2].map(|()| loopback.endpoint(Layout::new(64)).expect("an endpoint"));
        let addresses = [&there, &here].map(|endpoint| endpoint.address().clone());
        let mut here = here.connect(&addresses[0]).expect("a peer's");
        assert!(here.poll().expect("it is there").is_pending() && here.ring_at(waker.name()));
        assert!(!waker.clear());
        let mut there = there.connect(&addresses[1]).expect("a peer's");
        assert!(waker.clear(), "the other has come");
        assert!(here.ring_at(waker.name()) && waker.clear(), "it may have looked before that");
        assert!(here.poll().expect("both are there").is_ready());
        assert!(there.poll().expect("both are there").is_ready());
    }
}
