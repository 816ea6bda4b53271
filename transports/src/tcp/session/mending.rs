//! Sockets of a session that break, and calls that replace them.
//!
//! Invariant: the side that called first calls again. A session that a call has waited for without a path for [`PATIENCE`] is lost;
//! the operation's own deadline may come before. Absent: when a socket stands still ([`super::standing`]).

use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::task::Poll;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::socket::{setsockopt, sockopt};

use super::super::call::{Call, CallError};
use super::super::handshake::{Meeting, Verdict};
use super::super::socket::Socket;
use super::super::wire;
use super::super::{LISTENERS_MAX, NAME, send_small};
use super::Session;
use crate::info::Info;
use crate::streams::{Order, Path};

/// How long a session may be without a path.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);
/// How long a call may take before it is given up for another, at first and at most: the system would send its first packet again after
/// a second. Each that comes to nothing after the first [`QUICK_CALLS`] gives the next twice as long: an answer may take its time.
pub(super) const CALL_PATIENCE: Duration = Duration::from_millis(250);
const CALL_PATIENCE_MAX: Duration = Duration::from_secs(2);
const QUICK_CALLS: u32 = 8;
/// How long a peer's listener may refuse calls before its process counts as gone.
const REFUSED_MAX: Duration = Duration::from_secs(1);
/// The same where this side is the one that is called, and only asks whether the peer's listener is there: the calls that it waits for may
/// be on their way, and a firewall may refuse what goes in this direction.
const KNOCKS_REFUSED_MAX: Duration = Duration::from_secs(3);

/// What broke.
#[derive(Debug)]
pub(super) struct Broke {
    pub(super) since: Duration,
    /// Why the last socket broke, and what came of the last call.
    pub(super) why: String,
    pub(super) calling: Option<String>,
    /// Since when the peer's listener refuses the calls of each path.
    refused: [Option<Duration>; LISTENERS_MAX],
    /// Since when a call of this rank waits for a path.
    waited: Option<Duration>,
}

impl Session {
    pub(super) fn now(&self) -> Duration {
        self.began.elapsed()
    }

    /// From where to where a path goes.
    pub(super) fn way(&self, path: Path) -> (IpAddr, SocketAddr) {
        self.ways[usize::from(path.number)]
    }

    fn has_way(&self, path: Path) -> bool {
        usize::from(path.number) < self.ways.len()
    }

    /// Whether all sockets are there and may carry fragments.
    fn is_whole(&self) -> bool {
        let is_open = |socket: &Socket| self.peering.is_open(socket.path);
        self.sockets.len() == self.ways.len() && self.sockets.iter().all(is_open)
    }

    /// A socket is there, for a path whose turn it may be.
    pub(super) fn open(&mut self, path: Path, descriptor: OwnedFd) {
        // One that was called before the present one, or twice.
        if !self.peering.expects(path) {
            return;
        }
        let _ = setsockopt(&descriptor, sockopt::TcpNoDelay, &true);
        keep_alive(&descriptor);
        // What came on the one before it.
        if let Some(before) = self.sockets.iter().position(|socket| socket.path.number == path.number) {
            self.drain(before);
        }
        let socket = Socket::new(descriptor, path);
        let descriptor = std::sync::Arc::clone(&socket.descriptor);
        self.sockets.push(socket);
        self.version += 1;
        self.has_led |= 1 << path.number;
        (self.call_patience, self.unanswered) = (CALL_PATIENCE, 0);
        let now = self.now();
        let is_taken = self.peering.opened(path, now);
        debug_assert!(is_taken, "it was expected");
        self.carry_out();
        // Room for what is to be sent again, where something broke.
        self.expectation.watcher().watch(&descriptor, self.id, self.broke.is_some());
        self.note_whole();
    }

    /// A socket is of no use; what has arrived on it is read first.
    pub(super) fn broke_at(&mut self, at: usize, error: Option<Errno>) {
        let path = self.sockets[at].path;
        self.drain(at);
        // It may have ended the session.
        if self.sockets.get(at).is_some_and(|socket| socket.path == path) {
            self.broke_drained(at, error);
        }
    }

