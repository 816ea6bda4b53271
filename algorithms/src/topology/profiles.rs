//! Machines by their data sheets, each with the source of its figures.
//!
//! Invariant: bandwidths are nominal, per direction, without the share that protocols take. Latencies and message
//! costs are round figures, to be replaced by what a probe measures.

use super::{Costs, Link, NodeId, NodeKind, Topology};

const GB: u64 = 1_000_000_000;

/// A turn of a rank that finds nothing ready, on a core that it shares.
const TURN_NS: u64 = 800;

pub(crate) const HOST_COSTS: Costs =
    Costs { send_ns: 150, receive_ns: 150, reduce_ns_per_byte: 0.1, copy_ns_per_byte: 0.05, lanes: 0 };

/// Time of a dependent cache line from one core to another.
pub(crate) const NEAR_LINE_NS: u64 = 140;
/// The bytes a second that one core reads and another wrote.
pub(crate) const NEAR_BYTES_S: u64 = 10 * GB;

/// The figures of hosts, for graphs of machines that were read.
pub(crate) mod host_figures {
    pub(crate) use super::{DOMAIN_BYTES_S, FAR_LINE_NS, HOST_COSTS as COSTS, NEAR_BYTES_S, NEAR_LINE_NS};
}

/// Ranks on one host that exchange bytes through shared memory.
///
/// Source: `docs/measurements/spine.md`: about 140 ns a dependent cache-line transfer, two of them a message
/// (the slot and its counter), and some 0.2 µs of each end's own time (`docs/measurements/schedules.md`); copies between cores about 10 GB/s when nothing else uses the memory. A copy out
/// of a slot is read from the cache, 0.05 ns a byte; folding costs the same traffic and 0.1 ns.
///
/// # Panics
///
/// When `ranks` is 0, as all profiles.
pub fn host(ranks: u32) -> Topology {
    let mut topology = with_ranks(format!("host:{ranks}"), HOST_COSTS, ranks, ranks);
    shared_memory(&mut topology, 0, 0..ranks);
    topology
}

/// As [`host`], with fewer cores than ranks: `ranks / cores` of them take turns on each core.
///
/// Source: `docs/measurements/schedules.md`: data that a rank waits for comes when its peer has its turn; a turn of a
/// rank that only looks is about 0.8 µs. Copies and folds of ranks on one core follow each other.
///
/// # Panics
///
/// When `ranks` or `cores` is 0.
pub fn host_of_cores(ranks: u32, cores: u32) -> Topology {
    match ranks.div_ceil(cores) {
        1 => host(ranks),
        turns => in_turns(host(ranks), turns, format!("host:{ranks}x{cores}")),
    }
}

/// The additional time of a dependent line between domains of a host.
pub(crate) const FAR_LINE_NS: u64 = 180;
/// The bytes a second that a core reads and one of another domain wrote: half as many as within a domain.
const FAR_BYTES_S: u64 = 5 * GB;
/// The bytes a second that leave a domain, for all of its ranks together; as many enter it.
pub(crate) const DOMAIN_BYTES_S: u64 = 25 * GB;

