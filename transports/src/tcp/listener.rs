//! The listening socket of a process at one of its addresses.
//!
//! Invariant: one listener serves any number of jobs; a caller says which job it means and proves that it knows that
//! job's key, and is passed to the endpoint that it named. An answer is only for callers that have proved the key, so
//! strangers do not learn which jobs are here: a caller of a job whose transports have gone hears so, by that job's
//! key, which is kept for a while; a caller of any other job is hung up on, without a word. Sessions whose sockets break while
//! their ranks are not in calls are mended when the listener is served. Absent: what becomes of a caller
//! ([`super::TcpConnecting`], [`super::session`]).

use std::collections::{HashMap, HashSet, VecDeque};
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use consort_memory::Waker;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::socket::{Backlog, listen};

use super::handshake::{HELLO_BYTES, JobName, Key, Meeting, Verdict, job_of};
use super::linger::Lingering;
use super::session::{Session, short};
use super::{LISTENERS_MAX, NAME, send_small, system};
use crate::ports::listen_within;
use crate::reception::Reception;
use crate::segment::Nonce;
use crate::{Service, TransportError};

/// A listening socket for any number of [`super::Tcp`]s.
#[derive(Debug)]
pub struct Listener {
    pub(super) here: SocketAddr,
    service: OwnedFd,
    desk: Mutex<Desk>,
    lingering: Mutex<Lingering>,
    /// Sockets of sessions: ready when one of them breaks.
    watch: Epoll,
    sessions: Mutex<HashMap<u64, Weak<Mutex<Session>>>>,
    /// Sessions that are to be mended; the bell rings when there is one more.
    broken: Mutex<HashSet<u64>>,
    bell: EventFd,
    /// From where to where long packets do not get through, as sessions have found.
    short: Mutex<HashSet<(IpAddr, IpAddr)>>,
}

/// What the bell is among the sessions.
const BELL: u64 = u64::MAX;
/// Calls that wait for one endpoint.
const CALLERS_MAX: usize = 2 * LISTENERS_MAX;
/// Sockets that one look finds broken.
const BREAKS_MAX: usize = 64;

/// Jobs that have gone and whose late callers hear so.
const DISMISSED_MAX: usize = 64;

#[derive(Debug)]
pub(super) struct Desk {
    reception: Reception,
    /// Keys of the jobs here, with how many transports have each; none has those of `dismissed`.
    jobs: HashMap<JobName, (Key, usize)>,
    /// The last that went, in order; one that came again may still be among them.
    dismissed: VecDeque<JobName>,
    /// Endpoints, and the sessions that they have become; with who called and was not asked for yet.
    pub(super) expected: HashMap<Nonce, Expected>,
}

/// What a listener knows of an endpoint.
#[derive(Debug)]
pub(super) struct Expected {
    pub(super) job: JobName,
    /// The last for each path.
    pub(super) callers: Vec<Caller>,
    /// What is rung when one comes.
    pub(super) waker: Option<u64>,
    /// Set when one comes.
    called: Arc<AtomicBool>,
    /// What it has become.
    pub(super) session: Option<u64>,
}

impl Expected {
    pub(super) fn new(job: JobName, called: Arc<AtomicBool>) -> Self {
        Self { job, callers: Vec::new(), waker: None, called, session: None }
    }
}

/// A caller that proved to know the key.
#[derive(Debug)]
pub(super) struct Caller {
    pub(super) meeting: Meeting,
    pub(super) socket: OwnedFd,
}

impl Listener {
    /// Listens on `bind`, an address of this machine that the peers can reach, at a port the system picks.
    ///
    /// # Errors
    /// [`TransportError::BadAddress`] when `bind` is unspecified (peers get it), or the system's error.
    pub fn new(bind: IpAddr) -> Result<Self, TransportError> {
        Self::within(bind, None)
    }