    /// The same once that has been read.
    pub(super) fn broke_drained(&mut self, at: usize, error: Option<Errno>) {
        let path = self.sockets[at].path;
        let facts = kernel_facts(&self.sockets[at]);
        let why = error.map_or("the peer's system ended it".into(), |error| error.desc().to_string());
        tracing::warn!(transport = NAME, peer = %self.way(path).1, path = path.number, epoch = path.epoch, why, facts, "a socket broke");
        let now = self.now();
        self.peering.broken(path, now);
        // Where the peering knows nothing of it.
        self.forget(path);
        self.note_broken(format!("{why}{facts}"));
        self.carry_out();
        self.note_whole();
    }

    fn forget(&mut self, path: Path) {
        let Self { sockets, expectation, .. } = self;
        let before = sockets.len();
        sockets.retain(|socket| {
            if socket.path == path {
                expectation.watcher().unwatch(&socket.descriptor);
            }
            socket.path != path
        });
        if sockets.len() != before {
            self.version += 1;
            let why =
                self.broke.as_ref().map_or("the peer found it broken".into(), |broke| broke.why.clone());
            self.note_broken(why);
        }
    }

    fn note_broken(&mut self, why: String) {
        let now = self.now();
        let is_cut = self.sockets.is_empty();
        let nothing = Broke {
            since: now,
            why: String::new(),
            calling: None,
            refused: [None; LISTENERS_MAX],
            waited: None,
        };
        let broke = self.broke.get_or_insert(nothing);
        broke.why = why;
        // The last one broke.
        if is_cut {
            (broke.since, broke.refused, broke.waited) = (now, [None; LISTENERS_MAX], None);
            (self.call_patience, self.unanswered) = (CALL_PATIENCE, 0);
        }
        self.end_queued = false;
    }

    /// Whether something is on its way on a path on which a socket has stood still: the next one may, and this rank be in no call.
    fn is_in_doubt(&self) -> bool {
        let now = self.now();
        self.segments[..self.ways.len()].iter().any(|segments| segments.is_in_doubt(now))
            && self.sockets.iter().any(|socket| socket.unacknowledged() != Some(0))
    }

    /// The listener looks after sessions that are to be mended.
    pub(super) fn note_whole(&mut self) {
        let is_whole = self.is_whole();
        self.is_hopeless &= !is_whole;
        if is_whole && let Some(broke) = self.broke.take() {
            let (breaks, again) = self.peering.counts();
            let lost = self.now().saturating_sub(broke.since);
            tracing::info!(
                transport = NAME, peer = %self.ways[0].1, why = broke.why, ?lost, breaks, again,
                "a socket was replaced; what was missing is sent again"
            );
        }
        // What was to be sent again goes out although the rank is in no call.
        let is_useful = !self.ended && !self.is_lost && self.wrong.is_none();
        let is_counted =
            is_useful && (!is_whole || (self.is_counted && (!self.is_flushed() || self.is_in_doubt())));
        if std::mem::replace(&mut self.is_counted, is_counted) != is_counted {
            let watcher = self.expectation.watcher();
            watcher.count_broken(self.id, is_counted);
            if !is_counted {
                self.sockets.iter().for_each(|socket| watcher.watch(&socket.descriptor, self.id, false));
            }
        }
    }

    /// Does what the peering wants done.
    pub(super) fn carry_out(&mut self) {
        while let Some(order) = self.peering.order() {
            match order {
                Order::Close(path) => {
                    self.forget(path);
                    self.calling.retain(|(of, ..)| *of != path);
                }
                Order::Say(on, fenced) => {
                    if let Some(socket) = self.sockets.iter_mut().find(|socket| socket.path == on) {
                        socket.queue(&wire::fence(&fenced));
                    }
                }
                Order::Dial(path) => {
                    let (here, there) = self.way(path);
                    match Call::begin(here, there, self.segment(path)) {
                        Ok(call) => self.calling.push((path, call, self.now())),
                        Err(error) => self.not_opened(path, error),
                    }
                }
            }
        }
    }

