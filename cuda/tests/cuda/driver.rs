//! Every wrapper of the CUDA driver, on whatever `libcuda.so.1` the loader finds: NVIDIA's on a GPU, or the stand-in
//! (`standins/cuda`) by `LD_LIBRARY_PATH`. Where there is none, each test says so and does nothing.

use std::ffi::c_void;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use consort_cuda::{
    CaptureStatus, Context, CudaError, CudaErrorCause, DeviceMemory, DeviceSpan, DeviceWord, Driver, Event,
    Function, IpcHandle, MemoryKind, Module, PeerMemory, PinnedMemory, RawStream, Registered,
    SharedDeviceMemory, Stream, StreamRef,
};
use consort_memory::{Mapping, Span, SpanMut};

/// A kernel that stores its thread's number plus what it is given.
pub(crate) const PTX: &str = "
.version 7.0
.target sm_70
.address_size 64
.visible .entry numbers(.param .u64 place, .param .u32 first)
{
    .reg .b32 %r<6>;
    .reg .b64 %rd<5>;
    ld.param.u64 %rd1, [place];
    ld.param.u32 %r1, [first];
    cvta.to.global.u64 %rd2, %rd1;
    mov.u32 %r2, %ctaid.x;
    mov.u32 %r3, %ntid.x;
    mov.u32 %r4, %tid.x;
    mad.lo.s32 %r5, %r2, %r3, %r4;
    mul.wide.u32 %rd3, %r5, 4;
    add.s64 %rd4, %rd2, %rd3;
    add.s32 %r5, %r5, %r1;
    st.global.u32 [%rd4], %r5;
    ret;
}
";

/// The driver may be called from every thread; only what is current is a thread's own.
const _: () = {
    const fn shared<T: Send + Sync>() {}
    shared::<(Context, DeviceMemory, PeerMemory, SharedDeviceMemory, PinnedMemory, Registered, DeviceWord)>();
    shared::<(Module, Function, Stream, StreamRef, Event, DeviceSpan, CudaError)>();
};

/// The driver, unless there is none here or only a part of one.
fn driver() -> Option<&'static Driver> {
    let skip = |why: &str| {
        use std::io::Write;
        let _ = std::io::stderr().write_all(format!("SKIP: no CUDA driver to test ({why})\n").as_bytes());
    };
    let driver = match Driver::of_process() {
        Ok(driver) => driver,
        Err(reason) => {
            skip(&reason.to_string());
            return None;
        }
    };
    match Context::primary(0) {
        Ok(_) => Some(driver),
        Err(error) => {
            assert_eq!(error.cause, CudaErrorCause::Missing, "{error}");
            skip(&error.to_string());
            None
        }
    }
}

pub(crate) fn context() -> Option<Context> {
    driver()?;
    Some(Context::primary(0).expect("the primary context of the first device"))
}

fn pattern(bytes: usize, seed: u8) -> Vec<u8> {
    (0..bytes).map(|at| (at as u8).wrapping_mul(31).wrapping_add(seed)).collect()
}

fn contents(memory: &DeviceMemory) -> Vec<u8> {
    let mut bytes = vec![0; memory.bytes()];
    memory.copy_to_host(0, &mut bytes).expect("a copy to the host");
    bytes
}

fn read(span: Span<'_>) -> Vec<u8> {
    let mut bytes = vec![0; span.len()];
    SpanMut::of(&mut bytes).copy_from(span);
    bytes
}

