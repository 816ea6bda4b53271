//! Connections between processes of one user on one machine: memory files handed over through Unix sockets.
//!
//! Invariant: a segment reaches exactly the process that shows its endpoint's nonce and belongs to this user, and
//! is used only after the nonce was read back through the mapping. Nothing has a name in a file system, so a
//! crash leaves nothing behind, and a container's small `/dev/shm` does not matter. Absent: noticing that a peer
//! was killed (its memory stays; who watches processes says so), and threads.

#[cfg(all(test, feature = "fuzzing"))]
mod fuzz;

use std::collections::HashMap;
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;

use consort_memory::{ForkStamp, Mapping};
use nix::cmsg_space;
use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, Backlog, ControlMessage, ControlMessageOwned, MsgFlags, SockFlag, SockType, UnixAddr,
    bind, connect, getsockopt, listen, recvmsg, send, sendmsg, socket, sockopt,
};

use crate::mapped::{MappedConnection, OwnSegment};
use crate::reception::Reception;
use crate::segment::{NONCE_BYTES, Nonce, Segment, nonce};
use crate::{Address, Connecting, Connection, Endpoint, Layout, Transport, TransportError};

const NAME: &str = "shm";
/// Accompanies the descriptor: a message must have a byte.
const HANDOVER: [u8; 8] = *b"consort1";
/// Listener's name, endpoint's nonce, segment's size.
const ADDRESS_BYTES: usize = 2 * NONCE_BYTES + 8;
/// How often to ask again when the peer hung up without an answer (a crowd may have pushed us out).
const ATTEMPTS_MAX: usize = 4;

/// The transport between processes that share memory.
#[derive(Clone, Debug)]
pub struct Shm {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    name: Nonce,
    /// A duplicate of what [`Reception::service`] shows, to lend out without the lock.
    service: OwnedFd,
    desk: Mutex<Desk>,
    stamp: Arc<ForkStamp>,
}

#[derive(Debug)]
struct Desk {
    reception: Reception,
    /// Segments that their peers have not fetched yet.
    offered: HashMap<Nonce, OwnedFd>,
}

fn system(call: &'static str, error: Errno) -> TransportError {
    TransportError::system(NAME, call, error)
}

fn listener_address(name: &Nonce) -> Result<UnixAddr, TransportError> {
    let mut text = String::from("consort-");
    text.extend(name.iter().map(|byte| format!("{byte:02x}")));
    UnixAddr::new_abstract(text.as_bytes()).map_err(|error| system("bind", error))
}

fn stream() -> Result<OwnedFd, TransportError> {
    let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
    socket(AddressFamily::Unix, SockType::Stream, flags, None).map_err(|error| system("socket", error))
}

fn is_this_user(socket: BorrowedFd<'_>) -> bool {
    getsockopt(&socket, sockopt::PeerCredentials)
        .is_ok_and(|peer| peer.uid() == nix::unistd::geteuid().as_raw())
}

impl Shm {
    /// A listener for this process, in the abstract namespace.
    ///
    /// # Errors
    /// [`TransportError::System`] when the system refuses a socket, a page or randomness.
    pub fn new() -> Result<Self, TransportError> {
        let stamp = ForkStamp::new().map_err(|error| TransportError::memory(NAME, error))?;
        let name = nonce(NAME)?;
        let listener = stream()?;
        bind(listener.as_raw_fd(), &listener_address(&name)?).map_err(|error| system("bind", error))?;
        listen(&listener, Backlog::MAXCONN).map_err(|error| system("listen", error))?;
        let reception = Reception::new(NAME, listener, NONCE_BYTES)?;
        let service = reception.service()?;
        let desk = Mutex::new(Desk { reception, offered: HashMap::new() });
        Ok(Self { shared: Arc::new(Shared { name, service, desk, stamp: Arc::new(stamp) }) })
    }
}

