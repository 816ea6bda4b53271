//! The loss: minus the logarithm of the probability that the model gives the right token, in nats.
//!
//! The ranks of a layer may have some of the logits of each token: the largest, the sum of exponentials and the right
//! token's logit are then found together, and the gradient is each rank's own (Shoeybi and others, 2019).

use consort::ReduceOp;

use crate::error::Result;
use crate::number::{Number, sum, with_vectors};
use crate::ranks::Tensor;

/// The logits that a rank has of each token.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Columns {
    /// The token of the first.
    pub first: usize,
    /// How many.
    pub count: usize,
}

impl Columns {
    fn of(&self, target: u32) -> Option<usize> {
        (target as usize).checked_sub(self.first).filter(|column| *column < self.count)
    }
}

/// The sum of the losses of all tokens, the same on all ranks of a layer, and the logarithm of each token's sum of exponentials.
///
/// # Errors
/// What finding them together ends with.
pub fn forward<T: Number>(
    logits: &[T],
    targets: &[u32],
    columns: Columns,
    ranks: &Tensor<'_>,
    logs: &mut [T],
) -> Result<f64> {
    let mut largest_of: Vec<T> = logits.chunks_exact(columns.count).map(largest).collect();
    ranks.all_reduce(&mut largest_of, ReduceOp::Max)?;
    let mut totals = vec![T::ZERO; 2 * targets.len()];
    let (exponentials, right) = totals.split_at_mut(targets.len());
    with_vectors(|| add_exponentials(logits, &largest_of, columns.count, exponentials));
    let rows = logits.chunks_exact(columns.count).zip(targets);
    for ((row, target), right) in rows.zip(right) {
        *right = columns.of(*target).map_or(T::ZERO, |column| row[column]);
    }
    ranks.all_reduce(&mut totals, ReduceOp::Sum)?;
    let (exponentials, right) = totals.split_at(targets.len());
    let mut loss = 0.0;
    for (((largest, total), right), kept) in largest_of.iter().zip(exponentials).zip(right).zip(logs) {
        let log = largest.wide() + total.wide().ln();
        *kept = T::of(log);
        loss += log - right.wide();
    }
    Ok(loss)
}

/// Turns the logits into their gradient: `factor` times (probability − 1 for the right token).
pub fn backward<T: Number>(logits: &mut [T], targets: &[u32], columns: Columns, logs: &[T], factor: T) {
    with_vectors(|| backward_inline(logits, targets, columns, logs, factor));
}

/// The largest of the values; a value that is no number is not found, but the sum of exponentials is then none either.
#[inline(always)]
pub(super) fn largest<T: Number>(values: &[T]) -> T {
    values.iter().fold(values[0], |largest, value| if *value > largest { *value } else { largest })
}

#[inline(always)]
fn add_exponentials<T: Number>(logits: &[T], largest_of: &[T], count: usize, totals: &mut [T]) {
    for ((row, largest), total) in logits.chunks_exact(count).zip(largest_of).zip(totals) {
        *total = sum(row, |logit| (logit - *largest).exp());
    }
}

#[inline(always)]
fn backward_inline<T: Number>(logits: &mut [T], targets: &[u32], columns: Columns, logs: &[T], factor: T) {
    for ((row, target), log) in logits.chunks_exact_mut(columns.count).zip(targets).zip(logs) {
        for logit in row.iter_mut() {
            *logit = (*logit - *log).exp() * factor;
        }
        if let Some(column) = columns.of(*target) {
            row[column] = row[column] - factor;
        }
    }
}
