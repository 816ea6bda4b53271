//! Machines built by hand: paths, graphs of ranks, and what makes no sense.

use super::*;
use crate::topology::{self, Routes};

const GB: u64 = 1_000_000_000;

/// Generation 3, 16 lanes.
const GEN3: LinkKind = {
    let lanes = Lanes { generation: Some(3), width: Some(16) };
    LinkKind::Pcie { now: lanes, best: lanes }
};

/// The double links of DGX-1 with V100.
const DOUBLE: [(u32, u32); 8] = [(0, 1), (0, 4), (1, 3), (2, 3), (2, 6), (4, 5), (5, 7), (6, 7)];
/// The single links of DGX-1 with V100.
const SINGLE: [(u32, u32); 8] = [(0, 2), (0, 3), (1, 2), (1, 5), (3, 7), (4, 6), (4, 7), (5, 6)];

fn gpu(index: u32, sm: u32) -> NodeKind {
    let bus = BusId { bus: 0x10 + index as u8, ..BusId::default() };
    let pci = Pci { bus: Some(bus), ..Pci::default() };
    let (index, sm) = (Some(index), Some(sm));
    NodeKind::Gpu(Gpu { pci, index, sm, described: true, links_known: true, ..Gpu::default() })
}

/// Two sockets with two switches each, with two GPUs and an adapter of 100 Gb/s each.
fn boxed(sm: u32) -> (Hardware, Vec<NodeId>, Vec<NodeId>) {
    let mut machine = Hardware::new("by-hand");
    let host = machine.add_node("host0", None, NodeKind::Host(Host::default()));
    let (mut gpus, mut ports) = (Vec::new(), Vec::new());
    let mut numas = Vec::new();
    for number in 0..2 {
        let processor = Processor {
            arch: Some("x86_64".into()),
            vendor: Some("GenuineIntel".into()),
            family: Some(6),
            model: Some(79),
        };
        let numa = Numa { number: Some(number), processor, ..Numa::default() };
        let numa = machine.add_node(format!("numa{number}"), Some(host), NodeKind::Numa(numa));
        machine.connect(host, numa, LinkKind::Local);
        for half in 0..2 {
            let at = number * 2 + half;
            let bridge =
                machine.add_node(format!("bridge{at}"), Some(host), NodeKind::Bridge(Bridge::default()));
            machine.connect(numa, bridge, GEN3);
            for index in [at * 2, at * 2 + 1] {
                let id = machine.add_node(format!("gpu{index}"), Some(host), gpu(index, sm));
                machine.connect(bridge, id, GEN3);
                gpus.push(id);
            }
            let nic = machine.add_node(
                format!("nic{at}"),
                Some(host),
                NodeKind::Nic(Nic { pci: Some(Pci::default()) }),
            );
            machine.connect(bridge, nic, GEN3);
            let port =
                Port { device: Some(format!("mlx5_{at}")), speed_mbit_s: Some(100_000), ..Port::default() };
            let port = machine.add_node(format!("port{at}"), Some(host), NodeKind::Port(port));
            machine.connect(nic, port, LinkKind::Local);
            ports.push(port);
        }
        numas.push(numa);
    }
    machine.connect(numas[0], numas[1], LinkKind::Socket { distance: None });
    (machine, gpus, ports)
}

fn cube_mesh() -> (Hardware, Vec<NodeId>, Vec<NodeId>) {
    let (mut machine, gpus, ports) = boxed(70);
    for (count, pairs) in [(2, DOUBLE), (1, SINGLE)] {
        for (one, other) in pairs {
            let kind = LinkKind::NvLink { generation: Some(2), count };
            machine.connect(gpus[one as usize], gpus[other as usize], kind);
        }
    }
    machine.check().expect("it makes sense");
    (machine, gpus, ports)
}

