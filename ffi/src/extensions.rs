//! The calls of `include/consort.h` that NCCL does not have: what happens when something breaks, and what one
//! sees of it. The header is their contract; here is what it does not need to say.

use std::ffi::{c_char, c_int, c_void};

use consort::planning::Collective;
use consort::{Communicator, Error, Report};
use consort_nccl::{Comm, Failure, Result};

use crate::boundary::{plain, store, string};
use crate::{handles, timeout};

/// `consortFormat_t`.
#[repr(i32)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Format {
    /// `CONSORT_TEXT`: for people.
    Text = 0,
    /// `CONSORT_JSON`: for programs.
    Json = 1,
}

fn format(code: c_int) -> Result<Format> {
    [Format::Text, Format::Json].into_iter().find(|format| *format as c_int == code).ok_or_else(|| {
        Failure::argument(format!("there is no report format {code}"), "pass CONSORT_TEXT or CONSORT_JSON")
    })
}

fn written(report: &Report, format: Format) -> String {
    match format {
        Format::Text => report.to_string(),
        Format::Json => report.to_json(),
    }
}

/// `consortCollective_t`, in the order of its numbers.
pub const COLLECTIVES: [Collective; 8] = [
    Collective::AllReduce,
    Collective::Broadcast,
    Collective::Reduce,
    Collective::AllGather,
    Collective::ReduceScatter,
    Collective::AllToAll,
    Collective::Gather,
    Collective::Scatter,
];

fn collective(code: c_int) -> Result<Collective> {
    usize::try_from(code).ok().and_then(|code| COLLECTIVES.get(code)).copied().ok_or_else(|| {
        Failure::argument(format!("there is no collective {code}"), "pass one of consortCollective_t")
    })
}

/// The communicator of a handle, unless this process is a fork of the one that has it: what the parent's threads may
/// have been changing is neither read nor changed.
fn of_this_process(handle: &Comm) -> Result<&Communicator> {
    let communicator = handle.communicator()?;
    match communicator.status() {
        Err(error @ Error::Forked) => Err(error.into()),
        _ => Ok(communicator),
    }
}

/// The report of a communicator: made now, or the last that was made by itself (empty where there is none).
fn report(handle: &Comm, code: c_int, is_last: bool) -> Result<String> {
    let format = format(code)?;
    if is_last {
        let last = of_this_process(handle)?.last_report();
        return Ok(last.map_or(String::new(), |last| written(&last, format)));
    }
    Ok(written(&handle.communicator()?.report()?, format))
}

