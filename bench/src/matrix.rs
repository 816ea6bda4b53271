//! The devices of a machine as lines, and the paths between them as the table that `nvidia-smi topo -m` prints.
//!
//! Invariant: kinds of paths are NCCL's words, and each one that appears is explained below the table. What is not known is a
//! question mark. Absent: what a plan makes of the paths.

use std::collections::BTreeSet;
use std::fmt::Write;

use consort::planning::hardware::{
    Hardware, LinkKind, NodeId, NodeKind, PathKind, Paths, Rates, Titles, counted, known_gpu,
};

/// The most rows and columns of the table, and lines of the list.
const ENDS_MAX: usize = 32;

/// What a kind of path means, as the legend says it.
fn meaning(kind: PathKind) -> &'static str {
    match kind {
        PathKind::Loc => "another port of one adapter",
        PathKind::Nvl => "NVLink or xGMI",
        PathKind::Nvb => "NVLink or xGMI by way of another GPU",
        PathKind::C2c => "NVLink-C2C to the memory of a processor",
        PathKind::Pix => "one PCIe switch at most",
        PathKind::Pxb => "several PCIe switches, without the root complex",
        PathKind::P2c => "NVLink-C2C and the root complex of the NIC",
        PathKind::Pxn => "NVLink to a GPU near the NIC",
        PathKind::Phb => "the root complex of one NUMA domain",
        PathKind::Sys => "the link between NUMA domains",
        PathKind::Net => "the network",
        PathKind::Dis => "no path is known",
    }
}

/// Gigabytes a second with two digits behind the point at most.
fn gigabytes(bytes_s: u64) -> String {
    ((bytes_s as f64 / 1e7).round() / 100.0).to_string()
}

/// What the table and the list are about.
pub(crate) struct Devices<'a> {
    hardware: &'a Hardware,
    rates: Rates,
    titles: Titles,
    gpus: Vec<NodeId>,
    /// Ports, or adapters where no port is known.
    ends: Vec<NodeId>,
    /// What was left out, as a line.
    note: String,
}

