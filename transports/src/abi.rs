//! NCCL's interface of network plugins in versions 8 to 12: tables of functions, and what goes through them.
//!
//! ```text
//! table   name | init | devices | properties | listen | connect | accept | memory: 3 | isend | irecv | iflush | test | close: 3 |
//!         devices' memory: 2 | since 9: virtual devices | since 11: finalize, attributes
//! 9       lengths are of pointers' size       10   a profiler; connect has a config; requests have a profiler's handle
//! 11      a context of each communicator, which has the config             12   eight devices in a virtual one
//! ```
//!
//! Invariant: laid out as C lays out the structures of NCCL's `net_v8.h` to `net_v12.h`. Absent: who calls.

use std::ffi::{c_char, c_int, c_ulong, c_void};

/// Bytes of what a listening side hands to the side that connects.
pub const HANDLE_BYTES: usize = 128;
/// Requests that may be under way on a comm.
pub const REQUESTS_MAX: usize = 32;
/// Buffers of a grouped receive, at most.
pub const RECEIVES_MAX: usize = 8;
/// The kind of pointer that is host memory.
pub const POINTER_HOST: c_int = 1;
/// The offload of a network that has none: its data are in host memory.
pub const DEVICE_HOST: c_int = 0;
/// No class of traffic.
pub const TRAFFIC_CLASS_NONE: c_int = -1;
/// A level of the log.
pub const LOG_WARN: c_int = 2;
/// A level of the log.
pub const LOG_INFO: c_int = 3;
/// A subsystem of the log.
pub const SUBSYSTEM_NET: c_ulong = 16;

/// What a function returns.
pub type Code = c_int;
/// Done, or begun.
pub const SUCCESS: Code = 0;
/// A call of the system failed, or the network.
pub const SYSTEM_ERROR: Code = 2;
/// The caller used the plugin as it must not, or the plugin has a defect.
pub const INTERNAL_ERROR: Code = 3;
/// An argument that cannot be.
pub const INVALID_ARGUMENT: Code = 4;
/// A mistake of the user, or lengths that do not fit.
pub const INVALID_USAGE: Code = 5;
/// The peer's end, or the way to it.
pub const REMOTE_ERROR: Code = 6;

/// An address of no type.
pub type Address = *mut c_void;
/// Level, subsystems, file or function, line, format, values.
pub type Logger = unsafe extern "C" fn(c_int, c_ulong, *const c_char, c_int, *const c_char, ...);
/// Event, what became of it, the request's handle, the plugin's number, more.
pub type Profiler = unsafe extern "C" fn(*mut Address, c_int, Address, i64, Address) -> Code;

/// The config of a communicator.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// The class of its traffic, or [`TRAFFIC_CLASS_NONE`].
    pub traffic_class: c_int,
}

/// What version 8 says of a device.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[expect(missing_docs, reason = "as in `Properties`")]
pub struct PropertiesV8 {
    pub name: *mut c_char,
    pub pci_path: *mut c_char,
    pub guid: u64,
    pub pointers: c_int,
    pub registers_for_all: c_int,
    pub speed_mbits: c_int,
    pub port: c_int,
    pub latency_us: f32,
    pub comms_max: c_int,
    pub receives_max: c_int,
    pub offload: c_int,
    pub offload_version: c_int,
}

/// The devices that a virtual one joins.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Joined<const DEVICES: usize> {
    /// How many.
    pub count: c_int,
    /// Their numbers.
    pub devices: [c_int; DEVICES],
}

/// What later versions say of a device.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Properties<const DEVICES: usize, More> {
    /// For logs.
    pub name: *mut c_char,
    /// Its directory in `/sys`, or null.
    pub pci_path: *mut c_char,
    /// The same for devices of one card.
    pub guid: u64,
    /// The kinds of pointers, as bits.
    pub pointers: c_int,
    /// Whether memory that one comm registered is so for all.
    pub registers_for_all: c_int,
    /// Whether receives into memory of devices must be flushed.
    pub flushes: c_int,
    /// Millions of bits a second.
    pub speed_mbits: c_int,
    /// The port's number.
    pub port: c_int,
    /// Microseconds.
    pub latency_us: f32,
    /// Comms at most.
    pub comms_max: c_int,
    /// Buffers of a grouped receive at most.
    pub receives_max: c_int,
    /// What of it a kernel of a device does: [`DEVICE_HOST`] for nothing.
    pub offload: c_int,
    /// The version of that.
    pub offload_version: c_int,
    /// The devices behind it.
    pub joined: Joined<DEVICES>,
    /// Bytes of a send between two ranks, at most.
    pub p2p_bytes_max: usize,
    /// Bytes of a send of a collective, at most.
    pub collective_bytes_max: usize,
    /// What newer versions add.
    pub more: More,
}

