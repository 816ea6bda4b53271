//! Matrix products, the one place of this crate that has `unsafe`.
//!
//! Invariant: every element that a product reads or writes lies in the slice of its view. A view is checked when it is
//! made, its fields are private, and a written view has each element once. Products run on the calling thread, so the
//! order of the sums depends on the lengths and the processor alone. Absent: what the matrices mean.

use gemm::Parallelism;

use crate::number::Number;

/// A matrix to read: rows and columns at fixed distances in a slice.
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

/// `to = factor * a * b`, or with [`Into::Add`] `to += factor * a * b`.
///
/// # Panics
/// If the lengths do not fit each other.
pub fn multiply<T: Number>(to: ViewMut<'_, T>, into: Into, factor: T, a: View<'_, T>, b: View<'_, T>) {
    assert_eq!((to.rows, to.columns, a.columns), (a.rows, b.columns, b.rows), "matrices that do not fit");
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