impl Transport for Shm {
    fn name(&self) -> &'static str {
        NAME
    }

    fn endpoint(&self, layout: Layout) -> Result<Box<dyn Endpoint>, TransportError> {
        let nonce = nonce(NAME)?;
        let bytes = Segment::bytes(layout, NAME)?;
        let mut mapping =
            Mapping::memfd(c"consort-mailbox", bytes).map_err(|error| TransportError::memory(NAME, error))?;
        let file = mapping.take_fd().expect("a memory file was just made");
        let segment = Segment::create(mapping, &nonce);
        self.shared.desk().offered.insert(nonce, file);
        let address = [&self.shared.name[..], &nonce, &(bytes as u64).to_le_bytes()].concat();
        Ok(Box::new(ShmEndpoint {
            address: Address { transport: NAME.into(), bytes: address },
            offer: Offer { shared: Arc::clone(&self.shared), nonce },
            own: OwnSegment::new(segment, Arc::clone(&self.shared.stamp)),
        }))
    }

    fn service(&self) -> Option<BorrowedFd<'_>> {
        Some(self.shared.service.as_fd())
    }

    fn serve(&self) {
        self.shared.serve();
    }
}

impl Shared {
    fn desk(&self) -> MutexGuard<'_, Desk> {
        self.desk.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn serve(&self) {
        // Whoever holds it is serving already, or is about to be done.
        let Ok(mut desk) = self.desk.try_lock() else { return };
        let Desk { reception, offered } = &mut *desk;
        reception.serve(is_this_user, |caller, cookie| {
            let Some(file) = cookie.try_into().ok().and_then(|nonce: Nonce| offered.get(&nonce)) else {
                tracing::debug!(transport = NAME, "turned a caller away: nobody here has that nonce");
                return;
            };
            match hand_over(&caller, file) {
                // In the peer's queue, where it survives us. Our descriptor has done its work.
                Ok(()) => drop(offered.remove(cookie)),
                Err(error) => tracing::debug!(transport = NAME, %error, "a caller went before its answer"),
            }
        });
    }
}

fn hand_over(caller: &OwnedFd, file: &OwnedFd) -> Result<(), Errno> {
    let files = [file.as_raw_fd()];
    let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
    let rights = [ControlMessage::ScmRights(&files)];
    sendmsg::<()>(caller.as_raw_fd(), &[IoSlice::new(&HANDOVER)], &rights, flags, None).map(drop)
}

/// A segment that waits for its peer; withdrawn on drop.
#[derive(Debug)]
struct Offer {
    shared: Arc<Shared>,
    nonce: Nonce,
}

impl Drop for Offer {
    fn drop(&mut self) {
        self.shared.desk().offered.remove(&self.nonce);
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
        let bytes: &[u8; ADDRESS_BYTES] =
            peer.bytes_for(NAME)?.try_into().map_err(|_| bad("it has the wrong length"))?;
        let (name, rest) = bytes.split_first_chunk::<NONCE_BYTES>().expect("longer than that");
        let (nonce, size) = rest.split_first_chunk::<NONCE_BYTES>().expect("longer than that");
        let size = u64::from_le_bytes(size.try_into().expect("the last eight bytes"));
        if *nonce == self.offer.nonce {
            return Err(bad("it is this endpoint's own"));
        }
        let segment_bytes = usize::try_from(size)
            .ok()
            .filter(|&bytes| bytes >= Segment::bytes(Layout { mailbox_bytes: 0 }, NAME).unwrap_or(0));
        Ok(Box::new(ShmConnecting {
            listener: *name,
            nonce: *nonce,
            segment_bytes: segment_bytes.ok_or_else(|| bad("it names an impossible size"))?,
            offer: self.offer,
            own: Some(self.own),
            stage: Stage::Calling,
            attempts: 0,
        }))
    }
}

#[derive(Debug)]
enum Stage {
    /// The peer's listener is to be called (again).
    Calling,
    /// The nonce was shown; the descriptor is to come.
    Asked(OwnedFd),
    /// Its memory is here; ours is to be fetched.
    Mapped(Segment),
    Done,
}

#[derive(Debug)]
struct ShmConnecting {
    listener: Nonce,
    nonce: Nonce,
    segment_bytes: usize,
    offer: Offer,
    own: Option<OwnSegment>,
    stage: Stage,
    attempts: usize,
}

