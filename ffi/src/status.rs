//! Results and error texts: what C learns of an [`Error`].
//!
//! Invariant: nothing panics across the boundary, and a text that was handed out stays until the time that its
//! function names.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};

use consort::Error;

use crate::handles;

/// `ncclResult_t`, as far as this library returns it.
#[repr(i32)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Status {
    /// `ncclSuccess`.
    Success = 0,
    /// `ncclSystemError`.
    System = 2,
    /// `ncclInternalError`.
    Internal = 3,
    /// `ncclInvalidArgument`.
    InvalidArgument = 4,
    /// `ncclInvalidUsage`.
    InvalidUsage = 5,
    /// `ncclRemoteError`.
    Remote = 6,
    /// `ncclTimeout`.
    Timeout = 8,
}

impl Status {
    /// What C gets for an error.
    ///
    /// An abort is 6 although no process need be gone: it is what makes a client give up the communicator on all
    /// ranks, which is right. A revocation is 5, as NCCL answers data calls on a revoked communicator.
    pub fn of(error: &Error) -> Self {
        match error {
            Error::InvalidArgument { .. } => Status::InvalidArgument,
            Error::Mismatch { .. }
            | Error::Settings { .. }
            | Error::ConcurrentUse
            | Error::Forked
            | Error::Revoked { .. } => Status::InvalidUsage,
            Error::PeerLost { .. }
            | Error::PeerLeft { .. }
            | Error::Link { .. }
            | Error::MissingRanks { .. }
            | Error::Join { .. }
            | Error::Aborted { .. } => Status::Remote,
            Error::Timeout { .. } => Status::Timeout,
            Error::OutOfMemory { .. } | Error::System { .. } => Status::System,
            _ => Status::Internal,
        }
    }
}

/// What a thread knows of its failed calls.
#[derive(Default)]
struct LastErrors {
    any: CString,
    /// By handle; of live handles and, for a while, of those that were freed, perhaps during the call.
    of: BTreeMap<usize, CString>,
}

/// From so many texts on, those of freed handles are dropped first.
const TEXTS_KEPT: usize = 64;

thread_local! {
    static LAST_ERRORS: RefCell<LastErrors> = RefCell::default();
}

fn remember(handle: *mut c_void, text: &str) {
    let text = CString::new(text.replace('\0', " ")).unwrap_or_default();
    // A thread that ends has none any more.
    let _ = LAST_ERRORS.try_with(|last| {
        let mut last = last.borrow_mut();
        if handles::was_made(handle) {
            if last.of.len() >= TEXTS_KEPT {
                last.of.retain(|handle, _| handles::find(*handle as *mut c_void).is_some());
            }
            last.of.insert(handle as usize, text.clone());
        }
        last.any = text;
    });
}

/// Runs `body`; errors become a status and the last error's text, panics an internal error.
pub(crate) fn fence(body: impl FnOnce() -> Result<(), Error>) -> c_int {
    fence_of(std::ptr::null_mut(), body)
}

/// As [`fence`], of a call on a communicator.
pub(crate) fn fence_of(handle: *mut c_void, body: impl FnOnce() -> Result<(), Error>) -> c_int {
    let (status, text) = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => return Status::Success as c_int,
        Ok(Err(error)) => (Status::of(&error), error.to_string()),
        Err(_) => (
            Status::Internal,
            "internal error: a panic was stopped at the C boundary; please report it".to_owned(),
        ),
    };
    remember(handle, &text);
    status as c_int
}

pub(crate) fn invalid(what: &str, hint: &str) -> Error {
    Error::InvalidArgument { what: what.to_owned(), hint: hint.to_owned() }
}

/// The text of this thread's last error, whatever the communicator; valid until this thread's next failing call.
#[unsafe(no_mangle)]
pub extern "C" fn ncclGetLastError(_comm: *mut c_void) -> *const c_char {
    LAST_ERRORS.try_with(|last| last.borrow().any.as_ptr()).unwrap_or(c"".as_ptr())
}

/// The text of this thread's last error on a communicator, or of its last one at all where `comm` is null; valid
/// until this thread's next failing call on it, once freed until its next failing call at all.
#[unsafe(no_mangle)]
pub extern "C" fn consortGetLastError(comm: *mut c_void) -> *const c_char {
    if comm.is_null() {
        return ncclGetLastError(comm);
    }
    let text = catch_unwind(|| {
        let text = LAST_ERRORS.try_with(|last| {
            last.borrow().of.get(&(comm as usize)).map(|text| CStr::as_ptr(text.as_c_str()))
        });
        text.ok().flatten().unwrap_or_else(|| match handles::find(comm) {
            Some(_) => c"".as_ptr(),
            None => c"invalid argument: the communicator handle is freed or foreign".as_ptr(),
        })
    });
    text.unwrap_or(c"".as_ptr())
}

/// A static text for a result; never null.
#[unsafe(no_mangle)]
pub extern "C" fn ncclGetErrorString(result: c_int) -> *const c_char {
    let text = match result {
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
    };
    text.as_ptr()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_as_the_header_says() {
        let (rank, size) = (1, 2);
        let text = String::new;
        let operation = || consort::Operation { name: "all_reduce".into(), sequence: 1 };
        let waited = std::time::Duration::from_secs(1);
        let source = std::sync::Arc::new(std::io::Error::from_raw_os_error(libc::EMFILE));
        let cases = [
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
            (Error::Internal { what: text() }, 3),
        ];
        for (error, result) in cases {
            assert_eq!(Status::of(&error) as c_int, result, "{error:?}");
        }
    }

    #[test]
    fn a_panic_is_an_internal_error() {
        assert_eq!(fence(|| panic!("on purpose")), Status::Internal as c_int);
        // SAFETY: the text stays until this thread's next failing call, and there is none.
        let text = unsafe { CStr::from_ptr(ncclGetLastError(std::ptr::null_mut())) };
        assert!(text.to_str().expect("UTF-8").contains("a panic was stopped"));
    }
}
