//! A stand-in for NVIDIA's management library, for tests: `libnvidia-ml.so.1` that answers from `nvml.script` in its own directory. It is not
//! NVIDIA's, and shows nothing about NVIDIA's.
//!
//! Invariant: a question without a line is `NVML_ERROR_FUNCTION_NOT_FOUND`, an answer `!N` the error `N`; `*` in a line stands for any
//! argument, and of several lines that fit the one with fewer `*` counts. Each copy of the file is a library of its own. Absent: what
//! changes a device, and functions that the probe does not call.

mod script;

use std::ffi::{c_char, c_int, c_longlong, c_uint, c_ulonglong, c_void};
use std::sync::RwLock;

use script::Script;

/// `nvmlReturn_t`.
type Status = c_uint;

const SUCCESS: Status = 0;
const UNINITIALIZED: Status = 1;
const INVALID_ARGUMENT: Status = 2;
const INSUFFICIENT_SIZE: Status = 7;
const FUNCTION_NOT_FOUND: Status = 13;
const VERSION_MISMATCH: Status = 25;
const UNKNOWN: Status = 999;

/// A device: its number and one, so that null is none.
type Handle = *mut c_void;

static SCRIPT: RwLock<Option<Script>> = RwLock::new(None);

/// `nvmlPciInfo_t`.
#[repr(C)]
#[derive(Clone, Copy)]
struct PciInfo {
    bus_id_legacy: [c_char; 16],
    domain: c_uint,
    bus: c_uint,
    device: c_uint,
    pci_device_id: c_uint,
    pci_sub_system_id: c_uint,
    bus_id: [c_char; 32],
}

/// `nvmlFieldValue_t`.
#[repr(C)]
#[derive(Clone, Copy)]
struct FieldValue {
    field_id: c_uint,
    scope_id: c_uint,
    timestamp: c_longlong,
    latency: c_longlong,
    value_type: c_uint,
    status: Status,
    value: c_ulonglong,
}

/// `nvmlGpuFabricInfo_v2_t`.
#[repr(C)]
#[derive(Clone, Copy)]
struct FabricInfo {
    version: c_uint,
    cluster: [u8; 16],
    status: Status,
    clique: c_uint,
    state: u8,
    padding: [u8; 3],
    health: c_uint,
}

/// `NVML_VALUE_TYPE_UNSIGNED_LONG_LONG`.
const UNSIGNED: c_uint = 3;

/// The answer to a question.
fn ask(function: &str, arguments: &[u32]) -> Result<String, Status> {
    let script = SCRIPT.read().map_err(|_| UNKNOWN)?;
    script.as_ref().ok_or(UNINITIALIZED)?.answer(function, arguments)
}

fn number(function: &str, arguments: &[u32]) -> Result<c_uint, Status> {
    ask(function, arguments)?.parse().map_err(|_| UNKNOWN)
}

fn gpu(handle: Handle) -> Result<u32, Status> {
    u32::try_from(handle.addr()).ok().and_then(|number| number.checked_sub(1)).ok_or(INVALID_ARGUMENT)
}

/// The status of an answer.
fn status(answer: Result<(), Status>) -> Status {
    answer.err().unwrap_or(SUCCESS)
}

/// Writes a value.
///
/// # Safety
/// Where the pointer is not null, a `T` can be written there.
unsafe fn put<T>(place: *mut T, value: T) -> Result<(), Status> {
    if place.is_null() {
        return Err(INVALID_ARGUMENT);
    }
    // SAFETY: not null, and the caller vouches for the rest.
    unsafe { place.write_unaligned(value) };
    Ok(())
}

/// Writes a text with a zero behind it.
///
/// # Safety
/// Where the pointer is not null, there is room for `room` bytes.
unsafe fn put_text(place: *mut c_char, room: usize, text: &str) -> Result<(), Status> {
    if place.is_null() {
        return Err(INVALID_ARGUMENT);
    }
    if text.len() >= room {
        return Err(INSUFFICIENT_SIZE);
    }
    for (byte, at) in text.bytes().chain([0]).zip(0..) {
        // SAFETY: `at` is below `room`.
        unsafe { place.add(at).write(byte as c_char) };
    }
    Ok(())
}

