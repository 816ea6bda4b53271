//! The control link to a rank in another process: a Unix stream on the same host, TCP otherwise.
//!
//! Invariant: sockets are non-blocking; sending never waits (what the socket does not take is kept and sent
//! by the control thread), and what is kept is bounded.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{Shutdown, UnixCredentials, getsockopt, setsockopt, shutdown, sockopt};

use consort_memory::sync::{AtomicBool, Ordering};

use super::lock;
use super::member::{Distance, Link, Member};
use super::process::Shared;
use super::wire::{self, Message};
use crate::bootstrap::is_ready;
use crate::codec::{Malformed, Wire};
use crate::frames::{Incoming, Outgoing, Progress};
use consort_types::Rank;

/// Why a rank is lost whose process is gone: the same words however it was noticed.
pub(super) const ENDED: &str = "its process ended without closing the communicator";

/// A host that does not answer for so long counts as gone, and so does what was on it. Networks that come back sooner,
/// after a switch has started anew for example, cost a pause.
const VANISHED_AFTER: Duration = Duration::from_secs(24);
/// Bytes kept for a peer that does not read, at most; then the link counts as broken.
const BACKLOG_BYTES_MAX: usize = 32 << 20;
/// Frames of one link that are read in one turn.
const FRAMES_MAX: usize = 16;

/// Either kind of socket.
#[derive(Debug)]
pub enum Stream {
    Unix(UnixStream),
    Tcp(TcpStream),
    /// Of a simulated process.
    #[cfg(any(test, feature = "testing"))]
    Simulated(Mutex<consort_transports::simnet::Stream>),
}

impl Stream {
    pub fn set_nonblocking(&self, on: bool) -> io::Result<()> {
        match self {
            Stream::Unix(stream) => stream.set_nonblocking(on),
            Stream::Tcp(stream) => stream.set_nonblocking(on),
            #[cfg(any(test, feature = "testing"))]
            Stream::Simulated(_) => Ok(()),
        }
    }

    /// Where the other end is, if that is on the network.
    pub(super) fn peer_address(&self) -> Option<SocketAddr> {
        let Stream::Tcp(stream) = self else { return None };
        let address = stream.peer_addr().ok()?;
        Some(SocketAddr::new(address.ip().to_canonical(), address.port()))
    }

    /// Lets the system find out that the other host has vanished, or the way to it, within [`VANISHED_AFTER`], whether
    /// something is to be sent or not.
    pub(super) fn watch_over(&self) -> io::Result<()> {
        let Stream::Tcp(stream) = self else { return Ok(()) };
        stream.set_nodelay(true)?;
        let seconds = |part: u32| VANISHED_AFTER.as_secs() as u32 / part;
        setsockopt(stream, sockopt::KeepAlive, &true)?;
        setsockopt(stream, sockopt::TcpKeepIdle, &seconds(2))?;
        setsockopt(stream, sockopt::TcpKeepInterval, &seconds(8))?;
        setsockopt(stream, sockopt::TcpKeepCount, &4)?;
        setsockopt(stream, sockopt::TcpUserTimeout, &(VANISHED_AFTER.as_millis() as u32))?;
        Ok(())
    }

    /// Ends the connection for both sides ([`Shutdown::Both`]), or says that nothing more is coming ([`Shutdown::Write`]): what
    /// the other end still says can be read.
    pub(super) fn shut_down(&self, how: Shutdown) {
        #[cfg(any(test, feature = "testing"))]
        if let Stream::Simulated(stream) = self {
            let stream = lock(stream);
            return if how == Shutdown::Write { stream.shutdown_write() } else { stream.shutdown_both() };
        }
        let _ = shutdown(self.as_fd().as_raw_fd(), how);
    }

    /// The process at the other end, when it is on this host and in a process namespace seen from here.
    pub fn peer_pid(&self) -> Option<i32> {
        self.credentials().map(|credentials| credentials.pid()).filter(|pid| *pid > 0)
    }

    /// Whether the kernel says that the other end belongs to this process's user.
    pub fn peer_is_same_user(&self) -> bool {
        self.credentials().is_some_and(|credentials| credentials.uid() == nix::unistd::geteuid().as_raw())
    }

    fn credentials(&self) -> Option<UnixCredentials> {
        let Stream::Unix(stream) = self else { return None };
        getsockopt(stream, sockopt::PeerCredentials).ok()
    }

    pub fn distance(&self) -> Distance {
        match self {
            Stream::Unix(_) => Distance::Host,
            Stream::Tcp(stream) => Distance::Network(
                stream
                    .local_addr()
                    .map(|address| address.ip().to_canonical())
                    .unwrap_or(std::net::Ipv4Addr::LOCALHOST.into()),
            ),
            #[cfg(any(test, feature = "testing"))]
            Stream::Simulated(_) => Distance::Network(std::net::Ipv4Addr::LOCALHOST.into()),
        }
    }
}

