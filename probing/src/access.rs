//! Whether devices reach each other's memory: the IOMMU, and the ways by which a network adapter reaches that of a GPU.
//!
//! Invariant: what is not known is `None`. Absent: whether access works, which only a transfer shows.

use std::collections::BTreeSet;

use consort_algorithms::hardware::{AMD, GpuDirect, Hardware, Iommu, NVIDIA, NodeKind};

use super::devices::Placed;
use super::tree::Tree;

/// What the IOMMU does with the addresses of GPUs, or, where there is none, of all that has a group.
pub(crate) fn iommu(tree: &Tree, hardware: &Hardware, placed: &Placed) -> Option<Iommu> {
    if tree.names("sys/class/iommu").is_empty() {
        // Without sysfs there is no answer.
        return tree.exists("sys/class").then_some(Iommu::Off);
    }
    let of_gpus = placed.nodes.iter().filter(|(_, id)| hardware.gpu(**id).is_some()).map(|(bus, _)| bus);
    let mut kinds = BTreeSet::new();
    for bus in of_gpus {
        let Some(path) = placed.paths.get(bus) else { continue };
        kinds.extend(tree.text(&format!("{path}/iommu_group/type")));
    }
    if kinds.iter().any(|kind| kind.starts_with("DMA")) {
        return Some(Iommu::Translates);
    }
    if !kinds.is_empty() && kinds.iter().all(|kind| kind == "identity") {
        return Some(Iommu::PassesThrough);
    }
    // Kernels before 5.11 do not say it for each group.
    let line = tree.text("proc/cmdline").unwrap_or_default();
    let has = |word: &str| line.split_whitespace().any(|given| given == word);
    if has("iommu=pt") || has("iommu.passthrough=1") {
        Some(Iommu::PassesThrough)
    } else if has("iommu=off") || has("intel_iommu=off") || has("amd_iommu=off") {
        Some(Iommu::Off)
    } else if has("intel_iommu=on") || has("amd_iommu=on") || has("iommu.passthrough=0") {
        Some(Iommu::Translates)
    } else {
        None
    }
}

/// How adapters reach the memory of this host's GPUs; `None` without GPUs, or without a driver that would say it.
pub(crate) fn gpudirect(tree: &Tree, hardware: &Hardware, driver: Option<&str>) -> Option<GpuDirect> {
    let vendors: BTreeSet<u16> = hardware
        .nodes()
        .iter()
        .filter_map(|node| match &node.kind {
            NodeKind::Gpu(gpu) => gpu.pci.vendor,
            _ => None,
        })
        .collect();
    if vendors.is_empty() {
        return None;
    }
    let peers = tree.names("sys/kernel/mm/memory_peers");
    let has_peer = |names: &[&str]| peers.iter().any(|peer| names.contains(&peer.as_str()));
    let has_module = |name: &str| tree.exists(&format!("sys/module/{name}"));
    let by_module = vendors.contains(&NVIDIA)
        && (has_module("nvidia_peermem") || has_module("nv_peer_mem") || has_peer(&["nv_mem", "nv_mem_nc"]))
        || vendors.contains(&AMD)
            && (has_peer(&["amdkfd"]) || has_module("amdkfd") || has_module("ib_peer_mem"));
    if by_module {
        return Some(GpuDirect::PeerMemory);
    }
    let release = tree.text("proc/sys/kernel/osrelease").or_else(|| {
        // `Linux version 5.15.0-91-generic (...)`.
        let version = tree.text("proc/version")?;
        version.strip_prefix("Linux version ")?.split(' ').next().map(str::to_owned)
    });
    // The functions by which adapters map memory of others came with Linux 5.12.
    let kernel = numbers(release.as_deref()?)?;
    let is_new = (kernel.0, kernel.1) >= (5, 12);
    let has_driver = if vendors.contains(&NVIDIA) {
        // Only the open modules of NVIDIA's driver export memory so, since 515.
        // Containers may lack the file, which says nothing of the modules.
        let text = tree.text("proc/driver/nvidia/version")?;
        let version = tree.text("sys/module/nvidia/version");
        let version = version.as_deref().or(driver)?;
        text.contains("Open Kernel Module") && numbers(version)?.0 >= 515
    } else if vendors.contains(&AMD) {
        has_module("amdgpu")
    } else {
        return None;
    };
    Some(if is_new && has_driver { GpuDirect::DmaBuf } else { GpuDirect::None })
}

/// The first two numbers of a version: `5.15.0-91-generic`, `535.104.05`.
fn numbers(version: &str) -> Option<(u32, u32)> {
    let mut parts = version.split(|c: char| !c.is_ascii_digit());
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}
