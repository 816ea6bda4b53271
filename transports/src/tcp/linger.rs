//! Streams whose connection is gone, until the other machine has what was sent.
//!
//! Closing a socket that has unread bytes makes the system send a reset at once and forget what it has not
//! delivered: the peer would lose bytes that a `signal` had already been answered `Ready` for. So a dropped
//! connection ends its direction (`shutdown`), and its socket waits here until the peer's system acknowledged
//! everything. From then on a reset is harmless: what has arrived stays readable.
//!
//! Invariant: dropping a connection does not wait. Nothing stays longer than [`PATIENCE`], beyond [`COUNT_MAX`] of a job its
//! oldest goes at once, and only the end of a job's transport waits, for its own streams and at most [`LAST_WAIT`]. Absent:
//! threads; streams are tidied when their listener is served and when connections are dropped.

use std::collections::VecDeque;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, Shutdown, send, shutdown};

use super::handshake::JobName;

const PATIENCE: Duration = Duration::from_secs(2);
const LAST_WAIT: Duration = Duration::from_millis(250);
const COUNT_MAX: usize = 256;

#[derive(Debug, Default)]
pub(super) struct Lingering {
    streams: VecDeque<Stream>,
}

#[derive(Debug)]
struct Stream {
    job: JobName,
    socket: OwnedFd,
    /// What was taken over and not written yet: signals.
    rest: Vec<u8>,
    ended: bool,
    since: Instant,
}

impl Lingering {
    /// Takes over the socket of a job's connection with the bytes that it still owes.
    pub(super) fn push(&mut self, job: JobName, socket: OwnedFd, rest: Vec<u8>) {
        self.streams.push_back(Stream { job, socket, rest, ended: false, since: Instant::now() });
        self.tidy();
        if self.streams.iter().filter(|stream| stream.job == job).count() > COUNT_MAX
            && let Some(oldest) = self.streams.iter().position(|stream| stream.job == job)
        {
            self.streams.remove(oldest);
        }
    }

    /// The streams of a job, for its own end to wait for.
    pub(super) fn take(&mut self, job: JobName) -> Lingering {
        let (own, others) = self.streams.drain(..).partition(|stream| stream.job == job);
        self.streams = others;
        Lingering { streams: own }
    }

    /// Closes what is done or has waited for too long.
    pub(super) fn tidy(&mut self) {
        self.streams.retain_mut(|stream| !stream.is_done() && stream.since.elapsed() < PATIENCE);
    }

    /// Waits a little for what is left.
    pub(super) fn finish(&mut self) {
        let since = Instant::now();
        self.tidy();
        while !self.streams.is_empty() && since.elapsed() < LAST_WAIT {
            std::thread::sleep(Duration::from_millis(1));
            self.tidy();
        }
    }
}

impl Stream {
    fn is_done(&mut self) -> bool {
        while !self.rest.is_empty() {
            match send(self.socket.as_raw_fd(), &self.rest, MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL) {
                Ok(sent) => drop(self.rest.drain(..sent)),
                Err(Errno::EINTR) => {}
                Err(Errno::EAGAIN) => return false,
                Err(_) => return true,
            }
        }
        if !self.ended {
            self.ended = true;
            if shutdown(self.socket.as_raw_fd(), Shutdown::Write).is_err() {
                return true;
            }
        }
        unacknowledged(&self.socket).is_none_or(|bytes| bytes == 0)
    }
}

/// Bytes, the end of the stream counted as one, that the peer's system has not acknowledged.
pub(super) fn unacknowledged(socket: &OwnedFd) -> Option<usize> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: SIOCOUTQ, which has this value, writes one int.
    let outcome = unsafe { libc::ioctl(socket.as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
    (outcome == 0).then(|| usize::try_from(bytes).unwrap_or(0))
}
