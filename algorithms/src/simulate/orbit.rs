//! Regular schedules whose ranks are run only where they stand for all others.
//!
//! Where a group of moves of the ranks maps the schedule to itself and the machine to itself, all ranks of an orbit
//! are in the same state at every moment, and so are all links of an orbit. One rank of each orbit is run. A
//! connection stands for as many as there are moves; on each link of an orbit there are as many of them as that, times
//! the links that it uses, over the links of the orbit.
//!
//! Invariant: nothing is believed. The schedule's claim is checked as for a [proof](crate::verify_regular); of the
//! claimed moves those are taken that map each link to one of equal speed and latency, and a route must be the only
//! shortest one, so that moves map routes to routes. Time and memory are those of the ranks that are run, and of a
//! pass over the machine. Absent: schedules that have all their transfers ([`classes`](super::classes)).

use super::classes::Quotient;
use super::paths::{Path, Paths, Weighted, capacities, path};
use super::program::{Home, Program};
use super::{Options, SimulateError};
use crate::topology::{LinkId, NodeId, Routes, Topology};
use crate::{Collective, Rank, Regular, Round, Schedule, Transfer, verify};

/// The part of a regular schedule that is run, and whether its pieces were rounded up to the longest; `None` where
/// schedule and machine are not symmetric together.
pub(super) fn quotient(
    regular: &dyn Regular,
    topology: &Topology,
    options: &Options,
) -> Result<Option<(Quotient, bool)>, SimulateError> {
    let head = regular.head();
    if topology.ranks() < head.ranks {
        return Err(SimulateError::NoSuchNode { rank: Rank(topology.ranks()) });
    }
    let Some(symmetry) = regular.symmetry().filter(|_| topology.ranks() == head.ranks) else {
        return Ok(None);
    };
    let Some(orbits) = Orbits::new(topology, &symmetry.dimensions) else { return Ok(None) };
    if orbits.moves == 1 || verify::check_symmetry(regular).is_err() {
        return Ok(None);
    }
    // Moves exchange the pieces of an all-reduce, which must then be equally long.
    let extents = head.partition.extents(options.block_bytes, 1);
    let last = extents.length(crate::Chunk(head.partition.parts.saturating_sub(1)));
    let even = head.collective == Collective::AllReduce && last != extents.longest();
    let program = program(regular, head, options, &orbits, even);
    let Some(paths) = paths(&program, topology, &orbits)? else { return Ok(None) };
    let alike = orbits.limit[..topology.links().len()].to_vec();
    Ok(Some((Quotient { program, paths, alike }, even)))
}

fn program(
    regular: &dyn Regular,
    mut schedule: Schedule,
    options: &Options,
    orbits: &Orbits,
    even: bool,
) -> Program {
    let mut received: Vec<Transfer> = Vec::new();
    for rank in (0..schedule.ranks).map(Rank).filter(|&rank| orbits.home(rank) == rank) {
        regular.own(rank, &mut |own| {
            if own.transfer.from != rank {
                return received.push(own.transfer);
            }
            let round = own.round as usize;
            if schedule.rounds.len() <= round {
                schedule.rounds.resize(round + 1, Round::default());
            }
            schedule.rounds[round].transfers.push(own.transfer);
        });
    }
    for round in &mut schedule.rounds {
        // As in the schedule of all ranks.
        round.transfers.sort_by_key(|transfer| (transfer.channel, transfer.from == transfer.to));
    }
    let of = |rank| orbits.home(rank);
    let home = Home { of: &of, stands_for: orbits.moves, received: &received, even };
    Program::at_home(&schedule, options, &home)
}

