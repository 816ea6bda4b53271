//! Where RDMA cannot be used, the error says why and what to do.

use consort_testing::machines::Tree;

use super::super::standin::{Adapter, AdapterPort, refuse_memory, set};
use super::super::sys::{PORT_ACTIVE, PORT_DOWN};
use super::ports::Written;
use super::*;
use crate::AdapterTrouble;

/// Why there is no transport, and that as a sentence with these parts.
fn refused(options: &RdmaOptions, sysfs: &Sysfs, parts: &[&str]) -> AdapterTrouble {
    let error = transport(options, sysfs).err().expect("it cannot be used");
    said(error, parts)
}

fn said(error: TransportError, parts: &[&str]) -> AdapterTrouble {
    let text = error.to_string();
    assert!(text.starts_with("verbs: "), "{text}");
    for part in parts {
        assert!(text.contains(part), "{part}: {text}");
    }
    let TransportError::Adapter { trouble, .. } = error else { panic!("{text}") };
    *trouble
}

/// A kernel with a device, with its node or without.
fn kernel(name: &str, has_node: bool) -> Written {
    let mut tree = Tree::default();
    tree.put("sys/class/infiniband/mlx5_0/node_type", "1: CA");
    if has_node {
        tree.put("dev/infiniband/uverbs0", "");
    }
    Written::new(name, &tree)
}

#[test]
fn a_system_without_devices_nodes_or_providers_says_which_it_lacks() {
    set(Vec::new());
    let any = RdmaOptions::default();
    let empty = Written::new("empty", &Tree::default());
    let trouble = refused(&any, &empty.sysfs(None), &["/sys/class/infiniband", "driver"]);
    assert_eq!(trouble, AdapterTrouble::NoDevice);
    let without = kernel("without-nodes", false);
    let trouble = refused(
        &any,
        &without.sysfs(None),
        &["mlx5_0", "/dev/infiniband/uverbs0", "--device /dev/infiniband"],
    );
    assert!(matches!(trouble, AdapterTrouble::NoNode { .. }), "{trouble:?}");
    let with = kernel("with-nodes", true);
    let trouble = refused(&any, &with.sysfs(None), &["mlx5_0", "no provider", "ibverbs-providers"]);
    assert!(matches!(trouble, AdapterTrouble::NoProvider { .. }), "{trouble:?}");
}

#[test]
fn a_device_that_cannot_be_opened_says_why() {
    let refusing = |error| {
        let port = AdapterPort::ethernet([10, 0, 0, 1]);
        set(vec![Adapter { refuses: Some(error), ..Adapter::new("mlx5_0", vec![port]) }]);
    };
    let any = RdmaOptions::default();
    let (without, with) = (kernel("closed-without", false), kernel("closed-with", true));
    refusing(libc::ENOENT);
    let trouble = refused(&any, &without.sysfs(None), &["mlx5_0", "/dev/infiniband/uverbs0", "Kubernetes"]);
    assert!(matches!(trouble, AdapterTrouble::NoNode { .. }), "{trouble:?}");
    for error in [libc::EACCES, libc::EPERM] {
        refusing(error);
        let trouble =
            refused(&any, &with.sysfs(None), &["/dev/infiniband/uverbs0", "mlx5_0", "may not be opened"]);
        assert!(matches!(trouble, AdapterTrouble::NoPermission { .. }), "{trouble:?}");
    }
    refusing(libc::ENOENT);
    let error = transport(&any, &with.sysfs(None)).err().expect("it cannot be opened");
    assert!(
        matches!(&error, TransportError::System { call: "ibv_open_device", .. }),
        "the node is there: {error}"
    );
}

#[test]
fn ports_that_are_not_active_are_named_with_their_states() {
    let in_state = |state| {
        let mut port = AdapterPort::infiniband(0, 0);
        port.attr.state = state;
        port
    };
    set(vec![
        Adapter::new("mlx5_0", vec![in_state(PORT_DOWN), in_state(2)]),
        Adapter::new("mlx5_1", vec![in_state(3)]),
    ]);
    let parts = [
        "port 1 of mlx5_0 is down",
        "port 2 of mlx5_0 is initialising",
        "port 1 of mlx5_1 is armed",
        "ibstat",
    ];
    let trouble = refused(&RdmaOptions::default(), &nothing(), &parts);
    assert!(matches!(trouble, AdapterTrouble::NoActivePort { .. }), "{trouble:?}");
    // Active ones that are not asked for are no help.
    set(vec![Adapter::new("mlx5_0", vec![in_state(PORT_ACTIVE)])]);
    let asked = RdmaOptions {
        ports: Arc::new(|device, _| device == "mlx4_0"),
        ports_asked: "=mlx4_0".into(),
        ..RdmaOptions::default()
    };
    let trouble = refused(&asked, &nothing(), &["NCCL_IB_HCA==mlx4_0", "(mlx5_0)", "mlx5_0:1"]);
    assert!(matches!(trouble, AdapterTrouble::NoneAsked { .. }), "{trouble:?}");
}

