//! Who may write to whose memory: a visitor says when it comes and when it goes, and a host that wants its memory back
//! forbids to come and waits until nobody is there.
//!
//! Invariant: when a host has forbidden and then seen that a visitor is not there, that visitor writes nothing to it any
//! more. Both write first, fence, and look: in every order at least one of them sees the other. Absent: what is written,
//! and what a host does that cannot wait.

use crate::sync::{Ordering, fence};
use crate::{Arrival, Counter, Inbox, Outbox};

/// One side of a pair, of which each may write to the other's memory.
#[derive(Debug)]
pub struct Visits {
    /// Raised by the peer: odd while it is here.
    here: Counter,
    /// Raised by this side when it comes to the peer and when it goes.
    there: Counter,
    count: u64,
    forbids: Outbox,
    forbidden: Inbox,
}

/// Between what a side writes and what it looks at then: to be passed once for all peers.
pub fn pass() {
    // SeqCst: with the other side's, orders the stores before it before the loads after it.
    fence(Ordering::SeqCst);
}

impl Visits {
    /// Over counters of which the peer raises `here`, and a slot on each side that is used for nothing else.
    pub fn new(here: Counter, there: Counter, forbids: Outbox, forbidden: Inbox) -> Self {
        Self { here, there, count: 0, forbids, forbidden }
    }

    /// This side comes. Then [`pass`], and it may write if it is not [forbidden](Visits::is_forbidden).
    pub fn come(&mut self) {
        if self.count.is_multiple_of(2) {
            self.step();
        }
    }

    /// Whether the peer has forbidden to come.
    pub fn is_forbidden(&self) -> bool {
        self.forbidden.look(0) != Arrival::None
    }

    /// This side has gone, if it was there.
    pub fn leave(&mut self) {
        if !self.count.is_multiple_of(2) {
            self.step();
        }
    }

    fn step(&mut self) {
        self.count += 1;
        // A Release: what was written there is there when it is seen.
        self.there.raise(self.count, 0);
    }

    /// From now on the peer may not come. Then [`pass`], and it is not [here](Visits::is_visited) or has seen it.
    pub fn forbid(&mut self) {
        if self.forbids.sent() == 0 {
            self.forbids.send(1, 0);
        }
    }

    /// Whether the peer is here, or has not said that it has gone.
    pub fn is_visited(&self) -> bool {
        !self.here.value().is_multiple_of(2)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::Row;

    #[test]
    fn visitors_come_and_go_until_they_are_forbidden() {
        let (one, other) = (Counter::standalone(), Counter::standalone());
        let rows = [Row::standalone(1), Row::standalone(1)];
        let side = |here: &Counter, there: &Counter, forbids: usize| {
            let [out, inbox] = [&rows[forbids], &rows[1 - forbids]];
            Visits::new(here.clone(), there.clone(), Outbox::new(out.clone()), Inbox::new(inbox.clone()))
        };
        let (mut host, mut visitor) = (side(&one, &other, 0), side(&other, &one, 1));
        for _ in 0..3 {
            assert!(!host.is_visited());
            visitor.come();
            assert!(!visitor.is_forbidden() && host.is_visited());
            visitor.leave();
            visitor.leave();
        }
        host.forbid();
        host.forbid();
        visitor.come();
        assert!(visitor.is_forbidden() && !host.is_forbidden());
    }
}
