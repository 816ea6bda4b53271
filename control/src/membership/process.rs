//! What all communicators of a process share: its identity, its listeners, its one control thread.
//!
//! Invariant: the process-wide state starts with the first communicator and is gone with the last: thread
//! joined, sockets closed. A forked child never touches the parent's; it gets its own.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::UnixListener;
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use consort_memory::ForkStamp;
use consort_memory::sync::{AtomicBool, AtomicU64, Ordering};
use consort_settings::options::PortRange;
use consort_transports::{
    Listener, Loopback, MemoryLender, PidFd, Service, Shm, Transport, TransportError, listen_within,
};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::socket::{Backlog, listen};

use super::callers::Callers;
use super::link::RemoteLink;
use super::member::{Link, Member};
use super::patience::Patience;
use super::registry::Registry;
use super::relays::{Giving, Relays};
use super::{accept, lock, thread};
use crate::bootstrap::{asked_interfaces, sockets};
use crate::proof::hex;
pub use crate::proof::random;
use consort_types::Rank;
use consort_types::error::{Error, Result};

static PROCESS: Mutex<Weak<Process>> = Mutex::new(Weak::new());

/// Epoll keys below this name the fixed sources.
pub(super) const KEY_WAKE: u64 = 0;
pub(super) const KEY_UNIX: u64 = 1;
pub(super) const KEY_TCP: u64 = 2;
const KEY_FIRST: u64 = 16;

/// Work that may have to go on although no call waits for it.
pub trait Unattended: Send + Sync {
    /// Goes on a bounded way.
    fn advance(&self) -> Advance;

    /// Whether there is nothing to do. At once.
    fn is_idle(&self) -> bool;

    /// Becomes readable when it can go on after it was blocked, where something does.
    fn wake(&self) -> Option<BorrowedFd<'_>>;
}

/// How far unattended work came.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Advance {
    /// There is nothing (more) to do.
    Idle,
    /// What is to be done goes on without this thread, which has to look now and then.
    Watched,
    /// Something is to be done, but it waits for a peer or for another thread that is at it.
    Blocked,
    /// It moved.
    Moved,
}

/// Work that the control thread looks after. As long as it is listed, the thread looks again within its pause.
#[derive(Clone)]
pub(super) struct Attended {
    pub(super) work: Weak<dyn Unattended>,
    /// Whether it stays listed for a while after there is nothing to do, since more of it may come.
    pub(super) lingers: bool,
    /// Since when there has been nothing to do.
    pub(super) idle_since: Option<Instant>,
}

/// The handle that keeps the process-wide state alive.
pub struct Process {
    pub shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// The state itself; the control thread holds it too.
pub struct Shared {
    pub nonce: [u8; 16],
    pub fork: ForkStamp,
    pub registry: Arc<Registry>,
    pub loopback: Arc<dyn Transport>,
    /// To other processes of this host, where that works.
    pub memory: Option<Arc<dyn MemoryLender>>,
    pub unix_name: Vec<u8>,
    pub(super) unix: UnixListener,
    pub(super) tcp: TcpListener,
    /// By local address; one for all communicators that use it.
    listening: Mutex<HashMap<IpAddr, Weak<Listening>>>,
    /// The address of another host that answered last.
    pub(super) reached: Mutex<Option<IpAddr>>,
    pub(super) epoll: Epoll,
    wake: EventFd,
    pub(super) stop: AtomicBool,
    next_key: AtomicU64,
    pub(super) sources: Mutex<HashMap<u64, Source>>,
    members: Mutex<Vec<Weak<Member>>>,
    members_changed: Condvar,
    pub(super) unattended: Mutex<Vec<Attended>>,
    pub(super) callers: Mutex<Callers>,
    pub(super) relays: Relays,
}

/// What the control thread watches besides the fixed sources.
#[derive(Clone)]
pub(super) enum Source {
    /// A stranger who is proving that it belongs to a job.
    Greeting(Arc<Mutex<accept::Greeting>>),
    Link(Arc<RemoteLink>),
    /// A rank to which the table of its job is handed on.
    Giving(Arc<Mutex<Giving>>),
    /// A process in which a rank of this host lives.
    Peer {
        pidfd: Arc<PidFd>,
        member: Weak<Member>,
        rank: Rank,
    },
    /// What a transport has others call.
    Service(Arc<dyn Service>),
}

/// A data listener of this process, served by the control thread as long as a communicator uses it.
pub struct Listening {
    pub listener: Arc<Listener>,
    _attended: Attendance,
}

/// A service that the control thread serves for as long as this lives.
pub struct Attendance {
    service: Arc<dyn Service>,
    shared: Arc<Shared>,
    key: u64,
}

impl Drop for Attendance {
    fn drop(&mut self) {
        if !self.shared.fork.is_forked_child() {
            self.shared.unwatch(self.service.descriptor(), self.key);
        }
    }
}

impl Process {
    /// The process's state, made if there is none (or only a parent's).
    ///
    /// The control listener takes a port of this range; one that is there already stays where it is.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the range has no free port; [`Error::System`] if the system has no more sockets,
    /// memory or randomness.
    pub fn acquire(ports: Option<PortRange>) -> Result<Arc<Process>> {
        let mut slot = lock(&PROCESS);
        if let Some(process) = slot.upgrade() {
            if !process.shared.fork.is_forked_child() {
                return Ok(process);
            }
            // The child's copy of the parent's state: nothing in it may run here.
            std::mem::forget(process);
        }
        let process = Arc::new(Process { shared: Shared::new(ports)?, thread: Mutex::new(None) });
        *slot = Arc::downgrade(&process);
        Ok(process)
    }

