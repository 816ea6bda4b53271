//! Two processes: memory handed over by handle and by descriptor; and peers, honest and lying.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use cuda::api::virtual_memory::{Access, Location, Properties};

use crate::support::{
    allocate, alone, finish, heard, next_line, part, pinned, read, say, spawn, start, tell, write,
};

const PAGE: usize = 2 << 20;
const LAZY: u32 = 1;
const PEERLESS: u32 = 217;

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn handle_of(text: &str) -> [u8; 64] {
    let digit = |at: usize| u8::from_str_radix(&text[2 * at..2 * at + 2], 16).expect("hex");
    std::array::from_fn(digit)
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Handle([u8; 64]);

fn export(address: u64) -> Handle {
    let mut handle = Handle([0; 64]);
    ok!(cuIpcGetMemHandle(&mut handle => *mut Handle, address => u64));
    handle
}

fn open(handle: Handle) -> Result<u64, u32> {
    let mut address = 0;
    match cu!(cuIpcOpenMemHandle_v2(&mut address => *mut u64, handle => Handle, LAZY => u32)) {
        0 => Ok(address),
        code => Err(code),
    }
}

#[test]
fn a_handle_opens_the_same_memory_in_another_process() {
    let name = this_test!();
    match part().as_str() {
        "" => {
            let (mut owner, mut peer) = (spawn(name, "owner", &[]), spawn(name, "peer", &[]));
            let handle = heard(&mut owner);
            tell(&mut peer, &handle);
            assert_eq!(heard(&mut peer), "written");
            tell(&mut owner, "look");
            assert_eq!(heard(&mut owner), "seen");
            tell(&mut peer, "again");
            finish(peer);
            finish(owner);
        }
        "owner" => {
            start();
            let address = allocate(10_000);
            write(address, &[7; 10_000]);
            let handle = export(address + 100);
            assert_eq!(open(handle), Err(201), "opened where it was exported");
            let pinned = pinned(64);
            let mut none = Handle([0; 64]);
            assert_eq!(cu!(cuIpcGetMemHandle(&mut none => *mut Handle, pinned => u64)), 1);
            say(&hex(&handle.0));
            next_line();
            assert_eq!(read(address + 9_996, 4), [1, 2, 3, 4]);
            ok!(cuMemFree_v2(address => u64));
            // Behind the same descriptor's number, and as long.
            allocate(10_000);
            say("seen");
        }
        _ => {
            start();
            let handle = Handle(handle_of(&next_line()));
            let address = open(handle).expect("a handle");
            assert_eq!(open(handle), Ok(address));
            ok!(cuIpcCloseMemHandle(address => u64));
            assert_eq!(read(address, 3), [7; 3]);
            write(address + 9_996, &[1, 2, 3, 4]);
            say("written");
            next_line();
            ok!(cuIpcCloseMemHandle(address => u64));
            assert_eq!(cu!(cuIpcCloseMemHandle(address => u64)), 1);
            assert_eq!(open(handle), Err(205), "other memory than was exported");
            assert_eq!(open(Handle([9; 64])), Err(400));
        }
    }
}

fn properties(device: i32) -> Properties {
    Properties {
        kind: 1,
        handle_types: 1,
        location: Location { kind: 1, id: device },
        win32: 0,
        flags: [0; 8],
    }
}

fn set_access(address: u64, bytes: usize, device: i32, flags: u32) -> u32 {
    let access = Access { location: Location { kind: 1, id: device }, flags };
    cu!(cuMemSetAccess(address => u64, bytes => usize, &access => *const Access, 1 => usize))
}

fn reserve(bytes: usize) -> u64 {
    let mut address = 0;
    ok!(cuMemAddressReserve(&mut address => *mut u64, bytes => usize, 0 => usize, 0 => u64, 0 => u64));
    address
}

fn map(address: u64, allocation: u64) -> u32 {
    cu!(cuMemMap(address => u64, PAGE => usize, 0 => usize, allocation => u64, 0 => u64))
}

fn create() -> u64 {
    let mut allocation = 0;
    ok!(cuMemCreate(&mut allocation => *mut u64, PAGE => usize, &properties(0) => *const Properties, 0 => u64));
    allocation
}

#[test]
fn virtual_memory_is_reserved_mapped_and_opened() {
    alone(this_test!(), &[], || {
        start();
        let mut granularity = 0;
        ok!(cuMemGetAllocationGranularity(
            &mut granularity => *mut usize, &properties(0) => *const Properties, 0 => u32
        ));
        assert_eq!(granularity, PAGE);
        let (one, two, place) = (create(), create(), reserve(2 * PAGE));
        let small = cu!(cuMemCreate(
            &mut 0u64 => *mut u64, 4096 => usize, &properties(0) => *const Properties, 0 => u64
        ));
        assert_eq!(small, 1);
        assert_eq!(map(place, one), 0);
        assert_eq!(map(place, two), 208);
        assert_eq!(map(place + PAGE as u64, two), 0);
        let copied = cu!(cuMemcpyHtoD_v2(place => u64, [1u8].as_ptr() => *const u8, 1 => usize));
        assert_eq!(copied, 1, "no access is granted yet");
        assert_eq!(set_access(place, 2 * PAGE, 0, 3), 0);
        // Over the seam.
        let pattern: Vec<u8> = (0..1000u32).map(|at| at as u8).collect();
        write(place + PAGE as u64 - 500, &pattern);
        assert_eq!(read(place + PAGE as u64 - 500, 1000), pattern);
        assert_eq!(set_access(place, PAGE, 0, 1), 0);
        let copied = cu!(cuMemcpyHtoD_v2(place => u64, [1u8].as_ptr() => *const u8, 1 => usize));
        assert_eq!(copied, 1, "it may only be read");
        let mut again = 0;
        ok!(cuMemRetainAllocationHandle(&mut again => *mut u64, place + 9 => u64));
        assert_eq!(again, one);
        for _ in 0..2 {
            ok!(cuMemRelease(one => u64));
        }
        assert_eq!(cu!(cuMemRelease(one => u64)), 1);
        assert_eq!(read(place, 1).len(), 1);
        assert_eq!(cu!(cuMemAddressFree(place => u64, 2 * PAGE => usize)), 1, "it is mapped");
        ok!(cuMemUnmap(place => u64, 2 * PAGE => usize));
        assert_eq!(map(place, one), 1, "it is gone");
        assert_eq!(map(place, two), 0);
        ok!(cuMemUnmap(place => u64, PAGE => usize));
        ok!(cuMemRelease(two => u64));
        ok!(cuMemAddressFree(place => u64, 2 * PAGE => usize));
        let (mut free, mut total) = (0usize, 0usize);
        ok!(cuMemGetInfo_v2(&mut free => *mut usize, &mut total => *mut usize));
        assert_eq!(free, total);
    });
}

#[test]
fn a_descriptor_is_the_same_memory() {
    let name = this_test!();
    let mapped = |allocation| {
        let place = reserve(PAGE);
        assert_eq!(map(place, allocation), 0);
        assert_eq!(set_access(place, PAGE, 0, 3), 0);
        place
    };
    let import = |descriptor: &OwnedFd| {
        let (mut allocation, number) = (0, descriptor.as_raw_fd() as usize);
        match cu!(cuMemImportFromShareableHandle(&mut allocation => *mut u64, number => usize, 1 => u32)) {
            0 => Ok(allocation),
            code => Err(code),
        }
    };
    match part().as_str() {
        "" => {
            let (mut owner, mut peer) = (spawn(name, "owner", &[]), spawn(name, "peer", &[]));
            let descriptor = heard(&mut owner);
            tell(&mut peer, &descriptor);
            assert_eq!(heard(&mut peer), "written");
            tell(&mut owner, "look");
            finish(peer);
            finish(owner);
        }
        "owner" => {
            start();
            let allocation = create();
            let place = mapped(allocation);
            write(place, &[3; 8]);
            let mut descriptor = -1;
            ok!(cuMemExportToShareableHandle(
                &mut descriptor => *mut i32, allocation => u64, 1 => u32, 0 => u64
            ));
            say(&format!("/proc/{}/fd/{descriptor}", std::process::id()));
            next_line();
            assert_eq!(read(place + 100, 2), [5, 6]);
        }
        _ => {
            start();
            // A program sends it over a socket; here the way through procfs is shorter.
            let file =
                std::fs::File::options().read(true).write(true).open(next_line()).expect("a descriptor");
            let allocation = import(&OwnedFd::from(file)).expect("an allocation");
            let place = mapped(allocation);
            assert_eq!(read(place, 8), [3; 8]);
            write(place + 100, &[5, 6]);
            say("written");
            let (reader, _writer) = std::io::pipe().expect("a pipe");
            assert_eq!(import(&OwnedFd::from(reader)), Err(1));
        }
    }
}

/// Two devices' contexts, and memory of the second; the first is current.
fn two_devices() -> (u64, u64) {
    let first = start();
    let (mut second, mut address) = (0u64, 0u64);
    ok!(cuDevicePrimaryCtxRetain(&mut second => *mut u64, 1 => i32));
    ok!(cuCtxPushCurrent_v2(second => u64));
    ok!(cuMemAlloc_v2(&mut address => *mut u64, 64 => usize));
    ok!(cuMemsetD8_v2(address => u64, 1 => u8, 64 => usize));
    ok!(cuCtxSynchronize());
    ok!(cuCtxSetCurrent(first => u64));
    (second, address)
}

fn can() -> i32 {
    let mut can = -1;
    ok!(cuDeviceCanAccessPeer(&mut can => *mut i32, 0 => i32, 1 => i32));
    can
}

#[test]
fn without_peers_nothing_is_reached() {
    let name = this_test!();
    let variables = [("CONSORT_STANDIN_DEVICES", "2"), ("CONSORT_STANDIN_PEERS", "none")];
    match part().as_str() {
        "" => {
            let (mut owner, mut peer) = (spawn(name, "owner", &variables), spawn(name, "peer", &variables));
            let handle = heard(&mut owner);
            tell(&mut peer, &handle);
            finish(peer);
            tell(&mut owner, "end");
            finish(owner);
        }
        "owner" => {
            let (second, address) = two_devices();
            assert_eq!(can(), 0);
            assert_eq!(cu!(cuCtxEnablePeerAccess(second => u64, 0 => u32)), PEERLESS);
            // A copy goes through the host.
            let own = allocate(64);
            ok!(cuMemcpyDtoD_v2(own => u64, address => u64, 64 => usize));
            assert_eq!(read(own, 2), [1, 1]);
            say(&hex(&export(address).0));
            next_line();
        }
        _ => {
            start();
            assert_eq!(open(Handle(handle_of(&next_line()))), Err(PEERLESS));
        }
    }
}

#[test]
fn honest_peers_see_what_is_written() {
    let variables = [("CONSORT_STANDIN_DEVICES", "2")];
    alone(this_test!(), &variables, || {
        let (second, address) = two_devices();
        assert_eq!(can(), 1);
        ok!(cuCtxEnablePeerAccess(second => u64, 0 => u32));
        assert_eq!(cu!(cuCtxEnablePeerAccess(second => u64, 0 => u32)), 704);
        let own = allocate(64);
        write(own, &[9; 64]);
        ok!(cuMemcpyDtoD_v2(address => u64, own => u64, 64 => usize));
        ok!(cuCtxSetCurrent(second => u64));
        assert_eq!(read(address, 2), [9, 9]);
        ok!(cuCtxSetCurrent(start() => u64));
        ok!(cuCtxDisablePeerAccess(second => u64));
        assert_eq!(cu!(cuCtxDisablePeerAccess(second => u64)), 705);
    });
}

#[test]
fn a_liar_shows_a_copy() {
    let variables = [("CONSORT_STANDIN_DEVICES", "2"), ("CONSORT_STANDIN_PEERS", "lie")];
    alone(this_test!(), &variables, || {
        let (second, address) = two_devices();
        assert_eq!(can(), 1);
        ok!(cuCtxEnablePeerAccess(second => u64, 0 => u32));
        let own = allocate(64);
        write(own, &[9; 64]);
        ok!(cuMemcpyDtoD_v2(address => u64, own => u64, 64 => usize));
        assert_eq!(read(address, 2), [9, 9], "its own copy");
        ok!(cuCtxSetCurrent(second => u64));
        assert_eq!(read(address, 2), [1, 1], "what is really there");
    });
}

#[test]
fn a_descriptor_of_a_file_closes_with_its_memory() {
    alone(this_test!(), &[], || {
        start();
        let allocation = create();
        let mut descriptor = -1;
        ok!(cuMemExportToShareableHandle(&mut descriptor => *mut i32, allocation => u64, 1 => u32, 0 => u64));
        // SAFETY: a new descriptor, which is the caller's.
        drop(unsafe { OwnedFd::from_raw_fd(descriptor) });
        let files = || std::fs::read_dir("/proc/self/fd").expect("procfs").count();
        let before = files();
        ok!(cuMemRelease(allocation => u64));
        assert_eq!(files(), before - 1);
        let memory = allocate(8);
        assert_eq!(files(), before);
        ok!(cuMemFree_v2(memory => u64));
        assert_eq!(files(), before - 1);
    });
}
