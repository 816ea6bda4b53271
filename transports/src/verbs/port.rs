//! A port of an adapter: the open device, how others reach it, and memory that the device may use.
//!
//! Invariant: a region is registered for as long as its mapping lives, and the device stays open for as long as anything of it does.
//! Absent: finding ports, which of several is the best; queues.

use std::ffi::{c_int, c_uint};
use std::io;
use std::ops::Deref;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Arc;

use consort_memory::{ForkStamp, Mapping, Span, SpanMut};
use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit};

use super::NAME;
use super::choice::Standing;
use super::events::Events;
use super::library::Functions;
use super::options::{MemoryUse, RelaxedOrdering, Travel};
use super::sys::{
    ACCESS_LOCAL_WRITE, ACCESS_RELAXED_ORDERING, ACCESS_REMOTE_READ, ACCESS_REMOTE_WRITE, Context, Gid, Mr,
    Pd,
};
use crate::{AdapterTrouble, PortName, TransportError};

/// An open device.
pub(super) struct Opened {
    pub(super) functions: Functions,
    pub(super) context: *mut Context,
    pub(super) stamp: ForkStamp,
    /// Its name, for people.
    pub(super) device: String,
    pub(super) events: Events,
}

/// A port that carries traffic.
pub(super) struct Port {
    pub(super) opened: Arc<Opened>,
    pub(super) number: u8,
    pub(super) reach: Reach,
    /// How its packets travel.
    pub(super) travel: Travel,
    /// How it uses memory.
    pub(super) memory: MemoryUse,
    /// The PCI address of its rank's GPU, whose distance `standing` says.
    pub(super) gpu: Option<String>,
    /// How near it is to its rank, how fast it is, and its adapter.
    pub(super) standing: Standing,
}

/// How others reach a port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Reach {
    /// Its local id, on InfiniBand.
    pub(super) lid: u16,
    pub(super) gid: Gid,
    /// Where the port's table has that.
    pub(super) gid_index: u8,
    /// The longest packet, as the interface counts it.
    pub(super) mtu: u8,
    pub(super) is_ethernet: bool,
    /// Whether its packets must have a global route.
    pub(super) is_routed: bool,
}

// SAFETY: the library serialises what is called of a context, which lives until this is dropped, and nothing of this process changes
// what it points to.
unsafe impl Send for Opened {}
// SAFETY: the same.
unsafe impl Sync for Opened {}

impl Reach {
    /// Whether a port that is reached so can reach another one, as far as is known: of one link layer, and one family of addresses or one
    /// subnet.
    pub(super) fn reaches(&self, other: &Reach) -> bool {
        if self.is_ethernet != other.is_ethernet {
            return false;
        }
        if self.is_ethernet {
            return self.gid.ip().is_ipv4() == other.gid.ip().is_ipv4();
        }
        // A port without an address is reached by its local id alone.
        let is_known = self.gid != Gid::default() && other.gid != Gid::default();
        !is_known || self.gid.subnet() == other.gid.subnet()
    }
}

impl std::fmt::Debug for Port {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Port")
            .field("device", &self.device)
            .field("number", &self.number)
            .field("reach", &self.reach)
            .finish_non_exhaustive()
    }
}

impl Deref for Port {
    type Target = Opened;

    fn deref(&self) -> &Opened {
        &self.opened
    }
}

impl Port {
    /// Its device.
    pub(super) fn opened(&self) -> &Arc<Opened> {
        &self.opened
    }

    /// Whether its device has said that it is down.
    pub(super) fn is_down(&self) -> bool {
        self.events.is_down(self.number)
    }

    pub(super) fn name(&self) -> PortName {
        PortName { device: self.device.clone(), number: self.number }
    }
}

impl Opened {
    /// That this is a forked child, which must not use what its parent has made.
    ///
    /// # Errors
    /// [`AdapterTrouble::Forked`].
    pub(super) fn check_fork(&self) -> Result<(), TransportError> {
        if self.stamp.is_forked_child() {
            let device = self.device.clone();
            return Err(TransportError::adapter(NAME, AdapterTrouble::Forked { device }));
        }
        Ok(())
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        if !self.stamp.is_forked_child() {
            // SAFETY: opened by this process, and nothing that was made of it is left: each such thing holds the port.
            unsafe { (self.functions.close_device)(self.context) };
        }
    }
}

/// What the connections of one transport may use: their queue pairs take the keys of each other's memory.
pub(super) struct Domain {
    pub(super) pd: *mut Pd,
    pub(super) port: Arc<Port>,
}

// SAFETY: the library serialises what is called of a protection domain, which is only given back when nothing uses it.
unsafe impl Send for Domain {}
// SAFETY: the same.
unsafe impl Sync for Domain {}

