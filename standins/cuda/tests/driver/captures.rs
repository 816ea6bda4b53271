//! Captures: what is recorded is not run, and what a capture forbids invalidates it.

use crate::support::{allocate, alone, start, stream};

const GLOBAL: u32 = 0;
const THREAD_LOCAL: u32 = 1;
const RELAXED: u32 = 2;
const BLOCKING: u32 = 0;
const NON_BLOCKING: u32 = 1;

/// `CUresult`s.
const ILLEGAL_STATE: u32 = 401;
const UNSUPPORTED: u32 = 900;
const INVALIDATED: u32 = 901;
const ISOLATION: u32 = 905;
const IMPLICIT: u32 = 906;
const CAPTURED_EVENT: u32 = 907;
const WRONG_THREAD: u32 = 908;

fn begin(stream: u64, mode: u32) {
    ok!(cuStreamBeginCapture_v2(stream => u64, mode => u32));
}

/// Ends a capture: the result. A graph is destroyed.
fn end(stream: u64) -> u32 {
    let mut graph = 1u64;
    let result = cu!(cuStreamEndCapture(stream => u64, &mut graph => *mut u64));
    assert_eq!(graph == 0, result != 0, "a graph comes with success");
    if graph != 0 {
        ok!(cuGraphDestroy(graph => u64));
        assert_ne!(cu!(cuGraphDestroy(graph => u64)), 0, "destroyed twice");
    }
    result
}

fn status(stream: u64) -> (u32, u32) {
    let mut status = 9;
    (cu!(cuStreamIsCapturing(stream => u64, &mut status => *mut u32)), status)
}

/// The mode of this thread before.
fn exchange(mut mode: u32) -> u32 {
    ok!(cuThreadExchangeStreamCaptureMode(&mut mode => *mut u32));
    mode
}

fn event() -> u64 {
    let mut event = 0;
    ok!(cuEventCreate(&mut event => *mut u64, 2 => u32));
    event
}

fn query(event: u64) -> u32 {
    cu!(cuEventQuery(event => u64))
}

/// On a thread of its own, in a mode.
fn elsewhere<T: Send>(context: u64, mode: u32, act: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|threads| {
        let acting = threads.spawn(|| {
            ok!(cuCtxSetCurrent(context => u64));
            assert_eq!(exchange(mode), GLOBAL, "every thread begins so");
            act()
        });
        acting.join().expect("a thread")
    })
}

#[test]
fn what_is_captured_is_not_run() {
    alone(this_test!(), &[], || {
        start();
        let (stream, word) = (stream(NON_BLOCKING), crate::support::pinned(8));
        assert_eq!(status(stream), (0, 0));
        assert_eq!(end(stream), ILLEGAL_STATE);
        begin(stream, GLOBAL);
        assert_eq!(status(stream), (0, 1));
        let again = cu!(cuStreamBeginCapture_v2(stream => u64, GLOBAL => u32));
        assert_eq!(again, ILLEGAL_STATE);
        ok!(cuStreamWriteValue64_v2(stream => u64, word => u64, 7 => u64, 0 => u32));
        assert_eq!(end(stream), 0);
        assert_eq!(status(stream), (0, 0));
        ok!(cuStreamSynchronize(stream => u64));
        assert_eq!(crate::support::word(word).load(std::sync::atomic::Ordering::Acquire), 0);
        ok!(cuStreamWriteValue64_v2(stream => u64, word => u64, 7 => u64, 0 => u32));
        ok!(cuStreamSynchronize(stream => u64));
        assert_eq!(crate::support::word(word).load(std::sync::atomic::Ordering::Acquire), 7);
    });
}

#[test]
fn unsafe_calls_are_forbidden_by_the_modes_of_capture_and_thread() {
    alone(this_test!(), &[], || {
        let context = start();
        let (stream, outside) = (stream(NON_BLOCKING), event());
        for capture in [GLOBAL, THREAD_LOCAL, RELAXED] {
            for thread in [GLOBAL, THREAD_LOCAL, RELAXED] {
                for is_own in [true, false] {
                    let forbids = thread != RELAXED
                        && if is_own { capture != RELAXED } else { capture == GLOBAL && thread == GLOBAL };
                    begin(stream, capture);
                    let found = match is_own {
                        true => {
                            assert_eq!(exchange(thread), GLOBAL);
                            let found = query(outside);
                            assert_eq!(exchange(GLOBAL), thread);
                            found
                        }
                        false => elsewhere(context, thread, || query(outside)),
                    };
                    let case = format!("capture {capture}, thread {thread}, its own {is_own}");
                    assert_eq!(found, if forbids { UNSUPPORTED } else { 0 }, "{case}");
                    assert_eq!(status(stream).1, if forbids { 2 } else { 1 }, "{case}");
                    assert_eq!(end(stream), if forbids { INVALIDATED } else { 0 }, "{case}");
                }
            }
        }
        assert_eq!(query(outside), 0, "and no longer");
        let mut nonsense = 3;
        assert_eq!(cu!(cuThreadExchangeStreamCaptureMode(&mut nonsense => *mut u32)), 1);
    });
}

