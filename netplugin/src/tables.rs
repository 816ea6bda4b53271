//! The functions of versions 8 to 12, by C's types, and the tables under the names for which NCCL looks.
//!
//! Invariant: no panic crosses to C; what a function returns by address is null or whole. Absent: what the calls do.

use std::ffi::{CStr, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::null_mut;
use std::sync::{Arc, Mutex};

use consort_transports::abi::{
    Address, Code, Config, DEVICE_HOST, HANDLE_BYTES, INTERNAL_ERROR, INVALID_ARGUMENT, Joined, Logger,
    MoreV12, NetV8, NetV9, NetV10, NetV11, NetV12, POINTER_HOST, Profiler, Properties, PropertiesV8,
    PropertiesV9, PropertiesV11, PropertiesV12, SUCCESS, SYSTEM_ERROR, Table, TailV11,
};

use crate::log;
use crate::meeting::{Meeting, connect_to};
use crate::network::{Network, acquire, lock, present};
use crate::stream::{End, Part, Trouble};

/// The name of the network.
const NAME: &CStr = c"consort";
/// Comms of a process, at most: a bound for NCCL, which shares comms where there are few.
const COMMS_MAX: c_int = 1 << 16;
/// Bytes of a message, at most: its length comes back as an `int`.
const BYTES_MAX: usize = 1 << 30;

/// A comm that sends or receives, as C has its address.
type Comm = Arc<Mutex<End>>;

/// A request, as C has its address.
struct Request {
    end: Comm,
    number: u64,
    /// Of a send.
    bytes: usize,
}

/// What versions up to 10 have instead of a context.
static WITHOUT_CONTEXT: Mutex<Option<Arc<Network>>> = Mutex::new(None);

/// What a function returns, with the reason in NCCL's log.
fn returned(function: &str, body: impl FnOnce() -> Result<(), Trouble>) -> Code {
    let trouble = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => return SUCCESS,
        Ok(Err(trouble)) => trouble,
        Err(_) => Trouble { code: INTERNAL_ERROR, why: "a panic: a defect of the plugin".into() },
    };
    // A log that fails has no other log.
    let _ = catch_unwind(|| log::warn(&format!("{function}: {}", trouble.why)));
    trouble.code
}

fn invalid(what: &str) -> Trouble {
    Trouble { code: INVALID_ARGUMENT, why: format!("NCCL passed {what}") }
}

/// Something that C holds by its address.
fn handed_out<T>(value: T) -> Address {
    Box::into_raw(Box::new(value)).cast()
}

/// # Safety
/// Null, or the address of a `T` that was handed out and not taken back, which stays meanwhile.
unsafe fn held<'a, T>(address: Address) -> Result<&'a mut T, Trouble> {
    // SAFETY: the contract.
    unsafe { address.cast::<T>().as_mut() }.ok_or_else(|| invalid("a null address"))
}

/// # Safety
/// Null, or the address of a `T` that was handed out and not taken back; it is not used afterwards.
unsafe fn taken_back<T>(address: Address) {
    if !address.is_null() {
        // SAFETY: the contract.
        drop(unsafe { Box::from_raw(address.cast::<T>()) });
    }
}

/// # Safety
/// Null, or a place for a value of this type.
unsafe fn put<T>(place: *mut T, value: T) -> Result<(), Trouble> {
    if place.is_null() {
        return Err(invalid("no place for what is returned"));
    }
    // SAFETY: the contract, and not null.
    unsafe { place.write(value) };
    Ok(())
}

fn network() -> Result<Arc<Network>, Trouble> {
    present()
        .ok_or_else(|| Trouble { code: INTERNAL_ERROR, why: "it was not initialised in this process".into() })
}

fn started(logger: Option<Logger>) -> Result<Arc<Network>, Trouble> {
    log::to(logger);
    acquire().map_err(|why| Trouble { code: SYSTEM_ERROR, why })
}

