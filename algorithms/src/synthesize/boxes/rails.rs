//! Which ranks of a machine's boxes lead to the other boxes, and on which rail.
//!
//! A door of a box is the narrowest link on the ways from some of its ranks to another box: an adapter, or what
//! stands for it. Doors of different boxes that are joined by the fewest links are one rail. A box that lacks an
//! adapter or a rank lacks the door.
//!
//! Invariant: ways are the routes of the simulator; nothing but the topology decides. Absent: what is inside of a
//! box.

use std::collections::BTreeMap;

use crate::topology::{LinkId, NodeId, Routes, Topology};

/// A way out of a box.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Door {
    /// The rank that stands at it.
    pub(super) rank: u32,
    /// Bytes a second.
    pub(super) capacity: u64,
}

/// A box with its doors.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Inside {
    pub(super) ranks: Vec<u32>,
    /// For each rail the door; none where the box lacks it.
    pub(super) doors: Vec<Option<Door>>,
    /// For each rail the rank that gathers the box's values: the one at the door, or one without a door; none where
    /// all have others.
    pub(super) centres: Vec<Option<u32>>,
}

impl Inside {
    /// The rank that gathers the box's values in a rail's tree of this number.
    pub(super) fn centre(&self, rail: usize, number: usize) -> u32 {
        self.centres[rail].unwrap_or_else(|| self.ranks[number % self.ranks.len()])
    }
}

/// The boxes of a machine along its rails; none where there is one box, or one without a way out.
pub(super) fn rails(topology: &Topology) -> Option<Vec<Inside>> {
    let boxes: Vec<Vec<u32>> =
        topology.boxes().into_iter().map(|ranks| ranks.into_iter().map(|rank| rank.0).collect()).collect();
    if boxes.len() < 2 {
        return None;
    }
    let mut routes = Routes::new(topology);
    let boxes = split(topology, &mut routes, boxes);
    let doors: Vec<Vec<Door>> = (0..boxes.len()).map(|at| doors(topology, &mut routes, &boxes, at)).collect();
    let widest = (0..boxes.len()).max_by_key(|at| (doors[*at].len(), usize::MAX - at))?;
    if doors.iter().any(Vec::is_empty) {
        return None;
    }
    let mut all = Vec::new();
    for (at, ranks) in boxes.iter().enumerate() {
        let placed = if at == widest {
            doors[at].iter().copied().map(Some).collect()
        } else {
            along(&mut routes, &doors[widest], &doors[at])
        };
        let centres = centres(ranks, &placed);
        all.push(Inside { ranks: ranks.clone(), doors: placed, centres });
    }
    Some(all)
}

/// The boxes without the ranks that reach the rest of their box through their door alone: each of those is a box for
/// itself, as a GPU whose link to the switch of its box failed.
fn split(topology: &Topology, routes: &mut Routes<'_>, boxes: Vec<Vec<u32>>) -> Vec<Vec<u32>> {
    let (mut whole, mut alone) = (Vec::new(), Vec::new());
    for (at, ranks) in boxes.iter().enumerate() {
        let nodes: Vec<NodeId> = ranks.iter().map(|rank| NodeId(*rank)).collect();
        let mut is_apart = |place: usize| {
            let Some(door) = door(topology, routes, &boxes[(at + 1) % boxes.len()], ranks[place], place)
            else {
                return false;
            };
            let ways = routes.from(nodes[place], &nodes);
            let through = ways.iter().flatten().filter(|way| way.contains(&door)).count();
            2 * through >= ranks.len()
        };
        let (apart, rest): (Vec<usize>, Vec<usize>) =
            (0..ranks.len()).partition(|place| ranks.len() > 2 && is_apart(*place));
        let of = |places: Vec<usize>| places.into_iter().map(|place| ranks[place]).collect::<Vec<u32>>();
        if rest.is_empty() {
            whole.push(ranks.clone());
            continue;
        }
        alone.extend(of(apart).into_iter().map(|rank| vec![rank]));
        whole.push(of(rest));
    }
    whole.extend(alone);
    whole
}

/// The narrowest link from a rank to another box.
fn door(
    topology: &Topology,
    routes: &mut Routes<'_>,
    next: &[u32],
    rank: u32,
    place: usize,
) -> Option<LinkId> {
    // The rank of the same place is on the same rail in machines that lack nothing; only if it is not reached are
    // others looked for.
    let like = NodeId(next[place % next.len()]);
    let mut found = routes.from(NodeId(rank), &[like]);
    if found.iter().all(Option::is_none) {
        found = routes.from(NodeId(rank), &next.iter().map(|rank| NodeId(*rank)).collect::<Vec<_>>());
    }
    let way = found.into_iter().flatten().min_by_key(Vec::len)?;
    way.into_iter().min_by_key(|link| topology.links()[link.index()].bandwidth_bytes_s)
}

/// The doors of a box, in the order of their ranks.
fn doors(topology: &Topology, routes: &mut Routes<'_>, boxes: &[Vec<u32>], at: usize) -> Vec<Door> {
    let next = &boxes[(at + 1) % boxes.len()];
    let mut known: BTreeMap<LinkId, Door> = BTreeMap::new();
    for (place, &rank) in boxes[at].iter().enumerate() {
        let Some(narrowest) = door(topology, routes, next, rank, place) else { continue };
        let capacity = topology.links()[narrowest.index()].bandwidth_bytes_s;
        known.entry(narrowest).or_insert(Door { rank, capacity });
    }
    let mut doors: Vec<Door> = known.into_values().collect();
    doors.sort_by_key(|door| door.rank);
    doors
}

/// For each door of `like` the one of `doors` on its rail.
fn along(routes: &mut Routes<'_>, like: &[Door], doors: &[Door]) -> Vec<Option<Door>> {
    let targets: Vec<NodeId> = like.iter().map(|door| NodeId(door.rank)).collect();
    let mut ways: Vec<(usize, usize, usize, usize)> = Vec::new();
    for (number, door) in doors.iter().enumerate() {
        let found = routes.from(NodeId(door.rank), &targets);
        for (rail, way) in found.iter().enumerate() {
            let hops = way.as_ref().map_or(usize::MAX, Vec::len);
            ways.push((hops, number.abs_diff(rail), rail, number));
        }
    }
    ways.sort_unstable();
    let mut placed = vec![None; like.len()];
    let mut is_taken = vec![false; doors.len()];
    for (_, _, rail, number) in ways {
        if placed[rail].is_none() && !is_taken[number] {
            placed[rail] = Some(doors[number]);
            is_taken[number] = true;
        }
    }
    placed
}

/// For each rail the rank at its door; where there is none, a rank without a door.
fn centres(ranks: &[u32], doors: &[Option<Door>]) -> Vec<Option<u32>> {
    let has_door = |rank: &u32| doors.iter().flatten().any(|door| door.rank == *rank);
    let mut spare: Vec<u32> = ranks.iter().rev().copied().filter(|rank| !has_door(rank)).collect();
    doors.iter().map(|door| door.map(|door| door.rank).or_else(|| spare.pop())).collect()
}
