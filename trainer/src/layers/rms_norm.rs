//! Normalisation by the root of the mean square: `y = x r w` with `r = 1 / sqrt(mean(x²) + ε)` (Zhang and Sennrich, 2019).

use crate::number::{Number, sum, sum2, with_vectors};

/// A norm of tokens of `width` elements.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct RmsNorm {
    /// Elements of a token.
    pub width: usize,
    /// ε.
    pub epsilon: f64,
}

impl RmsNorm {
    /// The outputs, and each token's factor r.
    pub fn forward<T: Number>(&self, weights: &[T], x: &[T], y: &mut [T], factors: &mut [T]) {
        with_vectors(|| forward(self, weights, x, y, factors));
    }

    /// Adds the gradient of the input to `dx`.
    pub fn backward_input<T: Number>(&self, weights: &[T], x: &[T], factors: &[T], dy: &[T], dx: &mut [T]) {
        with_vectors(|| backward_input(self.width, weights, x, factors, dy, dx));
    }

    /// Adds the gradient of the weights to `dw`.
    pub fn backward_weight<T: Number>(&self, x: &[T], factors: &[T], dy: &[T], dw: &mut [T]) {
        with_vectors(|| backward_weight(self.width, x, factors, dy, dw));
    }
}

#[inline(always)]
fn forward<T: Number>(norm: &RmsNorm, weights: &[T], x: &[T], y: &mut [T], factors: &mut [T]) {
    let (share, epsilon) = (T::of(1.0 / norm.width as f64), T::of(norm.epsilon));
    let tokens = x.chunks_exact(norm.width).zip(y.chunks_exact_mut(norm.width));
    for ((x, y), kept) in tokens.zip(factors) {
        let factor = T::ONE / (sum(x, |x| x * x) * share + epsilon).sqrt();
        for ((y, x), weight) in y.iter_mut().zip(x).zip(weights) {
            *y = *x * factor * *weight;
        }
        *kept = factor;
    }
}

/// With g = dy w: dx = r (g − x r² mean(g x)).
#[inline(always)]
fn backward_input<T: Number>(width: usize, weights: &[T], x: &[T], factors: &[T], dy: &[T], dx: &mut [T]) {
    let share = T::of(1.0 / width as f64);
    let tokens = x.chunks_exact(width).zip(dy.chunks_exact(width)).zip(dx.chunks_exact_mut(width));
    let mut scaled = vec![T::ZERO; width];
    for (((x, dy), dx), factor) in tokens.zip(factors) {
        for ((scaled, dy), weight) in scaled.iter_mut().zip(dy).zip(weights) {
            *scaled = *dy * *weight;
        }
        let common = sum2(&scaled, x, |scaled, x| scaled * x) * share * *factor * *factor;
        for ((dx, x), scaled) in dx.iter_mut().zip(x).zip(&scaled) {
            *dx += *factor * (*scaled - *x * common);
        }
    }
}

#[inline(always)]
fn backward_weight<T: Number>(width: usize, x: &[T], factors: &[T], dy: &[T], dw: &mut [T]) {
    let tokens = x.chunks_exact(width).zip(dy.chunks_exact(width));
    for ((x, dy), factor) in tokens.zip(factors) {
        for ((dw, x), dy) in dw.iter_mut().zip(x).zip(dy) {
            *dw += *dy * *x * *factor;
        }
    }
}
