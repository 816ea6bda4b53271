//! The root's loop: accept, listen to, decide, tell.
//!
//! Invariants: one thread that only ever sleeps in `poll`; one verdict, told to every rank that came or still comes;
//! before a table is sent, every listener is closed and the door is gone, so that a rank which has joined can use the
//! same place for the next job at once. Absent: the words of the verdict.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{ErrorKind, Read};
use std::net::{IpAddr, TcpListener};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{Shutdown, shutdown};

use super::Limits;
use super::connection::{Connection, Event};
use super::verdict::{self, Arrival};
use crate::Rank;
use crate::bootstrap::UniqueId;
use crate::bootstrap::door::Door;
use crate::bootstrap::proof::{Secret, digest, random};
use crate::bootstrap::wire::{self, HelloSeen, WIRE_VERSION, kind};
use crate::error::Error;

/// A stranger may be sent away for a newcomer once it had this long to prove itself.
const HEARING: Duration = Duration::from_millis(100);
/// How long accepting pauses when the process is out of file descriptors.
const PAUSE: Duration = Duration::from_millis(50);
/// The most connections accepted before others are looked at.
const BATCH: usize = 64;

enum Verdict {
    Table,
    Failure(Error),
}

pub(super) struct Service {
    listeners: Vec<TcpListener>,
    woken: UnixStream,
    door: Option<Door>,
    id_bytes: [u8; UniqueId::BYTES],
    secret: Secret,
    job: u64,
    place: String,
    hosts: Vec<IpAddr>,
    limits: Limits,
    connections: Vec<Connection>,
    arrived: BTreeMap<Rank, Arrival>,
    told: BTreeSet<Rank>,
    size: Option<u32>,
    /// The earliest deadline of a rank that is here, and how long that rank was ready to wait.
    deadline: Option<(Instant, Duration)>,
    verdict: Option<Verdict>,
    /// When to end at the latest, once asked to.
    stopping: Option<Instant>,
    accept_from: Instant,
}

impl Service {
    pub(super) fn new(
        listeners: Vec<TcpListener>,
        woken: UnixStream,
        door: Option<Door>,
        id: &UniqueId,
        hosts: Vec<IpAddr>,
        limits: Limits,
    ) -> Self {
        Service {
            listeners,
            woken,
            door,
            id_bytes: id.to_bytes(),
            secret: id.secret,
            job: id.job,
            place: id.place(),
            hosts,
            limits,
            connections: Vec::new(),
            arrived: BTreeMap::new(),
            told: BTreeSet::new(),
            size: None,
            deadline: None,
            verdict: None,
            stopping: None,
            accept_from: Instant::now(),
        }
    }

    pub(super) fn run(mut self) {
        while !self.finished() {
            let ready = match self.sleep() {
                Ok(ready) => ready,
                Err(Errno::EINTR) => continue,
                Err(error) => {
                    tracing::error!(%error, "the root cannot poll and ends");
                    break;
                }
            };
            let now = Instant::now();
            if ready.woken {
                self.stop(now);
            }
            self.serve(&ready.connections, now);
            if ready.newcomers {
                self.accept(now);
            }
            if ready.door
                && let Some(door) = &self.door
            {
                door.answer(&self.id_bytes);
            }
            self.expire(now);
        }
        self.close_listeners();
        for connection in &self.connections {
            // Not only closed: a forked child may hold the same socket.
            let _ = connection.stream.shutdown(std::net::Shutdown::Both);
        }
        tracing::debug!(place = self.place, "the root has ended");
    }

    fn finished(&self) -> bool {
        let done = self.connections.is_empty();
        if let Some(until) = self.stopping {
            return !self.connections.iter().any(Connection::being_told) || Instant::now() >= until;
        }
        match &self.verdict {
            None => false,
            Some(Verdict::Table) => done,
            // Latecomers get the same error, so it stays until every rank was told or the id is dropped.
            Some(Verdict::Failure(_)) => {
                done && self.size.is_some_and(|size| self.told.len() >= size as usize)
            }
        }
    }