    /// As [`Listener::new`], at a port of the range where there is one.
    ///
    /// # Errors
    /// Those of [`Listener::new`], and [`TransportError::PortsInUse`] when each port of the range is in use.
    pub fn within(bind: IpAddr, ports: Option<RangeInclusive<u16>>) -> Result<Self, TransportError> {
        if bind.is_unspecified() {
            let reason = "the address to listen on must be one that peers can connect to";
            return Err(TransportError::BadAddress { transport: NAME, reason });
        }
        let refused = |call| move |error| TransportError::system(NAME, call, error);
        let listener = listen_within(bind, ports.clone()).map_err(|error| match ports {
            Some(ports) if error.kind() == ErrorKind::AddrInUse => {
                let (first, last) = ports.into_inner();
                TransportError::PortsInUse { transport: NAME, address: bind, first, last }
            }
            _ => refused("bind")(error),
        })?;
        let here = listener.local_addr().map_err(refused("getsockname"))?;
        listener.set_nonblocking(true).map_err(refused("fcntl"))?;
        // Again, for a longer queue than the standard library's: all ranks call at the same time.
        listen(&listener, Backlog::MAXCONN).map_err(|error| system("listen", error))?;
        let reception = Reception::new(NAME, listener.into(), HELLO_BYTES)?;
        let service = reception.service()?;
        let watch =
            Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map_err(|error| system("epoll_create1", error))?;
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        let bell = EventFd::from_flags(flags).map_err(|error| system("eventfd", error))?;
        let added = watch.add(&bell, EpollEvent::new(EpollFlags::EPOLLIN, BELL));
        added.and_then(|()| reception.watch(&watch.0)).map_err(|error| system("epoll_ctl", error))?;
        let desk = Mutex::new(Desk {
            reception,
            jobs: HashMap::new(),
            dismissed: VecDeque::new(),
            expected: HashMap::new(),
        });
        Ok(Self {
            here,
            service,
            desk,
            lingering: Mutex::default(),
            watch,
            sessions: Mutex::default(),
            broken: Mutex::default(),
            bell,
            short: Mutex::default(),
        })
    }

    fn sessions(&self) -> MutexGuard<'_, HashMap<u64, Weak<Mutex<Session>>>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks after a session from now on.
    pub(super) fn enrol(&self, id: u64, session: &Arc<Mutex<Session>>) {
        self.sessions().insert(id, Arc::downgrade(session));
    }

    pub(super) fn dismiss_session(&self, id: u64) {
        self.sessions().remove(&id);
    }

    /// Notices from now on when a session's socket breaks, and when it has room, if that is asked for.
    pub(super) fn watch(&self, socket: &OwnedFd, session: u64, room: bool) {
        let room = if room { EpollFlags::EPOLLOUT } else { EpollFlags::empty() };
        let mut event = EpollEvent::new(EpollFlags::EPOLLRDHUP | EpollFlags::EPOLLET | room, session);
        // Where the system refuses, the next call on that session notices.
        let _ = self.watch.add(socket, event).or_else(|_| self.watch.modify(socket, &mut event));
    }

    /// By hand, as closing does not do it while a forked child has the socket too.
    pub(super) fn unwatch(&self, socket: &OwnedFd) {
        let _ = self.watch.delete(socket);
    }

    fn broken(&self) -> MutexGuard<'_, HashSet<u64>> {
        self.broken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A session is to be mended, or is so no longer.
    pub(super) fn count_broken(&self, session: u64, is_broken: bool) {
        if is_broken {
            self.broken().insert(session);
            self.ring();
        } else {
            self.broken().remove(&session);
        }
    }

    fn short(&self) -> MutexGuard<'_, HashSet<(IpAddr, IpAddr)>> {
        self.short.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The longest segment for a call, where a session has found that long packets do not get through on its way.
    pub(super) fn segment(&self, here: IpAddr, there: IpAddr) -> Option<u32> {
        self.short().contains(&(here, there)).then(|| short(there))
    }

    /// Calls on this way have short segments from now on.
    pub(super) fn shorten(&self, here: IpAddr, there: IpAddr) {
        self.short().insert((here, there));
    }

    /// Has the listener served, by its descriptor.
    fn ring(&self) {
        let _ = self.bell.write(1);
    }

    /// Takes over the session of a job's connection.
    pub(super) fn linger(&self, job: JobName, session: Arc<Mutex<Session>>) {
        self.lingering().push(job, session);
        self.ring();
    }

    /// Sessions whose sockets have broken, and those that are to be mended.
    fn to_be_mended(&self) -> Vec<u64> {
        let mut events = [EpollEvent::empty(); BREAKS_MAX];
        let found = self.watch.wait(&mut events, EpollTimeout::ZERO).unwrap_or(0);
        let mut ids: Vec<u64> = events[..found].iter().map(EpollEvent::data).collect();
        if ids.contains(&BELL) {
            let _ = self.bell.read();
        }
        ids.extend(self.broken().iter());
        ids
    }

    fn mend(&self, mut ids: Vec<u64>) {
        ids.sort_unstable();
        ids.dedup();
        let find = |id: &u64| self.sessions().get(id).and_then(Weak::upgrade);
        for session in ids.iter().filter_map(find) {
            // What it finds, its connection says in the next call.
            session.lock().unwrap_or_else(PoisonError::into_inner).tend();
        }
    }

