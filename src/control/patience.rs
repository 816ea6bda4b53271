//! How long somebody who makes links goes on.

use std::time::{Duration, Instant};

use consort_memory::sync::{AtomicBool, Ordering};

/// How long a wait goes on after it was called off.
const LATENCY: Duration = Duration::from_millis(20);

/// Until when to wait, and what may call it off before.
#[derive(Clone, Copy)]
pub(crate) struct Patience<'a> {
    deadline: Instant,
    cancelled: Option<&'a AtomicBool>,
}

impl<'a> Patience<'a> {
    pub(crate) fn until(deadline: Instant, cancelled: Option<&'a AtomicBool>) -> Self {
        Patience { deadline, cancelled }
    }

    /// Whether it was called off.
    pub(crate) fn is_cancelled(&self) -> bool {
        // Relaxed: says nothing but itself.
        self.cancelled.is_some_and(|cancelled| cancelled.load(Ordering::Relaxed))
    }

    /// What is left of it; zero once it was called off.
    pub(crate) fn left(&self) -> Duration {
        if self.is_cancelled() {
            return Duration::ZERO;
        }
        self.deadline.saturating_duration_since(Instant::now())
    }

    /// For how long to wait before one asks again what is left.
    pub(crate) fn turn(&self) -> Duration {
        let left = self.left();
        if self.cancelled.is_some() { left.min(LATENCY) } else { left }
    }
}

impl From<Instant> for Patience<'_> {
    fn from(deadline: Instant) -> Self {
        Patience { deadline, cancelled: None }
    }
}
