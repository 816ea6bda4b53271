//! How two comms find each other: NCCL carries a handle from the side that listens to the side that connects, and nothing back.
//!
//! ```text
//! handle   magic [8] | address [16] | port u16 | key [32] | how far the connecting side is, u64, filled in there
//! call     the side that connects ──► its nonce, its endpoint's address, a proof that it has the key
//!          its endpoint's address, a proof over both ◄── the side that listens
//! ```
//!
//! Then each side has the other's endpoint, and the transport connects them; it proves the key anew.
//!
//! Invariant: a stranger costs a socket and as many bytes as a call has; what it sends goes no further before its proof. Absent: what
//! travels afterwards.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::{Duration, Instant};

use consort_control::bootstrap::random;
use consort_transports::abi::HANDLE_BYTES;
use consort_transports::{
    Address, Connecting, Connection, Endpoint, Layout, PROOF_BYTES, Tcp, Transport, TransportError,
    listen_within, prove, proves,
};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::sockopt::SocketError;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrStorage, connect, getsockopt, socket};

use crate::network::{KEY_BYTES, Network, RING_BYTES, lock};

const MAGIC: [u8; 8] = *b"consort1";
const NONCE_BYTES: usize = 16;
/// Where the handle says which call it has become.
const CALL_AT: usize = 58;
/// Labels of proofs.
const CALLS: &str = "net plugin call";
const ANSWERS: &str = "net plugin answer";
/// The transport of the addresses.
const TRANSPORT: &str = "tcp";
/// Nonce, proof, length, address.
const CALL_BYTES: usize = NONCE_BYTES + PROOF_BYTES + 2 + Address::BYTES_MAX;
/// How long a call is kept that NCCL does not ask about.
const ABANDONED: Duration = Duration::from_secs(300);
/// Callers that a listening comm hears at a time.
const CALLERS_MAX: usize = 16;

/// A connection, with the transport that it keeps.
pub(crate) type Met = (Box<dyn Connection>, Arc<Tcp>);

/// What a handle says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Place {
    at: SocketAddr,
    key: [u8; KEY_BYTES],
}

impl Place {
    fn encode(&self) -> [u8; HANDLE_BYTES] {
        let ip = match self.at.ip() {
            IpAddr::V4(ip) => ip.to_ipv6_mapped(),
            IpAddr::V6(ip) => ip,
        };
        let fields = [&MAGIC[..], &ip.octets(), &self.at.port().to_le_bytes(), &self.key].concat();
        let mut handle = [0; HANDLE_BYTES];
        handle[..fields.len()].copy_from_slice(&fields);
        handle
    }

    fn decode(handle: &[u8; HANDLE_BYTES]) -> Option<Self> {
        let rest = handle.strip_prefix(&MAGIC)?;
        let (ip, rest) = rest.split_first_chunk::<16>()?;
        let (port, rest) = rest.split_first_chunk::<2>()?;
        let (key, _) = rest.split_first_chunk::<KEY_BYTES>()?;
        let port = u16::from_le_bytes(*port);
        let at = SocketAddr::new(Ipv6Addr::from(*ip).to_canonical(), port);
        (port != 0).then_some(Place { at, key: *key })
    }
}

/// A message of the meeting: some nonce, a proof, an address.
fn message(key: &[u8; KEY_BYTES], label: &str, nonce: &[u8; NONCE_BYTES], address: &[u8]) -> Vec<u8> {
    let mut out = nonce.to_vec();
    out.extend(prove(key, label, &[nonce, address]));
    out.extend((address.len() as u16).to_le_bytes());
    out.extend(address);
    out
}

/// What has come of a message of the meeting.
#[derive(Default)]
struct Incoming(Vec<u8>);