#[test]
fn memory_that_the_device_refuses_is_an_error_of_the_endpoint() {
    set(vec![Adapter::new("mlx5_0", vec![AdapterPort::ethernet([10, 0, 0, 1])])]);
    let verbs = transport(&RdmaOptions::default(), &nothing()).expect("a transport");
    refuse_memory(verbs.shared.domains[0].port.context, libc::ENOMEM);
    let error = verbs.endpoint(Layout::new(4096)).err().expect("no memory").to_string();
    // Which of the two errors it is depends on the limit of this process.
    let needed = format!("{} bytes", 4096 + LANE_BYTES);
    assert!(error.contains(&needed), "{error}");
    refuse_memory(verbs.shared.domains[0].port.context, libc::EINVAL);
    let error = verbs.endpoint(Layout::new(4096)).err().expect("refused");
    assert!(matches!(&error, TransportError::System { call: "ibv_reg_mr", .. }), "{error}");
}

/// The error of connecting two ports.
fn between(one: AdapterPort, other: AdapterPort) -> Option<TransportError> {
    let mut endpoints = [one, other].map(|port| {
        set(vec![Adapter::new("mlx5_0", vec![port])]);
        let verbs = transport(&RdmaOptions::default(), &nothing()).expect("a transport");
        Some(verbs.endpoint(Layout::new(64)).expect("an endpoint"))
    });
    let [one, other] = endpoints.each_mut().map(|of| of.take().expect("an endpoint"));
    one.connect(other.address()).err()
}

#[test]
fn ports_without_a_way_between_them_are_both_named() {
    let v6 = |ip: &str| {
        let mut port = AdapterPort::ethernet([0; 4]);
        let ip: std::net::Ipv6Addr = ip.parse().expect("an address");
        port.gids = vec![(super::super::sys::Gid(ip.octets()), super::super::sys::GID_ROCE_V2)];
        port
    };
    let ethernet = || AdapterPort::ethernet([10, 0, 0, 1]);
    let trouble = said(
        between(AdapterPort::infiniband(7, 1), AdapterPort::infiniband(9, 2)).expect("two subnets"),
        &["port 1 of mlx5_0", "fe80:0000:0000:0001", "local id 9", "fe80:0000:0000:0002", "router"],
    );
    assert!(matches!(trouble, AdapterTrouble::Subnets { .. }), "{trouble:?}");
    let trouble = said(
        between(AdapterPort::infiniband(7, 1), ethernet()).expect("two link layers"),
        &["port 1 of mlx5_0 is on InfiniBand", "10.0.0.1", "on Ethernet", "NCCL_IB_HCA"],
    );
    assert!(matches!(trouble, AdapterTrouble::LinkLayers { .. }), "{trouble:?}");
    said(
        between(ethernet(), AdapterPort::infiniband(7, 1)).expect("two link layers"),
        &["port 1 of mlx5_0 is on Ethernet", "local id 7", "on InfiniBand"],
    );
    let trouble = said(
        between(ethernet(), v6("fd00::1")).expect("two families"),
        &["10.0.0.1", "fd00::1", "NCCL_IB_ADDR_FAMILY"],
    );
    assert!(matches!(trouble, AdapterTrouble::Families { .. }), "{trouble:?}");
    // Ports of one subnet, of one family, and those that are known by their local ids alone, have a way.
    let mut unnamed = AdapterPort::infiniband(9, 2);
    unnamed.gids.clear();
    for (one, other) in [
        (AdapterPort::infiniband(7, 1), AdapterPort::infiniband(9, 1)),
        (AdapterPort::infiniband(7, 1), unnamed),
        (ethernet(), AdapterPort::ethernet([10, 9, 9, 9])),
        (v6("fd00::1"), v6("fd01::1")),
    ] {
        assert!(between(one, other).is_none());
    }
}

#[test]
fn a_forked_child_is_refused_its_parents_queue_pairs() {
    set(vec![Adapter::new("mlx5_0", vec![AdapterPort::ethernet([10, 0, 0, 1])])]);
    let verbs = transport(&RdmaOptions::default(), &nothing()).expect("a transport");
    let endpoints =
        [true, false].map(|calls| verbs.endpoint(Layout::new(64).calling(calls)).expect("an endpoint"));
    let [mut one, mut other] = meet(endpoints, Duration::ZERO);
    // SAFETY: the child asks for errors alone, which it finds before it touches anything that another thread may hold, and leaves.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let is_forked = |error: Option<TransportError>| match error {
            Some(TransportError::Adapter { trouble, .. }) => {
                matches!(*trouble, AdapterTrouble::Forked { .. })
            }
            _ => false,
        };
        let mut done = 0;
        let all = is_forked(one.progress().err())
            && is_forked(one.put(0, Span::of(&[1u8]), &mut done).err())
            && is_forked(one.signal(CounterKind::Ready, 1, 0).err())
            && is_forked(verbs.endpoint(Layout::new(64)).err());
        // SAFETY: leaves.
        unsafe { libc::_exit(if all { 0 } else { 1 }) };
    }
    let mut status = -1;
    // SAFETY: waits for our own child and writes one int.
    unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert_eq!(status, 0, "the child was not refused");
    arrives(&mut *one, &mut *other, 1);
    said(
        TransportError::adapter(NAME, AdapterTrouble::Forked { device: "mlx5_0".into() }),
        &["forked child", "mlx5_0", "parent"],
    );
}
