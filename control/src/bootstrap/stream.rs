//! What joining needs of a connection, and how a thread waits for one.
//!
//! Invariant: whoever speaks the protocol (`Gathering`, `Joiner`) does it over these traits and is told the time, so
//! that a whole job can run in one thread, over connections in memory and in a time that is only counted. Absent: what is
//! said.

use std::io::{Read, Result, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::task::Poll;
use std::time::{Duration, Instant};

use nix::poll::PollTimeout;

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
    /// `ConnectionRefused` if nobody listens there; any other if it cannot be known.
    fn dial(&mut self, address: SocketAddr) -> Result<Self::Stream>;

    /// Whether it is connected by now; not asked again once it was.
    ///
    /// # Errors
    /// Those of [`Dial::dial`].
    fn connected(&mut self, stream: &mut Self::Stream) -> Poll<Result<()>>;
}

/// How long poll may sleep.
pub(super) fn patience(until: Option<Instant>, now: Instant) -> PollTimeout {
    let Some(until) = until else { return PollTimeout::NONE };
    // Rounded up, so that what is due is due when poll returns; at most a minute, so that it fits.
    let left = until.saturating_duration_since(now).min(Duration::from_secs(60));
    PollTimeout::from(left.as_nanos().div_ceil(1_000_000) as u16)
}
