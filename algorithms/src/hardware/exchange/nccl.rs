//! NCCL's topology XML, in.
//!
//! Source: NCCL at commit 5067397c, `src/graph/xml.cc` and `src/graph/topo.cc`, and RCCL at commit 0cbce2a7, whose files
//! have version 2, `xgmi` in place of `nvlink` and `gcn`. Read is what an element means there, and more than those accept: a file that
//! says less. Attributes without a place in the model are kept by their names; elements that NCCL ignores are ignored.
//! Invariant: nodes stand in the order of the file.

use std::collections::{BTreeMap, BTreeSet};

use roxmltree::Node as Element;

use super::draft::{Draft, NUMAS_MAX};
use super::error::{Format, Note, Place, ReadError};
use super::{nccl_links, xml};
use crate::hardware::{
    Bridge, BusId, CpuSet, Gpu, Hardware, Host, Lanes, LinkKind, Nic, NodeId, NodeKind, Numa, Pci, Port,
    Processor,
};

/// The attributes of an element that are not used yet.
type Attributes = BTreeMap<String, String>;

/// Where an element stands.
#[derive(Clone, Copy)]
enum Inside {
    System,
    /// In a NUMA domain or a PCIe switch.
    Tree(NodeId),
    /// In the `pci` element of a GPU or a NIC.
    Device(NodeId),
    /// In a `nic` element.
    Nic(NodeId),
    /// In a `gpu` element.
    Gpu(NodeId),
}

/// Reads the XML of NCCL and RCCL.
///
/// # Errors
///
/// The line, the reason and what to do.
pub(super) fn read(text: &str) -> Result<(Hardware, Vec<Note>), ReadError> {
    let place = Place::new(Format::NcclTopology, text);
    let document = xml::parse(text, &place)?;
    let mut reader = Reader {
        draft: Draft::new(&place),
        hosts: BTreeMap::new(),
        links: Vec::new(),
        described: BTreeSet::new(),
        bridges: BTreeMap::new(),
    };
    reader.system(document.root_element())?;
    let Reader { mut draft, links, .. } = reader;
    nccl_links::resolve(&mut draft, links)?;
    draft.join_sockets()?;
    draft.finish()
}

/// An element that joins a GPU to something else.
#[derive(Debug)]
pub(super) struct Wire {
    pub(super) gpu: NodeId,
    pub(super) line: u32,
    pub(super) kind: WireKind,
    pub(super) count: u32,
}

/// What a [`Wire`] is.
#[derive(Debug)]
pub(super) enum WireKind {
    /// `nvlink` or `xgmi`, with the address and the class of the other end.
    Peer { is_xgmi: bool, target: String, class: Option<u32> },
    /// `c2c`, with megabytes a second of one link.
    C2c { mb_s: u64 },
}

struct Reader<'a> {
    draft: Draft<'a>,
    /// Per `host_hash` the node, and how many NUMA domains it has so far.
    hosts: BTreeMap<Option<String>, (NodeId, usize)>,
    links: Vec<Wire>,
    /// The GPUs whose `gpu` element was read.
    described: BTreeSet<NodeId>,
    /// Per node above and address the bridge.
    bridges: BTreeMap<(NodeId, BusId), NodeId>,
}

/// The elements in an element, the first at the end, where it is taken first.
fn children<'a, 'input>(
    element: Element<'a, 'input>,
    within: Inside,
) -> impl Iterator<Item = (Element<'a, 'input>, Inside)> {
    element.children().rev().filter(Element::is_element).map(move |child| (child, within))
}

