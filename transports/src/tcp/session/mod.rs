//! What two endpoints have with each other: a stream each way, on sockets that may break.
//!
//! ```text
//!   put ──► fill ──► the socket that has room ──► sent ── the peer's system has all of it ──► the source is free
//!                                                   └── else a copy is kept until the peer says that it has the fill
//!   a socket broke ──► drained, closed ──► called again (the side that calls) ──► fences ──► what is missing is sent again
//! ```
//!
//! Invariant: a source is free as soon as [`Session::put`] is ready: what can still be lost has been copied. Nothing can be lost that
//! the peer's system has acknowledged, as each side has its system take nothing more on a socket, and then reads what has arrived
//! there, before it closes its end. What the peer sends is checked before it lands. The holder of its lock does all of it: the
//! connection, in calls, and the listener, where a socket broke or a call came while its rank is not in a call. Absent: threads,
//! waiting, ranks.

mod mending;
mod paths;
mod reading;
mod segments;
mod standing;
#[cfg(test)]
mod tests;

use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::time::{Duration, Instant};

use consort_memory::{Counter, Mapping, Span};
use nix::errno::Errno;
use nix::sys::socket::{Shutdown, shutdown};

use super::call::Call;
use super::handshake::Key;
use super::socket::Socket;
use super::wire::{Header, PLACE_MAX};
use super::{Expectation, LISTENERS_MAX, NAME};
use crate::info::Info;
use crate::mapped::check_bounds;
use crate::segment::Nonce;
use crate::streams::{Deferred, Fenced, Fragment, Path, Peering, Ready, STREAM, Soundness};
use crate::{CounterKind, Flow, PeerState, TransportError};
use mending::Broke;
use segments::Segments;
pub(super) use segments::short;

/// Where a session has several sockets, a fill is cut into about [`FRAGMENTS`], of at least this many bytes each.
const FRAGMENT_BYTES_MIN: usize = 64 << 10;
const FRAGMENTS: usize = 4;
/// The longest fill: what one call of `put` writes at most, so that the other direction gets its turn.
const FILL_BYTES_MAX: usize = 1 << 20;
/// Fills up to this length are always copied: that costs less than asking the system.
const COPIED_BYTES: usize = 4 << 10;
/// Looks that bring nothing, after which credits are deferred no longer.
const IDLE_LOOKS: u32 = 2;

const NOTHING: &[u8] = &[];
/// Turns of a session whose rank is in no call, at a time.
const TENDS_MAX: usize = 256;
/// What the next session is called: by all listeners that serve it.
static NEXT_ID: AtomicU64 = AtomicU64::new(0);

/// What a session begins with.
pub(super) struct Beginning {
    pub(super) expectation: Expectation,
    pub(super) key: Key,
    pub(super) peer: Nonce,
    pub(super) peer_mailbox_bytes: usize,
    /// From where to where each path goes.
    pub(super) ways: Vec<(IpAddr, SocketAddr)>,
    pub(super) calls: bool,
    pub(super) mailbox: Arc<Mapping>,
}

/// A fill whose source is in use.
#[derive(Clone, Copy, Debug)]
struct Current {
    fill: u64,
    /// Where it goes, to notice a caller that changes its mind.
    offset: usize,
    bytes: usize,
}

#[derive(Debug)]
pub(super) struct Session {
    pub(super) expectation: Expectation,
    /// What the listeners call it.
    pub(super) id: u64,
    key: Key,
    peer: Nonce,
    peer_mailbox_bytes: usize,
    ways: Vec<(IpAddr, SocketAddr)>,
    calls: bool,
    mailbox: Arc<Mapping>,
    /// What the peer raises.
    ready: Counter,
    credit: Counter,

