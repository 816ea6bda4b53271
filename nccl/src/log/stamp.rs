//! Times in front of lines, in the format of strftime.
//!
//! Invariant: UTC, on every host. An unknown letter stays as it is. Absent: local time, which needs a table of zones,
//! and names of days and months, which need a language.

use std::fmt::Write;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// `format` with the time in it: `%Y %y %m %d %e %j %H %M %S %F %T %R %D %s %Z %z %%`, and `%Nf` for N digits (1 to
/// 9) of the second's fraction.
pub(super) fn stamp(format: &str, now: SystemTime) -> String {
    let since = now.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    let (days, second) = (since.as_secs() / 86_400, since.as_secs() % 86_400);
    let (year, month, day) = civil(days);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    let mut out = String::new();
    let mut letters = format.chars();
    while let Some(letter) = letters.next() {
        if letter != '%' {
            out.push(letter);
            continue;
        }
        // Writing to a string does not fail.
        let _ = match letters.next() {
            Some('Y') => write!(out, "{year}"),
            Some('y') => write!(out, "{:02}", year % 100),
            Some('m') => write!(out, "{month:02}"),
            Some('d') => write!(out, "{day:02}"),
            Some('e') => write!(out, "{day:2}"),
            Some('j') => write!(out, "{:03}", days - first_of(year) + 1),
            Some('H') => write!(out, "{hour:02}"),
            Some('M') => write!(out, "{minute:02}"),
            Some('S') => write!(out, "{second:02}"),
            Some('F') => write!(out, "{year}-{month:02}-{day:02}"),
            Some('T') => write!(out, "{hour:02}:{minute:02}:{second:02}"),
            Some('R') => write!(out, "{hour:02}:{minute:02}"),
            Some('D') => write!(out, "{month:02}/{day:02}/{:02}", year % 100),
            Some('s') => write!(out, "{}", since.as_secs()),
            Some('Z') => write!(out, "UTC"),
            Some('z') => write!(out, "+0000"),
            Some('%') => write!(out, "%"),
            Some(digits @ '1'..='9') if letters.as_str().starts_with('f') => {
                letters.next();
                let digits = digits as usize - '0' as usize;
                write!(out, "{}", &format!("{:09}", since.subsec_nanos())[..digits])
            }
            Some(other) => write!(out, "%{other}"),
            None => write!(out, "%"),
        };
    }
    out
}

fn is_leap(year: u64) -> bool {
    year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
}

/// The days from 1970 to the first of January.
fn first_of(year: u64) -> u64 {
    let leaps = |year: u64| year / 4 - year / 100 + year / 400;
    (year - 1970) * 365 + leaps(year - 1) - leaps(1969)
}

/// Year, month and day of a day counted from 1970.
fn civil(days: u64) -> (u64, u64, u64) {
    // A year is never longer than 366 days, so this is the year itself or one of the few before it.
    let mut year = 1970 + days / 366;
    while first_of(year + 1) <= days {
        year += 1;
    }
    let mut left = days - first_of(year);
    let lengths = [31, if is_leap(year) { 29 } else { 28 }, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    for (month, length) in (1..).zip(lengths) {
        if left < length {
            return (year, month, left + 1);
        }
        left -= length;
    }
    (year, 12, 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64, format: &str) -> String {
        stamp(format, UNIX_EPOCH + Duration::new(seconds, 123_456_789))
    }

    #[test]
    fn known_moments() {
        let all = "%F %T";
        assert_eq!(at(0, all), "1970-01-01 00:00:00");
        assert_eq!(at(951_782_399, all), "2000-02-28 23:59:59");
        assert_eq!(at(951_782_400, all), "2000-02-29 00:00:00");
        assert_eq!(at(951_868_800, all), "2000-03-01 00:00:00");
        assert_eq!(at(1_735_689_599, all), "2024-12-31 23:59:59");
        assert_eq!(at(1_735_689_599, "%j %y %D %R %e"), "366 24 12/31/24 23:59 31");
        assert_eq!(at(4_107_542_400, all), "2100-03-01 00:00:00");
    }

    #[test]
    fn fractions_and_what_is_no_time() {
        assert_eq!(at(1, "%3f|%6f|%9f|%S"), "123|123456|123456789|01");
        assert_eq!(at(1, "%0f %f %q %% %"), "%0f %f %q % %");
        assert_eq!(at(7, "%s %Z %z ü"), "7 UTC +0000 ü");
    }
}
