//! Host streams: what CUDA's streams are, for host memory.
//!
//! Invariant: what is put into a stream runs in its order, after what its communicators were given before. A failure
//! stays until somebody asks the stream for it. Absent: events, kernels.

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

    /// Where its operations leave their failure.
    pub(super) fn failures(&self) -> Arc<Mutex<Option<Failure>>> {
        self.failure.clone()
    }

    /// Waits until everything in it is over.
    ///
    /// # Errors
    /// The first failure since it was asked last.
    pub fn synchronize(&self) -> Result<()> {
        self.lane.check()?;
        while let Some(end) = self.last.unfinished() {
            // Told below, once.
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
