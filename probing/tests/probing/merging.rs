//! What ranks of one host see, each a part of it.

use std::collections::BTreeMap;

use consort_algorithms::hardware::{Hardware, LinkKind, MergeFault, NodeKind, UNSEEN_LINKS, merge};
use consort_testing::Random;
use consort_testing::machines::{ANSWERS, Entry, Tree, tree};

use crate::support::{joined, machine, probe};

/// A machine as a process sees it in a container with one GPU: one device of the library, and the PCI devices that `keeps`.
fn view(whole: &Tree, gpu: usize, keeps: impl Fn(&str) -> bool) -> Hardware {
    let mut part = whole.clone();
    let text = whole.text(ANSWERS).expect("answers").to_owned();
    let mut lines = vec!["nvmlDeviceGetCount_v2 = 1".to_owned()];
    for line in text.lines().filter(|line| !line.starts_with("nvmlDeviceGetCount")) {
        let mut words: Vec<&str> = line.split(' ').collect();
        if words[1] == gpu.to_string() {
            words[1] = "0";
        } else if words[1] != "*" && words[1] != "=" {
            continue;
        }
        lines.push(words.join(" "));
    }
    part.put(ANSWERS, lines.join("\n"));
    part.entries.retain(|path, _| !path.starts_with("sys/bus/pci/devices/") || keeps(path));
    probe(&part).hardware
}

/// Links between GPUs by their addresses.
fn wires(hardware: &Hardware) -> BTreeMap<String, u32> {
    let bus = |id| {
        hardware.node(id).kind.pci().and_then(|pci| pci.bus).map_or("hidden".into(), |bus| bus.to_string())
    };
    let mut wires = BTreeMap::new();
    for link in hardware.links() {
        if let LinkKind::NvLink { count, .. } = link.kind {
            let (one, other) = (bus(link.from), bus(link.to));
            wires.insert(format!("{} {}", one.clone().min(other.clone()), one.max(other)), count);
        }
    }
    wires
}

#[test]
fn views_of_one_gpu_each_are_the_whole_machine() {
    for name in ["dgx-1", "dgx-a100", "dgx-h100"] {
        let whole = tree(name);
        let sees_all = machine(name).hardware;
        let mut views: Vec<Hardware> = (0..8).map(|gpu| view(&whole, gpu, |_| true)).collect();
        for view in &views {
            let described =
                view.nodes().iter().filter(|node| matches!(&node.kind, NodeKind::Gpu(gpu) if gpu.described));
            assert_eq!(described.count(), 1, "{name}: a view has one GPU");
        }
        let merged = merge(&views).expect("one machine");
        assert_eq!(wires(&merged), wires(&sees_all), "{name}");
        assert_eq!(merged.gpus().len(), 8, "{name}");
        let index =
            |hardware: &Hardware, at: usize| hardware.gpu(hardware.gpus()[at]).and_then(|gpu| gpu.index);
        assert_eq!(
            (0..8).map(|at| index(&merged, at)).collect::<Vec<_>>(),
            (0..8).map(Some).collect::<Vec<_>>(),
            "{name}"
        );
        assert!(merged.nodes().iter().all(|node| !node.extra.contains_key(UNSEEN_LINKS)), "{name}");
        // The order of ranks changes nothing, and neither does a rank more.
        let mut random = Random::announced("views");
        random.shuffle(&mut views);
        views.push(views[0].clone());
        assert_eq!(merge(&views).expect("one machine"), merged, "{name}, with seed {}", random.seed());
    }
}

#[test]
fn a_device_that_one_view_lacks_has_the_place_of_the_other() {
    let whole = tree("dgx-1");
    let gpus = ["06", "07", "0a", "0b", "85", "86", "89", "8a"];
    // Each sees its own GPU on PCI; the first process sees none at all.
    let views: Vec<Hardware> = (0..8)
        .map(|gpu| {
            view(&whole, gpu, |path| {
                gpu > 0
                    && !gpus.iter().any(|bus| *bus != gpus[gpu] && path.ends_with(&format!(":{bus}:00.0")))
            })
        })
        .collect();
    let merged = merge(&views).expect("one machine");
    assert_eq!(wires(&merged), wires(&machine("dgx-1").hardware));
    let above = |at: usize| merged.node(merged.above(merged.gpus()[at]).expect("a place").1).kind.word();
    assert_eq!((above(0), above(1), above(7)), ("numa", "bridge", "bridge"), "{merged}");
}

#[test]
fn what_contradicts_itself_is_a_fault_with_its_device() {
    let one = machine("dgx-1").hardware;
    assert_eq!(merge(&[]), Err(MergeFault::Nothing));
    let mut other = one.clone();
    let gpu = other.gpus()[3];
    if let NodeKind::Gpu(gpu) = &mut other.node_mut(gpu).kind {
        gpu.uuid = Some("GPU-other".into());
    }
    match merge(&[one.clone(), other]) {
        Err(MergeFault::Differ { source: 1, device, field: "the UUID", .. }) => {
            assert_eq!(device, "the GPU 0000:0b:00.0")
        }
        result => panic!("{result:?}"),
    }
    let stranger = machine("dgx-a100").hardware;
    assert!(matches!(merge(&[one.clone(), stranger]), Err(MergeFault::Others { source: 1, .. })));
    let mut fewer = one.clone();
    let gpus = fewer.gpus();
    let id =
        *fewer.touching(gpus[0]).iter().find(|id| fewer.link(**id).kind.joins_gpus()).expect("an NVLink");
    fewer.set_link(id, LinkKind::NvLink { generation: Some(3), count: 2 }, None, None);
    let result = merge(&[one.clone(), fewer]);
    assert!(matches!(result, Err(MergeFault::Differ { field: "the generation", .. })), "{result:?}");
    let empty = Hardware::new("");
    assert_eq!(merge(&[one, empty]), Err(MergeFault::Hosts { source: 1, hosts: 0 }));
}