impl Reader<'_> {
    fn system(&mut self, root: Element<'_, '_>) -> Result<(), ReadError> {
        let line = xml::line(self.draft.place, root);
        let version = xml::number::<i64>(self.draft.place, line, "version", root.attribute("version"))?;
        if !matches!(version, None | Some(1 | 2)) {
            let reason = format!("version {} of the format is not known", version.unwrap_or_default());
            return Err(self.draft.error(line, reason, "NCCL writes version 1 and RCCL version 2"));
        }
        if let Some(name) = root.attribute("name") {
            self.draft.hardware.name = name.split_whitespace().collect::<Vec<_>>().join("-");
        }
        let mut waiting: Vec<_> = children(root, Inside::System).collect();
        while let Some((element, inside)) = waiting.pop() {
            self.draft.room(self.links.len())?;
            if let Some(within) = self.element(element, inside)? {
                waiting.extend(children(element, within));
            }
        }
        if self.hosts.is_empty() {
            return Err(self.draft.error(line, "there is no <cpu>", "a machine has a NUMA domain at least"));
        }
        Ok(())
    }

    /// Reads one element; gives what its children are inside of, or `None` where it has none that count.
    fn element(&mut self, element: Element<'_, '_>, inside: Inside) -> Result<Option<Inside>, ReadError> {
        let line = xml::line(self.draft.place, element);
        let mut attributes: Attributes =
            element.attributes().map(|each| (each.name().to_owned(), each.value().to_owned())).collect();
        if attributes.remove("pcilink").is_some() {
            self.draft.note(line, "the attribute pcilink has no meaning and is ignored".to_owned());
        }
        match (element.tag_name().name(), inside) {
            ("cpu", Inside::System) => self.cpu(line, attributes).map(|id| Some(Inside::Tree(id))),
            ("pci", Inside::Tree(above)) => self.pci(element, line, above, attributes).map(Some),
            ("nic", Inside::Device(nic))
                if matches!(self.draft.hardware.node(nic).kind, NodeKind::Nic(_)) =>
            {
                Ok(Some(Inside::Nic(nic)))
            }
            ("nic", Inside::Tree(above))
                if matches!(self.draft.hardware.node(above).kind, NodeKind::Numa(_)) =>
            {
                let nic =
                    self.draft.add(line, Some((above, LinkKind::Local)), NodeKind::Nic(Nic { pci: None }));
                self.draft.hardware.node_mut(nic).extra = attributes;
                Ok(Some(Inside::Nic(nic)))
            }
            ("net", Inside::Nic(nic)) => self.net(line, nic, attributes).map(|()| None),
            ("gpu", Inside::Device(gpu)) => self.gpu(line, gpu, attributes),
            ("nvlink" | "xgmi" | "xgmilink", Inside::Gpu(gpu)) => {
                let is_xgmi = element.tag_name().name() != "nvlink";
                self.peer(line, gpu, is_xgmi, &attributes).map(|()| None)
            }
            ("c2c" | "c2clink", Inside::Gpu(gpu)) => {
                let mb_s = self.number(line, &mut attributes, "bw")?.unwrap_or(0);
                self.wire(line, gpu, WireKind::C2c { mb_s }, &attributes).map(|()| None)
            }
            ("pcilink", Inside::Tree(bridge))
                if matches!(self.draft.hardware.node(bridge).kind, NodeKind::Bridge(_)) =>
            {
                // Links between switches, which NCCL takes for part of the switch; kept, and used for nothing.
                let target = attributes.remove("target").unwrap_or_default();
                let known = self.draft.hardware.node_mut(bridge).extra.entry("pcilink".into()).or_default();
                *known += if known.is_empty() { "" } else { "," };
                *known += &target;
                Ok(None)
            }
            (name, _) => {
                self.draft.note(line, format!("<{name}> has no meaning here and is ignored"));
                Ok(None)
            }
        }
    }

    fn cpu(&mut self, line: u32, mut attributes: Attributes) -> Result<NodeId, ReadError> {
        let hash = attributes.remove("host_hash").map(|hash| hash.trim().to_ascii_lowercase());
        let (host, numas) = self.hosts.entry(hash).or_insert_with_key(|hash| {
            let host = NodeKind::Host(Host { hash: hash.clone(), ..Host::default() });
            (self.draft.add(line, None, host), 0)
        });
        *numas += 1;
        let (host, numas) = (*host, *numas);
        // Walks up the tree end in a host, whose links they pass: their number is bounded while the file is read.
        if numas > NUMAS_MAX {
            let reason = format!("{numas} NUMA domains on one host");
            return Err(self.draft.error(line, reason, "no host has more than 256"));
        }
        let number = self.number(line, &mut attributes, "numaid")?;
        let mask = attributes.remove("affinity").filter(|mask| !mask.trim().is_empty());
        let wrong = |mask: &str| {
            self.draft.error(
                line,
                format!("affinity={mask:?} is no mask"),
                "write words of hexadecimal digits",
            )
        };
        let cpus = mask.map(|mask| CpuSet::from_mask(&mask).map_err(|_| wrong(&mask))).transpose()?;
        let family = self.number(line, &mut attributes, "familyid")?.map(family);
        let processor = Processor {
            arch: attributes.remove("arch"),
            vendor: attributes.remove("vendor"),
            family,
            model: self.number(line, &mut attributes, "modelid")?,
        };
        let numa = NodeKind::Numa(Numa { number, cpus, processor, memory_bytes: None });
        let numa = self.draft.add(line, Some((host, LinkKind::Local)), numa);
        self.draft.hardware.node_mut(numa).extra = attributes;
        Ok(numa)
    }

    fn pci(
        &mut self,
        element: Element<'_, '_>,
        line: u32,
        above: NodeId,
        mut attributes: Attributes,
    ) -> Result<Inside, ReadError> {
        let pci = self.device(line, &mut attributes)?;
        let speed = attributes.remove("link_speed").unwrap_or_default();
        let width = self.number::<u8>(line, &mut attributes, "link_width")?.filter(|width| *width > 0);
        let generation = pcie_generation(&speed);
        if generation.is_none() && !speed.trim().is_empty() {
            self.draft
                .note(line, format!("the link speed {speed:?} is not understood, and not known therefore"));
        }
        let link = LinkKind::Pcie { now: Lanes { generation, width }, best: Lanes::default() };
        let has = |name: &str| element.children().any(|child| child.has_tag_name(name));
        let class = pci.class.unwrap_or(0x06_0400);
        let kind = if has("gpu") {
            NodeKind::Gpu(Gpu { pci, described: true, links_known: true, ..Gpu::default() })
        } else if has("nic") || pci.looks_like_nic() {
            NodeKind::Nic(Nic { pci: Some(pci) })
        } else if class >> 8 == 0x0680 && class != 0x06_8001 {
            NodeKind::NvSwitch(pci)
        } else if pci.looks_like_gpu() {
            NodeKind::Gpu(Gpu { pci, ..Gpu::default() })
        } else {
            NodeKind::Bridge(Bridge { pci, acs: None })
        };
        let is_bridge = matches!(kind, NodeKind::Bridge(_));
        if let Some(bus) = pci.bus.filter(|_| is_bridge)
            && let Some(known) = self.same_bridge(above, bus)?
        {
            self.draft.note(line, format!("the switch {bus} is there again; it is one"));
            return Ok(Inside::Tree(known));
        }
        let id = self.draft.add(line, Some((above, link)), kind);
        self.draft.hardware.node_mut(id).extra = attributes;
        self.bridges.extend(pci.bus.filter(|_| is_bridge).map(|bus| ((above, bus), id)));
        Ok(if is_bridge { Inside::Tree(id) } else { Inside::Device(id) })
    }

    /// The bridge with this address directly below `above`; an error where one is above it.
    fn same_bridge(&self, above: NodeId, bus: BusId) -> Result<Option<NodeId>, ReadError> {
        let hardware = &self.draft.hardware;
        let is_it = |id: NodeId| matches!(&hardware.node(id).kind, NodeKind::Bridge(bridge) if bridge.pci.bus == Some(bus));
        let mut at = Some(above);
        while let Some(id) = at {
            if is_it(id) {
                let reason = format!("the switch {bus} lies below itself");
                return Err(self.draft.error(self.draft.line(id), reason, "a tree has no cycle"));
            }
            at = hardware.above(id).map(|(_, above)| above);
        }
        Ok(self.bridges.get(&(above, bus)).copied())
    }

    fn device(&self, line: u32, attributes: &mut Attributes) -> Result<Pci, ReadError> {
        let bus = attributes.remove("busid").filter(|text| !text.trim().is_empty());
        let wrong = |text: &str| {
            self.draft.error(line, format!("busid={text:?} is no PCI address"), "write it as 0000:3b:00.0")
        };
        let bus = bus.map(|text| text.parse().map_err(|_| wrong(&text))).transpose()?;
        let class = match attributes.remove("class") {
            None => None,
            Some(text) if text.trim().is_empty() => None,
            Some(text) => Some(pci_class(&text).ok_or_else(|| {
                self.draft.error(line, format!("class={text:?} is no PCI class"), "write it as 0x030200")
            })?),
        };
        let mut id = |key: &str| self.number::<u16>(line, attributes, key);
        Ok(Pci {
            bus,
            class,
            vendor: id("vendor")?,
            device: id("device")?,
            subsystem_vendor: id("subsystem_vendor")?,
            subsystem_device: id("subsystem_device")?,
        })
    }

    fn gpu(
        &mut self,
        line: u32,
        id: NodeId,
        mut attributes: Attributes,
    ) -> Result<Option<Inside>, ReadError> {
        let (index, rank, sm) = (
            self.number(line, &mut attributes, "dev")?,
            self.number(line, &mut attributes, "rank")?,
            self.number(line, &mut attributes, "sm")?,
        );
        let gcn = attributes.remove("gcn");
        if !self.described.insert(id) {
            self.draft.note(line, "a second <gpu> of one device is ignored: its ranks share a GPU");
            return Ok(None);
        }
        let node = self.draft.hardware.node_mut(id);
        let NodeKind::Gpu(gpu) = &mut node.kind else {
            self.draft.note(line, "a <gpu> in a device of another kind is ignored");
            return Ok(None);
        };
        (gpu.index, gpu.rank, gpu.sm, gpu.gcn) = (index, rank, sm, gcn);
        // `arch` of a GPU and what else its element has; the device's own attributes keep their names.
        node.extra.extend(attributes.into_iter().map(|(key, value)| (format!("gpu.{key}"), value)));
        Ok(Some(Inside::Gpu(id)))
    }

    fn net(&mut self, line: u32, nic: NodeId, mut attributes: Attributes) -> Result<(), ReadError> {
        let latency = attributes.remove("latency").filter(|text| !text.trim().is_empty());
        let latency_ns = latency
            .map(|text| {
                microseconds(&text).ok_or_else(|| {
                    self.draft.error(
                        line,
                        format!("latency={text:?} is no time in microseconds"),
                        "correct it, or leave it out",
                    )
                })
            })
            .transpose()?
            .filter(|latency| *latency > 0);
        let guid = self.guid(line, &mut attributes)?;
        let port = Port {
            device: attributes.remove("name").filter(|name| !name.is_empty()),
            index: self.number(line, &mut attributes, "dev")?,
            number: self.number(line, &mut attributes, "port")?,
            speed_mbit_s: self.number(line, &mut attributes, "speed")?.filter(|speed: &u64| *speed > 0),
            latency_ns,
            guid,
            ..Port::default()
        };
        let port = self.draft.add(line, Some((nic, LinkKind::Local)), NodeKind::Port(port));
        self.draft.hardware.node_mut(port).extra = attributes;
        Ok(())
    }

    fn guid(&self, line: u32, attributes: &mut Attributes) -> Result<Option<u64>, ReadError> {
        let Some(text) = attributes.remove("guid").filter(|text| !text.trim().is_empty()) else {
            return Ok(None);
        };
        let digits = text.trim().trim_start_matches("0x");
        let value = u64::from_str_radix(digits, 16).map_err(|_| {
            self.draft.error(
                line,
                format!("guid={text:?} is no hexadecimal number"),
                "correct it, or leave it out",
            )
        })?;
        Ok(Some(value).filter(|value| *value != 0))
    }

    fn peer(
        &mut self,
        line: u32,
        gpu: NodeId,
        is_xgmi: bool,
        attributes: &Attributes,
    ) -> Result<(), ReadError> {
        let Some(target) = attributes.get("target").cloned() else {
            return Err(self.draft.error(
                line,
                "the link has no target",
                "name the address of its other end",
            ));
        };
        let class = attributes.get("tclass").and_then(|class| pci_class(class));
        self.wire(line, gpu, WireKind::Peer { is_xgmi, target, class }, attributes)
    }

    fn wire(
        &mut self,
        line: u32,
        gpu: NodeId,
        kind: WireKind,
        attributes: &Attributes,
    ) -> Result<(), ReadError> {
        let count = attributes.get("count").map(String::as_str);
        let count = xml::number::<u32>(self.draft.place, line, "count", count)?.unwrap_or(1);
        if !(1..=1024).contains(&count) {
            return Err(self.draft.error(line, format!("{count} links side by side"), "there are 1 to 1024"));
        }
        self.links.push(Wire { gpu, line, kind, count });
        Ok(())
    }

    fn number<T: TryFrom<i64>>(
        &self,
        line: u32,
        attributes: &mut Attributes,
        key: &str,
    ) -> Result<Option<T>, ReadError> {
        xml::number(self.draft.place, line, key, attributes.remove(key).as_deref())
    }
}

