//! Memory of the stand-in's devices, by each way of the stand-in's adapters.

use std::ffi::{CString, c_int, c_uint, c_void};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::sync::OnceLock;

use consort_cuda::{Context, DeviceMemory, DeviceSpan, DirectAccess};
use consort_testing::Random;
use consort_testing::machines::Tree;

use super::super::library::Functions;
use super::super::standin::{Adapter, AdapterPort, join, refuse_buffers, refuse_loops, set};
use super::*;
use crate::DeviceLevel;
use crate::device::{DeviceDestination, DeviceTarget, DeviceWay};

/// The PCI address of the stand-in's first device.
const GPU: &str = "0000:10:00.0";
/// More than both halves of pinned memory, and no whole pages.
const BYTES: usize = (3 << 20) + 4321;

/// The first device of the stand-in's driver, which cargo has built beside this test. A library that is loaded already is the one that the
/// loader finds by that name.
fn gpu() -> Context {
    static LOADED: OnceLock<()> = OnceLock::new();
    LOADED.get_or_init(|| {
        let program = std::env::current_exe().expect("this program");
        let library = program.with_file_name("libcuda.so");
        let name = CString::new(library.as_os_str().as_bytes()).expect("a name");
        // SAFETY: the stand-in, which runs nothing when it is loaded.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        assert!(!handle.is_null(), "{} is not there", library.display());
    });
    Context::primary(0).expect("the stand-in's device")
}

/// What the kernel module does: finds memory of a device by its addresses.
fn find(start: u64, bytes: usize) -> Option<OwnedFd> {
    // SAFETY: pages that are registered, which their owner keeps.
    gpu().dma_buf(unsafe { DeviceSpan::from_raw(start, bytes) }).ok()
}

/// A machine, and what the line says of it.
struct Machine {
    name: &'static str,
    functions: fn() -> Functions,
    access: fn(DirectAccess) -> DirectAccess,
    refuses_buffers: bool,
    has_module: bool,
    maps: bool,
    loops: bool,
    /// What is set, and whether the machine says how far away the GPU is: below another switch than the adapter.
    memory: MemoryUse,
    is_placed: bool,
    /// How it is written from, and into.
    ways: [DeviceWay; 2],
    says: &'static [&'static str],
}

const UNSET: MemoryUse = MemoryUse {
    relaxed_ordering: crate::RelaxedOrdering::WherePossible,
    dma_buffers: true,
    device_level: None,
    reads_devices: true,
};

const ALL: Machine = Machine {
    name: "all",
    functions: standin::functions,
    access: |of| of,
    refuses_buffers: false,
    has_module: true,
    maps: true,
    loops: true,
    memory: UNSET,
    is_placed: false,
    ways: [DeviceWay::DmaBuf; 2],
    says: &["port 1 of mlx5_0", "GPU 0000:10:00.0", "by DMA buffers, with a flush"],
};

const MACHINES: [Machine; 15] = [
    ALL,
    Machine {
        name: "ordered",
        access: |of| DirectAccess { is_ordered: true, ..of },
        says: &["by DMA buffers, without a flush"],
        ..ALL
    },
    Machine {
        name: "old-driver",
        access: |of| DirectAccess { dma_buf: false, ..of },
        ways: [DeviceWay::PeerMemory; 2],
        says: &["by peer memory, with a flush", "CUDA's driver exports none"],
        ..ALL
    },
    Machine {
        name: "old-library",
        functions: standin::older,
        ways: [DeviceWay::PeerMemory; 2],
        says: &["by peer memory", "no ibv_reg_dmabuf_mr"],
        ..ALL
    },
    Machine {
        name: "refusing-adapter",
        refuses_buffers: true,
        ways: [DeviceWay::PeerMemory; 2],
        says: &["by peer memory", "the adapter's driver took none (Operation not supported"],
        ..ALL
    },
    Machine {
        name: "no-module",
        refuses_buffers: true,
        has_module: false,
        ways: [DeviceWay::Staged; 2],
        says: &[
            "through pinned memory of the host",
            "the adapter's driver took none",
            "neither nvidia_peermem nor nv_peer_mem is loaded",
        ],
        ..ALL
    },
    Machine {
        name: "refused-by-both",
        access: |of| DirectAccess { dma_buf: false, ..of },
        maps: false,
        ways: [DeviceWay::Staged; 2],
        says: &[
            "through pinned memory",
            "exports none",
            "took none although nvidia_peermem is loaded (Bad address",
        ],
        ..ALL
    },
    Machine {
        name: "no-flush",
        access: |of| DirectAccess { flushes: false, ..of },
        says: &["by DMA buffers, with a flush by a read"],
        ..ALL
    },
    Machine {
        name: "no-flush-at-all",
        access: |of| DirectAccess { flushes: false, ..of },
        loops: false,
        ways: [DeviceWay::DmaBuf, DeviceWay::Staged],
        says: &["by DMA buffers, outwards alone", "nothing is written to it directly", "Invalid argument"],
        ..ALL
    },
    Machine {
        name: "buffers-forbidden",
        memory: MemoryUse { dma_buffers: false, ..UNSET },
        ways: [DeviceWay::PeerMemory; 2],
        says: &["by peer memory", "no DMA buffers, as NCCL_DMABUF_ENABLE is 0"],
        ..ALL
    },
    Machine {
        name: "reads-forbidden",
        memory: MemoryUse { reads_devices: false, ..UNSET },
        ways: [DeviceWay::Staged, DeviceWay::DmaBuf],
        says: &[
            "by DMA buffers",
            "what is sent goes through pinned memory of the host, as NCCL_NET_GDR_READ is 0",
        ],
        ..ALL
    },
    Machine {
        name: "too-far",
        memory: MemoryUse { device_level: Some(DeviceLevel::Pix), ..UNSET },
        is_placed: true,
        ways: [DeviceWay::Staged; 2],
        says: &["through pinned memory", "NCCL_NET_GDR_LEVEL is PIX and the way between them is PXB"],
        ..ALL
    },
    Machine {
        name: "near-enough",
        memory: MemoryUse { device_level: Some(DeviceLevel::Pxb), ..UNSET },
        is_placed: true,
        ..ALL
    },
    Machine { name: "anywhere", memory: MemoryUse { device_level: Some(DeviceLevel::Pix), ..UNSET }, ..ALL },
    Machine {
        name: "nowhere",
        memory: MemoryUse { device_level: Some(DeviceLevel::Loc), ..UNSET },
        ways: [DeviceWay::Staged; 2],
        says: &["through pinned memory", "NCCL_NET_GDR_LEVEL is LOC and allows no way at all"],
        ..ALL
    },
];

