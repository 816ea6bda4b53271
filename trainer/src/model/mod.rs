//! A decoder-only transformer: embedding, blocks, a last norm, and a matrix to the logits.
//!
//! Invariant: a model is its lengths and the places of its parameters; parameters, gradients and activations are
//! arguments. A rank has some stages of it, each some blocks one behind the other; the embedding belongs to the first stage of
//! the model, the last norm and the matrix to the logits to its last. Gradients are finished in the order of the layout: the
//! last stage first. Absent: how parameters change, where tokens come from, and when which stage runs.

mod attend;
mod block;
mod gated;
mod lengths;
mod mixture;
mod shape;

use std::ops::Range;

pub use block::{Block, BlockActivations, BlockIds, Pending};
pub use lengths::{Cut, Lengths};
pub use shape::{Experts, Shape};

use crate::error::Result;
use crate::layers::cross_entropy::{self, Columns};
use crate::layers::embedding;
use crate::layers::linear::Linear;
use crate::layers::ring::{Ring, Room};
use crate::layers::rms_norm::RmsNorm;
use crate::layers::rope::Rope;
use crate::number::Number;
use crate::parameters::{Begin, Gradients, Layout, Parameter, ParameterId, Pass, Twin, Unit, Weights};
use crate::products::{Into, Products};
use crate::ranks::{Joint, Tensor};
use crate::routes::Routes;

/// The deviation with which matrices begin (GPT-2).
const DEVIATION: f64 = 0.02;

/// The ranks that compute a layer together.
pub struct Ranks<'a> {
    /// Those that share its matrices.
    pub tensor: Tensor<'a>,
    /// Those that share each sequence.
    pub ring: Ring<'a>,
}

impl Ranks<'_> {
    /// A rank that has all of a layer, and whole sequences of `sequence` tokens.
    pub fn alone(sequence: usize) -> Self {
        Ranks { tensor: Tensor::default(), ring: Ring::alone(sequence) }
    }
}

/// What the layers of a block are given, beside activations.
pub struct Given<'a, T: Number> {
    /// Their parameters.
    pub weights: &'a dyn Weights<T>,
    /// The ranks that compute it together.
    pub ranks: &'a Ranks<'a>,
    /// Where tokens stand.
    pub rope: &'a Rope<T>,
}

impl<T: Number> Clone for Given<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T: Number> Copy for Given<'_, T> {}

/// The last norm and the matrix to the logits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct End {
    norm: ParameterId,
    /// The embedding where they are tied, or a copy of it.
    head: ParameterId,
}

/// A stage's parameters.
struct Stage {
    /// The numbers of its blocks in the whole model.
    layers: Range<usize>,
    embedding: Option<ParameterId>,
    blocks: Vec<BlockIds>,
    end: Option<End>,
}

/// A model's lengths and the places of its parameters, as far as this rank has them.
pub struct Model<T: Number> {
    shape: Shape,
    cut: Cut,
    lengths: Lengths,
    layout: Layout,
    stages: Vec<Stage>,
    products: Products,
    block: Block,
    rope: Rope<T>,
}

/// What forward of a stage keeps for its backward.
pub struct Activations<T: Number> {
    blocks: Vec<BlockActivations<T>>,
    /// What the last block gives: this rank's tokens.
    y: Vec<T>,
    /// Of the last stage.
    end: Option<EndActivations<T>>,
}

/// What forward of the end keeps.
struct EndActivations<T: Number> {
    normed: Joint<T>,
    factors: Vec<T>,
    /// After forward; backward turns them into their gradient.
    logits: Vec<T>,
    logs: Vec<T>,
}

/// Room for forward and backward of a stage, which nothing outlives but the gradient that backward leaves.
pub struct Workspace<T: Number> {
    sums: Joint<T>,
    d_normed: Joint<T>,
    pending: Pending<T>,
    room: Room<T>,
    routes: Option<Box<dyn Routes<T>>>,
}

impl<T: Number> Activations<T> {
    /// What comes into the stage: the rows of this rank's tokens. The first stage writes them itself.
    pub fn input_mut(&mut self) -> &mut [T] {
        &mut self.blocks[0].x
    }

    /// After forward, what goes out of the stage's last block.
    pub fn output(&self) -> &[T] {
        &self.y
    }

    /// After forward of the last stage, this rank's logits of all tokens, row by row.
    ///
    /// # Panics
    /// If the stage is not the last.
    pub fn logits(&self) -> &[T] {
        &self.end.as_ref().expect("the last stage has logits").logits
    }
}