fn soon(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < Duration::from_secs(20), "not in 20 s: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn devices_are_what_the_driver_says() {
    let Some(driver) = driver() else { return };
    let devices: Vec<_> =
        (0..driver.devices()).map(|ordinal| driver.device(ordinal).expect("a device")).collect();
    for device in &devices {
        println!("{device:?}");
        assert!(!device.name.is_empty() && device.multiprocessors > 0 && device.memory_bytes > 0);
        assert!(device.compute_capability.0 >= 3 && device.uuid != [0; 16]);
        assert!(device.pci.contains(':'), "{}", device.pci);
        assert!(device.can_access(device).expect("of itself"));
        for other in &devices {
            device.can_access(other).expect("an answer");
        }
    }
    let error = driver.device(driver.devices()).expect_err("one too many");
    assert_eq!((error.call, error.name.as_str()), ("cuDeviceGet", "CUDA_ERROR_INVALID_DEVICE"));
    assert!(driver.device(u32::MAX).is_err());
}

#[test]
fn contexts_are_entered_and_left() {
    let Some(context) = context() else { return };
    // A thread of its own, on which nothing is current yet.
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let driver = context.driver();
            assert_eq!(driver.current_device(), Ok(None));
            assert_eq!(Context::current(), Ok(None));
            {
                let _entered = context.enter().expect("entered");
                assert_eq!(driver.current_device(), Ok(Some(0)));
                assert_eq!(Context::current().expect("an answer").as_ref(), Some(&context));
                let _again = Context::primary(0).expect("again").enter().map(drop);
                assert_eq!(driver.current_device(), Ok(Some(0)));
            }
            assert_eq!(driver.current_device(), Ok(None));
            let stream = context.create_stream().expect("a stream");
            assert_eq!(driver.current_device(), Ok(None), "left again");
            drop(stream);
        });
    });
    context.enable_peer(&context).expect("of itself");
    context.synchronize().expect("nothing to wait for");
    for ordinal in 1..context.driver().devices() {
        let other = Context::primary(ordinal).expect("another device");
        assert_ne!(other, context);
        match context.device().can_access(other.device()).expect("an answer") {
            true => (0..2).for_each(|_| context.enable_peer(&other).expect("enabled, also twice")),
            false => drop(context.enable_peer(&other).expect_err("it said that it cannot")),
        }
    }
}

#[test]
fn memory_of_the_device_holds_what_is_copied() {
    let Some(context) = context() else { return };
    let driver = context.driver();
    let memory = context.allocate(100_000).expect("memory");
    let wanted = pattern(100_000, 3);
    memory.copy_from_host(0, &wanted).expect("copied");
    assert_eq!(contents(&memory), wanted);
    memory.copy_from_host(99_990, &[9; 10]).expect("copied");
    memory.copy_from_host(0, &[]).expect("nothing");
    assert_eq!(contents(&memory)[99_980..], [&wanted[99_980..99_990], &[9; 10]].concat());
    memory.fill(0xa5).expect("filled");
    assert_eq!(contents(&memory), [0xa5; 100_000]);
    assert_eq!(driver.memory_kind(memory.address() as usize), Ok(MemoryKind::Device));
    let entered = context.enter().expect("entered");
    let (base, bytes) = driver.address_range(memory.address() + 77).expect("an allocation");
    assert!(base <= memory.address() && base + bytes >= memory.address() + 100_000);
    drop(entered);
    let local = 0u64;
    assert_eq!(driver.memory_kind((&raw const local).addr()), Ok(MemoryKind::Host));
    assert!(std::panic::catch_unwind(|| memory.copy_from_host(99_999, &[0; 2])).is_err());
    let error = context.allocate(1 << 50).expect_err("a petabyte");
    assert!(error.is_out_of_memory(), "{error}");
}

