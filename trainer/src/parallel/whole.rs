//! The whole model on one rank, from what each rank has of it.
//!
//! Invariant: of the ranks that have an element, one gives it and the others give zero, so that the sum is the element,
//! exactly.

use std::collections::HashMap;

use consort::{Communicator, ReduceOp};

use crate::error::Result;
use crate::mesh::{Mesh, Place};
use crate::number::Number;
use crate::parameters::{Group, Layout, ParameterId, Values};

/// The elements of `whole`, a layout of all parameters, on rank 0, from those of `own`, this rank's. All ranks call it.
///
/// # Errors
/// [`Error::Memory`](crate::error::Error::Memory); what the reduce ends with.
pub fn gather<T: Number>(
    mesh: &Mesh<'_>,
    own: &Layout,
    values: &Values<T>,
    whole: &Layout,
) -> Result<Option<Values<T>>> {
    let Place { data, context, tensor, .. } = mesh.place();
    // Of ranks with the same experts one gives them.
    let is_first = |group| match group {
        Group::All => data == 0 && context == 0,
        Group::Experts => data / mesh.degrees().expert == 0 && context == 0,
    };
    let mut given: HashMap<&str, ParameterId> = HashMap::new();
    for (id, parameter) in own.parameters() {
        if is_first(parameter.group) && parameter.is_counted(tensor) {
            given.insert(&parameter.name, id);
        }
    }
    let rank = mesh.world().map_or(0, Communicator::rank);
    let mut all = if rank == 0 { Some(Values::zeros(whole)?) } else { None };
    // A rank that does not keep the model has room for a bucket of it.
    let mut room = Vec::new();
    for bucket in 0..whole.buckets() {
        room.clear();
        room.resize(whole.bucket_elements(bucket), T::ZERO);
        for (id, parameter) in whole.parameters().filter(|(id, _)| whole.bucket(*id) == bucket) {
            let Some(from) = given.get(parameter.name.as_str()) else { continue };
            let place = &mut room[whole.range(id)];
            let elements = own.parameter(*from).numbers().zip(values.of(own, *from));
            elements.for_each(|(number, value)| place[number] = *value);
        }
        if let Some(world) = mesh.world() {
            world.reduce(&mut room, ReduceOp::Sum, 0)?;
        }
        if let Some(all) = &mut all {
            all.bucket_mut(bucket).copy_from_slice(&room);
        }
    }
    Ok(all)
}
