//! The table on standard output, laid out as nccl-tests does, so that its parsers read ours.
//!
//! Invariant: lines that are not results begin with `#`; a result has five columns (widths 12, 12, 8, 6, 6)
//! and then, for out-of-place and again for in-place, four (7, 6, 6, 6) and the extra ones that were asked for
//! (7 each). Every column is separated by two spaces.

use crate::statistics::Spread;

/// One placement of one row.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Measured {
    pub(crate) time_us: f64,
    pub(crate) algorithm_bandwidth: f64,
    pub(crate) bus_bandwidth: f64,
    /// `None` if nothing was checked.
    pub(crate) wrong: Option<u64>,
    pub(crate) iterations: u64,
    pub(crate) spread: Option<Spread>,
}

/// One line of results.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Row {
    pub(crate) bytes: u64,
    pub(crate) count: u64,
    pub(crate) data_type: &'static str,
    pub(crate) op: &'static str,
    /// -1 where there is none.
    pub(crate) root: i64,
    /// What the library ran it by, where it says so. Not in the table, which is nccl-tests'.
    pub(crate) algorithm: Option<String>,
    pub(crate) out_of_place: Option<Measured>,
    pub(crate) in_place: Option<Measured>,
}

/// A column beyond those that are always there.
#[derive(Clone, Copy)]
pub(crate) struct Extra {
    pub(crate) name: &'static str,
    unit: &'static str,
    value: fn(&Spread) -> f64,
}

/// `-I`.
const PER_ITERATION: [Extra; 4] = [
    Extra { name: "i_min", unit: "(us)", value: |spread| spread.min * 1e6 },
    Extra { name: "i_max", unit: "(us)", value: |spread| spread.max * 1e6 },
    Extra { name: "i_p99", unit: "(us)", value: |spread| spread.p99 * 1e6 },
    Extra { name: "i_cv%", unit: "(%)", value: Spread::variation_percent },
];

/// `--percentiles`.
const PERCENTILES: [Extra; 5] = [
    Extra { name: "p50", unit: "(us)", value: |spread| spread.p50 * 1e6 },
    Extra { name: "p95", unit: "(us)", value: |spread| spread.p95 * 1e6 },
    Extra { name: "p99", unit: "(us)", value: |spread| spread.p99 * 1e6 },
    Extra { name: "min", unit: "(us)", value: |spread| spread.min * 1e6 },
    Extra { name: "max", unit: "(us)", value: |spread| spread.max * 1e6 },
];

/// The extra columns that were asked for.
pub(crate) fn extras(per_iteration: bool, percentiles: bool) -> Vec<Extra> {
    let wanted = |asked: bool, columns: &[Extra]| if asked { columns.to_vec() } else { Vec::new() };
    [wanted(per_iteration, &PER_ITERATION), wanted(percentiles, &PERCENTILES)].concat()
}

impl Extra {
    pub(crate) fn of(&self, measured: &Measured) -> Option<f64> {
        measured.spread.as_ref().map(self.value)
    }
}

/// The three lines above the results.
pub(crate) fn heading(extras: &[Extra]) -> String {
    let mut top = format!("# {:>10}  {:>12}  {:>8}  {:>6}  {:>6}", "", "", "", "", "");
    if extras.is_empty() {
        top.push_str("           out-of-place                       in-place          ");
    } else {
        let width = 33 + 9 * extras.len();
        top.push_str(&format!(
            "{:^width$}{:^width$}",
            "out-of-place (+ per-iteration)", "in-place (+ per-iteration)"
        ));
    }
    let line = |first: [&str; 5], four: [&str; 4], extra: fn(&Extra) -> &'static str| {
        let mut line = format!(
            "# {:>10}  {:>12}  {:>8}  {:>6}  {:>6}",
            first[0], first[1], first[2], first[3], first[4]
        );
        for _ in 0..2 {
            line.push_str(&format!("  {:>7}  {:>6}  {:>6}  {:>6}", four[0], four[1], four[2], four[3]));
            extras.iter().for_each(|column| line.push_str(&format!("  {:>7}", extra(column))));
        }
        line
    };
    let names =
        line(["size", "count", "type", "redop", "root"], ["time", "algbw", "busbw", "#wrong"], |extra| {
            extra.name
        });
    let units = line(["(B)", "(elements)", "", "", ""], ["(us)", "(GB/s)", "(GB/s)", ""], |extra| extra.unit);
    format!("#\n{top}\n{names}\n{units}\n")
}

/// A result without its end of line.
pub(crate) fn row(row: &Row, extras: &[Extra]) -> String {
    let mut line =
        format!("{:>12}  {:>12}  {:>8}  {:>6}  {:>6}", row.bytes, row.count, row.data_type, row.op, row.root);
    for measured in [&row.out_of_place, &row.in_place] {
        let na = || "N/A".to_owned();
        let [time, algorithm, bus, wrong] = match measured {
            Some(measured) => [
                number(measured.time_us, 7),
                number(measured.algorithm_bandwidth, 6),
                number(measured.bus_bandwidth, 6),
                measured.wrong.map_or_else(na, |wrong| general(wrong as f64)),
            ],
            None => [na(), na(), na(), na()],
        };
        line.push_str(&format!("  {time:>7}  {algorithm:>6}  {bus:>6}  {wrong:>6}"));
        for extra in extras {
            let value = measured.as_ref().and_then(|measured| extra.of(measured));
            line.push_str(&format!("  {:>7}", value.map_or_else(na, |value| number(value, 7))));
        }
    }
    line
}

