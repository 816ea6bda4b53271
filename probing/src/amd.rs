//! AMD's GPUs as the kernel's compute driver (`kfd`) describes them, and the xGMI links between them.
//!
//! Invariant: a link is counted as often as both of its ends say; how many run side by side is what they carry together by
//! what one carries (RCCL's `src/misc/rocm_smi_wrap.cc` counts so). Absent: AMD's management library, which has no more of
//! this.

use std::collections::{BTreeMap, BTreeSet};

use consort_algorithms::hardware::{BusId, Hardware, LinkKind, NodeKind};

use super::devices::Placed;
use super::note::Trouble;
use super::tree::Tree;

const NODES: &str = "sys/class/kfd/kfd/topology/nodes";
/// Links of xGMI (`CRAT_IOLINK_TYPE_XGMI` of the kernel).
const XGMI: u64 = 11;
/// More GPUs than a host has.
const GPUS_MAX: usize = 1024;
/// More links side by side than a pair has.
const COUNT_MAX: u64 = 64;

/// A GPU of the driver.
#[derive(Debug)]
pub(crate) struct Known {
    pub(crate) bus: BusId,
    /// The driver's number of it, among GPUs and processors.
    node: u32,
    gcn: Option<String>,
    uuid: Option<String>,
    /// By the driver's number of the other end, how many links run side by side.
    links: BTreeMap<u32, u32>,
}

/// Lines of a name and a number.
fn properties(tree: &Tree, path: &str) -> Option<BTreeMap<String, u64>> {
    let text = tree.text(path)?;
    let mut properties = BTreeMap::new();
    for line in text.lines().take(200) {
        match line.split_once(' ').and_then(|(name, value)| Some((name, value.trim().parse().ok()?))) {
            Some((name, value)) => {
                properties.insert(name.to_owned(), value);
            }
            None => tree.nonsense(path, line),
        }
    }
    Some(properties)
}

/// The GPUs of the driver, in its order.
pub(crate) fn gpus(tree: &Tree) -> Vec<Known> {
    let mut gpus: Vec<Known> = Vec::new();
    for name in tree.names(NODES) {
        let Ok(node) = name.parse::<u32>() else { continue };
        let place = format!("{NODES}/{name}");
        // A container sees all nodes, and the properties of its own GPUs alone.
        let Some(properties) = properties(tree, &format!("{place}/properties")) else { continue };
        let value = |key: &str| properties.get(key).copied().unwrap_or(0);
        if value("simd_count") == 0 {
            continue;
        }
        let location = value("location_id");
        let (Ok(domain), true) = (u32::try_from(value("domain")), location <= 0xffff) else {
            tree.nonsense(&format!("{place}/properties: location_id"), &location.to_string());
            continue;
        };
        let bus = BusId {
            domain,
            bus: (location >> 8) as u8,
            device: (location >> 3 & 0x1f) as u8,
            function: (location & 7) as u8,
        };
        if gpus.iter().any(|known| known.bus == bus) {
            // Partitions of one GPU are devices of their own to the driver.
            tree.note(
                &place,
                Trouble::LeftOut { why: format!("it is a further partition of the GPU at {bus}") },
            );
            continue;
        }
        if gpus.len() == GPUS_MAX {
            tree.note(NODES, Trouble::TooMany { most: GPUS_MAX });
            break;
        }
        let version = value("gfx_target_version");
        let gcn = (1..1_000_000)
            .contains(&version)
            .then(|| format!("gfx{}{:x}{:x}", version / 10_000, version / 100 % 100, version % 100));
        let unique = value("unique_id");
        let uuid = (unique != 0).then(|| format!("GPU-{unique:016x}"));
        gpus.push(Known { bus, node, gcn, uuid, links: links(tree, &place, node) });
    }
    gpus
}

fn links(tree: &Tree, place: &str, node: u32) -> BTreeMap<u32, u32> {
    let mut links: BTreeMap<u32, u32> = BTreeMap::new();
    let place = format!("{place}/io_links");
    for name in tree.names(&place) {
        let path = format!("{place}/{name}/properties");
        let Some(properties) = properties(tree, &path) else { continue };
        let value = |key: &str| properties.get(key).copied().unwrap_or(0);
        if value("type") != XGMI {
            continue;
        }
        let other = u32::try_from(value("node_to")).ok();
        let Some(other) = other.filter(|other| *other != node && value("node_from") == u64::from(node))
        else {
            tree.nonsense(&path, &format!("a link from {} to {}", value("node_from"), value("node_to")));
            continue;
        };
        let (least, most) = (value("min_bandwidth"), value("max_bandwidth"));
        // Older drivers say nothing of bandwidths; there is one link at least.
        let count = most.checked_div(least).unwrap_or(1);
        if !(1..=COUNT_MAX).contains(&count) {
            tree.nonsense(&path, &format!("{most} of {least} MB/s"));
            continue;
        }
        let known = links.entry(other).or_default();
        *known = known.saturating_add(count as u32);
    }
    links
}

/// Completes the GPUs, which are numbered from `first`, and adds their links.
pub(crate) fn add(tree: &Tree, hardware: &mut Hardware, placed: &Placed, gpus: &[Known], first: u32) {
    let mut index = first;
    let mut nodes = BTreeMap::new();
    for known in gpus {
        let Some(id) = placed.nodes.get(&known.bus).copied() else {
            let why = format!("the driver has a GPU at {}, which is not on PCI", known.bus);
            tree.note(NODES, Trouble::LeftOut { why });
            continue;
        };
        if let NodeKind::Gpu(gpu) = &mut hardware.node_mut(id).kind {
            gpu.index = Some(index);
            gpu.gcn = known.gcn.clone();
            gpu.uuid = known.uuid.clone();
            gpu.described = true;
            gpu.links_known = true;
            index += 1;
            nodes.insert(known.node, (id, known));
        }
    }
    let mut joined = BTreeSet::new();
    for (node, (id, known)) in &nodes {
        for (other, count) in &known.links {
            // Links to processors (MI300A, Frontier) have no place in the model, and a container's process does not see all GPUs.
            let Some((other_id, other_known)) = nodes.get(other) else { continue };
            if !joined.insert((node.min(other), node.max(other))) {
                continue;
            }
            let back = other_known.links.get(node).copied();
            if back.is_some_and(|back| back != *count) || back.is_none() {
                let back = back.unwrap_or(0);
                let how = format!(
                    "{} has {count} xGMI links to {}, which has {back} to it; the smaller number is taken",
                    known.bus, other_known.bus
                );
                tree.note(NODES, Trouble::Contradiction { how });
            }
            let count = (*count).min(back.unwrap_or(0));
            if count > 0 {
                hardware.connect(*id, *other_id, LinkKind::Xgmi { count });
            }
        }
    }
}