    /// Starts the control thread unless it runs.
    pub fn ensure_thread(&self) -> Result<()> {
        let mut thread = lock(&self.thread);
        if thread.is_none() {
            let shared = self.shared.clone();
            let handle = std::thread::Builder::new()
                .name("consort-control".into())
                .spawn(move || thread::run(&shared))
                .map_err(|error| Error::system("starting the control thread", error))?;
            *thread = Some(handle);
        }
        Ok(())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let thread = self.thread.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if self.shared.fork.is_forked_child() {
            // The threads do not exist in this process; joining them would wait for ever.
            // One of them may have held a lock.
            std::mem::forget((thread, self.shared.clone()));
            return;
        }
        let thread = thread.filter(|thread| thread.thread().id() != std::thread::current().id());
        if thread.is_some() {
            self.shared.relays.part();
        }
        self.shared.stop.store(true, Ordering::Relaxed);
        self.shared.wake();
        if let Some(thread) = thread {
            let _ = thread.join();
        }
        let callers = lock(&self.shared.callers).take();
        for caller in callers.into_iter().filter(|caller| caller.thread().id() != std::thread::current().id())
        {
            let _ = caller.join();
        }
    }
}

/// What the names of control sockets begin with that this process can call.
fn socket_namespace() -> String {
    format!("consort-{}-", hex(&sockets()))
}

/// Whether two control sockets are in one namespace, by their names: a process with one of them can call the other.
pub(super) fn see_each_other(one: &[u8], other: &[u8]) -> bool {
    fn namespace(name: &[u8]) -> Option<&[u8]> {
        name.iter().rposition(|byte| *byte == b'-').map(|end| &name[..end])
    }
    namespace(one).is_some_and(|one| Some(one) == namespace(other))
}

/// Listens for control connections at all addresses.
fn control_listener(ports: Option<PortRange>) -> Result<TcpListener> {
    let at = |ip: IpAddr| {
        listen_within(ip, ports.map(PortRange::ports)).map_err(|error| {
            let blamed = ports.and_then(|ports| ports.refused(ip, &error));
            blamed.unwrap_or_else(|| Error::system("binding the control port", error))
        })
    };
    match at(Ipv6Addr::UNSPECIFIED.into()) {
        // A host without IPv6. A range without a free port has none for IPv4 alone either.
        Err(Error::System { .. }) => at(Ipv4Addr::UNSPECIFIED.into()),
        listening => listening,
    }
}

impl Shared {
    pub(super) fn new(ports: Option<PortRange>) -> Result<Arc<Self>> {
        let nonce = random::<16>()?;
        // Says which processes can call it: those that see the same sockets.
        let unix_name = format!("{}{}", socket_namespace(), hex(&random::<16>()?)).into_bytes();
        let address = std::os::unix::net::SocketAddr::from_abstract_name(&unix_name)
            .map_err(|error| Error::system("naming the control socket", error))?;
        let unix = UnixListener::bind_addr(&address)
            .map_err(|error| Error::system("binding the control socket", error))?;
        let tcp = control_listener(ports)?;
        let ready = || -> io::Result<(Epoll, EventFd)> {
            unix.set_nonblocking(true)?;
            tcp.set_nonblocking(true)?;
            // Again, for a longer queue than the standard library's: all ranks call at the same time.
            listen(&tcp, Backlog::MAXCONN)?;
            let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
            let wake = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
            let readable = |key| EpollEvent::new(EpollFlags::EPOLLIN, key);
            epoll.add(&wake, readable(KEY_WAKE))?;
            epoll.add(&unix, readable(KEY_UNIX))?;
            epoll.add(&tcp, readable(KEY_TCP))?;
            Ok((epoll, wake))
        };
        let (epoll, wake) = ready().map_err(|error| Error::system("preparing the control thread", error))?;
        let memory: Option<Arc<dyn MemoryLender>> = match Shm::new() {
            Ok(shm) => Some(Arc::new(shm)),
            Err(error) => {
                tracing::warn!("shared memory is not available, ranks of this host will use TCP: {error}");
                None
            }
        };
        let loopback = Loopback::new().map_err(|error| Error::internal(error.to_string()))?;
        let loopback = Arc::new(loopback);
        let fork = ForkStamp::new().map_err(|error| Error::internal(error.to_string()))?;
        let service = memory.as_ref().and_then(|memory| memory.service());
        let shared = Shared {
            nonce,
            fork,
            registry: Arc::default(),
            loopback,
            memory,
            unix_name,
            unix,
            tcp,
            listening: Mutex::default(),
            reached: Mutex::default(),
            epoll,
            wake,
            stop: AtomicBool::new(false),
            next_key: AtomicU64::new(KEY_FIRST),
            sources: Mutex::new(HashMap::new()),
            members: Mutex::new(Vec::new()),
            members_changed: Condvar::new(),
            unattended: Mutex::new(Vec::new()),
            callers: Mutex::default(),
            relays: Relays::default(),
        };
        if let Some(service) = service {
            shared
                .attend(service)
                .map_err(|error| Error::system("watching the shared-memory listener", error))?;
        }
        Ok(Arc::new(shared))
    }