impl Drop for Domain {
    fn drop(&mut self) {
        if !self.port.stamp.is_forked_child() {
            // SAFETY: made by this process; its regions and its queue pair, which hold it, are gone.
            unsafe { (self.port.functions.dealloc_pd)(self.pd) };
        }
    }
}

/// Who may write to registered memory.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Written {
    /// The peer, and this process.
    ByPeer,
    /// The peer, where the order of what is written is the driver's to keep: memory of a device.
    InOrder,
    /// The peer, and this process, which also has it read back by its own queue pair.
    ReadBack,
    /// The device, for this process.
    ByDevice,
    /// This process alone.
    Here,
}

impl Written {
    /// All of them.
    pub(super) const ALL: [Written; 5] =
        [Written::ByPeer, Written::InOrder, Written::ReadBack, Written::ByDevice, Written::Here];

    /// What the interface calls that.
    pub(super) fn access(self) -> c_int {
        match self {
            Written::ByPeer | Written::InOrder => ACCESS_LOCAL_WRITE | ACCESS_REMOTE_WRITE,
            Written::ReadBack => ACCESS_LOCAL_WRITE | ACCESS_REMOTE_WRITE | ACCESS_REMOTE_READ,
            Written::ByDevice => ACCESS_LOCAL_WRITE,
            Written::Here => 0,
        }
    }

    /// Whether what the adapter writes there, or reads, may pass on the bus what went before: what looks there has seen the completion
    /// of a message behind it, and completions pass nothing. For memory of devices, which completions do not go to, the driver's word
    /// about the order of writes holds.
    fn may_be_relaxed(self) -> bool {
        matches!(self, Written::ByPeer | Written::Here)
    }
}

impl Domain {
    /// # Errors
    /// The system's.
    pub(super) fn new(port: &Arc<Port>) -> Result<Arc<Self>, TransportError> {
        // SAFETY: an open context.
        let pd = unsafe { (port.functions.alloc_pd)(port.context) };
        if port.memory.relaxed_ordering == RelaxedOrdering::Asked && port.functions.reg_mr_iova2.is_none() {
            tracing::warn!(
                device = port.device,
                "NCCL_IB_PCI_RELAXED_ORDERING is 1, and libibverbs has no ibv_reg_mr_iova2; install rdma-core 28 or newer"
            );
        }
        if pd.is_null() {
            return Err(TransportError::system(NAME, "ibv_alloc_pd", io::Error::last_os_error()));
        }
        Ok(Arc::new(Domain { pd, port: Arc::clone(port) }))
    }

    /// Memory of another owner that the device may use.
    ///
    /// # Errors
    /// The system's.
    ///
    /// # Safety
    /// Where peers may write there, the memory must be another party's to write for as long as the registration lives. What is posted
    /// by its keys goes to and from the pages that were mapped at the call, which the kernel keeps.
    pub(super) unsafe fn register_range(
        self: &Arc<Self>,
        start: *mut u8,
        bytes: usize,
        by: Written,
    ) -> io::Result<Registration> {
        let access = by.access() | self.relaxes(by);
        let mr = match self.port.functions.reg_mr_iova2 {
            // SAFETY: the port's protection domain; the kernel checks the addresses.
            Some(register) if access & ACCESS_RELAXED_ORDERING != 0 => unsafe {
                register(self.pd, start.cast(), bytes, start as u64, access as c_uint)
            },
            // SAFETY: the same.
            _ => unsafe { (self.port.functions.reg_mr)(self.pd, start.cast(), bytes, access) },
        };
        self.registration(mr)
    }

    /// A DMA buffer of another device, which stands at `start` for this one; none where the library knows no such buffers.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn register_buffer(
        self: &Arc<Self>,
        buffer: BorrowedFd<'_>,
        start: u64,
        bytes: usize,
        by: Written,
    ) -> Option<io::Result<Registration>> {
        let register = self.port.functions.reg_dmabuf_mr?;
        // SAFETY: the port's protection domain and an open descriptor; the kernel checks what it is of, and keeps it.
        let mr =
            unsafe { register(self.pd, 0, bytes, start, buffer.as_raw_fd(), by.access() | self.relaxes(by)) };
        Some(self.registration(mr))
    }

    /// The access that lets writes pass each other, where that is asked for, can be had, and does no harm.
    fn relaxes(&self, by: Written) -> c_int {
        let is_asked = self.port.memory.relaxed_ordering != RelaxedOrdering::Never;
        let can = self.port.functions.reg_mr_iova2.is_some();
        if is_asked && can && by.may_be_relaxed() { ACCESS_RELAXED_ORDERING } else { 0 }
    }

    /// What a device gave for memory, or why it did not.
    fn registration(self: &Arc<Self>, mr: *mut Mr) -> io::Result<Registration> {
        if mr.is_null() {
            return Err(io::Error::last_os_error());
        }
        Ok(Registration { mr, domain: Arc::clone(self) })
    }

    /// Why it could not be, with what to do about that.
    pub(super) fn unregistered(&self, bytes: usize, source: io::Error) -> TransportError {
        let limit = getrlimit(Resource::RLIMIT_MEMLOCK).map_or(RLIM_INFINITY, |(soft, _)| soft);
        unregistered(&self.port.device, bytes, limit, source)
    }
}

