//! What the kernel says of RDMA devices below a root (`/`, or a test's), and of the interfaces of this network namespace.
//!
//! Invariant: nothing outside of the root is read; what cannot be read is unknown, and no error. Absent: what follows from it.

use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use nix::ifaddrs::getifaddrs;
use nix::net::if_::InterfaceFlags;

use super::sys::Gid;

const DEVICES: &str = "sys/class/infiniband";
const NODES: &str = "dev/infiniband";
const PCI: &str = "sys/bus/pci/devices";
const INTERFACES: &str = "sys/class/net";

/// An interface of this network namespace.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Interface {
    pub(super) name: String,
    pub(super) is_up: bool,
    pub(super) addresses: Vec<IpAddr>,
}

/// Where a device is in the machine.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(super) struct Placement {
    /// The way to it, from the root of PCI on.
    pub(super) path: Option<String>,
    /// Its memory node.
    pub(super) node: Option<u32>,
}

impl Placement {
    /// The PCI addresses on the way to it, its own last; none where the device is of no PCI.
    pub(super) fn buses(&self) -> impl Iterator<Item = &str> {
        self.path.iter().flat_map(|path| path.split('/')).filter(|part| is_bus(part))
    }

    /// The adapter: functions of one have the same address but for what is behind the point.
    pub(super) fn adapter(&self) -> Option<&str> {
        self.buses().last().and_then(|bus| bus.rsplit_once('.')).map(|(adapter, _)| adapter)
    }
}

/// `0000:65:00.0`.
fn is_bus(part: &str) -> bool {
    let is_hex = |text: &str, digits| text.len() == digits && text.bytes().all(|c| c.is_ascii_hexdigit());
    let Some((head, function)) = part.rsplit_once('.') else { return false };
    let mut fields = head.rsplit(':');
    let [device, bus, domain] = [fields.next(), fields.next(), fields.next()];
    is_hex(function, 1)
        && device.is_some_and(|text| is_hex(text, 2))
        && bus.is_some_and(|text| is_hex(text, 2))
        && domain.is_some_and(|text| text.len() >= 4 && is_hex(text, text.len()))
        && fields.next().is_none()
}

/// Whether a port can send from an address.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Reachable {
    Yes,
    Unknown,
    /// What is against it.
    No(String),
}

/// The files of a system, and the interfaces of a namespace.
pub(super) struct Sysfs {
    root: PathBuf,
    /// None where the kernel does not list them.
    interfaces: Option<Vec<Interface>>,
}

impl Sysfs {
    /// This system's.
    pub(super) fn system() -> Self {
        Self::below("/", interfaces())
    }

    /// Those below a root.
    pub(super) fn below(root: impl Into<PathBuf>, interfaces: Option<Vec<Interface>>) -> Self {
        Sysfs { root: root.into(), interfaces }
    }

    fn text(&self, path: &str) -> Option<String> {
        fs::read_to_string(self.root.join(path)).ok().map(|text| text.trim().to_owned())
    }

