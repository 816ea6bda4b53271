//! Networks against the formulas of their sources: nodes, cables, diameter and bisection at several sizes.

mod flow;

use consort_algorithms::Topology;
use consort_algorithms::topology::{NodeId, NodeKind, Routes, parse, profile};

use crate::common::{Random, seed};
use flow::{bisection, cut, diameter};

/// Bytes a second of a cable of 400 Gb/s.
const CABLE: u64 = 50_000_000_000;

fn found(name: &str) -> Topology {
    profile(name).unwrap_or_else(|fault| panic!("{fault}"))
}

/// What a source says of a network.
#[derive(PartialEq, Debug)]
struct Shape {
    ranks: u32,
    switches: u32,
    /// Cables of `CABLE` each, without those inside boxes.
    cables: u64,
    diameter: u64,
    /// The cut between the two halves that `near` says, in cables.
    bisection: u64,
}

/// The shape as it is counted. `near` says which ranks are in the first half.
fn counted(name: &str, near: impl Fn(u32) -> bool) -> Shape {
    let topology = found(name);
    assert_eq!(parse(&topology.to_string()).as_ref(), Ok(&topology), "{name}: the text form");
    let mut ends: Vec<[NodeId; 2]> = topology.links().iter().map(|link| [link.from, link.to]).collect();
    ends.sort_unstable();
    ends.dedup();
    assert_eq!(ends.len(), topology.links().len(), "{name}: no two nodes are joined twice");
    let ranks = topology.ranks();
    let near: Vec<bool> = (0..ranks).map(near).collect();
    let count = near.iter().filter(|is_near| **is_near).count();
    assert_eq!(2 * count, ranks as usize, "{name}: halves");
    let has_boxes = topology.boxes().len() < ranks as usize && !name.starts_with("nvlink");
    let is_inside = |node: NodeId| has_boxes && node.0 < ranks;
    let cables = topology.links().iter().filter(|link| !is_inside(link.from) && !is_inside(link.to));
    let bandwidth: u64 = cables.map(|link| link.bandwidth_bytes_s).sum();
    let is_switch = |kind: &NodeKind| matches!(kind, NodeKind::Switch { .. });
    let switches = topology.nodes().iter().filter(|node| is_switch(&node.kind)).count() as u32;
    // Boxes have an NVSwitch each.
    let inside = if has_boxes { topology.boxes().len() as u32 } else { 0 };
    Shape {
        ranks,
        switches: switches - inside,
        cables: bandwidth / CABLE / 2,
        diameter: diameter(&topology, |_, _| 1),
        bisection: cut(&topology, &near) / CABLE,
    }
}

/// The first half of the ranks.
fn first(ranks: u64) -> impl Fn(u32) -> bool {
    move |rank| u64::from(rank) < ranks / 2
}

#[track_caller]
fn check(name: &str, near: impl Fn(u32) -> bool, [ranks, switches, cables, diameter, bisection]: [u64; 5]) {
    let (ranks, switches) = (ranks as u32, switches as u32);
    assert_eq!(counted(name, near), Shape { ranks, switches, cables, diameter, bisection }, "{name}");
}

#[test]
fn clos_has_two_tiers() {
    for [l, h, s] in [[4, 2, 1], [4, 4, 4], [8, 6, 3], [16, 4, 2]] {
        let name = format!("clos:leaves={l},hosts={h},spines={s}");
        check(&name, first(l * h), [l * h, l + s, l * h + l * s, 4, l * h.min(s) / 2]);
    }
    assert_eq!(bisection(&found("clos:leaves=4,hosts=2,spines=1")), 2 * CABLE);
}

