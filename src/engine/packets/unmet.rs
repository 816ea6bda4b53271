//! Which calls go without a meeting, as those before them have met in vain.
//!
//! Ranks meet before a long call to find whether all have mapped the callers' buffers. Where programs use ordinary memory they
//! never have, and the meeting takes as long as a fifth of a call of 64 KiB. So after [`VAIN`] meetings of a shape of call in a
//! row that found none, most calls of that shape do not meet. How many go without one varies, so that a program whose buffers
//! change in a rhythm does not meet on the same ones each time.
//!
//! ```text
//!   met in vain, VAIN times in a row ──► some calls do not meet ──► one meets: in vain ──► some calls do not meet …
//!                     ▲                                                  └ all mapped ─┐
//!                     └────────────────────────────────────────────────────────────────┘
//! ```
//!
//! Invariant: the same on all ranks, as all make the same calls in the same order, one after the other, and all know how a meeting
//! ended. A place knows one shape, the last one that met there.

/// Meetings in vain before calls go without one.
const VAIN: u8 = 4;
/// The least number of calls that go without a meeting until one meets again, and how many more it may be.
const SKIPPED: u8 = 11;
const MORE: u8 = 7;

const PLACES: usize = 32;

#[derive(Default)]
pub(crate) struct Unmet {
    places: [Place; PLACES],
}

#[derive(Clone, Copy, Default)]
struct Place {
    shape: u64,
    vain: u8,
    skips: u8,
    /// Meetings in vain, modulo 256.
    turn: u8,
}

impl Unmet {
    /// Whether the next call of a shape goes without a meeting. It is asked once for each call.
    #[inline]
    pub(crate) fn skips(&mut self, shape: u64) -> bool {
        let place = &mut self.places[place(shape)];
        let skips = place.shape == shape && place.skips != 0;
        place.skips -= u8::from(skips);
        skips
    }

    /// How a meeting of a shape ended.
    pub(crate) fn met(&mut self, shape: u64, in_vain: bool) {
        let place = &mut self.places[place(shape)];
        if !in_vain || place.shape != shape {
            *place = Place { shape, turn: place.turn, ..Place::default() };
        }
        if in_vain {
            place.vain = (place.vain + 1).min(VAIN);
            place.turn = place.turn.wrapping_add(1);
            // Seven is prime, so the numbers of calls between two meetings repeat late.
            place.skips = if place.vain == VAIN { SKIPPED + place.turn.wrapping_mul(3) % MORE } else { 0 };
        }
    }
}

fn place(shape: u64) -> usize {
    (shape.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize % PLACES
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Calls of one shape that mapped buffers as `maps` says, by number; how many of those that did have met.
    fn run(unmet: &mut Unmet, calls: u32, maps: impl Fn(u32) -> bool) -> (u32, u32) {
        let (mut met, mut found) = (0, 0);
        for nth in 0..calls {
            if !unmet.skips(7) {
                met += 1;
                found += u32::from(maps(nth));
                unmet.met(7, !maps(nth));
            }
        }
        (met, found)
    }

    #[test]
    fn most_calls_go_without_a_meeting_that_was_in_vain_each_time() {
        let (met, _) = run(&mut Unmet::default(), 1600, |_| false);
        assert!((90..130).contains(&met), "{met}");
    }

    #[test]
    fn buffers_that_are_mapped_are_found_within_a_few_calls_and_meet_from_then_on() {
        let mut unmet = Unmet::default();
        run(&mut unmet, 100, |_| false);
        let (met, found) = run(&mut unmet, 100, |_| true);
        assert_eq!(met, found);
        assert!(found > 100 - u32::from(SKIPPED + MORE), "{found}");
    }

    #[test]
    fn buffers_that_change_in_a_rhythm_are_found() {
        for mapped in [4, 8, 12] {
            let (_, found) = run(&mut Unmet::default(), 16_000, |nth| nth % 16 < mapped);
            assert!(found > 400, "{mapped} of 16: {found}");
        }
    }

    #[test]
    fn shapes_that_share_a_place_do_not_act_for_each_other() {
        let other = (8..).find(|shape| place(*shape) == place(7)).expect("there are few places");
        let mut unmet = Unmet::default();
        run(&mut unmet, 10, |_| false);
        assert!(!unmet.skips(other) && unmet.skips(7));
    }
}
