//! How the two ends of a queue pair meet: the side that calls greets, again and again until it is heard; the other answers when it is,
//! and is established when the first has heard that.
//!
//! ```text
//!   calls                                     is called
//!   hello ─── lost where the other is late ──►
//!   stops, hears what had come, begins again
//!   hello ──────────────────────────────────► says nothing before it
//!         ◄────────────────────────────────── hello
//!   hello ──────────────────────────────────► established
//! ```
//!
//! Invariant: the side that greets knows what the other can have sent, so it can begin again. Absent: what follows.

use std::time::{Duration, Instant};

use super::NAME;
use super::line::{Line, Take};
use crate::{PeerState, TransportError};

/// How long a side that is there waits before it greets: the other one has its address at about the same time, and what comes too
/// early is lost.
const GREET_AFTER: Duration = Duration::from_millis(1);
/// The pauses after which a peer is greeted again that may not have been there: the first, and the last.
const GREET_FIRST: Duration = Duration::from_millis(50);
const GREET_LAST: Duration = Duration::from_secs(1);
/// How long a queue pair that was stopped may take to give out what had come.
pub(super) const STOPPING: Duration = Duration::from_secs(5);

/// When the side that calls greets.
enum Greet {
    /// For the first time, at this time.
    First(Instant),
    /// Again at this time, if its hello has not been taken by then.
    At(Instant),
    /// Again when its queue pair, which was stopped at this time, has given out what had come.
    Stopped(Instant),
}

/// Two ends on their way to each other.
pub(super) struct Meeting {
    greet: Greet,
    pause: Duration,
    /// Whether the first hello of the peer was answered.
    has_answered: bool,
}

impl Meeting {
    /// Of a peer that is there where it has been called (`is_in_turn`), or else has heard this side's address by now, or does soon.
    pub(super) fn new(is_in_turn: bool) -> Self {
        // Where the peer is there and is slow, only the device need repeat a hello.
        let (after, pause) =
            if is_in_turn { (Duration::ZERO, GREET_LAST) } else { (GREET_AFTER, GREET_FIRST) };
        Meeting { greet: Greet::First(Instant::now() + after), pause, has_answered: false }
    }

    /// Whether its queue pair was stopped, so that what it says is said in [`Meeting::go_on`] alone.
    pub(super) fn is_stopped(&self) -> bool {
        matches!(self.greet, Greet::Stopped(_))
    }

    /// Whether it has greeted, and what the peer says is next for far longer than a sleep.
    pub(super) fn is_listening(&self) -> bool {
        matches!(self.greet, Greet::At(_))
    }

    /// Goes on with what a look at the line has brought. Whether the two have met.
    ///
    /// # Errors
    /// What makes it impossible.
    pub(super) fn go_on(
        &mut self,
        line: &mut Line,
        heard: Result<PeerState, TransportError>,
        take: Take<'_>,
    ) -> Result<bool, TransportError> {
        let calls = line.calls();
        let is_stopped = self.is_stopped();
        if !is_stopped {
            match heard {
                // Its peer may not be there yet.
                Err(TransportError::Completion { .. }) if calls && line.is_unanswered() => {}
                Err(error) => return Err(error),
                Ok(PeerState::Closed) if line.greeted() == 0 => {
                    return Err(TransportError::PeerClosed { transport: NAME });
                }
                Ok(_) => {}
            }
            if line.greeted() > 0 && !self.has_answered {
                self.has_answered = line.greet()?;
            }
        }
        if self.has_answered && line.greeted() > u64::from(!calls) && !is_stopped {
            return Ok(true);
        }
        if calls {
            self.say_hello(line, Instant::now(), take)?;
        }
        Ok(false)
    }

    /// Greets when it is time, and begins again where the peer may not have been there.
    fn say_hello(&mut self, line: &mut Line, now: Instant, take: Take<'_>) -> Result<(), TransportError> {
        match self.greet {
            Greet::At(at) if now >= at && (!line.is_delivered() || line.is_unanswered()) => {
                line.stop()?;
                self.greet = Greet::Stopped(now);
            }
            Greet::First(at) if now >= at => {
                line.greet()?;
                self.greet = Greet::At(now + self.pause);
            }
            Greet::First(_) | Greet::At(_) => {}
            Greet::Stopped(_) if line.has_begun_again(take)? => {
                self.has_answered = line.greeted() > 0;
                self.pause = (self.pause * 2).min(GREET_LAST);
                self.greet = Greet::At(now + self.pause);
            }
            Greet::Stopped(since) if now.saturating_duration_since(since) > STOPPING => {
                let source = std::io::Error::from(std::io::ErrorKind::TimedOut);
                let what = "waiting for what a queue pair has flushed";
                return Err(TransportError::system(NAME, what, source));
            }
            Greet::Stopped(_) => {}
        }
        Ok(())
    }
}
