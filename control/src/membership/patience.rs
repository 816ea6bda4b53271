//! How long the making of links goes on.
//!
//! Invariant: once it was called off nothing is left of it, and a thread that waits a [turn](Patience::turn) at a time
//! learns of that no later than `LATENCY`. Absent: who waits for what.

use std::time::{Duration, Instant};

use consort_memory::sync::{AtomicBool, Ordering};

/// How long a wait goes on after it was called off.
const LATENCY: Duration = Duration::from_millis(20);

/// Until when to wait, and what may call it off before.
#[derive(Clone, Copy)]
pub struct Patience<'a> {
    deadline: Instant,
    cancelled: Option<&'a AtomicBool>,
}

impl<'a> Patience<'a> {
    pub fn until(deadline: Instant, cancelled: Option<&'a AtomicBool>) -> Self {
        Patience { deadline, cancelled }
    }

    /// The same, but no longer than until `deadline`.
    pub fn by(self, deadline: Instant) -> Self {
        Patience { deadline: self.deadline.min(deadline), ..self }
    }

    /// Whether it was called off.
    pub fn is_cancelled(&self) -> bool {
        // Relaxed: says nothing but itself.
        self.cancelled.is_some_and(|cancelled| cancelled.load(Ordering::Relaxed))
    }

    /// What is left of it; zero once it was called off.
    pub fn left(&self) -> Duration {
        if self.is_cancelled() {
            return Duration::ZERO;
        }
        self.deadline.saturating_duration_since(Instant::now())
    }

    /// For how long to wait before one asks again what is left.
    pub fn turn(&self) -> Duration {
        let left = self.left();
        if self.cancelled.is_some() { left.min(LATENCY) } else { left }
    }
}

impl From<Instant> for Patience<'_> {
    fn from(deadline: Instant) -> Self {
        Patience { deadline, cancelled: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Longer than any test takes.
    const LONG: Duration = Duration::from_secs(3600);

    #[test]
    fn without_a_flag_it_lasts_until_the_deadline() {
        let deadline = Instant::now() + LONG;
        for patience in [Patience::until(deadline, None), Patience::from(deadline)] {
            assert!(!patience.is_cancelled());
            let (left, turn) = (patience.left(), patience.turn());
            assert!(left <= LONG && left > LONG / 2, "{left:?}");
            // Nothing may call it off: one turn is all there is.
            assert!(turn <= left && turn > LONG / 2, "{turn:?}");
        }
    }

    #[test]
    fn with_a_flag_it_is_asked_again_soon() {
        let flag = AtomicBool::new(false);
        let patience = Patience::until(Instant::now() + LONG, Some(&flag));
        assert!(!patience.is_cancelled());
        assert!(patience.left() > LONG / 2);
        assert_eq!(patience.turn(), LATENCY);
    }

    #[test]
    fn nothing_is_left_once_it_was_called_off() {
        let flag = AtomicBool::new(false);
        let patience = Patience::until(Instant::now() + LONG, Some(&flag));
        let copy = patience;
        flag.store(true, Ordering::Relaxed);
        for patience in [patience, copy] {
            assert!(patience.is_cancelled());
            assert_eq!((patience.left(), patience.turn()), (Duration::ZERO, Duration::ZERO));
        }
    }

    #[test]
    fn a_turn_is_no_longer_than_what_is_left() {
        let flag = AtomicBool::new(false);
        let deadline = Instant::now() + LATENCY / 2;
        let patience = Patience::until(deadline, Some(&flag));
        assert!(patience.turn() <= LATENCY / 2);
    }

    #[test]
    fn a_deadline_that_is_past_leaves_nothing_and_calls_nothing_off() {
        let flag = AtomicBool::new(false);
        let now = Instant::now();
        for patience in [Patience::from(now), Patience::until(now, Some(&flag))] {
            assert_eq!((patience.left(), patience.turn()), (Duration::ZERO, Duration::ZERO));
            assert!(!patience.is_cancelled());
        }
    }
}
