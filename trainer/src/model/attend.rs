//! The first half of a block: attention behind a norm, added to what came in.

use crate::error::Result;
use crate::layers::attention::{Attention, InputGradients, Inputs};
use crate::layers::linear::Linear;
use crate::layers::ring::Room;
use crate::layers::rms_norm::RmsNorm;
use crate::layers::rope::Turn;
use crate::model::{Cut, DEVIATION, Given, Lengths, Shape, block};
use crate::number::Number;
use crate::parameters::{Begin, Gradients, Parameter, ParameterId};
use crate::products::{Into, Products};
use crate::ranks::Joint;

/// The parameters of the half.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Ids {
    output: ParameterId,
    value: ParameterId,
    key: ParameterId,
    query: ParameterId,
    norm: ParameterId,
}

/// What forward keeps, and backward reads.
pub(super) struct Kept<T> {
    normed: Joint<T>,
    factors: Vec<T>,
    q: Vec<T>,
    k: Vec<T>,
    v: Vec<T>,
    attended: Vec<T>,
    logs: Vec<T>,
}

/// Gradients of the inside, from which those of the weights are made.
pub(super) struct Pending<T> {
    attended: Vec<T>,
    q: Vec<T>,
    k: Vec<T>,
    v: Vec<T>,
    normed: Joint<T>,
}

/// The layers of the half.
#[derive(Clone, Copy, Debug)]
pub(super) struct Attend {
    norm: RmsNorm,
    query: Linear,
    key_value: Linear,
    attention: Attention,
    output: Linear,
}

/// The parameters of the half in block `layer`, in the order in which backward finishes their gradients.
pub(super) fn parameters(shape: &Shape, cut: &Cut, layer: usize) -> [Parameter; 5] {
    let width = shape.width;
    let kv_width = shape.kv_heads * shape.head();
    let matrix = |name: &str, rows, deviation, cut_dimension| {
        Parameter::new(format!("layers.{layer}.attention.{name}"), [rows, width], Begin::Normal(deviation))
            .split(cut_dimension, cut.tensor, cut.tensors)
    };
    [
        matrix("output", width, block::added(shape), 1),
        matrix("value", kv_width, DEVIATION, 0),
        matrix("key", kv_width, DEVIATION, 0),
        matrix("query", width, DEVIATION, 0),
        block::norm(format!("layers.{layer}.attention.norm"), shape, cut),
    ]
}

impl Ids {
    /// From the numbers of what [`parameters`] returned.
    pub(super) fn new([output, value, key, query, norm]: [ParameterId; 5]) -> Self {
        Ids { output, value, key, query, norm }
    }
}

impl<T: Number> Kept<T> {
    /// Room for `tokens` tokens.
    pub(super) fn new(lengths: &Lengths, tokens: usize) -> Self {
        let room = |width: usize| vec![T::ZERO; tokens * width];
        Kept {
            normed: Joint::new(tokens, lengths.width, lengths.sharers),
            factors: vec![T::ZERO; tokens / lengths.sharers],
            q: room(lengths.query_width()),
            k: room(lengths.key_width()),
            v: room(lengths.key_width()),
            attended: room(lengths.query_width()),
            logs: room(lengths.heads),
        }
    }
}

impl<T: Number> Pending<T> {
    /// Room for `tokens` tokens.
    pub(super) fn new(lengths: &Lengths, tokens: usize) -> Self {
        let room = |width: usize| vec![T::ZERO; tokens * width];
        Pending {
            attended: room(lengths.query_width()),
            q: room(lengths.query_width()),
            k: room(lengths.key_width()),
            v: room(lengths.key_width()),
            normed: Joint::new(tokens, lengths.width, lengths.sharers),
        }
    }
}

impl Attend {
    /// What of attention the half has.
    pub(super) fn attention(&self) -> &Attention {
        &self.attention
    }

    /// The half of a rank's lengths.
    pub(super) fn new(lengths: &Lengths, products: Products) -> Self {
        let Lengths { width, head, heads, kv_heads, sequence, .. } = *lengths;
        Attend {
            norm: RmsNorm { width, epsilon: lengths.norm_epsilon },
            query: Linear { inputs: width, outputs: lengths.query_width(), products },
            key_value: Linear { inputs: width, outputs: lengths.key_width(), products },
            attention: Attention { heads, kv_heads, head, sequence },
            output: Linear { inputs: lengths.query_width(), outputs: width, products },
        }
    }

