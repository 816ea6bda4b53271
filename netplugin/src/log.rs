//! Lines for NCCL's log.
//!
//! Invariant: a text is a value of a fixed format, never a format. Absent: what is worth a line.

use std::ffi::CString;
use std::sync::{Mutex, PoisonError};

use consort_transports::abi::{LOG_INFO, LOG_WARN, Logger, SUBSYSTEM_NET};

/// NCCL's function, as it was handed over last.
static LOGGER: Mutex<Option<Logger>> = Mutex::new(None);

/// Lines go there from now on.
pub(crate) fn to(logger: Option<Logger>) {
    *LOGGER.lock().unwrap_or_else(PoisonError::into_inner) = logger;
}

/// A line of something that failed.
pub(crate) fn warn(text: &str) {
    line(LOG_WARN, text);
}

/// A line for who looks.
pub(crate) fn info(text: &str) {
    line(LOG_INFO, text);
}

fn line(level: i32, text: &str) {
    let logger = *LOGGER.lock().unwrap_or_else(PoisonError::into_inner);
    let (Some(logger), Ok(text)) = (logger, CString::new(text)) else { return };
    // SAFETY: NCCL's function of this type, with the one value that the format names; all texts end with a zero.
    unsafe { logger(level, SUBSYSTEM_NET, c"NET/consort".as_ptr(), 0, c"%s".as_ptr(), text.as_ptr()) }
}
