//! The CUDA driver, opened at run time, and what is made through it: contexts, memory, streams, events, functions.
//!
//! Invariant: the driver's library is opened and initialised at most once in a process, by the first who asks, and is
//! not called in a forked child of a process that did so: CUDA does not work there, and what is dropped there is
//! left alone. A machine without it is no error, nor is a driver that lacks some function, until that is called for.
//! What a value here was made from lives as long as the value. Absent: what travels between devices, kernels, graphs,
//! and the runtime interface (`libcudart`), with which the driver shares its primary contexts, but for the question which
//! device is current ([`runtime_device`]).
//!
//! So far only a stand-in for the driver (`standins/cuda`) has run all of this, in `tests/cuda/driver.rs`; NVIDIA's
//! has not. NVIDIA's own checks more (what a handle is) and does less at once.

/// Calls a function of the driver by the name of its entry in `Functions`; the error says which it was.
macro_rules! call {
    ($driver:expr, $entry:ident($($argument:expr),* $(,)?)) => {{
        let driver: &$crate::Driver = $driver;
        match driver.entry(&driver.functions.$entry) {
            Ok(function) => driver.functions.check(driver.functions.$entry.name, function($($argument),*)),
            Err(error) => Err(error),
        }
    }};
}

mod capture;
mod context;
mod device;
mod direct;
mod error;
mod event;
mod functions;
mod library;
pub mod management;
mod memory;
mod module;
mod nvml;
mod pinned;
mod raw;
mod runtime;
mod shared;
mod span;
mod stream;

use std::ffi::CStr;
use std::sync::OnceLock;

use cudarc::driver::sys::{CUmemorytype, CUpointer_attribute};

use consort_memory::ForkStamp;
use functions::{Entry, Functions, RawResult};
use library::Library;

pub use context::{Context, Entered};
pub use device::Device;
pub use direct::DirectAccess;
pub use error::{CudaError, CudaErrorCause, NoDriver, Result};
pub use event::Event;
pub use memory::{DeviceMemory, IpcHandle, PeerMemory};
pub use module::{Function, Module};
pub use nvml::{NoNvml, NvLink, NvLinks, PeerStatus};
pub use pinned::{DeviceWord, PinnedMemory, Registered};
pub use raw::RawStream;
pub use runtime::runtime_device;
pub use shared::SharedDeviceMemory;
pub use span::DeviceSpan;
pub use stream::{CaptureStatus, Stream, StreamRef};

