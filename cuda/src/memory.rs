//! Memory of a device, and of a peer's device through a handle that travels between processes.
//!
//! Invariant: what is allocated is freed once, what is opened is closed once, in the context it was made in. The
//! copies here are over when they return, and wait for no other work. Absent: memory that is shared through descriptors
//! (`shared`), the host's (`pinned`), and how a handle travels.

use std::ffi::c_char;

use cudarc::driver::sys::{CUdeviceptr, CUipcMem_flags, CUipcMemHandle, CUstream};

use super::{Context, CudaError, DeviceSpan, Result};

/// Memory of the context's device; freed on drop, for which the driver may wait for the device.
#[derive(Debug)]
pub struct DeviceMemory {
    context: Context,
    address: CUdeviceptr,
    bytes: usize,
}

/// What leads another process of this machine to a [`DeviceMemory`], as long as that lives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IpcHandle(pub [u8; 64]);

/// Another process's [`DeviceMemory`], mapped here; unmapped on drop.
#[derive(Debug)]
pub struct PeerMemory {
    context: Context,
    address: CUdeviceptr,
    bytes: usize,
}

impl Context {
    /// `bytes` bytes of the device, with whatever was in them; at least one is allocated.
    ///
    /// # Errors
    /// What the driver says; [`CudaError::is_out_of_memory`].
    pub fn allocate(&self, bytes: usize) -> Result<DeviceMemory> {
        let _entered = self.enter()?;
        let mut address = 0;
        // SAFETY: the place is writable; freed by the drop below.
        unsafe { call!(self.driver(), memory_allocate(&mut address, bytes.max(1))) }?;
        Ok(DeviceMemory { context: self.clone(), address, bytes })
    }

    /// Maps memory of another process into this one, and lets the context's device reach it.
    ///
    /// # Errors
    /// What the driver says: also for a handle of this very process, whose memory is here already, and for a device
    /// that cannot reach the other.
    pub fn open_ipc(&self, handle: &IpcHandle) -> Result<PeerMemory> {
        let _entered = self.enter()?;
        let raw = CUipcMemHandle { reserved: handle.0.map(|byte| byte as c_char) };
        let flags = CUipcMem_flags::CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS as u32;
        let mut address = 0;
        // SAFETY: the place is writable; the driver checks the handle; closed by the drop below.
        unsafe { call!(self.driver(), ipc_open(&mut address, raw, flags)) }?;
        let mut memory = PeerMemory { context: self.clone(), address, bytes: 0 };
        let (base, bytes) = self.driver().address_range(address)?;
        memory.bytes = usize::try_from(base.saturating_add(bytes).saturating_sub(address)).unwrap_or(0);
        Ok(memory)
    }
}

impl DeviceMemory {
    /// Where it begins.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// How many bytes were asked for.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The context it is of.
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// All of it, for streams and kernels; see [`DeviceSpan`] for how long it may be used.
    pub fn span(&self) -> DeviceSpan {
        DeviceSpan::new(self.address, self.bytes)
    }

    /// Copies `from` to here, `offset` bytes from the start, as [`Context::copy_from_host`].
    ///
    /// # Errors
    /// What the driver says, also of earlier work.
    ///
    /// # Panics
    /// If it does not fit.
    pub fn copy_from_host(&self, offset: usize, from: &[u8]) -> Result<()> {
        self.context.copy_from_host(self.span().slice(offset, from.len()), from)
    }

    /// Copies what is `offset` bytes from the start into `to`, as [`Context::copy_to_host`].
    ///
    /// # Errors
    /// What the driver says, also of earlier work.
    ///
    /// # Panics
    /// If there is not that much.
    pub fn copy_to_host(&self, offset: usize, to: &mut [u8]) -> Result<()> {
        self.context.copy_to_host(to, self.span().slice(offset, to.len()))
    }

    /// Sets every byte, as [`Context::fill`].
    ///
    /// # Errors
    /// What the driver says, also of earlier work.
    pub fn fill(&self, byte: u8) -> Result<()> {
        self.context.fill(self.span(), byte)
    }

