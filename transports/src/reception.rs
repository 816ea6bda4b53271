//! A listener and the callers who have not said yet what they want.
//!
//! Invariant: serving never blocks, and strangers cost a bounded amount: at most [`CLIENTS_MAX`] wait, each for at most
//! [`PATIENCE`], each having sent at most one request. When another comes, the oldest of the address that most of them
//! call from goes, so a crowd from one address pushes out its own. Absent: what a request means.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::task::Poll;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use nix::sys::socket::{MsgFlags, SockFlag, SockaddrStorage, accept4, getpeername, recv};
use nix::sys::stat::Mode;

use crate::TransportError;

/// Callers that may wait at a time.
const CLIENTS_MAX: usize = 128;
/// Callers taken in by one call of [`Reception::serve`].
const ACCEPTS_MAX: usize = 64;
/// How long a caller may take to say what it wants.
const PATIENCE: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(crate) struct Reception {
    transport: &'static str,
    listener: OwnedFd,
    /// Readable when the listener or a caller is; what [`crate::Transport::service`] shows.
    epoll: Epoll,
    request_bytes: usize,
    clients: VecDeque<Client>,
    /// Given up for a moment to turn a caller away when the process is out of descriptors: otherwise the
    /// listener would stay readable for ever.
    reserve: Option<OwnedFd>,
}

#[derive(Debug)]
struct Client {
    socket: OwnedFd,
    /// None of a Unix socket: of this host.
    from: Option<IpAddr>,
    request: Vec<u8>,
    since: Instant,
}

impl Reception {
    /// A reception whose callers open with `request_bytes` bytes. The listener must be nonblocking.
    pub(crate) fn new(
        transport: &'static str,
        listener: OwnedFd,
        request_bytes: usize,
    ) -> Result<Self, TransportError> {
        let system = |call, error: Errno| TransportError::system(transport, call, error);
        let epoll =
            Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map_err(|error| system("epoll_create1", error))?;
        watch(&epoll, &listener).map_err(|error| system("epoll_ctl", error))?;
        Ok(Self { transport, listener, epoll, request_bytes, clients: VecDeque::new(), reserve: spare() })
    }

    /// Another descriptor of what becomes readable, to be shown without whatever lock this is behind.
    pub(crate) fn service(&self) -> Result<OwnedFd, TransportError> {
        let service = self.epoll.0.as_fd().try_clone_to_owned();
        service.map_err(|error| TransportError::system(self.transport, "fcntl(F_DUPFD_CLOEXEC)", error))
    }

    /// Refuses callers from now on.
    #[cfg(test)]
    pub(crate) fn hang_up(&self) {
        let _ = nix::sys::socket::shutdown(self.listener.as_raw_fd(), nix::sys::socket::Shutdown::Both);
    }

    /// Becomes readable when that is, too.
    pub(crate) fn watch(&self, descriptor: &OwnedFd) -> Result<(), Errno> {
        watch(&self.epoll, descriptor)
    }