    /// Whether newcomers can be taken now, or from when.
    fn accepting(&self, now: Instant) -> Result<(), Option<Instant>> {
        if self.listeners.is_empty() || self.stopping.is_some() {
            return Err(None);
        }
        if now < self.accept_from {
            return Err(Some(self.accept_from));
        }
        let strangers = || self.connections.iter().filter(|connection| connection.unproved());
        if strangers().count() < self.limits.unproved_max {
            return Ok(());
        }
        match strangers().map(|connection| connection.since + HEARING).min() {
            Some(from) if from > now => Err(Some(from)),
            _ => Ok(()),
        }
    }

    fn sleep(&self) -> Result<Ready, Errno> {
        let now = Instant::now();
        let mut until: Vec<Instant> =
            self.connections.iter().filter_map(|connection| connection.until).collect();
        until.extend(self.stopping);
        if self.verdict.is_none() {
            until.extend(self.deadline.map(|(deadline, _)| deadline));
        }
        let accepting = self.accepting(now);
        if let Err(from) = accepting {
            until.extend(from);
        }
        let timeout = match until.iter().min() {
            None => PollTimeout::NONE,
            Some(until) => {
                // Rounded up, so that what is due is due when poll returns; at most a minute, so that it fits.
                let left = until.saturating_duration_since(now).min(Duration::from_secs(60));
                let milliseconds = left.as_micros().div_ceil(1000) as u16;
                PollTimeout::from(milliseconds)
            }
        };
        let mut polled = vec![PollFd::new(self.woken.as_fd(), PollFlags::POLLIN)];
        let listeners = if accepting.is_ok() { self.listeners.as_slice() } else { &[] };
        polled.extend(listeners.iter().map(|listener| PollFd::new(listener.as_fd(), PollFlags::POLLIN)));
        polled.extend(self.door.iter().map(|door| PollFd::new(door.as_fd(), PollFlags::POLLIN)));
        for connection in &self.connections {
            let wanted =
                if connection.sending() { PollFlags::POLLIN | PollFlags::POLLOUT } else { PollFlags::POLLIN };
            polled.push(PollFd::new(connection.stream.as_fd(), wanted));
        }
        poll(&mut polled, timeout)?;
        let mut ready = polled.iter().map(|fd| fd.any().unwrap_or(true));
        let woken = ready.next().unwrap_or(false);
        let newcomers = ready.by_ref().take(listeners.len()).fold(false, |any, one| any | one);
        let door = self.door.is_some() && ready.next().unwrap_or(false);
        Ok(Ready { woken, newcomers, door, connections: ready.collect() })
    }

