//! What a source is silent about, filled in from a named machine.
//!
//! Invariant: what a source says is never changed; only links and numbers that are not known are filled in.

use std::error::Error;
use std::fmt;

use super::{BusId, Hardware, Lanes, LinkId, LinkKind, NodeId, NodeKind, Pci, Processor, Rates};

/// How the GPUs of a machine are joined.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Joined {
    /// By NVLinks of this generation, `links` for each GPU, spread over `switches` NVSwitches.
    Switched { generation: u8, links: u32, switches: u32 },
    /// By NVLinks as in DGX-1 with V100.
    CubeMesh,
    /// By xGMI, each GPU to each other.
    Mesh,
    /// By PCIe alone.
    Pcie,
}

struct Assumption {
    name: &'static str,
    /// GPUs of a host: that many, or any number where it is 0.
    gpus: usize,
    joined: Joined,
    sm: Option<u32>,
    gcn: Option<&'static str>,
    pcie: u8,
    processor: (&'static str, u32, u32),
}

const INTEL: &str = "GenuineIntel";
const EPYC: &str = "AuthenticAMD";

const fn nvswitched(name: &'static str, sm: u32, pcie: u8, joined: Joined) -> Assumption {
    Assumption { name, gpus: 0, joined, sm: Some(sm), gcn: None, pcie, processor: (INTEL, 6, 143) }
}

/// Sources: NVIDIA's user guides of DGX-1, DGX A100, DGX H100/H200 and DGX B200; AMD's data sheet of MI300X.
const ASSUMPTIONS: [Assumption; 7] = [
    Assumption {
        name: "dgx-1",
        gpus: 8,
        joined: Joined::CubeMesh,
        sm: Some(70),
        gcn: None,
        pcie: 3,
        processor: (INTEL, 6, 79),
    },
    Assumption {
        processor: (EPYC, 23, 49),
        ..nvswitched("dgx-a100", 80, 4, Joined::Switched { generation: 3, links: 12, switches: 6 })
    },
    nvswitched("dgx-h100", 90, 5, Joined::Switched { generation: 4, links: 18, switches: 4 }),
    nvswitched("dgx-h200", 90, 5, Joined::Switched { generation: 4, links: 18, switches: 4 }),
    nvswitched("dgx-b200", 100, 5, Joined::Switched { generation: 5, links: 18, switches: 2 }),
    Assumption {
        name: "mi300x",
        gpus: 8,
        joined: Joined::Mesh,
        sm: None,
        gcn: Some("gfx942"),
        pcie: 5,
        processor: (EPYC, 25, 17),
    },
    Assumption {
        name: "pcie",
        gpus: 0,
        joined: Joined::Pcie,
        sm: None,
        gcn: None,
        pcie: 0,
        processor: ("", 0, 0),
    },
];

/// Pairs of GPUs of DGX-1 with V100 that two NVLinks join, then those that one joins.
const CUBE_MESH: [(usize, usize, u32); 16] = [
    (0, 1, 2),
    (0, 4, 2),
    (1, 3, 2),
    (2, 3, 2),
    (2, 6, 2),
    (4, 5, 2),
    (5, 7, 2),
    (6, 7, 2),
    (0, 2, 1),
    (0, 3, 1),
    (1, 2, 1),
    (1, 5, 1),
    (3, 7, 1),
    (4, 6, 1),
    (4, 7, 1),
    (5, 6, 1),
];

/// A machine of this name cannot be assumed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NoAssumption {
    /// Why.
    pub reason: String,
}

impl fmt::Display for NoAssumption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known = ASSUMPTIONS.map(|assumption| assumption.name);
        write!(f, "{}; there are {}", self.reason, known.join(", "))
    }
}

impl Error for NoAssumption {}

impl Hardware {
    /// Fills in what is not known as it is in the machine of this name: links between GPUs whose links are not known, the generation of
    /// NVLinks, generation and width of PCIe links, processors. `pcie` says that there is no other link between GPUs.
    ///
    /// # Errors
    ///
    /// [`NoAssumption`] where no machine has the name, or where it has another number of GPUs than a host here.
    pub fn assume(&mut self, name: &str) -> Result<(), NoAssumption> {
        let fault = |reason: String| NoAssumption { reason };
        let Some(assumption) = ASSUMPTIONS.iter().find(|assumption| assumption.name == name) else {
            return Err(fault(format!("{name:?} is no machine that can be assumed")));
        };
        let silent = self.silent_hosts();
        if let Some((_, gpus)) =
            silent.iter().find(|(_, gpus)| assumption.gpus > 0 && gpus.len() != assumption.gpus)
        {
            return Err(fault(format!(
                "{name} has {} GPUs, and a host here {}",
                assumption.gpus,
                gpus.len()
            )));
        }
        for (host, gpus) in &silent {
            self.join(*host, gpus, assumption);
        }
        self.fill_links(assumption);
        self.fill_processors(assumption);
        Ok(())
    }

