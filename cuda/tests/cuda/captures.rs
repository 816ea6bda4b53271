//! Captures of a program's streams beside calls of this crate, on whatever `libcuda.so.1` the loader finds.
//!
//! The captures are processes of their own: other tests of this program wait for whole contexts, which no capture
//! outlasts.

use std::ffi::{CStr, c_int, c_uint, c_void};
use std::sync::Barrier;

use consort_cuda::{Context, RawStream, Stream, StreamRef};

use crate::driver::{PTX, child, context, given};

const GLOBAL: c_uint = 0;
const RELAXED: c_uint = 2;
const STREAM_CAPTURE_UNSUPPORTED: c_int = 900;
const STREAM_CAPTURE_INVALIDATED: c_int = 901;

/// A function of the driver by its name, called as programs call it.
macro_rules! cu {
    ($name:literal($($argument:expr => $type:ty),*)) => {{
        // SAFETY: the type is that of NVIDIA's header for this name, and the places that it is given live meanwhile.
        let function: extern "C" fn($($type),*) -> c_int = unsafe { std::mem::transmute(symbol($name)) };
        function($($argument),*)
    }};
}

fn symbol(name: &CStr) -> *mut c_void {
    // SAFETY: names that end with a zero; the library is open already.
    let address = unsafe {
        let library = libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_LAZY | libc::RTLD_LOCAL);
        libc::dlsym(library, name.as_ptr())
    };
    assert!(!address.is_null(), "no {name:?}");
    address
}

fn begin(stream: &StreamRef, mode: c_uint) {
    assert_eq!(cu!(c"cuStreamBeginCapture_v2"(stream.raw().0 => u64, mode => c_uint)), 0);
}

/// Ends a capture: the driver's result.
fn end(stream: RawStream) -> c_int {
    let mut graph = 0u64;
    let result = cu!(c"cuStreamEndCapture"(stream.0 => u64, &mut graph => *mut u64));
    if graph != 0 {
        assert_eq!(cu!(c"cuGraphDestroy"(graph => u64)), 0);
    }
    result
}

/// The mode of this thread before.
fn exchange(mut mode: c_uint) -> c_uint {
    assert_eq!(cu!(c"cuThreadExchangeStreamCaptureMode"(&mut mode => *mut c_uint)), 0);
    mode
}

/// What this crate calls of the driver that may be unsafe for a capture.
fn calls(context: &Context, other: &Stream) {
    let memory = context.allocate(1 << 20).expect("memory");
    let pinned = context.allocate_host(4096).expect("pinned memory");
    let module = context.load(PTX.as_bytes()).expect("the module");
    drop(module.function(c"numbers").expect("the function"));
    let event = context.create_event().expect("an event");
    memory.copy_from_host(0, &[1; 4096]).expect("copied");
    {
        let _entered = context.enter().expect("entered");
        other.fill(memory.span(), 7).expect("queued");
        other.record(&event).expect("recorded");
    }
    // Without an entered context too.
    while !event.query().expect("an answer") {
        std::thread::yield_now();
    }
    event.synchronize().expect("over");
    other.synchronize().expect("over");
    assert_eq!(other.query(), Ok(true));
    if let Ok(shared) = context.allocate_shareable(4096) {
        drop(shared.export_fd().expect("a descriptor"));
    }
    drop((memory, pinned));
    drop(context.create_stream().expect("a stream"));
    assert_eq!(Context::primary(0).as_ref(), Ok(context));
}

#[test]
fn calls_leave_captures_valid_and_modes_as_they_were() {
    let Some(_) = context() else { return };
    child(captures_beside_calls, "");
}

#[test]
#[ignore = "a process of calls_leave_captures_valid_and_modes_as_they_were"]
fn captures_beside_calls() {
    let Some(_) = given() else { return };
    let context = context().expect("as in the other process");
    let (captured, other) = [&context, &context].map(|of| of.create_stream().expect("a stream")).into();
    calls(&context, &other);
    // Of this thread.
    for mode in [GLOBAL, 1, RELAXED] {
        assert_eq!(exchange(mode), GLOBAL);
        begin(&captured, GLOBAL);
        calls(&context, &other);
        assert_eq!(end(captured.raw()), 0, "a capture on a thread in mode {mode}");
        assert_eq!(exchange(GLOBAL), mode, "the thread's own mode");
    }
    // Of another.
    let turn = Barrier::new(2);
    std::thread::scope(|threads| {
        let capture = threads.spawn(|| {
            begin(&captured, GLOBAL);
            turn.wait();
            turn.wait();
            end(captured.raw())
        });
        turn.wait();
        calls(&context, &other);
        turn.wait();
        assert_eq!(capture.join().expect("a thread"), 0, "a capture on another thread");
    });
}

#[test]
fn a_query_in_the_default_mode_invalidates_a_capture() {
    let Some(_) = context() else { return };
    child(a_capture_beside_a_query, "");
}

/// What the guard is for: without it, the driver does this.
#[test]
#[ignore = "a process of a_query_in_the_default_mode_invalidates_a_capture"]
fn a_capture_beside_a_query() {
    let Some(_) = given() else { return };
    let context = context().expect("as in the other process");
    let (captured, mut event) = (context.create_stream().expect("a stream"), 0u64);
    let entered = context.enter().expect("entered");
    assert_eq!(cu!(c"cuEventCreate"(&mut event => *mut u64, 2 => c_uint)), 0);
    drop(entered);
    begin(&captured, GLOBAL);
    let asked = std::thread::scope(|threads| {
        threads.spawn(|| cu!(c"cuEventQuery"(event => u64))).join().expect("a thread")
    });
    assert_eq!(asked, STREAM_CAPTURE_UNSUPPORTED);
    assert_eq!(end(captured.raw()), STREAM_CAPTURE_INVALIDATED);
}
