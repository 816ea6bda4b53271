//! hwloc, nvidia-smi and NCCL's graphs.

use super::{machine, noted, refused, survives_text, survives_xml, wires};
use consort_algorithms::hardware::exchange::{
    Content, nccl_graph_xml, nccl_topology_xml, read, read_hardware,
};
use consort_algorithms::hardware::{LinkKind, NodeKind, PathKind, Paths, Rates, Wires};

/// Two sockets; on the first a switch with a V100 and an adapter, on the second an NVSwitch.
fn hwloc(version: &str) -> String {
    let osdev = |v2: u32, v3: u32| if version == "3.0" { v3 } else { v2 };
    let (gpu, fabrics, network) = (osdev(5, 12), osdev(3, 32), osdev(2, 16));
    format!(
        r#"<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE topology SYSTEM "hwloc2.dtd">
<topology version="{version}">
 <object type="Machine" os_index="0" cpuset="0x0000000f" nodeset="0x00000003" gp_index="1">
  <info name="DMIProductName" value="A box"/><info name="Architecture" value="x86_64"/>
  <object type="Package" os_index="0" cpuset="0x00000003" nodeset="0x00000001" gp_index="2">
   <info name="CPUVendor" value="GenuineIntel"/><info name="CPUFamilyNumber" value="6"/><info name="CPUModelNumber" value="85"/>
   <object type="NUMANode" os_index="0" cpuset="0x00000003" nodeset="0x00000001" gp_index="3" local_memory="1024"/>
   <object type="L3Cache" cpuset="0x00000003" gp_index="4" cache_size="4096" depth="3"><object type="L2Cache" cpuset="0x00000001" depth="2" gp_index="40"/></object>
   <object type="Bridge" gp_index="5" bridge_type="0-1" depth="0" bridge_pci="0000:[2b-3b]">
    <object type="Bridge" gp_index="6" bridge_type="1-1" pci_busid="0000:2b:00.0" pci_type="0604 [8086:2030] [8086:0000] 04 00" pci_link_speed="15.753846">
     <object type="Bridge" gp_index="7" bridge_type="1-1" pci_busid="0000:2c:00.0" pci_type="0604 [10b5:9781] [10b5:9781] b0 00" pci_link_speed="15.753846">
      <object type="Bridge" gp_index="8" bridge_type="1-1" pci_busid="0000:2d:04.0" pci_type="0604 [10b5:9781] [10b5:9781] b0 00" pci_link_speed="15.753846">
       <object type="PCIDev" gp_index="9" pci_busid="0000:34:00.0" pci_type="0302 [10de:1db8] [10de:131d] a1 00" pci_link_speed="15.753846">
        <object type="OSDev" gp_index="10" name="nvml1" osdev_type="{gpu}"><info name="NVIDIAUUID" value="GPU-1"/><info name="GPUModel" value="Tesla V100-SXM3"/></object>
       </object>
      </object>
      <object type="Bridge" gp_index="11" bridge_type="1-1" pci_busid="0000:2d:08.0" pci_type="0604 [10b5:9781] [10b5:9781] b0 00" pci_link_speed="0">
       <object type="PCIDev" gp_index="12" pci_busid="0000:35:00.0" pci_type="0207 [15b3:1017] [15b3:0006] 00 00" pci_link_speed="0">
        <object type="OSDev" gp_index="13" name="ib0" osdev_type="{network}"/>
        <object type="OSDev" gp_index="14" name="mlx5_0" osdev_type="{fabrics}"><info name="NodeGUID" value="0002:c903:0000:0001"/><info name="Port1State" value="4"/><info name="Port2State" value="1"/></object>
       </object>
       <object type="PCIDev" gp_index="22" pci_busid="0000:36:00.0" pci_type="0106 [8086:0001] [8086:0001] 00 00" pci_link_speed="0"/>
      </object>
     </object>
    </object>
   </object>
  </object>
  <object type="Package" os_index="1" cpuset="0x0000000c" nodeset="0x00000002" gp_index="15">
   <object type="NUMANode" os_index="1" cpuset="0x0000000c" nodeset="0x00000002" gp_index="16"/>
   <object type="L3Cache" cpuset="0x0000000c" gp_index="17" cache_size="4096" depth="3"/>
   <object type="Bridge" gp_index="18" bridge_type="0-1" bridge_pci="0000:[ae-c7]">
    <object type="PCIDev" gp_index="19" subtype="NVSwitch" pci_busid="0000:b7:00.0" pci_type="0680 [10de:1ac2] [0000:0000] a1 00" pci_link_speed="1.000000"/>
   </object>
  </object>
 </object>
 <distances2 type="NUMANode" nbobjs="2" kind="5" name="NUMALatency" indexing="os"><indexes length="4">0 1 </indexes><u64values length="12">10 21 21 10 </u64values></distances2>
 <distances2hetero nbobjs="2" kind="25" name="NVLinkBandwidth"><indexes length="18">OSDev:10 PCIDev:19 </indexes><u64values length="4">0 150000 </u64values><u64values length="4">150000 0 </u64values></distances2hetero>
</topology>
"#
    )
}

