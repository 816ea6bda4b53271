//! A decoder-only transformer: embedding, blocks, a last norm, and a matrix to the logits.
//!
//! Invariant: a model is its lengths and the places of its parameters; parameters, gradients and activations are
//! arguments. Embedding, each block and the end are steps of their own, so a rank may have some of them. Gradients are
//! finished in the order of the layout. Absent: how parameters change, where tokens come from, and other ranks.

mod block;
mod shape;

pub use block::{Block, BlockActivations, BlockIds, Pending};
pub use shape::Shape;

use crate::error::Result;
use crate::layers::attention::Scratch;
use crate::layers::linear::Linear;
use crate::layers::rms_norm::RmsNorm;
use crate::layers::rope::Rope;
use crate::layers::{cross_entropy, embedding};
use crate::number::Number;
use crate::parameters::{Begin, Gradients, Layout, Parameter, ParameterId, Values};
use crate::products::{Into, Products};

/// The deviation with which matrices begin (GPT-2).
const DEVIATION: f64 = 0.02;

/// A model's lengths and the places of its parameters.
pub struct Model<T: Number> {
    shape: Shape,
    layout: Layout,
    embedding: ParameterId,
    blocks: Vec<BlockIds>,
    norm: ParameterId,
    /// The embedding's where they are tied.
    head: ParameterId,
    block: Block,
    rope: Rope<T>,
}

/// What forward keeps for backward, and room for both.
pub struct Activations<T: Number> {
    blocks: Vec<BlockActivations<T>>,
    /// What the last block gives.
    x: Vec<T>,
    normed: Vec<T>,
    factors: Vec<T>,
    /// After forward; backward turns them into their gradient.
    logits: Vec<T>,
    logs: Vec<T>,
    d_normed: Vec<T>,
    pending: Pending<T>,
    scratch: Scratch<T>,
}

impl<T: Number> Activations<T> {
    /// Room for `sequences` sequences of a model.
    pub fn new(shape: &Shape, sequences: usize) -> Self {
        let tokens = sequences * shape.sequence;
        let room = |width: usize| vec![T::ZERO; tokens * width];
        Activations {
            blocks: (0..shape.layers).map(|_| BlockActivations::new(shape, tokens)).collect(),
            x: room(shape.width),
            normed: room(shape.width),
            factors: room(1),
            logits: room(shape.vocabulary),
            logs: room(1),
            d_normed: room(shape.width),
            pending: Pending::new(shape, tokens),
            scratch: Scratch::new(shape.sequence),
        }
    }

    /// After forward, the logits of all tokens, row by row.
    pub fn logits(&self) -> &[T] {
        &self.logits
    }
}

impl<T: Number> Model<T> {
    /// The model of a shape, its gradients in buckets of `bucket_elements` elements or the end of the parameter that exceeds them.
    ///
    /// # Errors
    /// [`Error::Configuration`](crate::error::Error::Configuration) for lengths that do not fit each other.
    pub fn new(shape: Shape, bucket_elements: usize) -> Result<Self> {
        shape.check()?;
        let matrix = |name: &str| Parameter {
            name: name.to_owned(),
            shape: [shape.vocabulary, shape.width],
            begin: Begin::Normal(DEVIATION),
        };
        let norm = Parameter { name: "norm".into(), shape: [1, shape.width], begin: Begin::Ones };
        let mut parameters = Vec::new();
        parameters.extend((!shape.tied).then(|| matrix("head")));
        parameters.push(norm);
        parameters.extend((0..shape.layers).rev().flat_map(|layer| block::parameters(&shape, layer)));
        parameters.push(matrix("embedding"));
        let layout = Layout::new(parameters, bucket_elements);

        let ids: Vec<ParameterId> = layout.parameters().map(|(id, _)| id).collect();
        let (untied, embedding) = (usize::from(!shape.tied), ids[ids.len() - 1]);
        let (of_blocks, _) = ids[untied + 1..ids.len() - 1].as_chunks::<9>();
        Ok(Model {
            embedding,
            head: if shape.tied { embedding } else { ids[0] },
            norm: ids[untied],
            blocks: of_blocks.iter().rev().map(|ids| BlockIds::new(*ids)).collect(),
            block: Block::new(&shape),
            rope: Rope::new(shape.sequence, shape.head(), shape.rope_base),
            layout,
            shape,
        })
    }

