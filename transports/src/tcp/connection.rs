//! A session as the engine holds it.
//!
//! Invariant: the session is locked for the time of one call at most. Absent: what a session does ([`super::session`]).

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::Duration;

use consort_memory::{Counter, ForkStamp, Mapping, Span, SpanMut};

use super::NAME;
use super::handshake::JobName;
use super::listener::Listener;
use super::session::{Beginning, Session};
use crate::streams::{Path, Ready};
use crate::{Capabilities, Connection, CounterKind, Flow, PeerState, RemoteRegion, TransportError, Way};

#[derive(Debug)]
pub(super) struct TcpConnection {
    pub(super) session: Arc<Mutex<Session>>,
    listeners: Arc<[Arc<Listener>]>,
    job: JobName,
    stamp: Arc<ForkStamp>,
    mailbox: Arc<Mapping>,
    peer_mailbox_bytes: usize,
    ready: Counter,
    credit: Counter,
    /// The sockets as of a version of the session: those that are watched.
    watched: Vec<Arc<OwnedFd>>,
    version: u64,
    /// The session's version when it was looked at last.
    latest: u64,
}

fn lock(session: &Mutex<Session>) -> MutexGuard<'_, Session> {
    session.lock().unwrap_or_else(PoisonError::into_inner)
}

impl TcpConnection {
    /// A connection whose first socket is there.
    pub(super) fn new(beginning: Beginning, path: Path, socket: OwnedFd, stamp: Arc<ForkStamp>) -> Self {
        let listeners = beginning.expectation.listeners.clone();
        let (job, nonce) = (beginning.key.job, beginning.expectation.nonce);
        let mailbox = Arc::clone(&beginning.mailbox);
        let peer_mailbox_bytes = beginning.peer_mailbox_bytes;
        let (ready, credit) = (Counter::standalone(), Counter::standalone());
        let session = Session::new(beginning, [ready.clone(), credit.clone()]);
        let id = session.id;
        let session = Arc::new(Mutex::new(session));
        // Before a listener may look after it.
        lock(&session).begin(path, socket);
        listeners.iter().for_each(|listener| listener.enrol(id, &session));
        for listener in &*listeners {
            if let Some(expected) = listener.desk().expected.get_mut(&nonce) {
                (expected.session, expected.waker) = (Some(id), None);
            }
        }
        let (watched, version) = {
            let mut session = lock(&session);
            // What came before that.
            session.tend();
            (session.descriptors(), session.version)
        };
        Self {
            session,
            listeners,
            job,
            stamp,
            mailbox,
            peer_mailbox_bytes,
            ready,
            credit,
            watched,
            version,
            latest: version,
        }
    }
}

impl Connection for TcpConnection {
    fn transport(&self) -> &'static str {
        NAME
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { load_store: false, put: true, ordered: true, needs_progress: true }
    }

    fn mailbox(&self) -> SpanMut<'_> {
        self.mailbox.span(0, self.mailbox.bytes())
    }

    fn kept_bytes(&self) -> usize {
        lock(&self.session).kept_bytes()
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

    fn is_flushed(&self) -> bool {
        lock(&self.session).is_flushed()
    }

    fn is_delivered(&self) -> bool {
        lock(&self.session).is_delivered()
    }

    fn put(&mut self, offset: usize, bytes: Span<'_>, done: &mut usize) -> Result<Poll<()>, TransportError> {
        lock(&self.session).put(offset, bytes, None, done)
    }

    fn fill(
        &mut self,
        offset: usize,
        bytes: Span<'_>,
        (value, tag): (u64, u64),
        done: &mut usize,
    ) -> Result<Poll<()>, TransportError> {
        lock(&self.session).put(offset, bytes, Some(Ready { value, tag }), done)
    }

    fn signal(&mut self, kind: CounterKind, value: u64, tag: u64) -> Result<Poll<()>, TransportError> {
        lock(&self.session).signal(kind, Ready { value, tag })
    }

    fn flush_credits(&mut self) {
        lock(&self.session).flush_credits();
    }

    fn deferred_credits(&self) -> u64 {
        lock(&self.session).deferred_credits()
    }

    fn waits_for_room(&self, at: usize) -> bool {
        self.watched.get(at).is_some_and(|socket| lock(&self.session).waits_for_room(socket))
    }

    fn flows(&self, each: &mut dyn FnMut(Flow)) {
        lock(&self.session).flows(each);
    }

    fn ways(&self, lost_after: Duration, each: &mut dyn FnMut(Way)) {
        lock(&self.session).paths(lost_after, each);
    }

    fn progress(&mut self) -> Result<PeerState, TransportError> {
        let mut session = lock(&self.session);
        let state = session.progress();
        self.latest = session.version;
        state
    }

    fn wake_at(&self, at: usize) -> Option<BorrowedFd<'_>> {
        self.watched.get(at).map(|socket| socket.as_fd())
    }

    fn has_new_wake(&mut self, forget: &mut dyn FnMut(BorrowedFd<'_>)) -> bool {
        if self.latest == self.version {
            return false;
        }
        self.watched.drain(..).for_each(|socket| forget(socket.as_fd()));
        let session = lock(&self.session);
        (self.watched, self.version) = (session.descriptors(), session.version);
        self.latest = self.version;
        true
    }
}

impl Drop for TcpConnection {
    fn drop(&mut self) {
        // A child has the same sockets: ending the session would end the parent's.
        if self.stamp.is_forked_child() {
            std::mem::forget(Arc::clone(&self.session));
            return;
        }
        let is_over = {
            let mut session = lock(&self.session);
            session.close();
            session.is_over()
        };
        if !is_over {
            self.listeners[0].linger(self.job, Arc::clone(&self.session));
        }
    }
}
