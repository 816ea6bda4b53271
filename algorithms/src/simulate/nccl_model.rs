//! NCCL's own model of its time, by which it chooses among its algorithms and protocols.
//!
//! Source: NVIDIA, NCCL, `src/graph/tuning.cc` at commit 5067397c: constants and formulas. Time = latency(collective,
//! algorithm, protocol) + bytes / bandwidth. The result of its graph search on a machine (channels and the bandwidth
//! of each) is an argument here, with the usual results as profiles. Reduce and broadcast are taken as on machines
//! where all channels run alike.
//!
//! Invariant: independent of the simulator, so that each can be compared with the other. Deliberately absent:
//! CollNet, PCIe machines, POWER, the batching of several operations, and the refusal of protocols on unsafe paths.

use crate::Collective;

/// NCCL's algorithms.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Algorithm {
    /// One ring over all ranks a channel.
    Ring,
    /// A chain in each box, two trees between the boxes.
    Tree,
    /// Multicast and reduction in the NVSwitch of one box.
    Nvls,
    /// The same in each box, trees between the boxes.
    NvlsTree,
    /// Parallel aggregated trees, one rank a box.
    Pat,
}

impl Algorithm {
    /// Every algorithm.
    pub const ALL: [Algorithm; 5] =
        [Algorithm::Ring, Algorithm::Tree, Algorithm::Nvls, Algorithm::NvlsTree, Algorithm::Pat];
}

/// NCCL's protocols: how a receiver learns that bytes have arrived.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Protocol {
    /// A flag with every 4 bytes.
    LowLatency,
    /// A flag with every 120 bytes.
    LowLatency128,
    /// A flag with every slice.
    Simple,
}

impl Protocol {
    /// Every protocol.
    pub const ALL: [Protocol; 3] = [Protocol::LowLatency, Protocol::LowLatency128, Protocol::Simple];
}

/// The family of GPUs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Generation {
    /// Compute capability 8.0.
    Ampere,
    /// Compute capability 9.0.
    Hopper,
    /// Compute capability 10.0.
    Blackwell,
}

/// The result of the graph search for an algorithm.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Graph {
    /// Channels.
    pub channels: u32,
    /// Bandwidth of a channel inside the box, GB/s.
    pub intra_gb_s: f64,
    /// Bandwidth of a channel between boxes, GB/s.
    pub inter_gb_s: f64,
}

/// The machine's parameters in the model. NVLink inside the boxes.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Machine {
    /// Its GPUs.
    pub generation: Generation,
    /// Whether the hosts' processors are AMD's.
    pub amd: bool,
    /// The time that the network adds to each of its hops, microseconds.
    pub net_us: f64,
    /// For rings, trees and PAT.
    pub ring: Graph,
    /// For NVLS and its trees; `None` without an aggregating switch.
    pub nvls: Option<Graph>,
}

impl Machine {
    /// 8 A100 a box: 12 channels of 20 GB/s inside (12 links of 20 GB/s net), `nics` of 200 Gb/s outside with a
    /// channel of 24 GB/s each.
    pub fn a100(nodes: u32, nics: u32) -> Machine {
        let ring = if nodes == 1 { graph(12, 20.0) } else { graph(nics, 24.0) };
        Machine { generation: Generation::Ampere, amd: true, net_us: 0.0, ring, nvls: None }
    }

    /// 8 H100 a box: 18 links of 20.6 GB/s net, that is 12 channels of 30 GB/s or 8 of 40 with NVLS; one adapter
    /// a GPU, a channel of `nic_gb_s` each (45 for 400 Gb/s, 24 for 200).
    pub fn h100(nodes: u32, nic_gb_s: f64) -> Machine {
        let ring = if nodes == 1 { graph(12, 30.0) } else { graph(8, nic_gb_s) };
        let nvls = Graph { channels: 8, intra_gb_s: 40.0, inter_gb_s: nic_gb_s };
        Machine { generation: Generation::Hopper, amd: false, net_us: 0.0, ring, nvls: Some(nvls) }
    }

