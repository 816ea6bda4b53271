//! PCI devices of hwloc's XML.
//!
//! Invariant: of the bridges in a row from a root complex down, the first is a port of the root, the second the upstream port of
//! a switch, the third a downstream port of that switch, and so on; a device hangs below the last switch.

use std::collections::BTreeMap;

use super::error::ReadError;
use super::hwloc::{Object, Reader};
use crate::hardware::{
    Bridge, BusId, Gpu, Lanes, Link, LinkKind, LinkLayer, NVIDIA, Nic, NodeId, NodeKind, Numa, Pci, Port,
    PortState, known_gpu,
};

/// Where the devices in an object hang.
#[derive(Clone, Copy)]
struct Hanger {
    node: NodeId,
    /// How many bridges in a row lead here from the root.
    bridges: usize,
}

/// Adds devices and what leads to them.
pub(super) fn read(reader: &mut Reader<'_, '_, '_>) -> Result<(), ReadError> {
    let wanted = wanted(reader);
    let mut hangers: BTreeMap<usize, Hanger> = BTreeMap::new();
    for (at, _) in wanted.into_iter().enumerate().filter(|(_, wanted)| *wanted) {
        reader.draft.room(0)?;
        let above = reader.objects[at].above.and_then(|above| hangers.get(&above).copied());
        let above = match above {
            Some(above) => above,
            None => Hanger { node: local_numa(reader, at), bridges: 0 },
        };
        match reader.objects[at].kind() {
            "Bridge" => {
                let hanger = bridge(reader, at, above)?;
                hangers.insert(at, hanger);
            }
            "PCIDev" => device(reader, at, above.node)?,
            _ => {}
        }
    }
    Ok(())
}

/// Per object whether it is a device that counts, or a bridge above one.
fn wanted(reader: &Reader<'_, '_, '_>) -> Vec<bool> {
    let mut wanted = vec![false; reader.objects.len()];
    for at in (0..wanted.len()).rev() {
        let object = &reader.objects[at];
        if object.kind() == "PCIDev" {
            wanted[at] = Device::of(reader, at).is_some();
        }
        // Objects stand behind those in which they are.
        if let (true, Some(above)) = (wanted[at], object.above) {
            wanted[above] |= reader.objects[above].kind() == "Bridge";
        }
    }
    wanted
}

/// The NUMA domain to which a device is near, or one of unknown number.
fn local_numa(reader: &mut Reader<'_, '_, '_>, at: usize) -> NodeId {
    let mut around = reader.objects[at].above;
    while let Some(index) = around {
        let object = &reader.objects[index];
        if let Some(set) =
            object.get("nodeset").and_then(|mask| crate::hardware::CpuSet::from_mask(mask).ok())
        {
            let numbers: Vec<u32> = set.iter().collect();
            let is_it = |id: &&NodeId| match &reader.draft.hardware.node(**id).kind {
                NodeKind::Numa(numa) => numbers[..] == [numa.number.unwrap_or(u32::MAX)],
                _ => false,
            };
            if let Some(numa) = reader.numas.iter().find(is_it) {
                return *numa;
            }
            break;
        }
        around = object.above;
    }
    if let [only] = reader.numas[..] {
        return only;
    }
    let is_unknown = |id: &&NodeId| matches!(&reader.draft.hardware.node(**id).kind, NodeKind::Numa(numa) if numa.number.is_none());
    if let Some(unknown) = reader.numas.iter().find(is_unknown) {
        return *unknown;
    }
    let (line, above) = (reader.objects[at].line, (reader.host, LinkKind::Local));
    let unknown = reader.draft.add(line, Some(above), NodeKind::Numa(Numa::default()));
    reader.numas.push(unknown);
    unknown
}

fn bridge(reader: &mut Reader<'_, '_, '_>, at: usize, above: Hanger) -> Result<Hanger, ReadError> {
    let object = &reader.objects[at];
    let line = object.line;
    if object.get("bridge_type").is_some_and(|kind| kind.starts_with('0')) {
        // `bridge_pci` is the domain and the buses below: `0000:[2b-3b]`.
        let bus = object.get("bridge_pci").and_then(|text| {
            let (domain, buses) = text.split_once(":[")?;
            let first = buses.split('-').next()?;
            format!("{domain}:{first}:00.0").parse::<BusId>().ok()
        });
        let node = reader.draft.add(line, Some((above.node, LinkKind::Local)), NodeKind::Root(bus));
        return Ok(Hanger { node, bridges: 0 });
    }
    let bridges = above.bridges + 1;
    if bridges % 2 == 1 {
        return Ok(Hanger { node: above.node, bridges });
    }
    let pci = pci(reader, at)?;
    let node = add(reader, at, above.node, NodeKind::Bridge(Bridge { pci, acs: None }))?;
    Ok(Hanger { node, bridges })
}

