//! How what was started ended, shared by its owner and its driver.
//!
//! Invariant: the result is there before it is said that all is done; of several operations it is the first error. Absent: the
//! operations, and their buffers.

use std::sync::{Mutex, PoisonError};

use consort_memory::sync::{AtomicUsize, Ordering};

use consort_types::error::{Error, Result};

/// The state of one started operation, or of several with one end, that their owner and their driver share.
#[derive(Debug)]
pub struct Ticket {
    /// The operations that are not over.
    open: AtomicUsize,
    result: Mutex<Option<Result<()>>>,
}

impl Default for Ticket {
    fn default() -> Self {
        Ticket::of(1)
    }
}

impl Ticket {
    /// Of a number of operations; one of none is over.
    pub(crate) fn of(operations: usize) -> Self {
        let result = (operations == 0).then_some(Ok(()));
        Ticket { open: AtomicUsize::new(operations), result: Mutex::new(result) }
    }

    /// One of the operations is over.
    pub(crate) fn finish(&self, result: Result<()>) {
        let mut all = self.result.lock().unwrap_or_else(PoisonError::into_inner);
        *all = Some(all.take().unwrap_or(Ok(())).and(result));
        drop(all);
        // Release: pairs with the Acquire in `is_done`; the result and the operation's bytes are there. Acquire: those of the
        // others, whose ends this one may announce.
        self.open.fetch_sub(1, Ordering::AcqRel);
    }

    /// Whether all is over.
    pub fn is_done(&self) -> bool {
        // Acquire: pairs with the Release in `finish`.
        self.open.load(Ordering::Acquire) == 0
    }

    /// How it ended.
    ///
    /// # Errors
    /// Those of the operation.
    pub fn result(&self) -> Result<()> {
        let result = self.result.lock().unwrap_or_else(PoisonError::into_inner).clone();
        result.unwrap_or_else(|| Err(Error::internal("an operation ended without a result")))
    }
}
