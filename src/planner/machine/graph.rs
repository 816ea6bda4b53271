//! The job's graph where its ranks know what is in their hosts: merged from what each host's ranks said when they joined.
//!
//! Invariant: made from the table that all ranks have, so it is the same on all of them. Hosts are joined by rails: no file of a host says
//! what is between hosts. Absent: hosts that say nothing; then there is no such graph.

use std::collections::HashMap;
use std::sync::Arc;

use consort_algorithms::hardware::{Hardware, Network, NodeId, Rates, Wires};

use consort_control::bootstrap::Member;
use consort_settings::options::{Misfit, cpu_graph, machine};

/// The graphs of a communicator's ranks, as text; none where nothing is known, or what is known is not their machine.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct Graphs {
    /// Whether any of the ranks wants to use a device: ranks may differ, and a machine of a setting must be one graph for all of them.
    pub(crate) with_devices: bool,
    /// Of ranks on CPUs of one host.
    pub(crate) host: Option<Arc<str>>,
    /// Of ranks with a GPU each.
    pub(crate) devices: Option<Arc<str>>,
    /// Why there is none although ranks know their hosts.
    pub(crate) misfit: Option<String>,
    /// Whether all that is known is what ranks see by themselves, and no file says it.
    pub(crate) is_seen: bool,
}

impl Graphs {
    /// The graphs of `members`, whose hosts are `host_of`.
    pub(super) fn of<'a>(members: impl Iterator<Item = &'a Member>, host_of: &[u32]) -> Self {
        let members: Vec<&Member> = members.collect();
        let with_devices = members.iter().filter(|member| member.devices).count();
        let nothing = Graphs { with_devices: with_devices > 0, ..Graphs::default() };
        if members.is_empty() || members.iter().any(|member| member.hardware.is_empty()) {
            return nothing;
        }
        // Several ranks of a host share one text.
        let mut read: HashMap<*const Vec<u8>, Hardware> = HashMap::new();
        for member in &members {
            let text = &member.hardware;
            if read.contains_key(&Arc::as_ptr(text)) {
                continue;
            }
            match machine(text) {
                Ok(hardware) => drop(read.insert(Arc::as_ptr(text), hardware)),
                Err(misfit) => return Graphs { misfit: Some(misfit.to_string()), ..nothing },
            }
        }
        let hosts = host_of.iter().max().map_or(0, |last| last + 1);
        let of_host =
            |host: u32| members.iter().zip(host_of).find(|(_, of)| **of == host).map(|(member, _)| *member);
        let machines: Vec<&Hardware> =
            (0..hosts).filter_map(|host| read.get(&Arc::as_ptr(&of_host(host)?.hardware))).collect();
        let is_seen = machines.iter().all(|machine| machine.is_view());
        let nothing = Graphs { is_seen, ..nothing };
        let text = |graph: Result<String, Misfit>| match graph {
            Ok(text) => (Some(Arc::from(text)), None),
            Err(misfit) => (None, Some(misfit.to_string())),
        };
        if with_devices == members.len() {
            let (devices, misfit) = text(of_devices(&machines, host_of));
            Graphs { devices, misfit, ..nothing }
        } else if with_devices == 0 && machines.len() == 1 {
            let (host, misfit) =
                text(cpu_graph(machines[0], members.len() as u32).map(|graph| graph.to_string()));
            Graphs { host, misfit, ..nothing }
        } else {
            nothing
        }
    }
}

/// The graph of ranks with a GPU each: the ranks of a host have its GPUs in their order.
fn of_devices(machines: &[&Hardware], host_of: &[u32]) -> Result<String, Misfit> {
    for (machine, host) in machines.iter().zip(0..) {
        let (gpus, ranks) = (machine.gpus().len(), host_of.iter().filter(|of| **of == host).count());
        if gpus != ranks {
            return Err(Misfit {
                reason: format!(
                    "the machine {:?} has {gpus} GPUs, and {ranks} ranks of the job are on it",
                    machine.name
                ),
                remedy: "name the machine that has the job's GPUs and no others (NCCL_TOPO_FILE), or none"
                    .into(),
            });
        }
    }
    let composed = match machines {
        [one] => (*one).clone(),
        several => Hardware::compose(several, Network::Rail).map_err(|error| Misfit {
            reason: error.to_string(),
            remedy: "describe the ports of each host".into(),
        })?,
    };
    // All GPUs come host by host; ranks may not.
    let gpus = composed.gpus();
    let counts: Vec<usize> = machines.iter().map(|machine| machine.gpus().len()).collect();
    let mut next: Vec<usize> = (0..counts.len()).map(|host| counts[..host].iter().sum()).collect();
    let of_ranks: Vec<NodeId> = host_of
        .iter()
        .map(|host| {
            let at = &mut next[*host as usize];
            *at += 1;
            gpus[*at - 1]
        })
        .collect();
    let graph = composed
        .rank_graph(&of_ranks, Rates::DataSheet, Wires::All)
        .map_err(|error| Misfit { reason: error.reason, remedy: error.remedy })?;
    Ok(graph.topology.to_string())
}

