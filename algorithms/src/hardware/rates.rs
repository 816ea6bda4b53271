//! What a link carries in a second, in one direction, by its kind.
//!
//! Invariant: a rate that a source states wins over those here; a link whose generation or width is not known has no rate,
//! and never that of another kind of link. Rates are whole bytes a second.

use super::{Hardware, Lanes, Link, LinkId, LinkKind, NodeKind, Processor};

const MB: u64 = 1_000_000;

/// What a link within a package or a device carries: more than any wire (NCCL's `LOC_BW`).
pub const LOCAL_BYTES_S: u64 = 5_000_000 * MB;

/// A set of rates.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Rates {
    /// Those of data sheets, in one direction.
    ///
    /// Sources: NVIDIA's data sheets of P100, V100, A100, A40, H100 and B200 (NVLink 1: 20 GB/s a link, 2 to 4: 25, 5: 50; on
    /// GA10x four links of 14.0625); AMD's of MI50 to MI100 (46 GB/s a link), MI250X (50), MI300X (64) and MI350X (76.8); PCI-SIG's rates after encoding, as data
    /// sheets round them: 15.75 GB/s for generation 3 with 16 lanes, 31.5, 63 and 121 for those after it.
    /// Between sockets: one link of the generation that belongs to the processor, since no source says how many there are.
    #[default]
    DataSheet,
    /// Those with which NCCL searches: what it expects to be left of a link.
    ///
    /// Sources: NCCL at commit 5067397c, `src/graph/topo.h` (`SM60_NVLINK_BW` to `SM100_NVLINK_BW`, `*_QPI_BW`, `AMD_BW`,
    /// `P9_BW`, `ARM_BW`) and `src/graph/topo.cc` (`kvDictPciGen`); for xGMI RCCL at commit 0cbce2a7, `src/graph/topo.h`
    /// (`VEGA_XGMI_WIDTH`, `MI200_XGMI_WIDTH`, `GFX94X_XGMI_WIDTH`).
    Nccl,
}

impl Rates {
    /// The rates of this name: `sheet` or `nccl`.
    pub fn named(name: &str) -> Option<Rates> {
        match name {
            "sheet" => Some(Rates::DataSheet),
            "nccl" => Some(Rates::Nccl),
            _ => None,
        }
    }

    /// Bytes a second of one NVLink of this generation. `sm` is the compute capability of the GPU, which tells boards with
    /// slower links apart.
    pub fn nvlink_bytes_s(self, generation: u8, sm: Option<u32>) -> Option<u64> {
        let slow_board = sm == Some(86) || sm == Some(89);
        let mb_s = match (self, generation) {
            (Rates::DataSheet, 1) => 20_000,
            (Rates::DataSheet, 3) if slow_board => return Some(14_062_500_000),
            (Rates::DataSheet, 2..=4) => 25_000,
            (Rates::DataSheet, 5) => 50_000,
            (Rates::Nccl, 1) => 18_000,
            (Rates::Nccl, 3) if slow_board => 12_000,
            (Rates::Nccl, 2 | 3) => 20_000,
            (Rates::Nccl, 4) => 20_600,
            (Rates::Nccl, 5) => 40_100,
            _ => return None,
        };
        Some(mb_s * MB)
    }

    /// Bytes a second of one xGMI link of a GPU of this architecture (`gfx90a`; older sources write `910`).
    pub fn xgmi_bytes_s(self, gcn: &str) -> Option<u64> {
        let mb_s = match (self, gcn.trim_start_matches("gfx")) {
            (Rates::DataSheet, "906" | "908") => 46_000,
            (Rates::DataSheet, "90a" | "910") => 50_000,
            (Rates::DataSheet, "940" | "941" | "942") => 64_000,
            (Rates::DataSheet, "950") => 76_800,
            (Rates::Nccl, "906" | "908") => 24_000,
            (Rates::Nccl, "90a" | "910") => 36_000,
            (Rates::Nccl, "940" | "941" | "942" | "950") => 48_000,
            _ => return None,
        };
        Some(mb_s * MB)
    }