    pub(super) fn not_opened(&mut self, path: Path, error: CallError) {
        let now = self.now();
        // What an interface that has never led to the peer says is another endpoint's word: addresses of two networks may be alike.
        let speaks = self.sockets.is_empty() && self.has_led >> path.number & 1 == 1;
        let is_refused = matches!(error, CallError::Unreachable(Errno::ECONNREFUSED));
        if let Some(broke) = &mut self.broke {
            let refused = &mut broke.refused[usize::from(path.number)];
            *refused = is_refused.then(|| refused.unwrap_or(now));
            // As if its system had ended the socket for good.
            self.ended |= speaks && refused.is_some_and(|since| now - since >= REFUSED_MAX);
        }
        self.ended |= speaks && matches!(error, CallError::Gone);
        let segments = &mut self.segments[usize::from(path.number)];
        match error {
            CallError::Unreachable(_) => segments.unanswered(now),
            CallError::Shorter => segments.asked(now),
            _ => {}
        }
        let text = match error {
            CallError::Gone => "the peer's endpoint is not there".into(),
            CallError::Unreachable(errno) => errno.desc().to_string(),
            CallError::HungUp => "what answered hung up".into(),
            CallError::Shorter => "the peer asks for short segments".into(),
            CallError::Unauthorised => "what answered does not know the key".into(),
            CallError::System(error) => error.to_string(),
        };
        if path.epoch == 1 {
            let (here, there) = self.way(path);
            tracing::warn!(transport = NAME, %here, %there, why = text, "a further interface does not lead to the peer");
        }
        if let Some(broke) = &mut self.broke {
            broke.calling = Some(text);
        }
        self.peering.not_opened(path, now);
    }

    /// Calls again and takes the peer's calls where sockets are missing; else finds out whether they stand still.
    pub(super) fn mend(&mut self, has_come: bool, in_call: bool) {
        // The peer may have found a socket broken that seems to be there.
        if self.expectation.is_called() {
            self.take_callers();
        }
        if has_come {
            self.idle_since = None;
        }
        self.look_at_trials();
        if self.is_whole() && !self.is_counted {
            self.look_at_the_clock(has_come);
            return;
        }
        let now = self.now();
        if self.is_time_to_look(now) {
            self.find_standing();
        }
        self.peering.tick(now);
        self.carry_out();
        self.poll_calls(now);
        self.carry_out();
        if !self.calls && self.sockets.is_empty() {
            self.knock(now);
        }
        self.pump(None);
        self.give_up(now, in_call);
        self.note_whole();
    }

    /// The peer is to call. A process that has died does not, and its listener refuses calls.
    fn knock(&mut self, now: Duration) {
        let (here, there) = self.ways[0];
        let (call, since) = match self.knocking.take() {
            Some((call, since)) => (Ok(call), since),
            None if now < self.knock_at => return,
            None => (Call::begin(here, there, None), now),
        };
        self.knock_at = since + CALL_PATIENCE;
        let is_refused = match call.and_then(|call| Ok((call.is_connected()?, call))) {
            Ok((Poll::Pending, call)) if now < self.knock_at => {
                self.knocking = Some((call, since));
                return;
            }
            Ok(_) => false,
            Err(error) => matches!(error, CallError::Unreachable(Errno::ECONNREFUSED)),
        };
        if let Some(broke) = &mut self.broke {
            let refused = &mut broke.refused[0];
            *refused = is_refused.then(|| refused.unwrap_or(now));
            self.ended |= refused.is_some_and(|since| now - since >= KNOCKS_REFUSED_MAX);
        }
    }

