//! Memory of a device for other devices on its bus, such as network cards.
//!
//! Invariant: a descriptor that is handed out is of exactly the pages that were asked for. Absent: the other device, and the choice between
//! the ways that there are.

use std::ffi::{c_int, c_uint};
use std::os::fd::{FromRawFd, OwnedFd};

use cudarc::driver::sys::{
    CUdevice_attribute as Attribute, CUflushGPUDirectRDMAWritesOptions, CUflushGPUDirectRDMAWritesScope,
    CUflushGPUDirectRDMAWritesTarget, CUmemRangeHandleType, CUpointer_attribute,
};

use super::{Context, CudaError, DeviceSpan, Driver, Result};

/// What a device says of direct access to its memory.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct DirectAccess {
    /// Its memory can be exported as a DMA buffer.
    pub dma_buf: bool,
    /// Its memory can be mapped by another device's driver, where a kernel module joins the two.
    pub peer_memory: bool,
    /// The host can flush what others have written.
    pub flushes: bool,
    /// What others have written is there for the device's own work without a flush.
    pub is_ordered: bool,
}

impl Context {
    /// What its device says of direct access. An old driver says that there is none.
    ///
    /// # Errors
    /// What the driver says instead.
    pub fn direct_access(&self) -> Result<DirectAccess> {
        let number = |attribute| self.driver().device_number_or_none(attribute, self.device().handle);
        let host = CUflushGPUDirectRDMAWritesOptions::CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST as u32;
        let owner = CUflushGPUDirectRDMAWritesScope::CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER as u32;
        Ok(DirectAccess {
            dma_buf: number(Attribute::CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED)? != 0,
            peer_memory: number(Attribute::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED)? != 0,
            flushes: number(Attribute::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS)? & host != 0,
            // The numbers of orderings are those of scopes: from this one on the owner needs no flush.
            is_ordered: number(Attribute::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING)? >= owner,
        })
    }

    /// A DMA buffer of these bytes, which are whole pages of the host in one allocation of the device.
    ///
    /// # Errors
    /// What the driver says; that it has no such buffers.
    pub fn dma_buf(&self, span: DeviceSpan) -> Result<OwnedFd> {
        let _entered = self.enter()?;
        let mut descriptor: c_int = -1;
        let (place, kind) =
            ((&raw mut descriptor).cast(), CUmemRangeHandleType::CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD);
        // SAFETY: this kind of handle is an `int`, for which the place is; the driver checks the addresses.
        unsafe { call!(self.driver(), direct_handle(place, span.address(), span.len(), kind, 0)) }?;
        if descriptor < 0 {
            let call = self.driver().functions.direct_handle.name;
            return Err(CudaError::unfit(call, "what came back is no descriptor"));
        }
        // SAFETY: just made for us by the driver, and of no other owner.
        Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
    }

    /// From now on the driver's copies from and to the allocation that an address is in are over when a call that waits for them returns,
    /// also where it otherwise would return before: other devices read what is there then.
    ///
    /// # Errors
    /// What the driver says.
    pub fn synchronize_copies(&self, address: u64) -> Result<()> {
        let _entered = self.enter()?;
        let on: c_uint = 1;
        let attribute = CUpointer_attribute::CU_POINTER_ATTRIBUTE_SYNC_MEMOPS;
        // SAFETY: this attribute is a flag, for which the place is wide enough; the driver checks the address.
        unsafe { call!(self.driver(), pointer_set((&raw const on).cast(), attribute, address)) }
    }

    /// What others have written to memory of the device before is there for its work from now on.
    ///
    /// # Errors
    /// What the driver says.
    pub fn flush_direct_writes(&self) -> Result<()> {
        let _entered = self.enter()?;
        let target = CUflushGPUDirectRDMAWritesTarget::CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX;
        let scope = CUflushGPUDirectRDMAWritesScope::CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER;
        // SAFETY: the two numbers are of the interface.
        unsafe { call!(self.driver(), direct_flush(target, scope)) }
    }
}

impl Driver {
    /// The number of the allocation that an address is in: another for each allocation of this process, also at the same address.
    ///
    /// # Errors
    /// What the driver says; an address of no allocation of CUDA's is one.
    pub fn buffer_id(&self, address: u64) -> Result<u64> {
        self.attribute(CUpointer_attribute::CU_POINTER_ATTRIBUTE_BUFFER_ID, address)
    }
}
