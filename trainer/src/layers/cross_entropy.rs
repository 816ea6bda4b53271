//! The loss: minus the logarithm of the probability that the model gives the right token, in nats.

use crate::number::{Number, sum, with_vectors};

/// The sum of the losses of all tokens, and the logarithm of each token's sum of exponentials.
pub fn forward<T: Number>(logits: &[T], targets: &[u32], vocabulary: usize, logs: &mut [T]) -> f64 {
    with_vectors(|| forward_inline(logits, targets, vocabulary, logs))
}

/// Turns the logits into their gradient: `factor` times (probability − 1 for the right token).
pub fn backward<T: Number>(logits: &mut [T], targets: &[u32], vocabulary: usize, logs: &[T], factor: T) {
    with_vectors(|| backward_inline(logits, targets, vocabulary, logs, factor));
}

/// The largest of the values; a value that is no number is not found, but the sum of exponentials is then none either.
#[inline(always)]
pub(super) fn largest<T: Number>(values: &[T]) -> T {
    values.iter().fold(values[0], |largest, value| if *value > largest { *value } else { largest })
}

#[inline(always)]
fn forward_inline<T: Number>(logits: &[T], targets: &[u32], vocabulary: usize, logs: &mut [T]) -> f64 {
    let mut loss = 0.0;
    for ((row, target), kept) in logits.chunks_exact(vocabulary).zip(targets).zip(logs) {
        let largest = largest(row);
        let total = sum(row, |logit| (logit - largest).exp());
        let log = largest.wide() + total.wide().ln();
        *kept = T::of(log);
        loss += log - row[*target as usize].wide();
    }
    loss
}

#[inline(always)]
fn backward_inline<T: Number>(logits: &mut [T], targets: &[u32], vocabulary: usize, logs: &[T], factor: T) {
    for ((row, target), log) in logits.chunks_exact_mut(vocabulary).zip(targets).zip(logs) {
        for logit in row.iter_mut() {
            *logit = (*logit - *log).exp() * factor;
        }
        row[*target as usize] = row[*target as usize] - factor;
    }
}
