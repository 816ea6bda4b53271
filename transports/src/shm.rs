//! Connections between processes of one user on one machine: memory files handed over through Unix sockets.
//!
//! Invariant: a segment reaches exactly the process that shows its endpoint's nonce and belongs to this user, and
//! is used only after the nonce was read back through the mapping. Nothing has a name in a file system, so a
//! crash leaves nothing behind, and a container's small `/dev/shm` does not matter. Absent: noticing that a peer
//! was killed (its memory stays; who watches processes says so), and threads.

#[cfg(all(test, feature = "fuzzing"))]
mod fuzz;

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::task::Poll;

use consort_memory::{ForkStamp, Mapping};

use crate::fields::Fields;
use crate::handover::{Desk, Fetching, Offer, Takers};
use crate::mapped::{MappedConnection, OwnSegment};
use crate::segment::{self, Nonce, Segment};
use crate::{
    Address, Connecting, Connection, Endpoint, Layout, MemoryLender, Service, Transport, TransportError,
};

const NAME: &str = "shm";

/// The transport between processes that share memory.
#[derive(Clone, Debug)]
pub struct Shm {
    desk: Desk,
    stamp: Arc<ForkStamp>,
}

impl Shm {
    /// A listener for this process, in the abstract namespace.
    ///
    /// # Errors
    /// [`TransportError::System`] when the system refuses a socket, a page or randomness.
    pub fn new() -> Result<Self, TransportError> {
        let stamp = ForkStamp::new().map_err(|error| TransportError::memory(NAME, error))?;
        Ok(Self { desk: Desk::new(NAME)?, stamp: Arc::new(stamp) })
    }
}

impl MemoryLender for Shm {
    fn desk(&self) -> &Desk {
        &self.desk
    }
}

impl Transport for Shm {
    fn name(&self) -> &'static str {
        NAME
    }

    fn endpoint(&self, layout: Layout) -> Result<Box<dyn Endpoint>, TransportError> {
        let bytes = Segment::bytes(layout, NAME)?;
        let mut mapping = Mapping::memfd_on(c"consort-mailbox", bytes, layout.node)
            .map_err(|error| TransportError::memory(NAME, error))?;
        segment::say_misplaced(&mapping, layout);
        let file = mapping.take_fd().expect("a memory file was just made");
        let offer = self.desk.offer(file, Takers::One)?;
        let segment = Segment::create(mapping, offer.nonce());
        // The listener's name, the endpoint's nonce, the segment's size.
        let address = [&self.desk.name()[..], offer.nonce(), &(bytes as u64).to_le_bytes()].concat();
        Ok(Box::new(ShmEndpoint {
            address: Address { transport: NAME.into(), bytes: address },
            offer,
            own: OwnSegment::new(segment, Arc::clone(&self.stamp)),
        }))
    }

    fn service(&self) -> Option<Arc<dyn Service>> {
        Some(Arc::new(self.desk.clone()))
    }
}

#[derive(Debug)]
struct ShmEndpoint {
    address: Address,
    offer: Offer,
    own: OwnSegment,
}

impl Endpoint for ShmEndpoint {
    fn address(&self) -> &Address {
        &self.address
    }

    fn connect(self: Box<Self>, peer: &Address) -> Result<Box<dyn Connecting>, TransportError> {
        let bad = |reason| TransportError::BadAddress { transport: NAME, reason };
        let mut fields = Fields(peer.bytes_for(NAME)?);
        let mut read = || Some((fields.take()?, fields.take()?, fields.u64()?));
        let read = read().filter(|_| fields.0.is_empty());
        let (name, nonce, size): (Nonce, Nonce, u64) = read.ok_or_else(|| bad("it has the wrong length"))?;
        if nonce == *self.offer.nonce() {
            return Err(bad("it is this endpoint's own"));
        }
        let segment_bytes = usize::try_from(size)
            .ok()
            .filter(|&bytes| bytes >= Segment::bytes(Layout::new(0), NAME).unwrap_or(0));
        Ok(Box::new(ShmConnecting {
            nonce,
            segment_bytes: segment_bytes.ok_or_else(|| bad("it names an impossible size"))?,
            offer: self.offer,
            own: Some(self.own),
            stage: Stage::Fetching(Fetching::new(NAME, name, nonce)),
        }))
    }
}

#[derive(Debug)]
enum Stage {
    /// The peer's memory is to be fetched.
    Fetching(Fetching),
    /// Its memory is here; ours is to be fetched.
    Mapped(Segment),
    Done,
}

#[derive(Debug)]
struct ShmConnecting {
    nonce: Nonce,
    segment_bytes: usize,
    offer: Offer,
    own: Option<OwnSegment>,
    stage: Stage,
}