    fn names(&self, path: &str) -> Vec<String> {
        let entries = fs::read_dir(self.root.join(path)).into_iter().flatten().flatten();
        let mut names: Vec<String> =
            entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    /// The names of all devices, also of those that the library does not know.
    pub(super) fn devices(&self) -> Vec<String> {
        self.names(DEVICES)
    }

    /// The node of a device by the name that the library has for it (`uverbs0`), and whether it is there.
    pub(super) fn node(&self, name: &str) -> (String, bool) {
        let path = format!("{NODES}/{name}");
        let is_there = self.root.join(&path).exists();
        (format!("/{path}"), is_there)
    }

    /// Whether any node of a device is there.
    pub(super) fn has_nodes(&self) -> bool {
        self.names(NODES).iter().any(|name| name.starts_with("uverbs"))
    }

    fn resolved(&self, path: &str) -> Option<String> {
        let root = fs::canonicalize(&self.root).ok()?;
        let resolved = fs::canonicalize(self.root.join(path)).ok()?;
        resolved.strip_prefix(root).ok().map(Path::to_string_lossy).map(|path| path.into_owned())
    }

    fn placement(&self, path: &str) -> Placement {
        let node = self.text(&format!("{path}/numa_node")).and_then(|text| text.parse().ok());
        Placement { path: self.resolved(path), node }
    }

    /// Where an RDMA device is.
    pub(super) fn place(&self, device: &str) -> Placement {
        self.placement(&format!("{DEVICES}/{device}/device"))
    }

    /// Where the device of a PCI address is.
    pub(super) fn place_of_pci(&self, address: &str) -> Placement {
        self.placement(&format!("{PCI}/{}", address.to_ascii_lowercase()))
    }

    /// Megabits per second of a port: `400 Gb/sec (4X NDR)`.
    pub(super) fn speed_mbit_s(&self, device: &str, port: u8) -> Option<u64> {
        let text = self.text(&format!("{DEVICES}/{device}/ports/{port}/rate"))?;
        let gigabits: f64 = text.strip_suffix(')')?.split_once(" Gb/sec")?.0.parse().ok()?;
        (0.0..1e6).contains(&gigabits).then_some((gigabits * 1e3) as u64)
    }

    /// The version of RoCE by which an address of a port is used.
    pub(super) fn version(&self, device: &str, port: u8, index: u8) -> Option<u8> {
        // Where the entry is free, reading it is an error.
        match self.text(&format!("{DEVICES}/{device}/ports/{port}/gid_attrs/types/{index}"))?.as_str() {
            "RoCE v2" => Some(2),
            "IB/RoCE v1" => Some(1),
            _ => None,
        }
    }

    /// The interface of an address of a port, which may be one of another namespace.
    pub(super) fn interface(&self, device: &str, port: u8, index: u8) -> Option<String> {
        self.text(&format!("{DEVICES}/{device}/ports/{port}/gid_attrs/ndevs/{index}"))
            .filter(|name| !name.is_empty())
    }

    /// The kernel module by which an adapter maps memory of NVIDIA's devices, if one is loaded.
    pub(super) fn peer_memory_module(&self) -> Option<&'static str> {
        const MODULES: [&str; 2] = ["nvidia_peermem", "nv_peer_mem"];
        let loaded = fs::read_to_string(self.root.join("proc/modules")).unwrap_or_default();
        let is_loaded = |name: &&str| {
            self.root.join(format!("sys/module/{name}")).exists()
                || loaded.lines().any(|line| line.split(' ').next() == Some(name))
        };
        MODULES.into_iter().find(is_loaded)
    }

    /// Whether an interface joins several.
    pub(super) fn is_bond(&self, interface: &str) -> bool {
        self.root.join(format!("{INTERFACES}/{interface}/bonding")).exists()
    }

    /// Whether an address of the named interface is one that this namespace has.
    pub(super) fn reachable(&self, gid: &Gid, interface: Option<&str>) -> Reachable {
        let Some(all) = &self.interfaces else { return Reachable::Unknown };
        let named = interface.map(|name| (name, all.iter().find(|of| of.name == name)));
        if let Some((name, None)) = named {
            return Reachable::No(format!("its interface {name} is not in this network namespace"));
        }
        let ip = gid.ip();
        let is_up = |of: &&Interface| of.is_up && of.addresses.contains(&ip);
        match named {
            Some((name, Some(of))) if !of.is_up => Reachable::No(format!("its interface {name} is down")),
            // A port has such an address without its interface, by the adapter's own number.
            Some((_, Some(_))) if gid.is_link_local() => Reachable::Yes,
            None if gid.is_link_local() => Reachable::Unknown,
            _ if all.iter().any(|of| is_up(&of)) => Reachable::Yes,
            Some((name, _)) => Reachable::No(format!(
                "the interface {name} of this network namespace has another address: that of the port is in another namespace"
            )),
            None => Reachable::No("no interface of this network namespace that is up has it".into()),
        }
    }
}

/// The interfaces of the network namespace in which this thread is.
fn interfaces() -> Option<Vec<Interface>> {
    let mut found: Vec<Interface> = Vec::new();
    for entry in getifaddrs().ok()? {
        let name = entry.interface_name;
        let at = found.iter().position(|of| of.name == name).unwrap_or_else(|| {
            let is_up = entry.flags.contains(InterfaceFlags::IFF_UP);
            found.push(Interface { name, is_up, addresses: Vec::new() });
            found.len() - 1
        });
        let Some(address) = entry.address else { continue };
        let v4 = address.as_sockaddr_in().map(|v4| IpAddr::V4(v4.ip()));
        found[at].addresses.extend(v4.or_else(|| address.as_sockaddr_in6().map(|v6| IpAddr::V6(v6.ip()))));
    }
    Some(found)
}
