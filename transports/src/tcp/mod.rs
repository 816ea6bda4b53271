//! Connections between machines: a session each, on TCP sockets that are replaced when they break.
//!
//! Invariant: a socket carries frames only after both sides proved that they know the key, and that they mean this very
//! pair of endpoints; until then a stranger costs what [`crate::reception`] allows. One side connects, as
//! [`Layout::calls`] says, or else the one with the smaller nonce; the other accepts. Absent: encryption (the key keeps
//! strangers and mistakes out, not an attacker who rewrites packets on the way), finding out that a machine vanished
//! without a word, threads.

mod call;
mod connection;
#[cfg(all(test, feature = "fuzzing"))]
mod fuzz;
mod handshake;
mod linger;
mod listener;
mod session;
mod socket;
mod wire;

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::task::Poll;

use consort_memory::{ForkStamp, Mapping, Waker};
use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, send};

use crate::fields::Fields;
use crate::segment::{Nonce, nonce};
use crate::streams::Path;
use crate::{Address, Connecting, Connection, Endpoint, Layout, Service, Transport, TransportError};

use call::{Call, CallError};
use connection::TcpConnection;
use handshake::{Key, Meeting, Verdict};
pub use listener::Listener;
use listener::{Caller, Expected};
use session::Beginning;

const NAME: &str = "tcp";
/// How often to call again when the peer hung up without an answer (a crowd may have pushed us out).
const ATTEMPTS_MAX: u32 = 4;

fn system(call: &'static str, error: Errno) -> TransportError {
    TransportError::system(NAME, call, error)
}

/// The transport between machines, of one job at one address.
#[derive(Clone, Debug)]
pub struct Tcp {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    listener: Arc<Listener>,
    key: Key,
    stamp: Arc<ForkStamp>,
}

impl Tcp {
    /// A job's transport at a listener, with the key that all its peers have.
    ///
    /// # Errors
    /// The system's, when it has no page left.
    pub fn new(listener: Arc<Listener>, key: [u8; 32]) -> Result<Self, TransportError> {
        let stamp = ForkStamp::new().map_err(|error| TransportError::memory(NAME, error))?;
        let key = Key::new(key);
        listener.admit(&key);
        Ok(Self { shared: Arc::new(Shared { listener, key, stamp: Arc::new(stamp) }) })
    }
}

impl Transport for Tcp {
    fn name(&self) -> &'static str {
        NAME
    }

    fn endpoint(&self, layout: Layout) -> Result<Box<dyn Endpoint>, TransportError> {
        let nonce = nonce(NAME)?;
        let mailbox =
            Mapping::anonymous(layout.mailbox_bytes).map_err(|error| TransportError::memory(NAME, error))?;
        let expected = Expected::new(self.shared.key.job);
        self.shared.listener.desk().expected.insert(nonce, expected);
        let place =
            Place { socket: self.shared.listener.here, nonce, mailbox_bytes: layout.mailbox_bytes as u64 };
        Ok(Box::new(TcpEndpoint {
            address: Address { transport: NAME.into(), bytes: place.encode() },
            expectation: Expectation { listener: Arc::clone(&self.shared.listener), nonce },
            shared: Arc::clone(&self.shared),
            mailbox,
            calls: layout.calls,
        }))
    }

    fn service(&self) -> Option<Arc<dyn Service>> {
        Some(self.shared.listener.clone())
    }
}

/// Sends what certainly fits into an empty socket buffer.
fn send_small(socket: &OwnedFd, bytes: &[u8]) -> Result<(), Errno> {
    match send(socket.as_raw_fd(), bytes, MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL)? {
        sent if sent == bytes.len() => Ok(()),
        _ => Err(Errno::ENOBUFS),
    }
}

/// What an address says.
#[derive(Clone, Copy, Debug)]
struct Place {
    socket: SocketAddr,
    nonce: Nonce,
    mailbox_bytes: u64,
}

impl Place {
    fn encode(&self) -> Vec<u8> {
        let ip = match self.socket.ip() {
            IpAddr::V4(ip) => ip.to_ipv6_mapped(),
            IpAddr::V6(ip) => ip,
        };
        let (port, bytes) = (self.socket.port().to_le_bytes(), self.mailbox_bytes.to_le_bytes());
        [&ip.octets()[..], &port, &self.nonce, &bytes].concat()
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let mut fields = Fields(bytes);
        // IPv4 as IPv6 writes it.
        let ip = Ipv6Addr::from(fields.take::<16>()?).to_canonical();
        let port = u16::from_le_bytes(fields.take()?);
        let (nonce, mailbox_bytes) = (fields.take()?, fields.u64()?);
        fields.end()?;
        (port != 0).then_some(Self { socket: SocketAddr::new(ip, port), nonce, mailbox_bytes })
    }
}

