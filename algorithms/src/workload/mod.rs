//! A training job over a mesh, as numbers: the model, the batch, and how both are divided among ranks.
//!
//! Invariant: a workload that [`check`](Workload::check) accepts has whole layers a stage, heads a tensor rank, tokens a
//! context rank and experts an expert rank, and its traffic fits 64 bits. Ranks are numbered tensor first, then context,
//! data and pipeline: `rank = t + tensor * (c + context * (d + data * p))`. The expert groups are runs of `expert`
//! consecutive positions of the context and data axes together. Deliberately absent: time, memory, the order of a pipeline's
//! micro-batches, stages that are cut into several parts of the layers, and recomputation of activations.

mod check;
mod mesh;
mod parameters;
mod step;
mod traffic;

pub use check::Impossible;
pub use mesh::Axis;
pub use parameters::Parameters;
pub use traffic::{Bytes, Kind, Traffic};

/// A decoder, how it is trained, and the mesh of ranks that trains it.
///
/// The fields are called as the flags of `collbench traffic` in [`Impossible`].
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Workload {
    /// Decoder layers.
    pub layers: u32,
    /// Elements of a token's activation; a feed-forward layer has four times as many.
    pub hidden: u32,
    /// Attention heads; keys and values have as many.
    pub heads: u32,
    /// Tokens of a sequence.
    pub sequence: u32,
    /// Tokens that there are; the embedding is used for input and output.
    pub vocabulary: u32,
    /// Experts of every layer; 0 for one feed-forward layer that all tokens pass.
    pub experts: u32,
    /// Experts that a token passes.
    pub top_k: u32,
    /// Sequences of a micro-batch, for each data rank.
    pub micro_batch: u32,
    /// Micro-batches of a step, for each data rank.
    pub micro_batches: u32,
    /// Bytes of an element of activations, parameters and gradients.
    pub element_bytes: u32,
    /// Ranks that share each matrix.
    pub tensor: u32,
    /// Stages of the pipeline.
    pub pipeline: u32,
    /// Copies of the model that see different sequences.
    pub data: u32,
    /// Ranks that share the experts of a layer; divides `context * data`.
    pub expert: u32,
    /// Ranks that share each sequence.
    pub context: u32,
    /// What data ranks share: 0 nothing, 1 optimizer states, 2 gradients too, 3 parameters too.
    pub zero: u32,
    /// Whether tensor ranks share the tokens between their matrices.
    pub sequence_parallel: bool,
}

impl Default for Workload {
    /// A decoder of 102 billion parameters on 128 ranks: tensor 8, pipeline 4, data 4, ZeRO-1.
    fn default() -> Workload {
        Workload {
            layers: 80,
            hidden: 10_240,
            heads: 80,
            sequence: 4096,
            vocabulary: 128_256,
            experts: 0,
            top_k: 2,
            micro_batch: 1,
            micro_batches: 32,
            element_bytes: 2,
            tensor: 8,
            pipeline: 4,
            data: 4,
            expert: 1,
            context: 1,
            zero: 1,
            sequence_parallel: false,
        }
    }
}
