//! What runs in the interpreter: kernels, their memory, their faults, who is resident with whom.

use std::ffi::{CStr, CString, c_void};
use std::sync::atomic::Ordering;
use std::time::Duration;

use cuda::api::module::{LaunchAttribute, LaunchConfig};

use crate::support::{
    allocate, alone, becomes, finish, function, heard, launch, module, next_line, part, pinned, read, say,
    spawn, start, stream, tell, word, write,
};

const TEXT: &str = include_str!("kernels/kernels.ptx");
const NON_BLOCKING: u32 = 1;
const NOT_READY: u32 = 600;
const ILLEGAL_ADDRESS: u32 = 700;

/// In a child, starts the driver and loads one kernel.
fn kernel(name: &CStr) -> u64 {
    start();
    function(module(TEXT), name)
}

fn bytes_of(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn words_of(bytes: &[u8]) -> Vec<u64> {
    bytes.chunks_exact(8).map(|chunk| u64::from_le_bytes(chunk.try_into().expect("8 bytes"))).collect()
}

fn launch_cooperative(function: u64, blocks: u32, stream: u64, parameters: &[u64]) -> u32 {
    let each: Vec<*const u64> = parameters.iter().map(std::ptr::from_ref).collect();
    cu!(cuLaunchCooperativeKernel(
        function => u64, blocks => u32, 1 => u32, 1 => u32, 32 => u32, 1 => u32, 1 => u32, 0 => u32,
        stream => u64, each.as_ptr() => *const *const u64
    ))
}

#[test]
fn kernels_compute() {
    alone(this_test!(), &[], || {
        let add = kernel(c"add");
        let floats = |scale: f32| (0..1000u16).flat_map(move |at| (f32::from(at) * scale).to_le_bytes());
        let (one, two) = (allocate(4000), allocate(4000));
        write(one, &floats(1.5).collect::<Vec<_>>());
        write(two, &floats(0.25).collect::<Vec<_>>());
        assert_eq!(launch(add, 3, 64, 0, &[one, two, 999]), 0);
        let mut expected: Vec<u8> = floats(1.75).collect();
        expected.truncate(3996);
        expected.extend((999.0f32 * 1.5).to_le_bytes());
        assert_eq!(read(one, 4000), expected);

        let module = module(TEXT);
        let (sum, mut counted, mut bytes) = (function(module, c"sum_counted"), 0u64, 0usize);
        ok!(cuModuleGetGlobal_v2(
            &mut counted => *mut u64, &mut bytes => *mut usize, module => u64, c"counted".as_ptr() => *const i8
        ));
        assert_eq!((bytes, words_of(&read(counted, 16))), (16, vec![40, 2]));
        write(counted, &bytes_of(&[50]));
        assert_eq!(launch(sum, 1, 1, 0, &[two, 100]), 0);
        assert_eq!(words_of(&read(two, 8)), [152]);
        let missing = cu!(cuModuleGetFunction(
            &mut 0u64 => *mut u64, module => u64, c"missing".as_ptr() => *const i8
        ));
        assert_eq!(missing, 500);
        ok!(cuModuleUnload(module => u64));
        assert_eq!(launch(sum, 1, 1, 0, &[two, 100]), 400);
    });
}

#[test]
fn dynamic_shared_memory_and_packed_parameters() {
    alone(this_test!(), &[], || {
        let reverse = kernel(c"reverse");
        let (from, to) = (allocate(1024), allocate(1024));
        let words: Vec<u64> = (0..128).collect();
        write(from, &bytes_of(&words));
        let packed = [to, from];
        let bytes = size_of_val(&packed);
        let extra = [1, packed.as_ptr() as usize, 2, (&raw const bytes) as usize, 0];
        ok!(cuLaunchKernel(
            reverse => u64, 2 => u32, 1 => u32, 1 => u32, 64 => u32, 1 => u32, 1 => u32, 512 => u32,
            0 => u64, std::ptr::null() => *const c_void, extra.as_ptr() => *const usize
        ));
        let mut expected = words.clone();
        expected.chunks_mut(64).for_each(<[u64]>::reverse);
        assert_eq!(words_of(&read(to, 1024)), expected);

        let mut most = 0;
        ok!(cuFuncGetAttribute(&mut most => *mut i32, 8 => u32, reverse => u64));
        assert_eq!(most, 48 << 10);
        let each = [&raw const packed[0], &raw const packed[1]];
        let large = || {
            cu!(cuLaunchKernel(
                reverse => u64, 2 => u32, 1 => u32, 1 => u32, 64 => u32, 1 => u32, 1 => u32, 60_000 => u32,
                0 => u64, each.as_ptr() => *const *const u64, std::ptr::null() => *const c_void
            ))
        };
        assert_eq!(large(), 1);
        ok!(cuFuncSetAttribute(reverse => u64, 8 => u32, 60_000 => i32));
        assert_eq!(large(), 0);
        ok!(cuCtxSynchronize());
    });
}

#[test]
fn a_kernel_and_the_host_wait_for_each_other() {
    alone(this_test!(), &[], || {
        let wait = kernel(c"wait_and_post");
        let (stream, words) = (stream(NON_BLOCKING), pinned(16));
        assert_eq!(launch(wait, 1, 32, stream, &[words, 3, words + 8, 9]), 0);
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(cu!(cuStreamQuery(stream => u64)), NOT_READY);
        word(words).store(3, Ordering::Release);
        ok!(cuStreamSynchronize(stream => u64));
        assert_eq!(word(words + 8).load(Ordering::Acquire), 9);
    });
}

#[test]
fn launches_leave_their_queue_when_they_start() {
    alone(this_test!(), &[("CONSORT_STANDIN_CONNECTIONS", "1")], || {
        let wait = kernel(c"wait_and_post");
        let (one, two, words) = (stream(NON_BLOCKING), stream(NON_BLOCKING), pinned(24));
        assert_eq!(launch(wait, 1, 1, one, &[words, 1, words + 8, 1]), 0);
        assert_eq!(launch(wait, 1, 1, two, &[words + 16, 0, words, 1]), 0);
        ok!(cuStreamSynchronize(one => u64));
        assert_eq!(word(words + 8).load(Ordering::Acquire), 1);
    });
}

/// A fault of `poke` at an address: what the context says afterwards.
fn fault_at(address: u64) -> u32 {
    let poke = kernel(c"poke");
    let memory = allocate(64);
    assert_eq!(launch(poke, 1, 1, 0, &[memory + 60, 5]), 0);
    ok!(cuCtxSynchronize());
    let at = if address == 0 { memory + 64 } else { address };
    assert_eq!(launch(poke, 1, 1, 0, &[at, 5]), 0);
    let code = cu!(cuCtxSynchronize());
    // It stays.
    let mut other = 0;
    assert_eq!(cu!(cuMemAlloc_v2(&mut other => *mut u64, 8 => usize)), code);
    assert_eq!(cu!(cuStreamCreate(&mut other => *mut u64, 0 => u32)), code);
    assert_eq!(launch(poke, 1, 1, 0, &[memory, 5]), code);
    assert_eq!(cu!(cuStreamQuery(0 => u64)), code);
    code
}

#[test]
fn faults_break_the_context_and_are_said() {
    let name = this_test!();
    let (_, said) = alone(name, &[], || assert_eq!(fault_at(0), ILLEGAL_ADDRESS));
    if part().is_empty() {
        assert!(said.contains("poke (launch 0), block (0,0,0), thread (0,0,0)"), "{said}");
        assert!(said.contains("out of bounds: byte 64 of"), "{said}");
    }
}

#[test]
fn memory_of_the_host_is_out_of_bounds() {
    alone(this_test!(), &[], || {
        let own = Box::new(0u64);
        assert_eq!(fault_at((&raw const *own) as u64), ILLEGAL_ADDRESS);
    });
}

#[test]
fn misaligned_accesses_are_faults() {
    alone(this_test!(), &[], || {
        start();
        let memory = allocate(8);
        assert_eq!(fault_at(memory + 2), 716);
    });
}

/// Context of device 1, with memory of it; device 0's context is current.
fn second_device() -> (u64, u64) {
    let (first, mut second, mut address) = (start(), 0u64, 0u64);
    ok!(cuDevicePrimaryCtxRetain(&mut second => *mut u64, 1 => i32));
    ok!(cuCtxSetCurrent(second => u64));
    ok!(cuMemAlloc_v2(&mut address => *mut u64, 8 => usize));
    ok!(cuMemsetD8_v2(address => u64, 0 => u8, 8 => usize));
    ok!(cuCtxSynchronize());
    ok!(cuCtxSetCurrent(first => u64));
    (second, address)
}

/// A kernel of device 0 writes memory of device 1; what is there then.
fn poke_peer() -> u64 {
    let (second, address) = second_device();
    ok!(cuCtxEnablePeerAccess(second => u64, 0 => u32));
    let poke = kernel(c"poke");
    assert_eq!(launch(poke, 1, 1, 0, &[address, 77]), 0);
    ok!(cuCtxSynchronize());
    ok!(cuCtxSetCurrent(second => u64));
    words_of(&read(address, 8))[0]
}

#[test]
fn peers_are_reached_when_enabled() {
    let name = this_test!();
    alone(name, &[("CONSORT_STANDIN_DEVICES", "2")], || assert_eq!(poke_peer(), 77));
}

#[test]
fn peers_are_not_reached_before() {
    alone(this_test!(), &[("CONSORT_STANDIN_DEVICES", "2")], || {
        let (_, address) = second_device();
        assert_eq!(fault_at(address), ILLEGAL_ADDRESS);
    });
}

#[test]
fn liars_are_not_reached() {
    let variables = [("CONSORT_STANDIN_DEVICES", "2"), ("CONSORT_STANDIN_PEERS", "lie")];
    alone(this_test!(), &variables, || assert_eq!(poke_peer(), 0));
}

#[test]
fn blocks_that_meet_must_be_resident_together() {
    alone(this_test!(), &[("CONSORT_STANDIN_BLOCKS_MAX", "8")], || {
        let meet = kernel(c"meet");
        let mut per_multiprocessor = 0;
        ok!(cuOccupancyMaxActiveBlocksPerMultiprocessor(
            &mut per_multiprocessor => *mut i32, meet => u64, 32 => i32, 0 => usize
        ));
        let mut multiprocessors = 0;
        ok!(cuDeviceGetAttribute(&mut multiprocessors => *mut i32, 16 => i32, 0 => i32));
        assert_eq!(per_multiprocessor * multiprocessors, 8);
        let words = pinned(32);
        assert_eq!(launch_cooperative(meet, 9, 0, &[words, 9]), 720);
        assert_eq!(launch_cooperative(meet, 8, 0, &[words, 8]), 0);
        ok!(cuCtxSynchronize());
        // More than that end one after the other if they do not wait for each other...
        let count = function(module(TEXT), c"count_blocks");
        assert_eq!(launch(count, 100, 32, 0, &[words + 8, 0]), 0);
        ok!(cuCtxSynchronize());
        assert_eq!(word(words + 8).load(Ordering::Acquire), 100);
        // ... and hang if they do.
        let stream = stream(NON_BLOCKING);
        assert_eq!(launch(meet, 9, 32, stream, &[words + 16, 9]), 0);
        becomes("as many as fit are there", || word(words + 16).load(Ordering::Acquire) == 8);
        std::thread::sleep(Duration::from_millis(50));
        assert_eq!(cu!(cuStreamQuery(stream => u64)), NOT_READY);
        // What else is launched does not run either, until there is room.
        assert_eq!(launch(count, 1, 1, 0, &[words + 24, 0]), 0);
        std::thread::sleep(Duration::from_millis(50));
        assert_eq!(word(words + 24).load(Ordering::Acquire), 0);
        word(words + 16).store(9, Ordering::Release);
        ok!(cuCtxSynchronize());
        assert_eq!(word(words + 24).load(Ordering::Acquire), 1);
    });
}

#[test]
fn launches_share_the_room_of_a_device() {
    alone(this_test!(), &[("CONSORT_STANDIN_BLOCKS_MAX", "8")], || {
        let meet = kernel(c"meet");
        let words = pinned(16);
        for (at, blocks) in [(0, 5), (8, 3)] {
            assert_eq!(launch(meet, 5, 32, stream(NON_BLOCKING), &[words + at, 6]), 0);
            becomes("what fits is there", || word(words + at).load(Ordering::Acquire) == blocks);
        }
        std::thread::sleep(Duration::from_millis(50));
        assert_eq!(word(words + 8).load(Ordering::Acquire), 3);
        word(words).store(6, Ordering::Release);
        becomes("there is room", || word(words + 8).load(Ordering::Acquire) == 5);
        word(words + 8).store(6, Ordering::Release);
        ok!(cuCtxSynchronize());
    });
}

#[test]
fn launch_attributes_are_looked_at() {
    alone(this_test!(), &[("CONSORT_STANDIN_BLOCKS_MAX", "2")], || {
        let (count, words) = (kernel(c"count_blocks"), pinned(8));
        let parameters = [words, 0];
        let each = parameters.each_ref().map(std::ptr::from_ref);
        let mut attribute = LaunchAttribute { id: 2, padding: 0, value: [0; 16] };
        for (cooperative, result) in [(0, 0), (1, 720)] {
            attribute.value[0] = cooperative;
            // SAFETY: a pointer to const in the library's layout.
            let attributes = unsafe {
                std::mem::transmute::<*const LaunchAttribute, cuda::In<LaunchAttribute>>(&attribute)
            };
            let config = LaunchConfig {
                grid: [3, 1, 1],
                block: [32, 1, 1],
                shared_bytes: 0,
                stream: 0,
                attributes,
                count: 1,
            };
            let launched = cu!(cuLaunchKernelEx(
                &config => *const LaunchConfig, count => u64, each.as_ptr() => *const *const u64,
                std::ptr::null() => *const c_void
            ));
            assert_eq!(launched, result);
        }
        ok!(cuCtxSynchronize());
        assert_eq!(word(words).load(Ordering::Acquire), 3);
    });
}

#[test]
fn only_texts_are_loaded() {
    alone(this_test!(), &[], || {
        start();
        let load = |image: &[u8]| {
            let mut log = [0x7fu8; 200];
            let options = [5u32, 6];
            let values = [log.as_mut_ptr() as usize, log.len()];
            let result = cu!(cuModuleLoadDataEx(
                &mut 0u64 => *mut u64, image.as_ptr() => *const u8, 2 => u32,
                options.as_ptr() => *const u32, values.as_ptr() => *const usize
            ));
            let words = CStr::from_bytes_until_nul(&log).map_or_else(|_| CString::default(), CStr::to_owned);
            (result, words.into_string().expect("words"))
        };
        assert_eq!(load(&[b"\x7fELF\x02\x01", &[0; 58][..]].concat()).0, 209);
        assert_eq!(load(b"\x7fELF\x01\x01").0, 209);
        assert_eq!(load(b"\x50\xed\x55\xba\x01").0, 209);
        let wrong = TEXT.replace("add.rn.f32", "add.frobnicate.f32") + "\0";
        let (result, words) = load(wrong.as_bytes());
        assert_eq!(result, 218);
        assert!(words.contains("frobnicate"), "{words}");
    });
}

#[test]
fn a_context_takes_its_spinning_kernels_along() {
    alone(this_test!(), &[], || {
        start();
        let mut own = 0u64;
        ok!(cuCtxCreate_v2(&mut own => *mut u64, 0 => u32, 0 => i32));
        let (wait, words) = (function(module(TEXT), c"wait_and_post"), pinned(16));
        let threads = || std::fs::read_dir("/proc/self/task").expect("procfs").count();
        let before = threads();
        assert_eq!(launch(wait, 1, 1, 0, &[words, 1, words, 1]), 0);
        becomes("it runs", || threads() > before + 1);
        ok!(cuCtxDestroy_v2(own => u64));
        becomes("it ends", || threads() <= before);
    });
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Handle([u8; 64]);

#[test]
fn processes_on_one_device_take_turns() {
    const ROUNDS: u64 = 3;
    let name = this_test!();
    let spin = |mine: u64, theirs: u64, first: u64| {
        let kernel = function(module(TEXT), c"ping_pong");
        assert_eq!(launch(kernel, 1, 1, 0, &[mine, theirs, first, ROUNDS]), 0);
        ok!(cuCtxSynchronize());
    };
    match part().as_str() {
        "" => {
            let (mut one, mut two) = (spawn(name, "one", &[]), spawn(name, "two", &[]));
            let handle = heard(&mut one);
            tell(&mut two, &handle);
            assert_eq!(heard(&mut two), "open");
            tell(&mut one, "go");
            tell(&mut two, "go");
            finish(one);
            finish(two);
        }
        "one" => {
            start();
            let memory = allocate(256);
            write(memory, &[0; 256]);
            let mut handle = Handle([0; 64]);
            ok!(cuIpcGetMemHandle(&mut handle => *mut Handle, memory => u64));
            say(&handle.0.map(|byte| format!("{byte:02x}")).concat());
            next_line();
            spin(memory, memory + 128, 0);
            assert_eq!(words_of(&read(memory + 128, 8)), [2 * ROUNDS - 1]);
            becomes("the other's last", || words_of(&read(memory, 8)) == [2 * ROUNDS]);
        }
        _ => {
            start();
            let text = next_line();
            let byte = |at: usize| u8::from_str_radix(&text[2 * at..2 * at + 2], 16).expect("hex");
            let (handle, mut memory) = (Handle(std::array::from_fn(byte)), 0);
            ok!(cuIpcOpenMemHandle_v2(&mut memory => *mut u64, handle => Handle, 1 => u32));
            say("open");
            next_line();
            spin(memory + 128, memory, 1);
        }
    }
}