impl<T: Number> Workspace<T> {
    /// The same room, with the ways to the experts of the model's blocks.
    pub fn with_routes(self, routes: Option<Box<dyn Routes<T>>>) -> Self {
        Workspace { routes, ..self }
    }

    /// The bytes that were sent to the ranks of the experts, since the ways to them were made.
    pub fn routed_bytes(&self) -> usize {
        self.routes.as_ref().map_or(0, |routes| routes.sent_bytes())
    }

    /// The gradient of what goes out of a stage, for its backward; afterwards that of what came in.
    pub fn gradient_mut(&mut self) -> &mut [T] {
        self.pending.dy.own_mut()
    }
}

impl<T: Number> Model<T> {
    /// The whole model of a shape, its gradients in buckets of `bucket_elements` elements or the end of the parameter that exceeds them.
    ///
    /// # Errors
    /// [`Error::Configuration`](crate::error::Error::Configuration) for lengths that do not fit each other.
    pub fn new(shape: Shape, bucket_elements: usize) -> Result<Self> {
        Self::cut(shape, bucket_elements, Cut::whole(&shape))
    }

    /// What a rank has of the model.
    ///
    /// # Errors
    /// [`Error::Configuration`](crate::error::Error::Configuration) for lengths that do not fit each other or the cut.
    pub fn cut(shape: Shape, bucket_elements: usize, cut: Cut) -> Result<Self> {
        shape.check()?;
        cut.check(&shape)?;
        let lengths = Lengths::new(&shape, &cut);
        let parameters = cut.stages.iter().rev().flat_map(|stage| parameters(&shape, &cut, stage)).collect();
        let layout = Layout::new(parameters, bucket_elements, cut.replicas);
        let all: Vec<ParameterId> = layout.parameters().map(|(id, _)| id).collect();
        let mut ids = all.iter().copied();
        let own_experts = shape.experts.map(|experts| experts.count / cut.experts);
        let mut stages: Vec<Stage> = Vec::new();
        for layers in cut.stages.iter().rev() {
            let mut next = || ids.next().expect("the layout has the parameters of each stage");
            let end = (layers.end == shape.layers).then(|| {
                // The embedding is the last in the layout.
                let head = if cut.is_tied(&shape) { all[all.len() - 1] } else { next() };
                End { head, norm: next() }
            });
            let mut blocks: Vec<BlockIds> =
                layers.clone().map(|_| BlockIds::new(own_experts, &mut ids)).collect();
            blocks.reverse();
            let embedding = if layers.start == 0 { ids.next() } else { None };
            stages.push(Stage { layers: layers.clone(), embedding, blocks, end });
        }
        stages.reverse();
        Ok(Model {
            products: Products::Exact,
            block: Block::new(&lengths, shape.experts, Products::Exact),
            rope: Rope::new(shape.sequence, lengths.head, shape.rope_base),
            stages,
            layout,
            lengths,
            cut,
            shape,
        })
    }

    /// The same model, whose linear layers multiply so.
    pub fn with_products(self, products: Products) -> Self {
        Model { products, block: Block::new(&self.lengths, self.shape.experts, products), ..self }
    }

    /// The lengths of the whole.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// The lengths of what this rank has.
    pub fn lengths(&self) -> &Lengths {
        &self.lengths
    }

    /// What of the whole this rank has.
    pub fn own(&self) -> &Cut {
        &self.cut
    }

    /// Where the parameters lie.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Room for what forward of a stage keeps of `sequences` sequences.
    pub fn activations(&self, stage: usize, sequences: usize) -> Activations<T> {
        let (lengths, stage) = (&self.lengths, &self.stages[stage]);
        let tokens = sequences * lengths.sequence;
        let own = tokens / lengths.sharers;
        Activations {
            blocks: stage
                .layers
                .clone()
                .map(|_| BlockActivations::new(lengths, self.shape.experts, tokens))
                .collect(),
            y: vec![T::ZERO; own * lengths.width],
            end: stage.end.map(|_| EndActivations {
                normed: Joint::new(tokens, lengths.width, lengths.sharers),
                factors: vec![T::ZERO; own],
                logits: vec![T::ZERO; tokens * lengths.vocabulary],
                logs: vec![T::ZERO; tokens],
            }),
        }
    }

