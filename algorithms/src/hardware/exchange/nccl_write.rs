//! NCCL's topology XML, out.
//!
//! Invariant: reading what was written gives the machine again, if a file of NCCL could have said all of it. What NCCL has no
//! element for is left out: caches, root complexes (their devices stand in the `cpu` element), networks, and states of ports.

use std::collections::BTreeMap;
use std::error::Error;
use std::fmt;
use std::fmt::Write;

use super::xml::quoted;
use crate::hardware::{AMD, Gpu, Hardware, Lanes, LinkKind, NodeId, NodeKind, Numa, Pci, Port, Processor};

/// A machine that the format cannot say.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NotWritable {
    /// Why.
    pub reason: String,
    /// What to do.
    pub remedy: String,
}

impl fmt::Display for NotWritable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {}", self.reason, self.remedy)
    }
}

impl Error for NotWritable {}

/// The machine as NCCL reads it by `NCCL_TOPO_FILE`, or RCCL where a GPU is AMD's.
///
/// # Errors
///
/// [`NotWritable`] where a GPU that is described has no PCI address (NCCL finds GPUs by it), or where there is no NUMA domain.
pub fn nccl_topology_xml(hardware: &Hardware) -> Result<String, NotWritable> {
    let unknown = hardware.gpus().into_iter().find(|id| {
        hardware.gpu(*id).is_some_and(|gpu| gpu.pci.bus.is_none())
            && hardware.nodes().len() > 1
            && has_links(hardware, *id)
    });
    if let Some(gpu) = unknown {
        let name = &hardware.node(gpu).name;
        return Err(NotWritable {
            reason: format!("the PCI address of {name} is not known, and NCCL names the ends of links by it"),
            remedy: "write the machine as text, or begin with a source that has addresses".into(),
        });
    }
    let is_numa = |node: &crate::hardware::Node| matches!(node.kind, NodeKind::Numa(_));
    let numas: Vec<NodeId> = hardware.iter().filter(|(_, node)| is_numa(node)).map(|(id, _)| id).collect();
    if numas.is_empty() {
        return Err(NotWritable {
            reason: "there is no NUMA domain".into(),
            remedy: "NCCL's format hangs devices below NUMA domains; write the machine as text".into(),
        });
    }
    let is_amd =
        |id: &NodeId| hardware.gpu(*id).is_some_and(|gpu| gpu.gcn.is_some() || gpu.pci.vendor == Some(AMD));
    let version = if hardware.gpus().iter().any(is_amd) { "2" } else { "1" };
    let mut writer = Writer { hardware, text: String::new() };
    let name = Some(hardware.name.clone()).filter(|name| !name.is_empty());
    writer.open(
        0,
        "system",
        &[("version", Some(version.into())), ("name", name)],
        &BTreeMap::new(),
        "",
        true,
    );
    for numa in numas {
        writer.numa(numa);
    }
    writer.text += "</system>\n";
    Ok(writer.text)
}

/// Whether a key of another format can be an attribute.
fn is_xml_name(key: &str) -> bool {
    let is_part = |letter: char| letter.is_ascii_alphanumeric() || "_-.".contains(letter);
    key.starts_with(|letter: char| letter.is_ascii_alphabetic() || letter == '_') && key.chars().all(is_part)
}

fn has_links(hardware: &Hardware, id: NodeId) -> bool {
    hardware.touching(id).iter().any(|link| hardware.link(*link).kind.joins_gpus())
}

struct Writer<'a> {
    hardware: &'a Hardware,
    text: String,
}

/// What is still to be written: a node, or the end of an element.
enum Waiting {
    Node(usize, NodeId),
    End(usize, &'static str),
}

impl Writer<'_> {
    /// A start tag: the attributes with a value, then those of `extra` whose keys begin with `prefix`.
    fn open(
        &mut self,
        depth: usize,
        element: &str,
        attributes: &[(&str, Option<String>)],
        extra: &BTreeMap<String, String>,
        prefix: &str,
        has_content: bool,
    ) {
        // Writing to a String cannot fail.
        let _ = write!(self.text, "{}<{element}", "  ".repeat(depth));
        for (key, value) in attributes {
            if let Some(value) = value {
                let _ = write!(self.text, " {key}={}", quoted(value));
            }
        }
        for (key, value) in extra {
            let is_own = if prefix.is_empty() { !key.starts_with("gpu.") } else { key.starts_with(prefix) };
            if is_own && key != "pcilink" && !key.starts_with("probe.") && is_xml_name(&key[prefix.len()..]) {
                let _ = write!(self.text, " {}={}", &key[prefix.len()..], quoted(value));
            }
        }
        self.text += if has_content { ">\n" } else { "/>\n" };
    }