    fn stop(&mut self, now: Instant) {
        let mut piece = [0u8; 16];
        match self.woken.read(&mut piece) {
            Err(error) if [ErrorKind::WouldBlock, ErrorKind::Interrupted].contains(&error.kind()) => return,
            _ => {}
        }
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

    fn accept(&mut self, now: Instant) {
        for at in 0..self.listeners.len() {
            for _ in 0..BATCH {
                if self.accepting(now).is_err() {
                    return;
                }
                let (stream, peer) = match self.listeners[at].accept() {
                    Ok(taken) => taken,
                    Err(error) => match error.kind() {
                        ErrorKind::WouldBlock => break,
                        ErrorKind::Interrupted | ErrorKind::ConnectionAborted => continue,
                        _ => {
                            tracing::warn!(%error, "the root cannot take a connection; it may need a higher limit of open files (ulimit -n)");
                            self.accept_from = now + PAUSE;
                            return;
                        }
                    },
                };
                self.make_room();
                match Connection::greet(stream, peer, now, self.limits.proof) {
                    Ok(mut connection) => {
                        // The greeting fits into an empty socket; whatever goes wrong shows at the next poll.
                        connection.write();
                        self.connections.push(connection);
                    }
                    Err(error) => tracing::debug!(%peer, %error, "a connection broke at once"),
                }
            }
        }
    }

    /// Sends the longest-heard stranger away if there are too many.
    fn make_room(&mut self) {
        let strangers =
            || self.connections.iter().enumerate().filter(|(_, connection)| connection.unproved());
        if strangers().count() >= self.limits.unproved_max
            && let Some((oldest, _)) = strangers().min_by_key(|(_, connection)| connection.since)
        {
            let stranger = self.connections.swap_remove(oldest);
            tracing::warn!(peer = %stranger.peer, "sent away from the rendezvous: too many connections that prove nothing");
        }
    }

    fn serve(&mut self, ready: &[bool], now: Instant) {
        let mut closed = Vec::new();
        // A verdict reached on the way may close connections' turn, but never removes one before the end of this loop.
        for (at, _) in ready.iter().enumerate().filter(|(_, ready)| **ready) {
            let mut event = self.connections[at].read(&self.secret, self.job, self.limits.hello, now);
            if matches!(event, Event::None) {
                event = self.connections[at].write();
            }
            match event {
                Event::None => {}
                Event::Close(why) => closed.push((at, why)),
                Event::Lost(why) => {
                    closed.push((at, Some(why)));
                    self.lost(at, why, now);
                }
                Event::Hello(hello) => {
                    if let Some(why) = self.hear(at, hello, now) {
                        closed.push((at, Some(why)));
                    }
                }
            }
        }
        closed.sort_unstable_by_key(|(at, _)| std::cmp::Reverse(*at));
        closed.dedup_by_key(|(at, _)| *at);
        for (at, why) in closed {
            let gone = self.connections.swap_remove(at);
            if let Some(cause) = why {
                tracing::debug!(peer = %gone.peer, rank = gone.rank, cause, "a connection to the root was closed");
            }
            let _ = gone.stream.shutdown(std::net::Shutdown::Both);
        }
    }

    fn lost(&mut self, at: usize, why: &str, now: Instant) {
        let Some(rank) = self.connections[at].rank else { return };
        if self.verdict.is_some() {
            return;
        }
        let place = self.arrived.remove(&rank).map_or("place unknown".into(), |a| verdict::place(&a.member));
        let error = Error::PeerLost { rank, place, operation: None, cause: why.to_owned() };
        self.told.insert(rank);
        self.fail(error, now);
    }

    /// A connection said who it is. Returns why it is to be closed, if it is.
    fn hear(&mut self, at: usize, hello: HelloSeen, now: Instant) -> Option<&'static str> {
        let rank = hello.rank;
        self.connections[at].wait(rank);
        match &self.verdict {
            Some(Verdict::Failure(error)) => {
                let error = error.clone();
                self.tell_failure(at, &error, now);
                return None;
            }
            Some(Verdict::Table) => {
                let error = Error::Join {
                    rank,
                    cause: "all ranks of this job have joined already".into(),
                    hint: "a unique id serves one job: create another for the next".into(),
                };
                self.tell_failure(at, &error, now);
                return None;
            }
            None if self.stopping.is_some() => return Some("the root is ending"),
            None => {}
        }
        let (settings, mut member) = match hello.rest {
            Ok(rest) => rest,
            Err(version) => {
                self.fail(verdict::versions(rank, version, WIRE_VERSION), now);
                return None;
            }
        };
        let size = *self.size.get_or_insert(hello.size);
        if size != hello.size {
            self.fail(verdict::sizes(size, &self.arrived, rank, hello.size), now);
            return None;
        }
        if let Some(first) = self.arrived.get(&rank) {
            self.fail(verdict::duplicate(rank, &first.member, &member), now);
            return None;
        }
        verdict::settle(&mut member, self.connections[at].peer.ip().to_canonical(), &self.hosts);
        let known = self.arrived.values().map(|arrival| &arrival.settings).find(|known| ***known == settings);
        let settings = known.cloned().unwrap_or_else(|| Arc::new(settings));
        self.arrived.insert(rank, Arrival { settings, member });
        if let Some(deadline) = now.checked_add(hello.timeout)
            && self.deadline.is_none_or(|(earliest, _)| deadline < earliest)
        {
            self.deadline = Some((deadline, hello.timeout));
        }
        if self.arrived.len() == size as usize {
            match verdict::difference(&self.arrived) {
                Some(difference) => self.fail(Error::Settings { difference }, now),
                None => self.succeed(now),
            }
        }
        None
    }

