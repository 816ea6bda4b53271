//! Contexts: what of a device belongs to this process.
//!
//! Invariant: a primary context is retained while a clone of its value lives, and who entered a context leaves it on
//! the same thread, in reverse order. A context of another maker is borrowed: it stays as long as that one lets it,
//! and what is asked of it afterwards is the driver's error. Absent: making contexts of our own, and their limits.

use std::marker::PhantomData;
use std::sync::{Arc, OnceLock};

use cudarc::driver::sys::{CUcontext, CUctx_st, CUstream, CUstream_flags, CUstream_st};

use super::capture::Relaxed;
use super::raw::Raw;
use super::{CudaError, Device, Driver, Result};

/// A context of a device; clones are of the same.
#[derive(Clone, Debug)]
pub struct Context {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    driver: &'static Driver,
    device: Device,
    raw: Raw<CUctx_st>,
    /// Whether it is the device's primary one, retained by this value.
    is_retained: bool,
    /// For copies that the host waits for, made when the first is; see [`Context::own_stream`].
    own_stream: OnceLock<Raw<CUstream_st>>,
}

impl PartialEq for Context {
    /// Whether the driver has one context under both.
    fn eq(&self, other: &Self) -> bool {
        self.inner.raw == other.inner.raw
    }
}

impl Eq for Context {}

impl Context {
    /// The primary context of a device, which CUDA's runtime and all frameworks use.
    ///
    /// # Errors
    /// That there is no driver, and what it says.
    pub fn primary(ordinal: u32) -> Result<Context> {
        let driver = Driver::of_process()?;
        Self::retain(driver, driver.device(ordinal)?)
    }

    /// The primary context of a device, if some part of the program has made it; to ask makes none.
    ///
    /// # Errors
    /// As [`Context::primary`].
    pub fn active_primary(ordinal: u32) -> Result<Option<Context>> {
        let driver = Driver::of_process()?;
        let device = driver.device(ordinal)?;
        if driver.has_primary(&device)? { Self::retain(driver, device).map(Some) } else { Ok(None) }
    }

    fn of(driver: &'static Driver, device: Device, raw: CUcontext, is_retained: bool) -> Context {
        let (raw, own_stream) = (Raw(raw), OnceLock::new());
        Context { inner: Arc::new(Inner { driver, device, raw, is_retained, own_stream }) }
    }

    fn retain(driver: &'static Driver, device: Device) -> Result<Context> {
        let _relaxed = Relaxed::begin(driver);
        let mut raw: CUcontext = std::ptr::null_mut();
        // SAFETY: the place is writable and the device the driver's own; released by the drop below.
        unsafe { call!(driver, primary_retain(&mut raw, device.handle)) }?;
        Ok(Self::of(driver, device, raw, true))
    }

    /// The context that is current on this thread, if any: its device's primary one retained, another one borrowed
    /// from its maker.
    ///
    /// # Errors
    /// That there is no driver, and what it says.
    pub fn current() -> Result<Option<Context>> {
        let driver = Driver::of_process()?;
        let mut raw: CUcontext = std::ptr::null_mut();
        // SAFETY: the place is writable.
        unsafe { call!(driver, context_current(&mut raw)) }?;
        if raw.is_null() {
            return Ok(None);
        }
        Self::adopt(driver, raw).map(Some)
    }

    /// The context with this handle, which is valid now.
    fn adopt(driver: &'static Driver, raw: CUcontext) -> Result<Context> {
        let handle = within(driver, Raw(raw), || driver.current_handle())?;
        let device = driver.device(driver.ordinal_of(handle)?)?;
        // Retaining an inactive one would make it, and with it fill some hundred megabytes of the device.
        if driver.has_primary(&device)? {
            let primary = Self::retain(driver, device.clone())?;
            if primary.inner.raw == Raw(raw) {
                return Ok(primary);
            }
        }
        Ok(Self::of(driver, device, raw, false))
    }