    /// Has the control thread serve it.
    fn attend(&self, service: Arc<dyn Service>) -> io::Result<u64> {
        self.watch(service.descriptor(), Source::Service(service.clone()))
    }

    /// Has the control thread serve it until what is returned is dropped.
    ///
    /// # Errors
    /// The system's.
    pub fn attended(
        self: &Arc<Self>,
        service: Arc<dyn Service>,
    ) -> std::result::Result<Attendance, TransportError> {
        let refused = |source| TransportError::System { transport: "control", call: "epoll_ctl", source };
        let key = self.attend(service.clone()).map_err(refused)?;
        Ok(Attendance { service, shared: self.clone(), key })
    }

    /// The data listener of this process at one of its addresses, made at a port of the range if no communicator uses it
    /// yet.
    ///
    /// # Errors
    /// As of [`Listener::within`], or the system's.
    pub fn listening(
        self: &Arc<Self>,
        at: IpAddr,
        ports: Option<PortRange>,
    ) -> std::result::Result<Arc<Listening>, TransportError> {
        let mut all = lock(&self.listening);
        if let Some(listening) = all.get(&at).and_then(Weak::upgrade) {
            return Ok(listening);
        }
        let listener = Arc::new(Listener::within(at, ports.map(PortRange::ports))?);
        let _attended = self.attended(listener.clone())?;
        let listening = Arc::new(Listening { listener, _attended });
        all.insert(at, Arc::downgrade(&listening));
        Ok(listening)
    }

    /// The port of the control listener, at the interfaces that were asked for, or else at whichever address of the
    /// host the peer can reach.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the interfaces that were asked for are not there.
    pub fn tcp_addresses(&self) -> Result<Vec<SocketAddr>> {
        let Ok(listener) = self.tcp.local_addr() else { return Ok(Vec::new()) };
        let asked = asked_interfaces()?;
        if asked.is_empty() {
            return Ok(vec![listener]);
        }
        Ok(asked.into_iter().map(|ip| SocketAddr::new(ip, listener.port())).collect())
    }

    /// Makes the control thread look around.
    pub fn wake(&self) {
        let _ = self.wake.write(1);
    }

    pub(super) fn clear_wake(&self) {
        let _ = self.wake.read();
    }

    /// Whether it was woken since this was asked last.
    #[cfg(test)]
    pub(super) fn is_woken(&self) -> bool {
        self.wake.read().is_ok()
    }

    /// Watches a source from now on.
    pub(super) fn watch(&self, fd: BorrowedFd<'_>, source: Source) -> io::Result<u64> {
        self.watch_for(fd, EpollFlags::EPOLLIN, source)
    }

