//! Collectives along the dimensions of a machine: inside the box first, then between the boxes, and back.
//!
//! Ranks are numbered with the first dimension fastest: in `b` boxes of `g` ranks, rank = box * `g` + local.
//! All-reduce: reduce-scatter along every dimension but the last, all-reduce along the last, all-gather back.
//! Reduce-scatter runs up the dimensions, all-gather down; reduce and broadcast likewise, through the first
//! rank of every group (the leader). All-to-all: inside the box every rank hands over what belongs to the
//! others' rails (ranks of the same local number), then the rails exchange.
//!
//! Sources: M. Cho, U. Finkler, D. Kung and H. Hunter, "BlueConnect: decomposing all-reduce for deep learning on
//! heterogeneous network hierarchy", MLSys 2019 (any number of dimensions); H. Mikami, H. Suganuma, Y. Tanaka and
//! Y. Kageyama, "Massively distributed SGD: ImageNet/ResNet-50 training in a flash", arXiv 1811.05233, 2018 (the
//! 2D torus); C. Hwang et al., "Tutel: adaptive mixture-of-experts at scale", arXiv 2206.03382, 2022 (2DH
//! all-to-all).
//!
//! Cost, with `M` the bytes of the largest buffer of a rank (all-to-all: of its input), rings along every
//! dimension and pairwise exchange for all-to-all; bytes out of and into the busiest port of each kind:
//!
//! | collective | rounds | bytes inside the box | bytes between boxes |
//! |---|---|---|---|
//! | all-reduce | `2(g-1) + 2(b-1)` | `2(g-1)/g M` | `2(b-1)/b M/g` |
//! | reduce-scatter, all-gather | `(g-1) + (b-1)` | `(g-1)/g M` | `(b-1)/b M/g` |
//! | broadcast, reduce | `(g-1) + (b-1)` | `M` | `M` |
//! | all-to-all | `(g-1) + (b-1)` | `(g-1)/g M` | `(b-1)/b M` |
//!
//! Over dimensions `p_1, p_2, …` all-reduce takes `Σ 2(p_i-1)` rounds and `2(p_i-1)/p_i M / Π_{j<i} p_j` bytes
//! along dimension `i`; reduce-scatter and all-gather half of both. With other builders each dimension costs
//! what its builder costs on that many bytes.
//!
//! Scratch of a rank with rings and pairwise exchange, in pieces of a slice; other builders multiply theirs by the
//! pieces that one of theirs stands for:
//!
//! | collective | places |
//! |---|---|
//! | all-reduce | `n / (p_1 … p_i)`, where `i` is the first dimension longer than 2; 0 when there is none |
//! | reduce-scatter | `n / p_1` (the blocks of the rail); over one dimension a ring's |
//! all-gather, broadcast | 0; the result of a phase lies in the output |
//! | reduce | 1 |
//! all-to-all | `(g-1) b`, the blocks of the other ranks of the box; 0 over one dimension |
//!
//! Fold order: that of the inner schedules, one inside the other: the values of a box are folded first.
//!
//! Invariant: an inner schedule runs in place on the result of the phase before it, in the form in which it is
//! proved. Deliberately absent: overlap of the phases; a slice goes through all phases before the next one starts,
//! unless several such schedules run side by side.

use super::compose::{Embedding, beside, embed};
use super::ring::{RingOptions, ring};
use super::two_level::two_level_exchange;
use crate::{Channel, Chunk, Collective, Partition, Place, Rank, Round, Schedule, Transfer, lengths};

/// Makes the schedule of a collective over that many ranks, at least 2.
pub type Builder<'a> = &'a dyn Fn(Collective, u32) -> Schedule;

/// The collectives that run along dimensions.
pub fn hierarchical_is_defined(collective: Collective) -> bool {
    !matches!(collective, Collective::SendReceive | Collective::Gather | Collective::Scatter)
}

/// Whether there is a ring along every dimension.
pub fn blueconnect_is_defined(collective: Collective) -> bool {
    matches!(collective, Collective::AllReduce | Collective::ReduceScatter | Collective::AllGather)
}

/// `collective` over `boxes` boxes of `per_box` ranks. For all-reduce over several boxes, `inside` makes the
/// reduce-scatter and the all-gather and `between` the all-reduce; otherwise both make the collective itself. Neither
/// is called for a schedule over one rank.
///
/// # Panics
///
/// When the collective is not defined ([`hierarchical_is_defined`]), a number is 0, or a builder panics or makes
/// another collective or number of ranks than it is called for.
pub fn hierarchical(
    collective: Collective,
    boxes: u32,
    per_box: u32,
    inside: Builder<'_>,
    between: Builder<'_>,
) -> Schedule {
    let (schedule, names) = along(collective, &[(per_box, inside), (boxes, between)]);
    let name = format!("hierarchical({boxes}x{per_box}, {}, {})", names[0], names[1]);
    Schedule { name, ..schedule }
}

