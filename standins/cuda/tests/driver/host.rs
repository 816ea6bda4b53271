//! What runs without kernels: devices, contexts, memory, streams, events, and what is refused.

use std::ffi::{CStr, c_char};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use cudarc::driver::sys;

use crate::support::{
    allocate, alone, becomes, part, pinned, read, spawn, start, stream, symbol, word, write,
};

/// Flags of a wait: at least.
const AT_LEAST: u32 = 0;
const NON_BLOCKING: u32 = 1;
const NOT_READY: u32 = 600;
const INVALID_VALUE: u32 = 1;

fn wait_value(stream: u64, word: u64, value: u64) {
    ok!(cuStreamWaitValue64_v2(stream => u64, word => u64, value => u64, AT_LEAST => u32));
}

fn write_value(stream: u64, word: u64, value: u64) {
    ok!(cuStreamWriteValue64_v2(stream => u64, word => u64, value => u64, 0 => u32));
}

#[test]
fn it_says_what_it_is() {
    let (_, said) = alone(this_test!(), &[("CONSORT_STANDIN_DEVICES", "3")], || {
        let mut count = -1;
        assert_eq!(cu!(cuDeviceGetCount(&mut count => *mut i32)), 3, "not started");
        ok!(cuInit(0 => u32));
        ok!(cuInit(0 => u32));
        assert_eq!(cu!(cuInit(1 => u32)), INVALID_VALUE);
        ok!(cuDeviceGetCount(&mut count => *mut i32));
        assert_eq!(count, 3);
        let mut name = [0u8; 64];
        ok!(cuDeviceGetName(name.as_mut_ptr() => *mut u8, 64 => i32, 2 => i32));
        let name = CStr::from_bytes_until_nul(&name).expect("a name");
        assert_eq!(name, c"stand-in device 2 (host memory, no GPU)");
        let mut version = 0;
        ok!(cuDriverGetVersion(&mut version => *mut i32));
        assert_eq!(version, 12080);
        assert_eq!(cu!(cuDeviceGet(&mut count => *mut i32, 3 => i32)), 101);
        let mut uuids = [[0u8; 16]; 2];
        ok!(cuDeviceGetUuid_v2(&mut uuids[0] => *mut [u8; 16], 0 => i32));
        ok!(cuDeviceGetUuid(&mut uuids[1] => *mut [u8; 16], 1 => i32));
        assert_ne!(uuids[0], uuids[1]);
    });
    if part().is_empty() {
        let line = "consort's stand-in for the CUDA driver: 3 pretend devices in host memory, no GPU";
        assert_eq!(said.matches(line).count(), 1, "{said}");
    }
}

#[test]
fn it_is_quiet_when_asked_and_logs_calls() {
    let place = std::env::temp_dir().join(format!("standin-log-{}", std::process::id()));
    let text = place.to_str().expect("a path");
    let variables = [("CONSORT_STANDIN_QUIET", "1"), ("CONSORT_STANDIN_LOG", text)];
    let (_, said) = alone(this_test!(), &variables, || {
        ok!(cuInit(0 => u32));
        let mut count = 0;
        ok!(cuDeviceGetCount(&mut count => *mut i32));
    });
    if part().is_empty() {
        assert!(!said.contains("stand-in for"), "{said}");
        let log = std::fs::read_to_string(&place).expect("a log");
        let names: Vec<_> = log.lines().filter_map(|line| line.split(' ').next()).collect();
        assert_eq!(names, ["cuInit", "cuDeviceGetCount"]);
        std::fs::remove_file(&place).expect("a log");
    }
}

