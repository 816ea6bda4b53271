//! What a process listens at, and the one device that stands for all its interfaces.
//!
//! Invariant: made for the first context and gone with the last. Absent: comms.

use std::collections::HashMap;
use std::ffi::CString;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use consort_control::bootstrap::{further_interfaces, random, usable_interfaces, wire_mbits};
use consort_transports::{Listener, Service, Tcp, TransportError};

use crate::log;

/// A speed, where the system knows none.
const SPEED_MBITS: u32 = 10_000;
/// Bytes of a ring: the mailbox of a side that receives.
pub(crate) const RING_BYTES: usize = 2 << 20;
/// Bytes of a key.
pub(crate) const KEY_BYTES: usize = 32;

static PROCESS: Mutex<Weak<Network>> = Mutex::new(Weak::new());

/// The network of a process.
pub(crate) struct Network {
    listeners: Vec<Arc<Listener>>,
    /// Where it meets peers.
    pub(crate) here: IpAddr,
    /// What its peers prove to know.
    pub(crate) key: [u8; KEY_BYTES],
    pub(crate) name: CString,
    /// The directory of the first interface's device, unless it is virtual.
    pub(crate) pci_path: Option<CString>,
    pub(crate) speed_mbits: u32,
    process: u32,
    /// Transports by their keys: of this process, and of those that it calls.
    transports: Mutex<HashMap<[u8; KEY_BYTES], Weak<Tcp>>>,
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The network of this process, where a context has it. A forked child's copy is its parent's.
pub(crate) fn present() -> Option<Arc<Network>> {
    let present = lock(&PROCESS).upgrade()?;
    if !present.is_of_this_process() {
        std::mem::forget(present);
        return None;
    }
    Some(present)
}

/// The same, made where there is none.
///
/// # Errors
/// Why the process cannot listen.
pub(crate) fn acquire() -> Result<Arc<Network>, String> {
    // One thread makes it.
    static MAKING: Mutex<()> = Mutex::new(());
    let _making = lock(&MAKING);
    if let Some(network) = present() {
        return Ok(network);
    }
    let network = Arc::new(Network::new()?);
    *lock(&PROCESS) = Arc::downgrade(&network);
    log::info(&format!("listens at {}", network.name.to_string_lossy()));
    Ok(network)
}

impl Network {
    fn new() -> Result<Self, String> {
        let usable = usable_interfaces().map_err(|error| error.to_string())?;
        // The loopback, which is the first, for hosts that have nothing else.
        let outward = usable.iter().find(|ip| !ip.is_loopback());
        let here = *outward
            .or(usable.first())
            .ok_or("this host has no address (NCCL_SOCKET_IFNAME, NCCL_SOCKET_FAMILY)")?;
        let mut listeners = vec![Arc::new(Listener::new(here).map_err(|error| error.to_string())?)];
        let mut name = format!("consort:{here}");
        for further in further_interfaces(here) {
            match Listener::new(further) {
                Ok(listener) => {
                    listeners.push(Arc::new(listener));
                    name += &format!(",{further}");
                }
                Err(error) => log::warn(&format!("a further interface is not used: {error}")),
            }
        }
        let speed = wire_mbits();
        Ok(Network {
            listeners,
            here,
            key: random().map_err(|error| error.to_string())?,
            name: CString::new(name).unwrap_or_default(),
            pci_path: pci_path(here),
            speed_mbits: if speed == 0 { SPEED_MBITS } else { speed },
            process: std::process::id(),
            transports: Mutex::default(),
        })
    }

    /// The transport by a key.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn transport(&self, key: [u8; KEY_BYTES]) -> Result<Arc<Tcp>, TransportError> {
        let mut transports = lock(&self.transports);
        if let Some(transport) = transports.get(&key).and_then(Weak::upgrade) {
            return Ok(transport);
        }
        transports.retain(|_, transport| transport.strong_count() != 0);
        let transport = Arc::new(Tcp::over(self.listeners.clone(), key)?);
        transports.insert(key, Arc::downgrade(&transport));
        Ok(transport)
    }

    /// Whether this process made it, and no parent.
    pub(crate) fn is_of_this_process(&self) -> bool {
        self.process == std::process::id()
    }

    /// Answers who calls, and mends sockets.
    pub(crate) fn serve(&self) {
        self.listeners.iter().for_each(|listener| listener.serve());
    }
}

/// The directory of the device of the interface with this address.
fn pci_path(ip: IpAddr) -> Option<CString> {
    let addresses = nix::ifaddrs::getifaddrs().ok()?;
    let of = |address: &nix::sys::socket::SockaddrStorage| match ip {
        IpAddr::V4(ip) => address.as_sockaddr_in().is_some_and(|own| own.ip() == ip),
        IpAddr::V6(ip) => address.as_sockaddr_in6().is_some_and(|own| own.ip() == ip),
    };
    let found = addresses.into_iter().find(|of_interface| of_interface.address.as_ref().is_some_and(of))?;
    let device =
        PathBuf::from("/sys/class/net").join(found.interface_name).join("device").canonicalize().ok()?;
    CString::new(device.into_os_string().into_encoded_bytes()).ok()
}
