//! A table of what was measured, as `collbench tune` writes it and the planner prefers it.
//!
//! ```text
//! consort-tuning 1
//! planner 2
//! machine hosts=1 cores=2 transport=auto
//! # collective ranks bytes algorithm slot_bytes fold nanoseconds
//! all_reduce 4 4096 doubling 16384 1f00c0ffee0badd5 3250
//! ```
//!
//! Invariant: a table is text that reads back as the same table. A line holds for sizes of at most `bytes` (of one
//! block), down to the line before. The reader compares the planner's version and the machine when it loads a table.
//! The fold hash of each line is compared with that of the plan when the line is used, so that a table never changes
//! bits without notice. Absent: files.

use std::fmt;

use consort_algorithms::Collective;
use consort_algorithms::catalogue::Algorithm;

use crate::options::PLANNER_VERSION;

/// The format of the text.
const FORMAT: u32 = 1;

/// The fastest algorithm that was measured for one collective, number of ranks and size.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TuningLine {
    /// The collective that was measured.
    pub collective: Collective,
    /// The number of ranks.
    pub ranks: u32,
    /// The largest block (in bytes) that the line holds for.
    pub bytes: u64,
    /// The fastest algorithm.
    pub algorithm: Algorithm,
    /// Bytes of a slot; 0 for the planner's own rule.
    pub slot_bytes: usize,
    /// The hash of the order in which the algorithm folds; 0 where nothing is folded.
    pub fold_hash: u64,
    /// The median time.
    pub nanoseconds: u64,
}

/// A tuning table.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Tuning {
    /// The machine on which it was measured; see `Planning::machine`.
    pub machine: String,
    /// In any order.
    pub lines: Vec<TuningLine>,
}

/// Why a text is not a tuning table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TuningError {
    /// The line, from 1.
    pub line: usize,
    /// What is wrong.
    pub why: String,
}

impl fmt::Display for TuningError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.why)
    }
}

impl std::error::Error for TuningError {}

impl Tuning {
    /// Reads a table.
    ///
    /// # Errors
    /// [`TuningError`] with the line: another format or planner version, or a line that cannot be read.
    pub fn parse(text: &str) -> Result<Self, TuningError> {
        let mut table = Tuning::default();
        let mut head = 0;
        for (number, line) in (1..).zip(text.lines()) {
            let bad = |why: String| TuningError { line: number, why };
            let line = line.split('#').next().unwrap_or("").trim();
            if line.is_empty() {
                continue;
            }
            let expected = |name: &str, version: u32| match line.strip_prefix(name).map(str::trim) {
                Some(text) if text == version.to_string() => Ok(()),
                _ => Err(bad(format!("it is {line:?}, and this version reads \"{name} {version}\""))),
            };
            match head {
                0 => expected("consort-tuning", FORMAT)?,
                1 => expected("planner", PLANNER_VERSION)?,
                2 => {
                    let machine = line.strip_prefix("machine ");
                    table.machine =
                        machine.ok_or_else(|| bad("it names no machine".into()))?.trim().to_owned();
                }
                _ => table.lines.push(entry(line).map_err(bad)?),
            }
            head += 1;
        }
        if head < 3 {
            return Err(TuningError { line: text.lines().count(), why: "it ends before its head".into() });
        }
        Ok(table)
    }

    /// The line for a block of `bytes`: the one of the smallest size that is not smaller, or else the last.
    pub fn find(&self, collective: Collective, ranks: u32, bytes: u64) -> Option<&TuningLine> {
        let of_shape = || self.lines.iter().filter(move |l| (l.collective, l.ranks) == (collective, ranks));
        let enough = of_shape().filter(|line| line.bytes >= bytes).min_by_key(|line| line.bytes);
        enough.or_else(|| of_shape().max_by_key(|line| line.bytes))
    }
}

fn entry(line: &str) -> Result<TuningLine, String> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let [collective, ranks, bytes, algorithm, slot_bytes, fold_hash, nanoseconds] = words[..] else {
        return Err(format!("it has {} words and must have 7", words.len()));
    };
    let known = Collective::ALL.into_iter().find(|known| known.name() == collective);
    let bad = |what: &str, word: &str| format!("{word:?} is no {what}");
    Ok(TuningLine {
        collective: known.ok_or_else(|| bad("collective", collective))?,
        ranks: ranks.parse().map_err(|_| bad("number of ranks", ranks))?,
        bytes: bytes.parse().map_err(|_| bad("number of bytes", bytes))?,
        algorithm: algorithm.parse().map_err(|error| format!("{error}"))?,
        slot_bytes: slot_bytes.parse().map_err(|_| bad("slot length", slot_bytes))?,
        fold_hash: u64::from_str_radix(fold_hash, 16).map_err(|_| bad("fold hash", fold_hash))?,
        nanoseconds: nanoseconds.parse().map_err(|_| bad("time", nanoseconds))?,
    })
}

impl fmt::Display for Tuning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "consort-tuning {FORMAT}")?;
        writeln!(f, "planner {PLANNER_VERSION}")?;
        writeln!(f, "machine {}", self.machine)?;
        writeln!(f, "# collective ranks bytes algorithm slot_bytes fold nanoseconds")?;
        for line in &self.lines {
            let TuningLine { collective, ranks, bytes, algorithm, slot_bytes, fold_hash, nanoseconds } = line;
            writeln!(
                f,
                "{collective} {ranks} {bytes} {algorithm} {slot_bytes} {fold_hash:016x} {nanoseconds}"
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Tuning {
        let line = |bytes, algorithm, nanoseconds| TuningLine {
            collective: Collective::AllReduce,
            ranks: 4,
            bytes,
            algorithm,
            slot_bytes: 16384,
            fold_hash: 0x1f00_c0ff_ee0b_add5,
            nanoseconds,
        };
        let ring = Algorithm::Ring { channels: 2, bidirectional: true };
        Tuning {
            machine: "hosts=1 cores=2".into(),
            lines: vec![line(4096, Algorithm::Doubling, 3_250), line(1 << 20, ring, 900_500)],
        }
    }

    #[test]
    fn a_table_reads_back_and_is_found_by_size() {
        let table = table();
        assert_eq!(Tuning::parse(&table.to_string()), Ok(table.clone()));
        let bytes = |bytes| table.find(Collective::AllReduce, 4, bytes).map(|line| line.bytes);
        assert_eq!([bytes(0), bytes(4096), bytes(4097)], [Some(4096), Some(4096), Some(1 << 20)]);
        assert_eq!(bytes(1 << 30), Some(1 << 20));
        assert_eq!(table.find(Collective::AllReduce, 5, 8), None);
        assert_eq!(table.find(Collective::Reduce, 4, 8), None);
    }

    #[test]
    fn what_cannot_be_read_is_named_with_its_line() {
        let good = table().to_string();
        for (from, to, line) in [
            ("consort-tuning 1", "consort-tuning 9", 1),
            ("planner", "planer", 2),
            ("machine ", "engine ", 3),
            ("doubling", "dubbling", 5),
            ("4096", "-1", 5),
            ("3250", "NaN", 5),
            ("16384 1f00c0ffee0badd5 900", "900", 6),
        ] {
            let error = Tuning::parse(&good.replacen(from, to, 1)).expect_err(to);
            assert_eq!(error.line, line, "{error}");
        }
        assert!(Tuning::parse("").is_err());
    }
}
