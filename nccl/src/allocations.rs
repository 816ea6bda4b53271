//! Memory that clients get from the library, and buffers that they register.
//!
//! Invariant: memory from `allocate` is kept by its address until it is freed; any other address is refused. Absent:
//! how ranks find each other's memory (`engine::zero_copy`).

use std::any::Any;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use consort_memory::{SharedMemory, UserBuffer};

use super::comm::Comm;
use super::device;
use super::result::{Failure, Result};
use consort_types::error::Error;

/// Memory from `allocate` that is not freed, by address: kept, not used.
static GIVEN: Mutex<BTreeMap<usize, Box<dyn Any + Send>>> = Mutex::new(BTreeMap::new());

fn given() -> MutexGuard<'static, BTreeMap<usize, Box<dyn Any + Send>>> {
    GIVEN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Allocates `bytes` bytes and returns their address, 0 for none. The memory is of the device that is current on the
/// calling thread, or, without one, zeroed host memory, aligned to a page, which the ranks of this host can map.
///
/// # Errors
/// Where there is not enough memory.
pub fn allocate(bytes: usize) -> Result<usize> {
    if bytes == 0 {
        return Ok(0);
    }
    if let Some(context) = device::current()? {
        let memory = context.allocate(bytes).map_err(|error| device::refused_by_driver(&error))?;
        let start = memory.address() as usize;
        given().insert(start, Box::new(memory));
        return Ok(start);
    }
    let memory = SharedMemory::new(bytes).map_err(|error| {
        Error::system(format!("ncclMemAlloc of {bytes} bytes"), std::io::Error::other(error))
    })?;
    let start = memory.span().as_mut_ptr() as usize;
    given().insert(start, Box::new(memory));
    Ok(start)
}

/// Frees memory of [`allocate`]; 0 is allowed.
///
/// # Errors
/// For an address that [`allocate`] did not return, or that is free already.
pub fn free(start: usize) -> Result<()> {
    if start == 0 {
        return Ok(());
    }
    let freed = given().remove(&start);
    freed.map(drop).ok_or_else(|| {
        Failure::argument(
            format!("{start:#x} is no memory of ncclMemAlloc, or was freed"),
            "pass what ncclMemAlloc wrote, once",
        )
    })
}

impl Comm {
    /// Registers a buffer of this rank and returns its number, never 0. The caller keeps it allocated until [`Comm::deregister`] or the
    /// end of the communicator: adapters that read it where it is read what was there.
    ///
    /// # Errors
    /// For a range that is no buffer; as [`Comm::communicator`].
    pub fn register(&self, start: usize, bytes: usize) -> Result<usize> {
        self.communicator()?;
        let buffer = UserBuffer::new(start, bytes).map_err(|_| {
            Failure::argument(
                format!("a buffer of {bytes} bytes at {start:#x}"),
                "pass the address and the bytes of a buffer",
            )
        })?;
        Ok(self.registrations.note(buffer))
    }

    /// Removes a buffer; number 0 is allowed.
    ///
    /// # Errors
    /// For a number of no buffer of this communicator.
    pub fn deregister(&self, number: usize) -> Result<()> {
        if number == 0 || self.registrations.forget(number) {
            return Ok(());
        }
        Err(Failure::usage(
            "the handle is of no buffer that is registered here",
            "pass what ncclCommRegister wrote, once",
        ))
    }

    /// A counter of `ncclCommMemStat_t`, in bytes, of the communicator's own memory beside the caller's buffers: host
    /// memory here. While in use, nearly all of it can be suspended; the rest persists.
    ///
    /// # Errors
    /// For an unknown counter; as [`Communicator::memory_bytes`](consort::Communicator::memory_bytes).
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
