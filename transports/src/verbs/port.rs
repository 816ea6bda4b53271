//! A port of an adapter: the open device, how others reach it, and memory that the device may use.
//!
//! Invariant: a region is registered for as long as its mapping lives, and the device stays open for as long as anything of it does.
//! Absent: which of several ports is the best; queues.

use std::ffi::CStr;
use std::io;
use std::sync::Arc;

use consort_memory::{ForkStamp, Mapping, Span, SpanMut};

use super::NAME;
use super::library::Functions;
use super::sys::{
    self, ACCESS_LOCAL_WRITE, ACCESS_REMOTE_WRITE, Context, GID_ROCE_V2, Gid, GidEntry, LINK_LAYER_ETHERNET,
    LINK_LAYER_INFINIBAND, Mr, PORT_ACTIVE, PORT_GRH_REQUIRED, Pd, PortAttr, TRANSPORT_IB,
};
use crate::TransportError;

/// Ports of one device that are looked at.
const PORTS_MAX: u8 = 4;

/// A port that carries traffic.
pub(super) struct Port {
    pub(super) functions: Functions,
    pub(super) context: *mut Context,
    pub(super) stamp: ForkStamp,
    /// The device's name, for people.
    pub(super) device: String,
    pub(super) number: u8,
    pub(super) reach: Reach,
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

// SAFETY: the library serialises what is called of a context and of a protection domain; both live until the port is dropped, and
// nothing of this process changes what they point to.
unsafe impl Send for Port {}
// SAFETY: the same.
unsafe impl Sync for Port {}

impl std::fmt::Debug for Port {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Port")
            .field("device", &self.device)
            .field("number", &self.number)
            .field("reach", &self.reach)
            .finish_non_exhaustive()
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        if !self.stamp.is_forked_child() {
            // SAFETY: opened by this process, and nothing that was made of it is left: each such thing holds the port.
            unsafe { (self.functions.close_device)(self.context) };
        }
    }
}

/// What one connection may use: its queue pair takes no key of another's memory.
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
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Written {
    /// The peer, and this process.
    ByPeer,
    /// This process alone.
    Here,
}

impl Domain {
    /// # Errors
    /// The system's.
    pub(super) fn new(port: &Arc<Port>) -> Result<Arc<Self>, TransportError> {
        // SAFETY: an open context.
        let pd = unsafe { (port.functions.alloc_pd)(port.context) };
        if pd.is_null() {
            return Err(TransportError::system(NAME, "ibv_alloc_pd", io::Error::last_os_error()));
        }
        Ok(Arc::new(Domain { pd, port: Arc::clone(port) }))
    }

    /// Memory that the device may use.
    ///
    /// # Errors
    /// The system's, with what to do where it may not lock so much memory.
    pub(super) fn register(
        self: &Arc<Self>,
        mapping: Mapping,
        by: Written,
    ) -> Result<Region, TransportError> {
        let start = mapping.span(0, mapping.bytes()).as_mut_ptr();
        let access = match by {
            Written::ByPeer => ACCESS_LOCAL_WRITE | ACCESS_REMOTE_WRITE,
            Written::Here => 0,
        };
        // SAFETY: a mapping that outlives its registration (fields of `Region` in this order).
        let mr = unsafe { (self.port.functions.reg_mr)(self.pd, start.cast(), mapping.bytes(), access) };
        if !mr.is_null() {
            return Ok(Region { mr, domain: Arc::clone(self), mapping });
        }
        let source = io::Error::last_os_error();
        match source.raw_os_error() {
            Some(libc::ENOMEM | libc::EAGAIN) => {
                let what = "registered memory: raise the limit of locked memory (ulimit -l)";
                Err(TransportError::OutOfMemory {
                    transport: NAME,
                    needed_bytes: mapping.bytes(),
                    what,
                    source,
                })
            }
            _ => Err(TransportError::system(NAME, "ibv_reg_mr", source)),
        }
    }
}

