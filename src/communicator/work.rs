//! Operations that go on while the caller does something else.

use std::sync::Arc;

use consort_memory::{Lease, Plain};

use super::Core;
use crate::ticket::Ticket;
use consort_control::membership::process::Process;
use consort_types::error::{Error, Result};

/// A started operation that owns its buffer until [`Work::wait`] gives it back.
///
/// The operation goes on by itself (the process's control thread drives it), and faster while a thread waits for it.
/// Dropping or forgetting a `Work` does not stop the operation, and the buffer stays alive until it is over.
#[must_use = "the buffer comes back from `wait`"]
pub struct Work<T: Plain> {
    core: Arc<Core>,
    /// Keeps the control thread, which drives the operation when no thread waits for it.
    _process: Arc<Process>,
    ticket: Arc<Ticket>,
    lease: Lease<T>,
}

impl<T: Plain> Work<T> {
    pub(crate) fn new(core: Arc<Core>, process: Arc<Process>, ticket: Arc<Ticket>, lease: Lease<T>) -> Self {
        Work { core, _process: process, ticket, lease }
    }

    /// Whether the operation is over, well or not.
    pub fn is_done(&self) -> bool {
        self.ticket.is_done()
    }

    /// Waits until the operation is over and gives the buffer back.
    ///
    /// # Errors
    /// Whatever the operation ended with, as a blocking call returns it. The buffer's contents are then
    /// unspecified, and it is dropped; see [`Work::wait_with_buffer`].
    pub fn wait(self) -> Result<Vec<T>> {
        let (buffer, result) = self.wait_with_buffer();
        result.map(|()| buffer)
    }

    /// As [`Work::wait`], but the buffer comes back in any case; only in a child that was forked while the
    /// operation moved, an empty one may come instead.
    pub fn wait_with_buffer(self) -> (Vec<T>, Result<()>) {
        let result = self.core.wait_for(&self.ticket);
        match self.lease.try_take() {
            Ok(buffer) => (buffer, result),
            // The thread that held it does not exist in this process.
            Err(_) if matches!(result, Err(Error::Forked)) => (Vec::new(), result),
            // Only possible when the operation is still held by a driver that is about to drop it.
            Err(lease) => (take(lease), result),
        }
    }
}

fn take<T: Plain>(mut lease: Lease<T>) -> Vec<T> {
    loop {
        match lease.try_take() {
            Ok(buffer) => return buffer,
            Err(again) => lease = again,
        }
        std::thread::yield_now();
    }
}

impl<T: Plain> std::fmt::Debug for Work<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Work").field("done", &self.is_done()).finish_non_exhaustive()
    }
}