fn start_without_context(logger: Option<Logger>) -> Code {
    returned("init", || {
        let network = started(logger)?;
        // A parent's copy, in a forked child, stays.
        std::mem::forget(
            lock(&WITHOUT_CONTEXT).replace(network).filter(|before| !before.is_of_this_process()),
        );
        Ok(())
    })
}

unsafe extern "C" fn init(logger: Option<Logger>) -> Code {
    start_without_context(logger)
}

unsafe extern "C" fn init_profiled(logger: Option<Logger>, _: Option<Profiler>) -> Code {
    start_without_context(logger)
}

unsafe extern "C" fn init_context(
    context: *mut Address,
    _: u64,
    _: *mut Config,
    logger: Option<Logger>,
    _: Option<Profiler>,
) -> Code {
    // SAFETY: a place for the context.
    returned("init", || unsafe { put(context, handed_out(started(logger)?)) })
}

unsafe extern "C" fn finalize(context: Address) -> Code {
    returned("finalize", || {
        // SAFETY: a context that `init_context` handed out.
        let is_own = unsafe { held::<Arc<Network>>(context) }?.is_of_this_process();
        if is_own {
            // SAFETY: the same, for the last time.
            unsafe { taken_back::<Arc<Network>>(context) };
        }
        Ok(())
    })
}

unsafe extern "C" fn devices(count: *mut c_int) -> Code {
    // SAFETY: a place for the number.
    returned("devices", || unsafe { put(count, c_int::from(present().is_some())) })
}

/// A text that stays: NCCL keeps its address. There are few.
fn kept(text: &CStr) -> *mut c_char {
    static KEPT: Mutex<Vec<&'static CStr>> = Mutex::new(Vec::new());
    let mut all = lock(&KEPT);
    let known = all.iter().copied().find(|known| *known == text);
    let text = known.unwrap_or_else(|| {
        let new: &'static CStr = Box::leak(text.to_owned().into_boxed_c_str());
        all.push(new);
        new
    });
    text.as_ptr().cast_mut()
}

fn check_device(device: c_int) -> Result<(), Trouble> {
    if device == 0 { Ok(()) } else { Err(invalid("a device that is not there")) }
}

unsafe extern "C" fn properties_v8(device: c_int, to: *mut PropertiesV8) -> Code {
    returned("getProperties", || {
        check_device(device)?;
        let network = network()?;
        let properties = PropertiesV8 {
            name: kept(&network.name),
            pci_path: network.pci_path.as_deref().map_or(null_mut(), kept),
            guid: 0,
            pointers: POINTER_HOST,
            registers_for_all: 0,
            speed_mbits: network.speed_mbits as c_int,
            port: 0,
            latency_us: 0.0,
            comms_max: COMMS_MAX,
            receives_max: 1,
            offload: DEVICE_HOST,
            offload_version: 0,
        };
        // SAFETY: a place for them.
        unsafe { put(to, properties) }
    })
}

fn properties<const DEVICES: usize, More>(
    device: c_int,
    to: *mut Properties<DEVICES, More>,
    more: More,
) -> Code {
    returned("getProperties", || {
        check_device(device)?;
        let network = network()?;
        let properties = Properties {
            name: kept(&network.name),
            pci_path: network.pci_path.as_deref().map_or(null_mut(), kept),
            guid: 0,
            pointers: POINTER_HOST,
            registers_for_all: 0,
            flushes: 0,
            speed_mbits: network.speed_mbits as c_int,
            port: 0,
            latency_us: 0.0,
            comms_max: COMMS_MAX,
            receives_max: 1,
            offload: DEVICE_HOST,
            offload_version: 0,
            joined: Joined { count: 1, devices: [0; DEVICES] },
            p2p_bytes_max: BYTES_MAX,
            collective_bytes_max: BYTES_MAX,
            more,
        };
        // SAFETY: a place for them.
        unsafe { put(to, properties) }
    })
}