impl Port {
    /// The first port that is active, of the first device that has one; none where no device has.
    ///
    /// # Errors
    /// What the system says where it lists no devices, or why those that there are cannot be used.
    pub(super) fn first(functions: Functions) -> Result<Option<Arc<Port>>, TransportError> {
        let mut count = 0;
        // SAFETY: the library writes the number there, and gives a list of as many devices, or null.
        let list = unsafe { (functions.get_device_list)(&raw mut count) };
        if list.is_null() {
            return Err(TransportError::system(NAME, "ibv_get_device_list", io::Error::last_os_error()));
        }
        let mut found = Ok(None);
        for at in 0..usize::try_from(count).unwrap_or(0) {
            // SAFETY: inside the list, whose devices stay until it is freed.
            let device = unsafe { *list.add(at) };
            match Self::first_of(functions, device) {
                Ok(None) => {}
                Ok(Some(port)) => {
                    found = Ok(Some(Arc::new(port)));
                    break;
                }
                Err(error) => found = Err(error),
            }
        }
        // SAFETY: the list, once; what was opened of its devices stays.
        unsafe { (functions.free_device_list)(list) };
        found
    }

    /// The first port of a device that is active.
    fn first_of(functions: Functions, device: *mut sys::Device) -> Result<Option<Port>, TransportError> {
        // SAFETY: a device of the list.
        if unsafe { (*device).transport_type } != TRANSPORT_IB {
            return Ok(None);
        }
        // SAFETY: a name of the device, which ends with a zero.
        let name = unsafe { CStr::from_ptr((*device).name.as_ptr()) }.to_string_lossy().into_owned();
        for number in 1..=PORTS_MAX {
            let opened = Self::open(functions, device, &name, number).inspect_err(|error| {
                tracing::warn!(device = name, port = number, %error, "an RDMA device is not used");
            })?;
            if opened.is_some() {
                return Ok(opened);
            }
        }
        Ok(None)
    }

    /// A port, where there is such a one and it is active.
    fn open(
        functions: Functions,
        device: *mut sys::Device,
        name: &str,
        number: u8,
    ) -> Result<Option<Port>, TransportError> {
        let failed = |call| TransportError::system(NAME, call, io::Error::last_os_error());
        // SAFETY: a device of the list.
        let context = unsafe { (functions.open_device)(device) };
        if context.is_null() {
            return Err(failed("ibv_open_device"));
        }
        let close = || {
            // SAFETY: opened above, and not used any more.
            unsafe { (functions.close_device)(context) };
        };
        let mut attr = PortAttr::default();
        // SAFETY: an open context; the older form of the structure that this function fills is the beginning of ours.
        let known = unsafe { (functions.query_port)(context, number, &raw mut attr) };
        let is_known = [0, LINK_LAYER_INFINIBAND, LINK_LAYER_ETHERNET].contains(&attr.link_layer);
        if known != 0 || attr.state != PORT_ACTIVE || !is_known {
            close();
            return Ok(None);
        }
        let is_ethernet = attr.link_layer == LINK_LAYER_ETHERNET;
        let Some((gid_index, gid)) =
            choose(&addresses(functions, context, number, attr.gid_tbl_len), is_ethernet)
        else {
            close();
            return Err(TransportError::system(
                NAME,
                "choosing an address of the port",
                io::Error::other(
                    "its table has none that RoCE version 2 can use from this network namespace",
                ),
            ));
        };
        let stamp = match ForkStamp::new() {
            Ok(stamp) => stamp,
            Err(error) => {
                close();
                return Err(TransportError::memory(NAME, error));
            }
        };
        let reach = Reach {
            lid: attr.lid,
            gid,
            gid_index,
            mtu: attr.active_mtu as u8,
            is_ethernet,
            is_routed: attr.flags & PORT_GRH_REQUIRED != 0,
        };
        Ok(Some(Port { functions, context, stamp, device: name.to_owned(), number, reach }))
    }
}