#[test]
fn pinned_and_registered_memory_is_seen_by_both() {
    let Some(context) = context() else { return };
    let pinned = context.allocate_host(10_000).expect("pinned memory");
    assert_eq!(read(pinned.span().read()), [0; 10_000]);
    let wanted = pattern(10_000, 7);
    let memory = context.allocate(10_000).expect("memory");
    memory.copy_from_host(0, &wanted).expect("copied");
    let stream = context.create_stream().expect("a stream");
    let entered = context.enter().expect("entered");
    stream.copy(pinned.device_span(), memory.span()).expect("queued");
    stream.synchronize().expect("done");
    assert_eq!(read(pinned.span().read()), wanted);
    pinned.span().slice(4, 4).copy_from(Span::of(&[1u8, 2, 3, 4]));
    stream.copy(memory.span().slice(100, 4), pinned.device_span().slice(4, 4)).expect("queued");
    stream.synchronize().expect("done");
    assert_eq!(contents(&memory)[100..104], [1, 2, 3, 4]);
    assert_eq!(context.driver().memory_kind(pinned.address()), Ok(MemoryKind::Pinned));

    let word = pinned.word(8);
    drop(pinned);
    word.store_release(5);
    stream.write_value(word.device_span(), u64::MAX - 3).expect("the word keeps its memory");
    stream.synchronize().expect("done");
    assert_eq!(word.load_acquire(), u64::MAX - 3);
    drop(entered);

    let mapping = Arc::new(Mapping::memfd(c"registered", 20_000).expect("memory"));
    let registered = context.register(&mapping).expect("registered");
    assert_eq!(registered.bytes(), 20_000);
    let again = context.register(&mapping).expect_err("once");
    assert_eq!(again.name, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED");
    let word = registered.word(4096);
    drop((registered, mapping));
    let entered = context.enter().expect("entered");
    stream.write_value(word.device_span(), 77).expect("the word keeps its memory");
    stream.synchronize().expect("done");
    assert_eq!(word.load_acquire(), 77);
    drop((entered, word));

    let mut own = vec![0u8; 8192];
    // SAFETY: the vector lives, and is not looked at, until the registration is dropped.
    let registered = unsafe { context.register_host(own.as_mut_ptr(), own.len()) }.expect("registered");
    memory.copy_from_host(0, &pattern(10_000, 9)).expect("copied");
    let entered = context.enter().expect("entered");
    stream.copy(registered.device_span(), memory.span().slice(0, 8192)).expect("queued");
    stream.synchronize().expect("done");
    drop((entered, registered));
    assert_eq!(own, pattern(10_000, 9)[..8192]);
    // SAFETY: nothing is registered.
    let error = unsafe { context.register_host(std::ptr::null_mut(), 8) }.expect_err("no memory");
    assert_eq!((error.code, error.call), (0, "cuMemHostRegister_v2"));
    assert!(std::panic::catch_unwind(|| word_of(&context, 4)).is_err(), "not aligned");
    assert!(std::panic::catch_unwind(|| word_of(&context, 64)).is_err(), "not inside");
}

fn word_of(context: &Context, offset: usize) {
    let _ = context.allocate_host(64).expect("pinned memory").word(offset);
}

#[test]
fn streams_wait_for_words_and_events() {
    let Some(context) = context() else { return };
    if !context.device().stream_memory_operations {
        eprintln!("SKIP: the device has no stream memory operations");
        return;
    }
    let pinned = context.allocate_host(64).expect("pinned memory");
    let memory = context.allocate(64).expect("memory");
    let (one, two) = (context.create_stream().expect("one"), context.create_stream().expect("two"));
    let (gate, done) = (pinned.word(0), pinned.word(8));
    let (event, never) =
        (context.create_event().expect("an event"), context.create_event().expect("an event"));
    let _entered = context.enter().expect("entered");
    assert_eq!(never.query(), Ok(true), "not recorded yet");
    memory.fill(0).expect("filled");
    one.wait_value(gate.device_span(), 3).expect("queued");
    one.fill(memory.span(), 0xee).expect("queued");
    one.record(&event).expect("queued");
    two.wait_event(&event).expect("queued");
    two.copy(pinned.device_span().slice(16, 8), memory.span().slice(0, 8)).expect("queued");
    two.write_value(done.device_span(), 1).expect("queued");
    gate.store_release(2);
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!((one.query(), two.query(), event.query()), (Ok(false), Ok(false), Ok(false)));
    assert_eq!(done.load_acquire(), 0);
    gate.store_release(3);
    event.synchronize().expect("over");
    soon("the word", || done.load_acquire() == 1);
    two.synchronize().expect("over");
    assert_eq!((one.query(), two.query(), event.query()), (Ok(true), Ok(true), Ok(true)));
    assert_eq!(read(pinned.span().slice(16, 8).read()), [0xee; 8]);

    // The difference counts, not the value.
    gate.store_release(1);
    one.wait_value(gate.device_span(), u64::MAX).expect("queued");
    soon("one is two beyond it", || one.query().expect("an answer"));
    // A word of the device, raised by another stream.
    memory.fill(0).expect("filled");
    one.wait_value(memory.span().slice(8, 8), 4).expect("queued");
    one.write_value(done.device_span(), 2).expect("queued");
    two.write_value(memory.span().slice(8, 8), 4).expect("queued");
    soon("the word", || done.load_acquire() == 2);
}

#[test]
fn copies_of_the_host_do_not_wait_for_the_programs_streams() {
    let Some(context) = context() else { return };
    if !context.device().stream_memory_operations {
        eprintln!("SKIP: the device has no stream memory operations");
        return;
    }
    let pinned = context.allocate_host(8).expect("pinned memory");
    let memory = context.allocate(4096).expect("memory");
    let default = context.stream_ref(RawStream::LEGACY);
    let entered = context.enter().expect("entered");
    // Every stream that is not made like ours waits for this one.
    default.wait_value(pinned.device_span(), 1).expect("queued");
    let (done, waits) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            memory.copy_from_host(0, &pattern(4096, 4)).expect("copied");
            assert_eq!(contents(&memory), pattern(4096, 4));
            memory.fill(6).expect("filled");
            done.send(()).expect("the other end waits");
        });
        let outcome = waits.recv_timeout(Duration::from_secs(10));
        assert_eq!(default.query(), Ok(false), "it still waits");
        pinned.word(0).store_release(1);
        outcome.expect("a copy waited for the default stream");
    });
    default.synchronize().expect("over");
    drop(entered);
    assert_eq!(contents(&memory), [6; 4096]);
}

