//! How a started operation ended, shared by its owner and its driver.
//!
//! Invariant: the result is there before it is said that the operation is done. Absent: the operation, and its buffer.

use std::sync::{Mutex, PoisonError};

use consort_memory::sync::{AtomicBool, Ordering};

use consort_types::error::{Error, Result};

/// The state of a started operation that its owner and its driver share.
#[derive(Debug, Default)]
pub struct Ticket {
    done: AtomicBool,
    result: Mutex<Option<Result<()>>>,
}

impl Ticket {
    pub(crate) fn finish(&self, result: Result<()>) {
        *self.result.lock().unwrap_or_else(PoisonError::into_inner) = Some(result);
        // Release: pairs with the Acquire in `is_done`; the result and the operation's bytes are there.
        self.done.store(true, Ordering::Release);
    }

    /// Whether the operation is over.
    pub fn is_done(&self) -> bool {
        // Acquire: pairs with the Release in `finish`.
        self.done.load(Ordering::Acquire)
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
