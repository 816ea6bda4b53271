//! Work in the background: one thread per lane, which runs jobs in the order in which they were submitted.
//!
//! Invariant: a job begins when every job before it is over. The jobs before it are recorded under one lock for the
//! whole process ([`in_order`]), and were always submitted earlier, so jobs cannot wait for each other in a circle. A
//! lane's thread ends with the lane. Absent: what jobs do.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use super::result::{Failure, Result};
use consort_types::error::Error;

/// The end of a job, for which others may wait.
#[derive(Default)]
pub(crate) struct End {
    result: Mutex<Option<Result<()>>>,
    reached: Condvar,
}

impl End {
    pub(super) fn reach(&self, result: Result<()>) {
        *self.result.lock().unwrap_or_else(PoisonError::into_inner) = Some(result);
        self.reached.notify_all();
    }

    /// The job's result; `None` while it runs.
    pub(super) fn result(&self) -> Option<Result<()>> {
        self.result.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Waits until it is over.
    pub(super) fn wait(&self) -> Result<()> {
        let mut result = self.result.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(result) = &*result {
                return result.clone();
            }
            result = self.reached.wait(result).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// The last job that was submitted to a communicator or stream.
#[derive(Default)]
pub(crate) struct Last(Mutex<Option<Arc<End>>>);

impl Last {
    /// The last job, unless it is over.
    pub(super) fn unfinished(&self) -> Option<Arc<End>> {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if last.as_ref().is_some_and(|end| end.result().is_some()) {
            *last = None;
        }
        last.clone()
    }

    fn replace(&self, end: Arc<End>) -> Option<Arc<End>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).replace(end)
    }
}

/// The function of a job.
pub(crate) type Body = Box<dyn FnOnce() -> Result<()> + Send>;

struct Job {
    after: Vec<Arc<End>>,
    body: Body,
    end: Arc<End>,
}

/// A thread that runs jobs one after the other.
pub(crate) struct Lane {
    jobs: Option<Sender<Job>>,
    thread: Option<JoinHandle<()>>,
    /// A forked child does not have this thread.
    maker: u32,
}

impl Lane {
    /// # Errors
    /// The system's, when it has no thread.
    pub(super) fn start(name: &str) -> Result<Self> {
        let (jobs, received) = channel::<Job>();
        let thread = std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || {
                while let Ok(job) = received.recv() {
                    job.run();
                }
            })
            .map_err(|error| Error::system("a thread, for work in the background", error))?;
        Ok(Lane { jobs: Some(jobs), thread: Some(thread), maker: std::process::id() })
    }

    fn is_forked(&self) -> bool {
        std::process::id() != self.maker
    }

    /// # Errors
    /// [`Error::Forked`] in a process that does not have the thread.
    pub(super) fn check(&self) -> Result<()> {
        if self.is_forked() { Err(Error::Forked.into()) } else { Ok(()) }
    }

    /// Runs `body` after all earlier jobs of `keepers`, and makes it the last job of each.
    ///
    /// # Errors
    /// [`Error::Forked`]; where the lane's thread is gone, which is a defect.
    pub(super) fn submit<'a>(
        &self,
        _order: &Order,
        keepers: impl Iterator<Item = &'a Last>,
        body: Body,
    ) -> Result<Arc<End>> {
        self.check()?;
        let end = Arc::<End>::default();
        let after = keepers.filter_map(|last| last.replace(end.clone())).collect();
        let job = Job { after, body, end: end.clone() };
        let sent = self.jobs.as_ref().map(|jobs| jobs.send(job));
        if !matches!(sent, Some(Ok(()))) {
            let failure = Failure::from(Error::internal("a lane without its thread"));
            end.reach(Err(failure.clone()));
            return Err(failure);
        }
        Ok(end)
    }
}

impl Job {
    fn run(self) {
        // The results of earlier jobs go to their own callers.
        self.after.iter().for_each(|end| drop(end.wait()));
        let result = catch_unwind(AssertUnwindSafe(self.body));
        self.end.reach(
            result.unwrap_or_else(|_| Err(Error::internal("a panic in work in the background").into())),
        );
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        drop(self.jobs.take());
        if let Some(thread) = self.thread.take()
            && thread.thread().id() != std::thread::current().id()
            && !self.is_forked()
        {
            // A panic of a job was caught in the job.
            let _ = thread.join();
        }
    }
}

/// The lock under which the order of jobs is recorded.
pub(crate) struct Order(#[expect(dead_code, reason = "held, not read")] MutexGuard<'static, ()>);

/// Takes the lock.
pub(crate) fn in_order() -> Order {
    static ORDER: Mutex<()> = Mutex::new(());
    Order(ORDER.lock().unwrap_or_else(PoisonError::into_inner))
}
