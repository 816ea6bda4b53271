//! Which ports there are: every active one of every device that may be used, in the order in which a rank takes them.
//!
//! Invariant: a device is opened once for all its ports, and only where one of them may be used. Where no port can be used, the error
//! says why, and what to do. Absent: what is done with a port.

use std::ffi::CStr;
use std::io;
use std::sync::Arc;

use consort_memory::ForkStamp;

use super::NAME;
use super::choice::{Distance, Near, Standing, order};
use super::gid;
use super::library::Functions;
use super::options::RdmaOptions;
use super::port::{Opened, Port, Reach};
use super::sys::{
    Device, LINK_LAYER_ETHERNET, LINK_LAYER_INFINIBAND, PORT_ACTIVE, PORT_GRH_REQUIRED, PortAttr,
    TRANSPORT_IB,
};
use super::sysfs::{Placement, Sysfs};
use crate::{AdapterTrouble, PortName, TransportError};

/// Ports of one device that are looked at.
const PORTS_MAX: u8 = 4;

/// What was found while looking.
#[derive(Default)]
struct Findings {
    ports: Vec<Port>,
    /// Names of the devices that the library lists.
    devices: Vec<String>,
    /// Ports that are not active, each with its state.
    idle: Vec<String>,
    /// Why the first device or port that cannot be used cannot.
    trouble: Option<TransportError>,
}

/// Looks for ports.
pub(super) struct Search<'a> {
    pub(super) functions: Functions,
    pub(super) sysfs: &'a Sysfs,
    pub(super) options: &'a RdmaOptions,
    pub(super) near: &'a Near,
}

/// The list of the library's devices, given back when it is dropped.
struct Devices {
    functions: Functions,
    list: *mut *mut Device,
    count: usize,
}

impl Devices {
    fn list(functions: Functions) -> Result<Self, TransportError> {
        let mut count = 0;
        // SAFETY: the library writes the number there, and gives a list of as many devices, or null.
        let list = unsafe { (functions.get_device_list)(&raw mut count) };
        if list.is_null() {
            let error = io::Error::last_os_error();
            // What a kernel without RDMA says.
            if error.raw_os_error() == Some(libc::ENOSYS) {
                return Ok(Devices { functions, list, count: 0 });
            }
            return Err(TransportError::system(NAME, "ibv_get_device_list", error));
        }
        Ok(Devices { functions, list, count: usize::try_from(count).unwrap_or(0) })
    }

    fn each(&self) -> impl Iterator<Item = *mut Device> {
        // SAFETY: inside the list, whose devices stay until it is freed.
        (0..self.count).map(|at| unsafe { *self.list.add(at) })
    }
}

impl Drop for Devices {
    fn drop(&mut self) {
        if !self.list.is_null() {
            // SAFETY: the list, once; what was opened of its devices stays.
            unsafe { (self.functions.free_device_list)(self.list) };
        }
    }
}

/// A state of a port, as the tools name it.
fn state(state: u32) -> &'static str {
    match state {
        1 => "down",
        2 => "initialising",
        3 => "armed",
        4 => "active",
        5 => "deferred",
        _ => "in an unknown state",
    }
}

/// Megabits per second of a lane's speed and a number of lanes, as the interface counts them; 0 where they are unknown.
fn speed_mbit_s(speed: u8, width: u8) -> u64 {
    let lane = match speed {
        1 => 2_500,
        2 => 5_000,
        4 | 8 => 10_000,
        16 => 14_000,
        32 => 25_000,
        64 => 50_000,
        128 => 100_000,
        _ => 0,
    };
    let lanes = match width {
        1 => 1,
        2 => 4,
        4 => 8,
        8 => 12,
        16 => 2,
        _ => 0,
    };
    lane * lanes
}

