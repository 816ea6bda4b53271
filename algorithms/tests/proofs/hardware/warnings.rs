//! What a person should look at, sentence by sentence, and what is counted in the summary.

use consort_algorithms::hardware::{Hardware, Network, NodeKind, PortState, Rates};

use super::{boxes, machine};

/// Two GPUs and three adapters on two sockets, all as it should be, in the text form.
const FINE: &str = "hardware fine\nhost h\n\
    numa n0 on=h number=0 cpus=0-7 memory_bytes=68719476736\nnuma n1 on=h number=1 cpus=8-15 memory_bytes=68719476736\n\
    bridge b on=h bus=0000:3b:00.0 acs=no\n\
    gpu g0 on=h bus=0000:3c:00.0 index=0 sm=80 described=yes links_known=yes\n\
    gpu g1 on=h bus=0000:3d:00.0 index=1 sm=80 described=yes links_known=yes\n\
    nic c0 on=h bus=0000:3e:00.0\nport p0 on=h device=mlx5_0 number=1 speed_mbit_s=200000 state=up\n\
    link h n0 local\nlink h n1 local\nlink n0 b pcie generation=4 width=16 best_generation=4 best_width=16\n\
    link b g0 pcie generation=4 width=16 best_generation=4 best_width=16\n\
    link b g1 pcie generation=4 width=16 best_generation=4 best_width=16\n\
    link b c0 pcie generation=4 width=16 best_generation=4 best_width=16\nlink c0 p0 local\n\
    link g0 g1 nvlink generation=3 count=4\nlink n0 n1 socket distance=21\n";

/// The warnings of the machine with a piece of its text replaced.
fn changed(from: &str, to: &str) -> Vec<String> {
    assert!(FINE.contains(from), "{from}");
    machine(&FINE.replacen(from, to, 1)).warnings()
}

fn with(lines: &str) -> Vec<String> {
    machine(&format!("{FINE}{lines}")).warnings()
}

#[test]
fn a_machine_as_it_should_be_has_no_warning() {
    assert_eq!(machine(FINE).warnings(), [""; 0]);
}

#[test]
fn narrow_and_slow_links_are_named_with_what_they_could_be() {
    let gpu = "link b g1 pcie generation=4 width=16";
    assert_eq!(
        changed(gpu, "link b g1 pcie generation=4 width=8"),
        ["GPU 1 is at PCIe x8, its siblings at x16"]
    );
    assert_eq!(
        changed(gpu, "link b g1 pcie generation=3 width=16"),
        ["GPU 1 is at PCIe generation 3, its siblings at 4"]
    );
    let both = FINE.replace("generation=4 width=16 best", "generation=1 width=16 best");
    let warnings = machine(&both).warnings();
    assert!(
        warnings.contains(
            &"GPU 0 runs at PCIe 1 x16, and could at PCIe 4 x16 (look again while it works: idle GPUs slow their links)"
                .to_owned()
        ),
        "{warnings:?}"
    );
    assert!(
        warnings.contains(&"the switch 0000:3b:00.0 runs at PCIe 1 x16, and could at PCIe 4 x16".to_owned()),
        "{warnings:?}"
    );
    assert_eq!(
        changed(
            "link n0 b pcie generation=4 width=16 best_generation=4",
            "link n0 b pcie generation=3 width=16"
        ),
        ["the switch 0000:3b:00.0 is linked up at 15.75 GB/s, and a device below it at 31.5"]
    );
    assert_eq!(
        changed("link b c0 pcie generation=4 width=16", "link b c0 pcie generation=4 width=4"),
        [
            "NIC 0 runs at PCIe 4 x4, and could at PCIe 4 x16",
            "NIC 0 has a port of 200 Gb/s in a slot of PCIe 4 x4, which carries 63"
        ]
    );
}

