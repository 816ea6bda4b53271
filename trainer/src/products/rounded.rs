//! Products of matrices whose elements are rounded to bfloat16.
//!
//! Invariant: operands have the same values on every processor: rounding is that of `number.rs`. With a tile, both are packed
//! in pairs as the tile reads them, block by block (Goto and van de Geijn, 2008): a block of the right one and one of the left
//! fit the second cache, and a panel of the left one the first. Without one, both are rounded as they lie and `gemm` multiplies
//! them. Room belongs to the thread and is kept. Absent: the tile, which is `unsafe`.

#![deny(unsafe_code)]

use std::cell::RefCell;
use std::ops::Range;

use super::{Into, Pairs, TILE, Tile, View, ViewMut, assert_fit, multiply, tile};
use crate::number::{Number, rounded_bits, with_vectors};

/// Elements of a row that are multiplied before the sums are added to what is there.
const DEPTH: usize = 512;
/// Rows of a block of the left operand: a multiple of a tile's.
const HEIGHT: usize = 20 * TILE.0;
/// Columns of a block of the right operand: a multiple of a tile's.
const WIDTH: usize = 8 * TILE.1;

/// The product of the matrices whose elements are the nearest bfloat16, with sums in `T`.
pub(super) fn multiply_rounded<T: Number>(
    to: ViewMut<'_, T>,
    into: Into,
    factor: T,
    a: View<'_, T>,
    b: View<'_, T>,
) {
    let Some((left, right)) = a.f32s().zip(b.f32s()) else {
        return multiply_copies(&mut Vec::new(), to, (into, factor), a, b);
    };
    let to = to.f32s().expect("three matrices of one type");
    multiply_f32s(to, (into, factor.wide() as f32), left, right);
}

fn multiply_f32s(to: ViewMut<'_, f32>, (into, factor): (Into, f32), a: View<'_, f32>, b: View<'_, f32>) {
    thread_local! {
        static ROOM: RefCell<Room> = RefCell::default();
    }
    assert_fit(&to, a, b);
    // An expert without tokens rounds none of its weights.
    if to.rows == 0 || to.columns == 0 {
        return;
    }
    ROOM.with_borrow_mut(|room| match tile() {
        Some(tile) => multiply_packed(tile, room, to, (into, factor), a, b),
        None => multiply_copies(&mut room.copies, to, (into, factor), a, b),
    });
}

/// What products of a thread need beside their operands: at most 630 KB for packed blocks, or both operands for copies.
#[derive(Default)]
struct Room {
    left: Vec<Pairs<{ TILE.0 }>>,
    right: Vec<Pairs<{ TILE.1 }>>,
    copies: Vec<f32>,
}

/// Rounds both operands where no instruction multiplies bfloat16.
fn multiply_copies<T: Number>(
    room: &mut Vec<T>,
    to: ViewMut<'_, T>,
    (into, factor): (Into, T),
    a: View<'_, T>,
    b: View<'_, T>,
) {
    let (len, rest) = (a.rows * a.columns, b.rows * b.columns);
    if room.len() < len + rest {
        room.resize(len + rest, T::ZERO);
    }
    let (left, right) = room.split_at_mut(len);
    multiply(to, into, factor, rounded(a, left), rounded(b, &mut right[..rest]));
}

/// The matrix with rounded elements, in `room`.
fn rounded<'a, T: Number>(view: View<'_, T>, room: &'a mut [T]) -> View<'a, T> {
    let (lines, len) = view.lines();
    with_vectors(|| {
        for line in 0..if len == 0 { 0 } else { lines } {
            for (to, from) in room[line * len..][..len].iter_mut().zip(view.line(line)) {
                *to = from.bfloat16();
            }
        }
    });
    let copy = View::new(room, lines, len, len);
    if view.column_stride == 1 { copy } else { copy.transposed() }
}

/// Packs blocks of both operands and multiplies their tiles.
fn multiply_packed(
    tile: Tile,
    room: &mut Room,
    mut to: ViewMut<'_, f32>,
    (into, factor): (Into, f32),
    a: View<'_, f32>,
    b: View<'_, f32>,
) {
    if to.columns == 0 {
        return;
    }
    if a.columns == 0 && into == Into::Replace {
        for row in 0..to.rows {
            to.row(row, 0..b.columns).fill(0.0);
        }
    }
    let Room { left, right, .. } = room;
    for columns in parts(&(0..b.columns), WIDTH) {
        for inner in parts(&(0..a.columns), DEPTH) {
            let into = if inner.start == 0 { into } else { Into::Add };
            let right = with_vectors(|| pack(b.part(inner.clone(), columns.clone()).transposed(), right));
            for rows in parts(&(0..a.rows), HEIGHT) {
                with_vectors(|| {
                    let left = pack(a.part(rows.clone(), inner.clone()), left);
                    let operands = (left, right, inner.len().div_ceil(2));
                    multiply_block(tile, operands, (&rows, &columns), |row, columns, sums| {
                        write(to.row(row, columns), into, factor, sums);
                    });
                });
            }
        }
    }
}

