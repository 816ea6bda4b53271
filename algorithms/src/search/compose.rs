//! From rings in boxes to rings over all of them: out of a box by one door, into the next one.
//!
//! Invariant: every box runs the same rings, or the same rings backwards where every second box does, so that a ring leaves a
//! box by the rail on which it enters the next. What links carry is added up over the whole machine, and where that is too
//! much all rings are slower in the same proportion. Absent: boxes whose rings are not as many.

use std::collections::{BTreeMap, VecDeque};

use super::layout::{Layout, NETWORK, limits};
use super::part::{Placed, UNITS};
use crate::topology::{LinkId, NodeKind, Topology};

/// A ring over the whole machine.
#[derive(Clone, Debug)]
pub(super) struct Whole {
    pub(super) order: Vec<u32>,
    pub(super) hops: Vec<Vec<LinkId>>,
    pub(super) speed: u128,
}

/// The rings of boxes, joined; none where no network joins their doors.
pub(super) fn compose(topology: &Topology, layout: &Layout, rings: &[Vec<Placed>]) -> Vec<Whole> {
    let count = rings.first().map_or(0, Vec::len);
    if layout.blocks.len() == 1 {
        let block = &layout.blocks[0];
        let whole = |ring: &Placed| Whole {
            order: ring.order.iter().map(|at| block.ranks[*at as usize]).collect(),
            hops: ring.hops.iter().map(|way| global(&block.links, way)).collect(),
            speed: ring.speed,
        };
        return fit(topology, rings[0].iter().map(whole).collect());
    }
    let twins: Option<Vec<Vec<u32>>> = layout.classes.iter().map(twins).collect();
    let mut network = Between { topology, owner: &layout.owner, known: BTreeMap::new() };
    let mut joined = |twins: Option<&[Vec<u32>]>| -> Option<Vec<Whole>> {
        (0..count).map(|ring| network.join(layout, rings, ring, twins)).collect()
    };
    // With every second box backwards first: rails are kept then.
    let all = [twins.as_deref().and_then(|twins| joined(Some(twins))), joined(None)];
    let all = all.into_iter().flatten().map(|rings| fit(topology, rings));
    let rank = |rings: &Vec<Whole>| {
        let total: u128 = rings.iter().map(|ring| ring.speed).sum();
        let links: usize = rings.iter().flat_map(|ring| &ring.hops).map(Vec::len).sum();
        (total, std::cmp::Reverse(links))
    };
    all.reduce(|best, next| if rank(&next) > rank(&best) { next } else { best }).unwrap_or_default()
}

fn global(links: &[LinkId], way: &[u32]) -> Vec<LinkId> {
    way.iter().map(|link| links[*link as usize]).collect()
}

/// For each link of a part one of the other direction that carries as much; none where one has none.
fn twins(part: &super::part::Part) -> Option<Vec<u32>> {
    let mut of: BTreeMap<(u32, u32, u128), VecDeque<u32>> = BTreeMap::new();
    for (link, (from, to)) in (0..).zip(&part.links) {
        of.entry((*from, *to, part.capacity[link as usize])).or_default().push_back(link);
    }
    let twin = |(link, (from, to)): (usize, &(u32, u32))| {
        of.get_mut(&(*to, *from, part.capacity[link])).and_then(VecDeque::pop_front)
    };
    part.links.iter().enumerate().map(twin).collect()
}

/// Ways through the network.
struct Between<'a> {
    topology: &'a Topology,
    owner: &'a [u32],
    known: BTreeMap<(u32, u32), Option<Vec<LinkId>>>,
}

/// A ring's part in one box: its ranks, the links between them, and those at its two doors.
struct Stretch {
    ranks: Vec<u32>,
    inside: Vec<Vec<LinkId>>,
    entry: Vec<LinkId>,
    exit: Vec<LinkId>,
}