#[test]
fn fat_tree_is_that_of_al_fares() {
    for [k, r] in [[4, 1], [4, 2], [6, 3], [8, 1], [8, 2]] {
        let name = format!("fat-tree:k={k},oversubscription={r}");
        let (hosts, half) = (k * k * k / 4, k / 2);
        // With R = 1: 5 k^2 / 4 switches and three times as many cables as hosts.
        let switches = k * (half + half / r) + half * half / r;
        check(&name, first(hosts), [hosts, switches, hosts + 2 * hosts / r, 6, k * k * k / 8 / r]);
    }
    let tree = found("fat-tree:k=8");
    for switch in tree.ranks()..tree.nodes().len() as u32 {
        let ports = tree.links().iter().filter(|link| link.from.0 == switch).count();
        assert_eq!(ports, 8, "every switch has k ports");
    }
    assert_eq!(found("fat-tree:k=48").ranks(), 27_648, "the paper's example of commodity switches");
    assert_eq!(bisection(&found("fat-tree:k=4")), 8 * CABLE);
    assert_eq!(bisection(&found("fat-tree:k=4,oversubscription=2")), 4 * CABLE);
}

#[test]
fn dragonfly_is_that_of_kim() {
    for [p, a, h, g] in [[1, 3, 1, 4], [2, 5, 1, 6], [2, 3, 3, 10], [2, 4, 2, 4]] {
        let name = format!("dragonfly:hosts={p},routers={a},global={h},groups={g}");
        let each = a * h / (g - 1);
        let cables = p * a * g + g * a * (a - 1) / 2 + g * (g - 1) / 2 * each;
        check(&name, first(p * a * g), [p * a * g, a * g, cables, 5, g * g / 4 * each]);
    }
    // The balanced one of the paper, a = 2p = 2h: as many groups as there can be.
    assert_eq!(found("dragonfly:hosts=4,routers=8,global=4,groups=33").ranks(), 1056);
    assert_eq!(bisection(&found("dragonfly:hosts=1,routers=3,global=1,groups=4")), 4 * CABLE);
}

#[test]
fn dragonfly_plus_is_that_of_shpiner() {
    for [p, l, s, h, g] in [[1, 2, 2, 2, 4], [3, 3, 3, 3, 10], [2, 2, 3, 1, 4], [2, 2, 2, 3, 4]] {
        let name = format!("dragonfly+:hosts={p},leaves={l},spines={s},global={h},groups={g}");
        let each = s * h / (g - 1);
        let cables = p * l * g + l * s * g + g * (g - 1) / 2 * each;
        let bisection = (g * g / 4 * each).min(p * l * g / 2);
        check(&name, first(p * l * g), [p * l * g, (l + s) * g, cables, 5, bisection]);
    }
    // The largest of switches with k ports has k^2/4 (k^2/4 + 1) hosts.
    assert_eq!(found("dragonfly+:hosts=4,leaves=4,spines=4,global=4,groups=17").ranks(), 16 * 17);
    assert_eq!(bisection(&found("dragonfly+:hosts=1,leaves=2,spines=2,global=2,groups=4")), 4 * CABLE);
}

#[test]
fn torus_is_a_k_ary_n_cube() {
    for sides in [&[4u64, 4][..], &[8, 6], &[4, 4, 4], &[6, 3, 4]] {
        let words: Vec<String> = sides.iter().map(u64::to_string).collect();
        let ranks: u64 = sides.iter().product();
        let distance: u64 = sides.iter().map(|side| side / 2).sum();
        // The first side is the longest: a cut through it severs two cables of each line along it.
        let shape = [ranks, 0, ranks * sides.len() as u64, distance, 2 * ranks / sides[0]];
        check(&format!("torus:{}", words.join("x")), first(ranks), shape);
    }
    assert_eq!(bisection(&found("torus:4x4")), 8 * CABLE);
}

