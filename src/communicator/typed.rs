//! The calls on slices of elements.

use consort_kernels::{Element, ReduceOp};
use consort_memory::{Span, SpanMut};

use super::Communicator;
use super::surface::{collectives, method};
use crate::Rank;
use consort_types::blocks::Blocks;
use consort_types::call::Call;
use consort_types::error::{Error, Result};
use consort_types::varying::CallV;

/// Collectives that the caller waits for.
macro_rules! on_communicators {
    ($($row:tt)*) => {
        method! { {
            (&self) &[T], &mut [T], () ['a] 'a of self.size() => Result<()>;
            apart |call, input, output| self.execute(&call?, Span::of(input), SpanMut::of(output));
            in_place |call, buffer| {
                let both = SpanMut::of(buffer);
                self.execute(&call, both.read(), both)
            };
            varying |call, input, output| self.execute_v(&call, Span::of(input), SpanMut::of(output));
        } $($row)* }
    };
}

impl Communicator {
    collectives!(on_communicators);

    /// As [`Communicator::all_gather`]; the input is this rank's block of `buffer`.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] when the length is no multiple of `size()`; otherwise as
    /// [`Communicator::all_reduce`].
    pub fn all_gather_in_place<T: Element>(&self, buffer: &mut [T]) -> Result<()> {
        let (count, own, all) = self.in_blocks(buffer, true)?;
        self.execute(&Call::all_gather(T::DATA_TYPE, count), own.read(), all)
    }

    /// As [`Communicator::reduce_scatter`]; the output is this rank's block of `buffer`. The other blocks are
    /// unspecified afterwards.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] when the length is no multiple of `size()`; otherwise as
    /// [`Communicator::all_reduce`].
    pub fn reduce_scatter_in_place<T: Element>(&self, buffer: &mut [T], op: ReduceOp) -> Result<()> {
        let (count, own, all) = self.in_blocks(buffer, true)?;
        self.execute(&Call::reduce_scatter(T::DATA_TYPE, op, count), all.read(), own)
    }

    /// As [`Communicator::gather`]; the root passes the blocks of all ranks with its own in place, the others pass
    /// theirs, which stays as it is.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] when the root's length is no multiple of `size()`; otherwise as
    /// [`Communicator::all_reduce`].
    pub fn gather_in_place<T: Element>(&self, buffer: &mut [T], root: Rank) -> Result<()> {
        let (count, own, all) = self.in_blocks(buffer, self.rank() == root)?;
        self.execute(&Call::gather(T::DATA_TYPE, count, root), own.read(), all)
    }

    /// As [`Communicator::scatter`]; the root passes the blocks of all ranks, which stay as they are, the others a
    /// buffer for theirs.
    ///
    /// # Errors
    /// As [`Communicator::gather_in_place`].
    pub fn scatter_in_place<T: Element>(&self, buffer: &mut [T], root: Rank) -> Result<()> {
        let (count, own, all) = self.in_blocks(buffer, self.rank() == root)?;
        self.execute(&Call::scatter(T::DATA_TYPE, count, root), all.read(), own)
    }

    /// Elements of a block, this rank's block, and the blocks of all ranks; where the rank does not have all, its own is the
    /// buffer.
    fn in_blocks<'a, T: Element>(
        &self,
        buffer: &'a mut [T],
        has_all: bool,
    ) -> Result<(usize, SpanMut<'a>, SpanMut<'a>)> {
        let count = if has_all { block(buffer.len(), self.size())? } else { buffer.len() };
        let (all, bytes) = (SpanMut::of(buffer), count * size_of::<T>());
        if !has_all {
            return Ok((count, all, SpanMut::empty()));
        }
        Ok((count, all.slice(self.rank() as usize * bytes, bytes), all))
    }
}

/// Elements of each of `size` equal blocks.
pub(crate) fn block(elements: usize, size: u32) -> Result<usize> {
    if !elements.is_multiple_of(size as usize) {
        return Err(Error::invalid(
            format!("a buffer of {elements} elements has no {size} equal blocks"),
            "pass size() times as many elements as one rank's block",
        ));
    }
    Ok(elements / size as usize)
}
