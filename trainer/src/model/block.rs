//! A block: attention and gated unit, each behind a norm and added to what came in.
//!
//! Backward is in two functions. [`Block::backward_input`] leaves in [`Pending`] what [`Block::backward_weight`] needs,
//! so the second may run at any later time, or while a collective of the first is under way.

use crate::error::Result;
use crate::layers::attention::{Attention, InputGradients, Inputs, Scratch};
use crate::layers::linear::Linear;
use crate::layers::rms_norm::RmsNorm;
use crate::layers::rope::{Rope, Turn};
use crate::layers::swiglu;
use crate::model::Shape;
use crate::number::Number;
use crate::parameters::{Begin, Gradients, Layout, Parameter, ParameterId, Values};
use crate::products::{Into, Products};

/// The parameters of a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlockIds {
    down: ParameterId,
    gate: ParameterId,
    up: ParameterId,
    mlp_norm: ParameterId,
    output: ParameterId,
    value: ParameterId,
    key: ParameterId,
    query: ParameterId,
    attention_norm: ParameterId,
}

/// What forward keeps of a block, and backward reads.
pub struct BlockActivations<T> {
    /// What came in.
    pub x: Vec<T>,
    normed: Vec<T>,
    factors: Vec<T>,
    q: Vec<T>,
    k: Vec<T>,
    v: Vec<T>,
    attended: Vec<T>,
    logs: Vec<T>,
    /// What came in, with attention added.
    middle: Vec<T>,
    middle_normed: Vec<T>,
    middle_factors: Vec<T>,
    gate: Vec<T>,
    up: Vec<T>,
    gated: Vec<T>,
}

/// Gradients of a block's inside, from which those of its weights are made.
pub struct Pending<T> {
    /// The gradient of what goes out.
    pub dy: Vec<T>,
    /// The gradient of what came in.
    pub dx: Vec<T>,
    d_gated: Vec<T>,
    d_gate: Vec<T>,
    d_up: Vec<T>,
    d_middle_normed: Vec<T>,
    d_middle: Vec<T>,
    d_attended: Vec<T>,
    d_q: Vec<T>,
    d_k: Vec<T>,
    d_v: Vec<T>,
    d_normed: Vec<T>,
}

/// A block's layers.
#[derive(Clone, Copy, Debug)]
pub struct Block {
    norm: RmsNorm,
    query: Linear,
    key_value: Linear,
    attention: Attention,
    output: Linear,
    gate_up: Linear,
    down: Linear,
}

/// The parameters of block `layer`, in the order in which backward finishes their gradients.
pub(super) fn parameters(shape: &Shape, layer: usize) -> [Parameter; 9] {
    let Shape { width, hidden, .. } = *shape;
    let kv_width = shape.kv_heads * shape.head();
    // What is added to the residual stream begins smaller, by the number of such additions (GPT-2).
    let added = super::DEVIATION / (2.0 * shape.layers as f64).sqrt();
    let matrix = |name: &str, rows, columns, deviation| Parameter {
        name: format!("layers.{layer}.{name}"),
        shape: [rows, columns],
        begin: Begin::Normal(deviation),
    };
    let norm = |name: &str| Parameter {
        name: format!("layers.{layer}.{name}"),
        shape: [1, width],
        begin: Begin::Ones,
    };
    [
        matrix("mlp.down", width, hidden, added),
        matrix("mlp.gate", hidden, width, super::DEVIATION),
        matrix("mlp.up", hidden, width, super::DEVIATION),
        norm("mlp.norm"),
        matrix("attention.output", width, width, added),
        matrix("attention.value", kv_width, width, super::DEVIATION),
        matrix("attention.key", kv_width, width, super::DEVIATION),
        matrix("attention.query", width, width, super::DEVIATION),
        norm("attention.norm"),
    ]
}

impl BlockIds {
    /// From the numbers of what [`parameters`] returned.
    pub(super) fn new(
        [down, gate, up, mlp_norm, output, value, key, query, attention_norm]: [ParameterId; 9],
    ) -> Self {
        BlockIds { down, gate, up, mlp_norm, output, value, key, query, attention_norm }
    }
}