/// The entries of a port's table of addresses that are in use: index, address, and whether it is one of RoCE version 2.
fn addresses(functions: Functions, context: *mut Context, port: u8, entries: i32) -> Vec<(u8, Gid, bool)> {
    let mut found = Vec::new();
    for index in 0..u8::try_from(entries).unwrap_or(u8::MAX) {
        let mut entry = GidEntry::default();
        let known = match functions.query_gid_ex {
            // SAFETY: an open context, and a structure of the length that is said.
            Some(query) => unsafe {
                query(context, port.into(), index.into(), &raw mut entry, 0, size_of::<GidEntry>())
            },
            // An older library: of two entries with one address the second is of version 2.
            None => {
                entry.gid_type = GID_ROCE_V2;
                // SAFETY: an open context.
                unsafe { (functions.query_gid)(context, port, index.into(), &raw mut entry.gid) }
            }
        };
        if known == 0 && entry.gid != Gid::default() {
            found.push((index, entry.gid, entry.gid_type == GID_ROCE_V2));
        }
    }
    found
}

/// The address by which a port is to be reached: on InfiniBand its first one; on Ethernet one of RoCE version 2, that of an IPv4
/// address rather than another, and one that routers know rather than a link's own.
fn choose(addresses: &[(u8, Gid, bool)], is_ethernet: bool) -> Option<(u8, Gid)> {
    if !is_ethernet {
        return Some(addresses.first().map_or((0, Gid::default()), |(index, gid, _)| (*index, *gid)));
    }
    let rank = |gid: &Gid| match gid.0 {
        [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 169, 254, ..] => 2,
        [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, ..] => 0,
        [0xfe, second, ..] if second & 0xc0 == 0x80 => 3,
        _ => 1,
    };
    // Of equals the last: an older library says of both entries of an address that they are of version 2.
    let usable = addresses.iter().rev().filter(|(.., is_second)| *is_second);
    usable.min_by_key(|(_, gid, _)| rank(gid)).map(|(index, gid, _)| (*index, *gid))
}

/// Registered memory.
pub(super) struct Region {
    mr: *mut Mr,
    mapping: Mapping,
    domain: Arc<Domain>,
}

// SAFETY: the registration is only read after it was made, and given back once.
unsafe impl Send for Region {}
// SAFETY: the same.
unsafe impl Sync for Region {}

impl std::fmt::Debug for Region {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Region").field("bytes", &self.mapping.bytes()).finish_non_exhaustive()
    }
}

impl Region {
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

    /// By which key this side's device may use it, and by which the peer's may.
    pub(super) fn keys(&self) -> (u32, u32) {
        // SAFETY: registered until it is dropped.
        unsafe { ((*self.mr).lkey, (*self.mr).rkey) }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        let port = &self.domain.port;
        if port.stamp.is_forked_child() {
            return;
        }
        // SAFETY: registered by this process, and given back once, before the mapping goes.
        let code = unsafe { (port.functions.dereg_mr)(self.mr) };
        if code != 0 {
            tracing::warn!(device = port.device, code, "memory of an RDMA device could not be given back");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_reached_by_the_address_that_goes_farthest() {
        let v4 = |a, b| Gid([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, 0, 1]);
        let local = Gid([0xfe, 0x80, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 1]);
        let routed = Gid([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
        let table = [
            (0, local, false),
            (1, local, true),
            (2, v4(10, 0), false),
            (3, v4(10, 0), true),
            (4, routed, true),
        ];
        assert_eq!(choose(&table, true), Some((3, v4(10, 0))));
        assert_eq!(choose(&[table[1], table[4]], true), Some((4, routed)));
        assert_eq!(choose(&[table[1], (5, v4(169, 254), true)], true), Some((5, v4(169, 254))));
        assert_eq!(choose(&table[..1], true), None, "version 1 alone");
        assert_eq!(choose(&table, false), Some((0, local)));
        assert_eq!(choose(&[], false), Some((0, Gid::default())));
    }
}
