//! Which way an adapter reaches memory of a device: the best that the machine offers, and the next where one fails.
//!
//! ```text
//! DMA buffer ──► peer memory ──► pinned memory of the host
//! ```
//!
//! Invariant: a way that has failed once is not tried again, and the line that says which way is in use says why. Memory is looked up by
//! its buffer id at each use. Absent: what is sent (`link`).

use std::io;
use std::ops::Range;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, OnceLock};

use consort_cuda::{Context, CudaError, DeviceSpan, DirectAccess, Driver};

use super::super::options::DeviceLevel;
use super::super::port::{Domain, Port, Registration, Written};
use super::super::{NAME, lock};
use super::Registrations;
use super::cache::pages;
use super::flush::Flush;
use crate::TransportError;
use crate::device::{DeviceWay, Indirect};

/// What a call of the driver's that failed was for.
pub(super) fn refused(what: &'static str) -> impl FnOnce(CudaError) -> TransportError {
    move |error| TransportError::driver(NAME, what, error)
}

/// The devices whose memory one protection domain has met.
pub(in super::super) struct Devices {
    domain: Arc<Domain>,
    /// The kernel module that joins the two drivers.
    module: Option<&'static str>,
    paths: Mutex<Vec<Arc<DevicePath>>>,
}

/// The way to one device.
pub(super) struct DevicePath {
    pub(super) domain: Arc<Domain>,
    pub(super) context: Context,
    access: DirectAccess,
    module: Option<&'static str>,
    state: Mutex<State>,
    /// What flushes where the driver does not, made when it is first needed, or why there is none.
    flush: OnceLock<Result<Flush, String>>,
}

struct State {
    way: DeviceWay,
    why: Vec<Indirect>,
    has_said: bool,
}

impl Devices {
    pub(in super::super) fn new(domain: &Arc<Domain>, module: Option<&'static str>) -> Self {
        Devices { domain: Arc::clone(domain), module, paths: Mutex::default() }
    }

    /// The way to a context's device.
    pub(super) fn path(&self, context: &Context) -> Result<Arc<DevicePath>, TransportError> {
        let mut paths = lock(&self.paths);
        if let Some(found) = paths.iter().find(|path| path.context == *context) {
            return Ok(Arc::clone(found));
        }
        let access = context.direct_access().map_err(refused("what of the GPU other devices reach"))?;
        let path = Arc::new(DevicePath::new(&self.domain, context, access, self.module));
        paths.push(Arc::clone(&path));
        Ok(path)
    }

    /// Gives back some of what is of memory that was freed, and not in use.
    pub(in super::super) fn tidy(&self, kept: &Registrations) {
        if let Some(path) = lock(&self.paths).first() {
            kept.sweep(|id, address| is_there(path.context.driver(), id, address));
        }
    }

    /// Pretends that a device says this of itself.
    #[cfg(test)]
    pub(in super::super) fn pretend(&self, context: &Context, access: DirectAccess) {
        let path = DevicePath::new(&self.domain, context, access, self.module);
        *lock(&self.paths) = vec![Arc::new(path)];
    }

    /// The line of a device.
    #[cfg(test)]
    pub(in super::super) fn line(&self, context: &Context) -> String {
        let path = self.path(context).expect("a driver");
        let state = lock(&path.state);
        path.line(&state)
    }
}

impl DevicePath {
    fn new(
        domain: &Arc<Domain>,
        context: &Context,
        access: DirectAccess,
        module: Option<&'static str>,
    ) -> Self {
        let mut state = State { way: DeviceWay::DmaBuf, why: Vec::new(), has_said: false };
        if let Some(far) = too_far(&domain.port, context) {
            state.stage(far);
        } else if !domain.port.memory.dma_buffers {
            state.fall(Indirect::BuffersForbidden);
        } else if !access.dma_buf {
            state.fall(Indirect::NoBuffers);
        } else if domain.port.functions.reg_dmabuf_mr.is_none() {
            state.fall(Indirect::OldLibrary);
        }
        let path = DevicePath {
            domain: Arc::clone(domain),
            context: context.clone(),
            access,
            module,
            state: Mutex::new(state),
            flush: OnceLock::new(),
        };
        let mut state = lock(&path.state);
        path.settle_on_peer_memory(&mut state);
        if state.way != DeviceWay::Staged && !path.reads() {
            state.why.push(Indirect::ReadsForbidden);
        }
        drop(state);
        path
    }

