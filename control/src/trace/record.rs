//! The flight record of one rank: its last operations, as data, text and JSON.
//!
//! Invariant: made from the ring alone, by any thread, without a lock; an operation that is being overwritten at
//! that moment counts as dropped. Times are ages. Absent: other ranks.

use std::fmt;
use std::time::Duration;

use serde::Serialize;
use serde_json::json;

use super::brief;
use crate::membership::group::Group;
use crate::recorder::AgedEntry;
use crate::report::CallReport;
use crate::report::json::seconds;
use crate::report::text::columns;
use consort_types::Rank;

/// The last operations of one rank on one communicator. `Display` is the text for people,
/// [`FlightRecord::to_json`] the same for programs.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[non_exhaustive]
pub struct FlightRecord {
    /// The communicator's name: the same on all its ranks.
    pub communicator: String,
    /// The rank whose operations these are.
    pub rank: Rank,
    /// How many ranks there are.
    pub size: u32,
    /// The host it runs on.
    pub host: String,
    /// Its process there.
    pub process: u32,
    /// The last operations, oldest first.
    pub operations: Vec<FlightEntry>,
    /// How many there were before that are not kept.
    pub dropped: u64,
}

/// One operation of a flight record.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[non_exhaustive]
pub struct FlightEntry {
    /// Which.
    pub call: CallReport,
    /// How long ago it was entered.
    #[serde(rename = "entered_s", serialize_with = "seconds")]
    pub entered: Duration,
    /// How long ago it ended; none while it is open.
    #[serde(rename = "ended_s", serialize_with = "seconds")]
    pub ended: Option<Duration>,
    /// Whether it ended with an error.
    pub failed: bool,
}

impl FlightRecord {
    /// The present state of this rank's ring, `most` operations at most.
    pub fn of(group: &Group, most: usize) -> Self {
        let entries = group.recorder.last(most);
        let member = &group.member.table[group.member.rank as usize];
        let operation = |entry: AgedEntry| FlightEntry {
            call: CallReport::new(entry.sequence, &entry.descriptor),
            entered: entry.entered,
            ended: entry.ended,
            failed: entry.failed,
        };
        FlightRecord {
            communicator: group.name(),
            rank: group.rank,
            size: group.size(),
            host: member.host.clone(),
            process: member.pid,
            dropped: entries.last().map_or(0, |last| last.index - entries.len() as u64),
            operations: group.recorder.aged(entries).map(operation).collect(),
        }
    }

    /// The record as one JSON object. Its keys are the names of the fields here, ages are seconds in a key that
    /// ends in `_s`.
    pub fn to_json(&self) -> String {
        json!(self).to_string()
    }
}

impl FlightEntry {
    fn state(&self) -> &'static str {
        match (self.ended, self.failed) {
            (None, _) => "open",
            (Some(_), false) => "finished",
            (Some(_), true) => "failed",
        }
    }

    /// How long it took, or has taken until now.
    fn took(&self) -> Duration {
        self.entered.saturating_sub(self.ended.unwrap_or_default())
    }
}

impl fmt::Display for FlightRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let FlightRecord { rank, size, host, process, dropped, .. } = self;
        let name = self.communicator.get(..8).unwrap_or(&self.communicator);
        write!(
            f,
            "flight record of communicator {name}, rank {rank} of {size} (host {host}, pid {process}): "
        )?;
        write!(f, "{} operations", self.operations.len())?;
        if *dropped > 0 {
            write!(f, ", {dropped} before them not kept")?;
        }
        let mut rows = vec![["#", "operation", "entered", "took", "state"].map(String::from)];
        rows.extend(self.operations.iter().map(|entry| {
            [
                entry.call.sequence.to_string(),
                format!("{}{}", entry.call.name, entry.call.arguments()),
                format!("{} ago", brief(entry.entered)),
                brief(entry.took()),
                entry.state().into(),
            ]
        }));
        write!(f, "\n{}", columns(&rows, [true, false, true, true, false]))
    }
}

#[cfg(test)]
mod tests {
    use consort_kernels::{DataType, ReduceOp};

    use serde_json::Value;

    use super::*;
    use consort_types::call::{Descriptor, Kind, Named, Operator};

    fn entry(sequence: u64, ended: Option<u64>, failed: bool) -> FlightEntry {
        let descriptor = Descriptor {
            kind: if failed { Kind::Receive } else { Kind::AllReduce },
            data_type: DataType::Float32,
            op: (!failed).then_some(Operator::Plain(ReduceOp::Sum)),
            root: 3,
            count: 1024,
            named: Named::NONE,
        };
        let call = CallReport::new(sequence, &descriptor);
        FlightEntry {
            call,
            entered: Duration::from_millis(2500),
            ended: ended.map(Duration::from_millis),
            failed,
        }
    }

    #[test]
    fn the_text_says_what_is_open_and_what_failed() {
        let record = FlightRecord {
            communicator: "0123456789abcdef".into(),
            rank: 1,
            size: 4,
            host: "a".into(),
            process: 77,
            operations: vec![entry(9, Some(2400), false), entry(2, Some(0), true), entry(10, None, false)],
            dropped: 8,
        };
        let text = record.to_string();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines,
            [
                "flight record of communicator 01234567, rank 1 of 4 (host a, pid 77): 3 operations, 8 before them not kept",
                " #  operation                         entered      took  state",
                " 9  all_reduce of 1024 float (sum)  2.5 s ago  100.0 ms  finished",
                " 2  receive of 1024 float from 3    2.5 s ago     2.5 s  failed",
                "10  all_reduce of 1024 float (sum)  2.5 s ago     2.5 s  open",
            ]
        );
        let value: Value = serde_json::from_str(&record.to_json()).expect("json");
        assert_eq!((value["dropped"].as_u64(), value["rank"].as_u64()), (Some(8), Some(1)));
        assert_eq!(value["operations"][1]["call"]["root"], 3);
        assert_eq!(value["operations"][0]["call"]["root"], Value::Null);
        assert_eq!(value["operations"][2]["ended_s"], Value::Null);
    }
}
