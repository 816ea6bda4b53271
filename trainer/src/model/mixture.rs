//! The second half of a block as a mixture of experts: each token goes through the gated units of some experts behind a norm, and
//! their weighted sum is added to what came in (Shazeer and others, 2017; Fedus and others, 2022).
//!
//! Invariant: no token is dropped, whatever its experts; those of other ranks are reached through [`Routes`]. A rank has some
//! of the experts, and all of the router. Experts have biases by which they are chosen; what stands in the place of
//! their gradient is the load: the tokens that went to each expert. Absent: how biases follow from the load.

use crate::error::Result;
use crate::layers::linear::Linear;
use crate::layers::rms_norm::RmsNorm;
use crate::layers::{router, swiglu};
use crate::model::{Cut, DEVIATION, Experts, Given, Lengths, Shape, block};
use crate::number::Number;
use crate::parameters::{Begin, Gradients, Group, Parameter, ParameterId, Rule, Shared};
use crate::products::{Into, Products};
use crate::routes::{Routes, Sent};

/// The parameters of an expert.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Expert {
    down: ParameterId,
    gate: ParameterId,
    up: ParameterId,
}

/// The parameters of the half.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Ids {
    /// This rank's experts.
    experts: Vec<Expert>,
    router: ParameterId,
    balance: ParameterId,
    norm: ParameterId,
}

/// What forward keeps, and backward reads.
pub(super) struct Kept<T> {
    normed: Vec<T>,
    factors: Vec<T>,
    logits: Vec<T>,
    choices: Vec<i32>,
    weights: Vec<T>,
    /// After forward.
    sent: Option<Sent>,
    /// Of all tokens that came here, by expert.
    rows: Vec<T>,
    gate: Vec<T>,
    up: Vec<T>,
    gated: Vec<T>,
    outputs: Vec<T>,
}

/// Gradients of the inside.
pub(super) struct Pending<T> {
    outputs: Vec<T>,
    gated: Vec<T>,
    gate: Vec<T>,
    up: Vec<T>,
    rows: Vec<T>,
    weights: Vec<T>,
    logits: Vec<T>,
    normed: Vec<T>,
}

/// The layers of the half.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mixture {
    norm: RmsNorm,
    router: Linear,
    gate_up: Linear,
    down: Linear,
    experts: Experts,
}

/// The parameters of the half in block `layer`, in the order in which backward finishes their gradients.
pub(super) fn parameters(shape: &Shape, experts: Experts, cut: &Cut, layer: usize) -> Vec<Parameter> {
    let Shape { width, hidden, .. } = *shape;
    let own = experts.count / cut.experts;
    let group = if cut.experts > 1 { Group::Experts } else { Group::All };
    // Tensor ranks have whole experts, and send tokens of their own.
    let shared = if cut.shares_tokens { Shared::Summed } else { Shared::Same };
    let expert = |number: usize| {
        let matrix = |name: &str, lengths, deviation| Parameter {
            group,
            shared,
            ..Parameter::new(
                format!("layers.{layer}.experts.{number}.{name}"),
                lengths,
                Begin::Normal(deviation),
            )
        };
        [
            matrix("down", [width, hidden], block::added(shape)),
            matrix("gate", [hidden, width], DEVIATION),
            matrix("up", [hidden, width], DEVIATION),
        ]
    };
    let Experts { count, top_k } = experts;
    let router = Parameter {
        shared,
        ..Parameter::new(format!("layers.{layer}.router"), [count, width], Begin::Normal(DEVIATION))
    };
    let balance = Parameter {
        shared,
        rule: Rule::Balanced { top_k, experts: count },
        ..Parameter::new(format!("layers.{layer}.balance"), [1, count], Begin::Zeros)
    };
    let norm = block::norm(format!("layers.{layer}.mlp.norm"), shape, cut);
    let of_experts = (cut.expert * own..(cut.expert + 1) * own).flat_map(expert);
    of_experts.chain([router, balance, norm]).collect()
}

impl Ids {
    /// From the numbers of what [`parameters`] returned, for `own` experts.
    pub(super) fn new(own: usize, mut next: impl FnMut() -> ParameterId) -> Self {
        let experts = (0..own).map(|_| Expert { down: next(), gate: next(), up: next() }).collect();
        Ids { experts, router: next(), balance: next(), norm: next() }
    }
}

