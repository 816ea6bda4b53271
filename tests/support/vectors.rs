//! Calls whose blocks differ in length, compared with blocks computed directly.

use consort::{Blocks, Communicator, ReduceOp, Result};

use crate::collectives::{scalar, scaled_sum, sum, vector};
use crate::system::Random;

/// The content between blocks.
const GAP: i64 = -7;

/// How long the blocks of `size` ranks are, drawn at random: zeros, odd lengths, now and then `longest`.
pub fn counts(random: &mut Random, size: u32, longest: usize) -> Vec<usize> {
    let count = |random: &mut Random| match random.draw() % 5 {
        0 => 0,
        1 => longest,
        _ => (random.draw() % 2000) as usize,
    };
    (0..size).map(|_| count(random)).collect()
}

/// Where blocks of these lengths begin with `gap` elements before each, and the length of all.
fn starts(counts: &[usize], gap: usize) -> (Vec<usize>, usize) {
    let mut next = 0;
    let starts = counts.iter().map(|count| {
        let start = next + gap;
        next = start + count;
        start
    });
    (starts.collect(), next)
}

/// Blocks that lie side by side without gaps have no displacements.
fn placed<'a>(counts: &'a [usize], starts: &'a [usize], gap: usize) -> Blocks<'a> {
    if gap == 0 { Blocks::from(counts) } else { Blocks::at(counts, starts) }
}

/// Blocks of all ranks side by side with `gap` elements before each.
fn laid(blocks: &[Vec<i64>], gap: usize) -> Vec<i64> {
    blocks.iter().flat_map(|block| std::iter::repeat_n(GAP, gap).chain(block.iter().copied())).collect()
}

/// The calls in which every rank knows all counts, side by side and with gaps, in place and not.
///
/// # Errors
/// Those of the calls.
///
/// # Panics
/// If a result is wrong or an element between blocks was written.
pub fn known(comm: &Communicator, counts: &[usize]) -> Result<()> {
    let (rank, size) = (comm.rank(), comm.size());
    let mine = counts[rank as usize];
    let blocks: Vec<Vec<i64>> = (0..size).zip(counts).map(|(rank, count)| vector(rank, *count)).collect();
    for gap in [0, 3] {
        let (starts, total) = starts(counts, gap);
        let placed = placed(counts, &starts, gap);
        let own = starts[rank as usize]..starts[rank as usize] + mine;
        let gathered = laid(&blocks, gap);
        let mut output = vec![GAP; total];
        comm.all_gather_v(&blocks[rank as usize], &mut output, placed)?;
        assert_eq!(output, gathered, "all_gather_v of {counts:?}");
        let mut buffer = vec![GAP; total];
        buffer[own.clone()].copy_from_slice(&blocks[rank as usize]);
        comm.all_gather_v_in_place(&mut buffer, placed)?;
        assert_eq!(buffer, gathered, "all_gather_v in place of {counts:?}");

        let input = vector(rank, total);
        let reduced: Vec<i64> = own.clone().map(|index| sum(size, index)).collect();
        let mut output = vec![GAP; mine];
        comm.reduce_scatter_v(&input, &mut output, placed, ReduceOp::Sum)?;
        assert_eq!(output, reduced, "reduce_scatter_v of {counts:?}");
        let mut buffer = input.clone();
        comm.reduce_scatter_v_in_place(&mut buffer, placed, ReduceOp::Sum)?;
        assert_eq!(buffer[own.clone()], reduced, "reduce_scatter_v in place of {counts:?}");

        let scales = comm.scaled_by(scalar(rank));
        let reduced: Vec<i64> = own.clone().map(|index| scaled_sum(size, index)).collect();
        scales.reduce_scatter_v(&input, &mut output, placed)?;
        assert_eq!(output, reduced, "scaled reduce_scatter_v of {counts:?}");
        let mut buffer = input.clone();
        scales.reduce_scatter_v_in_place(&mut buffer, placed)?;
        assert_eq!(buffer[own], reduced, "scaled reduce_scatter_v in place of {counts:?}");
    }
    Ok(())
}

/// The calls in which a rank knows its own counts alone. `counts` of rank `r` are the lengths that it sends: block
/// `to` of them to rank `to`.
///
/// # Errors
/// Those of the calls.
///
/// # Panics
/// If a result is wrong or an element between blocks was written.
pub fn own(comm: &Communicator, counts: &[Vec<usize>]) -> Result<()> {
    let (rank, size) = (comm.rank(), comm.size());
    let message =
        |from: u32, to: u32| -> Vec<i64> { vector(from * size + to, counts[from as usize][to as usize]) };
    let (sent, received): (Vec<_>, Vec<_>) =
        (0..size).map(|other| (message(rank, other), message(other, rank))).unzip();
    let lengths = |blocks: &[Vec<i64>]| -> Vec<usize> { blocks.iter().map(Vec::len).collect() };
    for gap in [0, 2] {
        let (out, back) = (lengths(&sent), lengths(&received));
        let ((out_starts, _), (back_starts, total)) = (starts(&out, gap), starts(&back, gap));
        let mut output = vec![GAP; total];
        let to = placed(&out, &out_starts, gap);
        let from = placed(&back, &back_starts, gap);
        comm.all_to_all_v(&laid(&sent, gap), to, &mut output, from)?;
        assert_eq!(output, laid(&received, gap), "all_to_all_v of {counts:?}");
        for root in 0..size {
            let blocks: Vec<_> = (0..size).map(|from| message(from, root)).collect();
            let counts = lengths(&blocks);
            let (starts, total) = starts(&counts, gap);
            let all = placed(&counts, &starts, gap);
            let mine = &blocks[rank as usize];
            if rank == root {
                let mut output = vec![GAP; total];
                comm.gather_v(mine, &mut output, all, root)?;
                assert_eq!(output, laid(&blocks, gap), "gather_v to {root}");
            } else {
                comm.gather_v(mine, &mut [], &[], root)?;
            }
            let mut output = vec![GAP; mine.len()];
            if rank == root {
                comm.scatter_v(&laid(&blocks, gap), all, &mut output, root)?;
            } else {
                comm.scatter_v(&[], &[], &mut output, root)?;
            }
            assert_eq!(output, *mine, "scatter_v from {root}");
        }
    }
    Ok(())
}

/// All of them, with lengths that follow from the seed; one length is of several slices.
///
/// # Errors
/// Those of the calls.
///
/// # Panics
/// If a result is wrong.
pub fn everything(comm: &Communicator, seed: u64, rounds: usize, longest: usize) -> Result<()> {
    let mut random = Random::new(seed);
    let size = comm.size();
    for _ in 0..rounds {
        known(comm, &counts(&mut random, size, longest))?;
        let matrix: Vec<_> = (0..size).map(|_| counts(&mut random, size, longest / size as usize)).collect();
        own(comm, &matrix)?;
    }
    for few in [0, 1] {
        known(comm, &vec![few; size as usize])?;
        own(comm, &vec![vec![few; size as usize]; size as usize])?;
    }
    Ok(())
}
