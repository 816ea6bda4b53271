//! Operations as Chrome trace events, which Perfetto and chrome://tracing read.
//!
//! Invariant: pure. One event a line, so that a file that was cut off can be mended at a line's end. On one row
//! of the picture nothing overlaps: operations that were under way at the same time get rows of their own.

use std::fmt::Write;

use serde_json::json;

use super::offset::Alignment;
use crate::clock::Clock;
use crate::recorder::{Entry, Outcome};
use consort_types::Rank;
use consort_types::call::Descriptor;

/// Rows per communicator; more than this at the same time overlap on the last.
const LANES: usize = 16;

/// The same moment in the ring's ticks and in nanoseconds of this rank's clock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Moment {
    pub(super) ticks: u64,
    pub(super) nanoseconds: u64,
}

impl Moment {
    /// The present. Of several readings the one that was interrupted least.
    pub(super) fn now(clock: &Clock) -> Self {
        let readings = (0..8).map(|_| (clock.ticks(), clock.monotonic_ns(), clock.ticks()));
        let best = readings.min_by_key(|(before, _, after)| after.saturating_sub(*before));
        let (before, nanoseconds, after) = best.unwrap_or_default();
        Moment { ticks: before.midpoint(after), nanoseconds }
    }
}

/// What the ring's ticks are in nanoseconds: a straight line through two moments, far apart.
pub(super) struct Scale {
    pub(super) first: Moment,
    pub(super) last: Moment,
}

impl Scale {
    fn at(&self, ticks: u64) -> u64 {
        let Scale { first, last } = self;
        let span = i128::from(last.ticks.saturating_sub(first.ticks)).max(1);
        let length = i128::from(last.nanoseconds) - i128::from(first.nanoseconds);
        let since = i128::from(ticks) - i128::from(first.ticks);
        (i128::from(first.nanoseconds) + since * length / span).clamp(0, i128::from(u64::MAX)) as u64
    }
}

/// One operation by the clock of the job's rank 0, in nanoseconds.
#[derive(Clone, Debug)]
pub(super) struct Operation {
    sequence: u64,
    descriptor: Descriptor,
    start: u64,
    end: u64,
    outcome: Outcome,
}

impl Operation {
    /// What is still open lasts until now.
    pub(super) fn new(entry: &Entry, scale: &Scale, alignment: &Alignment) -> Self {
        let ended = if entry.outcome == Outcome::Open { scale.last.ticks } else { entry.ended };
        let start = alignment.align(scale.at(entry.entered));
        Operation {
            sequence: entry.sequence,
            descriptor: entry.descriptor,
            start,
            end: alignment.align(scale.at(ended)).max(start),
            outcome: entry.outcome,
        }
    }
}

/// Whose operations they are.
pub(super) struct Track {
    pub(super) job_rank: Rank,
    pub(super) process: String,
    pub(super) communicator: u64,
    pub(super) thread: String,
    /// How far rank 0's clock is ahead of this rank's and how sure that is; none if it is not known.
    pub(super) clock: Option<(i64, u64)>,
    /// Operations that are not kept any more.
    pub(super) dropped: u64,
}

impl Track {
    /// The number of a row: the same for a communicator on all ranks, and another one for each communicator.
    fn row(&self, lane: usize) -> u64 {
        (self.communicator >> 37) << 4 | lane as u64
    }
}

/// Nanoseconds as microseconds.
struct Micros(u64);

impl std::fmt::Display for Micros {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{:03}", self.0 / 1000, self.0 % 1000)
    }
}

