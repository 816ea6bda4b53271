//! What a device is and can do.
//!
//! Invariant: plain facts, read once. Absent: contexts, and what the facts are used for.

use std::ffi::{CStr, c_char, c_int};

use cudarc::driver::sys::{CUdevice, CUdevice_attribute as Attribute, CUuuid};

use super::{CudaError, Driver, Result};

/// A device of the driver.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Device {
    /// Its number in this process, which `CUDA_VISIBLE_DEVICES` changes.
    pub ordinal: u32,
    /// The same in all processes of the machine; of a part of a device (MIG), the part's.
    pub uuid: [u8; 16],
    /// The maker's name for it.
    pub name: String,
    /// Which instructions it has, as major and minor number.
    pub compute_capability: (u32, u32),
    /// Multiprocessors.
    pub multiprocessors: u32,
    /// Domain, bus, device and function, as `0000:3b:00.0`.
    pub pci: String,
    /// Bytes of memory it has in all.
    pub memory_bytes: u64,
    /// Whether a stream can wait for a 64-bit word in memory, and write one.
    pub stream_memory_operations: bool,
    /// Whether its memory can be shared with another process through a descriptor.
    pub shareable_memory: bool,
    pub(super) handle: CUdevice,
}

impl Driver {
    /// The device with this number.
    ///
    /// # Errors
    /// What the driver says; `CUDA_ERROR_INVALID_DEVICE` for a number that no device has.
    pub fn device(&self, ordinal: u32) -> Result<Device> {
        let mut handle = 0;
        let number = c_int::try_from(ordinal).unwrap_or(c_int::MAX);
        // SAFETY: the place is writable; any number may be asked for.
        unsafe { call!(self, device_get(&mut handle, number)) }?;
        let mut uuid = CUuuid { bytes: [0; 16] };
        // SAFETY: the place is writable and the device the driver's own.
        unsafe { call!(self, device_uuid(&mut uuid, handle)) }?;
        let mut memory_bytes = 0;
        // SAFETY: as above.
        unsafe { call!(self, device_memory(&mut memory_bytes, handle)) }?;
        // SAFETY: writes a text that ends with a zero into what it is given.
        let name = words(|text, room| unsafe { call!(self, device_name(text, room, handle)) })?;
        // SAFETY: as above.
        let pci = words(|text, room| unsafe { call!(self, device_pci(text, room, handle)) })?;
        let number = |attribute| self.device_number(attribute, handle);
        let can = |attribute| self.device_number_or_none(attribute, handle).map(|answer| answer != 0);
        Ok(Device {
            ordinal,
            uuid: uuid.bytes.map(|byte| byte as u8),
            name,
            compute_capability: (
                number(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
                number(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
            ),
            multiprocessors: number(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
            // As the system writes it; the driver uses capitals.
            pci: pci.to_lowercase(),
            memory_bytes: memory_bytes as u64,
            stream_memory_operations: can(Attribute::CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS)?,
            shareable_memory: can(
                Attribute::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED,
            )?,
            handle,
        })
    }

    /// The number of the device of the context that is current on this thread.
    ///
    /// # Errors
    /// What the driver says; that no context is current is none.
    pub fn current_device(&self) -> Result<Option<u32>> {
        match self.current_handle() {
            Ok(handle) => self.ordinal_of(handle).map(Some),
            Err(error) if error.code == CudaError::INVALID_CONTEXT => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The device of the context that is current on this thread, as the driver's handle.
    pub(super) fn current_handle(&self) -> Result<CUdevice> {
        let mut handle = 0;
        // SAFETY: the place is writable.
        unsafe { call!(self, context_device(&mut handle)) }?;
        Ok(handle)
    }

    /// The number by which the driver gives out this handle.
    pub(super) fn ordinal_of(&self, wanted: CUdevice) -> Result<u32> {
        for ordinal in 0..self.devices {
            let mut handle = 0;
            // SAFETY: the place is writable; any number may be asked for.
            unsafe { call!(self, device_get(&mut handle, ordinal as c_int)) }?;
            if handle == wanted {
                return Ok(ordinal);
            }
        }
        Err(CudaError::unfit(
            self.functions.device_get.name,
            "no number leads to the current context's device",
        ))
    }

    /// The same, or zero: an older driver that has no such question has no such thing.
    pub(super) fn device_number_or_none(&self, attribute: Attribute, device: CUdevice) -> Result<u32> {
        match self.device_number(attribute, device) {
            Err(error) if error.code == CudaError::INVALID_VALUE => Ok(0),
            answer => answer,
        }
    }

    fn device_number(&self, attribute: Attribute, device: CUdevice) -> Result<u32> {
        let mut number = 0;
        // SAFETY: the place is writable and the device the driver's own.
        unsafe { call!(self, device_attribute(&mut number, attribute, device)) }?;
        Ok(u32::try_from(number).unwrap_or(0))
    }
}

/// A text that the driver writes into a place of some size.
fn words(write: impl FnOnce(*mut c_char, c_int) -> Result<()>) -> Result<String> {
    let mut text = [0 as c_char; 256];
    // The last byte stays zero, whatever is written.
    write(text.as_mut_ptr(), text.len() as c_int - 1)?;
    // SAFETY: ends with a zero inside the array.
    Ok(unsafe { CStr::from_ptr(text.as_ptr()) }.to_string_lossy().into_owned())
}

impl Device {
    /// Whether this device can load from and store to the memory of `other`, as the driver says. Of itself it can.
    ///
    /// # Errors
    /// What the driver says instead.
    pub fn can_access(&self, other: &Device) -> Result<bool> {
        if self.uuid == other.uuid {
            return Ok(true);
        }
        let mut answer = 0;
        // SAFETY: the place is writable; both are devices that the driver gave out.
        unsafe { call!(Driver::of_process()?, device_can_access(&mut answer, self.handle, other.handle)) }?;
        Ok(answer != 0)
    }
}
