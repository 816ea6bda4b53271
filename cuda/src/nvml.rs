//! What NVIDIA's management library knows of the ways between devices: which NVLinks are up, and what a pair may do.
//!
//! Invariant: the library (`libnvidia-ml.so.1`) is opened at run time, once in a process, stays open, and is not called
//! in a forked child. It speaks of machines, not of this process: it also sees devices that are hidden here. Its absence
//! is no error of a device, only a question without an answer. Absent: what to make of it; whether a pair reaches each
//! other is for the driver ([`Device::can_access`]) and a self-test to say.
//!
//! No link was ever seen by this: there was no machine with one.

use std::sync::OnceLock;

use nvml_wrapper::Nvml;
use nvml_wrapper::enum_wrappers::device::{P2pCapabilitiesIndex, P2pStatus};
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::struct_wrappers::device::PciInfo;

use super::Device;
use consort_memory::ForkStamp;

/// More links than any device has; the library refuses numbers beyond a device's own.
const LINKS_MAX: u32 = 32;

/// Why nothing is known of links.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NoNvml {
    /// The library is not there, or does not start.
    #[error("NVML is not to be had: {reason}")]
    Absent {
        /// The loader's words, or the library's.
        reason: String,
    },
    /// It does not answer.
    #[error("NVML does not say {what}: {reason}")]
    Refused {
        /// What was asked.
        what: &'static str,
        /// The library's words.
        reason: String,
    },
    /// It was opened by the process that this one was forked from.
    #[error("this process was forked from one that had opened NVML")]
    Forked,
}

/// A link of a device that is up.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NvLink {
    /// Its number among the device's links.
    pub link: u32,
    /// Where it leads, as [`Device::pci`] is written: to another device, or to a switch, which is no device's address.
    pub remote_pci: String,
}

/// The links of a device.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct NvLinks {
    /// Those that are up, by their number.
    pub up: Vec<NvLink>,
    /// Numbers of those that are there and down.
    pub down: Vec<u32>,
}

/// What one device may do with the memory of another, as the library says.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct PeerStatus {
    /// Loads.
    pub read: bool,
    /// Stores.
    pub write: bool,
    /// Atomic operations that are atomic for both.
    pub atomics: bool,
    /// Whether they do it over NVLink.
    pub nvlink: bool,
}

struct Library {
    nvml: Nvml,
    stamp: ForkStamp,
}

fn library() -> Result<&'static Library, NoNvml> {
    static LIBRARY: OnceLock<Result<Library, NoNvml>> = OnceLock::new();
    let absent = |reason: String| NoNvml::Absent { reason };
    let open = || {
        let stamp = ForkStamp::new().map_err(|error| absent(error.to_string()))?;
        let nvml = Nvml::init().map_err(|error| absent(error.to_string()))?;
        Ok(Library { nvml, stamp })
    };
    let library = LIBRARY.get_or_init(open).as_ref().map_err(NoNvml::clone)?;
    if library.stamp.is_forked_child() { Err(NoNvml::Forked) } else { Ok(library) }
}

impl Library {
    fn device(&self, device: &Device) -> Result<nvml_wrapper::Device<'_>, NoNvml> {
        self.nvml.device_by_pci_bus_id(device.pci.as_str()).map_err(refused("which device that is"))
    }
}

fn refused(what: &'static str) -> impl FnOnce(NvmlError) -> NoNvml {
    move |error| NoNvml::Refused { what, reason: error.to_string() }
}

/// An address as the system writes it.
fn written(address: &PciInfo) -> String {
    format!("{:04x}:{:02x}:{:02x}.0", address.domain, address.bus, address.device)
}

impl NvLinks {
    /// The links of a device; none for one that has none.
    ///
    /// # Errors
    /// [`NoNvml`].
    pub fn of(device: &Device) -> Result<NvLinks, NoNvml> {
        let device = library()?.device(device)?;
        let mut links = NvLinks::default();
        for number in 0..LINKS_MAX {
            let link = device.link_wrapper_for(number);
            match link.is_active() {
                Ok(true) => {
                    let remote = link.remote_pci_info().map_err(refused("where a link leads"))?;
                    links.up.push(NvLink { link: number, remote_pci: written(&remote) });
                }
                Ok(false) => links.down.push(number),
                Err(NvmlError::InvalidArg | NvmlError::NotSupported) => break,
                Err(error) => return Err(refused("whether a link is up")(error)),
            }
        }
        Ok(links)
    }
}

impl PeerStatus {
    /// Whether a device reaches every other device of this machine over NVLink, directly or through switches. So does a
    /// device that is the only one.
    ///
    /// # Errors
    /// [`NoNvml`].
    pub fn is_linked_to_all(device: &Device) -> Result<bool, NoNvml> {
        let library = library()?;
        let of_machine = library.nvml.device_count().map_err(refused("how many devices there are"))?;
        let device = library.device(device)?;
        let own = device.index().map_err(refused("which device that is"))?;
        for number in (0..of_machine).filter(|number| *number != own) {
            let other = library.nvml.device_by_index(number).map_err(refused("which device that is"))?;
            match device.p2p_status(&other, P2pCapabilitiesIndex::NvLink) {
                Ok(P2pStatus::Ok) => {}
                Ok(_) | Err(NvmlError::NotSupported) => return Ok(false),
                Err(error) => return Err(refused("what two devices may do")(error)),
            }
        }
        Ok(true)
    }

    /// What `device` may do with the memory of `other`.
    ///
    /// # Errors
    /// [`NoNvml`].
    pub fn of(device: &Device, other: &Device) -> Result<PeerStatus, NoNvml> {
        let library = library()?;
        let (device, other) = (library.device(device)?, library.device(other)?);
        let may = |what| match device.p2p_status(&other, what) {
            Ok(status) => Ok(status == P2pStatus::Ok),
            Err(NvmlError::NotSupported) => Ok(false),
            Err(error) => Err(refused("what two devices may do")(error)),
        };
        Ok(PeerStatus {
            read: may(P2pCapabilitiesIndex::Read)?,
            write: may(P2pCapabilitiesIndex::Write)?,
            atomics: may(P2pCapabilitiesIndex::Atomics)?,
            nvlink: may(P2pCapabilitiesIndex::NvLink)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_written_alike() {
        let address = PciInfo {
            bus: 0x3b,
            bus_id: "00000001:3B:1F.0".to_owned(),
            device: 0x1f,
            domain: 1,
            pci_device_id: 0,
            pci_sub_system_id: None,
        };
        assert_eq!(written(&address), "0001:3b:1f.0");
    }

    #[test]
    fn without_the_library_there_is_no_answer() {
        match library() {
            Ok(_) => eprintln!("SKIP: NVML is here, and was not seen to be absent"),
            Err(error) => {
                assert!(matches!(error, NoNvml::Absent { .. }), "{error}");
                assert_eq!(library().err(), Some(error), "the same again");
            }
        }
    }
}