/// As many decimals as fit into `width`, then an exponent.
fn number(value: f64, width: usize) -> String {
    let mut digits = 0;
    let mut limit = 1.0;
    while value >= limit && digits < 30 {
        limit *= 10.0;
        digits += 1;
    }
    match digits {
        _ if digits < width - 2 => format!("{value:.2}"),
        _ if digits < width - 1 => format!("{value:.1}"),
        _ if digits < width + 1 => format!("{value:.0}"),
        _ if width >= 7 => exponential(value, 1),
        _ => exponential(value, 0),
    }
}

/// C's `%.{decimals}e`.
fn exponential(value: f64, decimals: usize) -> String {
    let text = format!("{value:.decimals$e}");
    match text.split_once('e') {
        Some((mantissa, exponent)) => {
            let exponent: i32 = exponent.parse().unwrap_or(0);
            let sign = if exponent < 0 { '-' } else { '+' };
            format!("{mantissa}e{sign}{:02}", exponent.abs())
        }
        None => text,
    }
}

/// C's `%g`: six significant digits, no trailing zeros.
pub(crate) fn general(value: f64) -> String {
    if value == 0.0 || !value.is_finite() {
        return format!("{value}");
    }
    let trim = |text: &str| match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text.to_owned(),
    };
    let scientific = exponential(value, 5);
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let power: i32 = exponent.parse().unwrap_or(0);
    if (-4..6).contains(&power) {
        let decimals = (5 - power).max(0) as usize;
        trim(&format!("{value:.decimals$}"))
    } else {
        format!("{}e{exponent}", trim(mantissa))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(time_us: f64, wrong: Option<u64>) -> Measured {
        Measured {
            time_us,
            algorithm_bandwidth: 1234.5678,
            bus_bandwidth: 12.3456,
            wrong,
            iterations: 20,
            spread: Spread::of(vec![1e-6, 2e-6, 3e-6]),
        }
    }

    fn example() -> Row {
        Row {
            bytes: 1 << 30,
            count: 1 << 28,
            data_type: "float",
            op: "sum",
            root: -1,
            algorithm: None,
            out_of_place: Some(measured(123_456.7, Some(0))),
            in_place: Some(measured(0.51, None)),
        }
    }

    #[test]
    fn the_layout_is_that_of_nccl_tests() {
        assert_eq!(
            heading(&[]),
            "#\n\
             #                                                              out-of-place                       in-place          \n\
             #       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong\n\
             #        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)        \n"
        );
        assert_eq!(
            row(&example(), &[]),
            "  1073741824     268435456     float     sum      -1   123457  1234.6   12.35       0     0.51  1234.6   12.35     N/A"
        );
    }

    #[test]
    fn placements_that_do_not_exist_are_not_invented() {
        let row = row(&Row { in_place: None, ..example() }, &[]);
        assert!(row.ends_with("  12.35       0      N/A     N/A     N/A     N/A"), "{row}");
    }

    #[test]
    fn extra_columns() {
        let columns = extras(true, true);
        let heading = heading(&columns);
        let lines: Vec<&str> = heading.lines().collect();
        assert!(lines[2].contains(
            "#wrong    i_min    i_max    i_p99    i_cv%      p50      p95      p99      min      max  "
        ));
        let row = row(&example(), &columns);
        assert_eq!(row.len(), lines[2].len());
        assert!(
            row.contains(
                "       0     1.00     3.00     3.00    40.82     2.00     3.00     3.00     1.00     3.00"
            ),
            "{row}"
        );
        assert!(extras(false, false).is_empty());
    }

    #[test]
    fn numbers_as_c_prints_them() {
        let seven: Vec<String> =
            [0.0, 9.999, 9999.994, 99_999.9, 123_456.0, 12_345_678.9, 1.5e9].map(|v| number(v, 7)).into();
        assert_eq!(seven, ["0.00", "10.00", "9999.99", "99999.9", "123456", "1.2e+07", "1.5e+09"]);
        assert_eq!(number(9_999_999.0, 7), "9999999");
        assert_eq!(
            [0.004, 999.994, 1234.56, 123456.0, 1234567.0].map(|v| number(v, 6)),
            ["0.00", "999.99", "1234.6", "123456", "1e+06"]
        );
        let general: Vec<String> =
            [0.0, 12.3456, 0.5, 123_456.0, 1_234_567.0, 1e6, 0.00012345, 1.5e-7].map(general).into();
        assert_eq!(
            general,
            ["0", "12.3456", "0.5", "123456", "1.23457e+06", "1e+06", "0.00012345", "1.5e-07"]
        );
    }
}
