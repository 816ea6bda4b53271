//! A queue pair of a connection that has several, from its making to its end; a path is opened anew with another one.
//!
//! ```text
//!              Closed ◄──────────────────────────────┐
//!   dials: asks the peer by another lane, which      │ all that had come is heard
//!          makes its own and answers                 │
//!              Asking ──► Meeting ──► Open ──► Draining   stopped: nothing more lands
//! ```
//!
//! Invariant: a lane that was open is closed only when everything that had come by it is heard, so what this side says it has is all that
//! the peer can know of. Absent: what is sent, and on which lane.

use std::time::{Duration, Instant};

use super::super::NAME;
use super::super::ends::Ends;
use super::super::events;
use super::super::line::{Line, Take};
use super::super::meeting::{Meeting, STOPPING};
use super::super::queue::Queue;
use crate::streams::{Path, Soundness};
use crate::{PeerState, TransportError};

/// How long a peer may take to answer, or to be met, where other lanes lead to it.
const PATIENCE: Duration = Duration::from_secs(6);
/// A peer that does not answer is asked again after twice as long, as many times: it may compute, and each question keeps a place of a tray.
const UNANSWERED_MAX: u32 = 5;

/// How far a lane is.
pub(super) enum State {
    /// There is no queue pair.
    Closed,
    /// The peer was asked for its own, by another lane, at this time.
    Asking(Box<Queue>, Instant),
    /// Two queue pairs on their way to each other, since this time.
    Meeting(Box<Line>, Meeting, Instant),
    Open(Box<Line>),
    /// It was stopped at this time, and gives out what had come.
    Draining(Box<Line>, Instant),
}

/// What a look at a lane came to.
pub(super) enum Seen {
    Nothing,
    /// Something has come.
    Came,
    /// The two have met.
    Opened,
    /// It has failed, or was to be closed, and all that had come by it has been heard: why, where it has failed.
    Closed(Option<TransportError>),
    /// Its peer could not be met: why, where that is known.
    NotOpened(Option<TransportError>),
}

/// What is known of a connection's lanes.
#[derive(Clone, Copy)]
pub(super) struct Others {
    /// Whether any has ever led to the peer, or does.
    pub(super) have_led: bool,
    pub(super) are_open: bool,
}

/// One of a connection's ways to the peer.
pub(super) struct Lane {
    /// Which, and the last epoch that there was a queue pair for.
    pub(super) path: Path,
    pub(super) state: State,
    /// The two ends, as they were at first.
    pub(super) ends: Ends,
    /// Whether it is to carry something only where no other does.
    pub(super) is_reserve: bool,
    pub(super) speed_mbit_s: u64,
    /// Questions in a row that the peer did not answer.
    pub(super) unanswered: u32,
    /// Whether it has ever led to the peer.
    pub(super) has_led: bool,
    pub(super) soundness: Soundness,
}

impl Lane {
    pub(super) fn line(&self) -> Option<&Line> {
        match &self.state {
            State::Open(line) | State::Meeting(line, ..) | State::Draining(line, _) => Some(line),
            State::Closed | State::Asking(..) => None,
        }
    }

    /// Its queue pair, where it may carry something.
    pub(super) fn open(&mut self) -> Option<&mut Line> {
        match &mut self.state {
            State::Open(line) if !line.is_broken() => Some(line),
            _ => None,
        }
    }

    pub(super) fn is_open(&self) -> bool {
        matches!(&self.state, State::Open(line) if !line.is_broken())
    }

    pub(super) fn is_closed(&self) -> bool {
        matches!(self.state, State::Closed)
    }

    /// Has it take and send nothing more; [`Seen::Closed`] follows.
    pub(super) fn stop(&mut self) {
        self.state = match std::mem::replace(&mut self.state, State::Closed) {
            State::Open(mut line) | State::Meeting(mut line, ..) => {
                // A device that refuses has failed: nothing comes by it.
                let _ = line.stop();
                State::Draining(line, Instant::now())
            }
            other => other,
        };
    }

