//! Which port a rank takes and by which address, over the stand-in's devices and trees of files.

use std::net::IpAddr;
use std::path::PathBuf;

use consort_testing::machines::{self, Tree};

use super::super::standin::{Adapter, AdapterPort, set};
use super::super::sys::{GID_ROCE_V2, Gid, PORT_DOWN};
use super::super::sysfs::Interface;
use super::*;
use crate::AdapterTrouble;

/// A tree of files, written to a directory that is removed when this is dropped.
pub(super) struct Written(PathBuf);

impl Written {
    pub(super) fn new(name: &str, tree: &Tree) -> Self {
        let root = std::env::temp_dir().join(format!("consort-verbs-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&root);
        std::fs::create_dir_all(&root).expect("a directory");
        tree.write_below(&root).expect("a tree");
        Written(root)
    }

    /// Its files, and these interfaces of the network namespace.
    pub(super) fn sysfs(&self, interfaces: Option<Vec<Interface>>) -> Sysfs {
        Sysfs::below(&self.0, interfaces)
    }
}

impl Drop for Written {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

pub(super) fn interface(name: &str, is_up: bool, addresses: &[&str]) -> Interface {
    let addresses = addresses.iter().map(|text| text.parse::<IpAddr>().expect("an address")).collect();
    Interface { name: name.into(), is_up, addresses }
}

/// The ports that a rank has, the best first.
fn found(options: &RdmaOptions, sysfs: &Sysfs, near: &Near) -> Vec<String> {
    let search = Search { functions: standin::functions(), sysfs, options, near };
    search.ports().expect("ports").iter().map(|port| format!("{}:{}", port.device, port.number)).collect()
}

/// Asks for the ports that this says.
fn asking(asked: &str, ports: impl Fn(&str, u8) -> bool + Send + Sync + 'static) -> RdmaOptions {
    RdmaOptions { ports: Arc::new(ports), ports_asked: asked.into(), ..RdmaOptions::default() }
}

#[test]
fn every_active_port_of_every_device_is_found_and_the_fastest_is_first() {
    let mut down = AdapterPort::ethernet([10, 0, 0, 9]);
    down.attr.state = PORT_DOWN;
    let mut slow = AdapterPort::ethernet([10, 0, 0, 3]);
    slow.attr.active_speed = 4;
    set(vec![
        Adapter::new("mlx5_0", vec![slow.clone(), AdapterPort::ethernet([10, 0, 0, 2])]),
        Adapter::new("mlx5_1", vec![down]),
        Adapter::new("mlx5_2", vec![AdapterPort::infiniband(7, 0)]),
    ]);
    let any = RdmaOptions::default();
    assert_eq!(found(&any, &nothing(), &Near::default()), ["mlx5_2:1", "mlx5_0:2", "mlx5_0:1"]);
    // Where the interface has no number for a speed, the kernel's text says it.
    let mut tree = Tree::default();
    tree.put("sys/class/infiniband/mlx5_0/ports/1/rate", "800 Gb/sec (4X XDR)");
    let written = Written::new("speeds", &tree);
    assert_eq!(found(&any, &written.sysfs(None), &Near::default())[0], "mlx5_0:1");
    // Two ports of one open device.
    let search =
        Search { functions: standin::functions(), sysfs: &nothing(), options: &any, near: &Near::default() };
    let ports = search.ports().expect("ports");
    assert!(Arc::ptr_eq(ports[1].opened(), ports[2].opened()));
    assert_eq!((ports[0].reach.lid, ports[0].reach.mtu, ports[0].reach.is_ethernet), (7, 5, false));
    let verbs = Verbs::over(&ports, 1, 1, None).expect("a transport");
    let first = &verbs.shared.domains[0].port;
    assert_eq!(format!("{} ({})", first.name(), first.reach.gid), "port 1 of mlx5_2 (fe80::7)");
}

#[test]
fn devices_are_asked_for_by_name_and_port() {
    let port = || AdapterPort::ethernet([10, 0, 0, 2]);
    set(vec![
        Adapter::new("mlx5_0", vec![port(), port()]),
        Adapter { refuses: Some(libc::EIO), ..Adapter::new("mlx5_1", vec![port()]) },
    ]);
    let one = asking("mlx5_0:2", |device, port| (device, port) == ("mlx5_0", 2));
    assert_eq!(found(&one, &nothing(), &Near::default()), ["mlx5_0:2"]);
    // One that may not be used is not opened.
    let broken = asking("mlx5_1", |device, _| device == "mlx5_1");
    let error = transport(&broken, &nothing()).err().expect("it cannot be opened");
    assert!(error.to_string().contains("ibv_open_device"), "{error}");
    // One that cannot be opened does not spoil the others.
    assert_eq!(found(&RdmaOptions::default(), &nothing(), &Near::default()).len(), 2);
}

#[test]
fn ranks_take_the_adapters_nearest_to_their_gpus_and_share_them_in_turn() {
    const NAMES: [&str; 8] = ["mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3", "mlx5_6", "mlx5_7", "mlx5_8", "mlx5_9"];
    set(NAMES.map(|name| Adapter::new(name, vec![AdapterPort::infiniband(1, 0)])).to_vec());
    let written = Written::new("dgx", &machines::tree("dgx-a100"));
    let first = |device: &str, turn| {
        let near = Near { device: Some(device.into()), node: None, turn, ranks: 1 };
        found(&RdmaOptions::default(), &written.sysfs(None), &near)[0].clone()
    };
    // Two GPUs and two adapters are below one switch; their ranks are the first and the second of a memory node.
    let gpus = ["07", "0F", "47", "4e", "87", "90", "b7", "bd"];
    let taken: Vec<String> =
        gpus.iter().enumerate().map(|(at, bus)| first(&format!("0000:{bus}:00.0"), at % 2)).collect();
    assert_eq!(taken, NAMES.map(|name| format!("{name}:1")), "each an adapter of its own");
    // Without a GPU the memory node counts.
    let near = |node, turn| Near { device: None, node: Some(node), turn, ranks: 1 };
    let on = |node, turn| found(&RdmaOptions::default(), &written.sysfs(None), &near(node, turn))[0].clone();
    assert_eq!([on(7, 0), on(7, 1), on(7, 2)], ["mlx5_6:1", "mlx5_7:1", "mlx5_6:1"]);
    let all = found(&RdmaOptions::default(), &written.sysfs(None), &near(7, 0));
    assert_eq!(all.len(), NAMES.len(), "and the others follow");
}

/// An adapter of two functions, and one of one.
#[test]
fn functions_of_one_adapter_come_after_another_adapter() {
    let port = || AdapterPort::infiniband(1, 0);
    set(["a0", "a1", "b0"].map(|name| Adapter::new(name, vec![port()])).to_vec());
    let mut tree = Tree::default();
    for (name, bus) in [("a0", "0000:01:00.0"), ("a1", "0000:01:00.1"), ("b0", "0000:02:00.0")] {
        let path = format!("sys/devices/pci0000:00/{bus}");
        tree.put(format!("{path}/numa_node"), "0");
        tree.link(format!("{path}/infiniband/{name}/device"), format!("../../../{bus}"));
        tree.link(
            format!("sys/class/infiniband/{name}"),
            format!("../../devices/pci0000:00/{bus}/infiniband/{name}"),
        );
    }
    let written = Written::new("functions", &tree);
    let order = found(&RdmaOptions::default(), &written.sysfs(None), &Near::default());
    assert_eq!(order, ["a0:1", "b0:1", "a1:1"]);
}

/// A port whose table has addresses of several interfaces, as a host and its containers see it.
fn shared_by_namespaces() -> (AdapterPort, Tree) {
    let v4 = |d| (Gid([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, d]), GID_ROCE_V2);
    let mut port = AdapterPort::ethernet([10, 0, 0, 1]);
    port.gids.extend([v4(2), v4(3)]);
    let mut tree = Tree::default();
    for (index, name) in ["eth0", "eth0", "pod1", "eth0"].iter().enumerate() {
        tree.put(format!("sys/class/infiniband/mlx5_0/ports/1/gid_attrs/ndevs/{index}"), name);
        tree.put(format!("sys/class/infiniband/mlx5_0/ports/1/gid_attrs/types/{index}"), "RoCE v2");
    }
    tree.put("sys/class/infiniband/mlx5_0/ports/1/gid_attrs/types/0", "IB/RoCE v1");
    (port, tree)
}

#[test]
fn an_address_is_one_of_this_network_namespace() {
    let (port, tree) = shared_by_namespaces();
    set(vec![Adapter::new("mlx5_0", vec![port])]);
    let written = Written::new("namespaces", &tree);
    let index = |functions, interfaces: Vec<Interface>| {
        let (sysfs, options, near) =
            (written.sysfs(Some(interfaces)), RdmaOptions::default(), Near::default());
        let ports = Search { functions, sysfs: &sysfs, options: &options, near: &near }.ports()?;
        Ok(ports[0].reach.gid_index)
    };
    let index_of = |interfaces| {
        index(standin::functions(), interfaces).map_err(|error: TransportError| error.to_string())
    };
    let lo = || interface("lo", true, &["127.0.0.1"]);
    assert_eq!(index_of(vec![lo(), interface("eth0", true, &["10.0.0.1"])]), Ok(1), "the host");
    assert_eq!(index_of(vec![lo(), interface("pod1", true, &["10.0.0.2"])]), Ok(2), "a container");
    // Another's interface may have the name of one that is here.
    assert_eq!(
        index_of(vec![lo(), interface("eth0", true, &["10.0.0.3"])]),
        Ok(3),
        "a container with its own eth0"
    );
    let error = index_of(vec![lo(), interface("eth0", false, &["10.0.0.1"])]).expect_err("it is down");
    assert!(error.contains("1: 10.0.0.1, RoCE version 2, its interface eth0 is down"), "{error}");
    let error =
        index_of(vec![lo(), interface("eth0", true, &["192.168.0.1"])]).expect_err("another namespace");
    assert!(
        error.contains("port 1 of mlx5_0") && error.contains("that of the port is in another namespace"),
        "{error}"
    );
    assert!(error.contains("its interface pod1 is not in this network namespace"), "{error}");
    assert!(error.contains("--network host") && error.contains("NCCL_IB_GID_INDEX"), "{error}");
    // An older library says no versions; the kernel does.
    assert_eq!(index(standin::older(), vec![interface("eth0", true, &["10.0.0.1"])]).expect("a port"), 1);
}

#[test]
fn an_address_of_an_index_is_taken_and_an_index_of_none_is_refused() {
    let (port, _) = shared_by_namespaces();
    set(vec![Adapter::new("mlx5_0", vec![port])]);
    let with = |index| RdmaOptions {
        addresses: Addresses { index: Some(index), ..Addresses::default() },
        ..RdmaOptions::default()
    };
    let verbs = transport(&with(2), &nothing()).expect("a transport");
    assert_eq!(verbs.shared.domains[0].port.reach.gid_index, 2);
    let error = transport(&with(4), &nothing()).err().expect("the entry is free");
    let TransportError::Adapter { trouble, .. } = &error else { panic!("{error}") };
    assert!(matches!(**trouble, AdapterTrouble::NoAddress { .. }), "{error}");
    assert!(error.to_string().contains("NCCL_IB_GID_INDEX=4 names no entry"), "{error}");
}

#[test]
fn what_is_asked_for_is_what_the_queue_pair_is_given() {
    set(vec![Adapter::new("mlx5_0", vec![AdapterPort::ethernet([10, 0, 0, 1])])]);
    let travel = Travel { service_level: 5, traffic_class: 106, partition: 2, timeout: Some(20), retries: 3 };
    let options = RdmaOptions { travel, ..RdmaOptions::default() };
    let sides = [&options, &RdmaOptions::default()]
        .map(|options| transport(options, &nothing()).expect("a transport"));
    let endpoints = [true, false].map(|calls| {
        sides[usize::from(!calls)].endpoint(Layout::new(64).calling(calls)).expect("an endpoint")
    });
    let numbers = [0, 1].map(|at| {
        let endpoint: &dyn Endpoint = &*endpoints[at];
        Place::decode(&endpoint.address().bytes).expect("a place").queues[0].number
    });
    let met = meet(endpoints, Duration::ZERO);
    let [first, second] = numbers.map(standin::connected);
    assert_eq!((first.ah_attr.sl, first.ah_attr.grh.traffic_class), (5, 106));
    assert_eq!((first.pkey_index, first.timeout, first.retry_cnt), (2, 20, 3));
    assert_eq!((second.ah_attr.sl, second.ah_attr.grh.traffic_class), (0, 0));
    assert_eq!((second.pkey_index, second.timeout, second.retry_cnt), (0, 18, 6));
    assert_eq!((first.path_mtu, first.ah_attr.grh.sgid_index), (3, 1));
    drop(met);
}

#[test]
fn packets_are_as_long_as_both_ports_take() {
    let mut longer = AdapterPort::ethernet([10, 0, 0, 2]);
    longer.attr.active_mtu = 5;
    let over = |port: AdapterPort| {
        set(vec![Adapter::new("mlx5_0", vec![port])]);
        transport(&RdmaOptions::default(), &nothing()).expect("a transport")
    };
    let sides = [over(AdapterPort::ethernet([10, 0, 0, 1])), over(longer)];
    let endpoints =
        [0, 1].map(|at| sides[at].endpoint(Layout::new(64).calling(at == 0)).expect("an endpoint"));
    let numbers: Vec<u32> = endpoints
        .iter()
        .map(|endpoint| Place::decode(&endpoint.address().bytes).expect("a place").queues[0].number)
        .collect();
    let met = meet(endpoints, Duration::ZERO);
    assert_eq!([numbers[0], numbers[1]].map(|number| standin::connected(number).path_mtu), [3, 3]);
    drop(met);
}
