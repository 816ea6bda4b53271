//! A plugin that was opened and initialised: its functions as they are in whatever version, and its comms.
//!
//! Invariant: what a comm registered is taken back before the comm is closed, and comms are closed before their plugin ends; in a
//! forked child none of this is done. Absent: what is said over comms.

use std::ffi::{CStr, c_char, c_int};
use std::ptr::null_mut;
use std::sync::{Arc, Mutex, PoisonError};

use consort_memory::{ForkStamp, Mapping, SpanMut};

use super::NAME;
use super::logger::{logger, no_profiler};
use super::names::{Found, Tables, names, open};
use crate::abi::{
    self, Address, Close, Code, Config, DEVICE_HOST, HANDLE_BYTES, POINTER_HOST, SUCCESS, TRAFFIC_CLASS_NONE,
};
use crate::{FailedPlugin, TransportError};

/// Why a plugin did not do what it was asked to.
pub(super) type Failed = Box<FailedPlugin>;
impl From<Failed> for TransportError {
    fn from(failed: Failed) -> Self {
        TransportError::Plugin { transport: NAME, failed }
    }
}

/// The tag of all messages: their order tells which is which.
const TAG: c_int = 0;
/// What tables up to version 10 are called for once: their addresses, with the process.
static INITIALISED: Mutex<Vec<(usize, u32)>> = Mutex::new(Vec::new());

/// The same expression for the table of each version.
macro_rules! each {
    ($tables:expr, $table:ident => $value:expr) => {
        match $tables {
            Tables::V8($table) => $value,
            Tables::V9($table) => $value,
            Tables::V10($table) => $value,
            Tables::V11($table) => $value,
            Tables::V12($table) => $value,
        }
    };
}

/// The functions that are the same in all versions.
#[derive(Clone, Copy)]
struct Functions {
    devices: unsafe extern "C" fn(*mut c_int) -> Code,
    accept: abi::Accept,
    register: abi::Register,
    deregister: abi::Deregister,
    test: abi::Test,
    close_send: Close,
    close_receive: Close,
    close_listen: Close,
}

impl Functions {
    /// Those of a table that has all that is called.
    ///
    /// # Errors
    /// The first that it has not.
    fn of(tables: Tables) -> Result<Self, &'static str> {
        each!(tables, table => {
            table.init.ok_or("init")?;
            table.properties.ok_or("getProperties")?;
            table.listen.ok_or("listen")?;
            table.connect.ok_or("connect")?;
            table.isend.ok_or("isend")?;
            table.irecv.ok_or("irecv")?;
            Ok(Functions {
                devices: table.devices.ok_or("devices")?,
                accept: table.accept.ok_or("accept")?,
                register: table.register.ok_or("regMr")?,
                deregister: table.deregister.ok_or("deregMr")?,
                test: table.test.ok_or("test")?,
                close_send: table.close_send.ok_or("closeSend")?,
                close_receive: table.close_receive.ok_or("closeRecv")?,
                close_listen: table.close_listen.ok_or("closeListen")?,
            })
        })
    }
}

/// What a plugin says of a device.
struct Device {
    name: String,
    pointers: c_int,
    offload: c_int,
}

/// An initialised plugin, on one of its devices.
pub(super) struct Plugin {
    tables: Tables,
    functions: Functions,
    /// Since version 11.
    context: Address,
    /// The plugin may keep its address.
    config: Box<Config>,
    device: c_int,
    device_name: String,
    /// Its own name, and the file's.
    pub(super) name: String,
    file: String,
    pub(super) stamp: ForkStamp,
}

// SAFETY: NCCL calls a plugin from a thread of each communicator, so its functions and contexts are for any thread; the addresses
// are handed back and not followed.
unsafe impl Send for Plugin {}
// SAFETY: the same.
unsafe impl Sync for Plugin {}

fn none(what: String, remedy: &'static str) -> TransportError {
    TransportError::NoPlugin { transport: NAME, what, remedy }
}

/// A text of a plugin.
fn text(text: *const c_char) -> String {
    // SAFETY: not null, and ends with a zero, as the interface has it.
    if text.is_null() { "".into() } else { unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned() }
}