    /// The same for what is `wanted` of it.
    pub(super) fn watch_for(
        &self,
        fd: BorrowedFd<'_>,
        wanted: EpollFlags,
        source: Source,
    ) -> io::Result<u64> {
        let key = self.next_key.fetch_add(1, Ordering::Relaxed);
        lock(&self.sources).insert(key, source);
        if let Err(error) = self.epoll.add(fd, EpollEvent::new(wanted, key)) {
            lock(&self.sources).remove(&key);
            return Err(error.into());
        }
        Ok(key)
    }

    /// Stops watching a source.
    pub(super) fn unwatch(&self, fd: BorrowedFd<'_>, key: u64) {
        let _ = self.epoll.delete(fd);
        lock(&self.sources).remove(&key);
    }

    /// Watches for what is `wanted` of a source from now on.
    pub(super) fn watch_again(&self, fd: BorrowedFd<'_>, wanted: EpollFlags, key: u64) {
        let _ = self.epoll.modify(fd, &mut EpollEvent::new(wanted, key));
    }

    /// Whether the control thread wakes up for callers from the network.
    pub(super) fn hear_network(&self, on: bool) {
        let wanted = if on { EpollFlags::EPOLLIN } else { EpollFlags::empty() };
        let _ = self.epoll.modify(&self.tcp, &mut EpollEvent::new(wanted, KEY_TCP));
    }

    pub(super) fn source(&self, key: u64) -> Option<Source> {
        lock(&self.sources).get(&key).cloned()
    }

    /// An authenticated link to a rank of another process: linked, watched, its process watched too.
    pub(super) fn adopt(&self, member: &Arc<Member>, link: Arc<RemoteLink>) -> io::Result<()> {
        self.link(member, &link)?;
        self.watch(link.stream.as_fd(), Source::Link(link.clone())).inspect_err(|error| {
            // Nothing would be heard over it, and the other end counts on it.
            link.end();
            member.lost(link.peer, &format!("its control connection cannot be watched: {error}"), false);
        })?;
        if link.has_backlog() {
            // The thread has looked at what it watches without it.
            self.wake();
        }
        Ok(())
    }

    /// A link over which nothing was said yet: watched, and linked when its other end counts on it.
    pub(super) fn expect(&self, link: Arc<RemoteLink>) -> io::Result<()> {
        self.watch(link.stream.as_fd(), Source::Link(link.clone().unconfirmed())).map(drop)
    }

    /// Links a member, and watches the other's process.
    pub(super) fn link(&self, member: &Arc<Member>, link: &Arc<RemoteLink>) -> io::Result<()> {
        let peer = link.peer;
        let pid = link.stream.peer_pid();
        if !member.set_link(peer, Link::Remote(link.clone())) {
            return Err(io::Error::other("a second control link for the same rank"));
        }
        let pidfd = pid.map(PidFd::open).transpose().unwrap_or_else(|error| {
            tracing::debug!("no descriptor for process {pid:?}, relying on its sockets: {error}");
            None
        });
        if let Some(pidfd) = pidfd.map(Arc::new) {
            let source = Source::Peer { pidfd: pidfd.clone(), member: Arc::downgrade(member), rank: peer };
            if let Err(error) = self.watch(pidfd.as_fd(), source) {
                tracing::debug!("process {pid:?} is not watched, relying on its sockets: {error}");
            }
        }
        Ok(())
    }

    /// A rank of this process joined a job: others can be linked to it from now on.
    pub fn enlist(&self, member: &Arc<Member>) {
        let mut members = lock(&self.members);
        members.retain(|member| member.strong_count() > 0);
        members.push(Arc::downgrade(member));
        drop(members);
        self.members_changed.notify_all();
        self.wake();
    }

    /// The ranks of this process that have joined jobs.
    pub(super) fn all_members(&self) -> Vec<Arc<Member>> {
        lock(&self.members).iter().filter_map(Weak::upgrade).collect()
    }

    pub fn find_member(&self, job: &[u8; 16], rank: Rank) -> Option<Arc<Member>> {
        let members = lock(&self.members);
        members.iter().filter_map(Weak::upgrade).find(|member| member.job == *job && member.rank == rank)
    }

