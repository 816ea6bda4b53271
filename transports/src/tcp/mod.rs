//! Connections between machines: a session each, on TCP sockets that are replaced when they break.
//!
//! Invariant: a socket carries frames only after both sides proved that they know the key, and that they mean this very
//! pair of endpoints; until then a stranger costs what [`crate::reception`] allows. One side connects, as
//! [`Layout::calls`] says, or else the one with the smaller nonce; the other accepts. Absent: encryption (the key keeps
//! strangers and mistakes out, not an attacker who rewrites packets on the way), threads.

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
use std::sync::atomic::{AtomicBool, Ordering};
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
/// Listeners of a transport, and so sockets of a session, at most.
const LISTENERS_MAX: usize = 4;
/// How often to call again when the peer hung up without an answer (a crowd may have pushed us out).
const ATTEMPTS_MAX: u32 = 4;

fn system(call: &'static str, error: Errno) -> TransportError {
    TransportError::system(NAME, call, error)
}

/// The transport between machines, of one job at the addresses of its listeners.
#[derive(Clone, Debug)]
pub struct Tcp {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    /// The first is where a connection begins.
    listeners: Arc<[Arc<Listener>]>,
    key: Key,
    stamp: Arc<ForkStamp>,
}

impl Tcp {
    /// A job's transport at a listener, with the key that all its peers have.
    ///
    /// # Errors
    /// The system's, when it has no page left.
    pub fn new(listener: Arc<Listener>, key: [u8; 32]) -> Result<Self, TransportError> {
        Self::over(vec![listener], key)
    }

    /// The same at several listeners, each at an interface of its own: connections begin at the first, and have as many sockets as
    /// both sides have listeners; four at most are taken.
    ///
    /// # Errors
    /// As of [`Tcp::new`].
    ///
    /// # Panics
    /// Without a listener.
    pub fn over(mut listeners: Vec<Arc<Listener>>, key: [u8; 32]) -> Result<Self, TransportError> {
        assert!(!listeners.is_empty(), "a transport listens somewhere");
        listeners.truncate(LISTENERS_MAX);
        let stamp = ForkStamp::new().map_err(|error| TransportError::memory(NAME, error))?;
        let key = Key::new(key);
        listeners.iter().for_each(|listener| listener.admit(&key));
        Ok(Self { shared: Arc::new(Shared { listeners: listeners.into(), key, stamp: Arc::new(stamp) }) })
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
        let called = Arc::default();
        for listener in &*self.shared.listeners {
            let expected = Expected::new(self.shared.key.job, Arc::clone(&called));
            listener.desk().expected.insert(nonce, expected);
        }
        let sockets = self.shared.listeners.iter().map(|listener| listener.here).collect();
        let place = Place { sockets, nonce, mailbox_bytes: layout.mailbox_bytes as u64 };
        Ok(Box::new(TcpEndpoint {
            address: Address { transport: NAME.into(), bytes: place.encode() },
            expectation: Expectation { listeners: Arc::clone(&self.shared.listeners), nonce, called },
            shared: Arc::clone(&self.shared),
            mailbox,
            calls: layout.calls,
        }))
    }

