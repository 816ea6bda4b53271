//! What is found in each machine.

use consort_algorithms::hardware::exchange::read_hardware;
use consort_algorithms::hardware::{
    GpuDirect, Iommu, Lanes, LinkKind, LinkLayer, NodeKind, PathKind, Paths, PortState, Rates,
};
use consort_probing::{Note, Trouble};
use consort_testing::machines;

use crate::support::{joined, machine, notes, port, probe, way_up};

/// Counts of a machine: GPUs, usable ports, NUMA domains, NVSwitches, PCIe switches, groups of cores, NVLinks, xGMI links.
type Counts = [u32; 8];

const COUNTS: [(&str, Counts); 13] = [
    ("dgx-1", [8, 4, 2, 0, 4, 2, 24, 0]),
    ("dgx-a100", [8, 9, 8, 6, 5, 32, 96, 0]),
    ("dgx-h100", [8, 10, 2, 4, 9, 2, 144, 0]),
    ("hgx-b200", [8, 8, 2, 1, 8, 2, 144, 0]),
    ("gb200-nvl72", [4, 4, 2, 1, 0, 2, 72, 0]),
    // A switch of the machine and one within each board.
    ("mi300x", [8, 8, 2, 0, 16, 2, 0, 28]),
    ("mi250x", [16, 8, 4, 0, 20, 32, 0, 56]),
    ("pcie-dual-root", [8, 2, 2, 0, 2, 16, 0, 0]),
    ("cloud-flat", [8, 4, 2, 1, 0, 2, 96, 0]),
    ("laptop", [1, 0, 1, 0, 0, 1, 0, 0]),
    ("no-gpu", [0, 2, 2, 0, 0, 2, 0, 0]),
    ("container", [1, 1, 2, 4, 1, 0, 18, 0]),
    ("troubled", [4, 3, 2, 0, 1, 2, 12, 0]),
];

#[test]
fn every_machine_has_what_it_has() {
    assert_eq!(COUNTS.map(|(name, _)| name).to_vec(), machines::names());
    for (name, expected) in COUNTS {
        let probed = machine(name);
        let hardware = &probed.hardware;
        let of_kind =
            |word: &str| hardware.nodes().iter().filter(|node| node.kind.word() == word).count() as u32;
        let sides = |wanted: fn(&LinkKind) -> u32| {
            hardware.links().iter().map(|link| wanted(&link.kind)).sum::<u32>()
        };
        let found = [
            hardware.gpus().len() as u32,
            hardware.network_ends().len() as u32,
            hardware.numas().len() as u32,
            hardware.nvswitches().len() as u32,
            of_kind("bridge"),
            of_kind("cores"),
            sides(|kind| if let LinkKind::NvLink { count, .. } = kind { *count } else { 0 }),
            sides(|kind| if let LinkKind::Xgmi { count } = kind { *count } else { 0 }),
        ];
        assert_eq!(found, expected, "{name}:\n{hardware}");
        hardware.check().expect(name);
        let (again, _) = read_hardware(hardware.to_string().as_bytes()).expect(name);
        assert_eq!(&again, hardware, "{name} is another machine when it is written and read");
        let allowed =
            |note: &&Note| !matches!(note.trouble, Trouble::LeftOut { .. } if name == "gb200-nvl72");
        let left: Vec<&Note> = probed.notes.iter().filter(allowed).collect();
        assert_eq!(left, Vec::<&Note>::new(), "{name}");
        // The same files, the same answer.
        assert_eq!(machine(name), probed, "{name}");
    }
}

#[test]
fn a_switch_is_one_node_and_a_root_has_its_domain() {
    let probed = machine("dgx-1");
    let hardware = &probed.hardware;
    let gpus = hardware.gpus();
    assert_eq!(way_up(hardware, gpus[0]), ["bridge", "root", "numa", "host"]);
    let bus = |id| hardware.node(id).kind.pci().and_then(|pci| pci.bus).expect("an address").to_string();
    let bridge = |id| hardware.above(id).expect("above").1;
    assert_eq!(bus(bridge(gpus[0])), "0000:03:00.0", "the port that leads up, and not the one above the GPU");
    assert_eq!(bridge(gpus[0]), bridge(gpus[1]));
    let paths = Paths::new(hardware, Rates::DataSheet);
    let near = hardware.above(port(hardware, "mlx5_0").0).expect("an adapter").1;
    assert_eq!(paths.between(gpus[0], near).kind, PathKind::Pix);
    // Two switches below one root.
    assert_eq!(
        paths.between(near, hardware.above(port(hardware, "mlx5_1").0).expect("an adapter").1).kind,
        PathKind::Phb
    );
    assert_eq!(hardware.numa_of(gpus[4]), hardware.find("numa1"));
    let xgmi = machine("mi300x");
    let gpu = xgmi.hardware.gpus()[0];
    assert_eq!(way_up(&xgmi.hardware, gpu), ["bridge", "bridge", "root", "numa", "host"]);
}