/// The paths of the connections; `None` where a route is not the only shortest one.
fn paths(program: &Program, topology: &Topology, orbits: &Orbits) -> Result<Option<Paths>, SimulateError> {
    let capacity = capacities(topology);
    let mut routes = Routes::new(topology);
    let mut order: Vec<u32> = (0..program.connections.len() as u32).collect();
    order.sort_by_key(|&of| program.connections[of as usize].from);
    let mut found: Vec<Option<Path>> = vec![None; order.len()];
    for same in order.chunk_by(|&one, &other| {
        program.connections[one as usize].from == program.connections[other as usize].from
    }) {
        let from = program.connections[same[0] as usize].from;
        let ends: Vec<Rank> = same.iter().map(|&of| program.connections[of as usize].to).collect();
        let targets: Vec<NodeId> = ends.iter().map(|&to| NodeId::from(to)).collect();
        let ways: Vec<Option<Vec<LinkId>>> = routes.from(NodeId::from(from), &targets);
        for ((&of, way), &to) in same.iter().zip(ways).zip(&ends) {
            let way = way.ok_or(SimulateError::NoRoute { from, to })?;
            if !routes.is_only(NodeId::from(from), &way) {
                return Ok(None);
            }
            let ends = [Some(NodeId::from(from)), Some(NodeId::from(to))];
            found[of as usize] = Some(orbits.weighted(path(&way, ends, topology, &capacity)));
        }
    }
    let paths: Vec<Path> = found.into_iter().flatten().collect();
    let path_of = (0..paths.len() as u32).collect();
    Ok(Some(Paths { paths, path_of, capacity, links: topology.links().len() }))
}

/// The moves that a machine allows, and what they exchange.
struct Orbits {
    dimensions: Vec<u32>,
    /// The shortest move along each dimension.
    steps: Vec<u32>,
    /// The number of all moves.
    moves: u32,
    /// For each limit the first of its orbit, and for each first one how many there are.
    limit: Vec<u32>,
    size: Vec<u32>,
}

impl Orbits {
    /// `None` where the dimensions are not those of the ranks.
    fn new(topology: &Topology, dimensions: &[u32]) -> Option<Orbits> {
        let ranks = topology.ranks();
        let product = dimensions.iter().try_fold(1u32, |product, &length| product.checked_mul(length))?;
        if product != ranks || ranks == 0 {
            return None;
        }
        let links = topology.links().len() as u32;
        let mut limit: Vec<u32> = (0..links + 2 * ranks).collect();
        let (mut stride, mut steps) = (1, Vec::with_capacity(dimensions.len()));
        for &length in dimensions {
            let mut step = length;
            for by in (1..length).filter(|by| length.is_multiple_of(*by)) {
                let moved = |rank: u32| {
                    rank - rank / stride % length * stride + (rank / stride + by) % length * stride
                };
                if let Some(image) = image(topology, &moved) {
                    step = by;
                    (0..).zip(image).for_each(|(link, other)| join(&mut limit, link, other));
                    for rank in 0..ranks {
                        join(&mut limit, links + rank, links + moved(rank));
                        join(&mut limit, links + ranks + rank, links + ranks + moved(rank));
                    }
                    break;
                }
            }
            steps.push(step);
            stride *= length;
        }
        let limit: Vec<u32> = (0..limit.len() as u32).map(|of| first(&mut limit, of)).collect();
        let mut size = vec![0; limit.len()];
        limit.iter().for_each(|&first| size[first as usize] += 1);
        let moves = dimensions.iter().zip(&steps).map(|(length, step)| length / step).product();
        Some(Orbits { dimensions: dimensions.to_vec(), steps, moves, limit, size })
    }

    /// The rank that stands for a rank.
    fn home(&self, rank: Rank) -> Rank {
        let (mut rest, mut stride, mut home) = (rank.0, 1, 0);
        for (&length, &step) in self.dimensions.iter().zip(&self.steps) {
            home += rest % length % step * stride;
            (rest, stride) = (rest / length, stride * length);
        }
        Rank(home)
    }