impl<T: Number> Kept<T> {
    /// Room for `tokens` tokens of this rank; that for rows grows with what comes.
    pub(super) fn new(lengths: &Lengths, experts: Experts, tokens: usize) -> Self {
        Kept {
            normed: vec![T::ZERO; tokens * lengths.width],
            factors: vec![T::ZERO; tokens],
            logits: vec![T::ZERO; tokens * experts.count],
            choices: vec![0; tokens * experts.top_k],
            weights: vec![T::ZERO; tokens * experts.top_k],
            sent: None,
            rows: Vec::new(),
            gate: Vec::new(),
            up: Vec::new(),
            gated: Vec::new(),
            outputs: Vec::new(),
        }
    }
}

impl<T: Number> Pending<T> {
    /// Room for `tokens` tokens.
    pub(super) fn new(lengths: &Lengths, experts: Experts, tokens: usize) -> Self {
        Pending {
            outputs: Vec::new(),
            gated: Vec::new(),
            gate: Vec::new(),
            up: Vec::new(),
            rows: Vec::new(),
            weights: vec![T::ZERO; tokens * experts.top_k],
            logits: vec![T::ZERO; tokens * experts.count],
            normed: vec![T::ZERO; tokens * lengths.width],
        }
    }
}

/// For each expert its rows: from where to where.
fn places(counts: &[usize]) -> impl Iterator<Item = std::ops::Range<usize>> {
    let mut end = 0;
    counts.iter().map(move |count| {
        end += count;
        end - count..end
    })
}

/// The rows of elements of `width` each.
fn of(rows: &std::ops::Range<usize>, width: usize) -> std::ops::Range<usize> {
    rows.start * width..rows.end * width
}

impl Mixture {
    /// The half of a rank's lengths.
    pub(super) fn new(lengths: &Lengths, experts: Experts, products: Products) -> Self {
        let Lengths { width, hidden, .. } = *lengths;
        Mixture {
            norm: RmsNorm { width, epsilon: lengths.norm_epsilon },
            // Rounding would change which expert is chosen.
            router: Linear { inputs: width, outputs: experts.count, products: Products::Exact },
            gate_up: Linear { inputs: width, outputs: hidden, products },
            down: Linear { inputs: hidden, outputs: width, products },
            experts,
        }
    }

    fn lengths(&self) -> (usize, usize) {
        (self.experts.count, self.experts.top_k)
    }

    /// Adds what the half gives for `x` to `y`; `sums` is room for as much.
    ///
    /// # Errors
    /// What dispatching or combining ends with.
    pub(super) fn forward<T: Number>(
        &self,
        ids: &Ids,
        given: Given<'_, T>,
        (x, kept): (&[T], &mut Kept<T>),
        (y, sums): (&mut [T], &mut [T]),
        routes: &mut dyn Routes<T>,
    ) -> Result<()> {
        let weights = |id| given.weights.of(id);
        self.norm.forward(weights(ids.norm), x, &mut kept.normed, &mut kept.factors);
        self.router.forward(weights(ids.router), &kept.normed, &mut kept.logits, Into::Replace);
        let biases = weights(ids.balance);
        router::forward(&kept.logits, biases, self.lengths(), &mut kept.choices, &mut kept.weights);
        let Kept { normed, choices, weights: of_choices, rows, .. } = &mut *kept;
        let sent = given.ranks.routing(|| routes.dispatch(normed, choices, of_choices, rows))?;
        let (width, hidden) = (self.norm.width, self.down.inputs);
        let rows = kept.rows.len() / width;
        for inside in [&mut kept.gate, &mut kept.up, &mut kept.gated] {
            inside.resize(rows * hidden, T::ZERO);
        }
        kept.outputs.resize(rows * width, T::ZERO);
        for (expert, rows) in ids.experts.iter().zip(places(&sent.counts)) {
            let (outside, inside) = (of(&rows, width), of(&rows, hidden));
            let rows = &kept.rows[outside.clone()];
            let (gate, up) = (&mut kept.gate[inside.clone()], &mut kept.up[inside.clone()]);
            self.gate_up.forward(weights(expert.gate), rows, gate, Into::Replace);
            self.gate_up.forward(weights(expert.up), rows, up, Into::Replace);
            let gated = &mut kept.gated[inside];
            swiglu::forward(gate, up, gated);
            self.down.forward(weights(expert.down), gated, &mut kept.outputs[outside], Into::Replace);
        }
        given.ranks.routing(|| routes.combine(&sent, &kept.outputs, sums))?;
        y.iter_mut().zip(&*sums).for_each(|(y, sum)| *y += *sum);
        kept.sent = Some(sent);
        Ok(())
    }

