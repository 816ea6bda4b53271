//! Sizes as people write them, and the sweep from the smallest to the largest.
//!
//! Invariant: a [`Sweep`] ends: it grows at each step and stops before it would overflow.

/// Parses `8`, `4K`, `1.5M`, `1G`; the suffixes are powers of 1024, as in nccl-tests.
pub(crate) fn parse_size(text: &str) -> Result<u64, String> {
    let wrong = || format!("'{text}' is no size; write bytes, or a number with K, M or G (1024 based)");
    let text_lower = text.trim().to_ascii_lowercase();
    let digits = text_lower.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let shift = match &text_lower[digits.len()..] {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        _ => return Err(wrong()),
    };
    let digits = digits.trim_end();
    if let Ok(whole) = digits.parse::<u64>() {
        return whole.checked_mul(1 << shift).filter(|bytes| *bytes <= i64::MAX as u64).ok_or_else(wrong);
    }
    let plain = digits.chars().all(|c| c.is_ascii_digit() || c == '.');
    let value = digits.parse::<f64>().ok().filter(|_| plain).ok_or_else(wrong)?;
    let bytes = value * (1u64 << shift) as f64;
    if bytes < 9.0e18 { Ok(bytes as u64) } else { Err(wrong()) }
}

/// A size as people read it: `1 GiB`, `2.1 GiB`, `512 B`.
pub(crate) fn human(bytes: u64) -> String {
    let mut value = bytes as f64;
    let mut unit = "B";
    for larger in ["KiB", "MiB", "GiB", "TiB"] {
        if value < 1024.0 {
            break;
        }
        value /= 1024.0;
        unit = larger;
    }
    if value.fract() < 0.05 { format!("{value:.0} {unit}") } else { format!("{value:.1} {unit}") }
}

/// How sizes grow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Step {
    Bytes(u64),
    Factor(u64),
}

/// The sizes that are measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Sweep {
    pub(crate) smallest: u64,
    pub(crate) largest: u64,
    pub(crate) step: Step,
}

impl Sweep {
    pub(crate) fn new(smallest: u64, largest: u64, step: Step) -> Result<Self, String> {
        if smallest > largest {
            return Err(format!("the smallest size ({smallest}) is larger than the largest ({largest})"));
        }
        if smallest < largest {
            match step {
                Step::Bytes(0) => return Err("a step of 0 bytes never reaches the largest size".into()),
                Step::Factor(0 | 1) => return Err("a factor of 1 never reaches the largest size".into()),
                Step::Factor(_) if smallest == 0 => {
                    return Err("a factor (-f) never grows from 0; begin with -b 1 or more, or use -i".into());
                }
                _ => {}
            }
        }
        Ok(Self { smallest, largest, step })
    }

    pub(crate) fn sizes(self) -> impl Iterator<Item = u64> {
        std::iter::successors(Some(self.smallest), move |size| {
            let next = match self.step {
                Step::Bytes(bytes) => size.checked_add(bytes),
                Step::Factor(factor) => size.checked_mul(factor),
            };
            next.filter(|next| next > size && *next <= self.largest)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_nccl_tests_reads_them() {
        for (text, bytes) in [
            ("0", 0),
            ("8", 8),
            ("4K", 4096),
            ("4k", 4096),
            ("1.5M", 3 << 19),
            ("1G", 1 << 30),
            ("32M", 32 << 20),
            ("2 G", 2 << 30),
            ("1GiB", 1 << 30),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
        for text in ["", "K", "-1", "1T", "1e3", "nan", "inf", "99999999999G", "1G2"] {
            assert!(parse_size(text).is_err(), "{text}");
        }
    }

    #[test]
    fn sizes_are_written_for_people() {
        assert_eq!(human(512), "512 B");
        assert_eq!(human(1 << 30), "1 GiB");
        assert_eq!(human(2_254_857_830), "2.1 GiB");
    }

    #[test]
    fn sweeps_grow_and_end() {
        let sizes = |smallest, largest, step| {
            Sweep::new(smallest, largest, step).map(|s| s.sizes().collect::<Vec<_>>())
        };
        assert_eq!(sizes(8, 64, Step::Factor(2)), Ok(vec![8, 16, 32, 64]));
        assert_eq!(sizes(8, 100, Step::Factor(3)), Ok(vec![8, 24, 72]));
        assert_eq!(sizes(10, 40, Step::Bytes(15)), Ok(vec![10, 25, 40]));
        assert_eq!(sizes(5, 5, Step::Bytes(0)), Ok(vec![5]));
        assert_eq!(sizes(0, 2, Step::Bytes(1)), Ok(vec![0, 1, 2]));
        assert_eq!(sizes(1 << 62, u64::MAX, Step::Factor(4)), Ok(vec![1 << 62]));
        assert!(sizes(9, 8, Step::Bytes(1)).is_err());
        assert!(sizes(0, 8, Step::Factor(2)).is_err());
        assert!(sizes(1, 8, Step::Factor(1)).is_err());
        assert!(sizes(1, 8, Step::Bytes(0)).is_err());
    }
}
