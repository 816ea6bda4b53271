//! Connections between machines: one TCP stream each, messages only.
//!
//! Invariant: a stream carries frames only after both sides proved that they know the key, and that they mean this very
//! pair of endpoints; until then a stranger costs what [`crate::reception`] allows. One side connects, as
//! [`Layout::calls`] says, or else the one with the smaller nonce; the other accepts. Absent: encryption (the key keeps
//! strangers and mistakes out, not an attacker who rewrites packets on the way), finding out that a machine vanished
//! without a word, threads.

#[cfg(all(test, feature = "fuzzing"))]
mod fuzz;
mod handshake;
mod linger;
mod listener;
mod stream;

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::task::Poll;

use consort_memory::{ForkStamp, Mapping, Waker};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockType, SockaddrStorage, bind, connect, getsockopt, send,
    setsockopt, socket, sockopt,
};

use crate::fields::Fields;
use crate::reception::read_exactly;
use crate::segment::{Nonce, nonce};
use crate::{Address, Connecting, Connection, Endpoint, Layout, Service, Transport, TransportError};

use handshake::{ANSWER_BYTES, Key, Verdict};
use listener::Expected;
pub use listener::Listener;
use stream::TcpConnection;

const NAME: &str = "tcp";
/// How often to call again when the peer hung up without an answer (a crowd may have pushed us out).
const ATTEMPTS_MAX: usize = 4;

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
        let expected = Expected { job: self.shared.key.job, caller: None, waker: None };
        self.shared.listener.desk().expected.insert(nonce, expected);
        let place =
            Place { socket: self.shared.listener.here, nonce, mailbox_bytes: layout.mailbox_bytes as u64 };
        Ok(Box::new(TcpEndpoint {
            address: Address { transport: NAME.into(), bytes: place.encode() },
            expectation: Expectation { shared: Arc::clone(&self.shared), nonce },
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
#[derive(Debug)]
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
    shared: Arc<Shared>,
    nonce: Nonce,
}

impl Drop for Expectation {
    fn drop(&mut self) {
        self.shared.listener.desk().expected.remove(&self.nonce);
    }
}

#[derive(Debug)]
struct TcpEndpoint {
    address: Address,
    expectation: Expectation,
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
        let here = self.expectation.shared.listener.here;
        if peer.nonce == self.expectation.nonce {
            return Err(bad("it is this endpoint's own"));
        }
        if peer.socket.is_ipv4() != here.is_ipv4() {
            return Err(bad("one side uses IPv4 and the other IPv6"));
        }
        let peer_mailbox_bytes =
            usize::try_from(peer.mailbox_bytes).map_err(|_| bad("it names an impossible size"))?;
        let calls = self.calls.unwrap_or(self.expectation.nonce < peer.nonce);
        let stage = if calls { Stage::Calling } else { Stage::Expecting };
        Ok(Box::new(TcpConnecting {
            expectation: self.expectation,
            peer,
            peer_mailbox_bytes,
            mailbox: Some(self.mailbox),
            stage,
            attempts: 0,
        }))
    }
}

#[derive(Debug)]
enum Stage {
    /// To call (again).
    Calling,
    /// The system is connecting.
    Dialling(OwnedFd),
    /// Our proof was sent; theirs is to come.
    Asked(OwnedFd, Vec<u8>),
    /// The peer is to call.
    Expecting,
    Done,
}

#[derive(Debug)]
struct TcpConnecting {
    expectation: Expectation,
    peer: Place,
    peer_mailbox_bytes: usize,
    mailbox: Option<Mapping>,
    stage: Stage,
    attempts: usize,
}

impl Connecting for TcpConnecting {
    fn poll(&mut self) -> Result<Poll<Box<dyn Connection>>, TransportError> {
        // Peers of other endpoints may be waiting, and ours may be in this very thread.
        self.expectation.shared.listener.serve();
        loop {
            let (next, pending) = match std::mem::replace(&mut self.stage, Stage::Done) {
                Stage::Calling => (Stage::Dialling(self.dial()?), false),
                Stage::Dialling(socket) => match self.dialled(&socket)? {
                    Poll::Pending => (Stage::Dialling(socket), true),
                    Poll::Ready(()) => {
                        let hello = self.shared().key.hello(&self.expectation.nonce, &self.peer.nonce);
                        match send_small(&socket, &hello) {
                            Ok(()) => (Stage::Asked(socket, Vec::with_capacity(ANSWER_BYTES)), false),
                            Err(_) => (self.call_again()?, true),
                        }
                    }
                },
                Stage::Asked(socket, mut answer) => match read_exactly(&socket, &mut answer, ANSWER_BYTES) {
                    Ok(Poll::Pending) => (Stage::Asked(socket, answer), true),
                    Ok(Poll::Ready(())) => return self.answered(socket, &answer),
                    Err(_) => (self.call_again()?, true),
                },
                Stage::Expecting => match self.take_caller() {
                    Some(socket) => return self.established(socket),
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
        let mut desk = self.shared().listener.desk();
        if let Some(expected) = desk.expected.get_mut(&self.expectation.nonce) {
            expected.waker = Some(waker);
            if expected.caller.is_some() {
                Waker::ring(waker);
            }
        }
        // Nothing rings for a call that is to be made again, and there is no descriptor yet.
        !matches!(self.stage, Stage::Calling)
    }

    fn wake(&self) -> Option<(BorrowedFd<'_>, bool)> {
        match &self.stage {
            Stage::Dialling(socket) => Some((socket.as_fd(), true)),
            Stage::Asked(socket, _) => Some((socket.as_fd(), false)),
            Stage::Calling | Stage::Expecting | Stage::Done => None,
        }
    }

    fn waits_for(&self) -> Option<String> {
        let (here, there) = (self.shared().listener.here, self.peer.socket);
        Some(match self.stage {
            Stage::Calling | Stage::Dialling(_) => format!("this side calls {there}, and nothing answers"),
            Stage::Asked(..) => format!("this side called {there}, and what answered has proved nothing"),
            Stage::Expecting => format!("the peer is to call {here}, and its call has not come"),
            Stage::Done => return None,
        })
    }
}

impl TcpConnecting {
    fn shared(&self) -> &Arc<Shared> {
        &self.expectation.shared
    }

    /// Opens a socket with this side's address and starts to connect.
    fn dial(&mut self) -> Result<OwnedFd, TransportError> {
        self.attempts += 1;
        let here = self.shared().listener.here;
        let family = if here.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
        let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
        let socket =
            socket(family, SockType::Stream, flags, None).map_err(|error| system("socket", error))?;
        share_ports(&socket);
        bind(socket.as_raw_fd(), &SockaddrStorage::from(SocketAddr::new(here.ip(), 0)))
            .map_err(|error| system("bind", error))?;
        match connect(socket.as_raw_fd(), &SockaddrStorage::from(self.peer.socket)) {
            Ok(()) | Err(Errno::EINPROGRESS | Errno::EINTR) => Ok(socket),
            Err(error) => Err(self.unreachable(error)),
        }
    }

    fn dialled(&self, socket: &OwnedFd) -> Result<Poll<()>, TransportError> {
        let mut polled = [PollFd::new(socket.as_fd(), PollFlags::POLLOUT)];
        match poll(&mut polled, PollTimeout::ZERO) {
            Ok(0) | Err(Errno::EINTR) => return Ok(Poll::Pending),
            Ok(_) => {}
            Err(error) => return Err(system("poll", error)),
        }
        match getsockopt(socket, sockopt::SocketError).map_err(|error| system("getsockopt", error))? {
            0 => Ok(Poll::Ready(())),
            error => Err(self.unreachable(Errno::from_raw(error))),
        }
    }

    fn unreachable(&self, error: Errno) -> TransportError {
        TransportError::Unreachable {
            transport: NAME,
            address: self.peer.socket.to_string(),
            source: error.into(),
        }
    }

    fn call_again(&self) -> Result<Stage, TransportError> {
        if self.attempts < ATTEMPTS_MAX {
            return Ok(Stage::Calling);
        }
        Err(TransportError::Unauthorised {
            transport: NAME,
            what: "the peer hung up without proving anything",
        })
    }

    fn answered(
        &mut self,
        socket: OwnedFd,
        answer: &[u8],
    ) -> Result<Poll<Box<dyn Connection>>, TransportError> {
        match self.shared().key.check_answer(answer, &self.expectation.nonce, &self.peer.nonce) {
            Some(Verdict::Welcome) => self.established(socket),
            Some(Verdict::Gone) => Err(TransportError::PeerClosed { transport: NAME }),
            None => Err(TransportError::Unauthorised {
                transport: NAME,
                what: "the listener at the peer's address does not know the key",
            }),
        }
    }

    /// The peer's socket, if it called; it hears that it is welcome.
    fn take_caller(&self) -> Option<OwnedFd> {
        let caller =
            self.shared().listener.desk().expected.get_mut(&self.expectation.nonce)?.caller.take()?;
        if caller.nonce != self.peer.nonce {
            tracing::debug!(transport = NAME, "turned a caller away: it is not the endpoint's peer");
            return None;
        }
        let answer = self.shared().key.answer(Verdict::Welcome, &caller.nonce, &self.expectation.nonce);
        // If it went meanwhile, it may call again.
        send_small(&caller.socket, &answer).ok().map(|()| caller.socket)
    }

    fn established(&mut self, socket: OwnedFd) -> Result<Poll<Box<dyn Connection>>, TransportError> {
        setsockopt(&socket, sockopt::TcpNoDelay, &true).map_err(|error| system("setsockopt", error))?;
        let mailbox = self.mailbox.take().ok_or(TransportError::PeerClosed { transport: NAME })?;
        let shared = Arc::clone(self.shared());
        Ok(Poll::Ready(Box::new(TcpConnection::new(socket, mailbox, self.peer_mailbox_bytes, shared))))
    }
}

/// Lets the port be chosen when the destination is known, so that many connections can share it. A hint.
fn share_ports(socket: &OwnedFd) {
    let on: libc::c_int = 1;
    // SAFETY: the option takes an int, which lives during the call.
    unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_IP,
            libc::IP_BIND_ADDRESS_NO_PORT,
            (&raw const on).cast(),
            size_of_val(&on) as libc::socklen_t,
        )
    };
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
