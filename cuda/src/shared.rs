//! Memory of a device that is shared through a descriptor: made, reserved, mapped and given access step by step.
//!
//! Invariant: mapped, with access for its own device, as long as the value lives; undone in reverse order. The bytes
//! stay while any process has them mapped or has a descriptor of them. Absent: how the descriptor travels, and memory
//! that lives on several devices (multicast).

use std::ffi::c_int;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use cudarc::driver::sys::{
    CUdeviceptr, CUmemAccess_flags, CUmemAccessDesc, CUmemAllocationGranularity_flags,
    CUmemAllocationHandleType, CUmemAllocationProp, CUmemAllocationProp_st__bindgen_ty_1,
    CUmemAllocationType, CUmemGenericAllocationHandle, CUmemLocation, CUmemLocationType,
};

use super::capture::Relaxed;
use super::{Context, Device, DeviceSpan, Driver, Result};

const POSIX: CUmemAllocationHandleType = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

/// Memory that processes share through a descriptor; unmapped, and freed by the last who has it, on drop.
#[derive(Debug)]
pub struct SharedDeviceMemory {
    // In this order they go.
    mapped: Mapped,
    reserved: Reserved,
    created: Created,
    /// What was asked for, not rounded.
    bytes: usize,
}

#[derive(Debug)]
struct Mapped {
    context: Context,
    address: CUdeviceptr,
    bytes: usize,
}

#[derive(Debug)]
struct Reserved {
    driver: &'static Driver,
    address: CUdeviceptr,
    bytes: usize,
}

#[derive(Debug)]
struct Created {
    driver: &'static Driver,
    handle: CUmemGenericAllocationHandle,
}

impl Context {
    /// Memory of the device, with whatever was in it, for as many whole pages of the device as hold `bytes` bytes.
    ///
    /// # Errors
    /// What the driver says: old ones cannot, nor can some devices ([`Device::shareable_memory`]).
    pub fn allocate_shareable(&self, bytes: usize) -> Result<SharedDeviceMemory> {
        let (driver, rounded) = (self.driver(), self.whole_pages(bytes)?);
        let _entered = self.enter()?;
        let mut handle = 0;
        // SAFETY: the place is writable and the properties valid; released by the drop below.
        unsafe { call!(driver, shared_create(&mut handle, rounded, &properties(self.device()), 0)) }?;
        self.map(Created { driver, handle }, bytes, rounded)
    }

    /// Maps memory that another process, or this one, made by [`Context::allocate_shareable`] with the same `bytes`
    /// for a device that this context's can reach. The descriptor may be closed afterwards.
    ///
    /// # Errors
    /// What the driver says, also of a descriptor that is something else or memory of another size.
    pub fn import_fd(&self, descriptor: BorrowedFd<'_>, bytes: usize) -> Result<SharedDeviceMemory> {
        let (driver, rounded) = (self.driver(), self.whole_pages(bytes)?);
        let _entered = self.enter()?;
        let mut handle = 0;
        // The interface takes the number itself where other kinds of handles have an address.
        let number = std::ptr::without_provenance_mut(descriptor.as_raw_fd() as usize);
        // SAFETY: the place is writable and the descriptor open; the driver checks what it is of. Released below.
        unsafe { call!(driver, shared_import(&mut handle, number, POSIX)) }?;
        self.map(Created { driver, handle }, bytes, rounded)
    }

    /// `bytes` rounded up to what the driver maps.
    fn whole_pages(&self, bytes: usize) -> Result<usize> {
        let driver = self.driver();
        let recommended = CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_RECOMMENDED;
        let mut granularity = 0;
        // SAFETY: the place is writable and the properties valid.
        unsafe {
            call!(driver, shared_granularity(&mut granularity, &properties(self.device()), recommended))
        }?;
        let wanted = bytes.max(1).checked_next_multiple_of(granularity.max(1));
        Ok(wanted.unwrap_or(usize::MAX))
    }