#[test]
fn links_between_gpus_are_those_of_the_library_and_the_driver() {
    let probed = machine("dgx-1");
    let hardware = &probed.hardware;
    let gpus = hardware.gpus();
    let links = |one: usize, other: usize| joined(hardware, gpus[one], gpus[other]);
    assert_eq!(links(0, 1), [LinkKind::NvLink { generation: Some(2), count: 2 }]);
    assert_eq!(links(6, 5), [LinkKind::NvLink { generation: Some(2), count: 1 }]);
    assert_eq!(links(0, 7), []);
    let tray = machine("gb200-nvl72").hardware;
    let gpu = tray.gpus()[0];
    let c2c = tray
        .touching(gpu)
        .iter()
        .map(|id| tray.link(*id))
        .find(|link| matches!(link.kind, LinkKind::C2c { .. }));
    assert_eq!(c2c.expect("a coherent link").bytes_s, Some(5 * 44_712_000_000));
    assert_eq!(tray.node(gpu).extra["probe.fabric"], "8a1b2c3d4e5f60718293a4b5c6d7e8f9/32766");
    let dies = machine("mi250x").hardware;
    let gpus = dies.gpus();
    assert_eq!(joined(&dies, gpus[0], gpus[1]), [LinkKind::Xgmi { count: 4 }]);
    assert_eq!(joined(&dies, gpus[3], gpus[7]), [LinkKind::Xgmi { count: 2 }]);
    assert_eq!(dies.gpu(gpus[0]).and_then(|gpu| gpu.gcn.as_deref()), Some("gfx90a"));
    // A GPU that the library describes is one, though it also drives a screen; its link is counted as it is under load.
    let laptop = machine("laptop").hardware;
    let gpu = laptop.gpus()[0];
    let link = laptop.link(laptop.above(gpu).expect("a link").0).kind;
    let lanes = Lanes { generation: Some(3), width: Some(8) };
    assert_eq!(link, LinkKind::Pcie { now: lanes, best: lanes });
    assert_eq!(laptop.node(gpu).extra["probe.link_now"], "1 x8");
}

#[test]
fn ports_have_states_speeds_and_interfaces() {
    let hardware = machine("dgx-h100").hardware;
    let (id, roce) = port(&hardware, "mlx5_8");
    assert_eq!(
        (roce.speed_mbit_s, roce.state, roce.layer),
        (Some(200_000), PortState::Up, LinkLayer::Ethernet)
    );
    let extra = &hardware.node(id).extra;
    for (key, value) in
        [("interface", "ens6f0np0"), ("bond", "bond0"), ("mtu", "9000"), ("gids", "IB/RoCE v1, RoCE v2")]
    {
        assert_eq!(extra[&format!("probe.{key}")], value);
    }
    let (_, bond) = port(&hardware, "bond0");
    assert!(bond.virtual_device);
    let (id, port) = port(&hardware, "mlx5_3");
    assert_eq!((port.layer, port.guid.is_some()), (LinkLayer::InfiniBand, true));
    assert_eq!(way_up(&hardware, id), ["nic", "bridge", "root", "numa", "host"]);
    // An interface is no port of its own where it is a name of a port that speaks verbs.
    assert!(hardware.nodes().iter().all(
        |node| !matches!(&node.kind, NodeKind::Port(port) if port.device.as_deref() == Some("ens6f0np0"))
    ));
}

#[test]
fn hosts_say_how_devices_reach_memory() {
    let of = |name: &str| match &machine(name).hardware.node(consort_algorithms::hardware::NodeId(0)).kind {
        NodeKind::Host(host) => (host.iommu, host.gpudirect, host.is_virtual),
        _ => panic!("{name}: the first node is the host"),
    };
    assert_eq!(of("dgx-1"), (Some(Iommu::Off), Some(GpuDirect::PeerMemory), Some(false)));
    assert_eq!(of("dgx-a100"), (Some(Iommu::PassesThrough), Some(GpuDirect::PeerMemory), Some(false)));
    assert_eq!(of("dgx-h100"), (Some(Iommu::Off), Some(GpuDirect::DmaBuf), Some(false)));
    assert_eq!(of("pcie-dual-root").1, Some(GpuDirect::None), "the closed modules export no buffers");
    assert_eq!(of("mi250x").1, Some(GpuDirect::DmaBuf));
    assert_eq!(of("cloud-flat"), (Some(Iommu::Off), None, Some(true)));
    assert_eq!(of("troubled").0, Some(Iommu::Translates));
}

