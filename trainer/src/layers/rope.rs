//! Rotary positions (Su and others, 2021): element i and element i + half of each head turn by the position times
//! `base^(−2i / width)`, as in Llama.

use crate::number::{Number, with_vectors};

/// The turns of every position of a sequence.
pub struct Rope<T> {
    half: usize,
    cosines: Vec<T>,
    sines: Vec<T>,
}

/// Which way to turn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Turn {
    /// As positions say: forward.
    On,
    /// Back: for gradients.
    Back,
}

impl<T: Number> Rope<T> {
    /// The turns of `positions` positions for heads of `head` elements, an even number.
    pub fn new(positions: usize, head: usize, base: f64) -> Self {
        let half = head / 2;
        let angle = |at: usize| {
            let (position, element) = (at / half, at % half);
            position as f64 * base.powf(-(2.0 * element as f64) / head as f64)
        };
        let table = |of: fn(f64) -> f64| (0..positions * half).map(|at| T::of(of(angle(at)))).collect();
        Rope { half, cosines: table(f64::cos), sines: table(f64::sin) }
    }

    /// Turns every head of every token; a token is `width` elements, and every `positions.len()` tokens are a sequence, each at
    /// its position.
    ///
    /// # Panics
    /// If a position is beyond those that there are turns of.
    pub fn turn(&self, values: &mut [T], width: usize, positions: &[usize], turn: Turn) {
        with_vectors(|| rotate(self, values, width, positions, turn));
    }
}

#[inline(always)]
fn rotate<T: Number>(rope: &Rope<T>, values: &mut [T], width: usize, positions: &[usize], turn: Turn) {
    let half = rope.half;
    let sign = if turn == Turn::On { T::ONE } else { -T::ONE };
    for (token, row) in values.chunks_exact_mut(width).enumerate() {
        let position = positions[token % positions.len()];
        let at = position * half..(position + 1) * half;
        let (cosines, sines) = (&rope.cosines[at.clone()], &rope.sines[at]);
        for head in row.chunks_exact_mut(2 * half) {
            let (first, second) = head.split_at_mut(half);
            for (((first, second), cosine), sine) in first.iter_mut().zip(second).zip(cosines).zip(sines) {
                let (a, b, sine) = (*first, *second, *sine * sign);
                *first = a * *cosine - b * sine;
                *second = b * *cosine + a * sine;
            }
        }
    }
}
