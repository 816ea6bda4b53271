//! Switches taken out of a graph: what passes them becomes edges between their neighbours.
//!
//! A switch is tried by structure first: its ports spread over rails (ranks of equal place in their boxes) or over all
//! pairs. Where trees are lost by that, pairs of edges are split off one by one, each by as much as the flows to all
//! ranks allow.
//!
//! Source: J. Bang-Jensen, A. Frank and B. Jackson, "Preserving and increasing local edge-connectivity in mixed
//! graphs" (1995), for splitting where as much enters as leaves; L. Zhao et al., "ForestColl" (arXiv 2402.06787), for
//! its use. Invariant: every rank is reached by all trees afterwards, by ways that are allowed, or there is no result.

use super::graph::{Demand, Edge, Graph};
use super::spread::spread;
use super::ways::Ways;

/// The graph between ranks alone; none where trees are lost. `place` gives the box of each rank and its place there.
pub(super) fn without_switches(
    mut graph: Graph,
    demand: &Demand,
    ways: &Ways,
    place: &[(u32, u32)],
) -> Option<Graph> {
    let mut left: Vec<u32> = (graph.ranks..graph.nodes).collect();
    while let Some(at) = (0..left.len()).min_by_key(|at| (neighbours(&graph, left[*at]), left[*at])) {
        let switch = left.swap_remove(at);
        graph = by_structure(&graph, demand, ways, place, switch)
            .or_else(|| by_pairs(&graph, demand, ways, switch))?;
    }
    let ranks = graph.ranks;
    graph.edges.retain(|edge| edge.capacity > 0 && ways.allow(ranks, edge.from, edge.to, &edge.path));
    graph.nodes = ranks;
    graph.carries(demand).then_some(graph)
}

fn neighbours(graph: &Graph, node: u32) -> usize {
    let ends = graph.edges.iter().filter(|edge| edge.capacity > 0).filter_map(|edge| {
        if edge.from == node { Some(edge.to) } else { (edge.to == node).then_some(edge.from) }
    });
    ends.collect::<std::collections::BTreeSet<u32>>().len()
}

/// The edges into and out of a node, which are taken out of the graph.
fn take_out(graph: &mut Graph, node: u32) -> (Vec<Edge>, Vec<Edge>) {
    let all = std::mem::take(&mut graph.edges);
    let (touching, others): (Vec<Edge>, Vec<Edge>) =
        all.into_iter().partition(|edge| edge.from == node || edge.to == node);
    graph.edges = others;
    touching.into_iter().filter(|edge| edge.capacity > 0).partition(|edge| edge.to == node)
}

fn joined(into: &Edge, out: &Edge, capacity: u128) -> Edge {
    let path = into.path.iter().chain(&out.path).copied().collect();
    Edge { from: into.from, to: out.to, capacity, path }
}

fn allows(graph: &Graph, ways: &Ways, into: &Edge, out: &Edge) -> bool {
    into.from != out.to && ways.allow(graph.ranks, into.from, out.to, &joined(into, out, 0).path)
}

fn by_structure(
    graph: &Graph,
    demand: &Demand,
    ways: &Ways,
    place: &[(u32, u32)],
    switch: u32,
) -> Option<Graph> {
    let mut bare = graph.clone();
    let (into, out) = take_out(&mut bare, switch);
    let capacities = |edges: &[Edge]| edges.iter().map(|edge| edge.capacity).collect::<Vec<u128>>();
    let is_rail = |from: usize, to: usize| {
        let of = |node: u32| place.get(node as usize);
        matches!((of(into[from].from), of(out[to].to)), (Some(one), Some(other)) if one.0 != other.0 && one.1 == other.1)
    };
    let is_allowed = |from: usize, to: usize| allows(graph, ways, &into[from], &out[to]);
    [true, false].into_iter().find_map(|rails| {
        let mut tried = bare.clone();
        let pairs = spread(&capacities(&into), &capacities(&out), |from, to| {
            is_allowed(from, to) && (!rails || is_rail(from, to))
        });
        // Where as much enters as leaves, the neighbours keep that only if all of it passes.
        let sum = |edges: &[Edge]| edges.iter().map(|edge| edge.capacity).sum::<u128>();
        let passed: u128 = pairs.iter().map(|(.., amount)| amount).sum();
        let is_whole = sum(&into) != sum(&out) || passed == sum(&into);
        if !is_whole || (pairs.is_empty() && rails) {
            return None;
        }
        pairs.iter().for_each(|(from, to, amount)| tried.add(joined(&into[*from], &out[*to], *amount)));
        tried.carries(demand).then_some(tried)
    })
}

/// Splits pairs of edges off a switch, each by as much as all flows allow.
fn by_pairs(graph: &Graph, demand: &Demand, ways: &Ways, switch: u32) -> Option<Graph> {
    let mut graph = graph.clone();
    let (mut into, mut out) = {
        let mut copy = graph.clone();
        take_out(&mut copy, switch)
    };
    for leaving in &mut out {
        // A way there and back is only lost, so it comes last.
        into.sort_by_key(|entering| entering.from == leaving.to);
        for entering in &mut into {
            let most = leaving.capacity.min(entering.capacity);
            let is_loop = entering.from == leaving.to;
            if most == 0 || !(is_loop || allows(&graph, ways, entering, leaving)) {
                continue;
            }
            let shift = |graph: &mut Graph, amount: u128| {
                graph.take(&Edge { capacity: amount, ..entering.clone() });
                graph.take(&Edge { capacity: amount, ..leaving.clone() });
                if !is_loop {
                    graph.add(joined(entering, leaving, amount));
                }
            };
            let mut tried = graph.clone();
            shift(&mut tried, most);
            // Every cut loses all of the amount or nothing, so the worst flow says how much is too much.
            let amount = most - tried.missing(demand, most).min(most);
            if amount > 0 {
                shift(&mut graph, amount);
                entering.capacity -= amount;
                leaving.capacity -= amount;
            }
        }
    }
    // What is left leads nowhere that a tree needs.
    take_out(&mut graph, switch);
    graph.carries(demand).then_some(graph)
}