    fn numa(&mut self, id: NodeId) {
        let node = self.hardware.node(id);
        let NodeKind::Numa(Numa { number, cpus, processor, .. }) = &node.kind else { return };
        let host = node.host.map(|host| &self.hardware.node(host).kind);
        let hash = match host {
            Some(NodeKind::Host(host)) => host.hash.clone(),
            _ => None,
        };
        let Processor { arch, vendor, family, model } = processor;
        let attributes = [
            ("host_hash", hash),
            ("numaid", Some(number.map_or("-1".into(), |number| number.to_string()))),
            ("affinity", cpus.as_ref().map(crate::hardware::CpuSet::mask)),
            ("arch", arch.clone()),
            ("vendor", vendor.clone()),
            ("familyid", family.map(|family| family.to_string())),
            ("modelid", model.map(|model| model.to_string())),
        ];
        self.open(1, "cpu", &attributes, &node.extra, "", true);
        let mut waiting = vec![Waiting::End(1, "cpu")];
        self.put_below(&mut waiting, 2, id);
        while let Some(next) = waiting.pop() {
            match next {
                Waiting::Node(depth, id) => self.device(&mut waiting, depth, id),
                Waiting::End(depth, element) => {
                    let _ = writeln!(self.text, "{}</{element}>", "  ".repeat(depth));
                }
            }
        }
    }

    /// The nodes below, the first at the end, where it is taken first.
    fn put_below(&self, waiting: &mut Vec<Waiting>, depth: usize, id: NodeId) {
        let below: Vec<NodeId> = self.hardware.below(id).map(|(_, id)| id).collect();
        waiting.extend(below.into_iter().rev().map(|id| Waiting::Node(depth, id)));
    }

    fn device(&mut self, waiting: &mut Vec<Waiting>, depth: usize, id: NodeId) {
        let node = self.hardware.node(id);
        match &node.kind {
            // The root complex is the processor's.
            NodeKind::Root(_) => self.put_below(waiting, depth, id),
            NodeKind::Bridge(bridge) => {
                self.pci(depth, id, &bridge.pci, true);
                for target in node.extra.get("pcilink").into_iter().flat_map(|targets| targets.split(',')) {
                    let target = [("target", Some(target.to_owned()))];
                    self.open(depth + 1, "pcilink", &target, &BTreeMap::new(), "", false);
                }
                waiting.push(Waiting::End(depth, "pci"));
                self.put_below(waiting, depth + 1, id);
            }
            NodeKind::Gpu(gpu) => {
                self.pci(depth, id, &gpu.pci, gpu.described);
                if gpu.described {
                    self.gpu(depth + 1, id, gpu);
                    waiting.push(Waiting::End(depth, "pci"));
                }
            }
            NodeKind::NvSwitch(pci) => self.pci(depth, id, pci, false),
            NodeKind::Nic(nic) => {
                let has_ports = self.hardware.below(id).next().is_some();
                let Some(pci) = &nic.pci else {
                    self.open(depth, "nic", &[], &node.extra, "", true);
                    waiting.push(Waiting::End(depth, "nic"));
                    self.put_below(waiting, depth + 1, id);
                    return;
                };
                self.pci(depth, id, pci, has_ports);
                if has_ports {
                    self.open(depth + 1, "nic", &[], &BTreeMap::new(), "", true);
                    waiting.push(Waiting::End(depth, "pci"));
                    waiting.push(Waiting::End(depth + 1, "nic"));
                    self.put_below(waiting, depth + 2, id);
                }
            }
            NodeKind::Port(port) => self.port(depth, id, port),
            NodeKind::Host(_) | NodeKind::Numa(_) | NodeKind::Cores(_) | NodeKind::Switch { .. } => {}
        }
    }

