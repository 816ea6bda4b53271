//! The job's graph where its ranks know what is in their hosts: merged from what each host's ranks said when they joined.
//!
//! Invariant: made from the table that all ranks have, so it is the same on all of them. Hosts are joined by rails: no file of a host says
//! what is between hosts. Absent: hosts that say nothing; then there is no such graph.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use consort_algorithms::hardware::{
    BusId, Hardware, Network, NodeId, PathKind, Paths, Rates, Wires, counted,
};

use consort_control::bootstrap::Member;
use consort_settings::options::{Misfit, cpu_graph, gpu_graph, machine};

/// The graphs of a communicator's ranks, as text; none where nothing is known, or what is known is not their machine.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct Graphs {
    /// Whether any of the ranks wants to use a device: ranks may differ, and a machine of a setting must be one graph for all of them.
    pub(crate) with_devices: bool,
    /// Of ranks on CPUs of one host.
    pub(crate) host: Option<Arc<str>>,
    /// Of ranks with a GPU each.
    pub(crate) devices: Option<Arc<str>>,
    /// The number that each rank's GPU has on its host, where all are known; empty otherwise.
    pub(crate) numbers: Vec<u64>,
    /// What is the same where files have the same rings and trees; 0 where not all ranks have one file.
    pub(crate) channels: u64,
    /// Two ranks of different files of rings and trees.
    pub(crate) channels_differ: Option<(u32, u32)>,
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
        let mark = members.first().map_or(0, |first| first.graphs);
        let other = members.iter().position(|member| member.graphs != mark);
        let nothing = Graphs {
            with_devices: with_devices > 0,
            channels: if other.is_none() { mark } else { 0 },
            channels_differ: other.map(|rank| (0, rank as u32)),
            ..Graphs::default()
        };
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
            let (graph, numbers) = match of_devices(&machines, &members, host_of) {
                Ok((graph, numbers)) => (Ok(graph), numbers),
                Err(misfit) => (Err(misfit), Vec::new()),
            };
            let (devices, misfit) = text(graph);
            Graphs { devices, misfit, numbers, ..nothing }
        } else if with_devices == 0 && machines.len() == 1 {
            let (host, misfit) =
                text(cpu_graph(machines[0], members.len() as u32).map(|graph| graph.to_string()));
            Graphs { host, misfit, ..nothing }
        } else {
            nothing
        }
    }
}

impl Graphs {
    /// Of ranks on one host with this machine, without a job: as many as they are on its CPUs, and on its GPUs where there are as many.
    pub(crate) fn of_one_host(text: &str, ranks: u32) -> Self {
        let hardware = match machine(text.as_bytes()) {
            Ok(hardware) => hardware,
            Err(misfit) => return Graphs { misfit: Some(misfit.to_string()), ..Graphs::default() },
        };
        let gpus = hardware.gpus();
        let host = cpu_graph(&hardware, ranks).map(|graph| graph.to_string());
        let devices = match gpus.len() as u32 == ranks {
            true => gpu_graph(&hardware).map(|graph| graph.to_string()).ok(),
            false => None,
        };
        let number = |gpu: &NodeId| hardware.gpu(*gpu).and_then(|gpu| gpu.index).map(u64::from);
        let numbers = devices.as_ref().and_then(|_| gpus.iter().map(number).collect()).unwrap_or_default();
        let (host, misfit) = match host {
            Ok(host) => (Some(host), None),
            Err(misfit) => (None, devices.is_none().then(|| misfit.to_string())),
        };
        Graphs {
            host: host.map(Arc::from),
            devices: devices.map(Arc::from),
            numbers,
            misfit,
            ..Graphs::default()
        }
    }
}

/// The graph of ranks with a GPU each, and the numbers of these GPUs where all have one.
fn of_devices(
    machines: &[&Hardware],
    members: &[&Member],
    host_of: &[u32],
) -> Result<(String, Vec<u64>), Misfit> {
    let on = |host: u32| (0..members.len()).filter(move |rank| host_of[*rank] == host);
    let mut places: Vec<Vec<usize>> = Vec::new();
    for (machine, host) in machines.iter().zip(0..) {
        places.push(gpus_of(machine, members, &on(host).collect::<Vec<_>>())?);
    }
    let composed = match machines {
        [one] => (*one).clone(),
        several => Hardware::compose(several, Network::Rail).map_err(|error| Misfit {
            reason: error.to_string(),
            remedy: "describe the ports of each host".into(),
        })?,
    };
    // All GPUs come host by host; ranks may not.
    let all = composed.gpus();
    let counts = machines.iter().map(|machine| machine.gpus().len());
    if all.len() != counts.clone().sum::<usize>() {
        return Err(Misfit {
            reason: "some hosts describe their GPUs, and others only list devices of that class".into(),
            remedy: "describe the GPUs of each host".into(),
        });
    }
    let (mut gpus, mut before) = (vec![None; members.len()], 0);
    for ((places, count), host) in places.into_iter().zip(counts).zip(0..) {
        for (rank, at) in on(host).zip(places) {
            gpus[rank] = Some(all[before + at]);
        }
        before += count;
    }
    // Each rank is on one of the hosts.
    let gpus: Vec<NodeId> = gpus.into_iter().flatten().collect();
    let graph = composed
        .rank_graph(&gpus, Rates::DataSheet, Wires::All)
        .map_err(|error| Misfit { reason: error.reason, remedy: error.remedy })?;
    let number = |gpu: &NodeId| composed.gpu(*gpu).and_then(|gpu| gpu.index).map(u64::from);
    let numbers: Option<Vec<u64>> = gpus.iter().map(number).collect();
    Ok((graph.topology.to_string(), numbers.unwrap_or_default()))
}