/// An endpoint that the listener knows; forgotten on drop.
#[derive(Debug)]
struct Expectation {
    listener: Arc<Listener>,
    nonce: Nonce,
}

impl Expectation {
    /// Who called.
    fn take_callers(&self) -> Vec<Caller> {
        let mut desk = self.listener.desk();
        desk.expected
            .get_mut(&self.nonce)
            .map(|expected| std::mem::take(&mut expected.callers))
            .unwrap_or_default()
    }
}

impl Drop for Expectation {
    fn drop(&mut self) {
        self.listener.desk().expected.remove(&self.nonce);
    }
}

#[derive(Debug)]
struct TcpEndpoint {
    address: Address,
    expectation: Expectation,
    shared: Arc<Shared>,
    mailbox: Mapping,
    calls: Option<bool>,
}

impl Endpoint for TcpEndpoint {
    fn address(&self) -> &Address {
        &self.address
    }

    fn connect(self: Box<Self>, peer: &Address) -> Result<Box<dyn Connecting>, TransportError> {
        let bad = |reason| TransportError::BadAddress { transport: NAME, reason };
        let peer = Place::decode(peer.bytes_for(NAME)?).ok_or_else(|| bad("it cannot be read"))?;
        let here = self.shared.listener.here;
        if peer.nonce == self.expectation.nonce {
            return Err(bad("it is this endpoint's own"));
        }
        if peer.socket.is_ipv4() != here.is_ipv4() {
            return Err(bad("one side uses IPv4 and the other IPv6"));
        }
        usize::try_from(peer.mailbox_bytes).map_err(|_| bad("it names an impossible size"))?;
        let calls = self.calls.unwrap_or(self.expectation.nonce < peer.nonce);
        let stage = if calls { Stage::ToCall } else { Stage::Expecting };
        Ok(Box::new(TcpConnecting {
            nonce: self.expectation.nonce,
            expectation: Some(self.expectation),
            shared: self.shared,
            peer,
            mailbox: Some(self.mailbox),
            stage,
            attempts: 0,
        }))
    }
}

#[derive(Debug)]
enum Stage {
    /// To call (again).
    ToCall,
    /// A call is under way.
    Calling(Call),
    /// The peer is to call.
    Expecting,
    Done,
}

#[derive(Debug)]
struct TcpConnecting {
    expectation: Option<Expectation>,
    shared: Arc<Shared>,
    nonce: Nonce,
    peer: Place,
    mailbox: Option<Mapping>,
    stage: Stage,
    /// Calls that were made: the epoch of the one under way.
    attempts: u32,
}

impl Connecting for TcpConnecting {
    fn poll(&mut self) -> Result<Poll<Box<dyn Connection>>, TransportError> {
        // Peers of other endpoints may be waiting, and ours may be in this very thread.
        self.shared.listener.serve();
        loop {
            let (next, pending) = match std::mem::replace(&mut self.stage, Stage::Done) {
                Stage::ToCall => {
                    self.attempts += 1;
                    let call = Call::begin(self.shared.listener.here.ip(), self.peer.socket);
                    (Stage::Calling(call.map_err(|error| self.refused(error))?), false)
                }
                Stage::Calling(mut call) => match call.poll(&self.shared.key, &self.meeting()) {
                    Ok(Poll::Ready(())) => return self.established(call.into_socket(), self.meeting().path),
                    Ok(Poll::Pending) => (Stage::Calling(call), true),
                    Err(CallError::HungUp) if self.attempts < ATTEMPTS_MAX => (Stage::ToCall, true),
                    Err(error) => return Err(self.refused(error)),
                },
                Stage::Expecting => match self.take_caller() {
                    Some(caller) => return self.established(caller.socket, caller.meeting.path),
                    None => (Stage::Expecting, true),
                },
                Stage::Done => return Err(TransportError::PeerClosed { transport: NAME }),
            };
            self.stage = next;
            if pending {
                return Ok(Poll::Pending);
            }
        }
    }

    fn ring_at(&mut self, waker: u64) -> bool {
        if let Some(expected) = self.shared.listener.desk().expected.get_mut(&self.nonce) {
            expected.waker = Some(waker);
            if !expected.callers.is_empty() {
                Waker::ring(waker);
            }
        }
        // Nothing rings for a call that is to be made again, and there is no descriptor yet.
        !matches!(self.stage, Stage::ToCall)
    }

    fn wake(&self) -> Option<(BorrowedFd<'_>, bool)> {
        match &self.stage {
            Stage::Calling(call) => Some(call.wake()),
            Stage::ToCall | Stage::Expecting | Stage::Done => None,
        }
    }