#[test]
fn what_changes_with_time_is_the_worse_of_both() {
    let one = machine("troubled").hardware;
    let mut tree = tree("troubled");
    let path = tree.entries.keys().find(|path| path.ends_with("infiniband/mlx5_0/ports/1/state")).cloned();
    tree.put(path.expect("a port"), "1: DOWN");
    let other = probe(&tree).hardware;
    let merged = merge(&[one, other]).expect("one machine");
    assert!(merged.warnings().iter().any(|warning| warning == "mlx5_0 is down"), "{:?}", merged.warnings());
    let gpus = merged.gpus();
    assert_eq!(joined(&merged, gpus[1], gpus[2]).len(), 1);
}

#[test]
fn what_containers_hide_is_no_contradiction() {
    let whole = tree("troubled");
    let sees_all = probe(&whole).hardware;
    let hidden = |kept: &dyn Fn(&str) -> bool| {
        let mut part = whole.clone();
        part.entries.retain(|path, _| kept(path));
        probe(&part).hardware
    };
    let views = [
        sees_all.clone(),
        // No ports of switches: only the lower ends of links say what they could be.
        hidden(&|path| {
            !path.starts_with("sys/bus/pci/devices/0000:3")
                && !path.starts_with("sys/bus/pci/devices/0000:b0")
        }),
        // Neither what the driver nor what the firmware says.
        hidden(&|path| !path.starts_with("proc/driver/") && !path.contains("/dmi/")),
        // No IOMMU.
        hidden(&|path| !path.starts_with("sys/class/iommu/")),
        // No domain has a number.
        hidden(&|path| !path.starts_with("sys/devices/system/") && !path.ends_with("/numa_node")),
    ];
    let merged = merge(&views).unwrap_or_else(|fault| panic!("{fault}"));
    let NodeKind::Host(host) = &merged.node(merged.hosts()[0]).kind else { panic!("a host") };
    let NodeKind::Host(known) = &sees_all.node(sees_all.hosts()[0]).kind else { panic!("a host") };
    assert_eq!(
        (host.iommu, host.gpudirect, host.is_virtual),
        (known.iommu, known.gpudirect, known.is_virtual)
    );
    assert_eq!(merged.gpus().len(), sees_all.gpus().len());
    assert_eq!(wires(&merged), wires(&sees_all));
    let backwards: Vec<Hardware> = views.iter().rev().cloned().collect();
    assert_eq!(merge(&backwards), Ok(merged));
}

#[test]
fn a_link_that_goes_down_while_processes_look_is_down() {
    let one = machine("dgx-1").hardware;
    let mut later = one.clone();
    let gpu = later.gpus()[0];
    let id = *later.touching(gpu).iter().find(|id| later.link(**id).kind.joins_gpus()).expect("an NVLink");
    let (from, to) = (later.link(id).from, later.link(id).to);
    later.set_link(id, LinkKind::NvLink { generation: Some(2), count: 1 }, None, None);
    let merged = merge(&[one.clone(), later.clone()]).expect("one machine");
    let bus = |id| one.node(id).kind.pci().and_then(|pci| pci.bus);
    let same = |wanted| {
        merged
            .gpus()
            .into_iter()
            .find(|id| merged.node(*id).kind.pci().and_then(|pci| pci.bus) == bus(wanted))
    };
    let ends = (same(from).expect("a GPU"), same(to).expect("a GPU"));
    assert_eq!(joined(&merged, ends.0, ends.1), [LinkKind::NvLink { generation: Some(2), count: 1 }]);
    assert_eq!(merge(&[later, one]), Ok(merged));
}

#[test]
fn what_a_process_may_not_read_gives_way_to_what_another_reads() {
    // A bridge that is no switch of PCI Express, as the configuration of its port says; root ports say what they are.
    let bridge = "0000:3b:00.0";
    let mut tree = tree("troubled");
    let known = tree.entries.values().find_map(|entry| match entry {
        Entry::File(bytes) if bytes.get(0x34) == Some(&0x40) => Some(bytes.clone()),
        _ => None,
    });
    let known = known.expect("a port's configuration");
    for (port, kind) in [(bridge, 7), ("0000:39:01.0", 4), ("0000:b0:01.0", 4), ("0000:b0:02.0", 4)] {
        let class = format!("{port}/class");
        let of_port = tree.entries.keys().find(|path| path.ends_with(&class)).expect("a port");
        let path = of_port.replace("/class", "/config");
        let mut bytes = known.clone();
        bytes[0x42] = (bytes[0x42] & 0x0f) | (kind << 4);
        tree.entries.insert(path, Entry::File(bytes));
    }
    let knows = probe(&tree).hardware;
    tree.entries.retain(|path, _| !path.ends_with("/config"));
    let guesses = probe(&tree).hardware;
    let has_bridge = |hardware: &Hardware| {
        let bus = |node: &consort_algorithms::hardware::Node| node.kind.pci().and_then(|pci| pci.bus);
        hardware.nodes().iter().any(|node| bus(node).is_some_and(|bus| bus.to_string() == bridge))
    };
    assert!(has_bridge(&guesses) && !has_bridge(&knows), "{knows}");
    let merged = merge(&[guesses.clone(), knows.clone()]).expect("one machine");
    assert_eq!(merged, merge(&[knows.clone(), guesses.clone()]).expect("one machine"));
    assert_eq!(merged, merge(&[knows]).expect("one machine"));
    assert!(merge(&[guesses.clone(), guesses]).is_ok_and(|merged| has_bridge(&merged)));
}