#[test]
fn a_stream_says_whether_it_is_captured_and_over() {
    let Some(context) = context() else { return };
    let stream = context.create_stream().expect("a stream");
    let default = context.stream_ref(RawStream::LEGACY);
    let _entered = context.enter().expect("entered");
    for stream in [&*stream, &default] {
        assert_eq!(stream.capture_status(), Ok(CaptureStatus::None));
        assert_eq!(stream.query(), Ok(true));
    }
    assert!(default.raw().is_default() && !stream.raw().is_default());
}

#[test]
fn kernels_are_loaded_and_launched() {
    let Some(context) = context() else { return };
    let module = context.load(PTX.as_bytes()).expect("the module");
    let function = module.function(c"numbers").expect("the function");
    drop(module);
    let resident = function.blocks_per_multiprocessor(64, 0).expect("an answer");
    assert!((1..=64).contains(&resident), "{resident}");
    assert_eq!(function.context(), &context);
    let memory = context.allocate(4 * 256).expect("memory");
    let stream = context.create_stream().expect("a stream");
    let _entered = context.enter().expect("entered");
    for first in [1000u32, 7] {
        let address = memory.address();
        let parameters = [(&raw const address).cast::<c_void>(), (&raw const first).cast()];
        // SAFETY: the parameters are the kernel's, which stays inside the memory, and that is waited for.
        unsafe { stream.launch(&function, 4, 64, 0, &parameters) }.expect("queued");
        stream.synchronize().expect("over");
        let numbers: Vec<u8> = (first..first + 256).flat_map(u32::to_le_bytes).collect();
        assert_eq!(contents(&memory), numbers);
    }
    let (address, first) = (memory.address(), 0u32);
    let parameters = [(&raw const address).cast::<c_void>(), (&raw const first).cast()];
    // SAFETY: the parameters are the kernel's; it does not run.
    let outcome = unsafe { stream.launch(&function, 1, 1 << 20, 0, &parameters) };
    assert!(outcome.is_err(), "too many threads");
}

