//! hwloc's XML, in: versions 1, 2 and 3.
//!
//! Source: hwloc at commit 3b37b024, `hwloc/topology-xml.c` and `hwloc/hwloc2.dtd`. hwloc has an object for each port of a PCIe switch,
//! and a port of the root complex; here, as in NCCL, a switch is one node, and a link leads from one device to the next.
//! Taken are NUMA domains, last-level caches, PCI devices that are GPUs, NVSwitches, network adapters, what leads to them, and the
//! matrices of NUMA latencies and of NVLink and xGMI bandwidths. Invariant: nodes stand in the order of the file, NUMA domains first.

use std::collections::BTreeMap;

use roxmltree::Node as Element;

use super::draft::{Draft, NUMAS_MAX};
use super::error::{Format, Note, Place, ReadError};
use super::{hwloc_devices, hwloc_matrices, xml};
use crate::hardware::{Cores, CpuSet, Hardware, Host, LinkKind, NodeId, NodeKind, Numa, Processor};

/// An object of the file.
pub(super) struct Object<'a, 'input> {
    pub(super) element: Element<'a, 'input>,
    pub(super) line: u32,
    /// The object in which it is.
    pub(super) above: Option<usize>,
}

impl Object<'_, '_> {
    pub(super) fn get(&self, key: &str) -> Option<&str> {
        self.element.attribute(key)
    }

    pub(super) fn kind(&self) -> &str {
        self.get("type").unwrap_or_default()
    }

    /// The value of an `info` element in it.
    pub(super) fn info(&self, name: &str) -> Option<&str> {
        let is_it =
            |child: &Element<'_, '_>| child.has_tag_name("info") && child.attribute("name") == Some(name);
        self.element.children().find(is_it).and_then(|info| info.attribute("value"))
    }

    /// A set of CPUs; `None` where there is none, or one without an end.
    pub(super) fn cpus(&self) -> Option<CpuSet> {
        self.get("cpuset").and_then(|mask| CpuSet::from_mask(mask).ok()).filter(|cpus| !cpus.is_empty())
    }

    /// Level of a cache that holds data.
    fn cache_level(&self) -> Option<u8> {
        match self.kind() {
            "L2Cache" => Some(2),
            "L3Cache" => Some(3),
            "L4Cache" => Some(4),
            "L5Cache" => Some(5),
            "Cache" if self.get("cache_type") != Some("2") => {
                self.get("depth").and_then(|depth| depth.parse().ok()).filter(|level| *level > 1)
            }
            _ => None,
        }
    }
}

/// What is shared by the parts of this reader.
pub(super) struct Reader<'a, 'b, 'input> {
    pub(super) draft: Draft<'a>,
    pub(super) objects: Vec<Object<'b, 'input>>,
    pub(super) host: NodeId,
    pub(super) numas: Vec<NodeId>,
    /// Per `gp_index` the node, for matrices.
    pub(super) by_index: BTreeMap<u64, NodeId>,
    /// The major version of the format.
    pub(super) version: u32,
}

/// Reads hwloc's XML.
///
/// # Errors
///
/// The line, the reason and what to do.
pub(super) fn read(text: &str) -> Result<(Hardware, Vec<Note>), ReadError> {
    let place = Place::new(Format::Hwloc, text);
    let document = xml::parse(text, &place)?;
    let root = document.root_element();
    let objects = objects(root, &place);
    let Some(machine) = objects.first() else {
        return Err(place.error(
            xml::line(&place, root),
            "there is no <object>",
            "write the file again with lstopo",
        ));
    };
    let version = root.attribute("version").and_then(|version| version.split('.').next()?.parse().ok());
    let mut draft = Draft::new(&place);
    let model = machine.info("DMIProductName").or(machine.info("PlatformModel")).map(str::to_owned);
    let host = draft.add(machine.line, None, NodeKind::Host(Host { model, ..Host::default() }));
    let version = version.unwrap_or(1);
    let mut reader = Reader { draft, objects, host, numas: Vec::new(), by_index: BTreeMap::new(), version };
    reader.numas(root)?;
    reader.packages();
    reader.caches();
    hwloc_devices::read(&mut reader)?;
    hwloc_matrices::read(&mut reader, root)?;
    reader.draft.join_sockets()?;
    reader.draft.finish()
}

/// All objects, in the order of the file.
fn objects<'a, 'input>(root: Element<'a, 'input>, place: &Place) -> Vec<Object<'a, 'input>> {
    let mut objects: Vec<Object<'a, 'input>> = Vec::new();
    let below = |element: Element<'a, 'input>, above: Option<usize>| {
        let is_object = |child: &Element<'_, '_>| child.has_tag_name("object");
        element.children().rev().filter(is_object).map(move |child| (child, above))
    };
    let mut waiting: Vec<_> = below(root, None).collect();
    while let Some((element, above)) = waiting.pop() {
        waiting.extend(below(element, Some(objects.len())));
        objects.push(Object { element, line: xml::line(place, element), above });
    }
    objects
}