#[test]
fn many_calls_are_unsafe() {
    alone(this_test!(), &[], || {
        let context = start();
        let (stream, other, outside) = (stream(NON_BLOCKING), self::stream(NON_BLOCKING), event());
        let (memory, mut place) = (allocate(64), 0u64);
        let forbidden = |what: &str, act: &(dyn Fn() -> u32 + Sync)| {
            begin(stream, GLOBAL);
            assert_eq!(elsewhere(context, GLOBAL, act), UNSUPPORTED, "{what}");
            assert_eq!(end(stream), INVALIDATED, "{what}");
        };
        forbidden("event", &|| cu!(cuEventSynchronize(outside => u64)));
        forbidden("stream query", &|| cu!(cuStreamQuery(other => u64)));
        forbidden("stream", &|| cu!(cuStreamSynchronize(other => u64)));
        forbidden("context", &|| cu!(cuCtxSynchronize()));
        forbidden("free", &|| cu!(cuMemFree_v2(memory => u64)));
        let at = &raw mut place as usize;
        forbidden("allocate", &move || cu!(cuMemAlloc_v2(at => usize, 64 => usize)));
        forbidden("pinned", &move || cu!(cuMemHostAlloc(at => usize, 64 => usize, 0 => u32)));
        forbidden("module", &move || cu!(cuModuleLoadData(at => usize, at => usize)));
        forbidden("copy", &move || cu!(cuMemcpyDtoH_v2(at => usize, memory => u64, 8 => usize)));
        // These are not: frameworks make them while they capture.
        begin(stream, GLOBAL);
        event();
        self::stream(NON_BLOCKING);
        assert_eq!(end(stream), 0);
    });
}

#[test]
fn what_conflicts_with_a_capture_does_so_in_every_mode() {
    alone(this_test!(), &[], || {
        let context = start();
        let (stream, other) = (stream(BLOCKING), self::stream(NON_BLOCKING));
        let (inside, outside) = (event(), event());
        ok!(cuEventRecord(outside => u64, other => u64));
        let conflicts = |what: &str, code: u32, act: &(dyn Fn() -> u32 + Sync)| {
            begin(stream, GLOBAL);
            ok!(cuEventRecord(inside => u64, stream => u64));
            assert_eq!(elsewhere(context, RELAXED, act), code, "{what}");
            assert_eq!(end(stream), INVALIDATED, "{what}");
        };
        conflicts("query", UNSUPPORTED, &|| cu!(cuStreamQuery(stream => u64)));
        conflicts("wait", UNSUPPORTED, &|| cu!(cuStreamSynchronize(stream => u64)));
        conflicts("context", UNSUPPORTED, &|| cu!(cuCtxSynchronize()));
        conflicts("its event", CAPTURED_EVENT, &|| query(inside));
        conflicts("outside", ISOLATION, &|| cu!(cuStreamWaitEvent(stream => u64, outside => u64, 0 => u32)));
        conflicts("legacy", IMPLICIT, &|| cu!(cuEventRecord(event() => u64, 0 => u64)));
        assert_eq!(query(inside), CAPTURED_EVENT, "also afterwards");
        // Another stream joins by an event.
        begin(stream, GLOBAL);
        ok!(cuEventRecord(inside => u64, stream => u64));
        ok!(cuStreamWaitEvent(other => u64, inside => u64, 0 => u32));
        assert_eq!(status(other), (0, 1));
        assert_eq!(status(0).0, IMPLICIT);
        let ended = elsewhere(context, GLOBAL, || {
            let mut graph = 0u64;
            cu!(cuStreamEndCapture(stream => u64, &mut graph => *mut u64))
        });
        assert_eq!(ended, WRONG_THREAD);
        assert_eq!(end(stream), 0);
    });
}