impl<'a> Devices<'a> {
    /// The devices of a machine, or, where they are many, those of its first host.
    pub(crate) fn of(hardware: &'a Hardware, rates: Rates) -> Devices<'a> {
        let (mut gpus, mut ends) = (hardware.gpus(), hardware.network_ends());
        let mut note = String::new();
        let hosts = hardware.hosts();
        if gpus.len() + ends.len() > ENDS_MAX && hosts.len() > 1 {
            let first = hosts
                .iter()
                .copied()
                .find(|host| gpus.iter().any(|gpu| hardware.node(*gpu).host == Some(*host)));
            let first = first.unwrap_or(hosts[0]);
            gpus.retain(|id| hardware.node(*id).host == Some(first));
            ends.retain(|id| hardware.node(*id).host == Some(first));
            note = format!("of {}, one of {} hosts:\n", hardware.node(first).name, hosts.len());
        }
        Devices { hardware, rates, titles: hardware.titles(), gpus, ends, note }
    }

    /// A line for each GPU: its number, its name here, where it is and how it is linked.
    pub(crate) fn list(&self) -> String {
        let mut text = String::new();
        for &id in self.gpus.iter().take(ENDS_MAX) {
            // Writing to a String cannot fail.
            let _ = writeln!(text, "  {}: {}", self.label(id), self.gpu(id).join(", "));
        }
        if self.gpus.len() > ENDS_MAX {
            let _ = writeln!(text, "  and {}", counted(self.gpus.len() - ENDS_MAX, "more GPU"));
        }
        text
    }

    fn gpu(&self, id: NodeId) -> Vec<String> {
        let (hardware, node) = (self.hardware, self.hardware.node(id));
        let NodeKind::Gpu(gpu) = &node.kind else { return Vec::new() };
        let mut words = vec![node.name.clone()];
        words.extend(gpu.pci.bus.map(|bus| bus.to_string()));
        let known = known_gpu(&gpu.pci);
        words.extend(gpu.model.clone().or_else(|| known.map(|known| known.model.to_owned())));
        words.extend(gpu.sm.filter(|_| gpu.gcn.is_none()).map(|sm| format!("sm {sm}")));
        words.extend(gpu.gcn.clone());
        if let Some((link, _)) = hardware.above(id)
            && let LinkKind::Pcie { now, .. } = hardware.link(link).kind
        {
            let generation = now.generation.map_or("?".into(), |generation| generation.to_string());
            let width = now.width.map_or("?".into(), |width| width.to_string());
            words.push(match hardware.bytes_s(link, self.rates) {
                Some(bytes_s) if now.generation.is_none() => format!("PCIe of {} GB/s", gigabytes(bytes_s)),
                Some(bytes_s) => format!("PCIe {generation} x{width} of {} GB/s", gigabytes(bytes_s)),
                None => format!("PCIe {generation} x{width}"),
            });
        }
        for (is_wanted, name) in [
            ((|kind| matches!(kind, LinkKind::NvLink { .. })) as fn(LinkKind) -> bool, "NVLinks"),
            (|kind| matches!(kind, LinkKind::Xgmi { .. }), "xGMI links"),
        ] {
            words.extend(self.fast(id, is_wanted, name));
        }
        words
    }

    /// How many links of a kind a GPU has, and what they carry together.
    fn fast(&self, id: NodeId, is_wanted: fn(LinkKind) -> bool, name: &str) -> Option<String> {
        let hardware = self.hardware;
        let links: Vec<_> =
            hardware.touching(id).iter().filter(|link| is_wanted(hardware.link(**link).kind)).collect();
        let count: u64 = links
            .iter()
            .map(|link| match hardware.link(**link).kind {
                LinkKind::NvLink { count, .. } | LinkKind::Xgmi { count } => u64::from(count),
                _ => 0,
            })
            .sum();
        let bytes_s: Option<u64> = links.iter().map(|link| hardware.bytes_s(**link, self.rates)).sum();
        let carry = bytes_s.map(|bytes_s| format!(" of {} GB/s together", gigabytes(bytes_s)));
        (count > 0).then(|| format!("{count} {name}{}", carry.unwrap_or_default()))
    }

    /// `GPU0`, `NIC3`; with its host where several are in the table.
    fn label(&self, id: NodeId) -> String {
        let host = self.hardware.node(id).host;
        let is_apart =
            self.gpus.iter().chain(&self.ends).any(|other| self.hardware.node(*other).host != host);
        let prefix = match host {
            Some(host) if is_apart => {
                let hosts = self.hardware.hosts();
                hosts.iter().position(|other| *other == host).map(|at| format!("{at}:"))
            }
            _ => None,
        };
        let prefix = prefix.unwrap_or_default();
        if self.hardware.gpu(id).is_some() {
            return format!("{prefix}{}", self.titles.of(self.hardware, id).replace(' ', ""));
        }
        let mut here = self.ends.iter().filter(|other| self.hardware.node(**other).host == host);
        let place = here.position(|other| *other == id).unwrap_or_default();
        format!("{prefix}NIC{place}")
    }

    /// Which CPUs and which NUMA domain are near.
    fn affinity(&self, id: NodeId) -> [String; 2] {
        let numa = self.hardware.numa_of(id).map(|numa| &self.hardware.node(numa).kind);
        let Some(NodeKind::Numa(numa)) = numa else { return ["?".into(), "?".into()] };
        let cpus = numa.cpus.as_ref().map_or("?".into(), |cpus| cpus.to_string());
        [cpus, numa.number.map_or("?".into(), |number| number.to_string())]
    }

    /// The path of each GPU and port to each other: its kind, and gigabytes a second of its narrowest link.
    pub(crate) fn table(&self) -> String {
        let all: Vec<NodeId> = self.gpus.iter().chain(&self.ends).copied().collect();
        if self.gpus.is_empty() {
            return String::new();
        }
        if all.len() > ENDS_MAX {
            return format!("paths: {} ends are too many to show\n", all.len());
        }
        let paths = Paths::new(self.hardware, self.rates);
        let mut kinds = BTreeSet::new();
        let labels: Vec<String> = all.iter().map(|id| self.label(*id)).collect();
        let mut rows: Vec<Vec<String>> = Vec::new();
        rows.push([String::new()].into_iter().chain(labels.clone()).collect());
        rows[0].extend(["CPU affinity".into(), "NUMA".into()]);
        for (&from, label) in all.iter().zip(&labels) {
            let found = paths.from(from, &all).into_iter().zip(&all).map(|(path, to)| {
                if *to == from {
                    return "X".into();
                }
                kinds.insert(path.kind);
                match path.bytes_s {
                    // Within a device there is no wire that limits anything.
                    _ if matches!(path.kind, PathKind::Loc | PathKind::Dis) => path.kind.to_string(),
                    Some(bytes_s) => format!("{} {}", path.kind, gigabytes(bytes_s)),
                    None => format!("{} ?", path.kind),
                }
            });
            let row = [label.clone()].into_iter().chain(found).chain(self.affinity(from));
            rows.push(row.collect());
        }
        let heading = "paths, with GB/s of the narrowest link in one direction (? is not known):\n";
        format!("{heading}{}{}{}{}", self.note, aligned(&rows), self.legend(&kinds), self.ports(&all))
    }

    fn legend(&self, kinds: &BTreeSet<PathKind>) -> String {
        let line = |kind: &PathKind| format!("  {kind} = {}\n", meaning(*kind));
        kinds.iter().map(line).collect()
    }

    /// What the ports of the table are called.
    fn ports(&self, all: &[NodeId]) -> String {
        let mut text = String::new();
        for &id in all.iter().filter(|id| self.hardware.gpu(**id).is_none()) {
            let node = self.hardware.node(id);
            let mut words = vec![self.titles.of(self.hardware, id)];
            if let NodeKind::Port(port) = &node.kind {
                words.extend(port.number.map(|number| format!("port {number}")));
                words.extend(port.speed_mbit_s.map(|speed| format!("{} Gb/s", speed as f64 / 1000.0)));
            }
            let nic = self.hardware.above(id).map_or(id, |(_, above)| above);
            let pci = [id, nic].into_iter().find_map(|id| self.hardware.node(id).kind.pci()?.bus);
            words.extend(pci.map(|bus| format!("at {bus}")));
            // Writing to a String cannot fail.
            let _ = writeln!(text, "  {} = {}", self.label(id), words.join(", "));
        }
        text
    }
}

/// Rows with their columns below each other.
fn aligned(rows: &[Vec<String>]) -> String {
    let columns = rows.first().map_or(0, Vec::len);
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
        format!("  {}\n", cells.collect::<Vec<_>>().join("  ").trim_end())
    };
    rows.iter().map(line).collect()
}
