//! What NVIDIA's management library (NVML) says of all GPUs of a machine: who they are, where their links lead, what joins them.
//!
//! Invariant: questions have one answer each, or a [`NoAnswer`] that says why there is none; nothing is changed on a device. The
//! library is opened at run time for as long as a [`Live`] lives; its own count of users lets `nvml` stay open besides. Absent: what
//! answers mean together.
//!
//! The wrapper's own `remote_device_type` gives `Unknown` whatever the library answers (0.13.0 writes into a temporary), and it has
//! no function for fabrics: both are asked here.

use std::error::Error;
use std::ffi::{OsStr, c_uint};
use std::fmt;

use nvml_wrapper::Nvml;
use nvml_wrapper::enum_wrappers::device::{P2pCapabilitiesIndex, P2pStatus};
use nvml_wrapper::enums::device::SampleValue;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::structs::device::FieldId;
use nvml_wrapper::sys_exports::field_id;

use super::NoNvml;

/// Why a question has no answer.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum NoAnswer {
    /// The device has no such thing.
    NotSupported,
    /// There is no device or link with this number.
    NoSuch,
    /// The library is older than the question.
    TooOld,
    /// Another reason.
    Refused {
        /// The library's words.
        reason: String,
    },
}

impl fmt::Display for NoAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NoAnswer::NotSupported => f.write_str("the device does not have it"),
            NoAnswer::NoSuch => f.write_str("there is none with this number"),
            NoAnswer::TooOld => f.write_str("the library is older than the question"),
            NoAnswer::Refused { reason } => f.write_str(reason),
        }
    }
}

impl Error for NoAnswer {}

/// What is at the other end of an NVLink.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RemoteKind {
    /// Another GPU.
    Gpu,
    /// A processor (POWER9).
    Processor,
    /// An NVSwitch.
    Switch,
    /// The library does not know.
    Unknown,
}

/// The NVLink domain of a GPU, which may reach over several hosts.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Fabric {
    /// Whether the GPU has joined it.
    pub is_joined: bool,
    /// The domain, in hexadecimal digits; zeros where the host is a domain of its own.
    pub cluster: String,
    /// The part of the domain in which all GPUs reach each other.
    pub clique: u32,
}

/// What one GPU does with the memory of another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PeerUse {
    /// Loads.
    Read,
    /// Stores.
    Write,
    /// Either over NVLink.
    NvLink,
}

/// The questions. GPUs are numbered as the library numbers them, links of a GPU from 0.
#[allow(clippy::missing_errors_doc, reason = "each of them is a `NoAnswer` where there is no answer")]
pub trait Management {
    /// The version of the driver: `535.104.05`.
    fn driver_version(&self) -> Result<String, NoAnswer>;
    /// How many GPUs the library sees.
    fn gpus(&self) -> Result<u32, NoAnswer>;
    /// The PCI address.
    fn address(&self, gpu: u32) -> Result<String, NoAnswer>;
    /// The identity that survives changes of numbers.
    fn uuid(&self, gpu: u32) -> Result<String, NoAnswer>;
    /// The name of the model.
    fn model(&self, gpu: u32) -> Result<String, NoAnswer>;
    /// Major and minor compute capability.
    fn capability(&self, gpu: u32) -> Result<(u32, u32), NoAnswer>;
    /// Whether the GPU is split into instances (MIG), which have no links.
    fn is_split(&self, gpu: u32) -> Result<bool, NoAnswer>;
    /// Whether the link is up.
    fn is_link_up(&self, gpu: u32, link: u32) -> Result<bool, NoAnswer>;
    /// The generation of the link, by the library's count of versions.
    fn link_version(&self, gpu: u32, link: u32) -> Result<u32, NoAnswer>;
    /// The PCI address of the other end.
    fn link_remote(&self, gpu: u32, link: u32) -> Result<String, NoAnswer>;
    /// What the other end is.
    fn link_remote_kind(&self, gpu: u32, link: u32) -> Result<RemoteKind, NoAnswer>;
    /// How many coherent links (C2C) lead to a processor.
    fn coherent_links(&self, gpu: u32) -> Result<u32, NoAnswer>;
    /// What one of them carries, in megabytes a second.
    fn coherent_mb_s(&self, gpu: u32) -> Result<u64, NoAnswer>;
    /// The NVLink domain.
    fn fabric(&self, gpu: u32) -> Result<Fabric, NoAnswer>;
    /// Why a GPU may not use the memory of another so; `None` where it may.
    fn refusal(&self, gpu: u32, other: u32, how: PeerUse) -> Result<Option<&'static str>, NoAnswer>;
}