impl Reader<'_, '_, '_> {
    /// The processor of an object: what the package around it, or in it, says. `packages` are all packages with the first of their CPUs.
    fn processor(&self, at: usize, arch: Option<&str>, packages: &[(usize, u32)]) -> Processor {
        let mut around = Some(at);
        let mut package = None;
        while let Some(index) = around {
            if matches!(self.objects[index].kind(), "Package" | "Socket") {
                package = Some(&self.objects[index]);
                break;
            }
            around = self.objects[index].above;
        }
        let cpus = self.objects[at].cpus();
        let shares = |(_, first): &&(usize, u32)| cpus.as_ref().is_some_and(|cpus| cpus.contains(*first));
        let package =
            package.or_else(|| packages.iter().find(shares).map(|(index, _)| &self.objects[*index]));
        let info = |name: &str| package.and_then(|package| package.info(name)).map(str::to_owned);
        let number = |name: &str| info(name).and_then(|value| value.parse().ok());
        let arch = arch.map(|arch| match arch {
            "aarch64" => "arm64".to_owned(),
            "ppc64le" => "ppc64".to_owned(),
            arch => arch.to_owned(),
        });
        let (vendor, family, model) =
            (info("CPUVendor"), number("CPUFamilyNumber"), number("CPUModelNumber"));
        Processor { arch, vendor, family, model }
    }

    fn numas(&mut self, root: Element<'_, '_>) -> Result<(), ReadError> {
        let of_root = root
            .children()
            .find(|child| child.has_tag_name("info") && child.attribute("name") == Some("Architecture"));
        let arch = of_root.and_then(|info| info.attribute("value")).or(self.objects[0].info("Architecture"));
        let arch = arch.map(str::to_owned);
        // Sets of CPUs are long: each is read once.
        let packages: Vec<(usize, u32)> = (0..)
            .zip(&self.objects)
            .filter(|(_, object)| matches!(object.kind(), "Package" | "Socket"))
            .filter_map(|(at, object)| Some((at, object.cpus()?.iter().next()?)))
            .collect();
        for at in 0..self.objects.len() {
            let object = &self.objects[at];
            if object.kind() != "NUMANode" {
                continue;
            }
            if self.numas.len() == NUMAS_MAX {
                let reason = "more than 256 NUMA domains";
                return Err(self.draft.error(object.line, reason, "no host has as many"));
            }
            let number = |key: &str| xml::number::<u64>(self.draft.place, object.line, key, object.get(key));
            let numa = Numa {
                number: number("os_index")?.and_then(|number| u32::try_from(number).ok()),
                cpus: object.cpus(),
                processor: self.processor(at, arch.as_deref(), &packages),
                memory_bytes: number("local_memory")?.filter(|bytes| *bytes > 0),
            };
            let index = number("gp_index")?;
            let (line, above) = (object.line, (self.host, LinkKind::Local));
            let id = self.draft.add(line, Some(above), NodeKind::Numa(numa));
            self.by_index.extend(index.map(|index| (index, id)));
            self.numas.push(id);
        }
        if self.numas.is_empty() {
            // Version 1 has none where all memory is alike.
            let machine = &self.objects[0];
            let memory_bytes = machine.get("local_memory").and_then(|bytes| bytes.parse().ok());
            let processor = self.processor(0, arch.as_deref(), &packages);
            let numa = Numa { number: Some(0), cpus: machine.cpus(), processor, memory_bytes };
            let (line, above) = (machine.line, (self.host, LinkKind::Local));
            let id = self.draft.add(line, Some(above), NodeKind::Numa(numa));
            self.numas.push(id);
        }
        Ok(())
    }

    /// Packages stand for the memory of their processors in matrices.
    fn packages(&mut self) {
        for object in self.objects.iter().filter(|object| object.kind() == "Package") {
            let index = object.get("gp_index").and_then(|index| index.parse().ok());
            let numa = object.cpus().and_then(|cpus| cpus.iter().next()).and_then(|cpu| self.numa_with(cpu));
            self.by_index.extend(index.zip(numa));
        }
    }

    /// The NUMA domain that has this CPU.
    pub(super) fn numa_with(&self, cpu: u32) -> Option<NodeId> {
        let has = |id: &NodeId| match &self.draft.hardware.node(*id).kind {
            NodeKind::Numa(numa) => numa.cpus.as_ref().is_some_and(|cpus| cpus.contains(cpu)),
            _ => false,
        };
        self.numas.iter().copied().find(has)
    }

    /// One node for each last-level cache, or for each package where the file has no caches.
    fn caches(&mut self) {
        let level = self.objects.iter().filter_map(Object::cache_level).max();
        for at in 0..self.objects.len() {
            let object = &self.objects[at];
            let wanted = match level {
                Some(level) => object.cache_level() == Some(level),
                None => matches!(object.kind(), "Package" | "Socket"),
            };
            let Some(cpus) = wanted.then(|| object.cpus()).flatten() else { continue };
            let cache_bytes =
                object.get("cache_size").and_then(|bytes| bytes.parse().ok()).filter(|bytes| *bytes > 0);
            let numa = cpus.iter().next().and_then(|cpu| self.numa_with(cpu));
            let (line, above) = (object.line, numa.unwrap_or(self.host));
            let cores = NodeKind::Cores(Cores { cpus, cache_level: level, cache_bytes });
            self.draft.add(line, Some((above, LinkKind::Local)), cores);
        }
    }
}