#[test]
fn ports_that_are_down_or_far_are_named() {
    assert_eq!(changed("state=up", "state=down")[0], "mlx5_0 is down");
    let far = "nic c1 on=h bus=0000:b0:00.0\nport p1 on=h device=mlx5_1 speed_mbit_s=200000\n\
               link n1 c1 pcie generation=4 width=16\nlink c1 p1 local\n";
    assert_eq!(with(far), ["NIC 1 is on the other socket from every GPU (mlx5_1)"]);
    // Domains of one package are near.
    let near = FINE.replace("distance=21", "distance=12") + far;
    assert_eq!(machine(&near).warnings(), [""; 0]);
    // What is no hardware is no device to plug in.
    let bridge =
        "nic d on=h\nport d0 on=h device=docker0 state=down virtual=yes\nlink n1 d local\nlink d d0 local\n";
    assert_eq!(with(bridge), [""; 0]);
    let management = "port eno1 on=h device=eno1 speed_mbit_s=1000 state=up\nlink c0 eno1 local\n";
    let alone = machine(&FINE.replace("speed_mbit_s=200000", "speed_mbit_s=1000")).warnings();
    assert_eq!(with(management), [""; 0]);
    assert_eq!(
        alone,
        ["no port can be used for data between hosts: the only one is virtual, down, wireless, or of 1 Gb/s"]
    );
}

#[test]
fn access_control_memory_and_missing_links_are_named() {
    assert_eq!(changed("acs=no", "acs=yes"), ["ACS on 0000:3b:00.0 forces peer traffic through the root"]);
    assert_eq!(
        changed("cpus=8-15 memory_bytes=68719476736", "cpus=8-15 memory_bytes=0"),
        ["NUMA domain 1 has CPUs and no memory: look at its memory modules"]
    );
    assert_eq!(
        changed("cpus=8-15 memory_bytes=68719476736", "memory_bytes=0"),
        [""; 0],
        "memory of a device"
    );
    let third = "gpu g2 on=h bus=0000:3f:00.0 index=2 sm=80 described=yes links_known=yes\nlink n0 g2 pcie generation=4 width=16\n\
                 link g0 g2 nvlink generation=3 count=3\n";
    assert_eq!(with(third), ["GPU 1 has 4 NVLinks, its siblings 7", "GPU 2 has 3 NVLinks, its siblings 7"]);
}

#[test]
fn warnings_of_equal_hosts_are_one() {
    let mut narrow = machine(&FINE.replacen(
        "link b g1 pcie generation=4 width=16",
        "link b g1 pcie generation=4 width=8",
        1,
    ));
    let fine = machine(FINE);
    let composed =
        |boxes: &[&Hardware]| Hardware::compose(boxes, Network::Rail).expect("a cluster").warnings();
    let rest = " is at PCIe x8, its siblings at x16";
    assert_eq!(composed(&[&narrow, &narrow, &narrow]), [format!("GPU 1 of every host{rest}")]);
    assert_eq!(composed(&[&fine, &narrow, &fine]), [format!("GPU 1 of h1.h{rest}")]);
    assert_eq!(composed(&[&fine, &narrow, &narrow]), [format!("GPU 1 of h1.h and of h2.h{rest}")]);
    assert_eq!(
        composed(&[&fine, &narrow, &narrow, &narrow]),
        [format!("GPU 1 of h1.h and of 2 more hosts{rest}")]
    );
    let port = narrow.network_ends()[0];
    if let NodeKind::Port(port) = &mut narrow.node_mut(port).kind {
        port.state = PortState::Down;
    }
    let located = narrow.located_warnings();
    let names = |nodes: &[_]| nodes.iter().map(|id| narrow.node(*id).name.clone()).collect::<Vec<_>>();
    assert_eq!(names(&located[0].nodes), ["g1"]);
    assert_eq!(names(&located[1].nodes), ["p0"]);
}

#[test]
fn there_is_an_end_to_warnings() {
    let mut text = "hardware many\nhost h\nnuma n on=h number=0\n".to_owned();
    for gpu in 0..300 {
        text += &format!("gpu g{gpu} on=h index={gpu} described=yes links_known=yes\n");
    }
    text += "link h n local\n";
    for gpu in 0..300 {
        text += &format!("link n g{gpu} pcie generation=4 width={}\n", if gpu == 0 { 16 } else { 8 });
    }
    let warnings = machine(&text).warnings();
    assert_eq!(warnings.len(), 101);
    assert_eq!(warnings[100], "there are 200 more warnings like these");
}

