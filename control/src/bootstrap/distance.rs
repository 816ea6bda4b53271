//! How far a rank is from the meeting point.
//!
//! Invariant: one of few values, whatever a peer sends, and the same on all ranks once the table is there. Absent: measuring (see
//! `stream`), and what follows from it.

use std::time::Duration;

use crate::codec::{Malformed, Reader, Taken, Wire};

/// A round trip to the meeting point, as the power of two of a millisecond that is not longer; below one millisecond it is none, so
/// that ranks of ordinary networks say the same in every run.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct RoundTrip(u8);

impl RoundTrip {
    /// More than a way round the earth takes, and back.
    const DOUBLINGS_MAX: u8 = 10;

    /// Of what was measured; longer than the longest counts as that.
    pub fn of(measured: Duration) -> Self {
        let doublings = measured.as_millis().checked_ilog2().map_or(0, |power| power + 1);
        RoundTrip((doublings.min(u32::from(Self::DOUBLINGS_MAX) + 1)) as u8)
    }

    /// Milliseconds: 0, 1, 2, 4, up to 1024.
    pub fn milliseconds(self) -> u32 {
        self.0.checked_sub(1).map_or(0, |power| 1 << power)
    }
}

impl Wire for RoundTrip {
    fn put(&self, out: &mut Vec<u8>) {
        self.0.put(out);
    }

    fn take(reader: &mut Reader<'_>) -> Taken<Self> {
        let doublings = u8::take(reader)?;
        if doublings > Self::DOUBLINGS_MAX + 1 {
            return Err(Malformed("a round trip is out of bounds"));
        }
        Ok(RoundTrip(doublings))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::bytes_of;

    #[test]
    fn a_round_trip_is_known_to_the_power_of_two_below_it() {
        let known = |micros| RoundTrip::of(Duration::from_micros(micros)).milliseconds();
        for (micros, expected) in [
            (0, 0),
            (57, 0),
            (999, 0),
            (1000, 1),
            (1999, 1),
            (2000, 2),
            (10_057, 8),
            (16_000, 16),
            (1_024_000, 1024),
            (u64::MAX, 1024),
        ] {
            assert_eq!(known(micros), expected, "{micros} µs");
        }
        assert_eq!(RoundTrip::of(Duration::MAX).milliseconds(), 1024);
    }

    #[test]
    fn a_round_trip_travels_as_one_byte_and_no_other_is_taken() {
        for byte in 0..=u8::MAX {
            let taken = RoundTrip::whole(&[byte]);
            assert_eq!(taken.is_ok(), byte <= 11, "{byte}");
            let Ok(taken) = taken else { continue };
            assert_eq!(bytes_of(&taken), [byte]);
            let measured = Duration::from_millis(taken.milliseconds().into());
            assert_eq!(RoundTrip::of(measured), taken);
        }
        assert!(RoundTrip::whole(&[]).is_err() && RoundTrip::whole(&[0, 0]).is_err());
    }
}
