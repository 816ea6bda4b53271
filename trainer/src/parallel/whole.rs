//! The whole model on one rank, from what each rank has of it.
//!
//! Invariant: of the ranks that have an element, one gives it and the others give zero, so that the sum is the element,
//! exactly.

use consort::ReduceOp;

use crate::error::Result;
use crate::mesh::{Mesh, Place};
use crate::number::Number;
use crate::parameters::{Layout, Shared, Values};

/// The elements of `whole`, a layout of all parameters, on rank 0, from those of `own`, this rank's. All ranks call it.
///
/// # Errors
/// [`Error::Memory`](crate::error::Error::Memory); what the reduce ends with.
///
/// # Panics
/// If `whole` lacks a parameter of this rank.
pub fn gather<T: Number>(
    mesh: &Mesh<'_>,
    own: &Layout,
    values: &Values<T>,
    whole: &Layout,
) -> Result<Option<Values<T>>> {
    let mut all = Values::zeros(whole)?;
    let Place { data, context, tensor, .. } = mesh.place();
    for (id, parameter) in own.parameters().filter(|_| data == 0 && context == 0) {
        if tensor > 0 && parameter.shared != Shared::Split {
            continue;
        }
        let mut named = whole.parameters().filter(|(_, other)| other.name == parameter.name);
        let (target, _) = named.next().expect("the whole model has each parameter of a part");
        let target = all.of_mut(whole, target);
        parameter.numbers().zip(values.of(own, id)).for_each(|(number, value)| target[number] = *value);
    }
    let Some(world) = mesh.world() else { return Ok(Some(all)) };
    for bucket in all.buckets_mut() {
        world.reduce(bucket, ReduceOp::Sum, 0)?;
    }
    Ok((world.rank() == 0).then_some(all))
}
