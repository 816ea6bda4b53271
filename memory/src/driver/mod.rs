//! The CUDA driver, opened at run time: is one there, and what does it say of an address.
//!
//! Invariant: the driver's library is opened and initialised at most once in a process, by the first who asks, and is
//! not called in a forked child of a process that did so: CUDA does not work there. A machine without it is no error.
//! Absent: contexts, streams, and memory of devices itself.

mod library;

use std::ffi::{CStr, c_int};
use std::fmt;
use std::sync::OnceLock;

use crate::ForkStamp;
use library::Functions;

/// `CU_POINTER_ATTRIBUTE_MEMORY_TYPE`.
const MEMORY_TYPE: c_int = 2;
/// `CU_POINTER_ATTRIBUTE_IS_MANAGED`.
const IS_MANAGED: c_int = 8;
/// `CU_MEMORYTYPE_DEVICE`.
const DEVICE: u64 = 2;

/// A result of the driver that is not success.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CudaError {
    /// `CUresult`.
    pub code: i32,
    /// Its name in the driver's interface; empty for a number that the driver does not know.
    pub name: String,
}

impl CudaError {
    /// `CUDA_ERROR_INVALID_VALUE`: of an address, that it is none of CUDA's.
    const INVALID_VALUE: i32 = 1;
    /// `CUDA_ERROR_NOT_INITIALIZED`: nobody in this process can have memory of CUDA's.
    const NOT_INITIALIZED: i32 = 3;
    /// `CUDA_ERROR_DEINITIALIZED`: the process is ending and its memory of CUDA's is gone.
    const DEINITIALIZED: i32 = 4;
}

impl fmt::Display for CudaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name.as_str() {
            "" => write!(f, "CUDA error {}", self.code),
            name => write!(f, "{name} ({})", self.code),
        }
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
    #[error("{name} has no {function}", name = library::NAME.to_string_lossy())]
    Incomplete {
        /// What it lacks.
        function: &'static str,
    },
    /// The driver does not start.
    #[error("{call}: {error}")]
    Refused {
        /// Which of its functions says so.
        call: &'static str,
        /// What it says.
        error: CudaError,
    },
    /// It started and has nothing to drive.
    #[error("the driver has no devices")]
    NoDevices,
    /// It would not be known of a forked child that it is one.
    #[error("the process cannot be told from a fork of it: {reason}")]
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

/// Whose memory is at an address.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum MemoryKind {
    /// The host's; also what the driver knows nothing of.
    Host,
    /// The driver's, which moves it to whoever touches it, also the host.
    Managed,
    /// A device's; the host must not touch it.
    Device,
}

/// The CUDA driver of this process.
#[derive(Debug)]
pub struct Driver {
    functions: Functions,
    version: i32,
    devices: u32,
    stamp: ForkStamp,
}

impl Driver {
    /// The driver, started by the first who asks; all later calls get the same answer at the price of two loads.
    ///
    /// # Errors
    /// [`NoDriver`]: why there is none, or none for this process.
    pub fn of_process() -> Result<&'static Driver, &'static NoDriver> {
        static DRIVER: OnceLock<Result<Driver, NoDriver>> = OnceLock::new();
        let driver = DRIVER.get_or_init(Driver::start).as_ref()?;
        if driver.stamp.is_forked_child() { Err(&NoDriver::Forked) } else { Ok(driver) }
    }