/// The way from the GPU of one of the ranks to that of another, in what their hosts say.
pub(crate) fn way(
    members: &[&Member],
    host_of: &[u32],
    from: usize,
    to: usize,
) -> Option<(PathKind, Option<u64>)> {
    let gpu = |rank: usize| {
        let hardware = machine(&members.get(rank)?.hardware).ok()?;
        let here: Vec<usize> = (0..members.len()).filter(|of| host_of[*of] == host_of[rank]).collect();
        let at = gpus_of(&hardware, members, &here).ok()?;
        let of_ranks: Vec<(usize, usize)> = here.into_iter().zip(at).collect();
        Some((hardware, of_ranks))
    };
    let at =
        |of_ranks: &[(usize, usize)], rank| of_ranks.iter().find(|(of, _)| *of == rank).map(|(_, at)| *at);
    let (one, of_one) = gpu(from)?;
    let (composed, gpus) = if host_of.get(from)? == host_of.get(to)? {
        let gpus = one.gpus();
        let ends = (*gpus.get(at(&of_one, from)?)?, *gpus.get(at(&of_one, to)?)?);
        (one, ends)
    } else {
        let (other, of_other) = gpu(to)?;
        let composed = Hardware::compose(&[&one, &other], Network::Rail).ok()?;
        let gpus = composed.gpus();
        let before = one.gpus().len();
        if gpus.len() != before + other.gpus().len() {
            return None;
        }
        let ends = (*gpus.get(at(&of_one, from)?)?, *gpus.get(before + at(&of_other, to)?)?);
        (composed, ends)
    };
    let path = Paths::new(&composed, Rates::DataSheet).between(gpus.0, gpus.1);
    Some((path.kind, path.bytes_s))
}