    /// Peer memory is not even tried where it cannot be.
    fn settle_on_peer_memory(&self, state: &mut State) {
        if state.way == DeviceWay::PeerMemory {
            match self.module {
                None => state.fall(Indirect::NoModule),
                Some(_) if !self.access.peer_memory => state.fall(Indirect::NotReachable),
                Some(_) => {}
            }
        }
    }

    /// Whether a read must come behind what the adapter writes there, for the device's work to see it.
    fn needs_reads(&self) -> bool {
        !self.access.is_ordered && !self.access.flushes
    }

    /// Whether the adapter may read memory of the device where it is.
    fn reads(&self) -> bool {
        self.domain.port.memory.reads_devices
    }

    fn flushing_reads(&self) -> &Result<Flush, String> {
        self.flush.get_or_init(|| Flush::new(&self.domain).map_err(|error| error.to_string()))
    }

    /// How peers may write to memory of the device.
    fn written(&self) -> Written {
        if self.needs_reads() { Written::ReadBack } else { Written::InOrder }
    }

    /// How peers' adapters reach this memory; none where they do not, or what they write could not be flushed.
    pub(super) fn exposed(
        &self,
        kept: &Registrations,
        memory: DeviceSpan,
    ) -> Result<Option<Arc<Registration>>, TransportError> {
        if self.needs_reads()
            && let Err(why) = self.flushing_reads()
        {
            let mut state = lock(&self.state);
            let why = Indirect::NoFlush { why: why.clone() };
            if !state.why.contains(&why) {
                state.why.push(why);
                state.has_said = false;
            }
            self.say(&mut state);
            return Ok(None);
        }
        self.registered(kept, memory, self.written())
    }

    /// How the adapter reaches this memory where it is; none where it goes through pinned memory.
    pub(super) fn registered(
        &self,
        kept: &Registrations,
        memory: DeviceSpan,
        by: Written,
    ) -> Result<Option<Arc<Registration>>, TransportError> {
        let (driver, start) = (self.context.driver(), memory.address());
        let is_forbidden = by == Written::Here && !self.reads();
        if is_forbidden || lock(&self.state).way == DeviceWay::Staged {
            self.say(&mut lock(&self.state));
            return Ok(None);
        }
        let what = "which allocation of the GPU an address is in";
        let id = driver.buffer_id(start).map_err(refused(what))?;
        let (base, bytes) = driver.address_range(start).map_err(refused(what))?;
        let whole = pages(&(base as usize..(base + bytes) as usize));
        let asked = start as usize..start as usize + memory.len();
        let is_there = |id, address| is_there(driver, id, address);
        let found =
            kept.of_device((id, by), (&asked, &whole), is_there, |range| self.register(&range, start, by));
        self.say(&mut lock(&self.state));
        Ok(found)
    }

    /// How it is reached at present.
    pub(super) fn way(&self) -> DeviceWay {
        lock(&self.state).way
    }

    /// Registers whole pages, of the allocation that an address is in.
    fn register(&self, range: &Range<usize>, inside: u64, by: Written) -> io::Result<Registration> {
        let mut state = lock(&self.state);
        if let Err(error) = self.context.synchronize_copies(inside) {
            state.stage(Indirect::NotSynchronous { why: error.to_string() });
        }
        loop {
            let registered = match state.way {
                DeviceWay::DmaBuf => self.by_buffer(range, by),
                DeviceWay::PeerMemory => self.by_address(range, by),
                DeviceWay::Staged => return Err(io::Error::from(io::ErrorKind::Unsupported)),
            };
            match registered {
                Ok(registration) => return Ok(registration),
                // Less of it may be registered.
                Err((_, error)) if matches!(error.raw_os_error(), Some(libc::ENOMEM | libc::EAGAIN)) => {
                    return Err(error);
                }
                Err((why, _)) => {
                    state.fall(why);
                    self.settle_on_peer_memory(&mut state);
                }
            }
        }
    }