/// Adds a node below a PCIe link, whose bandwidth hwloc states in GB/s. Generation and width are not in the file, and do not follow: 15.75
/// is that of eight lanes of one generation and of sixteen of the one before.
fn add(
    reader: &mut Reader<'_, '_, '_>,
    at: usize,
    above: NodeId,
    kind: NodeKind,
) -> Result<NodeId, ReadError> {
    let object = &reader.objects[at];
    let line = object.line;
    let speed = object.get("pci_link_speed").unwrap_or("0");
    let bytes_s = speed.trim().parse::<f64>().ok().filter(|speed| (0.0..1e6).contains(speed));
    let Some(bytes_s) = bytes_s.map(|speed| (speed * 1e9).round() as u64) else {
        let reason = format!("pci_link_speed={speed:?} is no speed in GB/s");
        return Err(reader.draft.error(line, reason, "correct it, or leave it out"));
    };
    let id = reader.draft.add(line, None, kind);
    reader.draft.hardware.node_mut(id).host = Some(reader.host);
    let kind = LinkKind::Pcie { now: Lanes::default(), best: Lanes::default() };
    let bytes_s = Some(bytes_s).filter(|bytes_s| *bytes_s > 0);
    reader.draft.hardware.add_link(Link { from: above, to: id, kind, bytes_s, latency_ns: None });
    Ok(id)
}

fn pci(reader: &Reader<'_, '_, '_>, at: usize) -> Result<Pci, ReadError> {
    let object = &reader.objects[at];
    let bus = object.get("pci_busid").unwrap_or_default();
    let bus = bus.parse().map_err(|_| {
        reader.draft.error(
            object.line,
            format!("pci_busid={bus:?} is no PCI address"),
            "write it as 0000:3b:00.0",
        )
    })?;
    Ok(Pci { bus: Some(bus), ..numbers(object) })
}

/// The numbers of `pci_type`: `0302 [10de:1db8] [10de:131d] a1 00`. Those that are 0 could not be read.
fn numbers(object: &Object<'_, '_>) -> Pci {
    let text = object.get("pci_type").unwrap_or_default();
    let words: Vec<&str> = text.split([' ', '[', ']', ':']).filter(|word| !word.is_empty()).collect();
    let number = |at: usize| {
        words.get(at).and_then(|word| u32::from_str_radix(word, 16).ok()).filter(|number| *number > 0)
    };
    let id = |at: usize| number(at).and_then(|number| u16::try_from(number).ok());
    let class =
        number(0).filter(|class| *class <= 0xffff).map(|class| class << 8 | number(6).unwrap_or(0) & 0xff);
    Pci { bus: None, class, vendor: id(1), device: id(2), subsystem_vendor: id(3), subsystem_device: id(4) }
}

/// A PCI device that counts.
enum Device {
    Gpu,
    NvSwitch,
    Nic,
}

impl Device {
    fn of(reader: &Reader<'_, '_, '_>, at: usize) -> Option<Device> {
        let object = &reader.objects[at];
        let pci = numbers(object);
        let is_nvswitch =
            object.get("subtype") == Some("NVSwitch") || object.info("Type") == Some("NVSwitch");
        if is_nvswitch || pci.class16() == Some(0x0680) && pci.vendor == Some(NVIDIA) {
            Some(Device::NvSwitch)
        } else if pci.looks_like_gpu() || inside(reader, at).any(|device| is_gpu_name(device.get("name"))) {
            Some(Device::Gpu)
        } else if pci.looks_like_nic()
            || pci.class16().is_none() && inside(reader, at).any(|device| layer(reader, device).is_some())
        {
            Some(Device::Nic)
        } else {
            None
        }
    }
}

/// The devices of the operating system that a PCI device has.
fn inside<'r, 'b, 'input>(
    reader: &'r Reader<'_, 'b, 'input>,
    at: usize,
) -> impl Iterator<Item = &'r Object<'b, 'input>> {
    let behind = reader.objects[at + 1..].iter();
    // What is in an object stands directly behind it; what is in something in it has a larger `above`.
    behind
        .take_while(move |object| object.above.is_some_and(|above| above >= at))
        .filter(move |object| object.above == Some(at) && object.kind() == "OSDev")
}