#[test]
fn hwloc_has_devices_caches_and_matrices() {
    for version in ["2.0", "3.0"] {
        let (hardware, notes) = noted(&hwloc(version));
        let summary = hardware.summary(Rates::DataSheet);
        assert_eq!([summary.gpus, summary.nics, summary.numa, summary.nvswitches], [1, 1, 2, 1], "{version}");
        assert_eq!(summary.warnings, ["mlx5_0 is down"], "its second port");
        let expected = "1 x nvlink 150, 1 x pcie 1, 2 x pcie 15.753846, 1 x pcie ?, 1 x socket 20.8";
        assert_eq!(wires(&hardware, Rates::DataSheet), expected, "{version}");
        let gpu = hardware.gpu(hardware.find("gpu1").expect("by its number")).expect("a GPU");
        assert_eq!((gpu.sm, gpu.uuid.as_deref(), gpu.links_known), (Some(70), Some("GPU-1"), true));
        let has = |kind: LinkKind| hardware.links().iter().any(|link| link.kind == kind);
        assert!(has(LinkKind::Socket { distance: Some(21) }));
        assert!(has(LinkKind::NvLink { generation: Some(2), count: 6 }), "six of 25 GB/s");
        let caches = hardware.nodes().iter().filter(|node| matches!(node.kind, NodeKind::Cores(_))).count();
        assert_eq!((caches, notes.len()), (2, 0));
        // Ports of switches are no switches of their own.
        let paths = Paths::new(&hardware, Rates::DataSheet);
        let path = paths.between(hardware.gpus()[0], hardware.network_ends()[0]);
        assert_eq!((path.kind, path.bytes_s), (PathKind::Pix, None));
        survives_text(&hardware);
    }
}

#[test]
fn ranks_on_cpus_share_caches_and_the_link_between_sockets() {
    let hardware = machine(&hwloc("3.0"));
    let host = hardware.hosts()[0];
    let cpus = [0, 1, 2, 3].map(|cpu| (host, cpu));
    let graph = hardware.cpu_graph(&cpus, Rates::DataSheet).expect("a graph");
    // Two caches, two domains.
    assert_eq!((graph.ranks(), graph.nodes().len(), graph.links().len()), (4, 8, 2 * (4 + 2 + 1)));
    let socket = graph.links().last().expect("links");
    assert_eq!(socket.bandwidth_bytes_s, 20_800_000_000);
    let mut routes = consort_algorithms::topology::Routes::new(&graph);
    let ranks = [1, 2].map(consort_algorithms::topology::NodeId);
    let lengths: Vec<usize> = routes
        .from(consort_algorithms::topology::NodeId(0), &ranks)
        .into_iter()
        .map(|route| route.expect("a route").len())
        .collect();
    assert_eq!(lengths, [2, 5], "by the cache, and by both domains");
    let missing = hardware.cpu_graph(&[(host, 9)], Rates::DataSheet).expect_err("there are four");
    assert!(missing.reason.ends_with("has CPU 9"), "{missing}");
}

