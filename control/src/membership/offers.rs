//! How the table of ranks of a large job travels from rank to rank, before these are linked. See `bootstrap::relay` for who takes it
//! from whom.
//!
//! ```text
//! taker ── calls the control listener, proves the key for the table's name ──► parked until the giver has the table
//! taker ◄──────────────────────────────────── the table, as one frame ──────── given by the control thread, never waiting
//! ```
//!
//! Invariant: a table is believed when it has the digest that the root said; a rank that has the table holds its bytes until its
//! own takers have them, and goes on to its calls then.

use std::collections::{BTreeSet, HashMap};
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use nix::sys::epoll::EpollFlags;

use super::dial::{Call, Subject};
use super::link::Stream;
use super::lock;
use super::patience::Patience;
use super::process::{Shared, Source};
use crate::bootstrap::{self, Reference, Table, is_ready, patience as timeout, relay_name};
use crate::frames::{Frames, Incoming, Progress, frame_head, kind};
use consort_types::Rank;
use consort_types::error::{Error, Result};

/// How long the first calls of sources may take, and then twice as long each time, up to a bound: one that is there answers when it has
/// the table.
const ATTEMPT: Duration = Duration::from_secs(2);
const ATTEMPT_MAX: Duration = Duration::from_secs(32);
/// The pause after a call that came to nothing.
const PAUSE: Duration = Duration::from_millis(5);
/// How long a taker may take to read the table.
const GIVING: Duration = Duration::from_secs(300);

/// The tables that ranks of this process hand on, by name and rank.
#[derive(Default)]
pub(super) struct Offers {
    open: Mutex<HashMap<([u8; 16], Rank), Arc<Offer>>>,
}

/// A table that a rank hands on.
pub(super) struct Offer {
    pub(super) key: [u8; 32],
    /// How many ranks there are.
    pub(super) size: u32,
    body: Arc<[u8]>,
    /// The ranks of the tree that do not have it yet.
    awaited: Mutex<BTreeSet<Rank>>,
    given: Condvar,
}

impl Offers {
    pub(super) fn find(&self, name: &[u8; 16], rank: Rank) -> Option<Arc<Offer>> {
        lock(&self.open).get(&(*name, rank)).cloned()
    }
}

/// Hands a table on until it is dropped.
pub struct Offering {
    shared: Arc<Shared>,
    name: ([u8; 16], Rank),
    offer: Arc<Offer>,
}

impl Offering {
    /// Hands the table of these bytes on to the `takers` of this rank, and to others whose own sources do not answer.
    pub fn new(
        shared: &Arc<Shared>,
        table: &Table,
        rank: Rank,
        body: Arc<[u8]>,
        takers: impl IntoIterator<Item = Rank>,
    ) -> Self {
        let offer = Arc::new(Offer {
            key: table.key,
            size: table.members.len() as u32,
            body,
            awaited: Mutex::new(takers.into_iter().collect()),
            given: Condvar::new(),
        });
        let name = (relay_name(&table.key), rank);
        lock(&shared.offers.open).insert(name, offer.clone());
        // Its takers may have called before.
        shared.wake();
        Offering { shared: shared.clone(), name, offer }
    }

