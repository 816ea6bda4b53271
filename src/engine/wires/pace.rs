//! How fast a wire carries calls of one kind, and whether that is much less than usual.
//!
//! ```text
//! bytes, time at work ──► a sample per SAMPLE at work ──► near the usual rate: kept; the usual rate is their median
//!                                                   └───► below SLOW of it, IN_A_ROW over LASTS: the wire is slow
//! ```
//!
//! Invariant: a wire is judged only where its usual rate is known and steady; what it did while it was slow never becomes usual. A
//! pure function of what it is given. Absent: clocks, and where the bytes are counted.

use std::collections::VecDeque;
use std::time::Duration;

/// How long a wire is at work for a sample: the system counts that in ticks of up to ten milliseconds.
const SAMPLE: Duration = Duration::from_millis(250);
/// Samples that are kept, how many make a usual rate, and the time that they must span: ranks may be out of step at first. As many as
/// are kept span more.
const KEPT: usize = 96;
const KEPT_MIN: usize = 8;
const KEPT_SPAN: Duration = Duration::from_secs(20);
/// The share of the usual rate that nearly all samples must reach for the wire to be judged.
const STEADY: f64 = 0.75;
/// Below this rate, in bytes a second, a wire carries words about what comes in, and their time is that of round trips: no usual rate.
const WORDS: f64 = 1e6;
/// Below this share of the usual rate a wire is slow: half of it is, with some error.
const SLOW: f64 = 0.6;
/// From this share on it has recovered.
const RECOVERED: f64 = 0.8;
/// By how much round trips are longer where a wire is slow that carries all that the peer's system has offered.
const QUEUED: f64 = 1.3;
/// Samples in a row that say the same, and the time between the first and the last of them.
const IN_A_ROW: usize = 3;
const LASTS: Duration = Duration::from_secs(5);
/// What was begun before a pause of this length is not gone on with.
const PAUSE: Duration = Duration::from_secs(30);

/// What has become of a wire; rates are bytes a second while it is at work.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Verdict {
    /// Since then, on the clock of who asks.
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

/// What a wire has carried.
#[derive(Clone, Copy, Default, PartialEq, Debug)]
pub(super) struct Load {
    pub(super) bytes: u64,
    pub(super) at_work: Duration,
    pub(super) round_trip: Duration,
}

/// A sample.
#[derive(Clone, Copy, Debug)]
struct Sample {
    /// Bytes a second.
    rate: f64,
    /// Seconds.
    round_trip: f64,
    at: Duration,
}

/// The samples of a wire in calls of one kind.
#[derive(Clone, Default, Debug)]
pub(super) struct Pace {
    /// Whether the peer's system had no room most of the time. If it is the wire that is slow, round trips are longer: what is on its way
    /// waits before it. If it is the peer that does not read, they are not.
    is_held_up: bool,
    load: Load,
    met: Duration,
    kept: VecDeque<Sample>,
    /// The last samples that differ from what the wire is taken for.
    others: Vec<Sample>,
    /// The usual rate of a wire that is slow.
    slow: Option<f64>,
}

impl Pace {
    pub(super) fn new(is_held_up: bool) -> Self {
        Pace { is_held_up, ..Pace::default() }
    }

    pub(super) fn is_slow(&self) -> bool {
        self.slow.is_some()
    }

    /// Whether it has a usual rate.
    pub(super) fn is_known(&self) -> bool {
        self.is_slow() || self.usual().is_some()
    }

    /// Whether anything is known of it.
    pub(super) fn is_fresh(&self) -> bool {
        self.kept.is_empty()
    }

    /// Whether the wire is slow is not known any more; its usual rate is.
    pub(super) fn forget(&mut self) {
        self.slow = None;
        self.others.clear();
    }

    /// Takes what the wire has carried since the last time.
    pub(super) fn carried(&mut self, load: Load, now: Duration) -> Option<Verdict> {
        if now.saturating_sub(std::mem::replace(&mut self.met, now)) >= PAUSE {
            self.load = Load::default();
            self.others.clear();
        }
        self.load.bytes += load.bytes;
        self.load.at_work += load.at_work;
        self.load.round_trip = load.round_trip;
        if self.load.at_work < SAMPLE {
            return None;
        }
        let Load { bytes, at_work, round_trip } = std::mem::take(&mut self.load);
        let rate = bytes as f64 / at_work.as_secs_f64();
        self.sample(Sample { rate, round_trip: round_trip.as_secs_f64(), at: now })
    }

    fn sample(&mut self, sample: Sample) -> Option<Verdict> {
        let (rate, usual) = (sample.rate, self.usual());
        let Some(standard) = self.slow.or(usual) else {
            self.keep(sample);
            return None;
        };
        let is_queued = || !self.is_held_up || sample.round_trip >= QUEUED * self.usual_round_trip();
        let is_other =
            if self.is_slow() { rate >= RECOVERED * standard } else { rate < SLOW * standard && is_queued() };
        if !is_other {
            // What was low only for a while belongs to how the wire is.
            let before = std::mem::take(&mut self.others);
            if self.is_slow() {
                return Some(Verdict::StillSlow { now: rate });
            }
            before.into_iter().for_each(|before| self.keep(before));
            self.keep(sample);
            return None;
        }
        self.others.push(sample);
        let since = self.others[0].at;
        if self.others.len() < IN_A_ROW || sample.at.saturating_sub(since) < LASTS {
            return None;
        }
        let now = median(std::mem::take(&mut self.others).iter().map(|other| other.rate));
        if self.slow.take().is_some() {
            return Some(Verdict::Recovered { now });
        }
        self.slow = Some(standard);
        Some(Verdict::Slow { usual: standard, now, since })
    }

