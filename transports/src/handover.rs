//! Descriptors handed over between processes of one user on one machine, through Unix sockets.
//!
//! Invariant: a descriptor reaches exactly the processes that show its nonce and belong to this user. Nothing has a
//! name in a file system, so a crash leaves nothing behind. Absent: what the descriptors are of (the process that fetches one
//! checks it), threads, and waiting.

use std::collections::HashMap;
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;

use consort_memory::Waker;
use nix::cmsg_space;
use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, Backlog, ControlMessage, ControlMessageOwned, MsgFlags, SockFlag, SockType, UnixAddr,
    bind, connect, getsockopt, listen, recvmsg, send, sendmsg, socket, sockopt,
};

use crate::reception::Reception;
use crate::segment::{NONCE_BYTES, Nonce, nonce};
use crate::{Service, Transport, TransportError};

/// Accompanies the descriptor: a message must have a byte.
pub(crate) const HANDOVER: [u8; 8] = *b"consort1";
/// How often to ask again when the peer hung up without an answer (a crowd may have pushed us out).
const ATTEMPTS_MAX: usize = 4;

/// Where other processes fetch descriptors of this one. Clones are of the same desk.
#[derive(Clone, Debug)]
pub struct Desk {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    transport: &'static str,
    name: Nonce,
    /// A duplicate of what [`Reception::service`] shows, to lend out without the lock.
    service: OwnedFd,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    reception: Reception,
    offered: HashMap<Nonce, Offered>,
}

#[derive(Debug)]
struct Offered {
    file: OwnedFd,
    takers: Takers,
    /// Rung when its one taker has it.
    waker: Option<u64>,
}

/// How many may fetch what is offered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Takers {
    /// The first who shows the nonce.
    One,
    /// Every process that shows it, until it is withdrawn.
    Many,
}

fn listener_address(transport: &'static str, name: &Nonce) -> Result<UnixAddr, TransportError> {
    let mut text = String::from("consort-");
    text.extend(name.iter().map(|byte| format!("{byte:02x}")));
    UnixAddr::new_abstract(text.as_bytes()).map_err(|error| TransportError::system(transport, "bind", error))
}

fn stream(transport: &'static str) -> Result<OwnedFd, TransportError> {
    let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
    socket(AddressFamily::Unix, SockType::Stream, flags, None)
        .map_err(|error| TransportError::system(transport, "socket", error))
}

fn is_this_user(socket: BorrowedFd<'_>) -> bool {
    getsockopt(&socket, sockopt::PeerCredentials)
        .is_ok_and(|peer| peer.uid() == nix::unistd::geteuid().as_raw())
}

impl Desk {
    /// A desk with a listener in the abstract namespace; `transport` is who its errors and messages are of.
    ///
    /// # Errors
    /// [`TransportError::System`] when the system refuses a socket or randomness.
    pub(crate) fn new(transport: &'static str) -> Result<Self, TransportError> {
        let system = |call, error: Errno| TransportError::system(transport, call, error);
        let name = nonce(transport)?;
        let listener = stream(transport)?;
        bind(listener.as_raw_fd(), &listener_address(transport, &name)?)
            .map_err(|error| system("bind", error))?;
        listen(&listener, Backlog::MAXCONN).map_err(|error| system("listen", error))?;
        let reception = Reception::new(transport, listener, NONCE_BYTES)?;
        let service = reception.service()?;
        let state = Mutex::new(State { reception, offered: HashMap::new() });
        Ok(Self { shared: Arc::new(Shared { transport, name, service, state }) })
    }

