//! Which ranks have come to the root, what was decided, and which of them know.
//!
//! ```text
//! connected ──► serve: greeting, proof, hello ──► all are here ──► Complete ──► the caller closes ──► announce ──► table
//!                         └──► a rank is lost, disagrees or is too late (expire), or the id is dropped (stop) ──► failure
//! ```
//!
//! Invariants: one verdict for every rank that came or still comes; a table is only sent for a [`Complete`], which
//! asks its holder to close every way in first; never blocks, and is given the time. Absent:
//! listeners, descriptors, clocks, sleep (see `service`); the words of the verdict.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Limits;
use super::connection::{Connection, Event};
use super::verdict::{self, Arrival};
use super::views;
use crate::bootstrap::UniqueId;
use crate::bootstrap::relay::{Referral, Tree};
use crate::bootstrap::stream::Stream;
use crate::bootstrap::wire::{self, HelloSeen, Member};
use crate::codec::bytes_of;
use crate::frames::kind;
use crate::handshake::{JOINING_VERSION, make_room};
use crate::proof::{Secret, digest, random};
use consort_types::Rank;
use consort_types::error::Error;

enum Verdict {
    Table,
    Failure(Error),
}

/// All ranks are here and agree: close every way in, then [`Gathering::announce`] it, in this order.
///
/// A rank that has its table may use the same place for the next job at once.
#[must_use = "the ranks wait until it is announced"]
#[derive(Debug)]
#[cfg_attr(test, derive(Default))]
pub struct Complete(());

/// How long tables of this many bytes in all may take, beside the time that ranks have to receive one: the root's wire may be a slow one.
fn sending(bytes: u64) -> Duration {
    const BYTES_A_MICROSECOND: u64 = 50;
    Duration::from_micros(bytes / BYTES_A_MICROSECOND)
}

/// What a rank hears that is to take the table from these, with its digest; none where the root gives it the table.
fn refer(
    arrived: &BTreeMap<Rank, Arrival>,
    sources: Vec<Rank>,
    nonce: [u8; 32],
    of_table: [u8; 32],
) -> Option<(Arc<[u8]>, [u8; 32])> {
    let known = |rank: Rank| {
        let member = &arrived.get(&rank)?.member;
        Some((rank, Member { hardware: Arc::default(), ..member.clone() }))
    };
    let sources: Vec<(Rank, Member)> = sources.into_iter().filter_map(known).collect();
    if sources.is_empty() {
        return None;
    }
    let body: Arc<[u8]> = Referral { nonce, digest: of_table, sources }.encode().into();
    let of_said = digest(&body);
    Some((body, of_said))
}

/// One gathering, over connections of kind `S`.
pub struct Gathering<S> {
    secret: Secret,
    job: u64,
    place: String,
    hosts: Vec<IpAddr>,
    limits: Limits,
    connections: Vec<Connection<S>>,
    arrived: BTreeMap<Rank, Arrival>,
    /// The ranks that were sent the verdict.
    informed: BTreeSet<Rank>,
    /// How many ranks there are: the most that any rank said.
    size: Option<u32>,
    /// The earliest deadline of a rank that is here, and how long that rank was ready to wait.
    deadline: Option<(Instant, Duration)>,
    verdict: Option<Verdict>,
    /// Until when ranks that still come hear of a failure.
    failure_until: Option<Instant>,
    /// When to end at the latest, once asked to.
    stopping: Option<Instant>,
}

impl<S: Stream> Gathering<S> {
    /// The gathering of `id`'s job; `hosts` are the addresses at which others reach this host.
    pub fn new(id: &UniqueId, hosts: Vec<IpAddr>, limits: Limits) -> Self {
        Gathering {
            secret: id.secret,
            job: id.job,
            place: id.place(),
            hosts,
            limits,
            connections: Vec::new(),
            arrived: BTreeMap::new(),
            informed: BTreeSet::new(),
            size: None,
            deadline: None,
            verdict: None,
            failure_until: None,
            stopping: None,
        }
    }

    /// Where it is, for people.
    pub(super) fn place(&self) -> &str {
        &self.place
    }

