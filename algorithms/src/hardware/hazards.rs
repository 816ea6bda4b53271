//! What keeps devices from each other's memory, or hides how they are joined, as sentences.
//!
//! Invariant: they are part of [`warnings`](Hardware::warnings). Keys that begin with `probe.` are those under which a probe keeps
//! what the model has no place for. Absent: what is narrow or down.

use std::collections::{BTreeMap, BTreeSet};

use super::warnings::Found;
use super::{GpuDirect, Hardware, Iommu, NodeId, NodeKind};

impl Hardware {
    /// Adds what is wrong with access between devices.
    pub(super) fn warn_of_access(&self, found: &mut Found) {
        for host in self.hosts() {
            self.warn_of_flat_tree(host, found);
            self.warn_of_memory(host, found);
        }
        for gpu in self.gpus() {
            self.warn_of_gpu(gpu, found);
        }
        self.warn_of_links_that_are_down(found);
        self.warn_of_fabrics(found);
    }

    /// Links that should be up. Boards without a bridge have links that lead nowhere, each of its model as many: a link is missed where
    /// siblings have more, or where links lead to NVSwitches, to which boards have all of theirs.
    fn warn_of_links_that_are_down(&self, found: &mut Found) {
        for host in self.hosts() {
            let gpus = self.gpus_of(host);
            let down = |id: &NodeId| {
                let text = self.node(*id).extra.get("probe.nvlinks_down");
                text.and_then(|text| text.parse::<u32>().ok()).unwrap_or(0)
            };
            let least = gpus.iter().map(down).min().unwrap_or(0);
            for id in gpus {
                let is_switched = self.touching(id).iter().any(|link| {
                    let other = self.link(*link).other(id);
                    matches!(self.node(other).kind, NodeKind::NvSwitch(_))
                });
                let down = down(&id);
                if down > least || down > 0 && is_switched {
                    let (links, are) = if down == 1 { ("NVLink", "is") } else { ("NVLinks", "are") };
                    let subject = format!("{down} {links} of {}", found.titles.of(self, id));
                    found.named(self, id, subject, format!(" {are} down"));
                }
            }
        }
    }

    fn gpus_of(&self, host: NodeId) -> Vec<NodeId> {
        self.gpus().into_iter().filter(|gpu| self.node(*gpu).host == Some(host)).collect()
    }

    /// A virtual machine that shows devices without the switches between them.
    fn warn_of_flat_tree(&self, host: NodeId, found: &mut Found) {
        let NodeKind::Host(known) = &self.node(host).kind else { return };
        let here = || self.iter().filter(|(_, node)| node.host == Some(host));
        let has_bridge = here().any(|(_, node)| matches!(node.kind, NodeKind::Bridge(_)));
        let nics = here().filter(|(_, node)| matches!(&node.kind, NodeKind::Nic(nic) if nic.pci.is_some()));
        let devices = self.gpus_of(host).len() + nics.count();
        if known.is_virtual == Some(true) && !has_bridge && devices > 1 && !self.gpus_of(host).is_empty() {
            let rest = format!(
                " shows its {devices} GPUs and network adapters without what joins them: their PCIe links are not known; give the \
                 provider's topology file (NCCL_TOPO_FILE, --file)"
            );
            found.general(None, format!("the virtual machine {}", self.node(host).name), rest);
        }
    }

    fn warn_of_memory(&self, host: NodeId, found: &mut Found) {
        let NodeKind::Host(known) = &self.node(host).kind else { return };
        let gpus = self.gpus_of(host);
        let has_peers = gpus.len() > 1;
        if has_peers && known.iommu == Some(Iommu::Translates) && known.is_virtual != Some(true) {
            let rest =
                " translates what GPUs send each other, which forces it through the root; boot with iommu=pt";
            found.general(Some(host), "the IOMMU".into(), rest.into());
        }
        let ends = self.network_ends();
        let has_rdma = ends.iter().any(|end| {
            self.node(*end).host == Some(host)
                && matches!(&self.node(*end).kind, NodeKind::Port(port) if port.guid.is_some())
        });
        if !gpus.is_empty() && has_rdma && known.gpudirect == Some(GpuDirect::None) {
            let rest = " do not reach the memory of GPUs: neither a module for peer memory is loaded (nvidia_peermem) nor do kernel and \
                        driver export dma-buf";
            found.general(Some(host), "network adapters".into(), rest.into());
        }
    }

    fn warn_of_gpu(&self, id: NodeId, found: &mut Found) {
        let extra = &self.node(id).extra;
        if extra.get("probe.mig").is_some_and(|mode| mode == "on") {
            found.about(self, id, " is split by MIG: its instances have neither NVLink nor peers".into());
        }
        if extra.get("probe.fabric_joined").is_some_and(|joined| joined == "no") {
            let rest = " has not joined its NVLink domain: see nvidia-smi -q (Fabric) and the fabric manager";
            found.about(self, id, rest.into());
        }
        if let Some(others) = extra.get("probe.no_peers") {
            found.about(self, id, format!(" may not use the memory of other GPUs: {others}"));
        }
    }

    /// GPUs of a host in several parts of an NVLink domain.
    fn warn_of_fabrics(&self, found: &mut Found) {
        for host in self.hosts() {
            let mut parts: BTreeMap<&str, usize> = BTreeMap::new();
            for gpu in self.gpus_of(host) {
                if let Some(part) = self.node(gpu).extra.get("probe.fabric") {
                    *parts.entry(part).or_default() += 1;
                }
            }
            let names: BTreeSet<&str> = parts.keys().copied().collect();
            if names.len() > 1 {
                let names: Vec<&str> = names.into_iter().collect();
                let rest = format!(
                    " are in several NVLink domains or cliques, which do not reach each other: {}",
                    names.join(", ")
                );
                found.general(Some(host), "GPUs".into(), rest);
            }
        }
    }
}
