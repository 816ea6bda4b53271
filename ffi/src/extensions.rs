//! The calls of `include/consort.h` that NCCL does not have: what happens when something breaks, and what one
//! sees of it. The header is their contract; here is what it does not need to say.

use std::ffi::{CStr, c_char, c_int, c_void};

use consort::{Error, Report};

use crate::handles::Handle;
use crate::status::{Status, fence, fence_of, invalid};
use crate::{handle, handles, store, timeout};

/// `consortFormat_t`.
#[repr(i32)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Format {
    /// `CONSORT_TEXT`: for people.
    Text = 0,
    /// `CONSORT_JSON`: for programs.
    Json = 1,
}

fn format(code: c_int) -> Result<Format, Error> {
    [Format::Text, Format::Json].into_iter().find(|format| *format as c_int == code).ok_or_else(|| {
        invalid(&format!("there is no report format {code}"), "pass CONSORT_TEXT or CONSORT_JSON")
    })
}

fn written(report: &Report, format: Format) -> String {
    match format {
        Format::Text => report.to_string(),
        Format::Json => report.to_json(),
    }
}

/// The report of a communicator: made now, or the last that was made by itself (empty where there is none).
fn report(handle: &Handle, code: c_int, is_last: bool) -> Result<String, Error> {
    let format = format(code)?;
    if is_last {
        // A fork asks nobody, but it must not read what its parent's threads may have been writing.
        if let Err(error @ Error::Forked) = handle.communicator.status() {
            return Err(error);
        }
        return Ok(handle.communicator.last_report().map_or(String::new(), |last| written(&last, format)));
    }
    Ok(written(&handle.communicator.report()?, format))
}

/// Writes a text, ended by a zero, as far as the buffer goes; never half a character.
///
/// # Safety
/// `buffer` must be null or have `capacity` writable bytes, `needed` be null or writable.
unsafe fn write_text(
    buffer: *mut c_char,
    capacity: usize,
    needed: *mut usize,
    make: impl FnOnce() -> Result<String, Error>,
) -> Result<(), Error> {
    if buffer.is_null() && (capacity != 0 || needed.is_null()) {
        return Err(invalid(
            "buffer is null",
            "pass a buffer, or null with a capacity of 0 and where the needed size is to be written",
        ));
    }
    let text = make()?.replace('\0', " ");
    if !needed.is_null() {
        // SAFETY: checked for null; otherwise this function's own contract.
        unsafe { needed.write(text.len() + 1) };
    }
    if capacity != 0 {
        let mut end = text.len().min(capacity - 1);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        // SAFETY: `end` bytes and the zero are at most `capacity`, which the buffer has by this function's
        // contract; a new string is not in it.
        unsafe {
            buffer.cast::<u8>().copy_from_nonoverlapping(text.as_ptr(), end);
            buffer.add(end).write(0);
        }
    }
    Ok(())
}

/// A text in memory of its own.
fn allocate_text(text: &str) -> Result<*mut c_char, Error> {
    let text = text.replace('\0', " ");
    // SAFETY: any size may be asked for; what comes back is checked.
    let start = unsafe { libc::malloc(text.len() + 1) }.cast::<u8>();
    if start.is_null() {
        let source = std::io::Error::from_raw_os_error(libc::ENOMEM);
        return Err(Error::System { call: "malloc, for a report".to_owned(), source: source.into() });
    }
    // SAFETY: there are as many bytes and one more, and nobody else knows them.
    unsafe {
        start.copy_from_nonoverlapping(text.as_ptr(), text.len());
        start.add(text.len()).write(0);
    }
    Ok(start.cast())
}

/// The hang report, made now.
///
/// # Safety
/// `buffer` must be null or have `capacity` writable bytes, `needed` be null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn consortCommReport(
    comm: *mut c_void,
    format: c_int,
    buffer: *mut c_char,
    capacity: usize,
    needed: *mut usize,
) -> c_int {
    // SAFETY: this function's own contract.
    fence_of(comm, || unsafe {
        let handle = handle(comm)?;
        write_text(buffer, capacity, needed, || report(&handle, format, false))
    })
}

/// The hang report, made now, in memory that [`consortFree`] takes back.
///
/// # Safety
/// `text` must be null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn consortCommReportAlloc(
    comm: *mut c_void,
    format: c_int,
    text: *mut *mut c_char,
) -> c_int {
    // SAFETY: this function's own contract.
    fence_of(comm, || unsafe {
        let handle = handle(comm)?;
        store(text, "text", || allocate_text(&report(&handle, format, false)?))
    })
}

/// The hang report that was made last by itself.
///
/// # Safety
/// As [`consortCommReport`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn consortCommLastReport(
    comm: *mut c_void,
    format: c_int,
    buffer: *mut c_char,
    capacity: usize,
    needed: *mut usize,
) -> c_int {
    // SAFETY: this function's own contract.
    fence_of(comm, || unsafe {
        let handle = handle(comm)?;
        write_text(buffer, capacity, needed, || report(&handle, format, true))
    })
}

/// The last operations of this rank on the communicator.
///
/// # Safety
/// As [`consortCommReport`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn consortCommFlightRecord(
    comm: *mut c_void,
    format: c_int,
    buffer: *mut c_char,
    capacity: usize,
    needed: *mut usize,
) -> c_int {
    // SAFETY: this function's own contract.
    fence_of(comm, || unsafe {
        let (handle, format) = (handle(comm)?, self::format(format)?);
        write_text(buffer, capacity, needed, || {
            let record = handle.communicator.flight_record()?;
            Ok(if format == Format::Json { record.to_json() } else { record.to_string() })
        })
    })
}