#[test]
fn names_and_layouts_are_nvidias() {
    type Result = sys::CUresult;
    for result in [
        Result::CUDA_SUCCESS,
        Result::CUDA_ERROR_INVALID_VALUE,
        Result::CUDA_ERROR_OUT_OF_MEMORY,
        Result::CUDA_ERROR_NOT_INITIALIZED,
        Result::CUDA_ERROR_NO_BINARY_FOR_GPU,
        Result::CUDA_ERROR_INVALID_CONTEXT,
        Result::CUDA_ERROR_MAP_FAILED,
        Result::CUDA_ERROR_PEER_ACCESS_UNSUPPORTED,
        Result::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED,
        Result::CUDA_ERROR_PEER_ACCESS_NOT_ENABLED,
        Result::CUDA_ERROR_INVALID_PTX,
        Result::CUDA_ERROR_INVALID_HANDLE,
        Result::CUDA_ERROR_NOT_READY,
        Result::CUDA_ERROR_ILLEGAL_ADDRESS,
        Result::CUDA_ERROR_MISALIGNED_ADDRESS,
        Result::CUDA_ERROR_LAUNCH_FAILED,
        Result::CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE,
        Result::CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED,
        Result::CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED,
        Result::CUDA_ERROR_NOT_PERMITTED,
        Result::CUDA_ERROR_NOT_SUPPORTED,
        Result::CUDA_ERROR_UNKNOWN,
    ] {
        let mut name: *const c_char = std::ptr::null();
        ok!(cuGetErrorName(result as u32 => u32, &mut name => *mut *const c_char));
        // SAFETY: a static text.
        assert_eq!(unsafe { CStr::from_ptr(name) }.to_str().expect("a name"), format!("{result:?}"));
    }
    let mut name = c"x".as_ptr();
    assert_eq!(cu!(cuGetErrorName(54321 => u32, &mut name => *mut *const c_char)), INVALID_VALUE);
    assert!(name.is_null());

    use cuda::api::{module, stream, virtual_memory};
    use std::mem::offset_of;
    assert_eq!(size_of::<module::LaunchConfig>(), size_of::<sys::CUlaunchConfig>());
    assert_eq!(offset_of!(module::LaunchConfig, stream), offset_of!(sys::CUlaunchConfig, hStream));
    assert_eq!(offset_of!(module::LaunchConfig, count), offset_of!(sys::CUlaunchConfig, numAttrs));
    assert_eq!(size_of::<module::LaunchAttribute>(), size_of::<sys::CUlaunchAttribute>());
    assert_eq!(offset_of!(module::LaunchAttribute, value), offset_of!(sys::CUlaunchAttribute, value));
    assert_eq!(size_of::<stream::MemoryOperation>(), size_of::<sys::CUstreamBatchMemOpParams>());
    type Wait = sys::CUstreamBatchMemOpParams_union_CUstreamMemOpWaitValueParams_st;
    assert_eq!(offset_of!(stream::MemoryOperation, address), offset_of!(Wait, address));
    assert_eq!(offset_of!(stream::MemoryOperation, flags), offset_of!(Wait, flags));
    assert_eq!(size_of::<virtual_memory::Properties>(), size_of::<sys::CUmemAllocationProp>());
    let location = offset_of!(virtual_memory::Properties, location);
    assert_eq!(location, offset_of!(sys::CUmemAllocationProp, location));
    assert_eq!(size_of::<virtual_memory::Access>(), size_of::<sys::CUmemAccessDesc>());
    assert_eq!(offset_of!(virtual_memory::Access, flags), offset_of!(sys::CUmemAccessDesc, flags));
}

#[test]
fn functions_are_found_by_name() {
    alone(this_test!(), &[], || {
        ok!(cuInit(0 => u32));
        let find = |name: &CStr, version: i32| {
            let (mut address, mut status) = (0usize, 9u32);
            let result = cu!(cuGetProcAddress_v2(
                name.as_ptr() => *const c_char, &mut address => *mut usize, version => i32, 0 => u64,
                &mut status => *mut u32
            ));
            (result, address, status)
        };
        assert_eq!(find(c"cuMemAlloc", 12080), (0, symbol("cuMemAlloc_v2") as usize, 0));
        assert_eq!(find(c"cuCtxCreate", 11000), (0, symbol("cuCtxCreate_v2") as usize, 0));
        assert_eq!(find(c"cuCtxCreate", 12080), (0, symbol("cuCtxCreate_v4") as usize, 0));
        assert_eq!(find(c"cuInit", 12080), (0, symbol("cuInit") as usize, 0));
        assert_eq!(find(c"cuGraphCreate", 12080), (500, 0, 1));
    });
}