#[test]
fn limits_are_those_of_affinity_and_control_groups() {
    let limits = machine("no-gpu").limits;
    assert_eq!(
        (limits.cpus.map(|cpus| cpus.to_string()).as_deref(), limits.quota_milli),
        (Some("0-15"), Some(8000))
    );
    let mut tree = machines::tree("no-gpu");
    tree.put("proc/self/cgroup", "3:cpuset:/a/b\n1:cpu,cpuacct:/a");
    tree.put("sys/fs/cgroup/cpuset/a/cpuset.effective_cpus", "4-40");
    tree.put("sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us", "150000");
    tree.put("sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_period_us", "100000");
    tree.put("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1");
    let limits = probe(&tree).limits;
    assert_eq!(
        (limits.cpus.map(|cpus| cpus.to_string()).as_deref(), limits.quota_milli),
        (Some("4-31"), Some(1500))
    );
}

#[test]
fn troubles_are_said_as_a_person_would() {
    let probed = machine("troubled");
    let warnings = probed.hardware.warnings();
    for expected in [
        "GPU 3 is at PCIe x8, its siblings at x16",
        "NIC 2 is on the other socket from every GPU (mlx5_2)",
        "ACS on 0000:3b:00.0 forces peer traffic through the root",
        "mlx5_3 is down",
        "4 NVLinks of GPU 3 are down",
        "GPU 0 is split by MIG: its instances have neither NVLink nor peers",
        "GPU 1 may not use the memory of other GPUs: 0 (the root complexes between them do not support it)",
    ] {
        assert!(warnings.iter().any(|warning| warning == expected), "{expected:?} is not in {warnings:#?}");
    }
    assert!(warnings.iter().any(|warning| warning.contains("boot with iommu=pt")), "{warnings:#?}");
    assert_eq!(machine("hgx-b200").hardware.warnings(), Vec::<String>::new());
}

#[test]
fn a_flat_tree_of_a_virtual_machine_is_not_believed() {
    let flat = machine("cloud-flat").hardware;
    let gpus = flat.gpus();
    let up = flat.link(flat.above(gpus[0]).expect("a link").0);
    assert_eq!(flat.bytes_s(flat.above(gpus[0]).expect("a link").0, Rates::DataSheet), None, "{up:?}");
    assert!(
        flat.warnings().iter().any(|warning| warning.contains("without what joins them")),
        "{:?}",
        flat.warnings()
    );
    // The same when it states speeds of links: those of the devices' own ends say nothing of what they share.
    let mut tree = machines::tree("cloud-flat");
    for device in ["10", "05"] {
        tree.put(format!("sys/devices/pci0000:00/0000:00:{device}.0/current_link_speed"), "16.0 GT/s PCIe");
        tree.put(format!("sys/devices/pci0000:00/0000:00:{device}.0/current_link_width"), "16");
    }
    let stated = probe(&tree).hardware;
    let gpu = stated.gpus()[0];
    assert_eq!(stated.bytes_s(stated.above(gpu).expect("a link").0, Rates::DataSheet), None);
    assert_eq!(stated.node(gpu).extra["probe.link_now"], "4 x16");
    // On hardware the same tree is what it is.
    let mut tree = machines::tree("cloud-flat");
    tree.entries.retain(|path, _| !path.starts_with("sys/hypervisor") && !path.ends_with("sys_vendor"));
    tree.put("sys/devices/pci0000:00/0000:00:10.0/current_link_speed", "16.0 GT/s PCIe");
    tree.put("sys/devices/pci0000:00/0000:00:10.0/current_link_width", "16");
    let real = probe(&tree).hardware;
    assert_eq!(
        real.bytes_s(real.above(real.gpus()[0]).expect("a link").0, Rates::DataSheet),
        Some(31_500_000_000)
    );
}

#[test]
fn ends_of_a_link_that_differ_are_the_smaller_number_and_a_note() {
    let mut tree = machines::tree("dgx-1");
    let script = tree.text(machines::ANSWERS).expect("answers").to_owned();
    // GPU 0 has its first two links to GPU 1; one of them is down at that end alone.
    tree.put(
        machines::ANSWERS,
        script.replace("nvmlDeviceGetNvLinkState 0 0 = 1", "nvmlDeviceGetNvLinkState 0 0 = 0"),
    );
    let probed = probe(&tree);
    let gpus = probed.hardware.gpus();
    assert_eq!(
        joined(&probed.hardware, gpus[0], gpus[1]),
        [LinkKind::NvLink { generation: Some(2), count: 1 }]
    );
    let notes = notes(&probed);
    assert!(
        notes.iter().any(|note| note.contains("has 1 links to 0000:07:00.0, which has 2 to it")),
        "{notes:?}"
    );
}

