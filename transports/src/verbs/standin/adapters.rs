//! The stand-in's devices: their ports, tables of addresses and events. A test says which there are for its thread.

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::ffi::{c_char, c_int};
use std::os::fd::OwnedFd;
use std::sync::{Mutex, PoisonError};

use super::super::sys::*;
use super::completions::{poll_cq, req_notify_cq};
use super::{post_recv, post_send, zeroed};

/// A device.
#[derive(Clone)]
pub(crate) struct Adapter {
    pub(crate) name: &'static str,
    pub(crate) ports: Vec<AdapterPort>,
    /// Why it cannot be opened.
    pub(crate) refuses: Option<c_int>,
}

/// A port, and the addresses of its table with their kinds.
#[derive(Clone, Default)]
pub(crate) struct AdapterPort {
    pub(crate) attr: PortAttr,
    pub(crate) gids: Vec<(Gid, u32)>,
}

impl Adapter {
    pub(crate) fn new(name: &'static str, ports: Vec<AdapterPort>) -> Self {
        Adapter { name, ports, refuses: None }
    }
}

impl AdapterPort {
    /// An active one of RoCE with this address, by both versions.
    pub(crate) fn ethernet(address: [u8; 4]) -> Self {
        let [a, b, c, d] = address;
        let gid = Gid([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d]);
        let attr = PortAttr {
            state: PORT_ACTIVE,
            active_mtu: 3,
            link_layer: LINK_LAYER_ETHERNET,
            active_speed: 32,
            active_width: 2,
            ..PortAttr::default()
        };
        AdapterPort { attr, gids: vec![(gid, GID_ROCE_V1), (gid, GID_ROCE_V2)] }
    }

    /// An active one of InfiniBand with this local id, in the subnet of this number.
    pub(crate) fn infiniband(lid: u16, subnet: u8) -> Self {
        let gid = Gid([0xfe, 0x80, 0, 0, 0, 0, 0, subnet, 0, 0, 0, 0, 0, 0, 0, lid as u8]);
        let attr = PortAttr {
            state: PORT_ACTIVE,
            active_mtu: 5,
            link_layer: LINK_LAYER_INFINIBAND,
            lid,
            active_speed: 128,
            active_width: 2,
            ..PortAttr::default()
        };
        AdapterPort { attr, gids: vec![(gid, 0)] }
    }
}

thread_local! {
    static HERE: RefCell<Vec<Adapter>> =
        RefCell::new(vec![Adapter::new("standin0", vec![AdapterPort::ethernet([10, 0, 0, 1])])]);
}

/// The devices that this thread sees from now on.
pub(crate) fn set(adapters: Vec<Adapter>) {
    HERE.with(|here| *here.borrow_mut() = adapters);
}

/// What is open.
struct Open {
    adapter: Adapter,
    events: VecDeque<AsyncEvent>,
    /// Events that were taken and not given back.
    unacknowledged: usize,
    refuses_memory: Option<c_int>,
    refuses_buffers: Option<c_int>,
    /// Whether none of its queue pairs can be its own peer.
    refuses_loops: bool,
    /// The module that finds memory of another device by its addresses.
    peer_memory: Option<PeerMemory>,
}

/// A descriptor of the memory of another device that is at these addresses.
pub(crate) type PeerMemory = fn(u64, usize) -> Option<OwnedFd>;

/// By the addresses of devices and of contexts.
static DEVICES: Mutex<Option<HashMap<usize, Adapter>>> = Mutex::new(None);
static CONTEXTS: Mutex<Option<HashMap<usize, Open>>> = Mutex::new(None);

fn with<T: Default, R>(of: &Mutex<Option<T>>, run: impl FnOnce(&mut T) -> R) -> R {
    run(of.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_with(T::default))
}

fn opened<R>(context: *mut Context, run: impl FnOnce(&mut Open) -> R) -> R {
    with(&CONTEXTS, |contexts| run(contexts.get_mut(&(context as usize)).expect("an open device")))
}

