//! Machines on which all ranks are alike: the ways from rank 0 serve every rank, turned to its place.
//!
//! The ranks are a grid of some dimensions, numbered with the first one fastest, and a turn moves all of them by the
//! same distance along each. Where turns map routes to routes, wires fall into classes that turns mix evenly: the `n`
//! turned copies of a way load every wire of a class equally. So a class is one wire of the flow that leaves rank 0,
//! with the class's share of a rank as its capacity. Tori, hypercubes, rings, meshes, equal boxes on rails are such
//! machines.
//!
//! Invariant: the claim is checked wire by wire for the grid that is used; a machine that only looks alike is
//! refused. Absent: symmetries that move no rank along a grid.

use super::grid::Grid;
use super::hops::{Hop, Hops, Wires};
use crate::sets::Sets;

/// The hops of rank 0 that stand for all, with the grid along which they are turned; none where ranks differ.
pub(super) fn alike(ranks: u32, all: &[Hop], wires: &Wires) -> Option<(Grid, Hops)> {
    if wires.are_limited() && all.iter().any(|hop| hop.relayed) {
        // Bytes that a rank relays do not count at its limits, those that it forwards do.
        return None;
    }
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
    let mut classes = Sets::new(wires.capacity.len());
    for copies in &steps {
        for at in 0..copies[0].wires.len() {
            copies.iter().for_each(|hop| classes.join(copies[0].wires[at] as usize, hop.wires[at] as usize));
        }
    }
    let mut size = vec![0u32; wires.capacity.len()];
    for (wire, capacity) in wires.capacity.iter().enumerate() {
        let class = classes.root(wire);
        if *capacity != wires.capacity[class] {
            return None;
        }
        size[class] += 1;
    }
    is_even(ranks, &steps, &mut classes, &size).then_some(())?;
    // What is no class has no hop.
    let share =
        |class: usize| wires.capacity[class] as f64 * f64::from(size[class].max(1)) / f64::from(ranks);
    let capacity = (0..size.len()).map(share).collect();
    let mut class = |wire: &u32| classes.root(*wire as usize) as u32;
    let of_hop = steps.iter().map(|copies| copies[0].wires.iter().map(&mut class).collect());
    let leaving = |by: u32| targets.iter().zip(0..).map(|(to, hop)| (grid.turn(*to, by), hop)).collect();
    Some(Hops {
        wires: of_hop.collect(),
        leaving: (0..ranks).map(leaving).collect(),
        capacity,
        sources: vec![0],
    })
}

/// Whether the copies of every hop load each wire of a class equally.
fn is_even(ranks: u32, steps: &[Vec<&Hop>], classes: &mut Sets, size: &[u32]) -> bool {
    let mut count = vec![0u32; size.len()];
    steps.iter().all(|copies| {
        (0..copies[0].wires.len()).all(|at| {
            copies.iter().for_each(|hop| count[hop.wires[at] as usize] += 1);
            let even = copies.iter().all(|hop| {
                let wire = hop.wires[at];
                count[wire as usize] * size[classes.root(wire as usize)] == ranks
            });
            copies.iter().for_each(|hop| count[hop.wires[at] as usize] = 0);
            even
        })
    })
}