impl Plugin {
    /// The first plugin of a list as `NCCL_NET_PLUGIN` has it that can be used.
    ///
    /// # Errors
    /// [`TransportError::NoPlugin`] with the reason of each.
    pub(super) fn first_of(list: &str) -> Result<Self, TransportError> {
        let names = names(list);
        if names.is_empty() {
            return Err(none(
                format!("NCCL_NET_PLUGIN is {list:?}, which names no network plugin"),
                "name one, or choose another CONSORT_TRANSPORT",
            ));
        }
        let mut refused = Vec::new();
        for name in names {
            let opened = open(name).map_err(|why| {
                none(
                    format!("the network plugin {name:?} cannot be opened ({why})"),
                    "name a plugin in NCCL_NET_PLUGIN, and put its directory into LD_LIBRARY_PATH",
                )
            });
            match opened.and_then(Self::over) {
                Ok(plugin) => return Ok(plugin),
                Err(error) => refused.push(error),
            }
        }
        // The first was wanted most.
        refused.iter().skip(1).for_each(|error| tracing::warn!("a further plugin is not used: {error}"));
        Err(refused.swap_remove(0))
    }

    /// Initialises a plugin.
    ///
    /// # Errors
    /// [`TransportError::NoPlugin`]; what its functions return.
    fn over(Found { file, tables }: Found) -> Result<Self, TransportError> {
        let name = each!(tables, table => text(table.name));
        let functions = Functions::of(tables).map_err(|function| {
            none(
                format!("the table of the network plugin {file} has no {function}"),
                "install another version of it",
            )
        })?;
        let stamp = ForkStamp::new().map_err(|error| TransportError::memory(NAME, error))?;
        let config = Box::new(Config { traffic_class: TRAFFIC_CLASS_NONE });
        let device_name = String::new();
        let mut plugin = Plugin {
            tables,
            functions,
            context: null_mut(),
            config,
            device: 0,
            device_name,
            name,
            file,
            stamp,
        };
        plugin.init()?;
        let mut count = 0;
        // SAFETY: a place for the number.
        plugin.check("devices", unsafe { (plugin.functions.devices)(&mut count) })?;
        let shown = format!("the network plugin {} ({})", plugin.name, plugin.file);
        if count < 1 {
            let remedy = "look at its own words in the log, or choose another CONSORT_TRANSPORT";
            return Err(none(format!("{shown} has no device"), remedy));
        }
        for device in 0..count {
            let found = plugin.properties(device)?;
            if found.pointers & POINTER_HOST != 0 && found.offload == DEVICE_HOST {
                (plugin.device, plugin.device_name) = (device, found.name);
                tracing::debug!(
                    plugin = plugin.name,
                    file = plugin.file,
                    device = plugin.device_name,
                    "a network plugin"
                );
                return Ok(plugin);
            }
        }
        let remedy = "choose another plugin (NCCL_NET_PLUGIN) or another CONSORT_TRANSPORT";
        Err(none(
            format!("none of the {count} devices of {shown} sends from and receives into host memory"),
            remedy,
        ))
    }

    fn init(&mut self) -> Result<(), TransportError> {
        let (log, profiler) = (Some(logger()), Some(no_profiler as abi::Profiler));
        let mut initialised = INITIALISED.lock().unwrap_or_else(PoisonError::into_inner);
        let mark = (each!(self.tables, table => std::ptr::from_ref(table) as usize), std::process::id());
        let before = initialised.iter().find(|(table, _)| *table == mark.0).copied();
        if before.is_some_and(|(_, process)| process != mark.1) {
            return Err(none(
                format!("the network plugin {} was initialised before this process was forked", self.file),
                "fork before the first communicator is made",
            ));
        }
        let context = &raw mut self.context;
        let config = &raw mut *self.config;
        let is_new = before.is_none();
        // SAFETY: as the interface of each version has it; context and config stay where they are until the end.
        let code = unsafe {
            match self.tables {
                Tables::V8(table) if is_new => table.init.map(|init| init(log)),
                Tables::V9(table) if is_new => table.init.map(|init| init(log)),
                Tables::V10(table) if is_new => table.init.map(|init| init(log, profiler)),
                Tables::V11(table) => table.init.map(|init| init(context, 0, config, log, profiler)),
                Tables::V12(table) => table.init.map(|init| init(context, 0, config, log, profiler)),
                _ => None,
            }
        };
        self.check("init", code.unwrap_or(SUCCESS)).inspect_err(|_| self.context = null_mut())?;
        if is_new {
            initialised.push(mark);
        }
        Ok(())
    }

