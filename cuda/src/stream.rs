//! Streams, and what is queued in them.
//!
//! Invariant: what is queued runs in order, after the call has returned. A range of memory that is queued is an
//! address to the driver, which checks it when it is used: a wrong one is an error of the context, not of this
//! process. No call here makes a context current, except those that make or destroy: the caller holds
//! [`Entered`](super::Entered) for the stream's context. Absent: graphs, priorities, and what waits for a stream.

use std::ffi::c_void;
use std::ops::Deref;

use cudarc::driver::sys::{CUstream_flags, CUstreamCaptureStatus, CUstreamWaitValue_flags};

use super::capture::Relaxed;
use super::{Context, CudaError, DeviceSpan, Event, Function, RawStream, Result};

/// A stream of another maker, with its context, which it keeps.
#[derive(Clone, Debug)]
pub struct StreamRef {
    context: Context,
    raw: RawStream,
}

/// A stream of this library, which does not wait for the default stream; destroyed on drop, after which what is
/// queued still runs.
#[derive(Debug)]
pub struct Stream {
    stream: StreamRef,
}

/// Whether what is queued is kept for a graph instead of run.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum CaptureStatus {
    /// It is run.
    None,
    /// It becomes a graph.
    Active,
    /// It was to become a graph, which has become impossible; the stream can do nothing until that is ended.
    Invalidated,
}

impl Context {
    /// A stream of its own, in no order with the default stream.
    ///
    /// # Errors
    /// What the driver says.
    pub fn create_stream(&self) -> Result<Stream> {
        let _entered = self.enter()?;
        let mut raw = std::ptr::null_mut();
        let flags = CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: the place is writable and the flags are valid; destroyed by the drop below.
        unsafe { call!(self.driver(), stream_create(&mut raw, flags)) }?;
        Ok(Stream { stream: StreamRef::new(self.clone(), RawStream(raw.expose_provenance() as u64)) })
    }

    /// A stream of this context that the program made, or one of the default streams.
    pub fn stream_ref(&self, raw: RawStream) -> StreamRef {
        StreamRef::new(self.clone(), raw)
    }
}

impl Deref for Stream {
    type Target = StreamRef;

    fn deref(&self) -> &StreamRef {
        &self.stream
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let StreamRef { context, raw } = &self.stream;
        let Ok(_entered) = context.enter() else { return };
        // SAFETY: made for this value. What the driver says has no reader.
        let _ = unsafe { call!(context.driver(), stream_destroy(raw.handle())) };
    }
}

impl StreamRef {
    pub(super) fn new(context: Context, raw: RawStream) -> Self {
        StreamRef { context, raw }
    }

    /// Its context.
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// Its number.
    pub fn raw(&self) -> RawStream {
        self.raw
    }

    /// Queues a kernel with `grid` blocks of `block` threads. Which of its blocks are resident at once is the
    /// device's choice.
    ///
    /// # Safety
    /// `parameters` has one entry for each of the function's parameters, which leads to a readable value of its type
    /// and size; the values are copied before the call returns. What the kernel then does with them is its own: the
    /// memory it touches must stay until it is over.
    ///
    /// # Errors
    /// What the driver says, also of earlier work.
    pub unsafe fn launch(
        &self,
        function: &Function,
        grid: u32,
        block: u32,
        dynamic_shared_bytes: u32,
        parameters: &[*const c_void],
    ) -> Result<()> {
        let (driver, raw, stream) = (self.context.driver(), function.raw().0, self.raw.handle());
        let (shared, list) = (dynamic_shared_bytes, parameters.as_ptr().cast_mut().cast());
        let none = std::ptr::null_mut();
        // SAFETY: the function is loaded while it is borrowed; the driver only reads the list, and the rest is the
        // caller's promise.
        unsafe { call!(driver, launch(raw, grid, 1, 1, block, 1, 1, shared, stream, list, none)) }
    }

