//! A connection by several queue pairs, of one port or of several: fills are cut into fragments, and when a queue pair fails, the others
//! carry on.
//!
//! ```text
//! put, fill ──► copied to this side's picture of the peer's mailbox ──► fragments ──► the lane with the least under way
//! a lane fails ──► it is stopped, and gives out what had come ──► the other side hears by another lane what this side has
//!              ──► it stops its own end, says what it has, and sends again what is missing ──► the path is opened anew
//! ```
//!
//! The picture keeps what was not acknowledged: the place of a fill is written again only when the peer has said that it has it, as it does
//! with each credit. What two sides say of paths is that of sockets (`streams`).
//!
//! Invariant: what a peer sends by a queue pair that has failed is counted before this side says what it has, and none of it lands later. A
//! connection ends when no queue pair is left. Absent: waiting, ranks; opening the first queue pair again when all are lost.

mod connection;
mod inbox;
mod lane;
mod mending;
mod sources;
mod tending;

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use consort_memory::Span;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use nix::sys::eventfd::{EfdFlags, EventFd};

use super::NAME;
use super::ends::{Ends, Memory};
use super::line::Line;
use super::line::lent::Data;
use super::meeting::Meeting;
use super::memory::Registrations;
use super::message::{CARRIED_BYTES, Kind, LANE_BYTES, Message};
use super::port::Domain;
use super::queue::Queue;
use crate::mapped::check_bounds;
use crate::streams::{Deferred, Fragment, Path, Peering, Ready, STREAM, Soundness};
use crate::{PeerState, TransportError, Way};
pub(super) use connection::{SessionConnecting, Sessions};
use inbox::{Dialled, Inbox};
use lane::{Lane, Others, Seen, State, again};
use sources::Sources;

/// Fragments of a fill for each lane that takes part, of at least this many bytes each.
const FRAGMENTS: usize = 2;
const FRAGMENT_BYTES_MIN: usize = 32 << 10;
/// Looks that bring nothing before a credit waits no longer for another message.
const IDLE_LOOKS: u32 = 32;

/// A lane as a session begins with it.
pub(super) struct Beginning {
    pub(super) queue: Queue,
    pub(super) ends: Ends,
    pub(super) is_reserve: bool,
}

/// One end of a connection by several queue pairs.
pub(super) struct Session {
    inbox: Inbox,
    lanes: Vec<Lane>,
    domains: Arc<[Arc<Domain>]>,
    memory: Memory,
    /// Trays that come before the mailbox at the peer, in bytes.
    trays_there: usize,
    calls: bool,
    /// Places of fills that are not acknowledged, and how many fills there were before them.
    kept: VecDeque<(usize, usize)>,
    acknowledged: u64,
    sources: Sources,
    /// How many the peer was asked to acknowledge.
    asked: u64,
    deferred: Deferred,
    idle_looks: u32,
    /// What is to be said on a path before anything else is.
    letters: VecDeque<(Path, Vec<u8>)>,
    /// What is to be said on any.
    dialling: VecDeque<Dialled>,
    /// Paths that are to be opened anew when their ports here are there.
    held: Vec<Path>,
    /// Whether all lanes are open, so that nothing is to be mended.
    is_whole: bool,
    /// Whether the end is to be said, and by which path it was.
    is_closing: bool,
    end_on: Option<Path>,
    /// Whether its rank may sleep on the descriptor, and what wakes it where another thread has taken in what came.
    is_armed: bool,
    bell: EventFd,
    is_rung: bool,
    /// Whether something was heard while its rank looked elsewhere, before it was to sleep.
    has_news: bool,
    wrong: Option<&'static str>,
    /// Why nothing goes any more, where its program has ended it.
    fenced: Option<TransportError>,
    /// The last that failed, which says why.
    lost: Option<TransportError>,
    began: Instant,
    /// Of what the lanes' descriptors say.
    epoll: Arc<Epoll>,
}