    pub(super) fn desk(&self) -> MutexGuard<'_, Desk> {
        self.desk.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn lingering(&self) -> MutexGuard<'_, Lingering> {
        self.lingering.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Callers may name this job from now on.
    pub(super) fn admit(&self, key: &Key) {
        self.desk().jobs.entry(key.job).or_insert_with(|| (key.clone(), 0)).1 += 1;
    }

    /// One transport of the job less.
    pub(super) fn dismiss(&self, key: &Key) {
        let Desk { jobs, dismissed, .. } = &mut *self.desk();
        let Some((_, transports)) = jobs.get_mut(&key.job) else { return };
        *transports -= 1;
        if *transports == 0 {
            dismissed.retain(|job| *job != key.job);
            dismissed.push_back(key.job);
        }
        if dismissed.len() > DISMISSED_MAX
            && let Some(job) = dismissed.pop_front()
            && jobs.get(&job).is_some_and(|(_, transports)| *transports == 0)
        {
            jobs.remove(&job);
        }
    }
}

impl Service for Listener {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.service.as_fd()
    }

    fn serve(&self) {
        self.lingering().tidy();
        let mut to_be_mended = self.to_be_mended();
        // Its holder is serving already, or is about to be done.
        if let Ok(mut desk) = self.desk.try_lock() {
            let Desk { reception, jobs, expected, .. } = &mut *desk;
            reception
                .serve(|_| true, |socket, hello| to_be_mended.extend(receive(jobs, expected, socket, hello)));
        }
        self.mend(to_be_mended);
    }

    fn has_chores(&self) -> bool {
        !self.broken().is_empty() || !self.lingering().is_empty()
    }
}

/// A caller has said what it wants. The session that it means.
fn receive(
    jobs: &HashMap<JobName, (Key, usize)>,
    expected: &mut HashMap<Nonce, Expected>,
    socket: OwnedFd,
    hello: &[u8],
) -> Option<u64> {
    let Some((key, _)) = job_of(hello).and_then(|job| jobs.get(&job)) else {
        tracing::debug!(transport = NAME, "turned a caller away: its job is not here");
        return None;
    };
    let Some(meeting) =
        key.check_hello(hello).filter(|meeting| usize::from(meeting.path.number) < LISTENERS_MAX)
    else {
        tracing::debug!(transport = NAME, "turned a caller away: it does not know the key");
        return None;
    };
    let Some(expected) = expected.get_mut(&meeting.callee).filter(|expected| expected.job == key.job) else {
        tracing::debug!(transport = NAME, "turned a caller away: its peer has gone");
        let _ = send_small(&socket, &key.answer(Verdict::Gone, &meeting));
        return None;
    };
    // The latest counts: an earlier one of the same caller has been given up by it.
    let is_same = |other: &Meeting| {
        (other.caller, other.path.number) == (meeting.caller, meeting.path.number)
            && other.path.epoch <= meeting.path.epoch
    };
    expected.callers.retain(|caller| !is_same(&caller.meeting));
    if expected.callers.len() == CALLERS_MAX {
        expected.callers.remove(0);
    }
    expected.callers.push(Caller { meeting, socket });
    expected.called.store(true, Ordering::Release);
    expected.waker.into_iter().for_each(Waker::ring);
    expected.session
}

#[cfg(test)]
impl Listener {
    /// The session of a test that has one.
    pub(super) fn only_session(&self) -> Option<Arc<Mutex<Session>>> {
        self.sessions().values().find_map(Weak::upgrade)
    }

    /// Refuses calls from now on.
    pub(super) fn hang_up(&self) {
        self.desk().reception.hang_up();
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn a_range_holds_every_listener_and_a_full_one_says_so() {
        let [.., high, low] = std::process::id().to_be_bytes();
        let ip: IpAddr = Ipv4Addr::new(127, high.clamp(1, 254), low, 3).into();
        let listener = || Listener::within(ip, Some(17_000..=17_001));
        let held = [listener().expect("free"), listener().expect("free")];
        let mut ports = held.each_ref().map(|listener| listener.here.port());
        ports.sort_unstable();
        assert_eq!(ports, [17_000, 17_001]);
        let error = listener().expect_err("both are taken");
        assert!(matches!(error, TransportError::PortsInUse { first: 17_000, last: 17_001, .. }), "{error:?}");
        let text = error.to_string();
        let parts = [&ip.to_string(), "all 2 ports", "CONSORT_PORTS=17000-17001", "widen CONSORT_PORTS"];
        assert!(parts.iter().all(|part| text.contains(*part)), "{text}");
        drop(held);
        listener().expect("free again");
    }
}
