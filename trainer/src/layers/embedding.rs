//! A row for each token of the vocabulary.
//!
//! A rank may have some of the rows: tokens of the others have zeros there, so that the sum over the ranks is right.

use crate::number::Number;

/// The rows of the tokens, one after the other. The table begins with the row of token `first`.
pub fn forward<T: Number>(table: &[T], first: usize, tokens: &[u32], width: usize, out: &mut [T]) {
    for (token, out) in tokens.iter().zip(out.chunks_exact_mut(width)) {
        match row(table.len(), first, *token, width) {
            Some(row) => out.copy_from_slice(&table[row]),
            None => out.fill(T::ZERO),
        }
    }
}

/// Adds the gradient of the table to `d_table`, token by token.
pub fn backward_weight<T: Number>(
    tokens: &[u32],
    first: usize,
    width: usize,
    d_out: &[T],
    d_table: &mut [T],
) {
    for (token, d_out) in tokens.iter().zip(d_out.chunks_exact(width)) {
        if let Some(row) = row(d_table.len(), first, *token, width) {
            d_table[row].iter_mut().zip(d_out).for_each(|(sum, d_out)| *sum += *d_out);
        }
    }
}

/// Where a token's row lies, if it is here.
fn row(len: usize, first: usize, token: u32, width: usize) -> Option<std::ops::Range<usize>> {
    let begin = (token as usize).checked_sub(first)? * width;
    (begin < len).then_some(begin..begin + width)
}
