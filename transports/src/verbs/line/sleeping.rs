//! What of a line wakes a sleeper: what comes, and where the device has to say what is over before anything goes on, that too.
//!
//! Invariant: what had come or was over before the queues were asked is found before a sleep. Absent: who sleeps.

use super::{Line, Take};
use crate::TransportError;

impl Line {
    /// Whether what is asked of it waits for the device: room for what is to be written, or a source.
    fn awaits_sent(&self) -> bool {
        self.awaits_device || self.lent.is_awaited()
    }

    /// From now on what comes makes the descriptor readable, and the device's next word of what is over where that is waited for. Whether
    /// nothing has come before that.
    ///
    /// # Errors
    /// Those of [`Line::listen`].
    pub(in super::super) fn arm(&mut self, take: Take<'_>) -> Result<bool, TransportError> {
        let awaits_sent = self.awaits_sent();
        self.queue.arm(awaits_sent)?;
        let before = (self.heard, self.broke.is_some());
        self.listen(take)?;
        // What had come may have been announced late, and have taken the place of what is to come.
        let is_quiet =
            (self.heard, self.broke.is_some(), self.awaits_sent()) == (before.0, before.1, awaits_sent);
        Ok(is_quiet && self.queue.is_armed(awaits_sent))
    }
}