    fn map(&self, created: Created, bytes: usize, rounded: usize) -> Result<SharedDeviceMemory> {
        let driver = self.driver();
        let mut address = 0;
        // SAFETY: the place is writable; freed by the drop of `Reserved`.
        unsafe { call!(driver, shared_reserve(&mut address, rounded, 0, 0, 0)) }?;
        let reserved = Reserved { driver, address, bytes: rounded };
        // SAFETY: reserved for this, and nothing is mapped there; unmapped by the drop of `Mapped`.
        unsafe { call!(driver, shared_map(address, rounded, 0, created.handle, 0)) }?;
        let mapped = Mapped { context: self.clone(), address, bytes: rounded };
        let memory = SharedDeviceMemory { mapped, reserved, created, bytes };
        memory.grant(self.device())?;
        Ok(memory)
    }
}

impl SharedDeviceMemory {
    /// Where it begins in this process.
    pub fn address(&self) -> u64 {
        self.reserved.address
    }

    /// How many bytes were asked for.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// How many bytes are mapped: what was asked for in whole pages of the device, which who maps the descriptor names.
    pub fn mapped_bytes(&self) -> usize {
        self.mapped.bytes
    }

    /// The bytes that were asked for; see [`DeviceSpan`] for how long they may be used.
    pub fn span(&self) -> DeviceSpan {
        DeviceSpan::new(self.reserved.address, self.bytes)
    }

    /// Lets another device of this process reach it at this address too.
    ///
    /// # Errors
    /// What the driver says; also that the device cannot.
    pub fn grant(&self, device: &Device) -> Result<()> {
        let access = CUmemAccessDesc {
            location: location(device),
            flags: CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
        };
        let Mapped { context, address, bytes } = &self.mapped;
        let _relaxed = Relaxed::begin(context.driver());
        // SAFETY: this value's own mapping, whole.
        unsafe { call!(context.driver(), shared_access(*address, *bytes, &access, 1)) }
    }

    /// A descriptor with which another process maps it.
    ///
    /// # Errors
    /// What the driver says.
    pub fn export_fd(&self) -> Result<OwnedFd> {
        let mut descriptor: c_int = -1;
        let Created { driver, handle } = &self.created;
        let _relaxed = Relaxed::begin(driver);
        // SAFETY: this kind of handle is an `int`, for which the place is, and the allocation this value's own.
        unsafe { call!(*driver, shared_export((&raw mut descriptor).cast(), *handle, POSIX, 0)) }?;
        if descriptor < 0 {
            let call = driver.functions.shared_export.name;
            return Err(super::CudaError::unfit(call, "what came back is no descriptor"));
        }
        // SAFETY: just made for us by the driver, and of no other owner.
        Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        let Ok(_entered) = self.context.enter() else { return };
        // SAFETY: mapped for this value, whole. What the driver says has no reader.
        let _ = unsafe { call!(self.context.driver(), shared_unmap(self.address, self.bytes)) };
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        let _relaxed = Relaxed::begin(self.driver);
        // SAFETY: reserved for this value, whole, and unmapped by now.
        let _ = unsafe { call!(self.driver, shared_free(self.address, self.bytes)) };
    }
}

impl Drop for Created {
    fn drop(&mut self) {
        let _relaxed = Relaxed::begin(self.driver);
        // SAFETY: made or imported for this value.
        let _ = unsafe { call!(self.driver, shared_release(self.handle)) };
    }
}

fn location(device: &Device) -> CUmemLocation {
    CUmemLocation { type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: device.handle }
}

fn properties(device: &Device) -> CUmemAllocationProp {
    CUmemAllocationProp {
        type_: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
        requestedHandleTypes: POSIX,
        location: location(device),
        win32HandleMetaData: std::ptr::null_mut(),
        allocFlags: CUmemAllocationProp_st__bindgen_ty_1 {
            compressionType: 0,
            gpuDirectRDMACapable: 0,
            usage: 0,
            reserved: [0; 4],
        },
    }
}