    /// The hosts with a GPU whose links are not known, with all of their GPUs.
    fn silent_hosts(&self) -> Vec<(Option<NodeId>, Vec<NodeId>)> {
        let mut hosts: Vec<(Option<NodeId>, Vec<NodeId>)> = Vec::new();
        for id in self.gpus() {
            let host = self.node(id).host;
            match hosts.iter_mut().find(|(known, _)| *known == host) {
                Some((_, gpus)) => gpus.push(id),
                None => hosts.push((host, vec![id])),
            }
        }
        let is_silent = |id: &NodeId| self.gpu(*id).is_some_and(|gpu| !gpu.links_known);
        hosts.retain(|(_, gpus)| gpus.iter().any(is_silent));
        hosts
    }

    fn join(&mut self, host: Option<NodeId>, gpus: &[NodeId], assumption: &Assumption) {
        for &id in gpus {
            if let NodeKind::Gpu(gpu) = &mut self.node_mut(id).kind {
                gpu.links_known = true;
                gpu.sm = gpu.sm.or(assumption.sm);
                gpu.gcn = gpu.gcn.clone().or(assumption.gcn.map(str::to_owned));
            }
        }
        match assumption.joined {
            Joined::Switched { generation, links, switches } => {
                for number in 0..switches {
                    let name = self.free_name(host, number);
                    // The addresses are not known; those of different switches are.
                    let bus = BusId { domain: 0xffff, bus: number as u8, device: 0xff, function: 0 };
                    let pci = Pci { bus: Some(bus), class: Some(0x06_8000), ..Pci::default() };
                    let switch = self.add_node(name, host, NodeKind::NvSwitch(pci));
                    let count = links / switches + u32::from(number < links % switches);
                    for &gpu in gpus {
                        self.connect(gpu, switch, LinkKind::NvLink { generation: Some(generation), count });
                    }
                }
            }
            Joined::CubeMesh => {
                for (one, other, count) in CUBE_MESH {
                    self.connect(gpus[one], gpus[other], LinkKind::NvLink { generation: Some(2), count });
                }
            }
            Joined::Mesh => {
                for (at, &one) in gpus.iter().enumerate() {
                    for &other in &gpus[at + 1..] {
                        self.connect(one, other, LinkKind::Xgmi { count: 1 });
                    }
                }
            }
            Joined::Pcie => {}
        }
    }

    /// A name for a new NVSwitch.
    fn free_name(&self, host: Option<NodeId>, number: u32) -> String {
        let hosts = self.hosts();
        let at = hosts.iter().position(|known| Some(*known) == host).filter(|_| hosts.len() > 1);
        let prefix = at.map_or(String::new(), |at| format!("h{at}."));
        let mut name = format!("{prefix}nvswitch{number}");
        while self.find(&name).is_some() {
            name.push('a');
        }
        name
    }

    fn fill_links(&mut self, assumption: &Assumption) {
        for id in (0..self.links().len() as u32).map(LinkId) {
            let link = *self.link(id);
            let kind = match link.kind {
                LinkKind::NvLink { generation: None, count } => {
                    let generation = match assumption.joined {
                        Joined::Switched { generation, .. } => Some(generation),
                        Joined::CubeMesh => Some(2),
                        Joined::Mesh | Joined::Pcie => None,
                    };
                    LinkKind::NvLink { generation, count }
                }
                LinkKind::Pcie { now, best } if link.bytes_s.is_none() && assumption.pcie > 0 => {
                    let generation = now.generation.or(Some(assumption.pcie));
                    LinkKind::Pcie { now: Lanes { generation, width: now.width.or(Some(16)) }, best }
                }
                kind => kind,
            };
            self.set_link(id, kind, link.bytes_s, link.latency_ns);
        }
    }

    fn fill_processors(&mut self, assumption: &Assumption) {
        let (vendor, family, model) = assumption.processor;
        if vendor.is_empty() {
            return;
        }
        for id in (0..self.nodes().len() as u32).map(NodeId) {
            let NodeKind::Numa(numa) = &mut self.node_mut(id).kind else { continue };
            if Rates::DataSheet.socket_bytes_s(&numa.processor).is_none()
                && numa.processor == Processor::default()
            {
                numa.processor = Processor {
                    arch: Some("x86_64".into()),
                    vendor: Some(vendor.into()),
                    family: Some(family),
                    model: Some(model),
                };
            }
        }
    }
}
