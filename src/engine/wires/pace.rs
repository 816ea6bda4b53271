//! How fast a wire carries calls of one kind, and whether that is much less than usual.
//!
//! ```text
//! bytes, time at work ──► a sample per SAMPLE at work ──► near the usual rate: kept, and the usual rate is the median of what is kept
//!                                                   └───► below SLOW of it, SAMPLES_SLOW in a row over LASTS: the wire is slow
//! ```
//!
//! Invariant: a wire is judged only where its usual rate is known and steady; what it did while it was slow never becomes usual. A
//! pure function of what it is given. Absent: clocks, and where the bytes are counted.

use std::collections::VecDeque;
use std::time::Duration;

/// How long a wire is at work for a sample: the system counts that in ticks of up to ten milliseconds.
const SAMPLE: Duration = Duration::from_millis(250);
/// Samples that are kept, and how many make a usual rate.
const KEPT: usize = 48;
const KEPT_MIN: usize = 8;
/// The share of the usual rate that nearly all samples must reach for the wire to be judged.
const STEADY: f64 = 0.75;
/// Below so many bytes a second a wire carries words about what comes in, and their time is that of round trips.
const WORDS: f64 = 1e6;
/// Below this share of the usual rate a wire is slow: half of it is, with some error.
const SLOW: f64 = 0.6;
/// From this share on it has recovered.
const RECOVERED: f64 = 0.8;
/// Samples in a row that say the same, and the time that they must span.
const IN_A_ROW: usize = 3;
const LASTS: Duration = Duration::from_secs(5);

/// What has become of a wire; rates are bytes a second while it is at work.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Verdict {
    Slow {
        usual: f64,
        now: f64,
        since: Duration,
    },
    /// It was slow before, and still is.
    StillSlow {
        now: f64,
    },
    Recovered {
        now: f64,
    },
}

/// The samples of a wire in calls of one kind.
#[derive(Clone, Default, Debug)]
pub(super) struct Pace {
    bytes: u64,
    at_work: Duration,
    kept: VecDeque<f64>,
    /// The last samples that differ from what the wire is taken for, and when the first of them began.
    others: Vec<f64>,
    others_since: Duration,
    /// When the present sample began.
    since: Option<Duration>,
    /// The usual rate of a wire that is slow.
    slow: Option<f64>,
}

impl Pace {
    pub(super) fn is_slow(&self) -> bool {
        self.slow.is_some()
    }

    /// Takes what the wire has carried since the last time, and how long it was at work on it.
    pub(super) fn carried(&mut self, bytes: u64, at_work: Duration, now: Duration) -> Option<Verdict> {
        let since = *self.since.get_or_insert(now);
        self.bytes += bytes;
        self.at_work += at_work;
        if self.at_work < SAMPLE {
            return None;
        }
        let rate = self.bytes as f64 / self.at_work.as_secs_f64();
        (self.bytes, self.at_work, self.since) = (0, Duration::ZERO, None);
        if rate < WORDS { None } else { self.sample(rate, since, now) }
    }

    fn sample(&mut self, rate: f64, since: Duration, now: Duration) -> Option<Verdict> {
        let Some(usual) = self.slow.or_else(|| self.usual()) else {
            self.keep(rate);
            return None;
        };
        let is_other = if self.is_slow() { rate >= RECOVERED * usual } else { rate < SLOW * usual };
        if !is_other {
            // What was low only for a while belongs to how the wire is.
            let before = std::mem::take(&mut self.others);
            if self.is_slow() {
                return Some(Verdict::StillSlow { now: rate });
            }
            before.into_iter().for_each(|rate| self.keep(rate));
            self.keep(rate);
            return None;
        }
        if self.others.is_empty() {
            self.others_since = since;
        }
        self.others.push(rate);
        if self.others.len() < IN_A_ROW || now.saturating_sub(self.others_since) < LASTS {
            return None;
        }
        let now = median(std::mem::take(&mut self.others));
        if self.slow.take().is_some() {
            return Some(Verdict::Recovered { now });
        }
        self.slow = Some(usual);
        Some(Verdict::Slow { usual, now, since: self.others_since })
    }

    fn keep(&mut self, rate: f64) {
        if self.kept.len() == KEPT {
            self.kept.pop_front();
        }
        self.kept.push_back(rate);
    }

    /// The usual rate of a wire that is steady.
    fn usual(&self) -> Option<f64> {
        if self.kept.len() < KEPT_MIN {
            return None;
        }
        let mut sorted: Vec<f64> = self.kept.iter().copied().collect();
        sorted.sort_by(f64::total_cmp);
        let (usual, low) = (sorted[sorted.len() / 2], sorted[sorted.len() / 10]);
        (low >= STEADY * usual).then_some(usual)
    }
}

