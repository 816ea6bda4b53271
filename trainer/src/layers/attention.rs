//! Causal attention, several heads of queries to a head of keys and values (Ainslie and others, 2023).
//!
//! Invariant: a token sees itself and the tokens before it in its sequence. Queries come in blocks, and scores exist for one
//! block at a time: forward keeps the logarithm of each query's sum of exponentials, and backward makes the
//! probabilities of a block again from it (Dao and others, 2022). The gradient of a head of keys is summed over its heads of
//! queries and their blocks in order.

use super::cross_entropy::largest;
use crate::number::{Number, sum, sum2, with_vectors};
use crate::products::{Into, View, ViewMut, multiply};

/// Queries of a block.
const BLOCK: usize = 64;

/// The lengths of attention.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Attention {
    /// Heads of queries.
    pub heads: usize,
    /// Heads of keys and of values; a divisor of the heads of queries.
    pub kv_heads: usize,
    /// Elements of a head.
    pub head: usize,
    /// Tokens of a sequence.
    pub sequence: usize,
}

/// What attention reads: rows of tokens, with heads side by side.
#[derive(Clone, Copy)]
pub struct Inputs<'a, T> {
    /// Queries.
    pub q: &'a [T],
    /// Keys.
    pub k: &'a [T],
    /// Values.
    pub v: &'a [T],
}

/// Where backward writes the gradients of [`Inputs`].
pub struct InputGradients<'a, T> {
    /// Of queries.
    pub q: &'a mut [T],
    /// Of keys.
    pub k: &'a mut [T],
    /// Of values.
    pub v: &'a mut [T],
}

/// Room for the scores of one block.
pub struct Scratch<T> {
    scores: Vec<T>,
    gradients: Vec<T>,
}

impl<T: Number> Scratch<T> {
    /// Room for sequences of `sequence` tokens.
    pub fn new(sequence: usize) -> Self {
        let room = BLOCK.min(sequence) * sequence;
        Scratch { scores: vec![T::ZERO; room], gradients: vec![T::ZERO; room] }
    }
}

/// One block of queries of one head of one sequence.
#[derive(Clone, Copy)]
struct Block {
    /// Where the first query's head begins, and the first key's of the sequence.
    query: usize,
    key: usize,
    /// Queries, and the keys that the last of them sees.
    rows: usize,
    columns: usize,
    /// Where the first query's logarithm is.
    log: usize,
}

impl Attention {
    fn query_width(&self) -> usize {
        self.heads * self.head
    }

    fn key_width(&self) -> usize {
        self.kv_heads * self.head
    }

    fn factor<T: Number>(&self) -> T {
        T::of(1.0 / (self.head as f64).sqrt())
    }

    /// All blocks, in the order in which sums are made.
    fn blocks(&self, tokens: usize) -> impl Iterator<Item = Block> {
        let Attention { heads, kv_heads, head, sequence } = *self;
        let (query_width, key_width) = (self.query_width(), self.key_width());
        (0..tokens / sequence * heads).flat_map(move |index| {
            let (first, number) = (index / heads * sequence, index % heads);
            let key = first * key_width + number / (heads / kv_heads) * head;
            (0..sequence).step_by(BLOCK).map(move |begin| {
                let rows = BLOCK.min(sequence - begin);
                Block {
                    query: (first + begin) * query_width + number * head,
                    key,
                    rows,
                    columns: begin + rows,
                    log: index * sequence + begin,
                }
            })
        })
    }

    /// `scores = factor * q kᵀ` of a block.
    fn scores<T: Number>(&self, block: Block, inputs: Inputs<'_, T>, scores: &mut [T]) {
        let q = View::new(&inputs.q[block.query..], block.rows, self.head, self.query_width());
        let k = View::new(&inputs.k[block.key..], block.columns, self.head, self.key_width());
        let scores = ViewMut::new(scores, block.rows, block.columns, block.columns);
        multiply(scores, Into::Replace, self.factor(), q, k.transposed());
    }

    /// The outputs, rows of tokens with heads side by side; and for each sequence, head and query the logarithm of the sum of
    /// exponentials.
    pub fn forward<T: Number>(
        &self,
        inputs: Inputs<'_, T>,
        out: &mut [T],
        logs: &mut [T],
        scratch: &mut Scratch<T>,
    ) {
        for block in self.blocks(out.len() / self.query_width()) {
            let Block { rows, columns, .. } = block;
            let scores = &mut scratch.scores[..rows * columns];
            self.scores(block, inputs, scores);
            let logs = &mut logs[block.log..][..rows];
            with_vectors(|| soften(scores, columns, logs));
            let v = View::new(&inputs.v[block.key..], columns, self.head, self.key_width());
            let out = ViewMut::new(&mut out[block.query..], rows, self.head, self.query_width());
            multiply(out, Into::Replace, T::ONE, View::new(scores, rows, columns, columns), v);
        }
    }

