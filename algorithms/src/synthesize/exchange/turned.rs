//! All-to-alls in which every rank does what rank 0 does, turned to its place.
//!
//! Cost: that of the ways of rank 0. A rank's part is made from these alone, in time and memory of its own transfers.
//!
//! Invariant: as in [`emit`](super::emit). Absent: choice of ways.

use super::emit::{Cut, Routed};
use super::grid::Grid;
use crate::{Own, Rank, Regular, Schedule, Symmetry};

/// The ways of rank 0 and the grid along which they are turned.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Turned {
    name: String,
    cut: Cut,
    grid: Grid,
    ways: Vec<Routed>,
}

impl Turned {
    /// Ways of all pieces of rank 0's blocks, in the order in which they are sent.
    pub(super) fn new(name: String, cut: Cut, grid: Grid, ways: Vec<Routed>) -> Turned {
        Turned { name, cut, grid, ways }
    }

    /// Every block straight to its rank.
    pub(super) fn direct(ranks: u32, channels: u16) -> Turned {
        let way = |to: u32| Routed { from: 0, to, piece: 0, over: Vec::new(), rounds: vec![0] };
        let cut = Cut { ranks, pieces: 1, channels };
        Turned::new("exchange(direct)".into(), cut, Grid(vec![ranks]), (1..ranks).map(way).collect())
    }

    /// Over boxes of `per_box` consecutive ranks: first within the box to the rank on the target's rail (that of
    /// equal number in its box), then along the rail.
    ///
    /// Source: NVIDIA, NCCL 2.12 ("PXN"), 2022, and C. Hwang et al., "Tutel", arXiv 2206.03382 (2DH). All blocks of a
    /// box for one other rank pass one adapter, whose rail ends at that rank.
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
        let cut = Cut { ranks, pieces: 1, channels };
        Turned::new(name, cut, Grid(grid), (1..ranks).map(way).collect())
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
        self.cut.head(self.name.clone())
    }

    fn own(&self, rank: Rank, take: &mut dyn FnMut(Own)) {
        // Per round the ways that have a hop in it, with the number of the hop.
        let count = self.ways.iter().flat_map(|way| &way.rounds).max().map_or(1, |last| last + 1);
        let mut hops: Vec<Vec<(usize, usize)>> = vec![Vec::new(); count as usize];
        for (number, way) in self.ways.iter().enumerate() {
            way.rounds.iter().enumerate().for_each(|(at, round)| hops[*round as usize].push((number, at)));
        }
        for (hops, round) in hops.iter().zip(0..) {
            for &(number, at) in hops {
                let way = &self.ways[number];
                let (from, to) = way.ends(at);
                for end in [from, to] {
                    let turned = self.turned(way, self.grid.distance(end, rank.0));
                    for channel in 0..self.cut.channels {
                        take(Own { round, transfer: turned.hop(at, self.cut, channel), complete: false });
                    }
                }
            }
            if round == 0 {
                let own = self.cut.own_block(rank.0);
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
