//! What the driver refuses, and why there may be none.
//!
//! Invariant: an error says which of the driver's functions refused, with what result, or that it has no such
//! function. Absent: what to do about it, which depends on what was wanted.

use std::ffi::CStr;
use std::fmt;
use std::io;

use cudarc::driver::sys::CUresult;

/// The library's name to the loader, which every driver installs.
pub(super) const LIBRARY: &CStr = c"libcuda.so.1";

/// What a call of the driver's returns.
pub type Result<T> = std::result::Result<T, CudaError>;

/// A call of the driver's that did not succeed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CudaError {
    /// Which of the driver's functions, by the name under which it is looked up.
    pub call: &'static str,
    /// `CUresult`; zero where the driver was not asked.
    pub code: i32,
    /// Its name in the driver's interface; empty for a number that the driver does not know.
    pub name: String,
    /// What else there is to say.
    pub cause: CudaErrorCause,
}

/// What kind of failure a [`CudaError`] is.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum CudaErrorCause {
    /// The driver's result says it all.
    Returned,
    /// The driver's result, and the words of its compiler or loader.
    Log(String),
    /// The driver has no such function: it is older than the function.
    Missing,
    /// There is no driver, or none for this process.
    NoDriver(NoDriver),
    /// What should be given to the driver is not fit for it.
    Unfit(&'static str),
    /// The system refused what the call needs.
    System(io::ErrorKind),
}

impl CudaError {
    /// `CUDA_ERROR_INVALID_VALUE`: of an address, that it is none of CUDA's.
    pub(super) const INVALID_VALUE: i32 = CUresult::CUDA_ERROR_INVALID_VALUE as i32;
    /// `CUDA_ERROR_NOT_INITIALIZED`: nothing in this process can have memory of CUDA's.
    pub(super) const NOT_INITIALIZED: i32 = CUresult::CUDA_ERROR_NOT_INITIALIZED as i32;
    /// `CUDA_ERROR_DEINITIALIZED`: the process is ending and its memory of CUDA's is gone.
    pub(super) const DEINITIALIZED: i32 = CUresult::CUDA_ERROR_DEINITIALIZED as i32;
    /// `CUDA_ERROR_INVALID_CONTEXT`: of a question about the current context, that there is none.
    pub(super) const INVALID_CONTEXT: i32 = CUresult::CUDA_ERROR_INVALID_CONTEXT as i32;
    /// `CUDA_ERROR_NOT_READY`: of a query, that it is not over.
    pub(super) const NOT_READY: i32 = CUresult::CUDA_ERROR_NOT_READY as i32;
    /// `CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED`.
    pub(super) const PEER_ACCESS_ALREADY_ENABLED: i32 =
        CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED as i32;

    pub(super) fn without_code(call: &'static str, cause: CudaErrorCause) -> Self {
        CudaError { call, code: 0, name: String::new(), cause }
    }

    pub(super) fn unfit(call: &'static str, what: &'static str) -> Self {
        Self::without_code(call, CudaErrorCause::Unfit(what))
    }

    /// Whether the device or the host has not that much memory.
    pub fn is_out_of_memory(&self) -> bool {
        self.code == CUresult::CUDA_ERROR_OUT_OF_MEMORY as i32
    }

    /// Whether the driver or the device has not what was asked for, so that another way is to be taken.
    pub fn is_unsupported(&self) -> bool {
        self.cause == CudaErrorCause::Missing
            || self.code == CUresult::CUDA_ERROR_NOT_SUPPORTED as i32
            || self.code == CUresult::CUDA_ERROR_NOT_PERMITTED as i32
    }
}

impl fmt::Display for CudaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let CudaError { call, code, name, cause } = self;
        match cause {
            CudaErrorCause::Missing => {
                return write!(f, "the driver has no {call}; it is older than this needs");
            }
            CudaErrorCause::NoDriver(reason) => return write!(f, "no CUDA driver ({reason})"),
            CudaErrorCause::Unfit(what) => return write!(f, "not given to {call}: {what}"),
            CudaErrorCause::System(kind) => return write!(f, "{call}: {kind}"),
            CudaErrorCause::Returned | CudaErrorCause::Log(_) => {}
        }
        match name.as_str() {
            "" => write!(f, "{call}: CUDA error {code}")?,
            name => write!(f, "{call}: {name} ({code})")?,
        }
        match cause {
            CudaErrorCause::Log(log) if !log.is_empty() => write!(f, ": {log}"),
            _ => Ok(()),
        }
    }
}

impl std::error::Error for CudaError {}

impl From<&NoDriver> for CudaError {
    fn from(reason: &NoDriver) -> Self {
        CudaError::without_code("cuInit", CudaErrorCause::NoDriver(reason.clone()))
    }
}

/// Why there is no CUDA driver to ask.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NoDriver {
    /// The loader has no such library.
    #[error("{reason}")]
    NotFound {
        /// The loader's own words.
        reason: String,
    },
    /// A library of that name is something else, or far too old.
    #[error("{name} has no {function}", name = LIBRARY.to_string_lossy())]
    Incomplete {
        /// What it lacks.
        function: &'static str,
    },
    /// The driver does not start.
    #[error("{error}")]
    Refused {
        /// What it says, and which of its functions says so.
        error: Box<CudaError>,
    },
    /// It started and has nothing to drive.
    #[error("the driver has no devices")]
    NoDevices,
    /// It would not be known of a forked child that it is one.
    #[error("the process cannot be distinguished from a fork of it: {reason}")]
    Unmarked {
        /// What the system said.
        reason: String,
    },
    /// It belongs to another process.
    #[error(
        "this process was forked from one that had initialised CUDA, which does not work in a forked child"
    )]
    Forked,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn returned(code: i32, name: &str) -> CudaError {
        CudaError { call: "cuInit", code, name: name.to_owned(), cause: CudaErrorCause::Returned }
    }

    #[test]
    fn refusals_say_who_refused_and_what() {
        let (known, unknown) = (returned(100, "CUDA_ERROR_NO_DEVICE"), returned(12345, ""));
        let text = |error: CudaError| NoDriver::Refused { error: Box::new(error) }.to_string();
        assert_eq!(text(known.clone()), "cuInit: CUDA_ERROR_NO_DEVICE (100)");
        assert_eq!(text(unknown), "cuInit: CUDA error 12345");
        let incomplete = NoDriver::Incomplete { function: "cuInit" };
        assert_eq!(incomplete.to_string(), "libcuda.so.1 has no cuInit");
        let with_log = CudaError { cause: CudaErrorCause::Log("line 3: no".to_owned()), ..known };
        assert_eq!(with_log.to_string(), "cuInit: CUDA_ERROR_NO_DEVICE (100): line 3: no");
    }

    #[test]
    fn what_was_not_asked_has_no_result() {
        let missing = CudaError::without_code("cuMemCreate", CudaErrorCause::Missing);
        assert_eq!(missing.to_string(), "the driver has no cuMemCreate; it is older than this needs");
        assert!(missing.is_unsupported() && !missing.is_out_of_memory());
        let none = CudaError::from(&NoDriver::NoDevices);
        assert_eq!(none.to_string(), "no CUDA driver (the driver has no devices)");
        assert!(returned(2, "CUDA_ERROR_OUT_OF_MEMORY").is_out_of_memory());
    }
}