    fn service(&self) -> Option<Arc<dyn Service>> {
        Some(self.shared.watcher().clone())
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
    /// Of the endpoint's listeners, all of one family; one at least.
    sockets: Vec<SocketAddr>,
    nonce: Nonce,
    mailbox_bytes: u64,
}

impl Place {
    fn encode(&self) -> Vec<u8> {
        let place = |socket: &SocketAddr| {
            let ip = match socket.ip() {
                IpAddr::V4(ip) => ip.to_ipv6_mapped(),
                IpAddr::V6(ip) => ip,
            };
            [&ip.octets()[..], &socket.port().to_le_bytes()].concat()
        };
        let (first, further) = self.sockets.split_at(1);
        let mut bytes = [&place(&first[0])[..], &self.nonce, &self.mailbox_bytes.to_le_bytes()].concat();
        bytes.push(further.len() as u8);
        bytes.extend(further.iter().flat_map(place));
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let mut fields = Fields(bytes);
        let mut sockets = vec![socket_of(&mut fields)?];
        let (nonce, mailbox_bytes, [further]) = (fields.take()?, fields.u64()?, fields.take()?);
        if usize::from(further) >= LISTENERS_MAX {
            return None;
        }
        for _ in 0..further {
            let socket = socket_of(&mut fields)?;
            if socket.is_ipv4() != sockets[0].is_ipv4() {
                return None;
            }
            sockets.push(socket);
        }
        fields.end()?;
        Some(Self { sockets, nonce, mailbox_bytes })
    }
}

fn socket_of(fields: &mut Fields<'_>) -> Option<SocketAddr> {
    // IPv4 as IPv6 writes it.
    let ip = Ipv6Addr::from(fields.take::<16>()?).to_canonical();
    let port = u16::from_le_bytes(fields.take()?);
    (port != 0).then(|| SocketAddr::new(ip, port))
}

/// From where to where the paths of a connection go, the first first: the others to the address that is most like their own, which is
/// likely to be of the same network.
fn ways(here: &[SocketAddr], there: &[SocketAddr]) -> Vec<(IpAddr, SocketAddr)> {
    let bits = |ip: IpAddr| match ip {
        IpAddr::V4(ip) => u128::from(ip.to_ipv6_mapped()),
        IpAddr::V6(ip) => u128::from(ip),
    };
    let mut left = there.to_vec();
    let mut ways = vec![(here[0].ip(), left.remove(0))];
    for own in &here[1..] {
        let unlike = |(_, socket): &(usize, &SocketAddr)| bits(socket.ip()) ^ bits(own.ip());
        let Some((at, _)) = left.iter().enumerate().min_by_key(unlike) else { break };
        ways.push((own.ip(), left.remove(at)));
    }
    ways
}

/// An endpoint that the listener knows; forgotten on drop.
#[derive(Debug)]
struct Expectation {
    listeners: Arc<[Arc<Listener>]>,
    nonce: Nonce,
    /// Whether a peer has called since that was looked at.
    called: Arc<AtomicBool>,
}

impl Expectation {
    fn is_called(&self) -> bool {
        self.called.load(Ordering::Acquire)
    }

    /// Who called.
    fn take_callers(&self) -> Vec<Caller> {
        self.called.store(false, Ordering::Release);
        let take = |listener: &Arc<Listener>| {
            let mut desk = listener.desk();
            desk.expected.get_mut(&self.nonce).map(|expected| std::mem::take(&mut expected.callers))
        };
        self.listeners.iter().filter_map(take).flatten().collect()
    }