    /// The same machine with either bandwidth multiplied by `factor`, for machines with fewer links.
    #[must_use]
    pub fn scaled(self, factor: f64) -> Machine {
        let scale = |graph: Graph| Graph {
            intra_gb_s: graph.intra_gb_s * factor,
            inter_gb_s: graph.inter_gb_s * factor,
            ..graph
        };
        Machine { ring: scale(self.ring), nvls: self.nvls.map(scale), ..self }
    }

    fn graph(&self, algorithm: Algorithm) -> Option<Graph> {
        match algorithm {
            Algorithm::Nvls | Algorithm::NvlsTree => self.nvls,
            _ => Some(self.ring),
        }
    }
}

fn graph(channels: u32, gb_s: f64) -> Graph {
    Graph { channels, intra_gb_s: gb_s, inter_gb_s: gb_s }
}

/// A call. The bytes are those of the largest buffer of a rank.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Call {
    /// The collective.
    pub collective: Collective,
    /// Number of ranks.
    pub ranks: u32,
    /// Number of boxes, with the same number of ranks in each.
    pub nodes: u32,
    /// The buffer.
    pub bytes: u64,
}

/// The model's time in microseconds; `None` where NCCL has no such combination.
pub fn predict_us(machine: &Machine, call: &Call, algorithm: Algorithm, protocol: Protocol) -> Option<f64> {
    if call.ranks < 2 || call.nodes == 0 || !exists(call, algorithm, protocol) {
        return None;
    }
    let graph = machine.graph(algorithm)?;
    let mut gb_s = bandwidth_gb_s(machine, call, algorithm, protocol, graph)?;
    let mut latency_us = latency_us(machine, call, algorithm, protocol);
    let size_class = (call.bytes >> 6).checked_ilog2().map(|class| class as usize);
    let falls_short = match algorithm {
        Algorithm::Tree => 23,
        Algorithm::NvlsTree if machine.generation == Generation::Blackwell => 24,
        _ => 0,
    };
    if let Some(class) = size_class.filter(|class| *class < falls_short) {
        gb_s *= TREE_CORRECTION[column(protocol)][class];
    }
    let ring_bytes = call.bytes / u64::from(graph.channels * call.ranks);
    let plateau = algorithm == Algorithm::Ring && protocol == Protocol::Simple && call.nodes > 1;
    if plateau && call.collective == Collective::AllReduce && ring_bytes >= 64 {
        latency_us *= 1.4;
    }
    Some(latency_us + call.bytes as f64 / (1000.0 * gb_s))
}

/// NCCL's choice: the combination with the least time.
pub fn choose(machine: &Machine, call: &Call) -> Option<(Algorithm, Protocol, f64)> {
    let all = Algorithm::ALL.into_iter().flat_map(|a| Protocol::ALL.into_iter().map(move |p| (a, p)));
    let times = all.filter_map(|(a, p)| predict_us(machine, call, a, p).map(|time_us| (a, p, time_us)));
    times.min_by(|one, other| one.2.total_cmp(&other.2))
}

fn exists(call: &Call, algorithm: Algorithm, protocol: Protocol) -> bool {
    let simple = protocol == Protocol::Simple;
    let spreads = matches!(call.collective, Collective::AllGather | Collective::ReduceScatter);
    let reduces_all = call.collective == Collective::AllReduce;
    match algorithm {
        Algorithm::Ring => !matches!(call.collective, Collective::SendReceive | Collective::AllToAll),
        Algorithm::Tree => reduces_all,
        Algorithm::Nvls => simple && call.nodes == 1 && (reduces_all || spreads),
        Algorithm::NvlsTree => simple && call.nodes > 1 && reduces_all,
        Algorithm::Pat => simple && spreads && call.nodes == call.ranks,
    }
}