#[test]
fn images_that_are_none_are_refused() {
    let Some(context) = context() else { return };
    let error = context.load(b"\x7fELF\x02\x01").expect_err("cut short");
    assert_eq!(error.cause, CudaErrorCause::Unfit("the cubin is cut short"));
    let error = context.load(b".version 7.0 nonsense").expect_err("not PTX");
    println!("{error}");
    assert!(error.code != 0 && error.call == "cuModuleLoadDataEx");
    let module = context.load(PTX.as_bytes()).expect("the module");
    let error = module.function(c"letters").expect_err("no such function");
    assert_eq!((error.call, error.name.as_str()), ("cuModuleGetFunction", "CUDA_ERROR_NOT_FOUND"));
}

/// Runs a test of this file in a process of its own, with the variable that tells it what to open.
pub(crate) fn child<F: Fn()>(_: F, value: &str) {
    // The name of a test, as the harness has it, is its path without the program's own name.
    let (_, name) = std::any::type_name::<F>().split_once("::").expect("a path");
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.args(["--exact", name, "--ignored", "--nocapture"]).env("CONSORT_TEST_GIVEN", value);
    let output = command.stdin(Stdio::null()).output().expect("started");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success() && text.contains("1 passed"),
        "{text}\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

pub(crate) fn given() -> Option<String> {
    std::env::var("CONSORT_TEST_GIVEN").ok()
}

const SHARED_BYTES: usize = 5 << 20;

/// Reads a pattern, and writes another, in memory that another process made.
fn answer(context: &Context, memory: DeviceSpan) {
    let mut bytes = vec![0; SHARED_BYTES];
    context.copy_to_host(&mut bytes, memory.slice(0, SHARED_BYTES)).expect("readable");
    assert!(bytes == pattern(SHARED_BYTES, 1), "what the other process wrote");
    context.copy_from_host(memory.slice(0, SHARED_BYTES), &pattern(SHARED_BYTES, 2)).expect("writable");
}

#[test]
fn another_process_opens_the_memory_by_its_handle() {
    let Some(context) = context() else { return };
    let memory = context.allocate(SHARED_BYTES).expect("memory");
    memory.copy_from_host(0, &pattern(SHARED_BYTES, 1)).expect("copied");
    let handle = match memory.export() {
        Ok(handle) => handle,
        Err(error) if error.is_unsupported() => {
            eprintln!("SKIP: memory is not shared by handles here ({error})");
            return;
        }
        Err(error) => panic!("{error}"),
    };
    child(opens_a_handle, &handle.0.map(|byte| format!("{byte:02x}")).concat());
    assert!(contents(&memory) == pattern(SHARED_BYTES, 2), "what the other process wrote");
    let error = context.open_ipc(&handle).expect_err("in its own process");
    println!("{error}");
    assert!(IpcHandle::from_bytes(&handle.0[1..]).is_err());
    assert_eq!(IpcHandle::from_bytes(&handle.0), Ok(handle));
}

#[test]
#[ignore = "the other process of another_process_opens_the_memory_by_its_handle"]
fn opens_a_handle() {
    let Some(text) = given() else { return };
    let byte = |at: usize| u8::from_str_radix(&text[2 * at..2 * at + 2], 16).expect("a digit");
    let handle = IpcHandle(std::array::from_fn(byte));
    let context = context().expect("as in the other process");
    let memory = context.open_ipc(&handle).expect("opened");
    assert!(memory.bytes() >= SHARED_BYTES, "{}", memory.bytes());
    answer(&context, memory.span());
    let again = context.open_ipc(&handle).expect("opened twice");
    drop(memory);
    let mut first = [0];
    context.copy_to_host(&mut first, again.span().slice(0, 1)).expect("still there");
    assert_eq!(first, pattern(1, 2)[..]);
}

#[test]
fn another_process_maps_the_memory_by_its_descriptor() {
    let Some(context) = context() else { return };
    if !context.device().shareable_memory {
        eprintln!("SKIP: the device has no memory that is shared by descriptors");
        return;
    }
    let memory = context.allocate_shareable(SHARED_BYTES).expect("memory");
    assert_eq!(memory.bytes(), SHARED_BYTES);
    context.copy_from_host(memory.span(), &pattern(SHARED_BYTES, 1)).expect("copied");
    let descriptor = memory.export_fd().expect("a descriptor");
    // Twice in one process is two mappings of the same memory.
    let here = context.import_fd(descriptor.as_fd(), SHARED_BYTES).expect("mapped again");
    assert_ne!(here.address(), memory.address());
    here.grant(context.device()).expect("as before");
    let kept = nix::fcntl::fcntl(&descriptor, nix::fcntl::FcntlArg::F_SETFD(nix::fcntl::FdFlag::empty()));
    kept.expect("inherited");
    child(maps_a_descriptor, &descriptor.as_raw_fd().to_string());
    drop((memory, descriptor));
    let mut bytes = vec![0; SHARED_BYTES];
    context.copy_to_host(&mut bytes, here.span()).expect("it outlives the first mapping");
    assert!(bytes == pattern(SHARED_BYTES, 2), "what the other process wrote");
    let null = std::fs::File::open("/dev/null").expect("a descriptor of something else");
    println!("{}", context.import_fd(null.as_fd(), SHARED_BYTES).expect_err("no memory"));
}

#[test]
#[ignore = "the other process of another_process_maps_the_memory_by_its_descriptor"]
fn maps_a_descriptor() {
    let Some(text) = given() else { return };
    // SAFETY: inherited from the process that names it, and open until this one ends.
    let descriptor = unsafe { BorrowedFd::borrow_raw(text.parse().expect("a number")) };
    let context = context().expect("as in the other process");
    let memory = context.import_fd(descriptor, SHARED_BYTES).expect("mapped");
    answer(&context, memory.span());
}

#[test]
fn a_forked_child_leaves_the_driver_alone() {
    let Some(context) = context() else { return };
    let memory = context.allocate(4096).expect("memory");
    let pinned = context.allocate_host(4096).expect("pinned memory");
    let stream = context.create_stream().expect("a stream");
    memory.fill(5).expect("filled");
    // SAFETY: the child calls the driver's wrappers, which only look at a page, and ends at once.
    match unsafe { nix::unistd::fork() }.expect("forked") {
        nix::unistd::ForkResult::Child => {
            let forked = |outcome: consort_cuda::Result<()>| {
                outcome.is_err_and(|error| error.to_string().contains("was forked"))
            };
            let all = [
                forked(memory.fill(9)),
                forked(stream.synchronize()),
                forked(Context::primary(0).map(drop)),
                forked(context.enter().map(drop)),
            ];
            drop((memory, pinned, stream, context));
            // SAFETY: ends the child without what the test program would do at its end.
            unsafe { libc::_exit(if all == [true; 4] { 0 } else { 1 }) }
        }
        nix::unistd::ForkResult::Parent { child } => {
            let status = nix::sys::wait::waitpid(child, None).expect("waited for");
            assert_eq!(status, nix::sys::wait::WaitStatus::Exited(child, 0));
        }
    }
    assert_eq!(contents(&memory), [5; 4096]);
    let shown: &StreamRef = &stream;
    let _entered = shown.context().enter().expect("entered");
    shown.synchronize().expect("as before");
    assert_eq!(pinned.bytes(), 4096);
}
