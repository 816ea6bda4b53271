//! Matrix products, the one place of this crate that has `unsafe`.
//!
//! Invariant: every element that a product reads or writes lies in the slice of its view. A view is checked when it is
//! made, its fields are private, and a written view has each element once. Products run on the calling thread, so the
//! order of the sums depends on the lengths and the processor alone. Products of bfloat16 are put together in `rounded`; here
//! is the instruction that they need. Absent: what the matrices mean.

pub(crate) mod rounded;

use std::ops::Range;

use gemm::Parallelism;

use crate::number::Number;

/// A matrix to read: rows and columns at fixed distances in a slice. One of the two distances is 1.
#[derive(Clone, Copy)]
pub struct View<'a, T> {
    data: &'a [T],
    rows: usize,
    columns: usize,
    row_stride: usize,
    column_stride: usize,
}

impl<'a, T> View<'a, T> {
    /// A matrix whose rows begin `stride` elements apart.
    ///
    /// # Panics
    /// If the slice ends before the last row does.
    pub fn new(data: &'a [T], rows: usize, columns: usize, stride: usize) -> Self {
        assert!(
            holds(data.len(), rows, columns, stride),
            "{rows} x {columns} rows of {stride} in {}",
            data.len()
        );
        View { data, rows, columns, row_stride: stride, column_stride: 1 }
    }

    /// The matrix with rows and columns exchanged. Nothing moves.
    #[must_use]
    pub fn transposed(self) -> Self {
        View {
            rows: self.columns,
            columns: self.rows,
            row_stride: self.column_stride,
            column_stride: self.row_stride,
            ..self
        }
    }

    /// Some rows and columns of it, at least one of each.
    fn part(self, rows: Range<usize>, columns: Range<usize>) -> Self {
        assert!(rows.end <= self.rows && columns.end <= self.columns, "a part of the matrix");
        let begin = rows.start * self.row_stride + columns.start * self.column_stride;
        View { data: &self.data[begin..], rows: rows.len(), columns: columns.len(), ..self }
    }

    /// The same matrix, if its elements are `f32`.
    fn f32s(self) -> Option<View<'a, f32>>
    where
        T: Number,
    {
        let View { data, rows, columns, row_stride, column_stride } = self;
        T::f32s(data).map(|data| View { data, rows, columns, row_stride, column_stride })
    }

    /// How many lines of adjacent elements it has, and how long they are.
    fn lines(self) -> (usize, usize) {
        if self.column_stride == 1 { (self.rows, self.columns) } else { (self.columns, self.rows) }
    }

    /// A line of adjacent elements: a row, or where the matrix is transposed, a column.
    #[inline(always)]
    fn line(self, at: usize) -> &'a [T] {
        let (stride, len) = if self.column_stride == 1 {
            (self.row_stride, self.columns)
        } else {
            (self.column_stride, self.rows)
        };
        &self.data[at * stride..][..len]
    }
}

/// A matrix to write: rows at a fixed distance in a slice.
pub struct ViewMut<'a, T> {
    data: &'a mut [T],
    rows: usize,
    columns: usize,
    stride: usize,
}

impl<'a, T> ViewMut<'a, T> {
    /// A matrix whose rows begin `stride` elements apart.
    ///
    /// # Panics
    /// If the slice ends before the last row does, or rows overlap.
    pub fn new(data: &'a mut [T], rows: usize, columns: usize, stride: usize) -> Self {
        assert!(columns <= stride, "rows of {columns} elements overlap at a distance of {stride}");
        assert!(
            holds(data.len(), rows, columns, stride),
            "{rows} x {columns} rows of {stride} in {}",
            data.len()
        );
        ViewMut { data, rows, columns, stride }
    }

    /// The same matrix, if its elements are `f32`.
    fn f32s(self) -> Option<ViewMut<'a, f32>>
    where
        T: Number,
    {
        let ViewMut { data, rows, columns, stride } = self;
        T::f32s_mut(data).map(|data| ViewMut { data, rows, columns, stride })
    }