impl<T: Number> BlockActivations<T> {
    /// Room for `tokens` tokens.
    pub fn new(shape: &Shape, tokens: usize) -> Self {
        let room = |width: usize| vec![T::ZERO; tokens * width];
        let kv_width = shape.kv_heads * shape.head();
        BlockActivations {
            x: room(shape.width),
            normed: room(shape.width),
            factors: room(1),
            q: room(shape.width),
            k: room(kv_width),
            v: room(kv_width),
            attended: room(shape.width),
            logs: room(shape.heads),
            middle: room(shape.width),
            middle_normed: room(shape.width),
            middle_factors: room(1),
            gate: room(shape.hidden),
            up: room(shape.hidden),
            gated: room(shape.hidden),
        }
    }
}

impl<T: Number> Pending<T> {
    /// Room for `tokens` tokens.
    pub fn new(shape: &Shape, tokens: usize) -> Self {
        let room = |width: usize| vec![T::ZERO; tokens * width];
        let kv_width = shape.kv_heads * shape.head();
        Pending {
            dy: room(shape.width),
            dx: room(shape.width),
            d_gated: room(shape.hidden),
            d_gate: room(shape.hidden),
            d_up: room(shape.hidden),
            d_middle_normed: room(shape.width),
            d_middle: room(shape.width),
            d_attended: room(shape.width),
            d_q: room(shape.width),
            d_k: room(kv_width),
            d_v: room(kv_width),
            d_normed: room(shape.width),
        }
    }
}

impl Block {
    /// The block of a shape.
    pub fn new(shape: &Shape) -> Self {
        let Shape { width, hidden, heads, kv_heads, sequence, .. } = *shape;
        let head = shape.head();
        Block {
            norm: RmsNorm { width, epsilon: shape.norm_epsilon },
            query: Linear { inputs: width, outputs: width, products: Products::Exact },
            key_value: Linear { inputs: width, outputs: kv_heads * head, products: Products::Exact },
            attention: Attention { heads, kv_heads, head, sequence },
            output: Linear { inputs: width, outputs: width, products: Products::Exact },
            gate_up: Linear { inputs: width, outputs: hidden, products: Products::Exact },
            down: Linear { inputs: hidden, outputs: width, products: Products::Exact },
        }
    }

    /// What goes out for `kept.x`.
    pub fn forward<T: Number>(
        &self,
        ids: &BlockIds,
        (layout, weights): (&Layout, &Values<T>),
        rope: &Rope<T>,
        kept: &mut BlockActivations<T>,
        y: &mut [T],
        scratch: &mut Scratch<T>,
    ) {
        let of = |id| weights.of(layout, id);
        self.norm.forward(of(ids.attention_norm), &kept.x, &mut kept.normed, &mut kept.factors);
        self.query.forward(of(ids.query), &kept.normed, &mut kept.q, Into::Replace);
        self.key_value.forward(of(ids.key), &kept.normed, &mut kept.k, Into::Replace);
        self.key_value.forward(of(ids.value), &kept.normed, &mut kept.v, Into::Replace);
        rope.turn(&mut kept.q, self.query.outputs, self.attention.sequence, Turn::On);
        rope.turn(&mut kept.k, self.key_value.outputs, self.attention.sequence, Turn::On);
        let inputs = Inputs { q: &kept.q, k: &kept.k, v: &kept.v };
        self.attention.forward(inputs, &mut kept.attended, &mut kept.logs, scratch);
        kept.middle.copy_from_slice(&kept.x);
        self.output.forward(of(ids.output), &kept.attended, &mut kept.middle, Into::Add);

        self.norm.forward(of(ids.mlp_norm), &kept.middle, &mut kept.middle_normed, &mut kept.middle_factors);
        self.gate_up.forward(of(ids.gate), &kept.middle_normed, &mut kept.gate, Into::Replace);
        self.gate_up.forward(of(ids.up), &kept.middle_normed, &mut kept.up, Into::Replace);
        swiglu::forward(&kept.gate, &kept.up, &mut kept.gated);
        y.copy_from_slice(&kept.middle);
        self.down.forward(of(ids.down), &kept.gated, y, Into::Add);
    }

