//! Rings and trees that a file of NCCL's names, as those of a job's ranks.
//!
//! Source: NCCL at commit 5067397c, `src/graph/connect.cc` (`ncclTopoPreset`, `connectRings`, `connectTrees`). Invariant: each ring and
//! each tree has all ranks once; a file that names other GPUs is refused, with its line. Absent: whether links carry what the file says,
//! and channels of switches that fold.

use std::collections::{BTreeMap, BTreeSet};

use super::{Ring, Rings, Tree, Trees};
use crate::Rank;
use crate::bounds::Ratio;
use crate::hardware::exchange::{Channel, Graph, Graphs, Pattern};

/// The most different rings, and trees: those that carry most.
const CHANNELS_MAX: usize = 16;
/// Bytes a second of a channel whose graph says none: they share alike.
const UNKNOWN_BYTES_S: u64 = 1_000_000_000;

/// The ranks of the hosts, by the numbers of their GPUs.
type Hosts = Vec<BTreeMap<u64, u32>>;

/// The rings and trees of a file for ranks that are each on a host, counted from 0, and have a GPU with a number there. The file has one host; a
/// channel passes all hosts alike, in their order.
///
/// # Errors
/// The line, what does not fit, and what to do.
pub fn given(graphs: &Graphs, ranks: &[(u32, u64)]) -> Result<(Rings, Trees), String> {
    let mut hosts: Hosts =
        vec![BTreeMap::new(); ranks.iter().map(|(host, _)| *host as usize + 1).max().unwrap_or(0)];
    for ((host, number), rank) in ranks.iter().zip(0..) {
        if let Some(other) = hosts[*host as usize].insert(*number, rank) {
            return Err(format!(
                "ranks {other} and {rank} share GPU {number}; give each rank a GPU of its own"
            ));
        }
    }
    let (mut rings, mut trees) = (Vec::new(), Vec::new());
    for graph in &graphs.graphs {
        let is_ring = graph.pattern == Pattern::Ring;
        if !is_ring && !matches!(graph.pattern, Pattern::Tree | Pattern::SplitTree | Pattern::BalancedTree) {
            continue;
        }
        for (channel, at) in graph.channels.iter().zip(0..) {
            let chains = chains(channel, &hosts).map_err(|why| {
                let line = channel.line.map_or(String::new(), |line| format!("line {line}: "));
                format!(
                    "{line}channel {at} of graph {} {why}; use a file that was written for the GPUs of this job, or none",
                    graph.id
                )
            })?;
            let speed = speed(graph, hosts.len());
            match is_ring {
                true => add(&mut rings, in_a_row(&chains), speed),
                false => add(&mut trees, parents(&chains, graph.pattern, at % 2 == 1), speed),
            }
        }
    }
    let ring = |(order, speed): (Vec<Rank>, u64)| Ring {
        order,
        hops: Vec::new(),
        bytes_s: Ratio::new(speed.into(), 1),
    };
    let tree = |(parents, speed): (Vec<Option<Rank>>, u64)| Tree {
        parents,
        down: Vec::new(),
        up: Vec::new(),
        bytes_s: Ratio::new(speed.into(), 1),
    };
    // No machine is asked what is possible.
    let (rings, trees) =
        (most(rings).into_iter().map(ring).collect(), most(trees).into_iter().map(tree).collect());
    Ok((Rings { rings, limit: Ratio::ZERO }, Trees { trees, limit: Ratio::ZERO }))
}

fn speed(graph: &Graph, hosts: usize) -> u64 {
    let between = Some(graph.inter_bytes_s).filter(|_| hosts > 1);
    let known = [Some(graph.intra_bytes_s), between].into_iter().flatten().filter(|speed| *speed > 0);
    known.min().unwrap_or(UNKNOWN_BYTES_S)
}

