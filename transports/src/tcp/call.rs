//! A call: one socket on its way to a peer's listener, until that has proved to be the peer.
//!
//! Invariant: nothing here blocks. Absent: when to call, and how often.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::task::Poll;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{
    AddressFamily, Shutdown, SockFlag, SockType, SockaddrStorage, bind, connect, getsockopt, setsockopt,
    shutdown, socket, sockopt,
};

use super::handshake::{ANSWER_BYTES, Key, Meeting, Verdict};
use super::{send_small, system};
use crate::TransportError;
use crate::reception::read_exactly;

#[derive(Debug)]
pub(super) struct Call {
    socket: OwnedFd,
    /// What was answered so far, once the own proof was sent.
    answer: Option<Vec<u8>>,
}

/// What became of a call.
#[derive(Debug)]
pub(super) enum CallError {
    /// The system cannot reach the address.
    Unreachable(Errno),
    /// What answered hung up without an answer: a crowd may have pushed this caller out.
    HungUp,
    /// What answered does not know the key.
    Unauthorised,
    /// The peer's endpoint is not there any more.
    Gone,
    /// The peer asks for a call with short segments.
    Shorter,
    /// The system refuses what has nothing to do with the peer.
    System(TransportError),
}

impl Call {
    /// Opens a socket with this side's address and starts to connect. A longest segment is that of both directions: this side says it to the
    /// peer's system, too.
    pub(super) fn begin(here: IpAddr, there: SocketAddr, segment: Option<u32>) -> Result<Self, CallError> {
        let refused = |call| move |error| CallError::System(system(call, error));
        let family = if here.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
        let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
        let socket = socket(family, SockType::Stream, flags, None).map_err(refused("socket"))?;
        share_ports(&socket);
        if let Some(segment) = segment {
            setsockopt(&socket, sockopt::TcpMaxSeg, &segment).map_err(refused("setsockopt"))?;
        }
        bind(socket.as_raw_fd(), &SockaddrStorage::from(SocketAddr::new(here, 0)))
            .map_err(refused("bind"))?;
        match connect(socket.as_raw_fd(), &SockaddrStorage::from(there)) {
            Ok(()) | Err(Errno::EINPROGRESS | Errno::EINTR) => Ok(Self { socket, answer: None }),
            Err(error) => Err(CallError::Unreachable(error)),
        }
    }

    /// Goes on. Ready when the peer has bidden it welcome; the call is then over, and [`Call::into_socket`] has the socket.
    pub(super) fn poll(&mut self, key: &Key, meeting: &Meeting) -> Result<Poll<()>, CallError> {
        if self.answer.is_none() {
            if self.is_connected()?.is_pending() {
                return Ok(Poll::Pending);
            }
            send_small(&self.socket, &key.hello(meeting)).map_err(|_| CallError::HungUp)?;
        }
        let answer = self.answer.get_or_insert_with(|| Vec::with_capacity(ANSWER_BYTES));
        match read_exactly(&self.socket, answer, ANSWER_BYTES) {
            Ok(Poll::Pending) => return Ok(Poll::Pending),
            Ok(Poll::Ready(())) => {}
            Err(_) => return Err(CallError::HungUp),
        }
        match key.check_answer(answer, meeting) {
            Some(Verdict::Welcome) => Ok(Poll::Ready(())),
            Some(Verdict::Gone) => Err(CallError::Gone),
            Some(Verdict::Shorter) => Err(CallError::Shorter),
            None => Err(CallError::Unauthorised),
        }
    }

    /// Gives it up: its system takes nothing more. Whether the peer has bidden it welcome before that: it may have sent something, and
    /// hold it for arrived.
    pub(super) fn is_answered_after_all(&mut self, key: &Key, meeting: &Meeting) -> bool {
        let _ = shutdown(self.socket.as_raw_fd(), Shutdown::Both);
        self.answer.is_some() && matches!(self.poll(key, meeting), Ok(Poll::Ready(())))
    }

    pub(super) fn into_socket(self) -> OwnedFd {
        self.socket
    }

    /// Whether the system has connected it: the answer is then waited for.
    pub(super) fn has_asked(&self) -> bool {
        self.answer.is_some()
    }

    /// What becomes ready when it can go on, and whether that is room to write.
    pub(super) fn wake(&self) -> (BorrowedFd<'_>, bool) {
        (self.socket.as_fd(), self.answer.is_none())
    }

    /// Whether something listens there.
    pub(super) fn is_connected(&self) -> Result<Poll<()>, CallError> {
        let mut polled = [PollFd::new(self.socket.as_fd(), PollFlags::POLLOUT)];
        match poll(&mut polled, PollTimeout::ZERO) {
            Ok(0) | Err(Errno::EINTR) => return Ok(Poll::Pending),
            Ok(_) => {}
            Err(error) => return Err(CallError::System(system("poll", error))),
        }
        let refused = |error| CallError::System(system("getsockopt", error));
        match getsockopt(&self.socket, sockopt::SocketError).map_err(refused)? {
            0 => Ok(Poll::Ready(())),
            error => Err(CallError::Unreachable(Errno::from_raw(error))),
        }
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