/// A transport on a machine.
fn on(machine: &Machine) -> Verbs {
    set(vec![Adapter::new("mlx5_0", vec![AdapterPort::ethernet([10, 0, 0, 1])])]);
    let mut tree = Tree::default();
    if machine.has_module {
        tree.put(
            "proc/modules",
            "nvidia_peermem 16384 0 - Live 0x0000000000000000\nib_core 1 0 - Live 0x0\n",
        );
    }
    if machine.is_placed {
        // One switch of two levels is above both.
        let root = "sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0";
        let places = [
            (
                "sys/bus/pci/devices/0000:10:00.0",
                format!("{root}/0000:02:00.0/0000:03:00.0/0000:04:00.0/{GPU}"),
            ),
            ("sys/class/infiniband/mlx5_0/device", format!("{root}/0000:02:01.0/0000:11:00.0")),
        ];
        for (name, place) in places {
            tree.put(format!("{place}/vendor"), "0x10de");
            let up = "../".repeat(name.split('/').count() - 1);
            tree.link(name, format!("{up}{place}"));
        }
    }
    let written =
        ports::Written::new(&format!("gpu-{}-{:?}", machine.name, std::thread::current().id()), &tree);
    let options = &RdmaOptions { memory: machine.memory, ..RdmaOptions::default() };
    let near = &Near { device: machine.is_placed.then(|| GPU.to_owned()), ..Near::default() };
    let functions = (machine.functions)();
    let sysfs = &written.sysfs(None);
    let ports = Search { functions, sysfs, options, near }.ports().expect("ports");
    let verbs = Verbs::over(&ports, 1, 1, sysfs.peer_memory_module()).expect("a transport");
    let context = verbs.shared.domains[0].port.context;
    if machine.refuses_buffers {
        refuse_buffers(context, libc::EOPNOTSUPP);
    }
    if !machine.loops {
        refuse_loops(context);
    }
    if machine.maps {
        join(context, find);
    }
    let says = gpu().direct_access().expect("a driver");
    assert!(says.dma_buf && says.peer_memory && says.flushes && !says.is_ordered, "{says:?}");
    verbs.shared.devices.pretend(&gpu(), (machine.access)(says));
    verbs
}

fn pair(near: &Verbs, far: &Verbs) -> [Box<dyn Connection>; 2] {
    let endpoints = [near, far].map(|of| of.endpoint(Layout::new(BYTES)).expect("an endpoint"));
    meet(endpoints, Duration::ZERO)
}