/// Ranks on one host in `domains` domains of `ranks_per_domain`, numbered domain by domain: the ranks of a domain
/// share a last-level cache or a memory node, and are nearer to each other than to those of other domains. A domain is
/// a box of the graph. With fewer `cores` than ranks as [`host_of_cores`].
///
/// Source: inside a domain as [`host`]. `docs/measurements/host.md` and the round trips of a line in it: 110 ns where two
/// cores share a cache and some 470 ns where they do not, which is 180 ns more for each of the two lines that a message
/// waits for; a message of 64 KiB to 1 MiB takes about twice as long. A last-level cache of AMD EPYC has a way out of 16
/// bytes a cycle of the fabric, at 1.6 GHz some 25 GB/s, for all of its cores together; a UPI link between sockets is of
/// the same order. These are two cores of a virtual machine: no machine with several domains has been measured.
///
/// # Panics
///
/// When there is no rank or no core.
pub fn host_of_domains(domains: u32, ranks_per_domain: u32, cores: u32) -> Topology {
    let ranks = domains * ranks_per_domain;
    let turns = ranks.div_ceil(cores);
    let name = format!("domains:{domains}x{ranks_per_domain}");
    assert!(ranks > 0, "{name} has no rank");
    let mut topology = Topology::new(name.clone(), HOST_COSTS);
    // A core moves near and far bytes together no faster than near ones alone.
    let most = Some(NEAR_BYTES_S / u64::from(turns));
    for rank in 0..ranks {
        let in_box = rank / ranks_per_domain;
        let kind = NodeKind::Rank { in_box, inject_bytes_s: most, eject_bytes_s: most };
        topology.add_node(format!("r{rank}"), kind);
    }
    for number in 0..domains {
        shared_memory(&mut topology, number, number * ranks_per_domain..(number + 1) * ranks_per_domain);
    }
    if domains > 1 {
        let fabric = topology.add_node("fabric", SWITCH);
        for number in 0..domains {
            let gate = topology.add_node(format!("gate{number}"), NodeKind::Port);
            for rank in number * ranks_per_domain..(number + 1) * ranks_per_domain {
                topology.connect(NodeId(rank), gate, NEAR_LINE_NS + FAR_LINE_NS, FAR_BYTES_S);
            }
            topology.connect(gate, fabric, 0, DOMAIN_BYTES_S);
        }
    }
    match turns {
        1 => topology,
        turns => in_turns(topology, turns, format!("{name}x{cores}")),
    }
}

/// The same machine where `turns` ranks take turns on each core.
pub(super) fn in_turns(plain: Topology, turns: u32, name: String) -> Topology {
    let mut shared = plain.map_links(|topology, link| {
        // A link between domains has no core that ranks could share.
        if link.from.0.min(link.to.0) >= topology.ranks() {
            return link;
        }
        Link {
            latency_ns: link.latency_ns + u64::from(turns - 1) * TURN_NS / 2,
            bandwidth_bytes_s: link.bandwidth_bytes_s / u64::from(turns),
            ..link
        }
    });
    shared.name = name;
    shared.costs.send_ns *= u64::from(turns);
    shared.costs.receive_ns *= u64::from(turns);
    shared.costs.reduce_ns_per_byte *= f64::from(turns);
    shared.costs.copy_ns_per_byte *= f64::from(turns);
    shared
}

/// DGX A100: 8 GPUs on NVSwitch, 300 GB/s each way a GPU; 8 adapters of 25 GB/s, one a GPU, on 8 rails.
///
/// Source: NVIDIA, DGX A100 System User Guide (third-generation NVLink, 12 links of 25 GB/s; 8 ConnectX-6 of
/// 200 Gb/s). A hop costs 3 µs over NVLink and about 5 µs over a rail, within the figures of NCCL's tuning model for
/// its protocols (`src/graph/tuning.cc`: 0.6 to 3.4 µs and 2.7 to 14 µs); the division into latency and work of the
/// ends is a guess. Lanes are thread blocks; 34 use up the memory: 2,039 GB/s, 108 multiprocessors (NVIDIA
/// A100 80GB data sheet).
///
/// # Panics
///
/// When `boxes` is 0.
pub fn dgx_a100(boxes: u32) -> Topology {
    DGX_A100.build(boxes)
}

/// DGX H100: 8 GPUs on NVSwitch that aggregates, 450 GB/s each way a GPU; 8 adapters of 50 GB/s on 8 rails.
///
/// Source: NVIDIA, DGX H100/H200 User Guide (fourth-generation NVLink, 18 links of 25 GB/s; 8 ConnectX-7 of
/// 400 Gb/s; PCIe 5.0 x16). Latencies as [`dgx_a100`]. 56 thread blocks use up the memory: 3,350 GB/s (NVIDIA H100 SXM
/// data sheet), 132 multiprocessors.
///
/// # Panics
///
/// When `boxes` is 0.
pub fn dgx_h100(boxes: u32) -> Topology {
    DGX_H100.build(boxes)
}

/// DGX H200: the links are those of [`dgx_h100`]; its memory is larger and faster, 4,800 GB/s (NVIDIA H200 data
/// sheet), so that 81 thread blocks use it up.
///
/// # Panics
///
/// When `boxes` is 0.
pub fn dgx_h200(boxes: u32) -> Topology {
    DGX_H200.build(boxes)
}

