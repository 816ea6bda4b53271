//! Ranks as points of a grid, with an inner schedule along each dimension in turn; grids of rings, rank by rank.
//!
//! A piece of an inner schedule stands for several pieces of the outer one where dimensions are left. They travel in
//! one round, in the order that begins at the own place along those dimensions. So a move of all ranks along a
//! dimension maps the schedule to itself wherever the inner one is mapped to itself, messages in their order included.
//!
//! Source: that of [`hierarchical`](super::hierarchical()).
//!
//! Invariant: the inner schedules run in place, each on the result of the one before. Absent: which schedules are
//! inner ones, except for rings; all-to-all, whose phases are not along one buffer.

use super::compose::{Embedding, beside, embed, embed_one};
use super::hierarchical::{blueconnect_is_defined, lcm, scratch_levels};
use super::ring::{Ring, RingOptions};
use crate::{Chunk, Collective, Own, Partition, Place, Rank, Regular, Round, Schedule, Symmetry, lengths};

/// The inner schedule of a level: all groups of the level run it at the same time.
#[derive(Clone, Debug)]
pub(super) struct LevelSchedule {
    pub(super) level: usize,
    /// For rings rank by rank, without its rounds.
    pub(super) inner: Schedule,
    /// Whole sets of scratch numbers that it uses.
    pub(super) scratch_levels: u32,
}

/// The levels in the order of the phases, each with the collective that runs there. Levels of one rank have none.
pub(super) fn phase_order(collective: Collective, lengths: &[u32]) -> Vec<(usize, Collective)> {
    let up: Vec<usize> = (0..lengths.len()).filter(|&level| lengths[level] > 1).collect();
    let down = up.iter().rev().copied();
    match collective {
        Collective::AllReduce => {
            let last = up.len().saturating_sub(1);
            let scatter = up[..last].iter().map(|&level| (level, Collective::ReduceScatter));
            let reduce = up[last..].iter().map(|&level| (level, collective));
            scatter.chain(reduce).chain(down.skip(1).map(|level| (level, Collective::AllGather))).collect()
        }
        Collective::AllGather | Collective::Broadcast => down.map(|level| (level, collective)).collect(),
        _ => up.iter().map(|&level| (level, collective)).collect(),
    }
}

/// The outer schedule's ranks as points of a grid, and its pieces.
#[derive(Debug)]
pub(super) struct Grid {
    collective: Collective,
    ranks: u32,
    pub(super) parts: u32,
    /// Number of named pieces: the modulus of scratch numbers.
    count: u32,
    /// Ranks of each level, and how far apart neighbours of a level are.
    lengths: Vec<u32>,
    strides: Vec<u32>,
}

impl Grid {
    pub(super) fn new(collective: Collective, lengths: &[u32], phases: &[LevelSchedule]) -> Self {
        let stride = |level: usize| lengths[..level].iter().product();
        let strides: Vec<u32> = (0..lengths.len()).map(stride).collect();
        let ranks = lengths.iter().product();
        let parts = parts(collective, lengths.len(), phases);
        let count = lengths::count(collective, Partition { parts }, ranks);
        Grid { collective, ranks, parts, count, lengths: lengths.to_vec(), strides }
    }

    pub(super) fn rounds(&self, phases: &[LevelSchedule]) -> Vec<Round> {
        let mut rounds = Vec::new();
        let mut scratch = 1;
        for (index, phase) in phases.iter().enumerate() {
            let stage = Stage { phase, first: index == 0, last: index + 1 == phases.len(), scratch };
            let of_group = |base| self.embedded(&stage, base, |embedding| embed(&phase.inner, embedding));
            rounds.extend(beside(self.groups(phase).map(of_group)));
            scratch += phase.scratch_levels;
        }
        rounds
    }

    /// The first rank of every group of a phase; rooted collectives have groups of leaders only.
    fn groups(&self, phase: &LevelSchedule) -> impl Iterator<Item = u32> {
        let (length, stride) = (self.lengths[phase.level], self.strides[phase.level]);
        let rooted = matches!(self.collective, Collective::Broadcast | Collective::Reduce);
        (0..self.ranks).filter(move |rank| rank / stride % length == 0 && !(rooted && rank % stride != 0))
    }