/// Multiplies the tiles of a packed block and writes the rows of each.
#[inline(always)]
fn multiply_block(
    tile: Tile,
    (left, right, pairs): (&[Pairs<{ TILE.0 }>], &[Pairs<{ TILE.1 }>], usize),
    (rows, columns): (&Range<usize>, &Range<usize>),
    mut write: impl FnMut(usize, Range<usize>, &[f32; TILE.1]),
) {
    for (right, columns) in right.chunks_exact(pairs).zip(parts(columns, TILE.1)) {
        for (left, rows) in left.chunks_exact(pairs).zip(parts(rows, TILE.0)) {
            let sums = tile(left, right);
            for (row, sums) in rows.zip(&sums) {
                write(row, columns.clone(), sums);
            }
        }
    }
}

/// A range in ranges of at most `most`.
fn parts(range: &Range<usize>, most: usize) -> impl Iterator<Item = Range<usize>> + use<> {
    let end = range.end;
    range.clone().step_by(most).map(move |begin| begin..end.min(begin + most))
}

#[inline(always)]
fn write(to: &mut [f32], into: Into, factor: f32, sums: &[f32; TILE.1]) {
    for (to, sum) in to.iter_mut().zip(sums) {
        *to = match into {
            Into::Replace => factor * sum,
            Into::Add => *to + factor * sum,
        };
    }
}

/// Packs the rows of a matrix, `LINES` of them side by side and pair by pair; what is missing of a tile or of a pair is zero.
#[inline(always)]
fn pack<'a, const LINES: usize>(view: View<'_, f32>, room: &'a mut Vec<Pairs<LINES>>) -> &'a [Pairs<LINES>] {
    let pairs = view.columns.div_ceil(2);
    let len = view.rows.div_ceil(LINES) * pairs;
    if room.len() < len {
        room.resize(len, [0; LINES]);
    }
    let packed = &mut room[..len];
    if view.column_stride == 1 {
        pack_rows(view, pairs, packed)
    } else {
        pack_columns(view, pairs, packed)
    }
    packed
}

/// Packs rows of adjacent elements: 16 pairs of each row, which then change places.
#[inline(always)]
fn pack_rows<const LINES: usize>(view: View<'_, f32>, pairs: usize, packed: &mut [Pairs<LINES>]) {
    const PAIRS: usize = 16;
    for (panel, first) in packed.chunks_exact_mut(pairs).zip((0..view.rows).step_by(LINES)) {
        let lines = LINES.min(view.rows - first);
        let mut block = [[0; PAIRS]; LINES];
        for (at, panel) in panel.chunks_mut(PAIRS).enumerate() {
            for (line, block) in block[..lines].iter_mut().enumerate() {
                let values: [f32; 2 * PAIRS] = padded(&view.line(first + line)[at * 2 * PAIRS..]);
                let (values, _) = values.as_chunks::<2>();
                for (pair, [low, high]) in block.iter_mut().zip(values) {
                    *pair = pair_of(*low, *high);
                }
            }
            for (at, to) in panel.iter_mut().enumerate() {
                *to = std::array::from_fn(|line| block[line][at]);
            }
        }
    }
}

/// Packs rows whose elements are a column apart: a pair of columns at a time.
#[inline(always)]
fn pack_columns<const LINES: usize>(view: View<'_, f32>, pairs: usize, packed: &mut [Pairs<LINES>]) {
    for pair in 0..pairs {
        let low = view.line(2 * pair);
        let high = if 2 * pair + 1 < view.columns { view.line(2 * pair + 1) } else { &[] };
        for (panel, first) in packed.chunks_exact_mut(pairs).zip((0..view.rows).step_by(LINES)) {
            let low: [f32; LINES] = padded(&low[first..]);
            let high: [f32; LINES] = padded(high.get(first..).unwrap_or_default());
            panel[pair] = std::array::from_fn(|line| pair_of(low[line], high[line]));
        }
    }
}

/// The first elements, and zeros where there are fewer.
#[inline(always)]
fn padded<const LEN: usize>(values: &[f32]) -> [f32; LEN] {
    values.first_chunk().copied().unwrap_or_else(|| {
        let mut padded = [0.0; LEN];
        padded[..values.len()].copy_from_slice(values);
        padded
    })
}

#[inline(always)]
fn pair_of(low: f32, high: f32) -> u32 {
    (rounded_bits(low) >> 16) | (rounded_bits(high) & 0xffff_0000)
}

#[cfg(test)]
mod tests;