/// The events of a communicator on one rank, a line each, with commas between them.
/// `notes` are what was said of wires, with their times.
pub(super) fn lines(track: &Track, operations: &[Operation], notes: &[(u64, String)]) -> String {
    let pid = track.job_rank;
    let clock = track.clock.map(|(offset, bound)| json!({ "offset_ns": offset, "error_ns": bound }));
    let named = |what: &str, tid: u64, args: serde_json::Value| json!({ "ph": "M", "name": what, "pid": pid, "tid": tid, "args": args });
    let mut head = vec![
        named("process_name", 0, json!({ "name": track.process, "clock": clock })),
        named("process_sort_index", 0, json!({ "sort_index": pid })),
    ];
    let mut sorted: Vec<&Operation> = operations.iter().collect();
    sorted.sort_by_key(|operation| (operation.start, operation.end));
    let mut lanes: Vec<u64> = vec![0];
    let mut body = String::with_capacity(sorted.len() * 200);
    for operation in &sorted {
        let free = lanes.iter().position(|end| *end <= operation.start);
        let lane = free.unwrap_or_else(|| {
            if lanes.len() < LANES {
                lanes.push(0);
            }
            lanes.len() - 1
        });
        lanes[lane] = operation.end;
        body.push_str(",\n");
        event(&mut body, pid, track.row(lane), operation);
    }
    for lane in 0..lanes.len() {
        let more = if lane == 0 { String::new() } else { format!(", at the same time {}", lane + 1) };
        head.push(named(
            "thread_name",
            track.row(lane),
            json!({ "name": format!("{}{more}", track.thread) }),
        ));
        head.push(named("thread_sort_index", track.row(lane), json!({ "sort_index": lane })));
    }
    let mut text: String = head.iter().map(ToString::to_string).collect::<Vec<_>>().join(",\n");
    let start = sorted.first().map_or(0, |operation| operation.start);
    let mut note = |name: &str, dropped: u64| {
        let (ts, tid) = (Micros(start), track.row(0));
        let _ = write!(
            text,
            ",\n{{\"ph\":\"i\",\"s\":\"p\",\"cat\":\"note\",\"name\":\"{name}\",\"pid\":{pid},\"tid\":{tid},\"ts\":{ts},\"args\":{{\"dropped\":{dropped}}}}}"
        );
    };
    if track.dropped > 0 {
        note(&format!("{} operations before this are not kept", track.dropped), track.dropped);
    }
    if track.clock.is_none() {
        note("rank 0 did not say its time: this rank's clock is not aligned", track.dropped);
    }
    for (at, name) in notes {
        let (ts, tid) = (at / 1000, track.row(0));
        let note =
            json!({ "ph": "i", "s": "p", "cat": "wire", "name": name, "pid": pid, "tid": tid, "ts": ts });
        let _ = write!(text, ",\n{note}");
    }
    text.push_str(&body);
    text
}

fn event(out: &mut String, pid: Rank, tid: u64, operation: &Operation) {
    let Operation { sequence, descriptor, start, end, outcome } = operation;
    let (name, count) = (descriptor.kind.name(), descriptor.count);
    let (data_type, bytes) = (descriptor.data_type.name(), count * descriptor.data_type.size() as u64);
    let (ts, dur) = (Micros(*start), Micros(end - start));
    let category = if descriptor.kind.is_message() { "message" } else { "collective" };
    // Names of this library's own, without anything that would have to be escaped.
    let _ = write!(
        out,
        "{{\"ph\":\"X\",\"cat\":\"{category}\",\"name\":\"{name}\",\"pid\":{pid},\"tid\":{tid},\"ts\":{ts},\"dur\":{dur},\"args\":{{\"sequence\":{sequence},\"count\":{count},\"data_type\":\"{data_type}\",\"bytes\":{bytes}"
    );
    if let Some(op) = descriptor.op {
        let _ = write!(out, ",\"op\":\"{}\"", op.name());
    }
    if let Some(root) = descriptor.kind.is_rooted().then_some(descriptor.root) {
        let key = if descriptor.kind.is_message() { "peer" } else { "root" };
        let _ = write!(out, ",\"{key}\":{root}");
    }
    match outcome {
        Outcome::Open => out.push_str(",\"open\":true"),
        Outcome::Failed => out.push_str(",\"failed\":true"),
        Outcome::Finished => {}
    }
    out.push_str("}}");
}

#[cfg(test)]
mod tests {
    use consort_kernels::{DataType, ReduceOp};
    use serde_json::Value;

    use super::*;
    use crate::clock::Reading;
    use consort_types::call::Named;
    use consort_types::call::{Kind, Operator};

    fn track(dropped: u64) -> Track {
        Track {
            job_rank: 3,
            process: "rank 3 (host \"a\", pid 77)".into(),
            communicator: 0xfedc_ba98_7654_3210,
            thread: "fedcba9876543210 (ranks 0-3)".into(),
            clock: Some((-5, 7)),
            dropped,
        }
    }

    fn entry(sequence: u64, kind: Kind, entered: u64, ended: u64, outcome: Outcome) -> Entry {
        let op = (kind == Kind::Reduce).then_some(Operator::Plain(ReduceOp::Sum));
        let descriptor =
            Descriptor { kind, data_type: DataType::Float32, op, root: 2, count: 10, named: Named::NONE };
        Entry { index: sequence, sequence, descriptor, entered, ended, outcome }
    }

    /// A tick is half a nanosecond, tick 4000 is second 5.
    fn scale() -> Scale {
        let moment = |ticks, nanoseconds| Moment { ticks, nanoseconds };
        Scale { first: moment(2_000, 4_999_999_000), last: moment(4_000, 5_000_000_000) }
    }