impl Incoming {
    /// Nonce and address, once all is there and proved. Never blocks.
    fn poll(
        &mut self,
        mut socket: &TcpStream,
        key: &[u8; KEY_BYTES],
        label: &str,
    ) -> io::Result<Poll<([u8; NONCE_BYTES], Address)>> {
        const FIXED: usize = NONCE_BYTES + PROOF_BYTES + 2;
        loop {
            let length = self
                .0
                .get(FIXED - 2..FIXED)
                .map_or(0, |length| usize::from(u16::from_le_bytes([length[0], length[1]])));
            let wanted = FIXED + length;
            if wanted > CALL_BYTES {
                return Err(io::Error::from(ErrorKind::InvalidData));
            }
            if self.0.len() == wanted && wanted > FIXED {
                break;
            }
            let mut bytes = [0; CALL_BYTES];
            // Nothing behind it is read: the other end closes when it has heard the answer.
            match socket.read(&mut bytes[..wanted.max(FIXED) - self.0.len()]) {
                Ok(0) => return Err(io::Error::from(ErrorKind::UnexpectedEof)),
                Ok(count) => self.0.extend(&bytes[..count]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(Poll::Pending),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
            if self.0.len() == FIXED && self.0[FIXED - 2..] == [0, 0] {
                return Err(io::Error::from(ErrorKind::InvalidData));
            }
        }
        let (nonce, rest) = self.0.split_first_chunk::<NONCE_BYTES>().ok_or(ErrorKind::InvalidData)?;
        let (proof, rest) = rest.split_first_chunk::<PROOF_BYTES>().ok_or(ErrorKind::InvalidData)?;
        let address = &rest[2..];
        if !proves(key, label, &[nonce, address], proof) {
            return Err(io::Error::from(ErrorKind::PermissionDenied));
        }
        Ok(Poll::Ready((*nonce, Address { transport: TRANSPORT.into(), bytes: address.to_vec() })))
    }
}

/// Sends what certainly fits into an empty socket buffer.
fn send(mut socket: &TcpStream, bytes: &[u8]) -> io::Result<()> {
    match socket.write(bytes)? {
        sent if sent == bytes.len() => Ok(()),
        _ => Err(io::Error::from(ErrorKind::WriteZero)),
    }
}

fn unreachable(at: SocketAddr, error: Errno) -> TransportError {
    TransportError::Unreachable { transport: TRANSPORT, address: at.to_string(), source: error.into() }
}

fn failed(call: &'static str, source: io::Error) -> TransportError {
    TransportError::System { transport: TRANSPORT, call, source }
}

/// What became of a call that the peer has not answered.
fn unanswered(error: io::Error) -> TransportError {
    match error.kind() {
        ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => {
            TransportError::PeerClosed { transport: TRANSPORT }
        }
        _ => failed("recv", error),
    }
}

/// Calls that NCCL asks for again and again, by what their handles say.
struct Calls {
    last: u64,
    of: BTreeMap<u64, Call>,
}

static CALLS_UNDER_WAY: Mutex<Calls> = Mutex::new(Calls { last: 0, of: BTreeMap::new() });

/// A call under way, of the side that connects.
struct Call {
    at: SocketAddr,
    key: [u8; KEY_BYTES],
    transport: Arc<Tcp>,
    stage: Stage,
    /// When NCCL asked for it last.
    asked: Instant,
}

enum Stage {
    Calling(TcpStream, Box<dyn Endpoint>),
    Asked(TcpStream, Box<dyn Endpoint>, Incoming, [u8; NONCE_BYTES]),
    Connecting(Box<dyn Connecting>),
}

impl Call {
    fn begin(network: &Network, place: Place) -> Result<Self, TransportError> {
        let transport = network.transport(place.key)?;
        let endpoint = transport.endpoint(Layout::new(0).calling(true))?;
        let socket = call(place.at).map_err(|error| unreachable(place.at, error))?;
        let Place { at, key } = place;
        let stage = Stage::Calling(TcpStream::from(socket), endpoint);
        Ok(Call { at, key, transport, stage, asked: Instant::now() })
    }

    fn poll(mut self) -> Result<Result<Met, Self>, TransportError> {
        self.stage = match self.stage {
            Stage::Calling(socket, endpoint) => {
                if !is_connected(&socket).map_err(|error| unreachable(self.at, error))? {
                    return Ok(Err(Call { stage: Stage::Calling(socket, endpoint), ..self }));
                }
                let nonce = random().map_err(|error| failed("getrandom", io::Error::other(error)))?;
                let said = message(&self.key, CALLS, &nonce, &endpoint.address().bytes);
                send(&socket, &said).map_err(unanswered)?;
                Stage::Asked(socket, endpoint, Incoming::default(), nonce)
            }
            Stage::Asked(socket, endpoint, mut incoming, nonce) => {
                match incoming.poll(&socket, &self.key, ANSWERS).map_err(unanswered)? {
                    Poll::Pending => Stage::Asked(socket, endpoint, incoming, nonce),
                    Poll::Ready((answered, address)) if answered == nonce => {
                        Stage::Connecting(endpoint.connect(&address)?)
                    }
                    Poll::Ready(_) => {
                        let what = "the answer to a call is for another";
                        return Err(TransportError::Unauthorised { transport: TRANSPORT, what });
                    }
                }
            }
            Stage::Connecting(mut connecting) => match connecting.poll()? {
                Poll::Ready(connection) => return Ok(Ok((connection, self.transport))),
                Poll::Pending => Stage::Connecting(connecting),
            },
        };
        Ok(Err(self))
    }
}

/// A socket on its way there.
fn call(to: SocketAddr) -> nix::Result<OwnedFd> {
    let family = if to.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
    let made = socket(family, SockType::Stream, flags, None)?;
    match connect(made.as_raw_fd(), &SockaddrStorage::from(to)) {
        Ok(()) | Err(Errno::EINPROGRESS) => Ok(made),
        Err(error) => Err(error),
    }
}

fn is_connected(socket: &TcpStream) -> nix::Result<bool> {
    use std::os::fd::AsFd;
    let mut polled = [PollFd::new(socket.as_fd(), PollFlags::POLLOUT)];
    if poll(&mut polled, PollTimeout::ZERO)? == 0 {
        return Ok(false);
    }
    match getsockopt(socket, SocketError)? {
        0 => Ok(true),
        error => Err(Errno::from_raw(error)),
    }
}

/// Goes on with connecting to a handle, which says from the second time on which call it is.
///
/// # Errors
/// Why the peer cannot be reached; the call is then over.
pub(crate) fn connect_to(
    network: &Network,
    handle: &mut [u8; HANDLE_BYTES],
) -> Result<Option<Met>, TransportError> {
    let place = Place::decode(handle);
    let place = place.ok_or(TransportError::BadAddress {
        transport: TRANSPORT,
        reason: "it is no handle of this plugin",
    })?;
    let named = &mut handle[CALL_AT..CALL_AT + 8];
    let number = u64::from_le_bytes(named.try_into().unwrap_or_default());
    // Not under the lock: calls of other comms go on meanwhile.
    let known = lock(&CALLS_UNDER_WAY).of.remove(&number);
    let call = match known {
        Some(call) if call.key == place.key => call,
        _ => Call::begin(network, place)?,
    };
    match call.poll()? {
        Ok(met) => {
            named.fill(0);
            Ok(Some(met))
        }
        Err(call) => {
            let now = Instant::now();
            let mut calls = lock(&CALLS_UNDER_WAY);
            let is_old = |call: &Call| now.duration_since(call.asked) >= ABANDONED;
            let old: Vec<u64> =
                calls.of.iter().filter(|(_, call)| is_old(call)).map(|(number, _)| *number).collect();
            let given_up: Vec<Call> = old.iter().filter_map(|number| calls.of.remove(number)).collect();
            calls.last += 1;
            let number = calls.last;
            named.copy_from_slice(&number.to_le_bytes());
            calls.of.insert(number, Call { asked: now, ..call });
            drop(calls);
            // Sockets are closed without the lock.
            drop(given_up);
            Ok(None)
        }
    }
}

/// A listening comm.
pub(crate) struct Meeting {
    network: Arc<Network>,
    listener: TcpListener,
    transport: Arc<Tcp>,
    callers: Vec<(TcpStream, Incoming)>,
    connecting: Vec<Box<dyn Connecting>>,
}

impl Meeting {
    /// Listens, and says at which handle.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn new(network: Arc<Network>) -> Result<(Self, [u8; HANDLE_BYTES]), TransportError> {
        let listener = listen_within(network.here, None).map_err(|error| failed("bind", error))?;
        listener.set_nonblocking(true).map_err(|error| failed("fcntl", error))?;
        let at = listener.local_addr().map_err(|error| failed("getsockname", error))?;
        let transport = network.transport(network.key)?;
        let handle = Place { at, key: network.key }.encode();
        Ok((Meeting { network, listener, transport, callers: Vec::new(), connecting: Vec::new() }, handle))
    }

    /// A connection that has come up, if one has.
    ///
    /// # Errors
    /// Why a caller that has proved who it is cannot be connected.
    pub(crate) fn accept(&mut self) -> Result<Option<Met>, TransportError> {
        while let Ok((socket, _)) = self.listener.accept() {
            if socket.set_nonblocking(true).is_ok() {
                if self.callers.len() == CALLERS_MAX {
                    self.hear_callers()?;
                }
                // One that has said nothing by then.
                if self.callers.len() == CALLERS_MAX {
                    self.callers.remove(0);
                }
                self.callers.push((socket, Incoming::default()));
            }
        }
        self.hear_callers()?;
        for at in 0..self.connecting.len() {
            if let Poll::Ready(connection) = self.connecting[at].poll()? {
                drop(self.connecting.swap_remove(at));
                return Ok(Some((connection, Arc::clone(&self.transport))));
            }
        }
        Ok(None)
    }

    /// Answers callers that have said who they are, and forgets strangers.
    fn hear_callers(&mut self) -> Result<(), TransportError> {
        for (socket, mut incoming) in std::mem::take(&mut self.callers) {
            match incoming.poll(&socket, &self.network.key, CALLS) {
                Ok(Poll::Pending) => self.callers.push((socket, incoming)),
                Ok(Poll::Ready((nonce, address))) => {
                    let endpoint = self.transport.endpoint(Layout::new(RING_BYTES).calling(false))?;
                    let said = message(&self.network.key, ANSWERS, &nonce, &endpoint.address().bytes);
                    if send(&socket, &said).is_ok() {
                        self.connecting.push(endpoint.connect(&address)?);
                    }
                }
                // A stranger, or one that has gone.
                Err(_) => {}
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handles_are_read_as_they_were_written_and_nothing_else_is() {
        for at in ["10.1.2.3:4567", "[fd00::7]:9"] {
            let place = Place { at: at.parse().expect("an address"), key: [7; KEY_BYTES] };
            let mut handle = place.encode();
            assert_eq!(Place::decode(&handle), Some(place));
            assert_eq!(handle[CALL_AT..], [0; HANDLE_BYTES - CALL_AT]);
            handle[3] ^= 1;
            assert_eq!(Place::decode(&handle), None);
        }
        assert_eq!(Place::decode(&[0; HANDLE_BYTES]), None);
    }
}