    /// The path with first limits, each with the number of connections on it that this one stands for.
    fn weighted(&self, path: Path) -> Path {
        let weighted = |limits: &[Weighted]| {
            let mut firsts: Vec<Weighted> = Vec::with_capacity(limits.len());
            for of in limits.iter().map(|limit| self.limit[limit.index()]) {
                match firsts.iter_mut().find(|known| known.of == of) {
                    Some(known) => known.weight += 1,
                    None => firsts.push(Weighted::one(of)),
                }
            }
            // Every limit of an orbit is used as often as any other.
            let all = |used: Weighted| {
                let users =
                    u64::from(used.weight) * u64::from(self.moves) / u64::from(self.size[used.index()]);
                Weighted { weight: users as u32, ..used }
            };
            firsts.into_iter().map(all).collect()
        };
        Path { links: weighted(&path.links), limits: weighted(&path.limits), ..path }
    }
}

fn first(limit: &mut [u32], of: u32) -> u32 {
    let mut at = of;
    while limit[at as usize] != at {
        limit[at as usize] = limit[limit[at as usize] as usize];
        at = limit[at as usize];
    }
    at
}

/// The lower number becomes the first of both orbits.
fn join(limit: &mut [u32], one: u32, other: u32) {
    let (one, other) = (first(limit, one), first(limit, other));
    limit[one.max(other) as usize] = one.min(other);
}

/// The link to which each link moves when the ranks move; `None` where the machine is then another one. Switches and
/// ports move with the ranks that they are linked with; where several could be meant, it is the next one by number.
fn image(topology: &Topology, moved: &dyn Fn(u32) -> u32) -> Option<Vec<u32>> {
    const NONE: u32 = u32::MAX;
    let nodes = topology.nodes();
    let ranks = topology.ranks();
    let (mut node, mut taken) = (vec![NONE; nodes.len()], vec![false; nodes.len()]);
    for rank in 0..ranks {
        (node[rank as usize], taken[moved(rank) as usize]) = (moved(rank), true);
    }
    let mut queue: Vec<u32> = (0..ranks).collect();
    let mut next = 0;
    let speed = |link: LinkId| {
        let link = &topology.links()[link.index()];
        (link.latency_ns, link.bandwidth_bytes_s)
    };
    let to = |link: LinkId| topology.links()[link.index()].to.index();
    while let Some(&of) = queue.get(next) {
        next += 1;
        let there = topology.leaving(NodeId(node[of as usize]));
        for &link in topology.leaving(NodeId(of)) {
            if node[to(link)] != NONE {
                continue;
            }
            let fits = |other: &&LinkId| {
                !taken[to(**other)]
                    && speed(**other) == speed(link)
                    && to(**other) >= ranks as usize
                    && nodes[to(**other)].kind == nodes[to(link)].kind
            };
            let other = *there.iter().find(fits)?;
            node[to(link)] = to(other) as u32;
            taken[to(other)] = true;
            queue.push(to(link) as u32);
        }
    }
    let mut image = vec![NONE; topology.links().len()];
    for (of, &there) in (0..).zip(&node) {
        let same = there != NONE && alike(nodes[of as usize].kind, nodes[there as usize].kind);
        let (mine, theirs) = if same {
            (topology.leaving(NodeId(of)), topology.leaving(NodeId(there)))
        } else {
            return None;
        };
        let mut mine: Vec<_> = mine.iter().map(|&link| (node[to(link)], speed(link), link.0)).collect();
        let mut theirs: Vec<_> = theirs.iter().map(|&link| (to(link) as u32, speed(link), link.0)).collect();
        mine.sort_unstable();
        theirs.sort_unstable();
        if mine.len() != theirs.len() {
            return None;
        }
        for (mine, theirs) in mine.iter().zip(&theirs) {
            if (mine.0, mine.1) != (theirs.0, theirs.1) {
                return None;
            }
            image[mine.2 as usize] = theirs.2;
        }
    }
    Some(image)
}

/// Whether nodes let as much pass; the box of a rank does not matter here.
fn alike(one: crate::topology::NodeKind, other: crate::topology::NodeKind) -> bool {
    use crate::topology::NodeKind::Rank;
    match (one, other) {
        (
            Rank { inject_bytes_s: inject, eject_bytes_s: eject, .. },
            Rank { inject_bytes_s, eject_bytes_s, .. },
        ) => (inject, eject) == (inject_bytes_s, eject_bytes_s),
        (one, other) => one == other,
    }
}