    peering: Peering,
    sockets: Vec<Socket>,
    /// Calls under way, and since when.
    calling: Vec<(Path, Call, Duration)>,
    /// A call that is to show whether the peer's listener is there, since when, and when the next is due.
    knocking: Option<(Call, Duration)>,
    knock_at: Duration,
    fences: Vec<Fenced>,
    current: Option<Current>,
    deferred: Deferred,
    idle_looks: u32,
    /// Looks that brought nothing on sockets that are all open, and since when.
    looks: u32,
    idle_since: Option<Duration>,
    /// When sockets were last asked whether they stand still, while some are to be mended.
    looked_at: Duration,
    /// How long a call may take, and how many have come to nothing in that time.
    call_patience: Duration,
    unanswered: u32,
    /// How long the segments of each path are, and when those that are on trial were last looked at.
    segments: [Segments; LISTENERS_MAX],
    trial_at: Duration,
    /// Whether sockets have opened and stood still for as long as there may be no path, until the next one is open.
    is_hopeless: bool,

    /// Nothing more is put, and the peer is to know it; whether the end was queued on a socket that is open.
    closing: bool,
    end_queued: bool,
    /// It closed in the middle of a fill.
    torn: bool,
    /// Fills that the peer has made in all, once it has said so, and whether all of them are here.
    end_there: Option<u64>,
    ended: bool,
    /// What the peer did wrong.
    wrong: Option<&'static str>,
    /// What broke last, while not all sockets are open.
    broke: Option<Broke>,
    /// No path was open for too long.
    is_lost: bool,
    /// Whether the listener counts it among those that are to be mended.
    is_counted: bool,
    /// How long no path may be open.
    pub(super) patience: Duration,
    began: Instant,
    /// Bits of the paths that have been open.
    has_led: u8,
    sound: [Soundness; LISTENERS_MAX],
    /// Changes with the sockets.
    pub(super) version: u64,
}

impl Session {
    pub(super) fn new(beginning: Beginning, [ready, credit]: [Counter; 2]) -> Self {
        let Beginning { expectation, key, peer, peer_mailbox_bytes, ways, calls, mailbox } = beginning;
        let paths = ways.len() as u8;
        let mut session = Self {
            expectation,
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            key,
            peer,
            peer_mailbox_bytes,
            ways,
            calls,
            mailbox,
            ready,
            credit,
            peering: Peering::new(paths, calls),
            sockets: Vec::with_capacity(paths.into()),
            calling: Vec::new(),
            knocking: None,
            knock_at: Duration::ZERO,
            fences: Vec::new(),
            current: None,
            deferred: Deferred::default(),
            idle_looks: 0,
            looks: 0,
            idle_since: None,
            looked_at: Duration::ZERO,
            call_patience: mending::CALL_PATIENCE,
            unanswered: 0,
            segments: [Segments::default(); LISTENERS_MAX],
            trial_at: Duration::ZERO,
            is_hopeless: false,
            closing: false,
            end_queued: false,
            torn: false,
            end_there: None,
            ended: false,
            wrong: None,
            broke: None,
            is_lost: false,
            is_counted: false,
            patience: mending::PATIENCE,
            began: Instant::now(),
            has_led: 0,
            sound: [Soundness::default(); LISTENERS_MAX],
            version: 0,
        };
        // It begins before the first fill.
        session.peering.stream(STREAM);
        session
    }

    /// The first socket is there.
    pub(super) fn begin(&mut self, path: Path, socket: OwnedFd) {
        if self.calls {
            self.peering.dialled(path);
        }
        self.open(path, socket);
        self.pump(None);
    }

    /// The sockets, to be watched.
    pub(super) fn descriptors(&self) -> Vec<Arc<OwnedFd>> {
        self.sockets.iter().map(|socket| Arc::clone(&socket.descriptor)).collect()
    }

    /// What its sockets have carried.
    pub(super) fn flows(&self, each: &mut dyn FnMut(Flow)) {
        for Socket { descriptor, path, .. } in &self.sockets {
            let (from, to) = self.ways[usize::from(path.number)];
            let Some(info) = Info::of(&**descriptor) else { continue };
            let Some(carried) = info.carried else { continue };
            each(Flow {
                way: path.number,
                epoch: path.epoch,
                from: from.to_canonical(),
                to: to.ip().to_canonical(),
                bytes: carried.bytes,
                received: carried.received,
                at_work: carried.at_work,
                held_up: carried.held_up,
                round_trip: info.round_trip,
                sent_again: info.sent_again,
            });
        }
    }