/// Which of a host's GPUs, in their order, the `ranks` on it have: by the addresses that they say, or, where one of them says none or
/// the machine has none, all of them in turn.
fn gpus_of(machine: &Hardware, members: &[&Member], ranks: &[usize]) -> Result<Vec<usize>, Misfit> {
    let gpus = machine.gpus();
    let bus = |gpu: &NodeId| machine.gpu(*gpu).and_then(|gpu| gpu.pci.bus);
    let known: Option<Vec<BusId>> = gpus.iter().map(bus).collect();
    let said: Option<Vec<BusId>> = ranks.iter().map(|rank| members[*rank].device).collect();
    if let (Some(known), Some(said)) = (known.filter(|known| !known.is_empty()), said) {
        let mut users: BTreeMap<BusId, usize> = BTreeMap::new();
        let at = |(rank, device): (&usize, BusId)| {
            if let Some(other) = users.insert(device, *rank) {
                return Err(Misfit {
                    reason: format!("ranks {other} and {rank} share the GPU at {device}"),
                    remedy: "give each rank a GPU of its own".into(),
                });
            }
            known.iter().position(|bus| *bus == device).ok_or_else(|| Misfit {
                reason: format!(
                    "rank {rank} uses the GPU at {device}, which the machine {:?} does not have",
                    machine.name
                ),
                remedy: "name the machine that has the job's GPUs (NCCL_TOPO_FILE), or none".into(),
            })
        };
        return ranks.iter().zip(said).map(at).collect();
    }
    if gpus.len() != ranks.len() {
        let are = if ranks.len() == 1 { "is" } else { "are" };
        return Err(Misfit {
            reason: format!(
                "the machine {:?} has {}, and {} of the job {are} on it",
                machine.name,
                counted(gpus.len(), "GPU"),
                counted(ranks.len(), "rank"),
            ),
            remedy: "name the machine that has the job's GPUs and no others (NCCL_TOPO_FILE), or none".into(),
        });
    }
    Ok((0..gpus.len()).collect())
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
            ports: Vec::new(),
            round_trip: Default::default(),
            cores: 4,
            place: Place::default(),
            devices,
            device: None,
            graphs: 0,
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

    /// Ranks of hosts that use the GPUs at these buses.
    fn placed(hardware: &Arc<Vec<u8>>, ranks: &[(u8, u8)]) -> Graphs {
        let of = |&(host, bus): &(u8, u8)| {
            let device = Some(BusId { bus, ..BusId::default() });
            Member { device, ..member(host, hardware, true) }
        };
        let members: Vec<Member> = ranks.iter().map(of).collect();
        let host_of: Vec<u32> = ranks.iter().map(|(host, _)| u32::from(*host)).collect();
        Graphs::of(members.iter(), &host_of)
    }

    /// The bytes a second of the direct link between two ranks; 0 where there is none.
    fn between(graph: &topology::Topology, one: u32, other: u32) -> u64 {
        let link = graph.links().iter().find(|link| (link.from.0, link.to.0) == (one, other));
        link.map_or(0, |link| link.bandwidth_bytes_s)
    }

    #[test]
    fn ranks_have_the_gpus_that_they_say_in_the_order_of_ranks() {
        // Eight GPUs that each have an NVLink to the next alone, of as many GB/s as its number and one.
        let mut ring = String::from("hardware ring\nhost h0\nnuma n0 on=h0 number=0\n");
        for gpu in 0..8 {
            ring += &format!(
                "gpu g{gpu} on=h0 bus=0000:{:02x}:00.0 index={gpu} described=yes links_known=yes\n",
                gpu + 16
            );
        }
        for gpu in 0..8 {
            ring += &format!("link n0 g{gpu} pcie generation=4 width=16\n");
        }
        for gpu in 0..7 {
            ring += &format!(
                "link g{gpu} g{} nvlink generation=3 count=1 bytes_s={}000000000\n",
                gpu + 1,
                gpu + 1
            );
        }
        ring += "link h0 n0 local\n";
        ring += "nic c0 on=h0 bus=0000:3e:00.0\nport p0 on=h0 device=mlx5_0 number=1 speed_mbit_s=200000 state=up\n";
        ring += "link n0 c0 pcie generation=4 width=16\nlink c0 p0 local\n";
        let ring = Arc::new(ring.into_bytes());
        // Five of eight, backwards, on two hosts whose ranks alternate.
        let two = placed(&ring, &[(0, 22), (1, 17), (0, 21), (1, 16), (0, 18)]);
        assert_eq!((two.misfit, two.numbers), (None, vec![6, 1, 5, 0, 2]));
        let graph = topology::parse(&two.devices.expect("a graph")).expect("a topology");
        assert_eq!(graph.ranks(), 5);
        assert_eq!(
            [between(&graph, 0, 2), between(&graph, 1, 3), between(&graph, 0, 4)],
            [6_000_000_000, 1_000_000_000, 0]
        );
        let misfit = |ranks: &[(u8, u8)]| placed(&ring, ranks).misfit.expect("no graph");
        let missing = misfit(&[(0, 16), (0, 3)]);
        assert!(
            missing.contains("rank 1 uses the GPU at 0000:03:00.0, which the machine \"ring\""),
            "{missing}"
        );
        let shared = misfit(&[(0, 16), (1, 16), (1, 17), (0, 16)]);
        assert!(shared.contains("ranks 0 and 3 share the GPU at 0000:10:00.0"), "{shared}");
    }

    #[test]
    fn the_way_between_two_ranks_is_that_of_their_gpus() {
        let hardware = text(PAIR);
        let member = |host, bus| {
            let device = Some(BusId { bus, ..BusId::default() });
            Member { device, ..member(host, &hardware, true) }
        };
        let members = [member(0, 10), member(0, 7), member(1, 7)];
        let members: Vec<&Member> = members.iter().collect();
        let way = |from, to| way(&members, &[0, 0, 1], from, to);
        assert_eq!(way(0, 1), Some((PathKind::Nvl, Some(50_000_000_000))));
        let net = way(1, 2).expect("a way");
        assert_eq!(net, (PathKind::Net, Some(25_000_000_000)));
        assert_eq!(way(2, 0), Some(net));
        assert_eq!(way(0, 3), None);
    }

    #[test]
    fn a_rank_that_does_not_say_its_gpu_leaves_all_in_turn() {
        let hardware = text(PAIR);
        let said =
            Member { device: Some(BusId { bus: 10, ..BusId::default() }), ..member(0, &hardware, true) };
        let members = [said, member(0, &hardware, true)];
        assert!(Graphs::of(members.iter(), &[0, 0]).devices.is_some());
        let one = Graphs::of(members[..1].iter(), &[0]);
        assert!(one.devices.is_some() && one.misfit.is_none(), "{one:?}");
        let one = Graphs::of(members[1..].iter(), &[0]).misfit.expect("none");
        assert!(one.contains("has 2 GPUs, and 1 rank of the job is on it"), "{one}");
    }

    #[test]
    fn rings_of_a_file_are_those_of_all_ranks_or_none() {
        let marked = |marks: [u64; 3]| {
            let members = marks.map(|graphs| Member { graphs, ..member(0, &Arc::default(), false) });
            let graphs = Graphs::of(members.iter(), &[0, 0, 0]);
            (graphs.channels, graphs.channels_differ)
        };
        assert_eq!(marked([7, 7, 7]), (7, None));
        assert_eq!(marked([7, 7, 8]), (0, Some((0, 2))));
        assert_eq!(marked([0, 7, 7]), (0, Some((0, 1))));
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
