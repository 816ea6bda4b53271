//! Sessions as connections: on their way, established, closed; and looked after while their ranks are in no call.
//!
//! Invariant: a session has one user at a time, by its lock; who looks after it never waits for that. Absent: what a session does.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError, Weak};
use std::task::Poll;
use std::time::{Duration, Instant};

use consort_memory::{Counter, Span, SpanMut};
use nix::sys::epoll::Epoll;
use nix::sys::eventfd::{EfdFlags, EventFd};

use super::super::{NAME, Shared, lock};
use super::{Lane, Session};
use crate::closed::Closing;
use crate::streams::Ready;
use crate::{
    Capabilities, Connecting, Connection, CounterKind, PeerState, RemoteRegion, Service, TransportError, Way,
};

/// How long a connection whose first lane is open waits for the others before it is given out: they come when they come.
const OTHERS: Duration = Duration::from_millis(50);

/// Sessions of a transport that may have to be looked after.
pub(in super::super) struct Sessions {
    all: Mutex<Vec<Weak<Tended>>>,
    /// Readable when one is to be looked after.
    bell: EventFd,
}

/// A session, and whether it is looked after while its rank is in no call.
struct Tended {
    session: Mutex<Session>,
    is_tended: AtomicBool,
}

impl Tended {
    fn is_tended(&self) -> bool {
        self.is_tended.load(Ordering::Relaxed)
    }
}

impl Sessions {
    /// None yet.
    ///
    /// # Errors
    /// The system's, where it has no descriptor left.
    pub(in super::super) fn new() -> Result<Arc<Self>, TransportError> {
        let bell = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)
            .map_err(|error| TransportError::system(NAME, "eventfd", error))?;
        Ok(Arc::new(Sessions { all: Mutex::default(), bell }))
    }

    fn enrol(&self, session: &Arc<Tended>) {
        let mut all = lock(&self.all);
        all.retain(|of| of.strong_count() > 0);
        all.push(Arc::downgrade(session));
    }

    /// Those that are to be looked after.
    fn tended(&self) -> Vec<Arc<Tended>> {
        lock(&self.all).iter().filter_map(|of| of.upgrade().filter(|of| of.is_tended())).collect()
    }
}

impl Service for Sessions {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    fn serve(&self) {
        let _ = self.bell.read();
        for tended in self.tended() {
            let mut session = match tended.session.try_lock() {
                Ok(session) => session,
                Err(TryLockError::Poisoned(session)) => session.into_inner(),
                // Its rank is at it.
                Err(TryLockError::WouldBlock) => continue,
            };
            if session.needs_tending() {
                session.tend();
            }
            tended.is_tended.store(session.needs_tending(), Ordering::Relaxed);
        }
    }

    fn has_chores(&self) -> bool {
        lock(&self.all).iter().any(|of| of.upgrade().is_some_and(|of| of.is_tended()))
    }
}

/// A session on its way.
pub(in super::super) struct SessionConnecting {
    shared: Arc<Shared>,
    /// Until it is the connection's.
    session: Option<Session>,
    /// Since when a lane is open.
    open: Option<Instant>,
}

impl SessionConnecting {
    pub(in super::super) fn new(shared: Arc<Shared>, session: Session) -> Self {
        SessionConnecting { shared, session: Some(session), open: None }
    }
}

impl Connecting for SessionConnecting {
    fn poll(&mut self) -> Result<Poll<Box<dyn Connection>>, TransportError> {
        let Some(session) = &mut self.session else {
            return Err(TransportError::PeerClosed { transport: NAME });
        };
        session.domains[0].port.check_fork()?;
        // A peer that has met this side, said all and gone is a connection, with what it has said.
        session.progress()?;
        if session.lanes.iter().any(|lane| lane.has_led) {
            let since = *self.open.get_or_insert_with(Instant::now);
            if (session.is_whole || since.elapsed() >= OTHERS)
                && let Some(session) = self.session.take()
            {
                return Ok(Poll::Ready(Box::new(SessionConnection::new(Arc::clone(&self.shared), session))));
            }
        } else if !session.calls {
            // What has come meanwhile is looked at soon enough: a sleep on connections on their way is short.
            session.arm()?;
        }
        Ok(Poll::Pending)
    }

    fn wake(&self) -> Option<(BorrowedFd<'_>, bool)> {
        // One that calls has a clock of its own.
        let session = self.session.as_ref().filter(|session| !session.calls && self.open.is_none())?;
        Some((session.descriptor(), false))
    }
}

/// An established connection by several queue pairs.
pub(in super::super) struct SessionConnection {
    shared: Arc<Shared>,
    tended: Arc<Tended>,
    memory: super::Memory,
    /// The session's.
    epoll: Arc<Epoll>,
    /// Bytes of trays before the mailbox here, and bytes of the peer's mailbox.
    trays: usize,
    peer_mailbox_bytes: usize,
    ready: Counter,
    credit: Counter,
}

impl SessionConnection {
    fn new(shared: Arc<Shared>, session: Session) -> Self {
        let (ready, credit) = (session.inbox.ready.clone(), session.inbox.credit.clone());
        let (trays, peer_mailbox_bytes) = (session.inbox.trays(), session.peer_mailbox_bytes());
        let (memory, epoll) = (session.memory.clone(), Arc::clone(&session.epoll));
        let tended = Arc::new(Tended { session: Mutex::new(session), is_tended: AtomicBool::new(false) });
        shared.sessions.enrol(&tended);
        SessionConnection { shared, tended, memory, epoll, trays, peer_mailbox_bytes, ready, credit }
    }