    /// From the gradient `dy` of what goes out, adds that of what came in to `dx`, and those of the weights to `gradients`.
    ///
    /// # Errors
    /// What returning gradients, or starting the exchange of a bucket, ends with.
    ///
    /// # Panics
    /// If forward has not run.
    pub(super) fn backward<T: Number>(
        &self,
        ids: &Ids,
        given: Given<'_, T>,
        (x, kept): (&[T], &Kept<T>),
        (dy, p): (&[T], &mut Pending<T>),
        (dx, gradients): (&mut [T], &mut dyn Gradients<T>),
        routes: &mut dyn Routes<T>,
    ) -> Result<()> {
        let sent = kept.sent.as_ref().expect("backward comes behind forward");
        let of = (&kept.outputs[..], dy);
        given.ranks.routing(|| routes.combine_gradient(sent, of, &mut p.outputs, &mut p.weights))?;
        for inside in [&mut p.gate, &mut p.up, &mut p.gated] {
            inside.resize(kept.gate.len(), T::ZERO);
        }
        p.rows.resize(kept.rows.len(), T::ZERO);
        self.experts_backward(ids, given, kept, p, gradients)?;
        given.ranks.routing(|| routes.dispatch_gradient(sent, &p.rows, &mut p.normed))?;
        let chosen = (&kept.choices[..], &kept.weights[..]);
        router::backward(&kept.logits, chosen, &p.weights, self.lengths(), &mut p.logits);
        self.router.backward_input(given.weights.of(ids.router), &p.logits, &mut p.normed, Into::Add);
        self.router.backward_weight(&kept.normed, &p.logits, gradients.place(ids.router));
        gradients.finished(ids.router)?;
        let loads = gradients.place(ids.balance);
        kept.choices.iter().for_each(|choice| loads[*choice as usize] += T::ONE);
        gradients.finished(ids.balance)?;
        self.norm.backward_input(given.weights.of(ids.norm), x, &kept.factors, &p.normed, dx);
        self.norm.backward_weight(x, &kept.factors, &p.normed, gradients.place(ids.norm));
        gradients.finished(ids.norm)
    }

    /// The gradients of this rank's experts and of their rows.
    fn experts_backward<T: Number>(
        &self,
        ids: &Ids,
        given: Given<'_, T>,
        kept: &Kept<T>,
        p: &mut Pending<T>,
        gradients: &mut dyn Gradients<T>,
    ) -> Result<()> {
        let counts = &kept.sent.as_ref().expect("backward comes behind forward").counts;
        let (width, hidden) = (self.norm.width, self.down.inputs);
        for (expert, rows) in ids.experts.iter().zip(places(counts)) {
            let weights = |id| given.weights.of(id);
            let (outside, inside) = (of(&rows, width), of(&rows, hidden));
            let d_outputs = &p.outputs[outside.clone()];
            let d_gated = &mut p.gated[inside.clone()];
            self.down.backward_input(weights(expert.down), d_outputs, d_gated, Into::Replace);
            let (d_gate, d_up) = (&mut p.gate[inside.clone()], &mut p.up[inside.clone()]);
            swiglu::backward(&kept.gate[inside.clone()], &kept.up[inside.clone()], d_gated, d_gate, d_up);
            let d_rows = &mut p.rows[outside.clone()];
            self.gate_up.backward_input(weights(expert.gate), d_gate, d_rows, Into::Replace);
            self.gate_up.backward_input(weights(expert.up), d_up, d_rows, Into::Add);
            let rows = &kept.rows[outside];
            let linears: [(ParameterId, &Linear, &[T], &[T]); 3] = [
                (expert.down, &self.down, &kept.gated[inside], d_outputs),
                (expert.gate, &self.gate_up, rows, d_gate),
                (expert.up, &self.gate_up, rows, d_up),
            ];
            block::weights(&linears, gradients)?;
        }
        Ok(())
    }
}
