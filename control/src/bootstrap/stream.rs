//! What joining needs of a connection, how one is made over TCP, and how a thread waits for one.
//!
//! Invariant: `Gathering` and `Joiner` speak their protocol over these traits and are given the time, so that a whole job
//! can run in one thread, over connections in memory and in a time that is only counted. Absent: what is said.

use std::io::{ErrorKind, Read, Result, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpStream};
use std::os::fd::{AsFd, AsRawFd};
use std::task::Poll;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrStorage, bind, socket};

use super::interfaces;

/// The root's end of a connection; reading and writing never block.
///
/// Dropping it closes it.
pub trait Stream: Read + Write {
    /// Says to the other side that nothing more is coming.
    fn shutdown_write(&self) -> Result<()>;

    /// Ends the connection, also for a forked child that holds the same one.
    fn shutdown_both(&self);
}

impl Stream for TcpStream {
    fn shutdown_write(&self) -> Result<()> {
        self.shutdown(Shutdown::Write)
    }

    fn shutdown_both(&self) {
        // An error says that it has ended already.
        let _ = self.shutdown(Shutdown::Both);
    }
}

/// Makes a rank's connections to the root.
pub trait Dial {
    /// A connection that is made or being made; reading and writing never block. Dropping it closes it.
    type Stream: Read + Write;

    /// Begins to connect; does not block.
    ///
    /// # Errors
    /// `ConnectionRefused` if nothing listens there; any other if it cannot be known.
    fn dial(&mut self, address: SocketAddr) -> Result<Self::Stream>;

    /// Whether it is connected by now; not asked again once it was.
    ///
    /// # Errors
    /// Those of [`Dial::dial`].
    fn connected(&mut self, stream: &mut Self::Stream) -> Poll<Result<()>>;

    /// The shortest round trip on a connection so far, where it is known.
    fn round_trip(&self, _stream: &Self::Stream) -> Option<Duration> {
        None
    }
}

/// Begins to connect, from an interface that was asked for; what is returned never blocks.
pub(crate) fn connect(address: SocketAddr) -> Result<TcpStream> {
    connect_from(interfaces::source(address.ip())?, address)
}

/// The same from this address of this host, or from the one that the routing chooses.
fn connect_from(source: Option<IpAddr>, address: SocketAddr) -> Result<TcpStream> {
    let family = if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let stream = TcpStream::from(socket(family, SockType::Stream, flags, None)?);
    if let Some(source) = source {
        bind(stream.as_raw_fd(), &SockaddrStorage::from(SocketAddr::new(source, 0)))?;
    }
    match nix::sys::socket::connect(stream.as_raw_fd(), &SockaddrStorage::from(address)) {
        // Interrupted, it goes on by itself.
        Ok(()) | Err(Errno::EINPROGRESS | Errno::EINTR) => Ok(stream),
        Err(error) => Err(error.into()),
    }
}

/// Whether what [`connect`] began is connected by now.
pub(crate) fn connected(stream: &TcpStream) -> Poll<Result<()>> {
    if !is_ready(stream, true, PollTimeout::ZERO)? {
        return Poll::Pending;
    }
    if let Some(error) = stream.take_error()? {
        return Poll::Ready(Err(error));
    }
    // Where nothing listens, TCP can connect a socket to itself; that one must go, it holds the port.
    if stream.local_addr()? == stream.peer_addr()? {
        return Poll::Ready(Err(ErrorKind::ConnectionRefused.into()));
    }
    Poll::Ready(stream.set_nodelay(true))
}

/// Waits until a stream takes bytes, if there is something to send, or else has some, or its end. Whether it came in time.
pub(crate) fn is_ready(stream: &impl AsFd, sending: bool, limit: PollTimeout) -> Result<bool> {
    let wanted = if sending { PollFlags::POLLOUT } else { PollFlags::POLLIN };
    match poll(&mut [PollFd::new(stream.as_fd(), wanted)], limit) {
        Ok(ready) => Ok(ready > 0),
        Err(Errno::EINTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// How long poll may sleep.
pub(crate) fn patience(until: Option<Instant>, now: Instant) -> PollTimeout {
    let Some(until) = until else { return PollTimeout::NONE };
    // Rounded up, so that what is due is due when poll returns; at most a minute, so that it fits.
    let left = until.saturating_duration_since(now).min(Duration::from_secs(60));
    PollTimeout::from(left.as_nanos().div_ceil(1_000_000) as u16)
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener};

    use super::*;

    #[test]
    fn a_call_comes_from_the_address_that_it_was_given() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let there = listener.local_addr().expect("an address");
        for (source, seen) in
            [(Some(Ipv4Addr::new(127, 0, 0, 3)), Ipv4Addr::new(127, 0, 0, 3)), (None, Ipv4Addr::LOCALHOST)]
        {
            let _call = connect_from(source.map(IpAddr::from), there).expect("a call");
            let (_, caller) = listener.accept().expect("the call");
            assert_eq!(caller.ip(), seen);
        }
    }
}
