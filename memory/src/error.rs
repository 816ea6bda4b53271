//! What can go wrong when memory is asked for.
//!
//! Invariant: an error says how much was wanted, which call refused and what to try. Absent: errors of peers.

use std::io;

/// Why memory could not be had.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MemoryError {
    /// The system has not that much.
    #[error(
        "{what} of {needed_bytes} bytes cannot be had ({source}); lower the buffer sizes, or raise the memory \
         limit of the container or of the job"
    )]
    OutOfMemory {
        /// Bytes that were asked for.
        needed_bytes: usize,
        /// What they were for.
        what: &'static str,
        /// The system's reason.
        source: io::Error,
    },
    /// A system call failed for another reason.
    #[error("{call} failed: {source}")]
    System {
        /// The call.
        call: &'static str,
        /// The system's reason.
        source: io::Error,
    },
    /// A descriptor received from a peer is not what it must be.
    #[error("the descriptor is not a sealed memory file of at least {needed_bytes} bytes: {reason}")]
    NotSealed {
        /// Bytes that were expected.
        needed_bytes: usize,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// Memory of the caller's own is not what it was said to be.
    #[error("{bytes} bytes at {start:#x} cannot be registered: {what}; {hint}")]
    NotRegistrable {
        /// Where it begins.
        start: usize,
        /// Its length.
        bytes: usize,
        /// What is wrong with it.
        what: &'static str,
        /// What to do about it.
        hint: &'static str,
    },
}