#[test]
fn paths_have_the_kinds_and_widths_that_nccl_gives_them() {
    let (machine, gpus, ports) = cube_mesh();
    let paths = Paths::new(&machine, Rates::DataSheet);
    let between = |one: NodeId, other: NodeId| {
        let path = paths.between(one, other);
        (path.kind, path.bytes_s.map(|bytes_s| bytes_s / 1_000_000))
    };
    assert_eq!(between(gpus[0], gpus[0]), (PathKind::Loc, Some(5_000_000)));
    assert_eq!(between(gpus[0], gpus[1]), (PathKind::Nvl, Some(50_000)));
    assert_eq!(between(gpus[0], gpus[3]), (PathKind::Nvl, Some(25_000)));
    assert_eq!(between(gpus[0], gpus[5]), (PathKind::Nvb, Some(50_000)), "0-1-5 has 25, 0-4-5 has 50");
    assert_eq!(between(gpus[0], gpus[7]), (PathKind::Nvb, Some(25_000)));
    assert_eq!(between(gpus[0], ports[0]), (PathKind::Pix, Some(15_750)));
    assert_eq!(between(gpus[0], ports[1]), (PathKind::Pxn, Some(15_750)), "through GPU 2");
    assert_eq!(between(gpus[0], ports[3]), (PathKind::Sys, Some(15_750)), "GPU 6 is no neighbour of GPU 0");
    assert_eq!(between(ports[0], gpus[2]), (PathKind::Phb, Some(15_750)), "only GPUs send through others");
    let numas = machine.numas();
    assert_eq!(between(gpus[0], numas[0]), (PathKind::Phb, Some(15_750)));
    assert_eq!(between(gpus[0], numas[1]).0, PathKind::Sys);
    let nccl = Paths::new(&machine, Rates::Nccl);
    assert_eq!(nccl.between(gpus[0], gpus[1]).bytes_s, Some(40 * GB));
    assert_eq!(nccl.between(gpus[0], numas[1]).bytes_s, Some(6 * GB), "NCCL's rate between these sockets");
    // A path names its links in order.
    let path = paths.between(gpus[0], gpus[5]);
    let ends: Vec<NodeId> =
        path.links.iter().flat_map(|id| [machine.link(*id).from, machine.link(*id).to]).collect();
    assert_eq!(ends, [gpus[0], gpus[4], gpus[4], gpus[5]]);
}

#[test]
fn unknown_widths_stay_unknown() {
    let (mut machine, gpus, ports) = boxed(80);
    let (link, _) = machine.above(gpus[0]).expect("a switch");
    machine.set_link(link, LinkKind::Pcie { now: Lanes::default(), best: Lanes::default() }, None, None);
    let paths = Paths::new(&machine, Rates::DataSheet);
    assert_eq!(
        (paths.between(gpus[0], gpus[1]).kind, paths.between(gpus[0], gpus[1]).bytes_s),
        (PathKind::Pix, None)
    );
    assert_eq!(paths.between(gpus[1], ports[0]).bytes_s, Some(15_750_000_000));
}

#[test]
fn two_switches_in_a_row_are_pxb_and_hosts_without_a_network_are_apart() {
    let (mut machine, gpus, _) = boxed(80);
    let host = machine.hosts()[0];
    let (_, bridge) = machine.above(gpus[0]).expect("a switch");
    let deep = machine.add_node("deep", Some(host), NodeKind::Bridge(Bridge::default()));
    machine.connect(bridge, deep, GEN3);
    let more = machine.add_node("gpu8", Some(host), gpu(8, 80));
    machine.connect(deep, more, GEN3);
    let other = machine.add_node("host1", None, NodeKind::Host(Host::default()));
    let lone = machine.add_node("gpu9", Some(other), gpu(0, 80));
    machine.check().expect("it makes sense");
    let paths = Paths::new(&machine, Rates::DataSheet);
    assert_eq!(paths.between(gpus[0], more).kind, PathKind::Pxb);
    assert_eq!(paths.between(gpus[0], gpus[1]).kind, PathKind::Pix);
    assert_eq!(paths.between(gpus[0], gpus[2]).kind, PathKind::Phb);
    assert_eq!(paths.between(gpus[0], gpus[4]).kind, PathKind::Sys);
    let apart = paths.between(gpus[0], lone);
    assert_eq!((apart.kind, apart.bytes_s, apart.links.len()), (PathKind::Dis, None, 0));
}

#[test]
fn the_fastest_graph_of_a_cube_mesh_is_its_nvlinks() {
    let (machine, gpus, _) = cube_mesh();
    let graph = machine.rank_graph(&gpus, Rates::DataSheet, Wires::Fastest).expect("a graph");
    let topology = &graph.topology;
    assert_eq!((topology.ranks(), topology.nodes().len(), topology.links().len()), (8, 8, 32));
    let leaving = |rank: u32| -> u64 {
        let links = topology.links().iter().filter(|link| link.from.0 == rank);
        links.map(|link| link.bandwidth_bytes_s).sum()
    };
    assert!((0..8).all(|rank| leaving(rank) == 150 * GB), "six links of 25 GB/s");
    // Five of eight, in another order: rank i is the i-th.
    let some: Vec<NodeId> = [7, 5, 4, 1, 0].map(|at: usize| gpus[at]).to_vec();
    let five = machine.rank_graph(&some, Rates::DataSheet, Wires::Fastest).expect("a graph").topology;
    let names: Vec<&str> = five.nodes().iter().map(|node| node.name.as_str()).collect();
    assert_eq!(names, ["gpu7", "gpu5", "gpu4", "gpu1", "gpu0"]);
    assert_eq!(five.links().len(), 2 * 6, "0-1, 0-4, 4-5, 5-7 double; 1-5, 4-7 single");
    assert_eq!(machine.rank_graph(&some, Rates::DataSheet, Wires::Fastest).expect("a graph").topology, five);
}