#[test]
fn hamming_mesh_is_that_of_hoefler() {
    for [a, b, x, y] in [[1, 1, 4, 4], [2, 2, 2, 2], [2, 2, 4, 4], [4, 4, 2, 2], [2, 1, 4, 3]] {
        let name = format!("hamming-mesh:a={a},b={b},columns={x},rows={y}");
        let n = a * b * x * y;
        let across = 2 * ((a - 1) / 2) + 2 + 2 * ((b - 1) / 2) + 2;
        let near = move |rank: u32| u64::from(rank) % (a * x) < a * x / 2;
        check(&name, near, [n, y * b + x * a, x * y * (2 * a * b + a + b), across, x * y * b]);
    }
    // Four ports an accelerator, and a share of 1/2a of what a half can send.
    let two = found("hamming-mesh:a=2,b=2,columns=2,rows=2");
    for rank in 0..16 {
        assert_eq!(two.links().iter().filter(|link| link.from == NodeId(rank)).count(), 4);
    }
    assert_eq!(bisection(&two), 16 * 4 / 2 * CABLE / (2 * 2));
}

#[test]
fn bcube_is_that_of_guo() {
    for [n, k] in [[2, 1], [2, 2], [4, 1], [4, 2], [2, 5]] {
        let hosts = u64::pow(n, k as u32 + 1);
        let shape = [hosts, (k + 1) * hosts / n, (k + 1) * hosts, 2 * (k + 1), hosts / 2];
        check(&format!("bcube:n={n},k={k}"), first(hosts), shape);
    }
    assert_eq!(bisection(&found("bcube:n=2,k=2")), 4 * CABLE);
    assert_eq!(bisection(&found("bcube:n=4,k=1")), 8 * CABLE);
}

/// A hop from host to host is two halves; a switch is on the way of one hop.
fn halves(one: &NodeKind, other: &NodeKind) -> u64 {
    let is_rank = |kind: &NodeKind| matches!(kind, NodeKind::Rank { .. });
    if is_rank(one) && is_rank(other) { 2 } else { 1 }
}

#[test]
fn dcell_is_that_of_guo() {
    let seed = seed(0xdce1);
    let mut random = Random(seed);
    for [n, k, t] in [[2u64, 1, 6], [3, 1, 12], [4, 1, 20], [2, 2, 42], [3, 2, 156]] {
        let name = format!("dcell:n={n},k={k}");
        let topology = found(&name);
        assert_eq!((u64::from(topology.ranks()), topology.nodes().len() as u64), (t, t + t / n), "{name}");
        assert_eq!(topology.links().len() as u64, 2 * (t + t * k / 2), "{name}");
        for rank in 0..topology.ranks() {
            let ports = topology.links().iter().filter(|link| link.from == NodeId(rank)).count() as u64;
            assert_eq!(ports, k + 1, "{name}: one port a level");
        }
        let hops = diameter(&topology, halves) / 2;
        assert!(hops < 1 << (k + 1), "{name}: {hops} hops");
        let least = t as f64 / (4.0 * (t as f64).log(n as f64)) * CABLE as f64;
        let width = if t <= 12 {
            bisection(&topology)
        } else {
            // Of random halves, and of the one that keeps cells together.
            let mut near: Vec<bool> = (0..t).map(|rank| rank < t / 2).collect();
            let mut width = cut(&topology, &near);
            for _ in 0..50 {
                for last in (1..near.len()).rev() {
                    near.swap(last, random.below(last + 1));
                }
                width = width.min(cut(&topology, &near));
            }
            width
        };
        assert!(width as f64 > least, "{name}: {width} of {least}");
    }
    assert_eq!(diameter(&found("dcell:n=4,k=1"), halves), 2 * 3);
    assert_eq!(
        profile("dcell:n=6,k=3").expect_err("3 million hosts").to_string().matches("3263442").count(),
        1
    );
}

