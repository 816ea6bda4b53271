//! Sockets that stand still, and what is known of the paths on which they do.
//!
//! Invariant: the side that called takes any socket for broken that stands still. The side that is called does so only where long packets
//! of its own do not get through while the peer's come: what it closes while the link is down, the peer might never hear of.
//! A session whose sockets open and stand still, one after the other, for as long as it may be without a path is lost as well.

use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use nix::errno::Errno;

use super::super::NAME;
use super::super::handshake::Verdict;
use super::super::listener::Caller;
use super::super::socket::Socket;
use super::super::wire::Header;
use super::Session;
use super::segments::{Segments, Sight, short};
use crate::TransportError;
use crate::info::Info;
use crate::streams::{Path, STREAM};

/// Looks between two looks at the clock.
const LOOKS: u32 = 16;
/// How long nothing may come before a socket is asked whether it stands still, and how often it then has something to
/// carry that shows it.
pub(super) const PROBE: Duration = Duration::from_millis(300);
/// How often a path whose segments are on trial is looked at.
const TRIAL: Duration = Duration::from_millis(5);

fn sight(socket: &Socket) -> Option<Sight> {
    Info::of(&*socket.descriptor).map(|info| Sight::of(&info, socket.unacknowledged()))
}

impl Session {
    /// Where nothing comes, a socket on which nothing can come is one on which the system sends the same again and again; so that it
    /// sends anything at all, it is given a word now and then. The side that is called looks whatever comes.
    pub(super) fn look_at_the_clock(&mut self, has_come: bool) {
        if !self.calls {
            self.looks = self.looks.wrapping_add(1);
            if self.looks.is_multiple_of(LOOKS) && self.is_time_to_look(self.now()) {
                self.find_standing();
            }
            return;
        }
        if has_come {
            return;
        }
        self.looks = self.looks.wrapping_add(1);
        if self.idle_since.is_some() && !self.looks.is_multiple_of(LOOKS) {
            return;
        }
        let now = self.now();
        if now.saturating_sub(*self.idle_since.get_or_insert(now)) < PROBE || self.find_standing() {
            return;
        }
        let word = self.peering.word(STREAM);
        for at in 0..self.sockets.len() {
            let socket = &mut self.sockets[at];
            if self.peering.is_open(socket.path) && socket.is_flushed() && socket.unacknowledged() == Some(0)
            {
                socket.queue(&Header::Word(word).write());
                self.peering.said(STREAM, socket.path);
            }
        }
        self.idle_since = Some(now);
        self.pump(None);
    }

    /// Whether sockets are to be asked again whether they stand still.
    pub(super) fn is_time_to_look(&mut self, now: Duration) -> bool {
        let is_time = now.saturating_sub(self.looked_at) >= PROBE;
        if is_time {
            self.looked_at = now;
        }
        is_time
    }

    /// Whether a socket stands still, which is then closed.
    pub(super) fn find_standing(&mut self) -> bool {
        let calls = self.calls;
        let stands = |sight: &Sight| if calls { sight.stands_still() } else { sight.is_one_way() };
        let found = |(at, socket): (usize, &Socket)| Some((at, sight(socket).filter(stands)?));
        let Some((at, sight)) = self.sockets.iter().enumerate().find_map(found) else { return false };
        let (now, path) = (self.now(), self.sockets[at].path);
        self.segments[usize::from(path.number)].stood_still(now, &sight);
        let descriptor = Arc::clone(&self.sockets[at].descriptor);
        self.broke_at(at, Some(Errno::ETIMEDOUT));
        if !calls {
            reset(&descriptor);
        }
        let has_stood =
            |path: Path| self.segments[usize::from(path.number)].has_stood_for(self.patience, now);
        self.is_hopeless = has_stood(path) && self.sockets.iter().all(|socket| has_stood(socket.path));
        true
    }

    /// The longest segment of the next call for a path; None for the system's choice.
    pub(super) fn segment(&self, path: Path) -> Option<u32> {
        let (here, there) = self.way(path);
        let own = self.segments[usize::from(path.number)].is_short().then(|| short(there.ip()));
        own.or_else(|| self.expectation.watcher().segment(here, there.ip()))
    }

