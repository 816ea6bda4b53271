//! How far this rank's clock is from that of the job's rank 0.
//!
//! Invariant: an offset is known to half the round trip of the question that found it, and the best of several
//! questions is taken. Between the reading at joining and the one at closing it is a straight line, beyond them
//! it stays. Ranks of one host share a clock: when a reading does not contradict that, the offset is exactly 0.

use std::time::{Duration, Instant};

use crate::clock::{Reading, Sample};
use crate::membership::member::{Distance, Member, NO_COMMUNICATOR};
use crate::membership::wire::Message;

/// Questions at a time, at most.
const QUESTIONS: usize = 8;
/// Between two looks for the answer.
const PAUSE: Duration = Duration::from_micros(20);

/// From this rank's clock to that of rank 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Alignment {
    /// Both are one.
    Same,
    /// The other one is ahead by what was read first and last; often once.
    Apart(Reading, Reading),
    /// Rank 0 never answered.
    Unknown,
}

impl Alignment {
    /// From what was read at joining and at closing, on one host or on two.
    pub fn of(first: Option<Reading>, last: Option<Reading>, one_host: bool) -> Self {
        let all_equal = [first, last].iter().flatten().all(Reading::may_be_equal);
        match (first.or(last), last.or(first)) {
            _ if one_host && all_equal => Alignment::Same,
            (Some(first), Some(last)) => Alignment::Apart(first, last),
            _ => Alignment::Unknown,
        }
    }

    /// A time of this rank's clock by rank 0's.
    pub fn align(&self, at: u64) -> u64 {
        let Alignment::Apart(first, last) = self else { return at };
        let clamped = at.clamp(first.at, last.at.max(first.at));
        let span = i128::from(last.at.saturating_sub(first.at)).max(1);
        let change = i128::from(last.offset) - i128::from(first.offset);
        let offset = i128::from(first.offset) + change * i128::from(clamped - first.at) / span;
        (i128::from(at) + offset).clamp(0, i128::from(u64::MAX)) as u64
    }

    /// (Offset, how sure it is) at the end, in nanoseconds; none if it is not known.
    pub fn last(&self) -> Option<(i64, u64)> {
        match self {
            Alignment::Same => Some((0, 0)),
            Alignment::Apart(_, last) => Some((last.offset, last.bound)),
            Alignment::Unknown => None,
        }
    }
}

/// Whether this rank and rank 0 of the job run on one machine, and so by one clock, by what it says of itself.
pub fn on_one_host(member: &Member) -> bool {
    let (first, own) = (&member.table[0], &member.table[member.rank as usize]);
    member.distance(0) == Distance::Process || first.machine == own.machine
}

/// Asks rank 0 of the job what its clock says. Waits for `patience` at most; within one process no question is asked.
pub fn read(member: &Member, patience: Duration) -> Option<Reading> {
    let until = Instant::now() + patience;
    let mut samples = Vec::new();
    if member.distance(0) == Distance::Process {
        return None;
    }
    let is_gone = || member.is_lost(0) || member.refusal(0).is_some();
    while samples.len() < QUESTIONS && Instant::now() < until && !is_gone() {
        let (token, asked) = (member.next_token(), member.clock.monotonic_ns());
        member.send(0, NO_COMMUNICATOR, Message::Query { token });
        while !member.has_answered(0, token) && Instant::now() < until && !is_gone() {
            std::thread::sleep(PAUSE);
        }
        // Another question that was answered since says nothing about this one's round trip.
        if let Some((_, answered, arrived)) = member.heard_clock(0).filter(|(heard, ..)| *heard == token) {
            samples.push(Sample { asked, answered, arrived });
        }
    }
    Reading::best(&samples)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A number below `most` from a sequence.
    fn random(state: &mut u64, most: u64) -> u64 {
        *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (*state >> 33) % most
    }

    /// Rank 0's clock when this rank's says `at`: `ahead` at 0, and then `ppm` parts in a million faster.
    fn truth(at: u64, ahead: i64, ppm: i64) -> u64 {
        (i128::from(at) + i128::from(ahead) + i128::from(at) * i128::from(ppm) / 1_000_000) as u64
    }

    fn questions(state: &mut u64, start: u64, ahead: i64, ppm: i64) -> Vec<Sample> {
        let one = |question: u64| {
            let asked = start + question * 1_000_000;
            // Every now and then a way takes much longer than the other.
            let mut way = || {
                20_000 + if random(state, 3) == 0 { random(state, 3_000_000) } else { random(state, 5_000) }
            };
            let (there, back) = (way(), way());
            Sample { asked, answered: truth(asked + there, ahead, ppm), arrived: asked + there + back }
        };
        (0..8).map(one).collect()
    }

    #[test]
    fn an_offset_is_found_within_its_bound_through_jitter_and_drift() {
        let mut state = 1;
        for (ahead, ppm) in [(0, 0), (5_000_000_000, 30), (-77_000_000, -50), (1 << 50, 3)] {
            for _ in 0..50 {
                let origin = 1_000_000_000_000;
                let first = Reading::best(&questions(&mut state, origin, ahead, ppm)).expect("samples");
                let hour = 3_600_000_000_000;
                let last = Reading::best(&questions(&mut state, origin + hour, ahead, ppm)).expect("samples");
                let alignment = Alignment::of(Some(first), Some(last), false);
                let bound = first.bound.max(last.bound) + 2;
                for part in 0..=10 {
                    let at = first.at + (last.at - first.at) * part / 10;
                    let error = alignment.align(at).abs_diff(truth(at, ahead, ppm));
                    assert!(error <= bound, "{ahead} {ppm} at {part}: {error} ns, bound {bound} ns");
                }
                assert!(bound < 2_000_000, "the best of eight is better than {bound} ns");
            }
        }
    }

    #[test]
    fn the_shortest_round_trip_is_taken() {
        let slow = Sample { asked: 100, answered: 9_000, arrived: 1_100 };
        let fast = Sample { asked: 2_000, answered: 7_015, arrived: 2_021 };
        let reading = Reading::best(&[slow, fast]).expect("samples");
        assert_eq!(reading, Reading { at: 2_010, offset: 5_005, bound: 11 });
        assert_eq!(Reading::best(&[Sample { asked: 5, answered: 5, arrived: 4 }]), None);
    }

    #[test]
    fn one_host_has_one_clock_unless_a_reading_says_otherwise() {
        let near = Reading { at: 10_000, offset: -40, bound: 50 };
        let far = Reading { at: 20_000, offset: 60, bound: 50 };
        assert_eq!(Alignment::of(Some(near), None, true), Alignment::Same);
        assert_eq!(Alignment::of(None, None, true), Alignment::Same);
        assert_eq!(Alignment::of(Some(near), None, false).align(777), 737);
        assert_eq!(Alignment::of(None, None, false), Alignment::Unknown);
        // A container with a clock of its own on the same host.
        let apart = Alignment::of(Some(near), Some(far), true);
        assert_eq!(apart, Alignment::Apart(near, far));
        assert_eq!(
            [0, 10_000, 15_000, 20_000, 30_000].map(|at| apart.align(at)),
            [0, 9_960, 15_010, 20_060, 30_060]
        );
        assert_eq!(apart.last(), Some((60, 50)));
    }
}