    /// Takes in what has come; a peer is waited for as long as no lane has led to it.
    ///
    /// # Errors
    /// [`TransportError::Protocol`]: the peer said what it must not.
    pub(super) fn look(&mut self, others: Others, take: Take<'_>) -> Result<Seen, TransportError> {
        match &mut self.state {
            State::Closed => return Ok(Seen::Nothing),
            State::Open(line) => {
                let seen = line.look(take);
                if let Some(came) = sound(line, seen)? {
                    return Ok(if came { Seen::Came } else { Seen::Nothing });
                }
                self.stop();
                return Ok(Seen::Nothing);
            }
            State::Asking(_, since) => {
                if since.elapsed() < PATIENCE * (1 << self.unanswered.min(UNANSWERED_MAX)) && others.are_open
                {
                    return Ok(Seen::Nothing);
                }
            }
            State::Meeting(line, meeting, since) => match met(line, meeting, take)? {
                Some(true) => return Ok(Seen::Opened),
                Some(false) if !others.have_led || since.elapsed() < PATIENCE => {
                    return Ok(Seen::Nothing);
                }
                Some(false) | None => {}
            },
            State::Draining(line, since) => {
                let is_drained = match line.is_drained(take) {
                    Err(error @ TransportError::Protocol { .. }) => return Err(error),
                    // A device that has failed gives nothing out.
                    Err(_) => true,
                    Ok(is_drained) => is_drained,
                };
                if !is_drained && since.elapsed() < STOPPING {
                    return Ok(Seen::Nothing);
                }
            }
        }
        // What comes by it later would not be heard: the queue pair goes.
        let (is_met, line) = match std::mem::replace(&mut self.state, State::Closed) {
            State::Draining(line, _) => (true, Some(line)),
            State::Meeting(line, ..) => (false, Some(line)),
            _ => (false, None),
        };
        let why = line.and_then(|line| why(&line));
        Ok(if is_met { Seen::Closed(why) } else { Seen::NotOpened(why) })
    }
}

/// Why a line works no longer.
fn why(line: &Line) -> Option<TransportError> {
    events::trouble(&line.queue).or_else(|| line.check().err())
}

/// The same error once more.
pub(super) fn again(error: &TransportError) -> TransportError {
    match error {
        TransportError::Completion { transport, failed } => {
            TransportError::Completion { transport, failed: failed.clone() }
        }
        TransportError::Adapter { trouble, .. } => TransportError::adapter(NAME, (**trouble).clone()),
        TransportError::System { call, source, .. } => {
            TransportError::system(NAME, call, std::io::Error::new(source.kind(), source.to_string()))
        }
        _ => TransportError::PeerClosed { transport: NAME },
    }
}

/// Whether anything has come where a line works; none where it has failed.
///
/// # Errors
/// [`TransportError::Protocol`].
fn sound(line: &Line, seen: Result<bool, TransportError>) -> Result<Option<bool>, TransportError> {
    let checked = seen.and_then(|came| line.check().map(|()| came));
    match checked {
        Err(error @ TransportError::Protocol { .. }) => Err(error),
        Err(_) => Ok(None),
        Ok(_) if events::trouble(&line.queue).is_some() => Ok(None),
        Ok(came) => Ok(Some(came)),
    }
}

/// Whether two ends have met; none where they cannot.
///
/// # Errors
/// [`TransportError::Protocol`].
fn met(line: &mut Line, meeting: &mut Meeting, take: Take<'_>) -> Result<Option<bool>, TransportError> {
    let heard = if meeting.is_stopped() {
        Ok(PeerState::Open)
    } else {
        line.look(take).and_then(|_| line.check()).map(|()| PeerState::Open)
    };
    if let Some(trouble) = events::trouble(&line.queue) {
        tracing::debug!(%trouble, "a further queue pair does not lead to the peer");
        return Ok(None);
    }
    match meeting.go_on(line, heard, take) {
        Ok(is_met) => Ok(Some(is_met)),
        Err(error @ TransportError::Protocol { .. }) => Err(error),
        Err(error) => {
            tracing::debug!(%error, "a queue pair does not lead to the peer");
            Ok(None)
        }
    }
}