/// Writes a text, ended by a zero, as far as the buffer goes; never half a character.
///
/// # Safety
/// `buffer` must be null or have `capacity` writable bytes, `needed` be null or writable.
unsafe fn write_text(
    buffer: *mut c_char,
    capacity: usize,
    needed: *mut usize,
    make: impl FnOnce() -> Result<String>,
) -> Result<()> {
    if buffer.is_null() && (capacity != 0 || needed.is_null()) {
        return Err(Failure::argument(
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
fn allocate_text(text: &str) -> Result<*mut c_char> {
    let text = text.replace('\0', " ");
    // SAFETY: any size may be asked for; what comes back is checked.
    let start = unsafe { libc::malloc(text.len() + 1) }.cast::<u8>();
    if start.is_null() {
        let source = std::io::Error::from_raw_os_error(libc::ENOMEM);
        return Err(Error::System { call: "malloc, for a report".to_owned(), source: source.into() }.into());
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
    plain("consortCommReport", comm, || unsafe {
        let handle = handles::comm(comm)?;
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
    plain("consortCommReportAlloc", comm, || unsafe {
        let handle = handles::comm(comm)?;
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
    plain("consortCommLastReport", comm, || unsafe {
        let handle = handles::comm(comm)?;
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
    plain("consortCommFlightRecord", comm, || unsafe {
        let (handle, format) = (handles::comm(comm)?, self::format(format)?);
        write_text(buffer, capacity, needed, || {
            let record = handle.communicator()?.flight_record()?;
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
    plain("consortCommStragglers", comm, || unsafe {
        let (handle, format) = (handles::comm(comm)?, self::format(format)?);
        write_text(buffer, capacity, needed, || {
            let stragglers = handle.communicator()?.stragglers()?;
            Ok(if format == Format::Json { stragglers.to_json() } else { stragglers.to_string() })
        })
    })
}

/// Why a collective on blocks of so many bytes runs as it does.
///
/// # Safety
/// As [`consortCommReport`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn consortCommExplain(
    comm: *mut c_void,
    collective: c_int,
    bytes: usize,
    format: c_int,
    buffer: *mut c_char,
    capacity: usize,
    needed: *mut usize,
) -> c_int {
    // SAFETY: this function's own contract.
    plain("consortCommExplain", comm, || unsafe {
        let (handle, format) = (handles::comm(comm)?, self::format(format)?);
        let collective = self::collective(collective)?;
        write_text(buffer, capacity, needed, || {
            let explanation = of_this_process(&handle)?.explain(collective, bytes as u64)?;
            Ok(match format {
                Format::Json => explanation.to_json(),
                Format::Text => explanation.to_string().trim_end().to_owned(),
            })
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
    plain("consortCommStatus", comm, || unsafe {
        let handle = handles::comm(comm)?;
        let text = || {
            let failure = handle.communicator()?.status().err().map(Failure::from);
            Ok(failure.map_or(String::new(), |failure| failure.text))
        };
        write_text(buffer, capacity, needed, text)
    })
}

/// Sets the deadline of later calls on a communicator.
#[unsafe(no_mangle)]
pub extern "C" fn consortCommSetTimeout(comm: *mut c_void, seconds: f64) -> c_int {
    plain("consortCommSetTimeout", comm, || timeout::set_of_comm(&*handles::comm(comm)?, seconds))
}

/// Writes the deadline of later calls on a communicator.
///
/// # Safety
/// `seconds` must be null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn consortCommGetTimeout(comm: *mut c_void, seconds: *mut f64) -> c_int {
    // SAFETY: this function's own contract.
    plain("consortCommGetTimeout", comm, || unsafe {
        let handle = handles::comm(comm)?;
        store(seconds, "seconds", || timeout::seconds(&handle))
    })
}

/// Sets the deadline of this thread's later calls and writes the one before.
///
/// # Safety
/// `previous` must be null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn consortThreadSetTimeout(seconds: f64, previous: *mut f64) -> c_int {
    plain("consortThreadSetTimeout", std::ptr::null_mut(), || {
        let before = timeout::set_of_thread(seconds)?;
        if !previous.is_null() {
            // SAFETY: checked for null; otherwise this function's own contract.
            unsafe { previous.write(before) };
        }
        Ok(())
    })
}

/// Ends a communicator, by `end`, unless this process is a fork of the one that has it.
fn end(comm: *mut c_void, end: impl FnOnce(&Communicator)) -> Result<()> {
    let handle = handles::comm(comm)?;
    end(of_this_process(&handle)?);
    Ok(())
}

fn no_reason() -> String {
    "no reason was given".to_owned()
}

/// Ends a communicator on all ranks, for good.
///
/// # Safety
/// `reason` must be null or a string that ends with a zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn consortCommAbort(comm: *mut c_void, reason: *const c_char) -> c_int {
    plain("consortCommAbort", comm, || {
        // SAFETY: this function's own contract.
        let reason = unsafe { string(reason) }.unwrap_or_else(no_reason);
        end(comm, |communicator| communicator.abort(&reason))
    })
}

/// Ends a communicator's operations on all ranks.
///
/// # Safety
/// As [`consortCommAbort`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn consortCommRevoke(comm: *mut c_void, reason: *const c_char) -> c_int {
    plain("consortCommRevoke", comm, || {
        // SAFETY: this function's own contract.
        let reason = unsafe { string(reason) }.unwrap_or_else(no_reason);
        end(comm, |communicator| communicator.revoke(&reason))
    })
}