    /// Takes callers in (those that `admit` likes) and passes each complete request to `answer`.
    pub(crate) fn serve(
        &mut self,
        mut admit: impl FnMut(BorrowedFd<'_>) -> bool,
        mut answer: impl FnMut(OwnedFd, &[u8]),
    ) {
        for _ in 0..ACCEPTS_MAX {
            let Some(socket) = self.accept() else { break };
            if !admit(socket.as_fd()) {
                tracing::debug!(transport = self.transport, "turned a caller away: not this user's");
                continue;
            }
            if self.clients.len() == CLIENTS_MAX {
                tracing::debug!(
                    transport = self.transport,
                    "turned the oldest of a crowd away: too many wait"
                );
                self.turn_away(self.oldest_of_crowd());
            }
            if watch(&self.epoll, &socket).is_ok() {
                let request = Vec::with_capacity(self.request_bytes);
                let from = address_of(&socket);
                self.clients.push_back(Client { socket, from, request, since: Instant::now() });
            }
        }
        let mut index = 0;
        while index < self.clients.len() {
            let client = &mut self.clients[index];
            match read_exactly(&client.socket, &mut client.request, self.request_bytes) {
                Ok(Poll::Ready(())) => {
                    if let Some(client) = self.turn_away(index) {
                        answer(client.socket, &client.request);
                    }
                }
                Ok(Poll::Pending) if client.since.elapsed() < PATIENCE => index += 1,
                Ok(Poll::Pending) => {
                    tracing::debug!(transport = self.transport, "turned a caller away: it said nothing");
                    self.turn_away(index);
                }
                Err(error) => {
                    tracing::debug!(transport = self.transport, %error, "a caller went");
                    self.turn_away(index);
                }
            }
        }
    }

    /// The caller that has waited longest of those from the address that most call from.
    fn oldest_of_crowd(&self) -> usize {
        let mut crowds = HashMap::new();
        self.clients.iter().for_each(|client| *crowds.entry(client.from).or_insert(0) += 1);
        let most = crowds.values().max().copied();
        self.clients.iter().position(|client| crowds.get(&client.from).copied() == most).unwrap_or(0)
    }

    fn turn_away(&mut self, index: usize) -> Option<Client> {
        let client = self.clients.remove(index)?;
        // By hand: closing does not do it while a forked child has the socket too.
        let _ = self.epoll.delete(&client.socket);
        Some(client)
    }

    fn accept(&mut self) -> Option<OwnedFd> {
        loop {
            match accept4(self.listener.as_raw_fd(), SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC) {
                // SAFETY: a descriptor that was just made for us and that nothing else knows.
                Ok(socket) => return Some(unsafe { OwnedFd::from_raw_fd(socket) }),
                Err(Errno::EAGAIN) => return None,
                Err(Errno::EINTR | Errno::ECONNABORTED) => {}
                Err(error @ (Errno::EMFILE | Errno::ENFILE)) => {
                    tracing::debug!(transport = self.transport, %error, "turned a caller away");
                    self.reserve.take()?;
                    let caller = accept4(self.listener.as_raw_fd(), SockFlag::SOCK_CLOEXEC);
                    if let Ok(socket) = caller {
                        // SAFETY: as above.
                        drop(unsafe { OwnedFd::from_raw_fd(socket) });
                    }
                    self.reserve = spare();
                    // Without a free descriptor the kernel does not say that no caller is there.
                    if caller == Err(Errno::EAGAIN) {
                        return None;
                    }
                }
                Err(error) => {
                    tracing::debug!(transport = self.transport, %error, "accept failed");
                    return None;
                }
            }
        }
    }
}

fn spare() -> Option<OwnedFd> {
    open("/dev/null", OFlag::O_RDONLY | OFlag::O_CLOEXEC, Mode::empty()).ok()
}

/// Where a caller calls from, but for the port.
fn address_of(socket: &OwnedFd) -> Option<IpAddr> {
    let peer: SockaddrStorage = getpeername(socket.as_raw_fd()).ok()?;
    let v4 = peer.as_sockaddr_in().map(|peer| IpAddr::V4(peer.ip()));
    v4.or_else(|| peer.as_sockaddr_in6().map(|peer| IpAddr::V6(peer.ip())))
}

fn watch(epoll: &Epoll, socket: &OwnedFd) -> Result<(), Errno> {
    epoll.add(socket, EpollEvent::new(EpollFlags::EPOLLIN, 0))
}

/// Reads until `wanted` bytes are there, and not one more.
pub(crate) fn read_exactly(socket: &OwnedFd, got: &mut Vec<u8>, wanted: usize) -> Result<Poll<()>, Errno> {
    let mut buffer = [0; 128];
    while got.len() < wanted {
        let room = (wanted - got.len()).min(buffer.len());
        match recv(socket.as_raw_fd(), &mut buffer[..room], MsgFlags::MSG_DONTWAIT) {
            Ok(0) => return Err(Errno::EPIPE),
            Ok(bytes) => got.extend_from_slice(&buffer[..bytes]),
            Err(Errno::EAGAIN) => return Ok(Poll::Pending),
            Err(Errno::EINTR) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(Poll::Ready(()))
}