    /// What a caller is to hear.
    pub(super) fn verdict(&mut self, caller: &Caller) -> Verdict {
        let segment = Info::of(&caller.socket).map_or(0, |info| info.segment);
        let now = self.now();
        match self.segments[usize::from(caller.meeting.path.number)].ask(segment, now) {
            true => Verdict::Shorter,
            false => Verdict::Welcome,
        }
    }

    /// Whether short segments carry what long ones did not. What a session has found, later ones of this process begin with.
    pub(super) fn look_at_trials(&mut self) {
        if !self.segments[..self.ways.len()].iter().any(Segments::is_trial) {
            return;
        }
        let now = self.now();
        if now.saturating_sub(self.trial_at) < TRIAL {
            return;
        }
        self.trial_at = now;
        for at in 0..self.sockets.len() {
            let path = self.sockets[at].path;
            let segments = &mut self.segments[usize::from(path.number)];
            if !segments.is_trial() || !sight(&self.sockets[at]).is_some_and(|sight| segments.look(&sight)) {
                continue;
            }
            let packet = segments.hole().filter(|_| segments.is_own());
            let (here, there) = self.way(path);
            self.expectation.watcher().shorten(here, there.ip());
            if let Some(packet) = packet {
                let segment = short(there.ip());
                let text = format!(
                    "packets of {packet} bytes do not get through from {here} to {there} while small ones do (an MTU black hole): going on \
                     with segments of {segment} bytes, which is slower; {REMEDY}"
                );
                warn(there, packet, segment, &text);
            }
        }
    }

    /// Why the session is lost.
    pub(super) fn lost(&self) -> TransportError {
        let (broke, hole) = (self.broke.as_ref(), self.hole());
        let stood = self.segments.iter().filter_map(|segments| Some(segments.standing()?.0));
        let since = broke.map(|broke| broke.since).into_iter().chain(stood).min().unwrap_or_default();
        let calling = match broke.and_then(|broke| broke.calling.clone()) {
            Some(calling) => format!("the last call to it: {calling}"),
            None if self.calls => "calls to it are answered".into(),
            None => "the peer is to call again, and has not".into(),
        };
        TransportError::Cut {
            transport: NAME,
            address: self.ways[0].1.to_string(),
            seconds: self.now().saturating_sub(since).as_secs(),
            why: broke.map_or_else(String::new, |broke| broke.why.clone()),
            calling: hole.map_or(calling.clone(), |hole| format!("{calling}; {hole}")),
        }
    }

    /// What is known of a path on which long packets do not get through.
    fn hole(&self) -> Option<String> {
        let holes = self.ways.iter().zip(&self.segments);
        let (there, segments, packet) =
            holes.filter_map(|((_, there), segments)| Some((there, segments, segments.hole()?))).next()?;
        let segment = short(there.ip());
        let row =
            segments.standing().filter(|(_, count)| *count > 2).map_or_else(String::new, |(_, count)| {
                let short = if segments.has_short_stood() {
                    format!(", those with segments of {segment} bytes too")
                } else {
                    String::new()
                };
                format!(" ({count} sockets in a row opened and stood still{short})")
            });
        Some(format!(
            "packets of {packet} bytes do not get through to {there} while small ones do, an MTU black hole{row}: {REMEDY}"
        ))
    }
}

/// What users can do about a black hole.
const REMEDY: &str =
    "set the same MTU on all interfaces and switches of the way, or let ICMP 'fragmentation needed' through";

/// Logs what users should know; on standard error where the program has no subscriber.
fn warn(peer: SocketAddr, path_mtu: u32, segment: u32, text: &str) {
    tracing::warn!(transport = NAME, %peer, path_mtu, segment, "{text}");
    if !tracing::dispatcher::has_been_set() {
        eprintln!("consort: {text}");
    }
}

/// Ends a socket at both ends now, whatever its system still has to send, and whatever process holds the descriptor. Where the system refuses, the
/// peer's next packet finds that nothing is read any more.
pub(super) fn reset(descriptor: &OwnedFd) {
    // SAFETY: all its fields are numbers, for which zero is a value.
    let mut nowhere: libc::sockaddr = unsafe { std::mem::zeroed() };
    nowhere.sa_family = libc::AF_UNSPEC as libc::sa_family_t;
    // SAFETY: the address lives during the call, which reads its length and no more.
    unsafe {
        libc::connect(descriptor.as_raw_fd(), &raw const nowhere, size_of_val(&nowhere) as libc::socklen_t)
    };
}