/// Writes from a device, waits for the arrival and until the source is free.
fn write(
    [near, far]: &mut [Box<dyn Connection>; 2],
    from: DeviceSpan,
    to: (DeviceDestination<'_>, usize),
    value: u64,
) {
    let (mut done, gpu) = (0, gpu());
    let number = crate::conformance::eventually("there is room", || {
        let link = near.device_link().expect("it carries memory of devices");
        let poll = link.write_device((&gpu, from), to, (value, 0), &mut done).expect("a write");
        assert_eq!(near.progress().expect("progress"), PeerState::Open);
        assert_eq!(far.progress().expect("progress"), PeerState::Open);
        match poll {
            Poll::Ready(number) => Some(number),
            Poll::Pending => None,
        }
    });
    assert_eq!(done, from.len());
    crate::conformance::eventually("it arrives, and the source is free", || {
        let _ = (near.progress().expect("progress"), far.progress().expect("progress"));
        (near.is_free(number) && far.counter(CounterKind::Ready).value() == value).then_some(())
    });
}

fn filled(bytes: &[u8]) -> DeviceMemory {
    let memory = gpu().allocate(bytes.len()).expect("memory of the device");
    memory.copy_from_host(0, bytes).expect("a copy");
    memory
}

/// Whether the driver was asked to have its copies of an allocation end before they return.
fn are_copies_synchronous(address: u64) -> bool {
    type Ask = unsafe extern "C" fn(*mut c_void, c_uint, u64) -> c_int;
    const SYNC_MEMOPS: c_uint = 6;
    let program = std::env::current_exe().expect("this program");
    let name = CString::new(program.with_file_name("libcuda.so").as_os_str().as_bytes()).expect("a name");
    // SAFETY: the library that is loaded already.
    let ask = unsafe {
        libc::dlsym(libc::dlopen(name.as_ptr(), libc::RTLD_NOW), c"cuPointerGetAttribute".as_ptr())
    };
    assert!(!ask.is_null());
    // SAFETY: the driver's interface has a function of this type under that name.
    let ask = unsafe { std::mem::transmute::<*mut c_void, Ask>(ask) };
    let mut flag = 0u64;
    // SAFETY: the place is as wide as any attribute.
    assert_eq!(unsafe { ask((&raw mut flag).cast(), SYNC_MEMOPS, address) }, 0);
    flag != 0
}

fn contents(memory: &DeviceMemory) -> Vec<u8> {
    let mut bytes = vec![0; memory.bytes()];
    memory.copy_to_host(0, &mut bytes).expect("a copy");
    bytes
}

#[test]
fn memory_of_devices_is_written_from_and_into_by_the_best_way_that_the_machine_offers() {
    for machine in &MACHINES {
        println!("{}", machine.name);
        let [near, far] = [on(machine), on(machine)];
        let mut sides = pair(&near, &far);
        let data = Random::new(7).bytes(BYTES);
        let (source, target) = (filled(&data), filled(&vec![3; BYTES]));
        let mut exposed = None;
        let said = events::said(tracing::Level::INFO, || {
            let link = sides[1].device_link().expect("it carries memory of devices");
            exposed = Some(link.expose(&gpu(), target.span()).expect("exposed"));
        });
        let exposed = exposed.expect("exposed");
        let line = far.shared.devices.line(&gpu());
        assert!(said.len() == 1 && said[0].contains(&line), "{said:?}, {line}");
        for part in machine.says {
            assert!(line.contains(part), "{}: {part}: {line}", machine.name);
        }
        let place = DeviceTarget::decode(&exposed.target().encode()).expect("a target");
        let mut expected = vec![3; BYTES];
        for (value, (from, bytes, to)) in (1..).zip([(5, BYTES - 5, 5), (0, 100, 1), (4000, 2_000_001, 999)])
        {
            let at = (DeviceDestination::Exposed(&place), to);
            write(&mut sides, source.span().slice(from, bytes), at, value);
            exposed.settle(to, bytes).expect("settled");
            assert_eq!(standin::was_read(target.address() + to as u64), machine.name == "no-flush");
            expected[to..to + bytes].copy_from_slice(&data[from..from + bytes]);
            assert!(contents(&target) == expected, "{}: {bytes} bytes from {from} to {to}", machine.name);
        }
        write(&mut sides, source.span(), (DeviceDestination::Mailbox, 0), 4);
        let mut read = vec![0; BYTES];
        SpanMut::of(&mut read).copy_from(sides[1].mailbox().read());
        assert!(read == data, "{}: into the mailbox", machine.name);
        let registered = near.shared.registrations[0].held().1;
        assert!(registered == 0 || are_copies_synchronous(source.address()), "{}", machine.name);
        assert_eq!(registered > 0, machine.ways[0] != DeviceWay::Staged, "{}", machine.name);
        assert_eq!(exposed.way(), machine.ways[1], "{}", machine.name);
        let link = sides[0].device_link().expect("it carries memory of devices");
        let at = (DeviceDestination::Exposed(&place), 1);
        let outcome = link.write_device((&gpu(), source.span()), at, (5, 0), &mut 0);
        assert!(matches!(outcome, Err(TransportError::OutOfBounds { .. })), "{outcome:?}");
    }
}

#[test]
fn memory_of_a_device_that_comes_and_goes_is_never_taken_for_what_was_there() {
    let [near, far] = [on(&ALL), on(&ALL)];
    let mut sides = pair(&near, &far);
    let mut random = Random::announced("memory of devices that comes and goes");
    for value in 1..=100 {
        let data = random.bytes(BYTES / 64);
        let source = filled(&data);
        write(&mut sides, source.span(), (DeviceDestination::Mailbox, 0), value);
        let mut read = vec![0; data.len()];
        SpanMut::of(&mut read).copy_from(sides[1].mailbox().slice(0, data.len()).read());
        assert!(read == data, "round {value}");
        assert_eq!(
            near.shared.registrations[0].held().0,
            1,
            "what was freed is given back when another is made"
        );
    }
    // The last is given back when an endpoint is made.
    near.endpoint(Layout::new(4096)).expect("an endpoint");
    assert_eq!(near.shared.registrations[0].held(), (0, 0));
}