    fn by_buffer(&self, range: &Range<usize>, by: Written) -> Result<Registration, (Indirect, io::Error)> {
        let none = || io::Error::from(io::ErrorKind::Unsupported);
        // SAFETY: the pages of an allocation that the caller keeps while the registration is used.
        let span = unsafe { DeviceSpan::from_raw(range.start as u64, range.len()) };
        let buffer = self
            .context
            .dma_buf(span)
            .map_err(|error| (Indirect::NoBufferGiven { why: error.to_string() }, none()))?;
        match self.domain.register_buffer(buffer.as_fd(), span.address(), range.len(), by) {
            Some(Ok(registration)) => Ok(registration),
            Some(Err(error)) => Err((Indirect::BufferNotTaken { why: error.to_string() }, error)),
            None => Err((Indirect::OldLibrary, none())),
        }
    }

    fn by_address(&self, range: &Range<usize>, by: Written) -> Result<Registration, (Indirect, io::Error)> {
        // SAFETY: memory of a device, which the caller keeps while the registration is used, and gives its peers to write.
        let registered = unsafe { self.domain.register_range(range.start as *mut u8, range.len(), by) };
        let module = self.module.unwrap_or("none");
        registered.map_err(|error| (Indirect::NotMapped { module, why: error.to_string() }, error))
    }

    /// What the adapter has written to the memory of this address and key is there for the device's work.
    pub(super) fn flush(&self, address: u64, key: u32) -> Result<(), TransportError> {
        if self.access.is_ordered {
            return Ok(());
        }
        if let (true, Ok(reads)) = (self.needs_reads(), self.flushing_reads()) {
            return reads.behind(address, key);
        }
        self.context.flush_direct_writes().map_err(refused("what the adapter has written to the GPU"))
    }

    fn line(&self, state: &State) -> String {
        let (gpu, port) = (&self.context.device().pci, self.domain.port.name());
        let flush = match state.way {
            DeviceWay::Staged => "",
            _ if self.access.is_ordered => ", without a flush",
            _ if self.access.flushes => ", with a flush by CUDA's driver behind what arrives",
            _ if matches!(self.flush.get(), Some(Err(_))) => ", outwards alone",
            _ => ", with a flush by a read behind what arrives",
        };
        let why: String = state.why.iter().map(|why| format!("; {why}")).collect();
        format!("{port} reaches the memory of the GPU {gpu} {}{flush}{why}", state.way.text())
    }

    fn say(&self, state: &mut State) {
        if !state.has_said {
            state.has_said = true;
            tracing::info!("{}", self.line(state));
        }
    }
}

impl State {
    /// To the next way.
    fn fall(&mut self, why: Indirect) {
        self.way = match self.way {
            DeviceWay::DmaBuf => DeviceWay::PeerMemory,
            DeviceWay::PeerMemory | DeviceWay::Staged => DeviceWay::Staged,
        };
        self.why.push(why);
        self.has_said = false;
    }

    /// To pinned memory at once.
    fn stage(&mut self, why: Indirect) {
        self.way = DeviceWay::Staged;
        self.why.push(why);
        self.has_said = false;
    }
}

/// Whether a device is farther away than memory is reached directly, as far as that is known.
fn too_far(port: &Port, context: &Context) -> Option<Indirect> {
    let level = port.memory.device_level?;
    let is_ranks = port.gpu.as_ref().is_some_and(|gpu| gpu.eq_ignore_ascii_case(&context.device().pci));
    let distance = if is_ranks { port.standing.distance.level() } else { None };
    let is_too_far = match distance {
        Some(distance) => distance > level,
        None => level == DeviceLevel::Loc,
    };
    let distance = distance.map(DeviceLevel::name);
    is_too_far.then(|| Indirect::TooFar { level: level.name(), distance })
}

/// Whether an address is still in the allocation of this number.
fn is_there(driver: &Driver, id: u64, address: usize) -> bool {
    driver.buffer_id(address as u64).is_ok_and(|now| now == id)
}