    /// The session is lost where a call of this rank has waited for long enough: nothing is lost while nothing is waited for.
    fn give_up(&mut self, now: Duration, in_call: bool) {
        let carries = self.sockets.iter().any(|socket| self.peering.is_open(socket.path));
        let patience = self.patience;
        self.is_lost |= in_call && self.is_hopeless;
        if let Some(broke) = self.broke.as_mut().filter(|_| carries) {
            broke.waited = None;
        } else if let Some(broke) = self.broke.as_mut().filter(|_| in_call) {
            let waited = *broke.waited.get_or_insert(now);
            self.is_lost |= now.saturating_sub(waited) >= patience;
        }
    }

    /// The peer's calls.
    pub(super) fn take_callers(&mut self) {
        for caller in self.expectation.take_callers() {
            if caller.meeting.caller != self.peer || !self.has_way(caller.meeting.path) || self.calls {
                tracing::debug!(transport = NAME, "turned a caller away: it is not the endpoint's peer");
                continue;
            }
            let verdict = self.verdict(&caller);
            let answer = self.key.answer(verdict, &caller.meeting);
            // If it went meanwhile, it may call again.
            if send_small(&caller.socket, &answer).is_ok() && verdict == Verdict::Welcome {
                self.open(caller.meeting.path, caller.socket);
            }
        }
    }

    fn poll_calls(&mut self, now: Duration) {
        for (path, mut call, since) in std::mem::take(&mut self.calling) {
            let (caller, callee) = (self.expectation.nonce, self.peer);
            match call.poll(&self.key, &Meeting { caller, callee, path }) {
                Ok(Poll::Ready(())) => self.open(path, call.into_socket()),
                Ok(Poll::Pending) if now.saturating_sub(since) < self.call_patience => {
                    self.calling.push((path, call, since));
                }
                // The answer may have come just now, with what the peer has sent behind it.
                Ok(Poll::Pending)
                    if call.is_answered_after_all(&self.key, &Meeting { caller, callee, path }) =>
                {
                    self.open(path, call.into_socket());
                }
                Ok(Poll::Pending) => {
                    self.unanswered += 1;
                    if self.unanswered > QUICK_CALLS {
                        self.call_patience = (self.call_patience * 2).min(CALL_PATIENCE_MAX);
                    }
                    self.not_opened(path, CallError::Unreachable(Errno::ETIMEDOUT));
                }
                Err(error) => self.not_opened(path, error),
            }
        }
    }

    /// The peer has closed its end of a path: where it had answered a call for it, what it sent there is read first.
    pub(super) fn answer_before(&mut self, closed: Path) {
        let is_of_it = |of: &Path| of.number == closed.number && of.epoch <= closed.epoch;
        let Some(at) = self.calling.iter().position(|(of, ..)| is_of_it(of)) else { return };
        let (path, mut call, _) = self.calling.swap_remove(at);
        let meeting = Meeting { caller: self.expectation.nonce, callee: self.peer, path };
        if call.is_answered_after_all(&self.key, &meeting) {
            self.open(path, call.into_socket());
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let watcher = self.expectation.watcher();
        self.sockets.iter().for_each(|socket| watcher.unwatch(&socket.descriptor));
        if self.is_counted {
            watcher.count_broken(self.id, false);
        }
        self.expectation.listeners.iter().for_each(|listener| listener.dismiss_session(self.id));
    }
}

/// A peer's system that has forgotten a socket says so when it is asked; nothing else may come for a long time.
fn keep_alive(descriptor: &OwnedFd) {
    let _ = setsockopt(descriptor, sockopt::KeepAlive, &true);
    let _ = setsockopt(descriptor, sockopt::TcpKeepIdle, &10);
    let _ = setsockopt(descriptor, sockopt::TcpKeepInterval, &5);
    let _ = setsockopt(descriptor, sockopt::TcpKeepCount, &3);
}

/// What the kernel knows of a socket that broke.
fn kernel_facts(socket: &Socket) -> String {
    Info::of(&*socket.descriptor).map_or_else(String::new, |info| {
        format!(
            " (sent again {} times in a row, {} in all; path MTU {}; round trip {} us)",
            info.retransmits,
            info.sent_again,
            info.path_mtu,
            info.round_trip.as_micros()
        )
    })
}