    fn properties(&self, device: c_int) -> Result<Device, TransportError> {
        each!(self.tables, table => {
            // SAFETY: of all fields a zero is a value.
            let mut found = unsafe { std::mem::zeroed() };
            // SAFETY: a place for what this version says of a device.
            let code = table.properties.map(|properties| unsafe { properties(device, &mut found) });
            self.check("getProperties", code.unwrap_or(SUCCESS))?;
            Ok(Device { name: text(found.name), pointers: found.pointers, offload: found.offload })
        })
    }

    fn version(&self) -> u32 {
        match self.tables {
            Tables::V8(_) => 8,
            Tables::V9(_) => 9,
            Tables::V10(_) => 10,
            Tables::V11(_) => 11,
            Tables::V12(_) => 12,
        }
    }

    /// What a function returned.
    fn check(&self, function: &'static str, code: Code) -> Result<(), Failed> {
        if code == SUCCESS {
            return Ok(());
        }
        Err(Box::new(FailedPlugin {
            plugin: self.name.clone(),
            file: self.file.clone(),
            version: self.version(),
            function,
            device: self.device_name.clone(),
            code,
        }))
    }

    /// A listening comm, with the handle that a peer connects to.
    pub(super) fn listen(self: &Arc<Self>) -> Result<(Comm, [u8; HANDLE_BYTES]), Failed> {
        let mut handle = Handle([0; HANDLE_BYTES]);
        let (to, mut comm) = (handle.0.as_mut_ptr().cast(), null_mut());
        let place = &raw mut comm;
        // SAFETY: a handle of its full length and a place for the comm.
        let code = unsafe {
            match self.tables {
                Tables::V8(table) => table.listen.map(|listen| listen(self.device, to, place)),
                Tables::V9(table) => table.listen.map(|listen| listen(self.device, to, place)),
                Tables::V10(table) => table.listen.map(|listen| listen(self.device, to, place)),
                Tables::V11(table) => table.listen.map(|listen| listen(self.context, self.device, to, place)),
                Tables::V12(table) => table.listen.map(|listen| listen(self.context, self.device, to, place)),
            }
        };
        self.check("listen", code.unwrap_or(SUCCESS))?;
        Ok((self.comm(comm, "closeListen", self.functions.close_listen), handle.0))
    }

    /// A comm to send by; none before the peer has answered. To be called again with the same handle in the same place then.
    pub(super) fn connect(self: &Arc<Self>, handle: &mut Handle) -> Result<Option<Comm>, Failed> {
        let (to, mut comm, mut on_device) = (handle.0.as_mut_ptr().cast(), null_mut(), null_mut());
        let (place, on_device) = (&raw mut comm, &raw mut on_device);
        let (context, device) = (self.context, self.device);
        let config = (&raw const *self.config).cast_mut();
        // SAFETY: the handle stays where it is until the comm is there, and no comm on a device is asked for. No plugin writes the
        // config, which NCCL hands to it likewise.
        let code = unsafe {
            match self.tables {
                Tables::V8(table) => table.connect.map(|connect| connect(device, to, place, on_device)),
                Tables::V9(table) => table.connect.map(|connect| connect(device, to, place, on_device)),
                Tables::V10(table) => {
                    table.connect.map(|connect| connect(device, config, to, place, on_device))
                }
                Tables::V11(table) => {
                    table.connect.map(|connect| connect(context, device, to, place, on_device))
                }
                Tables::V12(table) => {
                    table.connect.map(|connect| connect(context, device, to, place, on_device))
                }
            }
        };
        self.check("connect", code.unwrap_or(SUCCESS))?;
        Ok((!comm.is_null()).then(|| self.comm(comm, "closeSend", self.functions.close_send)))
    }

