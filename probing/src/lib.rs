//! What is in a machine, as its kernel and NVIDIA's management library say it: one [`Hardware`] of one host.
//!
//! All files are read below a root directory, so that a captured tree stands in for a machine; the library answers behind
//! [`Management`], so that recorded answers stand in for it.
//!
//! Invariant: a probe changes nothing, ends, and never fails: what cannot be read is unknown, with a [`Note`] where it should
//! have been readable. What comes out has passed [`Hardware::check`]. Deliberately absent: measuring, and what a plan makes of it.

mod access;
mod amd;
mod cores;
mod devices;
mod host;
mod net;
mod note;
mod nvidia;
mod pci;
mod recorded;
mod tree;

use std::collections::BTreeSet;
use std::path::Path;

use consort_algorithms::hardware::{BusId, Hardware, LinkKind, NodeId, NodeKind};
pub use consort_cuda::NoNvml;
pub use consort_cuda::management::{self, Live, Management, NoAnswer};

pub use host::Limits;
pub use note::{Note, Trouble};
pub use recorded::{NoRecord, Recorded};
use tree::Tree;

/// A probe of one host.
#[allow(missing_debug_implementations, reason = "a library behind a trait has nothing to show")]
pub struct Probe<'a> {
    root: &'a Path,
    library: Option<&'a dyn Management>,
}

/// What a probe found.
#[derive(Clone, PartialEq, Debug)]
pub struct Probed {
    /// The host, its devices and what joins them.
    pub hardware: Hardware,
    /// What this process may use of it.
    pub limits: Limits,
    /// What could not be read, or was not believed; the same files give the same notes in the same order.
    pub notes: Vec<Note>,
}

impl<'a> Probe<'a> {
    /// A probe of the files below `root`: `/` for this machine.
    pub fn below(root: &'a Path) -> Probe<'a> {
        Probe { root, library: None }
    }

    /// Asks this library for NVIDIA's GPUs besides.
    pub fn with(self, library: &'a dyn Management) -> Probe<'a> {
        Probe { library: Some(library), ..self }
    }

    /// Looks.
    pub fn run(self) -> Probed {
        let tree = Tree::below(self.root);
        let cpu = host::cpu(&tree);
        let limits = host::limits(&tree);
        let mut hardware = Hardware::new(host::name(&tree));
        let host = host::host(&tree, &cpu);
        let is_virtual = host.is_virtual == Some(true);
        let host = hardware.add_node("", None, NodeKind::Host(host));
        keep_processor(&mut hardware, host, &cpu, &limits);
        let numas = cores::add(&tree, &mut hardware, host, &cpu.processor);
        let home = numas.values().next().copied();
        let nvidia = self.library.map(|library| nvidia::gpus(&tree, library)).unwrap_or_default();
        let amd = amd::gpus(&tree);
        let described: BTreeSet<BusId> =
            nvidia.iter().map(|known| known.bus).chain(amd.iter().map(|known| known.bus)).collect();
        let placer = devices::Placer::new(&tree, &mut hardware, host, &numas, is_virtual);
        let mut placed = placer.place(&described);
        let home = home.or_else(|| any_numa(&hardware));
        let home = home.or_else(|| (!nvidia.is_empty()).then(|| add_numa(&mut hardware, host)));
        net::add(&tree, &mut hardware, home, &placed);
        amd::add(&tree, &mut hardware, &placed, &amd, nvidia.len() as u32);
        if let Some(library) = self.library {
            nvidia::add(&tree, library, &mut hardware, home, &mut placed, &nvidia);
        }
        let driver = self.library.and_then(|library| library.driver_version().ok());
        let iommu = access::iommu(&tree, &hardware, &placed);
        let gpudirect = access::gpudirect(&tree, &hardware, driver.as_deref());
        if let NodeKind::Host(host) = &mut hardware.node_mut(host).kind {
            (host.iommu, host.gpudirect) = (iommu, gpudirect);
        }
        hardware.name_nodes();
        let hardware = checked(&tree, hardware);
        Probed { hardware, limits, notes: tree.into_notes() }
    }
}

/// Keeps what the model has no place for.
fn keep_processor(hardware: &mut Hardware, host: NodeId, cpu: &host::Cpu, limits: &Limits) {
    let extra = &mut hardware.node_mut(host).extra;
    let mut keep = |key: &str, value: Option<String>| {
        extra.extend(value.map(|value| (format!("probe.{key}"), value)));
    };
    keep("processor", cpu.name.clone());
    keep("cpus_allowed", limits.cpus.as_ref().map(|cpus| cpus.to_string()));
    keep("cpu_quota_milli", limits.quota_milli.map(|quota| quota.to_string()));
}

fn any_numa(hardware: &Hardware) -> Option<NodeId> {
    hardware.iter().find(|(_, node)| matches!(node.kind, NodeKind::Numa(_))).map(|(id, _)| id)
}

/// A domain without properties, for devices of a host whose domains cannot be read.
fn add_numa(hardware: &mut Hardware, host: NodeId) -> NodeId {
    let id = hardware.add_node("", Some(host), NodeKind::Numa(Default::default()));
    hardware.connect(host, id, LinkKind::Local);
    id
}

/// The machine, or an empty host where it makes no sense: that is a bug of this crate, and no reason to end a job.
fn checked(tree: &Tree, hardware: Hardware) -> Hardware {
    let Err(fault) = hardware.check() else { return hardware };
    tree.note("/", Trouble::Contradiction { how: format!("{fault}; nothing is taken from this tree") });
    let mut empty = Hardware::new(hardware.name.clone());
    empty.add_node("host0", None, NodeKind::Host(Default::default()));
    empty
}
