//! Machines as pictures, read as XML: every device and link is there, no text lies on another, and large machines have
//! small pictures.

use consort_algorithms::hardware::{Hardware, Network, Rates, Route};

use super::{boxes, machine};
use crate::common::snapshot;
use crate::export::xml::{Element, elements, on_the_sheet};

fn picture(hardware: &Hardware) -> Vec<Element> {
    elements(&hardware.svg(Rates::DataSheet, &[]))
}

fn texts(elements: &[Element]) -> Vec<String> {
    elements.iter().filter(|element| element.name == "text").map(|element| element.text.clone()).collect()
}

fn count(elements: &[Element], text: &str) -> usize {
    texts(elements).iter().filter(|other| *other == text).count()
}

fn cluster(of: &Hardware, boxes: usize) -> Hardware {
    Hardware::compose(&vec![of; boxes], Network::Rail).expect("a cluster")
}

/// Two sockets with caches, a port that is down, interfaces that no plan uses, and a NUMA domain without memory.
const PROCESSORS: &str = include_str!("processors.hardware");

/// A machine of one host with as many GPUs, every third at half of its lanes, and names that XML has to escape.
fn crowded(gpus: usize) -> Hardware {
    let mut text = "hardware <b>\"&x%20y\nhost h<&\">\n".to_owned();
    for numa in 0..8 {
        text +=
            &format!("numa n{numa} on=h<&\"> number={numa} cpus={} memory_bytes=137438953472\n", numa * 8);
    }
    for gpu in 0..gpus {
        text += &format!("gpu g<{gpu} on=h<&\"> index={gpu}\n");
    }
    for numa in 0..8 {
        text += &format!("link h<&\"> n{numa} local\n");
    }
    for gpu in 0..gpus {
        let width = if gpu % 3 == 0 { 8 } else { 16 };
        text += &format!("link n{} g<{gpu} pcie generation=5 width={width}\n", gpu % 8);
    }
    for one in 0..8 {
        for other in one + 1..8 {
            text += &format!("link n{one} n{other} socket distance=32\n");
        }
    }
    machine(&text)
}

/// GPUs in as many hosts, each with a port; four hosts share a leaf, and leaves two spines.
fn leaves(hosts: usize) -> Hardware {
    let mut text = "hardware leaves\n".to_owned();
    for host in 0..hosts {
        let state = if host == 7 { "down" } else { "up" };
        text += &format!(
            "host h{host} hash={host}\ngpu h{host}.g on=h{host} index=0\nnic h{host}.n on=h{host} pci=yes\nport h{host}.p on=h{host} device=mlx5_0 speed_mbit_s=100000 state={state}\n"
        );
    }
    let leaves = hosts.div_ceil(4);
    for leaf in 0..leaves {
        text += &format!("switch leaf{leaf}\n");
    }
    text += "switch spine0\naggregator spine1\n";
    for host in 0..hosts {
        text += &format!(
            "link h{host}.n h{host}.p local\nlink h{host}.p leaf{} network bytes_s=12500000000\n",
            host / 4
        );
    }
    for leaf in 0..leaves {
        text +=
            &format!("link leaf{leaf} spine0 network bytes_s=25000000000\nlink leaf{leaf} spine1 network\n");
    }
    machine(&text)
}

/// A processor with its GPUs on NVLink-C2C, and NVSwitches that it does not see.
fn superchip() -> Hardware {
    let mut text = "hardware superchip\nhost h\nnuma n on=h number=0 cpus=0-71 arch=arm64 memory_bytes=515396075520\nroot r on=h bus=0008:00:00.0\n".to_owned();
    for gpu in 0..2 {
        text += &format!(
            "gpu g{gpu} on=h bus=0008:0{gpu}:00.0 index={gpu} sm=100 described=yes links_known=yes\n"
        );
    }
    text += "nvswitch s on=h\nlink h n local\nlink n r local\n";
    for gpu in 0..2 {
        text += &format!(
            "link r g{gpu} pcie generation=5 width=16\nlink n g{gpu} c2c count=10 bytes_s=450000000000\nlink g{gpu} s nvlink generation=5 count=18\n"
        );
    }
    machine(&text)
}

