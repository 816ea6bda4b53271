//! Sessions whose connection is gone, until the other machine has what was sent.
//!
//! Closing a socket that has unread bytes makes the system send a reset at once and forget what it has not
//! delivered: the peer would lose bytes that a `signal` had already been answered `Ready` for. So the session of a dropped
//! connection waits here until the peer's system acknowledged everything, its end last; a socket that breaks meanwhile is
//! replaced. From then on a reset is harmless: what has arrived stays readable.
//!
//! Invariant: dropping a connection does not wait. Nothing stays longer than [`PATIENCE`], beyond [`COUNT_MAX`] of a job its
//! oldest goes at once, and only the end of a job's transport waits, for its own sessions and at most [`LAST_WAIT`]. Absent:
//! threads; sessions are tidied when their listener is served and when connections are dropped.

use std::collections::VecDeque;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::handshake::JobName;
use super::session::Session;

const PATIENCE: Duration = Duration::from_secs(2);
const LAST_WAIT: Duration = Duration::from_millis(250);
const COUNT_MAX: usize = 256;

#[derive(Debug, Default)]
pub(super) struct Lingering {
    sessions: VecDeque<Last>,
}

#[derive(Debug)]
struct Last {
    job: JobName,
    session: Arc<Mutex<Session>>,
    since: Instant,
}

impl Lingering {
    /// Takes over the session of a job's connection.
    pub(super) fn push(&mut self, job: JobName, session: Arc<Mutex<Session>>) {
        self.sessions.push_back(Last { job, session, since: Instant::now() });
        self.tidy();
        if self.sessions.iter().filter(|last| last.job == job).count() > COUNT_MAX
            && let Some(oldest) = self.sessions.iter().position(|last| last.job == job)
        {
            self.sessions.remove(oldest);
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.sessions.is_empty()
    }

    /// The sessions of a job, for its own end to wait for.
    pub(super) fn take(&mut self, job: JobName) -> Lingering {
        let (own, others) = self.sessions.drain(..).partition(|last| last.job == job);
        self.sessions = others;
        Lingering { sessions: own }
    }

    /// Closes what is done or has waited for too long.
    pub(super) fn tidy(&mut self) {
        self.sessions.retain(|last| !last.is_done() && last.since.elapsed() < PATIENCE);
    }

    /// Waits a little for what is left.
    pub(super) fn finish(&mut self) {
        let since = Instant::now();
        self.tidy();
        while !self.sessions.is_empty() && since.elapsed() < LAST_WAIT {
            std::thread::sleep(Duration::from_millis(1));
            self.tidy();
        }
    }
}

impl Last {
    fn is_done(&self) -> bool {
        let mut session = self.session.lock().unwrap_or_else(PoisonError::into_inner);
        session.tend();
        session.is_over()
    }
}

/// Bytes, the end of the stream counted as one, that the peer's system has not acknowledged.
pub(super) fn unacknowledged(socket: &OwnedFd) -> Option<usize> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: SIOCOUTQ, which has this value, writes one int.
    let outcome = unsafe { libc::ioctl(socket.as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
    (outcome == 0).then(|| usize::try_from(bytes).unwrap_or(0))
}
