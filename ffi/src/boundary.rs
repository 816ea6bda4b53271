//! The boundary itself: results, the text of the last error, places to write to, and strings.
//!
//! Invariant: nothing panics across it, and a text that was handed out stays until the time that its function names.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, PoisonError};

use consort::nccl::{Code, Failure, Progress, Result, group, log};

use crate::handles;

/// Defines functions of NCCL under both their names. The strong one, with a `p`, has the body: who interposes the other
/// calls it.
macro_rules! exported {
    ($(
        $(#[$documentation:meta])*
        fn $name:ident = $twin:ident($($argument:ident: $type:ty),* $(,)?) $(-> $result:ty)? $body:block
    )*) => {$(
        #[doc = concat!("As [`", stringify!($name), "`].")]
        ///
        /// # Safety
        /// The same.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $twin($($argument: $type),*) $(-> $result)? $body

        $(#[$documentation])*
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $type),*) $(-> $result)? {
            // SAFETY: this function's own contract.
            unsafe { $twin($($argument),*) }
        }
    )*};
}
pub(crate) use exported;

/// What a thread knows of its failed calls.
#[derive(Default)]
struct LastErrors {
    any: CString,
    /// By handle; of live handles and, for a while, of those that were freed, perhaps during the call.
    of: BTreeMap<usize, CString>,
    /// What was handed out of another thread's or of the background's failures.
    borrowed: CString,
}

/// From so many texts on, those of freed handles are dropped first.
const TEXTS_KEPT: usize = 64;

thread_local! {
    static LAST_ERRORS: RefCell<LastErrors> = RefCell::default();
}

/// The last failure of any thread.
static LAST_ERROR: Mutex<String> = Mutex::new(String::new());

fn c_string(text: &str) -> CString {
    CString::new(text.replace('\0', " ")).unwrap_or_default()
}