/// The words for a status of peer access by its number in `nvmlGpuP2PStatus_t`; `None` where access is possible.
pub fn refusal_words(status: u32) -> Option<&'static str> {
    match status {
        0 => None,
        1 => Some("the chipset does not support it"),
        2 => Some("the GPUs do not support it"),
        3 => Some("the root complexes between them do not support it"),
        4 => Some("it is switched off in the driver"),
        5 => Some("it is not supported"),
        _ => Some("the library does not know"),
    }
}

/// The library itself.
#[derive(Debug)]
pub struct Live {
    nvml: Nvml,
}

/// As `nvmlGpuFabricInfo_v2_t` and, with the last field, the third version, whose beginning is the same.
#[repr(C)]
#[derive(Default)]
struct FabricInfo {
    version: c_uint,
    cluster: [u8; 16],
    status: c_uint,
    clique: c_uint,
    state: u8,
    /// The library need not write it.
    padding: [u8; 3],
    health: c_uint,
    summary: c_uint,
}

/// Bytes of the second version, and its number in the library's form.
const FABRIC_V2: c_uint = 36 | 2 << 24;
/// `NVML_GPU_FABRIC_STATE_COMPLETED`.
const JOINED: u8 = 3;

impl Live {
    /// Opens the library: the one at `path`, or the system's.
    ///
    /// # Errors
    /// [`NoNvml::Absent`] with the loader's words, or the library's.
    pub fn open(path: Option<&OsStr>) -> Result<Live, NoNvml> {
        let opened = match path {
            Some(path) => Nvml::builder().lib_path(path).init(),
            None => Nvml::init(),
        };
        let nvml = opened.map_err(|error| NoNvml::Absent { reason: error.to_string() })?;
        Ok(Live { nvml })
    }

    fn device(&self, gpu: u32) -> Result<nvml_wrapper::Device<'_>, NoAnswer> {
        self.nvml.device_by_index(gpu).map_err(no_answer)
    }

    fn field(&self, gpu: u32, field: u32) -> Result<u64, NoAnswer> {
        let values = self.device(gpu)?.field_values_for(&[FieldId(field)]).map_err(no_answer)?;
        let value = values.into_iter().next().ok_or(NoAnswer::NotSupported)?.map_err(no_answer)?;
        match value.value.map_err(no_answer)? {
            SampleValue::U32(value) => Ok(value.into()),
            SampleValue::U64(value) => Ok(value),
            SampleValue::I64(value) => u64::try_from(value).map_err(|_| NoAnswer::NotSupported),
            SampleValue::F64(_) => Err(NoAnswer::NotSupported),
        }
    }
}

fn no_answer(error: NvmlError) -> NoAnswer {
    match error {
        NvmlError::NotSupported => NoAnswer::NotSupported,
        NvmlError::InvalidArg | NvmlError::NotFound => NoAnswer::NoSuch,
        NvmlError::FailedToLoadSymbol(_) | NvmlError::FunctionNotFound => NoAnswer::TooOld,
        error => NoAnswer::Refused { reason: error.to_string() },
    }
}

/// What a status of the library means.
fn checked(status: c_uint) -> Result<(), NoAnswer> {
    match status {
        0 => Ok(()),
        2 | 6 => Err(NoAnswer::NoSuch),
        3 => Err(NoAnswer::NotSupported),
        13 | 25 => Err(NoAnswer::TooOld),
        _ => Err(NoAnswer::Refused { reason: format!("NVML's error {status}") }),
    }
}

impl Management for Live {
    fn driver_version(&self) -> Result<String, NoAnswer> {
        self.nvml.sys_driver_version().map_err(no_answer)
    }

    fn gpus(&self) -> Result<u32, NoAnswer> {
        self.nvml.device_count().map_err(no_answer)
    }

    fn address(&self, gpu: u32) -> Result<String, NoAnswer> {
        Ok(self.device(gpu)?.pci_info().map_err(no_answer)?.bus_id)
    }

    fn uuid(&self, gpu: u32) -> Result<String, NoAnswer> {
        self.device(gpu)?.uuid().map_err(no_answer)
    }