/// Who arrives last at the collectives, and by how much.
///
/// # Safety
/// As [`consortCommReport`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn consortCommStragglers(
    comm: *mut c_void,
    format: c_int,
    buffer: *mut c_char,
    capacity: usize,
    needed: *mut usize,
) -> c_int {
    // SAFETY: this function's own contract.
    fence_of(comm, || unsafe {
        let (handle, format) = (handle(comm)?, self::format(format)?);
        write_text(buffer, capacity, needed, || {
            let stragglers = handle.communicator.stragglers()?;
            Ok(if format == Format::Json { stragglers.to_json() } else { stragglers.to_string() })
        })
    })
}

/// Frees what this library allocated for the caller; null is fine.
///
/// # Safety
/// `memory` must be null or come from a call of this library that says so, and not have been freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn consortFree(memory: *mut c_void) {
    // SAFETY: all such memory is from `malloc`; otherwise this function's own contract.
    unsafe { libc::free(memory) };
}

/// What ended the communicator, in words; empty while it works.
///
/// # Safety
/// As [`consortCommReport`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn consortCommStatus(
    comm: *mut c_void,
    buffer: *mut c_char,
    capacity: usize,
    needed: *mut usize,
) -> c_int {
    // SAFETY: this function's own contract.
    fence_of(comm, || unsafe {
        let handle = handle(comm)?;
        let text = || Ok(handle.communicator.status().err().map_or(String::new(), |error| error.to_string()));
        write_text(buffer, capacity, needed, text)
    })
}

/// What ended the communicator, as a result.
///
/// # Safety
/// `result` must be null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommGetAsyncError(comm: *mut c_void, result: *mut c_int) -> c_int {
    // SAFETY: this function's own contract.
    fence_of(comm, || unsafe {
        let handle = handle(comm)?;
        let status =
            || handle.communicator.status().map_or_else(|error| Status::of(&error), |()| Status::Success);
        store(result, "asyncError", || Ok(status() as c_int))
    })
}

/// Sets the deadline of later calls on a communicator.
#[unsafe(no_mangle)]
pub extern "C" fn consortCommSetTimeout(comm: *mut c_void, seconds: f64) -> c_int {
    fence_of(comm, || handle(comm)?.timeout.set(seconds))
}

/// Writes the deadline of later calls on a communicator.
///
/// # Safety
/// `seconds` must be null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn consortCommGetTimeout(comm: *mut c_void, seconds: *mut f64) -> c_int {
    // SAFETY: this function's own contract.
    fence_of(comm, || unsafe {
        let handle = handle(comm)?;
        store(seconds, "seconds", || Ok(handle.timeout.seconds(&handle.communicator)))
    })
}

/// Sets the deadline of this thread's later calls and writes the one before.
///
/// # Safety
/// `previous` must be null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn consortThreadSetTimeout(seconds: f64, previous: *mut f64) -> c_int {
    fence(|| {
        let before = timeout::set_of_thread(seconds)?;
        if !previous.is_null() {
            // SAFETY: checked for null; otherwise this function's own contract.
            unsafe { previous.write(before) };
        }
        Ok(())
    })
}

/// The words that C passed.
///
/// # Safety
/// `reason` must be null or a string that ends with a zero.
unsafe fn words(reason: *const c_char) -> String {
    if reason.is_null() {
        return "no reason was given".to_owned();
    }
    // SAFETY: checked for null; otherwise this function's own contract.
    unsafe { CStr::from_ptr(reason) }.to_string_lossy().into_owned()
}

/// Ends a communicator, by `end`, unless this process is a fork of the one that has it.
fn end(comm: *mut c_void, end: impl FnOnce(&Handle)) -> Result<(), Error> {
    let handle = handle(comm)?;
    if let Err(error @ Error::Forked) = handle.communicator.status() {
        return Err(error);
    }
    end(&handle);
    Ok(())
}

/// Ends a communicator on all ranks, for good.
///
/// # Safety
/// `reason` must be null or a string that ends with a zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn consortCommAbort(comm: *mut c_void, reason: *const c_char) -> c_int {
    // SAFETY: this function's own contract.
    fence_of(comm, || end(comm, |handle| handle.communicator.abort(&unsafe { words(reason) })))
}

/// Ends a communicator's operations on all ranks.
///
/// # Safety
/// As [`consortCommAbort`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn consortCommRevoke(comm: *mut c_void, reason: *const c_char) -> c_int {
    // SAFETY: this function's own contract.
    fence_of(comm, || end(comm, |handle| handle.communicator.revoke(&unsafe { words(reason) })))
}

/// Ends a communicator on all ranks and frees its handle; null is fine. A call under way keeps what it needs
/// until it returns.
#[unsafe(no_mangle)]
pub extern "C" fn ncclCommAbort(comm: *mut c_void) -> c_int {
    fence_of(comm, || {
        if comm.is_null() {
            return Ok(());
        }
        // A fork has nothing to end, but its copy to free.
        let ended = end(comm, |handle| handle.communicator.abort("its program called ncclCommAbort"));
        drop(handles::remove(comm));
        match ended {
            Err(Error::Forked) => Ok(()),
            ended => ended,
        }
    })
}

/// Ends a communicator's operations on all ranks; there are no flags.
#[unsafe(no_mangle)]
pub extern "C" fn ncclCommRevoke(comm: *mut c_void, flags: c_int) -> c_int {
    fence_of(comm, || {
        if flags != 0 {
            return Err(invalid(&format!("there are no flags {flags}"), "pass 0"));
        }
        end(comm, |handle| handle.communicator.revoke("its program called ncclCommRevoke"))
    })
}