    fn waits_for(&self) -> Option<String> {
        let (here, there) = (self.shared.listener.here, self.peer.socket);
        Some(match &self.stage {
            Stage::Calling(call) if call.has_asked() => {
                format!("this side called {there}, and what answered has proved nothing")
            }
            Stage::ToCall | Stage::Calling(_) => format!("this side calls {there}, and nothing answers"),
            Stage::Expecting => format!("the peer is to call {here}, and its call has not come"),
            Stage::Done => return None,
        })
    }
}

impl TcpConnecting {
    /// What the call under way means.
    fn meeting(&self) -> Meeting {
        let path = Path { number: 0, epoch: self.attempts };
        Meeting { caller: self.nonce, callee: self.peer.nonce, path }
    }

    fn refused(&self, error: CallError) -> TransportError {
        let unauthorised = |what| TransportError::Unauthorised { transport: NAME, what };
        match error {
            CallError::Unreachable(error) => TransportError::Unreachable {
                transport: NAME,
                address: self.peer.socket.to_string(),
                source: error.into(),
            },
            CallError::HungUp => unauthorised("the peer hung up without proving anything"),
            CallError::Unauthorised => {
                unauthorised("the listener at the peer's address does not know the key")
            }
            CallError::Gone => TransportError::PeerClosed { transport: NAME },
            CallError::System(error) => error,
        }
    }

    /// The peer's call, if it came; it hears that it is welcome.
    fn take_caller(&self) -> Option<Caller> {
        let callers = self.expectation.as_ref()?.take_callers();
        let (peers, others): (Vec<_>, Vec<_>) =
            callers.into_iter().partition(|caller| caller.meeting.caller == self.peer.nonce);
        if !others.is_empty() {
            tracing::debug!(transport = NAME, "turned a caller away: it is not the endpoint's peer");
        }
        let caller = peers.into_iter().next()?;
        let answer = self.shared.key.answer(Verdict::Welcome, &caller.meeting);
        // If it went meanwhile, it may call again.
        send_small(&caller.socket, &answer).ok().map(|()| caller)
    }

    fn established(
        &mut self,
        socket: OwnedFd,
        path: Path,
    ) -> Result<Poll<Box<dyn Connection>>, TransportError> {
        let gone = TransportError::PeerClosed { transport: NAME };
        let (Some(mailbox), Some(expectation)) = (self.mailbox.take(), self.expectation.take()) else {
            return Err(gone);
        };
        let beginning = Beginning {
            expectation,
            key: self.shared.key.clone(),
            peer: self.peer,
            calls: self.attempts > 0,
            mailbox: Arc::new(mailbox),
        };
        let stamp = Arc::clone(&self.shared.stamp);
        Ok(Poll::Ready(Box::new(TcpConnection::new(beginning, path, socket, stamp))))
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if !self.stamp.is_forked_child() {
            self.listener.dismiss(&self.key);
            // Not under the lock: other jobs and the control thread go on.
            let mut own = self.listener.lingering().take(self.key.job);
            own.finish();
        }
    }
}

/// A peer in the hand of a test.
#[cfg(test)]
impl Tcp {
    /// A connection on this socket, whose peer called.
    fn hostile(&self, socket: OwnedFd, mailbox_bytes: usize) -> TcpConnection {
        let nonce = nonce(NAME).expect("random bytes");
        self.shared.listener.desk().expected.insert(nonce, Expected::new(self.shared.key.job));
        let there = SocketAddr::new(self.shared.listener.here.ip(), 1);
        let beginning = Beginning {
            expectation: Expectation { listener: Arc::clone(&self.shared.listener), nonce },
            key: self.shared.key.clone(),
            peer: Place { socket: there, nonce: [1; 16], mailbox_bytes: mailbox_bytes as u64 },
            calls: false,
            mailbox: Arc::new(Mapping::anonymous(mailbox_bytes).expect("memory")),
        };
        let path = Path { number: 0, epoch: 1 };
        TcpConnection::new(beginning, path, socket, Arc::clone(&self.shared.stamp))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_that_is_to_be_made_is_looked_at_again_soon() {
        let listener =
            Arc::new(Listener::new(IpAddr::V4(std::net::Ipv4Addr::LOCALHOST)).expect("a listener"));
        let tcp = Tcp::new(listener, [1; 32]).expect("a page");
        let [caller, callee] =
            [true, false].map(|calls| tcp.endpoint(Layout::new(4096).calling(calls)).expect("an endpoint"));
        let addresses = [&caller, &callee].map(|endpoint| endpoint.address().clone());
        let mut callee = callee.connect(&addresses[0]).expect("the address of a peer");
        let mut caller = caller.connect(&addresses[1]).expect("the address of a peer");
        let waker = Waker::new().expect("a socket").name();
        assert!(callee.ring_at(waker), "its listener rings");
        assert!(!caller.ring_at(waker) && caller.wake().is_none(), "nothing rings before it has called");
        assert!(caller.poll().expect("the listener is there").is_pending());
        assert!(caller.ring_at(waker) && caller.wake().is_some());
    }
}
