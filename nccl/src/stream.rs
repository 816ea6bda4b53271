//! Host streams: the counterpart of CUDA's streams, for host memory.
//!
//! Invariant: operations of a stream run in its order, after earlier operations of their communicators. A failure
//! stays until a call asks the stream for it. Absent: events, kernels.

use std::sync::{Arc, Mutex, PoisonError};

use super::lane::{Lane, Last};
use super::result::{Failure, Progress, Result};

/// A queue of operations on host memory with a thread that runs them.
pub struct Stream {
    pub(super) lane: Lane,
    pub(super) last: Last,
    failure: Arc<Mutex<Option<Failure>>>,
}

impl Stream {
    /// # Errors
    /// The system's, when it has no thread.
    pub fn create() -> Result<Self> {
        Ok(Stream { lane: Lane::start("consort-stream")?, last: Last::default(), failure: Arc::default() })
    }

    /// The place where its operations leave their failure.
    pub(super) fn failures(&self) -> Arc<Mutex<Option<Failure>>> {
        self.failure.clone()
    }

    /// Waits until everything in it is over.
    ///
    /// # Errors
    /// The first failure since the last such call.
    pub fn synchronize(&self) -> Result<()> {
        self.lane.check()?;
        while let Some(end) = self.last.unfinished() {
            // Returned below, once.
            let _ = end.wait();
        }
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).take().map_or(Ok(()), Err)
    }

    /// Whether everything in it is over.
    ///
    /// # Errors
    /// As [`Stream::synchronize`], once it is.
    pub fn query(&self) -> Result<Progress> {
        self.lane.check()?;
        match self.last.unfinished() {
            Some(_) => Ok(Progress::Pending),
            None => self.synchronize().map(|()| Progress::Done),
        }
    }
}

impl std::fmt::Debug for Stream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stream").field("idle", &self.last.unfinished().is_none()).finish_non_exhaustive()
    }
}