    /// Waits until all takers have it, or for as long as there is patience: what became of the others their neighbours will say.
    pub fn wait(&self, patience: Patience<'_>) {
        let mut awaited = lock(&self.offer.awaited);
        while !awaited.is_empty() && !patience.left().is_zero() {
            let waited = self.offer.given.wait_timeout(awaited, patience.turn());
            awaited = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Drop for Offering {
    fn drop(&mut self) {
        lock(&self.shared.offers.open).remove(&self.name);
    }
}

/// A table on its way to a taker.
pub(super) struct Giving {
    /// Until all of it is sent, or the taker is gone.
    stream: Option<Stream>,
    frames: Frames,
    offer: Arc<Offer>,
    to: Rank,
    since: Instant,
}

impl Giving {
    /// Begins to give a table to a rank that has proved that it knows the key.
    pub(super) fn begin(shared: &Arc<Shared>, offer: Arc<Offer>, stream: Stream, to: Rank) -> io::Result<()> {
        let mut frames = Frames::default();
        frames.outgoing.push(frame_head(kind::TABLE, offer.body.len()));
        frames.outgoing.push(offer.body.clone());
        let giving = Giving { stream: Some(stream), frames, offer, to, since: Instant::now() };
        let giving = Arc::new(Mutex::new(giving));
        let held = lock(&giving);
        let Some(stream) = &held.stream else { return Ok(()) };
        let wanted = EpollFlags::EPOLLIN | EpollFlags::EPOLLOUT;
        shared.watch_for(stream.as_fd(), wanted, Source::Giving(giving.clone())).map(drop)
    }

    /// Sends what the taker's socket takes.
    pub(super) fn go_on(&mut self, shared: &Shared, key: u64) {
        let Some(stream) = &self.stream else { return };
        let sent = self.frames.outgoing.write(&mut &*stream);
        // The taker says nothing: what can be read is its end.
        let is_gone =
            || !matches!((&*stream).read(&mut [0]), Err(error) if error.kind() == io::ErrorKind::WouldBlock);
        let is_over = match sent {
            Ok(true) => {
                lock(&self.offer.awaited).remove(&self.to);
                self.offer.given.notify_all();
                true
            }
            Ok(false) => is_gone() || self.since.elapsed() > GIVING,
            Err(_) => true,
        };
        if is_over && let Some(stream) = self.stream.take() {
            shared.unwatch(stream.as_fd(), key);
        }
    }
}

/// The table of a job, and its bytes, from the ranks that hand it on to `rank`; `own` is what this one said of itself.
///
/// # Errors
/// [`Error::Join`] with what became of each of those ranks when there is no patience left; that of a cancelled join.
pub fn take(
    shared: &Arc<Shared>,
    rank: Rank,
    own: &bootstrap::Member,
    reference: &Reference,
    patience: Patience<'_>,
) -> Result<(Table, Arc<[u8]>)> {
    let mut limit = ATTEMPT;
    let mut causes: Vec<String> = vec![String::new(); reference.sources.len()];
    loop {
        for ((source, there), cause) in reference.sources.iter().zip(&mut causes) {
            let until = patience.by(Instant::now() + limit);
            match attempt(shared, rank, own, reference, (*source, there), until) {
                Ok(taken) => return Ok(taken),
                Err(error) => {
                    tracing::debug!(rank, source, %error, "the table of ranks was not given yet");
                    // That there was no time left says least.
                    let says_least = error.kind() == io::ErrorKind::TimedOut;
                    if !says_least || cause.is_empty() {
                        *cause = format!("rank {source} ({}): {error}", there.place());
                    }
                    limit = if says_least { (limit * 2).min(ATTEMPT_MAX) } else { limit };
                }
            }
            if patience.is_cancelled() {
                return Err(bootstrap::cancelled(rank));
            }
            if patience.left().is_zero() {
                causes.retain(|cause| !cause.is_empty());
                return Err(Error::Join {
                    rank,
                    cause: format!("no rank handed on the table of ranks to it: {}", causes.join("; ")),
                    hint: "look at the output of those ranks first: they stopped or died, or a firewall closes the ports of their \
                           control connections to this host (CONSORT_PORTS gives a range)"
                        .into(),
                });
            }
            std::thread::sleep(PAUSE.min(patience.left()));
        }
    }
}

/// Calls one source and reads the table.
fn attempt(
    shared: &Arc<Shared>,
    rank: Rank,
    own: &bootstrap::Member,
    reference: &Reference,
    (source, there): (Rank, &bootstrap::Member),
    patience: Patience<'_>,
) -> io::Result<(Table, Arc<[u8]>)> {
    let subject = Subject { job: relay_name(&reference.key), from: rank, to: source };
    let stream = Call::before_links(subject, reference.key, own, there).attempt(shared, patience)?;
    let mut incoming = Incoming::default();
    let bound = |kind: u8| (kind == kind::TABLE).then(|| reference.bytes_max());
    loop {
        match incoming.read(&mut &stream, bound) {
            Progress::Frame(_, body) => {
                let table = reference.read(&body).map_err(io::Error::other)?;
                return Ok((table, body.into()));
            }
            Progress::Pending => {}
            Progress::Ended => {
                return Err(io::Error::other("it ended, or gave up joining, before it had given all of it"));
            }
            Progress::Broken(error) => return Err(error),
            Progress::Malformed(what) => return Err(io::Error::other(what.0)),
        }
        let (turn, now) = (patience.turn(), Instant::now());
        if turn.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        is_ready(&stream, false, timeout(Some(now + turn), now))?;
    }
}

#[cfg(test)]
mod tests;