    /// A comm to receive by; none before the peer has connected.
    pub(super) fn accept(self: &Arc<Self>, listening: &Comm) -> Result<Option<Comm>, Failed> {
        let (mut comm, mut on_device) = (null_mut(), null_mut());
        // SAFETY: a comm of `listen`, and a place for the new one.
        let code = unsafe { (self.functions.accept)(listening.comm, &mut comm, &mut on_device) };
        self.check("accept", code)?;
        Ok((!comm.is_null()).then(|| self.comm(comm, "closeRecv", self.functions.close_receive)))
    }

    fn comm(self: &Arc<Self>, comm: Address, function: &'static str, close: Close) -> Comm {
        Comm { plugin: Arc::clone(self), comm, function, close }
    }
}

impl Drop for Plugin {
    fn drop(&mut self) {
        if self.context.is_null() || self.stamp.is_forked_child() {
            return;
        }
        let finalize = match self.tables {
            Tables::V11(table) => table.tail.finalize,
            Tables::V12(table) => table.tail.finalize,
            _ => None,
        };
        // SAFETY: its own context, whose comms are closed: each has this plugin as long as it is there.
        let code = finalize.map_or(SUCCESS, |finalize| unsafe { finalize(self.context) });
        if let Err(failed) = self.check("finalize", code) {
            tracing::warn!("{failed}");
        }
    }
}

/// The peer's handle, where a plugin may keep how far it has come with connecting.
#[repr(C, align(16))]
pub(super) struct Handle(pub(super) [u8; HANDLE_BYTES]);

/// A comm, closed at its end.
pub(super) struct Comm {
    plugin: Arc<Plugin>,
    comm: Address,
    function: &'static str,
    close: Close,
}

// SAFETY: as of the plugin; a comm is used by one thread at a time, as the places and lists that own it are.
unsafe impl Send for Comm {}

impl Drop for Comm {
    fn drop(&mut self) {
        if self.plugin.stamp.is_forked_child() {
            return;
        }
        // SAFETY: this plugin's, of the kind that is closed so, and closed once.
        let code = unsafe { (self.close)(self.comm) };
        if let Err(failed) = self.plugin.check(self.function, code) {
            tracing::debug!("{failed}");
        }
    }
}

/// A request under way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Request(Address);

// SAFETY: as of its comm; the address is handed back and not followed.
unsafe impl Send for Request {}

/// A comm with registered memory in places of equal length, from which it sends, or into which it receives.
pub(super) struct Places {
    comm: Comm,
    memory: Mapping,
    registration: Address,
    place_bytes: usize,
}

// SAFETY: as of the comm.
unsafe impl Send for Places {}

impl Places {
    /// Registers memory of `count` places.
    pub(super) fn new(comm: Comm, count: usize, place_bytes: usize) -> Result<Self, TransportError> {
        let memory =
            Mapping::anonymous(count * place_bytes).map_err(|error| TransportError::memory(NAME, error))?;
        let mut registration = null_mut();
        let (start, bytes) = (memory.span(0, memory.bytes()).as_mut_ptr().cast(), memory.bytes());
        // SAFETY: memory of this process that stays until it is taken back.
        let code = unsafe {
            (comm.plugin.functions.register)(comm.comm, start, bytes, POINTER_HOST, &mut registration)
        };
        comm.plugin.check("regMr", code)?;
        Ok(Places { comm, memory, registration, place_bytes })
    }

    /// Bytes of its memory.
    pub(super) fn bytes(&self) -> usize {
        self.memory.bytes()
    }

