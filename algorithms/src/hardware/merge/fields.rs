//! Nodes and links of two sources, field by field.
//!
//! Invariant: what one side does not know comes from the other. Absent: which nodes are the same.

use std::fmt::Debug;

use super::super::{GpuDirect, Iommu, Lanes, Link, LinkKind, Node, NodeKind, Pci, Port, PortState};
use super::{Key, LinkKey, MergeFault};

/// Keys of what a process may use, which is its own.
pub(super) const OF_PROCESSES: [&str; 2] = ["probe.cpus_allowed", "probe.cpu_quota_milli"];

/// The two sides of a device.
struct Sides<'a> {
    device: &'a dyn std::fmt::Display,
    source: usize,
}

impl Sides<'_> {
    fn differ(&self, field: &'static str, one: &dyn Debug, other: &dyn Debug) -> MergeFault {
        let values = [format!("{one:?}"), format!("{other:?}")];
        MergeFault::Differ { source: self.source, device: self.device.to_string(), field, values }
    }

    /// One value of both.
    fn agree<T: Clone + PartialEq + Debug>(
        &self,
        field: &'static str,
        known: &mut Option<T>,
        other: &Option<T>,
    ) -> Result<(), MergeFault> {
        match (&known, other) {
            (Some(one), Some(other)) if one != other => return Err(self.differ(field, one, other)),
            (None, Some(other)) => *known = Some(other.clone()),
            _ => {}
        }
        Ok(())
    }

    fn pci(&self, known: &mut Pci, other: &Pci) -> Result<(), MergeFault> {
        self.agree("the class", &mut known.class, &other.class)?;
        self.agree("the vendor", &mut known.vendor, &other.vendor)?;
        self.agree("the number of the device", &mut known.device, &other.device)?;
        self.agree("the vendor of the board", &mut known.subsystem_vendor, &other.subsystem_vendor)?;
        self.agree("the number of the board", &mut known.subsystem_device, &other.subsystem_device)
    }
}

/// Of two values that change with time the lesser.
fn lesser<T: Ord + Copy>(known: &mut Option<T>, other: Option<T>) {
    *known = match (*known, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    };
}

/// Of two values the one that comes first in `order`, which has the worst in front.
fn worse<T: PartialEq + Copy>(known: &mut Option<T>, other: Option<T>, order: &[T]) {
    *known = order.iter().copied().find(|value| [*known, other].contains(&Some(*value)));
}

fn lesser_lanes(known: &mut Lanes, other: Lanes) {
    lesser(&mut known.generation, other.generation);
    lesser(&mut known.width, other.width);
}