/// As [`dgx_a100`], with every GPU on one network switch that blocks nothing: no rails, no buses, no adapters of their
/// own. The fabric that papers on schedules take; NVSwitches do not aggregate, and the lanes of a GPU queue for its
/// memory.
///
/// Source: L. Zhao et al., "ForestColl" (arXiv 2402.06787), and the figures of [`dgx_a100`].
///
/// # Panics
///
/// When `boxes` is 0.
pub fn dgx_a100_flat(boxes: u32) -> Topology {
    flat("dgx-a100-flat", 300 * GB, 25 * GB, boxes)
}

/// As [`dgx_a100_flat`], with the figures of [`dgx_h100`].
///
/// # Panics
///
/// When `boxes` is 0.
pub fn dgx_h100_flat(boxes: u32) -> Topology {
    flat("dgx-h100-flat", 450 * GB, 50 * GB, boxes)
}

/// 8 GPUs a box on one switch inside and, with more than one box, on one between the boxes.
fn flat(name: &str, inside_bytes_s: u64, between_bytes_s: u64, boxes: u32) -> Topology {
    let costs = Costs {
        send_ns: 1000,
        receive_ns: 1000,
        reduce_ns_per_byte: 0.001,
        copy_ns_per_byte: 0.0005,
        lanes: 0,
    };
    let mut topology = with_ranks(format!("{name}:{boxes}"), costs, boxes * 8, 8);
    for number in 0..boxes {
        let switch = topology.add_node(format!("nvswitch{number}"), SWITCH);
        (number * 8..number * 8 + 8)
            .for_each(|rank| topology.connect(NodeId(rank), switch, 500, inside_bytes_s));
    }
    if boxes > 1 {
        let network = topology.add_node("network", SWITCH);
        (0..boxes * 8).for_each(|rank| topology.connect(NodeId(rank), network, 1400, between_bytes_s));
    }
    topology
}

/// 8 GPUs a box without NVLink: two sockets, two PCIe switches each with two GPUs and one uplink, one adapter.
///
/// Source: PCI Express 4.0 x16, 32 GB/s a direction, about 24 GB/s of it payload; 24 GB/s between the sockets; one
/// adapter of 100 Gb/s on the first socket.
///
/// # Panics
///
/// When `boxes` is 0.
pub fn pcie(boxes: u32) -> Topology {
    let mut topology = with_ranks(format!("pcie:{boxes}"), PCIE_COSTS, boxes * 8, 8);
    let network = topology.add_node("network", SWITCH);
    for number in 0..boxes {
        let socket = inside_pcie(&mut topology, number);
        let adapter = topology.add_node(format!("nic{number}"), NodeKind::Port);
        topology.connect(socket, adapter, 300, LANES);
        topology.connect(adapter, network, 1000, 12 * GB + GB / 2);
    }
    topology
}

const LANES: u64 = 24 * GB;
const PCIE_COSTS: Costs =
    Costs { send_ns: 1500, receive_ns: 1000, reduce_ns_per_byte: 0.002, copy_ns_per_byte: 0.001, lanes: 0 };

/// The inside of a box of [`pcie`]; gives the socket that has the adapter.
fn inside_pcie(topology: &mut Topology, number: u32) -> NodeId {
    let sockets = [0, 1].map(|socket| topology.add_node(format!("socket{number}.{socket}"), NodeKind::Port));
    topology.connect(sockets[0], sockets[1], 300, LANES);
    for bridge in 0..4 {
        let node = topology.add_node(format!("bridge{number}.{bridge}"), NodeKind::Port);
        topology.connect(node, sockets[bridge as usize / 2], 200, LANES);
        for gpu in 0..2 {
            topology.connect(NodeId(number * 8 + bridge * 2 + gpu), node, 300, LANES);
        }
    }
    sockets[0]
}

/// The bytes a second of an adapter of 25 Gb/s.
pub(super) const ADAPTER_BYTES_S: u64 = 31 * GB / 10;
/// A core's work for a message through the kernel, at each end; other ranks on that core wait for it.
const SOCKET_NS: u64 = 2500;