/// Channels that are alike are one that carries what they do together.
fn add<T: PartialEq>(all: &mut Vec<(T, u64)>, channel: T, speed: u64) {
    match all.iter_mut().find(|(known, _)| *known == channel) {
        Some((_, total)) => *total = total.saturating_add(speed),
        None => all.push((channel, speed)),
    }
}

fn most<T>(mut all: Vec<(T, u64)>) -> Vec<(T, u64)> {
    all.sort_by_key(|(_, speed)| std::cmp::Reverse(*speed));
    all.truncate(CHANNELS_MAX);
    all
}

/// The ranks of each host in the order of the channel's GPUs.
fn chains(channel: &Channel, hosts: &Hosts) -> Result<Vec<Vec<u32>>, String> {
    if hosts.len() > 1 && channel.nets.is_empty() {
        return Err(format!("enters and leaves by no port, and the job has {} hosts", hosts.len()));
    }
    let named: BTreeSet<u64> = channel.gpus.iter().map(|gpu| gpu.index).collect();
    hosts
        .iter()
        .map(|ranks| {
            if let Some((number, rank)) = ranks.iter().find(|(number, _)| !named.contains(number)) {
                return Err(format!("does not name GPU {number}, which rank {rank} has"));
            }
            let rank = |gpu: &crate::hardware::exchange::ChannelGpu| {
                let rank = ranks.get(&gpu.index).copied();
                rank.ok_or_else(|| format!("names GPU {}, which no rank has", gpu.index))
            };
            channel.gpus.iter().map(rank).collect()
        })
        .collect()
}

/// A ring: one host's ranks after the other's, from rank 0.
fn in_a_row(chains: &[Vec<u32>]) -> Vec<Rank> {
    let mut order: Vec<Rank> = chains.iter().flatten().map(|rank| Rank(*rank)).collect();
    let first = order.iter().position(|rank| rank.0 == 0).unwrap_or_default();
    order.rotate_left(first);
    order
}

