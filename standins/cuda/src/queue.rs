//! Hardware queues: the threads that run the entries of streams.
//!
//! Invariant: while the entry at the head of a queue waits, all entries behind it wait too, also those of other
//! streams. The order is that of submission. A launch leaves the queue when it starts, every other entry when it has
//! ended. Absent: priorities.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::code::Answer;
use crate::context::Context;

/// The end of an entry.
#[derive(Debug, Default)]
pub(crate) struct Completion {
    is_over: AtomicBool,
    at: Mutex<Option<Instant>>,
    changed: Condvar,
}

impl Completion {
    pub(crate) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }

    /// The time at which it ended.
    pub(crate) fn at(&self) -> Option<Instant> {
        *self.at.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn end(&self) {
        let mut at = self.at.lock().unwrap_or_else(PoisonError::into_inner);
        at.get_or_insert_with(Instant::now);
        self.is_over.store(true, Ordering::Release);
        self.changed.notify_all();
    }

    pub(crate) fn wait(&self) {
        let mut at = self.at.lock().unwrap_or_else(PoisonError::into_inner);
        while at.is_none() {
            at = self.changed.wait(at).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Waits at most `time`; says whether the entry has ended.
    fn wait_for(&self, time: Duration) -> bool {
        let at = self.at.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.changed.wait_timeout_while(at, time, |at| at.is_none());
        waited.unwrap_or_else(PoisonError::into_inner).0.is_some()
    }
}

/// The work of an entry.
pub(crate) type Task = Box<dyn FnOnce(&Arc<Context>) -> Answer + Send>;

/// What an entry does when it is at the head of its queue and all that it waits for has ended.
pub(crate) enum Work {
    /// Nothing: only its place in the order matters.
    Nothing,
    /// Done in the queue.
    InQueue(Task),
    /// Started by the queue, which goes on.
    Beside(Task),
}

pub(crate) struct Entry {
    pub(crate) after: Vec<Arc<Completion>>,
    pub(crate) work: Work,
    pub(crate) completion: Arc<Completion>,
}

#[derive(Default)]
struct State {
    entries: VecDeque<Entry>,
    has_thread: bool,
}

/// A hardware queue of a context.
#[derive(Default)]
pub(crate) struct Queue {
    state: Mutex<State>,
    changed: Condvar,
}

impl std::fmt::Debug for Queue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Queue").finish_non_exhaustive()
    }
}

impl Queue {
    /// Appends an entry. The first entry starts the thread.
    pub(crate) fn push(self: &Arc<Self>, context: &Arc<Context>, entry: Entry) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.entries.push_back(entry);
        if !state.has_thread {
            let (queue, context) = (Arc::clone(self), Arc::clone(context));
            let thread = std::thread::Builder::new().name("standin queue".to_owned());
            state.has_thread = thread.spawn(move || queue.run(&context)).is_ok();
        }
        self.changed.notify_all();
    }

    /// Wakes the thread, so that it sees that the context is over.
    pub(crate) fn wake(&self) {
        let _state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        self.changed.notify_all();
    }

    fn run(&self, context: &Arc<Context>) {
        loop {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            let entry = loop {
                if let Some(entry) = state.entries.pop_front() {
                    break entry;
                }
                if context.is_over() {
                    state.has_thread = false;
                    return;
                }
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            };
            drop(state);
            for earlier in &entry.after {
                while !earlier.wait_for(Duration::from_millis(50)) && !context.is_over() {}
            }
            let completion = entry.completion;
            match entry.work {
                Work::Nothing => completion.end(),
                Work::InQueue(task) => {
                    context.run(task);
                    completion.end();
                }
                Work::Beside(task) => {
                    let (context, beside) = (Arc::clone(context), Arc::clone(&completion));
                    let thread = std::thread::Builder::new().name("standin launch".to_owned());
                    let started = thread.spawn(move || {
                        context.run(task);
                        beside.end();
                    });
                    if started.is_err() {
                        completion.end();
                    }
                }
            }
        }
    }
}