unsafe extern "C" fn properties_v9(device: c_int, to: *mut PropertiesV9) -> Code {
    properties(device, to, ())
}

unsafe extern "C" fn properties_v11(device: c_int, to: *mut PropertiesV11) -> Code {
    properties(device, to, 1)
}

unsafe extern "C" fn properties_v12(device: c_int, to: *mut PropertiesV12) -> Code {
    properties(device, to, MoreV12 { multi_request_max: 1, rail: -1, plane: -1 })
}

unsafe extern "C" fn listen(device: c_int, handle: Address, comm: *mut Address) -> Code {
    returned("listen", || {
        check_device(device)?;
        let (meeting, at) = Meeting::new(network()?)?;
        // SAFETY: room for a handle, and a place for the comm.
        unsafe {
            put(handle.cast::<[u8; HANDLE_BYTES]>(), at)?;
            put(comm, handed_out(meeting))
        }
    })
}

unsafe extern "C" fn listen_in(_: Address, device: c_int, handle: Address, comm: *mut Address) -> Code {
    // SAFETY: the caller's contract.
    unsafe { listen(device, handle, comm) }
}

unsafe extern "C" fn connect(device: c_int, handle: Address, comm: *mut Address, _: *mut Address) -> Code {
    returned("connect", || {
        // SAFETY: a place for the comm; a handle, which NCCL keeps where it is until the comm is there.
        let handle = unsafe {
            put(comm, null_mut())?;
            held::<[u8; HANDLE_BYTES]>(handle)?
        };
        check_device(device)?;
        let network = network()?;
        if let Some(met) = connect_to(&network, handle)? {
            let end: Comm = Arc::new(Mutex::new(End::sending(met, network)?));
            // SAFETY: as above.
            unsafe { put(comm, handed_out(end))? };
        }
        Ok(())
    })
}

unsafe extern "C" fn connect_by(
    device: c_int,
    _: *mut Config,
    handle: Address,
    comm: *mut Address,
    on_device: *mut Address,
) -> Code {
    // SAFETY: the caller's contract.
    unsafe { connect(device, handle, comm, on_device) }
}

unsafe extern "C" fn connect_in(
    _: Address,
    device: c_int,
    handle: Address,
    comm: *mut Address,
    on_device: *mut Address,
) -> Code {
    // SAFETY: the caller's contract.
    unsafe { connect(device, handle, comm, on_device) }
}

unsafe extern "C" fn accept(listening: Address, comm: *mut Address, _: *mut Address) -> Code {
    returned("accept", || {
        // SAFETY: a place for the comm; a comm of `listen`.
        let meeting = unsafe {
            put(comm, null_mut())?;
            held::<Meeting>(listening)?
        };
        if let Some(met) = meeting.accept()? {
            let end: Comm = Arc::new(Mutex::new(End::receiving(met, network()?)));
            // SAFETY: as above.
            unsafe { put(comm, handed_out(end))? };
        }
        Ok(())
    })
}

unsafe extern "C" fn register(
    _: Address,
    _: Address,
    _: usize,
    kind: c_int,
    registration: *mut Address,
) -> Code {
    returned("regMr", || {
        if kind != POINTER_HOST {
            return Err(invalid("memory that is not the host's"));
        }
        // SAFETY: a place for the registration, which says nothing.
        unsafe { put(registration, null_mut()) }
    })
}

unsafe extern "C" fn deregister(_: Address, _: Address) -> Code {
    SUCCESS
}

/// # Safety
/// A comm of `connect`, bytes that stay until the request is over, a place for that.
unsafe fn begin_send(comm: Address, data: Address, bytes: usize, tag: c_int, request: *mut Address) -> Code {
    returned("isend", || {
        // SAFETY: the contract.
        let end = unsafe {
            put(request, null_mut())?;
            held::<Comm>(comm)?
        };
        if bytes > BYTES_MAX || (data.is_null() && bytes != 0) {
            return Err(invalid("a message that is too long, or nowhere"));
        }
        if let Some(number) = lock(end).send(data.cast(), bytes, tag)? {
            let begun = Request { end: Arc::clone(end), number, bytes };
            // SAFETY: the contract.
            unsafe { put(request, handed_out(begun))? };
        }
        Ok(())
    })
}

