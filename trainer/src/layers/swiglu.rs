//! The gated unit `gate · sigmoid(gate) · up` (Shazeer, 2020).

use crate::number::{Number, with_vectors};

/// The outputs.
pub fn forward<T: Number>(gate: &[T], up: &[T], out: &mut [T]) {
    with_vectors(|| forward_inline(gate, up, out));
}

/// The gradients of both inputs.
pub fn backward<T: Number>(gate: &[T], up: &[T], d_out: &[T], d_gate: &mut [T], d_up: &mut [T]) {
    with_vectors(|| backward_inline(gate, up, d_out, d_gate, d_up));
}

#[inline(always)]
fn sigmoid<T: Number>(x: T) -> T {
    T::ONE / (T::ONE + (-x).exp())
}

#[inline(always)]
fn forward_inline<T: Number>(gate: &[T], up: &[T], out: &mut [T]) {
    for ((out, gate), up) in out.iter_mut().zip(gate).zip(up) {
        *out = *gate * sigmoid(*gate) * *up;
    }
}

/// The derivative of g s(g) is s(g) (1 + g (1 − s(g))).
#[inline(always)]
fn backward_inline<T: Number>(gate: &[T], up: &[T], d_out: &[T], d_gate: &mut [T], d_up: &mut [T]) {
    let gradients = d_out.iter().zip(d_gate.iter_mut()).zip(d_up.iter_mut());
    for ((gate, up), ((d_out, d_gate), d_up)) in gate.iter().zip(up).zip(gradients) {
        let part = sigmoid(*gate);
        *d_up = *d_out * *gate * part;
        *d_gate = *d_out * *up * part * (T::ONE + *gate * (T::ONE - part));
    }
}
