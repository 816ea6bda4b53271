//! Where a job's time comes from: the system, or a simulation's virtual time.
//!
//! Invariant: whatever decides by time asks a [`Clock`]; the hot path only ever asks for [`Clock::ticks`].

use std::sync::Arc;
use std::time::{Duration, Instant};

/// Virtual time: the present, in nanoseconds since the beginning.
pub(crate) type Simulated = Arc<dyn Fn() -> u64 + Send + Sync>;

/// The system's clock, or a simulated one.
#[derive(Clone, Default)]
pub(crate) struct Clock {
    simulated: Option<(Instant, Simulated)>,
}

impl Clock {
    /// A clock whose time a simulation gives.
    #[cfg(test)]
    pub(crate) fn simulated(nanoseconds: Simulated) -> Self {
        Clock { simulated: Some((Instant::now(), nanoseconds)) }
    }

    pub(crate) fn now(&self) -> Instant {
        match &self.simulated {
            None => Instant::now(),
            Some((start, nanoseconds)) => *start + Duration::from_nanos(nanoseconds()),
        }
    }

    /// The present as the host's ranks all count it, in nanoseconds; other hosts' begin elsewhere.
    pub(crate) fn monotonic_ns(&self) -> u64 {
        match &self.simulated {
            None => {
                let now = nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC);
                now.map_or(0, |now| Duration::from(now).as_nanos() as u64)
            }
            Some((_, nanoseconds)) => nanoseconds(),
        }
    }

    /// The present in a unit of its own, for a few nanoseconds.
    #[inline]
    pub(crate) fn ticks(&self) -> u64 {
        match &self.simulated {
            None => consort_memory::ticks(),
            Some((_, nanoseconds)) => nanoseconds(),
        }
    }

    /// How long `ticks` of [`Clock::ticks`] are.
    pub(crate) fn duration(&self, ticks: u64) -> Duration {
        match &self.simulated {
            None => consort_memory::duration(ticks),
            Some(_) => Duration::from_nanos(ticks),
        }
    }

    /// How long ago a reading of [`Clock::ticks`] was.
    pub(crate) fn age(&self, ticks: u64) -> Duration {
        self.duration(self.ticks().saturating_sub(ticks))
    }
}

impl std::fmt::Debug for Clock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.simulated.is_some() { "simulated" } else { "system" })
    }
}