pub(super) fn fails(error: c_int) {
    // SAFETY: this thread's number of the last error.
    unsafe { *libc::__errno_location() = error };
}

/// Has an open device say something.
pub(crate) fn raise(context: *mut Context, event_type: u32, element: u64) {
    opened(context, |open| open.events.push_back(AsyncEvent { element, event_type }));
    let one = 1u64;
    // SAFETY: eight bytes that live during the call, and the context's descriptor.
    unsafe { libc::write((*context).async_fd, (&raw const one).cast(), 8) };
}

/// An open device is gone: its descriptor is readable, and gives an error.
pub(crate) fn deafen(context: *mut Context) {
    let one = 1u64;
    // SAFETY: eight bytes that live during the call, and the context's descriptor.
    unsafe { libc::write((*context).async_fd, (&raw const one).cast(), 8) };
}

/// Events of an open device that were taken and not given back.
pub(crate) fn unacknowledged(context: *mut Context) -> usize {
    opened(context, |open| open.unacknowledged)
}

/// An open device registers no more memory, for this reason.
pub(crate) fn refuse_memory(context: *mut Context, error: c_int) {
    opened(context, |open| open.refuses_memory = Some(error));
}

/// An open device takes no DMA buffers, for this reason.
pub(crate) fn refuse_buffers(context: *mut Context, error: c_int) {
    opened(context, |open| open.refuses_buffers = Some(error));
}

/// An open device connects no queue pair with itself.
pub(crate) fn refuse_loops(context: *mut Context) {
    opened(context, |open| open.refuses_loops = true);
}

pub(super) fn refuses_loops(context: *mut Context) -> bool {
    opened(context, |open| open.refuses_loops)
}

/// Joins an open device and one whose memory it is to reach by its addresses.
pub(crate) fn join(context: *mut Context, by: PeerMemory) {
    opened(context, |open| open.peer_memory = Some(by));
}

pub(super) fn refusal_of_buffers(context: *mut Context) -> Option<c_int> {
    opened(context, |open| open.refuses_buffers)
}

pub(super) fn peer_memory(context: *mut Context) -> Option<PeerMemory> {
    opened(context, |open| open.peer_memory)
}

pub(super) fn refusal(context: *mut Context) -> Option<c_int> {
    opened(context, |open| open.refuses_memory)
}

pub(super) unsafe extern "C" fn get_device_list(count: *mut c_int) -> *mut *mut Device {
    let adapters = HERE.with(|here| here.borrow().clone());
    let mut list: Vec<*mut Device> = Vec::new();
    for (number, adapter) in adapters.into_iter().enumerate() {
        let mut device = zeroed::<Device>();
        let node = format!("uverbs{number}");
        for (to, from) in device.name.iter_mut().zip(adapter.name.bytes()) {
            *to = from as c_char;
        }
        for (to, from) in device.dev_name.iter_mut().zip(node.bytes()) {
            *to = from as c_char;
        }
        // It stays, as contexts may refer to it.
        let device = Box::into_raw(device);
        with(&DEVICES, |devices| devices.insert(device as usize, adapter));
        list.push(device);
    }
    // SAFETY: the caller's room for a number.
    unsafe { *count = list.len() as c_int };
    list.push(std::ptr::null_mut());
    Box::leak(list.into_boxed_slice()).as_mut_ptr()
}

pub(super) unsafe extern "C" fn free_device_list(_: *mut *mut Device) {}

pub(super) unsafe extern "C" fn open_device(device: *mut Device) -> *mut Context {
    let adapter = with(&DEVICES, |devices| devices[&(device as usize)].clone());
    if let Some(error) = adapter.refuses {
        fails(error);
        return std::ptr::null_mut();
    }
    let mut context = zeroed::<Context>();
    context.device = device;
    context.ops.poll_cq = Some(poll_cq);
    context.ops.req_notify_cq = Some(req_notify_cq);
    context.ops.post_send = Some(post_send);
    context.ops.post_recv = Some(post_recv);
    // It blocks, as the library's does. SAFETY: makes a descriptor.
    context.async_fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_SEMAPHORE) };
    let context = Box::into_raw(context);
    let (events, unacknowledged) = (VecDeque::new(), 0);
    let (refuses_memory, refuses_buffers, peer_memory) = (None, None, None);
    let refuses_loops = false;
    let open =
        Open { refuses_loops, adapter, events, unacknowledged, refuses_memory, refuses_buffers, peer_memory };
    with(&CONTEXTS, |contexts| contexts.insert(context as usize, open));
    context
}