impl Connecting for ShmConnecting {
    fn poll(&mut self) -> Result<Poll<Box<dyn Connection>>, TransportError> {
        // The peer may be waiting for us, and it may be this very process.
        self.offer.desk().serve();
        loop {
            self.stage = match std::mem::replace(&mut self.stage, Stage::Done) {
                Stage::Fetching(mut fetching) => match fetching.poll()? {
                    Poll::Ready(file) => {
                        let mapping = Mapping::from_fd(file.as_fd(), self.segment_bytes)
                            .map_err(|error| TransportError::memory(NAME, error))?;
                        Stage::Mapped(Segment::open(mapping, &self.nonce, NAME)?)
                    }
                    Poll::Pending => {
                        self.stage = Stage::Fetching(fetching);
                        return Ok(Poll::Pending);
                    }
                },
                Stage::Mapped(peer) => {
                    // In this order: a peer that fetched ours, sent and closed at once must be seen to have
                    // fetched it.
                    let closed = peer.is_closed();
                    if self.offer.is_fetched()
                        && let Some(own) = self.own.take()
                    {
                        return Ok(Poll::Ready(Box::new(MappedConnection::new(NAME, own, peer))));
                    }
                    if closed {
                        return Err(TransportError::PeerClosed { transport: NAME });
                    }
                    self.stage = Stage::Mapped(peer);
                    return Ok(Poll::Pending);
                }
                Stage::Done => return Err(TransportError::PeerClosed { transport: NAME }),
            }
        }
    }

    fn ring_at(&mut self, waker: u64) -> bool {
        match &self.stage {
            Stage::Fetching(fetching) => fetching.wake().is_some(),
            Stage::Mapped(_) => {
                self.offer.ring_at(waker);
                true
            }
            Stage::Done => false,
        }
    }

    fn wake(&self) -> Option<(BorrowedFd<'_>, bool)> {
        match &self.stage {
            Stage::Fetching(fetching) => fetching.wake().map(|socket| (socket, false)),
            Stage::Mapped(_) | Stage::Done => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use consort_memory::Waker;

    use super::*;

    /// How the kernel places the memory of this process's mailboxes.
    fn policies() -> Option<Vec<String>> {
        let maps = std::fs::read_to_string("/proc/self/numa_maps").ok()?;
        let mailboxes = maps.lines().filter(|line| line.contains("consort-mailbox"));
        Some(mailboxes.filter_map(|line| line.split(' ').nth(1).map(str::to_owned)).collect())
    }

    #[test]
    fn a_mailbox_lies_on_its_readers_node_if_that_is_told() {
        let shm = Shm::new().expect("a desk");
        if policies().is_none() || Mapping::anonymous_on(4096, Some(0)).expect("memory").misplaced().is_some()
        {
            return eprintln!("SKIP: this process may not place memory, or not see where it is");
        }
        let placed = || policies().expect("they were there").contains(&"prefer:0".to_owned());
        let layout = Layout::new(4096);
        let free = shm.endpoint(layout).expect("an endpoint");
        assert!(!placed());
        let on_node = shm.endpoint(layout.on(Some(0))).expect("an endpoint");
        assert!(placed());
        // A node that is not there does no harm.
        let wrong = shm.endpoint(layout.on(Some(1023))).expect("an endpoint");
        drop((free, on_node, wrong));
        assert!(!placed());
    }
    /// What a side waits for, while the other is late, ends its sleep: the answer of the other's desk, or that its own
    /// memory is fetched.
    #[test]
    fn a_side_that_waits_is_woken_when_it_can_go_on() {
        let ready = |wake: BorrowedFd<'_>| {
            let mut polled = [nix::poll::PollFd::new(wake, nix::poll::PollFlags::POLLIN)];
            nix::poll::poll(&mut polled, nix::poll::PollTimeout::ZERO) == Ok(1)
        };
        let [near, far] = [(); 2].map(|()| Shm::new().expect("a desk"));
        let waker = Waker::new().expect("a socket");
        let [here, there] = [&near, &far].map(|shm| shm.endpoint(Layout::new(4096)).expect("an endpoint"));
        let addresses = [&there, &here].map(|endpoint| endpoint.address().clone());
        let mut here = here.connect(&addresses[0]).expect("a peer's");
        assert!(!here.ring_at(waker.name()) && here.wake().is_none(), "it has not called yet");
        assert!(here.poll().expect("the desk is there").is_pending());
        assert!(here.ring_at(waker.name()) && !here.wake().is_some_and(|(wake, _)| ready(wake)));
        far.desk().serve();
        assert!(here.wake().is_some_and(|(wake, sends)| ready(wake) && !sends), "it is answered");
        assert!(here.poll().expect("it is answered").is_pending(), "its own memory is not fetched");
        assert!(here.ring_at(waker.name()) && here.wake().is_none() && !waker.clear());
        let mut there = there.connect(&addresses[1]).expect("a peer's");
        assert!(there.poll().expect("the desk is there").is_pending());
        near.desk().serve();
        assert!(waker.clear(), "its memory was handed over");
        assert!(here.ring_at(waker.name()) && waker.clear(), "it may have looked before that");
        assert!(here.poll().expect("both are there").is_ready());
        assert!(there.poll().expect("both are there").is_ready());
    }
}