fn machines() -> Vec<(&'static str, Hardware)> {
    let known = [
        ("dgx-1", boxes::dgx_1()),
        ("dgx-a100", boxes::dgx_a100()),
        ("dgx-h100", boxes::dgx_h100()),
        ("hgx-b200", boxes::hgx_b200()),
        ("mi300x", boxes::mi300x()),
        ("mi250x", boxes::mi250x()),
        ("pcie", boxes::pcie()),
    ];
    let mut all: Vec<(&str, Hardware)> = known.into_iter().map(|(name, xml)| (name, machine(&xml))).collect();
    for (name, hardware) in &mut all {
        hardware.name = (*name).into();
    }
    let (h100, mi300x) = (all[2].1.clone(), all[4].1.clone());
    let mixed = [&h100, &mi300x, &h100];
    all.extend([
        ("two boxes", cluster(&h100, 2)),
        ("eight boxes", cluster(&mi300x, 8)),
        ("128 boxes", cluster(&h100, 128)),
        ("mixed boxes", Hardware::compose(&mixed, Network::Flat).expect("a cluster")),
        ("processors", machine(PROCESSORS)),
        ("crowded", crowded(1024)),
        ("leaves", leaves(20)),
        ("superchip", superchip()),
        ("nothing", machine("hardware nothing\n")),
        ("a host", machine("hardware bare\nhost h\n")),
    ]);
    all
}

/// The place that a text takes at most: `x`, `y`, width, height.
fn place(text: &Element) -> [f64; 4] {
    let (x, y, size) = (text.number("x"), text.number("y"), text.number("font-size"));
    let is_bold = text.get("font-weight").is_some();
    let width = text.text.chars().count() as f64 * size * if is_bold { 0.66 } else { 0.6 };
    let left = match text.get("text-anchor") {
        Some("middle") => x - width / 2.0,
        Some("end") => x - width,
        _ => x,
    };
    [left, y - 0.76 * size, width, 0.96 * size]
}

#[test]
fn no_text_lies_on_another_and_all_are_on_the_sheet() {
    for (name, hardware) in machines() {
        let elements = picture(&hardware);
        on_the_sheet(&elements);
        let sheet = [elements[0].number("width"), elements[0].number("height")];
        let texts: Vec<&Element> = elements.iter().filter(|element| element.name == "text").collect();
        for (at, text) in texts.iter().enumerate() {
            let [x, y, width, height] = place(text);
            assert!(x >= 0.0 && x + width <= sheet[0] && y >= 0.0, "{name}: {text:?} leaves the sheet");
            for other in &texts[..at] {
                let [other_x, other_y, other_width, other_height] = place(other);
                let across = x + width > other_x + 0.2 && other_x + other_width > x + 0.2;
                let upwards = y + height > other_y + 0.2 && other_y + other_height > y + 0.2;
                assert!(!(across && upwards), "{name}: {:?} lies on {:?}", text.text, other.text);
            }
        }
    }
}