/// What version 12 adds to the properties of version 11.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct MoreV12 {
    /// Requests in one.
    pub multi_request_max: c_int,
    /// The rail, or -1.
    pub rail: i16,
    /// The plane, or -1.
    pub plane: i16,
}

/// Of versions 9 and 10.
pub type PropertiesV9 = Properties<4, ()>;
/// With the most requests in one.
pub type PropertiesV11 = Properties<4, c_int>;
/// Of version 12.
pub type PropertiesV12 = Properties<8, MoreV12>;

/// Of versions 8 and 9.
pub type Init = unsafe extern "C" fn(Option<Logger>) -> Code;
/// Of version 10.
pub type InitProfiled = unsafe extern "C" fn(Option<Logger>, Option<Profiler>) -> Code;
/// Since version 11: context, number of the communicator, its config.
pub type InitContext =
    unsafe extern "C" fn(*mut Address, u64, *mut Config, Option<Logger>, Option<Profiler>) -> Code;
/// Device, handle, comm.
pub type Listen = unsafe extern "C" fn(c_int, Address, *mut Address) -> Code;
/// Since version 11, with a context.
pub type ListenIn = unsafe extern "C" fn(Address, c_int, Address, *mut Address) -> Code;
/// Device, handle, comm, comm of a device.
pub type Connect = unsafe extern "C" fn(c_int, Address, *mut Address, *mut Address) -> Code;
/// Of version 10: with a config.
pub type ConnectBy = unsafe extern "C" fn(c_int, *mut Config, Address, *mut Address, *mut Address) -> Code;
/// Since version 11, with a context.
pub type ConnectIn = unsafe extern "C" fn(Address, c_int, Address, *mut Address, *mut Address) -> Code;
/// Listening comm, comm, comm of a device.
pub type Accept = unsafe extern "C" fn(Address, *mut Address, *mut Address) -> Code;
/// Comm, memory, bytes, kind of pointer, registration.
pub type Register = unsafe extern "C" fn(Address, Address, usize, c_int, *mut Address) -> Code;
/// Comm, memory, bytes, kind of pointer, offset, descriptor, registration.
pub type RegisterFile =
    unsafe extern "C" fn(Address, Address, usize, c_int, u64, c_int, *mut Address) -> Code;
/// Comm, registration.
pub type Deregister = unsafe extern "C" fn(Address, Address) -> Code;
/// Of version 8: comm, data, bytes, tag, registration, request.
pub type SendInt = unsafe extern "C" fn(Address, Address, c_int, c_int, Address, *mut Address) -> Code;
/// Of version 9.
pub type Send = unsafe extern "C" fn(Address, Address, usize, c_int, Address, *mut Address) -> Code;
/// Since version 10, with a profiler's handle.
pub type SendProfiled =
    unsafe extern "C" fn(Address, Address, usize, c_int, Address, Address, *mut Address) -> Code;
/// Of version 8: comm, how many, data, bytes, tags, registrations, request.
pub type ReceiveInt = unsafe extern "C" fn(
    Address,
    c_int,
    *mut Address,
    *mut c_int,
    *mut c_int,
    *mut Address,
    *mut Address,
) -> Code;
/// Of version 9.
pub type Receive = unsafe extern "C" fn(
    Address,
    c_int,
    *mut Address,
    *mut usize,
    *mut c_int,
    *mut Address,
    *mut Address,
) -> Code;
/// Since version 10, with profiler's handles.
pub type ReceiveProfiled = unsafe extern "C" fn(
    Address,
    c_int,
    *mut Address,
    *mut usize,
    *mut c_int,
    *mut Address,
    *mut Address,
    *mut Address,
) -> Code;
/// Comm, how many, data, bytes, registrations, request.
pub type Flush =
    unsafe extern "C" fn(Address, c_int, *mut Address, *mut c_int, *mut Address, *mut Address) -> Code;
