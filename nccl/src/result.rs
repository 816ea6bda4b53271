//! Result codes, and why a call failed.
//!
//! Invariant: every failure has a text that says what is wrong and what to do; a code alone never leaves this module.

use std::fmt;
use std::sync::{Mutex, PoisonError};

use consort_types::error::{Error, ErrorKind, Names};

/// `ncclResult_t`, as far as this library returns it.
#[repr(i32)]
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Code {
    /// `ncclSuccess`.
    Success = 0,
    /// `ncclUnhandledCudaError`.
    Cuda = 1,
    /// `ncclSystemError`.
    System = 2,
    /// `ncclInternalError`.
    Internal = 3,
    /// `ncclInvalidArgument`: the call is wrong; the communicator is unchanged.
    InvalidArgument = 4,
    /// `ncclInvalidUsage`.
    InvalidUsage = 5,
    /// `ncclRemoteError`: another rank or the connection to it is lost.
    Remote = 6,
    /// `ncclInProgress`: no error; ask again.
    InProgress = 7,
    /// `ncclTimeout`.
    Timeout = 8,
}

impl Code {
    /// The code of an error. An abort is 6, which makes a client abort the communicator on all ranks; a revocation is
    /// 5, as NCCL returns for data calls on a revoked communicator.
    pub fn of(error: &Error) -> Self {
        match error.kind() {
            ErrorKind::Argument => Code::InvalidArgument,
            ErrorKind::Usage => Code::InvalidUsage,
            ErrorKind::Remote => Code::Remote,
            ErrorKind::Timeout => Code::Timeout,
            ErrorKind::System => Code::System,
            ErrorKind::Device => Code::Cuda,
            ErrorKind::Internal => Code::Internal,
        }
    }

    /// The text of `ncclGetErrorString` for any number, whether it is a result or not.
    pub fn text(code: i32) -> &'static std::ffi::CStr {
        match code {
            0 => c"no error",
            1 => c"unhandled cuda error (ncclGetLastError has the details)",
            2 => c"unhandled system error (ncclGetLastError has the details)",
            3 => c"internal error (ncclGetLastError has the details)",
            4 => c"invalid argument (ncclGetLastError has the details)",
            5 => c"invalid usage (ncclGetLastError has the details)",
            6 => c"remote process exited or there was a network error (ncclGetLastError has the details)",
            7 => c"operation in progress",
            8 => c"timeout (ncclGetLastError has the details)",
            _ => c"unknown result code",
        }
    }
}

/// Why a call failed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Failure {
    /// The code that the call returns.
    pub code: Code,
    /// What is wrong, where, and what to do.
    pub text: String,
}

/// The result of the calls of this module.
pub type Result<T> = std::result::Result<T, Failure>;

impl Failure {
    /// A wrong argument: what is wrong and what to pass instead.
    pub fn argument(what: impl fmt::Display, hint: impl fmt::Display) -> Self {
        Failure { code: Code::InvalidArgument, text: format!("invalid argument: {what}; {hint}") }
    }

    /// A call that is not allowed here, or that this library does not have: what it is, and what to do instead.
    pub fn usage(what: impl fmt::Display, hint: impl fmt::Display) -> Self {
        Failure { code: Code::InvalidUsage, text: format!("invalid usage: {what}; {hint}") }
    }
}

/// The C names of the calls that errors recommend.
const NAMES: Names = Names {
    last_report: "consortCommLastReport",
    with_timeout: "consortThreadSetTimeout",
    split: "ncclCommSplit",
    shrink: "ncclCommShrink with NCCL_SHRINK_ABORT",
};

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Failure { code: Code::of(&error), text: error.text(&NAMES) }
    }
}

/// The last failure of this process.
static LAST: Mutex<String> = Mutex::new(String::new());

/// Keeps a failure's text for other threads.
pub fn remember(text: &str) {
    text.clone_into(&mut LAST.lock().unwrap_or_else(PoisonError::into_inner));
}

/// The text of the last failure of this process, on any thread; empty if there was none.
pub fn last_failure() -> String {
    LAST.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Whether a call's effect has happened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum Progress {
    /// It has, or the call was recorded for the end of the group.
    Done,
    /// It goes on in the background: `ncclInProgress`.
    Pending,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An error of every variant, with its code.
    fn cases() -> [(Error, i32); 17] {
        let (rank, size) = (1, 2);
        let text = String::new;
        let operation = || consort_types::error::Operation { name: "all_reduce".into(), sequence: 1 };
        let waited = std::time::Duration::from_secs(1);
        let source = std::sync::Arc::new(std::io::Error::from(std::io::ErrorKind::OutOfMemory));
        [
            (Error::InvalidArgument { what: text(), hint: text() }, 4),
            (Error::Mismatch { sequence: 1, difference: text() }, 5),
            (Error::Settings { difference: text() }, 5),
            (Error::ConcurrentUse, 5),
            (Error::Forked, 5),
            (Error::Revoked { rank, reason: text() }, 5),
            (Error::Aborted { rank, reason: text() }, 6),
            (Error::MissingRanks { missing: vec![rank], size, waited, address: text() }, 6),
            (Error::Join { rank, cause: text(), hint: text() }, 6),
            (Error::PeerLost { rank, place: text(), operation: None, cause: text() }, 6),
            (Error::PeerLeft { rank, place: "host".into(), operation: operation() }, 6),
            (Error::Link { from: 0, to: 1, transport: text(), cause: text() }, 6),
            (Error::Timeout { operation: operation(), waited, verdict: text() }, 8),
            (Error::OutOfMemory { rank, needed_bytes: 1, what: text(), cause: text() }, 2),
            (Error::System { call: text(), source }, 2),
            (Error::Device { rank, what: text(), cause: text() }, 1),
            (Error::Internal { what: text() }, 3),
        ]
    }

    #[test]
    fn results_are_as_the_header_says() {
        let variants: std::collections::HashSet<_> =
            cases().iter().map(|(error, _)| std::mem::discriminant(error)).collect();
        assert_eq!(variants.len(), cases().len(), "one of every variant");
        for (error, result) in cases() {
            assert_eq!(Code::of(&error) as i32, result, "{error:?}");
        }
    }

    #[test]
    fn texts_name_what_c_has() {
        let Names { last_report, with_timeout, split, shrink } = Names::RUST;
        for (error, _) in cases() {
            let (rust, c) = (error.to_string(), Failure::from(error).text);
            let names = [last_report, with_timeout, split, shrink].map(|name| name.trim_matches('`'));
            let found = names.iter().find(|name| c.split_whitespace().any(|word| word == **name));
            assert!(!c.contains('`') && found.is_none(), "{found:?} in: {c}");
            let recommends = rust.contains('`');
            assert_eq!(recommends, rust != c, "another text than Rust's where that names a call: {c}");
            assert!(!recommends || c.contains("consort") || c.contains("nccl"), "{c}");
        }
    }

    #[test]
    fn every_number_has_a_text() {
        for code in [i32::MIN, -1, 0, 4, 7, 8, 9, i32::MAX] {
            assert!(!Code::text(code).is_empty());
        }
    }
}
