//! The layers of a transformer, each in up to three functions: forward, the gradient of the input, and the gradient of the weights.
//!
//! Invariant: a layer keeps nothing: what backward needs of forward is an argument of both. `backward_input` needs no
//! result of `backward_weight`, so a pipeline may put the second off, and a collective may run beside it. Sums over
//! tokens are in the order of the tokens. Matrices are row by row; a row of activations is a token. Absent: which layers make a
//! model, and which ranks there are.

pub mod attention;
pub mod cross_entropy;
pub mod embedding;
pub mod linear;
pub mod ring;
pub mod rms_norm;
pub mod rope;
pub mod router;
pub mod swiglu;

#[cfg(test)]
mod tests;