impl Connecting for ShmConnecting {
    fn poll(&mut self) -> Result<Poll<Box<dyn Connection>>, TransportError> {
        // The peer may be waiting for us, and it may be this very process.
        self.offer.shared.serve();
        loop {
            self.stage = match std::mem::replace(&mut self.stage, Stage::Done) {
                Stage::Calling => match self.call()? {
                    Some(socket) => Stage::Asked(socket),
                    None => {
                        self.stage = Stage::Calling;
                        return Ok(Poll::Pending);
                    }
                },
                Stage::Asked(socket) => match self.receive(&socket)? {
                    Answer::Segment(segment) => Stage::Mapped(segment),
                    Answer::HungUp if self.attempts < ATTEMPTS_MAX => Stage::Calling,
                    Answer::HungUp => return Err(TransportError::PeerClosed { transport: NAME }),
                    Answer::NotYet => {
                        self.stage = Stage::Asked(socket);
                        return Ok(Poll::Pending);
                    }
                },
                Stage::Mapped(peer) => {
                    // In this order: a peer that fetched ours, sent and closed at once must be seen to have
                    // fetched it.
                    let closed = peer.is_closed();
                    let fetched = !self.offer.shared.desk().offered.contains_key(&self.offer.nonce);
                    if fetched && let Some(own) = self.own.take() {
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
}

enum Answer {
    Segment(Segment),
    NotYet,
    HungUp,
}

impl ShmConnecting {
    /// Calls the peer's listener and shows the nonce. None: its queue is full at the moment.
    fn call(&mut self) -> Result<Option<OwnedFd>, TransportError> {
        let socket = stream()?;
        match connect(socket.as_raw_fd(), &listener_address(&self.listener)?) {
            Ok(()) => {}
            Err(Errno::EAGAIN | Errno::EINTR) => return Ok(None),
            Err(error @ (Errno::ECONNREFUSED | Errno::ENOENT)) => {
                let name: String = self.listener.iter().map(|byte| format!("{byte:02x}")).collect();
                return Err(TransportError::Unreachable {
                    transport: NAME,
                    address: format!("@consort-{name}"),
                    source: error.into(),
                });
            }
            Err(error) => return Err(system("connect", error)),
        }
        if !is_this_user(socket.as_fd()) {
            return Err(TransportError::Unauthorised {
                transport: NAME,
                what: "the listener is another user's",
            });
        }
        self.attempts += 1;
        match send(socket.as_raw_fd(), &self.nonce, MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL) {
            Ok(_) => Ok(Some(socket)),
            Err(Errno::EPIPE | Errno::ECONNRESET) if self.attempts < ATTEMPTS_MAX => Ok(None),
            Err(error) => Err(system("send", error)),
        }
    }

    fn receive(&self, socket: &OwnedFd) -> Result<Answer, TransportError> {
        let mut greeting = [0; HANDOVER.len()];
        let mut parts = [IoSliceMut::new(&mut greeting)];
        // For as many as one message can have: those for which there is no room are open all the same, and nobody's.
        let mut space = cmsg_space!([std::os::fd::RawFd; 253]);
        let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_CMSG_CLOEXEC;
        let mut files: Vec<OwnedFd> = Vec::new();
        let received = match recvmsg::<()>(socket.as_raw_fd(), &mut parts, Some(&mut space), flags) {
            Ok(message) => {
                for control in message.cmsgs().map_err(|error| system("recvmsg", error))? {
                    if let ControlMessageOwned::ScmRights(rights) = control {
                        // SAFETY: descriptors that the kernel just made for us and that nobody else knows.
                        files.extend(rights.into_iter().map(|file| unsafe { OwnedFd::from_raw_fd(file) }));
                    }
                }
                message.bytes
            }
            Err(Errno::EAGAIN | Errno::EINTR) => return Ok(Answer::NotYet),
            Err(Errno::ECONNRESET) => return Ok(Answer::HungUp),
            Err(error) => return Err(system("recvmsg", error)),
        };
        if received == 0 {
            return Ok(Answer::HungUp);
        }
        let wrong = |what| TransportError::Protocol { transport: NAME, what };
        if greeting != HANDOVER {
            return Err(wrong("its listener answered something else"));
        }
        let [file] = &files[..] else {
            return Err(wrong("its listener answered with other than one piece of memory"));
        };
        let mapping = Mapping::from_fd(file.as_fd(), self.segment_bytes)
            .map_err(|error| TransportError::memory(NAME, error))?;
        Segment::open(mapping, &self.nonce, NAME).map(Answer::Segment)
    }
}