    /// A place.
    pub(super) fn place(&self, at: usize) -> SpanMut<'_> {
        self.memory.span(at * self.place_bytes, self.place_bytes)
    }

    /// Sends the first bytes of a place, which stays as it is until that is over. None where the plugin takes no more now.
    pub(super) fn send(&mut self, at: usize, bytes: usize) -> Result<Option<Request>, Failed> {
        let data: Address = self.place(at).slice(0, bytes).as_mut_ptr().cast();
        let (comm, registration, mut request) = (self.comm.comm, self.registration, null_mut());
        let to = &raw mut request;
        // SAFETY: a comm to send by and its registered memory, which nothing changes until the request is over.
        let code = unsafe {
            match self.comm.plugin.tables {
                Tables::V8(table) => {
                    table.isend.map(|isend| isend(comm, data, bytes as c_int, TAG, registration, to))
                }
                Tables::V9(table) => table.isend.map(|isend| isend(comm, data, bytes, TAG, registration, to)),
                Tables::V10(table) => {
                    table.isend.map(|isend| isend(comm, data, bytes, TAG, registration, null_mut(), to))
                }
                Tables::V11(table) => {
                    table.isend.map(|isend| isend(comm, data, bytes, TAG, registration, null_mut(), to))
                }
                Tables::V12(table) => {
                    table.isend.map(|isend| isend(comm, data, bytes, TAG, registration, null_mut(), to))
                }
            }
        };
        self.comm.plugin.check("isend", code.unwrap_or(SUCCESS))?;
        Ok((!request.is_null()).then_some(Request(request)))
    }

    /// Receives one message into a place. None where the plugin takes no more now.
    pub(super) fn receive(&mut self, at: usize) -> Result<Option<Request>, Failed> {
        let mut data: Address = self.place(at).as_mut_ptr().cast();
        let (comm, mut registration, mut tag) = (self.comm.comm, self.registration, TAG);
        let (mut bytes, mut int_bytes) = (self.place_bytes, self.place_bytes as c_int);
        let (mut request, mut profiled) = (null_mut(), null_mut());
        let (data, mine, tag) = (&raw mut data, &raw mut registration, &raw mut tag);
        let (sizes, ints) = (&raw mut bytes, &raw mut int_bytes);
        let (to, profiled) = (&raw mut request, &raw mut profiled);
        // SAFETY: a comm to receive by and its registered memory, which nothing reads until the request is over; lists of one.
        let code = unsafe {
            match self.comm.plugin.tables {
                Tables::V8(table) => table.irecv.map(|irecv| irecv(comm, 1, data, ints, tag, mine, to)),
                Tables::V9(table) => table.irecv.map(|irecv| irecv(comm, 1, data, sizes, tag, mine, to)),
                Tables::V10(table) => {
                    table.irecv.map(|irecv| irecv(comm, 1, data, sizes, tag, mine, profiled, to))
                }
                Tables::V11(table) => {
                    table.irecv.map(|irecv| irecv(comm, 1, data, sizes, tag, mine, profiled, to))
                }
                Tables::V12(table) => {
                    table.irecv.map(|irecv| irecv(comm, 1, data, sizes, tag, mine, profiled, to))
                }
            }
        };
        self.comm.plugin.check("irecv", code.unwrap_or(SUCCESS))?;
        Ok((!request.is_null()).then_some(Request(request)))
    }

    /// How many bytes travelled, once the request is over. Not to be asked again then.
    pub(super) fn test(&mut self, request: Request) -> Result<Option<usize>, Failed> {
        let (mut done, mut sizes) = (0, [0; abi::RECEIVES_MAX]);
        let plugin = &self.comm.plugin;
        // SAFETY: a request of this comm that is not over, and room for the lengths of a grouped one.
        let code = unsafe { (plugin.functions.test)(request.0, &mut done, sizes.as_mut_ptr()) };
        plugin.check("test", code)?;
        Ok((done != 0).then(|| usize::try_from(sizes[0]).unwrap_or(0)))
    }
}

impl Drop for Places {
    fn drop(&mut self) {
        let plugin = &self.comm.plugin;
        if plugin.stamp.is_forked_child() {
            return;
        }
        // SAFETY: this comm's, taken back once, before the comm is closed.
        let code = unsafe { (plugin.functions.deregister)(self.comm.comm, self.registration) };
        if let Err(failed) = plugin.check("deregMr", code) {
            tracing::debug!("{failed}");
        }
    }
}
