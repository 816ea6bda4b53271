//! A machine in a few numbers, its links, and what a person should look at.
//!
//! Invariant: the same machine gives the same text. Absent: searches and bounds.

use crate::export::{document, lines, object, string};

use super::{Hardware, LinkId, LinkKind, Rates};

/// A link for readers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SummaryLink {
    /// One end, by name.
    pub from: String,
    /// The other end, by name.
    pub to: String,
    /// Its kind: `nvlink`, `xgmi`, `c2c`, `pcie`, `socket`, `network`.
    pub kind: &'static str,
    /// Bytes a second in one direction, for all that run side by side; `None` where that is not known.
    pub bytes_s: Option<u64>,
}

/// A machine in short.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Summary {
    /// Its name.
    pub name: String,
    /// How many GPUs ([`Hardware::gpus`]).
    pub gpus: usize,
    /// How many ports a plan may use, or network adapters where no port is known ([`Hardware::network_ends`]).
    pub nics: usize,
    /// How many NUMA domains.
    pub numa: usize,
    /// How many NVSwitches; those that a virtual machine does not see are one.
    pub nvswitches: usize,
    /// Every wire once, in the order of the links.
    pub links: Vec<SummaryLink>,
    /// What to look at.
    pub warnings: Vec<String>,
}

impl Hardware {
    /// The machine in short, with these rates.
    pub fn summary(&self, rates: Rates) -> Summary {
        let ids = (0..self.links().len() as u32).map(LinkId);
        let wires = ids.filter(|id| self.link(*id).kind != LinkKind::Local);
        let links = wires.map(|id| {
            let link = self.link(id);
            SummaryLink {
                from: self.node(link.from).name.clone(),
                to: self.node(link.to).name.clone(),
                kind: link.kind.word(),
                bytes_s: self.bytes_s(id, rates),
            }
        });
        Summary {
            name: self.name.clone(),
            gpus: self.gpus().len(),
            nics: self.network_ends().len(),
            numa: self.numas().len(),
            nvswitches: self.nvswitches().len(),
            links: links.collect(),
            warnings: self.warnings(),
        }
    }
}

/// Gigabytes, with as many digits as there are.
pub(super) fn gigabytes(bytes: u64) -> String {
    let text = format!("{}.{:09}", bytes / 1_000_000_000, bytes % 1_000_000_000);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

impl Summary {
    /// One JSON object: `name`, `gpus`, `nics`, `numa`, `nvswitches` (numbers), `links` (each wire once, with `from`, `to`, `kind` and
    /// `gb_s`, gigabytes a second in one direction or `null`) and `warnings`.
    pub fn json(&self) -> String {
        let links = self.links.iter().map(|link| {
            object(&[
                ("from", string(&link.from)),
                ("to", string(&link.to)),
                ("kind", string(link.kind)),
                ("gb_s", link.bytes_s.map_or("null".into(), gigabytes)),
            ])
        });
        document(&[
            ("name", string(&self.name)),
            ("gpus", self.gpus.to_string()),
            ("nics", self.nics.to_string()),
            ("numa", self.numa.to_string()),
            ("nvswitches", self.nvswitches.to_string()),
            ("links", lines(links, 1)),
            ("warnings", lines(self.warnings.iter().map(|text| string(text)), 1)),
        ])
    }
}