#[test]
fn contexts_are_a_stack() {
    alone(this_test!(), &[("CONSORT_STANDIN_DEVICES", "2")], || {
        let primary = start();
        let mut now = 0u64;
        let current = |now: &mut u64| ok!(cuCtxGetCurrent(now => *mut u64));
        current(&mut now);
        assert_eq!(now, primary);
        let mut own = 0u64;
        ok!(cuCtxCreate_v2(&mut own => *mut u64, 0 => u32, 1 => i32));
        current(&mut now);
        assert_eq!(now, own);
        let mut device = 9;
        ok!(cuCtxGetDevice(&mut device => *mut i32));
        assert_eq!(device, 1);
        ok!(cuCtxPopCurrent_v2(&mut now => *mut u64));
        assert_eq!(now, own);
        current(&mut now);
        assert_eq!(now, primary);
        ok!(cuCtxDestroy_v2(own => u64));
        assert_eq!(cu!(cuCtxPushCurrent_v2(own => u64)), 201);
        assert_eq!(cu!(cuCtxDestroy_v2(primary => u64)), 201);
        let (mut again, mut flags, mut active) = (0u64, 9u32, 0i32);
        ok!(cuDevicePrimaryCtxRetain(&mut again => *mut u64, 0 => i32));
        assert_eq!(again, primary);
        ok!(cuDevicePrimaryCtxRelease_v2(0 => i32));
        ok!(cuDevicePrimaryCtxGetState(0 => i32, &mut flags => *mut u32, &mut active => *mut i32));
        assert_eq!((flags, active), (0, 1));
        ok!(cuDevicePrimaryCtxRelease_v2(0 => i32));
        ok!(cuDevicePrimaryCtxGetState(0 => i32, &mut flags => *mut u32, &mut active => *mut i32));
        assert_eq!(active, 0);
        assert_eq!(cu!(cuDevicePrimaryCtxRelease_v2(0 => i32)), 201);
        let mut address = 0;
        assert_eq!(cu!(cuMemAlloc_v2(&mut address => *mut u64, 8 => usize)), 201);
    });
}

#[test]
fn memory_is_copied_filled_and_bounded() {
    let variables = [("CONSORT_STANDIN_MEMORY", "1048576")];
    alone(this_test!(), &variables, || {
        start();
        let (one, two) = (allocate(4096), allocate(5000));
        let pattern: Vec<u8> = (0..4096u32).map(|at| (at * 7) as u8).collect();
        write(one, &pattern);
        ok!(cuMemcpyDtoD_v2(two + 904 => u64, one => u64, 4096 => usize));
        assert_eq!(read(two + 904, 4096), pattern);
        ok!(cuMemsetD8_v2(one + 1 => u64, 0x5a => u8, 2 => usize));
        ok!(cuMemsetD32_v2(one + 4 => u64, 0x01020304 => u32, 2 => usize));
        assert_eq!(read(one, 13)[..13], [0, 0x5a, 0x5a, 21, 4, 3, 2, 1, 4, 3, 2, 1, 84]);
        let host = pinned(4096);
        ok!(cuMemcpyAsync(host => u64, one => u64, 8 => usize, 0 => u64));
        ok!(cuStreamSynchronize(0 => u64));
        assert_eq!(word(host).load(Ordering::Relaxed).to_le_bytes(), read(one, 8)[..]);
        // Past the end, and of what is no device's.
        let over = cu!(cuMemcpyDtoD_v2(two + 905 => u64, one => u64, 4096 => usize));
        assert_eq!(over, INVALID_VALUE);
        let mut byte = 0u8;
        let foreign = (&raw mut byte) as u64;
        assert_eq!(cu!(cuMemcpyDtoD_v2(foreign => u64, one => u64, 1 => usize)), INVALID_VALUE);
        let (mut free, mut total, mut none) = (0usize, 0usize, 0u64);
        ok!(cuMemGetInfo_v2(&mut free => *mut usize, &mut total => *mut usize));
        assert_eq!((free, total), (1048576 - 9096, 1048576));
        assert_eq!(cu!(cuMemAlloc_v2(&mut none => *mut u64, 1048576 => usize)), 2);
        ok!(cuMemFree_v2(two => u64));
        assert_eq!(cu!(cuMemFree_v2(two => u64)), INVALID_VALUE);
        assert_eq!(cu!(cuMemFree_v2(one + 8 => u64)), INVALID_VALUE);
        ok!(cuMemGetInfo_v2(&mut free => *mut usize, &mut total => *mut usize));
        assert_eq!(free, 1048576 - 4096);
        let (mut start, mut bytes) = (0u64, 0usize);
        ok!(cuMemGetAddressRange_v2(&mut start => *mut u64, &mut bytes => *mut usize, one + 77 => u64));
        assert_eq!((start, bytes), (one, 4096));
    });
}

