//! Classes of links: what one line of the legend stands for, and how such links look.
//!
//! Invariant: links of one class carry equally much and look alike; a link whose rate is not known is dashed.

use crate::export::hue;
use crate::hardware::summary::gigabytes;
use crate::hardware::{Hardware, Lanes, LinkId, LinkKind, Rates};

/// Links that look alike, in the order of the legend.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Class {
    family: Family,
    /// How many run side by side, or lanes.
    count: u32,
    generation: u8,
    /// Bytes a second in one direction.
    bytes_s: Option<u64>,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Family {
    NvLink,
    Xgmi,
    C2c,
    Pcie,
    Socket,
    Network,
    Local,
}

impl Class {
    pub(super) fn of(hardware: &Hardware, id: LinkId, rates: Rates) -> Class {
        let (family, count, generation) = match hardware.link(id).kind {
            LinkKind::NvLink { generation, count } => (Family::NvLink, count, generation.unwrap_or(0)),
            LinkKind::Xgmi { count } => (Family::Xgmi, count, 0),
            LinkKind::C2c { count } => (Family::C2c, count, 0),
            LinkKind::Pcie { now: Lanes { generation, width }, .. } => {
                (Family::Pcie, width.unwrap_or(0).into(), generation.unwrap_or(0))
            }
            LinkKind::Socket { .. } => (Family::Socket, 1, 0),
            LinkKind::Network => (Family::Network, 1, 0),
            LinkKind::Local => {
                return Class { family: Family::Local, count: 1, generation: 0, bytes_s: None };
            }
        };
        Class { family, count, generation, bytes_s: hardware.bytes_s(id, rates) }
    }

    /// Whether it joins GPUs, NVSwitches and memory without PCIe.
    pub(super) fn is_fast(self) -> bool {
        matches!(self.family, Family::NvLink | Family::Xgmi | Family::C2c)
    }

    /// Whether the legend has it: what is within a package has no rate worth a line.
    pub(super) fn has_line(self) -> bool {
        self.family != Family::Local
    }

    pub(super) fn bytes_s(self) -> Option<u64> {
        self.bytes_s
    }

    pub(super) fn count(self) -> u32 {
        self.count
    }

    /// Without its rate: `2 × NVLink 3`, `PCIe 5 x16`.
    pub(super) fn name(self) -> String {
        let many = |name: String| if self.count == 1 { name } else { format!("{} × {name}", self.count) };
        match (self.family, self.generation, self.count) {
            (Family::NvLink, 0, _) => many("NVLink".into()),
            (Family::NvLink, generation, _) => many(format!("NVLink {generation}")),
            (Family::Xgmi, _, _) => many("xGMI".into()),
            (Family::C2c, _, _) => many("NVLink-C2C".into()),
            (Family::Pcie, 0, 0) => "PCIe".into(),
            (Family::Pcie, 0, width) => format!("PCIe x{width}"),
            (Family::Pcie, generation, 0) => format!("PCIe {generation}"),
            (Family::Pcie, generation, width) => format!("PCIe {generation} x{width}"),
            (Family::Socket, _, _) => "between NUMA domains".into(),
            (Family::Network, _, _) => match self.bytes_s {
                Some(bytes_s) => format!("network, {} Gb/s", gigabytes(bytes_s.saturating_mul(8))),
                None => "network".into(),
            },
            (Family::Local, _, _) => "within a package".into(),
        }
    }

    /// Its line in the legend.
    pub(super) fn legend(self) -> String {
        match self.bytes_s {
            Some(bytes_s) => format!("{}: {} GB/s", self.name(), rounded(bytes_s, 10_000_000)),
            None => format!("{}: GB/s not known", self.name()),
        }
    }

    /// What stands beside a line of PCIe: `5 x16`, or its GB/s where a source states no generation.
    pub(super) fn mark(self) -> String {
        match (self.generation, self.count, self.bytes_s) {
            (0, 0, Some(bytes_s)) => rounded(bytes_s, 100_000_000),
            (0, 0, None) => "?".into(),
            (0, width, _) => format!("? x{width}"),
            (generation, 0, _) => generation.to_string(),
            (generation, width, _) => format!("{generation} x{width}"),
        }
    }
}

/// Gigabytes, to the nearest `unit` bytes; in full where there is less than one.
pub(super) fn rounded(bytes: u64, unit: u64) -> String {
    if bytes < unit { gigabytes(bytes) } else { gigabytes(bytes.saturating_add(unit / 2) / unit * unit) }
}

/// How links of a class are drawn.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Style {
    pub(super) color: &'static str,
    pub(super) width: f64,
    pub(super) is_dashed: bool,
}

impl Style {
    /// The style of a class that is the `at`-th of the fast ones.
    pub(super) fn of(class: Class, at: usize) -> Style {
        const FAST: [usize; 5] = [1, 0, 3, 6, 5];
        let gb_s = class.bytes_s.unwrap_or(0) / 1_000_000_000;
        let (color, width) = match class.family {
            Family::NvLink | Family::Xgmi | Family::C2c => (hue(FAST[at % FAST.len()]), 1.8),
            Family::Network => (hue(2), if gb_s > 60 { 3.0 } else { 1.6 }),
            Family::Socket => (hue(4), 2.4),
            Family::Pcie | Family::Local => {
                let width = match gb_s {
                    0..8 => 1.0,
                    8..20 => 1.6,
                    20..40 => 2.2,
                    _ => 2.8,
                };
                ("#7c858f", width)
            }
        };
        Style { color, width, is_dashed: class.bytes_s.is_none() && class.family != Family::Local }
    }

    /// The attributes of a line.
    pub(super) fn stroke(self) -> String {
        let dash = if self.is_dashed { " stroke-dasharray=\"4 3\"" } else { "" };
        format!("stroke=\"{}\" stroke-width=\"{}\" fill=\"none\"{dash}", self.color, self.width)
    }
}
