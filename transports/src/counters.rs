//! What a peer's message may do to a counter here.
//!
//! Invariant: a counter never falls, whatever a peer says. Absent: counters that peers store to themselves.

use consort_memory::Counter;

/// Raises a counter as a message says.
///
/// # Errors
/// What the peer did that it must not.
pub(crate) fn raise(counter: &Counter, value: u64, tag: u64) -> Result<(), &'static str> {
    if value <= counter.value() {
        return Err("it lowered a counter");
    }
    counter.raise(value, tag);
    Ok(())
}