/// A tree: a chain in each host from the first GPU, which hangs on its parent's host in a binary tree of hosts, for every second channel in
/// the opposite order. Which GPU of the parent's host it hangs on is the pattern.
fn parents(chains: &[Vec<u32>], pattern: Pattern, is_mirrored: bool) -> Vec<Option<Rank>> {
    let mut parents = vec![None; chains.iter().map(Vec::len).sum()];
    let hosts: Vec<&Vec<u32>> =
        if is_mirrored { chains.iter().rev().collect() } else { chains.iter().collect() };
    for (at, chain) in hosts.iter().enumerate() {
        for pair in chain.windows(2) {
            parents[pair[1] as usize] = Some(Rank(pair[0]));
        }
        let (Some(above), Some(head)) = (at.checked_sub(1).map(|at| hosts[at / 2]), chain.first()) else {
            continue;
        };
        let place = match pattern {
            Pattern::SplitTree => 1,
            Pattern::BalancedTree => (at - 1) % 2,
            _ => 0,
        };
        parents[*head as usize] = above.get(place).or(above.first()).map(|rank| Rank(*rank));
    }
    parents
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Collective;
    use crate::hardware::exchange::{Content, read};

    fn graphs(channels: &[(&str, &[u64])], nets: bool) -> Graphs {
        let mut text = String::from("<graphs version=\"1\">\n");
        for (id, (pattern, gpus)) in channels.iter().enumerate() {
            text += &format!(
                "<graph id=\"{id}\" pattern=\"{pattern}\" nchannels=\"1\" speedintra=\"20\" speedinter=\"10\">\n<channel>\n"
            );
            let net = if nets { "<net dev=\"0x0\"/>\n" } else { "" };
            let gpus: String = gpus.iter().map(|gpu| format!("<gpu dev=\"{gpu:#x}\"/>\n")).collect();
            text += &format!("{net}{gpus}{net}</channel>\n</graph>\n");
        }
        match read((text + "</graphs>\n").as_bytes()).expect("graphs").content {
            Content::Graphs(graphs) => graphs,
            other => panic!("{other:?}"),
        }
    }

    fn ids(ranks: &[Rank]) -> Vec<u32> {
        ranks.iter().map(|rank| rank.0).collect()
    }

    #[test]
    fn rings_and_trees_of_a_file_are_those_of_the_ranks() {
        let ring: &[u64] = &[4, 2, 7, 0];
        let ranks = [(0, 0), (0, 2), (0, 4), (0, 7)];
        let (rings, trees) =
            given(&graphs(&[("4", ring), ("4", ring), ("3", ring)], false), &ranks).expect("they fit");
        assert_eq!(rings.rings.len(), 1, "equal rings are one");
        assert_eq!(
            (ids(&rings.rings[0].order), rings.total()),
            (vec![0, 2, 1, 3], Ratio::new(40_000_000_000, 1))
        );
        let above: Vec<Option<u32>> = trees.trees[0].parents.iter().map(|of| of.map(|rank| rank.0)).collect();
        assert_eq!(above, [Some(3), Some(2), None, Some(1)]);
        for collective in [Collective::AllReduce, Collective::Broadcast, Collective::Reduce] {
            assert!(rings.schedule(collective).is_some() && trees.schedule(collective).is_some());
        }
        // Switches that fold are no channels of ranks.
        assert!(given(&graphs(&[("5", &[9])], false), &ranks).is_ok_and(|(rings, _)| rings.rings.is_empty()));
    }

    #[test]
    fn several_hosts_are_passed_alike() {
        let ranks = [(0, 0), (1, 0), (0, 1), (1, 1), (2, 0), (2, 1)];
        let order: &[u64] = &[1, 0];
        let (rings, trees) =
            given(&graphs(&[("4", order), ("1", order), ("2", order), ("3", order)], true), &ranks)
                .expect("they fit");
        assert_eq!(ids(&rings.rings[0].order), [0, 3, 1, 5, 4, 2]);
        assert_eq!(rings.total(), Ratio::new(10_000_000_000, 1), "the way between hosts is slower");
        let above = |tree: usize| -> Vec<Option<u32>> {
            trees.trees[tree].parents.iter().map(|of| of.map(|rank| rank.0)).collect()
        };
        // Hosts 1 and 2 hang on host 0, whose chain is ranks 2 and 0: on both, on the second, or on the first.
        assert_eq!(above(0), [Some(2), Some(3), None, Some(2), Some(5), Some(0)], "balanced");
        assert_eq!(above(1), [Some(2), Some(3), None, Some(0), Some(5), Some(0)], "split");
        assert_eq!(above(2), [Some(2), Some(3), None, Some(2), Some(5), Some(2)], "plain");
        assert_eq!(
            parents(&[vec![0], vec![1], vec![2]], Pattern::Tree, true)
                .iter()
                .filter(|of| of.is_none())
                .count(),
            1
        );
    }

    #[test]
    fn what_does_not_fit_is_refused_with_its_line() {
        let refused = |gpus: &[u64], nets: bool, ranks: &[(u32, u64)]| {
            given(&graphs(&[("4", gpus)], nets), ranks).expect_err("it does not fit")
        };
        let two = [(0, 0), (0, 1)];
        let other = refused(&[0, 1, 2], false, &two);
        assert!(
            other.starts_with("line 3: channel 0 of graph 0 names GPU 2, which no rank has; use a file"),
            "{other}"
        );
        let missing = refused(&[0], false, &two);
        assert!(missing.contains("does not name GPU 1, which rank 1 has"), "{missing}");
        let hosts = refused(&[0], false, &[(0, 0), (1, 0)]);
        assert!(hosts.contains("by no port, and the job has 2 hosts"), "{hosts}");
        let shared = refused(&[0], false, &[(0, 0), (0, 0)]);
        assert!(shared.contains("ranks 0 and 1 share GPU 0"), "{shared}");
    }
}
