//! How the table of ranks of a large job travels from rank to rank, before these are linked. See `bootstrap::relay` for who takes it
//! from whom.
//!
//! ```text
//! taker ── calls a source's control listener, proves the key for the table's name ──► parked until the source has the table
//! taker ◄─────────────────────────────── the table, as one frame ──────────────────── the source's control thread, never waiting
//! taker ── one byte: it has read it ────────────────────────────────────────────────► the source waits for it no longer
//! ```
//!
//! Invariant: a table is believed when it has the digest that the root said. A rank that has the table hands it on for as long as it
//! has communicators of that job, and then until its own takers have it, but a process that ends waits for them no longer than
//! 5 s.

use std::collections::{BTreeSet, HashMap};
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use nix::sys::epoll::EpollFlags;
use nix::sys::socket::Shutdown;

use super::dial::{Call, Subject};
use super::link::Stream;
use super::lock;
use super::patience::Patience;
use super::process::{Shared, Source};
use crate::bootstrap::{self, Reference, Table, Tree, is_ready, patience as timeout, relay_name};
use crate::frames::{Frames, Incoming, Progress, frame_head, kind};
use consort_types::Rank;
use consort_types::error::{Error, Result};

/// How long the first claim at a source may be parked, and then twice as long each time up to a bound: the next source may have the
/// table sooner.
const PARKED: Duration = Duration::from_secs(2);
const PARKED_MAX: Duration = Duration::from_secs(32);
/// How long a table may be under way without a byte that moves.
const STANDING: Duration = Duration::from_secs(10);
/// The pause after all sources were called in vain, at first and at most.
const PAUSE: Duration = Duration::from_millis(5);
const PAUSE_MAX: Duration = Duration::from_millis(500);
/// How long a process that ends waits for its takers.
const PARTING: Duration = Duration::from_secs(5);
/// What a taker says when it has read the table.
const TAKEN: [u8; 1] = [1];

/// A rank's table is asked for by the table's name and the rank's number.
type Name = ([u8; 16], Rank);

/// The tables that ranks of this process hand on.
#[derive(Default)]
pub(super) struct Relays {
    /// None for a rank that hands its table on no longer.
    open: Mutex<HashMap<Name, Option<Arc<Relay>>>>,
    /// A taker has the table.
    taken: Condvar,
    /// The tables of jobs, one for all ranks of this process.
    tables: Mutex<HashMap<[u8; 16], Weak<[bootstrap::Member]>>>,
}

/// A table that a rank hands on.
pub(super) struct Relay {
    pub(super) table: Table,
    /// Its bytes, while it is given.
    body: Mutex<Weak<[u8]>>,
    /// The takers that have it from this rank first of all, and do not have it yet.
    awaited: Mutex<BTreeSet<Rank>>,
}

impl Relay {
    /// Whether there is such a rank.
    pub(super) fn has(&self, rank: Rank) -> bool {
        (rank as usize) < self.table.members.len()
    }

    fn body(&self) -> Arc<[u8]> {
        let mut known = lock(&self.body);
        known.upgrade().unwrap_or_else(|| {
            let bytes = self.table.bytes().into();
            *known = Arc::downgrade(&bytes);
            bytes
        })
    }
}

impl Relays {
    /// What a rank relays under this name; `Some(None)` where it does so no longer.
    pub(super) fn find(&self, name: &[u8; 16], rank: Rank) -> Option<Option<Arc<Relay>>> {
        lock(&self.open).get(&(*name, rank)).cloned()
    }

    /// A rank has no communicators of a job any more.
    pub(super) fn dismiss(&self, key: &[u8; 32], rank: Rank) {
        let mut open = lock(&self.open);
        if open.is_empty() {
            return;
        }
        let name = (relay_name(key), rank);
        if open
            .get(&name)
            .is_some_and(|relay| relay.as_ref().is_some_and(|relay| lock(&relay.awaited).is_empty()))
        {
            open.remove(&name);
        }
    }

    fn has_taken(&self, relay: &Relay, taker: Rank) {
        lock(&relay.awaited).remove(&taker);
        drop(lock(&self.open));
        self.taken.notify_all();
    }