    /// Queues a copy between places that the stream's device reaches: its own memory, a peer's, or the host's that is
    /// pinned.
    ///
    /// # Errors
    /// What the driver says, also of earlier work.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn copy(&self, to: DeviceSpan, from: DeviceSpan) -> Result<()> {
        assert_eq!(to.len(), from.len(), "copy between places of different lengths");
        if to.is_empty() {
            return Ok(());
        }
        let (target, source) = (to.address(), from.address());
        // SAFETY: both ranges are memory for devices, which stays until the work is over (contract of the spans).
        unsafe { call!(self.context.driver(), copy(target, source, to.len(), self.raw.handle())) }
    }

    /// Queues setting every byte.
    ///
    /// # Errors
    /// What the driver says, also of earlier work.
    pub fn fill(&self, span: DeviceSpan, byte: u8) -> Result<()> {
        if span.is_empty() {
            return Ok(());
        }
        // SAFETY: memory for devices, which stays until the work is over (contract of the spans).
        unsafe { call!(self.context.driver(), fill(span.address(), byte, span.len(), self.raw.handle())) }
    }

    /// Queues waiting until the 64-bit word is at least `value`, as signed difference.
    ///
    /// # Errors
    /// What the driver says, also of earlier work; see
    /// [`Device::stream_memory_operations`](super::Device::stream_memory_operations).
    ///
    /// # Panics
    /// If the span is not eight bytes.
    pub fn wait_value(&self, word: DeviceSpan, value: u64) -> Result<()> {
        assert_eq!(word.len(), size_of::<u64>(), "the word to wait for");
        let at_least = CUstreamWaitValue_flags::CU_STREAM_WAIT_VALUE_GEQ as u32;
        // SAFETY: a word for devices, which stays until the work is over (contract of the spans).
        unsafe {
            call!(
                self.context.driver(),
                stream_wait_value(self.raw.handle(), word.address(), value, at_least)
            )
        }
    }

    /// Queues writing the 64-bit word, after all that was queued before has become visible.
    ///
    /// # Errors
    /// As [`StreamRef::wait_value`].
    ///
    /// # Panics
    /// If the span is not eight bytes.
    pub fn write_value(&self, word: DeviceSpan, value: u64) -> Result<()> {
        assert_eq!(word.len(), size_of::<u64>(), "the word to write");
        // SAFETY: as above; without flags the write comes after a fence of the whole system.
        unsafe {
            call!(self.context.driver(), stream_write_value(self.raw.handle(), word.address(), value, 0))
        }
    }

    /// Queues waiting for what the event was last recorded for, in whichever stream.
    ///
    /// # Errors
    /// What the driver says, also of earlier work.
    pub fn wait_event(&self, event: &Event) -> Result<()> {
        // SAFETY: an event that lives; the driver keeps what it needs of it.
        unsafe { call!(self.context.driver(), stream_wait_event(self.raw.handle(), event.raw().0, 0)) }
    }

    /// Makes the event stand for all that is queued here now. It must be of the stream's context.
    ///
    /// # Errors
    /// What the driver says, also of earlier work.
    pub fn record(&self, event: &Event) -> Result<()> {
        // SAFETY: as above.
        unsafe { call!(self.context.driver(), event_record(event.raw().0, self.raw.handle())) }
    }

    /// Waits until all that is queued is over.
    ///
    /// # Errors
    /// What the driver says, also of work that failed.
    pub fn synchronize(&self) -> Result<()> {
        let _relaxed = Relaxed::begin(self.context.driver());
        // SAFETY: the stream's number is its own, as its maker says.
        unsafe { call!(self.context.driver(), stream_synchronize(self.raw.handle())) }
    }

    /// Whether all that is queued is over.
    ///
    /// # Errors
    /// What the driver says, also of work that failed.
    pub fn query(&self) -> Result<bool> {
        let _relaxed = Relaxed::begin(self.context.driver());
        // SAFETY: as above.
        match unsafe { call!(self.context.driver(), stream_query(self.raw.handle())) } {
            Ok(()) => Ok(true),
            Err(error) if error.code == CudaError::NOT_READY => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Whether what is queued is kept for a graph.
    ///
    /// # Errors
    /// What the driver says: of the default stream, also that another stream is being captured.
    pub fn capture_status(&self) -> Result<CaptureStatus> {
        const ACTIVE: i32 = CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE as i32;
        const INVALIDATED: i32 = CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_INVALIDATED as i32;
        let mut status = 0;
        // SAFETY: the place is writable; the stream as above.
        unsafe { call!(self.context.driver(), stream_capturing(self.raw.handle(), &mut status)) }?;
        Ok(match status {
            ACTIVE => CaptureStatus::Active,
            INVALIDATED => CaptureStatus::Invalidated,
            _ => CaptureStatus::None,
        })
    }
}