    fn model(&self, gpu: u32) -> Result<String, NoAnswer> {
        self.device(gpu)?.name().map_err(no_answer)
    }

    fn capability(&self, gpu: u32) -> Result<(u32, u32), NoAnswer> {
        let capability = self.device(gpu)?.cuda_compute_capability().map_err(no_answer)?;
        let part = |number: i32| u32::try_from(number).map_err(|_| NoAnswer::NotSupported);
        Ok((part(capability.major)?, part(capability.minor)?))
    }

    fn is_split(&self, gpu: u32) -> Result<bool, NoAnswer> {
        Ok(self.device(gpu)?.mig_mode().map_err(no_answer)?.current == 1)
    }

    fn is_link_up(&self, gpu: u32, link: u32) -> Result<bool, NoAnswer> {
        self.device(gpu)?.link_wrapper_for(link).is_active().map_err(no_answer)
    }

    fn link_version(&self, gpu: u32, link: u32) -> Result<u32, NoAnswer> {
        self.device(gpu)?.link_wrapper_for(link).version().map_err(no_answer)
    }

    fn link_remote(&self, gpu: u32, link: u32) -> Result<String, NoAnswer> {
        Ok(self.device(gpu)?.link_wrapper_for(link).remote_pci_info().map_err(no_answer)?.bus_id)
    }

    fn link_remote_kind(&self, gpu: u32, link: u32) -> Result<RemoteKind, NoAnswer> {
        let device = self.device(gpu)?;
        let ask =
            self.nvml.lib().nvmlDeviceGetNvLinkRemoteDeviceType.as_ref().map_err(|_| NoAnswer::TooOld)?;
        let mut kind: c_uint = 255;
        // SAFETY: the handle is the library's own and the library is open; the place is of the type that the function writes.
        checked(unsafe { ask(device.handle(), link, &raw mut kind) })?;
        Ok(match kind {
            0 => RemoteKind::Gpu,
            1 => RemoteKind::Processor,
            2 => RemoteKind::Switch,
            _ => RemoteKind::Unknown,
        })
    }

    fn coherent_links(&self, gpu: u32) -> Result<u32, NoAnswer> {
        let count = self.field(gpu, field_id::NVML_FI_DEV_C2C_LINK_COUNT)?;
        u32::try_from(count).map_err(|_| NoAnswer::NotSupported)
    }

    fn coherent_mb_s(&self, gpu: u32) -> Result<u64, NoAnswer> {
        self.field(gpu, field_id::NVML_FI_DEV_C2C_LINK_GET_MAX_BW)
    }

    fn fabric(&self, gpu: u32) -> Result<Fabric, NoAnswer> {
        let device = self.device(gpu)?;
        let ask = self.nvml.lib().nvmlDeviceGetGpuFabricInfoV.as_ref().map_err(|_| NoAnswer::TooOld)?;
        let mut info = FabricInfo { version: FABRIC_V2, ..FabricInfo::default() };
        // SAFETY: as above; the structure is at least as long as that of the version which it names.
        checked(unsafe { ask(device.handle(), (&raw mut info).cast()) })?;
        if info.state == 0 {
            return Err(NoAnswer::NotSupported);
        }
        let cluster = info.cluster.iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(Fabric { is_joined: info.state == JOINED && info.status == 0, cluster, clique: info.clique })
    }

    fn refusal(&self, gpu: u32, other: u32, how: PeerUse) -> Result<Option<&'static str>, NoAnswer> {
        let index = match how {
            PeerUse::Read => P2pCapabilitiesIndex::Read,
            PeerUse::Write => P2pCapabilitiesIndex::Write,
            PeerUse::NvLink => P2pCapabilitiesIndex::NvLink,
        };
        let other = self.device(other)?;
        let status = self.device(gpu)?.p2p_status(&other, index).map_err(no_answer)?;
        Ok(refusal_words(match status {
            P2pStatus::Ok => 0,
            P2pStatus::ChipsetNotSupported => 1,
            P2pStatus::GpuNotSupported => 2,
            P2pStatus::IohTopologyNotSupported => 3,
            P2pStatus::DisabledByRegkey => 4,
            P2pStatus::NotSupported => 5,
            P2pStatus::Unknown => 6,
        }))
    }
}
