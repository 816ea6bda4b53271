//! Which calls go without a meeting, as those before them have met in vain.
//!
//! Ranks meet before a long call to find whether all have mapped the callers' buffers. Where programs use ordinary memory they
//! never have, and the meeting takes as long as a fifth of a call of 64 KiB. So after [`VAIN`] meetings of a shape of call in a
//! row that found none, most calls of that shape do not meet.
//!
//! ```text
//!   met in vain, VAIN times in a row ──► SKIPPED calls do not meet ──► one meets: in vain ──► SKIPPED calls do not meet …
//!                     ▲                                                  └ all mapped ─┐
//!                     └────────────────────────────────────────────────────────────────┘
//! ```
//!
//! Invariant: the same on all ranks, as all make the same calls in the same order, one after the other, and all know how a meeting
//! ended. Shapes that share a place are the same ones everywhere.

/// Meetings in vain before calls go without one.
const VAIN: u8 = 4;
/// Calls that go without a meeting until one meets again.
const SKIPPED: u8 = 15;

const PLACES: usize = 32;

#[derive(Default)]
pub(crate) struct Unmet {
    places: [Place; PLACES],
}

#[derive(Clone, Copy, Default)]
struct Place {
    vain: u8,
    skips: u8,
}

impl Unmet {
    /// Whether the next call of a shape goes without a meeting. It is asked once for each call.
    #[inline]
    pub(crate) fn skips(&mut self, shape: u64) -> bool {
        let place = &mut self.places[place(shape)];
        let skips = place.skips != 0;
        place.skips -= u8::from(skips);
        skips
    }

    /// How a meeting of a shape ended.
    pub(crate) fn met(&mut self, shape: u64, in_vain: bool) {
        let place = &mut self.places[place(shape)];
        place.vain = if in_vain { (place.vain + 1).min(VAIN) } else { 0 };
        place.skips = if place.vain == VAIN { SKIPPED } else { 0 };
    }
}

fn place(shape: u64) -> usize {
    (shape.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize % PLACES
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn most_calls_go_without_a_meeting_that_was_in_vain_each_time() {
        let mut unmet = Unmet::default();
        let mut met = 0;
        for _ in 0..160 {
            if !unmet.skips(7) {
                met += 1;
                unmet.met(7, true);
            }
        }
        assert_eq!(met, i32::from(VAIN) - 1 + 10);
    }

    #[test]
    fn buffers_that_are_mapped_are_found_within_a_few_calls_and_meet_from_then_on() {
        let mut unmet = Unmet::default();
        for _ in 0..100 {
            if !unmet.skips(7) {
                unmet.met(7, true);
            }
        }
        let found = (0..).find(|_| !unmet.skips(7)).expect("one meets");
        assert!(found <= SKIPPED, "{found}");
        for _ in 0..100 {
            unmet.met(7, false);
            assert!(!unmet.skips(7));
        }
    }
}