/// `collective` over `dimensions[0] * dimensions[1] * …` ranks with a ring along every dimension; the first
/// dimension is the one that carries most.
///
/// # Panics
///
/// When the collective is not defined ([`blueconnect_is_defined`]), or there is no dimension or one of length 0.
pub fn blueconnect(collective: Collective, dimensions: &[u32]) -> Schedule {
    assert!(blueconnect_is_defined(collective), "BlueConnect has no {collective}");
    let build = |collective, ranks| ring(collective, ranks, RingOptions::default());
    let levels: Vec<(u32, Builder<'_>)> =
        dimensions.iter().map(|&ranks| (ranks, &build as Builder<'_>)).collect();
    let lengths: Vec<String> = dimensions.iter().map(u32::to_string).collect();
    Schedule { name: format!("blueconnect({})", lengths.join("x")), ..along(collective, &levels).0 }
}

/// BlueConnect over two dimensions: rings along rows of `columns` ranks, then along columns of `rows` ranks.
///
/// # Panics
///
/// As [`blueconnect`].
pub fn torus2d(collective: Collective, columns: u32, rows: u32) -> Schedule {
    Schedule { name: format!("torus2d({columns}x{rows})"), ..blueconnect(collective, &[columns, rows]) }
}

/// The schedule along all levels, and for each level the name of the first inner schedule that runs there.
fn along(collective: Collective, levels: &[(u32, Builder<'_>)]) -> (Schedule, Vec<String>) {
    assert!(hierarchical_is_defined(collective), "there is no hierarchical {collective}");
    assert!(!levels.is_empty() && levels.iter().all(|level| level.0 > 0), "every dimension has a rank");
    let phases = phases(collective, levels);
    let name = |level| phases.iter().find(|phase| phase.level == level).map(|phase| phase.inner.name.clone());
    let names = (0..levels.len()).map(|level| name(level).unwrap_or_else(|| "none".into())).collect();
    let ranks = levels.iter().map(|level| level.0).product();
    let (parts, rounds) = match (collective, phases.as_slice()) {
        (_, []) => (1, one_rank(collective).rounds),
        (Collective::AllToAll, [one]) => (one.inner.partition.parts, one.inner.rounds.clone()),
        (Collective::AllToAll, [inside, between]) => two_level_exchange(&inside.inner, &between.inner),
        _ => {
            let grid = Grid::new(collective, levels, &phases);
            (grid.parts, grid.rounds(&phases))
        }
    };
    let partition = Partition { parts };
    (Schedule { name: "along".into(), collective, ranks, switches: 0, partition, rounds }, names)
}

/// The schedule of a rank that is alone.
pub(super) fn one_rank(collective: Collective) -> Schedule {
    let (rank, chunk) = (Rank(0), Chunk(0));
    let (source, target) = (Place::Input(chunk), Place::Output(chunk));
    let copy =
        Transfer { from: rank, to: rank, channel: Channel(0), source, target, fold: None, own_first: false };
    let rounds = vec![Round { transfers: vec![copy] }];
    let partition = Partition { parts: 1 };
    Schedule { name: "local".into(), collective, ranks: 1, switches: 0, partition, rounds }
}

/// The inner schedule of a level: all groups of the level run it at the same time.
struct LevelSchedule {
    level: usize,
    inner: Schedule,
}

/// The phases in their order. Levels of one rank have none.
fn phases(collective: Collective, levels: &[(u32, Builder<'_>)]) -> Vec<LevelSchedule> {
    let up: Vec<usize> = (0..levels.len()).filter(|&level| levels[level].0 > 1).collect();
    let down = up.iter().rev().copied();
    let order: Vec<(usize, Collective)> = match collective {
        Collective::AllReduce => {
            let last = up.len().saturating_sub(1);
            let scatter = up[..last].iter().map(|&level| (level, Collective::ReduceScatter));
            let reduce = up[last..].iter().map(|&level| (level, collective));
            scatter.chain(reduce).chain(down.skip(1).map(|level| (level, Collective::AllGather))).collect()
        }
        Collective::AllGather | Collective::Broadcast => down.map(|level| (level, collective)).collect(),
        _ => up.iter().map(|&level| (level, collective)).collect(),
    };
    let phase = |(level, collective): (usize, Collective)| {
        let (ranks, build) = levels[level];
        let inner = build(collective, ranks);
        assert_eq!((inner.collective, inner.ranks), (collective, ranks), "what the builder was asked for");
        LevelSchedule { level, inner }
    };
    order.into_iter().map(phase).collect()
}

/// The outer schedule's ranks as points of a grid, and its pieces.
struct Grid {
    collective: Collective,
    ranks: u32,
    parts: u32,
    /// Number of named pieces: the modulus of scratch numbers.
    count: u32,
    /// Ranks of each level, and how far apart neighbours of a level are.
    lengths: Vec<u32>,
    strides: Vec<u32>,
}

impl Grid {
    fn new(collective: Collective, levels: &[(u32, Builder<'_>)], phases: &[LevelSchedule]) -> Self {
        let lengths: Vec<u32> = levels.iter().map(|level| level.0).collect();
        let stride = |level: usize| lengths[..level].iter().product();
        let strides: Vec<u32> = (0..lengths.len()).map(stride).collect();
        let ranks = lengths.iter().product();
        let parts = parts(collective, lengths.len(), phases);
        let count = lengths::count(collective, Partition { parts }, ranks);
        Grid { collective, ranks, parts, count, lengths, strides }
    }

    fn rounds(&self, phases: &[LevelSchedule]) -> Vec<Round> {
        // The place in which a phase leaves a piece for the next one. Scratch numbers below `count` are for that.
        let in_output =
            matches!(self.collective, Collective::AllReduce | Collective::AllGather | Collective::Broadcast);
        let held = |piece: Chunk| if in_output { Place::Output(piece) } else { Place::Scratch(piece) };
        // A buffer of one block has the pieces of a block.
        let block =
            |piece: Chunk, one_block: bool| if one_block { Chunk(piece.0 % self.parts) } else { piece };
        let input = |piece| Place::Input(block(piece, self.collective == Collective::AllGather));
        let output = |piece| Place::Output(block(piece, self.collective == Collective::ReduceScatter));
        let mut scratch = 1;
        let mut rounds = Vec::new();
        for (index, phase) in phases.iter().enumerate() {
            let (first, last) = (index == 0, index + 1 == phases.len());
            let read = |piece| if first { input(piece) } else { held(piece) };
            let write = |piece| if last { output(piece) } else { held(piece) };
            let groups = self.groups(phase).map(|base| self.group(phase, base, &read, &write, scratch));
            rounds.extend(beside(groups));
            scratch += scratch_levels(&phase.inner);
        }
        rounds
    }

    /// The first rank of every group of a phase; rooted collectives have groups of leaders only.
    fn groups(&self, phase: &LevelSchedule) -> impl Iterator<Item = u32> {
        let (length, stride) = (self.lengths[phase.level], self.strides[phase.level]);
        let rooted = matches!(self.collective, Collective::Broadcast | Collective::Reduce);
        (0..self.ranks).filter(move |rank| rank / stride % length == 0 && !(rooted && rank % stride != 0))
    }

    fn group(
        &self,
        phase: &LevelSchedule,
        base: u32,
        read: &dyn Fn(Chunk) -> Place,
        write: &dyn Fn(Chunk) -> Place,
        scratch: u32,
    ) -> Vec<Round> {
        let inner = &phase.inner;
        let stride = self.strides[phase.level];
        let ranks: Vec<Rank> = (0..inner.ranks).map(|digit| Rank(base + digit * stride)).collect();
        let count = lengths::count(inner.collective, inner.partition, inner.ranks);
        // A piece is named by the side that holds all blocks.
        let places = |rank: Rank, place: Place, outer: &dyn Fn(Chunk) -> Place| {
            let piece = lengths::of(inner.collective, inner.partition, rank, place);
            piece.map_or(Vec::new(), |piece| {
                self.pieces(phase, base, piece.0).into_iter().map(outer).collect()
            })
        };
        let number = |number: Chunk| {
            let base_number = (scratch + number.0 / count) * self.count;
            let pieces = self.pieces(phase, base, number.0 % count);
            pieces.into_iter().map(|piece| Chunk(base_number + piece.0)).collect()
        };
        let embedding = Embedding {
            ranks: &ranks,
            input: &|rank, chunk| places(rank, Place::Input(chunk), read),
            output: &|rank, chunk| places(rank, Place::Output(chunk), write),
            scratch: &number,
            channel: 0,
        };
        embed(inner, &embedding)
    }

    /// The outer pieces that piece `inner` stands for in the group of rank `base`.
    fn pieces(&self, phase: &LevelSchedule, base: u32, inner: u32) -> Vec<Chunk> {
        let LevelSchedule { level, inner: Schedule { collective, partition, ranks, .. } } = phase;
        let (stride, length) = (self.strides[*level], self.lengths[*level]);
        match self.collective {
            Collective::ReduceScatter | Collective::AllGather => {
                let (digit, part) = (inner / partition.parts, inner % partition.parts);
                let width = self.parts / partition.parts;
                let blocks = (0..self.ranks / (stride * length))
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
                (0..width).map(|at| Chunk(start + inner * width + at)).collect()
            }
        }
    }
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

/// Number of whole sets of scratch numbers that a schedule uses.
pub(super) fn scratch_levels(schedule: &Schedule) -> u32 {
    let count = lengths::count(schedule.collective, schedule.partition, schedule.ranks);
    let places = schedule.rounds.iter().flat_map(|round| &round.transfers);
    let places = places.flat_map(|transfer| [Some(transfer.source), Some(transfer.target), transfer.fold]);
    let levels = places.flatten().filter_map(|place| match place {
        Place::Scratch(number) => Some(number.0 / count + 1),
        _ => None,
    });
    levels.max().unwrap_or(0)
}

/// The least common multiple.
pub(super) fn lcm(a: u32, b: u32) -> u32 {
    let (mut divisor, mut rest) = (a, b);
    while rest != 0 {
        (divisor, rest) = (rest, divisor % rest);
    }
    a / divisor * b
}
