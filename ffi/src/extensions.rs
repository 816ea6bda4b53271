//! The calls of `include/consort.h` that NCCL does not have: deadlines, ends of communicators, and reports. The
//! header is their contract; the comments here have only the rest.

use std::ffi::{c_char, c_int, c_void};
use std::fmt::Display;

use consort::planning::{Collective, Explanation};
use consort::{Communicator, Error, FlightRecord, Report, Stragglers};
use consort_nccl::{Comm, Failure, Result};

use crate::boundary::{ask, exported, plain, store, string};
use crate::types::NcclUniqueId;
use crate::{handles, timeout};

/// `consortFormat_t`.
#[repr(i32)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Format {
    /// `CONSORT_TEXT`: for users.
    Text = 0,
    /// `CONSORT_JSON`: for programs.
    Json = 1,
}

fn format(code: c_int) -> Result<Format> {
    [Format::Text, Format::Json].into_iter().find(|format| *format as c_int == code).ok_or_else(|| {
        Failure::argument(format!("there is no report format {code}"), "pass CONSORT_TEXT or CONSORT_JSON")
    })
}

impl Format {
    fn of<T: Display>(self, what: &T, json: fn(&T) -> String) -> String {
        match self {
            Format::Text => what.to_string(),
            Format::Json => json(what),
        }
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

/// The communicator of a handle, unless this process is a fork of the one that made it: threads of the parent may
/// have been changing it, so it is neither read nor changed.
fn of_this_process(handle: &Comm) -> Result<&Communicator> {
    let communicator = handle.communicator()?;
    match communicator.status() {
        Err(error @ Error::Forked) => Err(error.into()),
        _ => Ok(communicator),
    }
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

/// A text in newly allocated memory.
fn allocate_text(text: &str) -> Result<*mut c_char> {
    let text = text.replace('\0', " ");
    // SAFETY: any size is allowed; the result is checked.
    let start = unsafe { libc::malloc(text.len() + 1) }.cast::<u8>();
    if start.is_null() {
        let source = std::io::Error::from_raw_os_error(libc::ENOMEM);
        return Err(Error::System { call: "malloc, for a report".to_owned(), source: source.into() }.into());
    }
    // SAFETY: there are that many bytes and one more, and no other code knows them.
    unsafe {
        start.copy_from_nonoverlapping(text.as_ptr(), text.len());
        start.add(text.len()).write(0);
    }
    Ok(start.cast())
}

/// Defines functions that write a text about a communicator into the caller's buffer.
macro_rules! texts {
    ($(
        $(#[$documentation:meta])*
        fn $name:ident($($argument:ident: $type:ty),*) |$comm:ident| $text:expr;
    )*) => {exported! {$(
        $(#[$documentation])*
        ///
        /// # Safety
        /// `buffer` must be null or have `capacity` writable bytes, `needed` be null or writable.
        fn $name(
            comm: *mut c_void, $($argument: $type,)* buffer: *mut c_char, capacity: usize, needed: *mut usize
        ) -> c_int {
            plain(stringify!($name), comm, || {
                let $comm = handles::comm(comm)?;
                // SAFETY: this function's own contract.
                unsafe { write_text(buffer, capacity, needed, || $text) }
            })
        }
    )*}};
}

texts! {
    /// The hang report, made now.
    fn consortCommReport(format: c_int) |comm| {
        Ok(self::format(format)?.of(&comm.communicator()?.report()?, Report::to_json))
    };

    /// The last hang report that the library made by itself. Empty where there is none.
    fn consortCommLastReport(format: c_int) |comm| {
        let format = self::format(format)?;
        Ok(of_this_process(&comm)?.last_report().map_or(String::new(), |last| format.of(&last, Report::to_json)))
    };

    /// The last operations of this rank on the communicator.
    fn consortCommFlightRecord(format: c_int) |comm| {
        Ok(self::format(format)?.of(&comm.communicator()?.flight_record()?, FlightRecord::to_json))
    };

    /// Which rank arrives last at the collectives, and by how much.
    fn consortCommStragglers(format: c_int) |comm| {
        Ok(self::format(format)?.of(&comm.communicator()?.stragglers()?, Stragglers::to_json))
    };

    /// Why a collective on blocks of `bytes` bytes runs as it does.
    fn consortCommExplain(collective: c_int, bytes: usize, format: c_int) |comm| {
        let (format, collective) = (self::format(format)?, self::collective(collective)?);
        let explanation = of_this_process(&comm)?.explain(collective, bytes as u64)?;
        Ok(format.of(&explanation, Explanation::to_json).trim_end().to_owned())
    };

    /// The failure that ended the communicator, as text. Empty while it works.
    fn consortCommStatus() |comm| {
        let failure = comm.communicator()?.status().err().map(Failure::from);
        Ok(failure.map_or(String::new(), |failure| failure.text))
    };
}

exported! {
    /// The hang report, made now, in memory that [`consortFree`] frees.
    ///
    /// # Safety
    /// `text` must be null or writable.
    fn consortCommReportAlloc(comm: *mut c_void, format: c_int, text: *mut *mut c_char) -> c_int {
        let made = |comm: &Comm| {
            let format = self::format(format)?;
            allocate_text(&format.of(&comm.communicator()?.report()?, Report::to_json))
        };
        // SAFETY: this function's own contract.
        unsafe { ask("consortCommReportAlloc", comm, text, "text", made) }
    }
}

exported! {
    /// Writes this process's rank in the job that a launcher started, the number of ranks, and the id that they share.
    ///
    /// # Safety
    /// Each of `rank`, `size` and `id` must be null or writable.
    fn consortLaunch(rank: *mut c_int, size: *mut c_int, id: *mut NcclUniqueId) -> c_int {
        plain("consortLaunch", std::ptr::null_mut(), || {
            let mut launched = None;
            // SAFETY: this function's own contract, three times. The launch is asked for when all places are known to
            // be there.
            unsafe {
                store(rank, "rank", || Ok(0))?;
                store(size, "size", || Ok(0))?;
                store(id, "id", || {
                    let (rank, size, id) = consort_nccl::launched()?;
                    launched = Some((rank, size));
                    Ok(NcclUniqueId { internal: id.to_bytes() })
                })?;
                let (own, all) = launched.unwrap_or_default();
                store(rank, "rank", || Ok(own as c_int))?;
                store(size, "size", || Ok(all as c_int))
            }
        })
    }
}

/// Frees memory that this library allocated for the caller; null is allowed.
///
/// # Safety
/// `memory` must be null or come from a call of this library that documents it, and not have been freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn consortFree(memory: *mut c_void) {
    // SAFETY: all such memory is from `malloc`; otherwise this function's own contract.
    unsafe { libc::free(memory) };
}

/// Sets the deadline of later calls on a communicator.
#[unsafe(no_mangle)]
pub extern "C" fn consortCommSetTimeout(comm: *mut c_void, seconds: f64) -> c_int {
    plain("consortCommSetTimeout", comm, || timeout::set_of_comm(&*handles::comm(comm)?, seconds))
}

exported! {
    /// Writes the deadline of later calls on a communicator.
    ///
    /// # Safety
    /// `seconds` must be null or writable.
    fn consortCommGetTimeout(comm: *mut c_void, seconds: *mut f64) -> c_int {
        // SAFETY: this function's own contract.
        unsafe { ask("consortCommGetTimeout", comm, seconds, "seconds", timeout::seconds) }
    }

    /// Sets the deadline of this thread's later calls and writes the one before.
    ///
    /// # Safety
    /// `previous` must be null or writable.
    fn consortThreadSetTimeout(seconds: f64, previous: *mut f64) -> c_int {
        plain("consortThreadSetTimeout", std::ptr::null_mut(), || {
            let before = timeout::set_of_thread(seconds)?;
            if !previous.is_null() {
                // SAFETY: checked for null; otherwise this function's own contract.
                unsafe { previous.write(before) };
            }
            Ok(())
        })
    }
}

/// Ends a communicator, by `end`, unless this process is a fork of the one that made it.
///
/// # Safety
/// `reason` must be null or a string that ends with a zero.
unsafe fn end(name: &str, comm: *mut c_void, reason: *const c_char, end: fn(&Communicator, &str)) -> c_int {
    plain(name, comm, || {
        // SAFETY: this function's own contract.
        let reason = unsafe { string(reason) }.unwrap_or_else(|| "no reason was given".to_owned());
        end(of_this_process(&*handles::comm(comm)?)?, &reason);
        Ok(())
    })
}

exported! {
    /// Ends a communicator on all ranks for ever.
    ///
    /// # Safety
    /// `reason` must be null or a string that ends with a zero.
    fn consortCommAbort(comm: *mut c_void, reason: *const c_char) -> c_int {
        // SAFETY: this function's own contract.
        unsafe { end("consortCommAbort", comm, reason, Communicator::abort) }
    }

    /// Ends a communicator's operations on all ranks.
    ///
    /// # Safety
    /// As [`consortCommAbort`].
    fn consortCommRevoke(comm: *mut c_void, reason: *const c_char) -> c_int {
        // SAFETY: this function's own contract.
        unsafe { end("consortCommRevoke", comm, reason, Communicator::revoke) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_has_the_form_that_was_asked_for() {
        let comm = Comm::local(1, None).expect("one rank").remove(0);
        let report = comm.communicator().and_then(|comm| Ok(comm.report()?)).expect("a report");
        assert_eq!(Format::Text.of(&report, Report::to_json), report.to_string());
        assert_eq!(Format::Json.of(&report, Report::to_json), report.to_json());
    }
}