fn is_gpu_name(name: Option<&str>) -> bool {
    name.is_some_and(|name| ["nvml", "cuda", "rsmi", "ze"].iter().any(|start| name.starts_with(start)))
}

/// Whether a device of the operating system is a port of a network, and whether of OpenFabrics, whose devices are InfiniBand or RoCE.
fn layer(reader: &Reader<'_, '_, '_>, device: &Object<'_, '_>) -> Option<bool> {
    let number: u32 = device.get("osdev_type")?.parse().ok()?;
    // Version 3 has bits.
    let (network, fabrics) = if reader.version >= 3 {
        (number & 1 << 4 != 0, number & 1 << 5 != 0)
    } else {
        (number == 2, number == 3)
    };
    (network || fabrics).then_some(fabrics)
}

fn device(reader: &mut Reader<'_, '_, '_>, at: usize, above: NodeId) -> Result<(), ReadError> {
    let pci = pci(reader, at)?;
    let Some(kind) = Device::of(reader, at) else { return Ok(()) };
    let line = reader.objects[at].line;
    let kind = match kind {
        Device::Gpu => NodeKind::Gpu(gpu(reader, at, pci)),
        Device::NvSwitch => NodeKind::NvSwitch(pci),
        Device::Nic => NodeKind::Nic(Nic { pci: Some(pci) }),
    };
    let is_nic = matches!(kind, NodeKind::Nic(_));
    let ports = if is_nic { ports(reader, at) } else { Vec::new() };
    let indices: Vec<u64> = std::iter::once(&reader.objects[at])
        .chain(inside(reader, at))
        .filter_map(|object| object.get("gp_index")?.parse().ok())
        .collect();
    let id = add(reader, at, above, kind)?;
    reader.by_index.extend(indices.into_iter().map(|index| (index, id)));
    for port in ports {
        reader.draft.add(line, Some((id, LinkKind::Local)), NodeKind::Port(port));
    }
    Ok(())
}

fn gpu(reader: &Reader<'_, '_, '_>, at: usize, pci: Pci) -> Gpu {
    let devices: Vec<&Object<'_, '_>> =
        inside(reader, at).filter(|device| is_gpu_name(device.get("name"))).collect();
    let numbered = |start: &str| {
        devices.iter().find_map(|device| device.get("name")?.strip_prefix(start)?.parse::<u32>().ok())
    };
    let info = |name: &str| devices.iter().find_map(|device| device.info(name)).map(str::to_owned);
    let known = known_gpu(&pci);
    // The libraries of the vendors say which links there are; CUDA and others do not.
    let links_known = numbered("nvml").is_some() || numbered("rsmi").is_some();
    Gpu {
        pci,
        index: numbered("nvml").or_else(|| numbered("rsmi")),
        sm: known.and_then(|known| known.sm),
        gcn: known.and_then(|known| known.gcn).map(str::to_owned),
        uuid: info("NVIDIAUUID").or_else(|| info("AMDUUID")),
        model: info("GPUModel"),
        described: !devices.is_empty(),
        links_known,
        ..Gpu::default()
    }
}

/// The ports of an adapter: those of its OpenFabrics devices, or, where there is none, its interfaces.
fn ports(reader: &Reader<'_, '_, '_>, at: usize) -> Vec<Port> {
    let devices: Vec<(bool, &Object<'_, '_>)> =
        inside(reader, at).filter_map(|device| Some((layer(reader, device)?, device))).collect();
    let has_fabrics = devices.iter().any(|(fabrics, _)| *fabrics);
    let mut ports = Vec::new();
    for (fabrics, device) in devices.into_iter().filter(|(fabrics, _)| *fabrics == has_fabrics) {
        let name = device.get("name").map(str::to_owned);
        if !fabrics {
            ports.push(Port { device: name, layer: LinkLayer::Ethernet, ..Port::default() });
            continue;
        }
        let guid = device.info("NodeGUID").map(|guid| guid.replace(':', ""));
        let guid = guid.and_then(|guid| u64::from_str_radix(guid.trim_start_matches("0x"), 16).ok());
        let numbers: Vec<u32> =
            (1..=8).filter(|number| device.info(&format!("Port{number}State")).is_some()).collect();
        let numbers = if numbers.is_empty() { vec![1] } else { numbers };
        for number in numbers {
            // States are those of the verbs interface: 4 is active.
            let state = match device.info(&format!("Port{number}State")) {
                None => PortState::Unknown,
                Some(state) if state.starts_with('4') => PortState::Up,
                Some(_) => PortState::Down,
            };
            ports.push(Port { device: name.clone(), number: Some(number), guid, state, ..Port::default() });
        }
    }
    ports
}