#[test]
fn the_whole_graph_shares_uplinks_and_has_a_route_for_every_pair() {
    let (machine, gpus, _) = boxed(70);
    let graph = machine.rank_graph(&gpus, Rates::DataSheet, Wires::All).expect("a graph");
    let topology = graph.topology;
    // Four switches and two sockets; adapters lead nowhere.
    assert_eq!((topology.nodes().len(), topology.links().len()), (8 + 4 + 2, 2 * (8 + 4 + 1)));
    let mut routes = Routes::new(&topology);
    let route = |routes: &mut Routes<'_>, from: u32, to: u32| {
        routes.from(topology::NodeId(from), &[topology::NodeId(to)]).remove(0).expect("a route")
    };
    assert_eq!(route(&mut routes, 0, 1).len(), 2);
    assert_eq!(route(&mut routes, 0, 7).len(), 5);
    assert_eq!(route(&mut routes, 0, 7)[1], route(&mut routes, 1, 6)[1], "the uplink of one switch");
    // Fastest is all where nothing faster joins the GPUs.
    let fastest = machine.rank_graph(&gpus, Rates::DataSheet, Wires::Fastest).expect("a graph").topology;
    assert_eq!(fastest, topology);
}

#[test]
fn nvswitches_of_a_host_are_one_switch() {
    let (mut machine, gpus, _) = boxed(90);
    let host = machine.hosts()[0];
    for (at, count) in [5, 5, 4, 4].into_iter().enumerate() {
        let bus = BusId { bus: 0x1a + 0x40 + at as u8, ..BusId::default() };
        let pci = Pci { bus: Some(bus), ..Pci::default() };
        let switch = machine.add_node(format!("nvswitch{at}"), Some(host), NodeKind::NvSwitch(pci));
        for &gpu in &gpus {
            machine.connect(gpu, switch, LinkKind::NvLink { generation: Some(4), count });
        }
    }
    machine.check().expect("it makes sense");
    let topology = machine.rank_graph(&gpus, Rates::DataSheet, Wires::Fastest).expect("a graph").topology;
    assert_eq!((topology.nodes().len(), topology.links().len()), (9, 16));
    assert!(topology.links().iter().all(|link| link.bandwidth_bytes_s == 450 * GB));
    assert!(topology.aggregates(), "switches of the third generation fold");
    assert_eq!(machine.nvswitches().len(), 4);
}

#[test]
fn gpus_whose_links_are_unknown_have_no_graph() {
    let (mut machine, gpus, _) = boxed(80);
    for &id in &gpus {
        if let NodeKind::Gpu(gpu) = &mut machine.node_mut(id).kind {
            gpu.links_known = false;
        }
    }
    let refused = machine.rank_graph(&gpus, Rates::DataSheet, Wires::All).expect_err("PCIe is no answer");
    assert!(refused.to_string().contains("--assume dgx-a100"), "{refused}");
    assert!(machine.rank_graph(&gpus[..1], Rates::DataSheet, Wires::All).is_ok(), "one GPU needs no link");
    let why = |gpus: &[NodeId]| {
        machine.rank_graph(gpus, Rates::DataSheet, Wires::All).expect_err("it is wrong").reason
    };
    assert_eq!(why(&[]), "there is no GPU");
    assert_eq!(why(&[gpus[0], gpus[0]]), "gpu0 is there twice");
    assert_eq!(why(&[machine.hosts()[0]]), "host0 is no GPU");
}

#[test]
fn links_of_unknown_width_are_left_out_and_named() {
    let (mut machine, gpus, _) = cube_mesh();
    let unknown = LinkKind::Pcie { now: Lanes::default(), best: Lanes::default() };
    let (link, _) = machine.above(gpus[0]).expect("a switch");
    machine.set_link(link, unknown, None, None);
    let graph = machine.rank_graph(&gpus, Rates::DataSheet, Wires::All).expect("NVLink joins all");
    assert_eq!(graph.left_out, [link]);
    let (mut machine, gpus, _) = boxed(80);
    machine.set_link(link, unknown, None, None);
    let refused = machine.rank_graph(&gpus, Rates::DataSheet, Wires::All).expect_err("GPU 0 is apart");
    assert_eq!(
        refused.reason,
        "no link of known bandwidth joins gpu0 and gpu1 (not known is, for example, what pcie from bridge0 to gpu0 carries)"
    );
}