/// Hosts with sockets between them; the ranks of a host share its adapter and exchange through memory.
///
/// Source: 25 Gb/s Ethernet, 3.1 GB/s; about 10 µs from send to receive through two kernels, an assumption;
/// inside as [`host`].
///
/// # Panics
///
/// When there is no rank.
pub fn tcp(hosts: u32, ranks_per_host: u32) -> Topology {
    let host_of: Vec<u32> = (0..hosts * ranks_per_host).map(|rank| rank / ranks_per_host).collect();
    tcp_hosts(&host_of, Inside::Memory, None, &[], 1)
}

/// The ranks of each host.
///
/// # Panics
///
/// When there is no rank.
fn ranks_of_hosts(host_of: &[u32]) -> Vec<Vec<u32>> {
    assert!(!host_of.is_empty(), "a machine without ranks");
    let hosts = host_of.iter().max().map_or(0, |last| last + 1);
    let ranks_of = |host: u32| {
        let mine = host_of.iter().zip(0..).filter(move |(of, _)| **of == host);
        mine.map(|(_, rank): (_, u32)| rank).collect::<Vec<_>>()
    };
    (0..hosts).map(ranks_of).collect()
}

/// A machine's name by what joins its hosts and by how many ranks they have.
pub(super) fn name_of_hosts(between: &str, host_of: &[u32]) -> String {
    let all = ranks_of_hosts(host_of);
    if !host_of.is_sorted() {
        return format!("{between}:{} hosts, {} ranks in no order", all.len(), host_of.len());
    }
    if all.iter().all(|ranks| ranks.len() == all[0].len()) {
        return format!("{between}:{}x{}", all.len(), all[0].len());
    }
    let counts: Vec<String> = all.iter().map(|ranks| ranks.len().to_string()).collect();
    format!("{between}:{}", counts.join("+"))
}

/// How the ranks of a host exchange data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Inside {
    /// Through shared memory, as [`host`].
    Memory,
    /// Through the kernel's sockets, without the adapter.
    Sockets,
}

/// As [`tcp`], with the host of each rank (`host_of`, counted from 0 without gaps), the connections inside a host,
/// adapters of `adapter_bytes_s` bytes a second where that is known, and `turns` ranks that take turns on each core. Between a host
/// and the middle of the network a message takes `far_ns` nanoseconds longer; where it is empty, none.
///
/// Source: as [`tcp`]; a message through the kernel is some 5 µs of a core (`docs/measurements/hosts.md`).
///
/// # Panics
///
/// When there is no rank.
pub fn tcp_hosts(
    host_of: &[u32],
    inside: Inside,
    adapter_bytes_s: Option<u64>,
    far_ns: &[u64],
    turns: u32,
) -> Topology {
    let all = ranks_of_hosts(host_of);
    let name = name_of_hosts("tcp", host_of);
    let mut topology = Topology::new(name.clone(), HOST_COSTS);
    for (rank, host) in host_of.iter().enumerate() {
        let kind = NodeKind::Rank { in_box: *host, inject_bytes_s: None, eject_bytes_s: None };
        topology.add_node(format!("r{rank}"), kind);
    }
    let network = topology.add_node("network", SWITCH);
    for (number, ranks) in (0..).zip(&all) {
        match inside {
            Inside::Memory => shared_memory(&mut topology, number, ranks.iter().copied()),
            Inside::Sockets => {
                let kernel = topology.add_node(format!("kernel{number}"), SWITCH);
                ranks.iter().for_each(|rank| topology.connect(NodeId(*rank), kernel, 5000, ADAPTER_BYTES_S));
            }
        }
        let adapter = topology.add_node(format!("nic{number}"), NodeKind::Port);
        for rank in ranks {
            topology.connect(NodeId(*rank), adapter, 3000, 10 * GB);
        }
        let far = far_ns.get(number as usize).copied().unwrap_or(0);
        topology.connect(adapter, network, 2000 + far, adapter_bytes_s.unwrap_or(ADAPTER_BYTES_S).max(1));
    }
    if turns <= 1 {
        return topology;
    }
    let mut shared = in_turns(topology, turns, name);
    if inside == Inside::Sockets || all.iter().all(|ranks| ranks.len() == 1) {
        // All messages go through sockets.
        shared.costs.send_ns += u64::from(turns - 1) * SOCKET_NS;
        shared.costs.receive_ns += u64::from(turns - 1) * SOCKET_NS;
    }
    shared
}