#[test]
fn jellyfish_is_regular_and_follows_its_seed() {
    for [n, r, h, seed] in [[12, 4, 1, 1], [20, 3, 2, 7], [64, 8, 3, 3], [10, 9, 1, 0], [6, 4, 1, 5]] {
        let name = format!("jellyfish:switches={n},degree={r},hosts={h},seed={seed}");
        let topology = found(&name);
        assert_eq!([topology.ranks(), topology.nodes().len() as u32], [n * h, n * h + n], "{name}");
        assert_eq!(topology.links().len() as u32, 2 * (n * h + n * r / 2), "{name}");
        for switch in n * h..n * h + n {
            let mut ends: Vec<u32> =
                topology.links().iter().filter(|link| link.from.0 == switch).map(|link| link.to.0).collect();
            ends.sort_unstable();
            ends.dedup();
            assert_eq!(ends.len() as u32, h + r, "{name}: no cable is doubled");
        }
        let [n, r] = [n, r].map(f64::from);
        let most = 3.0 + ((2.0 + 0.01) * r * n * n.ln()).log(r - 1.0).ceil();
        let across = diameter(&topology, |_, _| 1);
        assert!(across as f64 <= most, "{name}: {across} of {most}");
        assert_eq!(topology, found(&name));
    }
    let twelve = found("jellyfish:switches=12,degree=4,seed=1");
    let least = 12.0 * (4.0 / 4.0 - (4.0 * 2f64.ln()).sqrt() / 2.0);
    assert!(bisection(&twelve) as f64 >= least * CABLE as f64);
    assert_ne!(twelve.links(), found("jellyfish:switches=12,degree=4,seed=2").links());
}

#[test]
fn bigraph_is_that_of_eflops() {
    for [m, h] in [[2, 2], [4, 3], [6, 6]] {
        let name = format!("bigraph:switches={m},hosts={h}");
        // Half of the switches of both layers.
        let near = move |rank: u32| (u64::from(rank) / h % m) < m / 2;
        check(&name, near, [2 * m * h, 2 * m, m * m + 2 * m * h, 4, m * m / 2]);
        let across = cut(&found(&name), &(0..2 * m * h).map(|rank| rank < m * h).collect::<Vec<_>>());
        assert_eq!(across / CABLE, m * m.min(h), "{name}: between the layers");
    }
    assert_eq!(bisection(&found("bigraph:switches=2,hosts=2")), 2 * CABLE);
}

#[test]
fn nvlink_domains_do_not_block() {
    for (gpus, planes, chips, across) in
        [(72u64, 18, 18, 2), (72, 1, 1, 2), (144, 1, 4 + 2, 4), (576, 1, 16 + 9, 4), (576, 18, 18 * 25, 4)]
    {
        let name = format!("nvlink:gpus={gpus},planes={planes}");
        let tiers = across / 2;
        check(&name, first(gpus), [gpus, chips, gpus * 18 * tiers, across, gpus * 18 / 2]);
    }
    // 1.8 TB/s a GPU both ways together.
    let rack = found("nvlink:gpus=72");
    assert!(rack.aggregates() && rack.boxes().len() == 1);
    assert_eq!(rack.links()[0].bandwidth_bytes_s, 900_000_000_000);
}

#[test]
fn rail_optimised_has_the_switches_of_a_superpod() {
    for (boxes, leaves, spines) in [(32, 8, 4), (64, 16, 8), (128, 32, 16)] {
        let topology = found(&format!("rail-optimised:boxes={boxes},box=dgx-h100"));
        let count = |word: &str| topology.nodes().iter().filter(|node| node.name.starts_with(word)).count();
        assert_eq!([count("leaf"), count("spine"), count("nvswitch")], [leaves, spines, boxes]);
    }
    for [boxes, unit, r] in [[4, 4, 1], [8, 2, 1], [8, 4, 2], [16, 4, 4]] {
        let name = format!("rail-optimised:boxes={boxes},unit={unit},oversubscription={r},ports=32");
        let (leaves, ups) = (boxes / unit * 8, unit / r);
        let spines = (1..=ups).find(|s| ups % s == 0 && s * 32 >= leaves * ups).expect("enough ports");
        let cables = boxes * 8 + leaves * ups;
        // All boxes of one unit meet below the spines.
        let bisection = if unit == boxes { boxes * 4 } else { boxes * 4 / r };
        check(&name, first(boxes * 8), [boxes * 8, leaves + spines, cables, 6, bisection]);
    }
}

