//! What users call the devices of a machine: `GPU 3`, `NIC 2`, `mlx5_3`.
//!
//! Invariant: on one host no two GPUs and no two adapters have the same title. GPUs have the management library's number, or
//! their place in the order of [`Hardware::gpus`] where that is not known.

use std::collections::BTreeMap;

use super::{Hardware, NodeId, NodeKind, Port};

/// `1 GPU`, `8 GPUs`, `2 NVSwitches`.
pub fn counted(number: usize, one: &str) -> String {
    match number {
        1 => format!("1 {one}"),
        _ if one.ends_with("ch") => format!("{number} {one}es"),
        _ => format!("{number} {one}s"),
    }
}

/// The numbers of GPUs and adapters, each on its host.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Titles {
    numbers: BTreeMap<NodeId, usize>,
}

impl Hardware {
    /// The titles of all devices.
    pub fn titles(&self) -> Titles {
        let mut numbers = BTreeMap::new();
        for list in [self.gpus(), self.adapters(), self.nvswitches()] {
            let mut next: BTreeMap<Option<NodeId>, usize> = BTreeMap::new();
            for id in list {
                let next = next.entry(self.node(id).host).or_default();
                numbers.insert(id, *next);
                *next += 1;
            }
        }
        // Indices are titles only where all GPUs of a host have one: two titles must not meet.
        let mut indices: BTreeMap<Option<NodeId>, Vec<(NodeId, Option<u32>)>> = BTreeMap::new();
        for id in self.gpus() {
            let index = self.gpu(id).and_then(|gpu| gpu.index);
            indices.entry(self.node(id).host).or_default().push((id, index));
        }
        for gpus in indices.values().filter(|gpus| gpus.iter().all(|(_, index)| index.is_some())) {
            numbers.extend(gpus.iter().filter_map(|(id, index)| Some((*id, (*index)? as usize))));
        }
        Titles { numbers }
    }
}

impl Titles {
    /// The title of a node of the machine that these titles are of.
    ///
    /// # Panics
    ///
    /// When there is no such node.
    pub fn of(&self, hardware: &Hardware, id: NodeId) -> String {
        let node = hardware.node(id);
        match (&node.kind, self.numbers.get(&id)) {
            (NodeKind::Gpu(_), Some(number)) => format!("GPU {number}"),
            (NodeKind::Nic(_), Some(number)) => format!("NIC {number}"),
            (NodeKind::NvSwitch(_), Some(number)) => format!("NVSwitch {number}"),
            (NodeKind::Port(Port { device: Some(device), .. }), _) => device.clone(),
            (NodeKind::Numa(numa), _) => match numa.number {
                Some(number) => format!("NUMA domain {number}"),
                None => node.name.clone(),
            },
            _ => node.name.clone(),
        }
    }
}