/// Steps of the ring.
fn steps(call: &Call) -> u32 {
    match call.collective {
        Collective::AllReduce => 2 * (call.ranks - 1),
        Collective::ReduceScatter | Collective::AllGather => call.ranks - 1,
        _ => call.ranks,
    }
}

/// The bandwidth of the buffer, not of the bus; `None` when nothing is left.
fn bandwidth_gb_s(
    machine: &Machine,
    call: &Call,
    algorithm: Algorithm,
    protocol: Protocol,
    graph: Graph,
) -> Option<f64> {
    let caps = caps(machine.generation, call.nodes);
    let channels = f64::from(graph.channels);
    let a_box = f64::from(call.ranks) / f64::from(call.nodes);
    let reduces_all = call.collective == Collective::AllReduce;
    let channel = match algorithm {
        Algorithm::Nvls | Algorithm::NvlsTree => {
            let twice = if reduces_all { 2.0 } else { (a_box - 1.0) / a_box };
            let intra = graph.intra_gb_s * caps.nvls_efficiency * (channels - 1.0) / channels * twice;
            let inter = graph.inter_gb_s * if call.nodes <= 2 { 2.0 } else { 1.0 };
            if algorithm == Algorithm::NvlsTree { intra.min(inter).min(caps.nvls_tree) } else { intra }
        }
        _ if call.nodes <= 2 => graph.intra_gb_s,
        _ => graph.inter_gb_s,
    };
    let bus = channels * channel;
    // The model's table for LL goes by the GPU in one box and by the host's processor between boxes.
    let ll_max = match (call.nodes, machine.amd) {
        (1, _) => caps.ll_one_box,
        (2, false) => 39.0,
        (2, true) => 22.5,
        (_, false) => 20.4,
        (_, true) => 19.0,
    };
    let bus = match (algorithm, protocol) {
        (Algorithm::Ring, Protocol::LowLatency) => (bus * 0.5).min(ll_max),
        (Algorithm::Ring, Protocol::LowLatency128) => (bus * 0.92).min(channels * caps.ring_ll128),
        (Algorithm::Tree, _) => {
            let bus = (bus * 0.92).min(channels * caps.tree);
            let flagged = if call.nodes == 1 { 7.0 / 9.0 } else { 120.0 / 128.0 };
            match protocol {
                Protocol::LowLatency => (bus / 3.8).min(ll_max),
                Protocol::LowLatency128 => (bus * flagged).min(channels * caps.tree_ll128),
                Protocol::Simple => bus,
            }
        }
        (Algorithm::Pat, _) => bus * 0.75,
        _ => bus,
    };
    let ratio = match algorithm {
        Algorithm::Tree => 0.5,
        Algorithm::Pat => 1.0,
        Algorithm::Nvls if !reduces_all => 1.0,
        _ => f64::from(call.ranks) / f64::from(steps(call)),
    };
    Some(bus * ratio).filter(|gb_s| *gb_s > 0.0)
}

