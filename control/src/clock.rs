//! Where a job's time comes from: the system, or a simulation's virtual time.
//!
//! Invariant: whatever decides by time asks a [`Clock`]; the hot path only ever asks for [`Clock::ticks`].

use std::sync::Arc;
use std::time::{Duration, Instant};

/// Virtual time: the present, in nanoseconds since the beginning.
pub type Simulated = Arc<dyn Fn() -> u64 + Send + Sync>;

/// The system's clock, or a simulated one.
#[derive(Clone, Default)]
pub struct Clock {
    simulated: Option<(Instant, Simulated)>,
}

impl Clock {
    /// A clock whose time a simulation gives.
    #[cfg(any(test, feature = "testing"))]
    pub fn simulated(nanoseconds: Simulated) -> Self {
        Clock { simulated: Some((Instant::now(), nanoseconds)) }
    }

    pub fn now(&self) -> Instant {
        match &self.simulated {
            None => Instant::now(),
            Some((start, nanoseconds)) => *start + Duration::from_nanos(nanoseconds()),
        }
    }

    /// The present as the host's ranks all count it, in nanoseconds; other hosts' begin elsewhere.
    pub fn monotonic_ns(&self) -> u64 {
        match &self.simulated {
            None => {
                let now = nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC);
                now.map_or(0, |now| Duration::from(now).as_nanos() as u64)
            }
            Some((_, nanoseconds)) => nanoseconds(),
        }
    }

    /// The present in a unit of its own, for a few nanoseconds.
    #[inline(always)]
    pub fn ticks(&self) -> u64 {
        match &self.simulated {
            None => consort_memory::ticks(),
            Some((_, nanoseconds)) => nanoseconds(),
        }
    }

    /// How long `ticks` of [`Clock::ticks`] are.
    pub fn duration(&self, ticks: u64) -> Duration {
        match &self.simulated {
            None => consort_memory::duration(ticks),
            Some(_) => Duration::from_nanos(ticks),
        }
    }

    /// How long ago a reading of [`Clock::ticks`] was.
    pub fn age(&self, ticks: u64) -> Duration {
        self.duration(self.ticks().saturating_sub(ticks))
    }
}

impl std::fmt::Debug for Clock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.simulated.is_some() { "simulated" } else { "system" })
    }
}

/// One question to rank 0. Nanoseconds; the first and the last by this rank's clock, `answered` by rank 0's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sample {
    pub asked: u64,
    pub answered: u64,
    pub arrived: u64,
}

/// How far the clock of rank 0 was ahead at a time, and how sure that is. Nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reading {
    /// By this rank's clock.
    pub at: u64,
    pub offset: i64,
    pub bound: u64,
}

impl Reading {
    /// From the question with the shortest round trip.
    pub fn best(samples: &[Sample]) -> Option<Self> {
        let sound = samples.iter().filter(|sample| sample.arrived >= sample.asked);
        let best = sound.min_by_key(|sample| sample.arrived - sample.asked)?;
        let at = best.asked.midpoint(best.arrived);
        Some(Reading {
            at,
            offset: best.answered.wrapping_sub(at).cast_signed(),
            bound: (best.arrived - best.asked).div_ceil(2),
        })
    }

    /// Whether both clocks may be one.
    pub fn may_be_equal(&self) -> bool {
        self.offset.unsigned_abs() <= self.bound
    }
}
