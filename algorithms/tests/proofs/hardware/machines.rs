//! Files of known machines: counts, wires, round trips, graphs of ranks, networks between them.

use super::{boxes, machine, noted, refused, survives_text, survives_xml, wires};
use consort_algorithms::hardware::{
    Hardware, LinkKind, Network, NodeId, NodeKind, PathKind, Paths, PortState, Rates, Wires, exchange,
};

type Known = (&'static str, String, [usize; 4], &'static str);

/// Name, file, counts of GPUs, NICs, NUMA domains and NVSwitches, and wires.
fn known() -> [Known; 7] {
    [
        (
            "dgx-1",
            boxes::dgx_1(),
            [8, 4, 2, 0],
            "8 x nvlink 25, 8 x nvlink 50, 16 x pcie 15.75, 1 x socket 19.2",
        ),
        ("dgx-a100", boxes::dgx_a100(), [8, 4, 4, 6], "48 x nvlink 50, 16 x pcie 31.5, 6 x socket 32"),
        (
            "dgx-h100",
            boxes::dgx_h100(),
            [8, 8, 2, 4],
            "16 x nvlink 100, 16 x nvlink 125, 24 x pcie 63, 1 x socket 32",
        ),
        ("hgx-b200", boxes::hgx_b200(), [8, 0, 2, 1], "8 x nvlink 900, 12 x pcie 63, 1 x socket 32"),
        ("mi300x", boxes::mi300x(), [8, 8, 2, 0], "24 x pcie 63, 1 x socket 32, 28 x xgmi 64"),
        (
            "mi250x",
            boxes::mi250x(),
            [16, 8, 4, 0],
            "32 x pcie 31.5, 6 x socket 32, 4 x xgmi 100, 8 x xgmi 200, 16 x xgmi 50",
        ),
        ("pcie", boxes::pcie(), [8, 1, 2, 0], "12 x pcie 31.5, 1 x socket 32"),
    ]
}

#[test]
fn known_machines_have_their_devices_and_wires_and_come_back() {
    for (name, xml, counts, expected) in known() {
        let (mut hardware, notes) = noted(&xml);
        hardware.name = name.into();
        let summary = hardware.summary(Rates::DataSheet);
        assert_eq!([summary.gpus, summary.nics, summary.numa, summary.nvswitches], counts, "{name}");
        assert_eq!(wires(&hardware, Rates::DataSheet), expected, "{name}");
        assert_eq!(notes, [], "{name}");
        survives_text(&hardware);
        survives_xml(&hardware);
    }
}

#[test]
fn nccls_rates_are_another_set() {
    let hardware = machine(&boxes::dgx_h100());
    let nccl = "16 x nvlink 103, 16 x nvlink 82.4, 24 x pcie 48, 1 x socket 22";
    assert_eq!(wires(&hardware, Rates::Nccl), nccl);
    let hardware = machine(&boxes::mi300x());
    assert_eq!(wires(&hardware, Rates::Nccl), "24 x pcie 48, 1 x socket 16, 28 x xgmi 48");
}

#[test]
fn the_graph_of_ranks_has_what_the_score_table_has() {
    // Bytes that enter each GPU over the links between GPUs, in GB/s: rows 1, 6, 10, 15 and 19 of the score table.
    for (xml, least, nodes) in [
        (boxes::dgx_1(), 150, 8),
        (boxes::dgx_a100(), 300, 9),
        (boxes::dgx_h100(), 450, 9),
        (boxes::mi300x(), 448, 8),
        (boxes::mi250x(), 350, 16),
    ] {
        let hardware = machine(&xml);
        let graph = hardware.rank_graph(&hardware.gpus(), Rates::DataSheet, Wires::Fastest).expect("a graph");
        let topology = &graph.topology;
        assert_eq!(topology.nodes().len(), nodes);
        let entering = |rank: u32| -> u64 {
            let links = topology.links().iter().filter(|link| link.to.0 == rank);
            links.map(|link| link.bandwidth_bytes_s).sum()
        };
        assert_eq!((0..topology.ranks()).map(entering).min(), Some(least * 1_000_000_000));
        let again = hardware.rank_graph(&hardware.gpus(), Rates::DataSheet, Wires::Fastest).expect("a graph");
        assert_eq!(again, graph, "the same arguments give the same graph");
    }
}