impl Search<'_> {
    /// The ports that can be used, the best first; at least one.
    ///
    /// # Errors
    /// Why there is none.
    pub(super) fn ports(&self) -> Result<Vec<Arc<Port>>, TransportError> {
        let devices = Devices::list(self.functions)?;
        let gpu = self.near.device.as_deref().map(|address| self.sysfs.place_of_pci(address));
        let mut findings = Findings::default();
        for device in devices.each() {
            self.look_at(device, gpu.as_ref(), &mut findings);
        }
        if findings.ports.is_empty() {
            return Err(self.why_none(findings));
        }
        let standings: Vec<&Standing> = findings.ports.iter().map(|port| &port.standing).collect();
        let order = order(&standings, self.near.turn);
        let mut ports: Vec<Option<Port>> = findings.ports.into_iter().map(Some).collect();
        Ok(order.into_iter().filter_map(|at| ports[at].take()).map(Arc::new).collect())
    }

    fn look_at(&self, device: *mut Device, gpu: Option<&Placement>, findings: &mut Findings) {
        // SAFETY: names of the device, which end with a zero.
        let [name, node] = unsafe { [&(*device).name, &(*device).dev_name] }.map(|text| {
            // SAFETY: the same.
            unsafe { CStr::from_ptr(text.as_ptr()) }.to_string_lossy().into_owned()
        });
        findings.devices.push(name.clone());
        // SAFETY: a device of the list.
        if unsafe { (*device).transport_type } != TRANSPORT_IB {
            findings.idle.push(format!("{name} has neither InfiniBand nor RoCE"));
            return;
        }
        let wanted: Vec<u8> = (1..=PORTS_MAX).filter(|port| (self.options.ports)(&name, *port)).collect();
        if wanted.is_empty() {
            return;
        }
        let trouble = |findings: &mut Findings, error: TransportError| {
            tracing::warn!(device = name, %error, "an RDMA device or a port of it is not used");
            findings.trouble.get_or_insert(error);
        };
        let opened = match self.open(device, &name, &node) {
            Ok(opened) => Arc::new(opened),
            Err(error) => return trouble(findings, error),
        };
        let place = self.sysfs.place(&name);
        for number in wanted {
            match self.port(&opened, number, &place, gpu) {
                Ok(Some(port)) => {
                    self.say(&port, place.node);
                    findings.ports.push(port);
                }
                Ok(None) => {
                    let known = self.attributes(&opened, number);
                    findings.idle.extend(known.map(|attr| {
                        let port = PortName { device: name.clone(), number };
                        format!("{port} is {}", state(attr.state))
                    }));
                }
                Err(error) => trouble(findings, error),
            }
        }
    }

    /// Says what is known of a port.
    fn say(&self, port: &Port, node: Option<u32>) {
        let Reach { lid, gid, gid_index, mtu, is_ethernet, .. } = port.reach;
        let interface =
            if is_ethernet { self.sysfs.interface(&port.device, port.number, gid_index) } else { None };
        let is_bond = interface.as_deref().is_some_and(|name| self.sysfs.is_bond(name));
        tracing::debug!(
            device = port.device,
            port = port.number,
            is_ethernet,
            lid,
            address = %gid,
            gid_index,
            interface,
            is_bond,
            mtu_bytes = 128u32.checked_shl(mtu.into()),
            speed_mbit_s = port.standing.speed_mbit_s,
            adapter = port.standing.adapter,
            node,
            distance = ?port.standing.distance,
            "a port of RDMA"
        );
    }

    fn open(&self, device: *mut Device, name: &str, node: &str) -> Result<Opened, TransportError> {
        let stamp = ForkStamp::new().map_err(|error| TransportError::memory(NAME, error))?;
        let functions = self.functions;
        // SAFETY: a device of the list.
        let context = unsafe { (functions.open_device)(device) };
        if context.is_null() {
            return Err(self.unopened(name, node, io::Error::last_os_error()));
        }
        let opened = Opened { functions, context, stamp, device: name.into(), events: Default::default() };
        opened.quieten()?;
        Ok(opened)
    }

    /// Why a device could not be opened.
    fn unopened(&self, device: &str, node: &str, error: io::Error) -> TransportError {
        let (path, is_there) = self.sysfs.node(node);
        let device = device.to_owned();
        match error.raw_os_error() {
            Some(libc::EACCES | libc::EPERM) => TransportError::adapter(
                NAME,
                AdapterTrouble::NoPermission { device, node: path, why: error.to_string() },
            ),
            Some(libc::ENOENT | libc::ENXIO | libc::ENODEV) if !is_there => {
                TransportError::adapter(NAME, AdapterTrouble::NoNode { devices: device, node: path })
            }
            _ => TransportError::system(NAME, "ibv_open_device", error),
        }
    }

    /// What is known of a port; none where the device has no such one.
    fn attributes(&self, opened: &Opened, number: u8) -> Option<PortAttr> {
        let mut attr = PortAttr::default();
        // SAFETY: an open context; the older form of the structure that this function fills is the beginning of ours.
        let known = unsafe { (self.functions.query_port)(opened.context, number, &raw mut attr) };
        (known == 0).then_some(attr)
    }

    /// A port, where there is such a one and it is active.
    fn port(
        &self,
        opened: &Arc<Opened>,
        number: u8,
        place: &Placement,
        gpu: Option<&Placement>,
    ) -> Result<Option<Port>, TransportError> {
        let Some(attr) = self.attributes(opened, number) else { return Ok(None) };
        let is_known = [0, LINK_LAYER_INFINIBAND, LINK_LAYER_ETHERNET].contains(&attr.link_layer);
        if attr.state != PORT_ACTIVE || !is_known {
            return Ok(None);
        }
        let is_ethernet = attr.link_layer == LINK_LAYER_ETHERNET;
        let device = opened.device.as_str();
        let table = (attr.gid_tbl_len, is_ethernet);
        let entries = gid::entries(self.functions, opened.context, self.sysfs, (device, number), table);
        let chosen = gid::choose(&entries, is_ethernet, &self.options.addresses).map_err(|entries| {
            let port = PortName { device: device.into(), number };
            TransportError::adapter(NAME, AdapterTrouble::NoAddress { port, entries })
        })?;
        if let Some(entry) = chosen
            && matches!(entry.reachable, super::sysfs::Reachable::No(_))
        {
            tracing::warn!(
                device,
                port = number,
                "the address that NCCL_IB_GID_INDEX names may not work: {entry}"
            );
        }
        let reach = Reach {
            lid: attr.lid,
            gid: chosen.map(|entry| entry.gid).unwrap_or_default(),
            gid_index: chosen.map_or(0, |entry| entry.index),
            mtu: attr.active_mtu as u8,
            is_ethernet,
            is_routed: attr.flags & PORT_GRH_REQUIRED != 0,
        };
        let said = self.sysfs.speed_mbit_s(device, number).unwrap_or(0);
        let standing = Standing {
            distance: Distance::between(gpu, self.near.node, place),
            speed_mbit_s: speed_mbit_s(attr.active_speed, attr.active_width).max(said),
            adapter: place.adapter().unwrap_or(device).to_owned(),
        };
        Ok(Some(Port {
            opened: Arc::clone(opened),
            number,
            reach,
            travel: self.options.travel,
            memory: self.options.memory,
            gpu: self.near.device.clone(),
            standing,
        }))
    }

    /// Why no port can be used.
    fn why_none(&self, findings: Findings) -> TransportError {
        let Findings { devices, idle, trouble, .. } = findings;
        let adapter = |trouble| TransportError::adapter(NAME, trouble);
        let of_kernel = self.sysfs.devices().join(", ");
        if devices.is_empty() {
            let (node, _) = self.sysfs.node("uverbs0");
            return adapter(if of_kernel.is_empty() {
                AdapterTrouble::NoDevice
            } else if self.sysfs.has_nodes() {
                AdapterTrouble::NoProvider { devices: of_kernel }
            } else {
                AdapterTrouble::NoNode { devices: of_kernel, node }
            });
        }
        if let Some(error) = trouble {
            return error;
        }
        if idle.is_empty() && !self.options.ports_asked.is_empty() {
            let example = format!("{}:1", devices[0]);
            let asked = self.options.ports_asked.clone();
            return adapter(AdapterTrouble::NoneAsked { asked, devices: devices.join(", "), example });
        }
        let ports =
            if idle.is_empty() { format!("{} has none", devices.join(", ")) } else { idle.join(", ") };
        adapter(AdapterTrouble::NoActivePort { ports })
    }
}

#[cfg(test)]
mod tests {
    use super::speed_mbit_s;

    #[test]
    fn speeds_are_those_of_lanes_times_lanes() {
        assert_eq!(speed_mbit_s(128, 2), 400_000, "NDR of four lanes");
        assert_eq!(speed_mbit_s(64, 16), 100_000, "HDR of two lanes");
        assert_eq!(speed_mbit_s(32, 2), 100_000, "EDR");
        assert_eq!(speed_mbit_s(1, 1), 2_500);
        assert_eq!(speed_mbit_s(0, 2), 0);
        assert_eq!(speed_mbit_s(128, 0), 0);
    }
}