    fn check(&self) -> Result<(), TransportError> {
        match (self.wrong, self.is_lost) {
            (Some(what), _) => Err(TransportError::Protocol { transport: NAME, what }),
            (None, true) => Err(self.lost()),
            (None, false) => Ok(()),
        }
    }

    fn check_usable(&self) -> Result<(), TransportError> {
        self.check()?;
        if self.ended { Err(TransportError::PeerClosed { transport: NAME }) } else { Ok(()) }
    }

    /// Writes one fill of a put, or goes on with it; the last says what the put says.
    pub(super) fn put(
        &mut self,
        offset: usize,
        bytes: Span<'_>,
        ready: Option<Ready>,
        done: &mut usize,
    ) -> Result<Poll<()>, TransportError> {
        check_bounds(NAME, offset, bytes.len(), self.peer_mailbox_bytes.min(PLACE_MAX))?;
        self.check_usable()?;
        let left = bytes.len() - *done;
        let piece = left.min(FILL_BYTES_MAX);
        let current = match self.current {
            Some(current) => {
                let is_same = (current.offset, current.bytes) == (offset + *done, piece);
                assert!(is_same, "a put was begun and another one continued");
                current
            }
            None if left == 0 && ready.is_none() => return Ok(Poll::Ready(())),
            None => {
                self.queue_credits();
                let place = (offset + *done, piece);
                let says = ready.filter(|_| piece == left);
                let fragment_bytes = if self.ways.len() == 1 {
                    piece
                } else {
                    piece.div_ceil(FRAGMENTS).max(FRAGMENT_BYTES_MIN)
                };
                let Ok(fill) = self.peering.stream(STREAM).0.fill(place, says, fragment_bytes) else {
                    // The peer says how far it is with what it sends.
                    self.progress()?;
                    return Ok(Poll::Pending);
                };
                *self.current.insert(Current { fill, offset: place.0, bytes: piece })
            }
        };
        let source = bytes.slice(*done, piece);
        self.pump(Some(source));
        self.check_usable()?;
        if !self.is_taken_over(current.fill) {
            return Ok(Poll::Pending);
        }
        self.keep(current.fill, source);
        self.current = None;
        *done += piece;
        Ok(if *done == bytes.len() { Poll::Ready(()) } else { Poll::Pending })
    }

    /// Whether sockets have all of a fill.
    fn is_taken_over(&mut self, fill: u64) -> bool {
        let is_written = |socket: &Socket| socket.outgoing().is_none_or(|fragment| fragment.fill != fill);
        self.sockets.iter().all(is_written) && self.peering.stream(STREAM).0.is_sent(fill)
    }

    /// The source is free from now on. What the peer's system has acknowledged is not lost any more; a copy is kept of the rest.
    fn keep(&mut self, fill: u64, source: Span<'_>) {
        if source.is_empty() {
            return;
        }
        let is_safe = source.len() > COPIED_BYTES && self.is_acknowledged(fill);
        if !is_safe {
            self.peering.stream(STREAM).0.keep(fill, source);
        }
    }

    /// Whether the peer's system has everything that was sent of the fills from one on, and nothing of them is lost.
    fn is_acknowledged(&mut self, fill: u64) -> bool {
        let has_all = |socket: &Socket| socket.is_flushed() && socket.unacknowledged() == Some(0);
        // Each socket is asked once, whatever the number of fragments on it.
        let mut open = [None; LISTENERS_MAX];
        for (place, socket) in open.iter_mut().zip(&self.sockets) {
            *place = has_all(socket).then_some(socket.path);
        }
        self.peering.stream(STREAM).0.is_on(fill, |path| open.contains(&Some(path)))
    }