#[test]
fn hwlocs_first_version_is_read() {
    let text = r#"<?xml version="1.0"?>
<!DOCTYPE topology SYSTEM "hwloc.dtd">
<topology>
 <object type="Machine" os_index="0" cpuset="0x0000000f" nodeset="0x00000003">
  <info name="Architecture" value="x86_64"/>
  <distances nbobjs="2" relative_depth="1" latency_base="10.000000"><latency value="1.0"/><latency value="3.2"/><latency value="3.2"/><latency value="1.0"/></distances>
  <object type="NUMANode" os_index="0" cpuset="0x00000003" nodeset="0x00000001" local_memory="1024">
   <object type="Socket" os_index="0" cpuset="0x00000003" nodeset="0x00000001"><info name="CPUVendor" value="AuthenticAMD"/><info name="CPUFamilyNumber" value="23"/>
    <object type="Cache" cpuset="0x00000003" cache_size="4096" depth="3" cache_type="0"/>
   </object>
   <object type="Bridge" os_index="0" bridge_type="0-1" bridge_pci="0000:[00-03]">
    <object type="PCIDev" pci_busid="0000:01:00.0" pci_type="0200 [8086:1528] [8086:0000] 01" pci_link_speed="4.0"><object type="OSDev" name="eth0" osdev_type="2"/></object>
   </object>
  </object>
  <object type="NUMANode" os_index="1" cpuset="0x0000000c" nodeset="0x00000002"/>
 </object>
</topology>"#;
    let hardware = machine(text);
    let summary = hardware.summary(Rates::DataSheet);
    assert_eq!([summary.gpus, summary.nics, summary.numa], [0, 1, 2]);
    assert_eq!(wires(&hardware, Rates::DataSheet), "1 x pcie 4, 1 x socket 32");
    assert!(hardware.links().iter().any(|link| link.kind == LinkKind::Socket { distance: Some(32) }));
    survives_text(&hardware);
}

#[test]
fn hwlocs_matrices_that_say_two_things_are_refused() {
    let text = hwloc("3.0");
    let skew = refused(&text.replace("150000 0 <", "125000 0 <"));
    assert!(
        skew.reason.starts_with("from OSDev:10 to PCIDev:19 the matrix has 150000, and back 125000"),
        "{skew}"
    );
    let short = refused(&text.replace("150000 0 <", "150000 <"));
    assert!(short.reason.starts_with("a matrix of 2 objects has no square of numbers"), "{short}");
    let empty = refused("<topology version=\"2.0\"/>");
    assert_eq!(empty.reason, "there is no <object>");
    let bus = refused(&text.replace("pci_busid=\"0000:34:00.0\"", "pci_busid=\"34\""));
    assert!(bus.reason.contains("is no PCI address") && bus.line == Some(14), "{bus}");
}

const CUBE: &str =
    "\t\u{1b}[4mGPU0\tGPU1\tGPU2\tGPU3\tNIC0\tNIC1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\u{1b}[0m
GPU0\t X \tNV1\tPHB\tSYS\tPIX\tSYS\t0-19,40-59\t0\t\tN/A
GPU1\tNV1\t X \tPHB\tNV2\tPIX\tSYS\t0-19,40-59\t0\t\tN/A
GPU2\tPHB\tPHB\t X \tSYS\tPHB\tSYS\t0-19,40-59\t0\t\tN/A
GPU3\tSYS\tNV2\tSYS\t X \tSYS\tPXB\t20-39,60-79\t1\t\tN/A
NIC0\tPIX\tPIX\tPHB\tSYS\t X \tSYS\t\t\t
NIC1\tSYS\tSYS\tSYS\tPXB\tSYS\t X \t\t\t

Legend:

  X    = Self
  PIX  = Connection traversing at most a single PCIe bridge

NIC Legend:

  NIC0: mlx5_0
  NIC1: mlx5_1
";

