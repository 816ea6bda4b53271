//! The boundary itself: results, the text of the last error, places to write to, and strings.
//!
//! Invariant: no panic crosses it, and a text that was returned stays until the time that its function documents.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};

use consort_nccl::{Code, Comm, Failure, Progress, Result, group, last_failure, log, remember};

use crate::handles;

/// Defines functions of C. A function of NCCL has both its names: the strong name, with a `p`, has the body, as a
/// tool that interposes the other name calls it. A function of this library has its only name.
macro_rules! exported {
    ($(
        $(#[$documentation:meta])*
        fn $name:ident($($argument:ident: $type:ty),* $(,)?) -> $result:ty $body:block
    )*) => {$(
        $(#[$documentation])*
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $type),*) -> $result $body
    )*};
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

/// The errors of a thread's failed calls.
#[derive(Default)]
struct LastErrors {
    any: CString,
    /// The text by handle, of live handles and, for a while, of handles that were freed, perhaps during the call.
    of: BTreeMap<usize, CString>,
}

/// From this number of texts on, those of freed handles are dropped first.
const TEXTS_KEPT: usize = 64;

thread_local! {
    static LAST_ERRORS: RefCell<LastErrors> = RefCell::default();
}

/// Texts that a client has, in memory that is never freed: a client may read a text late, since NCCL's is one
/// permanent buffer. A new text replaces the oldest; a text of [`TEXT_BYTES`] or more is cut. The thread that owns
/// the texts is the only one that writes them, so no other thread writes a text that the owner reads.
struct HandedOut {
    /// Whether a thread owns it.
    taken: AtomicBool,
    next: AtomicUsize,
    texts: [[AtomicU8; TEXT_BYTES]; TEXTS],
}

const TEXTS: usize = 32;
const TEXT_BYTES: usize = 4096;
/// The number of threads at a time that have texts of their own; all others share the last.
const OWNERS: usize = 64;

static HANDED_OUT: [HandedOut; OWNERS + 1] = [const {
    HandedOut {
        taken: AtomicBool::new(false),
        next: AtomicUsize::new(0),
        texts: [const { [const { AtomicU8::new(0) }; TEXT_BYTES] }; TEXTS],
    }
}; OWNERS + 1];

/// A thread's place among those texts, until the thread ends.
struct Own(&'static HandedOut);

impl Own {
    fn take() -> Self {
        let owned = HANDED_OUT[..OWNERS].iter().find(|texts| !texts.taken.swap(true, Ordering::Acquire));
        Own(owned.unwrap_or(&HANDED_OUT[OWNERS]))
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        self.0.taken.store(false, Ordering::Release);
    }
}

thread_local! {
    static OWN_TEXTS: Own = Own::take();
}

/// Copies a text to memory where it can always be read; the text stays until this thread has copied as many others as
/// the memory holds.
fn hand_out(text: &str) -> *const c_char {
    // Relaxed throughout: the thread that asks wrote the text that it reads; other threads see some text, ended by a
    // zero. A thread that ends has no place of its own any more.
    let texts = OWN_TEXTS.try_with(|own| own.0).unwrap_or(&HANDED_OUT[OWNERS]);
    let mut end = text.len().min(TEXT_BYTES - 1);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    let text = &text[..end];
    let place = &texts.texts[texts.next.fetch_add(1, Ordering::Relaxed) % TEXTS];
    let bytes = text.bytes().map(|byte| if byte == 0 { b' ' } else { byte }).chain([0]);
    place.iter().zip(bytes).for_each(|(place, byte)| place.store(byte, Ordering::Relaxed));
    place.as_ptr().cast()
}

fn c_string(text: &str) -> CString {
    CString::new(text.replace('\0', " ")).unwrap_or_default()
}

fn keep(handle: *mut c_void, text: &str) {
    remember(text);
    let text = c_string(text);
    // A thread that ends has no errors any more.
    let _ = LAST_ERRORS.try_with(|last| {
        let mut last = last.borrow_mut();
        if handles::COMMS.was_made(handle) {
            if last.of.len() >= TEXTS_KEPT {
                last.of.retain(|handle, _| handles::find(*handle as *mut c_void).is_some());
            }
            last.of.insert(handle as usize, text.clone());
        }
        last.any = text;
    });
}

/// Runs the body of the function `name`, which is about `comm` (null for none). A failure becomes a result and the
/// last error's text, with the function and the rank in front; a panic becomes an internal error.
#[inline]
pub(crate) fn call(name: &str, comm: *mut c_void, body: impl FnOnce() -> Result<Progress>) -> c_int {
    fenced(body, |failure| failed(name, comm, failure))
}

/// As [`call`], of a function whose failure fails the group in which it is called.
#[inline]
pub(crate) fn call_in_group(name: &str, comm: *mut c_void, body: impl FnOnce() -> Result<Progress>) -> c_int {
    fenced(body, |failure| refused(name, comm, failure))
}

/// Runs `body`; `result_of` makes a result of a failure.
#[inline]
fn fenced(body: impl FnOnce() -> Result<Progress>, result_of: impl Fn(&Failure) -> c_int) -> c_int {
    // Formed inside, so that a call that succeeds returns only a number from it.
    let result = catch_unwind(AssertUnwindSafe(|| match body() {
        Ok(Progress::Done) => Code::Success as c_int,
        Ok(Progress::Pending) => Code::InProgress as c_int,
        Err(failure) => result_of(&failure),
    }));
    result.unwrap_or_else(|_| result_of(&panicked()))
}

#[cold]
fn refused(name: &str, comm: *mut c_void, failure: &Failure) -> c_int {
    group::refuse(failure);
    failed(name, comm, failure)
}

#[cold]
fn panicked() -> Failure {
    Failure {
        code: Code::Internal,
        text: "internal error: a panic was stopped at the C boundary; please report it".to_owned(),
    }
}

/// As [`call`], for a function that is over when it returns.
pub(crate) fn plain(name: &str, comm: *mut c_void, body: impl FnOnce() -> Result<()>) -> c_int {
    call(name, comm, || body().map(|()| Progress::Done))
}

#[cold]
fn failed(name: &str, comm: *mut c_void, failure: &Failure) -> c_int {
    // Recording the failure must not fail either.
    let _ = catch_unwind(AssertUnwindSafe(|| {
        let label = handles::find(comm).map(|comm| format!(" on {}", comm.label())).unwrap_or_default();
        let text = format!("{name}{label}: {failure}");
        let device =
            handles::find(comm).and_then(|comm| comm.rank().ok()).map_or(log::NO_DEVICE, |rank| rank as i32);
        log::warn(device, &text);
        keep(comm, &text);
    }));
    failure.code as c_int
}

/// The failure of a function that this library does not have.
pub(crate) fn unsupported(what: &str, instead: &str) -> Failure {
    Failure::usage(format!("{what} is not part of this library"), instead)
}

/// Writes a value to the caller's place.
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

/// Runs the function `name`, whose answer goes to `place`; `what` is the name of that parameter in C.
///
/// # Safety
/// `place` must be null or writable.
pub(crate) unsafe fn give<T>(
    name: &str,
    place: *mut T,
    what: &str,
    make: impl FnOnce() -> Result<T>,
) -> c_int {
    // SAFETY: this function's own contract.
    plain(name, std::ptr::null_mut(), || unsafe { store(place, what, make) })
}

/// As [`give`], with an answer of the communicator.
///
/// # Safety
/// As [`give`].
pub(crate) unsafe fn ask<T>(
    name: &str,
    comm: *mut c_void,
    place: *mut T,
    what: &str,
    answer: impl FnOnce(&Comm) -> Result<T>,
) -> c_int {
    plain(name, comm, || {
        let asked = handles::comm(comm)?;
        // SAFETY: this function's own contract.
        unsafe { store(place, what, || answer(&asked)) }
    })
}

/// The string that C passed; `None` for null.
///
/// # Safety
/// `text` must be null or end with a zero.
pub(crate) unsafe fn string(text: *const c_char) -> Option<String> {
    // SAFETY: checked for null; otherwise this function's own contract.
    (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
}

/// The failure of a communicator in the background.
fn failure_of(comm: *mut c_void) -> Option<String> {
    Some(handles::find(comm)?.async_error().1?.text)
}

exported! {
    /// The failure of `comm` in the background, or the failure that ended it; else the text of this thread's last
    /// failed call, whatever its communicator; else the last failure of any thread. The returned memory always stays
    /// valid. Its text is replaced when this thread has asked 32 times more. After the thread's end, and where more
    /// than 64 threads ask at a time, calls of other threads count too.
    ///
    /// # Safety
    /// None is needed: any `comm` is allowed.
    fn ncclGetLastError = pncclGetLastError(comm: *mut c_void) -> *const c_char {
        let text = catch_unwind(|| {
            let own = LAST_ERRORS.try_with(|last| last.borrow().any.to_string_lossy().into_owned());
            let own = own.ok().filter(|text| !text.is_empty());
            hand_out(&failure_of(comm).or(own).unwrap_or_else(last_failure))
        });
        text.unwrap_or(c"".as_ptr())
    }

    /// A static text for a result; never null.
    ///
    /// # Safety
    /// None is needed: any number is allowed.
    fn ncclGetErrorString = pncclGetErrorString(result: c_int) -> *const c_char {
        Code::text(result).as_ptr()
    }
}

/// The text of this thread's last error on a communicator; where it had none, the failure that ended the
/// communicator; where `comm` is null, this thread's last error. Valid until this thread's next failing call on the
/// communicator, or, where that is freed, until its next failing call.
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
        if let Some(text) = failure_of(comm) {
            // Kept as long as an error of its own would be.
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
    fn what_was_handed_out_stays_readable() {
        let long = "é".repeat(TEXT_BYTES);
        let (first, cut) = (hand_out("first\0text"), hand_out(&long));
        // SAFETY: texts are never freed and end with a zero.
        let read = |text| unsafe { CStr::from_ptr(text) }.to_str().expect("UTF-8").to_owned();
        assert_eq!(read(first), "first text");
        assert_eq!(read(cut).len(), TEXT_BYTES - 2);
        let others = || (0..2 * TEXTS).for_each(|_| _ = hand_out("another"));
        // More threads than have places of their own.
        std::thread::scope(|threads| (0..2 * OWNERS).for_each(|_| drop(threads.spawn(others))));
        assert_eq!(read(first), "first text");
        others();
        assert_eq!(read(first), "another");
    }

    #[test]
    fn a_panic_is_an_internal_error() {
        let null = std::ptr::null_mut();
        assert_eq!(call("ncclNothing", null, || panic!("on purpose")), Code::Internal as c_int);
        // SAFETY: the text stays until this thread's next failing call, and there is none.
        let text = unsafe { CStr::from_ptr(ncclGetLastError(null)) };
        assert!(text.to_str().expect("UTF-8").contains("a panic was stopped"));
    }
}
