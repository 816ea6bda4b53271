//! Captures of streams: which streams are captured, and which calls a capture forbids meanwhile.
//!
//! Invariant: as NVIDIA documents `cuThreadExchangeStreamCaptureMode`: a call that may be unsafe for a capture is refused
//! on the threads that the capture's mode and their own forbid it, and invalidates the capture. Absent: graphs. What is
//! captured is dropped, and the graph that a capture ends with is a number that can only be destroyed.

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};

use crate::code::{Answer, Code};
use crate::context::{Context, LEGACY, StreamKey};
use crate::driver;

/// `CUstreamCaptureMode`, of a capture or of a thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Mode {
    Global = 0,
    ThreadLocal = 1,
    Relaxed = 2,
}

thread_local! {
    static MODE: Cell<Mode> = const { Cell::new(Mode::Global) };
}

impl Mode {
    pub(crate) fn of_number(number: u32) -> Answer<Mode> {
        let all = [Mode::Global, Mode::ThreadLocal, Mode::Relaxed];
        all.into_iter().find(|mode| *mode as u32 == number).ok_or(Code::INVALID_VALUE)
    }

    /// Makes it this thread's; the one before.
    pub(crate) fn exchange(self) -> Mode {
        MODE.replace(self)
    }
}

/// Calls that are potentially unsafe for a capture: what they do is not seen by the capture, or waits for the device.
/// NVIDIA has no complete list; here is what allocates, frees, loads, waits, asks or copies at once. Events and streams
/// may be made, as frameworks do so while they capture.
const UNSAFE: &[&str] = &[
    "cuCtxDisablePeerAccess",
    "cuCtxEnablePeerAccess",
    "cuCtxSynchronize",
    "cuDevicePrimaryCtxRelease_v2",
    "cuDevicePrimaryCtxReset_v2",
    "cuDevicePrimaryCtxRetain",
    "cuEventQuery",
    "cuEventSynchronize",
    "cuIpcCloseMemHandle",
    "cuIpcGetMemHandle",
    "cuIpcOpenMemHandle_v2",
    "cuMemAddressFree",
    "cuMemAddressReserve",
    "cuMemAllocHost_v2",
    "cuMemAllocManaged",
    "cuMemAlloc_v2",
    "cuMemCreate",
    "cuMemFreeHost",
    "cuMemFree_v2",
    "cuMemHostAlloc",
    "cuMemHostRegister_v2",
    "cuMemHostUnregister",
    "cuMemMap",
    "cuMemRelease",
    "cuMemSetAccess",
    "cuMemUnmap",
    "cuMemcpy",
    "cuMemcpyDtoD_v2",
    "cuMemcpyDtoH_v2",
    "cuMemcpyHtoD_v2",
    "cuMemcpyPeer",
    "cuMemsetD16_v2",
    "cuMemsetD32_v2",
    "cuMemsetD8_v2",
    "cuModuleGetFunction",
    "cuModuleLoadData",
    "cuModuleLoadDataEx",
    "cuModuleUnload",
    "cuStreamAddCallback",
    "cuStreamQuery",
    "cuStreamSynchronize",
];

#[derive(Debug)]
struct Capture {
    id: u64,
    context: u64,
    /// The stream in which it began, and those that joined it by an event.
    streams: Vec<u64>,
    is_blocking: bool,
    thread: ThreadId,
    mode: Mode,
    is_valid: bool,
}

/// The captures of this process that have not ended, and the graphs of the captures that have.
#[derive(Debug, Default)]
pub(crate) struct Captures {
    all: Mutex<Vec<Capture>>,
    /// The number of captures: most calls of most programs find 0.
    count: AtomicUsize,
    graphs: Mutex<Vec<u64>>,
}

impl Captures {
    /// The captures, if there are any.
    fn some(&self) -> Option<MutexGuard<'_, Vec<Capture>>> {
        (self.count.load(Ordering::Acquire) > 0).then(|| self.lock())
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Capture>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Invalidates the captures for which `is` holds. Fails with `code` if there was one.
    fn refuse(&self, code: Code, is: impl Fn(&Capture) -> bool) -> Answer {
        let Some(mut all) = self.some() else { return Ok(()) };
        let mut answer = Ok(());
        for capture in all.iter_mut().filter(|capture| is(capture)) {
            capture.is_valid = false;
            answer = Err(code);
        }
        answer
    }

    /// Whether this thread may call the function `name` now.
    pub(crate) fn admit(&self, name: &str) -> Answer {
        if self.count.load(Ordering::Acquire) == 0 || !UNSAFE.contains(&name) {
            return Ok(());
        }
        let (mode, here) = (MODE.get(), thread::current().id());
        self.refuse(Code::STREAM_CAPTURE_UNSUPPORTED, |capture| {
            let is_own = capture.thread == here && capture.mode != Mode::Relaxed;
            match mode {
                Mode::Global => is_own || capture.mode == Mode::Global,
                Mode::ThreadLocal => is_own,
                Mode::Relaxed => false,
            }
        })
    }

    /// Whether a call may query or wait for a whole context, in any mode.
    pub(crate) fn admit_context(&self, context: &Context) -> Answer {
        self.refuse(Code::STREAM_CAPTURE_UNSUPPORTED, |capture| capture.context == context.handle)
    }

