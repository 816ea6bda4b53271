//! A block: attention, then a gated unit or experts, each behind a norm and added to what came in.
//!
//! In backward of each half the gradients of its matrices are made while the ranks of the layer sum the gradient of its input.

use crate::error::Result;
use crate::layers::attention::Attention;
use crate::layers::linear::Linear;
use crate::layers::ring::Room;
use crate::model::attend::{self, Attend};
use crate::model::gated::{self, Gated};
use crate::model::mixture::{self, Mixture};
use crate::model::{Cut, DEVIATION, Experts, Given, Lengths, Shape};
use crate::number::Number;
use crate::parameters::{Begin, Gradients, Parameter, ParameterId, Shared};
use crate::products::Products;
use crate::ranks::Joint;
use crate::routes::Routes;

/// The parameters of a block.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BlockIds {
    second: Second<gated::Ids, mixture::Ids>,
    attend: attend::Ids,
}

/// Something of the second half, which is one of two.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Second<G, M> {
    /// A gated unit.
    Gated(G),
    /// Experts.
    Mixture(M),
}

/// What forward keeps of a block, and backward reads.
pub struct BlockActivations<T> {
    /// What came in.
    pub x: Vec<T>,
    attend: attend::Kept<T>,
    /// What came in, with attention added.
    middle: Vec<T>,
    second: Second<gated::Kept<T>, mixture::Kept<T>>,
}

/// Gradients of a block's inside, from which those of its weights are made.
pub struct Pending<T> {
    /// The gradient of what goes out.
    pub dy: Joint<T>,
    /// The gradient of what came in.
    pub dx: Joint<T>,
    second: Second<gated::Pending<T>, mixture::Pending<T>>,
    middle: Joint<T>,
    attend: attend::Pending<T>,
}

/// A block's layers.
#[derive(Clone, Copy, Debug)]
pub struct Block {
    attend: Attend,
    second: Second<Gated, Mixture>,
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
    let second = match shape.experts {
        None => gated::parameters(shape, cut, layer).to_vec(),
        Some(experts) => mixture::parameters(shape, experts, cut, layer),
    };
    second.into_iter().chain(attend::parameters(shape, cut, layer))
}

impl BlockIds {
    /// From the numbers of what [`parameters`] returned; `own_experts` are this rank's, if there are any.
    pub(super) fn new(own_experts: Option<usize>, ids: &mut impl Iterator<Item = ParameterId>) -> Self {
        let mut next = || ids.next().expect("the layout has the parameters of each block");
        let second = match own_experts {
            None => Second::Gated(gated::Ids::new(std::array::from_fn(|_| next()))),
            Some(own) => Second::Mixture(mixture::Ids::new(own, &mut next)),
        };
        BlockIds { second, attend: attend::Ids::new(std::array::from_fn(|_| next())) }
    }
}

impl<T: Number> BlockActivations<T> {
    /// Room for `tokens` tokens.
    pub fn new(lengths: &Lengths, experts: Option<Experts>, tokens: usize) -> Self {
        let room = || vec![T::ZERO; tokens / lengths.sharers * lengths.width];
        BlockActivations {
            x: room(),
            attend: attend::Kept::new(lengths, tokens),
            middle: room(),
            second: match experts {
                None => Second::Gated(gated::Kept::new(lengths, tokens)),
                Some(experts) => {
                    Second::Mixture(mixture::Kept::new(lengths, experts, tokens / lengths.sharers))
                }
            },
        }
    }
}

impl<T: Number> Pending<T> {
    /// Room for `tokens` tokens.
    pub fn new(lengths: &Lengths, experts: Option<Experts>, tokens: usize) -> Self {
        let joint = || Joint::new(tokens, lengths.width, lengths.sharers);
        Pending {
            dy: joint(),
            dx: joint(),
            second: match experts {
                None => Second::Gated(gated::Pending::new(lengths, tokens)),
                Some(experts) => {
                    Second::Mixture(mixture::Pending::new(lengths, experts, tokens / lengths.sharers))
                }
            },
            middle: joint(),
            attend: attend::Pending::new(lengths, tokens),
        }
    }
}

impl Block {
    /// The block of a rank's lengths.
    pub fn new(lengths: &Lengths, experts: Option<Experts>, products: Products) -> Self {
        let second = match experts {
            None => Second::Gated(Gated::new(lengths, products)),
            Some(experts) => Second::Mixture(Mixture::new(lengths, experts, products)),
        };
        Block { attend: Attend::new(lengths, products), second }
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
        (sums, room, routes): (&mut Joint<T>, &mut Room<T>, Option<&mut (dyn Routes<T> + 'static)>),
    ) -> Result<()> {
        let BlockActivations { x, attend, middle, second } = kept;
        middle.copy_from_slice(x);
        self.attend.forward(&ids.attend, given, x, attend, middle, (sums, room))?;
        y.copy_from_slice(middle);
        match (&self.second, &ids.second, second) {
            (Second::Gated(half), Second::Gated(ids), Second::Gated(kept)) => {
                half.forward(ids, given, middle, kept, y, sums)
            }
            (Second::Mixture(half), Second::Mixture(ids), Second::Mixture(kept)) => {
                let routes = routes.expect("experts have ways to them");
                half.forward(ids, given, (middle, kept), (y, sums.own_mut()), routes)
            }
            _ => unreachable!("a block has one second half"),
        }
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
        (pending, room, routes): (&mut Pending<T>, &mut Room<T>, Option<&mut (dyn Routes<T> + 'static)>),
        gradients: &mut dyn Gradients<T>,
    ) -> Result<()> {
        let Pending { dy, dx, second, middle, attend } = pending;
        middle.own_mut().copy_from_slice(dy.own());
        let x = &kept.middle[..];
        match (&self.second, &ids.second, &kept.second, second) {
            (Second::Gated(half), Second::Gated(ids), Second::Gated(kept), Second::Gated(pending)) => {
                dy.gather(&given.ranks.tensor)?;
                half.backward(ids, given, (x, kept), dy, pending, (middle.own_mut(), gradients))?;
            }
            (
                Second::Mixture(half),
                Second::Mixture(ids),
                Second::Mixture(kept),
                Second::Mixture(pending),
            ) => {
                let routes = routes.expect("experts have ways to them");
                let dy = dy.own();
                half.backward(ids, given, (x, kept), (dy, pending), (middle.own_mut(), gradients), routes)?;
            }
            _ => unreachable!("a block has one second half"),
        }
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