    /// The connections in the order in which [`Gathering::serve`] counts them, and whether each has something to send.
    pub fn connections(&self) -> impl ExactSizeIterator<Item = (&S, bool)> {
        self.connections.iter().map(|connection| (&connection.stream, connection.sending()))
    }

    /// When it wants to be called at the latest, if nothing happens before: [`Gathering::expire`] then.
    pub fn until(&self) -> Option<Instant> {
        let patience = self.connections.iter().filter_map(|connection| connection.until).min();
        let deadline = self.deadline.filter(|_| self.undecided()).map(|(deadline, _)| deadline);
        // Ranks that are here hear it first, by a deadline of their own.
        let failure_until = self.failure_until.filter(|_| self.connections.is_empty());
        [patience, deadline, failure_until, self.stopping].into_iter().flatten().min()
    }

    /// Whether everything was said and no rank is there to hear more.
    pub fn finished(&self, now: Instant) -> bool {
        let done = self.connections.is_empty();
        if let Some(until) = self.stopping {
            return !self.connections.iter().any(Connection::being_told) || now >= until;
        }
        match &self.verdict {
            None => false,
            Some(Verdict::Table) => done,
            // Latecomers get the same error, so it stays until every rank has it, for a while, or until the id is dropped.
            Some(Verdict::Failure(_)) => {
                let all_informed = self.size.is_some_and(|size| self.informed.len() >= size as usize);
                done && (all_informed || self.failure_until.is_some_and(|until| now >= until))
            }
        }
    }

    /// Whether newcomers can be taken now, or from when.
    pub fn accepting(&self, now: Instant) -> Result<(), Option<Instant>> {
        if self.stopping.is_some() {
            return Err(None);
        }
        self.room(now).map(drop).map_err(Some)
    }

    /// Which of the strangers goes for another one, or from when one can.
    fn room(&self, now: Instant) -> Result<Option<usize>, Instant> {
        let strangers = || self.connections.iter().enumerate().filter(|(_, other)| other.unproved());
        let goes = make_room(strangers().map(|(_, other)| other.since), self.limits.unproved_max, now)?;
        Ok(goes.and_then(|goes| strangers().nth(goes)).map(|(at, _)| at))
    }

    /// Takes a newcomer, when [`Gathering::accepting`] allows it.
    pub fn connected(&mut self, stream: S, peer: SocketAddr, now: Instant) {
        if let Ok(Some(oldest)) = self.room(now) {
            let stranger = self.connections.swap_remove(oldest);
            stranger.stream.shutdown_both();
            tracing::warn!(peer = %stranger.peer, "sent away from the rendezvous: too many connections that prove nothing");
        }
        match Connection::greet(stream, peer, now, self.limits.proof) {
            Ok(mut connection) => {
                // The greeting fits into an empty socket; whatever goes wrong shows when it is served.
                connection.write();
                self.connections.push(connection);
            }
            Err(error) => tracing::debug!(%peer, %error, "a connection broke at once"),
        }
    }

    /// Listens to these connections, at most one message of each, and says what there is to say to them.
    ///
    /// Afterwards the connections may count differently.
    #[must_use = "the ranks wait until it is announced"]
    pub fn serve(&mut self, ready: impl IntoIterator<Item = usize>, now: Instant) -> Option<Complete> {
        let mut closed = Vec::new();
        let mut complete = None;
        // A verdict reached on the way may close connections' turn, but never removes one before the end of this loop.
        for at in ready {
            let Some(connection) = self.connections.get_mut(at) else { continue };
            let mut event = connection.read(&self.secret, self.job, self.limits.hello, now);
            if matches!(event, Event::None) {
                event = connection.write();
            }
            match event {
                Event::None => {}
                Event::Close(why) => closed.push((at, why)),
                Event::Lost(why) => {
                    closed.push((at, Some(why)));
                    self.lost(at, why, now);
                }
                Event::Hello(hello) => match self.hear(at, *hello, now) {
                    Ok(last) => complete = last.or(complete),
                    Err(why) => closed.push((at, Some(why))),
                },
            }
        }
        closed.sort_unstable_by_key(|(at, _)| std::cmp::Reverse(*at));
        closed.dedup_by_key(|(at, _)| *at);
        for (at, why) in closed {
            let gone = self.connections.swap_remove(at);
            if let Some(cause) = why {
                tracing::debug!(peer = %gone.peer, rank = gone.rank, cause, "a connection to the root was closed");
            }
            gone.stream.shutdown_both();
        }
        complete
    }