    /// Adds what the half gives for `x` to `y`.
    ///
    /// # Errors
    /// What joining the ranks ends with.
    pub(super) fn forward<T: Number>(
        &self,
        ids: &Ids,
        given: Given<'_, T>,
        x: &[T],
        kept: &mut Kept<T>,
        y: &mut [T],
        (sums, room): (&mut Joint<T>, &mut Room<T>),
    ) -> Result<()> {
        let of = |id| given.weights.of(id);
        self.norm.forward(of(ids.norm), x, kept.normed.own_mut(), &mut kept.factors);
        kept.normed.gather(&given.ranks.tensor)?;
        let normed = kept.normed.all();
        self.query.forward(of(ids.query), normed, &mut kept.q, Into::Replace);
        self.key_value.forward(of(ids.key), normed, &mut kept.k, Into::Replace);
        self.key_value.forward(of(ids.value), normed, &mut kept.v, Into::Replace);
        let (ring, positions) = (&given.ranks.ring, given.ranks.ring.positions());
        given.rope.turn(&mut kept.q, self.query.outputs, positions, Turn::On);
        given.rope.turn(&mut kept.k, self.key_value.outputs, positions, Turn::On);
        let inputs = Inputs { q: &kept.q, k: &kept.k, v: &kept.v };
        ring.forward(&self.attention, inputs, (&mut kept.attended, &mut kept.logs), room)?;
        let attended = &kept.attended;
        sums.add(&given.ranks.tensor, y, |y, into| self.output.forward(of(ids.output), attended, y, into))
    }

    /// From the gradient `dy` of what goes out, adds that of what came in to `dx`, and those of the weights to `gradients`. Those
    /// of the matrices are made while the ranks are joined.
    ///
    /// # Errors
    /// What joining the ranks, or starting the exchange of a bucket, ends with.
    pub(super) fn backward<T: Number>(
        &self,
        ids: &Ids,
        given: Given<'_, T>,
        (x, kept): (&[T], &Kept<T>),
        dy: &Joint<T>,
        (p, room): (&mut Pending<T>, &mut Room<T>),
        (dx, gradients): (&mut [T], &mut dyn Gradients<T>),
    ) -> Result<()> {
        self.inside(ids, given, kept, dy, (p, room))?;
        let Pending { normed, q, k, v, .. } = p;
        let linears: [(ParameterId, &Linear, &[T], &[T]); 4] = [
            (ids.output, &self.output, &kept.attended, dy.all()),
            (ids.value, &self.key_value, kept.normed.all(), v),
            (ids.key, &self.key_value, kept.normed.all(), k),
            (ids.query, &self.query, kept.normed.all(), q),
        ];
        normed.sum_beside(&given.ranks.tensor, || block::weights(&linears, gradients))?;
        self.norm.backward_input(given.weights.of(ids.norm), x, &kept.factors, normed.own(), dx);
        self.norm.backward_weight(x, &kept.factors, normed.own(), gradients.place(ids.norm));
        gradients.finished(ids.norm)
    }

    /// This rank's addends of the gradient of what comes out of the norm, and all that the gradients of the matrices need.
    ///
    /// # Errors
    /// What passing keys around ends with.
    fn inside<T: Number>(
        &self,
        ids: &Ids,
        given: Given<'_, T>,
        kept: &Kept<T>,
        dy: &Joint<T>,
        (p, room): (&mut Pending<T>, &mut Room<T>),
    ) -> Result<()> {
        let of = |id| given.weights.of(id);
        self.output.backward_input(of(ids.output), dy.all(), &mut p.attended, Into::Replace);
        let inputs = Inputs { q: &kept.q, k: &kept.k, v: &kept.v };
        let gradients = InputGradients { q: &mut p.q, k: &mut p.k, v: &mut p.v };
        let (ring, positions) = (&given.ranks.ring, given.ranks.ring.positions());
        let outputs = (&kept.attended[..], &p.attended[..], &kept.logs[..]);
        ring.backward(&self.attention, inputs, outputs, gradients, room)?;
        given.rope.turn(&mut p.q, self.query.outputs, positions, Turn::Back);
        given.rope.turn(&mut p.k, self.key_value.outputs, positions, Turn::Back);
        let normed = p.normed.all_mut();
        self.query.backward_input(of(ids.query), &p.q, normed, Into::Replace);
        self.key_value.backward_input(of(ids.key), &p.k, normed, Into::Add);
        self.key_value.backward_input(of(ids.value), &p.v, normed, Into::Add);
        Ok(())
    }
}