#[test]
fn the_driver_knows_whose_memory_it_is() {
    alone(this_test!(), &[], || {
        let context = start();
        let (device, host) = (allocate(100), pinned(100));
        let mut managed = 0u64;
        ok!(cuMemAllocManaged(&mut managed => *mut u64, 64 => usize, 1 => u32));
        let ask = |number: u32, address: u64| {
            let mut value = 0u64;
            let result = cu!(cuPointerGetAttribute(&mut value => *mut u64, number => u32, address => u64));
            (result, value)
        };
        assert_eq!([ask(2, device + 99), ask(2, host), ask(2, managed)], [(0, 2), (0, 1), (0, 2)]);
        assert_eq!([ask(8, device).1, ask(8, managed).1], [0, 1]);
        assert_eq!(ask(1, device), (0, context));
        assert_eq!(ask(6, device), (0, 0), "copies were not asked to wait");
        ok!(cuPointerSetAttribute([1u32].as_ptr() => *const u32, 6 => u32, device + 50 => u64));
        assert_eq!([ask(6, device).1, ask(6, host).1], [1, 0]);
        let unknown =
            cu!(cuPointerSetAttribute([1u32].as_ptr() => *const u32, 6 => u32, device + 100 => u64));
        assert_eq!(unknown, INVALID_VALUE);
        assert_eq!(ask(2, device + 100).0, INVALID_VALUE);
        let page = vec![0u8; 8192];
        let own = page.as_ptr() as u64;
        assert_eq!(ask(2, own).0, INVALID_VALUE);
        ok!(cuMemHostRegister_v2(own => u64, 8192 => usize, 3 => u32));
        assert_eq!(ask(2, own), (0, 1));
        assert_eq!(cu!(cuMemHostRegister_v2(own + 8 => u64, 8 => usize, 0 => u32)), 712);
        let mut same = 0u64;
        ok!(cuMemHostGetDevicePointer_v2(&mut same => *mut u64, own + 8 => u64, 0 => u32));
        assert_eq!(same, own + 8);
        ok!(cuMemHostUnregister(own => u64));
        assert_eq!(cu!(cuMemHostUnregister(own => u64)), 713);
        let (mut kind, mut ordinal) = (9u32, 9i32);
        let places = [(&raw mut kind).cast::<u8>(), (&raw mut ordinal).cast()];
        ok!(cuPointerGetAttributes(
            2 => u32, [2u32, 9].as_ptr() => *const u32, places.as_ptr() => *const *mut u8, own => u64
        ));
        assert_eq!((kind, ordinal), (0, -2));
    });
}

#[test]
fn the_host_cannot_touch_device_memory() {
    if part().is_empty() {
        let child = spawn(this_test!(), "alone", &[]);
        let output = child.wait_with_output().expect("a child");
        assert!(!output.status.success(), "it read device memory");
        return;
    }
    start();
    let address = allocate(8);
    // SAFETY: none; it is meant to crash, which is all that this process is for.
    println!("{}", unsafe { std::ptr::read_volatile(address as *const u64) });
}

