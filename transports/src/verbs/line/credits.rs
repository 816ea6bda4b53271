//! Credits of an end: one waits for the next message, which says it too.
//!
//! Invariant: a credit is said once; what waits is said before a sleep, and when looks bring nothing for long. Absent: messages.

use super::super::message::Kind;
use super::Line;
use crate::TransportError;

/// Credits that wait for another message at most.
const CREDITS_DEFERRED_MAX: u64 = 1;

impl Line {
    /// Raises the peer's counter of free slots with what is sent next, or now where it waits for a second time. Whether it could.
    ///
    /// # Errors
    /// Those of [`Line::check`]; the device's.
    pub(in super::super) fn credit(&mut self, value: u64, tag: u64) -> Result<bool, TransportError> {
        self.check()?;
        (self.deferred, self.idle_looks) = (Some((value, tag)), 0);
        if self.deferred_credits() > CREDITS_DEFERRED_MAX {
            self.flush_credits()?;
        }
        Ok(true)
    }

    /// Credits that wait.
    pub(in super::super) fn deferred_credits(&self) -> u64 {
        self.deferred.map_or(0, |(value, _)| value - self.credited)
    }

    /// Says what waits, if there is room.
    ///
    /// # Errors
    /// As of [`Line::send`].
    pub(in super::super) fn flush_credits(&mut self) -> Result<(), TransportError> {
        if self.deferred.is_some() {
            self.send(None, Some((Kind::Heard, 0, 0)))?;
        }
        Ok(())
    }
}