#[test]
fn ports_are_counted_once_and_without_those_for_management() {
    let (mut machine, _, ports) = boxed(80);
    let (host, numa) = (machine.hosts()[0], machine.numas()[1]);
    let nic = machine.add_node("virtual", Some(host), NodeKind::Nic(Nic { pci: None }));
    machine.connect(numa, nic, LinkKind::Local);
    let mut add = |name: &str, speed: Option<u64>, state: PortState| {
        let port = Port { device: Some(name.into()), speed_mbit_s: speed, state, ..Port::default() };
        let id = machine.add_node(
            format!("port-{name}-{}", machine.nodes().len()),
            Some(host),
            NodeKind::Port(port),
        );
        machine.connect(nic, id, LinkKind::Local);
        id
    };
    let eth0 = add("eth0", Some(10_000), PortState::Up);
    for (name, speed, state) in [
        ("eth0", Some(10_000), PortState::Up),
        ("eno1", Some(1000), PortState::Up),
        ("lxcbr0", Some(10_000), PortState::Up),
        ("br-1a2b", Some(10_000), PortState::Up),
        ("docker0", None, PortState::Up),
        ("mlx5_7", Some(200_000), PortState::Down),
        ("mlx5_0+mlx5_1", Some(200_000), PortState::Up),
    ] {
        add(name, speed, state);
    }
    let odd = add("ib0", None, PortState::Unknown);
    machine.check().expect("it makes sense");
    assert_eq!(machine.usable_ports(), [ports.clone(), vec![eth0, odd]].concat());
}

#[test]
fn what_makes_no_sense_is_refused_with_its_reason() {
    let refused = |change: &dyn Fn(&mut Hardware, &[NodeId])| {
        let (mut machine, gpus, _) = cube_mesh();
        change(&mut machine, &gpus);
        machine.check().expect_err("it makes no sense").reason
    };
    let edit = |machine: &mut Hardware, id: NodeId, change: &dyn Fn(&mut Gpu)| {
        let NodeKind::Gpu(gpu) = &mut machine.node_mut(id).kind else { panic!("it is a GPU") };
        change(gpu);
    };
    assert_eq!(
        refused(&|machine, _| machine.node_mut(NodeId(1)).name = "host0".into()),
        "two nodes are called host0"
    );
    assert_eq!(refused(&|machine, _| machine.node_mut(NodeId(1)).name = "a b".into()), "\"a b\" is no name");
    assert_eq!(
        refused(&|machine, gpus| machine.node_mut(gpus[0]).host = Some(gpus[1])),
        "the host of gpu0 is none"
    );
    assert_eq!(
        refused(&|machine, gpus| edit(machine, gpus[3], &|gpu| gpu.index = Some(2))),
        "there are two of one GPU with the number 2: gpu2 and gpu3"
    );
    let same = BusId { bus: 0x10, ..BusId::default() };
    assert_eq!(
        refused(&|machine, gpus| edit(machine, gpus[3], &|gpu| gpu.pci.bus = Some(same))),
        "there are two of one GPU at 0000:10:00.0: gpu0 and gpu3"
    );
    assert_eq!(
        refused(&|machine, _| {
            let bridge = machine.find("bridge3").expect("a bridge");
            machine.node_mut(bridge).kind =
                NodeKind::Bridge(Bridge { pci: Pci { bus: Some(same), ..Pci::default() }, acs: None });
        }),
        "gpu0 and bridge3 are both at 0000:10:00.0 on one host"
    );
    assert_eq!(
        refused(&|machine, _| {
            machine.connect(machine.find("bridge1").expect("it"), machine.find("bridge0").expect("it"), GEN3);
        }),
        "bridge0 is below both numa0 and bridge1"
    );
    assert_eq!(
        refused(&|machine, _| {
            let host = machine.hosts()[0];
            let [one, other] = ["one", "other"]
                .map(|name| machine.add_node(name, Some(host), NodeKind::Bridge(Bridge::default())));
            machine.connect(one, other, GEN3);
            machine.connect(other, one, GEN3);
        }),
        "one lies below itself"
    );
    assert_eq!(
        refused(&|machine, gpus| {
            machine.connect(gpus[0], gpus[1], LinkKind::NvLink { generation: None, count: 4_000_000_000 });
        }),
        "4000000000 links side by side"
    );
    assert_eq!(
        refused(&|machine, gpus| {
            machine.connect(gpus[0], gpus[1], LinkKind::Socket { distance: None });
        }),
        "no socket link can lead from gpu0 (a gpu) to gpu1 (a gpu)"
    );
    assert_eq!(
        refused(&|machine, gpus| {
            let other = machine.add_node("host1", None, NodeKind::Host(Host::default()));
            machine.node_mut(gpus[0]).host = Some(other);
        }),
        "the pcie link from bridge0 to gpu0 leaves a host"
    );
}
