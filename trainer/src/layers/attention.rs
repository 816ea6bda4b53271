//! Causal attention, several heads of queries to a head of keys and values (Ainslie and others, 2023).
//!
//! Invariant: a token sees itself and the tokens before it in its sequence. Queries come in blocks, and scores exist for one
//! block at a time: forward keeps the logarithm of each query's sum of exponentials, and backward makes the
//! probabilities of a block again from it (Dao and others, 2022). The gradient of a head of keys is summed over its heads of
//! queries and their blocks in order.
//!
//! Scores may also be made in parts, as keys arrive: forward joins what a part gives to what the parts before it gave, by the
//! logarithms of both (Milakov and Gimelshein, 2018), and backward adds up. Absent: which rank has which tokens.

use std::ops::Range;

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

/// Which scores of each sequence are made. Places count the tokens of a sequence that are here, from 0.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Part {
    /// Those of each query with the key at its place and the keys before it.
    Causal,
    /// Those of each of some queries with each of some keys.
    Full {
        /// The places of the queries.
        queries: Range<usize>,
        /// The places of the keys.
        keys: Range<usize>,
    },
}

/// Room for the scores of one block.
pub struct Scratch<T> {
    scores: Vec<T>,
    gradients: Vec<T>,
    /// Of the queries of the block, over the keys of one part.
    logs: Vec<T>,
}

impl<T: Number> Scratch<T> {
    /// Room for sequences of `sequence` tokens.
    pub fn new(sequence: usize) -> Self {
        let rows = BLOCK.min(sequence);
        let room = || vec![T::ZERO; rows * sequence];
        Scratch { scores: room(), gradients: room(), logs: vec![T::ZERO; rows] }
    }
}

/// One block of queries of one head of one sequence, and the keys of a part.
#[derive(Clone, Copy)]
struct Block {
    /// Where the first query's head begins, and the first key's of the part.
    query: usize,
    key: usize,
    /// Queries, and the keys that the last of them sees.
    rows: usize,
    columns: usize,
    /// How many of these keys the first query does not see; each further query sees one more.
    unseen: usize,
    /// Where the first query's logarithm is.
    log: usize,
}

impl Block {
    /// How many keys the query in a row sees.
    #[inline(always)]
    fn seen(&self, row: usize) -> usize {
        self.columns - self.unseen.saturating_sub(row)
    }
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

