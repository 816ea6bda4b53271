//! Equal boxes over a network: the adapters of boxes take the places of its hosts.

use super::draft::{Draft, HOSTS_MAX};
use crate::topology::Topology;
use crate::topology::profiles::BoxKind;

/// Boxes of that kind, as many as the hosts of the network are adapters for. The ranks are their GPUs, box by box.
pub(super) fn compose(
    name: String,
    kind: BoxKind,
    gbit: Option<u32>,
    draft: &Draft,
) -> Result<Topology, String> {
    let adapters = kind.adapters();
    if !draft.hosts.is_multiple_of(adapters) {
        let (hosts, word) = (draft.hosts, kind.name());
        return Err(format!("the network has places for {hosts} adapters, and a {word} has {adapters}"));
    }
    let boxes = draft.hosts / adapters;
    if u64::from(boxes) * u64::from(BoxKind::GPUS) > HOSTS_MAX {
        return Err(format!("{boxes} boxes would have more than {HOSTS_MAX} GPUs"));
    }
    let (mut topology, hosts) = kind.boxes(boxes);
    topology.name = name;
    topology.relay = draft.forwards;
    // An adapter shares its bandwidth among its cables.
    let each = kind.adapter_gbit() / draft.cables_a_host;
    draft.build(&mut topology, gbit.unwrap_or(each), &hosts);
    Ok(topology)
}
