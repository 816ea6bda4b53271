//! All-to-alls in which every rank does what rank 0 does, turned to its place.
//!
//! Cost: that of the ways of rank 0. A rank's part is made from these alone, in time and memory of its own transfers.
//!
//! Invariant: as in [`emit`](super::emit). Absent: choice of ways.

use super::emit::{Routed, own_block};
use super::grid::Grid;
use crate::{Collective, Own, Partition, Rank, Regular, Schedule, Symmetry};

/// The ways of rank 0 and the grid along which they are turned.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Turned {
    name: String,
    ranks: u32,
    pieces: u32,
    grid: Grid,
    ways: Vec<Routed>,
    channels: u16,
}

impl Turned {
    /// Ways of all pieces of rank 0's blocks, in the order in which they are sent.
    pub(super) fn new(name: String, grid: Grid, pieces: u32, ways: Vec<Routed>, channels: u16) -> Turned {
        let ranks = grid.0.iter().product();
        Turned { name, ranks, pieces, grid, ways, channels }
    }

    /// Every block straight to its rank.
    pub(super) fn direct(ranks: u32, channels: u16) -> Turned {
        let way = |to: u32| Routed { from: 0, to, piece: 0, over: Vec::new(), rounds: vec![0] };
        Turned::new("exchange(direct)".into(), Grid(vec![ranks]), 1, (1..ranks).map(way).collect(), channels)
    }

    /// Over boxes of `per_box` consecutive ranks: first within the box to the rank on the target's rail (that of equal number in its
    /// box), then along the rail.
    ///
    /// Source: NVIDIA, NCCL 2.12 ("PXN"), 2022, and C. Hwang et al., "Tutel", arXiv 2206.03382 (2DH). All blocks of a box for one
    /// other rank pass one adapter, whose rail ends at that rank.
    pub(super) fn rails(boxes: u32, per_box: u32, channels: u16) -> Turned {
        let ranks = boxes * per_box;
        let way = |to: u32| {
            let proxy = to % per_box;
            let over = if proxy == 0 || to < per_box { Vec::new() } else { vec![proxy] };
            let rounds = (0..=over.len() as u32).collect();
            Routed { from: 0, to, piece: 0, over, rounds }
        };
        let grid = if boxes == 1 { vec![per_box] } else { vec![per_box, boxes] };
        let name = format!("exchange(rails, {boxes}x{per_box})");
        Turned::new(name, Grid(grid), 1, (1..ranks).map(way).collect(), channels)
    }

    /// The way of rank 0, turned to the place of rank `by`.
    fn turned(&self, way: &Routed, by: u32) -> Routed {
        Routed {
            from: by,
            to: self.grid.turn(way.to, by),
            piece: way.piece,
            over: way.over.iter().map(|rank| self.grid.turn(*rank, by)).collect(),
            rounds: way.rounds.clone(),
        }
    }
}

impl Regular for Turned {
    fn head(&self) -> Schedule {
        let partition = Partition { parts: self.pieces };
        let (collective, ranks) = (Collective::AllToAll, self.ranks);
        Schedule { name: self.name.clone(), collective, ranks, switches: 0, partition, rounds: Vec::new() }
    }

    fn own(&self, rank: Rank, take: &mut dyn FnMut(Own)) {
        // Per round the ways that have a hop in it, with the number of the hop.
        let count = self.ways.iter().flat_map(|way| &way.rounds).max().map_or(1, |last| last + 1);
        let mut hops: Vec<Vec<(u32, usize)>> = vec![Vec::new(); count as usize];
        for (way, number) in self.ways.iter().zip(0..) {
            way.rounds.iter().enumerate().for_each(|(at, round)| hops[*round as usize].push((number, at)));
        }
        for (hops, round) in hops.iter().zip(0..) {
            for &(number, at) in hops {
                let way = &self.ways[number as usize];
                let channel = (number % u32::from(self.channels)) as u16;
                let (from, to) = way.ends(at);
                for end in [from, to] {
                    let turned = self.turned(way, self.grid.distance(end, rank.0));
                    let transfer = turned.hop(at, self.ranks, self.pieces, channel);
                    take(Own { round, transfer, complete: false });
                }
            }
            if round == 0 {
                let own = own_block(rank.0, self.pieces);
                own.for_each(|transfer| take(Own { round, transfer, complete: false }));
            }
        }
    }

    fn symmetry(&self) -> Option<Symmetry> {
        Some(Symmetry { dimensions: self.grid.0.clone(), lower_first: false })
    }

    fn piece(&self, _: Rank, piece: u32) -> u32 {
        piece
    }
}
