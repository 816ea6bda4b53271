//! How fast trees can be together: the linear program over all spanning trees, which are found one by one.
//!
//! A program has a column for each spanning tree and a row for each limit: the sum of the trees' shares is to be the
//! largest with which no limit is exceeded. Prices of limits (the dual) are lengths; the next column is a spanning
//! tree that is shortest by them. Where that one is no shorter than 1, no shares are larger.
//!
//! Sources: L. R. Ford and D. R. Fulkerson, "A suggested computation for maximal multi-commodity network flows"
//! (1958), for columns made when they are needed; G. B. Dantzig's revised simplex method. C. St. J. A. Nash-Williams
//! and W. T. Tutte (1961): with a limit for each pair alone the result is the least of cut / (parts - 1) over all
//! partitions.
//!
//! Invariant: floats choose lengths, by operations that every machine rounds alike; what the lengths prove is then
//! computed in whole numbers ([`Lengths::limit`]). Steps are counted. Absent: whole shares.

use super::span::least;
use super::wires::Wires;
use crate::bounds::Ratio;

/// A price that far below 0, or a tree that much shorter than 1, is a rounding error.
const TOLERANCE: f64 = 1e-9;
/// The longest limit, in units of whole lengths.
const LONGEST: f64 = (1u64 << 30) as f64;
/// Capacities differ by up to this part from what they are, each by another, so that no two rows are exhausted at
/// once.
const APART: f64 = 1e-7;

/// Lengths of limits, by which no spanning tree is short.
#[derive(Clone, Debug)]
pub(super) struct Lengths {
    /// One for each limit.
    pub(super) of: Vec<u64>,
    /// The length of the shortest tree.
    pub(super) shortest: u64,
}

impl Lengths {
    /// Bytes a second that no trees exceed together: each takes the shortest length at least, of capacity times
    /// length.
    pub(super) fn limit(&self, wires: &Wires) -> Ratio {
        let volume: u128 = wires
            .capacity
            .iter()
            .zip(&self.of)
            .map(|(limit, length)| u128::from(*limit) * u128::from(*length))
            .sum();
        Ratio::new(volume, u128::from(self.shortest.max(1)))
    }
}

/// Solves the program in at most `steps` steps.
pub(super) fn solve(wires: &Wires, steps: usize) -> Lengths {
    let mut simplex = Simplex::new(wires);
    let mut best: Option<(Ratio, Vec<u64>, u64)> = None;
    for step in 0..steps {
        let negative = (0..simplex.rows).filter(|row| simplex.prices[*row] < -TOLERANCE);
        let worst = negative.min_by(|one, other| simplex.prices[*one].total_cmp(&simplex.prices[*other]));
        if let Some(row) = worst {
            let mut column = vec![0.0; simplex.rows];
            column[row] = 1.0;
            if !simplex.enter(&column, 0.0) {
                break;
            }
            continue;
        }
        let lengths = whole(&simplex.prices, wires);
        let weights = wires.weights(&lengths);
        let tree = least(wires, &weights, (step % wires.ranks) as u32);
        let shortest: u64 = tree.iter().map(|pair| weights[*pair as usize]).sum();
        let found = Lengths { of: lengths, shortest };
        let limit = found.limit(wires);
        if best.as_ref().is_none_or(|(known, ..)| limit < *known) {
            best = Some((limit, found.of, shortest));
        }
        let column: Vec<f64> = wires.usage(&tree).into_iter().map(|times| times as f64).collect();
        if simplex.gain(&column, 1.0) <= 1e3 * TOLERANCE || !simplex.enter(&column, 1.0) {
            break;
        }
    }
    let (_, of, shortest) = best.unwrap_or((Ratio::ZERO, vec![1; wires.capacity.len()], 1));
    Lengths { of, shortest }
}

/// Prices as whole lengths; without any, each limit is as long as it is narrow.
fn whole(prices: &[f64], wires: &Wires) -> Vec<u64> {
    let narrow = |limit: &u64| 1.0 / *limit as f64;
    let narrowest: Vec<f64> = wires.capacity.iter().map(narrow).collect();
    let most = |of: &[f64]| of.iter().copied().fold(0.0, f64::max);
    let of = if most(prices) > TOLERANCE { prices } else { &narrowest };
    let most = most(of);
    of.iter().map(|length| (length.max(0.0) / most * LONGEST).round() as u64).collect()
}

/// The program at a corner: the sum of columns is largest, no row exceeds its right side, none is negative.
struct Simplex {
    rows: usize,
    /// Of the columns at the corner, row by row.
    inverse: Vec<f64>,
    /// What the columns at the corner amount to.
    right: Vec<f64>,
    prices: Vec<f64>,
}

impl Simplex {
    fn new(wires: &Wires) -> Simplex {
        let rows = wires.capacity.len();
        let unit = wires.capacity.iter().copied().max().unwrap_or(1) as f64;
        let apart = |row: usize| 1.0 + APART * ((row * 7919 + 13) % 1009) as f64 / 1009.0;
        let right = wires.capacity.iter().enumerate().map(|(row, limit)| *limit as f64 / unit * apart(row));
        let mut inverse = vec![0.0; rows * rows];
        (0..rows).for_each(|row| inverse[row * rows + row] = 1.0);
        Simplex { rows, inverse, right: right.collect(), prices: vec![0.0; rows] }
    }

    /// What a column is worth more than the limits it takes.
    fn gain(&self, column: &[f64], worth: f64) -> f64 {
        worth - column.iter().zip(&self.prices).map(|(times, price)| times * price).sum::<f64>()
    }

    /// Takes a column into the corner in place of the one that it exhausts first; false where there is none.
    fn enter(&mut self, column: &[f64], worth: f64) -> bool {
        let rows = self.rows;
        let gain = self.gain(column, worth);
        let used: Vec<(usize, f64)> =
            column.iter().copied().enumerate().filter(|(_, times)| *times != 0.0).collect();
        let change = |row: usize| -> f64 {
            let inverse = &self.inverse[row * rows..(row + 1) * rows];
            used.iter().map(|(at, times)| inverse[*at] * times).sum()
        };
        let changes: Vec<f64> = (0..rows).map(change).collect();
        let taken = (0..rows).filter(|row| changes[*row] > TOLERANCE);
        let ratio = |row: &usize| self.right[*row].max(0.0) / changes[*row];
        let Some(out) = taken.min_by(|one, other| ratio(one).total_cmp(&ratio(other))) else { return false };
        let pivot = changes[out];
        self.right[out] /= pivot;
        self.inverse[out * rows..(out + 1) * rows].iter_mut().for_each(|value| *value /= pivot);
        let line = self.inverse[out * rows..(out + 1) * rows].to_vec();
        for row in (0..rows).filter(|row| *row != out && changes[*row] != 0.0) {
            let times = changes[row];
            self.right[row] -= times * self.right[out];
            let values = &mut self.inverse[row * rows..(row + 1) * rows];
            values.iter_mut().zip(&line).for_each(|(value, of)| *value -= times * of);
        }
        self.prices.iter_mut().zip(&line).for_each(|(price, of)| *price += gain * of);
        true
    }
}