#[test]
fn boxes_are_joined_by_rails_or_one_switch() {
    let box_ = machine(&boxes::dgx_h100());
    let cluster = Hardware::compose(&[&box_, &box_], Network::Rail).expect("a cluster");
    cluster.check().expect("it makes sense");
    assert_eq!((cluster.hosts().len(), cluster.gpus().len(), cluster.network_ends().len()), (2, 16, 16));
    survives_text(&cluster);
    let graph =
        cluster.rank_graph(&cluster.gpus(), Rates::DataSheet, Wires::Fastest).expect("a graph").topology;
    assert_eq!(graph.boxes().len(), 2);
    // 16 ranks; per box an NVSwitch, 8 PCIe switches, adapters and ports; 8 rails and a spine.
    assert_eq!(graph.nodes().len(), 16 + 2 * (1 + 3 * 8) + 8 + 1);
    let (first, other) = (cluster.find("h0.gpu3").expect("it"), cluster.find("h1.gpu3").expect("it"));
    let paths = Paths::new(&cluster, Rates::DataSheet);
    let path = paths.between(first, other);
    assert_eq!((path.kind, path.bytes_s), (PathKind::Net, Some(50_000_000_000)));
    assert_eq!(path.links.len(), 8, "switch, adapter, port, rail, and back");
    let flat = Hardware::compose(&[&box_, &machine(&boxes::mi300x())], Network::Flat).expect("a cluster");
    flat.check().expect("boxes may differ");
    assert_eq!((flat.gpus().len(), flat.find("network").is_some()), (16, true));
    let alone = machine(&boxes::hgx_b200());
    let refused = Hardware::compose(&[&box_, &alone], Network::Rail).expect_err("it has no NIC").to_string();
    assert!(refused.starts_with("box 1 has no port"), "{refused}");
}

#[test]
fn what_is_not_known_is_filled_in_from_a_named_machine() {
    // As a cloud writes it: devices, and nothing of NVLink.
    let silent = boxes::dgx_a100()
        .lines()
        .filter(|line| !line.contains("nvlink") && !line.contains("<gpu") && !line.contains("</gpu"))
        .collect::<Vec<_>>()
        .join("\n");
    let mut hardware = machine(&silent);
    let summary = hardware.summary(Rates::DataSheet);
    assert_eq!((summary.gpus, summary.nvswitches, summary.warnings.len()), (8, 0, 1));
    assert!(
        summary.warnings[0].contains("boards of their model (A100-SXM4-40GB) have NVLink"),
        "{summary:?}"
    );
    assert!(
        hardware.rank_graph(&hardware.gpus(), Rates::DataSheet, Wires::All).is_err(),
        "never priced as PCIe"
    );
    let mut pcie = hardware.clone();
    pcie.assume("pcie").expect("it is known");
    assert!(pcie.rank_graph(&pcie.gpus(), Rates::DataSheet, Wires::All).is_ok(), "as the user says");
    hardware.assume("dgx-a100").expect("it is known");
    hardware.check().expect("it makes sense");
    assert_eq!(wires(&hardware, Rates::DataSheet), wires(&machine(&boxes::dgx_a100()), Rates::DataSheet));
    survives_text(&hardware);
    assert!(
        hardware
            .assume("dgx-z")
            .expect_err("no such machine")
            .to_string()
            .contains("there are dgx-1, dgx-a100")
    );
    let known = machine(&boxes::dgx_h100());
    let mut same = known.clone();
    same.assume("dgx-1").expect("nothing is missing");
    assert_eq!(same, known, "what a source says is never changed");
}

#[test]
fn warnings_name_what_a_person_can_change() {
    let change = |from: &str, to: &str| {
        let xml = boxes::dgx_h100();
        assert!(xml.contains(from), "{from}");
        machine(&xml.replacen(from, to, 1)).warnings()
    };
    let gpu_3 = "<pci busid=\"0000:13:00.0\" class=\"0x030200\" vendor=\"0x10de\" device=\"0x2330\" link_speed=\"32.0 GT/s PCIe\" link_width=\"16\">";
    assert_eq!(
        change(gpu_3, &gpu_3.replace("link_width=\"16\"", "link_width=\"8\"")),
        ["GPU 3 is at PCIe x8, its siblings at x16"]
    );
    assert_eq!(
        change("target=\"0000:c0:00.0\" count=\"5\"", "target=\"0000:c0:00.0\" count=\"4\""),
        ["GPU 0 has 17 NVLinks, its siblings 18"]
    );
    let mut hardware = machine(&boxes::dgx_h100());
    let port = hardware.network_ends()[3];
    if let NodeKind::Port(port) = &mut hardware.node_mut(port).kind {
        port.state = PortState::Down;
    }
    assert_eq!(hardware.warnings(), ["mlx5_3 is down"]);
    assert_eq!(hardware.summary(Rates::DataSheet).nics, 7);
    // All GPUs on the first socket, an adapter on the second.
    let xml = boxes::pcie();
    let (front, back) = xml.split_once("  <cpu numaid=\"1\"").expect("two sockets");
    let back = back.lines().next().unwrap_or_default();
    let text = format!(
        "{front}  <cpu numaid=\"1\"{back}\n<pci busid=\"0000:f0:00.0\" class=\"0x020000\" link_speed=\"16 GT/s\" link_width=\"16\">\
         <nic><net name=\"ens1\" dev=\"1\" speed=\"100000\"/></nic></pci></cpu></system>"
    );
    let warnings = machine(&text).warnings();
    assert!(
        warnings.contains(&"NIC 1 is on the other socket from every GPU (ens1)".to_owned()),
        "{warnings:?}"
    );
    let fine = machine(&boxes::dgx_h100());
    assert_eq!(fine.warnings(), [""; 0], "nothing to say of a machine that is as it should be");
}

