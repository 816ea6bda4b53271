//! Machines on which all ranks are alike: the ways from rank 0 serve every rank, turned to its place.
//!
//! The ranks are a grid of some dimensions, numbered with the first one fastest, and a turn moves all of them by the same distance
//! along each. Where turns map routes to routes, wires fall into classes that turns mix evenly: the `n` turned copies of a way load
//! every wire of a class equally. So a class is one wire of the flow that leaves rank 0, with the class's share of a rank as its
//! capacity. Tori, hypercubes, rings, meshes, equal boxes on rails are such machines.
//!
//! Invariant: the claim is checked wire by wire for the grid that is used; a machine that only looks alike is refused. Absent:
//! symmetries that move no rank along a grid.

use super::hops::{Hop, Hops, Wires};

/// More grids than this are not tried.
const GRIDS_MAX: usize = 512;

/// The dimensions of a grid of ranks, the first one fastest.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Grid(pub(super) Vec<u32>);

impl Grid {
    /// The rank that `rank` becomes when rank 0 moves to `by`.
    pub(super) fn turn(&self, rank: u32, by: u32) -> u32 {
        let (mut stride, mut turned) = (1, 0);
        for length in &self.0 {
            turned += (rank / stride % length + by / stride % length) % length * stride;
            stride *= length;
        }
        turned
    }

    /// Every grid of that many ranks, those of few dimensions first.
    fn all(ranks: u32) -> Vec<Grid> {
        let mut grids = Vec::new();
        let mut open: Vec<(Vec<u32>, u32)> = vec![(Vec::new(), ranks)];
        while let Some((dimensions, left)) = open.pop() {
            if left == 1 {
                grids.push(Grid(dimensions));
            } else if grids.len() < GRIDS_MAX {
                let divides = |length: &u32| left.is_multiple_of(*length);
                open.extend((2..=left).filter(divides).map(|length| {
                    let longer = dimensions.iter().copied().chain([length]).collect();
                    (longer, left / length)
                }));
            }
        }
        grids.sort_by(|one, other| (one.0.len(), &one.0).cmp(&(other.0.len(), &other.0)));
        grids
    }
}

/// The hops of rank 0 that stand for all, with the grid along which they are turned; none where ranks differ.
pub(super) fn turned(ranks: u32, all: &[Hop], wires: &Wires) -> Option<(Grid, Hops)> {
    // Hops over a third rank are two hops; of two equal ways the lower link number decides, which turns do not keep.
    let mut direct: Vec<Option<&Hop>> = vec![None; (ranks * ranks) as usize];
    for hop in all.iter().filter(|hop| !hop.relayed) {
        direct[(hop.from * ranks + hop.to) as usize] = Some(hop);
    }
    let count = direct.iter().flatten().count();
    if !count.is_multiple_of(ranks as usize) {
        return None;
    }
    let found = |grid: Grid| of_grid(ranks, &direct, wires, &grid).map(|hops| (grid, hops));
    Grid::all(ranks).into_iter().find_map(found)
}

fn of_grid(ranks: u32, direct: &[Option<&Hop>], wires: &Wires, grid: &Grid) -> Option<Hops> {
    let mut steps: Vec<Vec<&Hop>> = Vec::new();
    let mut targets = Vec::new();
    for to in 1..ranks {
        let turned = |by: u32| direct[(by * ranks + grid.turn(to, by)) as usize];
        let copies: Vec<&Hop> = (0..ranks).filter_map(turned).collect();
        match copies.len() {
            0 => {}
            some if some == ranks as usize => {
                if copies.iter().any(|hop| hop.wires.len() != copies[0].wires.len()) {
                    return None;
                }
                steps.push(copies);
                targets.push(to);
            }
            _ => return None,
        }
    }
    let mut classes = Classes((0..wires.capacity.len() as u32).collect());
    for copies in &steps {
        for at in 0..copies[0].wires.len() {
            copies.iter().for_each(|hop| classes.join(copies[0].wires[at], hop.wires[at]));
        }
    }
    let mut size = vec![0u32; wires.capacity.len()];
    let mut least = vec![u64::MAX; wires.capacity.len()];
    for (wire, capacity) in (0..).zip(&wires.capacity) {
        let class = classes.of(wire) as usize;
        size[class] += 1;
        least[class] = least[class].min(*capacity);
    }
    is_even(ranks, &steps, &mut classes, &size).then_some(())?;
    let share = |class: usize| least[class].min(u64::MAX - 1) as f64 * f64::from(size[class]) / f64::from(ranks);
    let wires = steps.iter().map(|copies| copies[0].wires.iter().map(|wire| classes.of(*wire)).collect());
    let leaving = |by: u32| targets.iter().zip(0..).map(|(to, hop)| (grid.turn(*to, by), hop)).collect();
    Some(Hops {
        wires: wires.collect(),
        leaving: (0..ranks).map(leaving).collect(),
        capacity: (0..size.len()).map(share).collect(),
        sources: vec![0],
    })
}

/// Whether the copies of every hop load each wire of a class equally.
fn is_even(ranks: u32, steps: &[Vec<&Hop>], classes: &mut Classes, size: &[u32]) -> bool {
    let mut count = vec![0u32; size.len()];
    steps.iter().all(|copies| {
        (0..copies[0].wires.len()).all(|at| {
            copies.iter().for_each(|hop| count[hop.wires[at] as usize] += 1);
            let even = copies.iter().all(|hop| {
                let wire = hop.wires[at];
                count[wire as usize] * size[classes.of(wire) as usize] == ranks
            });
            copies.iter().for_each(|hop| count[hop.wires[at] as usize] = 0);
            even
        })
    })
}

/// Sets of wires, by the lowest of each.
struct Classes(Vec<u32>);

impl Classes {
    fn of(&mut self, wire: u32) -> u32 {
        let mut at = wire;
        while self.0[at as usize] != at {
            let above = self.0[self.0[at as usize] as usize];
            self.0[at as usize] = above;
            at = above;
        }
        at
    }

    fn join(&mut self, one: u32, other: u32) {
        let (one, other) = (self.of(one), self.of(other));
        self.0[one.max(other) as usize] = one.min(other);
    }
}