    /// Whether a call may query or wait for a stream, in any mode.
    pub(crate) fn admit_stream(&self, context: &Context, key: StreamKey) -> Answer {
        self.admit_legacy(context, key)?;
        self.refuse(Code::STREAM_CAPTURE_UNSUPPORTED, |capture| capture.streams.contains(&key.id))
    }

    /// Whether the host may query or wait for an event, in any mode. An event in a capture is refused.
    pub(crate) fn admit_event(&self, captured: u64) -> Answer {
        if captured == 0 {
            return Ok(());
        }
        self.refuse(Code::CAPTURED_EVENT, |capture| capture.id == captured)?;
        Err(Code::CAPTURED_EVENT)
    }

    /// The legacy default stream would depend on blocking streams that are captured.
    fn admit_legacy(&self, context: &Context, key: StreamKey) -> Answer {
        self.refuse(Code::STREAM_CAPTURE_IMPLICIT, |capture| {
            key.id == LEGACY && capture.is_blocking && capture.context == context.handle
        })
    }

    /// The capture that takes the work submitted to a stream. `None`: the work runs.
    pub(crate) fn taking(&self, context: &Context, key: StreamKey) -> Answer<Option<u64>> {
        self.admit_legacy(context, key)?;
        match self.status(key) {
            None => Ok(None),
            Some((id, true)) => Ok(Some(id)),
            Some((_, false)) => Err(Code::STREAM_CAPTURE_INVALIDATED),
        }
    }

    /// The capture of a stream, and whether it is valid.
    pub(crate) fn status(&self, key: StreamKey) -> Option<(u64, bool)> {
        let all = self.some()?;
        let capture = all.iter().find(|capture| capture.streams.contains(&key.id))?;
        Some((capture.id, capture.is_valid))
    }

    /// The status of a stream for a query of the program.
    pub(crate) fn asked(&self, context: &Context, key: StreamKey) -> Answer<Option<(u64, bool)>> {
        let implied = |capture: &Capture| capture.is_blocking && capture.context == context.handle;
        if key.id == LEGACY && self.some().is_some_and(|all| all.iter().any(implied)) {
            return Err(Code::STREAM_CAPTURE_IMPLICIT);
        }
        Ok(self.status(key))
    }

    /// Makes a stream depend on an event that was recorded in the capture `captured` (0: in none). A dependency
    /// across the bounds of a capture is refused, and a stream outside the capture joins it.
    pub(crate) fn depend(&self, key: StreamKey, captured: u64) -> Answer {
        if let Some((id, _)) = self.status(key) {
            return match captured == id {
                true => Ok(()),
                false => self.refuse(Code::STREAM_CAPTURE_ISOLATION, |capture| capture.id == id),
            };
        }
        if captured == 0 {
            return Ok(());
        }
        let Some(mut all) = self.some() else { return Err(Code::CAPTURED_EVENT) };
        match all.iter_mut().find(|capture| capture.id == captured && key.id != LEGACY) {
            Some(capture) => {
                capture.streams.push(key.id);
                capture.is_blocking |= key.is_blocking;
                Ok(())
            }
            None => Err(Code::CAPTURED_EVENT),
        }
    }

    pub(crate) fn begin(&self, context: &Context, key: StreamKey, mode: Mode) -> Answer {
        if key.id == LEGACY {
            return Err(Code::STREAM_CAPTURE_UNSUPPORTED);
        }
        if self.status(key).is_some() {
            return Err(Code::ILLEGAL_STATE);
        }
        let mut all = self.lock();
        all.push(Capture {
            id: driver::get()?.number(),
            context: context.handle,
            streams: vec![key.id],
            is_blocking: key.is_blocking,
            thread: thread::current().id(),
            mode,
            is_valid: true,
        });
        self.count.store(all.len(), Ordering::Release);
        Ok(())
    }

    /// Ends the capture that began in a stream, and returns its graph.
    pub(crate) fn end(&self, key: StreamKey) -> Answer<u64> {
        let mut all = self.lock();
        let at =
            all.iter().position(|capture| capture.streams.contains(&key.id)).ok_or(Code::ILLEGAL_STATE)?;
        if all[at].streams[0] != key.id {
            return Err(Code::STREAM_CAPTURE_UNMATCHED);
        }
        if all[at].mode != Mode::Relaxed && all[at].thread != thread::current().id() {
            return Err(Code::STREAM_CAPTURE_WRONG_THREAD);
        }
        let ended = all.remove(at);
        self.count.store(all.len(), Ordering::Release);
        if !ended.is_valid {
            return Err(Code::STREAM_CAPTURE_INVALIDATED);
        }
        self.graphs.lock().unwrap_or_else(PoisonError::into_inner).push(ended.id);
        Ok(ended.id)
    }

    /// Ends the captures of `context` that began in `stream` (`None`: in any stream), without a graph.
    pub(crate) fn forget(&self, context: u64, stream: Option<u64>) {
        let mut all = self.lock();
        all.retain(|capture| {
            capture.context != context || stream.is_some_and(|stream| capture.streams[0] != stream)
        });
        self.count.store(all.len(), Ordering::Release);
    }

    pub(crate) fn destroy(&self, graph: u64) -> Answer {
        let mut graphs = self.graphs.lock().unwrap_or_else(PoisonError::into_inner);
        let at = graphs.iter().position(|known| *known == graph).ok_or(Code::INVALID_VALUE)?;
        graphs.swap_remove(at);
        Ok(())
    }
}