    /// Room for the work on `sequences` sequences.
    pub fn workspace(&self, sequences: usize) -> Workspace<T> {
        let Lengths { width, sequence, sharers, .. } = self.lengths;
        let joint = || Joint::new(sequences * sequence, width, sharers);
        Workspace {
            sums: joint(),
            d_normed: joint(),
            pending: Pending::new(&self.lengths, self.shape.experts, sequences * sequence),
            room: Room::new(self.cut.contexts > 1, self.block.attention(), sequences * sequence),
            routes: None,
        }
    }

    fn last(&self) -> (RmsNorm, Linear) {
        let Lengths { width, vocabulary, norm_epsilon, .. } = self.lengths;
        (
            RmsNorm { width, epsilon: norm_epsilon },
            Linear { inputs: width, outputs: vocabulary, products: self.products },
        )
    }

    /// This rank's tokens of the vocabulary.
    fn columns(&self) -> Columns {
        let count = self.lengths.vocabulary;
        Columns { first: self.cut.tensor * count, count }
    }

    /// Forward of a stage: from `tokens` in the first, otherwise from what came in, to the logits in the last, otherwise to
    /// what goes out.
    ///
    /// # Errors
    /// What joining the ranks of a layer, or bringing weights, ends with.
    ///
    /// # Panics
    /// If there are other than the tokens that `kept` and `room` have room for.
    pub fn forward(
        &self,
        stage: usize,
        (weights, ranks): (&mut dyn Weights<T>, &Ranks<'_>),
        tokens: &[u32],
        kept: &mut Activations<T>,
        room: &mut Workspace<T>,
    ) -> Result<()> {
        let stage = &self.stages[stage];
        let Activations { blocks, y, end } = kept;
        let Workspace { sums, room, routes, .. } = room;
        if let Some(id) = stage.embedding {
            weights.enter(Unit::Embedding, Pass::Forward)?;
            let (table, width) = (weights.of(id), self.lengths.width);
            let x = &mut blocks[0].x;
            if ranks.tensor.comm().is_some() {
                embedding::forward(table, self.columns().first, tokens, width, sums.all_mut());
                sums.sum(&ranks.tensor)?;
                x.copy_from_slice(sums.own());
            } else {
                embedding::forward(table, 0, tokens, width, x);
            }
            weights.leave(Unit::Embedding)?;
        }
        for (index, (ids, layer)) in stage.blocks.iter().zip(stage.layers.clone()).enumerate() {
            weights.enter(Unit::Block(layer), Pass::Forward)?;
            let given = Given { weights: &*weights, ranks, rope: &self.rope };
            let (before, after) = blocks.split_at_mut(index + 1);
            let y = after.first_mut().map_or(&mut *y, |next| &mut next.x);
            self.block.forward(ids, given, &mut before[index], y, (sums, room, routes.as_deref_mut()))?;
            weights.leave(Unit::Block(layer))?;
        }
        if let (Some(ids), Some(kept)) = (stage.end, end) {
            self.enter_end(weights, Pass::Forward)?;
            let (norm, head) = self.last();
            norm.forward(weights.of(ids.norm), y, kept.normed.own_mut(), &mut kept.factors);
            kept.normed.gather(&ranks.tensor)?;
            head.forward(weights.of(ids.head), kept.normed.all(), &mut kept.logits, Into::Replace);
            self.leave_end(weights)?;
        }
        Ok(())
    }

    /// After [`Model::forward`] of the last stage, the sum of the losses of all tokens, in nats.
    ///
    /// # Errors
    /// What joining the ranks of the layer ends with.
    ///
    /// # Panics
    /// If the stage is not the last.
    pub fn loss(&self, ranks: &Ranks<'_>, targets: &[u32], kept: &mut Activations<T>) -> Result<f64> {
        let end = kept.end.as_mut().expect("the last stage has a loss");
        cross_entropy::forward(&end.logits, targets, self.columns(), &ranks.tensor, &mut end.logs)
    }

    /// After [`Model::loss`] of the last stage, otherwise from [`Workspace::gradient_mut`], adds `factor` times the gradient of
    /// the sum of the losses to `gradients`. What came in has its gradient in [`Workspace::gradient_mut`] then.
    ///
    /// # Errors
    /// What joining the ranks of a layer, bringing weights, or starting the exchange of a bucket ends with.
    pub fn backward(
        &self,
        stage: usize,
        (weights, ranks): (&mut dyn Weights<T>, &Ranks<'_>),
        (tokens, targets, factor): (&[u32], &[u32], T),
        (kept, room): (&mut Activations<T>, &mut Workspace<T>),
        gradients: &mut dyn Gradients<T>,
    ) -> Result<()> {
        let stage = &self.stages[stage];
        if let Some(ids) = stage.end {
            self.enter_end(weights, Pass::Backward)?;
            self.end_backward(ids, (&*weights, ranks), (targets, factor), (kept, room), gradients)?;
            self.leave_end(weights)?;
        }
        let Workspace { pending, room, routes, .. } = room;
        for ((ids, layer), kept) in stage.blocks.iter().zip(stage.layers.clone()).zip(&kept.blocks).rev() {
            weights.enter(Unit::Block(layer), Pass::Backward)?;
            let given = Given { weights: &*weights, ranks, rope: &self.rope };
            self.block.backward(ids, given, kept, (pending, room, routes.as_deref_mut()), gradients)?;
            weights.leave(Unit::Block(layer))?;
            std::mem::swap(&mut pending.dy, &mut pending.dx);
        }
        if let Some(id) = stage.embedding {
            pending.dy.gather(&ranks.tensor)?;
            let (first, width) = (self.columns().first, self.lengths.width);
            embedding::backward_weight(tokens, first, width, pending.dy.all(), gradients.place(id));
            gradients.finished(id)?;
        }
        Ok(())
    }

    /// Enters the end, and the embedding where it is the end's matrix.
    fn enter_end(&self, weights: &mut dyn Weights<T>, pass: Pass) -> Result<()> {
        if self.cut.is_tied(&self.shape) {
            weights.enter(Unit::Embedding, pass)?;
        }
        weights.enter(Unit::End, pass)
    }

    fn leave_end(&self, weights: &mut dyn Weights<T>) -> Result<()> {
        if self.cut.is_tied(&self.shape) {
            weights.leave(Unit::Embedding)?;
        }
        weights.leave(Unit::End)
    }

    /// Backward of the last norm and the matrix to the logits; leaves the gradient of what came into them.
    fn end_backward(
        &self,
        ids: End,
        (weights, ranks): (&dyn Weights<T>, &Ranks<'_>),
        (targets, factor): (&[u32], T),
        (kept, room): (&mut Activations<T>, &mut Workspace<T>),
        gradients: &mut dyn Gradients<T>,
    ) -> Result<()> {
        let Workspace { d_normed, pending, .. } = room;
        let x = &kept.y;
        let kept = kept.end.as_mut().expect("the last stage keeps its end");
        let (norm, head) = self.last();
        cross_entropy::backward(&mut kept.logits, targets, self.columns(), &kept.logs, factor);
        head.backward_input(weights.of(ids.head), &kept.logits, d_normed.all_mut(), Into::Replace);
        d_normed.sum(&ranks.tensor)?;
        let dy = pending.dy.own_mut();
        dy.fill(T::ZERO);
        norm.backward_input(weights.of(ids.norm), x, &kept.factors, d_normed.own(), dy);
        head.backward_weight(kept.normed.all(), &kept.logits, gradients.place(ids.head));
        if !self.cut.is_tied(&self.shape) {
            gradients.finished(ids.head)?;
        }
        norm.backward_weight(x, &kept.factors, d_normed.own(), gradients.place(ids.norm));
        gradients.finished(ids.norm)
    }
}

/// The parameters of a stage, in the order in which backward finishes their gradients.
fn parameters(shape: &Shape, cut: &Cut, layers: &Range<usize>) -> Vec<Parameter> {
    let matrix = |name: &str| {
        Parameter::new(name, [shape.vocabulary, shape.width], Begin::Normal(DEVIATION)).split(
            0,
            cut.tensor,
            cut.tensors,
        )
    };
    let of = |unit| move |parameter| Parameter { unit: Some(unit), ..parameter };
    let is_last = layers.end == shape.layers;
    // Elsewhere the other one is on another rank.
    let twin = |twin| Some(twin).filter(|_| shape.tied && !cut.is_tied(shape));
    let head = (is_last && !cut.is_tied(shape)).then(|| match twin(Twin::Copy) {
        Some(copy) => Parameter { twin: Some(copy), ..matrix("embedding") },
        None => matrix("head"),
    });
    let norm = is_last.then(|| block::norm("norm".into(), shape, cut));
    let mut parameters: Vec<Parameter> = head.into_iter().chain(norm).map(of(Unit::End)).collect();
    for layer in layers.clone().rev() {
        parameters.extend(block::parameters(shape, cut, layer).map(of(Unit::Block(layer))));
    }
    let embedding = || Parameter { twin: twin(Twin::First), ..matrix("embedding") };
    parameters.extend((layers.start == 0).then(|| of(Unit::Embedding)(embedding())));
    parameters
}

#[cfg(test)]
mod tests;