    fn parsed(track: &Track, entries: &[Entry], alignment: &Alignment) -> Vec<Value> {
        let operations: Vec<_> = entries.iter().map(|e| Operation::new(e, &scale(), alignment)).collect();
        let text = lines(track, &operations, &[(5_000_000_700, "a \"slow\" wire".into())]);
        assert!(text.lines().all(|line| line.starts_with('{') && line.trim_end_matches(',').ends_with('}')));
        serde_json::from_str(&format!("[\n{text}\n]\n")).expect("valid JSON")
    }

    fn of<'a>(events: &'a [Value], ph: &str) -> Vec<&'a Value> {
        events.iter().filter(|event| event["ph"] == ph).collect()
    }

    #[test]
    fn operations_come_back_with_their_times_and_arguments() {
        let reading = Reading { at: 1, offset: 1_000_000, bound: 3 };
        let entries = [
            entry(7, Kind::Reduce, 2_000, 2_500, Outcome::Finished),
            entry(8, Kind::Send, 2_600, 3_001, Outcome::Failed),
            entry(9, Kind::Barrier, 3_400, 0, Outcome::Open),
        ];
        let events = parsed(&track(0), &entries, &Alignment::Apart(reading, reading));
        let complete = of(&events, "X");
        assert_eq!(complete.len(), 3);
        assert_eq!(complete[0]["name"], "reduce");
        assert_eq!(complete[0]["ts"].as_f64(), Some(5_000_999.0));
        assert_eq!(complete[0]["dur"].as_f64(), Some(0.25));
        let args =
            json!({ "sequence": 7, "count": 10, "data_type": "float", "bytes": 40, "op": "sum", "root": 2 });
        assert_eq!(complete[0]["args"], args);
        assert_eq!((&complete[1]["args"]["peer"], &complete[1]["args"]["failed"]), (&json!(2), &json!(true)));
        assert_eq!(complete[2]["args"]["open"], true);
        assert_eq!(complete[2]["dur"].as_f64(), Some(0.3));
        assert!(complete.iter().all(|event| event["tid"] == complete[0]["tid"] && event["pid"] == 3));
        let names: Vec<&Value> = of(&events, "M").into_iter().map(|event| &event["args"]["name"]).collect();
        assert_eq!(names[0], "rank 3 (host \"a\", pid 77)");
        assert!(names.contains(&&json!("fedcba9876543210 (ranks 0-3)")));
        let notes = of(&events, "i");
        assert_eq!((&notes[0]["name"], &notes[0]["ts"]), (&json!("a \"slow\" wire"), &json!(5_000_000)));
        assert_eq!(notes.len(), 1);
    }

    #[test]
    fn what_overlaps_is_on_rows_of_its_own() {
        let entries: Vec<Entry> =
            (0..40).map(|at| entry(at, Kind::Reduce, 2_000 + at, 3_000 + at, Outcome::Finished)).collect();
        let events = parsed(&track(0), &entries, &Alignment::Same);
        let mut rows: Vec<u64> = of(&events, "X").iter().filter_map(|event| event["tid"].as_u64()).collect();
        rows.dedup();
        assert_eq!((rows.len(), rows[15] - rows[0]), (LANES, 15));
        assert!(rows[15] <= i32::MAX as u64);
        let named = of(&events, "M").into_iter().filter(|event| event["name"] == "thread_name").count();
        assert_eq!(named, LANES);
        // One after the other they share a row.
        let entries: Vec<Entry> = (0..40)
            .map(|at| entry(at, Kind::Reduce, 2_000 + 10 * at, 2_008 + 10 * at, Outcome::Finished))
            .collect();
        let events = parsed(&track(0), &entries, &Alignment::Same);
        assert!(of(&events, "X").iter().all(|event| event["tid"].as_u64() == Some(rows[0])));
    }

    #[test]
    fn what_is_not_kept_and_what_is_not_known_is_said() {
        let entries = [entry(7, Kind::Reduce, 2_000, 2_500, Outcome::Finished)];
        let track = Track { clock: None, ..track(12) };
        let events = parsed(&track, &entries, &Alignment::Unknown);
        let notes = of(&events, "i");
        assert_eq!(notes.len(), 3);
        assert_eq!(notes[0]["args"]["dropped"], 12);
        assert_eq!(notes[0]["name"], "12 operations before this are not kept");
        assert!(parsed(&track, &[], &Alignment::Unknown).len() >= 4);
    }
}
