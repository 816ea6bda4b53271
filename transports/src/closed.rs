//! Connections that were closed before everything had arrived, of transports whose messages a library or a device sends.
//!
//! Invariant: closing does not wait. A connection stays until the peer has all, at most [`LINGER`]; only the end of its transport waits, at
//! most [`LAST_WORDS`]. Absent: threads; connections are looked after when the control thread serves them, and when others are made. Sockets
//! have their own (`tcp/linger`): there the system goes on sending.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nix::sys::eventfd::{EfdFlags, EventFd};

use crate::{Service, TransportError};

/// How long a connection that was closed waits for the peer.
const LINGER: Duration = Duration::from_secs(30);
/// The same where the whole transport goes: a network that works needs microseconds.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// What a closed connection still does.
pub(crate) trait Closing: Send {
    /// Goes on. Whether the peer is there and nothing has failed.
    fn is_open(&mut self) -> bool;

    /// Says the end behind everything else. Whether there was room, or will be none.
    fn say_end(&mut self) -> bool;

    /// Whether everything has arrived, or the library needs it no longer.
    fn is_delivered(&self) -> bool;
}

impl<L: Closing + ?Sized> Closing for Box<L> {
    fn is_open(&mut self) -> bool {
        (**self).is_open()
    }

    fn say_end(&mut self) -> bool {
        (**self).say_end()
    }

    fn is_delivered(&self) -> bool {
        (**self).is_delivered()
    }
}

struct Last<L> {
    line: L,
    since: Instant,
    has_said_end: bool,
}

impl<L: Closing> Last<L> {
    fn is_over(&mut self) -> bool {
        // The end of the peer is the end of this one too, as is a failure.
        let is_open = self.line.is_open();
        if is_open && !self.has_said_end {
            self.has_said_end = self.line.say_end();
        }
        !is_open || (self.has_said_end && self.line.is_delivered()) || self.since.elapsed() > LINGER
    }
}

/// Those of a transport.
pub(crate) struct Closed<L> {
    all: Mutex<Vec<Last<L>>>,
    /// Readable when there are more.
    bell: EventFd,
}

impl<L: Closing> Closed<L> {
    /// None yet.
    ///
    /// # Errors
    /// The system's, where it has no descriptor left.
    pub(crate) fn new(transport: &'static str) -> Result<Arc<Self>, TransportError> {
        let bell = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)
            .map_err(|error| TransportError::system(transport, "eventfd", error))?;
        Ok(Arc::new(Closed { all: Mutex::default(), bell }))
    }

    fn all(&self) -> MutexGuard<'_, Vec<Last<L>>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes over a connection that its program has closed.
    pub(crate) fn keep(&self, line: L) {
        let mut last = Last { line, since: Instant::now(), has_said_end: false };
        if !last.is_over() {
            self.all().push(last);
            let _ = self.bell.write(1);
        }
    }

    /// Looks after them, and forgets those that are over. Whether there are others.
    pub(crate) fn tidy(&self) -> bool {
        let mut all = self.all();
        all.retain_mut(|last| !last.is_over());
        !all.is_empty()
    }

    /// The transport goes: waits a little for what is left, and closes it then.
    pub(crate) fn finish(&self) {
        let begun = Instant::now();
        while self.tidy() && begun.elapsed() < LAST_WORDS {
            std::thread::yield_now();
        }
        drop(std::mem::take(&mut *self.all()));
    }

    /// In a forked child they are the parent's.
    pub(crate) fn abandon(&self) {
        std::mem::forget(std::mem::take(&mut *self.all()));
    }
}

impl<L: Closing> Service for Closed<L> {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    fn serve(&self) {
        let _ = self.bell.read();
        self.tidy();
    }

    fn has_chores(&self) -> bool {
        !self.all().is_empty()
    }
}