#[test]
fn streams_wait_for_words_and_events() {
    alone(this_test!(), &[], || {
        start();
        let (one, two) = (stream(NON_BLOCKING), stream(NON_BLOCKING));
        let words = pinned(64);
        let mut event = 0u64;
        ok!(cuEventCreate(&mut event => *mut u64, 2 => u32));
        ok!(cuEventQuery(event => u64));
        wait_value(one, words, 5);
        write_value(one, words + 8, 1);
        ok!(cuEventRecord(event => u64, one => u64));
        ok!(cuStreamWaitEvent(two => u64, event => u64, 0 => u32));
        write_value(two, words + 16, 2);
        std::thread::sleep(Duration::from_millis(30));
        assert_eq!(cu!(cuStreamQuery(one => u64)), NOT_READY);
        assert_eq!(cu!(cuEventQuery(event => u64)), NOT_READY);
        assert_eq!(word(words + 16).load(Ordering::Acquire), 0);
        word(words).store(4, Ordering::Release);
        std::thread::sleep(Duration::from_millis(10));
        assert_eq!(cu!(cuStreamQuery(two => u64)), NOT_READY);
        word(words).store(7, Ordering::Release);
        ok!(cuStreamSynchronize(two => u64));
        ok!(cuEventQuery(event => u64));
        assert_eq!(word(words + 8).load(Ordering::Acquire), 1);
        assert_eq!(word(words + 16).load(Ordering::Acquire), 2);
        // A wait at an address that the driver does not know is refused.
        let own = Box::new(0u64);
        let address = (&raw const *own) as u64;
        let refused = cu!(cuStreamWaitValue64_v2(one => u64, address => u64, 0 => u64, 0 => u32));
        assert_eq!(refused, INVALID_VALUE);
    });
}

#[test]
fn the_legacy_stream_waits_and_is_waited_for() {
    alone(this_test!(), &[], || {
        start();
        let (blocking, free) = (stream(0), stream(NON_BLOCKING));
        let words = pinned(64);
        wait_value(blocking, words, 1);
        write_value(0, words + 8, 1);
        write_value(2, words + 16, 1);
        write_value(free, words + 24, 1);
        ok!(cuStreamSynchronize(free => u64));
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(word(words + 24).load(Ordering::Acquire), 1);
        assert_eq!(word(words + 8).load(Ordering::Acquire), 0, "legacy overtook a blocking stream");
        assert_eq!(word(words + 16).load(Ordering::Acquire), 0, "a blocking stream overtook the legacy one");
        word(words).store(1, Ordering::Release);
        ok!(cuCtxSynchronize());
        assert_eq!(word(words + 8).load(Ordering::Acquire), 1);
        assert_eq!(word(words + 16).load(Ordering::Acquire), 1);
    });
}

