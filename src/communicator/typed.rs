//! The calls on slices of elements.

use consort_kernels::{Element, ReduceOp};
use consort_memory::{Lease, Span, SpanMut};

use super::Communicator;
use super::surface::{collectives, method};
use crate::Rank;
use crate::communicator::Work;
use crate::engine::{Memory, Source, Start};
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

    /// Starts an all-reduce in place that goes on by itself; the buffer comes back from
    /// [`Work::wait`](crate::Work::wait).
    ///
    /// ```
    /// use consort::{Communicator, ReduceOp};
    ///
    /// let ranks = Communicator::local(1)?;
    /// let work = ranks[0].start_all_reduce(vec![1i32, 2, 3], ReduceOp::Sum)?;
    /// // ... compute ...
    /// assert_eq!(work.wait()?, [1, 2, 3]);
    /// # consort::Result::Ok(())
    /// ```
    ///
    /// # Errors
    /// What can be seen at once; the rest comes from [`Work::wait`](crate::Work::wait).
    pub fn start_all_reduce<T: Element>(&self, buffer: Vec<T>, op: ReduceOp) -> Result<Work<T>> {
        let call = Call::all_reduce(T::DATA_TYPE, op, buffer.len());
        self.start(call, buffer)
    }

    /// Starts a broadcast in place that goes on by itself.
    ///
    /// # Errors
    /// As [`Communicator::start_all_reduce`].
    pub fn start_broadcast<T: Element>(&self, buffer: Vec<T>, root: Rank) -> Result<Work<T>> {
        let call = Call::broadcast(T::DATA_TYPE, buffer.len(), root);
        self.start(call, buffer)
    }

    /// Starts an in-place all-gather that goes on by itself; this rank's block of `buffer` is the input.
    ///
    /// # Errors
    /// As [`Communicator::start_all_reduce`].
    pub fn start_all_gather<T: Element>(&self, buffer: Vec<T>) -> Result<Work<T>> {
        let call = Call::all_gather(T::DATA_TYPE, block(buffer.len(), self.size())?);
        self.start(call, buffer)
    }

    fn start<T: Element>(&self, call: Call, buffer: Vec<T>) -> Result<Work<T>> {
        self.core().check()?;
        let lease = Lease::new(buffer);
        let held = lease.hold();
        let whole = held.span();
        let in_bytes = call.input_bytes(self.rank(), self.size());
        // Only all-gather reads a part of what it writes: its own block. A rank without input reads nothing.
        let offset =
            if in_bytes != 0 && whole.len() > in_bytes { self.rank() as usize * in_bytes } else { 0 };
        call.check(self.rank(), self.size(), whole.read().slice(offset, in_bytes), whole)?;
        let source = Source::Within(lease.hold(), offset, in_bytes);
        let call = self.with_own_algorithm(call);
        let memory = Memory { input: source, output: Some(held), _kept: Vec::new() };
        let calls = vec![Start { call, blocks: None, memory }];
        let ticket = self.core().start(self.process(), calls, self.timeout())?;
        Ok(Work::new(self.core().clone(), self.process().clone(), ticket, lease))
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
