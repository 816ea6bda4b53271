//! Groups as C has them: calls between a start and an end, on one thread, that are issued together at the outermost
//! end.
//!
//! Invariant: no call of a group is issued before its outermost end, and none at all if one of them was refused.
//! First communicators are made, then data moves, then communicators end. Absent: what the calls do.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use super::comm::{AtWork, Comm, Work};
use super::operation::{Entry, Operation, start as start_operations};
use super::result::{Failure, Progress, Result};
use super::stream::Stream;
use super::thread;
use consort_types::error::Error;

/// The work of a task. Where its group was not issued it gets the reason, and leaves behind what the task must leave
/// then.
pub(super) type Act = Box<dyn FnOnce(Option<&Failure>) -> Result<()> + Send>;

/// The turn of a task within its group.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Turn {
    /// After all operations under way on its communicator, before the data calls of its group.
    Begin,
    /// The same, but it ends the operations under way first, as they may wait for a rank that never comes: a shrink.
    Interrupt,
    /// After the data calls of its group: it ends the communicator, and does so even where the group is not issued,
    /// as the handle is gone.
    End,
}

/// A task that makes, changes or ends a communicator.
pub(super) struct Task {
    /// The communicator in whose background it may run; the parent, where a new one is made of an old one.
    pub(super) comm: Arc<Comm>,
    pub(super) act: Act,
    pub(super) turn: Turn,
}

impl Task {
    /// Called before any thread waits for operations under way.
    fn prepare(&self) {
        if self.turn == Turn::Interrupt {
            self.comm.interrupt("ncclCommShrink was called with NCCL_SHRINK_ABORT");
        }
    }

    fn run(self) -> Result<()> {
        self.prepare();
        self.comm.drain();
        // Marks the communicator as busy, for an abort by another thread.
        let _at_work = AtWork::new(&self.comm, Work::Task);
        (self.act)(None)
    }

    fn refuse(self, why: &Failure) {
        if self.turn == Turn::End {
            self.comm.drain();
        }
        // The failure is `why`.
        let _ = (self.act)(Some(why));
    }
}

#[derive(Default)]
struct Open {
    tasks: Vec<Task>,
    entries: Vec<Entry>,
    streams: Vec<Arc<Stream>>,
    /// Whether it has a data call without a stream, which must be over at the end.
    is_awaited: bool,
    /// Whether its communicators block; all of them do or none.
    blocking: Option<bool>,
    /// The failure of the first refused call.
    refused: Option<Failure>,
}

thread_local! {
    static OPEN: Thread = Thread::default();
}

/// A thread's open group. If the thread ends with it, its calls get the failure that they will not be issued.
#[derive(Default)]
struct Thread(RefCell<Open>);

impl Drop for Thread {
    fn drop(&mut self) {
        let tasks = std::mem::take(&mut self.0.get_mut().tasks);
        let why = Failure::usage("its thread ended with the group open", "end every group on its thread");
        // A panic here would end the process.
        let _ = catch_unwind(AssertUnwindSafe(|| not_issued(tasks, why)));
    }
}

/// Whether a group is open on this thread.
#[inline]
pub fn is_open() -> bool {
    thread::depth() != 0
}

/// Opens a group, or an inner one.
pub fn start() {
    thread::set_depth(thread::depth().saturating_add(1));
}

/// Closes a group. The outermost end issues the recorded calls and, unless its communicators do not block, waits for
/// them.
///
/// # Errors
/// Without a group; the failure of a call that was refused in it; the first failure of an issued call.
pub fn end() -> Result<Progress> {
    match close()? {
        None => Ok(Progress::Done),
        Some(open) => open.issue(),
    }
}

/// Closes a group without issuing it and returns the time of its data calls by the planner's prices, in microseconds.
/// An inner group has no time: its outermost end will issue it or not.
///
/// # Errors
/// As [`end`], and where a call has no price.
pub fn simulate_end() -> Result<Option<f64>> {
    let Some(open) = close()? else { return Ok(None) };
    let Open { tasks, entries, refused, .. } = open;
    if let Some(refused) = refused {
        return Err(not_issued(tasks, refused));
    }
    let simulated =
        Failure::usage("the group was ended by ncclGroupSimulateEnd", "end it with ncclGroupEnd to issue it");
    let _ = not_issued(tasks, simulated);
    let mut seconds = 0.0f64;
    for entry in &entries {
        seconds += entry.price()?;
    }
    Ok(Some(seconds * 1e6))
}

/// Closes one level; returns the recorded calls if that was the outermost.
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
    Ok(Some(OPEN.try_with(|open| open.0.take()).unwrap_or_default()))
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
        let _ = OPEN.try_with(|open| open.0.borrow_mut().refused.get_or_insert_with(|| failure.clone()).code);
    }
}

fn with_open<T>(change: impl FnOnce(&mut Open) -> Result<T>) -> Result<T> {
    OPEN.try_with(|open| change(&mut open.0.borrow_mut()))
        .unwrap_or_else(|_| Err(Error::internal("a group on a thread that ends").into()))
}

