//! Memory of the host that devices reach: allocated by the driver, or the program's own, registered with it.
//!
//! Invariant: pinned and mapped for all devices as long as the value, or a word of it, lives. A word that the host and
//! a device share is an atomic here and aligned; a device's part is a release or acquire at system scope. Absent:
//! waiting for a word.

use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::Arc;

use cudarc::driver::sys::{
    CU_MEMHOSTALLOC_DEVICEMAP, CU_MEMHOSTALLOC_PORTABLE, CU_MEMHOSTREGISTER_DEVICEMAP,
    CU_MEMHOSTREGISTER_PORTABLE, CUdeviceptr,
};

use super::{Context, CudaError, DeviceSpan, Result};
use consort_memory::sync::{AtomicU32, AtomicU64, Ordering};
use consort_memory::{Held, Mapping, SpanMut};

/// How the memory became the driver's.
#[derive(Debug)]
enum Origin {
    Allocated,
    Registered {
        /// Unmapped after it is no longer registered; `None` where the caller promised that it stays.
        _mapping: Option<Arc<Mapping>>,
    },
}

#[derive(Debug)]
struct Pinned {
    context: Context,
    start: NonNull<u8>,
    bytes: usize,
    device_address: CUdeviceptr,
    origin: Origin,
}

// SAFETY: an address range that this value keeps; its bytes are reached through spans and atomics only.
unsafe impl Send for Pinned {}
// SAFETY: as above.
unsafe impl Sync for Pinned {}

/// Zeroed memory of the host that all devices reach; freed when the last clone and the last word of it went.
#[derive(Clone, Debug)]
pub struct PinnedMemory {
    pinned: Arc<Pinned>,
}

/// Memory of the program that all devices reach until every clone of this, and every word of it, is dropped.
#[derive(Clone, Debug)]
pub struct Registered {
    pinned: Arc<Pinned>,
}

/// A word in memory of the host that a device reads or writes too; keeps that memory. Clones are of the same word.
#[derive(Clone, Debug)]
pub struct DeviceWord {
    word: NonNull<AtomicU64>,
    span: DeviceSpan,
    pinned: Arc<Pinned>,
}

// SAFETY: an atomic inside memory that `pinned` keeps.
unsafe impl Send for DeviceWord {}
// SAFETY: as above.
unsafe impl Sync for DeviceWord {}

impl Context {
    /// `bytes` zeroed bytes of the host, at least one.
    ///
    /// # Errors
    /// What the driver says; [`CudaError::is_out_of_memory`] for what the system does not let it pin.
    pub fn allocate_host(&self, bytes: usize) -> Result<PinnedMemory> {
        let _entered = self.enter()?;
        let mut start: *mut c_void = std::ptr::null_mut();
        let flags = CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP;
        // SAFETY: the place is writable and the flags are valid; freed by the drop below.
        unsafe { call!(self.driver(), host_allocate(&mut start, bytes.max(1), flags)) }?;
        let Some(start) = NonNull::new(start.cast::<u8>()) else {
            return Err(CudaError::unfit(
                self.driver().functions.host_allocate.name,
                "what came back is null",
            ));
        };
        let origin = Origin::Allocated;
        let mut pinned = Pinned { context: self.clone(), start, bytes, device_address: 0, origin };
        // SAFETY: just allocated with that many bytes, and of no other owner.
        unsafe { start.as_ptr().write_bytes(0, bytes) };
        pinned.device_address = self.address_of_host(start)?;
        Ok(PinnedMemory { pinned: Arc::new(pinned) })
    }

    /// Registers memory of the host, which stays where it is.
    ///
    /// # Safety
    /// The `bytes` bytes at `start` must be mapped, readable and writable, until every clone of the
    /// result and every [`DeviceWord`] of it were dropped, and no reference to what a device writes there may exist meanwhile.
    ///
    /// # Errors
    /// What the driver says: that it is registered already, that it lies in a kind of mapping that cannot be pinned,
    /// or that the system does not let it.
    pub unsafe fn register_host(&self, start: *mut u8, bytes: usize) -> Result<Registered> {
        // SAFETY: the caller's promise.
        unsafe { self.register_kept(start, bytes, None) }
    }

    /// Registers a mapping, whole, which then lives as long as the result.
    ///
    /// # Errors
    /// As [`Context::register_host`].
    pub fn register(&self, mapping: &Arc<Mapping>) -> Result<Registered> {
        let span = mapping.span(0, mapping.bytes());
        // SAFETY: mapped as long as the mapping, which the result keeps; mappings give out no references.
        unsafe { self.register_kept(span.as_mut_ptr(), span.len(), Some(Arc::clone(mapping))) }
    }

    /// # Safety
    /// As [`Context::register_host`], but for what `mapping` keeps.
    unsafe fn register_kept(
        &self,
        start: *mut u8,
        bytes: usize,
        mapping: Option<Arc<Mapping>>,
    ) -> Result<Registered> {
        let call = self.driver().functions.host_register.name;
        let start = NonNull::new(start).filter(|_| bytes > 0);
        let start = start.ok_or_else(|| CudaError::unfit(call, "there is no memory to register"))?;
        let _entered = self.enter()?;
        let flags = CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP;
        // SAFETY: the caller's promise; the flags are valid; unregistered by the drop below.
        unsafe { call!(self.driver(), host_register(start.as_ptr().cast(), bytes, flags)) }?;
        let origin = Origin::Registered { _mapping: mapping };
        let mut pinned = Pinned { context: self.clone(), start, bytes, device_address: 0, origin };
        pinned.device_address = self.address_of_host(start)?;
        Ok(Registered { pinned: Arc::new(pinned) })
    }