    fn session(&self) -> MutexGuard<'_, Session> {
        self.tended.session.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// # Errors
    /// That this is a forked child.
    fn own(&self) -> Result<MutexGuard<'_, Session>, TransportError> {
        self.shared.check_fork()?;
        Ok(self.session())
    }

    /// Has the session looked after, where something may have to be sent again.
    fn tend(&self) {
        if !self.tended.is_tended() {
            self.tended.is_tended.store(true, Ordering::Relaxed);
            let _ = self.shared.sessions.bell.write(1);
        }
    }

    fn put_all(
        &self,
        offset: usize,
        bytes: Span<'_>,
        ready: Option<Ready>,
        done: &mut usize,
    ) -> Result<Poll<()>, TransportError> {
        if !self.own()?.put(offset, bytes, ready)? {
            return Ok(Poll::Pending);
        }
        *done = bytes.len();
        self.tend();
        Ok(Poll::Ready(()))
    }
}

impl Connection for SessionConnection {
    fn transport(&self) -> &'static str {
        NAME
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { load_store: false, put: true, ordered: true, needs_progress: true }
    }

    fn mailbox(&self) -> SpanMut<'_> {
        self.memory.own.span(self.trays, self.memory.own.bytes() - self.trays)
    }

    fn kept_bytes(&self) -> usize {
        self.memory.theirs.bytes() + self.trays
    }

    fn remote(&self) -> RemoteRegion<'_> {
        RemoteRegion { bytes: self.peer_mailbox_bytes, mapped: None }
    }

    fn counter(&self, kind: CounterKind) -> &Counter {
        match kind {
            CounterKind::Ready => &self.ready,
            CounterKind::Credit => &self.credit,
        }
    }

    fn peer_counter(&self, _kind: CounterKind) -> Option<&Counter> {
        None
    }

    fn put(&mut self, offset: usize, bytes: Span<'_>, done: &mut usize) -> Result<Poll<()>, TransportError> {
        self.put_all(offset, bytes, None, done)
    }

    fn fill(
        &mut self,
        offset: usize,
        bytes: Span<'_>,
        (value, tag): (u64, u64),
        done: &mut usize,
    ) -> Result<Poll<()>, TransportError> {
        self.put_all(offset, bytes, Some(Ready { value, tag }), done)
    }

    fn fill_from(
        &mut self,
        offset: usize,
        source: Span<'_>,
        (value, tag): (u64, u64),
        done: &mut usize,
    ) -> Result<Poll<u64>, TransportError> {
        let Some(number) = self.own()?.put_from(offset, source, Ready { value, tag })? else {
            return Ok(Poll::Pending);
        };
        *done = source.len();
        self.tend();
        Ok(Poll::Ready(number))
    }

    fn is_free(&self, number: u64) -> bool {
        self.session().is_source_free(number)
    }

    fn fence(&mut self) -> Result<(), TransportError> {
        self.own()?.fence();
        self.tend();
        Ok(())
    }

    fn signal(&mut self, kind: CounterKind, value: u64, tag: u64) -> Result<Poll<()>, TransportError> {
        match kind {
            CounterKind::Ready => self.put_all(0, Span::of::<u8>(&[]), Some(Ready { value, tag }), &mut 0),
            CounterKind::Credit => {
                self.own()?.credit(value, tag)?;
                self.tend();
                Ok(Poll::Ready(()))
            }
        }
    }

    fn flush_credits(&mut self) {
        if let Ok(mut session) = self.own() {
            session.flush_credits();
        }
    }

    fn deferred_credits(&self) -> u64 {
        self.session().deferred.count()
    }

    fn is_delivered(&self) -> bool {
        self.session().is_delivered()
    }

    fn looks_by_calls(&self) -> bool {
        false
    }

    fn arm(&mut self) -> bool {
        self.own().and_then(|mut session| session.arm()).unwrap_or(false)
    }

    fn progress(&mut self) -> Result<PeerState, TransportError> {
        let mut session = self.own()?;
        let state = session.progress();
        let owes = session.owes_soon();
        drop(session);
        // Its rank may leave its call now.
        if owes {
            self.tend();
        }
        state
    }

    fn waits_for_room(&self, _at: usize) -> bool {
        false
    }

    fn wake_at(&self, at: usize) -> Option<BorrowedFd<'_>> {
        (at == 0).then(|| self.epoll.0.as_fd())
    }

    fn ways(&self, lost_after: Duration, each: &mut dyn FnMut(Way)) {
        self.session().ways(lost_after, each);
    }
}

/// A session whose program has closed it.
struct Closed(Arc<Tended>);

impl Closed {
    fn session(&self) -> MutexGuard<'_, Session> {
        self.0.session.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Closing for Closed {
    fn is_open(&mut self) -> bool {
        let mut session = self.session();
        let is_open = matches!(session.progress(), Ok(PeerState::Open));
        session.ask_devices();
        is_open
    }

    fn say_end(&mut self) -> bool {
        let mut session = self.session();
        session.queue_credits();
        session.is_closing = true;
        session.pump();
        session.end_on.is_some() || session.lanes.iter().all(Lane::is_closed)
    }

    fn is_delivered(&self) -> bool {
        self.session().is_delivered()
    }
}

impl Drop for SessionConnection {
    fn drop(&mut self) {
        // A child's copy is the parent's.
        if self.shared.is_forked_child() {
            std::mem::forget(Arc::clone(&self.tended));
            return;
        }
        self.shared.closed.keep(Box::new(Closed(Arc::clone(&self.tended))));
    }
}