#[test]
fn rail_only_changes_rails_over_nvlink() {
    for boxes in [2, 4, 16] {
        check(&format!("rail-only:boxes={boxes}"), first(boxes * 8), [boxes * 8, 8, boxes * 8, 6, boxes * 4]);
    }
    assert_eq!(way(&found("rail-only:boxes=2"), 3, 11), "nic0.3 rail3 nic1.3 r11");
    assert_eq!(way(&found("rail-only:boxes=2"), 3, 12), "nic0.3 rail3 nic1.3 r11 nvswitch1 r12");
}

#[test]
fn hpn_has_two_planes() {
    for [segments, boxes, a] in [[2, 4, 1], [4, 2, 3], [2, 8, 6]] {
        let name = format!("hpn:segments={segments},boxes={boxes},aggregations={a},gbit=400");
        let (gpus, tors) = (segments * boxes * 8, segments * 16);
        // Ways up have the bandwidth of two cables down, and the bus of a GPU that of 64 GB/s.
        let bisection = (segments * 8 * a * 2).min(gpus * 64 / 50 / 2);
        check(&name, first(gpus), [gpus, tors + 2 * a, 2 * gpus + 2 * tors * a, 6, bisection]);
    }
    let pod = found("hpn:segments=15");
    let count = |word: &str| pod.nodes().iter().filter(|node| node.name.starts_with(word)).count();
    assert_eq!((pod.ranks(), count("tor"), count("aggregation")), (15_360, 240, 120));
    let (down, up) = (25 * 128, 50 * 60);
    assert_eq!(down * 1000 / up, 1066, "1.067 : 1");
    let ports = pod.links().iter().filter(|link| pod.nodes()[link.from.index()].name == "nic7.3");
    let speeds: Vec<u64> = ports.map(|link| link.bandwidth_bytes_s / 1_000_000_000).collect();
    assert_eq!(speeds, [64, 25, 25], "the bus, and a port to each plane");
    // No switch of one plane leads to the other.
    let plane = |node: NodeId| {
        let name = &pod.nodes()[node.index()].name;
        ["tor0", "aggregation0", "tor1", "aggregation1"].iter().position(|word| name.starts_with(word))
    };
    let planes = pod.links().iter().filter_map(|link| Some((plane(link.from)? / 2, plane(link.to)? / 2)));
    assert!(planes.clone().count() > 0 && planes.into_iter().all(|(from, to)| from == to));
}

/// The route as names.
fn way(topology: &Topology, from: u32, to: u32) -> String {
    let route = Routes::new(topology).from(NodeId(from), &[NodeId(to)]).remove(0).expect("there is a route");
    let end = |link: &consort_algorithms::topology::LinkId| topology.links()[link.index()].to.index();
    route.iter().map(|link| topology.nodes()[end(link)].name.as_str()).collect::<Vec<_>>().join(" ")
}

