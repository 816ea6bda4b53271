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

use super::grid::{Grid, LevelSchedule, phase_order};
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
            let lengths: Vec<u32> = levels.iter().map(|level| level.0).collect();
            let grid = Grid::new(collective, &lengths, &phases);
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

/// The phases in their order. Levels of one rank have none.
fn phases(collective: Collective, levels: &[(u32, Builder<'_>)]) -> Vec<LevelSchedule> {
    let lengths: Vec<u32> = levels.iter().map(|level| level.0).collect();
    let phase = |(level, collective): (usize, Collective)| {
        let (ranks, build) = levels[level];
        let inner = build(collective, ranks);
        assert_eq!((inner.collective, inner.ranks), (collective, ranks), "what the builder was asked for");
        LevelSchedule { level, scratch_levels: scratch_levels(&inner), inner }
    };
    phase_order(collective, &lengths).into_iter().map(phase).collect()
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