/// Why a device could not register `needed_bytes`, in a process that may lock `limit_bytes`.
fn unregistered(device: &str, needed_bytes: usize, limit_bytes: u64, source: io::Error) -> TransportError {
    let is_memory = matches!(source.raw_os_error(), Some(libc::ENOMEM | libc::EAGAIN));
    if !is_memory {
        return TransportError::system(NAME, "ibv_reg_mr", source);
    }
    if limit_bytes == RLIM_INFINITY {
        let what = "memory that the adapter can use";
        return TransportError::OutOfMemory { transport: NAME, needed_bytes, what, source };
    }
    let device = device.to_owned();
    TransportError::adapter(NAME, AdapterTrouble::LockedMemory { device, needed_bytes, limit_bytes })
}

/// Memory that a device knows by its keys, whichever owner it has.
pub(super) struct Registration {
    mr: *mut Mr,
    domain: Arc<Domain>,
}

// SAFETY: the registration is only read after it was made, and given back once.
unsafe impl Send for Registration {}
// SAFETY: the same.
unsafe impl Sync for Registration {}

impl Registration {
    /// By which key this side's device may use it, and by which the peer's may.
    pub(super) fn keys(&self) -> (u32, u32) {
        // SAFETY: registered until it is dropped.
        unsafe { ((*self.mr).lkey, (*self.mr).rkey) }
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        let port = &self.domain.port;
        if port.stamp.is_forked_child() {
            return;
        }
        // SAFETY: registered by this process, and given back once.
        let code = unsafe { (port.functions.dereg_mr)(self.mr) };
        if code != 0 {
            tracing::warn!(device = port.device, code, "memory of an RDMA device could not be given back");
        }
    }
}

/// Memory that the devices of some ports may use.
pub(super) struct Region {
    /// One for each port; before the mapping, which they need.
    registrations: Vec<Registration>,
    mapping: Mapping,
}

impl std::fmt::Debug for Region {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Region").field("bytes", &self.mapping.bytes()).finish_non_exhaustive()
    }
}

impl Region {
    /// # Errors
    /// The system's, with what to do where it may not lock so much memory.
    pub(super) fn new(
        domains: &[Arc<Domain>],
        mapping: Mapping,
        by: Written,
    ) -> Result<Arc<Self>, TransportError> {
        let (start, bytes) = (mapping.span(0, mapping.bytes()).as_mut_ptr(), mapping.bytes());
        let registered = |domain: &Arc<Domain>| {
            // SAFETY: a mapping that outlives its registrations (fields of `Region` in this order).
            let registered = unsafe { domain.register_range(start, bytes, by) };
            registered.map_err(|source| domain.unregistered(bytes, source))
        };
        let registrations = domains.iter().map(registered).collect::<Result<_, _>>()?;
        Ok(Arc::new(Region { registrations, mapping }))
    }

    pub(super) fn bytes(&self) -> usize {
        self.mapping.bytes()
    }

    pub(super) fn span(&self, offset: usize, bytes: usize) -> SpanMut<'_> {
        self.mapping.span(offset, bytes)
    }

    pub(super) fn read(&self, offset: usize, bytes: usize) -> Span<'_> {
        self.span(offset, bytes).read()
    }

    /// Where a byte of it is, as the devices know it.
    pub(super) fn address(&self, offset: usize) -> u64 {
        self.span(offset, 0).as_mut_ptr() as u64
    }

    /// By which key the device of one of its ports may use it, and by which that port's peers may.
    pub(super) fn keys(&self, port: usize) -> (u32, u32) {
        self.registrations[port].keys()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_cannot_be_registered_is_said_with_the_limit_where_that_may_be_why() {
        let why = |error, limit| unregistered("mlx5_0", 6144, limit, io::Error::from_raw_os_error(error));
        for error in [libc::ENOMEM, libc::EAGAIN] {
            let text = why(error, 8 << 20).to_string();
            for part in
                ["mlx5_0", "6144 bytes", "8388608", "ulimit -l unlimited", "memlock=-1", "LimitMEMLOCK"]
            {
                assert!(text.contains(part), "{part}: {text}");
            }
            assert!(matches!(why(error, RLIM_INFINITY), TransportError::OutOfMemory { .. }));
        }
        assert!(matches!(why(libc::EINVAL, 8 << 20), TransportError::System { call: "ibv_reg_mr", .. }));
    }
}