#[test]
fn the_matrix_of_nvidia_smi_is_a_tree() {
    let hardware = machine(CUBE);
    let summary = hardware.summary(Rates::DataSheet);
    assert_eq!([summary.gpus, summary.nics, summary.numa, summary.nvswitches], [4, 2, 2, 0]);
    let paths = Paths::new(&hardware, Rates::DataSheet);
    let gpus = hardware.gpus();
    let ends = hardware.network_ends();
    let kinds =
        |from, to: &[_]| paths.from(from, to).iter().map(|path| path.kind.to_string()).collect::<Vec<_>>();
    assert_eq!(kinds(gpus[0], &gpus), ["LOC", "NVL", "PHB", "NVB"]);
    assert_eq!(kinds(gpus[2], &gpus), ["PHB", "PHB", "LOC", "SYS"]);
    assert_eq!(kinds(gpus[2], &ends), ["PHB", "SYS"]);
    assert_eq!(kinds(gpus[3], &ends)[1], "PXB", "several switches");
    assert_eq!(wires(&hardware, Rates::DataSheet), "2 x nvlink ?, 10 x pcie ?, 1 x socket ?");
    survives_text(&hardware);
    let NodeKind::Port(port) = &hardware.node(ends[1]).kind else { panic!("a port") };
    assert_eq!(port.device.as_deref(), Some("mlx5_1"));
}

fn switched(gpus: usize) -> String {
    let names: Vec<String> = (0..gpus).map(|gpu| format!("GPU{gpu}")).collect();
    let mut text = format!("\t{}\tCPU Affinity\tNUMA Affinity\n", names.join("\t"));
    for row in 0..gpus {
        let cells: Vec<&str> = (0..gpus).map(|column| if row == column { " X " } else { "NV18" }).collect();
        text += &format!("GPU{row}\t{}\t0-51\t{}\n", cells.join("\t"), row * 2 / gpus);
    }
    text
}

#[test]
fn more_nvlinks_than_a_gpu_has_are_switched() {
    let mut hardware = machine(&switched(8));
    assert_eq!(hardware.summary(Rates::DataSheet).nvswitches, 1);
    let refused =
        hardware.rank_graph(&hardware.gpus(), Rates::DataSheet, Wires::Fastest).expect_err("which NVLink?");
    assert!(refused.reason.contains("not known is"), "{refused}");
    hardware.assume("dgx-h100").expect("it is known");
    let graph =
        hardware.rank_graph(&hardware.gpus(), Rates::DataSheet, Wires::Fastest).expect("a graph").topology;
    assert_eq!((graph.nodes().len(), graph.links()[0].bandwidth_bytes_s), (9, 450_000_000_000));
    // Two GPUs with 18 links may as well be joined by a bridge.
    assert_eq!(machine(&switched(2)).summary(Rates::DataSheet).nvswitches, 0);
}

#[test]
fn matrices_that_no_machine_has_are_refused() {
    let fault = |from: &str, to: &str| {
        assert!(CUBE.contains(from), "{from:?}");
        refused(&CUBE.replacen(from, to, 1)).to_string()
    };
    let start = "of the output of nvidia-smi topo -m: ";
    assert!(
        fault("GPU0\t X \tNV1", "GPU0\t X \tNV2")
            .starts_with(&format!("line 3 {start}GPU0 and GPU1 say different"))
    );
    assert!(
        fault("NV1\tPHB\tSYS\tPIX", "NV1\tPHBSYS\tPIX").contains("\"PHBSYS\" is no path"),
        "columns that ran together"
    );
    assert!(
        fault("NIC1\tSYS\tSYS\tSYS\tPXB\tSYS\t X \t\t\t\n", "").contains("6 columns of devices and 5 rows")
    );
    assert!(fault("GPU2\tPHB", "GPU9\tPHB").contains("the row of GPU9 is not in the place of its column"));
    let far = CUBE.replace("GPU2\tPHB\tPHB\t X \tSYS\tPHB", "GPU2\tPHB\tPHB\t X \tSYS\tSYS");
    let far = refused(&far.replace("NIC0\tPIX\tPIX\tPHB", "NIC0\tPIX\tPIX\tSYS"));
    assert!(far.reason.starts_with("GPU2 and NIC0 are farther from each other"), "{far}");
    assert!(
        fault("0-19,40-59\t0\t\tN/A\nGPU1", "0-19,40-59\t1\t\tN/A\nGPU1")
            .contains("are farther from each other")
    );
}