    /// What callers find it by.
    pub(crate) fn name(&self) -> &Nonce {
        &self.shared.name
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives a descriptor to the callers that show the nonce of the result, until that is dropped.
    pub(crate) fn offer(&self, file: OwnedFd, takers: Takers) -> Result<Offer, TransportError> {
        let nonce = nonce(self.shared.transport)?;
        self.state().offered.insert(nonce, Offered { file, takers, waker: None });
        Ok(Offer { desk: self.clone(), nonce })
    }

    /// Answers the callers that have come. Never waits.
    pub fn serve(&self) {
        // Its holder is serving already, or is about to be done.
        let Ok(mut state) = self.shared.state.try_lock() else { return };
        let State { reception, offered } = &mut *state;
        let transport = self.shared.transport;
        reception.serve(is_this_user, |caller, cookie| {
            let Some(found) = cookie.try_into().ok().and_then(|nonce: Nonce| offered.get(&nonce)) else {
                tracing::debug!(transport, "turned a caller away: nothing here has that nonce");
                return;
            };
            match hand_over(&caller, &found.file) {
                // In the peer's queue, where it survives us. Our descriptor has done its work.
                Ok(()) if found.takers == Takers::One => {
                    let taken = offered.remove(cookie);
                    taken.and_then(|taken| taken.waker).into_iter().for_each(Waker::ring);
                }
                Ok(()) => {}
                Err(error) => tracing::debug!(transport, %error, "a caller went before its answer"),
            }
        });
    }
}

/// A transport between processes of one host, which can also hand each other memory.
pub trait MemoryLender: Transport + std::fmt::Debug {
    /// Where its peers fetch descriptors; [`Transport::service`] serves it.
    fn desk(&self) -> &Desk;
}

impl Service for Desk {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.shared.service.as_fd()
    }

    fn serve(&self) {
        Desk::serve(self);
    }
}

fn hand_over(caller: &OwnedFd, file: &OwnedFd) -> Result<(), Errno> {
    let files = [file.as_raw_fd()];
    let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
    let rights = [ControlMessage::ScmRights(&files)];
    sendmsg::<()>(caller.as_raw_fd(), &[IoSlice::new(&HANDOVER)], &rights, flags, None).map(drop)
}

/// A descriptor that waits at a desk; withdrawn on drop.
#[derive(Debug)]
pub(crate) struct Offer {
    desk: Desk,
    nonce: Nonce,
}

impl Offer {
    pub(crate) fn desk(&self) -> &Desk {
        &self.desk
    }

    /// What is to be shown for it.
    pub(crate) fn nonce(&self) -> &Nonce {
        &self.nonce
    }

    /// Whether the one who may have it has it.
    pub(crate) fn is_fetched(&self) -> bool {
        !self.desk.state().offered.contains_key(&self.nonce)
    }

    /// Rings the waker of this name when the one who may have it has it: at once, if that is so.
    pub(crate) fn ring_at(&self, waker: u64) {
        match self.desk.state().offered.get_mut(&self.nonce) {
            Some(offered) => offered.waker = Some(waker),
            None => Waker::ring(waker),
        }
    }
}

impl Drop for Offer {
    fn drop(&mut self) {
        self.desk.state().offered.remove(&self.nonce);
    }
}

/// Fetching a descriptor from another process's desk.
#[derive(Debug)]
pub(crate) struct Fetching {
    transport: &'static str,
    listener: Nonce,
    nonce: Nonce,
    /// The nonce was shown here; the descriptor is to come. `None`: the listener is to be called (again).
    asked: Option<OwnedFd>,
    attempts: usize,
}

enum Answer {
    File(OwnedFd),
    NotYet,
    HungUp,
}

impl Fetching {
    pub(crate) fn new(transport: &'static str, listener: Nonce, nonce: Nonce) -> Self {
        Self { transport, listener, nonce, asked: None, attempts: 0 }
    }

    fn system(&self, call: &'static str, error: Errno) -> TransportError {
        TransportError::system(self.transport, call, error)
    }