fn letters<const N: usize>(text: &str) -> [c_char; N] {
    let mut letters = [0; N];
    for (place, byte) in letters[..N - 1].iter_mut().zip(text.bytes()) {
        *place = byte as c_char;
    }
    letters
}

/// An address as the library writes it: eight digits of a domain.
fn pci_info(address: &str) -> PciInfo {
    let parts: Vec<u32> =
        address.split([':', '.']).filter_map(|part| u32::from_str_radix(part, 16).ok()).collect();
    let part = |at: usize| parts.get(at).copied().unwrap_or(0);
    PciInfo {
        bus_id_legacy: letters(address.get(4..).unwrap_or_default()),
        domain: part(0),
        bus: part(1),
        device: part(2),
        pci_device_id: 0,
        pci_sub_system_id: 0,
        bus_id: letters(address),
    }
}

/// Exports functions whose bodies give a `Result`; the arguments are those of the library's interface.
macro_rules! exports {
    ($($(#[$doc:meta])* fn $name:ident($($argument:ident: $kind:ty),* $(,)?) $body:block)*) => {$(
        $(#[$doc])*
        ///
        /// # Safety
        /// As the library's own: pointers that are not null lead to what the interface says.
        #[unsafe(no_mangle)]
        #[allow(unused_unsafe, reason = "some bodies write nothing")]
        unsafe extern "C" fn $name($($argument: $kind),*) -> Status {
            // SAFETY: all that is unsafe in a body is writing through the arguments, for which the caller vouches.
            let body = || -> Result<(), Status> { unsafe { $body } };
            status(body())
        }
    )*};
}

exports! {
    /// Reads the script.
    fn nvmlInit_v2() {
        let script = Script::beside_this_library().ok_or(9u32)?;
        *SCRIPT.write().map_err(|_| UNKNOWN)? = Some(script);
        Ok(())
    }

    /// Does nothing: another user of the library may be there.
    fn nvmlShutdown() {
        Ok(())
    }

    /// The driver's version.
    fn nvmlSystemGetDriverVersion(version: *mut c_char, room: c_uint) {
        put_text(version, room as usize, &ask("nvmlSystemGetDriverVersion", &[])?)
    }

    /// How many devices there are.
    fn nvmlDeviceGetCount_v2(count: *mut c_uint) {
        put(count, number("nvmlDeviceGetCount_v2", &[])?)
    }

    /// The handle of a device.
    fn nvmlDeviceGetHandleByIndex_v2(index: c_uint, device: *mut Handle) {
        if index >= number("nvmlDeviceGetCount_v2", &[])? {
            return Err(INVALID_ARGUMENT);
        }
        put(device, std::ptr::without_provenance_mut(index as usize + 1))
    }

    /// The address of a device.
    fn nvmlDeviceGetPciInfo_v3(device: Handle, info: *mut PciInfo) {
        put(info, pci_info(&ask("nvmlDeviceGetPciInfo_v3", &[gpu(device)?])?))
    }

    /// The identity of a device.
    fn nvmlDeviceGetUUID(device: Handle, uuid: *mut c_char, room: c_uint) {
        put_text(uuid, room as usize, &ask("nvmlDeviceGetUUID", &[gpu(device)?])?)
    }

    /// The model of a device.
    fn nvmlDeviceGetName(device: Handle, name: *mut c_char, room: c_uint) {
        put_text(name, room as usize, &ask("nvmlDeviceGetName", &[gpu(device)?])?)
    }

    /// The compute capability of a device.
    fn nvmlDeviceGetCudaComputeCapability(device: Handle, major: *mut c_int, minor: *mut c_int) {
        let answer = ask("nvmlDeviceGetCudaComputeCapability", &[gpu(device)?])?;
        let parts = answer.split_once('.').ok_or(UNKNOWN)?;
        put(major, parts.0.parse().map_err(|_| UNKNOWN)?)?;
        put(minor, parts.1.parse().map_err(|_| UNKNOWN)?)
    }

    /// Whether a device is split.
    fn nvmlDeviceGetMigMode(device: Handle, current: *mut c_uint, pending: *mut c_uint) {
        let mode = number("nvmlDeviceGetMigMode", &[gpu(device)?])?;
        put(current, mode)?;
        put(pending, mode)
    }

    /// Whether a link is up.
    fn nvmlDeviceGetNvLinkState(device: Handle, link: c_uint, state: *mut c_uint) {
        put(state, number("nvmlDeviceGetNvLinkState", &[gpu(device)?, link])?)
    }

    /// The version of a link.
    fn nvmlDeviceGetNvLinkVersion(device: Handle, link: c_uint, version: *mut c_uint) {
        put(version, number("nvmlDeviceGetNvLinkVersion", &[gpu(device)?, link])?)
    }

    /// The address of a link's other end.
    fn nvmlDeviceGetNvLinkRemotePciInfo_v2(device: Handle, link: c_uint, info: *mut PciInfo) {
        put(info, pci_info(&ask("nvmlDeviceGetNvLinkRemotePciInfo_v2", &[gpu(device)?, link])?))
    }

    /// What a link's other end is.
    fn nvmlDeviceGetNvLinkRemoteDeviceType(device: Handle, link: c_uint, kind: *mut c_uint) {
        put(kind, number("nvmlDeviceGetNvLinkRemoteDeviceType", &[gpu(device)?, link])?)
    }

    /// Values by the numbers of their fields.
    fn nvmlDeviceGetFieldValues(device: Handle, count: c_int, values: *mut FieldValue) {
        let device = gpu(device)?;
        if values.is_null() || count < 1 {
            return Err(INVALID_ARGUMENT);
        }
        for at in 0..count as usize {
            let place = values.add(at);
            let mut value = place.read_unaligned();
            let answer = ask("nvmlDeviceGetFieldValues", &[device, value.field_id]);
            let answer = answer.and_then(|answer| answer.parse().map_err(|_| UNKNOWN));
            value.value_type = UNSIGNED;
            value.status = answer.err().unwrap_or(SUCCESS);
            value.value = answer.unwrap_or(0);
            place.write_unaligned(value);
        }
        Ok(())
    }

    /// The NVLink domain of a device: STATE CLUSTER CLIQUE.
    fn nvmlDeviceGetGpuFabricInfoV(device: Handle, info: *mut FabricInfo) {
        let answer = ask("nvmlDeviceGetGpuFabricInfoV", &[gpu(device)?])?;
        if info.is_null() {
            return Err(INVALID_ARGUMENT);
        }
        let mut value = info.read_unaligned();
        if value.version != (size_of::<FabricInfo>() as c_uint | 2 << 24) {
            return Err(VERSION_MISMATCH);
        }
        let words: Vec<&str> = answer.split_whitespace().collect();
        let [state, cluster, clique] = words[..] else { return Err(UNKNOWN) };
        for (byte, at) in value.cluster.iter_mut().zip(0..) {
            let digits = cluster.get(2 * at..2 * at + 2).ok_or(UNKNOWN)?;
            *byte = u8::from_str_radix(digits, 16).map_err(|_| UNKNOWN)?;
        }
        value.state = state.parse().map_err(|_| UNKNOWN)?;
        value.clique = clique.parse().map_err(|_| UNKNOWN)?;
        (value.status, value.health) = (SUCCESS, 0);
        // What stands in padding means nothing.
        value.padding = [0xa5; 3];
        put(info, value)
    }

    /// What a device may do with the memory of another.
    fn nvmlDeviceGetP2PStatus(device: Handle, other: Handle, index: c_uint, answer: *mut c_uint) {
        put(answer, number("nvmlDeviceGetP2PStatus", &[gpu(device)?, gpu(other)?, index])?)
    }
}