    fn start() -> Result<Self, NoDriver> {
        let stamp = ForkStamp::new().map_err(|error| NoDriver::Unmarked { reason: error.to_string() })?;
        let functions = Functions::load()?;
        let refused = |call: &'static str, result: c_int| match functions.check(result) {
            Ok(()) => Ok(()),
            Err(error) => Err(NoDriver::Refused { call, error }),
        };
        let (mut version, mut devices) = (0, 0);
        // SAFETY: the only flags there are.
        refused("cuInit", unsafe { (functions.init)(0) })?;
        // SAFETY: the place is writable.
        refused("cuDriverGetVersion", unsafe { (functions.driver_version)(&mut version) })?;
        // SAFETY: as above.
        refused("cuDeviceGetCount", unsafe { (functions.device_count)(&mut devices) })?;
        match u32::try_from(devices) {
            Ok(devices) if devices > 0 => Ok(Driver { functions, version, devices, stamp }),
            _ => Err(NoDriver::NoDevices),
        }
    }

    /// How many devices it has, at least one.
    pub fn devices(&self) -> u32 {
        self.devices
    }

    /// The newest version of CUDA that it serves, as major and minor number.
    pub fn version(&self) -> (i32, i32) {
        (self.version / 1000, self.version % 1000 / 10)
    }

    /// Whose memory is at `address`. In a forked child the driver is not asked, and all memory is the host's: what
    /// its parent had of devices is not there.
    ///
    /// # Errors
    /// What the driver says instead; also what an earlier call of somebody else's did to it.
    pub fn memory_kind(&self, address: usize) -> Result<MemoryKind, CudaError> {
        if self.stamp.is_forked_child() {
            return Ok(MemoryKind::Host);
        }
        match self.attribute(MEMORY_TYPE, address) {
            Ok(DEVICE) => {
                // A driver too old for the question has no such memory.
                let is_managed = self.attribute(IS_MANAGED, address).is_ok_and(|answer| answer != 0);
                Ok(if is_managed { MemoryKind::Managed } else { MemoryKind::Device })
            }
            Ok(_) => Ok(MemoryKind::Host),
            Err(error) => match error.code {
                CudaError::INVALID_VALUE | CudaError::NOT_INITIALIZED | CudaError::DEINITIALIZED => {
                    Ok(MemoryKind::Host)
                }
                _ => Err(error),
            },
        }
    }

    fn attribute(&self, attribute: c_int, address: usize) -> Result<u64, CudaError> {
        // Attributes are 1 to 8 bytes wide; what the driver leaves of these is zero.
        let mut value = 0u64;
        // SAFETY: the place is writable and as wide as the widest attribute; any address may be asked about.
        let result =
            unsafe { (self.functions.pointer_attribute)((&raw mut value).cast(), attribute, address as u64) };
        self.functions.check(result).map(|()| value)
    }
}

impl Functions {
    /// A result, with its name if it is not success.
    fn check(&self, result: c_int) -> Result<(), CudaError> {
        if result == 0 {
            return Ok(());
        }
        let mut name = std::ptr::null();
        // SAFETY: the place is writable; any number may be asked about.
        let known = unsafe { (self.error_name)(result, &mut name) } == 0 && !name.is_null();
        // SAFETY: a name is a static text that ends with a zero.
        let name = if known { unsafe { CStr::from_ptr(name) }.to_string_lossy() } else { "".into() };
        Err(CudaError { code: result, name: name.into_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_say_who_refused_and_what() {
        let known = CudaError { code: 100, name: "CUDA_ERROR_NO_DEVICE".to_owned() };
        let unknown = CudaError { code: 12345, name: String::new() };
        assert_eq!(
            NoDriver::Refused { call: "cuInit", error: known }.to_string(),
            "cuInit: CUDA_ERROR_NO_DEVICE (100)"
        );
        assert_eq!(
            NoDriver::Refused { call: "cuInit", error: unknown }.to_string(),
            "cuInit: CUDA error 12345"
        );
        let incomplete = NoDriver::Incomplete { function: "cuInit" };
        assert_eq!(incomplete.to_string(), "libcuda.so.1 has no cuInit");
    }

    #[test]
    fn whoever_asks_gets_the_same_answer() {
        match (Driver::of_process(), Driver::of_process()) {
            (Ok(first), Ok(second)) => {
                let local = 0u64;
                assert!(std::ptr::eq(first, second) && first.devices() > 0);
                assert_eq!(first.memory_kind((&raw const local).addr()), Ok(MemoryKind::Host));
            }
            (Err(first), Err(second)) => {
                assert_eq!(first, second);
                assert!(!first.to_string().is_empty());
            }
            (first, second) => panic!("{first:?}, then {second:?}"),
        }
    }
}