    fn undecided(&self) -> bool {
        self.verdict.is_none() && self.stopping.is_none()
    }

    fn lost(&mut self, at: usize, why: &str, now: Instant) {
        let Some(rank) = self.connections[at].rank else { return };
        if self.verdict.is_some() {
            return;
        }
        let place = self.arrived.remove(&rank).map_or("place unknown".into(), |a| a.member.place());
        let error = Error::PeerLost { rank, place, operation: None, cause: why.to_owned() };
        self.informed.insert(rank);
        self.fail(error, now);
    }

    /// A connection said who it is: it waits for the verdict from now on, or has it, or is to be closed for a reason. If it was
    /// the last and all agree, that is the verdict, and `announce` says it.
    fn hear(&mut self, at: usize, hello: HelloSeen, now: Instant) -> Result<Option<Complete>, &'static str> {
        let rank = hello.rank;
        self.connections[at].wait(rank);
        // Whichever is right, no rank that may still come is to find an empty place.
        let known = self.size;
        self.size = known.max(Some(hello.size));
        let late = match &self.verdict {
            Some(Verdict::Failure(error)) => error.clone(),
            Some(Verdict::Table) => Error::Join {
                rank,
                cause: "all ranks of this job have joined already".into(),
                hint: "a unique id serves one job: create another for the next".into(),
            },
            None if self.stopping.is_some() => return Err("the root is ending"),
            None => {
                match self.admit(at, hello, known, now) {
                    Ok(false) => {}
                    Ok(true) => {
                        self.verdict = Some(Verdict::Table);
                        return Ok(Some(Complete(())));
                    }
                    Err(error) => self.fail(error, now),
                }
                return Ok(None);
            }
        };
        self.tell_failure(at, &late, now);
        Ok(None)
    }

    /// A rank that fits to those that are here is one of them. Whether they are all, and agree.
    fn admit(
        &mut self,
        at: usize,
        hello: HelloSeen,
        known: Option<u32>,
        now: Instant,
    ) -> Result<bool, Error> {
        let rank = hello.rank;
        let (settings, mut member) =
            hello.rest.map_err(|version| verdict::versions(rank, version, JOINING_VERSION))?;
        let size = known.unwrap_or(hello.size);
        if size != hello.size {
            return Err(verdict::sizes(size, &self.arrived, rank, hello.size));
        }
        if let Some(first) = self.arrived.get(&rank) {
            return Err(verdict::duplicate(rank, &first.member, &member));
        }
        verdict::settle(&mut member, self.connections[at].peer.ip().to_canonical(), &self.hosts);
        let known = self.arrived.values().map(|arrival| &arrival.settings).find(|known| ***known == settings);
        let settings = known.cloned().unwrap_or_else(|| Arc::new(settings));
        views::share(&self.arrived, &mut member);
        self.arrived.insert(rank, Arrival { settings, member });
        if let Some(deadline) = now.checked_add(hello.timeout)
            && self.deadline.is_none_or(|(earliest, _)| deadline < earliest)
        {
            self.deadline = Some((deadline, hello.timeout));
        }
        if self.arrived.len() < size as usize {
            return Ok(false);
        }
        views::unite(&mut self.arrived);
        verdict::difference(&self.arrived).map_or(Ok(true), |difference| Err(Error::Settings { difference }))
    }

    /// Sends the table to all ranks, or of a large job which ranks hand it on, after every way in was closed.
    pub fn announce(&mut self, complete: Complete, now: Instant) {
        let Complete(()) = complete;
        let nonce = match random() {
            Ok(nonce) => nonce,
            Err(error) => return self.fail(error, now),
        };
        let members = self.arrived.values().map(|arrival| &arrival.member);
        let body: Arc<[u8]> = wire::encode_table(&nonce, self.limits.spread, members).into();
        let digest = digest(&body);
        let hosts = self.arrived.values().map(|arrival| arrival.member.host_key);
        let tree = Tree::new(hosts, self.limits.spread);
        let whole = (0..self.arrived.len() as Rank).filter(|rank| tree.sources(*rank).is_empty()).count();
        let until = now + self.limits.flush + sending(body.len() as u64 * whole as u64);
        for connection in &mut self.connections {
            if let (true, Some(rank)) = (connection.waiting(), connection.rank) {
                match refer(&self.arrived, tree.sources(rank), nonce, digest) {
                    None => connection.tell(kind::TABLE, &body, &digest, until),
                    Some((said, of_said)) => connection.tell(kind::REFERRAL, &said, &of_said, until),
                }
            } else if !connection.being_told() {
                connection.until = Some(now);
            }
        }
        self.flush();
        tracing::debug!(ranks = self.arrived.len(), place = self.place, "all ranks have joined");
    }

    fn fail(&mut self, error: Error, now: Instant) {
        tracing::warn!(%error, place = self.place, "the ranks cannot form a job");
        for at in 0..self.connections.len() {
            if self.connections[at].waiting() {
                self.tell_failure(at, &error, now);
            }
        }
        self.verdict = Some(Verdict::Failure(error));
        self.failure_until = now.checked_add(self.limits.linger);
        self.flush();
    }

    fn tell_failure(&mut self, at: usize, error: &Error, now: Instant) {
        let body: Arc<[u8]> = bytes_of(error).into();
        let digest = digest(&body);
        let connection = &mut self.connections[at];
        self.informed.extend(connection.rank);
        connection.tell(kind::FAILURE, &body, &digest, now + self.limits.flush);
    }

    /// Sends at once what fits into the sockets; what is closed by that is found when it is served next.
    fn flush(&mut self) {
        for connection in &mut self.connections {
            if connection.being_told() {
                connection.write();
            }
        }
    }

    /// Decides what the deadline decides, and forgets the connections whose time is over or that have heard everything.
    ///
    /// To be called after anything else, and at [`Gathering::until`].
    pub fn expire(&mut self, now: Instant) {
        if self.undecided()
            && let Some((deadline, waited)) = self.deadline
            && now >= deadline
        {
            let size = self.size.unwrap_or_default();
            let missing: Vec<Rank> = (0..size).filter(|rank| !self.arrived.contains_key(rank)).collect();
            let error = match verdict::difference(&self.arrived) {
                // The likelier reason why a rank is missing.
                Some(difference) => Error::Settings { difference },
                None => Error::MissingRanks { missing, size, waited, address: self.place.clone() },
            };
            self.fail(error, now);
        }
        self.connections.retain(|connection| {
            // Answered and flushed elsewhere than in `serve`.
            let finished = connection.being_told() && !connection.sending();
            let expired = connection.until.is_some_and(|until| now >= until);
            if expired && !finished {
                tracing::debug!(peer = %connection.peer, rank = connection.rank, "a connection to the root took too long");
            }
            if expired || finished {
                connection.stream.shutdown_both();
            }
            !expired && !finished
        });
    }

    /// The id was dropped: tells all ranks that wait, and ends when they have heard it.
    pub fn stop(&mut self, now: Instant) {
        if self.stopping.is_some() {
            return;
        }
        self.stopping = Some(now + self.limits.flush);
        if self.verdict.is_some() {
            return;
        }
        let (here, size) = (self.arrived.len(), self.size.unwrap_or_default());
        for at in 0..self.connections.len() {
            if let (true, Some(rank)) = (self.connections[at].waiting(), self.connections[at].rank) {
                let error = Error::Join {
                    rank,
                    cause: format!(
                        "the process that created the unique id gave it up when {here} of {size} ranks had joined"
                    ),
                    hint: "keep the UniqueId there until its own rank has joined, and look at that process's output"
                        .into(),
                };
                self.tell_failure(at, &error, now);
            }
        }
    }

    /// Ends every connection that is left.
    pub fn close(self) {
        for connection in &self.connections {
            // Not only closed: a forked child may hold the same socket.
            connection.stream.shutdown_both();
        }
    }
}
