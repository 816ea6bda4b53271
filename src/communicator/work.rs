//! Operations that go on while the caller does something else.

use std::sync::Arc;

use consort_memory::Buffers;

use super::Core;
use crate::ticket::Ticket;
use consort_control::membership::process::Process;
use consort_types::error::{Error, Result};

/// A started operation that owns its buffers until [`Work::wait`] gives them back: one ([`Buffer`](crate::Buffer)), or two as a
/// pair, the input first.
///
/// The operation goes on by itself (the process's control thread drives it), and faster while a thread waits for it.
/// Dropping or forgetting a `Work` does not stop the operation, and the buffers stay alive until it is over.
///
/// Collectives of a communicator, and messages between the same two ranks in one direction, run one after the other, in the order
/// in which they were started; messages go on beside collectives and beside each other. The deadline of an operation counts from
/// its start.
#[must_use = "the buffer comes back from `wait`"]
pub struct Work<B: Buffers> {
    core: Arc<Core>,
    /// Keeps the control thread, which drives the operation when no thread waits for it.
    _process: Arc<Process>,
    ticket: Arc<Ticket>,
    leases: B::Leases,
}

impl<B: Buffers> Work<B> {
    pub(crate) fn new(
        core: Arc<Core>,
        process: Arc<Process>,
        ticket: Arc<Ticket>,
        leases: B::Leases,
    ) -> Self {
        Work { core, _process: process, ticket, leases }
    }

    /// Whether the operation is over, well or not.
    pub fn is_done(&self) -> bool {
        self.ticket.is_done()
    }

    /// Waits until the operation is over and gives the buffers back.
    ///
    /// # Errors
    /// Whatever the operation ended with, as a blocking call returns it. The contents of what it writes are then
    /// unspecified, and the buffers are dropped; see [`Work::wait_with_buffer`].
    pub fn wait(self) -> Result<B> {
        let (buffers, result) = self.wait_with_buffer();
        result.map(|()| buffers)
    }

    /// As [`Work::wait`], but the buffers come back in any case; only in a child that was forked while the
    /// operation moved, empty ones may come instead.
    pub fn wait_with_buffer(self) -> (B, Result<()>) {
        let result = self.core.wait_for(&self.ticket);
        match B::try_take(self.leases) {
            Ok(buffers) => (buffers, result),
            // The thread that held it does not exist in this process.
            Err(_) if matches!(result, Err(Error::Forked)) => (B::none(), result),
            // Only possible when the operation is still held by a driver that is about to drop it.
            Err(leases) => (take(leases), result),
        }
    }
}

fn take<B: Buffers>(mut leases: B::Leases) -> B {
    loop {
        match B::try_take(leases) {
            Ok(buffers) => return buffers,
            Err(again) => leases = again,
        }
        std::thread::yield_now();
    }
}

impl<B: Buffers> std::fmt::Debug for Work<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Work").field("done", &self.is_done()).finish_non_exhaustive()
    }
}
