//! The date in UTC, as nccl-tests writes it.
//!
//! Invariant: a function of the seconds since 1970 alone.

use std::time::{SystemTime, UNIX_EPOCH};

/// `2026-01-31 23:59:59` for a number of seconds since 1970.
fn format(seconds: u64) -> String {
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    // Years that begin in March, in eras of 400 of them.
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02} {:02}:{:02}:{:02}", second / 3600, second / 60 % 60, second % 60)
}

/// Now.
pub(crate) fn now() -> String {
    format(SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |elapsed| elapsed.as_secs()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_dates() {
        assert_eq!(format(0), "1970-01-01 00:00:00");
        assert_eq!(format(951_782_399), "2000-02-28 23:59:59");
        assert_eq!(format(951_782_400), "2000-02-29 00:00:00");
        assert_eq!(format(1_785_585_906), "2026-08-01 12:05:06");
    }
}