fn median(mut rates: Vec<f64>) -> f64 {
    rates.sort_by(f64::total_cmp);
    rates[rates.len() / 2]
}

#[cfg(test)]
mod tests {
    use consort_testing::Random;

    use super::*;

    const USUAL: f64 = 118e6;

    /// A wire that is driven by calls of half a second, half of which it is at work.
    struct Wire {
        pace: Pace,
        now: Duration,
        verdicts: Vec<(Duration, Verdict)>,
    }

    impl Wire {
        fn new() -> Self {
            Wire { pace: Pace::default(), now: Duration::ZERO, verdicts: Vec::new() }
        }

        /// Goes on for some seconds at these rates, in turn.
        fn runs(&mut self, seconds: u64, mut rate: impl FnMut() -> f64) -> &mut Self {
            let (end, at_work) = (self.now + Duration::from_secs(seconds), Duration::from_millis(250));
            while self.now < end {
                self.now += 2 * at_work;
                let bytes = (rate() * at_work.as_secs_f64()) as u64;
                let verdict = self.pace.carried(bytes, at_work, self.now);
                let is_new = |verdict: &Verdict| !matches!(verdict, Verdict::StillSlow { .. });
                self.verdicts.extend(verdict.filter(is_new).map(|verdict| (self.now, verdict)));
            }
            self
        }
    }

    #[test]
    fn a_wire_at_half_its_rate_is_named_within_fifteen_seconds_and_when_it_is_back() {
        let mut wire = Wire::new();
        wire.runs(60, || USUAL).runs(15, || USUAL / 2.0);
        let [(at, Verdict::Slow { usual, now, since })] = wire.verdicts[..] else {
            panic!("{:?}", wire.verdicts)
        };
        assert!(at > Duration::from_secs(64), "not for a pause: {at:?}");
        assert_eq!((usual.round(), now.round()), (USUAL, USUAL / 2.0));
        assert!(since >= Duration::from_secs(60) && since <= Duration::from_secs(61), "{since:?}");
        wire.verdicts.clear();
        wire.runs(600, || USUAL / 2.0);
        assert!(wire.verdicts.is_empty() && wire.pace.is_slow(), "it is named once and never usual");
        wire.runs(15, || USUAL);
        assert!(matches!(wire.verdicts[..], [(_, Verdict::Recovered { .. })]), "{:?}", wire.verdicts);
        assert!(!wire.pace.is_slow());
    }

    #[test]
    fn what_is_low_for_less_than_that_is_not_slow() {
        let mut wire = Wire::new();
        wire.runs(60, || USUAL);
        for _ in 0..100 {
            wire.runs(4, || USUAL / 10.0).runs(40, || USUAL);
        }
        assert!(wire.verdicts.is_empty(), "{:?}", wire.verdicts);
        // Nor is one good sample the end of a bad time.
        wire.runs(10, || USUAL / 2.0).runs(1, || USUAL).runs(60, || USUAL / 2.0);
        assert!(matches!(wire.verdicts[..], [(_, Verdict::Slow { .. })]), "{:?}", wire.verdicts);
    }

    #[test]
    fn a_wire_without_a_steady_rate_is_not_judged() {
        let (mut wire, mut at) = (Wire::new(), 0);
        wire.runs(600, || {
            at += 1;
            if at % 5 == 0 { USUAL / 3.0 } else { USUAL }
        });
        wire.runs(60, || USUAL / 3.0);
        assert!(wire.verdicts.is_empty(), "{:?}", wire.verdicts);
    }

    #[test]
    fn no_wire_is_named_in_an_hour_of_noise() {
        for seed in 0..50 {
            let (mut wire, mut dice) = (Wire::new(), Random(seed));
            // A quarter up or down, and one sample in twenty at a third.
            wire.runs(3600, || {
                let noise = dice.below(1000) as f64 / 1000.0;
                if dice.one_in(20) { USUAL / 3.0 } else { USUAL * (0.75 + noise / 2.0) }
            });
            assert!(wire.verdicts.is_empty(), "seed {seed}: {:?}", wire.verdicts);
        }
    }

    #[test]
    fn words_about_what_comes_in_are_not_judged() {
        let mut wire = Wire::new();
        wire.runs(60, || 40e3).runs(60, || 20e3);
        assert!(wire.verdicts.is_empty() && wire.pace.kept.is_empty(), "{:?}", wire.verdicts);
    }

    #[test]
    fn a_moment_at_work_is_no_sample() {
        let mut pace = Pace::default();
        for turn in 0..1_000u64 {
            let (work, now) = (Duration::from_micros(100), Duration::from_millis(turn));
            assert_eq!(pace.carried(turn, work, now), None);
        }
        assert!(pace.kept.is_empty());
    }
}
