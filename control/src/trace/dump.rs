//! When and where a communicator writes its flight record and its trace.
//!
//! Invariant: each is written once: the flight record when a call first returns the failure that ended the
//! communicator (or else when it is closed after one), the trace when it is closed: it may be long, and a failing
//! call must not wait for it. What cannot be written is one warning. Absent:
//! waiting for other ranks, but for a short bounded time for rank 0's clock and for the trace's lock.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use consort_memory::sync::{AtomicBool, Ordering};
use serde_json::json;

use super::events::{Moment, Operation, Scale, Track, lines};
use super::file;
use super::offset::{self, Alignment};
use super::record::FlightRecord;
use crate::clock::Clock;
use crate::membership::group::Group;
use consort_settings::options::Settings;
use consort_types::error::{Error, list};

/// How long a close waits for rank 0's clock and for the lock of the trace's file.
const AT_CLOSE: [Duration; 2] = [Duration::from_millis(200), Duration::from_secs(5)];
/// Operations in a failure's file, at most: writing them must not hold up the call that fails.
const OPERATIONS: usize = 4096;
/// How long joining waits for rank 0's clock.
const AT_JOIN: Duration = Duration::from_millis(500);

/// What one communicator has to write, and whether it has.
#[derive(Debug)]
pub struct Dumps {
    flight_record: Option<PathBuf>,
    /// The file, and when the communicator was made.
    trace: Option<(PathBuf, Moment)>,
    /// Whether the failure was written, and the trace.
    recorded: AtomicBool,
    traced: AtomicBool,
}

impl Dumps {
    pub fn new(settings: &Settings, clock: &Clock) -> Self {
        Dumps {
            flight_record: settings.flight_record.clone(),
            trace: settings.trace.clone().map(|path| (path, Moment::now(clock))),
            recorded: AtomicBool::new(false),
            traced: AtomicBool::new(false),
        }
    }

    /// A call returns this failure to its caller, on the caller's thread.
    #[cold]
    pub fn failed(&self, group: &Group, error: &Error) {
        if !error.is_fatal() || !group.has_failed() || self.recorded.swap(true, Ordering::Relaxed) {
            return;
        }
        if let Some(directory) = &self.flight_record
            && let Err(cause) = write_record(directory, group, error)
        {
            let directory = directory.display();
            tracing::warn!(
                rank = group.rank,
                "the flight record could not be written to {directory}: {cause}"
            );
        }
    }

    /// Whether the failure that a communicator closes with has not been written yet.
    pub fn owes_record(&self) -> bool {
        self.flight_record.is_some() && !self.recorded.load(Ordering::Relaxed)
    }

    /// The communicator closes; before it tells the others.
    pub fn closing(&self, group: &Group) {
        let Some((path, start)) = &self.trace else { return };
        if self.traced.swap(true, Ordering::Relaxed) {
            return;
        }
        let [clock, lock] = AT_CLOSE;
        if let Err(cause) = file::append(path, &trace_of(group, *start, clock), lock) {
            self.traced.store(false, Ordering::Relaxed);
            let path = path.display();
            tracing::warn!(rank = group.rank, "the trace could not be written to {path}: {cause}");
        }
    }
}

/// A job with a trace is joined: rank 0's clock is read for the first time.
pub fn joined(group: &Group, settings: &Settings) {
    if settings.trace.is_some()
        && let Some(reading) = offset::read(&group.member, AT_JOIN)
    {
        let _ = group.member.first_reading.set(reading);
    }
}

/// The failure's file: the record, the error's text and the report that explains it.
fn write_record(directory: &Path, group: &Group, error: &Error) -> io::Result<()> {
    let mut value = json!(FlightRecord::of(group, OPERATIONS));
    value["error"] = error.to_string().into();
    value["report"] = json!(group.report().as_deref());
    let text = format!("{value:#}\n");
    let name = format!("consort-{}-rank{}.json", group.name(), group.rank);
    fs::create_dir_all(directory)?;
    let unfinished = directory.join(format!(".{name}.{}", std::process::id()));
    let written = create(&unfinished)
        .and_then(|mut file| file.write_all(text.as_bytes()))
        .and_then(|()| fs::rename(&unfinished, directory.join(name)));
    if written.is_err() {
        let _ = fs::remove_file(&unfinished);
    }
    written
}

/// A new file, never through a link that another user put there.
fn create(path: &Path) -> io::Result<File> {
    let new = || OpenOptions::new().write(true).create_new(true).open(path);
    match new() {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            fs::remove_file(path)?;
            new()
        }
        other => other,
    }
}

/// Everything that this rank has to say in the trace, as lines.
fn trace_of(group: &Group, start: Moment, patience: Duration) -> String {
    let member = &group.member;
    let first = member.first_reading.get().copied();
    let one_host = offset::on_one_host(member);
    let last = match Alignment::of(first, None, one_host) {
        Alignment::Same => None,
        _ => offset::read(member, patience),
    };
    let alignment = Alignment::of(first, last, one_host);
    let entries = group.recorder.last(usize::MAX);
    let scale = Scale { first: start, last: Moment::now(group.clock()) };
    let operations: Vec<Operation> =
        entries.iter().map(|entry| Operation::new(entry, &scale, &alignment)).collect();
    let host = &member.table[member.rank as usize];
    let label = if group.label.is_empty() { String::new() } else { format!("{}: ", group.label) };
    let track = Track {
        job_rank: member.rank,
        process: format!("rank {} (host {}, pid {})", member.rank, host.host, host.pid),
        communicator: group.uid,
        thread: format!("{label}{} (ranks {})", group.name(), list(&group.members)),
        clock: alignment.last(),
        dropped: entries.last().map_or(0, |last| last.index - entries.len() as u64),
    };
    let notes: Vec<(u64, String)> =
        group.wire_notes().into_iter().map(|(at, text)| (alignment.align(at), text)).collect();
    lines(&track, &operations, &notes)
}