#[test]
fn the_summary_is_json() {
    let text = "<system version=\"1\"><cpu numaid=\"0\"><pci busid=\"0000:10:00.0\" class=\"0x030200\" link_speed=\"16 GT/s\" link_width=\"16\">\
                <gpu dev=\"0\" sm=\"80\" rank=\"0\" gdr=\"1\"><nvlink target=\"0000:11:00.0\" count=\"4\" tclass=\"0x030200\"/></gpu></pci>\
                <pci busid=\"0000:11:00.0\" class=\"0x030200\" link_speed=\"\" link_width=\"\"><gpu dev=\"1\" sm=\"80\" rank=\"1\" gdr=\"1\">\
                <nvlink target=\"0000:10:00.0\" count=\"4\" tclass=\"0x030200\"/></gpu></pci></cpu></system>";
    let mut hardware = machine(text);
    hardware.name = "two \"GPUs\"".into();
    assert_eq!(
        hardware.summary(Rates::DataSheet).json(),
        "{\n  \"name\": \"two \\\"GPUs\\\"\",\n  \"gpus\": 2,\n  \"nics\": 0,\n  \"numa\": 1,\n  \"nvswitches\": 0,\n  \
         \"links\": [\n    {\"from\": \"numa0\", \"to\": \"gpu0\", \"kind\": \"pcie\", \"gb_s\": 31.5},\n    \
         {\"from\": \"numa0\", \"to\": \"gpu1\", \"kind\": \"pcie\", \"gb_s\": null},\n    \
         {\"from\": \"gpu0\", \"to\": \"gpu1\", \"kind\": \"nvlink\", \"gb_s\": 100}\n  ],\n  \"warnings\": []\n}\n"
    );
}

#[test]
fn files_are_read_by_what_they_mean() {
    let text = "\u{feff}<!-- one\n comment -->\n<?xml version='1.0'?>\n<!-- two --><system version='1' name='my box'>\n\
        <cpu numaid='-1' host_hash='0xABC' colour='red'>\n\
        <pci><!-- nothing is known of it -->\n\
        <pci busid='00000000:1B:00.0' class='0x03' link_speed='2.5 GT/s' link_width='0'>\
        <gpu dev='1' sm='90' rank='1' gdr='1' mlopart='0'>\
        <nvlink target='FFFFFFF:FF:FF.0' count='10'/><nvlink target='fffffff:ffff:ff' count='8' tclass='0x068000'/>\
        <c2clink bw='44712' count='10'/></gpu></pci>\n\
        <pci busid='0000:1a:00.0' class='0x03' link_speed='quick' link_width='16'>\
        <gpu dev='0' sm='90' rank='0' gdr='1'><nvlink target='fffffff:ffff:ff' count='18'/></gpu></pci>\n\
        </pci>\n<nic><net name='eth0' dev='0' speed='-1' port='0' guid='0x0'/><net name='eth0' dev='1' speed='10000' port='0'/></nic>\
        <surprise><deep/></surprise></cpu></system>";
    let (hardware, notes) = noted(text);
    assert_eq!(hardware.name, "my-box");
    let summary = hardware.summary(Rates::DataSheet);
    assert_eq!([summary.gpus, summary.nics, summary.numa, summary.nvswitches], [2, 1, 1, 1]);
    let gpus = hardware.gpus();
    let buses: Vec<String> = gpus
        .iter()
        .map(|id| hardware.gpu(*id).and_then(|gpu| gpu.pci.bus).expect("an address").to_string())
        .collect();
    assert_eq!(buses, ["0000:1a:00.0", "0000:1b:00.0"], "by their numbers, whatever the order of the file");
    assert_eq!(wires(&hardware, Rates::DataSheet), "1 x c2c 447.12, 2 x nvlink 450, 3 x pcie ?");
    let numa = hardware.numas()[0];
    assert_eq!(hardware.node(numa).extra.get("colour").map(String::as_str), Some("red"), "kept");
    let texts: Vec<&str> = notes.iter().map(|note| note.text.as_str()).collect();
    assert_eq!(
        texts,
        [
            "the link speed \"quick\" is not understood, and not known therefore",
            "<surprise> has no meaning here and is ignored"
        ]
    );
    survives_text(&hardware);
    survives_xml(&hardware);
    // A GPU that the file does not have is no error: a dump has the devices of one job.
    let (small, notes) =
        noted(&boxes::dgx_1().replace("<pci busid=\"0000:17:00.0\"", "<pci busid=\"0000:f7:00.0\""));
    let links = small.links().iter().filter(|link| link.kind.joins_gpus()).count();
    assert_eq!(links, 16, "the GPU with the other address names its own");
    assert!(
        notes.iter().any(|note| note.text.contains("0000:17:00.0, which is not in the file")),
        "{notes:?}"
    );
}

