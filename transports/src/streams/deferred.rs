//! Credits that wait for another message, which says them too.
//!
//! Invariant: a credit is said once, and one waits at most: a peer goes on meanwhile, as mailboxes have four slots. Absent: when what waits
//! is said although no other message follows.

use super::Ready;

/// Credits that wait at most.
const DEFERRED_MAX: u64 = 1;

/// What of a connection's credits waits.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Deferred {
    waits: Option<Ready>,
    /// The last that was said.
    said: u64,
}

impl Deferred {
    /// Another one waits, with all before it. Whether it may; if not, it is to be said now.
    pub(crate) fn defer(&mut self, credit: Ready) -> bool {
        self.waits = Some(credit);
        self.count() <= DEFERRED_MAX
    }

    /// How many wait.
    pub(crate) fn count(self) -> u64 {
        self.waits.map_or(0, |credit| credit.value - self.said)
    }

    /// Whether any waits.
    pub(crate) fn is_due(self) -> bool {
        self.waits.is_some()
    }

    /// What waits, to be said.
    pub(crate) fn take(&mut self) -> Option<Ready> {
        let credit = self.waits.take();
        self.said = credit.map_or(self.said, |credit| credit.value);
        credit
    }
}