fn latency_us(machine: &Machine, call: &Call, algorithm: Algorithm, protocol: Protocol) -> f64 {
    let (simple, column) = (protocol == Protocol::Simple, column(protocol));
    let (base, intra, net) = match algorithm {
        Algorithm::Tree => ([6.8, 14.0, 8.4], [0.6, 1.25, 4.0], TREE_NET),
        Algorithm::Ring => ([6.6, 14.0, 8.4], [0.6, 1.9, 3.4], [2.7, 4.0, 14.0]),
        Algorithm::Nvls => ([0.0; 3], [0.0, 0.0, 25.0], [0.0, 0.0, 18.0]),
        Algorithm::NvlsTree => ([0.0; 3], [0.0, 0.0, 25.0], [0.0, 0.0, 20.9]),
        Algorithm::Pat => ([8.0; 3], [0.0, 0.0, 4.0], [0.0, 0.0, 14.0]),
    };
    let (base, intra) = (base[column], intra[column]);
    // With one rank a box no time hides a hop of the network.
    let net = if call.ranks == call.nodes { TREE_NET } else { net };
    let inter = net[column] + machine.net_us * if simple { 2.0 } else { 1.0 };
    let (nodes, steps) = (call.nodes, steps(call));
    let levels = f64::from(nodes.ilog2());
    match algorithm {
        Algorithm::Ring if matches!(call.collective, Collective::Reduce | Collective::Broadcast) => {
            base + if nodes == 1 { intra } else { net[column] }
        }
        Algorithm::Ring => {
            let post = if machine.amd { 2.0 } else { 1.0 };
            let post = if nodes == 1 { 0.0 } else { post * if simple { 3.0 } else { 1.0 } };
            let crossings = (steps / (call.ranks - 1)) * (nodes - 1);
            base + f64::from(steps - crossings) * intra.max(post) + f64::from(crossings) * inter
        }
        Algorithm::Tree => base + 2.0 * (f64::from(call.ranks / nodes - 1) * intra + levels * inter),
        Algorithm::Nvls => intra,
        Algorithm::NvlsTree => base + intra + 2.0 * levels * inter,
        Algorithm::Pat => base + levels * inter / 3.5 + f64::from(call.ranks) * 2.8,
    }
}

const TREE_NET: [f64; 3] = [5.0, 8.5, 14.0];

/// The bandwidth of a channel of a generation, for this number of boxes, GB/s.
struct Caps {
    nvls_efficiency: f64,
    ll_one_box: f64,
    ring_ll128: f64,
    tree_ll128: f64,
    tree: f64,
    nvls_tree: f64,
}

fn caps(generation: Generation, nodes: u32) -> Caps {
    let column = nodes.clamp(1, 3) as usize - 1;
    let at = |values: [f64; 3]| values[column];
    match generation {
        Generation::Ampere => Caps {
            nvls_efficiency: 0.0,
            ll_one_box: 87.7,
            ring_ll128: 20.0,
            tree_ll128: 20.0,
            tree: at([24.0, 23.6, 17.8]),
            nvls_tree: at([24.0, 23.6, 17.8]),
        },
        Generation::Hopper => Caps {
            nvls_efficiency: 0.85,
            ll_one_box: 141.0,
            ring_ll128: 36.7,
            tree_ll128: at([36.7, 36.7, 29.0]),
            tree: at([38.7, 41.4, 36.0]),
            nvls_tree: at([0.0, 57.7, 45.5]),
        },
        Generation::Blackwell => Caps {
            nvls_efficiency: 0.74,
            ll_one_box: 282.0,
            ring_ll128: 40.0,
            tree_ll128: at([55.6, 31.67, 20.0]),
            tree: at([70.0, 42.8, 24.0]),
            nvls_tree: at([0.0, 96.0, 80.0]),
        },
    }
}

fn column(protocol: Protocol) -> usize {
    match protocol {
        Protocol::LowLatency => 0,
        Protocol::LowLatency128 => 1,
        Protocol::Simple => 2,
    }
}

/// The factor by which trees fall short of their bandwidth, by the logarithm of the size in units of 64 bytes.
const TREE_CORRECTION: [[f64; 24]; 3] = [
    [
        1.0, 1.0, 1.0, 1.0, 0.9, 0.8, 0.7, 0.7, 0.7, 0.7, 0.6, 0.5, 0.4, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0,
        1.0, 1.0, 1.0, 1.0,
    ],
    [
        1.0, 1.0, 1.0, 1.0, 1.0, 0.9, 0.8, 0.8, 0.8, 0.7, 0.6, 0.6, 0.6, 0.6, 0.6, 0.6, 0.8, 0.9, 0.9, 0.9,
        0.9, 1.0, 1.0, 1.0,
    ],
    [
        0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.8, 0.7, 0.6, 0.6, 0.5, 0.5, 0.5, 0.5, 0.6, 0.7, 0.8, 0.7, 0.7,
        0.8, 0.9, 0.9, 0.9,
    ],
];