impl Between<'_> {
    /// The shortest way between nodes of the network.
    fn way(&mut self, from: u32, to: u32) -> Option<Vec<LinkId>> {
        if let Some(known) = self.known.get(&(from, to)) {
            return known.clone();
        }
        let links = self.topology.links();
        let mut last: BTreeMap<u32, LinkId> = BTreeMap::new();
        let mut queue = VecDeque::from([from]);
        while let (Some(node), false) = (queue.pop_front(), last.contains_key(&to) || from == to) {
            for &id in self.topology.leaving(crate::topology::NodeId(node)) {
                let next = links[id.index()].to.0;
                let is_rank = matches!(self.topology.nodes()[next as usize].kind, NodeKind::Rank { .. });
                if self.owner[next as usize] == NETWORK
                    && !is_rank
                    && next != from
                    && !last.contains_key(&next)
                {
                    last.insert(next, id);
                    queue.push_back(next);
                }
            }
        }
        let (mut way, mut at) = (Vec::new(), to);
        let mut is_there = true;
        while at != from && is_there {
            match last.get(&at) {
                Some(id) => {
                    way.push(*id);
                    at = links[id.index()].from.0;
                }
                None => is_there = false,
            }
        }
        way.reverse();
        let way = is_there.then_some(way);
        self.known.insert((from, to), way.clone());
        way
    }

    /// Ring number `ring` of all boxes; with `twins` every second box has it backwards.
    fn join(
        &mut self,
        layout: &Layout,
        rings: &[Vec<Placed>],
        ring: usize,
        twins: Option<&[Vec<u32>]>,
    ) -> Option<Whole> {
        let stretch = |(number, block): (usize, &super::layout::Block)| {
            let placed = &rings[block.class][ring];
            let backwards = twins.filter(|_| number % 2 == 1).map(|twins| &twins[block.class]);
            let mut ranks: Vec<u32> = placed.order[1..].iter().map(|at| block.ranks[*at as usize]).collect();
            let mut hops: Vec<Vec<LinkId>> = match backwards {
                None => placed.hops.iter().map(|way| global(&block.links, way)).collect(),
                Some(twins) => {
                    let back = |way: &Vec<u32>| {
                        way.iter().rev().map(|link| block.links[twins[*link as usize] as usize]).collect()
                    };
                    placed.hops.iter().rev().map(back).collect()
                }
            };
            if backwards.is_some() {
                ranks.reverse();
            }
            let exit = hops.pop().unwrap_or_default();
            let entry = hops.drain(..1).next().unwrap_or_default();
            Stretch { ranks, inside: hops, entry, exit }
        };
        let all: Vec<Stretch> = layout.blocks.iter().enumerate().map(stretch).collect();
        let (mut order, mut hops) = (Vec::new(), Vec::new());
        for (number, at) in all.iter().enumerate() {
            let next = &all[(number + 1) % all.len()];
            let link = |id: Option<&LinkId>| id.map(|id| self.topology.links()[id.index()]);
            let (out, into) = (link(at.exit.last())?.to.0, link(next.entry.first())?.from.0);
            order.extend(&at.ranks);
            hops.extend(at.inside.iter().cloned());
            let between = self.way(out, into)?;
            hops.push([at.exit.clone(), between, next.entry.clone()].concat());
        }
        let speed = rings.first()?[ring].speed;
        Some(Whole { order, hops, speed })
    }
}

/// Units that pass each link, and behind them those that leave and enter each rank.
pub(super) fn loads(topology: &Topology, rings: &[Whole]) -> Vec<u128> {
    let links = topology.links().len();
    let mut loads = vec![0u128; links + 2 * topology.ranks() as usize];
    for ring in rings {
        for (at, way) in ring.hops.iter().enumerate() {
            way.iter().for_each(|link| loads[link.index()] += ring.speed);
            let to = ring.order[(at + 1) % ring.order.len()];
            loads[links + 2 * ring.order[at] as usize] += ring.speed;
            loads[links + 2 * to as usize + 1] += ring.speed;
        }
    }
    loads
}

/// What each load may be.
pub(super) fn capacities(topology: &Topology) -> Vec<u128> {
    let links = topology.links().iter().map(|link| u128::from(link.bandwidth_bytes_s) * UNITS);
    links.chain((0..topology.ranks()).flat_map(|rank| limits(topology, rank))).collect()
}

/// The largest part by which what is carried must be multiplied so that it fits, as a fraction; at most 1.
pub(super) fn fraction(loads: &[u128], capacities: &[u128]) -> (u128, u128) {
    let mut least = (1u128, 1u128);
    for (load, capacity) in loads.iter().zip(capacities).filter(|(load, capacity)| load > capacity) {
        let shared = super::ratio(*capacity, *load);
        let known = super::ratio(least.0, least.1);
        if shared < known {
            least = (shared.numerator(), shared.denominator());
        }
    }
    least
}

/// The rings, slower where links would carry too much.
fn fit(topology: &Topology, mut rings: Vec<Whole>) -> Vec<Whole> {
    let (numerator, denominator) = fraction(&loads(topology, &rings), &capacities(topology));
    if numerator != denominator {
        for ring in &mut rings {
            // Below 2^84 times below 2^44: the fraction is one of small numbers, or its parts are cut to fit.
            ring.speed = super::scaled(ring.speed, numerator, denominator);
        }
    }
    rings.retain(|ring| ring.speed > 0);
    rings
}
