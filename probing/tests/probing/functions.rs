//! Adapters that are divided: virtual functions, parts of them, and the ends of both in the adapter's own switch.

use consort_algorithms::hardware::exchange::read_hardware;
use consort_algorithms::hardware::{Hardware, LinkLayer};
use consort_testing::machines::{self, Tree};

use crate::support::{notes, port, probe};

/// The root port above the adapters of `no-gpu`, as a path.
const PARENT: &str = "sys/devices/pci0000:60/0000:60:03.0";
/// The function that is an adapter as a whole.
const PHYSICAL: &str = "0000:61:00.0";

/// Adds an interface below a directory.
fn interface(tree: &mut Tree, below: &str, name: &str) {
    let place = format!("{PARENT}/{below}/net/{name}");
    for (file, text) in [
        ("address", "02:00:00:00:00:01"),
        ("speed", "100000"),
        ("operstate", "up"),
        ("type", "1"),
        ("dev_port", "0"),
    ] {
        tree.put(format!("{place}/{file}"), text);
    }
    tree.link(format!("{place}/device"), "../..");
    tree.link(format!("sys/class/net/{name}"), format!("../../../{place}"));
}

/// Adds a device of verbs with one port.
fn verbs(tree: &mut Tree, below: &str, name: &str) {
    let place = format!("{PARENT}/{below}/infiniband/{name}");
    tree.put(format!("{place}/node_guid"), "9a70:5000:03ae:6d94");
    for (file, text) in [("state", "4: ACTIVE"), ("rate", "100 Gb/sec (4X EDR)"), ("link_layer", "Ethernet")]
    {
        tree.put(format!("{place}/ports/1/{file}"), text);
    }
    tree.link(format!("{place}/device"), "../..");
    tree.link(format!("sys/class/infiniband/{name}"), format!("../../../{place}"));
}

/// Adds virtual functions with an interface and verbs each; their addresses are behind that of the whole.
fn functions(tree: &mut Tree, count: usize) {
    for at in 1..=count {
        let bus = format!("0000:61:00.{at}");
        for (file, text) in
            [("class", "0x020000"), ("vendor", "0x15b3"), ("device", "0x101e"), ("numa_node", "0")]
        {
            tree.put(format!("{PARENT}/{bus}/{file}"), text);
        }
        tree.put(format!("{PARENT}/{bus}/current_link_speed"), "Unknown");
        tree.put(format!("{PARENT}/{bus}/current_link_width"), "0");
        tree.link(format!("{PARENT}/{bus}/physfn"), format!("../{PHYSICAL}"));
        tree.link(format!("sys/bus/pci/devices/{bus}"), format!("../../../../{PARENT}/{bus}"));
        interface(tree, &bus, &format!("a{at}v"));
        verbs(tree, &bus, &format!("afunction_{at}"));
    }
}

/// An adapter of two ports, and functions of its first.
fn adapter(with_own_port: bool) -> Tree {
    let mut tree = machines::tree("no-gpu");
    tree.entries.retain(|path, _| !path.contains("/infiniband/") && !path.starts_with("sys/class/net/"));
    tree.entries.retain(|path, _| !path.starts_with("sys/bus/pci/devices/"));
    for (file, text) in
        [("class", "0x020000"), ("vendor", "0x15b3"), ("device", "0x101d"), ("numa_node", "0")]
    {
        tree.put(format!("{PARENT}/{PHYSICAL}/{file}"), text);
    }
    tree.link(format!("sys/bus/pci/devices/{PHYSICAL}"), format!("../../../../{PARENT}/{PHYSICAL}"));
    if with_own_port {
        interface(&mut tree, PHYSICAL, "ens1f0np0");
        verbs(&mut tree, PHYSICAL, "mlx5_0");
    }
    tree
}

fn usable(hardware: &Hardware) -> usize {
    hardware.usable_ports().len()
}

#[test]
fn virtual_functions_are_no_ports_beside_the_one_whose_wire_they_share() {
    let mut tree = adapter(true);
    functions(&mut tree, 7);
    let probed = probe(&tree);
    let hardware = &probed.hardware;
    assert_eq!((usable(hardware), hardware.adapters().len()), (1, 1), "{hardware}");
    let (id, function) = port(hardware, "afunction_3");
    assert!(function.virtual_device, "{function:?}");
    assert_eq!(hardware.node(id).extra["probe.interface"], "a3v");
    assert_eq!(
        hardware.above(id).map(|(_, nic)| nic),
        hardware.above(port(hardware, "mlx5_0").0).map(|(_, nic)| nic)
    );
    assert_eq!(notes(&probed), Vec::<String>::new());
}