    /// From `pending.dy` the gradient of what came in, in `pending.dx`, and all that the gradients of the weights need.
    pub fn backward_input<T: Number>(
        &self,
        ids: &BlockIds,
        (layout, weights): (&Layout, &Values<T>),
        rope: &Rope<T>,
        kept: &BlockActivations<T>,
        pending: &mut Pending<T>,
        scratch: &mut Scratch<T>,
    ) {
        let of = |id| weights.of(layout, id);
        let p = pending;
        self.down.backward_input(of(ids.down), &p.dy, &mut p.d_gated, Into::Replace);
        swiglu::backward(&kept.gate, &kept.up, &p.d_gated, &mut p.d_gate, &mut p.d_up);
        self.gate_up.backward_input(of(ids.gate), &p.d_gate, &mut p.d_middle_normed, Into::Replace);
        self.gate_up.backward_input(of(ids.up), &p.d_up, &mut p.d_middle_normed, Into::Add);
        p.d_middle.copy_from_slice(&p.dy);
        let norm = of(ids.mlp_norm);
        self.norm.backward_input(
            norm,
            &kept.middle,
            &kept.middle_factors,
            &p.d_middle_normed,
            &mut p.d_middle,
        );

        self.output.backward_input(of(ids.output), &p.d_middle, &mut p.d_attended, Into::Replace);
        let inputs = Inputs { q: &kept.q, k: &kept.k, v: &kept.v };
        let gradients = InputGradients { q: &mut p.d_q, k: &mut p.d_k, v: &mut p.d_v };
        self.attention.backward(inputs, (&kept.attended, &p.d_attended, &kept.logs), gradients, scratch);
        rope.turn(&mut p.d_q, self.query.outputs, self.attention.sequence, Turn::Back);
        rope.turn(&mut p.d_k, self.key_value.outputs, self.attention.sequence, Turn::Back);
        self.query.backward_input(of(ids.query), &p.d_q, &mut p.d_normed, Into::Replace);
        self.key_value.backward_input(of(ids.key), &p.d_k, &mut p.d_normed, Into::Add);
        self.key_value.backward_input(of(ids.value), &p.d_v, &mut p.d_normed, Into::Add);
        p.dx.copy_from_slice(&p.d_middle);
        self.norm.backward_input(of(ids.attention_norm), &kept.x, &kept.factors, &p.d_normed, &mut p.dx);
    }

    /// Adds the gradients of the weights.
    ///
    /// # Errors
    /// What starting the exchange of a bucket ends with.
    pub fn backward_weight<T: Number>(
        &self,
        ids: &BlockIds,
        kept: &BlockActivations<T>,
        p: &Pending<T>,
        gradients: &mut dyn Gradients<T>,
    ) -> Result<()> {
        let linears: [(ParameterId, &Linear, &[T], &[T]); 7] = [
            (ids.down, &self.down, &kept.gated, &p.dy),
            (ids.gate, &self.gate_up, &kept.middle_normed, &p.d_gate),
            (ids.up, &self.gate_up, &kept.middle_normed, &p.d_up),
            (ids.output, &self.output, &kept.attended, &p.d_middle),
            (ids.value, &self.key_value, &kept.normed, &p.d_v),
            (ids.key, &self.key_value, &kept.normed, &p.d_k),
            (ids.query, &self.query, &kept.normed, &p.d_q),
        ];
        let norms = [
            (ids.mlp_norm, &kept.middle, &kept.middle_factors, &p.d_middle_normed),
            (ids.attention_norm, &kept.x, &kept.factors, &p.d_normed),
        ];
        // In the order of the layout: the norm of the gated unit lies between its matrices and those of attention.
        let (mlp, attention) = linears.split_at(3);
        for (linears, (norm, x, factors, dy)) in [mlp, attention].into_iter().zip(norms) {
            for (id, linear, x, dy) in linears {
                linear.backward_weight(x, dy, gradients.place(*id));
                gradients.finished(*id)?;
            }
            self.norm.backward_weight(x, factors, dy, gradients.place(norm));
            gradients.finished(norm)?;
        }
        Ok(())
    }
}