    fn pci(&mut self, depth: usize, id: NodeId, pci: &Pci, has_content: bool) {
        let lanes = self.hardware.above(id).map(|(link, _)| self.hardware.link(link).kind);
        let lanes = match lanes {
            Some(LinkKind::Pcie { now, .. }) => now,
            _ => Lanes::default(),
        };
        let speed = match lanes.generation {
            Some(1) => "2.5 GT/s PCIe",
            Some(2) => "5.0 GT/s PCIe",
            Some(3) => "8.0 GT/s PCIe",
            Some(4) => "16.0 GT/s PCIe",
            Some(5) => "32.0 GT/s PCIe",
            Some(6) => "64.0 GT/s PCIe",
            Some(7) => "128.0 GT/s PCIe",
            _ => "",
        };
        let number = |value: Option<u16>| value.map(|value| format!("0x{value:04x}"));
        let attributes = [
            ("busid", pci.bus.map(|bus| bus.to_string())),
            ("class", pci.class.map(|class| format!("0x{class:06x}"))),
            ("vendor", number(pci.vendor)),
            ("device", number(pci.device)),
            ("subsystem_vendor", number(pci.subsystem_vendor)),
            ("subsystem_device", number(pci.subsystem_device)),
            ("link_speed", Some(speed.to_owned())),
            ("link_width", Some(lanes.width.map_or(String::new(), |width| width.to_string()))),
        ];
        let extra = &self.hardware.node(id).extra;
        self.open(depth, "pci", &attributes, extra, "", has_content);
    }

    fn gpu(&mut self, depth: usize, id: NodeId, gpu: &Gpu) {
        let number = |value: Option<u32>| value.map(|value| value.to_string());
        let attributes = [
            ("dev", number(gpu.index)),
            ("sm", number(gpu.sm)),
            ("gcn", gpu.gcn.clone()),
            ("rank", number(gpu.rank)),
        ];
        let wanted = |link: &&crate::hardware::LinkId| {
            let kind = self.hardware.link(**link).kind;
            kind.joins_gpus() || matches!(kind, LinkKind::C2c { .. })
        };
        let links: Vec<_> = self.hardware.touching(id).iter().filter(wanted).copied().collect();
        let extra = &self.hardware.node(id).extra;
        self.open(depth, "gpu", &attributes, extra, "gpu.", !links.is_empty());
        for &link in &links {
            let link = self.hardware.link(link);
            let (element, count) = match link.kind {
                LinkKind::NvLink { count, .. } => ("nvlink", count),
                LinkKind::Xgmi { count } => ("xgmi", count),
                LinkKind::C2c { count } => ("c2c", count),
                _ => continue,
            };
            let attributes = if element == "c2c" {
                let mb_s =
                    link.bytes_s.map(|bytes_s| (bytes_s / u64::from(count.max(1)) / 1_000_000).to_string());
                [("count", Some(count.to_string())), ("bw", mb_s), ("tclass", None)]
            } else {
                let (target, class) = self.target(link.other(id));
                [("target", Some(target)), ("count", Some(count.to_string())), ("tclass", Some(class))]
            };
            self.open(depth + 1, element, &attributes, &BTreeMap::new(), "", false);
        }
        if !links.is_empty() {
            let _ = writeln!(self.text, "{}</gpu>", "  ".repeat(depth));
        }
    }

    /// Address and class of the other end of a GPU's link.
    fn target(&self, id: NodeId) -> (String, String) {
        match &self.hardware.node(id).kind {
            NodeKind::NvSwitch(pci) => {
                let bus = pci.bus.map_or("fffffff:ffff:ff".into(), |bus| bus.to_string());
                (bus, "0x068000".into())
            }
            NodeKind::Numa(_) => ("0000:00:00.0".into(), "0x068001".into()),
            kind => {
                let pci = kind.pci().copied().unwrap_or_default();
                let bus = pci.bus.map_or(String::new(), |bus| bus.to_string());
                (bus, format!("0x{:06x}", pci.class.unwrap_or(0x03_0200)))
            }
        }
    }

    fn port(&mut self, depth: usize, id: NodeId, port: &Port) {
        let number = |value: Option<u32>| value.map(|value| value.to_string());
        let latency = port.latency_ns.map(|latency| format!("{}.{:03}", latency / 1000, latency % 1000));
        let attributes = [
            ("name", port.device.clone()),
            ("dev", number(port.index)),
            ("latency", latency),
            ("speed", port.speed_mbit_s.map(|speed| speed.to_string())),
            ("port", number(port.number)),
            ("guid", port.guid.map(|guid| format!("0x{guid:x}"))),
        ];
        let extra = &self.hardware.node(id).extra;
        self.open(depth, "net", &attributes, extra, "", false);
    }
}