/// A wait in one stream and a write that ends it in another: whether the write happens within this time.
fn write_behind_a_wait(within: Duration) -> bool {
    start();
    let (one, two) = (stream(NON_BLOCKING), stream(NON_BLOCKING));
    let words = pinned(8);
    wait_value(one, words, 1);
    write_value(two, words, 1);
    let start = Instant::now();
    while start.elapsed() < within {
        if cu!(cuStreamQuery(two => u64)) == 0 {
            return true;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    word(words).store(1, Ordering::Release);
    ok!(cuCtxSynchronize());
    false
}

#[test]
fn with_one_queue_a_wait_blocks_what_would_end_it() {
    let name = this_test!();
    alone(name, &[("CUDA_DEVICE_MAX_CONNECTIONS", "1")], || {
        assert!(!write_behind_a_wait(Duration::from_millis(300)))
    });
}

#[test]
fn with_two_queues_it_does_not() {
    alone(this_test!(), &[("CONSORT_STANDIN_CONNECTIONS", "2")], || {
        assert!(write_behind_a_wait(Duration::from_secs(5)));
    });
}

extern "C" fn note(data: *mut std::ffi::c_void) {
    let mut address = 0;
    let refused = cu!(cuMemAlloc_v2(&mut address => *mut u64, 8 => usize));
    word(data as u64).store(u64::from(refused), Ordering::Release);
}

#[test]
fn functions_of_the_host_run_in_order_and_may_not_call() {
    alone(this_test!(), &[], || {
        start();
        let (stream, words) = (stream(0), pinned(16));
        wait_value(stream, words + 8, 1);
        ok!(cuLaunchHostFunc(stream => u64, note => extern "C" fn(*mut std::ffi::c_void), words => u64));
        std::thread::sleep(Duration::from_millis(10));
        assert_eq!(word(words).load(Ordering::Acquire), 0);
        word(words + 8).store(1, Ordering::Release);
        becomes("it was called", || word(words).load(Ordering::Acquire) == 800);
    });
}

#[test]
fn freeing_waits_for_all_streams() {
    alone(this_test!(), &[], || {
        start();
        let (stream, words, memory) = (stream(NON_BLOCKING), pinned(8), allocate(64));
        wait_value(stream, words, 1);
        let freed = std::thread::spawn(move || {
            start();
            ok!(cuMemFree_v2(memory => u64));
            word(words).load(Ordering::Acquire)
        });
        std::thread::sleep(Duration::from_millis(50));
        assert!(!freed.is_finished());
        word(words).store(1, Ordering::Release);
        assert_eq!(freed.join().expect("no panic"), 1);
    });
}

#[test]
fn a_forked_child_gets_nothing() {
    alone(this_test!(), &[], || {
        start();
        // SAFETY: the child calls one function and ends.
        let child = unsafe { libc::fork() };
        let mut count = 0;
        if child == 0 {
            let result = cu!(cuDeviceGetCount(&mut count => *mut i32));
            // SAFETY: ends this process at once.
            unsafe { libc::_exit(result as i32) };
        }
        let mut status = 0;
        // SAFETY: a child of this process, a place for its status.
        unsafe { libc::waitpid(child, &mut status, 0) };
        assert_eq!(libc::WEXITSTATUS(status), 3);
        ok!(cuDeviceGetCount(&mut count => *mut i32));
    });
}

#[test]
fn a_stuck_stream_does_not_outlive_its_context() {
    alone(this_test!(), &[], || {
        start();
        let mut own = 0u64;
        ok!(cuCtxCreate_v2(&mut own => *mut u64, 0 => u32, 0 => i32));
        let before = std::fs::read_dir("/proc/self/task").expect("procfs").count();
        let (stuck, words) = (stream(NON_BLOCKING), pinned(8));
        wait_value(stuck, words, 1);
        ok!(cuCtxDestroy_v2(own => u64));
        assert_eq!(cu!(cuStreamSynchronize(stuck => u64)), 400);
        becomes("its threads end", || {
            std::fs::read_dir("/proc/self/task").expect("procfs").count() <= before
        });
    });
}

#[test]
fn a_copy_that_hangs_holds_up_its_stream_alone() {
    let variables = [("CONSORT_STANDIN_PEERS", "hang"), ("CONSORT_STANDIN_DEVICES", "2")];
    alone(this_test!(), &variables, || {
        let here = start();
        let (own, lost, other) = (allocate(64), stream(NON_BLOCKING), stream(NON_BLOCKING));
        let mut there = 0u64;
        ok!(cuDevicePrimaryCtxRetain(&mut there => *mut u64, 1 => i32));
        ok!(cuCtxSetCurrent(there => u64));
        let peers = allocate(64);
        ok!(cuCtxSetCurrent(here => u64));
        ok!(cuMemcpyAsync(peers => u64, own => u64, 64 => usize, lost => u64));
        // Within a device copies end, also those that are put into a stream later.
        ok!(cuMemcpyAsync(own + 32 => u64, own => u64, 32 => usize, other => u64));
        ok!(cuStreamSynchronize(other => u64));
        assert_eq!(cu!(cuStreamQuery(lost => u64)), NOT_READY);
        assert_eq!(cu!(cuStreamQuery(other => u64)), 0);
        // The process ends nevertheless.
    });
}