impl Read for &Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Unix(stream) => (&mut &*stream).read(buffer),
            Stream::Tcp(stream) => (&mut &*stream).read(buffer),
            #[cfg(any(test, feature = "testing"))]
            Stream::Simulated(stream) => lock(stream).read(buffer),
        }
    }
}

impl Write for &Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Unix(stream) => (&mut &*stream).write(bytes),
            Stream::Tcp(stream) => (&mut &*stream).write(bytes),
            #[cfg(any(test, feature = "testing"))]
            Stream::Simulated(stream) => lock(stream).write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Stream::Unix(stream) => stream.as_fd(),
            Stream::Tcp(stream) => stream.as_fd(),
            #[cfg(any(test, feature = "testing"))]
            Stream::Simulated(_) => unreachable!("a simulated stream has no descriptor"),
        }
    }
}

/// A link to a rank of another process.
pub struct RemoteLink {
    pub member: Weak<Member>,
    pub peer: Rank,
    pub distance: Distance,
    pub stream: Stream,
    /// Where the other end is, if that is on the network.
    place: Option<SocketAddr>,
    shared: Weak<Shared>,
    backlog: Mutex<Outgoing>,
    incoming: Mutex<Incoming>,
    /// Whether the other end counts on it: the side that is called learns that from the first frame.
    is_confirmed: AtomicBool,
}

/// How long the sides of links that end wait for each other, at most.
pub const PARTING: Duration = Duration::from_millis(100);

/// Parts from peers on other hosts and waits, a bounded time, until they have seen it. A TCP connection that is
/// closed with something unread is reset, and the peer may then lose what was said last: that this rank leaves.
pub fn part_from(links: &[Arc<RemoteLink>]) {
    let tcp = |link: &&Arc<RemoteLink>| matches!(link.stream, Stream::Tcp(_));
    let mut open: Vec<&Arc<RemoteLink>> = links.iter().filter(tcp).collect();
    open.iter().for_each(|link| link.part());
    let until = Instant::now() + PARTING;
    loop {
        // What a full connection did not take, with the end behind it.
        open.iter().filter(|link| link.has_backlog()).for_each(|link| link.part());
        open.retain(|link| !link.has_ended());
        let left = until.saturating_duration_since(Instant::now());
        if open.is_empty() || left.is_zero() {
            return;
        }
        let wanted = |link: &RemoteLink| {
            if link.has_backlog() { PollFlags::POLLIN | PollFlags::POLLOUT } else { PollFlags::POLLIN }
        };
        let mut polled: Vec<PollFd<'_>> =
            open.iter().map(|link| PollFd::new(link.stream.as_fd(), wanted(link))).collect();
        let _ = poll(&mut polled, PollTimeout::from(left.as_millis().max(1) as u8));
    }
}

/// What became of reading a link.
#[derive(PartialEq, Eq, Debug)]
pub enum LinkState {
    Open,
    /// Whether the other end is known to have ended it, or the connection broke.
    Closed {
        cause: String,
        ended: bool,
    },
}

impl RemoteLink {
    /// Takes over an authenticated stream and makes it non-blocking.
    pub fn new(
        shared: &Arc<Shared>,
        member: &Arc<Member>,
        peer: Rank,
        stream: Stream,
    ) -> io::Result<Arc<Self>> {
        stream.set_nonblocking(true)?;
        stream.watch_over()?;
        Ok(Self::over(Arc::downgrade(shared), member, peer, stream))
    }

    /// A link to a simulated process.
    #[cfg(any(test, feature = "testing"))]
    pub fn simulated(
        member: &Arc<Member>,
        peer: Rank,
        stream: consort_transports::simnet::Stream,
    ) -> Arc<Self> {
        Self::over(Weak::new(), member, peer, Stream::Simulated(Mutex::new(stream)))
    }

    fn over(shared: Weak<Shared>, member: &Arc<Member>, peer: Rank, stream: Stream) -> Arc<Self> {
        Arc::new(RemoteLink {
            member: Arc::downgrade(member),
            peer,
            distance: stream.distance(),
            place: stream.peer_address(),
            stream,
            shared,
            backlog: Mutex::default(),
            incoming: Mutex::default(),
            is_confirmed: AtomicBool::new(true),
        })
    }

    /// The same before the other end, which called, is known to count on it. In a sparse job a caller may give up while it is
    /// answered.
    pub fn unconfirmed(self: Arc<Self>) -> Arc<Self> {
        self.is_confirmed.store(false, Ordering::Relaxed);
        self
    }