#[cfg(test)]
mod tests {
    use super::*;

    fn all_reduce(ranks: u32, nodes: u32, bytes: u64) -> Call {
        Call { collective: Collective::AllReduce, ranks, nodes, bytes }
    }

    /// The expected time is computed by hand from latency in microseconds and GB/s of the buffer.
    fn close(time_us: Option<f64>, latency_us: f64, bytes: u64, gb_s: f64) {
        let expected = latency_us + bytes as f64 / (1000.0 * gb_s);
        let time_us = time_us.expect("the combination exists");
        assert!((time_us - expected).abs() < 1e-9 * expected, "{time_us} {expected}");
    }

    #[test]
    fn one_box_is_the_formula() {
        let (h100, call) = (Machine::h100(1, 45.0), all_reduce(8, 1, 1 << 30));
        let of = |algorithm, protocol| predict_us(&h100, &call, algorithm, protocol);
        close(of(Algorithm::Ring, Protocol::Simple), 8.4 + 14.0 * 3.4, call.bytes, 360.0 * 8.0 / 14.0);
        close(of(Algorithm::Ring, Protocol::LowLatency), 6.6 + 14.0 * 0.6, call.bytes, 141.0 * 8.0 / 14.0);
        close(of(Algorithm::Tree, Protocol::Simple), 8.4 + 14.0 * 4.0, call.bytes, 360.0 * 0.92 / 2.0);
        close(of(Algorithm::Nvls, Protocol::Simple), 25.0, call.bytes, 40.0 * 0.85 * 7.0 * 2.0 * 8.0 / 14.0);
        assert_eq!(of(Algorithm::NvlsTree, Protocol::Simple), None);
        assert_eq!(of(Algorithm::Nvls, Protocol::LowLatency), None);
        assert_eq!(predict_us(&Machine::a100(1, 8), &call, Algorithm::Nvls, Protocol::Simple), None);
    }

    #[test]
    fn boxes_are_the_formula() {
        let (h100, call) = (Machine::h100(4, 45.0), all_reduce(32, 4, 1 << 26));
        let of = |algorithm, protocol| predict_us(&h100, &call, algorithm, protocol);
        let ring_us = 8.4 + 56.0 * 3.4 + 6.0 * 14.0;
        close(of(Algorithm::Ring, Protocol::Simple), 1.4 * ring_us, call.bytes, 360.0 * 32.0 / 62.0);
        let tree_us = 6.8 + 2.0 * (7.0 * 0.6 + 2.0 * 5.0);
        // Size class 20 is not corrected for LL.
        close(of(Algorithm::Tree, Protocol::LowLatency), tree_us, call.bytes, 20.4 / 2.0);
        close(of(Algorithm::NvlsTree, Protocol::Simple), 25.0 + 4.0 * 20.9, call.bytes, 360.0 * 32.0 / 62.0);
        let gather = Call { collective: Collective::AllGather, ranks: 4, ..call };
        let pat = predict_us(&h100, &gather, Algorithm::Pat, Protocol::Simple);
        close(pat, 8.0 + 2.0 * 14.0 / 3.5 + 4.0 * 2.8, call.bytes, 360.0 * 0.75);
        assert_eq!(of(Algorithm::Pat, Protocol::Simple), None);
    }

    #[test]
    fn small_calls_take_ll_and_large_ones_nvls() {
        let h100 = Machine::h100(1, 45.0);
        let chosen = |bytes| choose(&h100, &all_reduce(8, 1, bytes)).map(|(a, p, _)| (a, p));
        assert_eq!(chosen(8).map(|chosen| chosen.1), Some(Protocol::LowLatency));
        assert_eq!(chosen(1 << 30), Some((Algorithm::Nvls, Protocol::Simple)));
    }
}
