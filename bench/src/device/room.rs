//! A rank's buffer on its device, with guard bytes around the part in use.
//!
//! Invariant: the part in use always begins at the same address (as the driver aligns memory, plus the asked
//! misalignment) and has [`GUARD`] bytes of known value directly before and after it. Absent: calls.

use std::ops::Range;

use consort::device::{Device, DeviceBuffer};

use crate::backend::failure;
use crate::buffers::{GUARD, GUARD_BYTE, Guarded};
use crate::failure::{Exit, Failure};
use crate::sizes::human;

/// Memory between guards.
pub(super) struct Room {
    memory: DeviceBuffer<u8>,
    start: usize,
}

impl Room {
    /// Memory for up to `bytes` bytes.
    ///
    /// # Errors
    /// The device has less memory.
    pub(super) fn new(device: &Device, bytes: usize, unalign: usize) -> Result<Self, Failure> {
        let total = Guarded::footprint(bytes as u64, unalign);
        let memory = device.buffer::<u8>(total as usize).map_err(|error| {
            let (needed, ordinal, name) = (human(total), device.ordinal(), device.name());
            let all = human(device.memory_bytes());
            Failure::new(
                Exit::Usage,
                format!("a buffer of {needed} on device {ordinal} ({name}, {all}) could not be had: {error}"),
            )
        })?;
        Ok(Room { memory, start: GUARD + unalign })
    }

    /// Whether `bytes` bytes fit, with their guards.
    pub(super) fn holds(&self, bytes: usize) -> bool {
        self.start + bytes + GUARD <= self.memory.len()
    }

    /// Bytes of the part in use.
    pub(super) fn part(&self, bytes: Range<usize>) -> DeviceBuffer<u8> {
        self.memory.slice(self.start + bytes.start..self.start + bytes.end)
    }

    fn guards(&self, bytes: usize) -> [DeviceBuffer<u8>; 2] {
        let (start, end) = (self.start, self.start + bytes);
        [self.memory.slice(start - GUARD..start), self.memory.slice(end..end + GUARD)]
    }

    /// Writes the part in use and the guards around it.
    pub(super) fn put(&self, data: &[u8]) -> Result<(), Failure> {
        let guards = self.guards(data.len());
        guards.iter().try_for_each(|guard| guard.set(&[GUARD_BYTE; GUARD])).map_err(failure)?;
        self.part(0..data.len()).set(data).map_err(failure)
    }

    /// Guard bytes that have changed around `bytes` bytes in use.
    fn broken(&self, bytes: usize) -> Result<u64, Failure> {
        let mut broken = 0;
        for guard in self.guards(bytes) {
            let found = guard.to_vec().map_err(failure)?;
            broken += found.iter().filter(|byte| **byte != GUARD_BYTE).count() as u64;
        }
        Ok(broken)
    }

    /// Reads the part in use; how many bytes of the guards have changed.
    pub(super) fn get(&self, data: &mut [u8]) -> Result<u64, Failure> {
        data.copy_from_slice(&self.part(0..data.len()).to_vec().map_err(failure)?);
        self.broken(data.len())
    }

    /// How many bytes of the part in use are not those of `data`, and of the guards have changed.
    pub(super) fn changed(&self, data: &[u8]) -> Result<u64, Failure> {
        let found = self.part(0..data.len()).to_vec().map_err(failure)?;
        let changed = found.iter().zip(data).filter(|(found, data)| found != data).count() as u64;
        Ok(changed + self.broken(data.len())?)
    }
}