    /// Becomes readable with the answer; none while the listener is to be called (again), for which nothing becomes ready.
    pub(crate) fn wake(&self) -> Option<BorrowedFd<'_>> {
        self.asked.as_ref().map(AsFd::as_fd)
    }

    /// Goes on as far as that is possible without waiting; not to be called again after it was ready or failed.
    pub(crate) fn poll(&mut self) -> Result<Poll<OwnedFd>, TransportError> {
        loop {
            let Some(socket) = self.asked.take() else {
                match self.call()? {
                    Some(socket) => self.asked = Some(socket),
                    None => return Ok(Poll::Pending),
                }
                continue;
            };
            match self.receive(&socket)? {
                Answer::File(file) => return Ok(Poll::Ready(file)),
                Answer::HungUp if self.attempts < ATTEMPTS_MAX => {}
                Answer::HungUp => return Err(TransportError::PeerClosed { transport: self.transport }),
                Answer::NotYet => {
                    self.asked = Some(socket);
                    return Ok(Poll::Pending);
                }
            }
        }
    }

    /// Calls the peer's listener and shows the nonce. None: its queue is full at the moment.
    fn call(&mut self) -> Result<Option<OwnedFd>, TransportError> {
        let transport = self.transport;
        let socket = stream(transport)?;
        match connect(socket.as_raw_fd(), &listener_address(transport, &self.listener)?) {
            Ok(()) => {}
            Err(Errno::EAGAIN | Errno::EINTR) => return Ok(None),
            Err(error @ (Errno::ECONNREFUSED | Errno::ENOENT)) => {
                let name: String = self.listener.iter().map(|byte| format!("{byte:02x}")).collect();
                return Err(TransportError::Unreachable {
                    transport,
                    address: format!("@consort-{name}"),
                    source: error.into(),
                });
            }
            Err(error) => return Err(self.system("connect", error)),
        }
        if !is_this_user(socket.as_fd()) {
            return Err(TransportError::Unauthorised { transport, what: "the listener is another user's" });
        }
        self.attempts += 1;
        match send(socket.as_raw_fd(), &self.nonce, MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL) {
            Ok(_) => Ok(Some(socket)),
            Err(Errno::EPIPE | Errno::ECONNRESET) if self.attempts < ATTEMPTS_MAX => Ok(None),
            Err(error) => Err(self.system("send", error)),
        }
    }

    fn receive(&self, socket: &OwnedFd) -> Result<Answer, TransportError> {
        let mut greeting = [0; HANDOVER.len()];
        let mut parts = [IoSliceMut::new(&mut greeting)];
        // For as many as one message can have: those for which there is no room are open all the same, and have no owner.
        let mut space = cmsg_space!([std::os::fd::RawFd; 253]);
        let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_CMSG_CLOEXEC;
        let mut files: Vec<OwnedFd> = Vec::new();
        let received = match recvmsg::<()>(socket.as_raw_fd(), &mut parts, Some(&mut space), flags) {
            Ok(message) => {
                for control in message.cmsgs().map_err(|error| self.system("recvmsg", error))? {
                    if let ControlMessageOwned::ScmRights(rights) = control {
                        // SAFETY: descriptors that the kernel just made for us and that nothing else knows.
                        files.extend(rights.into_iter().map(|file| unsafe { OwnedFd::from_raw_fd(file) }));
                    }
                }
                message.bytes
            }
            Err(Errno::EAGAIN | Errno::EINTR) => return Ok(Answer::NotYet),
            Err(Errno::ECONNRESET) => return Ok(Answer::HungUp),
            Err(error) => return Err(self.system("recvmsg", error)),
        };
        if received == 0 {
            return Ok(Answer::HungUp);
        }
        let wrong = |what| TransportError::Protocol { transport: self.transport, what };
        if greeting != HANDOVER {
            return Err(wrong("its listener answered something else"));
        }
        if files.len() != 1 {
            return Err(wrong("its listener answered with other than one piece of memory"));
        }
        files.pop().map(Answer::File).ok_or_else(|| wrong("its listener answered with nothing"))
    }
}
