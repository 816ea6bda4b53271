//! Memory that clients get from the library, and buffers that they tell it of.
//!
//! Invariant: what was given is kept until it is freed, by its address; an address that was not given is refused.
//! Absent: how ranks find each other's memory (`engine::mapped`).

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use consort_cuda::DeviceMemory;
use consort_memory::SharedMemory;

use super::comm::Comm;
use super::device;
use super::result::{Failure, Result};
use consort_types::error::Error;

/// What was given and not freed, by address.
static GIVEN: Mutex<BTreeMap<usize, Given>> = Mutex::new(BTreeMap::new());

/// Whose memory was given.
enum Given {
    Host(#[expect(dead_code, reason = "kept, not used")] SharedMemory),
    Device(#[expect(dead_code, reason = "kept, not used")] DeviceMemory),
}

/// The address of `bytes` bytes, 0 for none: of the device that is current on the calling thread, or, without one, of
/// zeroed host memory, aligned to a page, which the ranks beside this one can map.
///
/// # Errors
/// When the memory is not to be had.
pub fn allocate(bytes: usize) -> Result<usize> {
    if bytes == 0 {
        return Ok(0);
    }
    if let Some(context) = device::current()? {
        let memory = context.allocate(bytes).map_err(|error| device::refused_by_driver(&error))?;
        let start = memory.address() as usize;
        GIVEN.lock().unwrap_or_else(PoisonError::into_inner).insert(start, Given::Device(memory));
        return Ok(start);
    }
    let memory = SharedMemory::new(bytes).map_err(|error| {
        Error::system(format!("ncclMemAlloc of {bytes} bytes"), std::io::Error::other(error))
    })?;
    let start = memory.span().as_mut_ptr() as usize;
    GIVEN.lock().unwrap_or_else(PoisonError::into_inner).insert(start, Given::Host(memory));
    Ok(start)
}

/// Frees what [`allocate`] gave; 0 is fine.
///
/// # Errors
/// For an address that was not given, or is free already.
pub fn free(start: usize) -> Result<()> {
    if start == 0 {
        return Ok(());
    }
    let freed = GIVEN.lock().unwrap_or_else(PoisonError::into_inner).remove(&start);
    match freed {
        Some(given) => {
            drop(given);
            Ok(())
        }
        None => Err(Failure::argument(
            format!("{start:#x} is no memory of ncclMemAlloc, or was freed"),
            "pass what ncclMemAlloc wrote, once",
        )),
    }
}

impl Comm {
    /// Notes a buffer of this rank; its number, never 0.
    ///
    /// # Errors
    /// For a buffer that is none; as [`Comm::communicator`].
    pub fn register(&self, start: usize, bytes: usize) -> Result<usize> {
        self.communicator()?;
        if start == 0 || bytes == 0 || start.checked_add(bytes).is_none() {
            return Err(Failure::argument(
                format!("a buffer of {bytes} bytes at {start:#x}"),
                "pass the address and the bytes of a buffer",
            ));
        }
        Ok(self.registrations.note(start, bytes))
    }

    /// Forgets a buffer; number 0 is fine.
    ///
    /// # Errors
    /// For a number that stands for no buffer of this communicator.
    pub fn deregister(&self, number: usize) -> Result<()> {
        if number == 0 || self.registrations.forget(number) {
            return Ok(());
        }
        Err(Failure::usage(
            "the handle is of no buffer that is registered here",
            "pass what ncclCommRegister wrote, once",
        ))
    }

    /// A counter of `ncclCommMemStat_t`, in bytes, of what the communicator holds beside the caller's buffers: host memory
    /// here. In use, nearly all of it can be suspended; what is left then persists.
    ///
    /// # Errors
    /// For numbers that are no counters; as [`Communicator::memory_bytes`](consort::Communicator::memory_bytes).
    pub fn memory_statistic(&self, statistic: i32) -> Result<u64> {
        let on_device = self.placement().map_or(0, |placement| placement.device_bytes());
        let held = || Ok((self.communicator()?.memory_bytes()? + on_device) as u64);
        match (statistic, self.is_suspended()) {
            (0, false) | (2, true) | (3, _) => held(),
            (0, true) | (2, false) => self.communicator().map(|_| 0),
            (1, suspended) => self.communicator().map(|_| u64::from(suspended)),
            _ => Err(Failure::argument(
                format!("there is no memory counter {statistic}"),
                "pass one of ncclCommMemStat_t",
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_given_is_freed_once() {
        let start = allocate(5000).expect("memory");
        assert!(start != 0 && start.is_multiple_of(4096));
        assert!(free(start + 1).is_err());
        free(start).expect("it was given");
        assert!(free(start).is_err());
        assert_eq!(allocate(0).expect("none"), 0);
        free(0).expect("none");
        assert!(allocate(usize::MAX).is_err());
    }
}
