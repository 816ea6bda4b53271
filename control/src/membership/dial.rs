//! The dialling side of a control link, run by the thread that joins a job.

use std::io;
use std::net::SocketAddr;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use super::link::{RemoteLink, Stream};
use super::lock;
use super::member::Member;
use super::patience::Patience;
use super::process::Shared;
use super::race;
use crate::bootstrap::{is_ready, patience as timeout};
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
    let subject = Subject { job: member.job, from: member.rank, to: peer };
    // Addresses at which something else answered.
    let mut strange = Vec::new();
    loop {
        let attempt = connect(shared, member, peer, &strange, patience).and_then(|stream| {
            let at = stream.peer_address();
            if let Err(error) = greet(&stream, subject, &member.key, patience) {
                strange.extend(at);
                return Err(match at {
                    Some(at) => io::Error::new(error.kind(), format!("{at}: {error}")),
                    None => error,
                });
            }
            if let Some(at) = at {
                *lock(&shared.reached) = Some(at.ip());
            }
            RemoteLink::new(shared, member, peer, stream).and_then(|link| shared.adopt(member, link))
        });
        match attempt {
            Ok(()) => return Ok(Ok(())),
            Err(error) if patience.left().is_zero() => return Ok(Err(error)),
            Err(error) => {
                tracing::debug!(rank = member.rank, peer, "control link not up yet: {error}");
                std::thread::sleep(Duration::from_millis(5).min(patience.left()));
            }
        }
    }
}

/// An abstract Unix socket where both ranks see the same host as the same user, else TCP.
fn connect(
    shared: &Shared,
    member: &Member,
    peer: Rank,
    strange: &[SocketAddr],
    patience: Patience<'_>,
) -> io::Result<Stream> {
    let there = &member.table[peer as usize];
    let here = &member.table[member.rank as usize];
    if there.host_key == here.host_key
        && !there.unix.is_empty()
        && !here.unix.is_empty()
        && let Ok(address) = std::os::unix::net::SocketAddr::from_abstract_name(&there.unix)
        && let Ok(stream) = UnixStream::connect_addr(&address)
    {
        let stream = Stream::Unix(stream);
        // Another user's rank would turn it away; over TCP the job's key is proof enough.
        if stream.peer_is_same_user() {
            return Ok(stream);
        }
    }
    let like = *lock(&shared.reached);
    race::connect_to_any(&there.tcp, like, strange, patience).map(Stream::Tcp)
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