    /// The listener that looks after the connection's sockets.
    fn watcher(&self) -> &Arc<Listener> {
        &self.listeners[0]
    }
}

impl Drop for Expectation {
    fn drop(&mut self) {
        for listener in &*self.listeners {
            listener.desk().expected.remove(&self.nonce);
        }
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
        let here = self.shared.watcher().here;
        if peer.nonce == self.expectation.nonce {
            return Err(bad("it is this endpoint's own"));
        }
        if peer.sockets[0].is_ipv4() != here.is_ipv4() {
            return Err(bad("one side uses IPv4 and the other IPv6"));
        }
        let peer_mailbox_bytes =
            usize::try_from(peer.mailbox_bytes).map_err(|_| bad("it names an impossible size"))?;
        let own: Vec<SocketAddr> = self.shared.listeners.iter().map(|listener| listener.here).collect();
        let calls = self.calls.unwrap_or(self.expectation.nonce < peer.nonce);
        let stage = if calls { Stage::ToCall } else { Stage::Expecting };
        Ok(Box::new(TcpConnecting {
            nonce: self.expectation.nonce,
            expectation: Some(self.expectation),
            shared: self.shared,
            peer: peer.nonce,
            peer_mailbox_bytes,
            ways: ways(&own, &peer.sockets),
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
    peer: Nonce,
    peer_mailbox_bytes: usize,
    ways: Vec<(IpAddr, SocketAddr)>,
    mailbox: Option<Mapping>,
    stage: Stage,
    /// Calls that were made: the epoch of the one under way.
    attempts: u32,
}

impl Connecting for TcpConnecting {
    fn poll(&mut self) -> Result<Poll<Box<dyn Connection>>, TransportError> {
        // Peers of other endpoints may be waiting, and ours may be in this very thread.
        self.shared.listeners.iter().for_each(|listener| listener.serve());
        loop {
            let (next, pending) = match std::mem::replace(&mut self.stage, Stage::Done) {
                Stage::ToCall => {
                    self.attempts += 1;
                    let (here, there) = self.ways[0];
                    let segment = self.shared.watcher().segment(here, there.ip());
                    let call = Call::begin(here, there, segment);
                    (Stage::Calling(call.map_err(|error| self.refused(error))?), false)
                }
                Stage::Calling(mut call) => match call.poll(&self.shared.key, &self.meeting()) {
                    Ok(Poll::Ready(())) => return self.established(call.into_socket(), self.meeting().path),
                    Ok(Poll::Pending) => (Stage::Calling(call), true),
                    Err(CallError::HungUp | CallError::Shorter) if self.attempts < ATTEMPTS_MAX => {
                        (Stage::ToCall, true)
                    }
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
        // A connection begins at the first.
        if let Some(expected) = self.shared.watcher().desk().expected.get_mut(&self.nonce) {
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
        let (here, there) = (self.shared.watcher().here, self.ways[0].1);
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
        Meeting { caller: self.nonce, callee: self.peer, path }
    }

    fn refused(&self, error: CallError) -> TransportError {
        let unauthorised = |what| TransportError::Unauthorised { transport: NAME, what };
        match error {
            CallError::Unreachable(error) => TransportError::Unreachable {
                transport: NAME,
                address: self.ways[0].1.to_string(),
                source: error.into(),
            },
            CallError::HungUp | CallError::Shorter => {
                unauthorised("the peer hung up without proving anything")
            }
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
            callers.into_iter().partition(|caller| caller.meeting.caller == self.peer);
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
            peer_mailbox_bytes: self.peer_mailbox_bytes,
            ways: std::mem::take(&mut self.ways),
            calls: self.attempts > 0,
            mailbox: Arc::new(mailbox),
        };
        let stamp = Arc::clone(&self.shared.stamp);
        Ok(Poll::Ready(Box::new(TcpConnection::new(beginning, path, socket, stamp))))
    }
}

impl Shared {
    /// The listener that looks after the sockets of all connections.
    fn watcher(&self) -> &Arc<Listener> {
        &self.listeners[0]
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if !self.stamp.is_forked_child() {
            self.listeners.iter().for_each(|listener| listener.dismiss(&self.key));
            // Not under the lock: other jobs and the control thread go on.
            let mut own = self.watcher().lingering().take(self.key.job);
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
        let called = Arc::default();
        let expected = Expected::new(self.shared.key.job, Arc::clone(&called));
        self.shared.watcher().desk().expected.insert(nonce, expected);
        let here = self.shared.watcher().here.ip();
        let beginning = Beginning {
            expectation: Expectation { listeners: Arc::clone(&self.shared.listeners), nonce, called },
            key: self.shared.key.clone(),
            peer: [1; 16],
            peer_mailbox_bytes: mailbox_bytes,
            ways: vec![(here, SocketAddr::new(here, 1))],
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
    fn further_interfaces_are_paired_with_those_most_like_them() {
        let at = |ip: &str| SocketAddr::new(ip.parse().expect("an address"), 7);
        let paired = |here: &[&str], there: &[&str]| -> Vec<(String, String)> {
            let list = |ips: &[&str]| ips.iter().map(|ip| at(ip)).collect::<Vec<_>>();
            let ways = ways(&list(here), &list(there));
            ways.iter().map(|(from, to)| (from.to_string(), to.ip().to_string())).collect()
        };
        let pair = |from: &str, to: &str| (from.to_owned(), to.to_owned());
        assert_eq!(
            paired(&["10.0.0.1", "10.2.0.1", "10.1.0.1"], &["10.0.0.2", "10.1.0.2", "10.2.0.2", "10.3.0.2"]),
            [pair("10.0.0.1", "10.0.0.2"), pair("10.2.0.1", "10.2.0.2"), pair("10.1.0.1", "10.1.0.2")]
        );
        // The first pair is that of the control link, whatever it is.
        assert_eq!(
            paired(&["10.0.0.1", "10.1.0.1"], &["10.1.0.2", "10.0.0.2"]),
            [pair("10.0.0.1", "10.1.0.2"), pair("10.1.0.1", "10.0.0.2")]
        );
        assert_eq!(paired(&["10.0.0.1", "10.1.0.1"], &["10.0.0.2"]).len(), 1);
    }

    #[test]
    fn an_address_names_its_sockets() {
        let at = |ip: &str| SocketAddr::new(ip.parse().expect("an address"), 7);
        let place = |sockets| Place { sockets, nonce: [3; 16], mailbox_bytes: 9 };
        for sockets in [vec![at("10.0.0.1")], vec![at("::5"), at("fd00::1")], vec![at("10.0.0.1"); 4]] {
            let decoded = Place::decode(&place(sockets.clone()).encode()).expect("an address");
            assert_eq!((decoded.sockets, decoded.nonce, decoded.mailbox_bytes), (sockets, [3; 16], 9));
        }
        for wrong in [vec![at("10.0.0.1"), at("fd00::1")], vec![at("10.0.0.1"); 5]] {
            assert!(Place::decode(&place(wrong).encode()).is_none());
        }
        assert!(place(vec![at("fd00::1"); 4]).encode().len() <= Address::BYTES_MAX);
    }

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