    /// The handle by which another process opens it.
    ///
    /// # Errors
    /// What the driver says: not all memory, and not every system, can be shared so.
    pub fn export(&self) -> Result<IpcHandle> {
        let _entered = self.context.enter()?;
        let mut handle = CUipcMemHandle { reserved: [0; 64] };
        // SAFETY: the place is writable and the address this value's own.
        unsafe { call!(self.context.driver(), ipc_export(&mut handle, self.address)) }?;
        Ok(IpcHandle(handle.reserved.map(|byte| byte as u8)))
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        let Ok(_entered) = self.context.enter() else { return };
        // SAFETY: allocated for this value. What the driver says has no reader.
        let _ = unsafe { call!(self.context.driver(), memory_free(self.address)) };
    }
}

impl PeerMemory {
    /// Where it begins in this process.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// How many bytes of it are here, as the driver says.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// All of it; see [`DeviceSpan`] for how long it may be used.
    pub fn span(&self) -> DeviceSpan {
        DeviceSpan::new(self.address, self.bytes)
    }
}

impl Drop for PeerMemory {
    fn drop(&mut self) {
        let Ok(_entered) = self.context.enter() else { return };
        // SAFETY: opened for this value. What the driver says has no reader.
        let _ = unsafe { call!(self.context.driver(), ipc_close(self.address)) };
    }
}

/// Copies that are over when the call returns. They are in no order with the program's streams: a caller that copies what a
/// stream writes waits for that first.
impl Context {
    /// Copies bytes of the host to where a device reaches.
    ///
    /// # Errors
    /// What the driver says, also of earlier work.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn copy_from_host(&self, to: DeviceSpan, from: &[u8]) -> Result<()> {
        assert_eq!(to.len(), from.len(), "copy between places of different lengths");
        self.with_own_stream(|stream| {
            let (target, source) = (to.address(), from.as_ptr().cast());
            // SAFETY: the source is readable until the copy is over, which is waited for; the driver checks the target.
            unsafe { call!(self.driver(), copy_to_device(target, source, from.len(), stream)) }
        })
    }

    /// Copies bytes that a device reaches to the host.
    ///
    /// # Errors
    /// What the driver says, also of earlier work.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn copy_to_host(&self, to: &mut [u8], from: DeviceSpan) -> Result<()> {
        assert_eq!(to.len(), from.len(), "copy between places of different lengths");
        self.with_own_stream(|stream| {
            let (target, source) = (to.as_mut_ptr().cast(), from.address());
            // SAFETY: the target is writable until the copy is over, which is waited for; the driver checks the source.
            unsafe { call!(self.driver(), copy_to_host(target, source, to.len(), stream)) }
        })
    }

    /// Copies bytes that a device reaches to where one does.
    ///
    /// # Errors
    /// What the driver says, also of earlier work.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn copy(&self, to: DeviceSpan, from: DeviceSpan) -> Result<()> {
        assert_eq!(to.len(), from.len(), "copy between places of different lengths");
        self.with_own_stream(|stream| {
            // SAFETY: the driver checks both.
            unsafe { call!(self.driver(), copy(to.address(), from.address(), to.len(), stream)) }
        })
    }

    /// Sets every byte.
    ///
    /// # Errors
    /// What the driver says, also of earlier work.
    pub fn fill(&self, span: DeviceSpan, byte: u8) -> Result<()> {
        self.with_own_stream(|stream| {
            // SAFETY: the driver checks the target.
            unsafe { call!(self.driver(), fill(span.address(), byte, span.len(), stream)) }
        })
    }

    /// Queues something, and waits for it whatever the driver said of it.
    fn with_own_stream(&self, queue: impl FnOnce(CUstream) -> Result<()>) -> Result<()> {
        let _entered = self.enter()?;
        let stream = self.own_stream()?;
        let queued = queue(stream);
        // SAFETY: the context's own stream.
        let over = unsafe { call!(self.driver(), stream_synchronize(stream)) };
        queued.and(over)
    }
}

impl IpcHandle {
    /// The handle in these bytes.
    ///
    /// # Errors
    /// That there are not 64.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let wrong = |_| CudaError::unfit("cuIpcOpenMemHandle_v2", "the handle has not 64 bytes");
        bytes.try_into().map(IpcHandle).map_err(wrong)
    }
}