    /// Makes it current on this thread until the guard is dropped; what was current before is so again then. Guards
    /// are to be dropped in reverse order.
    ///
    /// Until then the thread's capture mode is relaxed, so that no call made meanwhile invalidates a capture of another
    /// stream, whichever thread captures; a stream that is captured still records what is put into it.
    ///
    /// # Errors
    /// What the driver says.
    pub fn enter(&self) -> Result<Entered<'_>> {
        let relaxed = Relaxed::begin(self.driver());
        // SAFETY: retained, or valid as long as who made it says; popped by the guard.
        unsafe { call!(self.driver(), context_push(self.inner.raw.0)) }?;
        Ok(Entered { driver: self.driver(), _relaxed: relaxed, context: PhantomData })
    }

    /// The device.
    pub fn device(&self) -> &Device {
        &self.inner.device
    }

    /// The driver.
    pub fn driver(&self) -> &'static Driver {
        self.inner.driver
    }

    /// Lets this context reach all memory of `peer` at the addresses it has there. Says nothing of the way back.
    ///
    /// # Errors
    /// What the driver says; that it was so before is none.
    pub fn enable_peer(&self, peer: &Context) -> Result<()> {
        if self == peer {
            return Ok(());
        }
        let _entered = self.enter()?;
        // SAFETY: both contexts are valid; the only flags there are.
        match unsafe { call!(self.driver(), context_enable_peer(peer.inner.raw.0, 0)) } {
            Err(error) if error.code == CudaError::PEER_ACCESS_ALREADY_ENABLED => Ok(()),
            outcome => outcome,
        }
    }

    /// Waits until all work in all streams of the context is over.
    ///
    /// # Errors
    /// What the driver says, also of work that failed.
    pub fn synchronize(&self) -> Result<()> {
        let _entered = self.enter()?;
        // SAFETY: takes nothing.
        unsafe { call!(self.driver(), context_synchronize()) }
    }

    /// A stream in no order with the program's, for copies that the host waits for: on the default stream they would
    /// wait for the program's streams, which may be waiting for what this thread is about to do. The context is to be
    /// current.
    pub(super) fn own_stream(&self) -> Result<CUstream> {
        if let Some(stream) = self.inner.own_stream.get() {
            return Ok(stream.0);
        }
        let mut raw: CUstream = std::ptr::null_mut();
        let flags = CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: the place is writable and the flags are valid; destroyed below, or with the context's value.
        unsafe { call!(self.driver(), stream_create(&mut raw, flags)) }?;
        if self.inner.own_stream.set(Raw(raw)).is_err() {
            // SAFETY: just made, and another thread's is used.
            unsafe { call!(self.driver(), stream_destroy(raw)) }?;
        }
        Ok(self.inner.own_stream.get().map_or(raw, |stream| stream.0))
    }
}

impl Driver {
    /// Whether the device's primary context is there.
    fn has_primary(&self, device: &Device) -> Result<bool> {
        let (mut flags, mut is_active) = (0, 0);
        // SAFETY: both places are writable and the device the driver's own.
        unsafe { call!(self, primary_state(device.handle, &mut flags, &mut is_active)) }?;
        Ok(is_active != 0)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Some(stream) = self.own_stream.take() {
            // SAFETY: made for this value. What the driver says has no reader; a child does not ask.
            let _ = within(self.driver, self.raw, || unsafe { call!(self.driver, stream_destroy(stream.0)) });
        }
        if self.is_retained {
            let _relaxed = Relaxed::begin(self.driver);
            // SAFETY: retained once for this value.
            let _ = unsafe { call!(self.driver, primary_release(self.device.handle)) };
        }
    }
}

/// Does something while a context is current.
fn within<T>(driver: &'static Driver, raw: Raw<CUctx_st>, act: impl FnOnce() -> Result<T>) -> Result<T> {
    let relaxed = Relaxed::begin(driver);
    // SAFETY: a context that the driver just named; popped by the guard.
    unsafe { call!(driver, context_push(raw.0)) }?;
    let _entered = Entered { driver, _relaxed: relaxed, context: PhantomData };
    act()
}

/// That a context is current on this thread, whose capture mode is relaxed; dropped where it was made.
#[derive(Debug)]
#[must_use = "the context is left when this is dropped"]
pub struct Entered<'c> {
    driver: &'static Driver,
    /// Ends after the context is left. What is current and the mode are a thread's own.
    _relaxed: Relaxed,
    context: PhantomData<&'c Context>,
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        let mut left: CUcontext = std::ptr::null_mut();
        // SAFETY: the place is writable; it was pushed on this thread.
        let _ = unsafe { call!(self.driver, context_pop(&mut left)) };
    }
}