unsafe extern "C" fn isend_int(
    comm: Address,
    data: Address,
    bytes: c_int,
    tag: c_int,
    _: Address,
    request: *mut Address,
) -> Code {
    // SAFETY: the caller's contract. A length below 0 is too long.
    unsafe { begin_send(comm, data, usize::try_from(bytes).unwrap_or(usize::MAX), tag, request) }
}

unsafe extern "C" fn isend(
    comm: Address,
    data: Address,
    bytes: usize,
    tag: c_int,
    _: Address,
    request: *mut Address,
) -> Code {
    // SAFETY: the caller's contract.
    unsafe { begin_send(comm, data, bytes, tag, request) }
}

unsafe extern "C" fn isend_profiled(
    comm: Address,
    data: Address,
    bytes: usize,
    tag: c_int,
    _: Address,
    _: Address,
    request: *mut Address,
) -> Code {
    // SAFETY: the caller's contract.
    unsafe { begin_send(comm, data, bytes, tag, request) }
}

/// # Safety
/// A comm of `accept`; lists of `count` buffers, lengths and tags; a place for the request.
unsafe fn begin_receive<Length: Copy + TryInto<usize>>(
    comm: Address,
    count: c_int,
    data: *mut Address,
    bytes: *mut Length,
    tags: *mut c_int,
    request: *mut Address,
) -> Code {
    returned("irecv", || {
        // SAFETY: the contract.
        let end = unsafe {
            put(request, null_mut())?;
            held::<Comm>(comm)?
        };
        if data.is_null() || bytes.is_null() || tags.is_null() {
            return Err(invalid("no list of buffers"));
        }
        let part = |at: usize| {
            // SAFETY: the contract.
            let (data, bytes, tag) = unsafe { (*data.add(at), *bytes.add(at), *tags.add(at)) };
            let bytes = bytes.try_into().unwrap_or(0);
            // A buffer that is nowhere takes nothing.
            Part::new(data.cast(), if data.is_null() { 0 } else { bytes }, tag)
        };
        let parts = (0..usize::try_from(count).unwrap_or(0)).map(part).collect();
        if let Some(number) = lock(end).receive(parts)? {
            let begun = Request { end: Arc::clone(end), number, bytes: 0 };
            // SAFETY: the contract.
            unsafe { put(request, handed_out(begun))? };
        }
        Ok(())
    })
}

unsafe extern "C" fn irecv_int(
    comm: Address,
    count: c_int,
    data: *mut Address,
    bytes: *mut c_int,
    tags: *mut c_int,
    _: *mut Address,
    request: *mut Address,
) -> Code {
    // SAFETY: the caller's contract.
    unsafe { begin_receive(comm, count, data, bytes, tags, request) }
}

unsafe extern "C" fn irecv(
    comm: Address,
    count: c_int,
    data: *mut Address,
    bytes: *mut usize,
    tags: *mut c_int,
    _: *mut Address,
    request: *mut Address,
) -> Code {
    // SAFETY: the caller's contract.
    unsafe { begin_receive(comm, count, data, bytes, tags, request) }
}

unsafe extern "C" fn irecv_profiled(
    comm: Address,
    count: c_int,
    data: *mut Address,
    bytes: *mut usize,
    tags: *mut c_int,
    _: *mut Address,
    _: *mut Address,
    request: *mut Address,
) -> Code {
    // SAFETY: the caller's contract.
    unsafe { begin_receive(comm, count, data, bytes, tags, request) }
}