#[test]
fn one_function_stands_for_a_wire_whose_own_port_is_hidden() {
    // The namespace of a container has functions, and the port of the whole is in another.
    let mut tree = adapter(false);
    functions(&mut tree, 3);
    let hardware = probe(&tree).hardware;
    assert_eq!((usable(&hardware), hardware.adapters().len()), (1, 1), "{hardware}");
    assert!(!port(&hardware, "afunction_1").1.virtual_device);
    assert!(port(&hardware, "afunction_2").1.virtual_device);
}

#[test]
fn parts_and_their_ends_in_the_switch_of_an_adapter_are_no_ports() {
    let mut tree = adapter(true);
    for (name, end) in
        [("ens1f0np0", "p0"), ("eth4", "pf0vf0"), ("eth5", "c1pf0sf88"), ("en3f0pf0sf1", "pf0sf1")]
    {
        if name != "ens1f0np0" {
            interface(&mut tree, PHYSICAL, name);
        }
        tree.put(format!("{PARENT}/{PHYSICAL}/net/{name}/phys_port_name"), end);
    }
    let part = format!("{PHYSICAL}/mlx5_core.sf.2");
    interface(&mut tree, &part, "enp97s0f0s88");
    verbs(&mut tree, &part, "mlx5_9");
    let hardware = probe(&tree).hardware;
    assert_eq!(usable(&hardware), 1, "{hardware}");
    assert_eq!(hardware.node(port(&hardware, "mlx5_0").0).extra["probe.interface"], "ens1f0np0");
    assert!(port(&hardware, "mlx5_9").1.virtual_device);
}

#[test]
fn ports_that_an_adapter_joins_by_itself_are_one() {
    let mut tree = adapter(false);
    let second = "0000:61:00.1";
    for (file, text) in
        [("class", "0x020000"), ("vendor", "0x15b3"), ("device", "0x101d"), ("numa_node", "0")]
    {
        tree.put(format!("{PARENT}/{second}/{file}"), text);
    }
    tree.link(format!("sys/bus/pci/devices/{second}"), format!("../../../../{PARENT}/{second}"));
    interface(&mut tree, PHYSICAL, "ens1f0np0");
    interface(&mut tree, second, "ens1f1np1");
    let apart = usable(&probe(&tree).hardware);
    verbs(&mut tree, PHYSICAL, "mlx5_bond_0");
    assert_eq!((apart, usable(&probe(&tree).hardware)), (2, 2), "without a bond each is a port");
    for (bus, name) in [(PHYSICAL, "ens1f0np0"), (second, "ens1f1np1")] {
        tree.link(format!("{PARENT}/{bus}/net/{name}/master"), "../../../../../virtual/net/bond0");
    }
    let hardware = probe(&tree).hardware;
    assert_eq!(usable(&hardware), 1, "{hardware}");
    let (id, _) = port(&hardware, "mlx5_bond_0");
    assert_eq!(hardware.node(id).extra["probe.interface"], "ens1f0np0,ens1f1np1");
    // A second device of verbs means that the adapter has not joined them.
    verbs(&mut tree, second, "mlx5_1");
    assert_eq!(usable(&probe(&tree).hardware), 2);
}

#[test]
fn an_interface_of_wifi_is_no_wire() {
    let mut tree = adapter(false);
    interface(&mut tree, PHYSICAL, "wlp97s0");
    let speed = format!("{PARENT}/{PHYSICAL}/net/wlp97s0/speed");
    // The kernel has no speed of it.
    tree.entries.remove(&speed);
    assert_eq!(usable(&probe(&tree).hardware), 1);
    tree.put(format!("{PARENT}/{PHYSICAL}/net/wlp97s0/wireless/status"), "0000");
    let hardware = probe(&tree).hardware;
    assert_eq!(usable(&hardware), 0, "{hardware}");
    assert_eq!(port(&hardware, "wlp97s0").1.layer, LinkLayer::Wireless);
    let again: Hardware = read_hardware(hardware.to_string().as_bytes()).expect("its own text").0;
    assert_eq!(again, hardware);
}