    /// Waits until another rank of this process has joined the same job, and links the two: each for both, as the first to
    /// know may be gone before the other looks. Whether it came in time.
    pub fn link_within(&self, member: &Arc<Member>, peer: Rank, patience: Patience<'_>) -> bool {
        while !member.is_linked(peer) {
            if let Some(other) = self.find_member(&member.job, peer) {
                member.set_link(peer, Link::Local(Arc::downgrade(&other)));
                other.set_link(member.rank, Link::Local(Arc::downgrade(member)));
                return true;
            }
            let members = lock(&self.members);
            let turn = patience.turn().min(Duration::from_millis(20));
            if turn.is_zero() {
                return false;
            }
            drop(self.members_changed.wait_timeout(members, turn));
        }
        true
    }

    /// All links of a member that are watched.
    pub(super) fn links_of(&self, member: &Member) -> Vec<Arc<RemoteLink>> {
        let sources = lock(&self.sources);
        let links = sources.values().filter_map(|source| match source {
            Source::Link(link) if std::ptr::eq(link.member.as_ptr(), member) => Some(link),
            _ => None,
        });
        links.cloned().collect()
    }

    /// The member is gone: its sources are watched no longer.
    pub fn dismiss(&self, member: &Member) {
        self.relays.dismiss(&member.key, member.rank);
        let mine = |_: &u64, source: &mut Source| match source {
            Source::Link(link) => std::ptr::eq(link.member.as_ptr(), member),
            Source::Peer { member: other, .. } => std::ptr::eq(other.as_ptr(), member),
            Source::Greeting(_) | Source::Giving(_) | Source::Service(_) => false,
        };
        let mut sources = lock(&self.sources);
        for (_, source) in sources.extract_if(mine) {
            let _ = match &source {
                Source::Link(link) => self.epoll.delete(&link.stream),
                Source::Peer { pidfd, .. } => self.epoll.delete(pidfd.as_fd()),
                Source::Greeting(_) | Source::Giving(_) | Source::Service(_) => Ok(()),
            };
        }
    }

    /// Work that the control thread must look after until it is idle.
    pub fn look_after(&self, work: Weak<dyn Unattended>) {
        self.list(work, false);
        self.wake();
    }

    /// Work that goes on without the control thread, which only has to look now and then until it is idle. The thread is
    /// not woken where it looks anyway: that costs the caller more than its call.
    pub fn watch_over(&self, work: Weak<dyn Unattended>) {
        if self.list(work, true) {
            self.wake();
        }
    }

    /// Lists the work; whether it was not listed.
    fn list(&self, work: Weak<dyn Unattended>, lingers: bool) -> bool {
        let mut unattended = lock(&self.unattended);
        match unattended.iter_mut().find(|other| Weak::ptr_eq(&other.work, &work)) {
            Some(listed) => {
                listed.idle_since = None;
                false
            }
            None => {
                unattended.push(Attended { work, lingers, idle_since: None });
                true
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use consort_settings::environment::Environment;

    #[test]
    fn sockets_of_one_namespace_have_names_that_begin_alike() {
        let names = [0, 1].map(|_| Shared::new(None).expect("a process").unix_name.clone());
        assert!(names[0] != names[1] && see_each_other(&names[0], &names[1]));
        let elsewhere = format!("consort-{}-{}", hex(&[7; 16]), hex(&[8; 16]));
        assert!(!see_each_other(&names[0], elsewhere.as_bytes()));
        assert!(!see_each_other(b"", b"") && !see_each_other(b"", &names[0]), "there is none");
    }

    #[test]
    fn control_ports_come_from_the_range_and_a_full_one_is_searched_once() {
        // Two ports of this process, which the system does not pick.
        let first = 17_200 + (std::process::id() % 300) as u16 * 2;
        let text = format!("{first}-{}", first + 1);
        let lookup = |name: &str| (name == "CONSORT_PORTS").then(|| text.clone());
        let ports = PortRange::asked(&Environment::from_lookup(lookup)).expect("a range");
        let listen = || control_listener(ports);
        let held = [listen().expect("free"), listen().expect("free")];
        let places = held.each_ref().map(|listener| listener.local_addr().expect("an address"));
        let mut found = places.map(|place| place.port());
        found.sort_unstable();
        assert_eq!(found, [first, first + 1]);
        let error = listen().expect_err("both are taken");
        assert!(matches!(error, Error::InvalidArgument { .. }), "{error:?}");
        let expected = format!("at {} all 2 ports of CONSORT_PORTS={text}", places[0].ip());
        assert!(error.to_string().contains(&expected), "{error}");
    }
}