    /// The process ends: waits until the takers of its ranks have what these relay, for a while.
    pub(super) fn part(&self) {
        let until = Instant::now() + PARTING;
        let mut open = lock(&self.open);
        loop {
            let relays = open.values().flatten();
            let awaited: BTreeSet<Rank> = relays.flat_map(|relay| lock(&relay.awaited).clone()).collect();
            let left = until.saturating_duration_since(Instant::now());
            if awaited.is_empty() {
                return;
            }
            if left.is_zero() {
                tracing::warn!(
                    ?awaited,
                    "these ranks have not taken the table of ranks from this process, which ends"
                );
                return;
            }
            open = self.taken.wait_timeout(open, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Shared {
    /// The table of a job, one for all ranks of this process.
    pub fn one_table(&self, table: &Table) -> Arc<[bootstrap::Member]> {
        let mut tables = lock(&self.relays.tables);
        tables.retain(|_, known| known.strong_count() > 0);
        let known = tables.get(&table.job).and_then(Weak::upgrade);
        known.unwrap_or_else(|| {
            tables.insert(table.job, Arc::downgrade(&table.members));
            table.members.clone()
        })
    }

    /// Hands the table of a large job on from now on.
    pub fn relay(&self, table: &Table, members: &Arc<[bootstrap::Member]>, rank: Rank) {
        if members.len() <= table.spread.whole_max as usize {
            return;
        }
        let relay = Relay {
            table: Table { members: members.clone(), ..table.clone() },
            body: Mutex::new(Weak::<[u8; 0]>::new()),
            awaited: Mutex::new(Tree::of(table).takers(rank).into_iter().collect()),
        };
        lock(&self.relays.open).insert((relay_name(&table.key), rank), Some(Arc::new(relay)));
        // Its takers may have called before.
        self.wake();
    }

    /// A rank did not become one of the job: it hands nothing on.
    pub fn withdraw(&self, key: &[u8; 32], rank: Rank) {
        if let Some(relay) = lock(&self.relays.open).get_mut(&(relay_name(key), rank)) {
            *relay = None;
        }
        self.wake();
    }
}

/// A table on its way to a taker.
pub(super) struct Giving {
    /// Until the taker has it, or is gone.
    stream: Option<Stream>,
    frames: Frames,
    relay: Arc<Relay>,
    to: Rank,
    /// How much is still to be sent, and since when.
    left: usize,
    since: Instant,
}

impl Giving {
    /// Begins to give a table to a rank that has proved that it knows the key.
    pub(super) fn begin(shared: &Arc<Shared>, relay: Arc<Relay>, stream: Stream, to: Rank) -> io::Result<()> {
        stream.watch_over()?;
        let mut frames = Frames::default();
        let body = relay.body();
        frames.outgoing.push(frame_head(kind::TABLE, body.len()));
        frames.outgoing.push(body);
        let left = frames.outgoing.left();
        let giving = Giving { stream: Some(stream), frames, relay, to, left, since: Instant::now() };
        let giving = Arc::new(Mutex::new(giving));
        let held = lock(&giving);
        let Some(stream) = &held.stream else { return Ok(()) };
        let wanted = EpollFlags::EPOLLIN | EpollFlags::EPOLLOUT;
        shared.watch_for(stream.as_fd(), wanted, Source::Giving(giving.clone())).map(drop)
    }

    /// Sends what the taker's socket takes, and hears whether it has the table.
    pub(super) fn go_on(&mut self, shared: &Shared, key: u64) {
        let Some(stream) = &self.stream else { return };
        let is_sent = self.left == 0;
        let sent = self.frames.outgoing.write(&mut &*stream);
        let mut said = [0; TAKEN.len()];
        let has_it = match (&*stream).read(&mut said) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => None,
            said_so => Some(said_so.is_ok_and(|count| count == TAKEN.len() && said == TAKEN)),
        };
        let left = self.frames.outgoing.left();
        if left != self.left {
            (self.left, self.since) = (left, Instant::now());
        }
        if has_it.is_none() && sent.is_ok() && self.since.elapsed() <= STANDING {
            if left == 0 && !is_sent {
                shared.watch_again(stream.as_fd(), EpollFlags::EPOLLIN, key);
            }
            return;
        }
        if let Some(stream) = self.stream.take() {
            shared.unwatch(stream.as_fd(), key);
            // Not only closed: a forked child may hold it.
            stream.shut_down(Shutdown::Both);
        }
        self.frames = Frames::default();
        if has_it == Some(true) {
            shared.relays.has_taken(&self.relay, self.to);
        }
    }
}

/// One rank that hands the table on, as a taker sees it.
struct Giver<'a> {
    rank: Rank,
    there: &'a bootstrap::Member,
    call: Call,
    /// How long a claim may be parked there.
    parked: Duration,
    /// What came of the last calls, and whether it gave something else.
    cause: Option<String>,
    is_false: bool,
}

/// The table of a job, from the ranks that hand it on to `rank`; `own` is what this one said of itself.
///
/// # Errors
/// [`Error::Join`] with what became of each of those ranks when there is no patience left, or when all of them gave something else;
/// that of a cancelled join.
pub fn take(
    shared: &Arc<Shared>,
    rank: Rank,
    own: &bootstrap::Member,
    reference: &Reference,
    patience: Patience<'_>,
) -> Result<Table> {
    let subject = |to: Rank| Subject { job: relay_name(&reference.key), from: rank, to };
    let mut givers: Vec<Giver<'_>> = reference
        .sources
        .iter()
        .map(|source| Giver {
            rank: source.0,
            there: &source.1,
            call: Call::before_links(subject(source.0), reference.key, own, &source.1),
            parked: PARKED,
            cause: None,
            is_false: false,
        })
        .collect();
    let mut pause = PAUSE;
    loop {
        for giver in givers.iter_mut().filter(|giver| !giver.is_false) {
            match giver.ask(shared, reference, patience) {
                Ok(table) => return Ok(table),
                Err(error) => tracing::debug!(rank, source = giver.rank, %error, "no table of ranks yet"),
            }
        }
        if patience.is_cancelled() {
            return Err(bootstrap::cancelled(rank));
        }
        if patience.left().is_zero() || givers.iter().all(|giver| giver.is_false) {
            let causes: Vec<String> = givers.into_iter().filter_map(|giver| giver.cause).collect();
            return Err(Error::Join {
                rank,
                cause: format!("no rank handed on the table of ranks to it: {}", causes.join("; ")),
                hint: "look at the output of those ranks first: they stopped or died, or a firewall closes the ports of their \
                       control connections to this host (CONSORT_PORTS gives a range)"
                    .into(),
            });
        }
        std::thread::sleep(pause.min(patience.turn()));
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

impl Giver<'_> {
    /// Calls it and takes the table.
    fn ask(&mut self, shared: &Shared, reference: &Reference, patience: Patience<'_>) -> io::Result<Table> {
        let until = patience.by(Instant::now() + self.parked);
        let taken = self.call.attempt(shared, until).and_then(|stream| {
            let body = read(&stream, reference.bytes_max(), patience)?;
            let table = reference.read(&body).map_err(wrong)?;
            // It waits for this, and not for ever.
            let _ = (&stream).write(&TAKEN);
            Ok(table)
        });
        if let Err(error) = &taken {
            // That it took too long says least.
            let says_least = error.kind() == io::ErrorKind::TimedOut;
            self.is_false = error.kind() == io::ErrorKind::InvalidData;
            if says_least {
                self.parked = (self.parked * 2).min(PARKED_MAX);
            }
            if !says_least || self.cause.is_none() {
                self.cause = Some(format!("rank {} ({}): {error}", self.rank, self.there.place()));
            }
        }
        taken
    }
}

/// What a rank gave is no table of this job, and will be none.
fn wrong(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// The frame with the table, for as long as it moves.
fn read(stream: &Stream, most: usize, patience: Patience<'_>) -> io::Result<Vec<u8>> {
    let mut incoming = Incoming::default();
    let mut moved = Instant::now();
    loop {
        match incoming.read(&mut &*stream, |kind| (kind == kind::TABLE).then_some(most)) {
            Progress::Frame(_, body) => return Ok(body),
            Progress::Pending => {}
            Progress::Ended => {
                return Err(io::Error::other("it ended, or gave up joining, before it had given all of it"));
            }
            Progress::Broken(error) => return Err(error),
            Progress::Malformed(what) => return Err(wrong(what.0)),
        }
        let (turn, now) = (patience.by(moved + STANDING).turn(), Instant::now());
        if turn.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        if is_ready(stream, false, timeout(Some(now + turn), now))? {
            moved = Instant::now();
        }
    }
}

#[cfg(test)]
mod tests;