    /// Elements of a row.
    #[inline(always)]
    fn row(&mut self, row: usize, columns: Range<usize>) -> &mut [T] {
        &mut self.data[row * self.stride..][..self.columns][columns]
    }
}

/// Whether the matrix ends within `len` elements.
fn holds(len: usize, rows: usize, columns: usize, stride: usize) -> bool {
    if rows == 0 || columns == 0 {
        return true;
    }
    (rows - 1).checked_mul(stride).and_then(|begin| begin.checked_add(columns)).is_some_and(|end| end <= len)
}

/// What a product does with the elements that are there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Into {
    /// The product takes their place.
    Replace,
    /// The product is added to them.
    Add,
}

/// What a layer multiplies. What it adds up is what the model computes in, whatever this says.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Products {
    /// The numbers as they are.
    #[default]
    Exact,
    /// The bfloat16 nearest to each number. A product of two is exact in `f32`, and sums are taken in `f32`, as PyTorch's
    /// autocast has it; unlike there, the results are not rounded again. In a model of `f64`, sums are taken in `f64`.
    ///
    /// Sums are in another order where the processor multiplies pairs of bfloat16 (AVX-512 BF16) than elsewhere, so bits
    /// differ between processors. That instruction takes numbers below 2^-126 for zero, `f32` of the others does not.
    Bf16,
}

impl Products {
    /// [`multiply`], of these numbers.
    ///
    /// # Panics
    /// If the lengths do not fit each other.
    pub fn multiply<T: Number>(
        self,
        to: ViewMut<'_, T>,
        into: Into,
        factor: T,
        a: View<'_, T>,
        b: View<'_, T>,
    ) {
        match self {
            Products::Exact => multiply(to, into, factor, a, b),
            Products::Bf16 => rounded::multiply_rounded(to, into, factor, a, b),
        }
    }
}

/// `to = factor * a * b`, or with [`Into::Add`] `to += factor * a * b`.
///
/// # Panics
/// If the lengths do not fit each other.
pub fn multiply<T: Number>(to: ViewMut<'_, T>, into: Into, factor: T, a: View<'_, T>, b: View<'_, T>) {
    assert_fit(&to, a, b);
    if to.rows == 0 || to.columns == 0 {
        return;
    }
    let distance =
        |stride: usize| isize::try_from(stride).expect("a slice has fewer elements than isize::MAX");
    // SAFETY: every pointer is that of a slice, and `holds` was asserted of each view when it was made: row r and column c
    // lie at r * row stride + c * column stride within it, and an exchange of rows and columns reaches the same elements. The
    // written slice is borrowed exclusively, so it overlaps neither of the others, and its rows do not overlap each other.
    // `T` is f32 or f64, the types that this function of `gemm` takes: `Number` is sealed.
    unsafe {
        gemm::gemm(
            to.rows,
            to.columns,
            a.columns,
            to.data.as_mut_ptr(),
            1,
            distance(to.stride),
            into == Into::Add,
            a.data.as_ptr(),
            distance(a.column_stride),
            distance(a.row_stride),
            b.data.as_ptr(),
            distance(b.column_stride),
            distance(b.row_stride),
            T::ONE,
            factor,
            false,
            false,
            false,
            Parallelism::None,
        );
    }
}

fn assert_fit<T>(to: &ViewMut<'_, T>, a: View<'_, T>, b: View<'_, T>) {
    assert_eq!((to.rows, to.columns, a.columns), (a.rows, b.columns, b.rows), "matrices that do not fit");
}

/// Rows and columns of what a tile makes at once: 24 registers of sums, 4 of columns and 1 of a row, of 32.
const TILE: (usize, usize) = (6, 64);
/// Pairs of bfloat16 of `LINES` rows or columns, one after the other: the lower half of each is the element whose place in
/// the line is even.
type Pairs<const LINES: usize> = [u32; LINES];
/// Sums of a tile, row by row.
type Sums = [[f32; TILE.1]; TILE.0];
/// Products of rows and columns, added up over their pairs.
type Tile = fn(&[Pairs<{ TILE.0 }>], &[Pairs<{ TILE.1 }>]) -> Sums;

