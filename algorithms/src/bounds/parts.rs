//! Counting messages: what an all-reduce without in-network compute must send between the parts of a partition.
//!
//! Each element needs `b - 1` merges and `b - 1` copies between `b` parts: in one-way messages, the least that gives
//! every part what every part had is `2 (b - 1)`. Each of these messages leaves its part once, so `2 (b - 1) M` is at
//! most the time multiplied with the sum of what can leave the parts; the same holds for what can enter them.
//!
//! Source: P. Patarasuk and X. Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations" (2009), for
//! single ranks; F. Harary and A. Schwenk, "The communication problem on graphs and digraphs" (1974), for the number of
//! messages. What can leave a set of ranks is a submodular function, so the best partition is found by the greedy
//! algorithm for Dilworth truncations (A. Frank and É. Tardos, "Generalized polymatroids and submodular flows", 1988)
//! inside Dinkelbach's search.

use super::classes::Classes;
use super::flow::{ENDLESS, Flow};
use super::network::Network;
use super::ratio::Ratio;
use super::trees::out_of_ranks;

/// A partition of the ranks and the rate of an all-reduce that it allows.
#[derive(Clone, Debug)]
pub(super) struct Counted {
    pub(super) rate: Ratio,
    pub(super) parts: Vec<Vec<u32>>,
    /// For each part the nodes that this much leaves, in the network where it was counted.
    pub(super) sides: Vec<Vec<bool>>,
}

/// The rate that a partition of at least 2 parts allows: the sum of what can leave them through `2 (b - 1)`.
pub(super) fn counted(network: &Network, symmetries: &Classes, parts: &[Vec<u32>]) -> Counted {
    let (out, sides): (Vec<u128>, Vec<Vec<bool>>) =
        parts.iter().map(|part| out_of_ranks(network, symmetries, part)).unzip();
    let rate = Ratio::new(out.iter().sum(), 2 * (parts.len() as u128 - 1));
    Counted { rate, parts: parts.to_vec(), sides }
}

/// The partition that allows the least rate, from any start.
pub(super) fn tightest(network: &Network, symmetries: &Classes, start: Counted) -> Counted {
    let mut best = start;
    loop {
        let parts = greedy(network, best.rate);
        if parts.len() < 2 {
            return best;
        }
        let found = counted(network, symmetries, &parts);
        if found.rate >= best.rate {
            return best;
        }
        best = found;
    }
}

/// A partition whose sum of `f(part) - 2 rate` is least; `f` is what can leave a part.
fn greedy(network: &Network, rate: Ratio) -> Vec<Vec<u32>> {
    let scale = rate.denominator() as i128;
    let price = 2 * rate.numerator() as i128;
    let ranks = network.ranks as usize;
    let mut worth = vec![0i128; ranks];
    let mut parts: Vec<Vec<u32>> = Vec::new();
    for rank in 0..ranks {
        let (source, sink) = (network.nodes(), network.nodes() + 1);
        let mut flow = Flow::new(network.nodes() + 2);
        for arc in &network.arcs {
            flow.add(arc.from as usize, arc.to as usize, arc.capacity * scale as u128);
        }
        let mut gained = 0i128;
        for (other, &worth) in worth[..rank].iter().enumerate() {
            if worth > 0 {
                flow.add(source, other, worth.unsigned_abs());
                gained += worth;
            } else if worth < 0 {
                flow.add(other, sink, worth.unsigned_abs());
            }
        }
        flow.add(source, rank, ENDLESS);
        (rank + 1..ranks).for_each(|other| flow.add(other, sink, ENDLESS));
        // The last rank's set may hold all ranks; then nothing leaves it.
        let value = flow.maximum(source, sink) as i128;
        worth[rank] = value - gained - price;
        let outside = flow.sink_side(sink);
        let mut part = vec![rank as u32];
        parts.retain(|other: &Vec<u32>| {
            let joins = other.iter().any(|member| !outside[*member as usize]);
            if joins {
                part.extend(other);
            }
            !joins
        });
        part.sort_unstable();
        parts.push(part);
    }
    parts.sort_unstable();
    parts
}