#[test]
fn older_links_of_amd_are_read_by_both_names() {
    let xml = boxes::mi300x().replace("<xgmi ", "<xgmilink ");
    assert_eq!(machine(&xml), machine(&boxes::mi300x()));
    let count = |hardware: &Hardware| {
        hardware.links().iter().filter(|link| matches!(link.kind, LinkKind::Xgmi { .. })).count()
    };
    assert_eq!(count(&machine(&xml)), 28);
}

#[test]
fn several_hosts_of_one_file_stay_apart() {
    let one = boxes::dgx_1().replace("<cpu ", "<cpu host_hash=\"0x1\" ");
    let two = boxes::dgx_1().replace("<cpu ", "<cpu host_hash=\"0x2\" ").replace("rank=\"", "rank=\"1");
    let body = two.split_once('\n').expect("lines").1;
    let text = one.replace("</system>\n", body);
    let hardware = machine(&text);
    assert_eq!((hardware.hosts().len(), hardware.gpus().len()), (2, 16));
    assert!(hardware.find("h1.gpu7").is_some());
    survives_xml(&hardware);
    survives_text(&hardware);
    let apart = hardware.rank_graph(&hardware.gpus(), Rates::DataSheet, Wires::All).expect_err("no network");
    assert!(apart.reason.contains("no link of known bandwidth joins h0.gpu0 and h1.gpu0"), "{apart}");
    let first: Vec<NodeId> = hardware.gpus()[..8].to_vec();
    assert!(hardware.rank_graph(&first, Rates::DataSheet, Wires::All).is_ok());
    let mixed = refused(&text.replacen("host_hash=\"0x2\"", "host_hash=\"0x3\"", 1));
    assert!(mixed.reason.ends_with("which is on another host"), "{mixed}");
}

/// Whatever may be composed can be written, or is refused before a file is made that none reads.
#[test]
fn texts_of_large_machines_are_read_again_or_refused() {
    let box_ = machine(&boxes::dgx_h100());
    let mut seen = [0, 0];
    for boxes in [128, 1000, 3300] {
        let cluster = Hardware::compose(&vec![&box_; boxes], Network::Rail).expect("there is room");
        match exchange::hardware_text(&cluster) {
            Ok(text) => {
                seen[0] += 1;
                assert!(text.len() <= exchange::BYTES_MAX);
                let again = exchange::read_hardware(text.as_bytes()).map(|(again, _)| again);
                assert!(again.as_ref() == Ok(&cluster), "{boxes} boxes: {:?}", again.err());
            }
            Err(error) => {
                seen[1] += 1;
                let error = error.to_string();
                assert!(error.contains("and a reader takes 16777216; describe fewer hosts"), "{error}");
                assert!(exchange::read_hardware(cluster.to_string().as_bytes()).is_err());
            }
        }
    }
    assert!(seen.iter().all(|count| *count > 0), "read and refused: {seen:?}");
    let refused =
        Hardware::compose(&vec![&box_; 4096], Network::Rail).expect_err("too many nodes").to_string();
    assert!(refused.contains("are more than the 131072 that a machine may have"), "{refused}");
}