fn remember(handle: *mut c_void, text: &str) {
    text.clone_into(&mut LAST_ERROR.lock().unwrap_or_else(PoisonError::into_inner));
    let text = c_string(text);
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

/// Runs the body of the function `name`, which is about `comm` (null for none). A failure becomes a result and the last
/// error's text, with the function and the rank in front; a panic an internal error.
#[inline]
pub(crate) fn call(name: &str, comm: *mut c_void, body: impl FnOnce() -> Result<Progress>) -> c_int {
    // Within, so that what a call that succeeds has to carry out of it is a number.
    let result = catch_unwind(AssertUnwindSafe(|| match body() {
        Ok(Progress::Done) => Code::Success as c_int,
        Ok(Progress::Pending) => Code::InProgress as c_int,
        Err(failure) => failed(name, comm, &failure),
    }));
    result.unwrap_or_else(|_| panicked(name, comm))
}

#[cold]
fn panicked(name: &str, comm: *mut c_void) -> c_int {
    let failure = Failure {
        code: Code::Internal,
        text: "internal error: a panic was stopped at the C boundary; please report it".to_owned(),
    };
    failed(name, comm, &failure)
}

/// As [`call`], of a function whose failure fails the group in which it is called.
#[inline]
pub(crate) fn call_in_group(name: &str, comm: *mut c_void, body: impl FnOnce() -> Result<Progress>) -> c_int {
    call(name, comm, || body().inspect_err(group::refuse))
}

/// As [`call`], of a function that is over when it returns.
pub(crate) fn plain(name: &str, comm: *mut c_void, body: impl FnOnce() -> Result<()>) -> c_int {
    call(name, comm, || body().map(|()| Progress::Done))
}

#[cold]
fn failed(name: &str, comm: *mut c_void, failure: &Failure) -> c_int {
    // Telling must not fail either.
    let _ = catch_unwind(AssertUnwindSafe(|| {
        let label = handles::find(comm).map(|comm| format!(" on {}", comm.label())).unwrap_or_default();
        let text = format!("{name}{label}: {failure}");
        let device =
            handles::find(comm).and_then(|comm| comm.rank().ok()).map_or(log::NO_DEVICE, |rank| rank as i32);
        log::warn(device, &text);
        remember(comm, &text);
    }));
    failure.code as c_int
}

/// The failure of a function that this library does not have.
pub(crate) fn unsupported(what: &str, instead: &str) -> Failure {
    Failure::usage(format!("{what} is not part of this library"), instead)
}

/// Writes to where a caller wants something.
///
/// # Safety
/// `place` must be null or writable.
pub(crate) unsafe fn store<T>(place: *mut T, name: &str, make: impl FnOnce() -> Result<T>) -> Result<()> {
    if place.is_null() {
        return Err(Failure::argument(
            format!("{name} is null"),
            "pass a pointer to where it is to be written",
        ));
    }
    let value = make()?;
    // SAFETY: checked for null; otherwise this function's own contract.
    unsafe { place.write_unaligned(value) };
    Ok(())
}

/// The string that C passed; `None` for null.
///
/// # Safety
/// `text` must be null or end with a zero.
pub(crate) unsafe fn string(text: *const c_char) -> Option<String> {
    // SAFETY: checked for null; otherwise this function's own contract.
    (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
}

/// What the background knows of a communicator's failure.
fn failure_elsewhere(comm: *mut c_void) -> Option<String> {
    match handles::find(comm) {
        Some(comm) => Some(comm.async_error().1?.text),
        None => {
            let last = LAST_ERROR.lock().unwrap_or_else(PoisonError::into_inner);
            (!last.is_empty()).then(|| last.clone())
        }
    }
}

/// Keeps it for this thread until it is asked again.
fn borrowed(text: &str) -> Option<*const c_char> {
    let kept = LAST_ERRORS.try_with(|last| {
        let mut last = last.borrow_mut();
        last.borrowed = c_string(text);
        last.borrowed.as_ptr()
    });
    kept.ok()
}

exported! {
    /// The text of this thread's last failed call, whatever the communicator; if it had none, why `comm` failed in the
    /// background; else the last failure of any thread. Valid until this thread's next failing call and its next question.
    ///
    /// # Safety
    /// None is needed: any `comm` will do.
    fn ncclGetLastError = pncclGetLastError(comm: *mut c_void) -> *const c_char {
        let text = catch_unwind(|| {
            let own = LAST_ERRORS.try_with(|last| {
                let last = last.borrow();
                (!last.any.is_empty()).then(|| last.any.as_ptr())
            });
            let found = failure_elsewhere(comm).filter(|_| handles::find(comm).is_some());
            let found = found.and_then(|text| borrowed(&text)).or(own.ok().flatten());
            found.or_else(|| borrowed(&failure_elsewhere(std::ptr::null_mut())?))
        });
        text.ok().flatten().unwrap_or(c"".as_ptr())
    }

    /// A static text for a result; never null.
    ///
    /// # Safety
    /// None is needed: any number will do.
    fn ncclGetErrorString = pncclGetErrorString(result: c_int) -> *const c_char {
        Code::text(result).as_ptr()
    }
}

/// The text of this thread's last error on a communicator, where it had none what ended the communicator; or of its last
/// one at all where `comm` is null. Valid until this thread's next failing call on it, once freed until its next failing
/// call at all.
#[unsafe(no_mangle)]
pub extern "C" fn consortGetLastError(comm: *mut c_void) -> *const c_char {
    let text = catch_unwind(|| {
        if comm.is_null() {
            return LAST_ERRORS.try_with(|last| last.borrow().any.as_ptr()).unwrap_or(c"".as_ptr());
        }
        let known =
            || LAST_ERRORS.try_with(|last| last.borrow().of.get(&(comm as usize)).map(|text| text.as_ptr()));
        if let Ok(Some(text)) = known() {
            return text;
        }
        if handles::find(comm).is_none() {
            return c"invalid argument: the communicator handle is freed or foreign".as_ptr();
        }
        if let Some(text) = failure_elsewhere(comm) {
            // Kept as long as one of its own would be.
            let _ = LAST_ERRORS.try_with(|last| last.borrow_mut().of.insert(comm as usize, c_string(&text)));
        }
        known().ok().flatten().unwrap_or(c"".as_ptr())
    });
    text.unwrap_or(c"".as_ptr())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_an_internal_error() {
        let null = std::ptr::null_mut();
        assert_eq!(call("ncclNothing", null, || panic!("on purpose")), Code::Internal as c_int);
        // SAFETY: the text stays until this thread's next failing call, and there is none.
        let text = unsafe { CStr::from_ptr(ncclGetLastError(null)) };
        assert!(text.to_str().expect("UTF-8").contains("a panic was stopped"));
    }
}