/// Host memory needs none, and NCCL asks for none there.
unsafe extern "C" fn iflush(
    _: Address,
    _: c_int,
    _: *mut Address,
    _: *mut c_int,
    _: *mut Address,
    request: *mut Address,
) -> Code {
    // SAFETY: a place for a request; there is none.
    returned("iflush", || unsafe { put(request, null_mut()) })
}

unsafe extern "C" fn test(request: Address, done: *mut c_int, sizes: *mut c_int) -> Code {
    returned("test", || {
        // SAFETY: a place for whether it is over; a request that is not.
        let of = unsafe {
            put(done, 0)?;
            held::<Request>(request)?
        };
        let Some(parts) = lock(&of.end).test(of.number)? else { return Ok(()) };
        let parts = if parts.is_empty() { vec![of.bytes] } else { parts };
        for (at, bytes) in parts.into_iter().enumerate().filter(|_| !sizes.is_null()) {
            // SAFETY: room for a length of each part.
            unsafe { sizes.add(at).write(bytes as c_int) };
        }
        // SAFETY: the request is over, so NCCL does not name it again.
        unsafe {
            taken_back::<Request>(request);
            put(done, 1)
        }
    })
}

unsafe extern "C" fn close(comm: Address) -> Code {
    returned("closeSend or closeRecv", || {
        if comm.is_null() {
            return Ok(());
        }
        // SAFETY: a comm of `connect` or `accept`, for the last time.
        let closed = unsafe {
            // Requests that are not over have it too.
            let closed = std::mem::replace(&mut *lock(held::<Comm>(comm)?), End::Closed);
            taken_back::<Comm>(comm);
            closed
        };
        drop(closed);
        Ok(())
    })
}

unsafe extern "C" fn close_listen(comm: Address) -> Code {
    returned("closeListen", || {
        // SAFETY: a comm of `listen`, for the last time.
        unsafe { taken_back::<Meeting>(comm) };
        Ok(())
    })
}

/// A table with the functions that are the same in all versions.
macro_rules! table {
    ($init:ident, $properties:ident, $listen:ident, $connect:ident, $isend:ident, $irecv:ident, $tail:expr) => {
        Table {
            name: NAME.as_ptr(),
            init: Some($init),
            devices: Some(devices),
            properties: Some($properties),
            listen: Some($listen),
            connect: Some($connect),
            accept: Some(accept),
            register: Some(register),
            register_file: None,
            deregister: Some(deregister),
            isend: Some($isend),
            irecv: Some($irecv),
            iflush: Some(iflush),
            test: Some(test),
            close_send: Some(close),
            close_receive: Some(close),
            close_listen: Some(close_listen),
            registration_on_device: None,
            consumed: None,
            tail: $tail,
        }
    };
}

const TAIL: TailV11 = TailV11 { join: None, finalize: Some(finalize), attributes: None };

/// Of NCCL 2.20.
#[unsafe(no_mangle)]
pub static ncclNetPlugin_v8: NetV8 = table!(init, properties_v8, listen, connect, isend_int, irecv_int, ());
/// Of NCCL 2.24.
#[unsafe(no_mangle)]
pub static ncclNetPlugin_v9: NetV9 = table!(init, properties_v9, listen, connect, isend, irecv, None);
/// Of NCCL 2.26.
#[unsafe(no_mangle)]
pub static ncclNetPlugin_v10: NetV10 =
    table!(init_profiled, properties_v9, listen, connect_by, isend_profiled, irecv_profiled, None);
/// Of NCCL 2.28.
#[unsafe(no_mangle)]
pub static ncclNetPlugin_v11: NetV11 =
    table!(init_context, properties_v11, listen_in, connect_in, isend_profiled, irecv_profiled, TAIL);
/// Of NCCL 2.30.
#[unsafe(no_mangle)]
pub static ncclNetPlugin_v12: NetV12 =
    table!(init_context, properties_v12, listen_in, connect_in, isend_profiled, irecv_profiled, TAIL);

#[cfg(test)]
mod tests;