#[cfg(test)]
mod tests {
    use consort_algorithms::hardware::exchange;
    use consort_algorithms::topology;
    use consort_topology::Place;

    use super::*;

    /// Two GPUs that two NVLinks of 25 GB/s join, with a port of 25 GB/s.
    const PAIR: &str = r#"<system version="1">
  <cpu numaid="0" affinity="00000000,0000000f" arch="x86_64" vendor="AuthenticAMD" familyid="23" modelid="49">
    <pci busid="0000:07:00.0" class="0x030200" link_speed="16.0 GT/s PCIe" link_width="16">
      <gpu dev="0" sm="80" rank="0" gdr="1"><nvlink target="0000:0a:00.0" count="2" tclass="0x030200"/></gpu>
    </pci>
    <pci busid="0000:0a:00.0" class="0x030200" link_speed="16.0 GT/s PCIe" link_width="16">
      <gpu dev="1" sm="80" rank="1" gdr="1"><nvlink target="0000:07:00.0" count="2" tclass="0x030200"/></gpu>
    </pci>
    <pci busid="0000:0c:00.0" class="0x020700" link_speed="16.0 GT/s PCIe" link_width="16">
      <nic><net name="mlx5_0" dev="0" speed="200000" port="1" guid="0x1" maxconn="262144" gdr="1"/></nic>
    </pci>
  </cpu>
</system>
"#;

    fn text(xml: &str) -> Arc<Vec<u8>> {
        Arc::new(exchange::read_hardware(xml.as_bytes()).expect("a machine").0.to_string().into_bytes())
    }

    fn member(host: u8, hardware: &Arc<Vec<u8>>, devices: bool) -> Member {
        Member {
            host: "h".into(),
            pid: 1,
            process: [0; 16],
            machine: [host; 16],
            host_key: [host; 16],
            wire_mbits: 0,
            cores: 4,
            place: Place::default(),
            devices,
            hardware: hardware.clone(),
            unix: vec![],
            tcp: vec![],
        }
    }

    fn graphs(hosts: &[u8], devices: bool) -> Graphs {
        let hardware = text(PAIR);
        let members: Vec<Member> = hosts.iter().map(|host| member(*host, &hardware, devices)).collect();
        let host_of: Vec<u32> = hosts.iter().map(|host| u32::from(*host)).collect();
        Graphs::of(members.iter(), &host_of)
    }

    #[test]
    fn ranks_with_devices_have_the_graph_of_all_hosts_gpus() {
        let one = graphs(&[0, 0], true).devices.expect("a graph");
        let graph = topology::parse(&one).expect("a topology");
        assert_eq!((graph.ranks(), graph.boxes().len()), (2, 1));
        assert!(graph.links().iter().any(|link| link.bandwidth_bytes_s == 50_000_000_000), "{graph}");
        // Ranks that alternate between two hosts.
        let two = graphs(&[0, 1, 0, 1], true).devices.expect("a graph");
        let graph = topology::parse(&two).expect("a topology");
        let boxes: Vec<Vec<u32>> =
            graph.boxes().iter().map(|ranks| ranks.iter().map(|rank| rank.0).collect()).collect();
        assert_eq!(boxes, [[0, 2], [1, 3]]);
    }

    #[test]
    fn a_machine_of_other_gpus_is_no_graph_and_the_reason_is_kept() {
        let graphs = graphs(&[0, 0, 0], true);
        assert_eq!((&graphs.host, &graphs.devices), (&None, &None));
        assert!(
            graphs.misfit.as_deref().is_some_and(|why| why.contains("2 GPUs, and 3 ranks")),
            "{graphs:?}"
        );
    }

    #[test]
    fn what_ranks_see_is_called_no_file() {
        let view = exchange::read_hardware(PAIR.as_bytes()).expect("a machine").0.into_view();
        let view = Arc::new(view.to_string().into_bytes());
        let members: Vec<Member> = (0..3).map(|rank| member(0, &view, rank != 1)).collect();
        let seen = Graphs::of(members[..1].iter(), &[0]);
        assert!(seen.is_seen && seen.misfit.is_some(), "{seen:?}");
        let file = graphs(&[0, 0, 0], true);
        assert!(!file.is_seen && file.misfit.is_some(), "{file:?}");
        // One rank of three has no device.
        assert!(Graphs::of(members.iter(), &[0, 0, 0]).with_devices);
    }

    #[test]
    fn ranks_on_the_host_have_the_graph_of_its_cpus_and_none_where_one_host_is_unknown() {
        let host = graphs(&[0, 0, 0], false).host.expect("a graph");
        assert_eq!(topology::parse(&host).expect("a topology").ranks(), 3);
        let (known, unknown) = (text(PAIR), Arc::default());
        let members = [member(0, &known, true), member(1, &unknown, true)];
        assert_eq!(Graphs::of(members.iter(), &[0, 1]), Graphs { with_devices: true, ..Graphs::default() });
    }
}