    /// The lengths.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Where the parameters lie.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    fn last(&self) -> (RmsNorm, Linear) {
        let Shape { width, vocabulary, norm_epsilon, .. } = self.shape;
        (
            RmsNorm { width, epsilon: norm_epsilon },
            Linear { inputs: width, outputs: vocabulary, products: Products::Exact },
        )
    }

    /// The logits of all tokens, in `kept`.
    ///
    /// # Panics
    /// If there are other than the tokens that `kept` has room for, or a token is not in the vocabulary.
    pub fn forward(&self, weights: &Values<T>, tokens: &[u32], kept: &mut Activations<T>) {
        assert_eq!(tokens.len(), kept.logs.len(), "tokens, and room for them");
        let of = |id| weights.of(&self.layout, id);
        let Activations { blocks, x, scratch, .. } = kept;
        embedding::forward(of(self.embedding), tokens, self.shape.width, &mut blocks[0].x);
        for (layer, ids) in self.blocks.iter().enumerate() {
            let (before, after) = blocks.split_at_mut(layer + 1);
            let y = after.first_mut().map_or(&mut *x, |next| &mut next.x);
            self.block.forward(ids, (&self.layout, weights), &self.rope, &mut before[layer], y, scratch);
        }
        let (norm, head) = self.last();
        norm.forward(of(self.norm), &kept.x, &mut kept.normed, &mut kept.factors);
        head.forward(of(self.head), &kept.normed, &mut kept.logits, Into::Replace);
    }

    /// After [`Model::forward`], the sum of the losses of all tokens, in nats.
    pub fn loss(&self, targets: &[u32], kept: &mut Activations<T>) -> f64 {
        cross_entropy::forward(&kept.logits, targets, self.shape.vocabulary, &mut kept.logs)
    }

    /// After [`Model::loss`], adds `factor` times the gradient of the sum of the losses to `gradients`.
    ///
    /// # Errors
    /// What starting the exchange of a bucket ends with.
    pub fn backward(
        &self,
        weights: &Values<T>,
        (tokens, targets): (&[u32], &[u32]),
        factor: T,
        kept: &mut Activations<T>,
        gradients: &mut dyn Gradients<T>,
    ) -> Result<()> {
        let of = |id| weights.of(&self.layout, id);
        let (norm, head) = self.last();
        let Activations { blocks, x, normed, factors, logits, logs, d_normed, pending, scratch } = kept;
        cross_entropy::backward(logits, targets, self.shape.vocabulary, logs, factor);
        head.backward_input(of(self.head), logits, d_normed, Into::Replace);
        pending.dy.fill(T::ZERO);
        norm.backward_input(of(self.norm), x, factors, d_normed, &mut pending.dy);
        head.backward_weight(normed, logits, gradients.place(self.head));
        if !self.shape.tied {
            gradients.finished(self.head)?;
        }
        norm.backward_weight(x, factors, d_normed, gradients.place(self.norm));
        gradients.finished(self.norm)?;
        for (ids, kept) in self.blocks.iter().zip(blocks).rev() {
            self.block.backward_input(ids, (&self.layout, weights), &self.rope, kept, pending, scratch);
            self.block.backward_weight(ids, kept, pending, gradients)?;
            std::mem::swap(&mut pending.dy, &mut pending.dx);
        }
        embedding::backward_weight(tokens, self.shape.width, &pending.dy, gradients.place(self.embedding));
        gradients.finished(self.embedding)
    }
}

#[cfg(test)]
mod tests;
