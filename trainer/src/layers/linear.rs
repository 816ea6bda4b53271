//! A matrix without a bias: `y = x Wᵀ`, with a row of W for each output, as PyTorch has it.

use crate::number::Number;
use crate::products::{Into, Products, View, ViewMut};

/// The lengths of a linear layer, and its products.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Linear {
    /// Elements of a token's input.
    pub inputs: usize,
    /// Elements of a token's output.
    pub outputs: usize,
    /// What all three functions multiply. What they add to, and what they leave, is never rounded.
    pub products: Products,
}

impl Linear {
    fn weights<'a, T>(&self, weights: &'a [T]) -> View<'a, T> {
        View::new(weights, self.outputs, self.inputs, self.inputs)
    }

    fn tokens<T>(&self, x: &[T]) -> usize {
        debug_assert_eq!(x.len() % self.inputs, 0);
        x.len() / self.inputs
    }

    /// The outputs, in the place of `y` or added to it.
    pub fn forward<T: Number>(&self, weights: &[T], x: &[T], y: &mut [T], into: Into) {
        let tokens = self.tokens(x);
        let x = View::new(x, tokens, self.inputs, self.inputs);
        self.products.multiply(
            ViewMut::new(y, tokens, self.outputs, self.outputs),
            into,
            T::ONE,
            x,
            self.weights(weights).transposed(),
        );
    }

    /// The gradient of the input, in the place of `dx` or added to it.
    pub fn backward_input<T: Number>(&self, weights: &[T], dy: &[T], dx: &mut [T], into: Into) {
        let tokens = self.tokens(dx);
        let dy = View::new(dy, tokens, self.outputs, self.outputs);
        self.products.multiply(
            ViewMut::new(dx, tokens, self.inputs, self.inputs),
            into,
            T::ONE,
            dy,
            self.weights(weights),
        );
    }

    /// Adds the gradient of the weights to `dw`.
    pub fn backward_weight<T: Number>(&self, x: &[T], dy: &[T], dw: &mut [T]) {
        let tokens = self.tokens(x);
        let dy = View::new(dy, tokens, self.outputs, self.outputs).transposed();
        let x = View::new(x, tokens, self.inputs, self.inputs);
        self.products.multiply(
            ViewMut::new(dw, self.outputs, self.inputs, self.inputs),
            Into::Add,
            T::ONE,
            dy,
            x,
        );
    }
}