/// Request, whether it is done, the bytes of each buffer.
pub type Test = unsafe extern "C" fn(Address, *mut c_int, *mut c_int) -> Code;
/// What is closed, or ended.
pub type Close = unsafe extern "C" fn(Address) -> Code;
/// Comm, registration, the same for a kernel of a device.
pub type RegistrationOnDevice = unsafe extern "C" fn(Address, Address, *mut Address) -> Code;
/// Comm, how many, request.
pub type Consumed = unsafe extern "C" fn(Address, c_int, Address) -> Code;
/// The new device, the devices that it joins.
pub type Join = unsafe extern "C" fn(*mut c_int, Address) -> Code;
/// Context, attributes.
pub type Attributes = unsafe extern "C" fn(Address, Address) -> Code;

/// What tables have at their end since version 11.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct TailV11 {
    /// As of version 9.
    pub join: Option<Join>,
    /// Ends a context.
    pub finalize: Option<Close>,
    /// What a communicator will do.
    pub attributes: Option<Attributes>,
}

/// A table of functions.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[expect(missing_docs, reason = "the types say what each function takes")]
pub struct Table<Init, Properties, Listen, Connect, Send, Receive, Tail> {
    pub name: *const c_char,
    pub init: Option<Init>,
    pub devices: Option<unsafe extern "C" fn(*mut c_int) -> Code>,
    pub properties: Option<unsafe extern "C" fn(c_int, *mut Properties) -> Code>,
    pub listen: Option<Listen>,
    pub connect: Option<Connect>,
    pub accept: Option<Accept>,
    pub register: Option<Register>,
    pub register_file: Option<RegisterFile>,
    pub deregister: Option<Deregister>,
    pub isend: Option<Send>,
    pub irecv: Option<Receive>,
    pub iflush: Option<Flush>,
    pub test: Option<Test>,
    pub close_send: Option<Close>,
    pub close_receive: Option<Close>,
    pub close_listen: Option<Close>,
    pub registration_on_device: Option<RegistrationOnDevice>,
    pub consumed: Option<Consumed>,
    pub tail: Tail,
}

// SAFETY: the name is a constant text and all else are functions, which any thread may call; nothing is written.
unsafe impl<I, P, L, C, S, R, T> Sync for Table<I, P, L, C, S, R, T> {}
// SAFETY: the same.
unsafe impl<I, P, L, C, S, R, T> std::marker::Send for Table<I, P, L, C, S, R, T> {}

/// `ncclNetPlugin_v8`.
pub type NetV8 = Table<Init, PropertiesV8, Listen, Connect, SendInt, ReceiveInt, ()>;
/// `ncclNetPlugin_v9`.
pub type NetV9 = Table<Init, PropertiesV9, Listen, Connect, Send, Receive, Option<Join>>;
/// `ncclNetPlugin_v10`.
pub type NetV10 =
    Table<InitProfiled, PropertiesV9, Listen, ConnectBy, SendProfiled, ReceiveProfiled, Option<Join>>;
/// `ncclNetPlugin_v11`.
pub type NetV11 =
    Table<InitContext, PropertiesV11, ListenIn, ConnectIn, SendProfiled, ReceiveProfiled, TailV11>;
/// `ncclNetPlugin_v12`.
pub type NetV12 =
    Table<InitContext, PropertiesV12, ListenIn, ConnectIn, SendProfiled, ReceiveProfiled, TailV11>;

/// The name of a code.
pub fn name_of(code: Code) -> &'static str {
    match code {
        SUCCESS => "ncclSuccess",
        1 => "ncclUnhandledCudaError",
        SYSTEM_ERROR => "ncclSystemError",
        INTERNAL_ERROR => "ncclInternalError",
        INVALID_ARGUMENT => "ncclInvalidArgument",
        INVALID_USAGE => "ncclInvalidUsage",
        REMOTE_ERROR => "ncclRemoteError",
        _ => "a code that NCCL has not",
    }
}