#[test]
fn devices_and_links_of_a_box_are_all_drawn() {
    let elements = picture(&machine(&boxes::dgx_1()));
    for gpu in 0..8 {
        assert_eq!(count(&elements, &format!("GPU {gpu}")), 2, "in the tree and in the circle");
    }
    for nic in 0..4 {
        assert_eq!(
            (count(&elements, &format!("NIC {nic}")), count(&elements, &format!("mlx5_{nic}"))),
            (1, 1)
        );
    }
    let curves = elements.iter().filter(|element| element.get("d").is_some_and(|path| path.contains('C')));
    assert_eq!(curves.count(), 8 + 2 * 8, "eight pairs have one link, eight have two");
    assert_eq!(count(&elements, "2 × NVLink 2: 50 GB/s, 8 pairs"), 1);
    assert_eq!(count(&elements, "each GPU: 6 links, 150 GB/s"), 1);
    for line in [
        "NVLink 2: 25 GB/s",
        "2 × NVLink 2: 50 GB/s",
        "PCIe 3 x16: 15.75 GB/s",
        "between NUMA domains: 19.2 GB/s",
    ] {
        assert_eq!(count(&elements, line), 1, "{line} in the legend");
    }
    let elements = picture(&machine(&boxes::dgx_h100()));
    assert_eq!((count(&elements, "5"), count(&elements, "4")), (16, 16), "ends of NVLinks at four switches");
    assert_eq!((count(&elements, "NVSwitch 0"), count(&elements, "NVSwitch 3")), (1, 1));
    let elements = picture(&superchip());
    assert_eq!((count(&elements, "18"), count(&elements, "NVSwitches")), (2, 1));
    assert_eq!(count(&elements, "10 × NVLink-C2C: 450 GB/s"), 1);
}

#[test]
fn processors_have_their_caches_memory_and_interfaces() {
    let hardware = machine(PROCESSORS);
    let elements = picture(&hardware);
    for text in [
        "NUMA domain 0",
        "AMD x86_64, family 25 model 17",
        "128 CPUs: 0-63,128-191",
        "512 GiB of memory",
        "no memory",
        "25 Gb/s",
        "down",
        "not for data:",
        "docker0",
        "eno1",
    ] {
        assert!(count(&elements, text) >= 1, "{text}: {:?}", texts(&elements));
    }
    assert_eq!(count(&elements, "8 × L3 of 32 MiB; CPUs of each:"), 2);
    assert_eq!(count(&elements, "16"), 16, "CPUs of each cache");
}

#[test]
fn warnings_have_a_number_at_their_device_and_in_the_list() {
    let hardware = machine(PROCESSORS);
    let warnings = hardware.warnings();
    let elements = picture(&hardware);
    assert_eq!(warnings.len(), 3, "{warnings:?}");
    for (warning, number) in warnings.iter().zip(1..) {
        assert_eq!(count(&elements, warning), 1, "{warning}");
        assert_eq!(count(&elements, &number.to_string()), 2, "{warning}");
    }
    // One that is about no device has no number that a reader would look for.
    let elements = picture(&machine(&boxes::pcie()));
    assert_eq!(count(&elements, "!"), 1);
}

#[test]
fn equal_boxes_are_drawn_once_and_counted() {
    let h100 = machine(&boxes::dgx_h100());
    let elements = picture(&cluster(&h100, 4));
    for number in 0..4 {
        assert_eq!(count(&elements, &format!("box {number}")), 1);
    }
    assert_eq!(count(&elements, "Box 0 (h0.host0); boxes 1–3 are alike"), 1);
    assert_eq!((count(&elements, "spine"), count(&elements, "rail7"), count(&elements, "GPU 7")), (1, 1, 1));
    let dots = elements.iter().filter(|element| element.name == "circle").count();
    assert_eq!(dots, 4 * 8 + 8 + 1, "ports on rails, rails on the spine, the spine");
    let elements = picture(&cluster(&h100, 128));
    assert_eq!((count(&elements, "× 124 more"), count(&elements, "like box 3")), (1, 1));
    // A box that differs is drawn for itself.
    let mut odd = h100.clone();
    let port = odd.network_ends()[2];
    if let consort_algorithms::hardware::NodeKind::Port(port) = &mut odd.node_mut(port).kind {
        port.state = consort_algorithms::hardware::PortState::Down;
    }
    let mut list = vec![&h100; 20];
    list[9] = &odd;
    let elements = picture(&Hardware::compose(&list, Network::Rail).expect("a cluster"));
    for text in ["× 8 more", "like box 0", "box 9", "Box 9 (h9.host0)", "× 9 more", "like box 10"] {
        assert_eq!(count(&elements, text), 1, "{text}");
    }
    assert_eq!(count(&elements, "mlx5_2 of h9.host0 is down"), 1);
}