impl Session {
    /// Of lanes on their way to each other, over these ports and what each knows of programs' memory, between endpoints with as many trays,
    /// this side's and the peer's.
    ///
    /// # Errors
    /// The device's, where no lane can be connected; the system's.
    pub(super) fn new(
        lanes: Vec<Beginning>,
        (domains, known): (Arc<[Arc<Domain>]>, Arc<[Registrations]>),
        memory: Memory,
        trays: [usize; 2],
        calls: bool,
    ) -> Result<Self, TransportError> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)
            .map_err(|error| TransportError::system(NAME, "epoll_create1", error))?;
        let bell = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)
            .map_err(|error| TransportError::system(NAME, "eventfd", error))?;
        epoll
            .add(&bell, EpollEvent::new(EpollFlags::EPOLLIN, 0))
            .map_err(|error| TransportError::system(NAME, "epoll_ctl of a bell", error))?;
        let epoll = Arc::new(epoll);
        let peering = Peering::new(lanes.len() as u8, calls);
        let mut session = Session {
            inbox: Inbox::new(memory.clone(), trays[0], peering),
            lanes: Vec::with_capacity(lanes.len()),
            domains,
            memory,
            trays_there: trays[1] * LANE_BYTES,
            calls,
            kept: VecDeque::new(),
            acknowledged: 0,
            sources: Sources::new(known),
            asked: 0,
            deferred: Deferred::default(),
            idle_looks: 0,
            letters: VecDeque::new(),
            dialling: VecDeque::new(),
            held: Vec::new(),
            is_whole: false,
            is_closing: false,
            end_on: None,
            is_armed: false,
            bell,
            is_rung: false,
            has_news: false,
            wrong: None,
            fenced: None,
            lost: None,
            began: Instant::now(),
            epoll,
        };
        let mut failed = None;
        for (number, Beginning { queue, ends, is_reserve }) in (0..).zip(lanes) {
            let path = Path { number, epoch: 1 };
            if calls {
                session.inbox.peering.dialled(path);
            }
            let speed_mbit_s = queue.port().standing.speed_mbit_s;
            let meeting = Meeting::new(ends.is_in_turn);
            let line = session.watch(&queue).and_then(|()| Line::new(queue, session.memory.clone(), ends));
            let state = match line {
                Ok(line) => State::Meeting(Box::new(line), meeting, Instant::now()),
                Err(error) => {
                    failed.get_or_insert(error);
                    State::Closed
                }
            };
            let soundness = Soundness::default();
            session.lanes.push(Lane {
                path,
                state,
                ends,
                is_reserve,
                speed_mbit_s,
                unanswered: 0,
                has_led: false,
                soundness,
            });
        }
        match failed {
            Some(error) if session.lanes.iter().all(Lane::is_closed) => Err(error),
            Some(_) => {
                let now = session.now();
                let closed: Vec<Path> =
                    session.lanes.iter().filter(|lane| lane.is_closed()).map(|lane| lane.path).collect();
                closed.into_iter().for_each(|path| session.inbox.peering.not_opened(path, now));
                Ok(session)
            }
            None => Ok(session),
        }
    }

    fn now(&self) -> Duration {
        self.began.elapsed()
    }

    /// Has a queue pair's completions make the session's descriptor readable.
    fn watch(&self, queue: &Queue) -> Result<(), TransportError> {
        let readable = EpollEvent::new(EpollFlags::EPOLLIN, 0);
        let added = self.epoll.add(queue.descriptor(), readable);
        added.map_err(|error| TransportError::system(NAME, "epoll_ctl of a completion channel", error))
    }

    /// Readable when something comes after [`Session::arm`].
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.epoll.0.as_fd()
    }

    fn peer_mailbox_bytes(&self) -> usize {
        self.memory.theirs.bytes() - self.trays_there
    }

    /// Whether any more can be sent.
    ///
    /// # Errors
    /// [`TransportError::PeerClosed`] after the peer's end; what it did that it must not; why no queue pair is left.
    fn check(&mut self) -> Result<(), TransportError> {
        if let Some(what) = self.wrong {
            return Err(TransportError::Protocol { transport: NAME, what });
        }
        if let Some(why) = &self.fenced {
            return Err(again(why));
        }
        if self.inbox.has_ended() {
            return Err(TransportError::PeerClosed { transport: NAME });
        }
        if self.is_whole || !self.lanes.iter().all(Lane::is_closed) {
            return Ok(());
        }
        Err(self.failure())
    }

    /// Why no queue pair is left.
    fn failure(&self) -> TransportError {
        self.lost.as_ref().map_or(TransportError::PeerClosed { transport: NAME }, again)
    }

    /// Forgets the places of fills that the peer has acknowledged.
    fn forget_acknowledged(&mut self) {
        let acknowledged = self.inbox.peering.stream(STREAM).0.acknowledged();
        self.kept.drain(..(acknowledged - self.acknowledged) as usize);
        self.acknowledged = acknowledged;
    }

    /// Writes bytes into the peer's mailbox, and says something behind them. Whether there was room.
    ///
    /// # Errors
    /// [`TransportError::OutOfBounds`]; those of [`Session::check`].
    fn put(&mut self, offset: usize, bytes: Span<'_>, ready: Option<Ready>) -> Result<bool, TransportError> {
        if bytes.is_empty() && ready.is_none() {
            check_bounds(NAME, offset, bytes.len(), self.peer_mailbox_bytes())?;
            return self.check().map(|()| true);
        }
        let made = self.make((offset, bytes.len()), Some(bytes), ready)?;
        if made.is_some() {
            self.send_made();
        }
        Ok(made.is_some())
    }

    /// Makes a fill, of bytes that are copied or else kept by another. Its number, if there was room.
    ///
    /// # Errors
    /// As of [`Session::put`].
    fn make(
        &mut self,
        (offset, length): (usize, usize),
        copied: Option<Span<'_>>,
        ready: Option<Ready>,
    ) -> Result<Option<u64>, TransportError> {
        check_bounds(NAME, offset, length, self.peer_mailbox_bytes())?;
        self.check()?;
        self.forget_acknowledged();
        let end = offset + length;
        let overlaps = |of: &(usize, usize)| of.0 < end && offset < of.0 + of.1;
        if let Some(last) = self.kept.iter().rposition(overlaps) {
            self.ask(self.acknowledged + last as u64 + 1);
            // The peer's word may be there.
            self.progress()?;
            return Ok(None);
        }
        let taking = self.lanes.iter().filter(|lane| !lane.is_reserve && lane.is_open()).count().max(1);
        let fragment_bytes = match taking {
            1 => length,
            lanes => length.div_ceil(FRAGMENTS * lanes).max(FRAGMENT_BYTES_MIN),
        };
        let outbound = self.inbox.peering.stream(STREAM).0;
        let Ok(fill) = outbound.fill((offset, length), ready, fragment_bytes) else {
            let made = outbound.made();
            self.ask(made);
            self.progress()?;
            return Ok(None);
        };
        if let Some(bytes) = copied {
            self.memory.theirs.span(self.trays_there + offset, length).copy_from(bytes);
        }
        self.kept.push_back((offset, length));
        Ok(Some(fill))
    }

    /// Sends what was made, as far as there is room.
    fn send_made(&mut self) {
        self.queue_credits();
        self.pump();
    }

    /// Has the peer acknowledge as many fills, when it has them.
    fn ask(&mut self, fills: u64) {
        if self.asked < fills
            && self.say(Message { kind: Kind::Ask, value: fills, ..Message::default() }).is_some()
        {
            self.asked = fills;
        }
    }

    /// The lane that is to carry the next: the one with the least under way for its speed, and a reserve where no other is open.
    fn best(&self, full: u32) -> Option<usize> {
        let carries = |lane: &Lane| lane.is_open() && self.inbox.peering.is_open(lane.path);
        let has_primary = self.lanes.iter().any(|lane| !lane.is_reserve && carries(lane));
        let may = |(at, lane): &(usize, &Lane)| {
            full >> at & 1 == 0
                && carries(lane)
                && !(lane.is_reserve && has_primary)
                && !self.letters.iter().any(|(on, _)| on.number == lane.path.number)
        };
        let key = |(at, lane): &(usize, &Lane)| {
            let line = lane.line();
            let load = line.map_or(0, |line| line.load() as u64) * 1024 / lane.speed_mbit_s.max(1);
            let is_down = line.is_some_and(|line| line.queue.port().is_down());
            (is_down, load, *at)
        };
        self.lanes.iter().enumerate().filter(may).min_by_key(key).map(|(at, _)| at)
    }

    /// Says something alone by the best lane that has room: which one.
    fn say(&mut self, message: Message) -> Option<Path> {
        let mut full = 0;
        while let Some(at) = self.best(full) {
            let lane = &mut self.lanes[at];
            if lane.open().is_some_and(|line| line.say(message).unwrap_or(false)) {
                return Some(lane.path);
            }
            full |= 1 << at;
        }
        None
    }

    /// What goes with each message about the other direction.
    fn with_word(&self, message: Message) -> Message {
        let word = self.inbox.peering.word(STREAM);
        let credit = word.credit.map_or((0, 0), |Ready { value, tag }| (value, tag));
        Message { acknowledged: word.acknowledged as u32, credit, ..message }
    }

    /// Sends what there is to be sent, as far as there is room.
    fn pump(&mut self) {
        if !self.letters.is_empty() || !self.dialling.is_empty() {
            self.send_letters();
        }
        let mut full = 0;
        while self.inbox.peering.has_more(STREAM) {
            let Some(at) = self.best(full) else { break };
            let path = self.lanes[at].path;
            let Some((_, fragment)) = self.inbox.peering.next(path) else { break };
            if self.send_fragment(at, &fragment) {
                self.inbox.peering.sent(STREAM, &fragment, path);
            } else {
                full |= 1 << at;
            }
        }
        self.say_what_is_owed();
        let end_is_lost = |on: Path| !self.lanes[usize::from(on.number)].is_open_as(on);
        if self.is_closing && self.end_on.is_none_or(end_is_lost) && !self.inbox.peering.has_more(STREAM) {
            let value = self.inbox.peering.stream(STREAM).0.made();
            self.end_on = self.say(Message { kind: Kind::End, value, ..Message::default() });
        }
    }

    fn send_fragment(&mut self, at: usize, fragment: &Fragment) -> bool {
        let place = self.trays_there + fragment.offset;
        let (kind, Ready { value, tag }) = match fragment.ready {
            Some(ready) => (Kind::Ready, ready),
            None => (Kind::Put, Ready { value: 0, tag: 0 }),
        };
        let is_carried = is_carried(fragment.bytes) && !self.sources.has(fragment.fill);
        let message = self.with_word(Message {
            kind,
            value,
            tag,
            fragment: (fragment.index as u8, fragment.count as u8),
            fill: fragment.fill as u32,
            offset: if is_carried { fragment.offset as u32 } else { 0 },
            ..Message::default()
        });
        let Self { lanes, memory, sources, .. } = self;
        let lane = &mut lanes[at];
        let before = lane.line().map(Line::accepted);
        let sent = sources.send(lane, place, fragment, message).unwrap_or_else(|| {
            let carried = is_carried.then(|| memory.theirs.read(place, fragment.bytes));
            let written = (!is_carried).then_some(Data::Picture(place, fragment.bytes));
            lane.open().map_or(Ok(false), |line| line.send(written, Some(message), carried))
        });
        // A failure is the next look's to find. Where the device has taken a part, all is sent again when the lane is fenced, and not before.
        sent.unwrap_or_else(|_| lanes[at].line().map(Line::accepted) != before)
    }

    fn say_what_is_owed(&mut self) {
        let here = self.inbox.peering.stream(STREAM).1.acknowledged();
        let is_wanted = self.inbox.wanted > 0 && here >= self.inbox.wanted;
        let has_waited = self.idle_looks > IDLE_LOOKS && self.inbox.peering.owes_soon(STREAM);
        if !is_wanted && !has_waited && self.inbox.peering.owing().is_none() {
            return;
        }
        if self.say_word() && is_wanted {
            self.inbox.wanted = 0;
        }
    }

    /// Says what is known of the other direction. Whether there was room.
    fn say_word(&mut self) -> bool {
        let said = self.say(self.with_word(Message { kind: Kind::Heard, ..Message::default() }));
        said.inspect(|path| self.inbox.peering.said(STREAM, *path)).is_some()
    }

    /// Raises the peer's counter of free slots with what is sent next, or now where it waits for a second time.
    fn credit(&mut self, value: u64, tag: u64) -> Result<(), TransportError> {
        self.check()?;
        self.idle_looks = 0;
        if !self.deferred.defer(Ready { value, tag }) {
            self.flush_credits();
        }
        Ok(())
    }

    /// What waits goes with the next message.
    fn queue_credits(&mut self) {
        if let Some(credit) = self.deferred.take() {
            self.inbox.peering.credit(STREAM, credit);
        }
    }

    /// Says what waits for another message.
    fn flush_credits(&mut self) {
        if self.deferred.is_due() {
            self.send_made();
        }
        if self.owes_soon() {
            self.say_word();
        }
    }

    /// Whether the peer keeps something until it hears what has arrived.
    fn owes_soon(&self) -> bool {
        self.inbox.peering.owes_soon(STREAM)
    }

    /// Takes in what has come, and mends what has failed.
    ///
    /// # Errors
    /// [`TransportError::Protocol`] when the peer said what it must not; why no queue pair is left.
    fn progress(&mut self) -> Result<PeerState, TransportError> {
        let gone_on = self.go_on();
        self.retire_sources();
        match gone_on {
            // It is looked at until no lane reads a source any more.
            Ok(PeerState::Closed) if !self.sources.is_empty() => Ok(PeerState::Open),
            gone_on => gone_on,
        }
    }

    fn go_on(&mut self) -> Result<PeerState, TransportError> {
        if self.fenced.is_some() || (self.wrong.is_some() && !self.sources.is_empty()) {
            self.wind_up();
        }
        if self.is_over() {
            return self.check().map(|()| PeerState::Open);
        }
        self.is_armed = false;
        if std::mem::take(&mut self.is_rung) {
            let _ = self.bell.read();
        }
        let has_come = self.look().inspect_err(|error| {
            if let TransportError::Protocol { what, .. } = error {
                self.wrong = Some(what);
            }
        })?;
        if self.inbox.has_ended() {
            // Nothing that is still read will be taken.
            if !self.sources.is_empty() {
                self.wind_up();
            }
            return Ok(PeerState::Closed);
        }
        if !self.is_whole || !self.fences_are_heard() {
            self.wrong = self.mend().err();
            self.check()?;
        }
        self.idle_looks = if has_come { 0 } else { self.idle_looks.saturating_add(1) };
        if self.deferred.is_due() && self.idle_looks > IDLE_LOOKS {
            self.queue_credits();
        }
        self.pump();
        Ok(PeerState::Open)
    }

    /// Looks at each lane. Whether anything has come.
    fn look(&mut self) -> Result<bool, TransportError> {
        let mut has_come = false;
        if self.domains.iter().any(|domain| domain.port.is_down()) {
            self.leave_ports_that_are_down();
        }
        let others = Others {
            have_led: self.is_whole || self.lanes.iter().any(|lane| lane.has_led),
            are_open: self.is_whole || self.lanes.iter().any(Lane::is_open),
        };
        for at in 0..self.lanes.len() {
            let Self { lanes, inbox, .. } = self;
            let seen = lanes[at].look(others, &mut |message, carried| inbox.take(message, carried))?;
            match seen {
                Seen::Nothing => {}
                Seen::Came => has_come = true,
                other => {
                    self.turned(at, other);
                    has_come = true;
                }
            }
            if self.is_whole && !self.lanes[at].is_open() {
                self.is_whole = false;
            }
            let owes = self.lanes[at].open().map_or(Ok(false), Line::owes).unwrap_or(false);
            // Also before a letter, for whose place the peer may wait as this side does.
            if owes {
                let message = self.with_word(Message::default());
                let lane = &mut self.lanes[at];
                if lane.open().is_some_and(|line| line.say(message).unwrap_or(false)) {
                    let path = lane.path;
                    self.inbox.peering.said(STREAM, path);
                }
            }
        }
        Ok(has_come)
    }

    /// From now on what comes makes the descriptor readable, and no credit waits. Whether nothing has come before that.
    fn arm(&mut self) -> Result<bool, TransportError> {
        self.flush_credits();
        let mut is_quiet = true;
        for lane in &mut self.lanes {
            let inbox = &mut self.inbox;
            let mut take = |message: &Message, carried: Span<'_>| inbox.take(message, carried);
            is_quiet &= match &mut lane.state {
                State::Open(line) | State::Meeting(line, ..) => line.arm(&mut take)?,
                State::Closed | State::Asking(..) => true,
                // It is not watched, and what it gives back may be waited for.
                State::Draining(..) => self.sources.is_empty(),
            };
        }
        self.is_armed = is_quiet && self.fences_are_heard() && !std::mem::take(&mut self.has_news);
        Ok(self.is_armed)
    }

    /// The paths that have ever led to the peer, with those that are lost, which have been down for `after`. None where there is one beside a
    /// reserve: nothing carries less when either of the two fails.
    fn ways(&mut self, after: Duration, each: &mut dyn FnMut(Way)) {
        let now = self.now();
        if self.lanes.iter().any(|lane| lane.is_reserve) {
            return;
        }
        for lane in self.lanes.iter_mut().filter(|lane| lane.has_led) {
            let is_lost = lane.soundness.look(lane.is_open(), now, after);
            let from = self.domains[lane.ends.port].port.reach.gid.ip();
            let to = lane.ends.peer.reach.gid.ip();
            each(Way { number: lane.path.number, from: from.to_canonical(), to: to.to_canonical(), is_lost });
        }
    }
}

/// Whether bytes go with their message.
fn is_carried(bytes: usize) -> bool {
    bytes <= CARRIED_BYTES
}