    fn keep(&mut self, sample: Sample) {
        if sample.rate < WORDS {
            return;
        }
        if self.kept.len() == KEPT {
            self.kept.pop_front();
        }
        self.kept.push_back(sample);
    }

    /// The usual rate of a wire that is steady.
    fn usual(&self) -> Option<f64> {
        let (first, last) = (self.kept.front()?, self.kept.back()?);
        if self.kept.len() < KEPT_MIN || last.at.saturating_sub(first.at) < KEPT_SPAN {
            return None;
        }
        let mut sorted: Vec<f64> = self.kept.iter().map(|sample| sample.rate).collect();
        sorted.sort_by(f64::total_cmp);
        let (usual, low) = (sorted[sorted.len() / 2], sorted[sorted.len() / 10]);
        (low >= STEADY * usual).then_some(usual)
    }

    fn usual_round_trip(&self) -> f64 {
        median(self.kept.iter().map(|sample| sample.round_trip))
    }
}

/// The middle of some numbers; 0 of none.
fn median(numbers: impl Iterator<Item = f64>) -> f64 {
    let mut numbers: Vec<f64> = numbers.collect();
    numbers.sort_by(f64::total_cmp);
    numbers.get(numbers.len() / 2).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use consort_testing::Random;

    use super::*;

    const USUAL: f64 = 118e6;

    const ROUND_TRIP: Duration = Duration::from_micros(200);

    /// A wire that is driven by calls of half a second, and at work for half of that.
    struct Wire {
        pace: Pace,
        round_trip: Duration,
        now: Duration,
        verdicts: Vec<(Duration, Verdict)>,
    }

    impl Wire {
        fn new() -> Self {
            Self::held_up(false)
        }

        fn held_up(is_held_up: bool) -> Self {
            let pace = Pace::new(is_held_up);
            Wire { pace, round_trip: ROUND_TRIP, now: Duration::ZERO, verdicts: Vec::new() }
        }

        /// Goes on for some seconds at these rates, in turn.
        fn runs(&mut self, seconds: u64, mut rate: impl FnMut() -> f64) -> &mut Self {
            let (end, at_work) = (self.now + Duration::from_secs(seconds), Duration::from_millis(250));
            while self.now < end {
                self.now += 2 * at_work;
                let bytes = (rate() * at_work.as_secs_f64()) as u64;
                let load = Load { bytes, at_work, round_trip: self.round_trip };
                let verdict = self.pace.carried(load, self.now);
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
            let load = Load { bytes: turn, at_work: Duration::from_micros(100), round_trip: ROUND_TRIP };
            assert_eq!(pace.carried(load, Duration::from_millis(turn)), None);
        }
        assert!(pace.kept.is_empty());
    }

    #[test]
    fn a_wire_that_nearly_stops_is_slow_too() {
        let mut wire = Wire::new();
        wire.runs(60, || USUAL).runs(15, || USUAL / 1000.0);
        assert!(matches!(wire.verdicts[..], [(_, Verdict::Slow { .. })]), "{:?}", wire.verdicts);
    }

    #[test]
    fn what_was_begun_before_a_pause_is_not_gone_on_with() {
        let mut wire = Wire::new();
        wire.runs(60, || USUAL);
        for _ in 0..10 {
            wire.runs(1, || USUAL / 3.0);
            wire.now += 2 * PAUSE;
        }
        assert!(wire.verdicts.is_empty(), "{:?}", wire.verdicts);
        // Its usual rate is still known.
        wire.runs(15, || USUAL / 3.0);
        assert!(matches!(wire.verdicts[..], [(_, Verdict::Slow { .. })]), "{:?}", wire.verdicts);
    }

    #[test]
    fn a_verdict_that_is_forgotten_leaves_the_usual_rate() {
        let mut wire = Wire::new();
        wire.runs(60, || USUAL).runs(15, || USUAL / 2.0);
        wire.pace.forget();
        assert!(!wire.pace.is_slow());
        wire.verdicts.clear();
        wire.runs(15, || USUAL / 2.0);
        assert!(matches!(wire.verdicts[..], [(_, Verdict::Slow { .. })]), "{:?}", wire.verdicts);
    }

    #[test]
    fn a_usual_rate_takes_its_time() {
        let mut wire = Wire::new();
        wire.runs(10, || USUAL).runs(60, || USUAL / 3.0);
        assert!(wire.verdicts.is_empty(), "ranks were out of step at first: {:?}", wire.verdicts);
    }

    #[test]
    fn of_a_wire_with_all_that_the_peer_offers_on_its_way_round_trips_say_whether_it_is_the_wire() {
        // The peer does not read.
        let mut wire = Wire::held_up(true);
        wire.runs(60, || USUAL).runs(60, || USUAL / 3.0);
        assert!(wire.verdicts.is_empty(), "{:?}", wire.verdicts);
        let mut wire = Wire::held_up(true);
        wire.runs(60, || USUAL);
        wire.round_trip = 2 * ROUND_TRIP;
        wire.runs(15, || USUAL / 2.0);
        assert!(matches!(wire.verdicts[..], [(_, Verdict::Slow { .. })]), "{:?}", wire.verdicts);
    }
}