/// GPUs, NICs, NUMA domains and NVSwitches.
fn counts(text: &str) -> [usize; 4] {
    let summary = machine(text).summary(Rates::DataSheet);
    [summary.gpus, summary.nics, summary.numa, summary.nvswitches]
}

#[test]
fn gpus_are_elements_or_else_devices_of_their_class() {
    let device = |bus: &str, class: &str, inside: &str| {
        format!(
            "<pci busid=\"0000:{bus}:00.0\" class=\"{class}\" vendor=\"0x10de\" link_speed=\"16 GT/s\" link_width=\"16\">{inside}</pci>"
        )
    };
    let file = |inside: &str| format!("<system version=\"1\"><cpu numaid=\"0\">{inside}</cpu></system>");
    let gpu = "<gpu dev=\"0\" sm=\"80\" rank=\"0\" gdr=\"1\"/>";
    let two = device("10", "0x030200", "") + &device("11", "0x030200", "");
    assert_eq!(counts(&file(&two)), [2, 0, 1, 0]);
    let screen = two.clone() + &device("12", "0x030000", "");
    assert_eq!(counts(&file(&screen)), [2, 0, 1, 0], "an adapter of a screen is none");
    let one = device("10", "0x030200", gpu) + &device("11", "0x030200", "");
    assert_eq!(counts(&file(&one)), [1, 0, 1, 0], "where there are elements they are what counts");
    let odd = device("10", "0x030000", gpu);
    assert_eq!(counts(&file(&odd)), [1, 0, 1, 0], "an element counts whatever its class");
}

#[test]
fn nics_are_distinct_ports_or_else_devices_of_their_class() {
    let nic = |bus: &str, class: &str, inside: &str| {
        format!(
            "<pci busid=\"0000:{bus}:00.0\" class=\"{class}\" link_speed=\"16 GT/s\" link_width=\"16\">{inside}</pci>"
        )
    };
    let net = |name: &str, speed: &str, port: &str| {
        format!("<net name=\"{name}\" dev=\"0\" speed=\"{speed}\" port=\"{port}\" guid=\"0x1\"/>")
    };
    let file = |inside: &str| format!("<system version=\"1\"><cpu numaid=\"0\">{inside}</cpu></system>");
    let bare = nic("20", "0x020700", "") + &nic("21", "0x020000", "") + &nic("22", "0x010802", "");
    assert_eq!(counts(&file(&bare))[1], 2, "no port is listed: devices of base class 0x02");
    let ports = net("mlx5_0", "200000", "1") + &net("mlx5_0", "200000", "2") + &net("mlx5_1", "200000", "1");
    let known = nic("20", "0x020700", &format!("<nic>{ports}</nic>")) + &nic("21", "0x020000", "");
    assert_eq!(counts(&file(&known))[1], 3, "where ports are listed, those are what counts");
    for (name, speed) in [("eno1", "1000"), ("docker0", "10000"), ("lxcbr0", "10000"), ("veth3", "10000")] {
        let more = known.clone() + &format!("<nic>{}</nic>", net(name, speed, "0"));
        assert_eq!(counts(&file(&more))[1], 3, "{name}");
    }
    // The same interface below both processors.
    let eth0 = format!("<nic>{}</nic>", net("eth0", "10000", "0"));
    let twice = format!(
        "<system version=\"1\"><cpu numaid=\"0\">{eth0}</cpu><cpu numaid=\"1\">{eth0}</cpu></system>"
    );
    assert_eq!(counts(&twice), [0, 1, 2, 0]);
}

#[test]
fn nvswitches_are_addresses_and_those_that_are_hidden_are_one() {
    assert_eq!(counts(&boxes::dgx_h100())[3], 4);
    assert_eq!(counts(&boxes::hgx_b200())[3], 1);
    // Where nothing is said of NVLink none is drawn, with one warning.
    let hardware = machine(&boxes::pcie());
    assert!(hardware.summary(Rates::DataSheet).links.iter().all(|link| link.kind != "nvlink"));
    assert_eq!(
        hardware.warnings(),
        ["the source lists no NVLink or xGMI: the GPUs are joined by PCIe alone"]
    );
}
