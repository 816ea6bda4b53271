//! Groups as C has them: calls between a start and an end, on one thread, that are issued together at the outermost
//! end.
//!
//! Invariant: nothing of a group is issued before its outermost end, and nothing at all if a call in it was refused.
//! First communicators are made, then data moves, then communicators end. Absent: what the calls do.

use std::cell::RefCell;
use std::sync::Arc;

use super::comm::Comm;
use super::operation::{Entry, start as start_operations};
use super::result::{Failure, Progress, Result};
use super::stream::Stream;
use super::thread;
use crate::error::Error;

/// Something that is to happen to a communicator.
pub(super) struct Task {
    /// Whose background it may run in; that of the parent, where a new one is made of an old one.
    pub(super) comm: Arc<Comm>,
    pub(super) body: Box<dyn FnOnce() -> Result<()> + Send>,
    /// Whether it ends the communicator, and so comes after the data.
    pub(super) is_end: bool,
}

#[derive(Default)]
struct Open {
    tasks: Vec<Task>,
    entries: Vec<Entry>,
    streams: Vec<Arc<Stream>>,
    /// Whether its communicators block; they all do or none.
    blocking: Option<bool>,
    /// What the first refused call was told.
    refused: Option<Failure>,
}

thread_local! {
    static OPEN: RefCell<Open> = RefCell::default();
}

/// Whether a group is open on this thread.
#[inline]
pub fn is_open() -> bool {
    thread::depth() != 0
}

/// Opens a group, or one within.
pub fn start() {
    thread::set_depth(thread::depth().saturating_add(1));
}

/// Closes a group; the outermost issues what was written down and, unless its communicators do not block, waits for it.
///
/// # Errors
/// Without a group; what a call in it was refused for; the first failure of what it issued.
pub fn end() -> Result<Progress> {
    match close()? {
        None => Ok(Progress::Done),
        Some(open) => open.issue(),
    }
}

/// Closes a group without issuing it; its data calls' time by the planner's prices, in microseconds. Nothing is said of a
/// group within another, which its outermost end will issue or not.
///
/// # Errors
/// As [`end`], and when a price is not to be had.
pub fn simulate_end() -> Result<Option<f64>> {
    let Some(open) = close()? else { return Ok(None) };
    if let Some(refused) = open.refused {
        return Err(refused);
    }
    let mut seconds = 0.0f64;
    for entry in &open.entries {
        seconds += entry.price()?;
    }
    Ok(Some(seconds * 1e6))
}

/// One level up; what was written down if that was the outermost.
fn close() -> Result<Option<Open>> {
    let depth = thread::depth();
    if depth == 0 {
        return Err(Failure::usage(
            "there is no group to end",
            "call ncclGroupStart first, on the same thread",
        ));
    }
    thread::set_depth(depth - 1);
    if depth > 1 {
        return Ok(None);
    }
    Ok(Some(OPEN.try_with(RefCell::take).unwrap_or_default()))
}

/// Runs `call`; its failure fails the group that is open, if one is.
pub(super) fn noting<T>(call: impl FnOnce() -> Result<T>) -> Result<T> {
    let result = call();
    if let Err(failure) = &result {
        refuse(failure);
    }
    result
}

/// Fails the group that is open, if one is.
pub fn refuse(failure: &Failure) {
    if is_open() {
        let _ = OPEN.try_with(|open| open.borrow_mut().refused.get_or_insert_with(|| failure.clone()).code);
    }
}

fn with_open<T>(change: impl FnOnce(&mut Open) -> Result<T>) -> Result<T> {
    OPEN.try_with(|open| change(&mut open.borrow_mut()))
        .unwrap_or_else(|_| Err(Error::internal("a group on a thread that ends").into()))
}

/// Writes a data call down.
pub(super) fn add(entry: Entry, stream: Option<Arc<Stream>>) -> Result<()> {
    with_open(|open| {
        open.mix(&entry.comm)?;
        open.entries.push(entry);
        if let Some(stream) = stream
            && !open.streams.iter().any(|known| Arc::ptr_eq(known, &stream))
        {
            open.streams.push(stream);
        }
        Ok(())
    })
}

/// Writes a task down if a group is open; otherwise runs it, in the background if its communicator does not block.
pub(super) fn task(task: Task) -> Result<Progress> {
    if is_open() {
        return with_open(|open| {
            open.mix(&task.comm)?;
            open.tasks.push(task);
            Ok(Progress::Done)
        });
    }
    if task.comm.is_blocking() || task.is_end {
        task.comm.drain();
        return (task.body)().map(|()| Progress::Done);
    }
    let comm = task.comm;
    comm.in_background(std::slice::from_ref(&comm), task.body).map(|()| Progress::Pending)
}

impl Open {
    fn mix(&mut self, comm: &Comm) -> Result<()> {
        let blocking = comm.is_blocking();
        if *self.blocking.get_or_insert(blocking) == blocking {
            return Ok(());
        }
        Err(Failure::argument(
            "blocking and non-blocking communicators in the same group",
            "use a group for each kind",
        ))
    }

    fn issue(self) -> Result<Progress> {
        if let Some(refused) = self.refused {
            return Err(refused);
        }
        let (ends, begins): (Vec<Task>, Vec<Task>) = self.tasks.into_iter().partition(|task| task.is_end);
        let begun = if self.blocking == Some(false) { in_background(begins) } else { side_by_side(begins) };
        let moved = begun.and_then(|begun| Ok([begun, start_operations(self.entries, self.streams)?]));
        // Whatever became of the rest, who wants to end them has no other way.
        let ended = side_by_side(ends);
        let progress = moved?;
        let _ = ended?;
        Ok(if progress.contains(&Progress::Pending) { Progress::Pending } else { Progress::Done })
    }
}

/// Runs tasks of blocking communicators, each on a thread of its own, as their ranks may wait for each other.
fn side_by_side(tasks: Vec<Task>) -> Result<Progress> {
    let run = |task: Task| {
        task.comm.drain();
        (task.body)()
    };
    if tasks.len() <= 1 {
        return tasks.into_iter().try_for_each(run).map(|()| Progress::Done);
    }
    let results = std::thread::scope(|threads| {
        let mut started = Vec::with_capacity(tasks.len());
        for task in tasks {
            let builder = std::thread::Builder::new().name("consort-group".to_owned());
            started.push(builder.spawn_scoped(threads, move || run(task)));
        }
        let ended = started.into_iter().map(|thread| match thread {
            Ok(thread) => {
                thread.join().unwrap_or_else(|_| Err(Error::internal("a panic in a task of a group").into()))
            }
            Err(error) => Err(Error::system("a thread, for a task of a group", error).into()),
        });
        ended.collect::<Vec<Result<()>>>()
    });
    results.into_iter().collect::<Result<()>>().map(|()| Progress::Done)
}

fn in_background(tasks: Vec<Task>) -> Result<Progress> {
    let mut progress = Progress::Done;
    for Task { comm, body, .. } in tasks {
        comm.in_background(std::slice::from_ref(&comm), body)?;
        progress = Progress::Pending;
    }
    Ok(progress)
}