#[test]
fn boxes_take_the_places_of_hosts() {
    let tree = found("fat-tree:k=8,box=dgx-h100");
    assert_eq!((tree.ranks(), tree.boxes().len()), (128, 16));
    // Adapter i of box b is host 8 b + i; an edge switch has 4 hosts.
    assert_eq!(way(&tree, 9, 11), "nvswitch1 r11");
    assert!(way(&tree, 9, 0).starts_with("nic1.1 edge2 aggregation"), "{}", way(&tree, 9, 0));
    let old = found("clos:leaves=2,hosts=8,spines=4,box=dgx-a100");
    assert_eq!(old.links().last().map(|link| link.bandwidth_bytes_s), Some(25_000_000_000));
    let bus = found("clos:leaves=2,hosts=2,spines=1,box=pcie");
    assert_eq!(way(&bus, 0, 8), "bridge0.0 socket0.0 nic0.0 leaf0 nic1.0 socket1.0 bridge1.0 r8");
    let rails = found("rail-optimised:boxes=4,unit=2,box=dgx-h100");
    assert_eq!(way(&rails, 5, 13), "nic0.5 leaf5 nic1.5 r13");
    // The last unit may be smaller; `rail` is the same.
    let three = found("rail:boxes=3,unit=2");
    assert_eq!((three.ranks(), three.boxes().len(), three.name.as_str()), (24, 3, "rail:boxes=3,unit=2"));
    assert_eq!(three.links(), found("rail-optimised:boxes=3,unit=2,ports=64,box=dgx-h100").links());
    assert_eq!(way(&rails, 5, 21), "nic0.5 leaf5 spine0 leaf13 nic2.5 r21");
}

#[test]
fn wrong_parameters_are_refused_with_the_reason() {
    for (name, reason) in [
        ("fat-tree:k=7", "k=7 is odd"),
        ("fat-tree:k=8,oversubscription=3", "oversubscription=3 does not divide the 4 ways up"),
        ("fat-tree:", "k= is missing; fat-tree:k=K[,oversubscription=R]"),
        ("fat-tree:8", "\"8\" is not of the form key=value"),
        ("fat-tree:k=0", "k=0 is no whole number from 2 to 80"),
        ("fat-tree:k=4,k=4", "k= is given twice"),
        ("fat-tree:k=4,pods=3", "a fat-tree has no parameter \"pods\""),
        (
            "fat-tree:k=4,box=dgx-9",
            "no box is called \"dgx-9\"; there are dgx-a100, dgx-h100, dgx-h200, pcie",
        ),
        ("fat-tree:k=6,box=dgx-h100", "places for 54 adapters, and a dgx-h100 has 8"),
        ("dragonfly:hosts=1,routers=2,global=1,groups=4", "join at most 3 groups"),
        (
            "dragonfly:hosts=1024,routers=1024,global=4,groups=4000",
            "4194304000 hosts, and 131072 are the most",
        ),
        ("clos:leaves=4096,hosts=1,spines=4096", "cables, and 1048576 are the most"),
        ("jellyfish:switches=5,degree=3", "an odd number of ports"),
        ("jellyfish:switches=4,degree=4", "there are 3 other switches"),
        ("nvlink:gpus=100", "multiples of 36"),
        ("nvlink:gpus=72,planes=4", "does not divide the 18 links"),
        ("bcube:n=2,k=1,box=dgx-h100", "a bcube is not made of boxes"),
        ("bcube:n=1024,k=10", "are the most"),
        ("rail-optimised:boxes=8,oversubscription=3", "does not divide the 8 boxes of a unit"),
        ("rail-optimised:boxes=1024", "more units take a third tier"),
        ("hpn:segments=16", "segments=16 is no whole number from 1 to 15"),
    ] {
        let fault = profile(name).expect_err(name).to_string();
        assert!(fault.contains(reason) && fault.contains(&format!("{name:?}")), "{name}: {fault}");
    }
    let all = profile("ethernet:4").expect_err("no such word").to_string();
    assert!(all.contains("bigraph:switches=SWITCHES_A_LAYER") && all.contains("torus:"), "{all}");
}

#[test]
fn names_are_kept_as_given() {
    for name in ["bcube:n=4,k=1", "rail-only:boxes=2,gbit=200", "fat-tree:oversubscription=2,k=4"] {
        assert_eq!(found(name).name, name);
    }
    assert_eq!(found("clos:leaves=2,hosts=1,spines=1,gbit=100").links()[0].bandwidth_bytes_s, 12_500_000_000);
}
