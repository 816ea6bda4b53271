//! A block: attention, then a gated unit, each behind a norm and added to what came in.
//!
//! In backward of each half the gradients of its matrices are made while the ranks of the layer sum the gradient of its input.

use crate::error::Result;
use crate::layers::attention::Attention;
use crate::layers::linear::Linear;
use crate::layers::ring::Room;
use crate::model::attend::{self, Attend};
use crate::model::gated::{self, Gated};
use crate::model::{Cut, DEVIATION, Given, Lengths, Shape};
use crate::number::Number;
use crate::parameters::{Begin, Gradients, Parameter, ParameterId, Shared};
use crate::products::Products;
use crate::ranks::Joint;

/// The parameters of a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlockIds {
    gated: gated::Ids,
    attend: attend::Ids,
}

/// What forward keeps of a block, and backward reads.
pub struct BlockActivations<T> {
    /// What came in.
    pub x: Vec<T>,
    attend: attend::Kept<T>,
    /// What came in, with attention added.
    middle: Vec<T>,
    gated: gated::Kept<T>,
}

/// Gradients of a block's inside, from which those of its weights are made.
pub struct Pending<T> {
    /// The gradient of what goes out.
    pub dy: Joint<T>,
    /// The gradient of what came in.
    pub dx: Joint<T>,
    gated: gated::Pending<T>,
    middle: Joint<T>,
    attend: attend::Pending<T>,
}

/// A block's layers.
#[derive(Clone, Copy, Debug)]
pub struct Block {
    attend: Attend,
    gated: Gated,
}

/// The deviation with which begins what is added to the residual stream: smaller by the number of such additions (GPT-2).
pub(super) fn added(shape: &Shape) -> f64 {
    DEVIATION / (2.0 * shape.layers as f64).sqrt()
}

/// The scales of a norm between half blocks.
pub(super) fn norm(name: String, shape: &Shape, cut: &Cut) -> Parameter {
    let shared = if cut.shares_tokens { Shared::Summed } else { Shared::Same };
    Parameter { shared, ..Parameter::new(name, [1, shape.width], Begin::Ones) }
}

/// The parameters of block `layer`, in the order in which backward finishes their gradients.
pub(super) fn parameters(shape: &Shape, cut: &Cut, layer: usize) -> impl Iterator<Item = Parameter> {
    let (gated, attend) = (gated::parameters(shape, cut, layer), attend::parameters(shape, cut, layer));
    gated.into_iter().chain(attend)
}

impl BlockIds {
    /// From the numbers of what [`parameters`] returned.
    pub(super) fn new(ids: &mut impl Iterator<Item = ParameterId>) -> Self {
        let mut next = || ids.next().expect("the layout has the parameters of each block");
        let gated = gated::Ids::new(std::array::from_fn(|_| next()));
        BlockIds { gated, attend: attend::Ids::new(std::array::from_fn(|_| next())) }
    }
}

impl<T: Number> BlockActivations<T> {
    /// Room for `tokens` tokens.
    pub fn new(lengths: &Lengths, tokens: usize) -> Self {
        let room = || vec![T::ZERO; tokens / lengths.sharers * lengths.width];
        BlockActivations {
            x: room(),
            attend: attend::Kept::new(lengths, tokens),
            middle: room(),
            gated: gated::Kept::new(lengths, tokens),
        }
    }
}

impl<T: Number> Pending<T> {
    /// Room for `tokens` tokens.
    pub fn new(lengths: &Lengths, tokens: usize) -> Self {
        let joint = || Joint::new(tokens, lengths.width, lengths.sharers);
        Pending {
            dy: joint(),
            dx: joint(),
            gated: gated::Pending::new(lengths, tokens),
            middle: joint(),
            attend: attend::Pending::new(lengths, tokens),
        }
    }
}

impl Block {
    /// The block of a rank's lengths.
    pub fn new(lengths: &Lengths, products: Products) -> Self {
        Block { attend: Attend::new(lengths, products), gated: Gated::new(lengths, products) }
    }

    /// What of attention the block has.
    pub fn attention(&self) -> &Attention {
        self.attend.attention()
    }

    /// What goes out for `kept.x`.
    ///
    /// # Errors
    /// What joining the ranks of a layer ends with.
    pub fn forward<T: Number>(
        &self,
        ids: &BlockIds,
        given: Given<'_, T>,
        kept: &mut BlockActivations<T>,
        y: &mut [T],
        (sums, room): (&mut Joint<T>, &mut Room<T>),
    ) -> Result<()> {
        let BlockActivations { x, attend, middle, gated } = kept;
        middle.copy_from_slice(x);
        self.attend.forward(&ids.attend, given, x, attend, middle, (sums, room))?;
        y.copy_from_slice(middle);
        self.gated.forward(&ids.gated, given, middle, gated, y, sums)
    }

    /// From `pending.dy`, this rank's tokens of it, the gradient of what came in, in `pending.dx`; adds the gradients of the
    /// weights to `gradients`.
    ///
    /// # Errors
    /// What joining the ranks of a layer, or starting the exchange of a bucket, ends with.
    pub fn backward<T: Number>(
        &self,
        ids: &BlockIds,
        given: Given<'_, T>,
        kept: &BlockActivations<T>,
        (pending, room): (&mut Pending<T>, &mut Room<T>),
        gradients: &mut dyn Gradients<T>,
    ) -> Result<()> {
        let Pending { dy, dx, gated, middle, attend } = pending;
        dy.gather(&given.ranks.tensor)?;
        middle.own_mut().copy_from_slice(dy.own());
        let before = (&kept.middle[..], &kept.gated);
        self.gated.backward(&ids.gated, given, before, dy, gated, (middle.own_mut(), gradients))?;
        middle.gather(&given.ranks.tensor)?;
        dx.own_mut().copy_from_slice(middle.own());
        let (before, dx) = ((&kept.x[..], &kept.attend), dx.own_mut());
        self.attend.backward(&ids.attend, given, before, middle, (attend, room), (dx, gradients))
    }
}

/// Adds the gradients of matrices: for each what came in, and the gradient of what went out.
///
/// # Errors
/// What starting the exchange of a bucket ends with.
pub(super) fn weights<T: Number>(
    linears: &[(ParameterId, &Linear, &[T], &[T])],
    gradients: &mut dyn Gradients<T>,
) -> Result<()> {
    for (id, linear, x, dy) in linears {
        linear.backward_weight(x, dy, gradients.place(*id));
        gradients.finished(*id)?;
    }
    Ok(())
}