    /// What `make` makes of the embedding of a stage's inner schedule in the group whose first rank is `base`.
    fn embedded<T>(&self, stage: &Stage<'_>, base: u32, make: impl FnOnce(&Embedding<'_>) -> T) -> T {
        // The place in which a phase leaves a piece for the next one. Scratch numbers below `count` are for that.
        let in_output =
            matches!(self.collective, Collective::AllReduce | Collective::AllGather | Collective::Broadcast);
        let held = |piece: Chunk| if in_output { Place::Output(piece) } else { Place::Scratch(piece) };
        // A buffer of one block has the pieces of a block.
        let block =
            |piece: Chunk, one_block: bool| if one_block { Chunk(piece.0 % self.parts) } else { piece };
        let input = |piece| Place::Input(block(piece, self.collective == Collective::AllGather));
        let output = |piece| Place::Output(block(piece, self.collective == Collective::ReduceScatter));
        let read = |piece| if stage.first { input(piece) } else { held(piece) };
        let write = |piece| if stage.last { output(piece) } else { held(piece) };

        let inner = &stage.phase.inner;
        let stride = self.strides[stage.phase.level];
        let ranks: Vec<Rank> = (0..inner.ranks).map(|digit| Rank(base + digit * stride)).collect();
        let count = lengths::count(inner.collective, inner.partition, inner.ranks);
        // A piece is named by the side that holds all blocks.
        let places = |rank: Rank, place: Place, outer: &dyn Fn(Chunk) -> Place| {
            let piece = lengths::of(inner.collective, inner.partition, rank, place);
            piece.map_or(Vec::new(), |piece| {
                self.pieces(stage.phase, base, piece.0).into_iter().map(outer).collect()
            })
        };
        let number = |number: Chunk| {
            let base_number = (stage.scratch + number.0 / count) * self.count;
            let pieces = self.pieces(stage.phase, base, number.0 % count);
            pieces.into_iter().map(|piece| Chunk(base_number + piece.0)).collect()
        };
        make(&Embedding {
            ranks: &ranks,
            input: &|rank, chunk| places(rank, Place::Input(chunk), &read),
            output: &|rank, chunk| places(rank, Place::Output(chunk), &write),
            scratch: &number,
            channel: 0,
        })
    }

    /// The outer pieces that piece `inner` stands for in the group of rank `base`.
    fn pieces(&self, phase: &LevelSchedule, base: u32, inner: u32) -> Vec<Chunk> {
        let LevelSchedule { level, inner: Schedule { collective, partition, ranks, .. }, .. } = phase;
        let (stride, length) = (self.strides[*level], self.lengths[*level]);
        match self.collective {
            Collective::ReduceScatter | Collective::AllGather => {
                let (digit, part) = (inner / partition.parts, inner % partition.parts);
                let width = self.parts / partition.parts;
                let own = base / (stride * length);
                let blocks = (0..self.ranks / (stride * length))
                    .map(|above| plus(&self.lengths[*level + 1..], above, own))
                    .map(|above| base % stride + (digit + above * length) * stride);
                let of_block =
                    |block| (0..width).map(move |at| Chunk(block * self.parts + part * width + at));
                blocks.flat_map(of_block).collect()
            }
            _ => {
                // All-reduce: the part of the buffer that the levels below have left. Rooted: the whole buffer.
                let mut span = self.parts;
                let mut start = 0;
                if self.collective == Collective::AllReduce {
                    for (&length, &stride) in self.lengths[..*level].iter().zip(&self.strides) {
                        span /= length;
                        start += base / stride % length * span;
                    }
                }
                let width = span / lengths::count(*collective, *partition, *ranks);
                // The digits of the dimensions that are left, the next one highest, above the parts of a block.
                let mut left: Vec<u32> = self.lengths[*level + 1..].iter().rev().copied().collect();
                let blocks: u32 = left.iter().product();
                if self.collective != Collective::AllReduce || !width.is_multiple_of(blocks) {
                    left.clear();
                }
                let parts = width / left.iter().product::<u32>();
                let mut own = 0;
                for above in *level + 1..self.lengths.len() {
                    own = own * self.lengths[above] + base / self.strides[above] % self.lengths[above];
                }
                let at = |at: u32| plus(&left, at / parts, own) * parts + at % parts;
                (0..width).map(|index| Chunk(start + inner * width + at(index))).collect()
            }
        }
    }
}

/// A phase in its place among all.
struct Stage<'a> {
    phase: &'a LevelSchedule,
    first: bool,
    last: bool,
    /// Sets of scratch numbers that are taken.
    scratch: u32,
}

/// The sum of numbers whose digits, the first dimension lowest, are added each by itself.
fn plus(lengths: &[u32], one: u32, other: u32) -> u32 {
    let (mut one, mut other, mut stride, mut sum) = (one, other, 1, 0);
    for &length in lengths {
        sum += (one + other) % length * stride;
        (one, other, stride) = (one / length, other / length, stride * length);
    }
    sum
}

