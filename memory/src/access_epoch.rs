//! Access epochs: a rank that touches a peer's memory says when it begins and when it ends, and an owner that wants its memory
//! back forbids epochs and waits until none is open.
//!
//! Invariant: when an owner has forbidden and then seen that the peer's epoch is not open, that peer writes nothing to its
//! memory any more. Both write first, fence, and look: in every order at least one of them sees the other. Absent: what is
//! written, and what an owner does that cannot wait.

use crate::sync::{self, Ordering};
use crate::{Arrival, Counter, Inbox, Outbox};

/// One side of a pair; each may write to the other's memory.
#[derive(Debug)]
pub struct AccessEpoch {
    /// Raised by the peer: odd while its epoch is open.
    here: Counter,
    /// Raised by this side when it begins and when it ends.
    there: Counter,
    count: u64,
    forbids: Outbox,
    forbidden: Inbox,
}

/// Between what a side writes and what it looks at then: to be passed once for all peers.
pub fn fence() {
    // SeqCst: with the other side's, orders the stores before it before the loads after it.
    sync::fence(Ordering::SeqCst);
}

impl AccessEpoch {
    /// Over counters (the peer raises `here`) and a slot on each side that is used for nothing else.
    pub fn new(here: Counter, there: Counter, forbids: Outbox, forbidden: Inbox) -> Self {
        Self { here, there, count: 0, forbids, forbidden }
    }

    /// This side begins. Then [`fence`], and it may write if that is not [forbidden](AccessEpoch::is_forbidden).
    pub fn begin(&mut self) {
        if self.count.is_multiple_of(2) {
            self.step();
        }
    }

    /// Whether the peer has forbidden to touch its memory.
    pub fn is_forbidden(&self) -> bool {
        self.forbidden.look(0) != Arrival::None
    }

    /// This side touches nothing any more, if it did.
    pub fn end(&mut self) {
        if !self.count.is_multiple_of(2) {
            self.step();
        }
    }

    fn step(&mut self) {
        self.count += 1;
        // A Release: what was written there is there when it is seen.
        self.there.raise(self.count, 0);
    }

    /// From now on the peer may not begin. Then [`fence`], and its epoch is not [open](AccessEpoch::is_open) or it has seen it.
    pub fn forbid(&mut self) {
        if self.forbids.sent() == 0 {
            self.forbids.send(1, 0);
        }
    }

    /// Whether the peer touches this side's memory, or has not said that it does no more.
    pub fn is_open(&self) -> bool {
        !self.here.value().is_multiple_of(2)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::Row;

    #[test]
    fn epochs_begin_and_end_until_they_are_forbidden() {
        let (one, other) = (Counter::standalone(), Counter::standalone());
        let rows = [Row::standalone(1), Row::standalone(1)];
        let side = |here: &Counter, there: &Counter, forbids: usize| {
            let [out, inbox] = [&rows[forbids], &rows[1 - forbids]];
            AccessEpoch::new(here.clone(), there.clone(), Outbox::new(out.clone()), Inbox::new(inbox.clone()))
        };
        let (mut owner, mut peer) = (side(&one, &other, 0), side(&other, &one, 1));
        for _ in 0..3 {
            assert!(!owner.is_open());
            peer.begin();
            assert!(!peer.is_forbidden() && owner.is_open());
            peer.end();
            peer.end();
        }
        owner.forbid();
        owner.forbid();
        peer.begin();
        assert!(peer.is_forbidden() && !owner.is_forbidden());
    }
}