    /// Raises the peer's counter, or defers it.
    pub(super) fn signal(&mut self, kind: CounterKind, says: Ready) -> Result<Poll<()>, TransportError> {
        match kind {
            CounterKind::Ready => return self.put(0, Span::of(NOTHING), Some(says), &mut 0),
            CounterKind::Credit => {
                self.check_usable()?;
                self.idle_looks = 0;
                if !self.deferred.defer(says) {
                    self.flush_credits();
                }
            }
        }
        Ok(Poll::Ready(()))
    }

    /// The deferred credit goes out with what is sent next.
    fn queue_credits(&mut self) {
        if let Some(credit) = self.deferred.take() {
            self.peering.credit(STREAM, credit);
        }
    }

    pub(super) fn flush_credits(&mut self) {
        self.queue_credits();
        self.pump(None);
    }

    pub(super) fn deferred_credits(&self) -> u64 {
        self.deferred.count()
    }

    /// Whether the system has taken over everything that there is to send.
    pub(super) fn is_flushed(&self) -> bool {
        self.ended || (self.sockets.iter().all(Socket::is_flushed) && !self.peering.has_more(STREAM))
    }

    /// Whether the peer's system has everything, and nothing of it is lost.
    pub(super) fn is_delivered(&mut self) -> bool {
        self.ended || self.is_lost || (self.is_flushed() && self.is_acknowledged(0))
    }

    /// Writes what sockets take: of what is kept, and of the current fill where its source is here.
    fn pump(&mut self, source: Option<Span<'_>>) {
        if self.wrong.is_some() || self.ended || self.torn {
            return;
        }
        // The socket whose peer has the least still to acknowledge takes the next fragment: a slower one has fewer turns.
        let mut full = [false; LISTENERS_MAX];
        loop {
            let has_room = |(_, socket): &(usize, &Socket)| !full[usize::from(socket.path.number)];
            let waiting = |(_, socket): &(usize, &Socket)| match self.ways.len() {
                1 => 0,
                _ => socket.unacknowledged().unwrap_or(usize::MAX),
            };
            let next = self.sockets.iter().enumerate().filter(has_room).min_by_key(waiting);
            let Some((at, number)) = next.map(|(at, socket)| (at, socket.path.number)) else { return };
            match self.pump_socket(at, source) {
                Ok(true) => {}
                Ok(false) => full[usize::from(number)] = true,
                Err(error) => self.broke_at(at, Some(error)),
            }
        }
    }

    /// Writes to a socket until it is full or has nothing more to carry, or, where there are several, until a fragment is
    /// out. Whether it may take more.
    fn pump_socket(&mut self, at: usize, source: Option<Span<'_>>) -> Result<bool, Errno> {
        loop {
            let socket = &mut self.sockets[at];
            let path = socket.path;
            if socket.outgoing().is_none() && self.peering.is_open(path) {
                if let Some((id, fragment)) = self.peering.next(path) {
                    // Where its source is not here, what is queued goes out all the same.
                    if self.has_source(fragment.fill, source) {
                        let word = self.peering.word(id);
                        self.sockets[at].begin(fragment, word);
                        self.peering.sent(id, &fragment, path);
                    }
                } else {
                    self.queue_word(at);
                }
            }
            let Self { sockets, peering, current, .. } = self;
            let socket = &mut sockets[at];
            if socket.is_flushed() {
                return Ok(false);
            }
            let payload = match socket.outgoing() {
                None => Span::of(NOTHING),
                Some(fragment) => {
                    let kept = peering.stream(STREAM).0.kept(&fragment).map(Span::of);
                    let is_current = current.is_some_and(|current| current.fill == fragment.fill);
                    let own = || {
                        source.filter(|_| is_current).map(|source| of_current(source, &fragment, *current))
                    };
                    // In the middle of a fragment whose source is not here.
                    let Some(payload) = kept.or_else(own) else { return Ok(false) };
                    payload
                }
            };
            let had_fragment = socket.outgoing().is_some();
            if !socket.write(payload)? {
                return Ok(false);
            }
            if had_fragment && self.ways.len() > 1 {
                return Ok(true);
            }
        }
    }