    /// Where devices find memory of the host that is pinned and mapped.
    fn address_of_host(&self, start: NonNull<u8>) -> Result<u64> {
        let mut address = 0;
        // SAFETY: the place is writable; the driver checks the address; the only flags there are.
        unsafe { call!(self.driver(), host_address(&mut address, start.as_ptr().cast(), 0)) }?;
        Ok(address)
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        let Ok(_entered) = self.context.enter() else { return };
        let (driver, start) = (self.context.driver(), self.start.as_ptr().cast());
        // SAFETY: allocated, or registered, for this value. What the driver says has no reader.
        let _ = unsafe {
            match &self.origin {
                Origin::Allocated => call!(driver, host_free(start)),
                Origin::Registered { .. } => call!(driver, host_unregister(start)),
            }
        };
    }
}

impl Pinned {
    fn device_span(&self) -> DeviceSpan {
        DeviceSpan::new(self.device_address, self.bytes)
    }

    /// Where an atomic of `bytes` bytes lies.
    fn place(&self, offset: usize, bytes: usize) -> (NonNull<u8>, DeviceSpan) {
        let span = self.device_span().slice(offset, bytes);
        // SAFETY: inside, which the slice just checked against the same length.
        let start = unsafe { self.start.add(offset) };
        assert!(start.addr().get().is_multiple_of(bytes), "the word at {offset} is not aligned");
        (start, span)
    }

    fn word(self: &Arc<Self>, offset: usize) -> DeviceWord {
        let (start, span) = self.place(offset, size_of::<u64>());
        DeviceWord { word: start.cast(), span, pinned: Arc::clone(self) }
    }

    fn span(&self) -> SpanMut<'_> {
        // SAFETY: readable and writable while `self` lives; who else touches the bytes, and when, is laid down by the
        // plan (invariant of the spans).
        unsafe { SpanMut::from_raw(self.start.as_ptr(), self.bytes) }
    }
}

impl PinnedMemory {
    /// Where it begins, for the host.
    pub fn address(&self) -> usize {
        self.pinned.start.addr().get()
    }

    /// Where it begins, for devices.
    pub fn device_address(&self) -> u64 {
        self.pinned.device_address
    }

    /// How many bytes were asked for.
    pub fn bytes(&self) -> usize {
        self.pinned.bytes
    }

    /// All of it, for the host.
    pub fn span(&self) -> SpanMut<'_> {
        self.pinned.span()
    }

    /// All of it, for devices; see [`DeviceSpan`] for how long it may be used.
    pub fn device_span(&self) -> DeviceSpan {
        self.pinned.device_span()
    }

    /// The 64-bit word at `offset`, which a device may read and write too.
    ///
    /// # Panics
    /// If it is not inside, or not at a multiple of eight.
    pub fn word(&self, offset: usize) -> DeviceWord {
        self.pinned.word(offset)
    }

    /// Stores to the 32-bit word at `offset` with release order, for a device that polls it.
    ///
    /// # Panics
    /// If it is not inside, or not at a multiple of four.
    pub fn store_u32(&self, offset: usize, value: u32) {
        // Release: pairs with the device's acquire; it sees what was written before.
        self.half(offset).store(value, Ordering::Release);
    }

    fn half(&self, offset: usize) -> &AtomicU32 {
        let (start, _) = self.pinned.place(offset, size_of::<u32>());
        // SAFETY: inside and aligned, as just checked; lives as long as `self`; no reference to it but atomics.
        unsafe { AtomicU32::from_ptr(start.as_ptr().cast()) }
    }
}

impl PinnedMemory {
    /// The memory for operations of the host that outlive the call, and where devices see it. Nothing else reaches it
    /// any more but through these two.
    pub fn into_held(self) -> (Held, DeviceSpan) {
        let span = self.device_span();
        let (start, bytes) = (self.pinned.start, self.pinned.bytes);
        // SAFETY: allocated as long as the value that is kept lives, and reachable only through it.
        (unsafe { Held::kept(start, bytes, self.pinned) }, span)
    }
}

impl Registered {
    /// Where it begins, for devices.
    pub fn device_address(&self) -> u64 {
        self.pinned.device_address
    }

    /// How many bytes are registered.
    pub fn bytes(&self) -> usize {
        self.pinned.bytes
    }

    /// All of it, for devices; see [`DeviceSpan`] for how long it may be used.
    pub fn device_span(&self) -> DeviceSpan {
        self.pinned.device_span()
    }

    /// The 64-bit word at `offset`, which a device may read and write too.
    ///
    /// # Panics
    /// If it is not inside, or not at a multiple of eight in memory.
    pub fn word(&self, offset: usize) -> DeviceWord {
        self.pinned.word(offset)
    }
}

impl DeviceWord {
    #[inline]
    fn atomic(&self) -> &AtomicU64 {
        // SAFETY: inside memory that `pinned` keeps, aligned, and only ever used as an atomic.
        unsafe { self.word.as_ref() }
    }

    /// Its value, and with it everything that was written before it was stored.
    #[inline]
    pub fn load_acquire(&self) -> u64 {
        // Acquire: pairs with the device's release at system scope, and with `store_release`.
        self.atomic().load(Ordering::Acquire)
    }

    /// Stores a value after everything that was written before.
    #[inline]
    pub fn store_release(&self, value: u64) {
        // Release: pairs with the device's acquire at system scope, and with `load_acquire`.
        self.atomic().store(value, Ordering::Release);
    }

    /// Where devices find it; the word's memory must stay until their work with it is over.
    pub fn device_span(&self) -> DeviceSpan {
        self.span
    }

    /// The context through which its memory is pinned.
    pub fn context(&self) -> &Context {
        &self.pinned.context
    }
}