/// A torus of single ranks: in every dimension a link to each of the two neighbours, one where they are the same.
///
/// Source: links of 50 GB/s a direction and 500 ns, of the order of N. Jouppi et al., "TPU v4", ISCA 2023 (six links
/// of 50 GB/s). Ranks forward messages for others. The last dimension is the fastest to change.
///
/// # Panics
///
/// When there is no rank.
pub fn torus(dimensions: &[u32]) -> Topology {
    let costs =
        Costs { send_ns: 500, receive_ns: 500, reduce_ns_per_byte: 0.002, copy_ns_per_byte: 0.001, lanes: 0 };
    let ranks: u32 = dimensions.iter().product();
    let shape = dimensions.iter().map(u32::to_string).collect::<Vec<_>>().join("x");
    let mut topology = with_ranks(format!("torus:{shape}"), costs, ranks, 1);
    topology.relay = true;
    for rank in 0..ranks {
        let mut stride = 1;
        for &length in dimensions.iter().rev() {
            let at = rank / stride % length;
            let place = |at: u32| NodeId(rank - rank / stride % length * stride + at * stride);
            let neighbours = [place((at + 1) % length), place((at + length - 1) % length)];
            let distinct = if length == 2 { 1 } else { 2 };
            for &to in neighbours.iter().take(distinct).filter(|to| to.0 != rank) {
                topology.add_link(Link {
                    from: NodeId(rank),
                    to,
                    latency_ns: 500,
                    bandwidth_bytes_s: 50 * GB,
                });
            }
            stride *= length;
        }
    }
    topology
}

pub(super) const SWITCH: NodeKind = NodeKind::Switch { aggregates: false };

struct Dgx {
    name: &'static str,
    nvlink: u64,
    adapter: u64,
    /// Between a GPU and its adapter.
    bus: u64,
    aggregates: bool,
    /// Thread blocks whose traffic the memory of a GPU carries.
    lanes: u32,
}

const DGX_A100: Dgx = Dgx {
    name: "dgx-a100",
    nvlink: 300 * GB,
    adapter: 25 * GB,
    bus: 32 * GB,
    aggregates: false,
    lanes: lanes_of(2_039 * GB, 108),
};
const DGX_H100: Dgx = Dgx {
    name: "dgx-h100",
    nvlink: 450 * GB,
    adapter: 50 * GB,
    bus: 64 * GB,
    aggregates: true,
    lanes: lanes_of(3_350 * GB, 132),
};
const DGX_H200: Dgx = Dgx { name: "dgx-h200", lanes: lanes_of(4_800 * GB, 132), ..DGX_H100 };

/// The bytes a second that a thread block reads and writes.
///
/// Source: `docs/measurements/gpu.md`, the price of plans that kernels run, fitted on one H200. An A100's blocks are
/// taken to be as fast.
const BLOCK_BYTES_S: u64 = 59_100_000_000;

/// The blocks that are busy at once: as many as use the memory up, and at most one on each multiprocessor.
const fn lanes_of(memory_bytes_s: u64, multiprocessors: u32) -> u32 {
    let lanes = (memory_bytes_s / BLOCK_BYTES_S) as u32;
    if lanes < multiprocessors { lanes } else { multiprocessors }
}

/// A block copies out of a slot (two places, read and written) or folds out of it (three). The ends' work for a
/// message is that of [`dgx_a100`].
const DGX_COSTS: Costs = Costs {
    send_ns: 1000,
    receive_ns: 1000,
    reduce_ns_per_byte: 3e9 / BLOCK_BYTES_S as f64,
    copy_ns_per_byte: 2e9 / BLOCK_BYTES_S as f64,
    lanes: 0,
};

impl Dgx {
    /// The GPUs and the NVSwitches of `boxes` boxes.
    fn inside(&self, boxes: u32) -> Topology {
        let costs = Costs { lanes: self.lanes, ..DGX_COSTS };
        let mut topology = with_ranks(format!("{}:{boxes}", self.name), costs, boxes * 8, 8);
        let kind = NodeKind::Switch { aggregates: self.aggregates };
        let inside: Vec<NodeId> =
            (0..boxes).map(|number| topology.add_node(format!("nvswitch{number}"), kind)).collect();
        for rank in 0..boxes * 8 {
            topology.connect(NodeId(rank), inside[rank as usize / 8], 500, self.nvlink);
        }
        topology
    }