/// The tile of this processor, if it has AVX-512 BF16.
fn tile() -> Option<Tile> {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bf16") {
        // SAFETY: the processor has both features that the function is compiled for.
        return Some(|rows, columns| unsafe { x86::tile(rows, columns) });
    }
    None
}

/// The tile in AVX-512 BF16.
#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::{
        __m512, __m512bh, __m512i, _mm512_dpbf16_ps, _mm512_set1_epi32, _mm512_setzero_ps,
    };
    use std::mem::transmute;

    use super::{Pairs, Sums, TILE};

    /// Lanes of a register.
    const LANES: usize = 16;

    /// The instruction adds the products of a pair to a sum, each rounded to nearest; it takes subnormal numbers for zero and
    /// leaves none (Intel, Architecture Instruction Set Extensions, VDPBF16PS).
    #[target_feature(enable = "avx512f,avx512bf16")]
    pub(super) fn tile(rows: &[Pairs<{ TILE.0 }>], columns: &[Pairs<{ TILE.1 }>]) -> Sums {
        let mut sums = [[_mm512_setzero_ps(); TILE.1 / LANES]; TILE.0];
        for (rows, columns) in rows.iter().zip(columns) {
            // SAFETY: both are 256 bytes, and registers of bfloat16 may have any bits.
            let columns: [__m512bh; TILE.1 / LANES] = unsafe { transmute(*columns) };
            for (sums, pair) in sums.iter_mut().zip(rows) {
                let pair = _mm512_set1_epi32(pair.cast_signed());
                // SAFETY: both are registers of 64 bytes, which may have any bits.
                let pair = unsafe { transmute::<__m512i, __m512bh>(pair) };
                for (sum, column) in sums.iter_mut().zip(columns) {
                    *sum = _mm512_dpbf16_ps(*sum, pair, column);
                }
            }
        }
        // SAFETY: both are 1536 bytes: a register has its 16 numbers of `f32` in the order of its lanes, which is that of memory.
        unsafe { transmute::<[[__m512; TILE.1 / LANES]; TILE.0], Sums>(sums) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_are_those_of_the_definition() {
        let (rows, inner, columns) = (7, 19, 5);
        let a: Vec<f64> = (0..rows * inner).map(|at| (at as f64 * 0.7).sin()).collect();
        let b: Vec<f64> = (0..columns * inner).map(|at| (at as f64 * 0.3).cos()).collect();
        // Rows of 8 elements; the matrix is the first five of each.
        let mut to = vec![1.0; rows * 8];
        for (into, times) in [(Into::Add, 1.0), (Into::Replace, 0.0)] {
            to.fill(1.0);
            let view = ViewMut::new(&mut to, rows, columns, 8);
            let (a_view, b_view) = (View::new(&a, rows, inner, inner), View::new(&b, columns, inner, inner));
            multiply(view, into, 2.0, a_view, b_view.transposed());
            for (at, found) in to.iter().enumerate() {
                let (row, column) = (at / 8, at % 8);
                let sum: f64 = (0..inner).map(|k| a[row * inner + k] * b[column.min(4) * inner + k]).sum();
                let expected = if column < columns { times + 2.0 * sum } else { 1.0 };
                assert!((found - expected).abs() < 1e-12, "{into:?} {row},{column}: {found} {expected}");
            }
        }
    }

    #[test]
    #[should_panic(expected = "rows of 5")]
    fn a_view_beyond_its_slice_is_refused() {
        View::new(&[0f32; 19], 4, 5, 5);
    }

    #[test]
    #[should_panic(expected = "overlap")]
    fn rows_that_overlap_are_refused() {
        ViewMut::new(&mut [0f32; 20], 4, 5, 4);
    }

    #[test]
    #[should_panic(expected = "do not fit")]
    fn matrices_that_do_not_fit_are_refused() {
        let a = [0f32; 12];
        multiply(
            ViewMut::new(&mut [0f32; 9], 3, 3, 3),
            Into::Add,
            1.0,
            View::new(&a, 3, 4, 4),
            View::new(&a, 3, 4, 4),
        );
    }
}