pub(super) unsafe extern "C" fn close_device(context: *mut Context) -> c_int {
    with(&CONTEXTS, |contexts| contexts.remove(&(context as usize)));
    // SAFETY: made above, and closed once.
    let context = unsafe { Box::from_raw(context) };
    // SAFETY: its descriptor, which nothing uses any more.
    unsafe { libc::close(context.async_fd) }
}

pub(super) unsafe extern "C" fn query_port(context: *mut Context, port: u8, attr: *mut PortAttr) -> c_int {
    opened(context, |open| {
        let Some(of) = usize::from(port).checked_sub(1).and_then(|at| open.adapter.ports.get(at)) else {
            return libc::EINVAL;
        };
        // One entry more than are in use.
        let known = PortAttr { gid_tbl_len: of.gids.len() as c_int + 1, ..of.attr };
        // SAFETY: the caller's room for the structure.
        unsafe { *attr = known };
        0
    })
}

/// An entry of a port's table; those that are free are zero.
fn entry(context: *mut Context, port: u32, index: u32) -> Option<(Gid, u32)> {
    opened(context, |open| {
        let of = open.adapter.ports.get((port as usize).checked_sub(1)?)?;
        Some(of.gids.get(index as usize).copied().unwrap_or_default())
    })
}

pub(super) unsafe extern "C" fn query_gid(
    context: *mut Context,
    port: u8,
    index: c_int,
    gid: *mut Gid,
) -> c_int {
    let Some((known, _)) = entry(context, port.into(), index as u32) else { return -1 };
    // SAFETY: the caller's room for an address.
    unsafe { *gid = known };
    0
}

pub(super) unsafe extern "C" fn query_gid_ex(
    context: *mut Context,
    port: u32,
    index: u32,
    out: *mut GidEntry,
    _: u32,
    bytes: usize,
) -> c_int {
    let Some((gid, gid_type)) = entry(context, port, index) else { return libc::EINVAL };
    if gid == Gid::default() {
        return libc::ENODATA;
    }
    assert_eq!(bytes, size_of::<GidEntry>());
    // SAFETY: the caller's room for an entry.
    unsafe { *out = GidEntry { gid, gid_index: index, port_num: port, gid_type, ndev_ifindex: 0 } };
    0
}

pub(super) unsafe extern "C" fn get_async_event(context: *mut Context, event: *mut AsyncEvent) -> c_int {
    let mut count = 0u64;
    // SAFETY: eight bytes that live during the call, and the context's descriptor.
    let got = unsafe { libc::read((*context).async_fd, (&raw mut count).cast(), 8) };
    if got != 8 {
        return -1;
    }
    let Some(next) = opened(context, |open| open.events.pop_front()) else {
        fails(libc::EIO);
        return -1;
    };
    opened(context, |open| open.unacknowledged += 1);
    // The event does not name its context, and is given back by itself.
    with(&TAKEN, |taken| taken.insert(event as usize, context as usize));
    // SAFETY: the caller's room for an event.
    unsafe { *event = next };
    0
}

/// Which context an event was taken of, by where it is.
static TAKEN: Mutex<Option<HashMap<usize, usize>>> = Mutex::new(None);

pub(super) unsafe extern "C" fn ack_async_event(event: *mut AsyncEvent) {
    let context = with(&TAKEN, |taken| taken.remove(&(event as usize))).expect("an event that was taken");
    opened(context as *mut Context, |open| open.unacknowledged -= 1);
}
