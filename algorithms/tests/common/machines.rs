//! Random machines, and the catalogue's schedules timed on them.

use consort_algorithms::bounds::{Options, bound};
use consort_algorithms::catalogue::{Shape, candidates};
use consort_algorithms::simulate::{self, simulate};
use consort_algorithms::topology::{Costs, Link, NodeId, NodeKind, Topology};
use consort_algorithms::{Collective, Rank, Schedule};

use super::Random;

/// The collectives that have bounds.
pub(crate) const BOUNDED: [Collective; 6] = [
    Collective::AllGather,
    Collective::ReduceScatter,
    Collective::Broadcast,
    Collective::Reduce,
    Collective::AllReduce,
    Collective::AllToAll,
];

/// A machine of 2 to `ranks_max` ranks in boxes, with switches, ports, limits and links of any capacity. A cycle of links
/// passes every node, so that every rank reaches every other; only some of the machines relay.
pub(crate) fn machine(random: &mut Random, ranks_max: usize, others_max: usize) -> Topology {
    let ranks = 2 + random.below(ranks_max - 1);
    let per_box = 1 + random.below(ranks);
    let mut topology = Topology::new("random", Costs::default());
    topology.relay = random.one_in(2);
    // Half of the machines have links both ways and few capacities, as real ones.
    let even = random.one_in(2);
    let capacities: &[u64] = if even { &[1, 2] } else { &[1, 2, 3, 5, 12, 25] };
    let giga = |random: &mut Random| random.pick(capacities) * 1_000_000_000u64;
    let limited = random.one_in(3);
    for rank in 0..ranks {
        let mut limit = || (limited && random.one_in(2)).then(|| giga(random));
        let kind = NodeKind::Rank {
            in_box: (rank / per_box) as u32,
            inject_bytes_s: limit(),
            eject_bytes_s: limit(),
        };
        topology.add_node(format!("r{rank}"), kind);
    }
    for other in 0..random.below(others_max + 1) {
        let kind = if random.one_in(2) { NodeKind::Port } else { NodeKind::Switch { aggregates: false } };
        topology.add_node(format!("s{other}"), kind);
    }
    let nodes = topology.nodes().len();
    let mut cycle: Vec<u32> = (0..nodes as u32).collect();
    random.shuffle(&mut cycle);
    let mut link = |random: &mut Random, from: u32, to: u32| {
        let (from, to) = (NodeId(from), NodeId(to));
        let (latency_ns, bandwidth_bytes_s) = (random.below(3) as u64, giga(random));
        topology.add_link(Link { from, to, latency_ns, bandwidth_bytes_s });
        if even {
            topology.add_link(Link { from: to, to: from, latency_ns, bandwidth_bytes_s });
        }
    };
    for at in 0..nodes {
        link(random, cycle[at], cycle[(at + 1) % nodes]);
    }
    for _ in 0..random.below(3 * nodes) {
        let (from, to) = (random.below(nodes) as u32, random.below(nodes) as u32);
        if from != to {
            link(random, from, to);
            if random.one_in(2) {
                link(random, to, from);
            }
        }
    }
    topology
}

/// Bytes of the buffer by which algorithm bandwidth counts: the larger one of a rank.
pub(crate) fn counted_bytes(collective: Collective, ranks: u32, block_bytes: usize) -> f64 {
    let blocks = collective.input_blocks(ranks).max(collective.output_blocks(ranks));
    f64::from(blocks) * block_bytes as f64
}

/// The algorithm bandwidth of a schedule in the simulator through its bound; none where it has no route. Above 1 only by
/// the rounding of times.
pub(crate) fn share_of_bound(schedule: &Schedule, topology: &Topology, block_bytes: usize) -> Option<f64> {
    let collective = schedule.collective;
    let options = simulate::Options { work: false, ..simulate::Options::new(block_bytes) };
    let outcome = simulate(schedule, topology, &options).ok()?;
    let rooted = matches!(collective, Collective::Broadcast | Collective::Reduce);
    // The root of a schedule is its rank 0.
    let options = Options { root: rooted.then_some(Rank(0)), in_network: schedule.switches > 0 };
    let bound = bound(topology, collective, &options).expect("a bound");
    let rate = counted_bytes(collective, topology.ranks(), block_bytes) / outcome.seconds();
    Some(rate / bound.rate.value())
}

/// Every schedule of the catalogue on a random machine: how many had a time, and the largest share of a bound.
pub(crate) fn shares(random: &mut Random) -> (usize, f64) {
    let topology = machine(random, 8, 4);
    let ranks = topology.ranks();
    let per_box = topology.boxes()[0].len() as u32;
    let even = topology.boxes().iter().all(|ranks| ranks.len() as u32 == per_box);
    let shape = Shape {
        per_box: if even { per_box } else { 1 },
        channels: 1 + random.below(2) as u16,
        bidirectional: random.one_in(2),
        all_pairs: true,
        rails: if even { per_box } else { 0 },
        ..Shape::default()
    };
    let block_bytes = 4096 + random.below(1 << 20);
    let (mut timed, mut most) = (0, 0.0f64);
    for collective in BOUNDED {
        for algorithm in candidates(collective, ranks, &shape) {
            let schedule = algorithm.schedule(collective, ranks);
            let Some(share) = share_of_bound(&schedule, &topology, block_bytes) else { continue };
            assert!(
                share <= 1.0 + 1e-4,
                "{algorithm} of {collective}, {block_bytes} bytes a block, is {share} of its bound on\n{topology}"
            );
            timed += 1;
            most = most.max(share);
        }
    }
    (timed, most)
}