#[test]
fn links_that_lead_nowhere_by_design_are_no_warning() {
    // Boards on PCIe have the links of their model, and no bridge: all of them are down on each.
    let mut tree = machines::tree("troubled");
    let script = tree.text(machines::ANSWERS).expect("answers").to_owned();
    let lines = script.lines().filter(|line| !line.contains("NvLinkState") && !line.contains("NvLinkRemote"));
    let lines: Vec<&str> = lines.chain(["nvmlDeviceGetNvLinkState * * = !2"]).collect();
    let down: Vec<String> = (0..4)
        .flat_map(|gpu| (0..12).map(move |link| format!("nvmlDeviceGetNvLinkState {gpu} {link} = 0")))
        .collect();
    tree.put(machines::ANSWERS, format!("{}\n{}", lines.join("\n"), down.join("\n")));
    let hardware = probe(&tree).hardware;
    assert_eq!(hardware.node(hardware.gpus()[0]).extra["probe.nvlinks_down"], "12");
    let warnings = hardware.warnings();
    assert!(!warnings.iter().any(|warning| warning.contains("are down")), "{warnings:#?}");
    // Links to NVSwitches are all there, on one GPU as well.
    let mut tree = machines::tree("container");
    let script = tree.text(machines::ANSWERS).expect("answers").to_owned();
    let script = script.replace("nvmlDeviceGetNvLinkState 0 17 = 1", "nvmlDeviceGetNvLinkState 0 17 = 0");
    tree.put(machines::ANSWERS, script);
    let warnings = probe(&tree).hardware.warnings();
    assert!(warnings.iter().any(|warning| warning == "1 NVLink of GPU 0 is down"), "{warnings:#?}");
}

#[test]
fn links_behind_one_that_a_board_lacks_are_found() {
    let mut tree = machines::tree("dgx-1");
    let script = tree.text(machines::ANSWERS).expect("answers").to_owned();
    let whole = probe(&tree).hardware;
    let state = |gpu: u32, link: u32| format!("nvmlDeviceGetNvLinkState {gpu} {link} = 1");
    let mut lacking = script.clone();
    for gpu in 0..8 {
        lacking = lacking.replace(&state(gpu, 0), &format!("nvmlDeviceGetNvLinkState {gpu} 0 = !3"));
    }
    assert_ne!(lacking, script);
    tree.put(machines::ANSWERS, lacking);
    let fewer = probe(&tree).hardware;
    let count = |hardware: &consort_algorithms::hardware::Hardware| {
        hardware.links().iter().filter(|link| matches!(link.kind, LinkKind::NvLink { .. })).count()
    };
    assert!(count(&fewer) + 4 >= count(&whole) && count(&fewer) > 0, "{fewer}");
    assert!(fewer.gpus().iter().all(|id| fewer.gpu(*id).is_some_and(|gpu| gpu.links_known)));
}

#[test]
fn a_guest_on_arm_says_what_it_is_by_its_product() {
    let mut tree = machines::tree("gb200-nvl72");
    let is_virtual = |tree: &machines::Tree| match &probe(tree)
        .hardware
        .node(consort_algorithms::hardware::NodeId(0))
        .kind
    {
        NodeKind::Host(host) => host.is_virtual,
        _ => panic!("the first node is the host"),
    };
    assert_eq!(is_virtual(&tree), Some(false));
    tree.put("sys/class/dmi/id/sys_vendor", "Microsoft Corporation");
    tree.put("sys/class/dmi/id/product_name", "Surface Laptop");
    assert_eq!(is_virtual(&tree), Some(false));
    tree.put("sys/class/dmi/id/product_name", "Virtual Machine");
    assert_eq!(is_virtual(&tree), Some(true));
}

#[test]
fn a_whole_machine_of_a_cloud_is_not_virtual() {
    let is_virtual = |product: &str| {
        let mut tree = consort_testing::machines::tree("dgx-h100");
        tree.put("sys/class/dmi/id/sys_vendor", "Amazon EC2");
        tree.put("sys/class/dmi/id/product_name", product);
        match &crate::support::probe(&tree).hardware.node(consort_algorithms::hardware::NodeId(0)).kind {
            NodeKind::Host(host) => host.is_virtual,
            _ => panic!("the first node is the host"),
        }
    };
    assert_eq!([is_virtual("c5.metal"), is_virtual("m7i.metal-24xl")], [Some(false); 2]);
    assert_eq!([is_virtual("p5.48xlarge"), is_virtual("metal")], [Some(true); 2]);
}