    /// Bytes a second of a PCIe link.
    pub fn pcie_bytes_s(self, lanes: Lanes) -> Option<u64> {
        let of_lane = match (self, lanes.generation?) {
            (Rates::DataSheet, 1) => 250_000_000,
            (Rates::DataSheet, 2) => 500_000_000,
            (Rates::DataSheet, 3) => 984_375_000,
            (Rates::DataSheet, 4) => 1_968_750_000,
            (Rates::DataSheet, 5) => 3_937_500_000,
            (Rates::DataSheet, 6) => 7_562_500_000,
            (Rates::DataSheet, 7) => 15_125_000_000,
            // NCCL counts in 100 Mb/s a lane: 15, 30, 60, 120, 240, 480.
            (Rates::Nccl, generation @ 1..=6) => 187_500_000 << (generation - 1),
            _ => return None,
        };
        Some(of_lane * u64::from(lanes.width?))
    }

    /// Bytes a second between two NUMA domains whose processor is this one.
    ///
    /// Sources: Intel's data sheets (QPI 9.6 GT/s: 19.2 GB/s a link; UPI 10.4, 16 and 20 GT/s: 20.8, 32 and 40) and AMD's
    /// (xGMI of 16 lanes at 16, 18 and 32 GT/s: 32, 36 and 64).
    pub fn socket_bytes_s(self, processor: &Processor) -> Option<u64> {
        let (family, model) = (processor.family.unwrap_or(0), processor.model.unwrap_or(0));
        let mb_s = match (self, processor.arch.as_deref()?, processor.vendor.as_deref()) {
            (Rates::DataSheet, "x86_64", Some("GenuineIntel")) if family == 6 => match model {
                0xcf.. => 40_000,
                0x8f.. => 32_000,
                0x55.. => 20_800,
                _ => 19_200,
            },
            (Rates::DataSheet, "x86_64", Some("AuthenticAMD")) => match (family, model) {
                (0x17, _) => 32_000,
                (0x19, 0..=0x0f) => 36_000,
                (0x19.., _) => 64_000,
                _ => return None,
            },
            (Rates::Nccl, "x86_64", Some("GenuineIntel")) => match model {
                0xcf.. if family == 6 => 40_000,
                0x8f.. if family == 6 => 22_000,
                0x55.. if family == 6 => 10_000,
                _ => 6_000,
            },
            (Rates::Nccl, "x86_64", Some("AuthenticAMD")) => 16_000,
            (Rates::Nccl, "x86_64", Some("CentaurHauls" | "  Shanghai  ")) => {
                if (family, model) == (7, 0x5b) { 9_000 } else { 6_000 }
            }
            (_, "ppc64", _) => 32_000,
            (Rates::Nccl, "arm64", _) => 6_000,
            _ => return None,
        };
        Some(mb_s * MB)
    }
}

/// The generation of the NVLinks of a GPU with this compute capability.
pub fn nvlink_generation(sm: u32) -> Option<u8> {
    match sm {
        60..=69 => Some(1),
        70..=79 => Some(2),
        80..=89 => Some(3),
        90..=99 => Some(4),
        100..=119 => Some(5),
        _ => None,
    }
}

impl Hardware {
    /// Bytes a second in one direction, for all links that run side by side; `None` where that is not known.
    ///
    /// # Panics
    ///
    /// When there is no such link.
    pub fn bytes_s(&self, link: LinkId, rates: Rates) -> Option<u64> {
        let link = self.link(link);
        link.bytes_s.or_else(|| self.bytes_s_of(link, link.kind, rates))
    }

    /// What the link could carry if it ran as it could; `None` where that is not known.
    ///
    /// # Panics
    ///
    /// When there is no such link.
    pub fn best_bytes_s(&self, link: LinkId, rates: Rates) -> Option<u64> {
        match self.link(link).kind {
            LinkKind::Pcie { best, .. } => rates.pcie_bytes_s(best),
            _ => self.bytes_s(link, rates),
        }
    }

    fn bytes_s_of(&self, link: &Link, kind: LinkKind, rates: Rates) -> Option<u64> {
        let ends = [link.from, link.to];
        let gpu = || ends.iter().find_map(|end| self.gpu(*end));
        match kind {
            LinkKind::Local => Some(LOCAL_BYTES_S),
            LinkKind::NvLink { generation, count } => {
                let sm = gpu().and_then(|gpu| gpu.sm);
                Some(rates.nvlink_bytes_s(generation?, sm)?.saturating_mul(count.into()))
            }
            LinkKind::Xgmi { count } => {
                Some(rates.xgmi_bytes_s(gpu()?.gcn.as_deref()?)?.saturating_mul(count.into()))
            }
            LinkKind::Pcie { now, .. } => rates.pcie_bytes_s(now),
            LinkKind::Socket { .. } => match &self.node(link.from).kind {
                NodeKind::Numa(numa) => rates.socket_bytes_s(&numa.processor),
                _ => None,
            },
            // A source that knows of such links states what they carry.
            LinkKind::C2c { .. } | LinkKind::Network => None,
        }
    }