    /// Whether the other end counts on it.
    pub fn is_confirmed(&self) -> bool {
        self.is_confirmed.load(Ordering::Relaxed)
    }

    pub fn send(&self, communicator: u64, message: &Message) {
        let mut frame = Vec::new();
        wire::encode(communicator, message, &mut frame);
        self.send_framed(frame);
    }

    /// Sends whole frames.
    pub(super) fn send_framed(&self, frames: Vec<u8>) {
        let mut backlog = lock(&self.backlog);
        if backlog.left() > BACKLOG_BYTES_MAX {
            // Both control threads find out and report the loss; silence would be worse.
            return self.end();
        }
        backlog.push(frames);
        self.write_out(&mut backlog);
        if !backlog.is_empty()
            && let Some(shared) = self.shared.upgrade()
        {
            shared.wake();
        }
    }

    /// Sends what was kept.
    pub fn flush(&self) {
        self.write_out(&mut lock(&self.backlog));
    }

    fn write_out(&self, backlog: &mut Outgoing) {
        if backlog.write(&mut &self.stream).is_err() {
            // The reading side of the control thread finds out and reports it.
            *backlog = Outgoing::default();
        }
    }

    /// The last thing said on this side: what is kept is sent as far as the kernel takes it, then the end.
    pub fn part(&self) {
        self.flush();
        if !self.has_backlog() {
            self.stream.shut_down(Shutdown::Write);
        }
    }

    /// The other side has parted, or the connection broke: nothing more is coming, and nothing more is said.
    pub fn end(&self) {
        self.stream.shut_down(Shutdown::Both);
    }

    /// Reads and forgets what still comes; whether the end has come too.
    fn has_ended(&self) -> bool {
        let mut rest = [0; 512];
        loop {
            match (&mut &self.stream).read(&mut rest) {
                Ok(0) => return true,
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return error.kind() != io::ErrorKind::WouldBlock,
            }
        }
    }

    /// Whether the kernel would not take everything yet.
    pub fn has_backlog(&self) -> bool {
        !lock(&self.backlog).is_empty()
    }

    /// What its connection's failure means.
    fn failed(&self, error: &io::Error) -> String {
        let to = self.place.as_ref().map_or_else(String::new, |place| format!(" to {place}"));
        let meaning = match error.kind() {
            io::ErrorKind::TimedOut | io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkUnreachable => {
                format!(
                    "; its host has not answered for {} s, so it or the network to it is down",
                    VANISHED_AFTER.as_secs()
                )
            }
            _ => String::new(),
        };
        format!("its control connection{to} failed: {error}{meaning}")
    }

    /// Whether there are bytes to be read, or the end.
    pub fn has_more(&self) -> bool {
        is_ready(&self.stream, false, PollTimeout::ZERO).is_ok_and(|ready| ready)
    }

    /// The other end counts on it, and so does this one from now on.
    fn count_on(self: &Arc<Self>) -> io::Result<()> {
        let Some(member) = self.member.upgrade() else { return Ok(()) };
        match self.shared.upgrade() {
            Some(shared) => shared.link(&member, self),
            None if member.set_link(self.peer, Link::Remote(self.clone())) => Ok(()),
            None => Err(io::Error::other("a second control link for the same rank")),
        }
    }

    /// Reads what is there, up to a bound, and hands it to the member. Only the control thread calls this.
    pub fn drain(self: &Arc<Self>) -> LinkState {
        let mut incoming = lock(&self.incoming);
        let carried = |what: Malformed| LinkState::Closed {
            cause: format!("its control connection carried a frame that cannot be read: {}", what.0),
            ended: false,
        };
        // A peer that never stops talking waits for its next turn, so that the others have theirs.
        for _ in 0..FRAMES_MAX {
            match incoming.read(&mut &self.stream, wire::bound) {
                Progress::Frame(_, payload) => match <(u64, Message)>::whole(&payload) {
                    Ok((communicator, message)) => {
                        if !self.is_confirmed.swap(true, Ordering::Relaxed)
                            && let Err(error) = self.count_on()
                        {
                            return LinkState::Closed { cause: error.to_string(), ended: false };
                        }
                        if let Some(member) = self.member.upgrade() {
                            member.receive(self.peer, communicator, message);
                        }
                    }
                    Err(what) => return carried(what),
                },
                Progress::Pending => return LinkState::Open,
                Progress::Malformed(what) => return carried(what),
                // Within a host nothing but an end breaks a connection.
                Progress::Broken(error) if !matches!(self.stream, Stream::Unix(_)) => {
                    return LinkState::Closed { cause: self.failed(&error), ended: false };
                }
                Progress::Ended | Progress::Broken(_) => {
                    return LinkState::Closed { cause: ENDED.into(), ended: true };
                }
            }
        }
        LinkState::Open
    }
}
