//! Measured times by algorithm, as a file of comma-separated values.
//!
//! Invariant: what is written reads back as the same samples. Columns are found by their names, so files may
//! have more of them; a line that begins with `#` is a remark, and `# machine` says where it was measured.

use std::fmt;

use consort::planning::{Algorithm, Collective};

/// The columns, in the order in which they are written.
const COLUMNS: [&str; 12] = [
    "collective",
    "ranks",
    "bytes",
    "size",
    "algorithm",
    "median_us",
    "p10_us",
    "p90_us",
    "predicted_us",
    "chosen",
    "slot_bytes",
    "fold",
];

/// What one algorithm took for one collective, number of ranks and size.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Sample {
    pub(crate) collective: Collective,
    pub(crate) ranks: u32,
    /// Of a block.
    pub(crate) bytes: u64,
    /// Of a rank's larger buffer.
    pub(crate) size: u64,
    pub(crate) algorithm: Algorithm,
    pub(crate) median_us: f64,
    pub(crate) p10_us: f64,
    pub(crate) p90_us: f64,
    pub(crate) predicted_us: f64,
    /// Whether it is what the planner chose when this was measured.
    pub(crate) chosen: bool,
    pub(crate) slot_bytes: usize,
    /// The hash of the order in which it folds; 0 where nothing is folded or the hash is not known.
    pub(crate) fold_hash: u64,
}

/// Samples of one machine.
#[derive(Clone, PartialEq, Debug, Default)]
pub(crate) struct Samples {
    pub(crate) machine: String,
    /// Those of one collective, number of ranks and size follow each other.
    pub(crate) all: Vec<Sample>,
}

impl Samples {
    /// The samples of each collective, number of ranks and size.
    pub(crate) fn points(&self) -> impl Iterator<Item = &[Sample]> {
        self.all.chunk_by(|one, next| {
            (one.collective, one.ranks, one.bytes) == (next.collective, next.ranks, next.bytes)
        })
    }

    /// Whether a text has the head of such a file.
    pub(crate) fn are_in(text: &str) -> bool {
        let head = text.lines().find(|line| !line.starts_with('#')).unwrap_or_default();
        head.starts_with(&COLUMNS[..3].join(","))
    }

    /// Reads what [`Display`](fmt::Display) wrote.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let mut samples = Samples::default();
        let mut columns: Option<Vec<usize>> = None;
        for (number, line) in (1..).zip(text.lines()) {
            if let Some(remark) = line.strip_prefix('#') {
                if let Some(machine) = remark.trim_start().strip_prefix("machine ") {
                    samples.machine = machine.trim().to_owned();
                }
                continue;
            }
            let fields = fields(line);
            let Some(columns) = &columns else {
                let place = |name: &str| {
                    let place = fields.iter().position(|field| field == name);
                    place.ok_or_else(|| format!("line {number}: there is no column {name}"))
                };
                columns = Some(COLUMNS.into_iter().map(place).collect::<Result<_, _>>()?);
                continue;
            };
            let field = |column: usize| fields.get(columns[column]).map_or("", String::as_str);
            samples.all.push(sample(field).map_err(|why| format!("line {number}: {why}"))?);
        }
        Ok(samples)
    }
}

fn sample<'a>(field: impl Fn(usize) -> &'a str) -> Result<Sample, String> {
    fn number<T: std::str::FromStr>(column: usize, text: &str) -> Result<T, String> {
        text.parse().map_err(|_| format!("{}: {text:?} is no number", COLUMNS[column]))
    }
    let time = |column| number::<f64>(column, field(column));
    Ok(Sample {
        collective: crate::planned::collective(field(0))?,
        ranks: number(1, field(1))?,
        bytes: number(2, field(2))?,
        size: number(3, field(3))?,
        algorithm: field(4).parse().map_err(|error| format!("{error}"))?,
        median_us: time(5)?,
        p10_us: time(6)?,
        p90_us: time(7)?,
        predicted_us: time(8)?,
        chosen: field(9) == "1",
        slot_bytes: number(10, field(10))?,
        fold_hash: u64::from_str_radix(field(11), 16).map_err(|_| "fold: no hash".to_owned())?,
    })
}

/// The fields of a line; one in quotation marks may hold commas.
pub(crate) fn fields(line: &str) -> Vec<String> {
    let mut fields = vec![String::new()];
    let mut quoted = false;
    for c in line.chars() {
        match (c, fields.last_mut()) {
            ('"', _) => quoted = !quoted,
            (',', _) if !quoted => fields.push(String::new()),
            (_, Some(field)) => field.push(c),
            (_, None) => {}
        }
    }
    fields
}

impl fmt::Display for Samples {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "# machine {}", self.machine)?;
        writeln!(f, "{}", COLUMNS.join(","))?;
        for sample in &self.all {
            let Sample { collective, ranks, bytes, size, median_us, p10_us, p90_us, predicted_us, .. } =
                sample;
            let name = sample.algorithm.to_string();
            let name = if name.contains(',') { format!("\"{name}\"") } else { name };
            writeln!(
                f,
                "{collective},{ranks},{bytes},{size},{name},{median_us:.3},{p10_us:.3},{p90_us:.3},{predicted_us:.3},{},{},{:016x}",
                u8::from(sample.chosen),
                sample.slot_bytes,
                sample.fold_hash
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A sample of an all-reduce over 4 ranks.
    pub(crate) fn of(algorithm: &str, bytes: u64, median_us: f64, chosen: bool) -> Sample {
        Sample {
            collective: Collective::AllReduce,
            ranks: 4,
            bytes,
            size: bytes,
            algorithm: algorithm.parse().expect("an algorithm"),
            median_us,
            p10_us: median_us * 0.5,
            p90_us: median_us * 2.0,
            predicted_us: median_us + 1.0,
            chosen,
            slot_bytes: 16384,
            fold_hash: 0xfeed,
        }
    }

    #[test]
    fn what_is_written_reads_back() {
        let all = vec![
            of("ring(channels=2,bidirectional)", 1024, 12.5, true),
            of("tree", 1024, 13.5, false),
            of("tree", 2048, 14.25, false),
        ];
        let samples = Samples { machine: "hosts=1 cores=2 transport=auto".into(), all };
        let text = samples.to_string();
        assert!(Samples::are_in(&text) && !Samples::are_in("size,count,type\n"));
        assert_eq!(Samples::parse(&text), Ok(samples.clone()));
        assert_eq!(samples.points().map(<[Sample]>::len).collect::<Vec<_>>(), [2, 1]);
    }

    #[test]
    fn what_cannot_be_read_is_named_with_its_line() {
        let samples = Samples { machine: String::new(), all: vec![of("tree", 8, 1.5, false)] };
        let good = samples.to_string();
        for (from, to, says) in [
            ("median_us,", "", "line 2: there is no column median_us"),
            (",1.500,", ",fast,", "line 3: median_us: \"fast\" is no number"),
            (",tree,", ",trees,", "line 3: \"trees\" is no algorithm"),
            ("all_reduce,", "all_sum,", "line 3: 'all_sum' is no collective"),
            ("000000000000feed", "", "line 3: fold"),
        ] {
            let error = Samples::parse(&good.replacen(from, to, 1)).expect_err(to);
            assert!(error.starts_with(says), "{error}");
        }
    }
}
