//! The second half of a block: a gated unit behind a norm, added to what came in.

use crate::error::Result;
use crate::layers::linear::Linear;
use crate::layers::rms_norm::RmsNorm;
use crate::layers::swiglu;
use crate::model::{Cut, DEVIATION, Given, Lengths, Shape, block};
use crate::number::Number;
use crate::parameters::{Begin, Gradients, Parameter, ParameterId};
use crate::products::{Into, Products};
use crate::ranks::Joint;

/// The parameters of the half.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Ids {
    down: ParameterId,
    gate: ParameterId,
    up: ParameterId,
    norm: ParameterId,
}

/// What forward keeps, and backward reads.
pub(super) struct Kept<T> {
    normed: Joint<T>,
    factors: Vec<T>,
    gate: Vec<T>,
    up: Vec<T>,
    gated: Vec<T>,
}

/// Gradients of the inside, from which those of the weights are made.
pub(super) struct Pending<T> {
    gated: Vec<T>,
    gate: Vec<T>,
    up: Vec<T>,
    normed: Joint<T>,
}

/// The layers of the half.
#[derive(Clone, Copy, Debug)]
pub(super) struct Gated {
    norm: RmsNorm,
    gate_up: Linear,
    down: Linear,
}

/// The parameters of the half in block `layer`, in the order in which backward finishes their gradients.
pub(super) fn parameters(shape: &Shape, cut: &Cut, layer: usize) -> [Parameter; 4] {
    let Shape { width, hidden, .. } = *shape;
    let matrix = |name: &str, lengths, deviation, dimension| {
        Parameter::new(format!("layers.{layer}.mlp.{name}"), lengths, Begin::Normal(deviation)).split(
            dimension,
            cut.tensor,
            cut.tensors,
        )
    };
    [
        matrix("down", [width, hidden], block::added(shape), 1),
        matrix("gate", [hidden, width], DEVIATION, 0),
        matrix("up", [hidden, width], DEVIATION, 0),
        block::norm(format!("layers.{layer}.mlp.norm"), shape, cut),
    ]
}

impl Ids {
    /// From the numbers of what [`parameters`] returned.
    pub(super) fn new([down, gate, up, norm]: [ParameterId; 4]) -> Self {
        Ids { down, gate, up, norm }
    }
}

impl<T: Number> Kept<T> {
    /// Room for `tokens` tokens.
    pub(super) fn new(lengths: &Lengths, tokens: usize) -> Self {
        let room = || vec![T::ZERO; tokens * lengths.hidden];
        Kept {
            normed: Joint::new(tokens, lengths.width, lengths.sharers),
            factors: vec![T::ZERO; tokens / lengths.sharers],
            gate: room(),
            up: room(),
            gated: room(),
        }
    }
}

impl<T: Number> Pending<T> {
    /// Room for `tokens` tokens.
    pub(super) fn new(lengths: &Lengths, tokens: usize) -> Self {
        let room = || vec![T::ZERO; tokens * lengths.hidden];
        Pending {
            gated: room(),
            gate: room(),
            up: room(),
            normed: Joint::new(tokens, lengths.width, lengths.sharers),
        }
    }
}

impl Gated {
    /// The half of a rank's lengths.
    pub(super) fn new(lengths: &Lengths, products: Products) -> Self {
        let Lengths { width, hidden, .. } = *lengths;
        Gated {
            norm: RmsNorm { width, epsilon: lengths.norm_epsilon },
            gate_up: Linear { inputs: width, outputs: hidden, products },
            down: Linear { inputs: hidden, outputs: width, products },
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
        sums: &mut Joint<T>,
    ) -> Result<()> {
        let of = |id| given.weights.of(id);
        self.norm.forward(of(ids.norm), x, kept.normed.own_mut(), &mut kept.factors);
        kept.normed.gather(&given.ranks.tensor)?;
        self.gate_up.forward(of(ids.gate), kept.normed.all(), &mut kept.gate, Into::Replace);
        self.gate_up.forward(of(ids.up), kept.normed.all(), &mut kept.up, Into::Replace);
        swiglu::forward(&kept.gate, &kept.up, &mut kept.gated);
        let gated = &kept.gated;
        sums.add(&given.ranks.tensor, y, |y, into| self.down.forward(of(ids.down), gated, y, into))
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
        p: &mut Pending<T>,
        (dx, gradients): (&mut [T], &mut dyn Gradients<T>),
    ) -> Result<()> {
        self.inside(ids, given, kept, dy, p);
        let Pending { normed, gate, up, .. } = p;
        let linears: [(ParameterId, &Linear, &[T], &[T]); 3] = [
            (ids.down, &self.down, &kept.gated, dy.all()),
            (ids.gate, &self.gate_up, kept.normed.all(), gate),
            (ids.up, &self.gate_up, kept.normed.all(), up),
        ];
        normed.sum_beside(&given.ranks.tensor, || block::weights(&linears, gradients))?;
        self.norm.backward_input(given.weights.of(ids.norm), x, &kept.factors, normed.own(), dx);
        self.norm.backward_weight(x, &kept.factors, normed.own(), gradients.place(ids.norm));
        gradients.finished(ids.norm)
    }

    /// This rank's addends of the gradient of what comes out of the norm, and all that the gradients of the matrices need.
    fn inside<T: Number>(
        &self,
        ids: &Ids,
        given: Given<'_, T>,
        kept: &Kept<T>,
        dy: &Joint<T>,
        p: &mut Pending<T>,
    ) {
        let of = |id| given.weights.of(id);
        self.down.backward_input(of(ids.down), dy.all(), &mut p.gated, Into::Replace);
        swiglu::backward(&kept.gate, &kept.up, &p.gated, &mut p.gate, &mut p.up);
        self.gate_up.backward_input(of(ids.gate), &p.gate, p.normed.all_mut(), Into::Replace);
        self.gate_up.backward_input(of(ids.up), &p.up, p.normed.all_mut(), Into::Add);
    }
}