/// Number of pieces of a block, so that every piece of every inner schedule is a whole number of them.
fn parts(collective: Collective, levels: usize, phases: &[LevelSchedule]) -> u32 {
    let of_level = |level: usize| {
        let inner = phases.iter().filter(move |phase| phase.level == level).map(|phase| &phase.inner);
        inner.fold((1, 1), |(ranks, parts), inner| {
            let blocks = if inner.collective == Collective::AllReduce { 1 } else { inner.ranks };
            (ranks.max(blocks), lcm(parts, inner.partition.parts))
        })
    };
    let each = (0..levels).rev().map(of_level);
    match collective {
        Collective::AllReduce => each.fold(1, |rest, (blocks, parts)| blocks * lcm(parts, rest)),
        _ => each.fold(1, |rest, (_, parts)| lcm(parts, rest)),
    }
}

/// A ring along each dimension in turn, rank by rank: [`blueconnect`](super::blueconnect), and with two dimensions
/// [`hierarchical`](super::hierarchical()) of rings.
#[derive(Debug)]
pub struct RingGrid {
    name: String,
    grid: Grid,
    /// Each phase with its ring and the round in which it starts.
    phases: Vec<(LevelSchedule, Ring, u32)>,
}

impl RingGrid {
    /// The grid of `dimensions`, the first one fastest. `None` where there are fewer than two ranks.
    ///
    /// # Panics
    ///
    /// When the collective has no such grid ([`blueconnect_is_defined`]).
    pub fn new(name: impl Into<String>, collective: Collective, dimensions: &[u32]) -> Option<RingGrid> {
        assert!(blueconnect_is_defined(collective), "there is no grid of rings for {collective}");
        let mut made: Vec<(LevelSchedule, Ring, u32)> = Vec::new();
        let mut start = 0;
        for (level, collective) in phase_order(collective, dimensions) {
            let ring = Ring::new(collective, dimensions[level], RingOptions::default());
            // One rank's part has the scratch numbers and the rounds of all.
            let mut inner = ring.head();
            inner.rounds.push(Round::default());
            let mut rounds = 0;
            ring.own(Rank(0), &mut |own| {
                inner.rounds[0].transfers.push(own.transfer);
                rounds = rounds.max(own.round + 1);
            });
            let scratch_levels = scratch_levels(&inner);
            made.push((LevelSchedule { level, inner: ring.head(), scratch_levels }, ring, start));
            start += rounds;
        }
        if made.is_empty() {
            return None;
        }
        let phases: Vec<LevelSchedule> = made.iter().map(|(phase, ..)| phase.clone()).collect();
        let grid = Grid::new(collective, dimensions, &phases);
        Some(RingGrid { name: name.into(), grid, phases: made })
    }
}

impl Regular for RingGrid {
    fn head(&self) -> Schedule {
        let Grid { collective, ranks, parts, .. } = self.grid;
        let partition = Partition { parts };
        Schedule { name: self.name.clone(), collective, ranks, switches: 0, partition, rounds: Vec::new() }
    }

    fn own(&self, rank: Rank, take: &mut dyn FnMut(Own)) {
        let mut scratch = 1;
        let folds = self.phases.iter().filter(|(phase, ..)| phase.inner.collective.reduces()).count();
        for (index, (phase, ring, start)) in self.phases.iter().enumerate() {
            let (stride, length) = (self.grid.strides[phase.level], self.grid.lengths[phase.level]);
            let digit = rank.0 / stride % length;
            let stage = Stage { phase, first: index == 0, last: index + 1 == self.phases.len(), scratch };
            self.grid.embedded(&stage, rank.0 - digit * stride, |embedding| {
                ring.own(Rank(digit), &mut |own| {
                    for transfer in embed_one(&own.transfer, embedding) {
                        let complete = own.complete && index + 1 == folds;
                        take(Own { round: start + own.round, transfer, complete });
                    }
                });
            });
            scratch += phase.scratch_levels;
        }
    }

    fn symmetry(&self) -> Option<Symmetry> {
        Some(Symmetry { dimensions: self.grid.lengths.clone(), lower_first: false })
    }

    fn piece(&self, by: Rank, piece: u32) -> u32 {
        // The first dimension is the highest digit of a piece, and the lowest of a rank.
        let (mut rest, mut stride, mut moved) = (piece, 1, 0);
        for (&length, &of_rank) in self.grid.lengths.iter().zip(&self.grid.strides).rev() {
            moved += (rest % length + by.0 / of_rank % length) % length * stride;
            (rest, stride) = (rest / length, stride * length);
        }
        moved
    }
}