    /// Nanoseconds from one end of a link to the other: what the source states, else a round figure of the size that the
    /// profiles of [`topology`](crate::topology) have, since no format but a few has any.
    ///
    /// # Panics
    ///
    /// When there is no such link.
    pub fn latency_ns(&self, link: LinkId) -> u64 {
        let link = self.link(link);
        let joins_two_gpus = || self.gpu(link.from).is_some() && self.gpu(link.to).is_some();
        link.latency_ns.unwrap_or(match link.kind {
            LinkKind::Local => 50,
            LinkKind::NvLink { .. } | LinkKind::Xgmi { .. } if joins_two_gpus() => 1000,
            LinkKind::NvLink { .. } | LinkKind::Xgmi { .. } => 500,
            LinkKind::C2c { .. } | LinkKind::Pcie { .. } | LinkKind::Socket { .. } => 300,
            LinkKind::Network => 700,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lanes(generation: u8, width: u8) -> Lanes {
        Lanes { generation: Some(generation), width: Some(width) }
    }

    #[test]
    fn rates_are_those_of_their_sources() {
        let sheet = Rates::DataSheet;
        assert_eq!(sheet.pcie_bytes_s(lanes(4, 16)), Some(31_500 * MB));
        assert_eq!(sheet.pcie_bytes_s(lanes(3, 8)), Some(7_875 * MB));
        assert_eq!(sheet.pcie_bytes_s(Lanes { width: Some(16), ..Lanes::default() }), None, "never a guess");
        assert_eq!(sheet.pcie_bytes_s(Lanes { generation: Some(4), ..Lanes::default() }), None);
        assert_eq!(Rates::Nccl.pcie_bytes_s(lanes(3, 16)), Some(12_000 * MB), "NCCL's PCI_BW");
        assert_eq!(Rates::Nccl.pcie_bytes_s(lanes(5, 16)), Some(48_000 * MB));
        let both = |generation, sm| [sheet, Rates::Nccl].map(|rates| rates.nvlink_bytes_s(generation, sm));
        assert_eq!(both(2, Some(70)), [Some(25_000 * MB), Some(20_000 * MB)]);
        assert_eq!(both(3, Some(86)), [Some(14_062_500_000), Some(12_000 * MB)]);
        assert_eq!(both(4, Some(90)), [Some(25_000 * MB), Some(20_600 * MB)]);
        assert_eq!(both(5, None), [Some(50_000 * MB), Some(40_100 * MB)]);
        assert_eq!(both(6, None), [None, None], "not known yet");
        assert_eq!(sheet.xgmi_bytes_s("gfx942"), Some(64_000 * MB));
        assert_eq!(sheet.xgmi_bytes_s("910"), Some(50_000 * MB));
        assert_eq!(Rates::Nccl.xgmi_bytes_s("gfx90a"), Some(36_000 * MB));
        assert_eq!(sheet.xgmi_bytes_s("gfx1100"), None);
    }

    #[test]
    fn sockets_are_known_by_their_processor() {
        let of = |vendor: &str, family, model| Processor {
            arch: Some("x86_64".into()),
            vendor: Some(vendor.into()),
            family: Some(family),
            model: Some(model),
        };
        let both = |processor: &Processor| {
            [Rates::DataSheet, Rates::Nccl].map(|rates| rates.socket_bytes_s(processor))
        };
        assert_eq!(both(&of("GenuineIntel", 6, 79)), [Some(19_200 * MB), Some(6_000 * MB)]);
        assert_eq!(both(&of("GenuineIntel", 6, 143)), [Some(32_000 * MB), Some(22_000 * MB)]);
        assert_eq!(both(&of("AuthenticAMD", 23, 49)), [Some(32_000 * MB), Some(16_000 * MB)]);
        assert_eq!(both(&Processor::default()), [None, None]);
    }
}
