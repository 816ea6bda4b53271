//! Bounds against the search through all cuts and all partitions of small machines.

use consort_algorithms::Collective;
use consort_algorithms::bounds::{Bound, Options, Ratio, bound};
use consort_algorithms::topology::{NodeKind, Topology};

use crate::common::machines::machine;
use crate::common::{Random, seed};

/// The capacity out of every set of nodes, by the set's bits. A limit of a rank in the set takes the place of its links where it
/// is less; the machines here relay nothing, so that all that leaves a rank is its own.
struct Cuts {
    ranks: u32,
    out: Vec<u128>,
}

impl Cuts {
    fn new(topology: &Topology) -> Cuts {
        let limit = |node: usize, leaves: bool| match topology.nodes()[node].kind {
            NodeKind::Rank { inject_bytes_s, eject_bytes_s, .. } => {
                if leaves {
                    inject_bytes_s
                } else {
                    eject_bytes_s
                }
            }
            _ => None,
        };
        let nodes = topology.nodes().len();
        // Gates of ranks with a limit are nodes of their own: all placements of them are tried.
        let mut arcs: Vec<(usize, usize, u128)> = Vec::new();
        let (mut left, mut entered): (Vec<usize>, Vec<usize>) = ((0..nodes).collect(), (0..nodes).collect());
        let mut count = nodes;
        for rank in 0..topology.ranks() as usize {
            if let Some(limit) = limit(rank, true) {
                arcs.push((rank, count, limit.into()));
                left[rank] = count;
                count += 1;
            }
            if let Some(limit) = limit(rank, false) {
                arcs.push((count, rank, limit.into()));
                entered[rank] = count;
                count += 1;
            }
        }
        for link in topology.links() {
            arcs.push((left[link.from.index()], entered[link.to.index()], link.bandwidth_bytes_s.into()));
        }
        let ranks = topology.ranks();
        // By the ranks in the set: the least over all placements of the other nodes.
        let mut out = vec![u128::MAX; 1 << ranks];
        for set in 0usize..1 << count {
            let has = |node: usize| set >> node & 1 == 1;
            let sum = arcs.iter().filter(|arc| has(arc.0) && !has(arc.1)).map(|arc| arc.2).sum();
            let of_ranks = set & ((1 << ranks) - 1);
            out[of_ranks] = out[of_ranks].min(sum);
        }
        Cuts { ranks, out }
    }

    /// All sets of ranks with some inside and some outside: out of it, into it, and its size.
    fn sets(&self) -> impl Iterator<Item = (usize, u128, u128, u128)> {
        let all = (1usize << self.ranks) - 1;
        (1..all).map(move |set| (set, self.out[set], self.out[all & !set], u128::from(set.count_ones())))
    }

    /// The least of all partitions into at least 2 parts.
    fn counted(&self, leaves: bool) -> Ratio {
        let all = (1usize << self.ranks) - 1;
        let of = |part: usize| if leaves { self.out[part] } else { self.out[all & !part] };
        let mut best: Option<Ratio> = None;
        // (what is left to place, the sum so far, the parts so far)
        let mut open = vec![(all, 0u128, 0u128)];
        while let Some((left, sum, parts)) = open.pop() {
            if left == 0 {
                if parts > 1 {
                    let rate = Ratio::new(sum, 2 * (parts - 1));
                    best = Some(best.map_or(rate, |best| best.min(rate)));
                }
                continue;
            }
            let first = left & left.wrapping_neg();
            let rest = left & !first;
            let mut more = rest;
            loop {
                open.push((rest & !more, sum + of(first | more), parts + 1));
                if more == 0 {
                    break;
                }
                more = (more - 1) & rest;
            }
        }
        best.expect("a partition")
    }
}

fn found(topology: &Topology, collective: Collective) -> Bound {
    bound(topology, collective, &Options::default()).expect("a bound")
}

#[test]
fn bounds_are_the_least_of_all_cuts_and_partitions() {
    let mut random = Random::new(seed(0xb0d2));
    let (mut by_cut, mut by_count, mut in_parts, mut exact, mut balanced) = (0, 0, 0, 0, 0);
    for case in 0..250 {
        let mut topology = machine(&mut random, 5, 2);
        topology.relay = false;
        let cuts = Cuts::new(&topology);
        let ranks = u128::from(topology.ranks());
        let least = |rate: &dyn Fn(u128, u128, u128) -> Ratio| {
            cuts.sets().map(|(_, out, into, size)| rate(out, into, size)).min().expect("a set")
        };
        let gather = least(&|out, _, size| Ratio::new(out * ranks, size));
        assert_eq!(found(&topology, Collective::AllGather).rate, gather, "case {case}\n{topology}");
        let scatter = least(&|out, _, size| Ratio::new(out * ranks, ranks - size));
        assert_eq!(found(&topology, Collective::ReduceScatter).rate, scatter, "case {case}\n{topology}");
        let cut = least(&|out, _, _| Ratio::new(out, 1));
        assert_eq!(found(&topology, Collective::Broadcast).rate, cut, "case {case}\n{topology}");
        assert_eq!(found(&topology, Collective::Reduce).rate, cut, "case {case}\n{topology}");
        let counted = cuts.counted(true).min(cuts.counted(false));
        let reduce = found(&topology, Collective::AllReduce);
        assert_eq!(reduce.rate, cut.min(counted), "case {case}: {reduce:?}\n{topology}");
        by_cut += usize::from(cut < counted);
        by_count += usize::from(counted < cut);
        exact += usize::from(reduce.exact);
        balanced += usize::from(found(&topology, Collective::AllGather).exact);
        in_parts += usize::from(reduce.cut.words.contains("parts"));
        for root in 0..topology.ranks() {
            let options = Options { root: Some(consort_algorithms::Rank(root)), in_network: false };
            let from = cuts.sets().filter(|set| set.0 >> root & 1 == 1).map(|set| set.1).min();
            let to = cuts.sets().filter(|set| set.0 >> root & 1 == 0).map(|set| set.1).min();
            for (collective, least) in [(Collective::Broadcast, from), (Collective::Reduce, to)] {
                let rate = bound(&topology, collective, &options).expect("a bound").rate;
                assert_eq!(
                    Some(rate),
                    least.map(|least| Ratio::new(least, 1)),
                    "case {case}, {root}\n{topology}"
                );
            }
        }
        // The all-to-all is not above any cut, and below all of them only by distances.
        let pairs = least(&|out, _, size| Ratio::new(out * ranks, size * (ranks - size)));
        let exchange = found(&topology, Collective::AllToAll);
        assert!(exchange.rate <= pairs, "case {case}: {exchange:?}, the cut {pairs}\n{topology}");
        if exchange.argument.name() == "pairs-cut" {
            assert_eq!(exchange.rate, pairs, "case {case}\n{topology}");
        }
    }
    println!(
        "all-reduce by a cut {by_cut}, by counting {by_count}, in parts {in_parts}; exact {exact} of {balanced} with balanced switches"
    );
    assert!(by_cut > 10 && by_count > 10 && in_parts > 3 && exact > 10, "the machines are too alike");
}