/// Adds what another source says of a node.
pub(super) fn merge_node(key: &Key, known: &mut Node, other: &Node, source: usize) -> Result<(), MergeFault> {
    let sides = Sides { device: key, source };
    match (&mut known.kind, &other.kind) {
        (NodeKind::Host(known), NodeKind::Host(other)) => {
            if let (Some(one), Some(other)) = (&known.hash, &other.hash)
                && one != other
            {
                return Err(MergeFault::Others { source, hosts: [one.clone(), other.clone()] });
            }
            sides.agree("the hash", &mut known.hash, &other.hash)?;
            sides.agree("the product", &mut known.model, &other.model)?;
            // Files that say it are hidden from some containers, and modules are loaded while processes look.
            known.is_virtual = known.is_virtual.max(other.is_virtual);
            worse(&mut known.iommu, other.iommu, &[Iommu::Translates, Iommu::PassesThrough, Iommu::Off]);
            worse(
                &mut known.gpudirect,
                other.gpudirect,
                &[GpuDirect::None, GpuDirect::PeerMemory, GpuDirect::DmaBuf],
            );
        }
        (NodeKind::Numa(known), NodeKind::Numa(other)) => {
            sides.agree("the CPUs", &mut known.cpus, &other.cpus)?;
            sides.agree("the instruction set", &mut known.processor.arch, &other.processor.arch)?;
            sides.agree("the vendor", &mut known.processor.vendor, &other.processor.vendor)?;
            sides.agree("the family", &mut known.processor.family, &other.processor.family)?;
            sides.agree("the model", &mut known.processor.model, &other.processor.model)?;
            // A container may be shown less than there is.
            known.memory_bytes = known.memory_bytes.max(other.memory_bytes);
        }
        (NodeKind::Cores(known), NodeKind::Cores(other)) => {
            if known.cpus != other.cpus {
                return Err(sides.differ("the CPUs", &known.cpus, &other.cpus));
            }
            sides.agree("the level of the cache", &mut known.cache_level, &other.cache_level)?;
            sides.agree("the bytes of the cache", &mut known.cache_bytes, &other.cache_bytes)?;
        }
        (NodeKind::Bridge(known), NodeKind::Bridge(other)) => {
            sides.pci(&mut known.pci, &other.pci)?;
            // A process sees access control on the ports that lead to its own devices.
            known.acs = known.acs.max(other.acs);
        }
        (NodeKind::Gpu(known), NodeKind::Gpu(other)) => {
            sides.pci(&mut known.pci, &other.pci)?;
            sides.agree("the rank", &mut known.rank, &other.rank)?;
            sides.agree("the compute capability", &mut known.sm, &other.sm)?;
            sides.agree("the architecture", &mut known.gcn, &other.gcn)?;
            sides.agree("the UUID", &mut known.uuid, &other.uuid)?;
            sides.agree("the model", &mut known.model, &other.model)?;
            known.index = known.index.min(other.index).or(known.index).or(other.index);
            known.described |= other.described;
            known.links_known |= other.links_known;
        }
        (NodeKind::NvSwitch(known), NodeKind::NvSwitch(other)) => sides.pci(known, other)?,
        (NodeKind::Nic(known), NodeKind::Nic(other)) => match (&mut known.pci, &other.pci) {
            (Some(known), Some(other)) => sides.pci(known, other)?,
            (None, Some(other)) => known.pci = Some(*other),
            _ => {}
        },
        (NodeKind::Port(known), NodeKind::Port(other)) => merge_port(&sides, known, other)?,
        _ => {}
    }
    for (name, value) in &other.extra {
        match known.extra.get(name) {
            None => {
                known.extra.insert(name.clone(), value.clone());
            }
            // What differs says nothing of all processes; of other sources' words the lesser keeps the result independent of their order.
            Some(before) if before != value && OF_PROCESSES.contains(&name.as_str()) => {
                known.extra.insert(name.clone(), String::new());
            }
            Some(before) if before > value => {
                known.extra.insert(name.clone(), value.clone());
            }
            Some(_) => {}
        }
    }
    Ok(())
}

fn merge_port(sides: &Sides<'_>, known: &mut Port, other: &Port) -> Result<(), MergeFault> {
    sides.agree("the identity of the adapter", &mut known.guid, &other.guid)?;
    lesser(&mut known.index, other.index);
    lesser(&mut known.speed_mbit_s, other.speed_mbit_s);
    lesser(&mut known.latency_ns, other.latency_ns);
    known.state = match (known.state, other.state) {
        (PortState::Down, _) | (_, PortState::Down) => PortState::Down,
        (PortState::Unknown, state) => state,
        (state, _) => state,
    };
    if known.layer == Default::default() {
        known.layer = other.layer;
    } else if other.layer != Default::default() && known.layer != other.layer {
        return Err(sides.differ("the link layer", &known.layer, &other.layer));
    }
    known.virtual_device |= other.virtual_device;
    Ok(())
}

/// Adds what another source says of a link.
pub(super) fn merge_link(
    key: &LinkKey,
    known: &mut Link,
    other: &Link,
    source: usize,
) -> Result<(), MergeFault> {
    let device = format!("the {} link from {} to {}", key.2, key.0, key.1);
    let sides = Sides { device: &device, source };
    let count = |one: u32, other: u32| {
        if one == other { Ok(()) } else { Err(sides.differ("the number of links", &one, &other)) }
    };
    match (&mut known.kind, &other.kind) {
        (
            LinkKind::NvLink { generation, count: one },
            LinkKind::NvLink { generation: other_generation, count: other },
        ) => {
            // Links go down while processes look.
            *one = (*one).min(*other);
            sides.agree("the generation", generation, other_generation)?;
        }
        (LinkKind::Xgmi { count: one }, LinkKind::Xgmi { count: other })
        | (LinkKind::C2c { count: one }, LinkKind::C2c { count: other }) => count(*one, *other)?,
        (LinkKind::Pcie { now, best }, LinkKind::Pcie { now: other_now, best: other_best }) => {
            lesser_lanes(now, *other_now);
            // A process that does not see the upper end knows what the lower end could do alone.
            lesser_lanes(best, *other_best);
        }
        (LinkKind::Socket { distance }, LinkKind::Socket { distance: other }) => {
            sides.agree("the distance", distance, other)?;
        }
        _ => {}
    }
    lesser(&mut known.bytes_s, other.bytes_s);
    lesser(&mut known.latency_ns, other.latency_ns);
    Ok(())
}
