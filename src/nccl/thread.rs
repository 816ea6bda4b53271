//! What a thread has said that holds for its later calls: how deep it is in groups, and its deadline.
//!
//! Invariant: a call that neither concerns finds that out by one look. Absent: what is in a group (`group`).

use std::cell::Cell;
use std::time::Duration;

struct Said {
    depth: Cell<u32>,
    /// `None` where the communicator decides.
    timeout: Cell<Option<Duration>>,
}

thread_local! {
    static SAID: Said = const { Said { depth: Cell::new(0), timeout: Cell::new(None) } };
}

/// Whether no group is open on this thread, and its deadline is the communicator's.
#[inline]
pub fn is_plain() -> bool {
    SAID.try_with(|said| said.depth.get() == 0 && said.timeout.get().is_none()).unwrap_or(true)
}

/// How many groups are open on this thread, one within the other.
#[inline]
pub(super) fn depth() -> u32 {
    SAID.try_with(|said| said.depth.get()).unwrap_or(0)
}

/// Says so. A thread that ends opens no groups.
pub(super) fn set_depth(depth: u32) {
    let _ = SAID.try_with(|said| said.depth.set(depth));
}

/// The deadline of this thread's calls; `None` where the communicator decides.
pub fn timeout() -> Option<Duration> {
    SAID.try_with(|said| said.timeout.get()).ok().flatten()
}

/// Sets it; the one before, or nothing on a thread that is ending.
pub fn set_timeout(timeout: Option<Duration>) -> Option<Option<Duration>> {
    SAID.try_with(|said| said.timeout.replace(timeout)).ok()
}
