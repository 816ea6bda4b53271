//! The dialling side of a control link, run by the thread that joins a job, or later by a caller.

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket};

use super::link::{RemoteLink, Stream};
use super::lock;
use super::member::{Begun, Member, NO_COMMUNICATOR};
use super::patience::Patience;
use super::process::{Shared, see_each_other};
use super::race;
use super::wire::Message;
use crate::bootstrap::{self, is_ready, patience as timeout};
use crate::codec::wire_struct;
use crate::frames::Frames;
use crate::handshake::{Caller, Unproved};
use consort_types::Rank;
use consort_types::error::Result;

/// What a control link is about: the job, the rank that dials, and the rank that answers.
#[derive(Clone, Copy)]
pub(super) struct Subject {
    pub(super) job: [u8; 16],
    pub(super) from: Rank,
    pub(super) to: Rank,
}

wire_struct!(Subject { job, from, to });

/// Links `member` to `peer` of another process, trying until `deadline`.
///
/// # Errors
/// The last thing that went wrong.
pub fn dial(
    shared: &Arc<Shared>,
    member: &Arc<Member>,
    peer: Rank,
    patience: Patience<'_>,
) -> Result<io::Result<()>> {
    let mut call = Call::new(member, peer);
    loop {
        // It may be called by others meanwhile, for news that came before this link.
        match member.begin_call(peer) {
            Begun::Linked => return Ok(Ok(())),
            Begun::Own => {}
            Begun::Busy if patience.left().is_zero() => return Ok(Err(io::ErrorKind::TimedOut.into())),
            Begun::Busy => {
                std::thread::sleep(Duration::from_millis(5).min(patience.left()));
                continue;
            }
        }
        let attempt = call.attempt(shared, patience).and_then(|stream| adopt(shared, member, peer, stream));
        match attempt {
            Ok(()) => return Ok(Ok(())),
            Err(error) if patience.left().is_zero() => {
                member.end_call(peer);
                return Ok(Err(error));
            }
            Err(error) => {
                member.end_call(peer);
                tracing::debug!(rank = member.rank, peer, "control link not up yet: {error}");
                std::thread::sleep(Duration::from_millis(5).min(patience.left()));
            }
        }
    }
}

/// Makes a link of a stream whose other end has answered.
pub(super) fn adopt(
    shared: &Arc<Shared>,
    member: &Arc<Member>,
    peer: Rank,
    stream: Stream,
) -> io::Result<()> {
    let link = RemoteLink::new(shared, member, peer, stream)?;
    if member.is_sparse() {
        link.send(NO_COMMUNICATOR, &Message::Here);
    }
    shared.adopt(member, link)
}

/// What a call of another rank needs to know of the two.
pub(super) struct Call {
    subject: Subject,
    key: [u8; 32],
    /// The other's control listener on this host, if it has one that this rank may call.
    unix: Option<Vec<u8>>,
    tcp: Vec<SocketAddr>,
    /// Whether the two take each other for ranks of one host, whatever the call finds.
    is_near: bool,
    /// Addresses at which something else answered.
    strange: Vec<SocketAddr>,
}

impl Call {
    pub(super) fn new(member: &Member, peer: Rank) -> Self {
        let is_of_this_host = member.is_of_this_host(peer);
        let subject = Subject { job: member.job, from: member.rank, to: peer };
        let is_near = is_of_this_host && member.is_sparse();
        Call::to(subject, member.key, &member.table[peer as usize], is_of_this_host, is_near)
    }

    /// A call of a rank that is `there`, by one that is `here`, before there are links.
    pub(super) fn before_links(
        subject: Subject,
        key: [u8; 32],
        here: &bootstrap::Member,
        there: &bootstrap::Member,
    ) -> Self {
        let is_of_this_host = here.host_key == there.host_key && see_each_other(&here.unix, &there.unix);
        Call::to(subject, key, there, is_of_this_host, false)
    }

    fn to(
        subject: Subject,
        key: [u8; 32],
        there: &bootstrap::Member,
        is_of_this_host: bool,
        is_near: bool,
    ) -> Self {
        Call {
            subject,
            key,
            unix: is_of_this_host.then(|| there.unix.clone()),
            tcp: there.tcp.clone(),
            is_near,
            strange: Vec::new(),
        }
    }

    /// Calls once, for as long as an answer takes; a stream whose other end has proved that it is that rank.
    ///
    /// # Errors
    /// Why there is none; of the kind [`io::ErrorKind::ConnectionRefused`] when nothing listens there.
    pub(super) fn attempt(&mut self, shared: &Shared, patience: Patience<'_>) -> io::Result<Stream> {
        let stream = self.connect(shared, patience)?;
        let at = stream.peer_address();
        if let Err(error) = greet(&stream, self.subject, &self.key, patience) {
            self.strange.extend(at.filter(|at| !self.strange.contains(at)));
            return Err(match at {
                Some(at) => io::Error::new(error.kind(), format!("{at}: {error}")),
                None => error,
            });
        }
        if let Some(at) = at {
            *lock(&shared.reached) = Some(at.ip());
        }
        Ok(stream)
    }

    /// An abstract Unix socket where both ranks see the same host as the same user, else TCP.
    fn connect(&self, shared: &Shared, patience: Patience<'_>) -> io::Result<Stream> {
        let by_unix = |name: &Vec<u8>| {
            let stream = Stream::Unix(call_unix(name)?);
            // Another user's rank would turn it away; over TCP the job's key is proof enough.
            if stream.peer_is_same_user() {
                return Ok(stream);
            }
            Err(io::Error::new(io::ErrorKind::PermissionDenied, "it is another user's"))
        };
        match self.unix.as_ref().map(by_unix) {
            Some(Ok(stream)) => return Ok(stream),
            // Its queue is full: the network would be another distance.
            Some(Err(error)) if error.kind() == io::ErrorKind::WouldBlock => return Err(error),
            Some(Err(error)) if self.is_near => {
                let text = format!(
                    "its control socket on this host: {error}; unless it ended, it is in a container of another user, and needs \
                     another CONSORT_HOSTID"
                );
                return Err(io::Error::new(error.kind(), text));
            }
            _ => {}
        }
        let like = *lock(&shared.reached);
        race::connect_to_any(&self.tcp, like, &self.strange, patience).map(Stream::Tcp)
    }
}

/// Connects to an abstract socket, without waiting for room in its listener's queue.
fn call_unix(name: &[u8]) -> io::Result<UnixStream> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let socket = socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
    connect(socket.as_raw_fd(), &UnixAddr::new_abstract(name)?)?;
    Ok(UnixStream::from(socket))
}

pub(super) fn greet(
    stream: &Stream,
    subject: Subject,
    key: &[u8; 32],
    patience: Patience<'_>,
) -> io::Result<()> {
    stream.set_nonblocking(true)?;
    let (mut caller, mut frames) = (Caller::new(*key, subject), Frames::default());
    loop {
        match caller.poll(&mut frames, &mut &*stream) {
            Poll::Ready(Ok(_)) => return Ok(()),
            Poll::Ready(Err(Unproved::OtherJob)) => {
                return Err(io::Error::new(io::ErrorKind::PermissionDenied, "it is of another job"));
            }
            Poll::Ready(Err(Unproved::Because(text))) => {
                return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
            }
            Poll::Pending => {}
        }
        let (turn, now) = (patience.turn(), Instant::now());
        if turn.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        is_ready(stream, !frames.outgoing.is_empty(), timeout(Some(now + turn), now))?;
    }
}
