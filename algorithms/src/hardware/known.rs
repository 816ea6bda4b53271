//! GPUs that are known by their PCI numbers.
//!
//! Source: the public list of PCI numbers (pci-ids.ucw.cz) and the data sheets of the boards. A GPU that is not in it is not
//! thereby anything: what follows from a model is only used where a file does not say it.

use super::{AMD, NVIDIA, Pci};

/// A model of GPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KnownGpu {
    /// Its name.
    pub model: &'static str,
    /// NVIDIA's compute capability, ten times the major plus the minor number.
    pub sm: Option<u32>,
    /// AMD's architecture.
    pub gcn: Option<&'static str>,
}

const fn nvidia(model: &'static str, sm: u32) -> KnownGpu {
    KnownGpu { model, sm: Some(sm), gcn: None }
}

const fn amd(model: &'static str, gcn: &'static str) -> KnownGpu {
    KnownGpu { model, sm: None, gcn: Some(gcn) }
}

/// Models whose boards all have NVLink or xGMI.
const KNOWN: [(u16, u16, KnownGpu); 13] = [
    (NVIDIA, 0x15f9, nvidia("P100-SXM2", 60)),
    (NVIDIA, 0x1db1, nvidia("V100-SXM2-16GB", 70)),
    (NVIDIA, 0x1db5, nvidia("V100-SXM2-32GB", 70)),
    (NVIDIA, 0x1db8, nvidia("V100-SXM3-32GB", 70)),
    (NVIDIA, 0x20b0, nvidia("A100-SXM4-40GB", 80)),
    (NVIDIA, 0x20b2, nvidia("A100-SXM4-80GB", 80)),
    (NVIDIA, 0x2330, nvidia("H100-SXM5-80GB", 90)),
    (NVIDIA, 0x2335, nvidia("H200-SXM5-141GB", 90)),
    (NVIDIA, 0x2901, nvidia("B200", 100)),
    (AMD, 0x7408, amd("MI250X", "gfx90a")),
    (AMD, 0x740c, amd("MI250X", "gfx90a")),
    (AMD, 0x74a1, amd("MI300X", "gfx942")),
    (AMD, 0x75a0, amd("MI350X", "gfx950")),
];

/// The model of the device, where it is known.
pub fn known_gpu(pci: &Pci) -> Option<&'static KnownGpu> {
    let (vendor, device) = (pci.vendor?, pci.device?);
    KNOWN.iter().find(|(known, number, _)| (*known, *number) == (vendor, device)).map(|(_, _, gpu)| gpu)
}