    /// All blocks of a part, in the order in which sums are made.
    fn blocks(&self, part: &Part, tokens: usize) -> impl Iterator<Item = Block> {
        let Attention { heads, kv_heads, head, sequence } = *self;
        let (query_width, key_width) = (self.query_width(), self.key_width());
        let (queries, keys, causal) = match part {
            Part::Causal => (0..sequence, 0..sequence, true),
            Part::Full { queries, keys } => (queries.clone(), keys.clone(), false),
        };
        (0..tokens / sequence * heads).flat_map(move |index| {
            let (first, number) = (index / heads * sequence, index % heads);
            let key = (first + keys.start) * key_width + number / (heads / kv_heads) * head;
            let (end, keys) = (queries.end, keys.len());
            queries.clone().step_by(BLOCK).map(move |begin| {
                let rows = BLOCK.min(end - begin);
                Block {
                    query: (first + begin) * query_width + number * head,
                    key,
                    rows,
                    columns: if causal { begin + rows } else { keys },
                    unseen: if causal { rows - 1 } else { 0 },
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
    /// exponentials. Returns how many scores it made: those that a query does not see count where they share a block with
    /// seen ones.
    pub fn forward<T: Number>(
        &self,
        inputs: Inputs<'_, T>,
        out: &mut [T],
        logs: &mut [T],
        scratch: &mut Scratch<T>,
    ) -> usize {
        self.forward_part(&Part::Causal, Into::Replace, inputs, (out, logs), scratch)
    }

    /// Outputs and logarithms of the queries of a part, as if its keys were all; with [`Into::Add`] those over its keys and the
    /// keys of the parts before. Returns as [`Attention::forward`].
    ///
    /// # Panics
    /// If a place of the part is not in the sequence, or the lengths of the slices do not fit.
    pub fn forward_part<T: Number>(
        &self,
        part: &Part,
        into: Into,
        inputs: Inputs<'_, T>,
        (out, logs): (&mut [T], &mut [T]),
        scratch: &mut Scratch<T>,
    ) -> usize {
        let mut made = 0;
        for block in self.blocks(part, out.len() / self.query_width()) {
            let Block { rows, columns, .. } = block;
            let scores = &mut scratch.scores[..rows * columns];
            made += scores.len();
            self.scores(block, inputs, scores);
            let (out, logs) = (&mut out[block.query..], &mut logs[block.log..][..rows]);
            if into == Into::Replace {
                with_vectors(|| soften(scores, block, logs));
            } else {
                let added = &mut scratch.logs[..rows];
                with_vectors(|| {
                    soften(scores, block, added);
                    join(scores, columns, added, (out, self.query_width(), self.head), logs);
                });
            }
            let v = View::new(&inputs.v[block.key..], columns, self.head, self.key_width());
            let out = ViewMut::new(out, rows, self.head, self.query_width());
            multiply(out, into, T::ONE, View::new(scores, rows, columns, columns), v);
        }
        made
    }

    /// The gradients of the inputs, from the outputs, their gradient and the logarithms. Returns as [`Attention::forward`].
    pub fn backward<T: Number>(
        &self,
        inputs: Inputs<'_, T>,
        outputs: (&[T], &[T], &[T]),
        gradients: InputGradients<'_, T>,
        scratch: &mut Scratch<T>,
    ) -> usize {
        gradients.k.fill(T::ZERO);
        gradients.v.fill(T::ZERO);
        self.backward_part(&Part::Causal, Into::Replace, inputs, outputs, gradients, scratch)
    }

    /// What the scores of a part add to the gradients of keys and values, and, as `into` says, to those of its queries. Outputs
    /// and logarithms are those over all keys. Returns as [`Attention::forward`].
    ///
    /// # Panics
    /// As [`Attention::forward_part`].
    pub fn backward_part<T: Number>(
        &self,
        part: &Part,
        into: Into,
        inputs: Inputs<'_, T>,
        (out, d_out, logs): (&[T], &[T], &[T]),
        gradients: InputGradients<'_, T>,
        scratch: &mut Scratch<T>,
    ) -> usize {
        let (query_width, key_width) = (self.query_width(), self.key_width());
        let mut made = 0;
        for block in self.blocks(part, out.len() / query_width) {
            let Block { query, key, rows, columns, .. } = block;
            let scores = &mut scratch.scores[..rows * columns];
            let d_scores = &mut scratch.gradients[..rows * columns];
            made += scores.len();
            self.scores(block, inputs, scores);
            with_vectors(|| probabilities(scores, block, &logs[block.log..][..rows]));

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
            multiply(d_q, into, self.factor(), d_scores, keys(&inputs.k[key..]));
            let d_k = ViewMut::new(&mut gradients.k[key..], columns, self.head, key_width);
            let q = View::new(&inputs.q[query..], rows, self.head, query_width);
            multiply(d_k, Into::Add, self.factor(), d_scores.transposed(), q);
        }
        made
    }
}

/// Scores become probabilities; what a query does not see is 0.
#[inline(always)]
fn soften<T: Number>(scores: &mut [T], block: Block, logs: &mut [T]) {
    for (number, (row, log)) in scores.chunks_exact_mut(block.columns).zip(logs).enumerate() {
        let (row, unseen) = row.split_at_mut(block.seen(number));
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

/// Joins a part to the parts before: its probabilities become those over the keys of all parts, and so do `out` and `logs`, to
/// which the product of probabilities and values is then to be added. Logarithms are in float64 here, where no power of e
/// between 0 and 1 is cut off.
#[inline(always)]
fn join<T: Number>(
    probabilities: &mut [T],
    columns: usize,
    added: &[T],
    (out, stride, head): (&mut [T], usize, usize),
    logs: &mut [T],
) {
    let rows = probabilities.chunks_exact_mut(columns).zip(out.chunks_mut(stride));
    for ((probabilities, out), (added, log)) in rows.zip(added.iter().zip(logs)) {
        let (before, added) = (log.wide(), added.wide());
        let largest = before.max(added);
        let total = largest + ((before - largest).exp() + (added - largest).exp()).ln();
        let (kept, share) = (T::of((before - total).exp()), T::of((added - total).exp()));
        out[..head].iter_mut().for_each(|out| *out *= kept);
        probabilities.iter_mut().for_each(|probability| *probability *= share);
        *log = T::of(total);
    }
}

/// Scores become probabilities by the logarithms of forward.
#[inline(always)]
fn probabilities<T: Number>(scores: &mut [T], block: Block, logs: &[T]) {
    for (number, (row, log)) in scores.chunks_exact_mut(block.columns).zip(logs).enumerate() {
        let (row, unseen) = row.split_at_mut(block.seen(number));
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
