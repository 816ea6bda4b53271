//! How long whoever joins waits for the other ranks: until a time, or until somebody gives the join up.
//!
//! Invariant: who waits in slices of [`Patience::slice`] notices within one that it was given up. Absent: waiting.

use std::time::{Duration, Instant};

use consort_memory::sync::{AtomicBool, Ordering};

use crate::Rank;
use crate::error::Error;

/// The longest that may pass until it is noticed that a join was given up.
const SLICE: Duration = Duration::from_millis(20);

/// Until when to wait.
#[derive(Clone, Copy)]
pub(crate) struct Patience<'a> {
    pub(crate) deadline: Instant,
    /// Set when the join is given up.
    pub(crate) cancelled: Option<&'a AtomicBool>,
}

impl Patience<'_> {
    /// Until this time, whatever happens.
    #[cfg(test)]
    pub(crate) fn until(deadline: Instant) -> Self {
        Patience { deadline, cancelled: None }
    }

    /// Whether the join was given up.
    pub(crate) fn is_cancelled(&self) -> bool {
        // Relaxed: says nothing but itself.
        self.cancelled.is_some_and(|cancelled| cancelled.load(Ordering::Relaxed))
    }

    /// How long is left; nothing once the join was given up.
    pub(crate) fn left(&self) -> Duration {
        if self.is_cancelled() {
            Duration::ZERO
        } else {
            self.deadline.saturating_duration_since(Instant::now())
        }
    }

    /// How long to wait before asking again.
    pub(crate) fn slice(&self) -> Duration {
        self.left().min(SLICE)
    }
}

/// What whoever joined as `rank` is told when the join was given up.
pub(crate) fn given_up(rank: Rank) -> Error {
    Error::Join {
        rank,
        cause: "its communicator was aborted while it was being made".into(),
        hint: "all ranks that wait for it must give up too".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_left_once_given_up() {
        let cancelled = AtomicBool::new(false);
        let deadline = Instant::now() + Duration::from_secs(60);
        let patience = Patience { deadline, cancelled: Some(&cancelled) };
        assert!(patience.left() > Duration::from_secs(50) && patience.slice() == SLICE);
        cancelled.store(true, Ordering::Relaxed);
        assert!(patience.is_cancelled() && patience.left().is_zero() && patience.slice().is_zero());
        assert!(Patience::until(Instant::now()).left().is_zero());
    }
}