    /// Whether the bytes of a fill are here. Where they are not and never will be, the peer has lost what its system had.
    fn has_source(&mut self, fill: u64, source: Option<Span<'_>>) -> bool {
        if self.current.is_some_and(|current| current.fill == fill) {
            return source.is_some();
        }
        let is_kept = self.peering.stream(STREAM).0.is_kept(fill);
        if !is_kept {
            self.wrong = Some("it has lost what its system had acknowledged");
        }
        is_kept
    }

    /// What the other direction waits for goes alone where nothing is to be sent, and the end after everything.
    fn queue_word(&mut self, at: usize) {
        let path = self.sockets[at].path;
        let word = self.peering.word(STREAM);
        if self.closing {
            if !self.end_queued {
                self.end_queued = true;
                let made = self.peering.stream(STREAM).0.made();
                self.sockets[at].queue(&Header::End(made, word).write());
                self.peering.said(STREAM, path);
            }
        } else if self.sockets[at].is_flushed() && self.peering.owing().is_some() {
            // A later word says all that this one would.
            self.sockets[at].queue(&Header::Word(word).write());
            self.peering.said(STREAM, path);
        }
    }

    /// Moves what is under way, and mends what broke, for a call of this rank.
    pub(super) fn progress(&mut self) -> Result<PeerState, TransportError> {
        self.check()?;
        if self.ended {
            return Ok(PeerState::Closed);
        }
        self.advance(true);
        self.check()?;
        Ok(if self.ended { PeerState::Closed } else { PeerState::Open })
    }

    /// The same where the rank is in no call: all that has come is read, so that a socket's end behind it is seen too.
    pub(super) fn tend(&mut self) {
        for _ in 0..TENDS_MAX {
            if self.check_usable().is_err() || !self.advance(false) {
                break;
            }
        }
    }

    /// Bytes of the copies that are kept until the peer has them.
    pub(super) fn kept_bytes(&mut self) -> usize {
        self.peering.stream(STREAM).0.kept_bytes()
    }

    /// Whether something has come.
    fn advance(&mut self, in_call: bool) -> bool {
        let has_come = self.read();
        if has_come {
            self.idle_looks = 0;
        } else if self.deferred.is_due() {
            self.idle_looks += 1;
            if self.idle_looks > IDLE_LOOKS {
                self.queue_credits();
            }
        }
        self.pump(None);
        self.mend(has_come, in_call);
        has_come
    }

    /// Whether it is room on this socket that something waits for.
    pub(super) fn waits_for_room(&self, socket: &Arc<OwnedFd>) -> bool {
        let is_it = |own: &&Socket| Arc::ptr_eq(&own.descriptor, socket);
        self.sockets.iter().find(is_it).is_some_and(|own| !own.is_flushed())
    }

    /// Nothing more is put: what is left goes out, and then the end.
    pub(super) fn close(&mut self) {
        // A fill that was begun and not finished was not said to be there.
        self.closing = true;
        self.queue_credits();
        if let Some(current) = self.current.take() {
            self.torn = !self.peering.stream(STREAM).0.give_up(current.fill);
        }
        self.tend();
    }

    /// Whether a closed session has nothing more to do.
    pub(super) fn is_over(&mut self) -> bool {
        if self.ended || self.is_lost || self.torn || self.wrong.is_some() {
            return true;
        }
        if !self.end_queued || !self.is_flushed() {
            return false;
        }
        let Self { sockets, peering, .. } = self;
        let has_path = |path: Path| sockets.iter().any(|socket| socket.path == path);
        if !peering.stream(STREAM).0.is_on(0, has_path) {
            // Something is to be sent again, once the peer has said what it has.
            return false;
        }
        // Nothing follows the end, so that the peer's system may forget the socket soon.
        for socket in &self.sockets {
            let _ = shutdown(socket.descriptor.as_raw_fd(), Shutdown::Write);
        }
        self.is_delivered()
    }
}

/// The bytes of a fragment of the current fill.
fn of_current<'a>(source: Span<'a>, fragment: &Fragment, current: Option<Current>) -> Span<'a> {
    let from = current.map_or(0, |current| fragment.offset - current.offset);
    source.slice(from, fragment.bytes)
}