/// A PCI class of 24 bits; four digits are base class and subclass, two the base class (NCCL's `0x03`).
fn pci_class(text: &str) -> Option<u32> {
    let digits = text.trim().trim_start_matches("0x");
    let value = super::super::identity::hexadecimal(digits, 6)?;
    Some(value << (24 - 4 * digits.len().next_multiple_of(2)))
}

/// The family with its extension added. NCCL writes the extended family in front of the four bits of the family
/// (`familyId + (extFamilyId << 4)`), so that AMD's 23 is 143 in its files; other writers have 23.
fn family(written: u32) -> u32 {
    if written > 0xf && written & 0xf == 0xf { 0xf + (written >> 4) } else { written }
}

/// The generation of a link speed as sysfs writes it: `8 GT/s`, `16.0 GT/s PCIe`.
pub fn pcie_generation(speed: &str) -> Option<u8> {
    let (number, rest) = speed.trim().split_once(|letter: char| !letter.is_ascii_digit() && letter != '.')?;
    if !rest.trim_start().starts_with("GT/s") {
        return None;
    }
    match number.strip_suffix(".0").unwrap_or(number) {
        "2.5" => Some(1),
        "5" => Some(2),
        "8" => Some(3),
        "16" => Some(4),
        "32" => Some(5),
        "64" => Some(6),
        "128" => Some(7),
        _ => None,
    }
}

/// Nanoseconds of a decimal number of microseconds; as in the text form, 32 bits hold them.
pub(super) fn microseconds(text: &str) -> Option<u64> {
    let value: f64 = text.trim().parse().ok()?;
    (0.0..4e6).contains(&value).then(|| (value * 1e3).round() as u64)
}
