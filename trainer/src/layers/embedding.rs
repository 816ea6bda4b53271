//! A row for each token of the vocabulary.

use crate::number::Number;

/// The rows of the tokens, one after the other.
pub fn forward<T: Number>(table: &[T], tokens: &[u32], width: usize, out: &mut [T]) {
    for (token, out) in tokens.iter().zip(out.chunks_exact_mut(width)) {
        let begin = *token as usize * width;
        out.copy_from_slice(&table[begin..begin + width]);
    }
}

/// Adds the gradient of the table to `d_table`, token by token.
pub fn backward_weight<T: Number>(tokens: &[u32], width: usize, d_out: &[T], d_table: &mut [T]) {
    for (token, d_out) in tokens.iter().zip(d_out.chunks_exact(width)) {
        let begin = *token as usize * width;
        for (sum, d_out) in d_table[begin..begin + width].iter_mut().zip(d_out) {
            *sum += *d_out;
        }
    }
}