    fn succeed(&mut self, now: Instant) {
        let nonce = match random() {
            Ok(nonce) => nonce,
            Err(error) => return self.fail(error, now),
        };
        let body: Arc<[u8]> = wire::encode_table(
            &nonce,
            self.arrived.values().map(|arrival| &arrival.member).collect::<Vec<_>>().into_iter(),
        )
        .into();
        let digest = digest(&body);
        self.verdict = Some(Verdict::Table);
        // Before anybody can know that the job is complete: see the invariant.
        self.close_listeners();
        self.door = None;
        for connection in &mut self.connections {
            if connection.waiting() {
                connection.tell(kind::TABLE, &body, &digest, now + self.limits.flush);
            } else {
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
        self.flush();
    }

    fn tell_failure(&mut self, at: usize, error: &Error, now: Instant) {
        let body: Arc<[u8]> = wire::encode_failure(error).into();
        let digest = digest(&body);
        let connection = &mut self.connections[at];
        self.told.extend(connection.rank);
        connection.tell(kind::FAILURE, &body, &digest, now + self.limits.flush);
    }

    /// Sends at once what fits into the sockets; what is closed by that is found at the next poll.
    fn flush(&mut self) {
        for connection in &mut self.connections {
            if connection.being_told() {
                connection.write();
            }
        }
    }

    fn expire(&mut self, now: Instant) {
        if self.verdict.is_none()
            && self.stopping.is_none()
            && let Some((deadline, waited)) = self.deadline
            && now >= deadline
        {
            let size = self.size.unwrap_or_default();
            let missing: Vec<Rank> = (0..size).filter(|rank| !self.arrived.contains_key(rank)).collect();
            let error = match verdict::difference(&self.arrived) {
                // The likelier reason why somebody is missing.
                Some(difference) => Error::Settings { difference },
                None => Error::MissingRanks { missing, size, waited, address: self.place.clone() },
            };
            self.fail(error, now);
        }
        self.connections.retain(|connection| {
            // Told and flushed elsewhere than in `serve`.
            let finished = connection.being_told() && !connection.sending();
            let expired = connection.until.is_some_and(|until| now >= until);
            if expired && !finished {
                tracing::debug!(peer = %connection.peer, rank = connection.rank, "a connection to the root took too long");
            }
            if expired || finished {
                let _ = connection.stream.shutdown(std::net::Shutdown::Both);
            }
            !expired && !finished
        });
    }

    fn close_listeners(&mut self) {
        for listener in self.listeners.drain(..) {
            // Not only closed: a forked child may hold the same socket, and connections would wait there for nobody.
            let _ = shutdown(listener.as_raw_fd(), Shutdown::Both);
        }
    }
}

/// What poll found.
struct Ready {
    woken: bool,
    newcomers: bool,
    door: bool,
    connections: Vec<bool>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_listens_any_more_once_a_table_is_on_its_way() {
        let id = UniqueId::lone().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        // A fork would hold the same socket: it must not go on taking connections there.
        let forked = listener.try_clone().unwrap();
        let (_wake, woken) = UnixStream::pair().unwrap();
        let mut service = Service::new(vec![listener], woken, None, &id, Vec::new(), Limits::default());
        service.succeed(Instant::now());
        assert!(service.listeners.is_empty() && service.door.is_none());
        let refused = std::net::TcpStream::connect(address).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
        drop(forked);
    }
}
