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
        let before = self.found(awaits_sent);
        self.listen(take)?;
        // What had come may have been announced late, and have taken the place of what is to come.
        let is_quiet = self.found(awaits_sent) == before && self.awaits_sent() == awaits_sent;
        Ok(is_quiet && self.queue.is_armed(awaits_sent))
    }

    /// What has come, and what is over where that is waited for.
    fn found(&self, awaits_sent: bool) -> (u64, bool, Option<(u64, u64)>) {
        (self.heard, self.broke.is_some(), awaits_sent.then(|| (self.reaped, self.lent.free())))
    }

    /// The last of its work that its device has said is over.
    pub(in super::super) fn reaped(&self) -> u64 {
        self.reaped
    }

    /// The last of its work that its device has taken.
    pub(in super::super) fn accepted(&self) -> u64 {
        self.queue.accepted()
    }
}