/// Records a data call.
pub(super) fn add(entry: Entry, stream: Option<Arc<Stream>>) -> Result<()> {
    with_open(|open| {
        open.mix(&entry.comm)?;
        open.entries.push(entry);
        open.is_awaited |= stream.is_none();
        if let Some(stream) = stream
            && !open.streams.iter().any(|known| Arc::ptr_eq(known, &stream))
        {
            open.streams.push(stream);
        }
        Ok(())
    })
}

impl Comm {
    /// Makes a data call. It is recorded if a group is open on this thread; otherwise it is put into the stream, or
    /// run by the caller, or, on a non-blocking communicator, in the background.
    ///
    /// # Errors
    /// An error that is found at once also fails an open group; without a group, the operation's failure.
    pub fn issue(self: &Arc<Self>, operation: Operation, stream: Option<&Arc<Stream>>) -> Result<Progress> {
        noting(|| {
            let communicator = self.for_data()?;
            operation.check(communicator)?;
            // The caller gets the failure of a communicator that is over here, and not from its stream or group.
            communicator.status()?;
            let entry = Entry { comm: self.clone(), operation };
            if is_open() {
                return add(entry, stream.cloned()).map(|()| Progress::Done);
            }
            start_operations(vec![entry], stream.cloned().into_iter().collect(), false)
        })
    }
}

/// Records a task if a group is open; otherwise runs it, in the background if its communicator does not block.
pub(super) fn task(task: Task) -> Result<Progress> {
    if is_open() {
        // A task that ends a communicator is never refused: its handle is gone.
        if task.turn != Turn::End
            && let Err(failure) = with_open(|open| open.mix(&task.comm))
        {
            task.refuse(&failure);
            return Err(failure);
        }
        return with_open(|open| {
            open.tasks.push(task);
            Ok(Progress::Done)
        });
    }
    if task.comm.is_blocking() || task.turn == Turn::End {
        return task.run().map(|()| Progress::Done);
    }
    in_background(vec![task])
}

/// Passes the tasks of a group the reason why it was not issued.
fn not_issued(tasks: Vec<Task>, why: Failure) -> Failure {
    tasks.into_iter().for_each(|task| task.refuse(&why));
    why
}

/// The communicator of all entries, if they have the same one.
fn only_comm(entries: &[Entry]) -> Option<Arc<Comm>> {
    let first = &entries.first()?.comm;
    entries.iter().all(|entry| Arc::ptr_eq(&entry.comm, first)).then(|| first.clone())
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
            return Err(not_issued(self.tasks, refused));
        }
        let (ends, begins): (Vec<Task>, Vec<Task>) =
            self.tasks.into_iter().partition(|task| task.turn == Turn::End);
        let begun = if self.blocking == Some(false) { in_background(begins) } else { side_by_side(begins) };
        let (entries, streams, is_awaited) = (self.entries, self.streams, self.is_awaited);
        let only = only_comm(&entries).filter(|comm| comm.is_blocking() && streams.is_empty());
        let moved = begun.and_then(|begun| {
            let moved = start_operations(entries, streams, is_awaited);
            // A failure in the background gets its communicator's label there.
            Ok([begun, moved.map_err(|failure| only.iter().fold(failure, |it, comm| it.said_by(comm)))?])
        });
        // Runs in any case: the caller has no other way to end these communicators.
        let ended = side_by_side(ends);
        let progress = moved?;
        let _ = ended?;
        Ok(if progress.contains(&Progress::Pending) { Progress::Pending } else { Progress::Done })
    }
}

/// Runs tasks of blocking communicators. Tasks of one communicator run in their order; each communicator has a thread
/// of its own, as its ranks may wait for each other.
fn side_by_side(tasks: Vec<Task>) -> Result<Progress> {
    let mut chains: Vec<Vec<Task>> = Vec::new();
    for task in tasks {
        match chains.iter_mut().find(|chain| Arc::ptr_eq(&chain[0].comm, &task.comm)) {
            Some(chain) => chain.push(task),
            None => chains.push(vec![task]),
        }
    }
    // All tasks of a chain run, also after a failure: the other ranks call them too.
    let run = |chain: Vec<Task>| chain.into_iter().map(Task::run).fold(Ok(()), Result::and);
    if chains.len() <= 1 {
        return chains.into_iter().try_for_each(run).map(|()| Progress::Done);
    }
    let results = std::thread::scope(|threads| {
        let mut started = Vec::with_capacity(chains.len());
        for chain in chains {
            let builder = std::thread::Builder::new().name("consort-group".to_owned());
            started.push(builder.spawn_scoped(threads, move || run(chain)));
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
    for task in tasks {
        task.prepare();
        let Task { comm, act, turn } = task;
        let parent = comm.clone();
        comm.in_background(std::slice::from_ref(&comm), Work::Task, move || {
            act(None)?;
            if turn == Turn::Interrupt {
                parent.answer();
            }
            Ok(())
        })?;
        progress = Progress::Pending;
    }
    Ok(progress)
}