    /// The gradients of the inputs, from the outputs, their gradient and the logarithms.
    pub fn backward<T: Number>(
        &self,
        inputs: Inputs<'_, T>,
        (out, d_out, logs): (&[T], &[T], &[T]),
        gradients: InputGradients<'_, T>,
        scratch: &mut Scratch<T>,
    ) {
        let (query_width, key_width) = (self.query_width(), self.key_width());
        gradients.k.fill(T::ZERO);
        gradients.v.fill(T::ZERO);
        for block in self.blocks(out.len() / query_width) {
            let Block { query, key, rows, columns, .. } = block;
            let scores = &mut scratch.scores[..rows * columns];
            let d_scores = &mut scratch.gradients[..rows * columns];
            self.scores(block, inputs, scores);
            with_vectors(|| probabilities(scores, columns, &logs[block.log..][..rows]));

            let d_out_view = View::new(&d_out[query..], rows, self.head, query_width);
            let keys = |values| View::new(values, columns, self.head, key_width);
            let d_scores_view = ViewMut::new(d_scores, rows, columns, columns);
            multiply(d_scores_view, Into::Replace, T::ONE, d_out_view, keys(&inputs.v[key..]).transposed());
            let d_v = ViewMut::new(&mut gradients.v[key..], columns, self.head, key_width);
            multiply(
                d_v,
                Into::Add,
                T::ONE,
                View::new(scores, rows, columns, columns).transposed(),
                d_out_view,
            );

            let outputs = (&out[query..], &d_out[query..], query_width, self.head);
            with_vectors(|| score_gradients(scores, d_scores, columns, outputs));
            let d_scores = View::new(d_scores, rows, columns, columns);
            let d_q = ViewMut::new(&mut gradients.q[query..], rows, self.head, query_width);
            multiply(d_q, Into::Replace, self.factor(), d_scores, keys(&inputs.k[key..]));
            let d_k = ViewMut::new(&mut gradients.k[key..], columns, self.head, key_width);
            let q = View::new(&inputs.q[query..], rows, self.head, query_width);
            multiply(d_k, Into::Add, self.factor(), d_scores.transposed(), q);
        }
    }
}

/// How many keys the query in a row of a block sees.
#[inline(always)]
fn seen(row: usize, len: usize, columns: usize) -> usize {
    columns - (len / columns - 1 - row)
}

/// Scores become probabilities; what a query does not see is 0.
#[inline(always)]
fn soften<T: Number>(scores: &mut [T], columns: usize, logs: &mut [T]) {
    let len = scores.len();
    for (number, (row, log)) in scores.chunks_exact_mut(columns).zip(logs).enumerate() {
        let (row, unseen) = row.split_at_mut(seen(number, len, columns));
        unseen.fill(T::ZERO);
        let largest = largest(row);
        for score in row.iter_mut() {
            *score = (*score - largest).exp();
        }
        let total = sum(row, |score| score);
        let share = T::ONE / total;
        for score in row.iter_mut() {
            *score *= share;
        }
        *log = T::of(largest.wide() + total.wide().ln());
    }
}

/// Scores become probabilities by the logarithms of forward.
#[inline(always)]
fn probabilities<T: Number>(scores: &mut [T], columns: usize, logs: &[T]) {
    let len = scores.len();
    for (number, (row, log)) in scores.chunks_exact_mut(columns).zip(logs).enumerate() {
        let (row, unseen) = row.split_at_mut(seen(number, len, columns));
        unseen.fill(T::ZERO);
        for score in row {
            *score = (*score - *log).exp();
        }
    }
}

/// Gradients of probabilities become those of scores: p (dp − out · d_out).
#[inline(always)]
fn score_gradients<T: Number>(
    probabilities: &[T],
    gradients: &mut [T],
    columns: usize,
    (out, d_out, stride, head): (&[T], &[T], usize, usize),
) {
    let rows = probabilities.chunks_exact(columns).zip(gradients.chunks_exact_mut(columns));
    for ((probabilities, gradients), (out, d_out)) in rows.zip(out.chunks(stride).zip(d_out.chunks(stride))) {
        let common = sum2(&out[..head], &d_out[..head], |out, d_out| out * d_out);
        for (gradient, probability) in gradients.iter_mut().zip(probabilities) {
            *gradient = *probability * (*gradient - common);
        }
    }
}