    fn build(&self, boxes: u32) -> Topology {
        let mut topology = self.inside(boxes);
        if boxes == 1 {
            return topology;
        }
        let spine = topology.add_node("spine", SWITCH);
        for rail in 0..8 {
            let node = topology.add_node(format!("rail{rail}"), SWITCH);
            topology.connect(node, spine, 500, self.adapter * u64::from(boxes));
            for number in 0..boxes {
                let adapter = topology.add_node(format!("nic{number}.{rail}"), NodeKind::Port);
                topology.connect(NodeId(number * 8 + rail), adapter, 700, self.bus);
                topology.connect(adapter, node, 700, self.adapter);
            }
        }
        topology
    }
}

/// A box that networks are made of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum BoxKind {
    DgxA100,
    DgxH100,
    DgxH200,
    Pcie,
}

impl BoxKind {
    pub(super) const ALL: [BoxKind; 4] =
        [BoxKind::DgxA100, BoxKind::DgxH100, BoxKind::DgxH200, BoxKind::Pcie];

    /// GPUs of a box of each kind.
    pub(super) const GPUS: u32 = 8;

    fn dgx(self) -> Option<&'static Dgx> {
        match self {
            BoxKind::DgxA100 => Some(&DGX_A100),
            BoxKind::DgxH100 => Some(&DGX_H100),
            BoxKind::DgxH200 => Some(&DGX_H200),
            BoxKind::Pcie => None,
        }
    }

    /// As its profile.
    pub(super) fn name(self) -> &'static str {
        self.dgx().map_or("pcie", |dgx| dgx.name)
    }

    /// Network adapters of a box, each on a rail.
    pub(super) fn adapters(self) -> u32 {
        if self == BoxKind::Pcie { 1 } else { 8 }
    }

    /// Gigabits a second of an adapter.
    pub(super) fn adapter_gbit(self) -> u32 {
        self.dgx().map_or(100, |dgx| (dgx.adapter * 8 / GB) as u32)
    }

    /// The boxes without a network, and their adapters: those of box 0 in the order of their rails, then those of box 1.
    pub(super) fn boxes(self, boxes: u32) -> (Topology, Vec<NodeId>) {
        let Some(dgx) = self.dgx() else {
            let mut topology = with_ranks(format!("pcie:{boxes}"), PCIE_COSTS, boxes * 8, 8);
            let sockets: Vec<NodeId> = (0..boxes).map(|number| inside_pcie(&mut topology, number)).collect();
            let adapter = |(number, socket): (u32, NodeId)| {
                let adapter = topology.add_node(format!("nic{number}.0"), NodeKind::Port);
                topology.connect(socket, adapter, 300, LANES);
                adapter
            };
            let adapters = (0..).zip(sockets).map(adapter).collect();
            return (topology, adapters);
        };
        let mut topology = dgx.inside(boxes);
        let adapter = |gpu: u32| {
            let adapter = topology.add_node(format!("nic{}.{}", gpu / 8, gpu % 8), NodeKind::Port);
            topology.connect(NodeId(gpu), adapter, 700, dgx.bus);
            adapter
        };
        let adapters = (0..boxes * 8).map(adapter).collect();
        (topology, adapters)
    }
}

fn with_ranks(name: String, costs: Costs, ranks: u32, a_box: u32) -> Topology {
    assert!(ranks > 0, "{name} has no rank");
    let mut topology = Topology::new(name, costs);
    for rank in 0..ranks {
        let kind = NodeKind::Rank { in_box: rank / a_box, inject_bytes_s: None, eject_bytes_s: None };
        topology.add_node(format!("r{rank}"), kind);
    }
    topology
}

fn shared_memory(topology: &mut Topology, number: u32, ranks: impl IntoIterator<Item = u32>) {
    let memory = topology.add_node(format!("memory{number}"), SWITCH);
    for rank in ranks {
        topology.connect(NodeId(rank), memory, NEAR_LINE_NS, NEAR_BYTES_S);
    }
}