#[test]
fn graphs_come_back() {
    let text = "<!-- found -->\n<graphs version=\"1\">\n  <graph id=\"0\" pattern=\"4\" crossnic=\"2\" nchannels=\"2\" speedintra=\"20.6\" \
                speedinter=\"40\" latencyinter=\"1.5\" typeintra=\"XGMI\" typeinter=\"PXN\" samechannels=\"0\">\n    <channel>\n      \
                <net dev=\"0x0\"/>\n      <gpu dev=\"0x0\" rank=\"0\"/>\n      <gpu dev=\"0x1\" rank=\"1\"/>\n      <net dev=\"0x10\"/>\n    </channel>\n    \
                <channel>\n      <gpu dev=\"0x1\"/>\n      <gpu dev=\"0x0\"/>\n    </channel>\n  </graph>\n  \
                <graph id=\"3\" pattern=\"5\" crossnic=\"0\" nchannels=\"0\" speedintra=\"0\" speedinter=\"0\" typeintra=\"NVL\" typeinter=\"SYS\" samechannels=\"1\"/>\n</graphs>\n";
    let graphs = |text: &str| match read(text.as_bytes()).expect("it is right").content {
        Content::Graphs(graphs) => graphs,
        _ => panic!("it is a graph file"),
    };
    let first = graphs(text);
    let ring = &first.graphs[0];
    assert_eq!(
        (ring.intra_bytes_s, ring.inter_bytes_s, ring.inter_latency_ns),
        (20_600_000_000, 40_000_000_000, 1500)
    );
    assert_eq!(
        (ring.intra, ring.inter, ring.channels[0].nets.clone()),
        (PathKind::Nvl, PathKind::Pxn, vec![0, 16])
    );
    assert_eq!(ring.channels[1].gpus.iter().map(|gpu| gpu.index).collect::<Vec<_>>(), [1, 0]);
    let written = nccl_graph_xml(&first);
    assert_eq!(graphs(&written), first, "{written}");
    assert!(written.contains("speedintra=\"20.6\"") && written.contains("typeintra=\"NVL\""), "{written}");
}

#[test]
fn the_text_of_a_graph_of_ranks_is_known_too() {
    let topology = consort_algorithms::topology::dgx_h100(2);
    let Content::RankGraph(read) = read(topology.to_string().as_bytes()).expect("it is right").content else {
        panic!("it is a graph of ranks")
    };
    assert_eq!(read, topology);
}

/// Links between switches are those of bridges: nothing else keeps them, whether they are elements or attributes.
#[test]
fn a_pcilink_outside_of_a_bridge_is_ignored_aloud() {
    let cpu = |attribute: &str, inside: &str| {
        format!("<system version=\"1\">\n<cpu numaid=\"0\"{attribute}>\n{inside}</cpu>\n</system>\n")
    };
    let plain = machine(&cpu("", ""));
    for text in [cpu("", "<pcilink target=\"0000:04:00.0\"/>\n"), cpu(" pcilink=\"0000:04:00.0\"", "")] {
        let (hardware, notes) = read_hardware(text.as_bytes()).expect("a machine");
        assert_eq!(hardware, plain, "{text}");
        assert!(notes.iter().any(|note| note.text.contains("pcilink")), "{notes:?}");
        survives_xml(&hardware);
    }
    let bridge =
        "<pci busid=\"0000:01:00.0\" class=\"0x060400\">\n<pcilink target=\"0000:04:00.0\"/>\n</pci>\n";
    let hardware = machine(&cpu("", bridge));
    assert!(
        nccl_topology_xml(&hardware)
            .expect("it can be written")
            .contains("<pcilink target=\"0000:04:00.0\"/>")
    );
    survives_xml(&hardware);
}