/// Whose memory is at an address.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum MemoryKind {
    /// The host's; also what the driver knows nothing of.
    Host,
    /// The host's, which devices may reach too.
    Pinned,
    /// The driver's, which moves it to where it is touched, also the host.
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
    pub fn of_process() -> std::result::Result<&'static Driver, &'static NoDriver> {
        static DRIVER: OnceLock<std::result::Result<Driver, NoDriver>> = OnceLock::new();
        let driver = DRIVER.get_or_init(Driver::start).as_ref()?;
        if driver.stamp.is_forked_child() { Err(&NoDriver::Forked) } else { Ok(driver) }
    }

    fn start() -> std::result::Result<Self, NoDriver> {
        let stamp = ForkStamp::new().map_err(|error| NoDriver::Unmarked { reason: error.to_string() })?;
        let functions = Functions::load(&Library::open()?);
        let incomplete = |function| NoDriver::Incomplete { function };
        let init = functions.init.function.ok_or(incomplete(functions.init.name))?;
        let version_of =
            functions.driver_version.function.ok_or(incomplete(functions.driver_version.name))?;
        let count_of = functions.device_count.function.ok_or(incomplete(functions.device_count.name))?;
        functions.error_name.function.ok_or(incomplete(functions.error_name.name))?;
        functions.pointer_attribute.function.ok_or(incomplete(functions.pointer_attribute.name))?;
        let refused = |call: &'static str, result: RawResult| {
            functions.check(call, result).map_err(|error| NoDriver::Refused { error: Box::new(error) })
        };
        let (mut version, mut devices) = (0, 0);
        // SAFETY: the only flags there are.
        refused(functions.init.name, unsafe { init(0) })?;
        // SAFETY: the place is writable.
        refused(functions.driver_version.name, unsafe { version_of(&mut version) })?;
        // SAFETY: as above.
        refused(functions.device_count.name, unsafe { count_of(&mut devices) })?;
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
    /// What the driver says instead; also what an earlier call of another caller did to it.
    pub fn memory_kind(&self, address: usize) -> Result<MemoryKind> {
        const DEVICE: u64 = CUmemorytype::CU_MEMORYTYPE_DEVICE as u64;
        const HOST: u64 = CUmemorytype::CU_MEMORYTYPE_HOST as u64;
        if self.stamp.is_forked_child() {
            return Ok(MemoryKind::Host);
        }
        let address = address as u64;
        match self.attribute(CUpointer_attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address) {
            Ok(DEVICE) => {
                let is_managed = CUpointer_attribute::CU_POINTER_ATTRIBUTE_IS_MANAGED;
                // A driver too old for the question has no such memory.
                let is_managed = self.attribute(is_managed, address).is_ok_and(|answer| answer != 0);
                Ok(if is_managed { MemoryKind::Managed } else { MemoryKind::Device })
            }
            Ok(HOST) => Ok(MemoryKind::Pinned),
            Ok(_) => Ok(MemoryKind::Host),
            Err(error) => match error.code {
                CudaError::INVALID_VALUE | CudaError::NOT_INITIALIZED | CudaError::DEINITIALIZED => {
                    Ok(MemoryKind::Host)
                }
                _ => Err(error),
            },
        }
    }

    /// Where the allocation begins in which `address` lies, and how many bytes it has.
    ///
    /// # Errors
    /// What the driver says; an address of no allocation of CUDA's is one.
    pub fn address_range(&self, address: u64) -> Result<(u64, u64)> {
        let (mut base, mut bytes) = (0, 0);
        // SAFETY: both places are writable; any address may be asked about.
        unsafe { call!(self, memory_range(&mut base, &mut bytes, address)) }?;
        Ok((base, bytes as u64))
    }

    fn attribute(&self, attribute: CUpointer_attribute, address: u64) -> Result<u64> {
        // Attributes are 1 to 8 bytes wide; what the driver leaves of these is zero.
        let mut value = 0u64;
        // SAFETY: the place is writable and as wide as the widest attribute; any address may be asked about.
        unsafe { call!(self, pointer_attribute((&raw mut value).cast(), attribute, address)) }?;
        Ok(value)
    }

    /// The function of an entry, to be called by `call!` alone.
    #[inline]
    fn entry<F: Copy>(&self, entry: &Entry<F>) -> Result<F> {
        if self.stamp.is_forked_child() {
            return Err(CudaError::without_code(entry.name, CudaErrorCause::NoDriver(NoDriver::Forked)));
        }
        entry.function.ok_or_else(|| CudaError::without_code(entry.name, CudaErrorCause::Missing))
    }
}

impl Functions {
    /// A result, with its name if it is not success.
    #[inline]
    fn check(&self, call: &'static str, result: RawResult) -> Result<()> {
        if result == 0 { Ok(()) } else { Err(self.named(call, result)) }
    }

    #[cold]
    fn named(&self, call: &'static str, result: RawResult) -> CudaError {
        let mut name = std::ptr::null();
        // SAFETY: the place is writable; any number may be asked about.
        let known =
            self.error_name.function.is_some_and(|name_of| unsafe { name_of(result, &mut name) } == 0);
        let name = if known && !name.is_null() {
            // SAFETY: a name is a static text that ends with a zero.
            unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
        } else {
            String::new()
        };
        CudaError { call, code: result, name, cause: CudaErrorCause::Returned }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