#[test]
fn large_machines_have_pictures_of_bounded_size() {
    let h100 = machine(&boxes::dgx_h100());
    for (name, hardware) in [
        ("1,024 GPUs in equal boxes", cluster(&h100, 128)),
        ("1,024 GPUs in one box", crowded(1024)),
        ("500 boxes on leaves", leaves(500)),
    ] {
        let svg = hardware.svg(Rates::DataSheet, &[]);
        let elements = elements(&svg);
        let (width, height) = (elements[0].number("width"), elements[0].number("height"));
        assert!(
            svg.len() < 200_000 && width < 5000.0 && height < 3000.0,
            "{name}: {} {width} {height}",
            svg.len()
        );
    }
    let elements = picture(&crowded(1024));
    assert_eq!(count(&elements, "and 123 more"), 8, "five of each NUMA domain are drawn");
    assert!(texts(&elements).iter().any(|text| text == "<b>\"&x y"), "names are escaped, not changed");
    assert_eq!(count(&elements, "h<&\">"), 1);
}

#[test]
fn routes_have_a_circle_each() {
    let hardware = machine(&boxes::dgx_1());
    let gpus = hardware.gpus();
    // Two children of the first, and one of the second.
    let tree = Route::tree("tree 0", &gpus[..4], &[None, Some(0), Some(0), Some(1)]);
    let routes = [Route::ring("ring 0", &gpus), tree];
    let with = elements(&hardware.svg(Rates::DataSheet, &routes));
    on_the_sheet(&with);
    assert_eq!((count(&with, "ring 0"), count(&with, "tree 0")), (1, 1));
    let without = picture(&hardware);
    let paths = |elements: &[Element]| elements.iter().filter(|element| element.name == "path").count();
    assert_eq!(paths(&with) - paths(&without), 8 + 3, "a head on each hop");
    assert_eq!((count(&with, "0 1 2 3 4 5 6 7"), count(&with, "from 0")), (1, 1));
}

#[test]
fn pictures_are_the_committed_ones() {
    let mut hardware = machine(&boxes::dgx_1());
    hardware.name = "dgx-1".into();
    snapshot("hardware_dgx_1.svg", &hardware.svg(Rates::DataSheet, &[]));
    snapshot("hardware_processors.svg", &machine(PROCESSORS).svg(Rates::DataSheet, &[]));
    snapshot("hardware_superchip.svg", &superchip().svg(Rates::DataSheet, &[]));
    snapshot("hardware_leaves.svg", &leaves(20).svg(Rates::DataSheet, &[]));
}

/// The example of docs/TOPOLOGY.md is the drawing of the machine beside it.
#[test]
fn the_drawing_in_the_documents_is_that_of_its_machine() {
    let docs = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs");
    let text = std::fs::read_to_string(docs.join("topology.txt")).expect("docs/topology.txt");
    let svg = machine(&text).svg(Rates::DataSheet, &[]);
    if std::env::var_os("CONSORT_SNAPSHOTS").is_some_and(|value| value == "write") {
        std::fs::write(docs.join("topology.svg"), &svg).expect("the drawing can be written");
    }
    let expected = std::fs::read_to_string(docs.join("topology.svg")).unwrap_or_default();
    assert_eq!(expected, svg, "docs/topology.svg differs; CONSORT_SNAPSHOTS=write cargo test writes it anew");
    let page = std::fs::read_to_string(docs.join("TOPOLOGY.md")).expect("docs/TOPOLOGY.md");
    let example =
        page.split("```").find(|block| block.trim_start().starts_with("hardware small")).expect("a text");
    let small = machine(example.trim_start());
    assert_eq!((small.gpus().len(), small.warnings().len()), (2, 0), "the text on the page is read");
}
